//! Where a plan comes from: a file, or the binary itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ccbench_proto::plan::check::{self, CheckedPlan, PlanProblem, Severity};
use ccbench_proto::trace::TraceError;

use crate::error::CliError;
use crate::traces::{self, Traces};

/// Files that the binary brings: their names as plans give them, and their contents.
pub type Embedded = &'static [(&'static str, &'static [u8])];

/// A plan's text, and where its trace files are.
pub struct Source {
    path: PathBuf,
    text: String,
    embedded: Embedded,
}

impl Source {
    /// A file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(path: &Path) -> Result<Self, CliError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| CliError::PlanFile { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), text, embedded: &[] })
    }

    /// A plan of the binary's own; `path` is what it is called in messages.
    pub fn embedded(path: &str, text: &str, files: Embedded) -> Self {
        Self { path: path.into(), text: text.to_owned(), embedded: files }
    }

    /// The overrides: those given, and for a `quick` look the plan's own before them.
    ///
    /// # Errors
    /// The plan has none.
    pub fn sets(&self, sets: &[String], quick: bool) -> Result<Vec<String>, CliError> {
        if !quick {
            return Ok(sets.to_vec());
        }
        check::quick_sets(&self.text, sets).ok_or_else(|| {
            CliError::Usage(format!(
                "{}: --quick needs a table of overrides in the plan: `[quick]` and below it lines like `repeat = 1` \
                 and `\"phases.0.length\" = \"10s\"`",
                self.path.display()
            ))
        })
    }

    /// As [`Source::load`], of a plan that is known to be right; of what is right nothing is printed.
    ///
    /// # Errors
    /// It is not right all the same; every problem is printed.
    pub fn load_quietly(&self, sets: &[String]) -> Result<CheckedPlan, CliError> {
        self.read_with(sets).map(|(loaded, _)| loaded.plan)
    }

    /// What it says with these overrides; every problem is printed.
    ///
    /// # Errors
    /// The plan is wrong.
    pub fn load(&self, sets: &[String]) -> Result<Loaded, CliError> {
        let (loaded, warnings) = self.read_with(sets)?;
        report(&self.path, &warnings);
        Ok(loaded)
    }

    /// Reads and checks plan and traces; errors are printed, warnings are returned.
    fn read_with(&self, sets: &[String]) -> Result<(Loaded, Vec<PlanProblem>), CliError> {
        let (path, text) = (&self.path, &self.text);
        let files = check::trace_files(text, sets);
        let Traces { facts, contents, wrong } = traces::read(path, &files, self.embedded);
        for (file, error) in &wrong {
            report_trace(file, error);
        }
        let in_traces = wrong.iter().map(|(_, error)| error.problems.len() + error.more).sum();
        let failed = |problems| CliError::Plan { path: path.clone(), problems, in_traces };
        let (plan, warnings) = check::read_with(text, sets, facts).map_err(|problems| {
            report(path, &problems);
            failed(problems)
        })?;
        if !wrong.is_empty() {
            report(path, &warnings);
            return Err(failed(warnings));
        }
        Ok((Loaded { text: text.clone(), plan, traces: contents }, warnings))
    }
}

/// A plan's text and what it says, every problem printed.
pub struct Loaded {
    /// As its author wrote it.
    pub text: String,
    /// What it says.
    pub plan: CheckedPlan,
    /// Contents of its trace files, by the name that the plan gives them.
    pub traces: BTreeMap<String, Vec<u8>>,
}

/// Prints what is wrong with a trace file, as [`report`] does.
pub fn report_trace(file: &Path, error: &TraceError) {
    for problem in &error.problems {
        let line = if problem.line > 0 { format!("{}:", problem.line) } else { String::new() };
        eprintln!("error: {}:{line} {}", file.display(), problem.what);
    }
    if error.more > 0 {
        eprintln!("error: {}: and {} more", file.display(), error.more);
    }
}

/// Prints problems as `FILE:LINE: key: why`, which editors and terminals follow.
fn report(path: &Path, problems: &[PlanProblem]) {
    for problem in problems {
        let severity = match problem.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let file = path.display();
        match problem.line {
            Some(line) => eprintln!("{severity}: {file}:{line}: {problem}"),
            None if problem.path.starts_with("--set") => eprintln!("{severity}: {problem}"),
            None => eprintln!("{severity}: {file}: {problem}"),
        }
    }
}
