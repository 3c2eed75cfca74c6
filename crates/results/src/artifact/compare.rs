//! Compares a rerun with the run of an artifact.
//!
//! With a virtual clock (lab, simulator), a trial depends only on the plan, so every Parquet file must be equal. Elsewhere, a claim is
//! reproduced if its outcome is the same and the 95 % confidence intervals of both measurements overlap.

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

/// Tables of the run that depend only on its trials. `trials.parquet` does not: the epochs of an interrupted run differ. Claims are
/// compared one by one.
const RUN_TABLES: [&str; 3] = ["points.parquet", "summary_phase.parquet", "summary_point.parquet"];

/// The comparison of one item: the trials, a table or a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// What is compared.
    pub name: String,
    /// Whether the rerun agrees.
    pub agrees: bool,
    /// What the artifact and the rerun have.
    pub details: String,
}

/// A rerun, compared with its artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// Trials, tables and claims.
    pub items: Vec<Item>,
    /// Differences in versions and backends that may explain other differences.
    pub notes: Vec<String>,
}

impl Comparison {
    /// Returns whether every item agrees.
    pub fn is_reproduced(&self) -> bool {
        self.items.iter().all(|item| item.agrees)
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
    let of_trials = trials(&a.trials(), &b.trials(), virtual_clock, adaptive && !virtual_clock);
    let mut items = vec![of_trials];
    if virtual_clock {
        let of_rerun = b.verify()?.digests;
        let (of_a, mut of_b) = (digests(a, &artifact.digests)?, digests(&b, &of_rerun)?);
        // The artifact's run may have no summary files.
        of_b.retain(|file, _| of_a.contains_key(file) || !RUN_TABLES.contains(&file.as_str()));
        items.extend(tables(&of_a, &of_b));
    }
    let claims = claims_of(artifact)?;
    let of_rerun = expectations(&b)?;
    items.extend(claims.iter().zip(1..).map(|(one, number)| claim(one, number, &of_rerun)));
    Ok(Comparison { items, notes: notes(a, &b) })
}

/// Compares one claim of the last rerun with the artifact. `number` counts from 1.
///
/// # Errors
/// A results directory cannot be read, there is no such claim, or there is no rerun.
pub fn compare_claim(artifact: &Artifact, number: usize) -> Result<Item> {
    let claims = claims_of(artifact)?;
    let found = number.checked_sub(1).and_then(|index| claims.get(index));
    let found = found.ok_or(ArtifactError::NoSuchClaim { number, count: claims.len() })?;
    let rerun = RunDir::open(&artifact.last_rerun()?)?;
    Ok(claim(found, number, &expectations(&rerun)?))
}

/// Returns the printed comparison: a line per item, and a last line with the result.
pub fn text(comparison: &Comparison) -> String {
    let Comparison { items, notes } = comparison;
    let mut out = String::new();
    for item in items {
        out += &item.line();
    }
    for note in notes {
        let _ = writeln!(out, "note: {note}");
    }
    let agree = items.iter().filter(|item| item.agrees).count();
    let result = if comparison.is_reproduced() { "reproduced" } else { "not reproduced" };
    let _ = writeln!(out, "{result}: {agree} of {} comparisons agree", items.len());
    out
}

impl Item {
    /// Returns the printed line.
    pub fn line(&self) -> String {
        let Self { name, agrees, details } = self;
        format!("{} {name}: {details}\n", if *agrees { "agrees  " } else { "DIFFERS " })
    }
}

fn claims_of(artifact: &Artifact) -> Result<Vec<Expectation>> {
    expectations(artifact.run())
}

fn expectations(run: &RunDir) -> Result<Vec<Expectation>> {
    Ok(RunSummary::of(run, TrialFilter::default())?.expectations)
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
        agrees: agree == all.len(),
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
        Item { name, agrees: differing.is_empty(), details }
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
        return Item { name, agrees: false, details: "the rerun has no such claim".to_owned() };
    };
    let details = format!(
        "expected {}; artifact {}; rerun {}",
        one.expected_text(),
        outcome(one),
        outcome(other)
    );
    Item { name, agrees: one.outcome == other.outcome && overlap(one, other), details }
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
fn overlap(a: &Expectation, b: &Expectation) -> bool {
    let (Some((a_low, a_high)), Some((b_low, b_high))) = (a.interval, b.interval) else {
        return true;
    };
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
