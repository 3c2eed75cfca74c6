//! Commands that read a run from any location: `summarize`, `verify`, `report`, `index`, `export`, `compare` and `plot`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ccbench_proto::metric;
use ccbench_results::compare::{self, Comparison};
use ccbench_results::model::TrialFilter;
use ccbench_results::summarize::RunSummary;
use ccbench_results::{export, figure, report, six_columns, table, verify, write_bytes};

use self::error::CompareUsageError;
use crate::args::export::ExportCommand;
use crate::args::index::IndexArgs;
use crate::args::{CompareArgs, PlotArgs, ReportArgs, SummarizeArgs, VerifyArgs};
use crate::commands::run::rewrite_report;
use crate::console::{is_terminal, message, print, terminal_width};
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::plan_source::PlanSource;
use crate::progress::ReadingProgress;
use crate::readable_run::{ReadableRun, verify_at};

pub mod error;

/// Returns the summary of a run, judged by the claims of the plan `expect` if given.
fn summary_of(
    run: &Path,
    filter: TrialFilter,
    expect: Option<&Path>,
    progress: &ReadingProgress,
) -> Result<RunSummary, CliError> {
    // Checks the plan before reading the results, which may take long.
    let expect = expect.map(|plan| PlanSource::read(plan)?.load(&[])).transpose()?;
    let observer = progress.observer(run.display().to_string());
    let mut summary = RunSummary::compute_observed(run, filter, &observer)?;
    if let Some(other) = &expect {
        summary.judge(other.plan.plan());
    }
    Ok(summary)
}

/// `ccbench summarize`.
///
/// # Errors
/// The results cannot be read.
pub fn summarize(args: &SummarizeArgs) -> Result<ExitCode, CliError> {
    let run = ReadableRun::open(&args.run)?;
    let (filter, expect) = (TrialFilter::default(), args.expect.as_deref());
    let mut summary = summary_of(run.path(), filter, expect, &ReadingProgress::begin())?;
    // A results directory without write permission is not an error: the table has a note about it.
    summary.written = match &args.output {
        Some(dir) => summary.write_to(dir),
        None if run.is_copy() => Ok(()),
        None => summary.write(),
    };
    table::print(&summary, &mut std::io::stdout(), terminal_width())?;
    if let Some(line) = run.about_copy() {
        print(&line);
    }
    if let Some(group) = &args.six_columns {
        print(&six_columns::csv(&summary.summary, group)?);
    }
    let is_own = args.output.is_none() && args.expect.is_none() && !run.is_copy();
    if is_own && summary.written.is_ok() {
        rewrite_report(&summary);
    }
    if args.output.is_some() {
        summary.written?;
    }
    Ok(ExitCode::Success)
}

/// `ccbench verify`.
///
/// # Errors
/// The results cannot be read.
pub fn verify(args: &VerifyArgs) -> Result<ExitCode, CliError> {
    let found = verify_at(&args.run)?;
    for (name, what) in &found.damaged {
        print(&format!("damaged: {name}: {what}\n"));
    }
    for name in &found.not_covered {
        print(&format!("not covered: {name}\n"));
    }
    for name in &found.uncommitted {
        print(&format!("not committed: {name}\n"));
    }
    let verify::Verification { intact, intact_bytes, trials, finished, planned, .. } = found;
    if finished < planned {
        print(&format!("incomplete: {finished} of {planned} planned trials are committed\n"));
    }
    print(&format!(
        "{}: {trials} trials; {intact} files with {intact_bytes} bytes are intact, {} damaged, {} not covered\n",
        args.run.display(),
        found.damaged.len(),
        found.not_covered.len()
    ));
    let is_failure = !found.damaged.is_empty() || (args.strict && !found.not_covered.is_empty());
    Ok(if is_failure { ExitCode::Failure } else { ExitCode::Success })
}

/// `ccbench report`.
///
/// # Errors
/// The results cannot be read, or the report cannot be written.
pub fn report(args: &ReportArgs) -> Result<ExitCode, CliError> {
    let run = ReadableRun::open(&args.run)?;
    let file = run.output(args.output.as_ref(), report::REPORT_FILE)?;
    let filter = TrialFilter { include_failed: args.include_failed, ..<_>::default() };
    let progress = ReadingProgress::begin();
    let summary = summary_of(run.path(), filter, args.expect.as_deref(), &progress)?;
    report::write(&summary, &file)?;
    drop(progress);
    print(&format!("{}\n", file.display()));
    Ok(ExitCode::Success)
}

/// `ccbench index`.
///
/// # Errors
/// There are no results, or the index cannot be written.
pub fn index(args: &IndexArgs) -> Result<ExitCode, CliError> {
    let mut index = report::Index::read(&args.dir)?;
    let lacking = if args.reports { index.without_report() } else { vec![] };
    let mut code = ExitCode::Success;
    for run in &lacking {
        let file = run.join(report::REPORT_FILE);
        // A failure does not prevent the reports of other runs.
        match write_report(run, &file) {
            Ok(()) => print(&format!("{}\n", file.display())),
            Err(error) => {
                message(format_args!(
                    "ccbench: cannot write the report of {}: {error}",
                    run.display()
                ));
                code = ExitCode::Failure;
            }
        }
    }
    if !lacking.is_empty() {
        index = report::Index::read(&args.dir)?;
    }
    print(&format!("{}\n", index.write()?.display()));
    Ok(code)
}

fn write_report(run: &Path, file: &Path) -> Result<(), CliError> {
    let progress = ReadingProgress::begin();
    let summary = summary_of(run, TrialFilter::default(), None, &progress)?;
    Ok(report::write(&summary, file)?)
}

/// Returns the entries of a directory; empty if it cannot be read.
fn files_in(dir: &Path) -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// `ccbench export`.
///
/// # Errors
/// The results cannot be read, or a file cannot be written.
pub fn export(command: &ExportCommand) -> Result<ExitCode, CliError> {
    use export::{csv, failed_trials, flent, iperf3, openmetrics, perfetto, qlog};
    let run = ReadableRun::open(command.run())?;
    if let ExportCommand::Csv { .. } = command {
        run.complete()?;
    }
    let dir = run.path();
    let earlier = files_in(command.output());
    let (tables, written) = match command {
        ExportCommand::Csv { tables, output, .. } => (&tables[..], csv(dir, tables, output)),
        ExportCommand::Flent(args) => (&[][..], flent(dir, &args.output)),
        ExportCommand::Iperf3(args) => (&[][..], iperf3(dir, &args.output)),
        ExportCommand::OpenMetrics(args) => (&[][..], openmetrics(dir, &args.output)),
        ExportCommand::Perfetto(args) => (&[][..], perfetto(dir, &args.output)),
        ExportCommand::Qlog(args) => (&[][..], qlog(dir, &args.output)),
    };
    let written = written?;
    for path in &written {
        print(&format!("{}\n", path.display()));
    }
    let replaced = written.iter().filter(|path| earlier.contains(*path)).count();
    if replaced > 0 {
        let files = if replaced == 1 { "file" } else { "files" };
        let output = command.output().display();
        message(format_args!("ccbench: {output}: replaced {replaced} existing {files}"));
    }
    if let Some(warning) = failed_trials(dir, tables)? {
        message(format_args!("ccbench: {warning}"));
    }
    Ok(ExitCode::Success)
}

/// Warns about deprecated names in `--metric` and `--tolerance`.
fn warn_about_renamed<'a>(metrics: impl IntoIterator<Item = &'a String>) {
    for metric in metrics {
        let name = metric.split(':').next().unwrap_or(metric);
        if let Some(new) = metric::replacement(name) {
            message(format_args!("ccbench: metric `{name}` is deprecated; use `{new}`"));
        }
    }
}

/// `ccbench compare`.
///
/// # Errors
/// The results cannot be read, or the table cannot be written.
pub fn compare(args: &CompareArgs) -> Result<ExitCode, CliError> {
    let is_stdout = |path: &Path| path.as_os_str() == "-";
    let paths = [&args.csv, &args.claims_csv].into_iter().flatten();
    let on_stdout = paths.filter(|path| is_stdout(path)).count();
    if on_stdout > 1 {
        return Err(CompareUsageError::TwoOnStdout.into());
    }
    let one = ReadableRun::open(&args.a)?;
    let other = args.b.as_deref().map(ReadableRun::open).transpose()?;
    let other = other.as_ref().map(ReadableRun::path);
    let with = match (other, &args.by) {
        (Some(other), _) => Comparison::Run(other),
        (None, Some((factor, one, other))) => Comparison::Levels(factor, one, other),
        (None, None) => return Err(CompareUsageError::NothingToCompare.into()),
    };
    let filter = TrialFilter { include_failed: args.include_failed, ..<_>::default() };
    let tolerances = args.tolerances.iter().map(|tolerance| &tolerance.metric);
    warn_about_renamed(args.metrics.iter().chain(tolerances));
    let progress = ReadingProgress::begin();
    let mut names = args.a.display().to_string();
    if let Some(other) = &args.b {
        names += &format!(" and {}", other.display());
    }
    let observer = progress.observer(names);
    let (metrics, tolerances) = (&args.metrics, &args.tolerances);
    let differences = compare::compare(one.path(), &with, metrics, tolerances, filter, &observer)?;
    drop(progress);
    let save = |path: &Path, csv: &str| {
        if is_stdout(path) {
            print(csv);
            return Ok(());
        }
        Ok::<_, CliError>(write_bytes(csv.as_bytes(), path)?)
    };
    if let Some(path) = &args.claims_csv {
        save(path, &compare::claims_csv(&differences))?;
    }
    if let Some(path) = &args.csv {
        save(path, &compare::csv(&differences))?;
    }
    if on_stdout > 0 {
        return Ok(ExitCode::Success);
    }
    let plans = other.and_then(|other| compare::plans_differ(one.path(), other));
    let claims = compare::claims(&differences, terminal_width());
    let agreement = compare::agreement(&differences);
    let width = is_terminal().then(terminal_width);
    print(
        &(compare::text(&differences, width) + &plans.unwrap_or_default() + &claims + &agreement),
    );
    Ok(ExitCode::Success)
}

/// `ccbench plot`.
///
/// # Errors
/// The results cannot be read, or a figure cannot be drawn or written.
pub fn plot(args: PlotArgs) -> Result<ExitCode, CliError> {
    warn_about_renamed(&args.metrics);
    let request = figure::Request {
        kind: args.kind,
        filters: args.filters,
        metrics: args.metrics,
        x: args.x,
        y: args.y,
        by: args.by,
        width_mm: args.width_mm,
        height_mm: args.height_mm,
        trial_filter: TrialFilter { include_failed: args.include_failed, ..<_>::default() },
    };
    let run = ReadableRun::open(&args.run)?;
    let output = run.output(args.output.as_ref(), "figures")?;
    let (figures, degraded) = figure::draw_with_note(run.path(), &request)?;
    for path in figure::write(&figures, &output, &args.format)? {
        print(&format!("{}\n", path.display()));
    }
    // On standard error, because scripts read the paths from standard output.
    message(format_args!("note: `{}` draws {}", args.kind.name(), args.kind.tables()));
    if let Some(degraded) = degraded {
        let run = args.run.display();
        message(format_args!("note: {degraded}; `ccbench summarize {run}` shows the reasons"));
    }
    Ok(ExitCode::Success)
}
