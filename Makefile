# Everything a person types. `make test` and `make demo` need nothing before them on a
# Debian 12 with Rust and Python.

CARGO ?= cargo
PREFIX ?= /usr/local
# Where cargo puts what it builds.
BUILT = $(or $(CARGO_TARGET_DIR),target)

.PHONY: help build release test test-python test-fabric test-loom test-mpi test-slurm test-all demo lint bench install clean

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

test: ## Set up and run all but the slow tests
	-scripts/install-packages test
	-scripts/install-packages slurm
	-scripts/install-packages demo
	-scripts/install-tools
	$(MAKE) lint
	$(CARGO) build --workspace --locked
	$(CARGO) test --workspace --locked --no-fail-fast
	scripts/test-python
	$(MAKE) test-loom
	$(MAKE) test-fabric
	$(MAKE) test-mpi

test-python: ## Build the Python package and test it
	$(CARGO) build --locked -p tidepool-staged
	scripts/test-python

# Another build of the same programs: what runs after this has libfabric until the next build of the workspace.
FABRIC = -p tidepool-fabric -p tidepool-transport -p tidepool-fsd -p tidepool-cli -p tidepool-testkit -p tidepool-stage \
  -p tidepool-staged --features libfabric --locked
test-fabric: ## Build with libfabric and test what goes over it
	if [ -e /usr/include/rdma/fabric.h ]; then \
	  $(CARGO) clippy $(FABRIC) --all-targets -- -D warnings && $(CARGO) build $(FABRIC) && \
	  $(CARGO) test -p tidepool-fabric -p tidepool-testkit -p tidepool-cli -p tidepool-stage -p tidepool-staged --features libfabric --locked --no-fail-fast \
	    --lib --test fabric --test files; \
	else echo "SKIPPED: tests of libfabric, because libfabric-dev is not installed"; fi

# With loom's mutexes and atomics instead of the standard library's.
test-loom: ## Try all orders of what the threads of the simulators' kernel do to each other
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$(BUILT)/loom $(CARGO) test -p tidepool-sim --locked --lib loom_

# Another build, too. mpicc may belong to MPICH, so Open MPI's is named.
MPI = -p tidepool-sim-mpi -p tidepool-cli --features tidepool-sim-mpi/mpi,tidepool-cli/mpi --locked
test-mpi: ## Build with MPI (Open MPI) and test simulations over ranks
	-scripts/install-packages mpi
	if ! command -v mpicc.openmpi >/dev/null || ! command -v mpirun.openmpi >/dev/null; then \
	  echo "SKIPPED: tests of MPI, because openmpi-bin and libopenmpi-dev are not installed"; \
	elif ! ls /usr/lib/llvm-*/lib/libclang-[0-9]*.so* >/dev/null 2>&1; then \
	  echo "SKIPPED: tests of MPI, because libclang1 is not installed"; \
	else \
	  MPICC=mpicc.openmpi $(CARGO) clippy $(MPI) --lib --bins --test sim_mpi --test ranks -- -D warnings && \
	  MPICC=mpicc.openmpi $(CARGO) test $(MPI) --no-fail-fast --lib --test sim_mpi --test ranks; \
	fi

test-slurm: ## Test jobs on a real Slurm cluster, the slow tests as well
	-scripts/install-packages slurm
	-scripts/install-packages slurm-accounting
	-scripts/install-packages demo
	$(CARGO) build --workspace --locked
	TIDEPOOL_SLURM=full $(CARGO) test -p tidepool-cli --locked --no-fail-fast \
	  --test slurm --test slurm_jobs --test slurm_sweep --test slurm_pools --test slurm_lifetime --test slurm_faults --test slurm_accounting --test slurm_openfoam

test-all: test ## The slow suites as well
	-scripts/install-packages newer-slurm
	-scripts/install-packages slurm-accounting
	integrations/slurm/test-newer $(BUILT)/debug
	TIDEPOOL_KILLS=300 TIDEPOOL_FUZZ_SECONDS=600 TIDEPOOL_STOPS=50 TIDEPOOL_TORTURE=full TIDEPOOL_FSX_OPS=1000000 TIDEPOOL_HISTORIES=1000 \
	  TIDEPOOL_CHAOS=full TIDEPOOL_FAULT_RUNS=1000 TIDEPOOL_SLURM=full \
	  $(CARGO) test --workspace --locked --no-fail-fast

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
