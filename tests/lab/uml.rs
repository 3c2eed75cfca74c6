//! Tests the engine uml: results that do not depend on the host, all qdiscs, and guests that are stopped.

use std::collections::BTreeMap;
use std::process::Command;

#[cfg(feature = "lab")]
use ccbench_proto::plan::Queue;
use ccbench_tests::{Bench, text};

#[cfg(feature = "lab")]
use crate::path_with;
use crate::{Load, cores, exported, plan, ran, tables};

/// Runs the plan. Returns `None` if the kernel is missing. With `other_host`, runs in a UTS namespace with another host name.
fn run(seed: u32, other_host: bool) -> Option<BTreeMap<String, Vec<u8>>> {
    let bench = Bench::new();
    let path = bench.write("plan.toml", &plan(seed));
    let command = bench.command(&["run", &path.to_string_lossy(), "--lab", "--engine", "uml"]);
    let done = if other_host { elsewhere(&command) } else { command }.output().unwrap();
    if !ran(&done) {
        return None;
    }
    let record = std::fs::read_to_string(bench.results().join("run.json")).unwrap();
    assert!(record.contains("lab: engine uml (sha256 "), "{record}");
    // It depends on the host's CPU.
    let samples = exported(&bench, "host_samples");
    assert!(!samples.is_empty() && samples.iter().all(|row| row["agent_rss_bytes"].is_empty()));
    Some(tables(&bench))
}

/// Returns the command as on a machine with another name, which has run for a thousand days, with another temporary directory and another
/// environment.
fn elsewhere(command: &Command) -> Command {
    let seconds = "86400000";
    let namespaces = ["--uts", "--fork", "--time", "--boottime", seconds, "--monotonic", seconds];
    let script = "hostname another-machine && mkdir -p other/tmp && TMPDIR=$PWD/other/tmp";
    let mut other = in_namespaces(command, &namespaces, script);
    other.env("UNUSED", "x".repeat(3000));
    other
}

/// Returns the command in new namespaces, after the beginning of a shell script, which continues with `exec`.
fn in_namespaces(command: &Command, namespaces: &[&str], script: &str) -> Command {
    let root = rustix::process::geteuid().is_root();
    let mut other = Command::new("unshare");
    other.args(namespaces).args((!root).then_some("--map-root-user"));
    other.args(["--", "sh", "-c", &format!("{script} exec \"$0\" \"$@\"")]);
    other.arg(command.get_program()).args(command.get_args());
    other.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    if let Some(dir) = command.get_current_dir() {
        other.current_dir(dir);
    }
    other
}

#[test]
fn a_trial_is_the_same_to_the_byte_on_a_loaded_machine_with_another_name() {
    let Some(quiet) = run(1, false) else { return };
    assert!(quiet.len() >= 7, "{:?}", quiet.keys());
    let loaded = {
        let _load = Load::new();
        run(1, true).unwrap()
    };
    for (name, bytes) in &quiet {
        assert!(loaded.get(name) == Some(bytes), "{name} differs between two runs of one seed");
    }
    let samples = |tables: &BTreeMap<String, Vec<u8>>| {
        tables.iter().find(|(name, _)| name.starts_with("flow_samples")).unwrap().1.clone()
    };
    assert!(samples(&run(2, false).unwrap()) != samples(&quiet), "another seed is another trial");
}

/// Table `events` has the digest of the userland.
#[cfg(feature = "lab")]
#[test]
fn programs_that_no_trial_uses_do_not_change_results() {
    let run = |with_other_programs: bool| {
        let bench = Bench::new();
        let plan = bench.write("plan.toml", &plan(1));
        let words = ["run", &plan.to_string_lossy(), "--lab", "--engine", "uml"];
        let mut command = bench.command(&words);
        if with_other_programs {
            let copies = [("sleep", "tcpdump"), ("sleep", "bpftool")];
            command.env("PATH", path_with(&bench, &copies, "#!/bin/sh\nexit 1\n"));
        }
        let done = command.output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
        let record = std::fs::read_to_string(bench.results().join("run.json")).unwrap();
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        let node = &record["sessions"][0]["nodes"]["a"];
        assert_eq!(node["iperf3_version"], "", "{node}");
        assert!(!node["notes"].to_string().contains("iperf3"), "{node}");
        tables(&bench)
    };
    let (here, elsewhere) = (run(false), run(true));
    assert!(here.keys().any(|name| name.starts_with("events/")), "{:?}", here.keys());
    for (name, bytes) in &here {
        assert!(elsewhere.get(name) == Some(bytes), "{name} depends on the programs of the host");
    }
}

#[test]
fn nothing_is_dilated_and_no_stock_kernel_runs() {
    let bench = Bench::new();
    let path = bench.write("plan.toml", &plan(1)).to_string_lossy().into_owned();
    let checked = |more: &[&str]| {
        let done = bench.run(&[&["run", &path, "--lab", "--engine", "uml"], more].concat());
        (done.status.code(), text(&done))
    };
    let (code, output) = checked(&["--set", "lab.kernel=\"6.1\""]);
    assert_eq!(code, Some(2), "{output}");
    assert!(output.contains("the engine `uml` runs only the kernel `own`, not 6.1"), "{output}");
    let (code, output) = checked(&["--kernel", "6.1"]);
    assert_eq!(code, Some(2), "{output}");
    assert!(output.contains("the engine uml cannot run the kernel 6.1"), "{output}");
    let queue = "queue = { kind = \"fq_codel\" }\n";
    let unlimited = plan(1).replace("rate = \"10mbit\"", "delay = \"1ms\"").replace(queue, "");
    let path = bench.write("unlimited.toml", &unlimited).to_string_lossy().into_owned();
    let done = bench.run(&["check", &path, "--lab", "--engine", "uml"]);
    assert_eq!(done.status.code(), Some(2), "{}", text(&done));
    assert!(text(&done).contains("flows.f: no link from a to b has a rate"), "{}", text(&done));
    let done = bench.run(&["check", &path, "--lab"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    // Whatever else this machine lacks.
    assert!(
        text(&done).contains("note: the lab uses the engine qemu instead of uml: "),
        "{}",
        text(&done)
    );
}

/// Runs `ccbench check --lab` of a plan for uml: a machine that cannot run uml must use qemu, and note the reason.
#[cfg(feature = "lab")]
fn assert_falls_back(change: impl Fn(&Bench, &Command) -> Command, lacks: &str) {
    let bench = Bench::new();
    let path = bench.write("plan.toml", &plan(1));
    let check = bench.command(&["check", &path.to_string_lossy(), "--lab"]);
    let done = change(&bench, &check).output().unwrap();
    let output = text(&done);
    assert_eq!(done.status.code(), Some(0), "{output}");
    let note = format!("note: the lab uses the engine qemu instead of uml: it needs {lacks}");
    assert!(output.contains(&note), "{output}");
}

#[cfg(feature = "lab")]
#[test]
fn without_memory_that_may_be_executed_qemu_replaces_uml() {
    let script = "mkdir tmp && mount -t tmpfs -o noexec tmpfs /dev/shm && mount -t tmpfs -o noexec tmpfs tmp && TMPDIR=$PWD/tmp";
    let change = |_: &Bench, check: &Command| in_namespaces(check, &["--mount"], script);
    assert_falls_back(change, "768 MiB in /dev/shm or TMPDIR, mounted without noexec");
}

/// What container runtimes do: the system call `seccomp` (317) fails with EPERM. The filter needs `no_new_privs`.
#[cfg(feature = "lab")]
const FORBID_SECCOMP: &str = r#"
import ctypes, os, struct, sys

libc = ctypes.CDLL(None)
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 317), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
program = ctypes.create_string_buffer(struct.pack("@HP", 4, ctypes.addressof(code)))
pointer = ctypes.c_void_p(ctypes.addressof(program))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, pointer, 0, 0):
    sys.exit("cannot install the filter")
os.execv(sys.argv[1], sys.argv[1:])
"#;

#[cfg(feature = "lab")]
#[test]
fn without_the_permission_to_install_filters_qemu_replaces_uml() {
    let change = |bench: &Bench, check: &Command| {
        let script = bench.write("forbid_seccomp.py", FORBID_SECCOMP);
        let mut forbidden = Command::new("python3");
        forbidden.arg(script).arg(check.get_program()).args(check.get_args());
        forbidden.envs(check.get_envs().filter_map(|(key, value)| Some((key, value?))));
        forbidden.current_dir(bench.path(""));
        forbidden
    };
    assert_falls_back(change, "the permission to install seccomp filters");
}

#[cfg(feature = "lab")]
#[test]
fn uml_is_the_default_and_a_dilation_selects_qemu() {
    let lab = |more: &[&str]| {
        let bench = Bench::new();
        let path = bench.write("plan.toml", &plan(1));
        let done = bench.run(&[&["run", &path.to_string_lossy(), "--lab"], more].concat());
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
        let file = |name| std::fs::read_to_string(bench.results().join(name)).unwrap();
        (file("run.json"), file("plan.resolved.toml"))
    };
    let (record, resolved) = lab(&[]);
    assert!(record.contains("lab: engine uml (sha256 "), "{record}");
    assert!(resolved.contains("engine = \"uml\""), "a resumed run has the same engine: {resolved}");
    let (record, _) = lab(&["--dilation", "5"]);
    assert!(record.contains("lab: engine qemu (sha256 "), "{record}");
    assert!(!record.contains("instead of uml"), "the user has decided: {record}");
}

/// Every discipline that a plan can name, in the kernel's implementation, must carry a flow at the link's rate.
#[cfg(feature = "lab")]
#[test]
fn every_queue_of_the_kernel_carries_traffic() {
    // The kernel has no such qdisc.
    let has_qdisc = |kind: &&str| *kind != "bfifo_head_drop";
    let kinds = Queue::kinds().iter().copied().filter(has_qdisc).chain(["tbf"]);
    let levels = kinds.map(|name| {
        let (kind, shaper) = if name == "tbf" { ("bfifo", "tbf") } else { (name, "htb") };
        let limit = match kind {
            "pfifo" | "bfifo" | "pfifo_head_drop" => ", limit = \"30000B\"",
            "red" => ", limit = \"60000B\", min = \"15000B\", max = \"45000B\"",
            _ => "",
        };
        format!(
            "{name} = {{ \"links.there.shaper\" = \"{shaper}\", \"links.there.queue\" = {{ kind = \"{kind}\"{limit} }} }}\n"
        )
    });
    let levels: Vec<String> = levels.collect();
    let matrix = format!("[matrix.queue]\n{}", levels.concat());
    every_point_fills_the_link(&matrix, levels.len());
}

/// One congestion control of each BPF object. This is the newest kernel that the tests have, and its verifier is not that of older ones.
#[test]
fn every_congestion_control_in_bpf_fills_the_link() {
    const NAMES: [&str; 7] = ["vegas", "ta", "cx", "dctcp", "prague", "bbr2", "bbr3"];
    assert_eq!(cores(), NAMES);
    let instances =
        NAMES.map(|name| format!("[cc.my_{name}]\nalgorithm = \"{name}\"\nvia = \"bpf\"\n"));
    let matrix =
        format!("[matrix]\n\"flows.f.cc\" = {:?}\n", NAMES.map(|name| "my_".to_owned() + name));
    every_point_fills_the_link(&(instances.concat() + &matrix), NAMES.len());
}

/// Runs the plan with these sections, which make this number of points.
fn every_point_fills_the_link(sections: &str, points: usize) {
    let bench = Bench::new();
    let path = bench.write("plan.toml", &(plan(1) + sections));
    let done = bench.run(&["run", &path.to_string_lossy(), "--lab", "--engine", "uml"]);
    if !ran(&done) {
        return;
    }
    let rates: Vec<f64> = ccbench_tests::csv(&bench.results().join("summary_point.csv"))
        .iter()
        .filter(|row| row["scope"] == "group" && row["metric"] == "throughput_sum")
        .map(|row| row["value"].parse().unwrap())
        .collect();
    assert_eq!(rates.len(), points, "{rates:?}");
    assert!(rates.iter().all(|bps| (6e6..1e7).contains(bps)), "{rates:?}");
}

/// When the run is killed in the middle of a trial, neither the kernel nor a process of the guest survives.
#[cfg(feature = "lab")]
#[test]
fn nothing_survives_a_killed_controller() {
    let bench = Bench::new();
    let path = bench.write("plan.toml", &plan(1).replace("length = \"3s\"", "length = \"600s\""));
    let mut controller = bench.spawn(&["run", &path.to_string_lossy(), "--lab", "--engine", "uml"]);
    // The results directory exists once the nodes have been described.
    let started = || !bench.all_results().is_empty() && descendants(controller.id()).len() >= 5;
    ccbench_tests::wait_for("a trial", std::time::Duration::from_secs(120), started);
    let guest = descendants(controller.id());
    controller.kill().unwrap();
    controller.wait().unwrap();
    let gone = || guest.iter().all(|(pid, start)| started_at(*pid) != Some(*start));
    ccbench_tests::wait_for("the end of the guest", std::time::Duration::from_secs(20), gone);
}

/// Returns the processes below this one, each with its start time.
#[cfg(feature = "lab")]
pub fn descendants(of: u32) -> Vec<(u32, u64)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if stat(pid, 1) == Some(u64::from(of)) {
            found.extend(started_at(pid).map(|start| (pid, start)));
            found.extend(descendants(pid));
        }
    }
    found
}

/// Returns when a process started, in ticks; `None` if it has ended.
#[cfg(feature = "lab")]
pub fn started_at(pid: u32) -> Option<u64> {
    let stat_line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    (!stat_line.contains(") Z ")).then(|| stat(pid, 19)).flatten()
}

/// Returns a field of `/proc/PID/stat`, counted from the one after the name.
#[cfg(feature = "lab")]
fn stat(pid: u32, field: usize) -> Option<u64> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    line.rsplit_once(')')?.1.split_ascii_whitespace().nth(field)?.parse().ok()
}
