//! Binary inputs, made by the product's encoders. After a change of a format, `UPDATE_GOLDEN=1` writes them again.

use std::collections::BTreeMap;

use ccbench_fuzz::mutate::Random;
use ccbench_proto::event::{self, Kind};
use ccbench_proto::wire::{self, run_event::Payload};
use ccbench_shaper::capture::pcapng;
use ccbench_shaper::netlink::message::{ACK, Message};
use prost::Message as _;

#[path = "../../../../proto/tests/cc_files/elf.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod elf;
mod packets;
mod rtnetlink;

const MINIMAL: &str = include_str!("../../../plans/valid/minimal.toml");
const TRACED: &str = include_str!("../../../plans/valid/traced-links.toml");

#[test]
fn binary_inputs_are_what_the_encoders_write() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let check = |target: &str, name: &str, bytes: &[u8]| {
        let path = super::corpus().join(target).join(name);
        if update {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, bytes).unwrap();
        }
        let written = std::fs::read(&path).unwrap_or_default();
        assert!(written == bytes, "{} differs; UPDATE_GOLDEN=1 rewrites it", path.display());
    };
    for (name, request) in prepare() {
        check("prepare", name, &request.encode_to_vec());
        check("message", name, &[&[4], &request.encode_to_vec()[..]].concat());
    }
    let stream: Vec<u8> =
        run_events().iter().flat_map(prost::Message::encode_length_delimited_to_vec).collect();
    check("verdict", "stream", &stream);
    check("table", "stream", &stream);
    for (number, event) in run_events().iter().enumerate() {
        let name = format!("run-event-{number}");
        check("message", &name, &[&[10], &event.encode_to_vec()[..]].concat());
        check("table", &name, &event.encode_length_delimited_to_vec());
    }
    check("message", "prepare-reply", &[&[9], &prepare_reply().encode_to_vec()[..]].concat());
    check("lab_messages", "all", &lab());
    let samples = [sample(0), sample(5), sample(u32::MAX)];
    let samples: Vec<u8> =
        samples.iter().flat_map(prost::Message::encode_length_delimited_to_vec).collect();
    check("generator_report", "samples", &samples);
    check("inet_diag", "dump", &diag());
    check("qdisc", "dump", &qdiscs());
    check("qdisc", "refused", &refused());
    for (target, inputs) in [("rtnetlink", rtnetlink::inputs()), ("frame", packets::inputs())] {
        inputs.iter().for_each(|(name, bytes)| check(target, name, bytes));
    }
    for (name, peer_ip) in [("local", ""), ("network", "fe80::1"), ("no-address", "nowhere")] {
        check("caller", name, &caller(peer_ip).encode_to_vec());
    }
    check("pcapng", "capture", &capture());
    check("acks", "records", &acks());
    let record: Vec<u8> = (0..160).collect();
    check("cc_state", "record", &record);
    let mut reply = vec![0, 0, 0, 0, 0, 1, 0, 9];
    reply.extend([7; 8]);
    // Random inputs, each longer than a plan needs.
    for number in 0..16 {
        let mut random = Random::new(number + 1);
        let bytes: Vec<u8> = (0..600).map(|_| random.below(256) as u8).collect();
        check("simulation", &format!("seed-{number:02}"), &bytes);
    }
    let object = elf::object("tcp_congestion_ops", None, Some("type"));
    assert!(ccbench_proto::cc::supplied::facts(&object).is_ok(), "mutations begin with a good one");
    check("cc_object", "object", &object);
    check("cc_object", "module", &elf::module(&elf::MODINFO));
    check("echo_reply", "reply", &reply);
    check("echo_reply", "raw", &[&[0x45; 20][..], &reply].concat());
    #[cfg(feature = "results")]
    for (target, inputs) in [("parquet", parquet()), ("parquet_table", parquet_tables())] {
        inputs.iter().for_each(|(name, bytes)| check(target, name, bytes));
    }
    #[cfg(feature = "results")]
    check("archive", "files.tar", &archive());
}

fn prepare() -> Vec<(&'static str, wire::PrepareRequest)> {
    let request = |node: &str, plan: &str| wire::PrepareRequest {
        run_id: "r".to_owned(),
        node: node.to_owned(),
        plan_toml: plan.to_owned(),
        trial: 1,
        seed: 7,
        epoch: 1,
        addresses: BTreeMap::from([(node.to_owned(), "10.0.0.1".to_owned())]),
        port_slot: u32::MAX,
        lease_ms: 1000,
        ..Default::default()
    };
    let mut traced = request("src", TRACED);
    for file in ["a.csv", "traces/a.csv", "traces/lte.csv"] {
        traced.files.insert(file.to_owned(), b"10,1\n0,1\n".to_vec());
    }
    vec![("minimal", request("src", MINIMAL)), ("traced", traced)]
}

fn sample(number: u32) -> wire::FlowSample {
    wire::FlowSample {
        at_ns: 2_000,
        flow_id: "main/0".to_owned(),
        group: "main".to_owned(),
        side: wire::Side::Sender.into(),
        role: wire::Role::Data.into(),
        cc: "cubic".to_owned(),
        cookie: Some(9),
        sport: number,
        rtt_us: Some(number),
        snd_cwnd_pkts: Some(number),
        snd_mss_bytes: Some(number),
        bytes_sent: Some(u64::from(number) << 32),
        bytes_retrans: Some(u64::from(number)),
        bytes_acked: Some(u64::MAX - u64::from(number)),
        total_retrans_pkts: Some(number),
        delivered_pkts: Some(number),
        delivered_ce_pkts: Some(number),
        gap_ns: u64::from(number) << 32,
        ..Default::default()
    }
}

fn run_events() -> Vec<wire::RunEvent> {
    let event = |kind| wire::Event {
        at_ns: 2_000,
        subject: "main".into(),
        message: "m".into(),
        kind: Some(kind),
    };
    let acks = wire::Acks {
        flow_id: "main/0".into(),
        at_ns: vec![1_500, 2_000, 2_500],
        rtt_us: vec![1, 2, 3],
        snd_cwnd_pkts: vec![10],
        app_limited: vec![true, false],
        ..Default::default()
    };
    let max = u64::MAX;
    let rows = vec![
        Payload::FlowSample(sample(0)),
        Payload::FlowSample(sample(u32::MAX)),
        Payload::Interval(wire::Interval {
            at_ns: 2_000,
            seconds: 1e308,
            bytes: u64::MAX,
            ..Default::default()
        }),
        Payload::Probe(wire::Probe { at_ns: 2_000, ..Default::default() }),
        Payload::QdiscSample(wire::QdiscSample {
            at_ns: 2_000,
            link: "bottleneck".into(),
            kind: "fq_codel".into(),
            sent_bytes: u64::MAX,
            sent_pkts: u64::MAX,
            drops_pkts: u64::MAX,
            ..Default::default()
        }),
        Payload::LinkChange(wire::LinkChange {
            link: "bottleneck".into(),
            rate_bps: Some(u64::MAX),
            ..Default::default()
        }),
        Payload::LinkTiming(wire::LinkTiming { link: "bottleneck".into(), ..Default::default() }),
        Payload::LinkPacket(wire::LinkPacket::default()),
        Payload::CcState(wire::CcState::default()),
        Payload::Acks(acks),
        Payload::TcpEvents(wire::TcpEvents { events: vec![wire::TcpEvent::default(); 2] }),
        Payload::AckCount(wire::AckCount { rows: max, lost_rows: max, ..Default::default() }),
        Payload::HostSample(wire::HostSample { at_ns: 2_000, ..Default::default() }),
        Payload::HostSample(wire::HostSample { at_ns: u64::MAX, ..Default::default() }),
        Payload::Event(event(Kind::PhaseStart(event::NoData {}))),
        Payload::Event(event(Kind::Ecn(event::Ecn::default()))),
        Payload::Event(event(Kind::BaseRtt(event::BaseRtt::default()))),
        Payload::Event(event(Kind::Capture(event::Capture::default()))),
        Payload::Event(event(Kind::CcSockets(event::CcSockets::default()))),
        Payload::Event(event(Kind::ClockStep(event::ClockStep::default()))),
        Payload::Flow(wire::Flow {
            flow_id: "main/0".into(),
            start_s: Some(1e308),
            ..Default::default()
        }),
        Payload::Raw(wire::Raw { name: "x".into(), data: vec![1] }),
        Payload::Done(wire::Done {
            rows_sent: u64::MAX,
            rows_dropped: u64::MAX,
            ..Default::default()
        }),
    ];
    rows.into_iter().map(|payload| wire::RunEvent { payload: Some(payload) }).collect()
}

fn prepare_reply() -> wire::PrepareReply {
    let reason = Some(wire::BackendReason::missing("dualpi2", "NET_SCH_DUALPI2"));
    let link =
        wire::LinkState { link: "l".into(), dev: "eth0".into(), reason, ..Default::default() };
    wire::PrepareReply { links: vec![link], generation: 3, ..Default::default() }
}

fn caller(peer_ip: &str) -> wire::Caller {
    wire::Caller {
        name: "alice".to_owned(),
        serial: "4a".to_owned(),
        scopes: ["run", "bpf", "later"].map(str::to_owned).to_vec(),
        is_unscoped: false,
        peer_ip: peer_ip.to_owned(),
        local_ip: peer_ip.to_owned(),
        interface_index: 7,
    }
}

fn lab() -> Vec<u8> {
    use wire::lab_message::Payload;
    let messages = [
        Payload::Node(wire::LabNode { node: "a".into(), info: Some(wire::NodeInfo::default()) }),
        Payload::Prepared(wire::LabPrepared { node: "a".into(), reply: Some(prepare_reply()) }),
        Payload::Start(wire::LabStart { t0_ns: 5, realtime_minus_monotonic_ns: -5 }),
        Payload::Row(wire::LabRow { node: "a".into(), event: run_events().pop() }),
        Payload::Failed(wire::LabFailed {
            node: "a".into(),
            step: wire::LabStep::Build.into(),
            reason: "w".into(),
            impossible: true,
        }),
        Payload::Done(wire::LabDone { busy_pct: 1.5 }),
    ];
    messages
        .map(|payload| wire::LabMessage { payload: Some(payload) }.encode_length_delimited_to_vec())
        .concat()
}

fn diag() -> Vec<u8> {
    let mut fixed = [0; 72];
    fixed[..8].copy_from_slice(&[2, 1, 0, 0, 0x27, 0x10, 0x14, 0x51]);
    let info: Vec<u8> = (0..=255).chain(0..24).collect();
    let socket = |cc: &str, kind: u16, state: &[u8]| {
        Message::new(20, 2).raw(&fixed).attr(2, &info).attr_str(4, cc).attr(kind, state).finish()
    };
    let done = Message::new(3, 2).raw(&[0; 4]).finish();
    [socket("bbr", 16, &[1; 20]), socket("dctcp", 9, &[1; 16]), socket("x", 23, &[1; 9]), done]
        .concat()
}

fn qdiscs() -> Vec<u8> {
    let words: Vec<u8> = (100..140_u32).flat_map(u32::to_ne_bytes).collect();
    let one = |kind: &str| {
        Message::new(36, ACK)
            .tcmsg(7, 0x1_0000, u32::MAX, 0)
            .attr_str(1, kind)
            .nested(2, |m| m.attr(1, &words).attr(2, &words))
            .nested(7, |m| {
                m.attr(1, &words[..12]).attr(3, &words[..20]).attr(4, &words).attr_u64(8, u64::MAX)
            })
            .finish()
    };
    ["htb", "tbf", "fq", "fq_codel", "codel", "pie", "red", "dualpi2", "cake", "pfifo"]
        .map(one)
        .concat()
}

fn refused() -> Vec<u8> {
    let mut body = (-22_i32).to_ne_bytes().to_vec();
    body.extend([0; 16]);
    body.extend(Message::attributes().attr_str(1, "bad limit").into_attributes());
    body
}

fn capture() -> Vec<u8> {
    let mut file = Vec::new();
    pcapng::begin(&mut file, "eth0", "x", 128);
    pcapng::packet(&mut file, 5, b"abcde", 1514);
    pcapng::packet(&mut file, u64::MAX, b"", u32::MAX);
    pcapng::end(&mut file, 9, 2, 0);
    file
}

fn acks() -> Vec<u8> {
    use ccbench_collector::acks::record::{EVENT_BYTES, ROW_BYTES};
    let record = |kind: u32, length: usize| {
        let mut bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&(10_000_u32 | 5201 << 16).to_ne_bytes());
        bytes
    };
    let events = (2..=6).flat_map(|kind| record(kind, EVENT_BYTES));
    record(1, ROW_BYTES).into_iter().chain(events).chain(record(1, ROW_BYTES)).collect()
}

/// Returns an artifact's archive, with a name that needs the field `prefix`.
#[cfg(feature = "results")]
fn archive() -> Vec<u8> {
    let long = format!("run/{}/part-0.parquet", "d".repeat(100));
    let files = [("run/README.md", "text\n"), ("run/empty", ""), (long.as_str(), "PAR1")];
    let files = files.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
    ccbench_results::fuzzing::archive_of(&files).unwrap()
}

#[cfg(feature = "results")]
fn parquet() -> Vec<(&'static str, Vec<u8>)> {
    use ccbench_proto::trace::{Trace, parse};
    let of = |text: &str| {
        let Ok(Trace::Steps(steps)) = parse("t.csv", text.as_bytes()) else { panic!("{text}") };
        ccbench_results::trace::parquet::of_steps(&steps).unwrap()
    };
    vec![
        ("rates.parquet", of("t_us,rate_bps\n0,100000\n5000,200000\n")),
        (
            "all.parquet",
            of("t_us,rate_bps,delay_us,loss_ppm\n0,1000000,,\n1.5,,20000,1000000\n3,,,\n"),
        ),
    ]
}

/// Returns results tables with one row and with several: text, bytes, and numbers with null.
#[cfg(feature = "results")]
fn parquet_tables() -> Vec<(&'static str, Vec<u8>)> {
    let sample = wire::FlowSample { cc_info: vec![1, 2, 3], ..sample(5) };
    let acks = wire::Acks {
        flow_id: "main/0".into(),
        at_ns: vec![1_500, 2_000, 2_500],
        rtt_us: vec![1, 2, 3],
        app_limited: vec![true, false],
        ..Default::default()
    };
    let file =
        |payload, columns: &[&str]| ccbench_results::fuzzing::table_file(payload, columns).unwrap();
    vec![
        ("flow_samples.parquet", file(Payload::FlowSample(sample), &["cc", "cc_info", "rtt_us"])),
        ("acks.parquet", file(Payload::Acks(acks), &["t_ns", "rtt_us", "app_limited", "rto_us"])),
    ]
}
