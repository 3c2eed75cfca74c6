//! Shared by the tests: runs the real binaries, finds what they leave behind, and measures whether a test had the CPU.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "tests start programs")]

pub mod cpu;
pub mod links;
pub mod namespace;
pub mod node_state;
pub mod plans;
pub mod port;
pub mod recorded;
pub mod run_files;
pub mod s3;
pub mod seeds;
pub mod skip;
pub mod snippets;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use cpu::{CpuReport, CpuWatch};

/// Returns the root of the source tree.
pub fn source_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// Repeats a call on a socket with a timeout that a signal has interrupted. The kernel does not restart such calls, and a process that
/// starts children and threads gets signals: SIGCHLD interrupts a thread if it arrives while another thread, which creates a thread, blocks
/// all signals.
///
/// # Errors
/// Those of the call, except for [`std::io::ErrorKind::Interrupted`].
pub fn retry_on_intr<T>(mut call: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Returns a binary of this workspace as `make build` leaves it: in `CARGO_TARGET_DIR`, or else beside the test binaries.
///
/// # Panics
/// Panics if it has not been built.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    // DIR/PROFILE/deps/TEST
    let beside = test.ancestors().nth(2).unwrap_or(&test);
    let target = std::env::var_os("CARGO_TARGET_DIR").map(|dir| source_root().join(dir));
    let dir = match (target, beside.file_name()) {
        (Some(target), Some(profile)) => target.join(profile),
        _ => beside.to_owned(),
    };
    let path = dir.join(name);
    assert!(path.exists(), "{} is missing: run `make build` first", path.display());
    path
}

/// Returns what `scripts/setup.sh --test` has installed under this name in the cache.
fn installed(name: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    let path = cache.join("ccbench").join(name);
    path.exists().then_some(path)
}

/// Returns a program of the Python directory that `scripts/setup.sh --test` creates, if it is installed there.
pub fn python_program(name: &str) -> Option<PathBuf> {
    installed(&format!("python/bin/{name}"))
}

/// Returns the script of axe-core, the rules of accessibility. Without it, returns `None` and reports the test as skipped.
///
/// # Panics
/// Panics without it if the feature `browser` is enabled.
pub fn axe_core() -> Option<String> {
    const MISSING: &str =
        "axe-core is missing: install npm, with which scripts/setup.sh --test installs axe-core";
    let script = installed("axe/axe.min.js").and_then(|path| std::fs::read_to_string(path).ok());
    if script.is_none() {
        if cfg!(feature = "browser") {
            panic!("{MISSING}");
        }
        skip::skip(MISSING);
    }
    script
}

/// Returns the Python of that directory.
pub fn python() -> Option<Command> {
    python_program("python").map(Command::new)
}

/// A private directory for one experiment, with its results and state. The environment variable `CCBENCH_STATE` identifies its processes.
pub struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    /// Creates an empty directory.
    ///
    /// # Panics
    /// Panics if no temporary folder can be created.
    #[expect(clippy::new_without_default, clippy::unwrap_used, reason = "a test may panic")]
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// Returns the path of a file or folder in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file in it. Returns the file's path.
    ///
    /// # Panics
    /// Panics if it cannot be written.
    #[expect(clippy::unwrap_used, reason = "a test may panic")]
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Writes a program in it that can be executed at once. Returns its path. `install` creates the file: a child that another test starts
    /// at the same time inherits this process's open files until its exec, and a file that is open for writing cannot be executed
    /// (ETXTBSY).
    ///
    /// # Panics
    /// Panics if it cannot be written.
    #[expect(clippy::unwrap_used, reason = "a test may panic")]
    pub fn program(&self, name: &str, script: &str) -> PathBuf {
        let (source, program) = (self.write("program", script), self.path(name));
        let mut install = Command::new("install");
        let status = install.args(["-D", "-m", "755"]).arg(source).arg(&program).status().unwrap();
        assert!(status.success(), "install {}: {status}", program.display());
        program
    }

    /// Returns `ccbench ARGS` for this directory, not started yet.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary("ccbench"));
        command.args(args).current_dir(self.dir.path()).env("CCBENCH_STATE", self.path("state"));
        without_variables_of_users(&mut command).stdin(Stdio::null());
        command
    }

    /// Runs `ccbench ARGS` to its end.
    ///
    /// # Panics
    /// Panics if it cannot be started.
    #[expect(clippy::unwrap_used, reason = "a test may panic")]
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Starts `ccbench ARGS`, whose output goes to the files `out` and `err`.
    ///
    /// # Panics
    /// Panics if it cannot be started.
    #[expect(clippy::unwrap_used, reason = "a test may panic")]
    pub fn spawn(&self, args: &[&str]) -> Child {
        let file = |name: &str| Stdio::from(std::fs::File::create(self.path(name)).unwrap());
        self.command(args).stdout(file("out")).stderr(file("err")).spawn().unwrap()
    }

    /// Returns what a [`spawn`](Self::spawn)ed `ccbench` has printed so far.
    pub fn printed(&self) -> String {
        let file = |name| std::fs::read_to_string(self.path(name)).unwrap_or_default();
        file("out") + &file("err")
    }

    /// Returns the live processes of this experiment: (pid, command line). Every child inherits `CCBENCH_STATE`.
    pub fn processes(&self) -> Vec<(u32, String)> {
        let own = self.state_mark();
        processes()
            .filter(|(_, environ)| environ.contains(&own))
            .map(|(pid, _)| with_line(pid))
            .collect()
    }

    /// Returns the network namespaces of this experiment's processes, except the test's own.
    pub fn namespaces(&self) -> Namespaces {
        let own = namespace_of("self");
        let all =
            self.processes().into_iter().filter_map(|(pid, _)| namespace_of(&pid.to_string()));
        let links = all.filter(|link| Some(link) != own.as_ref()).collect();
        Namespaces { links, seen: uptime() }
    }

    /// Returns the processes that were in these network namespaces when they were listed, and still are: (pid, command line). The kernel
    /// reuses the inode of a removed namespace, so a process that started later may be of another experiment.
    pub fn processes_in(&self, namespaces: &Namespaces) -> Vec<(u32, String)> {
        processes()
            .map(|(pid, _)| pid)
            .filter(|pid| {
                namespace_of(&pid.to_string()).is_some_and(|link| namespaces.links.contains(&link))
            })
            .filter(|pid| start_time(*pid).is_some_and(|start| start <= namespaces.seen))
            .map(with_line)
            .collect()
    }

    fn state_mark(&self) -> Vec<u8> {
        [STATE, self.path("state").as_os_str().as_encoded_bytes()].concat()
    }

    /// Returns the only results directory that a run created.
    ///
    /// # Panics
    /// Panics if there is not exactly one.
    pub fn results(&self) -> PathBuf {
        let dirs = self.all_results();
        assert_eq!(dirs.len(), 1, "one results directory: {dirs:?}");
        dirs.into_iter().next().unwrap_or_default()
    }

    /// Returns the results directories that runs created.
    pub fn all_results(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path("results")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }
}

/// Prefixes of variables through which the user's environment, or the scheduler in which the tests run, would change what `ccbench` does or
/// prints.
const VARIABLES_OF_USERS: [&str; 7] = [
    "CCBENCH_CRL",
    "CCBENCH_LOG",
    "CCBENCH_PKI",
    "COLUMNS",
    "HQ_",
    "JOB_COMPLETION_INDEX",
    "SLURM_",
];

/// Removes these variables from the environment of a command that runs `ccbench`.
pub fn without_variables_of_users(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        let bytes = name.as_encoded_bytes();
        if VARIABLES_OF_USERS.iter().any(|start| bytes.starts_with(start.as_bytes())) {
            command.env_remove(&name);
        }
    }
    command
}

/// Marks an experiment's processes in their environment.
const STATE: &[u8] = b"CCBENCH_STATE=";

/// Returns all processes of the machine with their environment.
fn processes() -> impl Iterator<Item = (u32, BTreeSet<Vec<u8>>)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.map(|pid: u32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        (pid, environ.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect())
    })
}

fn with_line(pid: u32) -> (u32, String) {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    (pid, String::from_utf8_lossy(&line).replace('\0', " "))
}

/// The network namespaces of an experiment.
#[derive(Debug)]
pub struct Namespaces {
    links: BTreeSet<PathBuf>,
    /// When they were listed, since boot.
    seen: Duration,
}

impl Namespaces {
    /// Returns the number of namespaces.
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }
}

/// Returns the time since boot.
#[expect(clippy::unwrap_used, reason = "a test may panic")]
fn uptime() -> Duration {
    let text = std::fs::read_to_string("/proc/uptime").unwrap();
    Duration::from_secs_f64(text.split_whitespace().next().unwrap().parse().unwrap())
}

/// Returns when a process started, since boot: field 22 of `/proc/PID/stat`.
fn start_time(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    Some(cpu::ticks(fields.split_whitespace().nth(19)?.parse().ok()?))
}

/// Returns the link of a process's network namespace: "net:[4026531840]".
fn namespace_of(pid: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}

/// Longest [wait](wait_for) for what a test needs before it can go on: a program that starts, a trial that begins. The test does not
/// measure this, so the limit is long enough for a machine that has just booted or is busy.
pub const SETUP_TIMEOUT: Duration = Duration::from_secs(120);

/// Waits until `fact` holds.
///
/// # Panics
/// Panics if it does not hold within `limit`; `what` names the fact. The limit is counted in sleeps of 20 ms, so that time without the CPU
/// does not shorten it.
pub fn wait_for(what: &str, limit: Duration, mut fact: impl FnMut() -> bool) {
    const POLL_INTERVAL: Duration = Duration::from_millis(20);
    for _ in 0..=limit.as_millis() / POLL_INTERVAL.as_millis() {
        if fact() {
            return;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    panic!("waited {} s for: {what}", limit.as_secs());
}

/// Returns the rows of a summary, each by column. No value may contain a comma.
///
/// # Panics
/// Panics if it cannot be read.
#[expect(clippy::unwrap_used, reason = "a test may panic")]
pub fn csv(path: &Path) -> Vec<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned));
    let header: Vec<String> = lines.next().into_iter().flatten().collect();
    lines.map(|line| header.iter().cloned().zip(line).collect()).collect()
}

/// Returns standard output and error as text, for messages.
pub fn text(output: &Output) -> String {
    format!(
        "exit {:?}\n--- out\n{}\n--- err\n{}",
        output.status.code(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Held by the tests that measure on this machine, and by those that only use it.
static MACHINE: RwLock<()> = RwLock::new(());

/// Checks for root, and runs a test without any other of its binary, because experiments that measure disturb each other.
///
/// # Panics
/// Panics if not root.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    check_root();
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Checks for root, and runs a test beside others, because its assertions do not depend on the speed of its experiment.
///
/// # Panics
/// Panics if not root.
pub fn beside_others() -> RwLockReadGuard<'static, ()> {
    check_root();
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

fn check_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "namespace tests need root (or leave out --features netns)"
    );
}

/// Runs `ccbench run PLAN ARGS` in its own directory and measures the CPU meanwhile.
pub fn watched_run(plan: &str, args: &[&str]) -> (Bench, Output, CpuReport) {
    let bench = Bench::new();
    bench.write("plan.toml", plan);
    let watch = CpuWatch::start();
    let output = bench.run(&[&["run", "plan.toml"], args].concat());
    (bench, output, watch.report())
}
