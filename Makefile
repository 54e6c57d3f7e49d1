# Two commands matter: `make demo` and `make test`. Each does all its own set-up.
SHELL := /bin/bash
CARGO ?= cargo
# Fault tests break the gate on purpose to see that they would notice.
TEST_FEATURES := tenure/negative-control

.PHONY: demo test setup lint unit faults loom newer-server deny test-chain help

help:            ## What can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

demo: setup      ## Watch three members survive kills, freezes, partitions and a database restart
	$(CARGO) run -p tenure-cli -- demo

test: setup lint unit faults loom newer-server deny   ## Everything CI runs

setup:
	@scripts/setup.sh core

lint:            ## Formatting and clippy, warnings are errors
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --features $(TEST_FEATURES) -- -D warnings

unit:            ## Unit, property, integration and documentation tests
	$(CARGO) test --workspace --features $(TEST_FEATURES) -- --skip faults::

faults:          ## Separate processes, real faults; one at a time, because time is what they test
	$(CARGO) test -p tenure --features negative-control --test faults -- --test-threads=1

loom:            ## The gate under every interleaving
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom \
		$(CARGO) test -p tenure-core --release --test gate_loom

newer-server: setup   ## The heart of the suite on PostgreSQL 18
	TENURE_TEST_PG=18 $(CARGO) test -p tenure --features $(TEST_FEATURES) --test election

deny:            ## Licences and advisories, where cargo-deny is installed
	@if command -v cargo-deny >/dev/null; then cargo deny check; \
	else echo "cargo-deny is not installed: deny.toml was not checked"; fi

test-chain:      ## Transactions on a real anvil and a scripted Substrate node
	@scripts/setup.sh chain
	$(CARGO) test -p tenure-tx --all-features
