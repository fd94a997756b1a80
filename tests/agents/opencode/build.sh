#!/usr/bin/env bash
# Assembles the root tree of an image with opencode, a published ACP agent, unmodified from its npm package.
#
#   build.sh OUTPUT_ROOTFS_DIR    writes the tree (replacing one that is there)
#   build.sh --package-sha256     prints the SHA-256 of the binary inside the npm package
#   build.sh --package-version    prints the version of that package
#
# Beside the agent stands only what it needs: the C library of this machine, a static busybox for its shell tool, a static ripgrep for
# its grep tool (it downloads one otherwise), and a configuration folder it finds complete (it installs a plugin otherwise).
# What the image's environment must hold is in image.env. Downloads are kept in the cache, checked against the digests here.
source "$(dirname "${BASH_SOURCE[0]}")/../../../hack/env.sh"

# `npm view PACKAGE@VERSION dist.integrity` gives the digest when a version is raised.
OPENCODE=opencode-linux-x64@1.18.33
OPENCODE_SHA512=q/t/3p2CTxOT9y2kvjesb/LZab2+1eqlhhWA02Be6mjTtmYtNBcBsrI5yDo4Fw7ZSPBW2oyMIGMNRqiKQjiAWw==
RIPGREP=@vscode/ripgrep-linux-x64@1.18.0
RIPGREP_SHA512=mQ3bVrUpnD2vs7QT0vX90Lt0cnUq467uFtEktIdsJJmW296RoSULRGqWgzG1AKxyBpNDD6l4ZO4qKf6SgyC23Q==

sha512_of() { node -p 'require("crypto").createHash("sha512").update(require("fs").readFileSync(process.argv[1])).digest("base64")' "$1"; }
sha256_of() { sha256sum "$1" | cut -d' ' -f1; }

# npm_tarball PACKAGE@VERSION SHA512: prints the path of the checked tarball in the cache.
npm_tarball() {
  local package=$1 sha512=$2 name tarball tmp
  name=${package#@}
  tarball=$CACHE/npm/${name//[\/@]/-}.tgz
  if [[ ! -f $tarball || $(sha512_of "$tarball") != "$sha512" ]]; then
    say "fetching $package through npm"
    mkdir -p "$CACHE/npm"
    tmp=$(mktemp -d "$CACHE/npm/fetch.XXXXXX")
    (cd "$tmp" && npm pack --silent "$package" >/dev/null) || die "npm could not fetch $package"
    mv "$tmp"/*.tgz "$tarball"
    rmdir "$tmp"
    [[ $(sha512_of "$tarball") == "$sha512" ]] || die "$package is not the package it was: its digest differs from the one in ${BASH_SOURCE[0]}"
  fi
  printf '%s\n' "$tarball"
}

[[ $(uname -m) == x86_64 ]] || die "the opencode image is built on x86_64 only; its packages are pinned for that"
for tool in node npm tar ldd; do
  command -v "$tool" >/dev/null || die "$tool is needed to build the opencode image"
done
(($# == 1)) || die "usage: build.sh OUTPUT_ROOTFS_DIR | --package-sha256 | --package-version"
if [[ $1 == --package-version ]]; then
  printf '%s\n' "${OPENCODE##*@}"
  exit
fi

opencode_tarball=$(npm_tarball "$OPENCODE" "$OPENCODE_SHA512")
package_sha256=$(tar -xzOf "$opencode_tarball" package/bin/opencode | sha256sum | cut -d' ' -f1)
if [[ $1 == --package-sha256 ]]; then
  printf '%s\n' "$package_sha256"
  exit
fi

out=$1
new=$out.new
rm -rf "$new"
# Volumes are mounted over the last four; they exist because a read-only root cannot grow them.
mkdir -p "$new"/{bin,usr/bin,usr/share/opencode,usr/share/xdg-config/opencode,lib64,proc,sys,dev,tmp,home/agent,workspace}

tar -xzOf "$opencode_tarball" package/bin/opencode >"$new/usr/bin/opencode"
tar -xzOf "$(npm_tarball "$RIPGREP" "$RIPGREP_SHA512")" package/bin/rg >"$new/usr/bin/rg"
cp "$("$ROOT/hack/static-busybox.sh")" "$new/bin/busybox"
chmod 0755 "$new/usr/bin/opencode" "$new/usr/bin/rg" "$new/bin/busybox"
"$new/bin/busybox" --list | while read -r applet; do
  [[ $applet == busybox ]] || ln -s busybox "$new/bin/$applet"
done

# The C library, under the names and paths the dynamic loader asks for.
ldd "$new/usr/bin/opencode" | grep -oE '/[^ ]+ \(0x' | cut -d' ' -f1 | while read -r library; do
  mkdir -p "$new$(dirname "$library")"
  cp -L "$library" "$new$library"
done

# An ignore file marks the folder as set up.
printf 'node_modules\npackage.json\nbun.lock\n.gitignore\n' >"$new/usr/share/xdg-config/opencode/.gitignore"

image_sha256=$(sha256_of "$new/usr/bin/opencode")
[[ $image_sha256 == "$package_sha256" ]] || die "the binary in the tree differs from the one in the package"
printf '{"package": "%s", "packageBinarySHA256": "%s", "imageBinarySHA256": "%s"}\n' \
  "$OPENCODE" "$package_sha256" "$image_sha256" >"$new/usr/share/opencode/origin.json"

# The same content gives the same image, whenever it was built.
find "$new" -exec touch -h -d @0 {} +
rm -rf "$out"
mv "$new" "$out"
say "opencode image tree: $OPENCODE, binary sha256 $image_sha256, $(du -sh "$out" | cut -f1) in $out"
