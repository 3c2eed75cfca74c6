//! `ccbench exec`: runs a command in a node of a running experiment, in its network namespace on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use self::error::ExecUsageError;
use super::agent::replace;
use crate::args::ExecArgs;
use crate::console::message;
use crate::error::CliError;
use crate::paths::{agent_binary, running};
use crate::view::absolute;
use crate::view::socket::{self, InProgress};

pub mod error;

/// An experiment or run of this user that is in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidate {
    /// The folder of its testbed; `None` if its nodes are not network namespaces of this machine.
    testbed: Option<PathBuf>,
    /// Its run; `None` if it has none (`describe`) or serves no live view.
    run: Option<InProgress>,
}

impl Candidate {
    /// Returns the experiment's ID without its random digits; empty without a testbed.
    fn id(&self) -> String {
        let name = self.testbed.as_deref().and_then(Path::file_name);
        name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Whether this is a part of its ID, its whole ID as in log lines, or its results directory.
    fn is_named(&self, wanted: &str) -> bool {
        let is_run = |run: &InProgress| run.is_in(Path::new(wanted));
        let id = self.id();
        (self.testbed.is_some() && (id.contains(wanted) || is_id_of(wanted, &id)))
            || self.run.as_ref().is_some_and(is_run)
    }
}

/// Whether this ID of an experiment is that of a folder: its name and random digits (`Experiment::id`).
fn is_id_of(id: &str, folder: &str) -> bool {
    let random = id.strip_prefix(folder).and_then(|rest| rest.strip_prefix('-'));
    random.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

impl std::fmt::Display for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.testbed, &self.run) {
            (Some(_), Some(run)) => write!(f, "{} ({run})", self.id()),
            (Some(_), None) => f.write_str(&self.id()),
            (None, Some(run)) => write!(f, "{run} (elsewhere)"),
            (None, None) => Ok(()),
        }
    }
}

/// Returns the process ID of the experiment with this folder.
fn pid_of(testbed: &Path) -> Option<i32> {
    testbed.file_name()?.to_str()?.split('-').nth(1)?.parse().ok()
}

/// Returns what is in progress: the testbeds of this machine with their runs, and the runs without a testbed. A process runs one
/// experiment at a time, and the name of its folder contains the process ID (`Experiment::folder`).
fn candidates(testbeds: Vec<PathBuf>, mut runs: Vec<InProgress>) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = testbeds
        .into_iter()
        .map(|testbed| {
            let pid = pid_of(&testbed);
            let index = runs.iter().position(|run| pid == Some(run.pid));
            let run = index.map(|index| runs.remove(index));
            Candidate { testbed: Some(testbed), run }
        })
        .collect();
    found.extend(runs.into_iter().map(|run| Candidate { testbed: None, run: Some(run) }));
    found
}

/// Returns the experiment to enter: the wanted one, or the only one in progress.
///
/// # Errors
/// There is no such experiment, there are several, or its nodes are elsewhere.
fn choose(mut found: Vec<Candidate>, wanted: Option<&str>) -> Result<Candidate, ExecUsageError> {
    if let Some(wanted) = wanted {
        found.retain(|candidate| candidate.is_named(wanted));
    }
    let names = || -> Vec<String> { found.iter().map(Candidate::to_string).collect() };
    match (found.as_slice(), wanted) {
        ([], None) => Err(ExecUsageError::NoneRuns),
        ([], Some(wanted)) => Err(ExecUsageError::Unknown(wanted.to_owned())),
        (all, _) if all.iter().all(|candidate| candidate.testbed.is_none()) => {
            Err(ExecUsageError::Elsewhere(names()))
        }
        ([one], _) => Ok(one.clone()),
        _ => Err(ExecUsageError::Several(names())),
    }
}

/// Returns the runs in progress whose results are below this directory: in it, or in its folder `results`, the default of `run`.
fn runs_below(dir: &Path) -> Vec<PathBuf> {
    let folders = [dir.to_owned(), dir.join("results")];
    let entries = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let entries = entries.flatten().map(|entry| entry.path());
    entries.chain([dir.to_owned()]).filter(|path| socket::is_written(path)).collect()
}

/// Refuses an experiment that was not named, if the working directory has other runs in progress. They may be on other machines or
/// in another network namespace.
fn check_own(chosen: &Candidate, own: &[PathBuf]) -> Result<(), ExecUsageError> {
    let is_own = |dir: &PathBuf| chosen.run.as_ref().is_some_and(|run| run.is_in(dir));
    let Some(other) = own.first().filter(|_| !own.iter().any(is_own)) else { return Ok(()) };
    Err(ExecUsageError::OtherRun { own: other.clone(), chosen: chosen.to_string() })
}

/// Returns the experiment to enter.
///
/// # Errors
/// There is no such experiment, there are several, its nodes are elsewhere, or the working directory has another run.
fn find(args: &ExecArgs) -> Result<Candidate, CliError> {
    let chosen = choose(candidates(running()?, socket::in_progress()), args.run.as_deref())?;
    if args.run.is_none() {
        check_own(&chosen, &runs_below(&absolute(Path::new("."))))?;
    }
    Ok(chosen)
}

/// Replaces this process with a command in a node of a running experiment. Returns only on failure.
#[expect(clippy::disallowed_methods, reason = "starts the agent")]
pub fn exec(args: &ExecArgs) -> CliError {
    let chosen = match find(args) {
        Ok(chosen) => chosen,
        Err(error) => return error,
    };
    let Some(dir) = &chosen.testbed else {
        return ExecUsageError::Elsewhere(vec![chosen.to_string()]).into();
    };
    message(format_args!("ccbench: node {} of {chosen}", args.node));
    let mut enter = Command::new(agent_binary());
    replace(enter.arg("enter").arg("--dir").arg(dir).arg(&args.node).arg("--").args(&args.command))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pid: i32, directory: &str) -> InProgress {
        let name = socket::name(Path::new(directory));
        InProgress { name, pid, directory: Some(directory.to_owned()) }
    }

    fn stopped(run: InProgress) -> InProgress {
        InProgress { directory: None, ..run }
    }

    const QUICK: &str = "20261126T100000Z-71-quick";
    const SLOW: &str = "20261126T100001Z-72-slow";

    fn found(ids: &[&str], runs: Vec<InProgress>) -> Vec<Candidate> {
        candidates(ids.iter().map(|id| Path::new("/run/ccbench").join(id)).collect(), runs)
    }

    fn refusal(found: Vec<Candidate>, wanted: Option<&str>) -> String {
        choose(found, wanted).unwrap_err().to_string()
    }

    #[test]
    fn the_only_experiment_is_entered_and_named() {
        let chosen = choose(found(&[QUICK], vec![run(71, "results/quick")]), None).unwrap();
        assert_eq!(chosen.to_string(), format!("{QUICK} (results/quick)"));
        assert_eq!(choose(found(&[QUICK], vec![]), None).unwrap().to_string(), QUICK);
        assert!(refusal(vec![], None).contains("none of your experiments"));
    }

    #[test]
    fn another_run_than_that_of_the_directory_must_be_named() {
        let chosen = || choose(found(&[QUICK], vec![run(71, "results/quick")]), None).unwrap();
        assert!(check_own(&chosen(), &[]).is_ok());
        assert!(check_own(&chosen(), &["results/quick".into()]).is_ok());
        let why = check_own(&chosen(), &["results/four".into()]).unwrap_err().to_string();
        assert!(why.contains("results/four, may not be") && why.contains(QUICK), "{why}");
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("results/four");
        std::fs::create_dir_all(&own).unwrap();
        let journal = std::fs::File::create(own.join("journal.ndjson")).unwrap();
        assert!(runs_below(dir.path()).is_empty(), "it has ended");
        journal.lock().unwrap();
        assert_eq!(runs_below(dir.path()), [own]);
    }

    #[test]
    fn a_run_elsewhere_is_not_mistaken_for_the_one_of_this_machine() {
        let both = || found(&[QUICK], vec![run(71, "results/quick"), run(80, "results/four")]);
        let why = refusal(both(), None);
        assert!(why.contains("several") && why.contains("--run"), "{why}");
        assert!(why.contains(QUICK) && why.contains("results/four (elsewhere)"), "{why}");
        assert_eq!(choose(both(), Some("results/quick")).unwrap().id(), QUICK);
        assert_eq!(choose(both(), Some("quick")).unwrap().id(), QUICK);
        let in_logs = format!("{QUICK}-0123456789abcdef");
        assert_eq!(choose(both(), Some(&in_logs)).unwrap().id(), QUICK);
        assert!(refusal(both(), Some(&format!("{QUICK}-other"))).contains("no running experiment"));
        let why = refusal(both(), Some("results/four"));
        assert!(why.contains("network namespaces of this machine") && why.contains("ssh"), "{why}");
        assert_eq!(refusal(found(&[], vec![run(80, "results/four")]), None), why);
    }

    #[test]
    fn a_stopped_run_still_exists() {
        let elsewhere = stopped(run(80, "results/four"));
        let both = || found(&[QUICK], vec![run(71, "results/quick"), elsewhere.clone()]);
        let why = refusal(both(), None);
        assert!(why.ends_with("process 80, which does not answer (elsewhere)"), "{why}");
        let why = refusal(both(), Some("results/four"));
        assert!(why.contains("the nodes of process 80, which does not answer"), "{why}");
        let here = choose(found(&[QUICK], vec![stopped(run(71, "results/quick"))]), None).unwrap();
        assert_eq!(here.to_string(), format!("{QUICK} (process 71, which does not answer)"));
        assert!(here.is_named("results/quick") && here.testbed.is_some());
    }

    #[test]
    fn several_experiments_are_listed() {
        let both = || found(&[QUICK, SLOW], vec![run(72, "results/slow")]);
        let why = refusal(both(), None);
        assert!(why.ends_with(&format!("{QUICK}, {SLOW} (results/slow)")), "{why}");
        assert_eq!(choose(both(), Some("72-slow")).unwrap().id(), SLOW);
        assert!(refusal(both(), Some("none")).contains("--run none"));
    }
}
