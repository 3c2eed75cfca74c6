//! The index of a folder of runs: one self-contained page with a line for each run and links to the reports.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{
    COMMON_SCRIPT, ReportError, Result, STYLE, TABLE_SCRIPT, escape_html, json_script,
    render_template,
};
use crate::layout::list;
use crate::model::{RunStatus, TrialStatus};
use crate::parallel::in_parallel;
use crate::part::write_text;
use crate::record;
use crate::store::{RunDir, StoreError};

const PAGE: &str = include_str!("index.html");
const SCRIPT: &str = include_str!("index.js");
/// The name of a report in its results directory.
pub const REPORT_FILE: &str = "report.html";
/// The name of an index in its folder.
const INDEX_FILE: &str = "index.html";

/// The runs in a folder.
#[derive(Debug)]
pub struct Index {
    folder: PathBuf,
    /// The runs, newest first.
    runs: Vec<IndexedRun>,
    unreadable: Vec<Unreadable>,
    /// Number of directories that are not results directories.
    others: usize,
}

/// A line of the index.
#[derive(Debug, Serialize)]
struct IndexedRun {
    directory: String,
    plan: String,
    /// Start of the first session in RFC 3339 format.
    started_utc: String,
    backend: String,
    #[serde(skip)]
    has_ended: bool,
    status: &'static str,
    points: usize,
    planned: u32,
    trials: usize,
    ok: usize,
    degraded: usize,
    failed: usize,
    aborted: usize,
    has_report: bool,
}

/// A results directory that cannot be opened.
#[derive(Debug, Serialize)]
struct Unreadable {
    directory: String,
    error: String,
}

/// The data that the page's script reads.
#[derive(Serialize)]
struct Page<'a> {
    folder: &'a str,
    runs: &'a [IndexedRun],
    unreadable: &'a [Unreadable],
    others: usize,
}

impl Index {
    /// Opens every results directory in a folder. A directory that cannot be opened gets a line with the error; other directories are
    /// counted.
    ///
    /// # Errors
    /// The folder cannot be read, has no results directories, or is itself one.
    pub fn read(folder: &Path) -> Result<Self> {
        if folder.join(record::FILE_NAME).is_file() {
            return Err(ReportError::IsRun { path: folder.to_path_buf() });
        }
        let directories: Vec<PathBuf> =
            list(folder)?.into_iter().filter(|path| path.is_dir()).collect();
        // An import or a merge is filling a hidden one.
        let is_run =
            |path: &PathBuf| path.join(record::FILE_NAME).is_file() && !name(path).starts_with('.');
        let (paths, others): (Vec<PathBuf>, Vec<PathBuf>) =
            directories.into_iter().partition(is_run);
        if paths.is_empty() {
            return Err(ReportError::NoRuns { path: folder.to_path_buf() });
        }
        let (mut runs, mut unreadable) = (Vec::new(), Vec::new());
        for (path, run) in paths.iter().zip(in_parallel(&paths, |path| IndexedRun::read(path))) {
            match run {
                Ok(run) => runs.push(run),
                Err(error) => {
                    let error = error.to_string();
                    unreadable.push(Unreadable { directory: name(path), error });
                }
            }
        }
        runs.sort_by_cached_key(|run| Reverse(run.started_utc.clone()));
        Ok(Self { folder: folder.to_path_buf(), runs, unreadable, others: others.len() })
    }

    /// Returns the results directories of ended runs that have no report.
    pub fn without_report(&self) -> Vec<PathBuf> {
        let lacks = |run: &&IndexedRun| run.has_ended && !run.has_report;
        self.runs.iter().filter(lacks).map(|run| self.folder.join(&run.directory)).collect()
    }

    /// Renders the page. Its links are relative to the folder.
    pub fn html(&self) -> String {
        let path = std::path::absolute(&self.folder).unwrap_or_else(|_| self.folder.clone());
        let folder = name(&path);
        let Self { runs, unreadable, others, .. } = self;
        let page = Page { folder: &folder, runs, unreadable, others: *others };
        render_template(
            PAGE,
            &[
                ("title", &escape_html(&folder)),
                ("style", STYLE),
                ("data", &json_script("index", &page)),
                ("script", &[COMMON_SCRIPT, TABLE_SCRIPT, SCRIPT].join("\n")),
            ],
        )
    }

    /// Writes `index.html` into the folder, and returns its path.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self) -> Result<PathBuf> {
        let file = self.folder.join(INDEX_FILE);
        write_text(&self.html(), &file)?;
        Ok(file)
    }
}

impl IndexedRun {
    fn read(path: &Path) -> Result<Self, StoreError> {
        let run = RunDir::open(path)?;
        let trials = run.trials();
        let count = |status| trials.iter().filter(|end| end.status == status).count();
        let (plan, started_utc) = {
            let state = run.shared.state();
            let first = state.record.sessions.first();
            let started_utc = first.map(|session| session.started_utc.clone());
            (state.record.plan_name.clone(), started_utc.unwrap_or_default())
        };
        let status = run.status();
        Ok(Self {
            directory: name(path),
            plan,
            started_utc,
            backend: run.backend().to_string(),
            has_ended: status != RunStatus::Running,
            status: status.as_str(),
            points: run.points().1.len(),
            planned: run.planned(),
            trials: trials.len(),
            ok: count(TrialStatus::Ok),
            degraded: count(TrialStatus::Degraded),
            failed: count(TrialStatus::Failed),
            aborted: count(TrialStatus::Aborted),
            // Versions that wrote the file in place left an empty one on a full disk.
            has_report: path
                .join(REPORT_FILE)
                .metadata()
                .is_ok_and(|found| found.is_file() && found.len() > 0),
        })
    }
}

/// Returns the last component of a path.
fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_its_policy_and_every_placeholder() {
        assert!(PAGE.contains(&format!("content=\"{}\"", super::super::POLICY)));
        let index = Index {
            folder: PathBuf::from("some/results"),
            runs: vec![],
            unreadable: vec![],
            others: 1,
        };
        let page = index.html();
        assert!(!page.contains("{{") && page.contains("<title>results · ccbench</title>"));
    }
}
