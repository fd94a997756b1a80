#!/usr/bin/env bash
# Runs a command of the local cluster's program: up, down, status, load-image (see `--help`). The state directory is
# .cluster in this checkout, or $SUBAGENT_CLUSTER_DIR.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

dir=${SUBAGENT_CLUSTER_DIR:-$ROOT/.cluster}
if [[ ${1:-} == up && ! " $* " == *" --apiserver-only "* ]]; then
  "$ROOT/hack/node-packages.sh"
fi
if [[ ${1:-} == down && ! -e $dir/cluster.json ]]; then
  say "there is no local cluster" # found out without building the program
  exit
fi
program=$("$ROOT/hack/cluster-bin.sh")
exec "$program" --dir "$dir" "$@"
