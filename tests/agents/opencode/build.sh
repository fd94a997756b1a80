#!/usr/bin/env bash
# Assembles the root tree of an image with opencode, a published ACP agent, unmodified from its npm package.
#
#   build.sh OUTPUT_ROOTFS_DIR    writes the tree (replacing one that is there)
#   build.sh --package-sha256     prints the SHA-256 of the binary inside the npm package
#   build.sh --package-version    prints the version of that package
#
# Beside the agent stands only what it needs: the C library of this machine, a static busybox for its shell tool, a static ripgrep for
# its grep tool (it downloads one otherwise), and a configuration folder it finds complete (it installs a plugin otherwise).
# What the image's environment must hold is in image.env.
source "$(dirname "${BASH_SOURCE[0]}")/../tree.sh"

(($# == 1)) || die "usage: build.sh OUTPUT_ROOTFS_DIR | --package-sha256 | --package-version"
case $1 in
  --package-version)
    version_of opencode opencode-linux-x64
    exit
    ;;
  --package-sha256)
    tmp=$(mktemp -d)
    trap 'rm -rf "$tmp"' EXIT
    npm_packages opencode "$tmp"
    sha256_of "$tmp/node_modules/opencode-linux-x64/bin/opencode"
    exit
    ;;
esac

begin_tree opencode "$1"
make_mount_points
bring_busybox
install -m 0755 "$modules/opencode-linux-x64/bin/opencode" "$new/usr/bin/opencode"
install -m 0755 "$modules/@vscode/ripgrep-linux-x64/bin/rg" "$new/usr/bin/rg"
bring_libraries "$new/usr/bin/opencode"

# An ignore file marks the folder as set up.
mkdir -p "$new"/usr/share/{opencode,xdg-config/opencode}
printf 'node_modules\npackage.json\nbun.lock\n.gitignore\n' >"$new/usr/share/xdg-config/opencode/.gitignore"

package_sha256=$(sha256_of "$modules/opencode-linux-x64/bin/opencode")
image_sha256=$(sha256_of "$new/usr/bin/opencode")
[[ $image_sha256 == "$package_sha256" ]] || die "the binary in the tree differs from the one in the package"
printf '{"package": "opencode-linux-x64@%s", "packageBinarySHA256": "%s", "imageBinarySHA256": "%s"}\n' \
  "$(version_of opencode opencode-linux-x64)" "$package_sha256" "$image_sha256" >"$new/usr/share/opencode/origin.json"
end_tree
