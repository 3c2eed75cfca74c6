//! Turns committed trials into means over phases and, over trials, into means with confidence intervals.
//!
//! The journal decides which trials there are. Degraded trials count, and are marked wherever they are printed;
//! failed and aborted ones stay out unless asked for. What each metric means is said in `measure`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ccbench_proto::event;
use ccbench_proto::plan::Plan;
use polars::prelude::*;

use super::expect::{self, Expectation};
use super::journal::TrialEnd;
use super::parallel::in_parallel;
use super::part::{write_csv, write_parquet, write_text};
use super::store::{RunDir, RunStatus};
use super::{Result, TrialStatus, frame_error};

mod ccs;
mod flows;
mod harm;
mod measure;
pub(crate) mod query;
mod rows;
pub(crate) mod sampled;
mod schedule;
mod settling;
mod six;
pub mod statistics;

pub(crate) use measure::flows_of;
pub(crate) use schedule::{Group, Schedule, group_of};
use statistics::OverTrials;

pub use ccbench_proto::metric::Scope;
pub use six::{six_columns, six_columns_of};

/// One number of one trial: a row of `summary_phase`.
#[derive(Debug, Clone, PartialEq)]
pub struct PhaseRow {
    /// Which point.
    pub point_id: u32,
    /// Which repetition.
    pub trial: u16,
    /// The phase's name.
    pub phase: String,
    /// What `subject` is.
    pub scope: Scope,
    /// Name of the group, flow, probe or link; `all` for the net.
    pub subject: String,
    /// What is measured.
    pub metric: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// How it is taken over the phase.
    pub stat: &'static str,
    /// The number; what is undefined has no row.
    pub value: f64,
    /// How many samples, intervals or flows are in it.
    pub n: u32,
}

/// One number of one point, over its trials: a row of `summary_point`.
#[derive(Debug, Clone, PartialEq)]
pub struct PointRow {
    /// Which point.
    pub point_id: u32,
    /// The phase's name.
    pub phase: String,
    /// What `subject` is.
    pub scope: Scope,
    /// As in [`PhaseRow`].
    pub subject: String,
    /// What is measured.
    pub metric: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// How it is taken over the phase of one trial; over trials it is always the mean.
    pub stat: &'static str,
    /// The mean over trials.
    pub value: f64,
    /// Samples, intervals or flows of all trials together.
    pub n: u32,
    /// Lower and upper end of the 95 % confidence interval; `None` with fewer than two trials.
    pub interval: Option<(f64, f64)>,
    /// Trials in it.
    pub n_trials: u32,
    /// The middle one of the trials' values.
    pub median: f64,
    /// Sample standard deviation over trials; `None` with fewer than two.
    pub sd: Option<f64>,
    /// As `interval`, by the percentile bootstrap.
    pub bootstrap: Option<(f64, f64)>,
}

/// Which trials count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Choice {
    /// Failed and aborted ones too.
    pub include_failed: bool,
    /// Only those without a flaw.
    pub only_ok: bool,
}

impl Choice {
    /// Whether a trial with this verdict counts.
    pub(crate) fn takes(self, status: TrialStatus) -> bool {
        match status {
            TrialStatus::Ok => true,
            TrialStatus::Degraded => !self.only_ok,
            TrialStatus::Failed | TrialStatus::Aborted => self.include_failed && !self.only_ok,
        }
    }
}

/// A run in numbers.
#[derive(Debug)]
pub struct Summary {
    /// Where the run is.
    pub run_dir: PathBuf,
    /// How it stands.
    pub status: RunStatus,
    /// Names of the factors.
    pub factors: Vec<String>,
    /// Each point's level of each factor, in the factors' order.
    pub points: BTreeMap<u32, Vec<(String, String)>>,
    /// The congestion control of each point's groups, where it was seen.
    pub ccs: BTreeMap<(u32, String), String>,
    /// Every committed trial with its verdict, also those that do not count.
    pub trials: Vec<TrialEnd>,
    /// Names of the measured phases, in the order of the timeline.
    pub phases: Vec<String>,
    /// The numbers of each trial.
    pub phase_rows: Vec<PhaseRow>,
    /// The numbers of each point.
    pub point_rows: Vec<PointRow>,
    /// The plan's claims, held against the numbers.
    pub expectations: Vec<Expectation>,
    /// How many trials the plan has.
    pub planned: u32,
    /// Links that are emulated in userspace though the plan leaves the choice open, each with the reason.
    pub fallbacks: Vec<String>,
    /// What a reader must know.
    pub notes: Vec<String>,
    /// What was written.
    pub files: Vec<PathBuf>,
    /// Whether everything was written. The numbers are whole even if not: print them first.
    pub written: Result<()>,
}

/// What is written into a file.
enum Content {
    Parquet(DataFrame),
    Csv(DataFrame),
    Text(String),
}

/// Summarises a results directory and [writes](Summary::write) `trials`, `points`, `summary_phase` and `summary_point` into it, each
/// as Parquet and as CSV, and the six columns of the coexistence study for every group.
///
/// # Errors
/// What keeps the numbers from being computed. That they cannot be written is in [`Summary::written`].
pub fn summarize(run_dir: &Path) -> Result<Summary> {
    summarize_chosen(run_dir, Choice::default())
}

/// As [`summarize`], of these trials.
pub fn summarize_chosen(run_dir: &Path, choice: Choice) -> Result<Summary> {
    let mut summary = compute(run_dir, choice)?;
    summary.written = summary.write();
    Ok(summary)
}

/// Summarises without writing.
pub fn compute(run_dir: &Path, choice: Choice) -> Result<Summary> {
    compute_of(run_dir, |end| choice.takes(end.status))
}

/// As [`compute`], of the trials that `takes` says.
pub(crate) fn compute_of(run_dir: &Path, takes: impl Fn(&TrialEnd) -> bool) -> Result<Summary> {
    let run = RunDir::open(run_dir)?;
    let trials = run.trials();
    let counted: Vec<&TrialEnd> = trials.iter().filter(|end| takes(end)).collect();
    let (mut phase_rows, mut notes) = (vec![], run.notes());
    let schedule = Schedule::of(run.plan());
    let measured = measure::measure(&run, &counted, &schedule)?;
    phase_rows.extend(measured.rows);
    notes.extend(measured.notes);
    let ccs = ccs::of(&run, &counted)?;
    let told = query::events(&run, &trials, event::LINK)?;
    let links: BTreeSet<String> =
        told.iter().filter_map(|(link, data)| fallback(link, data)).collect();
    let phases = phase_names(&trials);
    let position = |name: &str| phases.iter().position(|phase| phase == name);
    phase_rows.sort_by(|a, b| {
        let key = |r: &PhaseRow| (r.point_id, r.trial, position(&r.phase), r.scope);
        key(a).cmp(&key(b)).then_with(|| a.subject.cmp(&b.subject))
    });
    let point_rows = over_trials(&phase_rows, &phases);
    let (factors, points) = run.points();
    let mut summary = Summary {
        run_dir: run_dir.to_path_buf(),
        status: run.status(),
        planned: run.planned(),
        fallbacks: links.into_iter().collect(),
        factors,
        points,
        ccs,
        phases,
        phase_rows,
        point_rows,
        notes,
        files: vec![],
        written: Ok(()),
        trials,
        expectations: vec![],
    };
    if let Some(plan) = run.plan() {
        summary.judge(plan.plan());
    }
    Ok(summary)
}

/// What to say of a link whose event tells that `backend = "auto"` could not take the kernel's qdiscs.
fn fallback(link: &str, data_json: &str) -> Option<String> {
    let data: serde_json::Value = serde_json::from_str(data_json).ok()?;
    if data.get("backend")?.as_str()? != "userspace" {
        return None;
    }
    let why = data.get("why")?.as_str()?.strip_prefix("auto: ")?;
    let why = why.split(" (CONFIG_").next().unwrap_or(why);
    Some(format!("link {link}: userspace ({why})"))
}

/// Measured phases of all trials, each once.
fn phase_names(trials: &[TrialEnd]) -> Vec<String> {
    let mut names: Vec<String> = vec![];
    for phase in trials.iter().flat_map(|end| &end.phases).filter(|phase| phase.measure) {
        if !names.contains(&phase.name) {
            names.push(phase.name.clone());
        }
    }
    names
}

/// Mean and interval of every number over its point's trials.
fn over_trials(rows: &[PhaseRow], phases: &[String]) -> Vec<PointRow> {
    let mut series: BTreeMap<_, (Vec<f64>, u32, &PhaseRow)> = BTreeMap::new();
    // Metrics keep the order in which a trial lists them.
    let mut order: Vec<(&str, &str)> = vec![];
    for row in rows {
        let metric = (row.metric, row.stat);
        let rank = order.iter().position(|known| *known == metric).unwrap_or_else(|| {
            order.push(metric);
            order.len() - 1
        });
        let phase = phases.iter().position(|name| *name == row.phase);
        let key = (row.point_id, phase, row.scope, &row.subject, rank);
        let (values, n, _) = series.entry(key).or_insert((vec![], 0, row));
        values.push(row.value);
        *n += row.n;
    }
    let mut over: BTreeMap<usize, OverTrials> = BTreeMap::new();
    let point_row = |(values, n, row): (Vec<f64>, u32, &PhaseRow)| {
        let trials = values.len();
        let over = over.entry(trials).or_insert_with(|| OverTrials::of(trials));
        let mean = over.mean(&values)?;
        Some(PointRow {
            point_id: row.point_id,
            phase: row.phase.clone(),
            scope: row.scope,
            subject: row.subject.clone(),
            metric: row.metric,
            unit: row.unit,
            stat: row.stat,
            value: mean.value,
            n,
            interval: mean.interval,
            n_trials: values.len() as u32,
            median: statistics::median(&values)?,
            sd: statistics::variance(&values).map(f64::sqrt),
            bootstrap: over.bootstrap(&values),
        })
    };
    series.into_values().filter_map(point_row).collect()
}

impl Summary {
    /// The mean over trials of one number; `None` if no counted trial has it.
    pub fn find(
        &self,
        point_id: u32,
        phase: &str,
        scope: Scope,
        subject: &str,
        metric: &str,
        stat: &str,
    ) -> Option<&PointRow> {
        self.point_rows.iter().find(|row| {
            row.point_id == point_id
                && row.phase == phase
                && row.scope == scope
                && row.subject == subject
                && row.metric == metric
                && row.stat == stat
        })
    }

    /// Points whose trials all failed, with how many there are: no number is theirs.
    pub(crate) fn lost_points(&self) -> BTreeMap<u32, usize> {
        let mut lost: BTreeMap<u32, usize> = BTreeMap::new();
        for end in &self.trials {
            *lost.entry(end.point_id).or_default() += 1;
        }
        for end in self.trials.iter().filter(|end| Choice::default().takes(end.status)) {
            lost.remove(&end.point_id);
        }
        lost.retain(|id, _| self.point_rows.iter().all(|row| row.point_id != *id));
        lost
    }

    /// Holds the claims of a plan against the numbers, in place of those of the run's own.
    pub fn judge(&mut self, plan: &Plan) {
        self.expectations = expect::judge(plan, self);
    }

    /// Names of the flow groups.
    pub fn groups(&self) -> Vec<String> {
        let groups = self.phase_rows.iter().filter(|row| row.scope == Scope::Group);
        let names: std::collections::BTreeSet<&String> = groups.map(|row| &row.subject).collect();
        names.into_iter().cloned().collect()
    }

    /// Writes every table into the results directory, and what is written into `files`, up to the first that the file
    /// system refuses.
    pub fn write(&mut self) -> Result<()> {
        let mut contents = Vec::new();
        let table = |name: &str, frame: PolarsResult<DataFrame>, for_csv: Option<DataFrame>| {
            let frame = frame.map_err(frame_error("build", &self.run_dir.join(name)))?;
            let csv = Content::Csv(for_csv.unwrap_or_else(|| frame.clone()));
            let parquet = (format!("{name}.parquet"), Content::Parquet(frame));
            Ok::<_, super::ResultsError>([parquet, (format!("{name}.csv"), csv)])
        };
        // Texts in place of lists, which CSV does not have.
        let flat = self.trials_frame(false);
        let flat = flat.map_err(frame_error("build", &self.run_dir.join("trials.csv")))?;
        contents.extend(table("trials", self.trials_frame(true), Some(flat))?);
        contents.push(("points.csv".to_owned(), Content::Csv(self.points_frame()?)));
        contents.extend(table("summary_phase", self.phase_frame(), None)?);
        contents.extend(table("summary_point", self.point_frame(), None)?);
        if self.expectations.is_empty() {
            // Claims of another plan, held against these numbers before.
            for ending in ["csv", "parquet"] {
                let _ = std::fs::remove_file(self.run_dir.join(format!("expectations.{ending}")));
            }
        } else {
            contents.extend(table("expectations", expect::frame(&self.expectations), None)?);
        }
        for group in self.groups() {
            let text = six_columns_of(self, &group)?;
            contents.push((format!("six_columns-{group}.csv"), Content::Text(text)));
        }
        let written = in_parallel(&contents, |(name, content)| {
            let path = self.run_dir.join(name);
            match content {
                Content::Parquet(frame) => write_parquet(frame, &path),
                Content::Csv(frame) => write_csv(frame, &path),
                Content::Text(text) => write_text(text, &path),
            }
            .map(|()| path)
        });
        for path in written {
            self.files.push(path?);
        }
        Ok(())
    }

    /// The table `points`, which is there from the run's beginning, but not as CSV.
    fn points_frame(&self) -> Result<DataFrame> {
        let path = self.run_dir.join("points.parquet");
        let file = std::fs::File::open(&path).map_err(super::io_error("open", &path))?;
        let frame = ParquetReader::new(file).read_parallel(ParallelStrategy::None).finish();
        frame.map_err(frame_error("read", &path))
    }

    /// One line per committed trial; `reasons` is a list, or one text where lists cannot be written.
    fn trials_frame(&self, lists: bool) -> PolarsResult<DataFrame> {
        let trials = &self.trials;
        let reasons = |end: &TrialEnd| -> Vec<String> {
            end.reasons
                .iter()
                .map(|reason| format!("{}: {}", reason.code, reason.message))
                .collect()
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
            Column::new(
                "clock_error_bound_ns".into(),
                trials.iter().map(bound).collect::<Vec<_>>(),
            ),
        ])
    }

    fn phase_frame(&self) -> PolarsResult<DataFrame> {
        let rows = &self.phase_rows;
        DataFrame::new_infer_height(vec![
            numbers("point_id", rows, |r| r.point_id),
            numbers("trial", rows, |r| u32::from(r.trial)).cast(&DataType::UInt16)?,
            text("phase", rows, |r| r.phase.clone()),
            text("scope", rows, |r| r.scope.as_str().to_owned()),
            text("subject", rows, |r| r.subject.clone()),
            text("metric", rows, |r| r.metric.to_owned()),
            text("unit", rows, |r| r.unit.to_owned()),
            text("stat", rows, |r| r.stat.to_owned()),
            numbers("value", rows, |r| r.value),
            numbers("n", rows, |r| r.n),
        ])
    }

    fn point_frame(&self) -> PolarsResult<DataFrame> {
        let rows = &self.point_rows;
        let ends = |of: fn(&PointRow) -> Option<(f64, f64)>, pick: fn((f64, f64)) -> f64| {
            rows.iter().map(|r| of(r).map(pick)).collect::<Vec<_>>()
        };
        let end = |pick| ends(|r| r.interval, pick);
        let boot = |pick| ends(|r| r.bootstrap, pick);
        DataFrame::new_infer_height(vec![
            numbers("point_id", rows, |r| r.point_id),
            text("phase", rows, |r| r.phase.clone()),
            text("scope", rows, |r| r.scope.as_str().to_owned()),
            text("subject", rows, |r| r.subject.clone()),
            text("metric", rows, |r| r.metric.to_owned()),
            text("unit", rows, |r| r.unit.to_owned()),
            text("stat", rows, |r| r.stat.to_owned()),
            numbers("value", rows, |r| r.value),
            numbers("n", rows, |r| r.n),
            Column::new("ci_low".into(), end(|(low, _)| low)),
            Column::new("ci_high".into(), end(|(_, high)| high)),
            numbers("n_trials", rows, |r| r.n_trials),
            text("method", rows, |_| statistics::METHOD.to_owned()),
            numbers("median", rows, |r| r.median),
            Column::new("sd".into(), rows.iter().map(|r| r.sd).collect::<Vec<_>>()),
            Column::new("boot_low".into(), boot(|(low, _)| low)),
            Column::new("boot_high".into(), boot(|(_, high)| high)),
            text("boot_method", rows, |_| statistics::BOOTSTRAP_METHOD.to_owned()),
        ])
    }
}

pub(super) fn text<T>(name: &str, rows: &[T], value: impl Fn(&T) -> String) -> Column {
    Column::new(name.into(), rows.iter().map(value).collect::<Vec<_>>())
}

pub(super) fn numbers<T, N>(name: &str, rows: &[T], value: impl Fn(&T) -> N) -> Column
where
    Series: NamedFrom<Vec<N>, [N]>,
{
    Column::new(name.into(), rows.iter().map(value).collect::<Vec<N>>())
}
