#!/usr/bin/env bash
# Runs levels of tests, all of them also when an earlier one fails, and counts. The last line is
# `N passed, N failed, N skipped`; the exit code is 0 only if none failed and none was skipped.
#   hack/test.sh LEVEL...      unit, tools, cluster, integration, e2e
# What each level said is kept in .test/LEVEL.log.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"

# A snapshot that differs is a failure, never a new file.
export INSTA_UPDATE=no
export CGO_ENABLED=0 # as in hack/cluster-bin.sh: with other flags the compiler starts all over again

level_unit() {
  cargo test --workspace --exclude integration-tests --exclude e2e-tests --locked --no-fail-fast
}

# What the other levels stand on: the local cluster's parts, the image builder, the counting.
level_tools() {
  local code=0
  PYTHONDONTWRITEBYTECODE=1 python3 -m unittest discover -s hack -p '*_test.py' || code=$?
  (cd images/mkimage && go test -trimpath -v ./...) || code=$?
  (cd tests/cluster && go test -trimpath -v ./internal/...) || code=$?
  return $code
}

level_cluster() {
  hack/node-packages.sh
  LOCALCLUSTER=$(hack/cluster-bin.sh) MKIMAGE=$(hack/go-bin.sh images/mkimage)
  export LOCALCLUSTER MKIMAGE
  cd tests/cluster
  go test -trimpath -v -count=1 -tags acceptance ./acceptance/
}

level_integration() {
  tests/integration/run --locked --no-fail-fast
}

level_e2e() {
  if [[ -z ${KUBECONFIG_DEMO:-} ]]; then
    tests/e2e/run --locked --no-fail-fast
    return
  fi
  say "using the cluster of $KUBECONFIG_DEMO, which must have the images (make images REGISTRY=... PUSH=1 AGENTS=\"opencode claude\")"
  make tools
  KUBECONFIG=$(demo_kubeconfig)
  export KUBECONFIG SUBAGENT_BIN=$ROOT/.cluster/bin
  cargo test -p e2e-tests --locked --no-fail-fast
}

# What passed, and empty lines.
quiet='^(=== .*|\s*--- PASS.*|test .* \.\.\. ok|running [0-9]+ tests?|PASS|)$'

# run LEVEL LOG: shows what a level says, less the names of what passed, and keeps all of it.
run() {
  local level=$1 log=$2 code=0
  say "tests: $level"
  set +e
  ( set -e; "level_$level" ) 2>&1 | tee "$log" | grep --line-buffered -vE "$quiet"
  code=${PIPESTATUS[0]}
  set -e
  printf 'exit code %d\n' "$code" >>"$log"
}

(($#)) || die "usage: hack/test.sh unit|tools|cluster|integration|e2e..."
# Found out now, and not after an hour.
[[ -z ${KUBECONFIG_DEMO:-} ]] || demo_kubeconfig >/dev/null
mkdir -p .test
logs=()
for level in "$@"; do
  declare -F "level_$level" >/dev/null || die "there is no level $level"
  log=.test/$level.log
  began=$SECONDS
  run "$level" "$log"
  say "tests: $level: $(hack/test-summary "$log" || true), $((SECONDS - began)) s"
  logs+=("$log")
done
exec hack/test-summary --list "${logs[@]}"
