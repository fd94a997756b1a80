#!/usr/bin/env bash
# Prints the path of the tests' S3 server (tests/s3), after building it if these sources were not built before.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

src=$ROOT/tests/s3
key=$( { go version; cd "$src"; digest .; } | sha256sum | cut -c1-16)
out=$CACHE/s3-$key

build() {
  [[ -x $out ]] && return
  say "building the tests' S3 server"
  (cd "$src" && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$out.new" .) >&2
  mv "$out.new" "$out"
  find "$CACHE" -maxdepth 1 -name 's3-*' ! -path "$out" -mtime +1 -delete
}

[[ -x $out ]] || once "$CACHE/s3.lock" build
printf '%s\n' "$out"
