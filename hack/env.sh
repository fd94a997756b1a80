# Sourced by the other scripts: where things are, and how a script speaks.
# shellcheck shell=bash
set -euo pipefail
shopt -s inherit_errexit # a command that fails inside $(...) ends that, too

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Built things that many checkouts can share: outside of them all, and named by the digest of what they were built from.
CACHE=${SUBAGENT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/subagent-operator}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$CACHE/target}

# Cargo tells a changed source by its time, and takes the same package in two checkouts for one. So after another checkout
# has compiled into this folder, all sources here count as changed: what runs is always what is written here.
claim_target() {
  local owner=$CARGO_TARGET_DIR/.checkout
  [[ $(cat "$owner" 2>/dev/null) != "$ROOT" ]] || return 0
  find "$ROOT"/{crds,link,operator,worker,xtask,tests} -type f \( -name '*.rs' -o -name Cargo.toml \) -exec touch -c {} +
  mkdir -p "$CARGO_TARGET_DIR"
  printf '%s\n' "$ROOT" >"$owner"
}

# Only who compiles claims it: others would make every checkout compile again for nothing.
cargo() {
  claim_target
  command cargo "$@"
}

say() { printf '%s\n' ":: $*" >&2; }
die() { printf '%s\n' "error: $*" >&2; exit 1; }

# digest PATH... [CONDITION...]: one digest of the names and contents of files and trees, without tests of Go.
# Conditions are those of find.
digest() {
  find "$@" -type f ! -name '*_test.go' -print0 | LC_ALL=C sort -z | while IFS= read -r -d '' file; do
    printf '%s\n' "$file"
    cat -- "$file"
  done | sha256sum | cut -c1-16
}

# once LOCK COMMAND...: runs the command while no other process runs one with the same lock.
once() {
  local lock=$1
  shift
  mkdir -p "$(dirname "$lock")"
  ( flock -n 9 || { say "waiting for another build"; flock 9; }; "$@" 9>&- ) 9>"$lock"
}
