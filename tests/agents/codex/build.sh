#!/usr/bin/env bash
# Assembles the root tree of an image with codex-acp, a published ACP agent, unmodified from its npm packages, without what a pod does
# not use: speech, and the host of scripts that models write for its own orchestration. It goes on top of the tree of ../node.
#
#   build.sh OUTPUT_ROOTFS_DIR    writes the tree (replacing one that is there)
#   build.sh --package-version    prints the version of the agent's package
source "$(dirname "${BASH_SOURCE[0]}")/../tree.sh"
(($# == 1)) || die "usage: build.sh OUTPUT_ROOTFS_DIR | --package-version"
if [[ $1 == --package-version ]]; then
  version_of codex @agentclientprotocol/codex-acp
  exit
fi

begin_tree codex "$1"
mkdir -p "$new"/{usr/bin,opt/codex}
mv "$modules" "$new/opt/codex/node_modules"
ln -s ../../opt/codex/node_modules/@agentclientprotocol/codex-acp/dist/index.js "$new/usr/bin/codex-acp"
chmod 0755 "$new/opt/codex/node_modules/@agentclientprotocol/codex-acp/dist/index.js"
vendor=$new/opt/codex/node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl
rm -r "$vendor/codex-resources/voice" "$vendor/bin/codex-code-mode-host"
# The part of its configuration that it reads only when it starts, and that CODEX_CONFIG does not reach.
mkdir -p "$new/etc/codex"
cat >"$new/etc/codex/config.toml" <<'END'
# Plugins are looked for outside; where nothing answers, every end of the agent waits for that.
[features]
plugins = false
END
end_tree
