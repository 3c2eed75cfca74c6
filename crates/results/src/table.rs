//! Prints a summary as text: the result tables, why trials are degraded or failed, and where the files are.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;

use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, Width};

use super::backend::RunBackend;
use super::display::TABLE_STYLE;
use super::expect::claims_text;
use super::model::{TrialStatus, codes_of, level_of};
use super::stopping;
use super::summarize::RunSummary;
use super::summary::{PointRow, Summary};
use crate::error::{Result, io_error};
use ccbench_proto::metric::Scope;
use ccbench_proto::printable;

mod probes;
mod reasons;

pub use reasons::NOTICEABLE_STEAL_PCT;

/// Maximum number of lines about trials that are not ok; `trials.csv` has the others.
const MAX_REASONS: usize = 20;
/// The same limit below a table of claims, which already names the affected trials.
const MAX_REASONS_BELOW_CLAIMS: usize = 3;
/// Marks where a factor's name may wrap; removed before printing.
const WRAP_MARK: char = '\u{200b}';
/// Horizontal padding of a cell, in characters.
const PADDING: u16 = 2;
/// Groups with data for less than this share of their scheduled time are marked with `*`.
const FULL_COVERAGE: f64 = 0.95;
/// Maximum number of rows of the table of links; `summary_point.csv` has the others.
const MAX_LINKS: usize = 40;
/// Maximum number of notes; `run.json` has the others.
const MAX_NOTES: usize = 10;
/// Maximum number of points in the tables of the overview.
const MAX_POINTS: usize = 20;

/// The part of the tables that is printed.
#[derive(Clone, Copy)]
struct Extent {
    width: u16,
    /// Leave out this point and all later ones.
    end: Option<u32>,
}

/// Prints the result tables (at most `width` characters wide), the reasons of degraded and failed trials, and the files. A broken pipe is
/// not an error.
pub fn print(run: &RunSummary, out: &mut impl Write, width: u16) -> Result<()> {
    write_to(&run.summary, out, &text(run, width))
}

/// As [`print()`], but with only the first points of a run that has many; a line names the command that prints all.
pub fn print_overview(run: &RunSummary, out: &mut impl Write, width: u16) -> Result<()> {
    write_to(&run.summary, out, &overview(run, width))
}

/// Prints the outcome of the plan's claims, the reasons of degraded and failed trials, the notes, and where the results are.
pub fn print_claims(run: &RunSummary, out: &mut impl Write, width: u16) -> Result<()> {
    let summary = &run.summary;
    let mut message =
        "\n".to_owned() + &summary.incomplete_run().map_or(String::new(), |line| line + "\n\n");
    message += &claims_text(&run.expectations, width);
    write_decisions(&mut message, run, width);
    write_remarks(&mut message, summary, MAX_REASONS_BELOW_CLAIMS);
    let dir = summary.run_dir.display();
    let _ = writeln!(
        message,
        "\nresults: {dir}\n  ccbench summarize {dir}   print all metrics\n  ccbench report {dir}      write an HTML report"
    );
    if let Err(error) = &run.written {
        let _ = writeln!(message, "some result files could not be written: {error}");
    }
    write_to(summary, out, &message)
}

/// Prints the scorecard, if the plan has one, the reasons of degraded and failed trials, and where the results are.
pub fn print_scorecard(run: &RunSummary, out: &mut impl Write, width: u16) -> Result<()> {
    let summary = &run.summary;
    let mut message =
        "\n".to_owned() + &summary.incomplete_run().map_or(String::new(), |line| line + "\n\n");
    message += &run.scorecard.as_ref().map_or(String::new(), |scorecard| scorecard.text(width));
    write_remarks(&mut message, summary, MAX_REASONS_BELOW_CLAIMS);
    let dir = summary.run_dir.display();
    let _ = writeln!(
        message,
        "\nresults: {dir}\n  scorecard.md, scorecard.csv, scorecard.parquet; the trials of a row are in tables/*/point=N"
    );
    if let Err(error) = &run.written {
        let _ = writeln!(message, "some result files could not be written: {error}");
    }
    write_to(summary, out, &message)
}

fn write_to(summary: &Summary, out: &mut impl Write, text: &str) -> Result<()> {
    let text = printable::text(text);
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(io_error("print the summary of", &summary.run_dir)(e))
        }
        _ => Ok(()),
    }
}

/// Returns the text that [`print()`] writes.
pub fn text(run: &RunSummary, width: u16) -> String {
    text_of(run, Extent { width, end: None })
}

/// Returns the text that [`print_overview()`] writes.
pub fn overview(run: &RunSummary, width: u16) -> String {
    let end = run.summary.points.keys().nth(MAX_POINTS).copied();
    text_of(run, Extent { width, end })
}

fn text_of(run: &RunSummary, extent: Extent) -> String {
    let (summary, width) = (&run.summary, extent.width);
    let mut out = summary.incomplete_run().map_or(String::new(), |line| line + "\n\n");
    let groups = group_rows(summary);
    if groups.is_empty() {
        out.push_str("No counted trial has flow data in a measured phase.\n");
    } else {
        let cc = if shows_cc(summary) { &["cc"][..] } else { &[] };
        let numbers = ["sum Mbit/s", "per flow", "srtt ms", "retransmits", "fairness", "trials"];
        let header = [&["phase", "group"], cc, &numbers].concat();
        out.push_str(&render(summary, &header, groups, extent));
        write_fairness(&mut out, summary, extent);
        out.push_str(
            "\nsum, per flow: receiver goodput, mean over the phase. ±: 95 % confidence interval over trials.\n",
        );
        out.push_str(match has_interrupted(summary) {
            true => {
                "trials: ok/degraded/failed/interrupted; failed and interrupted trials are excluded from the means.\n"
            }
            false => "trials: ok/degraded/failed; failed trials are excluded from the means.\n",
        });
        write_limited(
            &mut out,
            "* ",
            &partial_groups(summary),
            MAX_NOTES,
            "summary_phase.csv (coverage_share)",
        );
    }
    write_links(&mut out, summary, extent);
    write_delays(&mut out, summary, extent);
    let probes = probes::probe_rows(summary);
    if !probes.is_empty() {
        let header = ["phase", "probe", "rtt ms", "median", "p95", "lost %"];
        let _ = write!(out, "\n{}", render(summary, &header, probes, extent));
    }
    probes::write_fetches(&mut out, summary, extent);
    probes::write_completions(&mut out, summary, extent);
    let late = scheduling_error_rows(summary);
    if !late.is_empty() {
        let header = ["link", "scheduling error", "p50 µs", "p90 µs", "p99 µs", "max µs"];
        let _ = write!(
            out,
            "\n{}\npercentiles, max: of each trial, averaged over trials.\n",
            render(summary, &header, late, extent)
        );
    }
    if extent.end.is_some() {
        let (all, dir) = (summary.points.len(), summary.run_dir.display());
        let _ =
            writeln!(out, "\n{MAX_POINTS} of {all} points; all of them: ccbench summarize {dir}");
    }
    let claims = claims_text(&run.expectations, width);
    if !claims.is_empty() {
        let _ = write!(out, "\n{claims}");
    }
    if let Some(scorecard) = &run.scorecard {
        let _ = write!(out, "\n{}", scorecard.text(width));
    }
    write_decisions(&mut out, run, width);
    write_remarks(&mut out, summary, MAX_REASONS);
    write_files(&mut out, run);
    if let Err(error) = &run.written {
        let _ = writeln!(out, "some result files could not be written: {error}");
    }
    out
}

/// Writes where the results are, and the files of the summary, which may be in another directory.
fn write_files(out: &mut String, run: &RunSummary) {
    let run_dir = run.summary.run_dir.as_path();
    let dir = run.files.first().and_then(|file| file.parent()).unwrap_or(run_dir);
    let _ = writeln!(out, "\nresults: {}", dir.display());
    let names = run.files.iter().filter_map(|file| file.file_name()?.to_str());
    let names: Vec<&str> = names.filter(|name| name.ends_with(".csv")).collect();
    if names.is_empty() {
        return;
    }
    let samples = match dir == run_dir {
        true => "tables/".to_owned(),
        false => format!("{}/", run_dir.join("tables").display()),
    };
    let _ = writeln!(
        out,
        "  {}\n  (also as .parquet; all samples are under {samples}; `ccbench report` writes an HTML report)",
        names.join(" ")
    );
}

/// Writes the plan's rules and comparisons, if it has any.
fn write_decisions(out: &mut String, run: &RunSummary, width: u16) {
    let decisions = stopping::text(&run.decisions, width);
    if !decisions.is_empty() {
        let _ = write!(out, "\n{decisions}");
    }
}

/// A table row: the point, and the cells after the factor columns.
type Line = (u32, Vec<String>);

/// Splits a factor's name into the parts between which it may wrap.
fn wrap_parts(factor: &str) -> Vec<&str> {
    factor.split_inclusive(['.', '_']).collect()
}

fn longest(parts: &[&str]) -> u16 {
    parts.iter().map(|part| part.chars().count()).max().unwrap_or(0) as u16
}

fn render(summary: &Summary, header: &[&str], lines: Vec<Line>, extent: Extent) -> String {
    let Extent { width, end } = extent;
    let lines = lines.into_iter().filter(|(point, _)| end.is_none_or(|end| *point < end));
    let mut table = Table::new();
    table.load_style(TABLE_STYLE);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    let factors = summary.factors.iter().map(|factor| {
        Cell::new(wrap_parts(factor).join(&WRAP_MARK.to_string())).set_delimiter(WRAP_MARK)
    });
    table.set_header(factors.chain(header.iter().map(Cell::new)));
    let mut shown = None;
    let rows = lines.map(|(point, cells)| {
        let levels = summary.points.get(&point);
        let level = |factor: &String| {
            levels.and_then(|levels| level_of(levels, factor)).unwrap_or_default().to_owned()
        };
        let first = shown.replace(point) != Some(point);
        let factors = summary.factors.iter().map(|f| if first { level(f) } else { String::new() });
        factors.chain(cells).collect()
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let names = summary.factors.len() + 2 + usize::from(header.get(2) == Some(&"cc"));
    for row in &rows {
        let cell = |(nth, text): (usize, &String)| match nth < names {
            true => Cell::new(text),
            false => Cell::new(text).set_alignment(CellAlignment::Right),
        };
        table.add_row(row.iter().enumerate().map(cell).collect::<Vec<_>>());
    }
    for (nth, least) in
        min_column_widths(summary, header, &rows, names, width).into_iter().enumerate()
    {
        if let Some(column) = table.column_mut(nth) {
            let least = Width::Fixed(least + PADDING);
            column.set_constraint(ColumnConstraint::LowerBoundary(least));
        }
    }
    let lines: Vec<String> =
        table.lines().map(|line| line.replace(WRAP_MARK, "").trim_end().to_owned()).collect();
    lines.join("\n") + "\n"
}

/// Returns minimum column widths at which no word, number or name wraps. If the table does not fit, only numbers stay whole; if it still
/// does not fit, only factor names do.
fn min_column_widths(
    summary: &Summary,
    header: &[&str],
    rows: &[Vec<String>],
    names: usize,
    width: u16,
) -> Vec<u16> {
    let words = |text: &str| longest(&text.split(' ').collect::<Vec<_>>());
    let factors = summary.factors.len();
    let title = |nth: usize| match summary.factors.get(nth) {
        Some(factor) => longest(&wrap_parts(factor)),
        None => header.get(nth - factors).map_or(0, |title| words(title)),
    };
    let cell = |nth: usize, text: &String| match nth < factors {
        true => words(text),
        false => longest(&[text]),
    };
    let whole = |nth: usize| {
        let cells = rows.iter().filter_map(|row| Some(cell(nth, row.get(nth)?)));
        cells.max().unwrap_or(0).max(title(nth))
    };
    let columns = 0..factors + header.len();
    let all: Vec<u16> = columns.clone().map(whole).collect();
    let numbers = columns.map(|nth| if nth < names { title(nth) } else { whole(nth) }).collect();
    let fits = |least: &Vec<u16>| {
        let wide: u16 = least.iter().map(|least| least + PADDING + 1).sum();
        // The last column has no separator.
        wide <= width + 1
    };
    [all, numbers].into_iter().find(fits).unwrap_or_else(|| (0..factors).map(title).collect())
}

/// Returns whether congestion controls are known and no factor shows them already.
fn shows_cc(summary: &Summary) -> bool {
    !summary.ccs.is_empty() && !summary.factors.iter().any(|factor| factor == "cc")
}

fn group_rows(summary: &Summary) -> Vec<Line> {
    let sums = summary
        .point_rows
        .iter()
        .filter(|r| r.scope == Scope::Group && r.metric == "throughput_sum");
    let with_cc = shows_cc(summary);
    let with_interrupted = has_interrupted(summary);
    let cells = |sum: &PointRow| {
        let find = |metric, stat| {
            summary.find(sum.point_id, &sum.phase, Scope::Group, &sum.subject, metric, stat)
        };
        let mut cells = vec![sum.phase.clone(), sum.subject.clone()];
        if with_cc {
            let cc = summary.ccs.get(&(sum.point_id, sum.subject.clone()));
            cells.push(cc.map_or("-".to_owned(), Clone::clone));
        }
        cells.extend([
            with_interval(Some(sum), 1e6) + if is_partial(summary, sum) { "*" } else { "" },
            plain(find("throughput_per_flow_mean", "mean"), 1e6),
            with_interval(find("srtt", "mean"), 1e3),
            find("retransmissions", "sum").map_or("-".to_owned(), |r| format!("{:.0}", r.value)),
            find("jain_fairness_of_mean", "mean")
                .map_or("-".to_owned(), |r| format!("{:.3}", r.value)),
            verdict_counts(summary, sum.point_id, with_interrupted),
        ]);
        (sum.point_id, cells)
    };
    let mut lines: Vec<Line> = sums.map(cells).collect();
    if !lines.is_empty() {
        for (point_id, trials) in summary.lost_points() {
            let mut cells = vec!["-".to_owned(); 7 + usize::from(with_cc)];
            cells[1] = format!("all {trials} {}", why_excluded(summary, point_id));
            cells.push(verdict_counts(summary, point_id, with_interrupted));
            lines.push((point_id, cells));
        }
        lines.sort_by_key(|(point_id, _)| *point_id);
    }
    lines
}

/// Writes a line for each point with Jain's index of all flows, for the phases in which more than one group runs.
fn write_fairness(out: &mut String, summary: &Summary, extent: Extent) {
    let is_index = |r: &&PointRow| {
        (r.scope, r.metric, r.stat) == (Scope::Net, "jain_fairness_of_mean", "mean")
    };
    let has_groups = |index: &&PointRow| {
        let is_beside = |r: &&PointRow| {
            r.scope == Scope::Group && r.metric == "throughput_sum" && r.phase == index.phase
        };
        summary.point_rows_of(index.point_id).iter().filter(is_beside).nth(1).is_some()
    };
    let is_shown = |r: &&PointRow| extent.end.is_none_or(|end| r.point_id < end);
    let mut points: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for index in summary.point_rows.iter().filter(is_index).filter(is_shown).filter(has_groups) {
        let text = format!("{} {:.3}", index.phase, index.value);
        points.entry(index.point_id).or_default().push(text);
    }
    let line = |(point, phases): (&u32, &Vec<String>)| {
        let point = match summary.points.len() {
            0 | 1 => String::new(),
            _ => format!(", point {point}"),
        };
        format!("fairness of all flows{point}: {}", phases.join(", "))
    };
    let lines: Vec<String> = points.iter().map(line).collect();
    write_limited(out, "", &lines, MAX_POINTS, "summary_point.csv (jain_fairness_of_mean of net)");
}

/// Returns rows for links with a rate and their queues.
fn link_rows(summary: &Summary) -> Vec<Line> {
    let used =
        summary.point_rows.iter().filter(|r| r.scope == Scope::Link && r.metric == "utilisation");
    used.map(|used| {
        let find = |metric, stat| {
            summary.find(used.point_id, &used.phase, Scope::Link, &used.subject, metric, stat)
        };
        let cells = vec![
            used.phase.clone(),
            used.subject.clone(),
            format!("{:.1}", used.value * 100.0),
            plain(find("queue_delay", "mean"), 1e3),
            plain(find("queue_delay", "p95"), 1e3),
            find("drops", "sum").map_or("-".to_owned(), |row| format!("{:.0}", row.value)),
        ];
        (used.point_id, cells)
    })
    .collect()
}

fn write_links(out: &mut String, summary: &Summary, extent: Extent) {
    let mut links = link_rows(summary);
    links.retain(|(point, _)| extent.end.is_none_or(|end| *point < end));
    if links.is_empty() {
        return;
    }
    let all = links.len();
    links.truncate(MAX_LINKS);
    let header = ["phase", "link", "utilisation %", "queue ms", "p95 ms", "drops"];
    let _ = write!(out, "\n{}", render(summary, &header, links, extent));
    write_remainder(out, all, MAX_LINKS, "summary_point.csv");
}

/// Writes the table of one-way delays, if a link has a packet log.
fn write_delays(out: &mut String, summary: &Summary, extent: Extent) {
    let is_mean = |row: &&PointRow| {
        (row.scope, row.metric, row.stat) == (Scope::Group, "one_way_delay", "mean")
    };
    let line = |mean: &PointRow| {
        let PointRow { point_id, phase, scope, subject, metric, .. } = mean;
        let find = |stat| summary.find(*point_id, phase, *scope, subject, metric, stat);
        let mut cells = vec![phase.clone(), subject.clone(), with_interval(Some(mean), 1e3)];
        cells.extend(["p50", "p95", "p99"].map(|stat| plain(find(stat), 1e3)));
        (*point_id, cells)
    };
    let lines: Vec<Line> = summary.point_rows.iter().filter(is_mean).map(line).collect();
    if !lines.is_empty() {
        let header = ["phase", "group", "one-way delay ms", "p50", "p95", "p99"];
        let _ = write!(out, "\n{}", render(summary, &header, lines, extent));
    }
}

/// Returns the trial with the smallest share of the group's scheduled time that has throughput data, and this share; counted trials only.
fn coverage(summary: &Summary, group: &PointRow) -> Option<(u16, f64)> {
    let of_group = summary.phase_rows_of(group.point_id).iter().filter(|r| {
        r.metric == "coverage_share" && (&r.phase, &r.subject) == (&group.phase, &group.subject)
    });
    of_group.map(|r| (r.trial, r.value)).min_by(|(_, a), (_, b)| a.total_cmp(b))
}

fn is_partial(summary: &Summary, group: &PointRow) -> bool {
    coverage(summary, group).is_some_and(|(_, share)| share < FULL_COVERAGE)
}

/// Returns notes about groups with partial data.
fn partial_groups(summary: &Summary) -> Vec<String> {
    let sums = summary.point_rows.iter().filter(|r| {
        r.scope == Scope::Group && r.metric == "throughput_sum" && is_partial(summary, r)
    });
    let note = |sum: &PointRow| {
        let (trial, share) = coverage(summary, sum)?;
        let point = match summary.points.len() {
            0 | 1 => String::new(),
            _ => format!("point {}, ", sum.point_id),
        };
        let end = summary.trials_of(sum.point_id).iter().find(|end| end.trial == trial);
        let codes = codes_of(end.into_iter().flat_map(|end| &end.reasons));
        let cause = match codes.is_empty() {
            true => "it started late or ended early within the limits of the verdict, or its receivers did not report".to_owned(),
            false => format!("the trial's reasons: {codes}"),
        };
        Some(format!(
            "{point}{}, {}: data covers only {:.1} % of the scheduled time (in the worst trial, {trial}; {cause}); throughput is \
             computed over that part",
            sum.phase,
            sum.subject,
            // Not rounded up to the limit.
            (share * 100.0).min(FULL_COVERAGE * 100.0 - 0.1),
        ))
    };
    sums.filter_map(note).collect()
}

/// Returns the scheduling errors of links: how late they release packets and apply trace steps. The simulator has no such errors, so its
/// rows of zeros are left out.
fn scheduling_error_rows(summary: &Summary) -> Vec<Line> {
    let late = summary.point_rows.iter().filter(|r| r.stat == "p50");
    let late =
        late.filter(|r| ["packet_scheduling_error", "step_scheduling_error"].contains(&r.metric));
    let is_simulated = matches!(summary.backend, RunBackend::Simulator { .. });
    let max = |r: &PointRow| {
        summary
            .find(r.point_id, &r.phase, r.scope, &r.subject, r.metric, "max")
            .map(|row| row.value)
    };
    late.filter(|r| !is_simulated || max(r) != Some(0.0))
        .map(|p50| {
            let find = |stat| {
                let row = summary.find(
                    p50.point_id,
                    &p50.phase,
                    p50.scope,
                    &p50.subject,
                    p50.metric,
                    stat,
                );
                row.map_or("-".to_owned(), |row| format!("{:.1}", row.value))
            };
            let what =
                if p50.metric == "step_scheduling_error" { "trace steps" } else { "packets" };
            let cells = vec![
                p50.subject.clone(),
                what.to_owned(),
                find("p50"),
                find("p90"),
                find("p99"),
                find("max"),
            ];
            (p50.point_id, cells)
        })
        .collect()
}

fn with_interval(row: Option<&PointRow>, scale: f64) -> String {
    let Some(row) = row else { return "-".to_owned() };
    let half = row.interval.map(|(low, high)| (high - low) / 2.0 / scale);
    let half = half.map_or(String::new(), |half| format!("±{half:.2}"));
    format!("{:.2}{half}", row.value / scale)
}

fn plain(row: Option<&PointRow>, scale: f64) -> String {
    row.map_or("-".to_owned(), |row| format!("{:.2}", row.value / scale))
}

/// Returns the number of trials of a point with this status.
fn count_of(summary: &Summary, point_id: u32, status: TrialStatus) -> usize {
    summary.trials_of(point_id).iter().filter(|end| end.status == status).count()
}

/// Describes why a point has no counted trial.
fn why_excluded(summary: &Summary, point_id: u32) -> &'static str {
    let [failed, interrupted] = [TrialStatus::Failed, TrialStatus::Aborted]
        .map(|status| count_of(summary, point_id, status) > 0);
    match (failed, interrupted) {
        (true, true) => "failed or interrupted",
        (false, true) => "interrupted",
        (_, false) => "failed",
    }
}

/// Returns whether the run has interrupted trials, which a resumed run repeats.
fn has_interrupted(summary: &Summary) -> bool {
    summary.trials.iter().any(|end| end.status == TrialStatus::Aborted)
}

/// Returns the number of ok, degraded and failed trials of a point, and of interrupted ones.
fn verdict_counts(summary: &Summary, point_id: u32, with_interrupted: bool) -> String {
    let count = |status| count_of(summary, point_id, status);
    let [ok, degraded, failed] =
        [TrialStatus::Ok, TrialStatus::Degraded, TrialStatus::Failed].map(count);
    match with_interrupted {
        true => format!("{ok}/{degraded}/{failed}/{}", count(TrialStatus::Aborted)),
        false => format!("{ok}/{degraded}/{failed}"),
    }
}

/// Writes the reasons of degraded and failed trials, the fallbacks of links, and the notes.
fn write_remarks(out: &mut String, summary: &Summary, most_reasons: usize) {
    reasons::write(summary, out, most_reasons);
    write_limited(out, "", &summary.fallbacks, MAX_NOTES, "the `link` events");
    write_limited(out, "note: ", &summary.notes, MAX_NOTES, "run.json");
}

/// Prints how many lines are left out and where they are.
fn write_remainder(out: &mut String, all: usize, most: usize, rest: &str) {
    if all > most {
        let _ = writeln!(out, "... and {} more: see {rest}", all - most);
    }
}

fn write_limited(out: &mut String, prefix: &str, lines: &[String], most: usize, rest: &str) {
    if !lines.is_empty() {
        out.push('\n');
    }
    for line in lines.iter().take(most) {
        let _ = writeln!(out, "{prefix}{line}");
    }
    write_remainder(out, lines.len(), most, rest);
}
