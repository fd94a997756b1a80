# The one entry: `make help` lists what there is. CI calls the same targets (.ci/run).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Built things are shared by all checkouts of this machine, so that a fresh clone is quick (hack/env.sh says the same).
CACHE := $(or $(SUBAGENT_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/subagent-operator)
export CARGO_TARGET_DIR ?= $(CACHE)/target

say = printf ':: %s\n'

.PHONY: help
help: ## Show what there is to do
	@awk -F ':.*## ' '/^##@/ { printf "\n%s\n", substr($$0, 5) } /^[a-z0-9-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ See it work
.PHONY: demo demo-down
demo: ## From nothing: a cluster, the operator, a published agent, its answer (KUBECONFIG_DEMO=file uses that cluster)
	@hack/demo.sh

demo-down: ## Remove what the demo installed; the cluster stays (make cluster-down ends it)
	@hack/demo-down.sh

##@ A local Kubernetes, in .cluster
.PHONY: tools cluster cluster-status cluster-down load-image
tools: ## Put kubectl and helm into .cluster/bin
	@hack/tools.sh

cluster: tools ## Start the local cluster, or find it running (KUBECONFIG=.cluster/kubeconfig)
	@hack/cluster.sh up

cluster-status: ## Say how the local cluster is
	@hack/cluster.sh status

cluster-down: ## End the local cluster and remove all that it left
	@hack/cluster.sh down

load-image: ## Import an image archive into the local cluster: make load-image ARCHIVE=x.tar
	@test -n "$(ARCHIVE)" || { echo "usage: make load-image ARCHIVE=x.tar" >&2; exit 2; }
	@hack/cluster.sh load-image $(ARCHIVE)

##@ Images, in .images
.PHONY: images load-images
images: ## Build the images: make images [REGISTRY=localhost] [TAG=dev] [PUSH=1] [AGENTS="opencode claude codex"]
	@REGISTRY=$(REGISTRY) TAG=$(TAG) PUSH=$(PUSH) AGENTS="$(AGENTS)" hack/images.sh

load-images: cluster images ## Build the images and load them into the local cluster
	@hack/cluster.sh load-image .images/*.tar

##@ Change it
.PHONY: build generate generate-check coverage-of-rules
build: ## Compile everything
	@source hack/env.sh; cargo build --workspace --all-targets --locked

generate: ## Write the generated files: CRDs, their copies in the chart, the references in docs
	@source hack/env.sh; cargo run --quiet --locked -p xtask -- generate

generate-check: ## Fail if a generated file is not what it would be now
	@source hack/env.sh; cargo run --quiet --locked -p xtask -- generate --check

coverage-of-rules: ## List the rules in docs that no test names; fail on one that is in scope
	@source hack/env.sh; cargo run --quiet --locked -p xtask -- coverage-of-rules

##@ Check it
.PHONY: lint test test-unit test-tools test-cluster test-integration test-e2e test-agents check-agents sabotage bench scale chaos
lint: tools ## Formatting, warnings, documentation, chart, generated files, named rules
	@hack/lint.sh

test: ## All tests; the last line counts them, and anything failed or skipped is a failure
	@hack/test.sh unit tools cluster integration e2e

test-unit: ## Rust tests that need nothing beside themselves
	@hack/test.sh unit

test-tools: ## Tests of the local cluster's parts, of the image builder and of the counting
	@hack/test.sh tools

test-cluster: ## Whole local clusters, side by side: that they work and leave nothing behind (root)
	@hack/test.sh cluster

test-integration: ## The operator against a real API server without a node
	@hack/test.sh integration

test-e2e: ## The whole product on the local cluster (KUBECONFIG_DEMO=file: on that one)
	@hack/test.sh e2e

test-agents: ## All published agents in pods, not only the two of `make test` (1 GB more to fetch and keep)
	@AGENTS="opencode claude codex" tests/e2e/run --locked --no-fail-fast --features every-agent --test suite --test outage agents::

check-agents: ## Published agents over ACP, without a cluster: make check-agents [AGENTS="opencode claude codex"] [SCENES="..."] (root)
	@source hack/env.sh; cargo build --quiet --locked -p fake-llm
	@for agent in $(or $(AGENTS),opencode claude codex); do tests/agents/check.sh "$$agent" "$(CARGO_TARGET_DIR)/debug/fake-llm" $(SCENES); done

sabotage: ## That wrong code turns tests red: make sabotage [PATCH="name ..."] (all take a while)
	@hack/sabotage.sh $(PATCH)

chaos: ## Random kills on the local cluster, under runs and then under messages: make chaos [SEED=1] [KILLS=200]
	@SEED=$(SEED) KILLS=$(or $(KILLS),$(RUNS),200) tests/e2e/run --test kills -- --nocapture

scale: ## A long life of one child, against a real API server: make scale [MESSAGES=10000] (10000 take about half an hour)
	@MESSAGES=$(or $(MESSAGES),10000) tests/integration/run --locked --test operator t5_r12_a_long_life -- --nocapture

bench: ## What a run costs beside a bare Job and a bare Pod: a table for docs/benchmarks.md (some minutes, a quiet machine)
	@tests/bench/run

##@ Tidy up
.PHONY: clean
clean: cluster-down ## End the local cluster and remove everything made in this checkout (the cache stays)
	rm -rf .cluster .images .test
	@$(say) "what checkouts share is in $(CACHE)"
