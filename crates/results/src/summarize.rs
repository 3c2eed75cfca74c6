//! Writes the output of `ccbench summarize` to a results directory: the summary tables, the results of the plan's claims,
//! its scorecard, and the six columns of every flow group.

use std::path::{Path, PathBuf};

use ccbench_io::input;
use ccbench_proto::plan::Plan;
use polars::prelude::*;

use super::digest::FileDigest;
use super::expect::{self, Expectation};
use super::journal::TrialEnd;
use super::layout::DIGESTS_FILE;
use super::model::TrialFilter;
use super::observer::Observer;
use super::parallel::in_parallel;
use super::parquet_file;
use super::part::{write_csv, write_parquet, write_text};
use super::scorecard::Scorecard;
use super::six_columns::{self, UnknownGroup};
use super::stopping::{self, RuleResult};
use super::store::{RunDir, StoreError};
use super::summary::tables::{numbers, phase_frame, point_frame, text};
use super::summary::{self, Summary};
use crate::error::{ErrorClass, FileError, io_error, polars_error};

/// The summary of a run cannot be computed or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SummaryError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The results directory cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No counted trial has the flow group.
    #[error(transparent)]
    Group(#[from] UnknownGroup),
}

impl SummaryError {
    /// Returns who has to act.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::File(error) => error.class(),
            Self::Store(error) => error.class(),
            Self::Group(error) => error.class(),
        }
    }
}

/// The result of computing and writing a summary.
type Result<T, E = SummaryError> = std::result::Result<T, E>;

/// The summary of a run, the results of the plan's claims, and the written files.
#[derive(Debug)]
pub struct RunSummary {
    /// The summary.
    pub summary: Summary,
    /// The results of the plan's claims.
    pub expectations: Vec<Expectation>,
    /// The plan's rules that end the repetition, and its comparisons.
    pub decisions: Vec<RuleResult>,
    /// The scorecard of a congestion control, if the plan has one.
    pub scorecard: Option<Scorecard>,
    /// The written files.
    pub files: Vec<PathBuf>,
    /// The result of writing the files. The summary is complete even after an error, so print it first.
    pub written: Result<()>,
    /// Receives progress when the run is read again.
    pub(crate) observer: Observer,
    /// Whether the claims are unknown because the plan cannot be read. The results of an earlier summary then stay.
    plan_is_unread: bool,
}

/// The content of a file.
enum Content {
    Parquet(DataFrame),
    Csv(DataFrame),
    Text(String),
}

/// Summarises a results directory and [writes](RunSummary::write) `trials`, `points`, `summary_phase`, `summary_point` and `expectations`
/// into it, each as Parquet and as CSV. Also writes the scorecard, if the plan has one, and the six columns of the coexistence study for
/// every group.
///
/// # Errors
/// The results directory cannot be read. Errors while writing are in [`RunSummary::written`].
pub fn summarize(run_dir: &Path, filter: TrialFilter) -> Result<RunSummary> {
    let mut run = RunSummary::compute(run_dir, filter)?;
    run.written = run.write();
    Ok(run)
}

impl RunSummary {
    /// Computes the summary and the results of the plan's claims, without writing anything.
    ///
    /// # Errors
    /// The results directory cannot be read.
    pub fn compute(run_dir: &Path, filter: TrialFilter) -> Result<Self> {
        Self::compute_observed(run_dir, filter, &Observer::default())
    }

    /// As [`Self::compute`], and reports its progress and that of the [report](crate::report) of this summary to the observer.
    ///
    /// # Errors
    /// As [`Self::compute`].
    pub fn compute_observed(
        run_dir: &Path,
        filter: TrialFilter,
        observer: &Observer,
    ) -> Result<Self> {
        Self::from_run(&RunDir::open_observed(run_dir, observer)?, filter)
    }

    /// As [`Self::compute`], for an open results directory.
    pub(crate) fn from_run(run: &RunDir, filter: TrialFilter) -> Result<Self> {
        let summary = summary::compute(run, filter)?;
        let claims = run.plan().map(|plan| expect::judge(plan.plan(), &summary));
        let expectations = claims.unwrap_or_default();
        let decisions = run.plan().map(|plan| stopping::judge(plan, &summary)).unwrap_or_default();
        let scorecard = run
            .plan()
            .and_then(|plan| Some(Scorecard::new(plan.plan(), &summary)?.with_instance(plan)));
        let (files, written, observer) = (vec![], Ok(()), run.observer.clone());
        let plan_is_unread = run.plan_is_unread();
        Ok(Self {
            summary,
            expectations,
            decisions,
            scorecard,
            files,
            written,
            observer,
            plan_is_unread,
        })
    }

    /// Replaces the results of the claims with those of another plan.
    pub fn judge(&mut self, plan: &Plan) {
        self.expectations = expect::judge(plan, &self.summary);
        self.plan_is_unread = false;
    }

    /// Writes every table to the results directory and adds the paths to `files`. Stops at the first error.
    pub fn write(&mut self) -> Result<()> {
        let dir = self.summary.run_dir.clone();
        self.write_to(&dir)
    }

    /// As [`Self::write`], but to another directory, which is created.
    pub fn write_to(&mut self, dir: &Path) -> Result<()> {
        std::fs::create_dir_all(dir).map_err(io_error("create", dir))?;
        let summary = &self.summary;
        let mut contents = Vec::new();
        let table = |name: &str, frame: PolarsResult<DataFrame>, for_csv: Option<DataFrame>| {
            let frame = frame.map_err(polars_error("build", &dir.join(name)))?;
            let csv = Content::Csv(for_csv.unwrap_or_else(|| frame.clone()));
            let parquet = (format!("{name}.parquet"), Content::Parquet(frame));
            Ok::<_, FileError>([parquet, (format!("{name}.csv"), csv)])
        };
        // CSV has no lists, so reasons are joined into one text.
        let flat = trials_frame(&summary.trials, false);
        let flat = flat.map_err(polars_error("build", &dir.join("trials.csv")))?;
        contents.extend(table("trials", trials_frame(&summary.trials, true), Some(flat))?);
        contents.push(("points.csv".to_owned(), Content::Csv(points_frame(&summary.run_dir)?)));
        contents.extend(table("summary_phase", phase_frame(&summary.phase_rows), None)?);
        contents.extend(table("summary_point", point_frame(&summary.point_rows), None)?);
        if self.expectations.is_empty() {
            // An earlier summary with the claims of another plan may have left this file.
            let endings: &[&str] = if self.plan_is_unread { &[] } else { &["csv", "parquet"] };
            for ending in endings {
                let _ = std::fs::remove_file(dir.join(format!("expectations.{ending}")));
            }
        } else {
            contents.extend(table("expectations", expect::frame(&self.expectations), None)?);
        }
        if let Some(scorecard) = &self.scorecard {
            contents.extend(table("scorecard", scorecard.frame(), None)?);
            contents.push(("scorecard.md".to_owned(), Content::Text(scorecard.markdown())));
        }
        for group in summary.groups() {
            let text = six_columns::csv(summary, &group)?;
            contents.push((format!("six_columns-{group}.csv"), Content::Text(text)));
        }
        // If writing is interrupted, the digests of other files must not remain.
        let _ = std::fs::remove_file(dir.join(DIGESTS_FILE));
        let written = in_parallel(&contents, |(name, content)| {
            let path = dir.join(name);
            match content {
                Content::Parquet(frame) => write_parquet(frame, &path),
                Content::Csv(frame) => write_csv(frame, &path),
                Content::Text(text) => write_text(text, &path),
            }
            .map(|()| path)
        });
        let mut lines = String::new();
        for ((name, _), path) in contents.iter().zip(written) {
            let path = path?;
            let digest = FileDigest::of_file(&path).map_err(io_error("read", &path))?;
            lines += &format!("{}  {name}\n", digest.sha256);
            self.files.push(path);
        }
        Ok(write_text(&lines, &dir.join(DIGESTS_FILE))?)
    }
}

/// Maximum number of points of a plan.
const MAX_POINTS: usize = 10_000;

/// Reads the table `points`, which is written at the start of the run, but not as CSV.
fn points_frame(run_dir: &Path) -> Result<DataFrame, FileError> {
    let path = run_dir.join("points.parquet");
    let bytes = input::read(&path, &input::RECORD).map_err(io_error("read", &path))?;
    parquet_file::read(bytes, None, MAX_POINTS).map_err(polars_error("read", &path))
}

/// Returns one row per committed trial; `reasons` is a list, or one text if `lists` is false.
fn trials_frame(trials: &[TrialEnd], lists: bool) -> PolarsResult<DataFrame> {
    let reasons = |end: &TrialEnd| -> Vec<String> {
        end.reasons.iter().map(|reason| format!("{}: {}", reason.code, reason.message)).collect()
    };
    let reasons_column = if lists {
        let mut builder =
            ListStringChunkedBuilder::new("reasons".into(), trials.len(), trials.len());
        for end in trials {
            builder.append_values_iter(reasons(end).iter().map(String::as_str));
        }
        builder.finish().into_column()
    } else {
        text("reasons", trials, |end| reasons(end).join("; "))
    };
    let clock = |end: &TrialEnd| end.clocks.values().next().cloned();
    let t0 = |end: &TrialEnd| {
        clock(end).map(|c| c.t0_ns.cast_signed().saturating_add(c.realtime_offset_ns))
    };
    let bound = |end: &TrialEnd| end.clocks.values().map(|c| c.error_bound_ns).max();
    DataFrame::new_infer_height(vec![
        numbers("point_id", trials, |end| end.point_id),
        numbers("trial", trials, |end| u32::from(end.trial)).cast(&DataType::UInt16)?,
        text("status", trials, |end| end.status.to_string()),
        reasons_column,
        numbers("seed", trials, |end| end.seed),
        numbers("epoch", trials, |end| end.epoch),
        Column::new("t0_ns".into(), trials.iter().map(t0).collect::<Vec<_>>()),
        Column::new("clock_error_bound_ns".into(), trials.iter().map(bound).collect::<Vec<_>>()),
    ])
}
