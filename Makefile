# The one entry: `make help` lists what there is. CI calls the same targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Built things are shared by all checkouts of this machine, so that a fresh clone is quick.
CACHE := $(or $(SUBAGENT_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/subagent-operator)
export CARGO_TARGET_DIR ?= $(CACHE)/target

.PHONY: help
help: ## Show what there is to do
	@awk -F ':.*## ' '/^##@/ { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ A local Kubernetes, in .cluster
.PHONY: tools cluster cluster-down load-image
tools: ## Put kubectl and helm into .cluster/bin
	@hack/tools.sh

cluster: tools ## Start the local cluster, or find it running (KUBECONFIG=.cluster/kubeconfig)
	@hack/cluster.sh up

cluster-down: ## End the local cluster and remove all that it left
	@hack/cluster.sh down

load-image: ## Import an image archive into the local cluster: make load-image ARCHIVE=x.tar
	@test -n "$(ARCHIVE)" || { echo "usage: make load-image ARCHIVE=x.tar" >&2; exit 2; }
	@hack/cluster.sh load-image $(ARCHIVE)

##@ Images, in .images
.PHONY: images load-images
images: ## Build the images: make images [REGISTRY=localhost] [TAG=dev] [PUSH=1]
	@REGISTRY=$(REGISTRY) TAG=$(TAG) PUSH=$(PUSH) hack/images.sh

load-images: cluster images ## Build the images and load them into the local cluster
	@hack/cluster.sh load-image .images/*.tar
