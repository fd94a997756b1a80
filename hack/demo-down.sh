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

others=$(kubectl get subagentruns --all-namespaces --no-headers 2>/dev/null \
  | awk '$1 != "demo" && $0 !~ / (Completed|Failed|Cancelled|Rejected) / {print $1 "/" $2}')
[[ -z $others ]] || die "other namespaces have live runs, which need the operator; end them first: ${others//$'\n'/ }"

say "removing namespace demo"
kubectl delete namespace demo --ignore-not-found --timeout=120s
say "uninstalling the operator"
helm --namespace subagents-system uninstall subagent-operator --ignore-not-found --wait --timeout 120s
# The chart keeps them on purpose: they hold other people's objects. The demo's are gone.
crds=$(kubectl get crd -o name | grep '\.subagents\.dev$' || true)
if [[ -n $crds && -n $(kubectl get subagents --all-namespaces -o name) ]]; then
  say "the CustomResourceDefinitions stay: other namespaces have runs or providers (kubectl get subagents -A)"
elif [[ -n $crds ]]; then
  xargs kubectl delete --timeout=60s <<<"$crds"
fi
kubectl delete namespace subagents-system --ignore-not-found --timeout=120s
