# Everything a person types. `make test` and `make demo` need nothing before them on a
# Debian 12 with Rust and Python.

CARGO ?= cargo
export CARGO
PREFIX ?= /usr/local
# Where cargo puts what it builds.
BUILT = $(or $(CARGO_TARGET_DIR),target)

.PHONY: help build release test test-python test-fabric test-loom test-mpi test-slurm test-suites test-all demo lint bench install clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

build: ## Build everything for development
	scripts/install-packages build
	$(CARGO) build --workspace --locked

release: ## Build everything with full optimisation
	scripts/install-packages build
	$(CARGO) build --workspace --release --locked

lint: ## Formatting, lints and the rules of xtask tidy
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) xtask tidy

# Programs with the tests: alone they would be built with other features of their crates, and again for the tests.
test: ## Set up and run all but the slow tests
	-scripts/install-packages test
	-scripts/install-packages slurm
	-scripts/install-packages demo
	-scripts/install-tools
	$(MAKE) lint
	$(CARGO) build --workspace --all-targets --locked
	scripts/test-rust
	scripts/test-python
	$(MAKE) test-loom
	scripts/test-features libfabric mpi

test-python: ## Build the Python package and test it
	$(CARGO) build --locked -p tidepool-staged -p tidepool-cli
	scripts/test-python

test-fabric: ## Build with libfabric and test what goes over it
	scripts/test-features libfabric

# With loom's mutexes and atomics instead of the standard library's.
test-loom: ## Try all orders of what the threads of the simulators' kernel do to each other
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$(BUILT)/loom $(CARGO) test -p tidepool-sim --locked --lib loom_

test-mpi: ## Build with MPI (Open MPI) and test simulations over ranks
	scripts/test-features mpi

test-slurm: ## Test jobs on a real Slurm cluster, the slow tests as well
	-scripts/install-packages slurm
	-scripts/install-packages slurm-accounting
	-scripts/install-packages demo
	$(CARGO) build --workspace --locked
	TIDEPOOL_SLURM=full $(CARGO) test -p tidepool-cli --locked --no-fail-fast \
	  --test slurm --test slurm_jobs --test slurm_sweep --test slurm_pools --test slurm_lifetime --test slurm_faults --test slurm_accounting --test slurm_openfoam

# TIDEPOOL_SUITES=require: a suite that cannot be had has failed.
test-suites: ## Run test suites of others on pools (pjdfstest, LTP, xfstests, stress-ng, HDF5, PostgreSQL)
	-scripts/install-packages suites
	$(CARGO) build --workspace --locked
	scripts/suites/run --bin $(BUILT)/debug

test-all: test ## The slow suites as well
	-scripts/install-packages newer-slurm
	-scripts/install-packages slurm-accounting
	integrations/slurm/test-newer $(BUILT)/debug
	TIDEPOOL_KILLS=300 TIDEPOOL_FUZZ_SECONDS=600 TIDEPOOL_SOAK_SECONDS=1200 TIDEPOOL_DATA_SOAK_SECONDS=1800 TIDEPOOL_STOPS=50 TIDEPOOL_TORTURE=full TIDEPOOL_FSX_OPS=1000000 TIDEPOOL_HISTORIES=1000 \
	  TIDEPOOL_CHAOS=full TIDEPOOL_FAULT_RUNS=1000 TIDEPOOL_SLURM=full \
	  scripts/test-rust
	$(MAKE) test-suites

demo: ## Run OpenFOAM with all its files on a pool of four daemons
	-scripts/install-packages demo
	scripts/install-packages build
	$(CARGO) build --workspace --release --locked
	python3 examples/openfoam/demo.py

bench: release ## Measure a pool beside the file system below it
	$(BUILT)/release/tidepool bench md --nodes 1
	$(BUILT)/release/tidepool bench io --nodes 1

install: release ## Install into PREFIX (default /usr/local)
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,bin lib include/norns share/man/man1)
	install -m 755 $(addprefix $(BUILT)/release/,tidepool tidepoold tidepool-staged nornsctl) \
	  $(BUILT)/release/libtidepool_preload.so \
	  $(DESTDIR)$(PREFIX)/bin
	install -m 755 $(BUILT)/release/libnorns.so $(DESTDIR)$(PREFIX)/lib
	ln -sf libnorns.so $(DESTDIR)$(PREFIX)/lib/libnornsctl.so
	install -m 644 crates/capi/include/*.h $(DESTDIR)$(PREFIX)/include
	install -m 644 crates/capi/include/norns/*.h $(DESTDIR)$(PREFIX)/include/norns
	$(BUILT)/release/tidepool man $(DESTDIR)$(PREFIX)/share/man/man1
	$(BUILT)/release/nornsctl man $(DESTDIR)$(PREFIX)/share/man/man1
	$(BUILT)/release/tidepool-staged --man $(DESTDIR)$(PREFIX)/share/man/man1

clean: ## Remove everything built
	$(CARGO) clean
