//! The README of an artifact, in the order of the artifact appendices of USENIX and ACM: requirements, set-up, and the major claims, each
//! with the command that checks it.

use std::fmt::Write as _;

use ccbench_proto::plan::Node;
use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::plan::node::is_loopback;
use ccbench_proto::schedule;

use crate::backend::RunBackend;
use crate::expect::{Expectation, Outcome};
use crate::record::RunRecord;

/// The facts that the README describes.
pub(super) struct Facts<'a> {
    /// The artifact's directory.
    pub(super) name: &'a str,
    /// The run.
    pub(super) record: &'a RunRecord,
    /// Its plan; `None` if it cannot be read.
    pub(super) plan: Option<&'a CheckedPlan>,
    /// Its claims.
    pub(super) claims: &'a [Expectation],
}

/// Returns the README in Markdown.
pub(super) fn readme(facts: &Facts<'_>) -> String {
    let Facts { name, record, .. } = facts;
    let backend = record.backend();
    let version = record.sessions.last().map_or("", |session| session.ccbench_version.as_str());
    let mut text = format!(
        "# Artifact: {}\n\n\
         A run of ccbench {version}: plan, traces, results of every trial, and {}. ARCHIVE \
         stands for the archive that contained this README.\n\n\
         | file | content |\n|---|---|\n\
         | `run/plan.toml`, `run/plan.resolved.toml`, `run/traces/`, `run/cc/` | the experiment |\n\
         | `run/tables/`, `run/raw/` | every sample in Parquet, with units in the column names, and the output of the tools |\n\
         | `run/summary_point.csv`, `run/expectations.csv` | the numbers for a paper, and the claims |\n\
         | `run/run.json`, `run/journal.ndjson` | kernels, tools and settings of every node; verdict and digests of every trial |\n\
         | `artifact.json` | versions, digests of the Parquet files, and claims, for programs |\n\
         | `SHA256SUMS` | digests of the other files; check them with `sha256sum --check --quiet SHA256SUMS` |\n",
        record.plan_name,
        plural(facts.claims.len(), "claim"),
    );
    text += "\n## Requirements\n\n";
    text += &requirements(&backend);
    let agents = agents(facts.plan);
    text += &machines(&agents);
    let _ = write!(
        text,
        "- Security: `ccbench artifact rerun` unpacks regular files into one new directory and runs the plan; it executes no \
         code from the archive{}.\n\
         - Duration: {}.\n",
        if record.cc_digests.is_empty() { "" } else { " except the congestion controls below" },
        duration(facts),
    );
    for (file, sha256) in &record.cc_digests {
        let _ = writeln!(
            text,
            "- `run/{file}` is a congestion control of the authors (sha256 {sha256}), which runs in the kernel. Outside the lab, `ccbench \
             artifact rerun` loads it only with `--allow-cc-digest {sha256}`."
        );
    }
    let _ = write!(
        text,
        "\n## Set-up\n\n\
         Install ccbench {version} (`make install` in its source tree){}. Basic test, about a minute:\n\n\
         ```sh\nccbench verify {name}/run\n```\n\n\
         Its output ends with `0 damaged`.\n",
        match backend {
            RunBackend::Lab { .. } => ", then build the lab's kernels: `ccbench lab build`",
            _ => "",
        },
    );
    text += "\n## Evaluation\n\nOne command runs every trial again and compares the results:\n\n";
    let needs_pki = agents.iter().any(|(target, _)| !is_loopback(target));
    let agents = match (agents.is_empty(), needs_pki) {
        (true, _) => "",
        (false, false) => " --agents",
        (false, true) => " --agents --pki DIR",
    };
    // Only a testbed loads them into the kernel of the reviewer's machine.
    let on_testbed = matches!(backend, RunBackend::Testbed);
    let digests = record.cc_digests.values().filter(|_| on_testbed);
    let allowed: String = digests.map(|sha256| format!(" --allow-cc-digest {sha256}")).collect();
    let _ = write!(text, "```sh\nccbench artifact rerun ARCHIVE{agents}{allowed}\n```\n\n");
    if needs_pki {
        text += "DIR has your certificates for these agents.\n\n";
    }
    text += expected_result(&backend);
    text += &claims(name, facts.claims);
    text
}

/// Returns the requirement of a plan with agents; empty without them.
fn machines(agents: &[(String, String)]) -> String {
    if agents.is_empty() {
        return String::new();
    }
    let machines: Vec<&str> = agents.iter().map(|(_, machine)| machine.as_str()).collect();
    let machines = machines.join("; ");
    format!("- Machines of the plan's nodes, with a running `ccbench-agent` each: {machines}.\n")
}

/// Returns how a rerun that reproduces the run ends.
fn expected_result(backend: &RunBackend) -> &'static str {
    match backend.has_virtual_clock() {
        true => {
            "Expected result: `reproduced: …` in the last line, exit code 0. Every Parquet file, and so every number, is equal \
             byte for byte on any machine.\n"
        }
        false => {
            "Expected result: `reproduced: …` in the last line, exit code 0: every claim has the same outcome, and its 95 % \
             confidence interval overlaps that of this run.\n"
        }
    }
}

/// Returns the address of each agent that the plan names, and a description of its machine.
fn agents(plan: Option<&CheckedPlan>) -> Vec<(String, String)> {
    let nodes = plan.into_iter().flat_map(|plan| &plan.plan().nodes);
    let described = |(name, node): (&String, &Node)| {
        let agent = node.agent.clone()?;
        let address = node.address.map_or(String::new(), |ip| format!(", address {ip}"));
        let machine = format!("{name} (agent at {agent}{address})");
        Some((agent, machine))
    };
    nodes.filter_map(described).collect()
}

fn requirements(backend: &RunBackend) -> String {
    let text = match backend {
        RunBackend::Simulator { model_version } => {
            return format!(
                "- Hardware: any machine with Linux; no root.\n\
                 - Software: ccbench with version {model_version} of the simulator's model.\n"
            );
        }
        RunBackend::Lab { images } => {
            let mut text = "- Hardware: any machine with Linux; no root.\n".to_owned();
            for image in images {
                let (engine, kernel, sha256) = (image.engine, image.kernel, &image.engine_sha256);
                let _ = writeln!(
                    text,
                    "- Software: the lab's engine {engine} (recipe sha256 {sha256}, {}) with the kernel {kernel}: {} {}.",
                    image.emulator, image.source, image.release
                );
            }
            return text;
        }
        RunBackend::Testbed | RunBackend::Import => {
            "- Hardware: `run/run.json` describes the nodes of this run; results depend on the machine.\n\
             - Software: Linux 5.15 or newer, iperf3, root.\n"
        }
    };
    text.to_owned()
}

/// Describes the run's length: `12 trials with 6 min of traffic in real time`.
fn duration(facts: &Facts<'_>) -> String {
    let trials = plural(facts.record.planned() as usize, "trial");
    let Some(plan) = facts.plan else { return trials };
    let points = plan.points();
    let lengths = points.iter().map(|point| schedule::length(&point.plan).as_secs_f64());
    let total_s = lengths.sum::<f64>() * f64::from(plan.plan().repeat.at_most());
    let minutes = (total_s / 60.0).ceil();
    let clock = match facts.record.backend().has_virtual_clock() {
        true => "in virtual time; the elapsed time depends on the machine",
        false => "in real time",
    };
    let at_most = if plan.plan().repeat.adaptive().is_some() { "at most " } else { "" };
    format!("{trials} with {at_most}{minutes} min of traffic {clock}")
}

fn claims(name: &str, claims: &[Expectation]) -> String {
    if claims.is_empty() {
        return "\nThe plan has no claims (`[[expect]]`).\n".to_owned();
    }
    let mut text = "\nThe next commands need the directory that the rerun unpacked. Each prints one claim with the numbers of \
                    this run and the rerun, and exits with 0 if they agree.\n\n## Claims\n"
        .to_owned();
    for (claim, number) in claims.iter().zip(1..) {
        let levels = match claim.levels.is_empty() {
            true => String::new(),
            false => format!(" ({})", claim.levels),
        };
        let _ = write!(text, "\n### C{number}: {}{levels}\n\n", claim.claim);
        if let Some(source) = &claim.source {
            let _ = writeln!(text, "- Source: {source}");
        }
        if let Some(published) = &claim.published {
            let _ = writeln!(text, "- Published: {published}");
        }
        let _ = writeln!(text, "- Number: {}; expected: {}", claim.number, claim.expected_text());
        let outcome = match claim.outcome {
            Outcome::Holds => "the claim holds",
            Outcome::DoesNotHold => "the claim does not hold",
            Outcome::NotMeasured => "not measured",
        };
        let _ = writeln!(text, "- This run: {} ({outcome})", claim.measured_text());
        let _ = writeln!(text, "\n```sh\nccbench artifact claim {name} {number}\n```");
    }
    text
}

fn plural(count: usize, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}
