//! The source of a plan: a file or a plan embedded in the binary.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ccbench_io::input;
use ccbench_proto::plan::check::{self, CheckedPlan, PlanFiles, PlanProblem, Severity, Target};
use ccbench_proto::trace::TraceError;

use crate::cc_files::{self, CcContents};
use crate::console::message;
use crate::paths::shared_dir;
use crate::trace_files::{self, Embedded, TraceContents};

/// Why a plan cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlanSourceError {
    /// The file cannot be read.
    #[error(
        "cannot read the plan {}: {source}{}",
        path.display(), missing_file_hint(path, shared_dir().as_deref())
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The plan is invalid; every problem has been printed.
    #[error("{path}: {}; it cannot be run", counted(problems, *in_traces))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Problems of the plan.
        problems: Vec<PlanProblem>,
        /// Number of problems of its trace files.
        in_traces: usize,
    },
    /// `--quick` was given for a plan without a `[quick]` table.
    #[error(
        "{path}: --quick needs a table of overrides in the plan: `[quick]` and below it lines like `repeat = 1` \
         and `\"phases.0.length\" = \"10s\"`"
    )]
    NoQuick {
        /// The file.
        path: PathBuf,
    },
}

/// Returns the end of the error for a missing file in `plans`: where the package has the file, or which commands replace it.
/// `shared` is the directory that a package installs for all users.
fn missing_file_hint(path: &Path, shared: Option<&Path>) -> String {
    if !path.starts_with("plans") || path.exists() {
        return String::new();
    }
    // Wheels have the plans with the documents.
    let documents = |shared: &Path| shared.with_file_name("doc").join("ccbench");
    let places = |shared: &Path| [shared.join(path), documents(shared).join(path)];
    let mut places = shared.into_iter().flat_map(places);
    match places.find(|packaged| packaged.is_file()) {
        Some(packaged) => format!("; the package has it in {}", packaged.display()),
        None => {
            "; `ccbench new` writes a plan, and `ccbench reproduce` lists those that need no file"
                .to_owned()
        }
    }
}

/// Returns the number of errors and warnings: `2 errors, 1 warning`.
fn counted(problems: &[PlanProblem], in_traces: usize) -> String {
    let plural = |count: usize, word: &str| match count {
        1 => format!("1 {word}"),
        _ => format!("{count} {word}s"),
    };
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    let warnings = match problems.len() - errors {
        0 => String::new(),
        count => format!(", {}", plural(count, "warning")),
    };
    plural(errors + in_traces, "error") + &warnings
}

/// A plan's text and the source of its trace files.
pub struct PlanSource {
    path: PathBuf,
    text: String,
    embedded: Embedded,
    /// Files of the user are beside the plan, or in the working directory if the plan is embedded.
    is_embedded: bool,
    target: Target,
    /// The key of a warning, and the text to print instead.
    warning_override: Option<(&'static str, String)>,
}

impl PlanSource {
    /// Reads a plan file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(path: &Path) -> Result<Self, PlanSourceError> {
        let text = input::read_to_string(path, &input::PLAN)
            .map_err(|source| PlanSourceError::Read { path: path.to_owned(), source })?;
        let source = Self::embedded("", &text, &[]);
        Ok(Self { path: path.to_owned(), is_embedded: false, ..source })
    }

    /// Makes the source of an embedded plan. Messages call it `path`.
    pub fn embedded(path: &str, text: &str, files: Embedded) -> Self {
        let (text, target) = (text.to_owned(), Target::default());
        let (path, warning_override) = (path.into(), None);
        Self { path, text, embedded: files, is_embedded: true, target, warning_override }
    }

    /// Looks for files beside the plan, for a plan that a command has derived from the one at its path.
    #[must_use]
    pub fn with_files_beside(self) -> Self {
        Self { is_embedded: false, ..self }
    }

    /// Replaces the text of the warning at this key. A command that changes a plan knows a better remedy than the plan's author.
    #[must_use]
    pub fn with_reason_at(self, key: &'static str, reason: String) -> Self {
        Self { warning_override: Some((key, reason)), ..self }
    }

    /// Checks the plan for the lab, also if the plan does not select it, or for the simulator.
    #[must_use]
    pub fn for_backend(self, in_lab: bool, simulated: bool) -> Self {
        let target = match (in_lab, simulated) {
            (_, true) => Target::Simulator,
            (true, false) => Target::Lab,
            (false, false) => self.target,
        };
        Self { target, ..self }
    }

    /// Returns the overrides `sets`. With `quick`, the plan's `[quick]` overrides come first.
    ///
    /// # Errors
    /// The plan has no `[quick]` table.
    pub fn sets(&self, sets: &[String], quick: bool) -> Result<Vec<String>, PlanSourceError> {
        if !quick {
            return Ok(sets.to_vec());
        }
        check::quick_sets(&self.text, sets)
            .ok_or_else(|| PlanSourceError::NoQuick { path: self.path.clone() })
    }

    /// Like [`PlanSource::load`], without printing warnings.
    ///
    /// # Errors
    /// The plan is invalid; every problem is printed.
    pub fn load_quietly(&self, sets: &[String]) -> Result<CheckedPlan, PlanSourceError> {
        self.load_again(sets).map(|loaded| loaded.plan)
    }

    /// Reads and checks the plan with these overrides; every problem is printed.
    ///
    /// # Errors
    /// The plan is invalid.
    pub fn load(&self, sets: &[String]) -> Result<LoadedPlan, PlanSourceError> {
        let (loaded, warnings) = self.read_with(sets)?;
        print_problems(&self.path, &warnings);
        Ok(loaded)
    }

    /// Like [`PlanSource::load`], for a plan whose warnings have already been printed.
    ///
    /// # Errors
    /// The plan is invalid; every problem is printed.
    pub fn load_again(&self, sets: &[String]) -> Result<LoadedPlan, PlanSourceError> {
        self.read_with(sets).map(|(loaded, _)| loaded)
    }

    /// Returns the first error of the plan with these overrides without printing it; `None` if the plan is valid.
    pub fn first_error(&self, sets: &[String]) -> Option<String> {
        let (traces, ccs) = self.read_files(sets);
        let files = PlanFiles { traces: traces.facts, ccs: ccs.facts };
        let problems = check::read_for(self.target, &self.text, sets, files).err()?;
        let error = problems.iter().find(|problem| problem.severity == Severity::Error);
        error.map(PlanProblem::to_string)
    }

    /// Reads the files that the plan with these overrides names.
    fn read_files(&self, sets: &[String]) -> (TraceContents, CcContents) {
        let (path, text) = (&self.path, &self.text);
        let place = if self.is_embedded { Path::new("") } else { path.as_path() };
        let traces = trace_files::read(place, &check::trace_files(text, sets), self.embedded);
        (traces, cc_files::read(place, &check::cc_files(text, sets)))
    }

    /// Reads and checks the plan and its traces. Prints errors and returns warnings.
    fn read_with(
        &self,
        sets: &[String],
    ) -> Result<(LoadedPlan, Vec<PlanProblem>), PlanSourceError> {
        let (path, text) = (&self.path, &self.text);
        let (traces, ccs) = self.read_files(sets);
        let TraceContents { facts, contents, invalid } = traces;
        for (file, error) in &invalid {
            print_trace_problems(file, error);
        }
        let in_traces = invalid.iter().map(|(_, error)| error.problems.len() + error.more).sum();
        let CcContents { facts: cc_facts, contents: cc_contents } = ccs;
        let files = PlanFiles { traces: facts, ccs: cc_facts };
        let failed =
            |problems| PlanSourceError::Invalid { path: path.clone(), problems, in_traces };
        let (plan, mut warnings) =
            check::read_for(self.target, text, sets, files).map_err(|problems| {
                print_problems(path, &problems);
                failed(problems)
            })?;
        if let Some((key, reason)) = &self.warning_override {
            for warning in warnings.iter_mut().filter(|warning| warning.path == *key) {
                warning.reason.clone_from(reason);
            }
        }
        if !invalid.is_empty() {
            print_problems(path, &warnings);
            return Err(failed(warnings));
        }
        let loaded = LoadedPlan { text: text.clone(), plan, traces: contents, ccs: cc_contents };
        Ok((loaded, warnings))
    }
}

/// A valid plan.
pub struct LoadedPlan {
    /// The text as its author wrote it.
    pub text: String,
    /// The checked plan.
    pub plan: CheckedPlan,
    /// Contents of the plan's trace files, by the name in the plan.
    pub traces: BTreeMap<String, Vec<u8>>,
    /// Contents of the supplied congestion controls, by the name in the plan.
    pub ccs: BTreeMap<String, Vec<u8>>,
}

/// Prints the problems of a trace file as `FILE:LINE: why`.
pub fn print_trace_problems(file: &Path, error: &TraceError) {
    for problem in &error.problems {
        let line = if problem.line > 0 { format!("{}:", problem.line) } else { String::new() };
        message(format_args!("error: {}:{line} {}", file.display(), problem.message));
    }
    if error.more > 0 {
        message(format_args!("error: {}: and {} more", file.display(), error.more));
    }
}

/// Prints problems as `FILE:LINE: key: why`, the format that editors and terminals link to.
fn print_problems(path: &Path, problems: &[PlanProblem]) {
    for problem in problems {
        let severity = match problem.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let file = path.display();
        match problem.line {
            Some(line) => message(format_args!("{severity}: {file}:{line}: {problem}")),
            None if problem.path.starts_with("--set") => {
                message(format_args!("{severity}: {problem}"));
            }
            None => message(format_args!("{severity}: {file}: {problem}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_plan_of_the_package_is_named() {
        let shared = tempfile::tempdir().unwrap();
        let plan = Path::new("plans").join("of a package.toml");
        let without = missing_file_hint(&plan, Some(shared.path()));
        assert!(without.contains("`ccbench new`"), "{without}");
        std::fs::create_dir(shared.path().join("plans")).unwrap();
        let packaged = shared.path().join(&plan);
        std::fs::write(&packaged, "").unwrap();
        let named = missing_file_hint(&plan, Some(shared.path()));
        assert!(named.ends_with(&packaged.display().to_string()), "{named}");
        assert_eq!(
            missing_file_hint(Path::new("other/of a package.toml"), Some(shared.path())),
            ""
        );
        assert!(missing_file_hint(&plan, None).contains("`ccbench new`"));
    }

    #[test]
    fn a_missing_plan_of_the_wheel_is_named() {
        let share = tempfile::tempdir().unwrap();
        let plan = Path::new("plans").join("of a wheel.toml");
        let packaged = share.path().join("doc/ccbench").join(&plan);
        std::fs::create_dir_all(packaged.parent().unwrap()).unwrap();
        std::fs::write(&packaged, "").unwrap();
        let named = missing_file_hint(&plan, Some(&share.path().join("ccbench")));
        assert!(named.ends_with(&packaged.display().to_string()), "{named}");
    }
}
