//! The plan of a run, as its results directory has it.

use std::io::ErrorKind;
use std::path::Path;

use ccbench_io::input;
use ccbench_proto::plan::check::{self, CheckedPlan, PlanProblem, Severity, TraceFiles};

use crate::digest::Digests;
use crate::layout::RESOLVED_PLAN;
use crate::trace::stored;

/// The plan of a run, as far as this version of ccbench can read it.
#[derive(Debug, Default)]
pub(super) struct StoredPlan {
    /// `None` if it cannot be read, or nothing was planned.
    pub(super) plan: Option<CheckedPlan>,
    /// Whether there is a plan that cannot be read.
    pub(super) is_unread: bool,
    /// Notes for readers: why the plan, or which of its traces, cannot be used.
    pub(super) notes: Vec<String>,
}

impl StoredPlan {
    /// Reads the plan and its traces, which are compared with these digests. `version` is the ccbench that ran the trials.
    pub(super) fn read(run: &Path, digests: &Digests, version: &str) -> Self {
        let text = match input::read_to_string(&run.join(RESOLVED_PLAN), &input::RECORD) {
            Ok(text) => text,
            // If the journal lists the file, the run is refused without it.
            Err(error) if error.kind() == ErrorKind::NotFound => return Self::default(),
            Err(error) => return Self::unread(&error.to_string(), ""),
        };
        if !is_planned(&text) {
            return Self::default();
        }
        let files = check::trace_files(&text, &[]);
        let (traces, errors) = stored::read_stored(run, &files, digests);
        let mut notes: Vec<String> = errors
            .iter()
            .map(|error| format!("{error}; the capacity of its links is unknown"))
            .collect();
        let known = check::read_with(&text, &[], traces);
        // Ignore stored traces that do not match the plan.
        let plan = known.or_else(|problems| {
            let plan = check::read_with(&text, &[], TraceFiles::new())?;
            let error = first_error(&problems);
            notes.extend(error.map(|error| format!("the run's traces are ignored: {error}")));
            Ok::<_, Vec<_>>(plan)
        });
        match plan {
            Ok((plan, _)) => Self { plan: Some(plan), is_unread: false, notes },
            Err(problems) => {
                let why = first_error(&problems).map(PlanProblem::to_string).unwrap_or_default();
                Self::unread(&why, version)
            }
        }
    }

    fn unread(why: &str, version: &str) -> Self {
        let who = match version {
            "" => String::new(),
            version => format!("; ccbench {version}, which ran the trials, can read it"),
        };
        let note = format!(
            "this version of ccbench cannot read {RESOLVED_PLAN} ({why}): claims, rules, comparisons, and the utilisation, fair share and \
             estimated queue delay of flows are missing; times and paths of flows are guessed, as for imported files{who}"
        );
        Self { plan: None, is_unread: true, notes: vec![note] }
    }
}

/// Returns whether a text has more than comments, as that of an import.
fn is_planned(text: &str) -> bool {
    text.lines().map(str::trim_start).any(|line| !line.is_empty() && !line.starts_with('#'))
}

fn first_error(problems: &[PlanProblem]) -> Option<&PlanProblem> {
    problems.iter().find(|problem| problem.severity == Severity::Error)
}

#[cfg(test)]
mod tests {
    use ccbench_tests::plans;

    use crate::model::{RunInfo, RunStatus, TrialFilter};
    use crate::store::RunDir;
    use crate::summarize::summarize;
    use crate::trial::tests::{filled, good, info};

    /// Summarises a run with this plan and with claims of an earlier summary. Returns the notes, and whether these claims are still there.
    fn summarized(plan: &str) -> (Vec<String>, bool) {
        let root = tempfile::tempdir().unwrap();
        let info = RunInfo { resolved_text: plan.to_owned(), ..info() };
        let run = RunDir::create(root.path(), &info).unwrap();
        filled(&run, 1).commit(&good()).unwrap();
        run.finish(RunStatus::Complete).unwrap();
        let claims = run.path().join("expectations.csv");
        std::fs::write(&claims, "expectation\n").unwrap();
        let found = summarize(run.path(), TrialFilter::default()).unwrap();
        found.written.unwrap();
        (found.summary.notes, claims.exists())
    }

    #[test]
    fn a_plan_of_another_version_has_a_note_and_keeps_its_claims() {
        let plan = plans::of_lengths("name = \"known\"", &["10s"]);
        let (notes, keeps_claims) = summarized(&format!("later_key = 1\n{plan}"));
        let note = notes.iter().find(|note| note.contains("cannot read plan.resolved.toml"));
        let note = note.unwrap_or_else(|| panic!("{notes:?}"));
        assert!(note.contains("later_key") && note.contains("ccbench 0.1.0, which ran"), "{note}");
        assert!(keeps_claims);
        // Without a plan, and with one that has no claims.
        for plan in ["", "# Imported\n\n", &plan] {
            let (notes, keeps_claims) = summarized(plan);
            assert!(!notes.iter().any(|note| note.contains("cannot read")), "{plan}: {notes:?}");
            assert!(!keeps_claims, "{plan}");
        }
    }
}
