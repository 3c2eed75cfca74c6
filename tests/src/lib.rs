//! What the cross-crate tests share: running the real binaries, and finding what they left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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

/// A private place for one experiment: its results, its state folder, and its environment, by which its
/// processes can be told from everybody else's.
pub struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    /// A fresh one.
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

    /// What a [`spawn`](Self::spawn)ed `ccbench` has said so far.
    pub fn said(&self) -> String {
        let file = |name| std::fs::read_to_string(self.path(name)).unwrap_or_default();
        file("out") + &file("err")
    }

    /// Processes of this experiment that are alive: (pid, command line). Told by their environment, which
    /// every child inherits.
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
        let dirs: Vec<PathBuf> = std::fs::read_dir(self.path("results"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        assert_eq!(dirs.len(), 1, "one results directory: {dirs:?}");
        dirs.into_iter().next().unwrap_or_default()
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
/// When it does not within `limit`; `what` says what was waited for.
pub fn wait_for(what: &str, limit: Duration, mut fact: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !fact() {
        assert!(Instant::now() < end, "waited {} s for: {what}", limit.as_secs());
        std::thread::sleep(Duration::from_millis(20));
    }
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

/// Root, and the machine for oneself as long as this is held: on two processors experiments disturb each other. Fails loudly: a
/// test that was asked for must run.
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

/// Runs a test's experiment, again as long as trials failed for nothing but a userspace link that others kept from working in
/// time, six times at most. Its text is what `ccbench run` printed.
pub fn undisturbed<T>(experiment: impl Fn() -> (T, String)) -> (T, String) {
    for _ in 1..6 {
        let (made, told) = experiment();
        if !disturbed(&told) {
            return (made, told);
        }
        wait_for_calm();
    }
    experiment()
}

/// What fails a trial beside lateness.
const FAULTS: [&str; 6] =
    ["cc_not_in_force", "error", "flow_dead", "flow_error", "node_lost", "not_run"];

/// Whether there are failed trials, each of them late and without a fault.
fn disturbed(told: &str) -> bool {
    let mut trials: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in told.lines().filter(|line| line.starts_with("point ")) {
        if let [trial, "failed", reason, ..] = line.split(": ").collect::<Vec<_>>()[..] {
            trials.entry(trial).or_default().push(reason);
        }
    }
    let late = |reasons: &Vec<&str>| {
        reasons.contains(&"link_late") && FAULTS.iter().all(|fault| !reasons.contains(fault))
    };
    !trials.is_empty() && trials.values().all(late)
}

/// Waits until this thread wakes in time, half a minute at most.
fn wait_for_calm() {
    let (nap, end) = (Duration::from_millis(1), Instant::now() + Duration::from_secs(30));
    let woke_late = |_: &u32| {
        let slept = Instant::now();
        std::thread::sleep(nap);
        slept.elapsed() > nap * 2
    };
    while Instant::now() < end && (0..1000).filter(woke_late).count() > 10 {}
}

/// As [`undisturbed`], of `ccbench run PLAN ARGS` in a place of its own.
pub fn run_undisturbed(plan: &str, args: &[&str]) -> (Bench, Output) {
    let run = || {
        let bench = Bench::new();
        bench.write("plan.toml", plan);
        let output = bench.run(&[&["run", "plan.toml"], args].concat());
        let told = text(&output);
        ((bench, output), told)
    };
    undisturbed(run).0
}

#[cfg(test)]
mod tests {
    use super::disturbed;

    #[test]
    fn a_trial_is_disturbed_where_nothing_but_lateness_failed_it() {
        let late = "point 0, trial 1: failed: link_late: link delay: 18.2 % of 12335 packets\n";
        let low = "point 0, trial 1: failed: link_rate_low: link bottleneck: 86.855 Mbit/s\n";
        let dead = "point 0, trial 1: failed: flow_dead: flows.first/0: exit code 1\n";
        assert!(disturbed(&format!("{low}{late}")));
        assert!(!disturbed(""));
        assert!(!disturbed(low));
        assert!(!disturbed(&format!("{late}{dead}")), "that has a reason of its own");
        let second = dead.replace("trial 1", "trial 2");
        assert!(!disturbed(&format!("{late}{second}")), "so has the second trial");
        assert!(!disturbed(&late.replace("failed", "degraded")));
    }
}
