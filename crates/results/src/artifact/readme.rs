//! The README of an artifact, in the order of the artifact appendices of USENIX and ACM: requirements, set-up, and the major claims, each
//! with the command that checks it. Pasted in order into a shell in the directory of the archive, its commands work, whether or not the
//! archive is unpacked there.

use std::fmt::Write as _;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::plan::node::is_loopback;
use ccbench_proto::plan::{Engine, Node, Series, Via};
use ccbench_proto::schedule;

use crate::backend::RunBackend;
use crate::expect::{Expectation, Outcome};
use crate::record::RunRecord;

/// Where the README's command unpacks and reruns the artifact: not where the README itself is, because a rerun starts over.
const EVALUATION: &str = "evaluation";

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
    let record = facts.record;
    let backend = record.backend();
    let version = record.sessions.last().map_or("", |session| session.ccbench_version.as_str());
    let mut text = format!(
        "# Artifact: {}\n\n\
         A run of ccbench {version}: plan, traces, results of every trial, and {}.\n\n\
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
    text += &set_up(facts, &backend, version);
    text += &evaluation(facts, &backend, &agents);
    text += &claims(facts.name, facts.claims);
    text
}

/// Returns how to install ccbench, the quick ways first, and a basic test.
fn set_up(facts: &Facts<'_>, backend: &RunBackend, version: &str) -> String {
    let mut text = format!(
        "\n## Set-up\n\n\
         Install ccbench {version}. A package of its release needs no compiler: `pip install ./ccbench-*.whl` in a virtual environment or, \
         as root on Debian or Ubuntu, `apt-get install ./ccbench_*.deb`. Without a package, `make install` in its source tree compiles it \
         in about half an hour.\n"
    );
    if let RunBackend::Lab { images } = backend {
        let own = images.is_empty() || images.iter().any(|image| image.kernel == Series::Own);
        if own {
            text += "\nThe same release has the lab's kernels: `ccbench lab install ccbench-lab-kernels-*-x86_64.tar.gz`. Without this \
                     package, `ccbench lab build` builds them in about 35 minutes.\n";
        }
        for image in images.iter().filter(|image| image.kernel != Series::Own) {
            let kernel = image.kernel;
            let _ = writeln!(
                text,
                "\n`ccbench lab build --kernel {kernel}` fetches the stock kernel {kernel} in about a minute."
            );
        }
        if uses_modules(facts.plan) {
            text += "\nPackages have no kernel modules, which this plan uses: `ccbench lab build --modules` builds them in about \
                     five minutes.\n";
        }
    }
    let (name, run) =
        (quoted(&format!("{}.tar.gz", facts.name)), quoted(&format!("{}/run", facts.name)));
    let _ = write!(
        text,
        "\nPaste all commands below into one shell, in the directory that has the archive. The first line has the archive's file name; \
         change it if yours differs. Basic test, about a minute:\n\n\
         ```sh\nARCHIVE={name}\ntar xf \"$ARCHIVE\"\nccbench verify {run}\n```\n\n\
         Its last line has `0 damaged`.\n"
    );
    text
}

/// Returns whether a point of the plan loads a kernel module.
fn uses_modules(plan: Option<&CheckedPlan>) -> bool {
    let points = plan.map(CheckedPlan::points).unwrap_or_default();
    let mut ccs = points.iter().flat_map(|point| point.plan.plan().cc.values());
    ccs.any(|cc| cc.via == Via::Module)
}

/// Returns the command that runs the artifact again, and the expected result.
fn evaluation(facts: &Facts<'_>, backend: &RunBackend, agents: &[(String, String)]) -> String {
    let needs_pki = agents.iter().any(|(target, _)| !is_loopback(target));
    let agents = match (agents.is_empty(), needs_pki) {
        (true, _) => "",
        (false, false) => " --agents",
        (false, true) => " --agents --pki DIR",
    };
    // Only a testbed loads them into the kernel of the reviewer's machine.
    let on_testbed = matches!(backend, RunBackend::Testbed);
    let digests = facts.record.cc_digests.values().filter(|_| on_testbed);
    let allowed: String = digests.map(|sha256| format!(" --allow-cc-digest {sha256}")).collect();
    let mut text = format!(
        "\n## Evaluation\n\n\
         One command unpacks the archive into a new directory, runs every trial there and compares the results:\n\n\
         ```sh\nccbench artifact rerun \"$ARCHIVE\" --directory {EVALUATION}{agents}{allowed}\n```\n\n"
    );
    if needs_pki {
        text += "DIR has your certificates for these agents.\n\n";
    }
    text += &expected_result(facts, backend);
    let _ = writeln!(
        text,
        "\nThe command refuses an existing directory: before you repeat it, remove `{EVALUATION}/{}`.",
        facts.name
    );
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
fn expected_result(facts: &Facts<'_>, backend: &RunBackend) -> String {
    const REPRODUCED: &str = "Expected result: `reproduced: …` in the last line, exit code 0. ";
    let is_measured = |claim: &Expectation| claim.outcome != Outcome::NotMeasured;
    let at_most = facts.plan.map(|plan| plan.plan().repeat.at_most());
    let has_no_flows = facts.plan.is_some_and(|plan| plan.plan().flows.is_empty());
    match backend {
        RunBackend::Simulator { .. } => format!(
            "{REPRODUCED}Every Parquet file, and so every number, is equal byte for byte on any machine.\n"
        ),
        RunBackend::Lab { .. } => format!(
            "{REPRODUCED}Every Parquet file, and so every number, is equal byte for byte on any such machine that gives the guest the \
             same programs. The table `events` has their digest: it differs with, for example, another C library.\n"
        ),
        RunBackend::Testbed | RunBackend::Import if facts.claims.iter().any(is_measured) => format!(
            "{REPRODUCED}Every claim that this run measured has the same outcome, and its 95 % confidence interval overlaps that of this \
             run.\n"
        ),
        RunBackend::Testbed | RunBackend::Import if has_no_flows => {
            "Expected result: `not compared: …` in the last line, exit code 0. Every trial counts in both runs. No number is compared: this \
             run measured no claim, and its plan has no flow groups, whose throughput and smoothed RTT would be compared.\n"
                .to_owned()
        }
        RunBackend::Testbed | RunBackend::Import if at_most == Some(1) => {
            "Expected result: `not compared: …` in the last line, exit code 0. Every trial counts in both runs. No number is compared: this \
             run measured no claim, and one trial of each point has no confidence interval.\n"
                .to_owned()
        }
        RunBackend::Testbed | RunBackend::Import => format!(
            "{REPRODUCED}This run measured no claim, so throughput and smoothed RTT of each flow group in each phase are compared: the 95 % \
             confidence intervals of their means overlap, or that of the difference contains 0.\n"
        ),
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
            let mut text =
                "- Hardware: an x86-64 machine with Linux; no root, no KVM.\n".to_owned();
            for image in images {
                let (engine, kernel, sha256) = (image.engine, image.kernel, &image.engine_sha256);
                let _ = writeln!(
                    text,
                    "- Software: the lab's engine {engine} (recipe sha256 {sha256}, {}) with the kernel {kernel}: {} {}.",
                    image.emulator, image.source, image.release
                );
            }
            if images.iter().any(|image| image.engine == Engine::Uml) {
                text += "- The engine uml needs seccomp filters, which a container may forbid, and 768 MiB in /dev/shm or `TMPDIR`, mounted \
                         without `noexec`.\n";
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
    let mut text = "\nEach of the next commands prints one claim with the numbers of this run and of the last rerun. The exit code is 4 if \
                    they differ; it is 0 if they agree or neither run measured the claim.\n\n## Claims\n"
        .to_owned();
    let directory = quoted(&format!("{EVALUATION}/{name}"));
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
        let _ = writeln!(text, "\n```sh\nccbench artifact claim {directory} {number}\n```");
    }
    text
}

/// Returns a word as a shell reads it. The name of a renamed results directory may have any characters.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn plural(count: usize, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}
