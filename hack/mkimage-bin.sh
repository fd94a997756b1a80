#!/usr/bin/env bash
# Prints the path of the image builder (images/mkimage), after building it if these sources were not built before.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

src=$ROOT/images/mkimage
key=$( { go version; cd "$src"; digest .; } | sha256sum | cut -c1-16)
out=$CACHE/mkimage-$key

build() {
  [[ -x $out ]] && return
  say "building the image builder"
  (cd "$src" && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$out.new" .) >&2
  mv "$out.new" "$out"
  find "$CACHE" -maxdepth 1 -name 'mkimage-*' ! -path "$out" -mtime +1 -delete
}

[[ -x $out ]] || once "$CACHE/mkimage.lock" build
printf '%s\n' "$out"
