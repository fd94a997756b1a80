#!/usr/bin/env bash
# Prints the path of the root tree of an image that is assembled, not compiled: a published agent from its packages, node below it, or git.
# It is kept in the cache by what it follows from: its build script, its packages, and programs and C library of this machine.
#   hack/image-tree.sh opencode|node|claude|codex|git
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

(($# == 1)) && [[ -x $ROOT/tests/agents/$1/build.sh ]] || die "usage: hack/image-tree.sh NAME, a folder of tests/agents with a build.sh"
name=$1

tree_key() {
  {
    cd "$ROOT/tests/agents"
    digest tree.sh "$name" -not -name '*.md' -not -name '*.mjs' -not -name '*.yaml' -not -name image.env
    ldd --version | sed -n 1p
    bash --version | sed -n 1p
    git --version || true
  } | sha256sum | cut -c1-16
}

assemble() {
  [[ ! -d $tree ]] || return 0
  say "assembling the tree of image $name"
  "$ROOT/tests/agents/$name/build.sh" "$tree" >&2
  # A developer makes many of these; a day later nobody asks for the older ones.
  find "$CACHE" -maxdepth 1 -name "$name-*" ! -path "$tree" -mmin +1440 -exec rm -rf {} +
}

key=$(tree_key)
tree=$CACHE/$name-$key
[[ -d $tree ]] || once "$CACHE/$name.lock" assemble
printf '%s\n' "$tree"
