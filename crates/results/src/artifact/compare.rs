//! Compares a rerun with the run of an artifact.
//!
//! With a virtual clock (lab, simulator), a trial depends only on the plan, so every Parquet file must be equal. Elsewhere, a claim is
//! reproduced if its outcome is the same and the 95 % confidence intervals of both measurements overlap. Without a measured claim, the
//! means of each flow group are compared instead.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::{Artifact, ArtifactError, Result, digests_of};
use crate::backend::{DilationSource, RunBackend};
use crate::digest::Digests;
use crate::expect::{Expectation, Outcome};
use crate::journal::TrialEnd;
use crate::model::{TrialFilter, TrialStatus};
use crate::store::RunDir;
use crate::summarize::RunSummary;

mod numbers;

/// Tables of the run that depend only on its trials. `trials.parquet` does not: the epochs of an interrupted run differ. Claims are
/// compared one by one.
const RUN_TABLES: [&str; 3] = ["points.parquet", "summary_phase.parquet", "summary_point.parquet"];

/// Whether a rerun agrees with its artifact on an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agreement {
    /// Both are the same, or differ by less than their intervals.
    Agrees,
    /// They differ.
    Differs,
    /// There is nothing to compare: neither run measured the claim, or a mean has no interval.
    NotCompared,
}

/// The comparison of one item: the trials, a table, a claim or a mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// What is compared.
    pub name: String,
    /// Whether the rerun agrees.
    pub agreement: Agreement,
    /// What the artifact and the rerun have.
    pub details: String,
}

/// The result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reproduction {
    /// Nothing differs, and tables, claims or means were compared.
    Reproduced,
    /// Something differs.
    NotReproduced,
    /// The verdicts agree, but nothing else could be compared.
    NotCompared,
}

impl Reproduction {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::NotReproduced => "not reproduced",
            Self::NotCompared => "not compared",
        }
    }
}

/// A rerun, compared with its artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// The verdicts of the trials.
    pub verdicts: Item,
    /// Tables, claims and means.
    pub items: Vec<Item>,
    /// Differences in versions and backends that may explain other differences.
    pub notes: Vec<String>,
}

impl Comparison {
    /// Returns the result. Equal verdicts alone reproduce nothing: a trial at a tenth of the throughput may be ok, too.
    pub fn reproduction(&self) -> Reproduction {
        let has = |agreement| self.items.iter().any(|item| item.agreement == agreement);
        if self.verdicts.agreement == Agreement::Differs || has(Agreement::Differs) {
            Reproduction::NotReproduced
        } else if has(Agreement::Agrees) {
            Reproduction::Reproduced
        } else {
            Reproduction::NotCompared
        }
    }
}

/// Compares the results directory of a rerun with an artifact.
///
/// # Errors
/// A results directory cannot be read.
pub fn compare(artifact: &Artifact, rerun: &Path) -> Result<Comparison> {
    let (a, mut b) = (artifact.run(), RunDir::open(rerun)?);
    let virtual_clock = a.backend().has_virtual_clock();
    let adaptive = a.plan().is_some_and(|plan| plan.plan().repeat.adaptive().is_some());
    let verdicts = trials(&a.trials(), &b.trials(), virtual_clock, adaptive && !virtual_clock);
    let mut items = Vec::new();
    if virtual_clock {
        let of_rerun = b.verify()?.digests;
        let (of_a, mut of_b) = (digests(a, &artifact.digests)?, digests(&b, &of_rerun)?);
        // The artifact's run may have no summary files.
        of_b.retain(|file, _| of_a.contains_key(file) || !RUN_TABLES.contains(&file.as_str()));
        items.extend(tables(&of_a, &of_b));
    }
    let (of_a, of_b) = (summary(a)?, summary(&b)?);
    let claims = of_a.expectations.iter().zip(1..);
    let claims: Vec<Item> =
        claims.map(|(one, number)| claim(one, number, &of_b.expectations)).collect();
    let none_is_measured = claims.iter().all(|one| one.agreement == Agreement::NotCompared);
    items.extend(claims);
    // With a virtual clock, the tables contain them.
    if none_is_measured && !virtual_clock {
        items.extend(numbers::numbers(&of_a.summary, &of_b.summary)?);
    }
    Ok(Comparison { verdicts, items, notes: notes(a, &b) })
}

/// Compares one claim of the last rerun with the artifact. `number` counts from 1.
///
/// # Errors
/// A results directory cannot be read, there is no such claim, or there is no rerun.
pub fn compare_claim(artifact: &Artifact, number: usize) -> Result<Item> {
    let claims = summary(artifact.run())?.expectations;
    let found = number.checked_sub(1).and_then(|index| claims.get(index));
    let found = found.ok_or(ArtifactError::NoSuchClaim { number, count: claims.len() })?;
    let rerun = RunDir::open(&artifact.last_rerun()?)?;
    Ok(claim(found, number, &summary(&rerun)?.expectations))
}

/// Returns the printed comparison: a line per item, and a last line with the result.
pub fn text(comparison: &Comparison) -> String {
    let all = || std::iter::once(&comparison.verdicts).chain(&comparison.items);
    let mut out: String = all().map(Item::line).collect();
    for note in &comparison.notes {
        let _ = writeln!(out, "note: {note}");
    }
    let count = |agreement| all().filter(|item| item.agreement == agreement).count();
    let agree = count(Agreement::Agrees);
    let compared = agree + count(Agreement::Differs);
    let reproduction = comparison.reproduction();
    let _ = write!(out, "{}: {agree} of {compared} comparisons agree", reproduction.as_str());
    match count(Agreement::NotCompared) {
        0 => {}
        left_out => _ = write!(out, "; not compared: {left_out}"),
    }
    out += match reproduction {
        Reproduction::Reproduced | Reproduction::NotReproduced => "\n",
        Reproduction::NotCompared => {
            "; no number was compared: the plan needs a claim (`[[expect]]`) that a run can measure, or flow groups and `repeat` of at least 2\n"
        }
    };
    out
}

impl Item {
    /// Returns the printed line.
    pub fn line(&self) -> String {
        let Self { name, agreement, details } = self;
        let agreement = match agreement {
            Agreement::Agrees => "agrees  ",
            Agreement::Differs => "DIFFERS ",
            Agreement::NotCompared => "?       ",
        };
        format!("{agreement} {name}: {details}\n")
    }
}

/// Returns the agreement on an item that both runs have.
const fn agreement(agrees: bool) -> Agreement {
    if agrees { Agreement::Agrees } else { Agreement::Differs }
}

fn summary(run: &RunDir) -> Result<RunSummary> {
    Ok(RunSummary::from_run(run, TrialFilter::default())?)
}

/// Compares verdicts: with a virtual clock they must be equal; elsewhere a trial must count in both runs or in neither. `any_number` means
/// that rules end the repetition, possibly earlier in one run than in the other.
fn trials(a: &[TrialEnd], b: &[TrialEnd], virtual_clock: bool, any_number: bool) -> Item {
    let by_trial = |all: &[TrialEnd]| -> BTreeMap<(u32, u16), TrialStatus> {
        all.iter().map(|end| ((end.point_id, end.trial), end.status)).collect()
    };
    let counts = |status: TrialStatus| matches!(status, TrialStatus::Ok | TrialStatus::Degraded);
    let (a, b) = (by_trial(a), by_trial(b));
    let mut all: BTreeSet<&(u32, u16)> = a.keys().chain(b.keys()).collect();
    if any_number {
        let points = |of: &BTreeMap<(u32, u16), TrialStatus>| -> BTreeSet<u32> {
            of.keys().map(|(point, _)| *point).collect()
        };
        let (in_a, in_b) = (points(&a), points(&b));
        // A point that only one run has is still a difference.
        all.retain(|key| {
            let in_both = in_a.contains(&key.0) && in_b.contains(&key.0);
            !in_both || (a.contains_key(*key) && b.contains_key(*key))
        });
    }
    let same = |key: &&(u32, u16)| match (a.get(*key), b.get(*key)) {
        (Some(a), Some(b)) if virtual_clock => a == b,
        (Some(a), Some(b)) => counts(*a) == counts(*b),
        _ => false,
    };
    let agree = all.iter().copied().filter(same).count();
    Item {
        name: "verdicts".to_owned(),
        agreement: agreement(agree == all.len()),
        details: format!("{agree} of {} trials agree", all.len()),
    }
}

/// Returns the digest of every Parquet file that depends only on trials, by its path in the results directory.
fn digests(run: &RunDir, known: &Digests) -> Result<Digests> {
    let trials = run.trials();
    let of_trial = |end: &TrialEnd| -> Vec<PathBuf> {
        end.rows.keys().flat_map(|table| run.files(end, table)).collect()
    };
    let of_trials = trials.iter().flat_map(of_trial);
    let of_run = RUN_TABLES.iter().map(|name| run.path().join(name)).filter(|path| path.is_file());
    let files: Vec<_> = of_trials.chain(of_run).collect();
    Ok(digests_of(run.path(), &files, known)?.into_iter().collect())
}

/// Returns one item for each table.
fn tables(a: &Digests, b: &Digests) -> Vec<Item> {
    let table = |file: &str| match file.split('/').collect::<Vec<_>>()[..] {
        ["tables", table, ..] => format!("tables/{table}"),
        _ => file.to_owned(),
    };
    let mut by_table: BTreeMap<String, Vec<&String>> = BTreeMap::new();
    for file in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
        by_table.entry(table(file)).or_default().push(file);
    }
    let item = |(name, files): (String, Vec<&String>)| {
        let differing: Vec<&&String> =
            files.iter().filter(|file| a.get(**file) != b.get(**file)).collect();
        let equal = files.len() - differing.len();
        let first = differing.first().map_or(String::new(), |file| format!("; {file} differs"));
        let details = format!("{equal} of {} files are equal{first}", files.len());
        Item { name, agreement: agreement(differing.is_empty()), details }
    };
    by_table.into_iter().map(item).collect()
}

/// Compares the claim `one` of the artifact with the rerun's measurement.
pub(super) fn claim(one: &Expectation, number: usize, rerun: &[Expectation]) -> Item {
    let same_point = |other: &&Expectation| {
        (other.index, other.point_id, &other.levels) == (one.index, one.point_id, &one.levels)
    };
    // A claim that was not measured names no point.
    let unmeasured =
        |other: &&Expectation| other.index == one.index && other.outcome == Outcome::NotMeasured;
    let found = rerun.iter().find(same_point).or_else(|| rerun.iter().find(unmeasured));
    let levels = match one.levels.is_empty() {
        true => String::new(),
        false => format!(" ({})", one.levels),
    };
    let name = format!("claim {number}, {}{levels}", one.claim);
    let Some(other) = found else {
        let details = "the rerun has no such claim".to_owned();
        return Item { name, agreement: Agreement::Differs, details };
    };
    if (one.outcome, other.outcome) == (Outcome::NotMeasured, Outcome::NotMeasured) {
        let reasons = one.reasons.join("; ");
        let details = format!("not measured in either run: {reasons}");
        return Item { name, agreement: Agreement::NotCompared, details };
    }
    let details = format!(
        "expected {}; artifact {}; rerun {}",
        one.expected_text(),
        outcome(one),
        outcome(other)
    );
    let agrees = one.outcome == other.outcome && intervals_overlap(one, other);
    Item { name, agreement: agreement(agrees), details }
}

/// Formats an outcome: `12 Mbit/s ±1 (holds)`.
fn outcome(claim: &Expectation) -> String {
    match claim.outcome {
        Outcome::Holds => format!("{} (holds)", claim.measured_text()),
        Outcome::DoesNotHold => format!("{} (does not hold)", claim.measured_text()),
        Outcome::NotMeasured => "not measured".to_owned(),
    }
}

/// Returns whether the intervals have a common value. With a single trial there is no interval, so only the outcomes are compared.
fn intervals_overlap(a: &Expectation, b: &Expectation) -> bool {
    a.interval.zip(b.interval).is_none_or(|(a, b)| overlap(a, b))
}

/// Returns whether two intervals have a common value.
fn overlap((a_low, a_high): (f64, f64), (b_low, b_high): (f64, f64)) -> bool {
    a_low <= b_high && b_low <= a_high
}

/// Returns how the two runs differ apart from their results.
fn notes(a: &RunDir, b: &RunDir) -> Vec<String> {
    let mut notes = Vec::new();
    let (version_a, version_b) = (a.ccbench_version(), b.ccbench_version());
    if version_a != version_b {
        notes.push(format!("ccbench {version_a} ran the artifact, ccbench {version_b} the rerun"));
    }
    let describe = |backend: RunBackend| match backend {
        RunBackend::Testbed => "testbed".to_owned(),
        RunBackend::Import => "import".to_owned(),
        RunBackend::Lab { .. } | RunBackend::Simulator { .. } => backend.notes().join("; "),
    };
    if without_source(a.backend()) != without_source(b.backend()) {
        let (of_a, of_b) = (describe(a.backend()), describe(b.backend()));
        notes.push(format!("the backends differ; artifact: {of_a}; rerun: {of_b}"));
    }
    notes
}

/// Removes the dilation's source, because a rerun is given the dilation that a calibration chose.
fn without_source(mut backend: RunBackend) -> RunBackend {
    if let RunBackend::Lab { images } = &mut backend {
        for dilation in images.iter_mut().filter_map(|image| image.dilation.as_mut()) {
            dilation.source = DilationSource::Given;
        }
    }
    backend
}
