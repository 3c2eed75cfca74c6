//! Checks the use of traces and, once the files have been read, their contents.

use std::collections::{BTreeMap, BTreeSet};

use crate::plan::checked::{TraceFacts, TraceFiles};
use crate::plan::parse::set;
use crate::plan::{Backend, Link, OnEnd, PathPreset, Plan, TraceStart, timeline};
use crate::resolve::{ETHERNET_BYTES, preset};
use crate::trace::{Steps, Trace};
use crate::units::{FRAME_BYTES, Micros, Rate};

use super::limits::{LENGTHS, MAX_DELAY, MAX_RATE};
use super::matrix;
use super::problems::Problems;

/// Nanoseconds of a second.
const SECOND_NS: u128 = 1_000_000_000;
/// Longest name of a trace file.
const MAX_FILE: usize = 1024;

impl Trace {
    fn steps(&self) -> Option<&Steps> {
        match self {
            Self::Steps(steps) => Some(steps),
            Self::Opportunities(_) => None,
        }
    }

    /// The mean rate on a link over the trace's length. Rows below the floor are raised to it, rows without a rate have the link's,
    /// and opportunities include the link's overhead. `None` if no row has a rate, or a row and the link have none.
    fn mean_on(&self, link: &Link) -> Option<Rate> {
        if !self.has_rates() {
            return None;
        }
        let floor = link.trace.as_ref().and_then(|used| used.floor);
        let bits = match self {
            Self::Steps(steps) => {
                let floor = floor.unwrap_or(Rate::from_bits_per_sec(0));
                let mut bits: u128 = 0;
                for (step, length_ns) in steps.spans() {
                    let rate = step.rate.map(|rate| rate.max(floor)).or(link.rate)?;
                    bits += u128::from(rate.bits_per_sec()) * u128::from(length_ns);
                }
                bits
            }
            Self::Opportunities(all) => {
                let overhead = link.overhead.unwrap_or(ETHERNET_BYTES).get();
                let bytes = u128::from(all.bytes) + u128::from(overhead);
                all.at_ns.len() as u128 * bytes * 8 * SECOND_NS
            }
        };
        let mean = bits / u128::from(self.length_ns().max(1));
        Some(Rate::from_bits_per_sec(u64::try_from(mean).unwrap_or(u64::MAX)))
    }

    /// When its last row ends.
    fn length(&self) -> Micros {
        Micros::new(
            match self {
                Self::Steps(steps) => steps.length_ns,
                Self::Opportunities(all) => all.length_ns,
            } / 1000,
        )
    }
}

/// Every trace file that some point of the plan names.
pub(super) fn files(plan: &Plan) -> BTreeSet<String> {
    let is_about_traces = |key: &[String]| {
        key.first().is_some_and(|first| first == "links")
            && key.get(2).is_none_or(|it| it == "trace")
    };
    let fewer = matrix::with_factors_about(plan, is_about_traces);
    let points = matrix::expand(&fewer).filter_map(|point| point.plan);
    let links = points.flat_map(|point| point.links.into_values());
    links.filter_map(|link| Some(link.trace?.file)).collect()
}

/// Fills in the keys that follow from the files: the sha256, the mean rate, and the rate of rows without one if it comes from a
/// preset.
pub(super) fn fill(plan: &mut Plan, files: &TraceFiles) {
    for link in plan.links.values_mut() {
        fill_link(&plan.path, link, files);
    }
}

/// As [`fill`], for links whose trace is the same at all points, together with everything that its mean rate depends on.
pub(super) fn fill_unvaried(plan: &mut Plan, files: &TraceFiles) {
    let varied = matrix::varied_keys(plan);
    let is_varied = |place: &[&str]| {
        let place: Vec<String> = place.iter().map(|segment| (*segment).to_owned()).collect();
        varied.iter().any(|key| set::overlap(key, &place))
    };
    for (name, link) in &mut plan.links {
        let keys = ["trace", "rate", "path", "overhead"];
        if !is_varied(&["path"]) && !keys.into_iter().any(|key| is_varied(&["links", name, key])) {
            fill_link(&plan.path, link, files);
        }
    }
}

fn fill_link(paths: &BTreeMap<String, PathPreset>, link: &mut Link, files: &TraceFiles) {
    let Some(Ok(facts)) = link.trace.as_ref().and_then(|used| files.get(&used.file)) else {
        return;
    };
    if facts.trace.has_rates() && facts.trace.row_without_rate().is_some() {
        link.rate = link.rate.or_else(|| preset(paths, link)?.rate);
    }
    let mean_rate = facts.trace.mean_on(link);
    if let Some(used) = &mut link.trace {
        used.sha256.get_or_insert_with(|| facts.sha256.clone());
        used.mean_rate = used.mean_rate.or(mean_rate);
    }
}

/// The problem, with its remedy, that a row of a link's trace has no rate. `None` also if the trace has not been read.
pub(super) fn lacks_rate(link: &Link, problems: &Problems) -> Option<String> {
    let file = &link.trace.as_ref()?.file;
    let facts = problems.files.traces.get(file)?.as_ref().ok()?;
    let line = facts.trace.row_without_rate()?.line;
    let row = row(line);
    Some(format!(
        "{row} of `{file}` has none: write it there, or add the link's `rate`, which applies to such rows"
    ))
}

/// A row, for people.
fn row(line: u32) -> String {
    if line > 0 { format!("line {line}") } else { "a row".to_owned() }
}

/// Whether the contents of a link's trace are known.
pub(super) fn is_known(link: &Link, problems: &Problems) -> bool {
    let known = |file: &str| problems.files.traces.get(file).is_some_and(Result::is_ok);
    link.trace.as_ref().is_some_and(|used| used.mean_rate.is_some() || known(&used.file))
}

/// Checks one link's trace. `written` is the link as its author wrote it.
pub(super) fn check(plan: &Plan, name: &str, written: &Link, problems: &mut Problems) {
    let Some(used) = &written.trace else { return };
    let at = |key| ["links", name, "trace", key];
    if used.file.is_empty() || used.file.len() > MAX_FILE || used.file.contains(char::is_control) {
        problems.error(&at("file"), "must be the path of a file, relative to the plan's directory");
    }
    if let Some(sha256) = &used.sha256
        && (sha256.len() != 64 || !sha256.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')))
    {
        problems.error(&at("sha256"), "must be 64 hexadecimal digits in lower case; `sha256sum` prints them, and without it ccbench fills it in");
        problems.mark_uncertain(&at("sha256"));
    }
    if used.floor.is_some_and(|floor| floor.bits_per_sec() == 0 || floor > MAX_RATE) {
        problems.error(&at("floor"), format!("must be more than zero, and {MAX_RATE} or less"));
    }
    if written.backend == Backend::Kernel && used.start == TraceStart::FirstPacket {
        let why = "\"first-packet\" needs the userspace backend; leave `backend` out, or start with the trial";
        problems.error_from(&at("start"), &[&["links", name, "backend"]], why);
    }
    if written.backend == Backend::Kernel && used.on_end == OnEnd::Stop {
        let why =
            "\"stop\" needs the userspace backend; leave `backend` out, or choose another `on_end`";
        problems.error_from(&at("on_end"), &[&["links", name, "backend"]], why);
    }
    match problems.files.traces.get(&used.file).cloned() {
        None => {}
        Some(Err(why)) => {
            problems.error(&at("file"), format!("`{}`: {why}", used.file.escape_debug()));
        }
        Some(Ok(facts)) => contents(plan, name, written, &facts, problems),
    }
}

/// Checks the contents of the file.
fn contents(plan: &Plan, name: &str, link: &Link, facts: &TraceFacts, problems: &mut Problems) {
    let Some(used) = &link.trace else { return };
    let at = |key| ["links", name, "trace", key];
    // Filled-in values always agree; only written ones may differ.
    if used.sha256.as_ref().is_some_and(|sha256| *sha256 != facts.sha256) {
        problems.error_from(
            &at("sha256"),
            &[&at("file")],
            format!(
                "`{}` has changed: its sha256 is now {}; restore the old file, or leave this out",
                used.file, facts.sha256
            ),
        );
    }
    if link.rate.is_some() && facts.trace.row_without_rate().is_none() {
        let why = "its file gives the rate; leave the link's `rate` out (`floor` raises low rows)";
        problems.error_from(&["links", name, "trace"], &[&["links", name, "rate"]], why);
    }
    let mean = facts.trace.mean_on(link);
    if used.mean_rate != mean {
        let mean = mean.map_or("none".to_owned(), |rate| rate.to_string());
        let why = format!("the mean of `{}` is {mean}; leave it out", used.file);
        problems.error_from(&at("mean_rate"), &[&at("file"), &at("floor")], why);
    }
    if used.mean_rate == Some(Rate::from_bits_per_sec(0)) {
        let why = format!("`{}` never lets anything pass: its mean rate is zero", used.file);
        problems.error_from(&at("file"), &[&at("floor")], why);
    }
    match facts.trace.steps() {
        Some(steps) => rows(name, link, steps, problems),
        None if link.backend == Backend::Kernel => {
            let why = format!(
                "`{}` has delivery opportunities, and the kernel backend can change only the rate; leave `backend` out",
                used.file
            );
            problems.error_from(&at("file"), &[&["links", name, "backend"]], why);
        }
        None => {}
    }
    guaranteed_rates(name, link, problems);
    length(plan, name, &used.file, used.on_end, facts.trace.length(), problems);
}

/// Checks the rows of a trace.
fn rows(name: &str, link: &Link, steps: &Steps, problems: &mut Problems) {
    let Some(used) = &link.trace else { return };
    let (file, floor) = (&used.file, used.floor.unwrap_or(Rate::from_bits_per_sec(0)));
    let at = |key| ["links", name, "trace", key];
    let rates = || steps.steps.iter().filter_map(|step| Some((step.line, step.rate?.max(floor))));
    if let Some((line, rate)) = rates().find(|(_, rate)| *rate > MAX_RATE) {
        let why = format!("{} of `{file}` is {rate}; at most {MAX_RATE} is allowed", row(line));
        problems.error(&at("file"), why);
    }
    let delays = || steps.steps.iter().filter_map(|step| Some((step.line, step.delay_ns?)));
    if let Some((line, delay_ns)) = delays().find(|(_, delay)| *delay > MAX_DELAY.nanos()) {
        let delay = Micros::new(delay_ns / 1000);
        let why = format!("{} of `{file}` is {delay}; at most {MAX_DELAY} is allowed", row(line));
        problems.error(&at("file"), why);
    }
    if link.backend == Backend::Kernel {
        let reads: &[&[&str]] = &[&["links", name, "backend"], &["links", name, "trace", "floor"]];
        let others = steps.steps.iter().find(|step| step.delay_ns.is_some() || step.loss.is_some());
        if let Some(step) = others {
            let why = format!(
                "{} of `{file}` gives a delay or a loss, and the kernel backend can change only the rate; leave `backend` out",
                row(step.line)
            );
            problems.error_from(&at("file"), reads, why);
        }
        if let Some((line, _)) = rates().find(|(_, rate)| rate.bits_per_sec() == 0) {
            let why = format!(
                "{} of `{file}` is a rate of zero, which kernel qdiscs do not have; write a `floor`, like \"100kbit\", or leave `backend` out",
                row(line)
            );
            problems.error_from(&at("file"), reads, why);
        }
    }
    let slow = |rate: Rate| (1..FRAME_BYTES * 8).contains(&rate.bits_per_sec());
    if let Some((line, rate)) = rates().find(|(_, rate)| slow(*rate)) {
        let why = format!(
            "{} of `{file}` is {rate}: a full packet takes more than a second; a `floor` raises such rows",
            row(line)
        );
        problems.warning_from(&at("file"), &[&at("floor")], why);
    }
}

/// Checks the rates of classes, which are those at the trace's mean rate: they change in proportion to the link's. If some rows have
/// the link's own rate, they are those at this one, like on a link without a trace.
fn guaranteed_rates(name: &str, link: &Link, problems: &mut Problems) {
    let Some(used) = link.trace.as_ref().filter(|_| link.rate.is_none()) else { return };
    let sum: u64 =
        link.classes.values().fold(0, |sum, class| sum.saturating_add(class.rate.bits_per_sec()));
    if let Some(mean) = used.mean_rate.filter(|mean| mean.bits_per_sec() < sum) {
        problems.error_from(
            &["links", name, "classes"],
            &[&["links", name, "classes", "*", "rate"], &["links", name, "trace"]],
            format!(
                "their guaranteed rates sum to {}, more than {mean}, the mean rate of `{}`; lower them, and let them borrow with `ceil`",
                Rate::from_bits_per_sec(sum),
                used.file
            ),
        );
    }
}

/// Warns about a trace that is shorter than the trial.
fn length(
    plan: &Plan,
    name: &str,
    file: &str,
    on_end: OnEnd,
    length: Micros,
    problems: &mut Problems,
) {
    let end = timeline::length(plan);
    if on_end == OnEnd::Hold && length < end {
        problems.warning_from(
            &["links", name, "trace"],
            &[LENGTHS, &["links", name, "trace", "on_end"]],
            format!(
                "`{file}` lasts {length}, the trial {end}: its last row stays in force for the rest; `on_end = \"loop\"` begins it again"
            ),
        );
    }
}
