#!/usr/bin/env bash
# Runs the agent out of its image tree as an ACP agent, with the fake LLM as its only neighbour: no cluster, no network but
# loopback, a read-only root, user 1000 without capabilities. Passes when a prompt with a fresh nonce is answered with the nonce's
# digest and the file the prompt asks for is in the working directory. Needs root.
#
#   check.sh ROOTFS_DIR FAKE_LLM_BINARY [asking|allowing|silent]
#
# The last word says how the agent is configured: to ask before it edits or runs anything, to allow it, or not at all.
source "$(dirname "${BASH_SOURCE[0]}")/../../../hack/env.sh"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
(($# >= 2)) || die "usage: check.sh ROOTFS_DIR FAKE_LLM_BINARY [asking|allowing|silent]"

export CHECK_ROOTFS=$1 CHECK_FAKE_LLM=$2 CHECK_PERMISSION=${3:-allowing} CHECK_HERE=$here
CHECK_DIR=$(mktemp -d)
export CHECK_DIR
trap 'rm -rf "$CHECK_DIR"' EXIT

# Own mounts, own loopback, own processes: whatever the agent leaves behind ends with the last line.
# shellcheck disable=SC2016 # expands in there
unshare --mount --net --pid --fork --kill-child --mount-proc bash -euo pipefail -c '
  ip link set lo up
  root=$CHECK_DIR/root
  mkdir -p "$root" "$CHECK_DIR/workspace"
  mount --bind "$CHECK_ROOTFS" "$root"
  mount -o remount,bind,ro "$root"
  mount --rbind /dev "$root/dev"
  mount -t proc proc "$root/proc"
  mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
  mount -t tmpfs -o uid=1000,gid=1000 tmpfs "$root/home/agent"
  chown 1000:1000 "$CHECK_DIR/workspace"
  mount --bind "$CHECK_DIR/workspace" "$root/workspace"
  exec node "$CHECK_HERE/check.mjs"
'
