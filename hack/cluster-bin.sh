#!/usr/bin/env bash
# Prints the path of the local cluster's program (tests/cluster), after building it if these sources were not built on
# this machine before. The first build ever compiles Kubernetes: about five minutes on two cores.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

src=$ROOT/tests/cluster
# The same flags for everything in that module: with others the compiler would start all over again.
export CGO_ENABLED=0
goflags=(-trimpath)

# What `kubectl version` and the nodes report. The number is that of the module; upstream's own builds set it likewise.
version=$(sed -n 's/^\tk8s\.io\/kubernetes \(v[0-9.]*\)$/\1/p' "$src/go.mod")
minor=${version#v1.}
minor=${minor%%.*}
ldflags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  ldflags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$minor"
  ldflags+=" -X $package.gitTreeState=clean -X $package.buildDate=1970-01-01T00:00:00Z"
done

key=$( { go version; echo "$ldflags ${goflags[*]}"; cd "$src"; digest go.mod go.sum main.go internal pause; } | sha256sum | cut -c1-16)
out=$CACHE/localcluster-$key

build() {
  [[ -x $out/localcluster ]] && return
  say "building the local cluster's program (Kubernetes $version; about 5 minutes the first time, seconds later)"
  rm -rf "$out.new"
  mkdir -p "$out.new"
  (cd "$src" && go build "${goflags[@]}" -ldflags "-s -w" -o "$out.new/pause" ./pause \
    && go build "${goflags[@]}" -ldflags "$ldflags" -o "$out.new/localcluster" .) >&2
  mv "$out.new" "$out"
  # Others may still run an older one; a day later nobody does.
  find "$CACHE" -maxdepth 1 -name 'localcluster-*' ! -path "$out" -mtime +1 -exec rm -rf {} +
}

[[ -x $out/localcluster ]] || once "$CACHE/localcluster.lock" build
printf '%s\n' "$out/localcluster"
