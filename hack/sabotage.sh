#!/usr/bin/env bash
# Shows that wrong code turns tests red: hack/sabotage.sh [PATCH...], all of tests/sabotage when none is named.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"

patches=(tests/sabotage/*.patch)
(($# == 0)) || patches=("${@/#/tests/sabotage/}") patches=("${patches[@]/%/.patch}")

beside=()
! grep -qsE '^# *red: *integration-tests ' "${patches[@]}" || beside=(tests/integration/with-api-server)

sabotage() {
  "${beside[@]}" "$@"
}

# The copy and its target folder are shared by those who share the target folder.
cargo build --quiet --locked -p xtask
once "$CARGO_TARGET_DIR/sabotage/lock" sabotage "$CARGO_TARGET_DIR/debug/xtask" sabotage "$@"
