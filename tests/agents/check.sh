#!/usr/bin/env bash
# Runs a published agent out of its image's tree over ACP, with the fake LLM as its only neighbour: no cluster, no network but
# loopback, a read-only root, user 1000 without capabilities. Needs root.
#
#   check.sh AGENT FAKE_LLM_BINARY [SCENE...]
#
# AGENT is a folder beside this script. The scenes are in check.mjs; all of them unless some are named.
source "$(dirname "${BASH_SOURCE[0]}")/../../hack/env.sh"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
(($# >= 2)) && [[ -f $here/$1/agent.mjs ]] || die "usage: check.sh opencode|claude|codex FAKE_LLM_BINARY [SCENE...]"

trees=("$("$ROOT/hack/image-tree.sh" "$1")")
[[ $1 == opencode ]] || trees=("$("$ROOT/hack/image-tree.sh" node)" "${trees[@]}")
CHECK_AGENT=$1
CHECK_FAKE_LLM=$(realpath "$2")
# Beside the trees, so that their files are linked and not copied.
CHECK_DIR=$(mktemp -d "$CACHE/check.XXXXXX")
export CHECK_AGENT CHECK_DIR CHECK_FAKE_LLM CHECK_HERE=$here
trap 'rm -rf "$CHECK_DIR"' EXIT

mkdir -p "$CHECK_DIR/root"
for tree in "${trees[@]}"; do
  cp -al --remove-destination "$tree/." "$CHECK_DIR/root/"
done

# Own mounts, own loopback, own processes: whatever the agent leaves behind ends with the last line.
# shellcheck disable=SC2016 # expands in there
unshare --mount --net --pid --fork --kill-child --mount-proc bash -euo pipefail -c '
  ip link set lo up
  root=$CHECK_DIR/root
  mount --bind "$root" "$root"
  mount -o remount,bind,ro "$root"
  mount --rbind /dev "$root/dev"
  mount -t proc proc "$root/proc"
  exec node "$CHECK_HERE/check.mjs" "$@"
' check "${@:3}"
