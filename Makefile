# Everything a person or CI does with Ebb. `make test` does its own set-up.

GO       ?= go
TOOLS    := -modfile=test/tools/go.mod
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  := -X main.version=$(VERSION)
DATA_DIR ?= .ebb
EBB_CHAOS_FOR ?= 10m
PROTOS   := internal/changefeed/wire/wire.proto internal/etcdcluster/wire/wire.proto
GENERATED = api/v1alpha1/zz_generated.deepcopy.go config/crd/*.yaml $(PROTOS:.proto=.pb.go) $(PROTOS:.proto=_grpc.pb.go)

.PHONY: build run test test-long lint generate check-generated chaos bench kube setup clean

build: ## bin/ebb
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/ebb ./cmd/ebb

run: build ## three nodes on this machine, and what to try next
	bin/ebb up --nodes 3 --samples --data-dir $(DATA_DIR)

test: ## every check and every test, and how long each part took
	@GO='$(GO)' test/run

test-long: ## the same with thousands of simulated histories, twenty cycles and ten minutes of chaos
	@GO='$(GO)' EBB_LONG=1 RAPID_CHECKS=$${RAPID_CHECKS:-2000} test/run

lint: ## gofmt, and what .golangci.yml lists: vet and staticcheck among it
	@bad=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go')); if [ -n "$$bad" ]; then echo "gofmt would change:" $$bad; exit 1; fi
	$(GO) tool -modfile=test/tools/golangci.mod golangci-lint run ./...

generate: ## deep copies and CRDs from the Go types, messages from their definitions
	$(GO) tool $(TOOLS) controller-gen object paths=./api/... crd:maxDescLen=500 output:crd:dir=config/crd
	$(GO) build $(TOOLS) -o bin/test/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
	PATH="$(CURDIR)/bin/test:$$PATH" protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative $(PROTOS)

check-generated: ## generated files are what the types say
	@before=$$(cat $(GENERATED) | sha256sum); \
	$(MAKE) --no-print-directory generate; \
	after=$$(cat $(GENERATED) | sha256sum); \
	if [ "$$before" != "$$after" ]; then echo "generated files were out of date: run 'make generate' and commit"; exit 1; fi

chaos: setup ## everything is broken at random under load; EBB_CHAOS_FOR is for how long, EBB_CHAOS_SEED replays a run
	EBB_CHAOS_FOR=$(EBB_CHAOS_FOR) $(GO) test -race -count=1 -timeout 0 -v -run '^TestChaos$$' ./test/e2e

bench: ## benchmarks, without the race detector
	$(GO) test -run '^$$' -bench . -benchmem -timeout 90m ./...

kube: ## a real Kubernetes in the foreground, in DIR, with DIR/kubeconfig; the first build of its programs takes minutes
	@test -n "$(DIR)" || { echo "kube: set the directory, as in: make kube DIR=/tmp/kube"; exit 1; }
	@programs=$$(GO='$(GO)' test/kube/build) && $(GO) build -o bin/test/kubeup ./test/kubeup && exec bin/test/kubeup --programs "$$programs" --dir "$(DIR)"

setup: ## what the tests need on this machine
	@test/setup

clean:
	rm -rf bin
