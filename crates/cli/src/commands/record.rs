//! `ccbench trace record`: measures the capacity and delay of a path, and writes traces that links can replay. It runs a plan
//! that sends a UDP stream above the path's capacity in each direction, with UDP echoes in parallel.

use std::path::{Path, PathBuf};

use ccbench_proto::plan::check::{self, TraceFiles};
use ccbench_proto::plan::{Node, Phase, Plan, Probe, ProbeKind};
use ccbench_proto::resolve;
use ccbench_proto::trace::{self, Format, Steps, Trace};
use ccbench_proto::units::Micros;
use ccbench_results::svg::short;
use ccbench_results::trace::plot::rate_text;
use ccbench_results::trace::recorded::{Recording, Rows, Stream};
use ccbench_results::write_bytes;

use self::error::RecordUsageError;
use crate::args::record::RecordArgs;
use crate::args::{RunArgs, RunOptions};
use crate::commands::run::{self, Tables};
use crate::console::{message, print};
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::interrupt::EndsProcess;
use crate::plan_source::PlanSource;
use crate::runtime::block_on;

pub mod error;

/// Time before the streams start, to measure the delay of the idle path.
const IDLE: Micros = Micros::from_secs(2);
/// Time from the start of the streams until all queues are full.
const FILL: Micros = Micros::from_secs(1);
/// Interval of the echoes, which take 8 kbit/s of the capacity.
const ECHO_EVERY: Micros = Micros::from_millis(100);
/// Names of the probes. `down` goes from the other end to this one.
const DOWN: &str = "down";
const UP: &str = "up";
const ECHO: &str = "echo";

/// Records the path.
///
/// # Errors
/// The path is not valid, the run failed, or a trace cannot be written.
pub fn run(args: RecordArgs) -> Result<ExitCode, CliError> {
    check_times(&args)?;
    let (path, plan, ends) = base(&args)?;
    let plan = recording_plan(plan, [&ends[0], &ends[1]], &args);
    let (checked, _) =
        check::check_with(plan, TraceFiles::new()).map_err(RecordUsageError::Plan)?;
    let text = resolve::to_toml(&checked);
    let source = PlanSource::embedded(&path.to_string_lossy(), &text, &[]).with_files_beside();
    let stream = stream(&args);
    let (output, args) = (args.output, RunArgs::from_options(args.options));
    let completed = block_on(run::run_plan(&args, source))?;
    let dir = completed.path().to_path_buf();
    let code = run::conclude(&args, completed, Tables::Claims)?.exit_code;
    if code != ExitCode::Success {
        return Ok(code);
    }
    let _ends = EndsProcess::start();
    write(&dir, &stream, &output)
}

/// Checks that the times are whole intervals, so that rows begin with the phases.
fn check_times(args: &RecordArgs) -> Result<(), RecordUsageError> {
    let every = args.every.get();
    let is_whole = |time: Micros| every > 0 && time.get().is_multiple_of(every);
    if args.options.quick {
        return Err(RecordUsageError::Quick);
    }
    if !is_whole(FILL) || !is_whole(args.length) || args.length.get() == 0 {
        return Err(RecordUsageError::Every { every: args.every, length: args.length });
    }
    Ok(())
}

/// Returns the plan's path, its contents, and the names of both ends.
fn base(args: &RecordArgs) -> Result<(PathBuf, Plan, [String; 2]), CliError> {
    if let (Some(path), Some(from), Some(to)) = (&args.plan, &args.from, &args.to) {
        let RunOptions { lab, sim, .. } = args.options;
        let source = PlanSource::read(path)?.for_backend(lab, sim);
        let plan = source.load_quietly(&[])?.plan().clone();
        return Ok((path.clone(), plan, [from.clone(), to.clone()]));
    }
    let (Some(peer), Some(peer_address), Some(here_address)) =
        (&args.peer, args.peer_address, args.here_address)
    else {
        return Err(RecordUsageError::NoEnds.into());
    };
    let node = |agent: &String, address| Node {
        agent: Some(agent.clone()),
        address: Some(address),
        ..Node::default()
    };
    let ends = ["here", "peer"].map(str::to_owned);
    let mut plan = Plan::new("path");
    plan.nodes.insert(ends[0].clone(), node(&args.here, here_address));
    plan.nodes.insert(ends[1].clone(), node(peer, peer_address));
    Ok((PathBuf::from("record.toml"), plan, ends))
}

/// Returns a plan with the same path, but with streams and echoes as its traffic.
fn recording_plan(base: Plan, [from, to]: [&str; 2], args: &RecordArgs) -> Plan {
    let Plan { seed, keep_awake, lab, nodes, wires, path, links, .. } = base;
    let mut plan = Plan { seed, keep_awake, lab, nodes, wires, path, links, ..Plan::new("record") };
    let stream = |from, to| Probe {
        start: IDLE,
        every: args.every,
        rate: Some(args.rate),
        ..Probe::new(ProbeKind::UdpStream, from, to)
    };
    let echo = Probe { every: ECHO_EVERY, ..Probe::new(ProbeKind::Udp, from, to) };
    // The node that measures counts what the other one sends.
    let probes = [(DOWN, stream(from, to)), (UP, stream(to, from)), (ECHO, echo)];
    plan.probes = probes.map(|(name, probe)| (name.to_owned(), probe)).into();
    let unmeasured = |name, length| Phase { measure: false, ..Phase::new(name, length) };
    plan.phases =
        vec![unmeasured("idle", IDLE), unmeasured("fill", FILL), Phase::new("record", args.length)];
    plan
}

fn stream(args: &RecordArgs) -> Stream {
    let from = IDLE + FILL;
    let window = (from, from + args.length);
    let RecordArgs { rate, every, overhead, .. } = *args;
    Stream { rate, start: IDLE, every, window, overhead }
}

/// Writes both traces and prints a description of them.
fn write(dir: &Path, stream: &Stream, output: &Path) -> Result<ExitCode, CliError> {
    let rows = Rows::read(dir)?;
    let idle_us = rows.round_trips_us(ECHO, (Micros::default(), IDLE)).first().copied();
    let loaded_us = rows.round_trips_us(ECHO, stream.window);
    // Without synchronised clocks, only the sum of both directions is known, so each gets half.
    let delay_ns = idle_us.map(|us| (us * 500.0).round() as u64);
    for direction in [DOWN, UP] {
        let recording = rows.recording(direction, stream, delay_ns)?;
        let file = named(output, direction);
        let text = trace::write(&Trace::Steps(recording.trace.clone()), Format::Ccbench)
            .map_err(|source| RecordUsageError::Format { path: file.clone(), source })?;
        write_bytes(text.as_bytes(), &file)?;
        print(&format!("{}\n", describe(direction, &recording, &file)));
    }
    match idle_us {
        Some(us) => print(&format!(
            "delay: {} ms one way in all rows, half of the lowest idle round-trip time of {} ms\n",
            short(us / 2000.0),
            short(us / 1000.0)
        )),
        None => message(format_args!(
            "note: no echo was answered on the idle path, so the traces have no delay"
        )),
    }
    if let Some(us) = loaded_us.get(loaded_us.len() / 2) {
        print(&format!(
            "round-trip time while the streams run: {} ms (median)\n",
            short(us / 1000.0)
        ));
    }
    Ok(ExitCode::Success)
}

/// Returns the file for a direction: `cell.down.csv` for `cell`.
fn named(output: &Path, direction: &str) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(format!(".{direction}.csv"));
    name.into()
}

fn describe(direction: &str, recording: &Recording, file: &Path) -> String {
    let Recording { trace, saturated, unsaturated, late, missing } = recording;
    let mut text = format!(
        "{}: {direction}, {} on average, {} rows, {saturated} of them saturated",
        file.display(),
        rate_text(mean_bps(trace)),
        trace.steps.len()
    );
    for (count, what) in [
        (unsaturated, "not saturated, so their rates are lower bounds (use a higher --rate)"),
        (
            late,
            "with a late sender or receiver, so their rates are lower bounds (use a lower --rate, or a faster machine)",
        ),
        (missing, "missing"),
    ] {
        if *count > 0 {
            text += &format!("; {count} {what}");
        }
    }
    text
}

fn mean_bps(trace: &Steps) -> f64 {
    let mean = Trace::Steps(trace.clone()).mean_rate();
    mean.map_or(0.0, |rate| rate.bits_per_sec() as f64)
}
