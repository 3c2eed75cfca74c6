//! Tests the lab: a real kernel on a virtual clock. One test of each engine boots it; it is skipped if QEMU or the engine's kernel is
//! missing (`make lab` installs them). With the feature `lab`, a missing kernel is a failure, and the long tests run, too.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[cfg(feature = "lab")]
mod accecn;
#[cfg(feature = "lab")]
mod acks;
#[cfg(feature = "lab")]
mod bpf_jit;
#[cfg(feature = "lab")]
mod cc_state;
#[cfg(feature = "lab")]
mod elements;
#[cfg(feature = "lab")]
mod failures;
#[cfg(feature = "lab")]
mod jobs;
#[cfg(feature = "lab")]
mod judge;
#[cfg(feature = "lab")]
mod kernels;
#[cfg(feature = "lab")]
mod modules;
#[cfg(feature = "lab")]
mod probes;
mod uml;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use ccbench_tests::run_files::tables;
use ccbench_tests::{Bench, csv, text};

/// Two nodes with netem between them, which no other kernel here has.
fn plan(seed: u32) -> String {
    format!(
        r#"
        name = "lab"
        seed = {seed}
        [nodes]
        a = {{}}
        b = {{}}
        [wires]
        only = ["a", "b"]
        [links.there]
        node = "a"
        toward = "b"
        rate = "10mbit"
        backend = "kernel"
        queue = {{ kind = "fq_codel" }}
        [links.back]
        node = "b"
        toward = "a"
        delay = "5ms"
        loss = "0.5%"
        backend = "kernel"
        [flows.f]
        from = "a"
        to = "b"
        cc = "cubic"
        [[phases]]
        name = "p"
        length = "3s"
        flows = ["f"]
        "#
    )
}

/// Returns the names of ccbench's congestion controls: those of lists that must have all of them.
fn cores() -> Vec<&'static str> {
    ccbench_proto::cc::table().cores.iter().map(|core| core.name.as_str()).collect()
}

/// Runs the plan in the lab. Returns `None` if there is no lab.
fn run(seed: u32) -> Option<BTreeMap<String, Vec<u8>>> {
    let bench = Bench::new();
    let path = bench.write("plan.toml", &plan(seed));
    let done = bench.run(&[
        "run",
        &path.to_string_lossy(),
        "--lab",
        "--engine",
        "qemu",
        "--dilation",
        "5",
    ]);
    ran(&done).then(|| tables(&bench))
}

/// Returns the rows of a table of the bench's run.
fn exported(bench: &Bench, table: &str) -> Vec<BTreeMap<String, String>> {
    let run = bench.results();
    let words = ["export", "csv", &run.to_string_lossy(), "--table", table, "-o", "exported"];
    let done = bench.run(&words);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    csv(&bench.path(&format!("exported/{table}.csv")))
}

/// Returns whether a run succeeded. Without a lab, reports the test as skipped and returns false.
fn ran(done: &Output) -> bool {
    let output = text(done);
    if done.status.code() == Some(3) && output.contains("the lab needs") && !cfg!(feature = "lab") {
        let reason = output.lines().find(|line| line.contains("the lab needs"));
        ccbench_tests::skip::skip(reason.unwrap_or_default());
        return false;
    }
    assert_eq!(done.status.code(), Some(0), "{output}");
    true
}

/// One busy loop per CPU, until the test ends.
struct Load(Vec<Child>);

impl Load {
    fn new() -> Self {
        let spin = || {
            Command::new("sh")
                .args(["-c", "while :; do :; done"])
                .stdin(Stdio::null())
                .spawn()
                .unwrap()
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self((0..cpus).map(|_| spin()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // This fails only if the process has ended, which none does by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns a PATH that begins with these programs of the host, each under another name, and with a script in place of iperf3: the guest
/// gets its programs through PATH, the tools only with such a script.
#[cfg(feature = "lab")]
fn path_with(bench: &Bench, copies: &[(&str, &str)], iperf3: &str) -> String {
    let tools = bench.path("tools");
    std::fs::create_dir(&tools).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    for (program, name) in copies {
        let found = path.split(':').map(|dir| Path::new(dir).join(program)).find(|f| f.exists());
        std::fs::copy(found.unwrap(), tools.join(name)).unwrap();
    }
    bench.program("tools/iperf3", iperf3);
    format!("{}:{path}", tools.display())
}

/// Returns what a stand-in does. The compiler must read its input, because writing to a closed pipe fails.
fn idle(name: &str) -> &'static str {
    if name == "gcc" { "cat > /dev/null" } else { "exit 0" }
}

/// Runs the kernel's recipe with stand-ins for everything that it checks for, some of them replaced by these scripts.
fn recipe(instead: &[(&str, &str)], without: &str) -> String {
    let bench = Bench::new();
    let tools = bench.path("tools");
    std::fs::create_dir(&tools).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let find =
        |name: &str| path.split(':').map(|dir| Path::new(dir).join(name)).find(|f| f.exists());
    for name in ["bash", "cat", "tr", "sort", "head", "awk", "mkdir", "mktemp", "rm", "tail", "id"]
    {
        std::os::unix::fs::symlink(find(name).unwrap(), tools.join(name)).unwrap();
    }
    let stand_ins = "gcc make flex bison bc pahole xz lz4 python3 patch dpkg apt-get df".split(' ');
    for name in stand_ins.filter(|name| *name != without) {
        let act = instead.iter().find(|(of, _)| *of == name).map_or(idle(name), |(_, act)| act);
        bench.program(&format!("tools/{name}"), &format!("#!/bin/sh\n{act}\n"));
    }
    let lab = ccbench_tests::source_root().join("lab");
    let mut command = Command::new(tools.join("bash"));
    command.arg(lab.join("kernel.sh")).arg(&lab).arg(bench.path("out")).env("PATH", &tools);
    let done = command.output().unwrap();
    assert_eq!(done.status.code(), Some(1), "{}", text(&done));
    String::from_utf8_lossy(&done.stderr).into_owned()
}

#[test]
fn a_build_that_cannot_succeed_says_what_to_do() {
    let good = ("pahole", "echo v1.25");
    let output = recipe(&[good], "flex");
    assert_eq!(output, "lab: missing: run `apt-get install flex` as root\n");
    let output = recipe(&[("pahole", "echo v1.20")], "");
    assert!(
        output.contains("pahole 1.20 cannot") && output.contains("`apt-get install dwarves`"),
        "{output}"
    );
    let full = "echo Filesystem; echo /dev/x 10000 9000 1000 90% /";
    let output = recipe(&[good, ("df", full)], "");
    assert!(output.contains("has 1000 MB free; the build needs 4500 MB"), "{output}");
    assert!(output.contains("XDG_CACHE_HOME=DIRECTORY ccbench lab build"), "{output}");
}

#[test]
fn a_trial_is_the_same_to_the_byte_whatever_the_host_does() {
    let Some(quiet) = run(1) else { return };
    assert!(quiet.len() >= 7, "{:?}", quiet.keys());
    let loaded = {
        let _load = Load::new();
        run(1).unwrap()
    };
    for (name, bytes) in &quiet {
        assert!(loaded.get(name) == Some(bytes), "{name} differs between two runs of one seed");
    }
    let samples = |tables: &BTreeMap<String, Vec<u8>>| {
        tables.iter().find(|(name, _)| name.starts_with("flow_samples")).unwrap().1.clone()
    };
    let other = run(2).unwrap();
    assert!(samples(&other) != samples(&quiet), "another seed is another trial");
}
