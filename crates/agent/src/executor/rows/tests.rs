use super::*;
use crate::flow::example_task;
use ccbench_proto::plan::Flow;
use ccbench_proto::tools::iperf3::{IntervalValues, Numbering};
use ccbench_proto::units::Micros;

const MS: u64 = 1_000_000;

fn task() -> FlowTask {
    FlowTask {
        group: "bulk".into(),
        plan: Flow { cc: Some("reno".into()), ..Flow::new("a", "b") },
        start: Micros::default(),
        stop: Micros::from_secs(1),
        ..example_task()
    }
}

/// Returns the task with other keys in the plan.
fn with(change: impl FnOnce(&mut Flow)) -> FlowTask {
    let mut task = task();
    change(&mut task.plan);
    task
}

fn ran(task: &FlowTask, end: FlowEndpoint) -> FlowRun<'_> {
    FlowRun {
        task,
        end,
        launched_at_ns: 1_000 * MS,
        interrupted_at_ns: None,
        ended_at_ns: 2_050 * MS,
        start_at_ns: 1_000 * MS,
        tool: "iperf3 3.12",
    }
}

fn report() -> Report {
    let text = include_bytes!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../proto/tests/iperf3/3.12-client-p1.json"
    ));
    Report::from_json(text, Numbering { client_port: 10_000, count: 1, listens: false })
}

fn seen(side: Side, busy_us: Option<u64>) -> SocketHistories {
    let socket = SocketHistory {
        not_before_ns: 1_000 * MS,
        first_at_ns: 1_100 * MS,
        first_busy_us: busy_us,
        first_min_rtt_us: Some(20_000),
        cc: "reno".into(),
        bytes_acked: Some(77),
        ..SocketHistory::default()
    };
    SocketHistories::from([(("bulk/0".to_owned(), side), socket)])
}

#[test]
fn finds_the_start_of_a_busy_sender() {
    let none = Report::default();
    let task = task();
    // 80 ms busy, the first 20 ms of them with the cookie: the test started 60 ms before the sample.
    let zero = zero_ns(&ran(&task, FlowEndpoint::Client), &none, &seen(Side::Sender, Some(80_000)));
    assert_eq!(zero, 1_040 * MS);
}

#[test]
fn a_test_began_between_two_samples() {
    let none = Report::default();
    let task = with(|flow| flow.reverse = true);
    assert_eq!(
        zero_ns(&ran(&task, FlowEndpoint::Server), &none, &seen(Side::Sender, None)),
        1_050 * MS
    );
    // A client learns this one round trip after its last connection was established.
    assert_eq!(
        zero_ns(&ran(&task, FlowEndpoint::Client), &none, &seen(Side::Receiver, None)),
        1_070 * MS
    );
}

#[test]
fn a_beginning_is_never_before_the_process() {
    let none = Report::default();
    let task = task();
    let zero =
        zero_ns(&ran(&task, FlowEndpoint::Client), &none, &seen(Side::Sender, Some(9_000_000)));
    assert_eq!(zero, 1_000 * MS);
    assert_eq!(
        zero_ns(&ran(&task, FlowEndpoint::Client), &none, &SocketHistories::new()),
        1_000 * MS
    );
}

#[test]
fn samples_place_the_report_in_time() {
    let task = with(|flow| flow.cc = None);
    let report = report();
    let mut seen = seen(Side::Sender, None);
    // What the application had written 0.1, 0.2 ... seconds after the real start; one sample is an outlier.
    let began = 1_033 * MS;
    let mut total = 37;
    let mut points: Vec<(u64, u64)> = report.intervals[..6]
        .iter()
        .map(|i| {
            total += i.values.bytes as u64;
            (began + (i.values.end * 1e9) as u64, total)
        })
        .collect();
    points[2].0 += 30 * MS;
    seen.values_mut().for_each(|socket| socket.points.clone_from(&points));
    let zero = zero_ns(&ran(&task, FlowEndpoint::Client), &report, &seen);
    assert!(zero.abs_diff(began) < MS, "{zero}");
}

/// Returns a report of `count` streams and the samples of their sockets. The sockets appear one by one, 20 ms apart,
/// from 1 s on; iperf3 starts at `began_ns`. `written` takes a stream and the milliseconds since then.
fn sequence(
    count: u32,
    began_ns: u64,
    written: impl Fn(u32, u64) -> u64,
) -> (Report, SocketHistories) {
    let (mut report, mut seen) = (Report::default(), SocketHistories::new());
    for stream in 0..count {
        for k in 0..40 {
            let (start, end) = (written(stream, k * 100), written(stream, k * 100 + 100));
            let mut values = IntervalValues::default();
            (values.start, values.end) = (k as f64 / 10.0, (k + 1) as f64 / 10.0);
            (values.seconds, values.bytes) = (0.1, (end - start) as f64);
            report.intervals.push(StreamInterval { stream, values });
        }
        let first_at_ns = 1_010 * MS + u64::from(stream) * 20 * MS;
        let points = (0..64).map(|k| {
            let at_ns = first_at_ns + k * 50 * MS;
            let so_far = at_ns.checked_sub(began_ns).map_or(0, |ns| written(stream, ns / MS));
            (at_ns, 37 + so_far)
        });
        let socket = SocketHistory {
            not_before_ns: first_at_ns - 10 * MS,
            first_at_ns,
            points: points.collect(),
            ..SocketHistory::default()
        };
        seen.insert((format!("bulk/{stream}"), Side::Sender), socket);
    }
    (report, seen)
}

#[test]
fn a_start_long_after_the_first_socket_was_seen_is_found() {
    for (count, began_ns) in [(1, 1_700 * MS), (10, 1_215 * MS), (10, 2_150 * MS)] {
        let (report, seen) = sequence(count, began_ns, |stream, ms| ms * (900 + u64::from(stream)));
        let task = with(|flow| flow.count = count);
        let zero = zero_ns(&ran(&task, FlowEndpoint::Client), &report, &seen);
        assert!(zero.abs_diff(began_ns) <= MS, "{count} sockets, {began_ns}: {zero}");
    }
}

#[test]
fn bytes_in_bursts_of_a_round_trip_place_a_report_as_well() {
    for rtt_ms in [130, 400] {
        let began_ns = 2_163 * MS;
        let burst = |_, ms: u64| if ms == 0 { 0 } else { (1 + ms / rtt_ms).pow(2) * 14_480 };
        let (report, seen) = sequence(10, began_ns, burst);
        let task = with(|flow| flow.count = 10);
        let zero = zero_ns(&ran(&task, FlowEndpoint::Client), &report, &seen);
        assert!(zero.abs_diff(began_ns) <= 30 * MS, "{rtt_ms} ms: {zero}");
    }
}

#[test]
fn an_interrupt_places_a_report_exactly() {
    let (mut report, seen) = sequence(10, 1_700 * MS, |_, ms| ms * 900);
    let task = with(|flow| flow.count = 10);
    let run = FlowRun { interrupted_at_ns: Some(5_000 * MS), ..ran(&task, FlowEndpoint::Client) };
    report.totals.insert(0, Totals { end_s: 3.25, ..Totals::default() });
    report.error = Some("interrupt - the client has terminated".into());
    assert_eq!(zero_ns(&run, &report, &seen), 1_750 * MS);
    report.error = Some("the server has terminated".into());
    let zero = zero_ns(&run, &report, &seen);
    assert!(zero.abs_diff(1_700 * MS) <= MS, "it was over before the interrupt: {zero}");
}

#[test]
fn without_bytes_a_start_is_when_the_last_socket_was_ready() {
    let (_, mut seen) = sequence(10, u64::MAX, |_, _| 0);
    let task = with(|flow| flow.count = 10);
    let none = Report::default();
    // The last socket appeared between 1180 and 1190 ms, and wrote its cookie 5 ms before it was seen.
    assert_eq!(zero_ns(&ran(&task, FlowEndpoint::Client), &none, &seen), 1_185 * MS);
    for socket in seen.values_mut() {
        (socket.first_busy_us, socket.first_min_rtt_us) = (Some(5_000), Some(100_000));
    }
    assert_eq!(zero_ns(&ran(&task, FlowEndpoint::Client), &none, &seen), 1_285 * MS);
}

#[test]
fn rows_are_on_the_monotonic_clock() {
    let task = task();
    let rows = intervals(&ran(&task, FlowEndpoint::Client), &report().intervals, 1_040 * MS);
    assert_eq!(rows.len(), 10);
    assert_eq!(rows[0].at_ns, 1_040 * MS + 100_125_000);
    assert_eq!((rows[0].flow_id.as_str(), rows[0].side()), ("bulk/0", Side::Sender));
    let rate = rows[0].bytes as f64 * 8.0 / rows[0].seconds;
    assert!((rows[0].bits_per_second - rate).abs() < 1.0);
}

#[test]
fn a_flow_has_a_row_per_connection_and_one_for_control() {
    let task = task();
    let rows = flows(
        &ran(&task, FlowEndpoint::Client),
        &report(),
        0,
        1_040 * MS,
        &seen(Side::Sender, Some(80_000)),
    );
    assert_eq!(rows.len(), 2);
    let (data, control) = (&rows[0], &rows[1]);
    assert_eq!((data.sport, data.dport, data.role()), (10_000, 5201, Role::Data));
    assert_eq!((data.cc_requested.as_str(), data.cc_actual.as_str()), ("reno", "reno"));
    assert_eq!(data.start_s, Some(0.04));
    assert!(data.stop_s.is_some_and(|s| (1.03..1.06).contains(&s)), "{data:?}");
    assert_eq!(data.bytes, report().totals[&0].received_bytes, "what the receiver reported");
    assert_eq!((control.flow_id.as_str(), control.role()), ("bulk/control", Role::Control));
    assert_eq!(control.cc_requested, "", "none requested");
}

#[test]
fn receiver_rows_have_no_congestion_control() {
    let task = task();
    let rows =
        flows(&ran(&task, FlowEndpoint::Server), &report(), 0, 0, &seen(Side::Receiver, None));
    assert_eq!((rows[0].side(), rows[0].cc_actual.as_str()), (Side::Receiver, ""));
}

#[test]
fn ignores_harmless_errors() {
    let task = task();
    let (good, end) = (report(), FlowOutput::default());
    let run = ran(&task, FlowEndpoint::Client);
    assert_eq!(flow_error(&run, &end, &good, false), None);
    let mut interrupted = report();
    interrupted.error = Some("interrupt - the client has terminated".into());
    assert_eq!(flow_error(&run, &end, &interrupted, false), None, "at its time");
    assert_eq!(flows(&run, &interrupted, 1, 0, &SocketHistories::new())[0].exit_code, None);
    for late in [
        "unable to receive results: Bad file descriptor",
        "control socket has closed unexpectedly",
        "unable to write to stream socket: Connection reset by peer",
    ] {
        let with = |error: &str, mut report: Report| {
            report.error = Some(error.to_owned());
            report
        };
        assert_eq!(flow_error(&run, &end, &with(late, report()), false), None, "at its time");
        let early = FlowRun { ended_at_ns: 1_500 * MS, ..run.clone() };
        assert!(
            flow_error(&early, &end, &with(late, report()), false).is_some(),
            "before its time"
        );
        let dead = with(late, Report::default());
        assert!(flow_error(&run, &end, &dead, false).is_some(), "without data");
    }
    let early = FlowRun { ended_at_ns: 1_500 * MS, ..run.clone() };
    assert!(flow_error(&early, &end, &interrupted, false).unwrap().contains("terminated"));
    assert!(flow_error(&early, &end, &good, false).unwrap().contains("0.5 s early"));
    assert!(flow_error(&run, &end, &good, true).unwrap().contains("was killed"));
    let dead = FlowOutput {
        exit_code: 127,
        errors: "iperf3: not found\n".into(),
        ..FlowOutput::default()
    };
    assert_eq!(
        flow_error(&run, &dead, &Report::default(), false).unwrap(),
        "iperf3 client left no report (exit code 127): iperf3: not found"
    );
}

#[test]
fn dropped_bytes_of_a_report_are_an_error() {
    let task = task();
    let run = ran(&task, FlowEndpoint::Client);
    assert_eq!(lost_rows(&run, 0), None);
    let lost = lost_rows(&run, 70).unwrap();
    assert_eq!(lost, "iperf3 client wrote 70 bytes more than the agent keeps: rows are missing");
}
