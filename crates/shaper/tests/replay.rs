//! Tests trace replay on both backends with real traffic in network namespaces: throughput must follow the trace. Needs root, iproute2 and
//! a kernel with htb, clsact, u32, mirred and veth. Reads real traces from the directory CCBENCH_TRACES: the first CCBENCH_TRACE_SECONDS of
//! each (default: all), with rates divided by CCBENCH_TRACE_SCALE for slow machines, and only those whose path contains CCBENCH_TRACE_ONLY.
#![allow(clippy::disallowed_methods, reason = "a test measures real time")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use ccbench_proto::plan::{self, Backend, OnEnd, Queue, TraceUse};
use ccbench_proto::resolve::LinkConfig;
use ccbench_proto::trace::{self, Cursor, Format, Replay, Trace};
use ccbench_proto::units::{Bytes, Limit, Micros, Rate};
use ccbench_proto::wire::{LinkChange, LinkTiming, TimingKind};
use ccbench_shaper::clock::monotonic_ns;
use ccbench_shaper::{Link, ShaperError};
use ccbench_tests::cpu::{CpuReport, CpuWatch};
use lab::{DST, Lab, SRC};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::UdpGsoSegment;

#[allow(dead_code, reason = "other tests need more of it")]
#[path = "user_link/lab.rs"]
mod lab;

/// Timeout of expected conditions.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

fn config(trace: Trace, on_end: OnEnd, backend: Backend) -> LinkConfig {
    let mean = trace.mean_rate().unwrap().bits_per_sec();
    let floor = (backend == Backend::Kernel).then(|| Rate::from_bits_per_sec(1_000_000));
    let used = TraceUse { on_end, floor, ..TraceUse::new("test") };
    // Enough for the largest burst of a trace.
    let limit = Limit::Bytes(Bytes::new((mean / 8 / 20).max(2_000_000)));
    let plan = plan::Link { backend, ..plan::Link::default() };
    LinkConfig {
        trace: Some(Replay { trace: Arc::new(trace), plan: used }),
        seed: 3,
        ..LinkConfig::new("bottleneck", plan, Queue::bfifo(limit))
    }
}

/// Delivered bytes compared with the trace, per window.
#[derive(Debug)]
struct Outcome {
    /// Sum of absolute differences, relative to the bytes of the trace.
    mean_error: f64,
    total_error: f64,
    correlation: f64,
    changes: Vec<LinkChange>,
    timing: Vec<LinkTiming>,
    cpu: CpuReport,
}

fn charged(link: &mut dyn Link) -> u64 {
    let mut rows = Vec::new();
    link.counters(monotonic_ns(), &mut rows).unwrap();
    rows.iter().find(|row| matches!(row.kind.as_str(), "htb" | "userspace")).unwrap().sent_bytes
}

/// Sends full frames faster than the link does, so that its queue is never empty.
fn flood(going: &AtomicBool, bps: u64) {
    const PAYLOAD: usize = 1472;
    const FRAMES: usize = 40;
    let socket = UdpSocket::bind((SRC, 0)).unwrap();
    socket.connect((DST, 5000)).unwrap();
    // The kernel segments the super-packets.
    setsockopt(&socket, UdpGsoSegment, &(PAYLOAD as i32)).unwrap();
    let block = vec![0; PAYLOAD * FRAMES];
    let start_ns = monotonic_ns();
    let mut sent_bits = 0;
    while !going.load(Relaxed) {
        let owed_bits = u128::from(bps) * u128::from(monotonic_ns() - start_ns) / 1_000_000_000;
        while sent_bits < owed_bits {
            let _ = socket.send(&block);
            sent_bits += (1514 * FRAMES * 8) as u128;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Returns the steps of a trace that a link has applied, or skipped because they were late and the next one was due.
fn handled_steps(timing: &[LinkTiming]) -> u64 {
    let steps = timing.iter().filter(|row| row.kind() == TimingKind::Steps);
    steps.map(|row| row.count + row.missed).sum()
}

/// Overloads the link for `seconds` of its trace and compares throughput with it; `steps` are due in this time.
fn play(config: LinkConfig, seconds: f64, window_s: f64, steps: u64) -> Outcome {
    let lab = Lab::alone();
    let replay = config.trace.clone().unwrap();
    let mut link = lab.router.run(move || ccbench_shaper::open(&config, "r1").unwrap());
    // Nobody reads this socket: datagrams that its buffer cannot hold are dropped without a reply.
    let sink = lab.dst.run(|| UdpSocket::bind((DST, 5000)).unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let going = Arc::clone(&stop);
    let most_bps = replay.trace.summary().max_rate.unwrap().bits_per_sec();
    let sent = lab.src.start(move || flood(&going, most_bps + most_bps / 5 + 2_000_000));
    let watch = CpuWatch::start();
    // The queue fills during the first row.
    std::thread::sleep(Duration::from_millis(300));
    let sample = |link: &mut dyn Link| {
        let before_ns = monotonic_ns();
        let bytes = charged(link);
        (before_ns.midpoint(monotonic_ns()), bytes as f64)
    };
    // There is a sample before the beginning and one after the end, however late this thread runs.
    let mut samples = vec![sample(&mut *link)];
    let begin_ns = monotonic_ns() + 50_000_000;
    link.begin(begin_ns).unwrap();
    let end_ns = begin_ns + (seconds * 1e9) as u64;
    let (mut changes, mut timing) = (Vec::new(), Vec::new());
    while samples.last().is_some_and(|(at_ns, _)| *at_ns <= end_ns) {
        samples.push(sample(&mut *link));
        link.changes(&mut changes);
        std::thread::sleep(Duration::from_millis(4));
    }
    // If the thread of a kernel link gets no CPU, it applies the last steps later.
    let limit_ns = monotonic_ns() + WAIT_TIMEOUT.as_nanos() as u64;
    loop {
        timing.clear();
        link.timing(&mut timing);
        link.changes(&mut changes);
        if handled_steps(&timing) >= steps || monotonic_ns() > limit_ns {
            break;
        }
        std::thread::sleep(Duration::from_millis(4));
    }
    stop.store(true, Relaxed);
    let cpu = watch.report();
    drop(link);
    sent.recv().unwrap();
    drop(sink);
    let delivered = |at_ns: u64| {
        let after = samples.partition_point(|sample| sample.0 < at_ns);
        let [(t0, b0), (t1, b1)] = [samples[after - 1], samples[after]];
        b0 + (b1 - b0) * (at_ns - t0) as f64 / (t1 - t0) as f64
    };
    let windows = (seconds / window_s) as u64;
    let edges: Vec<u64> =
        (0..=windows).map(|nth| begin_ns + (nth as f64 * window_s * 1e9) as u64).collect();
    let had: Vec<f64> =
        edges.windows(2).map(|edge| delivered(edge[1]) - delivered(edge[0])).collect();
    let due: Vec<f64> =
        edges.windows(2).map(|edge| capacity(&replay, begin_ns, edge[0], edge[1])).collect();
    let sum = |all: &[f64]| all.iter().sum::<f64>();
    let off: f64 = had.iter().zip(&due).map(|(had, due)| (had - due).abs()).sum();
    Outcome {
        mean_error: off / sum(&due),
        total_error: sum(&had) / sum(&due) - 1.0,
        correlation: correlation(&had, &due),
        changes,
        timing,
        cpu,
    }
}

/// Returns the capacity of a trace in an interval, bytes.
fn capacity(replay: &Replay, begin_ns: u64, from_ns: u64, to_ns: u64) -> f64 {
    let Some(mut cursor) = Cursor::new(replay, begin_ns) else {
        let Trace::Opportunities(all) = &*replay.trace else { unreachable!() };
        let within = |at: &&u64| (from_ns - begin_ns..to_ns - begin_ns).contains(*at);
        // Full frames: 1500 bytes of IP and the Ethernet header.
        return all.at_ns.iter().filter(within).count() as f64 * 1514.0;
    };
    cursor.seek(from_ns);
    let mut bits = 0.0;
    loop {
        let span = cursor.span();
        let (from, to) = (span.from_ns.max(from_ns), span.until_ns.min(to_ns));
        bits += span.rate.unwrap().bits_per_sec() as f64 * to.saturating_sub(from) as f64 / 1e9;
        if span.until_ns >= to_ns || !cursor.advance() {
            return bits / 8.0;
        }
    }
}

fn correlation(one: &[f64], other: &[f64]) -> f64 {
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    let (m, n) = (mean(one), mean(other));
    let both: f64 = one.iter().zip(other).map(|(a, b)| (a - m) * (b - n)).sum();
    let square = |all: &[f64], mean: f64| all.iter().map(|a| (a - mean).powi(2)).sum::<f64>();
    both / (square(one, m) * square(other, n)).sqrt()
}

/// Three seconds at 6 to 40 Mbit/s.
const SHORT: &str =
    "20,0.3\n40,0.2\n6,0.4\n30,0.05\n12,0.25\n36,0.3\n8,0.1\n24,0.4\n16,0.5\n40,0.5\n";

/// Steps in four seconds: ten, and those at 3, 3.3, 3.5 and 3.9 s.
const SHORT_STEPS: u64 = 14;

fn short() -> Trace {
    trace::parse("short", SHORT.as_bytes()).unwrap()
}

#[test]
fn userspace_link_follows_a_trace_and_reports_its_rows() {
    let outcome = play(config(short(), OnEnd::Loop, Backend::Userspace), 4.0, 0.25, SHORT_STEPS);
    // These rows are computed from the trace, so none is missing.
    assert!(outcome.changes.len() as u64 >= SHORT_STEPS, "{outcome:?}");
    assert!(
        outcome.changes.iter().all(|row| row.requested_at_ns == row.applied_at_ns && row.rc == 0)
    );
    assert_eq!(
        (&*outcome.changes[1].source, outcome.changes[1].rate_bps),
        ("trace row 2", Some(40_000_000))
    );
    assert!(handled_steps(&outcome.timing) >= SHORT_STEPS, "{outcome:?}");
    assert!(outcome.timing.iter().all(|row| row.missed == 0), "{outcome:?}");
    // 2 % of 4 s are 80 ms.
    outcome.cpu.check(Duration::from_millis(40), || {
        assert!(outcome.mean_error < 0.02 && outcome.correlation > 0.998, "{outcome:?}");
    });
}

#[test]
fn kernel_link_follows_a_trace_and_reports_every_step() {
    let outcome = play(config(short(), OnEnd::Loop, Backend::Kernel), 4.0, 0.25, SHORT_STEPS);
    assert!(
        outcome.changes.iter().all(|row| row.applied_at_ns >= row.requested_at_ns && row.rc == 0)
    );
    let steps = outcome.timing.iter().find(|row| row.kind() == TimingKind::Steps).unwrap();
    // If the thread gets no CPU until the next step is due, the step counts as missed.
    assert!(steps.count + steps.missed >= SHORT_STEPS, "{outcome:?}");
    assert!(outcome.changes.len() as u64 >= steps.count, "{outcome:?}");
    assert!(steps.p50_us <= steps.p99_us && steps.p99_us <= steps.max_us, "{steps:?}");
    // As above. A step of the kernel link may wait for a thread without real-time priority.
    outcome.cpu.check(Duration::from_millis(40), || {
        assert_eq!(steps.missed, 0, "{outcome:?}");
        assert!(outcome.mean_error < 0.08 && outcome.correlation > 0.98, "{outcome:?}");
    });
}

#[test]
fn follows_delivery_opportunities() {
    let made = trace::generate::generate(trace::generate::Kind::Lte, 5, Micros::from_secs(4), None);
    let outcome = play(config(made.unwrap(), OnEnd::Loop, Backend::Userspace), 3.9, 0.3, 1);
    assert_eq!(outcome.changes.len(), 1);
    outcome.cpu.check(Duration::from_millis(40), || {
        assert!(outcome.mean_error < 0.03 && outcome.correlation > 0.995, "{outcome:?}");
    });
}

#[test]
fn kernel_link_rejects_unsupported_traces_with_their_line() {
    let refused = |text: &str, on_end| {
        let trace = trace::parse("t.csv", text.as_bytes()).unwrap();
        let mut config = config(trace, on_end, Backend::Kernel);
        let replay = config.trace.as_mut().unwrap();
        replay.plan.floor = None;
        let lab = Lab::new();
        let error = lab.router.run(move || ccbench_shaper::open(&config, "r1").err().unwrap());
        assert!(matches!(error, ShaperError::Unsupported { .. }), "{error}");
        error.to_string()
    };
    let zero = refused("10,1\n0,1\n", OnEnd::Hold);
    assert!(zero.contains("test:2") && zero.contains("`floor`"), "{zero}");
    assert!(refused("10,1\n", OnEnd::Stop).contains("userspace"));
    assert!(refused("1\n2\n3\n", OnEnd::Hold).contains("opportunities"));
    assert!(refused("t_us,rate_bps,delay_us\n0,8000000,1\n", OnEnd::Hold).contains("test:2"));
}

#[test]
fn auto_selects_userspace_for_traces_unsupported_by_qdiscs() {
    let trace = trace::parse("t.csv", b"10,1\n0,1\n").unwrap();
    let mut config = config(trace, OnEnd::Hold, Backend::Auto);
    config.trace.as_mut().unwrap().plan.floor = None;
    let lab = Lab::new();
    let mut link = lab.router.run(move || ccbench_shaper::open(&config, "r1").unwrap());
    assert_eq!(
        link.state().backend(),
        ccbench_proto::wire::Backend::Userspace,
        "{:?}",
        link.state()
    );
    assert!(link.set_rate(Rate::from_bits_per_sec(1)).is_err());
}

#[test]
fn both_backends_follow_real_traces() {
    let Some(dir) = std::env::var_os("CCBENCH_TRACES") else {
        return ccbench_tests::skip::skip("CCBENCH_TRACES names no directory of real traces");
    };
    let most =
        std::env::var("CCBENCH_TRACE_SECONDS").map_or(f64::MAX, |text| text.parse().unwrap());
    let only = std::env::var("CCBENCH_TRACE_ONLY").unwrap_or_default();
    let scale = std::env::var("CCBENCH_TRACE_SCALE").map_or(1, |text| text.parse().unwrap());
    let (mut failed, mut played) = (Vec::new(), 0);
    for file in [
        "mmwave/sl-tput.csv",
        "mmwave/sb-tput.csv",
        "mmwave/lb-tput.csv",
        "mmwave/mobb-tput.csv",
        "mahimahi/Verizon-LTE-short.down",
        "mahimahi/ATT-LTE-driving-2016.down",
    ] {
        if !file.contains(&only) {
            continue;
        }
        let bytes = std::fs::read(std::path::Path::new(&dir).join(file)).unwrap();
        let trace = scaled(trace::parse(file, &bytes).unwrap(), scale);
        let seconds = (trace.length_ns() as f64 / 1e9).min(most).floor();
        for backend in [Backend::Userspace, Backend::Kernel] {
            let trace = match (backend, &trace) {
                // Qdiscs support only rates, so convert to rates per 100 ms.
                (Backend::Kernel, Trace::Opportunities(_)) => {
                    let text = trace::write(&trace, Format::Timed).unwrap();
                    trace::parse_as(file, text.as_bytes(), Format::Timed).unwrap()
                }
                _ => trace.clone(),
            };
            let outcome = play(config(trace, OnEnd::Hold, backend), seconds, 1.0, 0);
            println!(
                "{file} {backend:?}: {seconds} s, mean error {:.2} %, total {:+.2} %, correlation {:.5}, {} rows, steps {:?}",
                outcome.mean_error * 100.0,
                outcome.total_error * 100.0,
                outcome.correlation,
                outcome.changes.len(),
                outcome
                    .timing
                    .iter()
                    .find(|row| row.kind() == TimingKind::Steps)
                    .map(|row| (row.p50_us, row.p99_us, row.max_us, row.missed)),
            );
            let (most, least) =
                if backend == Backend::Userspace { (0.02, 0.99) } else { (0.2, 0.95) };
            // Neither holds for NaN.
            let follows = outcome.mean_error <= most && outcome.correlation >= least;
            played += 1;
            if !follows {
                failed.push(format!("{file} {backend:?}"));
            }
        }
    }
    assert!(played > 0, "CCBENCH_TRACE_ONLY={only} is part of no name");
    assert!(failed.is_empty(), "{failed:?}");
}

/// Returns the trace with its rates divided by `divisor`.
fn scaled(trace: Trace, divisor: u64) -> Trace {
    let Trace::Steps(mut steps) = trace else { return trace };
    for step in &mut steps.steps {
        step.rate = step.rate.map(|rate| Rate::from_bits_per_sec(rate.bits_per_sec() / divisor));
    }
    Trace::Steps(steps)
}
