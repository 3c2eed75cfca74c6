use ccbench_proto::plan::{
    AckAggregation, Class, Distribution, EcnRewrite, Jitter, Link, Policer, Queue, Reorder, Slot,
    Tbf, TraceUse,
};
use ccbench_proto::resolve::{ClassConfig, PacketMatch};
use ccbench_proto::trace::{self, Replay};
use ccbench_proto::units::Packets;

use super::*;

const MS: u64 = 1_000_000;
const FRAME: u32 = 1514;
const NAMES: (&str, &str) = ("bottleneck", "veth0");

/// A packet's number, and whether it was corrupted or its ECN field was rewritten.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Numbered(u32, bool);

impl Payload for Numbered {
    fn corrupt(&mut self) {
        self.1 = true;
    }

    fn set_ecn(&mut self, _ecn: Ecn) {
        self.1 = true;
    }
}

type Departures = Vec<Departure<Numbered>>;

fn mbit(rate: u64) -> Rate {
    Rate::from_bits_per_sec(rate * 1_000_000)
}

fn ppm(share: u32) -> Ppm {
    Ppm::new(share).unwrap()
}

fn rated(rate: u64, delay_ms: u64) -> Link {
    let delay = Some(Micros::from_millis(delay_ms));
    Link { rate: Some(mbit(rate)), delay, ..Link::default() }
}

fn queue(json: &str) -> Queue {
    let json = serde_json::from_str::<serde_json::Value>(json).unwrap();
    serde_json::from_value(json).unwrap()
}

fn config(plan: Link, json: &str) -> LinkConfig {
    LinkConfig { seed: 7, ..LinkConfig::new("bottleneck", plan, queue(json)) }
}

fn open(config: &LinkConfig) -> VirtualLink<Numbered> {
    VirtualLink::new(config, 1500, 0).unwrap()
}

fn replay(csv: &str) -> Option<Replay> {
    let trace = Arc::new(trace::parse("t", csv.as_bytes()).unwrap());
    Some(Replay { trace, plan: TraceUse::new("t") })
}

const LONG: &str = r#"{"kind": "pfifo", "limit": "1000p"}"#;

/// A link with its owner's clock.
struct Run {
    link: VirtualLink<Numbered>,
    now_ns: u64,
    /// Interval of additional calls of `advance`.
    tick_ns: u64,
    out: Departures,
}

impl Run {
    fn new(config: &LinkConfig, tick_ns: u64) -> Self {
        Self { link: open(config), now_ns: 0, tick_ns, out: Vec::new() }
    }

    fn step(&mut self, at_ns: u64) {
        self.now_ns = at_ns;
        self.link.advance(at_ns);
        while let Some(departure) = self.link.pop() {
            assert_eq!(departure.at_ns, at_ns, "next_event_ns is not late");
            self.out.push(departure);
        }
        let Counts { arrived, duplicated, lost, dropped, inside, departed } = self.link.counts();
        assert_eq!(arrived + duplicated, lost + dropped + inside + departed);
    }

    fn until(&mut self, end_ns: u64) {
        while self.now_ns < end_ns {
            let tick_ns = self.now_ns.saturating_add(self.tick_ns);
            self.step(self.link.next_event_ns().min(tick_ns).min(end_ns));
        }
    }

    fn arrive(&mut self, at_ns: u64, header: Header, bytes: u32) {
        self.until(at_ns);
        let number = self.link.counts().arrived as u32;
        self.link.arrive(at_ns, header, bytes, Numbered(number, false));
        self.step(at_ns);
    }

    /// Sends packets of four flows with all ECN codepoints, half of them acknowledgements, in bursts at about 16 Mbit/s. The link is empty
    /// at the end.
    fn bursts(mut self) -> Self {
        let mut state = 1_u64;
        let mut at_ns = 0;
        for number in 0..4_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let draw = (state >> 33) as u32;
            at_ns += u64::from(if draw.is_multiple_of(8) { draw % 6_000_000 } else { 0 });
            let flow = draw >> 8 & 3;
            let ack = TcpHeader { ack_seq: number, flags: TcpHeader::ACK, ..TcpHeader::default() };
            let tcp = (draw >> 20 & 1 == 1).then_some(ack);
            let header = Header { flow, class: 0, ecn: Ecn::from_bits((draw >> 10) as u8), tcp };
            self.arrive(at_ns, header, 60 + (draw >> 12) % 1455);
        }
        self.until(at_ns + 3_000 * MS);
        assert_eq!((self.link.counts().inside, self.link.next_event_ns()), (0, u64::MAX));
        assert!(self.link.store.payloads.iter().all(Option::is_none));
        assert_eq!(self.link.model.next_marked(), None);
        self
    }
}

/// Returns a link with all impairments.
fn impaired() -> Link {
    let spread = Micros::from_millis(3);
    let distribution = Distribution::Normal;
    Link {
        loss: Some(ppm(50_000)),
        jitter: Some(Jitter { spread, distribution, reorder: true, ..Jitter::default() }),
        duplicate: Some(ppm(40_000)),
        reorder: Some(Reorder::new(ppm(50_000))),
        corrupt: Some(ppm(30_000)),
        ..rated(10, 20)
    }
}

#[test]
fn packets_are_conserved() {
    let run = Run::new(&config(impaired(), r#"{"kind": "pfifo", "limit": "20p"}"#), u64::MAX);
    let run = run.bursts();
    let counts = run.link.counts();
    assert!(counts.lost > 50 && counts.dropped > 50 && counts.duplicated > 50, "{counts:?}");
    assert_eq!(counts.departed, run.out.len() as u64);
    assert!(!run.out.is_sorted_by_key(|departure| departure.payload.0));
    let corrupted = run.out.iter().filter(|departure| departure.payload.1).count();
    assert!((30..200).contains(&corrupted), "{corrupted}");

    let row = run.link.sample(run.now_ns, NAMES);
    assert_eq!((row.sent_pkts, row.drops_pkts), (counts.departed, counts.lost + counts.dropped));
    assert_eq!(row.drop_lost_pkts, Some(counts.lost));
    assert_eq!(row.drop_overlimit_pkts, Some(counts.dropped));
    assert_eq!((row.qlen_pkts, row.memory_used_bytes), (0, Some(0)));
    assert_eq!((row.link.as_str(), row.kind.as_str()), ("bottleneck", "userspace"));
}

#[test]
fn result_depends_on_the_seed_and_not_on_how_often_it_is_advanced() {
    for json in [
        r#"{"kind": "pfifo", "limit": "20p"}"#,
        r#"{"kind": "bfifo_head_drop", "limit": "20000B"}"#,
        r#"{"kind": "codel", "target": "1ms", "interval": "10ms", "ecn": true}"#,
        r#"{"kind": "fq_codel", "target": "1ms", "interval": "10ms"}"#,
        r#"{"kind": "fq", "limit": "40p", "ce_threshold": "2ms"}"#,
        r#"{"kind": "pie", "limit": "60p", "target": "1ms", "ecn": true}"#,
        r#"{"kind": "red", "limit": "60000B", "min": "5000B", "max": "20000B", "adaptive": true}"#,
        r#"{"kind": "dualpi2", "limit": "60p", "target": "1ms"}"#,
    ] {
        let config = config(impaired(), json);
        let first = Run::new(&config, u64::MAX).bursts();
        for tick_ns in [u64::MAX, 700_001] {
            let again = Run::new(&config, tick_ns).bursts();
            assert_eq!(first.out, again.out, "{json}");
            let rows = [&first, &again].map(|run| run.link.sample(run.now_ns, NAMES));
            assert_eq!(rows[0], rows[1], "{json}");
        }
        let other = Run::new(&LinkConfig { seed: 8, ..config }, u64::MAX).bursts();
        assert_ne!(first.out, other.out, "{json}");
    }
}

#[test]
fn elements_of_access_networks_conserve_packets_on_virtual_time() {
    let ms = Micros::from_millis;
    let plan = Link {
        policer: Some(Policer { rate: mbit(12), burst: Bytes::new(30_000) }),
        ecn_rewrite: Some(EcnRewrite { ce: Some(Ecn::NotEct), ..EcnRewrite::default() }),
        ack_filter: true,
        ack_aggregation: Some(AckAggregation { hold: ms(3), packets: Some(Packets::new(5)) }),
        slot: Some(Slot { every: ms(2), max: Some(ms(6)), ..Slot::default() }),
        tbf: Some(Tbf { burst: Bytes::new(5_000), ..Tbf::default() }),
        ..impaired()
    };
    let config = config(plan, r#"{"kind": "pfifo", "limit": "20p"}"#);
    let first = Run::new(&config, u64::MAX).bursts();
    assert!(first.link.reads_headers());
    let (counts, row) = (first.link.counts(), first.link.sample(first.now_ns, NAMES));
    assert_eq!((row.sent_pkts, row.drops_pkts), (counts.departed, counts.lost + counts.dropped));
    let counted = [
        row.drop_policed_pkts,
        row.drop_ack_filter_pkts,
        row.acks_held_pkts,
        row.ecn_rewritten_pkts,
        row.ce_rewritten_pkts,
        row.slots,
    ];
    assert!(counted.iter().all(|count| count.unwrap() > 20), "{row:?}");
    assert_eq!(row.ecn_rewritten_pkts, row.ce_rewritten_pkts);
    let again = Run::new(&config, 700_001).bursts();
    assert_eq!(first.out, again.out);
    assert_eq!(row, again.link.sample(again.now_ns, NAMES));
}

#[test]
fn marks_reach_the_departure() {
    let queues = [
        r#"{"kind": "codel", "target": "1s", "ce_threshold": "5ms"}"#,
        r#"{"kind": "dualpi2", "step_thresh": "5ms"}"#,
    ];
    for json in queues {
        let mut run = Run::new(&config(rated(10, 0), json), u64::MAX);
        for number in 0..60 {
            run.arrive(0, Header { ecn: Ecn::from_bits(number), ..Header::default() }, FRAME);
        }
        run.until(1_000 * MS);
        assert_eq!(run.link.model.next_marked(), None);
        let marked = run.out.iter().filter(|departure| departure.marked);
        let numbers: Vec<u32> = marked.map(|departure| departure.payload.0).collect();
        assert!(numbers.len() > 5, "{json}");
        // Neither packets that are not ECN-capable nor packets with CE are rewritten.
        assert!(numbers.iter().all(|number| [1, 2].contains(&(number % 4))), "{numbers:?}");
    }
}

#[test]
fn frames_leave_at_the_rate() {
    let mut run = Run::new(&config(rated(12, 10), LONG), u64::MAX);
    for _ in 0..300 {
        run.arrive(0, Header::default(), FRAME);
    }
    assert_eq!(run.link.next_event_ns(), 10 * MS);
    run.until(1_000 * MS);
    // 1514 B take 1 009 333 1/3 ns. The line carries fractions.
    let wanted: Vec<u64> = (1..=300).map(|nth| 10 * MS + nth * 3_028_000 / 3).collect();
    let found: Vec<u64> = run.out.iter().map(|departure| departure.at_ns).collect();
    assert_eq!(found, wanted);
    let row = run.link.sample(run.now_ns, NAMES);
    assert_eq!((row.sent_pkts, row.sent_bytes), (300, 300 * u64::from(FRAME)));
    assert_eq!((row.rate_bps, row.drops_pkts), (Some(12_000_000), 0));
}

#[test]
fn links_without_a_rate_only_delay() {
    let plan = Link { delay: Some(Micros::from_millis(10)), ..Link::default() };
    for (plan, delay_ns) in [(plan, 10 * MS), (Link::default(), 0)] {
        let mut run = Run::new(&config(plan, r#"{"kind": "pfifo", "limit": "100000p"}"#), u64::MAX);
        assert_eq!((run.link.rate(), run.link.next_event_ns()), (None, u64::MAX));
        for at_ns in [5, 5, 5, 2 * MS] {
            run.arrive(at_ns, Header::default(), FRAME);
        }
        run.until(50 * MS);
        let found: Vec<u64> = run.out.iter().map(|departure| departure.at_ns - delay_ns).collect();
        assert_eq!(found, [5, 5, 5, 2 * MS]);
        assert!(!run.link.reads_headers());
    }
}

/// Returns TCP over IPv4 to this port, with ECT(0).
fn frame(dport: u16) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([8, 0, 0x45, 2, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 4, 0]);
    frame.extend(dport.to_be_bytes());
    frame.resize(54, 0);
    frame
}

fn with_class(plan: Link, class: Class) -> LinkConfig {
    let class = ClassConfig {
        name: "slice".to_owned(),
        plan: class,
        matches: vec![PacketMatch { dport: Some(5201), ..PacketMatch::default() }],
        queue: queue(LONG),
    };
    LinkConfig { classes: vec![class], ..config(plan, LONG) }
}

#[test]
fn classes_share_the_rate() {
    let config = with_class(rated(10, 0), Class::new(mbit(8)));
    let mut run = Run::new(&config, u64::MAX);
    assert!(run.link.reads_headers());
    let headers = [5201, 80].map(|port| run.link.classify(&frame(port)));
    assert_eq!(headers.map(|header| (header.class, header.ecn)), [(1, Ecn::Ect0), (0, Ecn::Ect0)]);
    assert_ne!(headers[0].flow, headers[1].flow);
    assert_eq!(headers[0].flow, header::flow(&frame(5201)));
    for header in headers.repeat(600) {
        run.arrive(0, header, FRAME);
    }
    run.until(500 * MS);
    // 412 frames, of which four fifths belong to the class.
    let of_class = run.out.iter().filter(|departure| departure.payload.0.is_multiple_of(2)).count();
    assert_eq!(run.out.len(), 412);
    assert!((320..345).contains(&of_class), "{of_class}");

    let unrated = with_class(Link::default(), Class::new(mbit(8)));
    let refused = VirtualLink::<Numbered>::new(&unrated, 1500, 0);
    assert!(matches!(refused, Err(ShaperError::Unsupported { .. })));
}

#[test]
fn classes_that_wait_follow_the_trace() {
    let csv = "t_us,rate_bps\n0,8000000\n20000,0\n30000,16000000\n";
    let config =
        LinkConfig { trace: replay(csv), ..with_class(Link::default(), Class::new(mbit(1))) };
    let departures = |tick_ns| {
        let mut run = Run::new(&config, tick_ns);
        run.link.begin(0);
        for _ in 0..60 {
            run.arrive(0, Header { class: 1, ..Header::default() }, FRAME);
        }
        run.until(2_000 * MS);
        assert_eq!(run.link.counts().inside, 0);
        run.out
    };
    let first = departures(u64::MAX);
    assert_eq!(first, departures(300_007));
    assert!(first.iter().all(|departure| !(20 * MS + 1..30 * MS).contains(&departure.at_ns)));
}

#[test]
fn trace_may_begin_at_time_zero() {
    let csv = "t_us,rate_bps,delay_us,loss_ppm\n0,8000000,1000,0\n10000,4000000,2000,1000000\n";
    let config = LinkConfig { trace: replay(csv), ..config(Link::default(), LONG) };
    let mut run = Run::new(&config, u64::MAX);
    let mut changes = Vec::new();
    run.link.changes(0, NAMES, &mut changes);
    assert!(changes.is_empty());
    run.link.begin(0);
    run.arrive(0, Header::default(), 1000);
    run.until(5 * MS);
    assert_eq!((run.out[0].at_ns, run.link.rate()), (2 * MS, Some(mbit(8))));
    run.link.changes(5 * MS, NAMES, &mut changes);
    assert_eq!(changes.len(), 1);
    run.arrive(12 * MS, Header::default(), 1000);
    run.link.changes(12 * MS, NAMES, &mut changes);
    assert_eq!((run.link.counts().lost, run.link.rate()), (1, Some(mbit(4))));
    let rows: Vec<_> = changes
        .iter()
        .map(|row| (row.applied_at_ns, row.rate_bps, row.delay_us, row.loss_ppm))
        .collect();
    let wanted = [
        (0, Some(8_000_000), Some(1000), Some(0)),
        (10 * MS, Some(4_000_000), Some(2000), Some(1_000_000)),
    ];
    assert_eq!(rows, wanted);
    let mut timing = Vec::new();
    run.link.timing(12 * MS, NAMES, &mut timing);
    assert_eq!(timing.iter().map(|row| row.count).collect::<Vec<_>>(), [2, 1]);
    assert!(run.link.set_rate(13 * MS, mbit(1)).is_err());
}

#[test]
fn settings_change() {
    let mut run = Run::new(&config(rated(8, 0), LONG), u64::MAX);
    run.arrive(0, Header::default(), 1000);
    assert_eq!(run.link.next_event_ns(), MS);
    run.link.set_rate(MS / 2, mbit(16)).unwrap();
    assert_eq!(run.link.next_event_ns(), MS / 4 * 3);
    run.until(2 * MS);
    run.link.set_delay(2 * MS, Micros::from_millis(5));
    run.arrive(2 * MS, Header::default(), 1500);
    run.until(10 * MS);
    let found: Vec<u64> = run.out.iter().map(|departure| departure.at_ns).collect();
    assert_eq!(found, [MS / 4 * 3, 7 * MS + MS / 4 * 3]);
    run.link.set_loss(ppm(1_000_000));
    run.arrive(10 * MS, Header::default(), 1000);
    assert_eq!(run.link.counts().lost, 1);
    let text = "userspace pfifo limit 1000p rate 8000000bit delay 0us loss 0ppm";
    assert_eq!(run.link.describe(), text);
}

#[test]
fn packets_without_memory_and_large_frames_are_counted() {
    let duplicate = Some(ppm(1_000_000));
    let delay = Some(Micros::from_millis(10));
    let mut run = Run::new(&config(Link { delay, duplicate, ..Link::default() }, LONG), u64::MAX);
    run.link.store.limit = 3;
    // The second packet has no memory for its copy, the third has none at all.
    for _ in 0..3 {
        run.arrive(0, Header::default(), FRAME);
    }
    run.arrive(0, Header::default(), 9014);
    let row = run.link.sample(0, NAMES);
    assert_eq!((row.drop_overmemory_pkts, row.drops_pkts), (Some(2), 3));
    assert_eq!(run.link.counts().inside, 3);
    run.until(20 * MS);
    let numbers: Vec<u32> = run.out.iter().map(|departure| departure.payload.0).collect();
    assert_eq!(numbers, [0, 0, 1]);
    run.arrive(20 * MS, Header::default(), FRAME);
    assert_eq!(run.link.counts().inside, 2);
}

#[test]
fn packet_log_has_every_packet() {
    let plan = Link { packet_log: Some(Bytes::new(1 << 20)), ..rated(8, 1) };
    let mut run = Run::new(&config(plan, r#"{"kind": "pfifo", "limit": "1p"}"#), u64::MAX);
    for ecn in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0] {
        run.arrive(MS, Header { flow: 9, ecn, ..Header::default() }, 1000);
    }
    run.until(10 * MS);
    let mut rows = Vec::new();
    run.link.packets(NAMES, &mut rows);
    let found: Vec<_> =
        rows.iter().map(|row| (row.at_ns, row.ecn, row.fate(), row.due_ns)).collect();
    let wanted = [
        (MS, 2, wire::PacketFate::Overlimit, None),
        (MS, 0, wire::PacketFate::Sent, Some(3 * MS)),
        (MS, 1, wire::PacketFate::Sent, Some(4 * MS)),
    ];
    assert_eq!(found, wanted);
}
