# Every command of a working day. `make demo` and `make test` do all their own set-up.

# Where cargo puts what it builds.
BUILT := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)

# Every release build names the same packages, whatever it wants of them: cargo then builds what they share with the same
# features, and once.
PROGRAMS = --bin lasthop --bin lasthop-supervisor --bin lasthop-control --bin lasthop-switch --bin lasthop-driver --bin lasthop-top --bin slotgen
RELEASE = cargo build --release --package lasthop --package lasthop-supervisor --package lasthop-control \
	--package lasthop-datapath --package lasthop-driver --package lasthop-top --package lasthop-e2e --package lasthop-load $(WITH)

# The libraries that take a program's calls. No program of ours links them, so they share no build with the others.
LIBRARY = cargo build --release --package lasthop-netmap-preload --package lasthop-sockets-preload

# The time of each part and of each test program is printed and appended to target/times.
TIMED = scripts/timed part
TIMED_PROGRAMS = --config "target.'cfg(all())'.runner = ['scripts/timed', 'programs']"

# The benchmarks are a workspace of their own, with the same build folder.
BENCH = cd bench && CARGO_TARGET_DIR="$(abspath $(BUILT))" cargo

STRESS = $(RELEASE) --bin lasthop-stress && LASTHOP_BIN="$(BUILT)/release" "$(BUILT)/release/lasthop-stress"

# A fresh clone builds once: without the files of incremental builds and without line tables in test programs, which take
# time. A clone where cargo was called without make has such files already, and keeps both.
ifeq ($(wildcard $(BUILT)/debug/incremental),)
export CARGO_INCREMENTAL ?= 0
export CARGO_PROFILE_DEV_DEBUG ?= 0
endif

.PHONY: help setup compiler build demo test all-tests other-tests e2e-tests test-programs release-programs lints-last check format lints bench-lints api-document unit timing instructions e2e test-long bench bench-programs figures soak faults chaos hostile deb miri fuzz bpf clean

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

# Units and end-to-end tests are built at once, so that what they share is built once.
# Test programs have one build folder, release binaries another: the two are built side by side, so that a core does not
# wait while the other compiles a large crate. The rest of set-up, which waits for downloads, runs beside both.
# The program that kills processes is built with the tests; the benchmarks are a workspace of their own.
# Tests that lack a right or a feature of the machine note themselves in a file; LASTHOP_ALL=1 makes them fail.
test test-long: export LASTHOP_SKIPPED := $(BUILT)/skipped
test test-long: export LASTHOP_TIMES := $(BUILT)/times
# A failed test of `make test` runs once more. A machine that others use fails tests that wait for guests; those that pass
# then are listed at the end. Property tests have the same cases in each run: `make unit` and `make test-long` try others.
test: export LASTHOP_UNSTABLE := $(BUILT)/unstable
test: export PROPTEST_RNG_SEED ?= 1
# A file that is there when the first end-to-end test runs.
test: export LASTHOP_BEGUN := $(BUILT)/begun
SHOW_UNSTABLE = @if [ -s "$(LASTHOP_UNSTABLE)" ]; then sort "$(LASTHOP_UNSTABLE)"; fi
SHOW_SKIPPED = @if [ -s "$(LASTHOP_SKIPPED)" ]; then sort "$(LASTHOP_SKIPPED)"; \
	echo "note: $$(wc -l <"$(LASTHOP_SKIPPED)") tests or parts of them were skipped"; fi

test: compiler ## All that CI runs: set-up, lints, instruction counts, unit and end-to-end tests, a few kills
	@mkdir -p "$(BUILT)" && echo "# $$(date -u '+%F %T') on $$(nproc) cores" >>"$(LASTHOP_TIMES)"
	@$(TIMED) "all of make test" $(MAKE) --no-print-directory all-tests

all-tests: format
	@$(TIMED) "set-up, builds, instructions" \
		$(MAKE) --no-print-directory --jobs=4 --output-sync=target setup test-programs release-programs instructions
	@$(MAKE) --no-print-directory api-document
	@rm -f "$(LASTHOP_SKIPPED)" "$(LASTHOP_UNSTABLE)"
	@$(MAKE) --no-print-directory other-tests
	@rm -f "$(LASTHOP_BEGUN)"
	@$(TIMED) "lints, end-to-end tests" $(MAKE) --no-print-directory --jobs=2 --output-sync=target lints-last e2e-tests
	@if [ "$$(nproc)" -ge 2 ]; then LASTHOP_BIN="$(BUILT)/release" $(TIMED) "faults" "$(BUILT)/debug/lasthop-stress" faults --quick; \
	else echo "note: one core, so no process is killed"; fi
	$(SHOW_SKIPPED)
	$(SHOW_UNSTABLE)

other-tests: export LASTHOP_BIN := $(BUILT)/release
other-tests:
	@$(TIMED) "tests but end to end" cargo test $(NFF) $(TIMED_PROGRAMS) --workspace --exclude lasthop-e2e

# Nothing but lints runs beside the end-to-end tests, and these get only what the tests leave: one compiler more at normal
# priority takes half of a core, and guests, switch and test wait for each other all the time. Nice processes have a part
# even of a busy core; those of the class for idle time have none. The other tests need a sixth of the time of these ones,
# and beside them three times as long. Cargo locks its folder while it builds, so lints begin when the tests have.
IDLE := $(shell chrt --idle 0 true 2>/dev/null && echo chrt --idle 0 || echo nice -n 19)
lints-last:
	@for _ in $$(seq 60); do [ ! -e "$(LASTHOP_BEGUN)" ] || break; sleep 1; done
	@$(IDLE) $(MAKE) --no-print-directory lints

# The packages are those of test-programs, so that nothing is built again; programs of the others are left out. Tests wait
# for their turns, so there are more threads than cores.
e2e-tests: export LASTHOP_BIN := $(BUILT)/release
e2e-tests:
	@$(TIMED) "end-to-end tests" cargo test $(NFF) --workspace --tests \
		--config "target.'cfg(all())'.runner = ['scripts/timed', 'only', 'lasthop-e2e']" -- --test-threads=4

compiler:
	@scripts/setup compiler

test-programs:
	@$(TIMED) "build of test programs" cargo test --quiet --no-run --workspace

release-programs:
	@$(TIMED) "build of release programs" $(RELEASE) $(PROGRAMS)
	@$(TIMED) "build of libraries" $(LIBRARY)

check: lints bench-lints api-document ## Format, lints, the code's documentation and the API's document

format:
	@if cargo fmt --version >/dev/null 2>&1; then $(TIMED) "format" cargo fmt --all --check && cargo fmt --manifest-path bench/Cargo.toml --check; \
	else echo "note: no rustfmt here, format not checked"; fi

lints: format
	@if cargo clippy --version >/dev/null 2>&1; then \
	$(TIMED) "clippy" cargo clippy --quiet --workspace --all-targets -- -D warnings; \
	else echo "note: no clippy here, lints not checked"; fi
	@RUSTDOCFLAGS="-D warnings" $(TIMED) "rustdoc" cargo doc --quiet --workspace --no-deps --document-private-items

bench-lints: export RUSTDOCFLAGS := -D warnings
bench-lints:
	@if cargo clippy --version >/dev/null 2>&1; then $(BENCH) clippy --quiet --all-targets -- -D warnings; \
	else echo "note: no clippy here, lints not checked"; fi
	$(BENCH) doc --quiet --no-deps --document-private-items

api-document:
	@if [ -e .cache/python/installed ]; then .cache/python/bin/python -m openapi_spec_validator docs/openapi.json; \
	else echo "note: no Python tools here ('make setup' installs them), docs/openapi.json not checked"; fi

unit: ## Unit and property tests, and the fuzzers' seeds: no root, seconds once built
	cargo test --workspace --exclude lasthop-e2e

timing: build ## Tests with the durations that they check, alone: elsewhere a busy machine would fail them
	LASTHOP_TIMING=1 cargo test --package lasthop --test processes supervisor -- --test-threads=1
	LASTHOP_TIMING=1 LASTHOP_BIN="$(BUILT)/release" cargo test --package lasthop --test foreign_descriptors -- --nocapture
	LASTHOP_TIMING=1 LASTHOP_BIN="$(BUILT)/release" cargo test --package lasthop-e2e --test e2e flows_that_exist

instructions: setup ## Instructions per frame beside the committed ones; BLESS=1 commits new ones
	@$(TIMED) "build of the program that is counted" $(RELEASE)
	@$(TIMED) "instructions" "$(BUILT)/release/examples/instructions" $(if $(BLESS),--bless)

e2e: setup build ## End-to-end tests with real QEMU guests and testpmd
	LASTHOP_BIN="$(BUILT)/release" cargo test --package lasthop-e2e

# Set-up has these, too.
test-long: export LIBVIRT := 1
test-long: export VIRTIO_IOMMU := 1
test-long: setup build bench-lints ## All tests, those of the benchmarks too, with a thousand kills and upgrades, all variants of firmware and guests, and domains of libvirt
	@rm -f "$(LASTHOP_SKIPPED)"
	LASTHOP_LONG=1 LASTHOP_KILLS=$(or $(KILLS),1000) LASTHOP_UPGRADES=$(or $(UPGRADES),1000) LASTHOP_BIN="$(BUILT)/release" \
		cargo test $(TIMED_PROGRAMS) --workspace
	$(BENCH) test
	$(SHOW_SKIPPED)

bench: bench-programs ## Lasthop beside its peers; or make bench QUICK=1, EXPERIMENTS="frames idle"
	@"$(BUILT)/release/lasthop-bench" $(if $(QUICK),--quick) $(EXPERIMENTS)

figures: bench-programs ## The figures of the papers beside what was published; or make figures FULL=1, ONLY=000-4.10,002-6, RESUME=bench/results
	@"$(BUILT)/release/lasthop-bench" paper $(if $(FULL),--full) $(if $(ONLY),--only "$(ONLY)") $(if $(RESUME),--resume "$(RESUME)")

bench-programs: setup build
	@bench/setup
	$(BENCH) build --release --bin lasthop-bench

soak: build ## Ten minutes of full load while ports come and go: no frame may be missing; or make soak MINUTES=60
	@$(STRESS) soak --minutes $(or $(MINUTES),10)

faults: build ## Kill each process a hundred times under traffic: gap and frames lost; or make faults QUICK=1 GUESTS=100
	@$(STRESS) faults $(if $(QUICK),--quick) $(if $(GUESTS),--guests $(GUESTS))

chaos: build ## Ten minutes of random kills, reboots, ports and memory that come and go; or make chaos MINUTES=120 GUESTS=100
	@$(STRESS) chaos --minutes $(or $(MINUTES),10) $(if $(GUESTS),--guests $(GUESTS))

hostile: build ## Ten minutes of every known trick of a hostile VMM beside honest ones; or make hostile MINUTES=2 TRICK=hugetlb
	$(RELEASE) --package lasthop-hostile --example hostile
	@"$(BUILT)/release/examples/hostile" --bin "$(BUILT)/release" --minutes $(or $(MINUTES),10) $(if $(TRICK),--trick "$(TRICK)") $(if $(SEED),--seed $(SEED))

deb: build ## Debian packages in target/debian/: lasthop, and its debug symbols in lasthop-dbgsym
	@scripts/deb "$(BUILT)"

bpf: ## Compile the BPF programs, whose objects are committed (needs clang-14)
	@scripts/bpf

miri: ## Queue, queue lock, ring and memory code, tables of translations and of connections, and the credit and tokens of scheduled ports under Miri (needs a nightly toolchain with miri)
	@cargo +nightly miri --version >/dev/null 2>&1 || \
	{ echo "error: no Miri: 'rustup toolchain install nightly --component miri'" >&2; exit 1; }
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 cargo +nightly miri test --lib \
		--package lasthop-mapping --package lasthop-memory
	MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --package lasthop-conntrack --lib \
		-- table::tests::reuse table::tests::garbage table::tests::what table::fragments table::word tracker::
	cargo +nightly miri test --package lasthop-virtio --lib queue::
	cargo +nightly miri test --package lasthop-ring --lib
	MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --package lasthop-offload --lib -- table:: masks:: connections::
	cargo +nightly miri test --package lasthop-datapath --lib -- queue_lock:: egress::
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 cargo +nightly miri test --package lasthop-egress --lib \
		-- tokens:: window changed scaled room

fuzz: ## Fuzz all that others write, 20 seconds each; or make fuzz TARGET=queue_split SECONDS=600 SANITIZER=address
	@SANITIZER="$(or $(SANITIZER),none)" fuzz/run "$(TARGET)" "$(SECONDS)"

clean: ## Remove everything that was built, the guest image included
	cargo clean
	rm -rf .cache fuzz/target
