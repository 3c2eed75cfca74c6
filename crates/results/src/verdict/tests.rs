//! Tests every check once satisfied and once not. The trial takes 10 s. In `main`, from 0 to 10 s, two flows use cubic over a bottleneck of
//! 8 Mbit/s (1 MB/s) with 10 ms of delay.

use ccbench_proto::event::{BaseRtt, Kind, NoData};
use ccbench_proto::plan::check::TraceFacts;
use ccbench_proto::plan::{check, parse};
use ccbench_proto::trace::{Step, Steps, Trace};
use ccbench_proto::units::Rate;
use ccbench_proto::wire::{
    Done, Event, Flow, FlowSample, HostSample, Interval, LinkChange, LinkTiming, NodeInfo,
    QdiscSample, Role, Side, TimingKind,
};

use super::*;

mod events;
mod finite;
mod samples;
mod unreadable;

const PLAN: &str = r#"
name = "judged"
[nodes]
src = {}
mid = {}
dst = {}
[wires]
path = ["src", "mid", "dst"]
[links.bottleneck]
node = "mid"
toward = "dst"
rate = "8mbit"
queue = { kind = "bfifo", limit = "30000B" }
[links.delay]
node = "src"
toward = "dst"
delay = "10ms"
[flows.main]
from = "src"
to = "dst"
cc = "cubic"
count = 2
[[phases]]
name = "only"
length = "10s"
flows = ["main"]
"#;

const T0_NS: u64 = 50_000_000_000;
const MS: u64 = 1_000_000;

fn at(ms: u64) -> u64 {
    T0_NS + ms * MS
}

/// The events of a trial; the defaults make a good one.
#[derive(Clone)]
struct Scenario {
    busy_pct: f64,
    busy_samples: u64,
    softnet_dropped: u64,
    bytes_per_s: u64,
    backlog_bytes: u64,
    base_rtt_us: f64,
    cc: &'static str,
    sampled_ms: (u64, u64),
    sample_every_ms: u64,
    first_data_ms: u64,
    stalled_ms: (u64, u64),
    overrun_ms: u64,
    srtt_ms: u32,
    exit_code: Option<i32>,
    late_pkts: u64,
    change_rc: i32,
    done: Done,
    lost: bool,
    event: Option<(Option<Kind>, &'static str)>,
    queue: &'static str,
    /// Additional keys of the flow group.
    flow_keys: &'static str,
    /// When the plan changes the bottleneck's rate, and to what.
    change: Option<(u64, &'static str)>,
    /// From this instant on, the bottleneck sends half as much.
    halved_ms: u64,
    /// The bottleneck's time without a transmission per second; `None` if the link is the kernel's.
    idle_us_per_s: Option<u64>,
    /// Whether the bottleneck's rate comes from a trace: 8 Mbit/s, and 4 from 4 s on.
    traced: bool,
    timing: Option<LinkTiming>,
    /// Whether the nodes' CPU utilisation has no meaning.
    ignores_cpu: bool,
    /// Whether the nodes have no machines, so that there are no samples of machines.
    without_machines: bool,
    /// The node whose agent is stopped, from and until these instants.
    stopped: Option<(&'static str, u64, u64)>,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            busy_pct: 100.0,
            busy_samples: 4,
            softnet_dropped: 0,
            bytes_per_s: 1_000_000,
            backlog_bytes: 20_000,
            base_rtt_us: 10_150.0,
            cc: "cubic",
            sampled_ms: (100, 10_000),
            sample_every_ms: 100,
            first_data_ms: 200,
            stalled_ms: (0, 0),
            overrun_ms: 0,
            srtt_ms: 20,
            exit_code: Some(0),
            late_pkts: 5,
            change_rc: 0,
            done: Done { rows_sent: 500, rows_dropped: 0, samples_late: 4, samples_missed: 0 },
            lost: false,
            event: None,
            queue: "bfifo",
            flow_keys: "",
            change: None,
            halved_ms: u64::MAX,
            idle_us_per_s: None,
            traced: false,
            timing: None,
            ignores_cpu: false,
            without_machines: false,
            stopped: None,
        }
    }
}

impl Scenario {
    fn judged(&self) -> Verdict {
        let text = match self.queue {
            "fq" => PLAN.replace(r#"{ kind = "bfifo", limit = "30000B" }"#, r#"{ kind = "fq" }"#),
            "classes" => {
                let class = "[links.bottleneck.classes.main]\nrate = \"4mbit\"\nmatch = { flow = \"main\" }\n";
                PLAN.to_owned() + class
            }
            _ => PLAN.to_owned(),
        };
        let change = self.change.map_or(String::new(), |(at_ms, rate)| {
            format!("[[changes]]\nat = \"{at_ms}ms\"\nset = {{ \"links.bottleneck.rate\" = \"{rate}\" }}\n")
        });
        let text = text.replace("[flows.main]\n", &format!("[flows.main]\n{}", self.flow_keys));
        let text = text + &change;
        let (plan, _) = match self.traced {
            true => read_traced(&text),
            false => check::check(parse::parse(&text).unwrap()).unwrap(),
        };
        let clock = NodeClock::shared(T0_NS, 0);
        let names = ["src", "mid", "dst"].map(str::to_owned);
        let info = NodeInfo { boot_id: "one machine".into(), ..Default::default() };
        let nodes = names.iter().map(|name| (name.clone(), info.clone())).collect();
        let clocks = names.iter().map(|name| (name.clone(), clock.clone())).collect();
        let mut judge = Judge::new(&plan, &nodes, &clocks);
        if self.ignores_cpu {
            judge.ignore_cpu_utilisation();
        }
        if self.without_machines {
            judge.ignore_machines();
        }
        let mut see = |node: &str, payload: Payload| {
            if !self.is_lost(node, &payload) {
                judge.observe(node, &RunEvent { payload: Some(payload) });
            }
        };
        self.emit_machines(&mut see);
        self.emit_flows(&mut see);
        let mut done: BTreeMap<String, Done> =
            names.into_iter().map(|name| (name, Done::default())).collect();
        done.insert("src".into(), self.done);
        if self.lost {
            done.remove("dst");
        }
        judge.finish(&done, &[])
    }

    /// Returns whether the agent was stopped when it should have taken this sample, or could not take it.
    fn is_lost(&self, node: &str, payload: &Payload) -> bool {
        let at_ns = match payload {
            Payload::FlowSample(row) => row.at_ns,
            Payload::QdiscSample(row) => row.at_ns,
            Payload::HostSample(_) if self.without_machines => return true,
            Payload::HostSample(row) => row.at_ns,
            _ => return false,
        };
        let during = |from, to| (at(from)..at(to)).contains(&at_ns);
        self.stopped.is_some_and(|(stopped, from, to)| stopped == node && during(from, to))
    }

    fn emit_machines(&self, see: &mut impl FnMut(&str, Payload)) {
        for i in 0..20 {
            for node in ["src", "mid", "dst"] {
                let cpu_max_busy_pct = if i < self.busy_samples { self.busy_pct } else { 50.0 };
                let at_ns = at(i * 500);
                let softnet_dropped = self.softnet_dropped;
                see(
                    node,
                    Payload::HostSample(HostSample {
                        at_ns,
                        cpu_max_busy_pct,
                        softnet_dropped,
                        ..Default::default()
                    }),
                );
            }
        }
        for i in 0..100 {
            // The root's own backlog includes everything below it. Class 1:1 has as many bytes, but no backlog.
            for (kind, handle, parent, share) in [
                ("htb", "1:", "root", 1),
                ("htb class", "1:1", "root", 0),
                ("bfifo", "10:", "1:1", 0),
            ] {
                let row = QdiscSample {
                    at_ns: at(i * 100),
                    link: "bottleneck".into(),
                    handle: handle.into(),
                    parent: parent.into(),
                    kind: kind.into(),
                    sent_bytes: (i * 100 + (i * 100).min(self.halved_ms)) * self.bytes_per_s / 2000,
                    sent_pkts: 1000,
                    backlog_bytes: self.backlog_bytes * share,
                    late_pkts: Some(self.late_pkts),
                    idle_us: self.idle_us_per_s.map(|us| 5_000_000 + i * us / 10),
                    ..Default::default()
                };
                see("mid", Payload::QdiscSample(row));
            }
            let (at_ns, link) = (at(i * 100), "delay".into());
            see("src", Payload::QdiscSample(QdiscSample { at_ns, link, ..Default::default() }));
        }
        let change =
            LinkChange { link: "bottleneck".into(), rc: self.change_rc, ..Default::default() };
        see("mid", Payload::LinkChange(change));
        if let Some(row) = &self.timing {
            see("mid", Payload::LinkTiming(row.clone()));
        }
        let rtt = BaseRtt { min_us: Some(self.base_rtt_us), n: 5 };
        let rtt = Event {
            at_ns: at(0),
            kind: Some(Kind::BaseRtt(rtt)),
            subject: "dst".into(),
            ..Default::default()
        };
        see("src", Payload::Event(rtt));
        if let Some((kind, message)) = &self.event {
            let event = Event {
                kind: kind.clone(),
                subject: "main".into(),
                message: (*message).into(),
                ..Default::default()
            };
            see("src", Payload::Event(event));
        }
    }

    /// Returns the bytes of data that have arrived.
    fn delivered(&self, ms: u64) -> u64 {
        let (from, to) = self.stalled_ms;
        let ms = if (from..to).contains(&ms) { from } else { ms };
        (ms + 1).saturating_sub(self.first_data_ms) * 1000
    }

    fn emit_flows(&self, see: &mut impl FnMut(&str, Payload)) {
        for index in 0..2 {
            let flow_id = format!("main/{index}");
            let (from, to) = self.sampled_ms;
            for ms in (from..to).step_by(self.sample_every_ms as usize) {
                let sample = FlowSample {
                    at_ns: at(ms),
                    flow_id: flow_id.clone(),
                    group: "main".into(),
                    side: Side::Sender.into(),
                    role: Role::Data.into(),
                    cc: self.cc.into(),
                    rtt_us: Some(self.srtt_ms * 1000),
                    // SYN and cookie. From the first data on, 1000 bytes per millisecond except during the stall.
                    bytes_acked: Some(38 + self.delivered(ms)),
                    ..Default::default()
                };
                see("src", Payload::FlowSample(sample));
            }
            for ms in (from..to + self.overrun_ms).step_by(self.sample_every_ms as usize) {
                let sample = FlowSample {
                    at_ns: at(ms),
                    flow_id: flow_id.clone(),
                    group: "main".into(),
                    side: Side::Receiver.into(),
                    role: Role::Data.into(),
                    bytes_received: Some(37 + self.delivered(ms)),
                    ..Default::default()
                };
                see("dst", Payload::FlowSample(sample));
            }
            let interval = Interval {
                at_ns: at(self.first_data_ms + 100),
                flow_id: flow_id.clone(),
                side: Side::Receiver.into(),
                seconds: 0.1,
                bytes: u64::from(self.first_data_ms < 10_000),
                ..Default::default()
            };
            see("dst", Payload::Interval(interval));
            let row = Flow {
                flow_id,
                side: Side::Sender.into(),
                role: Role::Data.into(),
                exit_code: self.exit_code,
                ..Default::default()
            };
            see("src", Payload::Flow(row));
        }
    }
}

/// Reads the plan with a trace instead of the rate.
fn read_traced(text: &str) -> (CheckedPlan, Vec<check::PlanProblem>) {
    let text = text.replace("rate = \"8mbit\"", "trace = { file = \"a.csv\" }");
    let step = |s: u64, mbit: u64| Step {
        at_ns: s * 1000 * MS,
        rate: Some(Rate::from_bits_per_sec(mbit * 1_000_000)),
        delay_ns: None,
        loss: None,
        line: 0,
    };
    let steps = Steps { steps: vec![step(0, 8), step(4, 4)], length_ns: 10_000 * MS };
    let facts = TraceFacts { sha256: "0".repeat(64), trace: Trace::Steps(steps).into() };
    check::read_with(&text, &[], [("a.csv".to_owned(), Ok(facts))].into()).unwrap()
}

/// Asserts that the scenario ends with exactly this reason, and returns its message.
#[track_caller]
fn only(scenario: &Scenario, status: Status, code: &str) -> String {
    let verdict = scenario.judged();
    let codes: Vec<&str> = verdict.reasons.iter().map(|r| r.code.as_str()).collect();
    assert_eq!((verdict.status, codes), (status, vec![code]), "{:?}", verdict.reasons);
    verdict.reasons[0].message.clone()
}

#[track_caller]
fn fine(scenario: &Scenario) {
    let verdict = scenario.judged();
    assert_eq!((verdict.status, &verdict.reasons), (Status::Ok, &vec![]));
}

#[test]
fn trial_as_planned_is_ok() {
    fine(&Scenario::default());
}

#[test]
fn busy_cpu_is_reported_once_per_machine() {
    let scenario = Scenario { busy_samples: 5, ..Scenario::default() };
    let message = only(&scenario, Status::Degraded, "cpu_bound");
    assert!(message.starts_with("this machine (nodes dst, mid, src): the busiest"), "{message}");
    fine(&Scenario { busy_samples: 20, busy_pct: 94.9, ..Scenario::default() });
    fine(&Scenario { busy_samples: 20, ignores_cpu: true, ..Scenario::default() });
}

#[test]
fn softnet_drops_degrade() {
    let message = only(
        &Scenario { softnet_dropped: 1, ..Scenario::default() },
        Status::Degraded,
        "softnet_dropped",
    );
    assert!(message.contains("20 packets"), "{message}");
}

#[test]
fn backlogged_link_below_its_rate_degrades_idle_one_does_not() {
    let scenario = Scenario { bytes_per_s: 950_000, ..Scenario::default() };
    let message = only(&scenario, Status::Degraded, "link_rate_low");
    assert!(message.contains("7.600 Mbit/s") && message.contains("8.000 Mbit/s"), "{message}");
    fine(&Scenario { bytes_per_s: 975_000, ..Scenario::default() });
    fine(&Scenario { bytes_per_s: 100_000, backlog_bytes: 0, ..Scenario::default() });
    fine(&Scenario { bytes_per_s: 100_000, queue: "fq", ..Scenario::default() });
    // A class is full, but the link is not.
    fine(&Scenario { bytes_per_s: 500_000, queue: "classes", ..Scenario::default() });
}

#[test]
fn a_link_that_was_idle_between_samples_is_not_low() {
    let bursty = |idle_us_per_s| Scenario {
        bytes_per_s: 850_000,
        idle_us_per_s: Some(idle_us_per_s),
        ..Scenario::default()
    };
    fine(&bursty(150_000));
    only(&bursty(500), Status::Degraded, "link_rate_low");
}

#[test]
fn link_above_its_rate_degrades() {
    for backlog_bytes in [0, 20_000] {
        let scenario = Scenario { bytes_per_s: 1_040_000, backlog_bytes, ..Scenario::default() };
        only(&scenario, Status::Degraded, "link_rate_high");
    }
    fine(&Scenario { bytes_per_s: 1_018_000, ..Scenario::default() });
}

#[test]
fn link_rate_is_judged_between_changes() {
    let change = Some((4_000, "4mbit"));
    fine(&Scenario { change, halved_ms: 4_100, ..Scenario::default() });
    let never = Scenario { change, ..Scenario::default() };
    let message = only(&never, Status::Degraded, "link_rate_high");
    assert!(message.contains("link bottleneck from 4.2 s on: sent 8.000 Mbit/s"), "{message}");
    let early = Scenario { change, halved_ms: 1_000, ..Scenario::default() };
    let message = only(&early, Status::Degraded, "link_rate_low");
    assert!(message.contains("link bottleneck from 0.0 s on"), "{message}");
}

#[test]
fn traced_link_is_judged_by_its_trace() {
    fine(&Scenario { traced: true, halved_ms: 4_000, ..Scenario::default() });
    let idle =
        Scenario { traced: true, bytes_per_s: 100_000, backlog_bytes: 0, ..Scenario::default() };
    fine(&idle);
    let constant = Scenario { traced: true, ..Scenario::default() };
    let message = only(&constant, Status::Degraded, "link_rate_high");
    assert!(
        message.contains("by its trace: sent 8.000 Mbit/s in one second, but the plan sets 4.000"),
        "{message}"
    );
    let early = Scenario { traced: true, halved_ms: 1_000, ..Scenario::default() };
    let message = only(&early, Status::Degraded, "link_rate_low");
    assert!(message.contains("low in 3 of 9 seconds (lowest: 4."), "{message}");
}

#[test]
fn late_trace_steps_degrade_and_missed_ones_fail() {
    let steps = |p99_us, missed| Scenario {
        timing: Some(LinkTiming {
            link: "bottleneck".into(),
            kind: TimingKind::Steps.into(),
            count: 1000,
            missed,
            p99_us,
            max_us: 2_000.0,
            ..LinkTiming::default()
        }),
        ..Scenario::default()
    };
    fine(&steps(1_000.0, 1));
    let message = only(&steps(1_100.0, 0), Status::Degraded, "trace_late");
    assert!(message.contains("p99 1100 us, max 2000 us; 0 of 1000"), "{message}");
    only(&steps(10.0, 2), Status::Degraded, "trace_late");
    only(&steps(10.0, 101), Status::Failed, "trace_late");
}

#[test]
fn final_packet_timing_replaces_samples() {
    let packets = |late, max_us| Scenario {
        timing: Some(LinkTiming {
            link: "bottleneck".into(),
            kind: TimingKind::Packets.into(),
            count: 10_000,
            late,
            max_us,
            ..LinkTiming::default()
        }),
        ..Scenario::default()
    };
    fine(&packets(100, 99_000.0));
    only(&packets(101, 0.0), Status::Degraded, "link_late");
    let message = only(&packets(1, 200_000.0), Status::Degraded, "link_late");
    assert!(message.contains("max 200000 us"), "{message}");
    only(&packets(1_001, 2_000.0), Status::Failed, "link_late");
}

#[test]
fn packets_missing_from_the_log_degrade() {
    let kind = TimingKind::Log.into();
    let timing = LinkTiming { kind, count: 5, missed: 7, ..LinkTiming::default() };
    let scenario = Scenario { timing: Some(timing), ..Scenario::default() };
    let message = only(&scenario, Status::Degraded, "packets_not_logged");
    assert!(message.contains("the packet log lacks 7 packets and has 5"), "{message}");
}

#[test]
fn idle_rtt_above_or_below_the_configured_delay_degrades() {
    let over = Scenario { base_rtt_us: 11_700.0, ..Scenario::default() };
    let message = only(&over, Status::Degraded, "base_rtt");
    assert!(message.contains("11.70 ms") && message.contains("10.00 ms"), "{message}");
    fine(&Scenario { base_rtt_us: 11_500.0, ..Scenario::default() });
    only(&Scenario { base_rtt_us: 9_700.0, ..Scenario::default() }, Status::Degraded, "base_rtt");
    fine(&Scenario { base_rtt_us: 9_990.0, ..Scenario::default() });
}

#[test]
fn wrong_congestion_control_fails() {
    let message = only(&Scenario { cc: "reno", ..Scenario::default() }, Status::Failed, "wrong_cc");
    assert!(message.contains("2 of 2 flows") && message.contains("`reno`"), "{message}");
    fine(&Scenario { cc: "", ..Scenario::default() });
}

#[test]
fn flow_that_starts_late_or_ends_early_degrades() {
    let message = only(
        &Scenario { first_data_ms: 1_300, ..Scenario::default() },
        Status::Degraded,
        "flow_late",
    );
    assert!(message.contains("first data at 1.30 s, 1.30 s after"), "{message}");
    fine(&Scenario { first_data_ms: 1_000, ..Scenario::default() });
    let verdict = Scenario { sampled_ms: (100, 8_000), ..Scenario::default() }.judged();
    let codes: Vec<&str> = verdict.reasons.iter().map(|r| r.code.as_str()).collect();
    assert_eq!(codes, ["flow_early"], "a socket that is gone has no samples");
    fine(&Scenario { sampled_ms: (100, 9_300), ..Scenario::default() });
}

#[test]
fn unlimited_flow_without_progress_is_stalled() {
    let scenario = Scenario { stalled_ms: (3_000, 4_500), ..Scenario::default() };
    let message = only(&scenario, Status::Degraded, "flow_stalled");
    let expected =
        "no new byte for 1.40 s from 3.00 s on (limit 1.00 s: the longer of 1 s and 10 srtt,";
    assert!(message.contains(expected), "{message}");
    fine(&Scenario { srtt_ms: 150, ..scenario.clone() });
    fine(&Scenario { stalled_ms: (3_000, 4_000), ..Scenario::default() });
}

#[test]
fn flow_that_delivers_after_its_stop_overruns() {
    let scenario = Scenario { overrun_ms: 600, ..Scenario::default() };
    let message = only(&scenario, Status::Degraded, "flow_overrun");
    assert!(
        message.contains("at 10.40 s, 0.40 s after the flow's stop at 10.0 s (limit 0.30 s"),
        "{message}"
    );
    fine(&Scenario { overrun_ms: 400, ..Scenario::default() });
    fine(&Scenario { srtt_ms: 150, ..scenario });
}

#[test]
fn flow_without_data_fails_errors_and_exit_codes_degrade() {
    only(&Scenario { first_data_ms: 20_000, ..Scenario::default() }, Status::Failed, "flow_dead");
    let scenario = Scenario {
        event: Some((Some(Kind::FlowError(NoData {})), "unable to connect")),
        ..Scenario::default()
    };
    let message = only(&scenario, Status::Failed, "flow_error");
    assert!(message.contains("unable to connect"), "{message}");
    only(&Scenario { exit_code: Some(1), ..Scenario::default() }, Status::Degraded, "flow_exit");
    fine(&Scenario { exit_code: None, ..Scenario::default() });
    fine(&Scenario { event: Some((Some(Kind::FlowStart(NoData {})), "")), ..Scenario::default() });
}

#[test]
fn error_events_degrade_under_their_name() {
    let scenario = Scenario {
        event: Some((Some(Kind::LinkError(NoData {})), "ENOBUFS")),
        ..Scenario::default()
    };
    let message = only(&scenario, Status::Degraded, "link_error");
    assert_eq!(message, "src: main: ENOBUFS");
}

#[test]
fn node_without_done_message_fails_the_trial() {
    let message =
        only(&Scenario { lost: true, ..Scenario::default() }, Status::Failed, "node_lost");
    assert!(message.starts_with("dst:"), "{message}");
}

#[test]
fn userspace_link_with_late_packets_degrades() {
    let verdict = Scenario { late_pkts: 11, ..Scenario::default() }.judged();
    assert!(verdict.reasons.iter().all(|r| r.code == ReasonCode::LinkLate));
    assert_eq!(verdict.status, Status::Degraded);
    fine(&Scenario { late_pkts: 10, ..Scenario::default() });
}

#[test]
fn failed_link_change_degrades() {
    let message = only(
        &Scenario { change_rc: -22, ..Scenario::default() },
        Status::Degraded,
        "link_change_failed",
    );
    assert!(message.contains("error -22"), "{message}");
}

#[test]
fn worst_reason_decides_and_comes_first() {
    let verdict =
        Scenario { busy_samples: 9, cc: "reno", lost: true, ..Scenario::default() }.judged();
    assert_eq!(verdict.status, Status::Failed);
    let codes: Vec<&str> = verdict.reasons.iter().map(|r| r.code.as_str()).collect();
    assert_eq!(codes, ["node_lost", "wrong_cc", "cpu_bound"]);
}
