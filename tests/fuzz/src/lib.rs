//! Fuzz targets. Each passes bytes to a parser of the product, or to a generator of plans for the simulator, and asserts what must hold of
//! the result. A panic, including one because of an overflow, is always a failure.
//!
//! `tests/corpus.rs` runs every target on its corpus and on a few thousand deterministic mutations of it, as part of `make test`. `make
//! fuzz` runs them with libFuzzer and AddressSanitizer (`cargo-fuzz/`), which also limit memory.
#![forbid(unsafe_code)]

pub mod agents;
pub mod boot_loaders;
pub mod ccs;
pub mod frames;
pub mod journals;
pub mod kernel;
pub mod manifests;
pub mod messages;
pub mod mutate;
pub mod network;
pub mod plans;
#[cfg(feature = "results")]
pub mod results;
pub mod simulation;
pub mod tools;
pub mod traces;

/// A parser or a generator, with assertions about its results.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, which is also that of its folder in `corpus/`.
    pub name: &'static str,
    /// Passes an input to it.
    pub run: fn(&[u8]),
    /// Number of mutations that `make test` tries: fewer for slow targets.
    pub mutations: u32,
}

const fn target(name: &'static str, run: fn(&[u8]), mutations: u32) -> Target {
    Target { name, run, mutations }
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target("plan", plans::plan, 300),
    target("plan_set", plans::set, 200),
    target("units", plans::units, 3000),
    target("simulation", simulation::simulation, 150),
    target("prepare", plans::prepare, 300),
    target("trace", traces::trace, 1000),
    target("trace_json", traces::json, 1000),
    target("tools", tools::files, 500),
    target("iperf3", tools::iperf3, 500),
    target("iperf3_lines", tools::iperf3_lines, 500),
    target("generator_report", tools::generator_report, 300),
    target("sealed_line", journals::sealed_line, 3000),
    target("undo_journal", journals::undo, 2000),
    target("cc_journal", journals::cc, 2000),
    target("grub_config", boot_loaders::grub_config, 2000),
    target("grub_environment", boot_loaders::grub_environment, 2000),
    target("systemd_boot", boot_loaders::systemd_boot, 2000),
    target("cc_object", ccs::object, 2000),
    target("caller", agents::caller, 3000),
    target("loader_request", agents::loader_request, 2000),
    target("records", agents::records, 2000),
    target("frame", frames::frame, 2000),
    target("inet_diag", kernel::inet_diag, 3000),
    target("acks", kernel::acks, 2000),
    target("cc_state", kernel::cc_state, 3000),
    target("qdisc", kernel::qdisc, 3000),
    target("rtnetlink", kernel::rtnetlink, 3000),
    target("procfs", kernel::procfs, 2000),
    target("pcapng", kernel::pcapng, 3000),
    target("http", network::http, 1000),
    target("echo_reply", network::echo_reply, 3000),
    target("control_input", network::control_input, 3000),
    target("join", network::join, 3000),
    target("manifest", manifests::manifest, 3000),
    target("certificate", network::certificate, 2000),
    target("message", messages::message, 3000),
    target("lab_messages", messages::lab_messages, 3000),
    #[cfg(feature = "results")]
    target("results_journal", results::journal, 1000),
    #[cfg(feature = "results")]
    target("commit", results::commit, 1000),
    #[cfg(feature = "results")]
    target("run_record", results::run_record, 1000),
    #[cfg(feature = "results")]
    target("verdict", results::verdict, 300),
    #[cfg(feature = "results")]
    target("table", results::table, 300),
    #[cfg(feature = "results")]
    target("parquet", results::parquet, 2000),
    #[cfg(feature = "results")]
    target("parquet_table", results::parquet_table, 1000),
    #[cfg(feature = "results")]
    target("archive", results::archive, 2000),
];

/// Returns the target with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Returns the input as text. Parsers of text get no other input.
fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}
