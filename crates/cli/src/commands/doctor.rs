//! `ccbench doctor`: prints what this machine can do, and what to install. The nodes of a small testbed describe the machine, as in
//! `ccbench describe`, and the lab opens its images as before a run. Only what runs do not need is detected here.

use std::path::Path;

use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::plan::{Engine, Queue, Series};
use ccbench_proto::wire::{NodeInfo, Privileges};
use ccbench_results::table::NOTICEABLE_STEAL_PCT;
use ccbench_simulator::MODEL_VERSION;
use serde_json::json;

use crate::backend::Backend as _;
use crate::console::{print, print_json};
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::experiment::{Experiment, ExperimentOptions};
use crate::lab::error::LabError;
use crate::lab::userland::Programs;
use crate::lab::vm::VmImage;
use crate::lab::{cpu, uml};
use crate::plan_source::PlanSource;
use crate::runtime::block_on;
use crate::testbed::Testbed;

mod compiler;

/// The plan whose testbed is built. No trial runs.
const PLAN: &str = include_str!("../../../../plans/quickstart.toml");
/// The oldest supported kernel.
const MIN_KERNEL: (u32, u32) = (5, 15);
/// Clock sources that can be read without a system call or device access.
const FAST_CLOCKS: [&str; 4] =
    ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];
/// Disciplines that only ccbench's datapath has.
const USERSPACE_ONLY: [&str; 1] = ["bfifo_head_drop"];

/// What follows if a machine cannot run the engine uml.
const WITHOUT_UML: &str = "without it, `--lab` uses the engine qemu, which is slower";

/// Whether this machine has something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Ok,
    /// It works, but a newer version has more.
    Old,
    Missing,
    /// It is missing, but most plans run without it.
    Optional,
}

impl Status {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Old => "old",
            Self::Missing | Self::Optional => "missing",
        }
    }
}

/// The result of one check of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Check {
    name: String,
    status: Status,
    found: String,
    /// What to do about it; empty if the status is `Ok`.
    remedy: String,
}

impl Check {
    fn new(name: &str, ok: bool, found: impl Into<String>, remedy: &str) -> Self {
        let remedy = if ok { String::new() } else { remedy.to_owned() };
        let status = if ok { Status::Ok } else { Status::Missing };
        Self { name: name.to_owned(), status, found: found.into(), remedy }
    }

    /// Makes the check optional, because most plans run without it.
    fn optional(mut self) -> Self {
        if self.status == Status::Missing {
            self.status = Status::Optional;
        }
        self
    }

    fn is_ok(&self) -> bool {
        self.status == Status::Ok
    }
}

/// Prints every check. The exit code is only about network namespaces of this machine, the default of `ccbench run`.
///
/// # Errors
/// The asynchronous runtime is not available.
pub fn run(as_json: bool) -> Result<ExitCode, CliError> {
    let mut checks = Vec::new();
    let described = block_on(describe());
    let code = match &described {
        Ok(_) => ExitCode::Success,
        Err(error) => error.exit_code(),
    };
    let notes = match described {
        Ok((node, notes)) => {
            checks.push(Check::new("network namespaces", true, "a testbed was built", ""));
            let all = cpu::since_boot().first().copied().unwrap_or_default();
            checks.extend(node_checks(&node, all.steal_pct()));
            notes
        }
        Err(error) => {
            let remedy = "run as root, or allow user namespaces; `--sim` and the lab need neither";
            checks.push(Check::new("network namespaces", false, error.to_string(), remedy));
            vec![]
        }
    };
    for engine in [Engine::Qemu, Engine::Uml] {
        let lacking = if engine == Engine::Uml { uml::missing_requirement() } else { None };
        let image = match lacking {
            Some(what) => Err(LabError::Missing { what, hint: WITHOUT_UML.to_owned() }),
            None => VmImage::open(engine, Series::default(), Programs::None),
        };
        checks.push(engine_check(engine, image));
    }
    checks.push(Check::new("simulator", true, format!("model {MODEL_VERSION}"), ""));
    checks.extend([compiler::check(), bpf_file_system_check(&mounts())]);
    if as_json {
        print_json(&document(&checks, &notes));
    } else {
        print(&text(&checks, &notes));
    }
    Ok(code)
}

/// Returns the description of a node in a namespace of this machine, and the testbed's notes.
async fn describe() -> Result<(NodeInfo, Vec<String>), CliError> {
    let loaded = PlanSource::embedded("plans/quickstart.toml", PLAN, &[]).load(&[])?;
    let experiment = Experiment::new(loaded, ExperimentOptions::default());
    let testbed = Testbed::open(&experiment).await?;
    let info = testbed.info(&experiment);
    testbed.close().await;
    let node = info.nodes.into_values().next().unwrap_or_default();
    let notes = node.notes.iter().cloned().chain(info.notes).collect();
    Ok((node, notes))
}

/// Returns the checks of a node's description.
fn node_checks(node: &NodeInfo, steal_pct: f64) -> Vec<Check> {
    let privileges = node.privileges();
    let steal = format!("{} × {}, steal since boot {steal_pct:.1} %", node.cpus, node.cpu_model);
    vec![
        Check::new(
            "privileges",
            privileges == Privileges::Root,
            privileges.as_text(),
            "run with sudo: only root may load congestion controls and record rows at acknowledgements",
        ),
        Check::new(
            "kernel",
            is_supported(&node.kernel),
            format!("{} {}", node.kernel, node.machine),
            "install Linux 5.15 or newer, or use the lab: `ccbench lab build`",
        ),
        qdiscs_check(node),
        Check::new(
            "userspace links (TUN, packet sockets)",
            node.can_userspace_link,
            "",
            "run with sudo, or allow user namespaces",
        ),
        Check::new(
            "eBPF",
            node.can_ebpf,
            "",
            "run with sudo on a kernel with CONFIG_BPF_SYSCALL and CONFIG_DEBUG_INFO_BTF; without it, there are no rows at \
             acknowledgements and no congestion controls in BPF",
        )
        .optional(),
        Check::new(
            "ECN feedback",
            !node.ecn.is_empty(),
            node.ecn.join(" "),
            "L4S congestion controls need a kernel with AccECN: `ccbench lab build`",
        )
        .optional(),
        iperf3_check(node),
        Check::new(
            "CPUs",
            node.cpus > 1 && steal_pct < NOTICEABLE_STEAL_PCT,
            steal,
            "trials in namespaces need two CPUs without steal: use another machine, `--lab` or `--sim`",
        ),
        Check::new(
            "clock source",
            FAST_CLOCKS.contains(&node.clocksource.as_str()),
            node.clocksource.clone(),
            "each read of this clock takes microseconds: boot with `clocksource=tsc` if the CPU has a stable TSC",
        ),
        Check::new("congestion controls", true, node.congestion_controls.join(" "), ""),
    ]
}

fn iperf3_check(node: &NodeInfo) -> Check {
    if node.iperf3_version.is_empty() {
        let remedy = "run `apt-get install iperf3`, or set `flows.NAME.tool = \"ccbench\"`";
        return Check::new("iperf3", false, "not installed", remedy);
    }
    let check = Check::new(
        "iperf3",
        node.iperf3_json_stream,
        node.iperf3_version.clone(),
        "this version works, but writes all intervals only when the flow ends; 3.17 or newer writes each one as it happens",
    );
    if check.is_ok() { check } else { Check { status: Status::Old, ..check } }
}

/// Returns the mounted file systems of this process's namespace, one a line; empty if they cannot be read.
fn mounts() -> String {
    std::fs::read_to_string("/proc/self/mounts").unwrap_or_default()
}

fn bpf_file_system_check(mounts: &str) -> Check {
    // Device, mount point, type.
    let is_bpf = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        (words.next(), words.next()) == (Some("/sys/fs/bpf"), Some("bpf"))
    };
    Check::new(
        "BPF file system",
        mounts.lines().any(is_bpf),
        "",
        "run `mount -t bpf bpf /sys/fs/bpf`: `ccbench cc load --pin` needs it",
    )
    .optional()
}

/// Checks whether the kernel has the qdiscs that links use.
fn qdiscs_check(node: &NodeInfo) -> Check {
    let has = |kind: &&str| node.qdiscs.iter().any(|found| found == kind);
    let missing: Vec<&str> = qdiscs().filter(|kind| !has(kind)).collect();
    let found = match missing.is_empty() {
        true => node.qdiscs.join(" "),
        false => format!("without {}", missing.join(" ")),
    };
    let has_modules = Path::new("/lib/modules").join(&node.kernel).is_dir();
    Check::new("qdiscs", missing.is_empty(), found, qdiscs_remedy(has_modules))
}

/// Returns what to do about missing qdiscs. A package of modules does not help a kernel without modules.
fn qdiscs_remedy(has_modules: bool) -> &'static str {
    match has_modules {
        true => {
            "install the kernel's module package, for example `apt-get install linux-modules-extra-$(uname -r)`; until then, \
             links whose qdisc is missing use ccbench's datapath"
        }
        false => {
            "this kernel has no modules here; links whose qdisc is missing use ccbench's datapath. Another kernel has them: \
             `ccbench lab build`"
        }
    }
}

/// Returns the qdiscs that links use.
fn qdiscs() -> impl Iterator<Item = &'static str> {
    let kinds = Queue::kinds().iter().copied().filter(|kind| !USERSPACE_ONLY.contains(kind));
    ["htb", "netem"].into_iter().chain(kinds)
}

/// Returns whether a release such as `6.12.3-1-amd64` is at least [`MIN_KERNEL`].
fn is_supported(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= MIN_KERNEL,
        _ => false,
    }
}

fn engine_check(engine: Engine, image: Result<VmImage, LabError>) -> Check {
    let name = format!("lab, engine {engine}");
    let check = match image {
        Ok(image) => {
            let found = format!("{}, kernel {}", image.emulator, image.kernel().release);
            Check::new(&name, true, found, "")
        }
        Err(LabError::Missing { what, hint }) => {
            Check::new(&name, false, format!("needs {what}"), &hint)
        }
        Err(error) => Check::new(&name, false, error.to_string(), "run `ccbench lab build`"),
    };
    check.optional()
}

fn text(checks: &[Check], notes: &[String]) -> String {
    let mut out = String::new();
    for check in checks {
        let Check { name, status, found, remedy } = check;
        let optional = if *status == Status::Optional { " (optional)" } else { "" };
        let found = if found.is_empty() { String::new() } else { format!(": {found}") };
        out += &format!("{:<9}{name}{optional}{found}\n", status.word());
        if !check.is_ok() {
            out += &format!("         {remedy}\n");
        }
    }
    for note in notes {
        out += &format!("note     {note}\n");
    }
    out
}

fn document(checks: &[Check], notes: &[String]) -> serde_json::Value {
    let check = |check: &Check| {
        let Check { name, status, found, remedy } = check;
        let optional = *status == Status::Optional;
        json!({
            "name": name, "ok": check.is_ok(), "status": status.word(), "optional": optional, "found": found, "remedy": remedy,
        })
    };
    json!({ "checks": checks.iter().map(check).collect::<Vec<_>>(), "notes": notes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> NodeInfo {
        NodeInfo {
            privileges: Privileges::Root.into(),
            kernel: "6.12.3-1-amd64".to_owned(),
            qdiscs: qdiscs().map(str::to_owned).collect(),
            can_userspace_link: true,
            can_ebpf: true,
            ecn: vec!["accecn".to_owned()],
            iperf3_version: "3.18".to_owned(),
            iperf3_json_stream: true,
            cpus: 4,
            clocksource: "tsc".to_owned(),
            ..Default::default()
        }
    }

    fn missing(node: &NodeInfo, steal_pct: f64) -> Vec<String> {
        let checks = node_checks(node, steal_pct);
        assert!(checks.iter().all(|check| check.is_ok() == check.remedy.is_empty()), "{checks:?}");
        checks.into_iter().filter(|check| !check.is_ok()).map(|check| check.name).collect()
    }

    #[test]
    fn every_shortcoming_has_a_line_with_a_remedy() {
        assert_eq!(missing(&good(), 0.2), [""; 0]);
        let bad = NodeInfo { privileges: Privileges::UserNamespace.into(), ..Default::default() };
        let names = [
            "privileges",
            "kernel",
            "qdiscs",
            "userspace links (TUN, packet sockets)",
            "eBPF",
            "ECN feedback",
            "iperf3",
            "CPUs",
            "clock source",
        ];
        assert_eq!(missing(&bad, 0.0), names);
        assert_eq!(missing(&good(), 7.0), ["CPUs"]);
        let mut node = good();
        node.qdiscs.retain(|kind| kind != "netem" && kind != "dualpi2");
        let printed = text(&node_checks(&node, 0.0), &["src: a note".to_owned()]);
        assert!(printed.contains("missing  qdiscs: without netem dualpi2\n"), "{printed}");
        assert!(printed.ends_with("note     src: a note\n"), "{printed}");
    }

    #[test]
    fn what_works_is_not_missing() {
        let mut node = good();
        (node.iperf3_version, node.iperf3_json_stream) = ("3.12".to_owned(), false);
        (node.ecn, node.can_ebpf) = (vec![], false);
        let checks = node_checks(&node, 0.0);
        let printed = text(&checks, &[]);
        assert!(
            printed.contains("\nold      iperf3: 3.12\n         this version works, but"),
            "{printed}"
        );
        assert!(printed.contains("\nmissing  ECN feedback (optional)\n"), "{printed}");
        assert!(printed.contains("\nmissing  eBPF (optional)\n"), "{printed}");
        let value = document(&checks, &[]);
        let checks = value["checks"].as_array().unwrap();
        let iperf3 = checks.iter().find(|check| check["name"] == "iperf3").unwrap();
        assert_eq!((&iperf3["status"], &iperf3["ok"]), (&json!("old"), &json!(false)));
        node.iperf3_version.clear();
        let printed = text(&node_checks(&node, 0.0), &[]);
        assert!(printed.contains("missing  iperf3: not installed\n"), "{printed}");
    }

    #[test]
    fn what_is_for_congestion_controls_of_ones_own_is_optional() {
        let mounted = "sysfs /sys sysfs rw 0 0\nbpf /sys/fs/bpf bpf rw,nosuid 0 0\n";
        assert!(bpf_file_system_check(mounted).is_ok());
        let missing =
            bpf_file_system_check("sysfs /sys sysfs rw 0 0\n/sys/fs/bpf /mnt bpf rw 0 0\n");
        assert_eq!(missing.status, Status::Optional);
        assert!(missing.remedy.contains("mount -t bpf"), "{missing:?}");
    }

    #[test]
    fn no_package_is_advised_for_a_kernel_without_modules() {
        assert!(qdiscs_remedy(true).contains("apt-get install"));
        assert!(!qdiscs_remedy(false).contains("apt-get"));
    }

    #[test]
    fn kernels_are_compared_by_number() {
        for release in ["5.15.0-generic", "6.1.0", "10.0"] {
            assert!(is_supported(release), "{release}");
        }
        for release in ["5.4.0-generic", "4.19", "", "linux"] {
            assert!(!is_supported(release), "{release}");
        }
    }

    #[test]
    fn what_the_lab_lacks_has_a_line_with_a_remedy() {
        let (what, hint) = ("kernel own".to_owned(), "run `ccbench lab build`".to_owned());
        let check = engine_check(Engine::Uml, Err(LabError::Missing { what, hint }));
        assert_eq!(check.remedy, "run `ccbench lab build`");
        let what = "an x86-64 machine".to_owned();
        let error = LabError::Missing { what, hint: WITHOUT_UML.to_owned() };
        let line = text(&[engine_check(Engine::Uml, Err(error))], &[]);
        let expected = format!(
            "missing  lab, engine uml (optional): needs an x86-64 machine\n         {WITHOUT_UML}\n"
        );
        assert_eq!(line, expected);
        let value = document(&[check], &[]);
        assert_eq!(value["checks"][0]["found"], "needs kernel own");
        assert_eq!(value["checks"][0]["ok"], false);
    }
}
