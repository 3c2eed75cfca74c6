# Two commands do everything on a fresh machine: `make demo` and `make test`.
# The build directory is outside the clone. Clones share only the dependencies in it (scripts/rustc.sh); each clone has its own
# directory for programs.
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ccbench
ifndef CARGO_TARGET_DIR
export CARGO_BUILD_BUILD_DIR ?= $(CACHE)/target
export CARGO_TARGET_DIR := $(CACHE)/programs/$(firstword $(shell echo '$(CURDIR)' | cksum))
endif
export RUSTC_WORKSPACE_WRAPPER ?= $(CURDIR)/scripts/rustc.sh
BIN := $(CARGO_TARGET_DIR)/debug
PREFIX ?= /usr/local

.PHONY: all demo test test-fast test-faults soak test-clock test-arm64 test-slurm test-slurm-faults test-lab test-lab-cpu test-lab-reruns test-vm test-machines lab lint fmt clippy clean-clones doc machete deny advisories fuzz fuzz-plans msrv msrv-version bench bench-flood bench-pages bench-results screenshots install uninstall setup build docs dist dist-lab test-dist size

all: build

setup:
	@scripts/setup.sh

# With the features that the tests enable in tokio: otherwise, Polars, which depends on it, would be compiled once for the programs and once
# for the tests.
build: setup
	@cargo build --locked -p ccbench -p ccbench-agent --features ccbench/test-util

demo: build
	$(BIN)/ccbench run plans/quickstart.toml

# Runs all tests: unit tests, and tests in network namespaces with iperf3 (root). Prints totals at the end. Does not depend on
# `build`: `cargo test` also builds the two programs, with the features of the tests.
test: setup
	@scripts/setup.sh --test
	@scripts/test.sh --locked --workspace --features netns,browser -- --test-threads=2

# Builds the lab's kernels for both engines, and installs QEMU. The first time this takes about 35 minutes.
lab: build
	@scripts/setup.sh --lab
	$(BIN)/ccbench lab build

# Runs the tests that need the lab: about 20 minutes on two CPUs, most of it for comparing queues with the kernel's. Two tests run at
# once, because nothing in the lab depends on the host's load.
test-lab: lab
	cargo test --locked --workspace --features netns,browser,lab --test lab -- --test-threads=2

# Runs the engine uml in emulated machines with other CPUs: all tables must equal those of this machine. Takes about 15 minutes; the
# first time it fetches a stock kernel.
test-lab-cpu: build
	@scripts/setup.sh --lab
	tests/lab/cpu.sh $(BIN)

# Runs the engine uml 20 times, idle and loaded, with one to four trials at once, with and without root: all tables and summaries must
# be equal.
test-lab-reruns: build
	@scripts/setup.sh --lab
	dir=$$(mktemp -d /var/tmp/ccbench-reruns.XXXXXX) && chmod 755 "$$dir" && tests/lab/reruns.sh $(BIN) "$$dir" && rm -r "$$dir"

# Runs the tests that need no root.
test-fast:
	@scripts/test.sh --locked --workspace

# Injects an even sample of the faults of `soak` into real processes: kills, failing or slow system calls, SIGSTOP, out of memory, partitions
# of the control network, damaged files. CCBENCH_FAULT_POINTS=N injects N of each kind. Needs root; takes at most 10 minutes.
test-faults: build
	@scripts/setup.sh --faults
	cargo test --locked --workspace --features netns,browser,faults --test faults -- --test-threads=1 --nocapture

# The same with every fault, at least 1000, and slopes of memory and descriptors over 10 000 simulated trials and 2000 in namespaces. Prints a
# table of the faults. Takes hours.
soak: export CCBENCH_FAULT_POINTS = 0
soak: test-faults

# Exchanges a million timestamps with an agent whose clock offset is known exactly. Needs root; takes minutes.
test-clock: build
	cargo run --locked -p ccbench --features test-util --example clock_bounds -- $(BIN)/ccbench-agent 1000000

# Compares the digests of the simulator's rows on an emulated architecture with those of this one. Takes minutes the first time.
test-arm64:
	@scripts/setup.sh --arm64
	@scripts/arm64.sh

# Runs a job array on a real Slurm with two nodes and kills one of them. Needs root; creates its own namespaces. Takes minutes.
test-slurm: build
	@scripts/setup.sh --slurm
	tests/slurm/run.sh $(BIN)

# Runs 2000 simulated trials as an array of 50 shards, with 100 faults of tasks, nodes, network and store. Needs root; takes about ten
# minutes.
test-slurm-faults: build
	@scripts/setup.sh --slurm
	@scripts/setup.sh --test
	tests/slurm/campaign.sh $(BIN)

# Loads modules and BPF objects into Debian's kernels in emulated machines. Takes minutes, and 2 GB of the cache the first time.
test-vm:
	tests/vm/run.sh

# Runs E1 over mTLS on three emulated machines with their own kernels, boot loaders and clocks: a reboot into another kernel, partitions, a
# reset, a clock that is set, and what systemd does with a stopped or killed agent. Needs root; creates its own namespaces. Takes 13 minutes
# without KVM. The first time it also builds a release of the agent and a disk (3 GB in the cache), which takes about 15 minutes more.
test-machines: build
	@scripts/setup.sh --machines
	cargo build --locked --release -p ccbench-agent
	tests/vm/machines.sh $(BIN) $(CARGO_TARGET_DIR)/release/ccbench-agent

# Checks the code without running it; each check is a target. cargo-machete and cargo-deny are skipped with a note if they are not
# installed: cargo install --locked cargo-machete cargo-deny
lint: fmt clippy doc machete deny
	@for tool in cargo-machete cargo-deny; do command -v $$tool >/dev/null || skipped="$$skipped $$tool"; done; \
		if [ -n "$$skipped" ]; then echo "lint: passed, but skipped (not installed):$$skipped"; else echo "lint: passed"; fi

fmt:
	cargo fmt --all --check

# All features but `lab`, whose tests are the same code, and the agent without eBPF, which users may build without clang.
CHECKED_FEATURES := netns,browser,faults,ccbench-shaper/bench

# Like `cargo clippy -- -D warnings`, but with a wrapper of this clone: cargo's wrapper has the same path in all clones (scripts/clippy.sh).
clippy: export RUSTC_WORKSPACE_WRAPPER = $(CURDIR)/scripts/clippy.sh
clippy: export CLIPPY_ARGS = -D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
clippy:
	cargo check --locked --workspace --all-targets --features $(CHECKED_FEATURES)
	cargo check --locked -p ccbench-agent --all-targets --no-default-features

# Removes the artefacts and programs of clones whose directory no longer exists.
clean-clones:
	@scripts/clean_clones.sh

# Runs rustdoc; warnings are errors.
doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --workspace

# Builds the documents as a book with search. Installs mdbook into the cache the first time, or prints a note if it cannot.
BOOK ?= $(CARGO_TARGET_DIR)/book
docs:
	@scripts/docs.sh $(BOOK)

# Finds unused dependencies.
machete:
	@if command -v cargo-machete >/dev/null; then cargo machete; else echo "skipped: cargo-machete is not installed"; fi

# Checks licences, banned crates and sources (deny.toml).
deny:
	@if command -v cargo-deny >/dev/null; then cargo deny check licenses bans sources; \
		else echo "skipped: cargo-deny is not installed"; fi

# Checks dependencies for known vulnerabilities. Fetches the database, so it is not a part of `lint`.
advisories:
	cargo deny check advisories

# Runs each fuzz target (or those in FUZZ_TARGETS) for FUZZ_SECONDS, with libFuzzer and AddressSanitizer. Needs a nightly
# compiler and cargo-fuzz; skipped with a note if they are missing.
FUZZ_SECONDS ?= 60
fuzz:
	@scripts/fuzz.sh $(FUZZ_SECONDS) $(FUZZ_TARGETS)

# Simulates generated plans for FUZZ_SECONDS, starting at seed FUZZ_SEED, without a nightly compiler: FUZZ_SECONDS=3600 make fuzz-plans
FUZZ_SEED ?= 0
fuzz-plans:
	@scripts/fuzz_plans.sh $(FUZZ_SECONDS) $(FUZZ_SEED)

# Builds with the oldest supported compiler (rust-version in Cargo.toml): rustup toolchain install $(MSRV)
MSRV := $(shell sed -n 's/^rust-version = "\(.*\)"/\1.0/p' Cargo.toml)
msrv-version:
	@echo $(MSRV)
msrv:
	cargo +$(MSRV) check --locked --workspace --all-targets --features $(CHECKED_FEATURES)
	cargo +$(MSRV) check --locked -p ccbench-agent --all-targets --no-default-features

# Measures ratios within one run: the cost of controller and agents, of start-up and per trial; of userspace links against plain veth; of
# watching sockets by polling and at every acknowledgement, also for whole runs with and without; of processing a trial against the shell
# script of the coexistence study.
bench: build
	tests/bench/overhead.sh $(BIN)
	cargo run --locked -p ccbench-shaper --example link_bench
	cargo run --locked -p ccbench-agent --example ack_cost
	tests/bench/acks_ab.sh $(BIN)
	cargo run --locked -p ccbench-shaper --features bench --example queue_cost
	$(MAKE) --no-print-directory bench-results

# Measures the release build, because users run it; the first build takes a quarter of an hour. The second benchmark needs 8 GB in TMPDIR.
bench-results: setup
	cargo build --locked --release -p ccbench -p ccbench-agent -p ccbench-results --bins --example many_samples
	tests/bench/pipeline.sh $(CARGO_TARGET_DIR)/release
	tests/bench/pipeline.sh $(CARGO_TARGET_DIR)/release 10 1
	tests/bench/summary.sh $(CARGO_TARGET_DIR)/release

# Measures cost and lag of live pages with 100 flows, also in a browser, as root. Also builds the report of 1000 trials, which must open
# within 2 s.
bench-pages: setup
	@scripts/setup.sh --test
	cargo build --locked --release -p ccbench -p ccbench-agent -p ccbench-results --bins --example many_samples --example live_record
	tests/bench/live.py $(CARGO_TARGET_DIR)/release
	REPORT_LIMIT_MS=2000 tests/bench/summary.sh $(CARGO_TARGET_DIR)/release 2000000 1000

# Saves screenshots of the report, the report of a sweep, the index and the live page at three widths in both themes, to look at. Prints
# their directory.
SCREENSHOTS ?= $(CARGO_TARGET_DIR)/screenshots
screenshots: setup
	@scripts/setup.sh --test
	CCBENCH_SCREENSHOTS=$(abspath $(SCREENSHOTS)) cargo test --locked --workspace --features netns,browser --test results -- --ignored --exact browser::screenshots::screenshots
	@echo $(abspath $(SCREENSHOTS))

# Measures what connection floods without a certificate, and unfinished requests, cost an agent while trials run. Needs root; creates its
# own namespaces. Takes two minutes. Fails above 5 % of a CPU or 64 MB, or if the flood degrades a trial.
bench-flood: build
	tests/bench/flood.py $(BIN)

install: setup
	cargo build --locked --release -p ccbench -p ccbench-agent
	scripts/stage.sh $(CARGO_TARGET_DIR)/release "$(DESTDIR)" $(PREFIX)

SHARE := $(DESTDIR)$(PREFIX)/share
uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/ccbench $(DESTDIR)$(PREFIX)/bin/ccbench-agent
	rm -f $(DESTDIR)$(PREFIX)/lib/systemd/system/ccbench-agent*.service $(DESTDIR)$(PREFIX)/lib/systemd/system/ccbench-agent*.socket
	rm -f $(DESTDIR)$(PREFIX)/lib/systemd/system/ccbench-agent*.timer
	rm -f $(DESTDIR)$(PREFIX)/lib/sysusers.d/ccbench.conf
	rm -f $(SHARE)/man/man1/ccbench*.1 $(SHARE)/bash-completion/completions/ccbench $(SHARE)/fish/vendor_completions.d/ccbench.fish
	rm -f $(SHARE)/zsh/site-functions/_ccbench $(SHARE)/zsh/vendor-completions/_ccbench
	rm -rf $(SHARE)/ccbench $(SHARE)/doc/ccbench

# Builds the packages of a release (docs/packages.md) in DIST; DIST_PACKAGES="deb wheel" selects some. The first build takes half an hour.
DIST ?= $(CARGO_TARGET_DIR)/packages
dist: setup
	@scripts/setup.sh --dist
	@scripts/dist.sh $(DIST) $(DIST_PACKAGES)

# Prints the size of the controller of `make dist` by sections and crates. Fails above 45 MB. Only the controller's own package keeps its
# symbols: another profile would rebuild every dependency.
size: setup
	cargo build --locked --profile dist --config 'profile.dist.package.ccbench.strip = "none"' -p ccbench
	@scripts/size.sh $(CARGO_TARGET_DIR)/dist/ccbench 45

# Packs the lab's kernels with the digests of their recipes.
dist-lab: lab
	@scripts/dist.sh $(DIST) lab

# Installs or unpacks the packages of `make dist` in bare systems, runs the quickstart there, and measures the time to the first table. Needs
# root.
test-dist:
	@scripts/setup.sh --test-dist
	tests/dist/bare.sh $(DIST)
