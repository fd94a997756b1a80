#!/usr/bin/env bash
# Assembles the root tree of an image with git, for init containers that clone a repository and for a server of one:
#   build.sh OUTPUT_ROOTFS_DIR
# It holds this machine's git with the libraries it needs, and a static busybox. It speaks git:// and file://; https needs
# helpers and certificates that are left out.
source "$(dirname "${BASH_SOURCE[0]}")/../../../hack/env.sh"

(($# == 1)) || die "usage: build.sh OUTPUT_ROOTFS_DIR"
"$ROOT/hack/debian-packages.sh" "the git image" git:/usr/lib/git-core/git-daemon >&2

out=$1
new=$out.new
core=usr/lib/git-core
rm -rf "$new"
mkdir -p "$new"/{bin,usr/bin,"$core",usr/share/git-core/templates,lib64,proc,sys,dev,tmp,srv/git,workspace}

cp /usr/bin/git "$new/usr/bin/git"
cp "/$core/git-daemon" "$new/$core/git-daemon"
# git calls itself by these names.
for name in git git-upload-pack; do
  ln -s ../../bin/git "$new/$core/$name"
done
cp "$("$ROOT/hack/static-busybox.sh")" "$new/bin/busybox"
chmod 0755 "$new/usr/bin/git" "$new/$core/git-daemon" "$new/bin/busybox"
"$new/bin/busybox" --list | while read -r applet; do
  [[ $applet == busybox ]] || ln -s busybox "$new/bin/$applet"
done

# The libraries, under the names and paths the dynamic loader asks for.
ldd "$new/usr/bin/git" "$new/$core/git-daemon" | grep -oE '/[^ ]+ \(0x' | cut -d' ' -f1 | sort -u | while read -r library; do
  mkdir -p "$new$(dirname "$library")"
  cp -L "$library" "$new$library"
done

# The same content gives the same image, whenever it was built.
find "$new" -exec touch -h -d @0 {} +
rm -rf "$out"
mv "$new" "$out"
say "git image tree: $("$out/usr/bin/git" --version), $(du -sh "$out" | cut -f1) in $out"
