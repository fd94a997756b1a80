#!/usr/bin/env bash
# Prints the path of Debian's static busybox in the cache: the shell of images that need one. The package is unpacked, not
# installed: apt has checked its signature.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

out=$CACHE/busybox-static
if [[ ! -x $out/busybox ]]; then
  for tool in apt-get dpkg-deb; do
    command -v "$tool" >/dev/null || die "the image needs a static busybox; this machine has no $tool to fetch Debian's busybox-static"
  done
  say "fetching busybox-static through apt"
  mkdir -p "$CACHE"
  tmp=$(mktemp -d "$CACHE/busybox.XXXXXX")
  # Without the sandbox user, who may not write into root's cache. The lists of a fresh machine are empty.
  (cd "$tmp" && { apt-get -q -o APT::Sandbox::User=root download busybox-static \
    || { apt_update && apt-get -q -o APT::Sandbox::User=root download busybox-static; }; }) >&2 2>&1 \
    || die "apt could not fetch busybox-static"
  dpkg-deb -x "$tmp"/busybox-static_*.deb "$tmp/tree"
  mkdir -p "$out"
  mv "$tmp/tree/bin/busybox" "$out/busybox"
  rm -rf "$tmp"
fi
printf '%s\n' "$out/busybox"
