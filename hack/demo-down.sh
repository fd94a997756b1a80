#!/usr/bin/env bash
# Removes what hack/demo.sh installed, runs first: their finalizers need the operator.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"

"$ROOT/hack/tools.sh"
export PATH=$ROOT/.cluster/bin:$PATH
if [[ -n ${KUBECONFIG_DEMO:-} ]]; then
  KUBECONFIG=$(realpath "$KUBECONFIG_DEMO")
else
  KUBECONFIG=${SUBAGENT_CLUSTER_DIR:-$ROOT/.cluster}/kubeconfig
  [[ -f $KUBECONFIG ]] || { say "there is no local cluster"; exit 0; }
fi
export KUBECONFIG

say "removing namespace demo"
kubectl delete namespace demo --ignore-not-found --timeout=120s
say "uninstalling the operator"
helm --namespace subagents-system uninstall subagent-operator --ignore-not-found --wait --timeout 120s
# The chart keeps them on purpose: they hold other people's objects. The demo's are gone.
kubectl get crd -o name | grep '\.subagents\.dev$' | xargs -r kubectl delete --timeout=60s || true
kubectl delete namespace subagents-system --ignore-not-found --timeout=120s
