#!/usr/bin/env bash
# Removes what hack/demo.sh installed, runs first: their finalizers need the operator.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"

if [[ -n ${KUBECONFIG_DEMO:-} ]]; then
  KUBECONFIG=$(demo_kubeconfig)
else
  KUBECONFIG=${SUBAGENT_CLUSTER_DIR:-$ROOT/.cluster}/kubeconfig
  [[ -f $KUBECONFIG ]] || { say "there is no local cluster"; exit 0; }
fi
export KUBECONFIG
"$ROOT/hack/tools.sh"
export PATH=$ROOT/.cluster/bin:$PATH

crds=$(kubectl get crd -o name | { grep '\.subagents\.dev$' || true; })
if [[ -n $crds ]]; then
  others=$(kubectl get subagentruns --all-namespaces --no-headers 2>/dev/null \
    | awk '$1 != "demo" && $0 !~ / (Completed|Failed|Cancelled|Rejected) / {print $1 "/" $2}')
  [[ -z $others ]] || die "other namespaces have live runs, which need the operator; end them first: ${others//$'\n'/ }"
fi

there=
# remove_namespace NAME: if it is there.
remove_namespace() {
  local found
  found=$(kubectl get namespace "$1" --ignore-not-found -o name)
  [[ -n $found ]] || return 0
  there=1
  say "removing namespace $1"
  kubectl delete namespace "$1" --timeout=120s
}

remove_namespace demo
release=$(helm --namespace subagents-system list --short --filter '^subagent-operator$')
if [[ -n $release ]]; then
  there=1
  say "uninstalling the operator"
  helm --namespace subagents-system uninstall "$release" --wait --timeout 120s
fi
# The chart keeps them on purpose: they hold other people's objects. The demo's are gone.
left=
[[ -z $crds ]] || left=$(kubectl get subagents-all --all-namespaces -o name)
if [[ -n $left ]]; then
  say "the CustomResourceDefinitions stay: other namespaces have runs or providers (kubectl get subagents-all -A)"
elif [[ -n $crds ]]; then
  there=1
  say "removing the CustomResourceDefinitions"
  xargs kubectl delete --timeout=60s <<<"$crds"
fi
remove_namespace subagents-system
[[ -n $there ]] || say "nothing of the demo is there"
