# Every command of a working day. `make demo` and `make test` do all their own set-up.

# Where cargo puts what it builds.
BUILT := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)

# Every release build names the same packages, whatever it wants of them: cargo then builds what they share with the same
# features, and once.
PROGRAMS = --bin lasthop --bin lasthop-supervisor --bin lasthop-control --bin lasthop-switch --bin lasthop-driver --bin lasthop-top
RELEASE = cargo build --release --package lasthop --package lasthop-supervisor --package lasthop-control \
	--package lasthop-datapath --package lasthop-driver --package lasthop-top --package lasthop-e2e $(WITH)

# The libraries that take a program's calls, and a program of the netmap API. No program of ours links them, so they share
# no build with the others.
LIBRARY = cargo build --release --package lasthop-netmap-preload --package lasthop-net-preload

STRESS = $(RELEASE) --bin lasthop-stress && LASTHOP_BIN="$(BUILT)/release" "$(BUILT)/release/lasthop-stress"

# A fresh clone builds once: without the files of incremental builds and without line tables in test programs, which take
# time. A clone where cargo was called without make has such files already, and keeps both.
ifeq ($(wildcard $(BUILT)/debug/incremental),)
export CARGO_INCREMENTAL ?= 0
export CARGO_PROFILE_DEV_DEBUG ?= 0
endif

.PHONY: help setup compiler build demo test test-programs release-programs check lints api-document unit timing instructions e2e test-long bench bench-programs figures soak faults chaos hostile deb miri fuzz clean

help: ## Show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## Install what is missing (Debian packages) and build the guest image; LIBVIRT=1 installs libvirt, VIRTIO_IOMMU=1 makes a guest with virtio-iommu, too
	@scripts/setup

build: ## Build the release binaries: target/release/lasthop and its siblings
	$(RELEASE) $(PROGRAMS)
	$(LIBRARY)

demo: ## Two virtual machines talk through Lasthop, with everything set up on the way
	@scripts/demo

# An example has the features of crates for tests, so the binaries that are built beside it share its crates.
test instructions: export WITH := --example instructions

# Units and end-to-end tests at once, so that what they share is built once.
# Lints and test programs have one build folder, release binaries another: the two are built side by side, so that a core
# does not wait while the other compiles a large crate. The rest of set-up, which waits for downloads, runs beside both.
# The benchmarks are linted and not built; the program that kills processes is built with the tests.
# Tests that lack a right or a feature of the machine note themselves in a file; LASTHOP_ALL=1 makes them fail.
test test-long: export LASTHOP_SKIPPED := $(BUILT)/skipped
SHOW_SKIPPED = @if [ -s "$(LASTHOP_SKIPPED)" ]; then sort "$(LASTHOP_SKIPPED)"; \
	echo "note: $$(wc -l <"$(LASTHOP_SKIPPED)") tests or parts of them were skipped"; fi

test: compiler ## All that CI runs: set-up, lints, instruction counts, unit and end-to-end tests, a few kills
	@$(MAKE) --no-print-directory --jobs=4 --output-sync=target setup test-programs release-programs instructions
	@$(MAKE) --no-print-directory api-document
	@rm -f "$(LASTHOP_SKIPPED)"
	LASTHOP_BIN="$(BUILT)/release" cargo test --workspace --exclude lasthop-bench
	@if [ "$$(nproc)" -ge 2 ]; then LASTHOP_BIN="$(BUILT)/release" "$(BUILT)/debug/lasthop-stress" faults --quick; \
	else echo "note: one core, so no process is killed"; fi
	$(SHOW_SKIPPED)

compiler:
	@scripts/setup compiler

test-programs: lints
	cargo test --quiet --no-run --workspace --exclude lasthop-bench

release-programs:
	$(RELEASE) $(PROGRAMS)
	$(LIBRARY)

check: lints api-document ## Format, lints, the code's documentation and the API's document

lints:
	@if cargo fmt --version >/dev/null 2>&1; then cargo fmt --all --check; else echo "note: no rustfmt here, format not checked"; fi
	@if cargo clippy --version >/dev/null 2>&1; then cargo clippy --quiet --workspace --all-targets -- -D warnings; \
	else echo "note: no clippy here, lints not checked"; fi
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps --document-private-items

api-document:
	@if [ -e .cache/python/installed ]; then .cache/python/bin/python -m openapi_spec_validator docs/openapi.json; \
	else echo "note: no Python tools here ('make setup' installs them), docs/openapi.json not checked"; fi

unit: ## Unit and property tests, and the fuzzers' seeds: no root, seconds once built
	cargo test --workspace --exclude lasthop-e2e

timing: build ## Tests with the durations that they check, alone: elsewhere a busy machine would fail them
	LASTHOP_TIMING=1 cargo test --package lasthop --test supervisor -- --test-threads=1
	LASTHOP_TIMING=1 LASTHOP_BIN="$(BUILT)/release" cargo test --package lasthop --test foreign_descriptors -- --nocapture
	LASTHOP_TIMING=1 LASTHOP_BIN="$(BUILT)/release" cargo test --package lasthop-e2e --test control -- flows_that_exist

instructions: setup ## Instructions per frame beside the committed ones; BLESS=1 commits new ones
	$(RELEASE)
	@"$(BUILT)/release/examples/instructions" $(if $(BLESS),--bless)

e2e: setup build ## End-to-end tests with real QEMU guests and testpmd
	LASTHOP_BIN="$(BUILT)/release" cargo test --package lasthop-e2e

# Set-up has these, too.
test-long: export LIBVIRT := 1
test-long: export VIRTIO_IOMMU := 1
test-long: setup build ## All tests with a thousand kills and upgrades, all variants of firmware and guests, and domains of libvirt
	@rm -f "$(LASTHOP_SKIPPED)"
	LASTHOP_LONG=1 LASTHOP_KILLS=$(or $(KILLS),1000) LASTHOP_UPGRADES=$(or $(UPGRADES),1000) LASTHOP_BIN="$(BUILT)/release" \
		cargo test --workspace
	$(SHOW_SKIPPED)

bench: bench-programs ## Lasthop beside its peers; or make bench QUICK=1, EXPERIMENTS="frames idle"
	@"$(BUILT)/release/lasthop-bench" $(if $(QUICK),--quick) $(EXPERIMENTS)

figures: bench-programs ## The figures of the papers beside what was published; or make figures FULL=1, ONLY=000-4.10,002-6, RESUME=bench/results
	@"$(BUILT)/release/lasthop-bench" paper $(if $(FULL),--full) $(if $(ONLY),--only "$(ONLY)") $(if $(RESUME),--resume "$(RESUME)")

# The folder in-process has the programs with one that is switch and driver at once.
bench-programs: setup build
	@crates/bench/setup
	$(RELEASE) --package lasthop-bench --bin lasthop-bench
	$(RELEASE) --package lasthop-bench --features lasthop-bench/in-process --example in-process
	@cd "$(BUILT)/release" && mkdir -p in-process && \
	ln -f lasthop lasthop-supervisor lasthop-control lasthop-top in-process/ && \
	ln -f examples/in-process in-process/lasthop-switch && ln -f examples/in-process in-process/lasthop-driver

soak: build ## Ten minutes of full load while ports come and go: no frame may be missing; or make soak MINUTES=60
	@$(STRESS) soak --minutes $(or $(MINUTES),10)

faults: build ## Kill each process a hundred times under traffic: gap and frames lost; or make faults QUICK=1
	@$(STRESS) faults $(if $(QUICK),--quick)

chaos: build ## Ten minutes of random kills, reboots, ports and memory that come and go; or make chaos MINUTES=120
	@$(STRESS) chaos --minutes $(or $(MINUTES),10)

hostile: build ## Ten minutes of every known trick of a hostile VMM beside honest ones; or make hostile MINUTES=2 TRICK=hugetlb
	$(RELEASE) --package lasthop-testkit --example hostile
	@"$(BUILT)/release/examples/hostile" --bin "$(BUILT)/release" --minutes $(or $(MINUTES),10) $(if $(TRICK),--trick "$(TRICK)") $(if $(SEED),--seed $(SEED))

deb: build ## Debian packages in target/debian/: lasthop, and its debug symbols in lasthop-dbgsym
	@scripts/deb "$(BUILT)"

miri: ## Queue, queue lock, ring and memory code, tables of translations, and the credit and tokens of scheduled ports under Miri (needs a nightly toolchain with miri)
	@cargo +nightly miri --version >/dev/null 2>&1 || \
	{ echo "error: no Miri: 'rustup toolchain install nightly --component miri'" >&2; exit 1; }
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 cargo +nightly miri test --lib \
		--package lasthop-mapping --package lasthop-memory
	cargo +nightly miri test --package lasthop-virtio --lib queue::
	cargo +nightly miri test --package lasthop-ring --lib
	cargo +nightly miri test --package lasthop-datapath --lib -- queue_lock:: egress::
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 cargo +nightly miri test --package lasthop-egress --lib \
		-- tokens:: window changed scaled room

fuzz: ## Fuzz all that others write, 20 seconds each; or make fuzz TARGET=queue_split SECONDS=600 SANITIZER=address
	@SANITIZER="$(or $(SANITIZER),none)" fuzz/run "$(TARGET)" "$(SECONDS)"

clean: ## Remove everything that was built, the guest image included
	cargo clean
	rm -rf .cache fuzz/target
