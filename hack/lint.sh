#!/usr/bin/env bash
# Generated files, formatting, compiler and linter warnings, documentation, chart. All of them, also when one fails.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"

failed=()
check() {
  local what=$1
  shift
  say "lint: $what"
  "$@" || failed+=("$what")
}

go_module() {
  local unformatted
  cd "$1"
  unformatted=$(gofmt -l .)
  [[ -z $unformatted ]] || { printf 'gofmt would change:\n%s\n' "$unformatted"; return 1; }
  # The flags of every build of these modules: with others Kubernetes is compiled again.
  CGO_ENABLED=0 go vet -trimpath -tags acceptance ./...
}

shell_scripts() {
  hack/debian-packages.sh "checking shell scripts" shellcheck:/usr/bin/shellcheck
  git grep -lzE '^#!.*bash' -- hack .ci tests images | xargs -0 shellcheck -x -P SCRIPTDIR -S warning
}

check "generated files" cargo run --quiet --locked -p xtask -- generate --check
check "rules that tests name" cargo run --quiet --locked -p xtask -- coverage-of-rules
check "cargo fmt" cargo fmt --all --check
check "cargo clippy" cargo clippy --workspace --all-targets --features e2e-tests/every-agent --locked --quiet -- -D warnings
RUSTDOCFLAGS="-D warnings" check "cargo doc" cargo doc --workspace --no-deps --locked --quiet
check "sabotage patches" cargo run --quiet --locked -p xtask -- sabotage --check
check "helm lint" "$ROOT/.cluster/bin/helm" lint --strict --quiet charts/subagent-operator
check "shell scripts" shell_scripts
for module in images/mkimage tests/cluster tests/s3; do
  check "go: $module" eval "( go_module $module )"
done

((${#failed[@]} == 0)) || die "failed: $(printf '%s; ' "${failed[@]}")"
say "lint: all well"
