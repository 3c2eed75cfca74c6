//! Fuzzes what the kernel and BPF programs write.

use ccbench_agent::fuzzing::{Record, cgroup_folder, mounts};
use ccbench_collector::acks::batcher::Batcher;
use ccbench_collector::acks::record::{self, EVENT_BYTES, ROW_BYTES, RecordHeader, Rows};
use ccbench_collector::diag_msg::{DiagMsg, next_msg};
use ccbench_collector::flow_sample::{SampleTime, flow_sample};
use ccbench_collector::host::procfs as host;
use ccbench_collector::ports::PortMap;
use ccbench_collector::tcp_info::KernelVersion;
use ccbench_collector::{FlowPorts, cc_info, tcp_info};
use ccbench_proto::wire::{Acks, FlowSample};
use ccbench_shaper::capture::pcapng as capture;
use ccbench_shaper::fuzzing::{Answer, acknowledgement, answer, listed};
use ccbench_shaper::netlink::message::{attrs, messages};
use ccbench_shaper::stack::lower_devices;

use crate::text;

const KERNELS: [KernelVersion; 3] = [
    KernelVersion { major: 0, minor: 0 },
    KernelVersion { major: 5, minor: 15 },
    KernelVersion { major: 7, minor: 0 },
];

fn flows() -> [FlowPorts; 1] {
    [FlowPorts {
        group: "bulk".to_owned(),
        server_port: 5201,
        client_port: 10_000,
        count: 2,
        listens: false,
        reverse: false,
    }]
}

/// A datagram of an inet_diag dump: its messages, with their `tcp_info` and congestion-control information.
pub fn inet_diag(data: &[u8]) {
    let (flows, mut rest, mut count) = (PortMap::new(&flows()), data, 0);
    while let Ok(Some(message)) = next_msg(&mut rest) {
        count += 1;
        let Ok(socket) = DiagMsg::parse(message.payload) else { continue };
        let Some(role) = flows.classify(socket.sport, socket.dport) else { continue };
        for kernel in KERNELS {
            let row = flow_sample(&socket, role, SampleTime { at_ns: 1, gap_ns: 0 }, kernel);
            assert_eq!(row.cc, socket.cong);
            assert!(row.cc_info.len() <= data.len());
        }
    }
    assert!(count <= data.len() / 16);
    for kernel in KERNELS {
        tcp_info::decode(data, kernel, &mut FlowSample::default());
    }
    for kind in [cc_info::VEGAS, cc_info::DCTCP, cc_info::BBR, 23] {
        cc_info::decode(kind, data, &mut FlowSample::default());
    }
}

/// Records of acknowledgements: a sequence of rows and events.
pub fn acks(data: &[u8]) {
    let mut batcher = Batcher::new(&flows(), 4000);
    let (mut rest, mut records) = (data, 0);
    while let Some(head) = RecordHeader::read(rest) {
        let bytes = if head.kind == record::Kind::Row { ROW_BYTES } else { EVENT_BYTES };
        let _ = (record::event(&head, rest), record::cc_name(rest));
        batcher.push(&rest[..bytes]);
        rest = &rest[bytes..];
        records += 1;
    }
    batcher.push(rest);
    assert_eq!(batcher.malformed(), 1);
    let mut rows = Vec::new();
    batcher.drain(u64::MAX, true, &mut rows);
    assert!(rows.len() <= records);
    let mut columns = Acks::default();
    Rows::new(data, 4000).fill(&mut columns);
    assert_eq!(columns.at_ns.len(), data.len() / ROW_BYTES);
    for count in [columns.rtt_us.len(), columns.snd_cwnd_pkts.len(), columns.bytes_acked.len()] {
        assert!(count <= 1 || count == columns.at_ns.len());
    }
}

/// A record of a congestion control's state.
pub fn cc_state(data: &[u8]) {
    for stats in [0, 1, 7, 64] {
        let record = Record::read(data, stats);
        assert_eq!(record.is_some(), data.len() >= 32 + 4 * stats);
        assert!(record.is_none_or(|record| record.stats.len() == stats));
    }
}

/// A datagram of a dump of qdiscs or classes, or the answer to a request.
pub fn qdisc(data: &[u8]) {
    let mut bytes = 0;
    for (_, _, body) in messages(data).chain([(0, 0, data)]) {
        bytes += body.len();
        for class in [false, true] {
            let _ = listed(body, class);
        }
        for flags in [0, 0x200] {
            let _ = acknowledgement(body, flags);
        }
        let nested: usize = attrs(body).map(|attr| attr.attrs().count()).sum();
        assert!(nested <= body.len());
    }
    assert!(bytes <= 2 * data.len());
}

/// Files of /proc.
pub fn procfs(data: &[u8]) {
    let Some(text) = text(data) else { return };
    if let Some(times) = host::cpu_times(text) {
        assert!(times.all.total() >= times.all.user);
        assert_eq!(times.all.since(&times.all).total(), 0);
    }
    let _ = (host::softnet(text), host::tcp_retrans_segs(text));
    let _ = (host::nic_drops(text), host::process_usage(text));
    let mounts = mounts(text);
    assert!(mounts.len() <= text.lines().count());
    let bytes: usize =
        mounts.iter().map(|(root, point)| root.len() + point.as_os_str().len()).sum();
    assert!(bytes <= text.len());
    let folder = cgroup_folder(text, text);
    assert!(folder.is_none_or(|(point, folder)| folder.starts_with(point)));
}

/// Interfaces of an input whose places in the stack are computed, which takes quadratic time.
const MAX_STACKED: usize = 64;

/// A datagram of a dump of interfaces or addresses, or the answer to a request about a route or the features of an interface.
pub fn rtnetlink(data: &[u8]) {
    let mut all = Vec::new();
    for (_, _, body) in messages(data).chain([(0, 0, data)]) {
        let Answer { stacked, interface, address, egress_index: _, features, numbers: _ } =
            answer(body);
        let names: usize = features.iter().flatten().map(String::len).sum();
        // A byte that is not UTF-8 becomes a character of three bytes.
        assert!(names <= 3 * body.len());
        assert!(address.is_none_or(|(_, text)| text.contains('/')));
        if let (Some(one), Some(other)) = (&stacked, &interface) {
            let other = (other.index, &other.name, &other.driver);
            assert_eq!((one.index, &one.name, &one.kind), other);
        }
        assert!(stacked.is_some() || interface.is_none());
        all.extend(stacked);
    }
    all.truncate(MAX_STACKED);
    let Some(first) = all.first() else { return };
    let found = lower_devices(&first.name, &all);
    assert!(found.contains(&first.name));
    assert!(found.iter().all(|name| all.iter().any(|one| one.name == *name)));
}

/// A capture.
pub fn pcapng(data: &[u8]) {
    let Some(packets) = capture::read(data) else { return };
    let kept: usize = packets.iter().map(|packet| packet.bytes.len()).sum();
    assert!(kept <= data.len() && packets.len() <= data.len() / 32);
    let mut again = Vec::new();
    capture::begin(&mut again, "eth0", "", 65_535);
    for packet in &packets {
        capture::packet(&mut again, packet.at_ns, packet.bytes, packet.length);
    }
    assert_eq!(capture::read(&again), Some(packets));
}
