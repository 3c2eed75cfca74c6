//! A run on one page: a single HTML file without any address in it, for a browser that is offline.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::expect::Expectation;
use super::journal::TrialEnd;
use super::series;
use super::store::RunDir;
use super::store::StoreError;
use super::summarize::RunSummary;
use super::summary::{PointRow, Summary};
use crate::error::{ErrorClass, FileError, io_error};

mod snippets;

const PAGE: &str = include_str!("report/page.html");
const STYLE: &str = include_str!("report/page.css");
const SCRIPT: &str = include_str!("report/page.js");
const CHART_STYLE: &str = include_str!("../assets/uplot/uPlot.min.css");
const CHART_SCRIPT: &str = include_str!("../assets/uplot/uPlot.iife.min.js");

/// Points of all curves of a page together, about: some 15 bytes each.
const MOST_POINTS: u32 = 400_000;
/// Stretches of time that a curve is cut into: no fewer than can be made out, no more than a screen has pixels.
const STRETCHES: std::ops::RangeInclusive<u32> = 40..=1000;
/// Panels with a curve per flow, about.
const PANELS: u32 = 8;

/// The run as its page has it.
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
    trials: &'a [TrialEnd],
    rows: Vec<Value>,
    run: Value,
    plan: String,
    snippets: Vec<snippets::Snippet>,
    claims: Vec<Value>,
    /// Point, group and congestion control.
    ccs: Vec<(u32, &'a str, &'a str)>,
    /// Points whose trials all failed, and how many there were.
    lost: Vec<(u32, usize)>,
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
}

impl ReportError {
    /// Who has to act.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::File(error) => error.class(),
            Self::Store(error) => error.class(),
        }
    }
}

/// Result of writing a report.
type Result<T, E = ReportError> = std::result::Result<T, E>;

/// The page of a run. Numbers and claims are those of its summary; the curves are of every trial that left samples.
///
/// # Errors
/// The directory cannot be read.
pub fn html(run: &RunSummary) -> Result<String> {
    let RunSummary { summary, expectations, .. } = run;
    let run_dir = summary.run_dir.as_path();
    let run = RunDir::open(run_dir)?;
    let read = |name: &str| {
        let path = run_dir.join(name);
        std::fs::read_to_string(&path).map_err(io_error("read", &path))
    };
    let record: Value = serde_json::from_str(&read("run.json")?).unwrap_or_default();
    let directory = run_dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let page = Page {
        name: record["plan_name"].as_str().unwrap_or("run").to_owned(),
        snippets: snippets::of(&directory, summary),
        claims: expectations.iter().map(Expectation::json).collect(),
        ccs: summary.ccs.iter().map(|((id, group), cc)| (*id, &group[..], &cc[..])).collect(),
        lost: summary.lost_points().into_iter().collect(),
        directory,
        status: summary.status.as_str(),
        planned: summary.planned,
        notes: &summary.notes,
        fallbacks: &summary.fallbacks,
        factors: &summary.factors,
        points: points(summary),
        phases: &summary.phases,
        trials: &summary.trials,
        rows: summary.point_rows.iter().map(row).collect(),
        plan: read("plan.toml")?,
        run: record,
    };
    let mut curves = String::new();
    let stretches = stretches(&summary.trials);
    for end in &summary.trials {
        let mut panels = series::panels(&run, end, stretches, |title| title != series::RATE)?;
        panels.extend(series::inner_states(&run, end, stretches)?);
        let id = format!("curves-{}-{}", end.point_id, end.trial);
        curves += &data(&id, &panels);
    }
    Ok(fill(&[
        ("title", &text(&page.name)),
        ("style", &format!("{CHART_STYLE}\n{STYLE}")),
        ("data", &data("run", &page)),
        ("curves", &curves),
        ("chart", CHART_SCRIPT),
        ("script", SCRIPT),
    ]))
}

/// Writes the page; see [`html`].
///
/// # Errors
/// The directory cannot be read, or the file not be written.
pub fn write(run: &RunSummary, file: &Path) -> Result<()> {
    Ok(std::fs::write(file, html(run)?).map_err(io_error("write", file))?)
}

/// Into how many stretches each curve is cut so that all of them together stay within [`MOST_POINTS`].
fn stretches(trials: &[TrialEnd]) -> u32 {
    let rows = |end: &TrialEnd| end.rows.get("flows").copied().unwrap_or(0);
    // A flow has a data and a control socket with two ends each, most often.
    let flows: u64 = trials.iter().map(|end| rows(end).div_ceil(4) + 1).sum();
    let curves = u32::try_from(flows).unwrap_or(u32::MAX).saturating_mul(PANELS).max(1);
    (MOST_POINTS / 2 / curves).clamp(*STRETCHES.start(), *STRETCHES.end())
}

fn points(summary: &Summary) -> Vec<Value> {
    let point = |(id, levels): (&u32, &Vec<(String, String)>)| {
        let levels: Vec<&str> = levels.iter().map(|(_, level)| level.as_str()).collect();
        serde_json::json!({ "id": id, "levels": levels })
    };
    summary.points.iter().map(point).collect()
}

fn row(row: &PointRow) -> Value {
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

/// A value for the page's script. No text in it can end the element: JSON may write `<` as an escape.
fn data(id: &str, value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
    let json = json.replace('<', "\\u003c");
    format!("<script type=\"application/json\" id=\"{id}\">{json}</script>\n")
}

/// Text for an HTML element.
fn text(raw: &str) -> String {
    raw.replace('&', "&amp;").replace('<', "&lt;")
}

/// The page with its `{{name}}` places filled, each once and in order, so that nothing filled in is looked at again.
fn fill(parts: &[(&str, &str)]) -> String {
    let mut page = String::new();
    let mut rest = PAGE;
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
    fn every_place_of_the_page_is_filled_once() {
        let parts = ["title", "style", "data", "curves", "chart", "script"];
        let parts: Vec<(&str, &str)> = parts.iter().map(|name| (*name, "{{style}}")).collect();
        let page = fill(&parts);
        assert_eq!(page.matches("{{style}}").count(), parts.len());
        assert_eq!(page.matches("{{").count(), parts.len());
    }

    #[test]
    fn no_text_ends_the_element_that_it_is_in() {
        let hostile = "</script><script>alert(1)</script><!--";
        let element = data("run", &hostile);
        assert_eq!(element.matches("</").count(), 1, "{element}");
        assert!(!element.contains("<!--"));
        let json = element.split_once('>').unwrap().1.rsplit_once("</").unwrap().0;
        assert_eq!(serde_json::from_str::<String>(json).unwrap(), hostile);
        assert_eq!(text("a<b&c"), "a&lt;b&amp;c");
    }

    #[test]
    fn curves_become_coarser_as_there_are_more() {
        let end = |flows: u64| {
            let json = serde_json::json!({
                "point_id": 0, "trial": 1, "seed": 1, "epoch": 1, "status": "ok", "reasons": [],
                "rows": { "flows": flows }, "phases": [], "clocks": {},
            });
            serde_json::from_value::<TrialEnd>(json).unwrap()
        };
        assert_eq!(stretches(&[]), 1000);
        assert_eq!(stretches(&vec![end(8); 5]), 1000);
        assert_eq!(stretches(&vec![end(44); 63]), 40);
    }
}
