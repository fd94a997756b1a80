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

# Prints the path of the kubeconfig that KUBECONFIG_DEMO names.
demo_kubeconfig() {
  [[ -f $KUBECONFIG_DEMO ]] || die "KUBECONFIG_DEMO names $KUBECONFIG_DEMO, which is no file; name the kubeconfig of your cluster, or leave the variable out to use the local cluster"
  realpath "$KUBECONFIG_DEMO"
}

# How long another apt is waited for, in seconds: an unattended upgrade takes minutes.
APT_PATIENCE=600

# Reads apt's package lists anew. For the lock of the lists apt itself does not wait.
apt_update() {
  local said deadline=$((SECONDS + APT_PATIENCE)) waits=
  until said=$(LC_ALL=C apt-get -q update 2>&1 >&3); do
    [[ $said == *"Could not get lock"* ]] && ((SECONDS < deadline)) || die "apt-get update: $said"
    [[ -n $waits ]] || say "waiting for another apt to end: ${said%%$'\n'*}"
    waits=1
    sleep 2
  done 3>&2
  [[ -z $said ]] || printf '%s\n' "$said" >&2
}

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
