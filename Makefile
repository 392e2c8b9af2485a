# Two commands: `make demo` sets up and shows the main job; `make test` sets up
# and passes every test. `make check` is the quick lane for daily work.

SHELL      := bash
.SHELLFLAGS := -euo pipefail -c
GO         ?= go
VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# Tools and downloads that tests need, by version, outside the checkout.
export KICK_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kick
CACHE      := $(KICK_CACHE)
LINT_VERSION := v2.15.0
LINT       := $(CACHE)/golangci-lint-$(LINT_VERSION)
SHIM       := cmd/kick/shim/kick-shim
LDFLAGS    := -s -w -X main.version=$(VERSION)
SHIM_SRC   := $(wildcard cmd/kick-shim/*.go internal/frame/*.go internal/forwarder/*.go) go.mod

export CGO_ENABLED ?= 0

.PHONY: build demo test check lint lint-tool bench soak setup openshell-proto kube-up kube-down clean

build: bin/kick

$(SHIM): $(SHIM_SRC)
	$(GO) build -trimpath -ldflags '-s -w' -o $@ ./cmd/kick-shim

bin/kick: $(SHIM) FORCE
	@mkdir -p bin
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $@ ./cmd/kick

FORCE:

demo: bin/kick
	bin/kick demo

setup:
	scripts/setup.sh

test:
	scripts/test.sh all

check:
	scripts/test.sh quick

lint: $(LINT)
	$(LINT) run ./...

lint-tool: $(LINT)

$(LINT):
	@mkdir -p $(CACHE)
	GOBIN=$(CACHE)/bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	mv $(CACHE)/bin/golangci-lint $@

bench: bin/kick
	scripts/bench.sh

soak: bin/kick
	scripts/soak.sh

# The wire of OpenShell anew, from its description; see docs/adr/0032.
openshell-proto:
	hack/openshell-proto.sh

# A Kubernetes cluster of one node with an agent's image, as the tests have it; its
# kubeconfig is $(KUBE_DIR)/admin.kubeconfig.
KUBE_DIR ?= /tmp/kick-kube
kube-up: bin/kick
	hack/kube.sh install
	hack/kube.sh up $(KUBE_DIR)
	bin/kick image build --shim --out $(CACHE)/kick-agent-shim.tar
	hack/kube.sh load $(KUBE_DIR) $(CACHE)/kick-agent-shim.tar

kube-down:
	hack/kube.sh down $(KUBE_DIR)

clean:
	rm -rf bin $(SHIM)
