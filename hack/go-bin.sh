#!/usr/bin/env bash
# Prints the path of a small Go program of this repository, after building it if its sources were not built before:
#   hack/go-bin.sh FOLDER        as in hack/go-bin.sh images/mkimage, hack/go-bin.sh tests/s3
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

(($# == 1)) && [[ -f $ROOT/$1/go.mod ]] || die "usage: hack/go-bin.sh FOLDER, with a Go module in it"
src=$ROOT/$1
name=$(basename "$src")
key=$( { go version; cd "$src"; digest .; } | sha256sum | cut -c1-16)
out=$CACHE/$name-$key

build() {
  [[ -x $out ]] && return
  say "building $name"
  (cd "$src" && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$out.new" .) >&2
  mv "$out.new" "$out"
  find "$CACHE" -maxdepth 1 -name "$name-*" ! -path "$out" -mtime +1 -delete
}

[[ -x $out ]] || once "$CACHE/$name.lock" build
printf '%s\n' "$out"
