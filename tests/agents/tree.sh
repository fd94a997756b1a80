# Sourced by the build scripts of images with published agents: npm packages, and the root tree they stand in.
# shellcheck shell=bash
#
#   begin_tree AGENT OUTPUT_DIR   new tree in $new, the agent's packages in $modules
#   bring_libraries PROGRAM...    the libraries these programs of the tree ask for
#   end_tree                      the tree is complete and takes the place of one that was there
#
# Which packages, in which versions and with which digests says package-lock.json in the agent's folder. To raise a version: change it in
# package.json, `npm install --package-lock-only --ignore-scripts --omit-lockfile-registry-resolved`, run check.sh.
source "$(dirname "${BASH_SOURCE[0]}")/../../hack/env.sh"

[[ $(uname -m) == x86_64 ]] || die "images of published agents are built on x86_64 only; the packages are pinned for that"
for tool in node npm ldd; do
  command -v "$tool" >/dev/null || die "$tool is needed to build images of published agents"
done

# npm_packages AGENT DIR: puts the packages of an agent into DIR/node_modules, unmodified. npm checks all of them against the
# lock's digests, also those in its cache, and runs none of their scripts.
npm_packages() {
  local agent=$1 dir=$2
  cp "$ROOT/tests/agents/$agent"/package{,-lock}.json "$dir"
  say "fetching the packages of $agent through npm"
  (cd "$dir" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error --prefer-offline --cache="$CACHE/npm" >&2) \
    || die "npm could not install what tests/agents/$agent/package-lock.json names"
}

# version_of AGENT PACKAGE: prints the version that the lock names.
version_of() {
  node -p 'require(process.argv[1]).packages[`node_modules/${process.argv[2]}`].version' "$ROOT/tests/agents/$1/package-lock.json" "$2"
}

sha256_of() { sha256sum "$1" | cut -d' ' -f1; }

begin_tree() {
  local agent=$1
  out=$2
  new=$out.new
  rm -rf "$new"
  mkdir -p "$new" "$new.npm"
  trap 'rm -rf "$new.npm"' EXIT
  npm_packages "$agent" "$new.npm"
  modules=$new.npm/node_modules
}

# Folders that volumes are mounted over: a read-only root cannot grow them.
make_mount_points() {
  mkdir -p "$new"/{proc,sys,dev,tmp,home/agent,workspace}
}

# A shell and the usual small programs, in one static file.
bring_busybox() {
  mkdir -p "$new"/{bin,usr/bin}
  cp "$("$ROOT/hack/static-busybox.sh")" "$new/bin/busybox"
  chmod 0755 "$new/bin/busybox"
  "$new/bin/busybox" --list | while read -r applet; do
    [[ $applet == busybox ]] || ln -s busybox "$new/bin/$applet"
  done
  # What `#!/usr/bin/env` asks for.
  ln -s ../../bin/busybox "$new/usr/bin/env"
}

# The libraries of this machine, under the names and paths the dynamic loader asks for.
bring_libraries() {
  local program library
  for program in "$@"; do
    ldd "$program" | grep -oE '/[^ ]+ \(0x' | cut -d' ' -f1 | while read -r library; do
      mkdir -p "$new$(dirname "$library")"
      [[ -e $new$library ]] || cp -L "$library" "$new$library"
    done
  done
}

# The same content gives the same image, whenever it was built.
end_tree() {
  find "$new" -exec touch -h -d @0 {} +
  rm -rf "$out"
  mv "$new" "$out"
  say "$(du -sh "$out" | cut -f1) in $out"
}
