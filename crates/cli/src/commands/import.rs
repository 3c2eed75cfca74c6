//! `ccbench import`: makes a results directory from the output of ss, iperf3 and ping, flent data files and qlog files.
//! [`ccbench_proto::tools`] parses the text; this module reads files, takes names from options, and prints what was read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use ccbench_io::input;
use ccbench_proto::plan::check::refuse_phases;
use ccbench_proto::plan::timeline::MAX_TRIAL;
use ccbench_proto::schedule::PhaseSpan;
use ccbench_proto::tools::gather::{MergedFiles, Names, Source, gather};
use ccbench_proto::tools::text::{self, Found};
use ccbench_proto::units::Micros;
use ccbench_proto::wire::{RunEvent, run_event::Payload};
use ccbench_proto::{plan, printable};
use flate2::read::MultiGzDecoder;

use self::error::{ImportUsageError, MAX_NUMBER};
use crate::args::ImportArgs;
use crate::clock;
use crate::console::{print, terminal_width};
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::file::FileError;
use ccbench_results::backend::RunBackend;
use ccbench_results::model::{
    ClockSource, Imported, NodeClock, Reason, RunInfo, RunStatus, Status, TrialFilter, TrialKey,
    Verdict,
};
use ccbench_results::reason::ReasonCode;
use ccbench_results::store::RunDir;
use ccbench_results::summarize::summarize;
use ccbench_results::table;

pub mod error;

/// Number of unread lines per file that are printed without `--all`.
const MAX_UNREAD: usize = 10;
/// The first bytes of a gzip file (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A file and its trial.
struct File {
    path: PathBuf,
    trial: u16,
    /// The time that flent has written into its name, if its trial depends on that.
    flent_time: Option<String>,
    sha256: String,
    /// The digest of its uncompressed contents.
    content_sha256: String,
    source: Source,
}

impl File {
    /// Returns whether it contains output of a known tool.
    fn has_rows(&self) -> bool {
        let Found { sockets, tests, pings, named, .. } = &self.source.found;
        !(sockets.is_empty() && tests.is_empty() && pings.is_empty() && named.rows.is_empty())
    }
}

/// Runs the command.
///
/// # Errors
/// A file cannot be read or has no known contents, or the results cannot be written.
pub fn run(args: &ImportArgs) -> Result<ExitCode, CliError> {
    if let Some(reason) = refuse_phases(&args.phases) {
        return Err(ImportUsageError::Phases { reason }.into());
    }
    let paths = files(&args.files)?;
    let mut read = paths.iter().map(|path| read(path, args)).collect::<Result<Vec<_>, _>>()?;
    number_by_time(&mut read)?;
    if args.trials && read.iter().any(|file| file.trial == 0) {
        read.iter_mut().for_each(|file| file.trial += 1);
    }
    unique_stems(&mut read);
    print(&report(&read, args.all));
    if !read.iter().any(File::has_rows) {
        return Err(ImportUsageError::NothingKnown { files: read.len() }.into());
    }
    refuse_copies(&read)?;
    store(&read, args)?;
    let summary = summarize(&args.output, TrialFilter::default())?;
    table::print(&summary, &mut std::io::stdout(), terminal_width())?;
    Ok(ExitCode::Success)
}

/// Returns the given files and all files below the given folders, except hidden ones.
fn files(given: &[PathBuf]) -> Result<Vec<PathBuf>, CliError> {
    let mut found = BTreeSet::new();
    let mut pending: Vec<PathBuf> = given.to_vec();
    while let Some(path) = pending.pop() {
        let metadata = std::fs::metadata(&path).map_err(|source| -> CliError {
            match source.kind() {
                io::ErrorKind::NotFound => {
                    ImportUsageError::NotFound { path: path.clone(), source }.into()
                }
                _ => FileError::io("read", &path)(source).into(),
            }
        })?;
        if !metadata.is_dir() {
            found.insert(path);
            continue;
        }
        for entry in std::fs::read_dir(&path).map_err(FileError::io("list", &path))? {
            let entry = entry.map_err(FileError::io("list", &path))?;
            if !entry.file_name().to_string_lossy().starts_with('.') {
                pending.push(entry.path());
            }
        }
    }
    Ok(found.into_iter().collect())
}

fn read(path: &Path, args: &ImportArgs) -> Result<File, CliError> {
    let bytes = input::read(path, &input::IMPORT).map_err(FileError::io("read", path))?;
    let sha256 = plan::digest_bytes(&bytes);
    let is_packed = bytes.starts_with(&GZIP);
    let bytes = if is_packed { unpack(&bytes) } else { Ok(bytes) };
    let bytes = bytes.map_err(FileError::io("decompress", path))?;
    let content_sha256 = if is_packed { plan::digest_bytes(&bytes) } else { sha256.clone() };
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let inner = path.with_extension("");
    let stem = if is_packed { inner.file_stem() } else { path.file_stem() };
    let stem = stem.unwrap_or_default().to_string_lossy();
    let mut parted = args.nodes.iter().filter_map(|node| node.split_once('='));
    let by_part = parted.find(|(part, _)| name.contains(part)).map(|(_, node)| node);
    let for_others = || args.nodes.iter().find(|node| !node.contains('=')).map(String::as_str);
    let (trial, flent_time) = if args.trials { trial_of(&stem, path)? } else { (1, None) };
    Ok(File {
        trial,
        flent_time,
        sha256,
        content_sha256,
        source: Source {
            stem: plain(&stem),
            node: by_part.or_else(for_others).unwrap_or("imported").to_owned(),
            found: text::read(&bytes, args.date.unwrap_or_default()),
        },
        path: path.to_path_buf(),
    })
}

/// Decompresses a gzip file. The contents have the same size limit as other files.
fn unpack(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let input::Limit { max_bytes, fix } = input::IMPORT;
    let mut content = Vec::new();
    MultiGzDecoder::new(bytes).take(max_bytes + 1).read_to_end(&mut content)?;
    match content.len() as u64 > max_bytes {
        true => Err(input::Refusal::TooLarge { max_bytes, fix }.into()),
        false => Ok(content),
    }
}

/// Converts a name so that it is valid as a value and in file names.
fn plain(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.chars().map(|c| if fits(c) { c } else { '-' }).collect()
}

/// Returns the trial in a name: its last separate number. In a name that flent has made, only the title can have one; without it, returns
/// the time in the name, in whose order such files are numbered.
fn trial_of(stem: &str, path: &Path) -> Result<(u16, Option<String>), ImportUsageError> {
    let (time, text) = match flent_name(stem) {
        Some((time, title)) => (Some(time), title),
        None => (None, stem),
    };
    let number = number(text, path)?;
    let time = time.filter(|_| number.is_none()).map(str::to_owned);
    Ok((number.unwrap_or(1), time))
}

/// Returns the time and the title in a name that flent has made: `rrul-2014-10-17T090042.516894.title`.
fn flent_name(stem: &str) -> Option<(&str, &str)> {
    const TIME: &[u8] = b"-0000-00-00T000000";
    const FRACTION: &[u8] = b".000000";
    fn has_form(bytes: &[u8], form: &[u8]) -> bool {
        let fits = |(byte, form): (&u8, &u8)| match form {
            b'0' => byte.is_ascii_digit(),
            other => byte == other,
        };
        bytes.len() == form.len() && bytes.iter().zip(form).all(fits)
    }
    let bytes = stem.as_bytes();
    let begin = bytes.windows(TIME.len()).position(|window| has_form(window, TIME))?;
    let end = begin + TIME.len();
    let with_fraction = end + FRACTION.len();
    // Some versions leave the fraction out.
    let fraction = bytes.get(end..with_fraction).filter(|fraction| has_form(fraction, FRACTION));
    let end = fraction.map_or(end, |_| with_fraction);
    Some((stem.get(begin + 1..end)?, stem.get(end..)?))
}

/// Returns the last separate number in a text: `cubic-3-iperf` is trial 3.
fn number(text: &str, path: &Path) -> Result<Option<u16>, ImportUsageError> {
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let mut parts = text.split(|c: char| !c.is_ascii_alphanumeric());
    let Some(part) = parts.rfind(is_number) else { return Ok(None) };
    let number = part.parse().ok().filter(|number| *number <= MAX_NUMBER);
    number.map(Some).ok_or_else(|| {
        let (path, number) = (path.to_owned(), part.to_owned());
        ImportUsageError::Number { path, number }
    })
}

/// Numbers the files without a number in the order of the times in their names, after the other trials.
fn number_by_time(files: &mut [File]) -> Result<(), ImportUsageError> {
    let is_other = |file: &&File| file.flent_time.is_none() && file.has_rows();
    let last = files.iter().filter(is_other).map(|file| file.trial).max().unwrap_or(0);
    let times: BTreeSet<String> = files.iter().filter_map(|file| file.flent_time.clone()).collect();
    let numbers: BTreeMap<String, usize> = times.into_iter().zip(usize::from(last) + 1..).collect();
    for file in files {
        let number = file.flent_time.as_ref().and_then(|time| numbers.get(time));
        let Some(&number) = number else { continue };
        let fits = u16::try_from(number).ok().filter(|number| *number <= MAX_NUMBER);
        file.trial = fits.ok_or_else(|| {
            let path = file.path.clone();
            ImportUsageError::NumberByTime { path, number }
        })?;
    }
    Ok(())
}

/// Returns an error if two files have the same contents, which would count twice.
fn refuse_copies(files: &[File]) -> Result<(), ImportUsageError> {
    let mut seen: BTreeMap<&str, &Path> = BTreeMap::new();
    for file in files.iter().filter(|file| file.has_rows()) {
        if let Some(other) = seen.insert(&file.content_sha256, &file.path) {
            let (first, second) = (other.to_owned(), file.path.clone());
            return Err(ImportUsageError::Copies { first, second });
        }
    }
    Ok(())
}

/// Names files of one trial by their whole path if they have the same file name.
fn unique_stems(files: &mut [File]) {
    let mut count: BTreeMap<(u16, String), u32> = BTreeMap::new();
    for file in files.iter() {
        *count.entry((file.trial, file.source.stem.clone())).or_default() += 1;
    }
    for file in files.iter_mut() {
        let many = count.get(&(file.trial, file.source.stem.clone())).is_some_and(|&n| n > 1);
        if many && let Some(whole) = file.path.to_str() {
            file.source.stem = plain(whole.trim_start_matches(['.', '/']));
        }
    }
}

/// Returns the number of lines read, and every unread line as `FILE:LINE: why`.
fn report(files: &[File], all: bool) -> String {
    let mut text = String::new();
    for file in files {
        let found = &file.source.found;
        let path = file.path.to_string_lossy();
        let path = printable::line(&path);
        let intervals: usize = found.tests.iter().map(|test| test.report.intervals.len()).sum();
        let replies: usize = found.pings.iter().map(|ping| ping.replies.len()).sum();
        let what = match found.named.tool {
            "" => format!(
                "{} samples, {} tests with {intervals} intervals, {replies} pings",
                found.sockets.len(),
                found.tests.len()
            ),
            tool => format!("{} rows of {tool}", found.named.rows.len()),
        };
        let (lines, unread) = (found.lines, found.unread_count());
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{path}: {lines} lines: {what}; {unread} not read");
        let limit = if all { usize::MAX } else { MAX_UNREAD };
        for unread in found.unread.iter().take(limit) {
            let (why, shown) = (printable::line(&unread.reason), printable::line(&unread.text));
            let _ = writeln!(text, "  {path}:{}: {why}: {shown}", unread.line);
        }
        let more = found.unread_count() - found.unread.len().min(limit) as u64;
        if more > 0 {
            let advice = if all { "" } else { "; --all shows them" };
            let _ = writeln!(text, "  and {more} more{advice}");
        }
    }
    text
}

fn store(files: &[File], args: &ImportArgs) -> Result<(), CliError> {
    let trials: BTreeSet<u16> = files.iter().map(|file| file.trial).collect();
    let info = info(files, trials.len() as u32);
    RunDir::fill_at(&args.output, &info, |run| fill(run, &trials, files, args))
}

fn fill(
    run: &RunDir,
    trials: &BTreeSet<u16>,
    files: &[File],
    args: &ImportArgs,
) -> Result<(), CliError> {
    let names = args.groups.iter().filter_map(|group| {
        group.split_once('=').map(|(server, name)| (server.to_owned(), plain(name)))
    });
    let names = names.collect();
    let mut notes = vec![];
    for &trial in trials {
        let of_trial: Vec<&File> = files.iter().filter(|file| file.trial == trial).collect();
        let sources: Vec<&Source> = of_trial.iter().map(|file| &file.source).collect();
        let gathered = gather(&sources, &names);
        let phases = spans(&gathered, &args.phases);
        if phases.last().is_some_and(|phase| phase.end > MAX_TRIAL) {
            return Err(too_long(trial, &gathered, &of_trial, &names).into());
        }
        let unread = sources.iter().map(|source| source.found.unread_count()).sum();
        let outside = outside(&gathered, &phases);
        let noted = gathered.notes.iter().chain(&outside);
        notes.extend(noted.map(|note| format!("trial {trial}: {note}")));
        let verdict = verdict(unread, &sources);
        write(run, trial, gathered, &phases, &verdict)?;
    }
    for note in &notes {
        print(&format!("note: {}\n", printable::line(note)));
    }
    run.finish(RunStatus::Complete)?;
    Ok(())
}

fn verdict(unread: u64, sources: &[&Source]) -> Verdict {
    let lines: u64 = sources.iter().map(|source| source.found.lines).sum();
    if unread == 0 {
        return Verdict { status: Status::Ok, reasons: vec![] };
    }
    let message = format!(
        "{unread} of {lines} lines were not read, or only in part (see kind import in table events)"
    );
    Verdict {
        status: Status::Degraded,
        reasons: vec![Reason::new(ReasonCode::LinesUnread, message)],
    }
}

fn write(
    run: &RunDir,
    trial: u16,
    gathered: MergedFiles,
    phases: &[PhaseSpan],
    verdict: &Verdict,
) -> Result<(), CliError> {
    let source = ClockSource::Imported;
    let shared = NodeClock::shared(gathered.begin_ns, 0);
    let clock = NodeClock { source, error_bound_after_ns: None, ..shared };
    let clocks = gathered.rows.iter().map(|(node, _)| (node.clone(), clock.clone())).collect();
    let key = TrialKey { point_id: 0, trial, seed: 0, epoch: run.next_epoch() };
    let mut writer = run.begin_trial(key, phases, clocks)?;
    for (node, payload) in gathered.rows {
        writer.push(&node, RunEvent { payload: Some(payload) })?;
    }
    writer.commit(verdict)?;
    Ok(())
}

/// Returns the given phases in sequence, or one phase for the whole trial if none is given.
fn spans(gathered: &MergedFiles, phases: &[(String, Micros)]) -> Vec<PhaseSpan> {
    if phases.is_empty() {
        // A phase excludes its end, so it ends one microsecond after the last row.
        let length = gathered.end_ns.saturating_sub(gathered.begin_ns) / 1000 + 1;
        let (start, end) = (Micros::default(), Micros::new(length));
        return vec![PhaseSpan::new("all", start, end)];
    }
    let mut start = Micros::default();
    let mut spans = vec![];
    for (name, length) in phases {
        let end = start + *length;
        spans.push(PhaseSpan::new(name, start, end));
        start = end;
    }
    spans
}

/// Returns the note about rows outside of all phases. Rows without a time have their own note.
fn outside(gathered: &MergedFiles, phases: &[PhaseSpan]) -> Option<String> {
    let mut times_ns: Vec<u64> = Vec::new();
    for (_, row) in &gathered.rows {
        match row {
            Payload::FlowSample(row) => times_ns.push(row.at_ns),
            Payload::Probe(row) => times_ns.push(row.at_ns),
            Payload::TcpEvents(rows) => times_ns.extend(rows.events.iter().map(|row| row.at_ns)),
            // The phase of an interval is the one that contains its midpoint.
            Payload::Interval(row) => {
                times_ns.push(row.at_ns.saturating_sub((row.seconds.max(0.0) * 5e8) as u64));
            }
            _ => {}
        }
    }
    times_ns.retain(|at_ns| *at_ns > 0);
    let is_outside = |at_ns: &&u64| {
        let since_ns = at_ns.checked_sub(gathered.begin_ns);
        let is_in = |since_ns: u64| {
            phases
                .iter()
                .any(|phase| phase.start.nanos() <= since_ns && since_ns < phase.end.nanos())
        };
        !since_ns.is_some_and(is_in)
    };
    let count = times_ns.iter().filter(is_outside).count();
    let length = phases.iter().map(|phase| phase.end).max().unwrap_or_default();
    (count > 0).then(|| {
        format!(
            "{count} of {} rows are outside of all phases, so they count in no phase's mean (phases begin with the earliest row, and \
             end after {length})",
            times_ns.len()
        )
    })
}

/// Returns the error for a trial that would exceed the limit. Often a single time is wrong.
fn too_long(
    trial: u16,
    gathered: &MergedFiles,
    files: &[&File],
    names: &Names,
) -> ImportUsageError {
    let last = files.iter().max_by_key(|file| gather(&[&file.source], names).end_ns);
    let latest = last.map_or_else(PathBuf::new, |file| file.path.clone());
    let [begin_s, end_s] = [gathered.begin_ns, gathered.end_ns].map(|ns| ns / 1_000_000_000);
    ImportUsageError::TooLong { trial, begin_s, end_s, latest }
}

fn info(files: &[File], trials: u32) -> RunInfo {
    let mut text = "# Imported by `ccbench import`: there is no plan. Source files:\n".to_owned();
    for file in files {
        // Writing to a String cannot fail.
        let _ =
            writeln!(text, "# {} {}", file.sha256, file.path.display().to_string().escape_debug());
    }
    let imported = files.iter().map(|file| Imported {
        file: file.path.display().to_string(),
        sha256: file.sha256.clone(),
        node: file.source.node.clone(),
        trial: file.trial,
        lines: file.source.found.lines,
        unread: file.source.found.unread_count(),
    });
    RunInfo {
        plan_name: "import".to_owned(),
        plan_sha256: plan::digest(&text),
        plan_text: text.clone(),
        resolved_text: text,
        points: vec![(0, vec![])],
        repeat: trials,
        seed: 0,
        command_line: std::env::args().collect(),
        ccbench_version: env!("CARGO_PKG_VERSION").to_owned(),
        started_utc: clock::utc(),
        nodes: BTreeMap::new(),
        backend: RunBackend::Import,
        topology: serde_json::Value::Null,
        notes: vec![],
        sets: vec![],
        traces: BTreeMap::new(),
        ccs: BTreeMap::new(),
        imported: imported.collect(),
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::wire;

    use super::*;

    #[test]
    fn trial_is_the_last_separate_number_of_a_name() {
        let trial = |stem| trial_of(stem, Path::new("dir/file.txt")).map(|(trial, _)| trial);
        let numbers = ["cubic-3-iperf", "ta-1v1-12-ss", "sl-cubic-ss", "x_2.0_7", "x-65534"];
        assert_eq!(numbers.map(|stem| trial(stem).unwrap()), [3, 12, 1, 7, 65_534]);
        for stem in ["run-70000", "1-65535", "1-99999999999999999999"] {
            let error = trial(stem).unwrap_err().to_string();
            assert!(
                error.contains("dir/file.txt") && error.contains("trials are 0 to 65534"),
                "{error}"
            );
        }
    }

    #[test]
    fn times_in_names_of_flent_are_no_trial_numbers() {
        let trial = |stem: &str| trial_of(stem, Path::new("dir/file.flent.gz")).unwrap();
        let by_time = |time: &str| (1_u16, Some(time.to_owned()));
        let time = "2014-10-17T090042.516894";
        for name in ["rrul", "rrul_100_up"] {
            assert_eq!(trial(&format!("{name}-{time}")), by_time(time));
            assert_eq!(trial(&format!("{name}-{time}.fq_codel")), by_time(time));
            assert_eq!(trial(&format!("{name}-{time}.fq_codel_3")), (3, None));
        }
        assert_eq!(trial("rrul-2014-10-17T090042"), by_time("2014-10-17T090042"));
        assert_eq!(trial("rrul-2014-10-17T090042.7"), (7, None), "the title is 7");
        assert_eq!(trial("2014-10-17"), (17, None), "not flent's");
    }

    #[test]
    fn rows_outside_of_all_phases_have_a_note() {
        const SECOND_NS: u64 = 1_000_000_000;
        let sample = |second: u64| {
            Payload::FlowSample(wire::FlowSample {
                at_ns: second * SECOND_NS,
                ..Default::default()
            })
        };
        let interval = |end: u64| {
            let at_ns = end * SECOND_NS;
            Payload::Interval(wire::Interval { at_ns, seconds: 2.0, ..Default::default() })
        };
        let probe = Payload::Probe(wire::Probe { at_ns: 9 * SECOND_NS, ..Default::default() });
        let event =
            |second: u64| wire::TcpEvent { at_ns: second * SECOND_NS, ..Default::default() };
        let events = Payload::TcpEvents(wire::TcpEvents { events: vec![event(12), event(20)] });
        // The first sample has no time.
        let mut rows = vec![sample(0), sample(10), sample(15), interval(15), interval(16)];
        rows.extend([probe, events, Payload::Flow(wire::Flow::default())]);
        let gathered = MergedFiles {
            begin_ns: 10 * SECOND_NS,
            rows: rows.into_iter().map(|row| ("node".to_owned(), row)).collect(),
            ..Default::default()
        };
        let note = |length_s| {
            let phases = [("all".to_owned(), Micros::from_secs(length_s))];
            outside(&gathered, &spans(&gathered, &phases))
        };
        let short = note(5).unwrap();
        assert!(short.starts_with("4 of 7 rows") && short.contains("end after 5s"), "{short}");
        assert!(note(20).unwrap().starts_with("1 of 7 rows"), "the probe is too early");
    }

    #[test]
    fn replaces_special_characters_in_names() {
        assert_eq!(plain("my file (1).txt"), "my-file--1-.txt");
    }
}
