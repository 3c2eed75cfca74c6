//! Exports a run to other tools: tables as CSV, flent data files, iperf3 JSON, OpenMetrics, Perfetto traces and qlog.

use std::path::{Path, PathBuf};

use ccbench_proto::plan::parse::suggest::near;
use polars::prelude::*;

use super::journal::TrialEnd;
use super::model::TrialFilter;
use super::part::write_file;
use super::store::RunDir;
use super::summary::query::scan;
use crate::error::{io_error, polars_error};
use crate::parquet_file::with_columns;

mod error;
mod flent;
mod iperf3;
mod openmetrics;
mod perfetto;
mod qlog;
mod trials;

pub use error::ExportError;
use error::Result;
pub use flent::flent;
pub use iperf3::iperf3;
pub use openmetrics::openmetrics;
pub use perfetto::perfetto;
pub use qlog::qlog;
use trials::named_trials;

/// Tables that have a single file in the run's directory.
const SINGLE_FILE_TABLES: [&str; 6] =
    ["trials", "points", "summary_phase", "summary_point", "expectations", "scorecard"];

/// Returns the names of the run's tables: those with samples and those of the summary.
fn tables(run: &RunDir) -> Vec<String> {
    let mut names: Vec<String> =
        run.trials().iter().flat_map(|end| end.rows.keys().cloned()).collect();
    names.sort();
    names.dedup();
    let whole =
        SINGLE_FILE_TABLES.iter().filter(|name| run.path().join(format!("{name}.csv")).exists());
    names.extend(whole.map(|name| (*name).to_owned()));
    names
}

/// Writes each of these tables (all if empty) as a CSV file into a folder, with all trials in one file. `-` writes a single table to
/// standard output. Leaves out binary columns. Returns the paths written.
///
/// # Errors
/// A table is unknown, or a file cannot be written.
pub fn csv(run_dir: &Path, wanted: &[String], output: &Path) -> Result<Vec<PathBuf>> {
    let run = RunDir::open(run_dir)?;
    let known = tables(&run);
    if let Some(table) = wanted.iter().find(|table| !known.contains(table)) {
        let names: Vec<&str> = known.iter().map(String::as_str).collect();
        let (table, near) = (table.clone(), near(table, &names));
        return Err(ExportError::UnknownTable { table, known: known.join(", "), near });
    }
    let chosen = if wanted.is_empty() { known } else { wanted.to_vec() };
    run.check(|table| chosen.iter().any(|chosen| chosen == table));
    if output.as_os_str() == "-" {
        let [table] = &chosen[..] else {
            return Err(ExportError::ManyTables { known: chosen.join(", ") });
        };
        return match write_table(&run, table, std::io::stdout().lock(), output) {
            // A broken pipe is not an error.
            Err(error) if !is_broken_pipe(&error) => Err(error),
            _ => Ok(vec![]),
        };
    }
    std::fs::create_dir_all(output).map_err(io_error("make the directory", output))?;
    let mut written = Vec::new();
    for table in chosen {
        let path = output.join(format!("{table}.csv"));
        write_file(&path, |file| write_table(&run, &table, file, &path))?;
        written.push(path);
    }
    Ok(written)
}

fn is_broken_pipe(error: &ExportError) -> bool {
    let mut causes = std::iter::successors(Some(error as &dyn std::error::Error), |e| e.source());
    causes.any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        let polars = cause.downcast_ref::<PolarsError>();
        let polars = polars.and_then(|error| match error {
            PolarsError::IO { error, .. } => Some(error.kind()),
            _ => None,
        });
        io.or(polars) == Some(std::io::ErrorKind::BrokenPipe)
    })
}

/// Writes a table one trial at a time, so that the table need not fit into memory.
fn write_table(run: &RunDir, table: &str, mut out: impl std::io::Write, path: &Path) -> Result<()> {
    if SINGLE_FILE_TABLES.contains(&table) {
        let from = run.path().join(format!("{table}.csv"));
        let mut file = std::fs::File::open(&from).map_err(io_error("open", &from))?;
        std::io::copy(&mut file, &mut out).map_err(io_error("write", path))?;
    } else {
        let trials = run.trials();
        let columns = csv_columns(run, table, &trials)?;
        let mut has_header = false;
        for end in &trials {
            let Some(rows) = scan(run, table, &[end])? else { continue };
            let frame = rows.collect().map_err(polars_error("read", run.path()))?;
            let mut frame = with_columns(&frame, frame.height(), &columns)
                .map_err(polars_error("read", run.path()))?;
            let mut writer = CsvWriter::new(&mut out).include_header(!has_header);
            writer.finish(&mut frame).map_err(polars_error("write", path))?;
            has_header = true;
        }
    }
    Ok(out.flush().map_err(io_error("write", path))?)
}

/// Returns a note if the export contains trials that summaries exclude; `None` if there are none.
///
/// # Errors
/// The run cannot be read.
pub fn failed_trials(run_dir: &Path, tables: &[String]) -> Result<Option<String>> {
    if !tables.is_empty() && tables.iter().all(|table| SINGLE_FILE_TABLES.contains(&table.as_str()))
    {
        return Ok(None);
    }
    let run = RunDir::open(run_dir)?;
    let counts = |end: &TrialEnd| TrialFilter::default().includes(end.status);
    let out: Vec<String> = named_trials(&run)
        .into_iter()
        .filter(|(end, _)| !counts(end))
        .map(|(end, name)| format!("{name} ({})", end.status.as_str()))
        .collect();
    Ok((!out.is_empty()).then(|| {
        format!(
            "includes trials that summaries exclude (see `status` in trials.csv): {}",
            out.join(", ")
        )
    }))
}

/// Returns the columns that any of these trials has of a table: those of different versions may have different ones. Leaves out binary
/// columns, which CSV cannot represent. Reads one trial at a time, because the metadata of all files may need much memory.
fn csv_columns(run: &RunDir, table: &str, trials: &[TrialEnd]) -> Result<Schema> {
    let mut columns = Schema::default();
    for end in trials {
        let Some(mut rows) = scan(run, table, &[end])? else { continue };
        let schema = rows.collect_schema().map_err(polars_error("read", run.path()))?;
        columns.merge_from_ref(&schema);
    }
    columns.retain(|_, dtype| *dtype != DataType::Binary);
    Ok(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trial_of_an_older_version_has_empty_columns() {
        let columns: Vec<(PlSmallStr, DataType)> = vec![
            ("t_s".into(), DataType::Float64),
            ("total_rto".into(), DataType::UInt32),
            ("cc".into(), DataType::String),
        ];
        let older = df!("cc" => ["cubic", "reno"], "cc_info" => [1_u32, 2], "t_s" => [0.5, 1.5]);
        let mut text = Vec::new();
        let mut found = with_columns(&older.unwrap(), 2, &Schema::from_iter(columns)).unwrap();
        CsvWriter::new(&mut text).finish(&mut found).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text, "t_s,total_rto,cc\n0.5,,cubic\n1.5,,reno\n");
    }
}
