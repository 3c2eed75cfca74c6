//! Tests damaged files: the state of a killed agent, certificates and keys, the plan, and a results directory that is resumed.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use ccbench_tests::cpu::CpuWatch;
use rustix::process::Signal;

use crate::failure::Failure;
use crate::lane::{CLEAN, FaultResult, Lane, RUN, SHORT};
use crate::nodes::{controller, read};
use crate::victim::Victim;

/// Within this time, an agent that will be killed has recorded changes.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time from the first record to the middle of the first trial.
const CHANGED_AFTER: Duration = Duration::from_millis(300);
/// Within this time, an agent notices the end of a controller on the same machine, even while it prepares.
const NOTICED_AFTER: Duration = Duration::from_secs(1);

/// The files, each with its kinds of damage: a bit in the middle is flipped, the second half is missing, or an unterminated line follows,
/// as after a crash. A journal cannot know that it has lost lines, so the undo journal is not cut.
const FILES: [(&str, &[&str]); 11] = [
    ("a/state/undo.ndjson", &["flip", "torn"]),
    ("a/state/generation", &["flip", "cut", "torn"]),
    ("a/state/audit.ndjson", &["flip", "cut", "torn"]),
    ("pki/ca.pem", &["flip", "cut"]),
    ("pki/10.8.0.1.pem", &["flip", "cut"]),
    ("pki/10.8.0.1.key", &["flip", "cut"]),
    ("pki/controller.pem", &["flip", "cut"]),
    ("pki/controller.key", &["flip", "cut"]),
    ("plan.toml", &["cut"]),
    ("results/journal.ndjson", &["flip", "cut", "torn"]),
    ("results/run.json", &["flip", "cut"]),
];

/// Damage of a file; written as `damage:pki/ca.pem:flip`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Path in the experiment's folder. Those below `results` are in the only results directory.
    file: &'static str,
    effect: &'static str,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "damage:{}:{}", self.file, self.effect)
    }
}

/// Text that names no damage.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not damage:FILE:flip|cut|torn of a file in tests/faults/damage.rs")]
pub struct NotADamage(String);

impl FromStr for Damage {
    type Err = NotADamage;

    fn from_str(text: &str) -> Result<Self, NotADamage> {
        let found = damages().into_iter().find(|damage| damage.to_string() == text);
        found.ok_or_else(|| NotADamage(text.to_owned()))
    }
}

/// Returns each file with each effect.
pub fn damages() -> Vec<Damage> {
    let of = |(file, effects): (&'static str, &'static [&'static str])| {
        effects.iter().map(move |&effect| Damage { file, effect })
    };
    FILES.into_iter().flat_map(of).collect()
}

impl Damage {
    fn apply(&self, whole: &[u8]) -> Vec<u8> {
        let mut bytes = whole.to_vec();
        let middle = bytes.len() / 2;
        match self.effect {
            "flip" => bytes.iter_mut().skip(middle).take(1).for_each(|byte| *byte ^= 1),
            "cut" => bytes.truncate(middle),
            _ => bytes.extend(b"{\"version\":1,\"bo"),
        }
        bytes
    }

    fn is_of_state(&self) -> bool {
        self.file.starts_with("a/state/")
    }

    /// Returns whether both agents read the file.
    fn is_of_authority(&self) -> bool {
        self.file == "pki/ca.pem"
    }

    /// Returns whether the damage must be noticed before a trial.
    fn is_of_undo(&self) -> bool {
        self.file.ends_with("undo.ndjson") && self.effect == "flip"
    }
}

impl Lane {
    pub fn damage(&mut self, damage: &Damage) -> Result<FaultResult, Failure> {
        if let Some(file) = damage.file.strip_prefix("results/") {
            return self.damage_results(damage, file);
        }
        if damage.is_of_state() {
            self.interrupt_trial()?;
        }
        // Node b reads whole files. Node a, which may be dead, must not undo anything yet.
        self.nodes[1].ensure_started(&self.bench)?;
        self.nodes[0].stop()?;
        let path = self.bench.path(damage.file);
        let whole = replace(&path, |whole| damage.apply(whole));
        let watch = CpuWatch::start();
        let ran = self.run_with_agent(Victim::Agent, &[], &CLEAN);
        let cpu = watch.report();
        let status = ran?;
        let code = status.and_then(|status| status.code());
        let printed = self.nodes[0].printed() + &self.bench.printed();
        self.check_logs()?;
        match status {
            Some(status) => self.check_code(status, false)?,
            None if self.nodes[0].printed().is_empty() => {
                return Err(Failure::Silent { file: path, printed });
            }
            None => {}
        }
        let is_ok = code == Some(0) || self.lacked_cpu(code, &cpu);
        if is_ok && !damage.is_of_undo() {
            self.wait_until_free(&[0, 1])?;
        } else if damage.is_of_state() && (is_ok || !printed.contains(file_name(&path))) {
            return Err(Failure::Silent { file: path, printed });
        }
        self.nodes[0].stop()?;
        // Like an operator who has a copy.
        replace(&path, |_| whole.clone());
        if !self.nodes[1].is_alive() {
            return Err(self.nodes[1].failure(Failure::AgentEnded));
        }
        if damage.is_of_authority() {
            // Node b may have read the damaged file, and may need a second to notice the whole one.
            self.nodes[1].stop()?;
        }
        self.start(&[])?;
        self.check_after()?;
        Ok(FaultResult { code, injected: true })
    }

    /// Kills node a's agent and the controller when node a has been changed, and waits for node b.
    pub fn interrupt_trial(&mut self) -> Result<(), Failure> {
        self.ensure_started()?;
        let mut child = controller(&self.bench, &self.nodes[0], &[], &SHORT).spawn().unwrap();
        let journal = self.bench.path("a/state/undo.ndjson");
        for _ in 0..PREPARE_TIMEOUT.as_millis() / 20 {
            if !read(&journal).is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(CHANGED_AFTER);
        self.nodes[0].signal(Signal::KILL);
        let _ = child.kill();
        let _ = child.wait();
        if read(&journal).is_empty() {
            return Err(Failure::Hangs { printed: self.bench.printed() });
        }
        std::thread::sleep(NOTICED_AFTER);
        self.wait_until_free(&[1])
    }

    /// Resumes a run whose record is damaged, which must succeed or be rejected with a message.
    fn damage_results(&mut self, damage: &Damage, file: &str) -> Result<FaultResult, Failure> {
        self.ensure_started()?;
        self.expect_ok(&RUN)?;
        let results = self.bench.results();
        let path = results.join(file);
        replace(&path, |whole| damage.apply(whole));
        let results = results.display().to_string();
        let status = self.run(&[], &["run", "--resume", &results, "--pki", "pki"])?;
        self.check_code(status, false)?;
        self.check_logs()?;
        let printed = self.bench.printed();
        if status.success() {
            self.check_results(Some(2))?;
        } else if printed.is_empty() {
            return Err(Failure::Silent { file: path, printed });
        }
        self.check_after()?;
        Ok(FaultResult { code: status.code(), injected: true })
    }
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// Replaces the contents of a file. Returns the old contents.
fn replace(path: &Path, by: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let whole = std::fs::read(path).unwrap();
    std::fs::write(path, by(&whole)).unwrap();
    whole
}

#[test]
fn damages_are_read_back_and_change_something() {
    for damage in damages() {
        assert_eq!(damage.to_string().parse::<Damage>().unwrap(), damage);
        assert_ne!(damage.apply(b"ab\n"), b"ab\n");
    }
    assert!("damage:pki/ca.pem:torn".parse::<Damage>().is_err());
}
