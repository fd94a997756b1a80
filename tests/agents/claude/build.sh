#!/usr/bin/env bash
# Assembles the root tree of an image with claude-agent-acp, a published ACP agent, unmodified from its npm packages. It goes on top of
# the tree of ../node.
#
#   build.sh OUTPUT_ROOTFS_DIR    writes the tree (replacing one that is there)
#   build.sh --package-version    prints the version of the agent's package
source "$(dirname "${BASH_SOURCE[0]}")/../tree.sh"
(($# == 1)) || die "usage: build.sh OUTPUT_ROOTFS_DIR | --package-version"
if [[ $1 == --package-version ]]; then
  version_of claude @agentclientprotocol/claude-agent-acp
  exit
fi

begin_tree claude "$1"
mkdir -p "$new"/{bin,usr/bin,opt/claude}
mv "$modules" "$new/opt/claude/node_modules"
ln -s ../../opt/claude/node_modules/@agentclientprotocol/claude-agent-acp/dist/index.js "$new/usr/bin/claude-agent-acp"
chmod 0755 "$new/opt/claude/node_modules/@agentclientprotocol/claude-agent-acp/dist/index.js"
# Its shell tool takes no other shell.
install -m 0755 "$(command -v bash)" "$new/bin/bash"
bring_libraries "$new/bin/bash" "$new/opt/claude/node_modules/@anthropic-ai/claude-agent-sdk-linux-x64/claude"
end_tree
