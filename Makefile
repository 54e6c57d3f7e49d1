# Two commands matter: `make demo` and `make test`. Each does all its own set-up.
SHELL := /bin/bash
CARGO ?= cargo
# One set of features for every target below, so that everything is compiled once.
FEATURES := --workspace --features tenure-tx/ethereum,tenure-tx/substrate
# Every test program, by the target that runs it; `lint` sees to it that none is forgotten.
UNIT := agent cli config conformance connect election embedded gate guardians gossip hosts kit library lifecycle_properties \
	lifecycle_table model observe
CHAIN := durability edge ethereum engine_properties service store substrate tx
ELSEWHERE := faults gate_loom

# Compiled from scratch in CI: incremental state and line tables would only cost time, and so would a second pass for
# clippy. There it compiles the crates itself, so that what it finds breaks the build.
ifdef CI
export CARGO_INCREMENTAL := 0
export CARGO_PROFILE_DEV_DEBUG := 0
export RUSTC_WORKSPACE_WRAPPER := $(shell rustc --print sysroot)/bin/clippy-driver
export CLIPPY_ARGS := -D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
CLIPPY := build $(FEATURES) --bench commits
else
CLIPPY := clippy $(FEATURES) --all-targets -- -D warnings
endif

.PHONY: help demo test test-all setup setup-chain setup-deploy setup-prometheus setup-python lint unit faults drill loom newer-server test-chain test-substrate record-substrate deny \
	python python-all wheel bench-python storm soak-gossip doc page page-all picture

help:               ## What can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

demo: setup         ## Watch three members survive kills, freezes, partitions and a database restart; ARGS=--serve keeps the page
	$(CARGO) run -p tenure-cli --no-default-features -- demo $(ARGS)

test: lint unit faults loom newer-server test-chain page python deny   ## Everything CI runs
	@echo "all tests passed"

test-all: test      ## Also what is slow: long storms of both simulations, two thousand transactions under fire
	@# All of it but the tests that need pg_basebackup, which this server comes without.
	TENURE_TEST_PG=18 $(CARGO) test $(FEATURES) --test election -- --skip a_cluster_without_a_primary
	TENURE_SIM_SEEDS=5000 $(CARGO) test -p tenure-sim --release --lib
	TENURE_TX_RUN=2000 TENURE_TX_REMARKS=200 $(CARGO) test $(FEATURES) --release --test tx -- group substrate::every \
		--test-threads=1
	$(MAKE) storm
	$(MAKE) doc
	TENURE_AGENT_STORM=60 $(CARGO) test $(FEATURES) --test agent -- storm
	TENURE_SHARDS=1000 $(CARGO) test $(FEATURES) --release --test library -- shards
	TENURE_PROMQL=3000 $(CARGO) test $(FEATURES) --test agent -- prometheus alerts --include-ignored
	$(MAKE) python-all
	$(MAKE) page-all

storm: setup setup-chain   ## Five thousand transactions while the chain's node lies, reorganises and forgets
	TENURE_TX_STORM=5000 $(CARGO) test $(FEATURES) --release --test tx -- storm --nocapture

setup:
	@scripts/setup.sh core

setup-deploy:
	@scripts/setup.sh deploy

setup-prometheus:
	@scripts/setup.sh prometheus

setup-chain:
	@scripts/setup.sh chain

setup-python:
	@scripts/setup.sh python

lint:               ## Formatting and clippy, warnings are errors
	@for path in crates/*/tests/*; do name=$$(basename $$path .rs); name=$${name%.proptest-regressions}; \
		[[ $$path == crates/tenure-py/* || " $(UNIT) $(CHAIN) $(ELSEWHERE) proptest-regressions snapshots " == *" $$name "* ]] \
		|| { echo "$$path is in no list of the Makefile: add it"; exit 1; }; done
	@# `make demo` needs no Python.
	@! sed -n '/^core() {/,/^}/p' scripts/setup.sh | grep -E 'python|deploy' \
		|| { echo "scripts/setup.sh core must not need Python: the demo runs it"; exit 1; }
	$(CARGO) fmt --all --check
	@# Workspaces of their own, which --all does not reach.
	for part in node runtime; do $(CARGO) fmt --manifest-path substrate/$$part/Cargo.toml --check || exit 1; done
	$(CARGO) $(CLIPPY)
	$(CARGO) clippy -p tenure-core --no-default-features -- -D warnings
	@# What `make demo` builds: features that other crates bring along must not be missed.
	RUSTC_WORKSPACE_WRAPPER= $(CARGO) check -p tenure-cli --no-default-features

# Most tests wait, for leases and for processes, and leave the cores idle: one more at once than there are cores. With
# twice as many, those that bound a time begin to fail.
unit newer-server test-chain: export RUST_TEST_THREADS ?= $(shell expr 1 + $$(getconf _NPROCESSORS_ONLN))

unit: setup setup-deploy setup-prometheus   ## Unit, property, integration and documentation tests, each on real servers
	$(CARGO) test $(FEATURES) --no-fail-fast --lib --bins --examples $(UNIT:%=--test %)
	$(CARGO) test $(FEATURES) --doc

faults: setup       ## Separate processes, real faults; one at a time, because time is what they test
	$(CARGO) test $(FEATURES) --test faults -- --test-threads=1

drill: setup        ## Faults of a Patroni cluster, one at a time; needs root. ARGS="--list", "--fault NAME --config NAME"
	@scripts/setup.sh drill
	$(CARGO) build $(FEATURES) --bins
	target/debug/xtask drill $(ARGS)

loom:               ## The gate under every interleaving
	RUSTC_WORKSPACE_WRAPPER= RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom \
		$(CARGO) test -p tenure-core --release --test gate_loom

newer-server: setup ## The heart of the suite on PostgreSQL 18
	@# Without what does not depend on the server's version: poolers, start-up, logging, traffic.
	TENURE_TEST_PG=18 $(CARGO) test $(FEATURES) --test election -- --skip preflight:: --skip start:: \
		--skip quiet:: --skip traffic::

test-chain: setup setup-chain   ## Transactions: a real anvil, an imitated Substrate node, three nodes under fire
	$(CARGO) test $(FEATURES) --no-fail-fast $(CHAIN:%=--test %)

test-substrate: setup   ## Scenarios, and three nodes under fire, on a real Substrate node that is built once (over ten minutes)
	node=$$(scripts/substrate.sh node) && export TENURE_SUBSTRATE_NODE=$$node \
		&& TENURE_SUBSTRATE=node $(CARGO) test $(FEATURES) --test substrate -- scenario:: pursuit:: provider:: --include-ignored \
		&& $(CARGO) test $(FEATURES) --test tx -- --ignored substrate:: --nocapture

record-substrate:   ## Records the scenarios on that node anew; make test plays the recordings
	scripts/substrate.sh record

python: setup setup-python   ## The Python package on a real server, in a virtual environment of its own
	$(CARGO) fmt --manifest-path crates/tenure-py/Cargo.toml --check
	scripts/python.sh build
	scripts/python.sh run mypy
	scripts/python.sh run pytest -m "not slow"

python-all: setup setup-python wheel   ## Also gunicorn, Celery, fresh installations, and what pyright says
	scripts/python.sh all
	PROFILE=release scripts/python.sh build
	scripts/python.sh run mypy
	scripts/python.sh run pyright
	scripts/python.sh run pytest

wheel: setup-python ## A wheel of the Python package, for this platform and every CPython from 3.9 on
	scripts/python.sh wheel

bench-python: setup setup-python   ## Gate checks and takeovers from Python, beside the Rust library
	scripts/python.sh bench

soak-gossip: setup  ## Half an hour of faults on seven nodes of a gossip group, judged; SOAK=5m for less
	$(CARGO) build --release -p tenure-cli -p xtask
	target/release/xtask soak --time $(or $(SOAK),30m) --folder $$(mktemp -d)

doc:                ## The libraries' documentation; a broken link is an error
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(FEATURES) --no-deps

page: setup         ## The page in a real Chromium, below a minute
	@scripts/setup.sh page
	$(CARGO) test $(FEATURES) --test cli -- --ignored page::browser::pass --nocapture

page-all: setup     ## Also axe, a thousand roles, pictures, and the API fuzzed
	@scripts/setup.sh page-all
	TENURE_SHOTS=$(CURDIR)/target/page $(CARGO) test $(FEATURES) --test cli -- --ignored page::browser::all --nocapture

picture: setup      ## Draws docs/page.png anew: the page on a bad day of a group that does not exist
	@scripts/setup.sh page
	$(CARGO) test $(FEATURES) --test cli -- --ignored page::picture --nocapture

deny:               ## Licences and advisories, where cargo-deny is installed
	@if command -v cargo-deny >/dev/null; then cargo deny check; \
	else echo "cargo-deny is not installed: deny.toml was not checked"; fi
