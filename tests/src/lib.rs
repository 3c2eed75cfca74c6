//! Shared by the tests: running the real binaries, finding what they left behind, and measuring whether a test had the CPU.
#![forbid(unsafe_code)]

pub mod cpu;
pub mod skip;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cpu::{CpuReport, CpuWatch};

/// The root of the source tree.
pub fn source_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// A binary of this workspace, as `make build` leaves it beside the test binaries.
///
/// # Panics
/// When it has not been built.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    let path = test.ancestors().nth(2).map(|dir| dir.join(name)).unwrap_or_default();
    assert!(path.exists(), "{} is missing: run `make build` first", path.display());
    path
}

/// A private directory for one experiment, with its results and state. The environment variable `CCBENCH_STATE` identifies its
/// processes.
pub struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    /// Makes an empty one.
    ///
    /// # Panics
    /// When no temporary folder can be made.
    #[expect(clippy::new_without_default, clippy::unwrap_used, reason = "a test may panic")]
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// A file or folder in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file into it and returns its path.
    ///
    /// # Panics
    /// When it cannot be written.
    #[expect(clippy::unwrap_used, reason = "a test may panic")]
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// `ccbench ARGS` in this place, not started yet.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary("ccbench"));
        command.args(args).current_dir(self.dir.path()).env("CCBENCH_STATE", self.path("state"));
        command.stdin(Stdio::null());
        command
    }

    /// `ccbench ARGS`, to its end.
    ///
    /// # Panics
    /// When it cannot be started.
    #[expect(clippy::unwrap_used, reason = "a test may panic")]
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// `ccbench ARGS`, left running; its output goes to the files `out` and `err`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[expect(clippy::unwrap_used, reason = "a test may panic")]
    pub fn spawn(&self, args: &[&str]) -> Child {
        let file = |name: &str| Stdio::from(std::fs::File::create(self.path(name)).unwrap());
        self.command(args).stdout(file("out")).stderr(file("err")).spawn().unwrap()
    }

    /// What a [`spawn`](Self::spawn)ed `ccbench` has printed so far.
    pub fn printed(&self) -> String {
        let file = |name| std::fs::read_to_string(self.path(name)).unwrap_or_default();
        file("out") + &file("err")
    }

    /// Processes of this experiment that are alive: (pid, command line). Every child inherits `CCBENCH_STATE`.
    pub fn processes(&self) -> Vec<(u32, String)> {
        let mark = format!("CCBENCH_STATE={}", self.path("state").display());
        let mut found = Vec::new();
        for pid in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = pid.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            if environ.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes()) {
                let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                found.push((pid, String::from_utf8_lossy(&line).replace('\0', " ")));
            }
        }
        found
    }

    /// Inodes of the network namespaces that this experiment's processes are in, other than the test's own.
    pub fn namespaces(&self) -> BTreeSet<String> {
        let own = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        let links = self
            .processes()
            .into_iter()
            .filter_map(|(pid, _)| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok());
        links.filter(|link| *link != own).map(|link| link.to_string_lossy().into_owned()).collect()
    }

    /// The one results directory that a run made.
    ///
    /// # Panics
    /// When there is not exactly one.
    pub fn results(&self) -> PathBuf {
        let dirs = self.all_results();
        assert_eq!(dirs.len(), 1, "one results directory: {dirs:?}");
        dirs.into_iter().next().unwrap_or_default()
    }

    /// The results directories that runs made.
    pub fn all_results(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path("results")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }
}

/// Inodes of all network namespaces that any process is in.
pub fn namespaces() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| std::fs::read_link(entry.path().join("ns/net")).ok())
        .map(|link| link.to_string_lossy().into_owned())
        .collect()
}

/// Waits until `fact` holds.
///
/// # Panics
/// When it does not hold within `limit`; `what` names the fact. The limit is counted in naps of 20 ms, so that time without
/// the CPU does not shorten it.
pub fn wait_for(what: &str, limit: Duration, mut fact: impl FnMut() -> bool) {
    const NAP: Duration = Duration::from_millis(20);
    for _ in 0..=limit.as_millis() / NAP.as_millis() {
        if fact() {
            return;
        }
        std::thread::sleep(NAP);
    }
    panic!("waited {} s for: {what}", limit.as_secs());
}

/// The rows of a summary, each by column; no value in them holds a comma.
///
/// # Panics
/// When it cannot be read.
#[expect(clippy::unwrap_used, reason = "a test may panic")]
pub fn csv(path: &Path) -> Vec<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned));
    let header: Vec<String> = lines.next().into_iter().flatten().collect();
    lines.map(|line| header.iter().cloned().zip(line).collect()).collect()
}

/// Standard output and error as text, for messages.
pub fn text(output: &Output) -> String {
    format!(
        "exit {:?}\n--- out\n{}\n--- err\n{}",
        output.status.code(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Checks for root and serialises tests of one test binary: on two processors experiments disturb each other.
///
/// # Panics
/// When not root.
pub fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    assert!(
        rustix::process::geteuid().is_root(),
        "namespace tests need root (or leave out --features netns)"
    );
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `ccbench run PLAN ARGS` in a place of its own, with a measurement of the CPU meanwhile.
pub fn watched_run(plan: &str, args: &[&str]) -> (Bench, Output, CpuReport) {
    let bench = Bench::new();
    bench.write("plan.toml", plan);
    let watch = CpuWatch::start();
    let output = bench.run(&[&["run", "plan.toml"], args].concat());
    (bench, output, watch.report())
}
