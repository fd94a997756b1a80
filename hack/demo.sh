#!/usr/bin/env bash
# Shows the operator at work, from nothing: a cluster, the chart, a published agent that works through ACP in a worker pod, and its answer in the
# run's status. Everything it claims it checks; it fails when one check fails. It can be run again: each time with a new nonce and a new run.
#   KUBECONFIG_DEMO=file   use that cluster instead of the local one
#   REGISTRY=... TAG=...   push the images there and run them from there (default localhost, dev: loaded into the local cluster)
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"

registry=${REGISTRY:-localhost}
tag=${TAG:-dev}
namespace=demo
# A first start has to import images, and a busy machine takes its time: longer than any wait seen, short enough for a person.
patience=180s

step() { printf '\n\033[1m==> %s\033[0m\n' "$*"; }
# show COMMAND...: what a person would type, and what it prints.
show() { printf '\n\033[2m$ %s\033[0m\n' "$*"; "$@"; }

failed=0
# check WHAT GOT EXPECTED
check() {
  if [[ $2 == "$3" ]]; then
    printf '  ok      %s: %s\n' "$1" "$2"
  else
    printf '  FAILED  %s: %s, expected %s\n' "$1" "${2:-(nothing)}" "$3"
    failed=$((failed + 1))
  fi
}

cluster_is_there=
run=
# What is needed to see why, when a step does not succeed.
explain() {
  local code=$?
  ((code)) && [[ -n $cluster_is_there ]] || return "$code"
  printf '\nThe demo failed. What there is to see:\n' >&2
  {
    kubectl -n "$namespace" get subagentproviders,subagentruns,pods -o wide
    [[ -z $run ]] || kubectl -n "$namespace" describe subagentrun "$run"
    [[ -z $run ]] || kubectl -n "$namespace" describe pods -l "subagents.dev/run=$run"
    [[ -z $run ]] || kubectl -n "$namespace" logs -l "subagents.dev/run=$run" --tail=40
    kubectl -n subagents-system get pods
    kubectl -n subagents-system logs -l app.kubernetes.io/name=subagent-operator --tail=40
  } >&2 2>&1 || true
  return "$code"
}
trap explain EXIT

if [[ -n ${KUBECONFIG_DEMO:-} ]]; then
  KUBECONFIG=$(demo_kubeconfig)
  step "Using the cluster of $KUBECONFIG_DEMO"
  make tools
  if [[ $registry == localhost && -f $(dirname "$KUBECONFIG_DEMO")/cluster.json ]]; then
    # A local cluster in a state directory of its own.
    make images
    SUBAGENT_CLUSTER_DIR=$(realpath "$(dirname "$KUBECONFIG_DEMO")") hack/cluster.sh load-image .images/*.tar
  elif [[ $registry == localhost ]]; then
    make images
    say "its nodes must have the images of .images/*.tar, or set REGISTRY to a registry they reach"
  else
    make images REGISTRY="$registry" TAG="$tag" PUSH=1
  fi
else
  step "Starting a Kubernetes cluster on this machine, building the images and loading them into it"
  make load-images TAG="$tag"
  KUBECONFIG=${SUBAGENT_CLUSTER_DIR:-$ROOT/.cluster}/kubeconfig
fi
export KUBECONFIG
export PATH=$ROOT/.cluster/bin:$PATH
show kubectl get nodes
cluster_is_there=1

# A new build has the same name as the one before: its digest, in the pods' annotations, makes them start anew.
build_of() { sha256sum "$ROOT/.images/$1.tar" | cut -c1-16; }

# apply FILE: with the images of this build.
apply() {
  sed -E "s#localhost/([a-z-]+):dev#$registry/\1:$tag#" "$1" | kubectl -n "$namespace" apply -f -
}

# Sessions of continuable children need a volume; a cluster that gives none runs everything else.
store=()
if ! kubectl get storageclass -o yaml | grep -q 'is-default-class: "true"'; then
  say "the cluster has no default StorageClass: the operator is installed without a session store"
  store=(--set sessionStore.url=)
fi

step "Installing the operator: chart charts/subagent-operator, release subagent-operator, namespace subagents-system"
helm upgrade --install subagent-operator charts/subagent-operator \
  --namespace subagents-system --create-namespace \
  --set image.repository="$registry/subagent-operator" --set image.tag="$tag" \
  --set workerImage.repository="$registry/subagent-worker" --set workerImage.tag="$tag" \
  --set-string podAnnotations.build="$(build_of subagent-operator)" \
  ${store[@]+"${store[@]}"} \
  --wait --timeout "$patience" >/dev/null
show kubectl -n subagents-system get pods

step "Namespace $namespace: enforces the Pod Security level 'restricted', holds the fake LLM and two providers"
kubectl apply -f - <<YAML
apiVersion: v1
kind: Namespace
metadata:
  name: $namespace
  labels:
    pod-security.kubernetes.io/enforce: restricted
    pod-security.kubernetes.io/enforce-version: latest
YAML
apply tests/agents/fake-llm/manifest.yaml
kubectl -n "$namespace" patch deployment fake-llm --type=merge \
  -p '{"spec":{"template":{"metadata":{"annotations":{"build":"'"$(build_of fake-llm)"'"}}}}}' >/dev/null
apply examples/provider-scripted.yaml
apply examples/provider-opencode.yaml
kubectl -n "$namespace" rollout status deployment/fake-llm --timeout="$patience"
kubectl -n "$namespace" wait --for=condition=Ready subagentprovider/scripted subagentprovider/opencode --timeout="$patience" >/dev/null

step "Waiting until the operator has probed their agents: what each advertises is in the provider's status"
for provider in scripted opencode; do
  kubectl -n "$namespace" wait --for=jsonpath='{.status.probe.finishedAt}' "subagentprovider/$provider" --timeout="$patience" >/dev/null
done
show kubectl -n "$namespace" get subagentproviders \
  -o custom-columns='NAME:.metadata.name,READY:.status.conditions[?(@.type=="Ready")].reason,AGENT:.status.agent.name,VERSION:.status.agent.version,CAPABILITIES:.status.capabilities'

nonce=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
expected=$(printf %s "$nonce" | sha256sum | cut -d' ' -f1)
run=digest-${nonce:0:8}
gate=look-${nonce:0:8}

step "A run: opencode $("$ROOT/tests/agents/opencode/build.sh" --package-version), unmodified, is asked for the digest of a nonce made just now"
manifest=$(cat <<YAML
apiVersion: subagents.dev/v1alpha1
kind: SubagentRun
metadata:
  name: $run
spec:
  providerRef: {name: opencode}
  description: digest a fresh nonce
  prompt:
    text: |
      nonce: $nonce
      Write the SHA-256 of the nonce to the file answer.txt, read it back, then answer with the digest alone.
      gate: $gate
  activeDeadlineSeconds: 300
YAML
)
printf '\n%s\n\n' "$manifest"
kubectl -n "$namespace" apply -f - <<<"$manifest"

# The fake LLM's own endpoints, through the API server.
llm=/api/v1/namespaces/$namespace/services/fake-llm:http/proxy
step "Waiting until the agent has used its tools; the fake LLM holds back the last answer (the gate) so that we can look"
deadline=$((SECONDS + ${patience%s}))
until kubectl get --raw "$llm/__gates" | grep -Eq "\"$gate\":\{\"open\":false,\"waiting\":[1-9]"; do
  finished=$(kubectl -n "$namespace" get subagentrun "$run" -o 'jsonpath={.status.conditions[?(@.type=="Finished")].status}')
  [[ $finished != True ]] || die "the run ended before its last answer"
  ((SECONDS < deadline)) || die "the agent did not come that far within $patience"
  sleep 0.3
done
show kubectl -n "$namespace" get subagentruns,pods
pod=$(kubectl -n "$namespace" get subagentrun "$run" -o 'jsonpath={.status.attempts[0].podName}')

# In the agent's container, past the agent: the file it says it wrote, and the program that is running right now.
# shellcheck disable=SC2016 # expands over there
seen=$(kubectl -n "$namespace" exec "$pod" -c agent -- sh -c '
  echo "file $(cat /workspace/answer.txt)"
  for pid in $(pidof opencode); do echo "program $(sha256sum </proc/$pid/exe)"; done' 2>&1) || true
file=$(sed -n 's/^file //p' <<<"$seen")
programs=$(sed -n 's/^program \([0-9a-f]*\).*/\1/p' <<<"$seen" | sort -u)
[[ -n $file && -n $programs ]] || say "$seen"

step "Letting it answer, and waiting: Finished (the outcome is stored), then Stopped (every process of it is proven gone)"
kubectl create --raw "$llm/__gates/$gate" -f - <<<'{}' >/dev/null
show kubectl -n "$namespace" wait --for=condition=Finished "subagentrun/$run" --timeout="$patience"
show kubectl -n "$namespace" wait --for=condition=Stopped "subagentrun/$run" --timeout="$patience"

field() { kubectl -n "$namespace" get subagentrun "$run" -o "jsonpath={$1}"; }
step "What kubectl shows"
show kubectl -n "$namespace" get subagentruns
show kubectl -n "$namespace" get subagentruns -o wide
show kubectl -n "$namespace" get subagentrun "$run" -o 'jsonpath={.status.result.text}{"\n"}'
show kubectl -n "$namespace" describe subagentrun "$run"
show kubectl -n "$namespace" logs -l "subagents.dev/run=$run" --tail=-1

step "Checks"
check "stop reason" "$(field .status.stopReason)" Completed
check "answer in status, sha256 of the nonce" "$(field .status.result.text)" "$expected"
check "file answer.txt in the workspace of pod $pod" "$file" "$expected"
check "program running in the pod, sha256 of the one in the npm package" "$programs" "$("$ROOT/tests/agents/opencode/build.sh" --package-sha256)"
check "agent name, from initialize" "$(field .status.report.agent.name)" OpenCode
check "agent version, from initialize" "$(field .status.report.agent.version)" "$("$ROOT/tests/agents/opencode/build.sh" --package-version)"
check "session made by" "$(field .status.report.session.how)" New
probed() { kubectl -n "$namespace" get subagentprovider opencode -o "jsonpath={.status.agent.$1}"; }
check "agent of the provider, from its probe" "$(probed name) $(probed version)" "OpenCode $("$ROOT/tests/agents/opencode/build.sh" --package-version)"
check "attempts" "$(field .status.attempt)" 1
check "permission requests allowed, one command" "$(field .status.permissions.allowed)" 1
asked=$(kubectl get --raw "$llm/__requests?contains=$nonce" | { grep -o '"state":"done"' || true; } | wc -l)
check "the prompt went to the fake LLM, answered calls" "$( ((asked >= 3)) && echo 'at least 3' || echo "$asked")" 'at least 3'

word=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
child=keeper-${word:0:8}
step "A continuable child: the same agent is told another nonce; when it has settled, its pod is taken away"
manifest=$(cat <<YAML
apiVersion: subagents.dev/v1alpha1
kind: Subagent
metadata:
  name: $child
spec:
  providerRef: {name: opencode}
  description: remember a nonce
  messages:
  - id: m1
    text: "Remember this nonce: $word"
YAML
)
printf '\n%s\n\n' "$manifest"
kubectl -n "$namespace" apply -f - <<<"$manifest"
# settle CHILD: until all that was said to it is done.
settle() { show kubectl -n "$namespace" wait --for=condition=Settled "subagent/$1" --timeout="$patience"; }
of_child() { kubectl -n "$namespace" get subagent "$1" -o "jsonpath={$2}"; }
settle "$child"
epoch_run() { kubectl -n "$namespace" get subagentruns -l "subagents.dev/subagent=$child" --sort-by=.metadata.creationTimestamp -o name | tail -1 | cut -d/ -f2; }
first_run=$(epoch_run)
show kubectl -n "$namespace" delete pods -l "subagents.dev/run=$first_run" --timeout="$patience"

step "A follow-up by kubectl patch: a new pod, which knows what was said"
show kubectl -n "$namespace" patch subagent "$child" --type=json \
  -p '[{"op":"add","path":"/spec/messages/-","value":{"id":"m2","text":"Which nonce did I tell you?"}}]'
settle "$child"
second_run=$(epoch_run)

step "A message that steers a running turn (the scripted agent waits for it; opencode takes none)"
busy=busy-${word:0:8}
kubectl -n "$namespace" apply -f - <<YAML
apiVersion: subagents.dev/v1alpha1
kind: Subagent
metadata:
  name: $busy
spec:
  providerRef: {name: scripted}
  description: wait for a hint
  messages:
  - id: m1
    text: "!await-steer"
YAML
deadline=$((SECONDS + ${patience%s}))
until [[ $(of_child "$busy" .status.activation.state) == Running ]]; do
  ((SECONDS < deadline)) || die "the turn did not begin within $patience"
  sleep 0.3
done
show kubectl -n "$namespace" patch subagent "$busy" --type=json \
  -p '[{"op":"add","path":"/spec/messages/-","value":{"id":"hint","delivery":"Steer","text":"look at the second file"}}]'
settle "$busy"
show kubectl -n "$namespace" get subagents,subagentruns -o wide

step "Checks of the children"
check "answer to the follow-up, the nonce of the first message" "$(of_child "$child" .status.lastResult.preview)" "$word"
check "activations of $child" "$(of_child "$child" .status.epochs)" 2
check "pods of its two activations are two" "$([[ $first_run != "$second_run" ]] && echo two)" two
check "session of the second was" "$(kubectl -n "$namespace" get subagentrun "$second_run" -o 'jsonpath={.status.report.session.how}')" Resumed
check "what became of the hint" "$(of_child "$busy" '.status.messages[?(@.id=="hint")].outcome')" Steered
check "what the steered turn said" "$(of_child "$busy" .status.lastResult.preview)" "steered: look at the second file"
((failed == 0)) || die "$failed of the checks above failed"

cat <<TEXT

All checks passed. The cluster stays as it is. To look around:

  export KUBECONFIG=$KUBECONFIG PATH=$ROOT/.cluster/bin:\$PATH
  kubectl -n $namespace get subagents-all                  # everything of these kinds
  kubectl explain subagentrun.spec
  kubectl -n $namespace apply -f examples/run-echo.yaml    # the smallest run
  kubectl -n $namespace wait --for=condition=Finished subagentrun/echo
  kubectl -n $namespace get subagentrun echo -o 'jsonpath={.status.result.text}{"\n"}'
  kubectl -n $namespace get subagent $child -o yaml       # the child; speak to it as the README does
  make demo                                         # again, with another nonce

To remove everything:

TEXT
if [[ -n ${KUBECONFIG_DEMO:-} ]]; then
  printf '  make demo-down KUBECONFIG_DEMO=%s\n' "$KUBECONFIG_DEMO"
else
  printf '  make cluster-down     # the cluster with all that is in it; make demo-down keeps the cluster\n'
fi
