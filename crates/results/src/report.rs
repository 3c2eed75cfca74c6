//! The HTML report (one self-contained file that loads nothing from the network) and the index of a folder of runs.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::expect::Expectation;
use super::journal::{PhaseRecord, TrialEnd};
use super::model::{Reason, TrialFilter, TrialStatus};
use super::parallel::in_parallel;
use super::part::write_text;
use super::series;
use super::stopping::RuleResult;
use super::store::RunDir;
use super::store::StoreError;
use super::summarize::RunSummary;
use super::summary::{PointRow, Summary};
use crate::error::{ErrorClass, FileError, io_error};
use ccbench_io::input;

mod definitions;
mod index;
mod live;
mod overview;
mod snippets;

pub use index::{Index, REPORT_FILE};
pub use live::live_page;

const PAGE: &str = include_str!("report/page.html");
const STYLE: &str = include_str!("report/page.css");
/// The script of all pages; each page's own script follows it.
const COMMON_SCRIPT: &str = include_str!("report/common.js");
/// Saves figures. For pages with charts, after the common script.
const EXPORT_SCRIPT: &str = include_str!("report/export.js");
/// Makes tables sortable. After the common script.
const TABLE_SCRIPT: &str = include_str!("report/table.js");
const SCRIPT: &str = include_str!("report/page.js");
const CHART_STYLE: &str = include_str!("../assets/uplot/uPlot.min.css");
const CHART_SCRIPT: &str = include_str!("../assets/uplot/uPlot.iife.min.js");

/// The Content-Security-Policy, which is also in the page: the page loads nothing.
pub const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

/// Approximate limit for the points of all curves of a report. A point takes about 15 bytes.
const MAX_POINTS: u32 = 400_000;
/// Time bins per curve: few enough to limit the file's size, and no more than a screen has pixels.
const BINS: std::ops::RangeInclusive<u32> = 40..=1000;
/// If even the fewest bins give more points than this, only some trials have curves, so that the page of any run opens quickly.
const MOST_POINTS: u32 = 500_000;
/// Approximate number of panels with one curve per flow.
const PANELS_PER_FLOW: u32 = 8;

/// The data that the page's script reads.
#[derive(Serialize)]
struct Page<'a> {
    name: String,
    directory: String,
    status: &'a str,
    planned: u32,
    notes: &'a [String],
    fallbacks: &'a [String],
    factors: &'a [String],
    points: Vec<Value>,
    phases: &'a [String],
    trials: Vec<Trial<'a>>,
    /// Whether the page begins with an overview.
    overview: bool,
    /// Whether the page lists each kind of reason once, because there are many points.
    many_points: bool,
    /// Whether the rows of some metrics are left out.
    main_metrics: bool,
    rows: Vec<Value>,
    run: Value,
    plan: String,
    snippets: Vec<snippets::Snippet>,
    claims: Vec<Value>,
    decisions: Vec<Value>,
    /// Point, group and congestion control.
    ccs: Vec<(u32, &'a str, &'a str)>,
    /// Points whose trials all failed, with the number of trials.
    lost: Vec<(u32, usize)>,
}

/// A trial with its verdict.
#[derive(Serialize)]
struct Trial<'a> {
    point_id: u32,
    trial: u16,
    status: TrialStatus,
    reasons: &'a [Reason],
    phases: &'a [PhaseRecord],
}

impl<'a> Trial<'a> {
    fn new(end: &'a TrialEnd) -> Self {
        let TrialEnd { point_id, trial, status, reasons, phases, .. } = end;
        Self { point_id: *point_id, trial: *trial, status: *status, reasons, phases }
    }
}

/// The report cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The results directory cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The path is a results directory, not a folder of them.
    #[error(
        "{} is a results directory; give its parent directory, or write its report: `ccbench report {}`",
        path.display(), path.display()
    )]
    IsRun {
        /// The directory.
        path: PathBuf,
    },
    /// The folder has no results directories.
    #[error(
        "{} has no results directories; give the directory that `ccbench run --out DIR` writes to (default: results)",
        path.display()
    )]
    NoRuns {
        /// The directory.
        path: PathBuf,
    },
}

impl ReportError {
    /// Returns who has to act.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::File(error) => error.class(),
            Self::Store(error) => error.class(),
            Self::IsRun { .. } | Self::NoRuns { .. } => ErrorClass::Usage,
        }
    }
}

/// The result of writing a report.
type Result<T, E = ReportError> = std::result::Result<T, E>;

/// Renders the report of a run. Numbers and claims come from the run's summary, curves from every trial with samples.
///
/// # Errors
/// The directory cannot be read.
pub fn html(run: &RunSummary) -> Result<String> {
    let RunSummary { summary, expectations, decisions, observer, .. } = run;
    let run_dir = summary.run_dir.as_path();
    let run = RunDir::open(run_dir)?;
    let read = |name: &str| {
        let path = run_dir.join(name);
        input::read_to_string(&path, &input::RECORD).map_err(io_error("read", &path))
    };
    let record: Value = serde_json::from_str(&read("run.json")?).unwrap_or_default();
    let directory = run.name();
    let rows = overview::rows(summary);
    let page = Page {
        name: record["plan_name"].as_str().unwrap_or("run").to_owned(),
        snippets: snippets::of(&directory, summary),
        claims: expectations.iter().map(claim_json).collect(),
        decisions: decisions.iter().map(RuleResult::json).collect(),
        ccs: summary.ccs.iter().map(|((id, group), cc)| (*id, &group[..], &cc[..])).collect(),
        lost: summary.lost_points().into_iter().collect(),
        directory,
        status: summary.status.as_str(),
        planned: summary.planned,
        notes: &summary.notes,
        fallbacks: &summary.fallbacks,
        factors: &summary.factors,
        points: points_json(summary),
        phases: &summary.phases,
        trials: summary.trials.iter().map(Trial::new).collect(),
        overview: overview::is_needed(summary),
        many_points: overview::has_many_points(summary),
        main_metrics: rows.len() < summary.point_rows.len(),
        rows: rows.into_iter().map(point_row_json).collect(),
        plan: read("plan.toml")?,
        run: record,
    };
    let most_curves = MOST_POINTS / 2 / BINS.start();
    let with_curves = overview::with_curves(&summary.trials, most_curves, curves_of);
    let bins = bins_per_curve(&with_curves);
    let step = observer.begin("drawing curves", with_curves.len());
    let curves = in_parallel(&with_curves, |end| step.trial(|| curves_html(&run, end, bins)));
    let curves = curves.into_iter().collect::<Result<String>>()?;
    Ok(render_template(
        PAGE,
        &[
            ("title", &escape_html(&page.name)),
            ("style", &format!("{CHART_STYLE}\n{STYLE}")),
            ("overview", &overview::html(summary)),
            ("included", included_trials(summary.trial_filter)),
            ("definitions", &definitions::html()),
            ("data", &json_script("run", &page)),
            ("curves", &curves),
            ("chart", CHART_SCRIPT),
            ("script", &[COMMON_SCRIPT, EXPORT_SCRIPT, TABLE_SCRIPT, SCRIPT].join("\n")),
        ],
    ))
}

/// Writes the report to a file; see [`html`].
///
/// # Errors
/// The directory cannot be read, or the file cannot be written.
pub fn write(run: &RunSummary, file: &Path) -> Result<()> {
    Ok(write_text(&html(run)?, file)?)
}

/// Describes which trials the means include, as the end of a sentence.
const fn included_trials(filter: TrialFilter) -> &'static str {
    match (filter.only_ok, filter.include_failed) {
        (true, _) => "only trials that are ok are included",
        (false, true) => "failed and aborted trials are included (<code>--include-failed</code>)",
        (false, false) => "failed and aborted trials are excluded",
    }
}

/// Returns the curves of a trial as the page's script reads them.
fn curves_html(run: &RunDir, end: &TrialEnd, bins: u32) -> Result<String> {
    let detail = series::Detail { bins, is_exact: false };
    let mut panels = series::panels(run, end, detail, |title| title != series::RATE)?;
    panels.extend(series::cc_state_panels(run, end, detail)?);
    Ok(json_script(&format!("curves-{}-{}", end.point_id, end.trial), &panels))
}

/// Returns the approximate number of curves of a trial.
fn curves_of(end: &TrialEnd) -> u32 {
    // Most flows have a data socket and a control socket, with two ends each.
    let flows = end.rows.get("flows").copied().unwrap_or(0).div_ceil(4) + 1;
    u32::try_from(flows).unwrap_or(u32::MAX).saturating_mul(PANELS_PER_FLOW)
}

/// Returns the number of time bins per curve at which all curves together stay within [`MAX_POINTS`].
fn bins_per_curve(trials: &[&TrialEnd]) -> u32 {
    let curves = trials.iter().fold(0_u32, |all, end| all.saturating_add(curves_of(end)));
    (MAX_POINTS / 2 / curves.max(1)).clamp(*BINS.start(), *BINS.end())
}

/// Returns a claim with the texts of the printed table, whose digits show on which side of a limit a value is.
fn claim_json(claim: &Expectation) -> Value {
    let mut value = claim.json();
    value["expected_text"] = claim.expected_text().into();
    value["measured_text"] = claim.measured_text().into();
    value
}

fn points_json(summary: &Summary) -> Vec<Value> {
    let point = |(id, levels): (&u32, &Vec<(String, String)>)| {
        let levels: Vec<&str> = levels.iter().map(|(_, level)| level.as_str()).collect();
        serde_json::json!({ "id": id, "levels": levels })
    };
    summary.points.iter().map(point).collect()
}

fn point_row_json(row: &PointRow) -> Value {
    serde_json::json!({
        "point": row.point_id,
        "phase": row.phase,
        "scope": row.scope.as_str(),
        "subject": row.subject,
        "metric": row.metric,
        "unit": row.unit,
        "stat": row.stat,
        "value": row.value,
        "low": row.interval.map(|(low, _)| low),
        "high": row.interval.map(|(_, high)| high),
        "trials": row.n_trials,
    })
}

/// Returns a `<script>` element with a JSON value. `<` is escaped so that no text can close the element.
fn json_script(id: &str, value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
    let json = json.replace('<', "\\u003c");
    format!("<script type=\"application/json\" id=\"{id}\">{json}</script>\n")
}

/// Escapes text for HTML.
fn escape_html(raw: &str) -> String {
    raw.replace('&', "&amp;").replace('<', "&lt;")
}

/// Fills in the template's `{{name}}` placeholders in one pass, so that inserted text is never expanded.
fn render_template(template: &str, parts: &[(&str, &str)]) -> String {
    let mut page = String::new();
    let mut rest = template;
    for (name, part) in parts {
        let Some((before, after)) = rest.split_once(&format!("{{{{{name}}}}}")) else { continue };
        page.push_str(before);
        page.push_str(part);
        rest = after;
    }
    page + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_each_placeholder_once() {
        let parts = [
            "title",
            "style",
            "overview",
            "included",
            "definitions",
            "data",
            "curves",
            "chart",
            "script",
        ];
        let parts: Vec<(&str, &str)> = parts.iter().map(|name| (*name, "{{style}}")).collect();
        let page = render_template(PAGE, &parts);
        assert_eq!(page.matches("{{style}}").count(), parts.len());
        assert_eq!(page.matches("{{").count(), parts.len());
    }

    #[test]
    fn the_page_has_its_policy() {
        assert!(PAGE.contains(&format!("content=\"{POLICY}\"")));
    }

    #[test]
    fn text_cannot_close_script_elements() {
        let hostile = "</script><script>alert(1)</script><!--";
        let element = json_script("run", &hostile);
        assert_eq!(element.matches("</").count(), 1, "{element}");
        assert!(!element.contains("<!--"));
        let json = element.split_once('>').unwrap().1.rsplit_once("</").unwrap().0;
        assert_eq!(serde_json::from_str::<String>(json).unwrap(), hostile);
        assert_eq!(escape_html("a<b&c"), "a&lt;b&amp;c");
    }

    #[test]
    fn more_curves_have_fewer_bins() {
        let end = |flows: u64| {
            let json = serde_json::json!({
                "point_id": 0, "trial": 1, "seed": 1, "epoch": 1, "status": "ok", "reasons": [],
                "rows": { "flows": flows }, "phases": [], "clocks": {},
            });
            serde_json::from_value::<TrialEnd>(json).unwrap()
        };
        assert_eq!(bins_per_curve(&[]), 1000);
        assert_eq!(bins_per_curve(&[&end(8); 5]), 1000);
        assert_eq!(bins_per_curve(&[&end(44); 63]), 40);
    }
}
