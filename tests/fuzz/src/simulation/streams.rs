//! Conservation of packets: what hosts send enters the first link of its route, what leaves a link enters the next, and what leaves
//! the last arrives. The hash in `link_packets` identifies a stream.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ccbench_proto::plan::ProbeKind;
use ccbench_proto::schedule::{FlowTask, probe_port};
use ccbench_proto::wire::run_event::Of;
use ccbench_proto::wire::{FlowSample, LinkPacket, PacketFate, Side};
use ccbench_shaper::fuzzing::flow_hash;
use ccbench_simulator::T0_NS;

use super::Trial;
use super::links::{Links, is_sampled_last, least_delay_ns};

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Local port of the first probe.
const PROBE_PORT: u16 = 40_000;
/// Frames of a handshake: SYN and SYN-ACK; and the last segment, which is as long as an acknowledgement.
const HANDSHAKE_BYTES: [u32; 2] = [74, 66];

/// Address and port.
type Host = (IpAddr, u16);

/// Packets of one protocol from one host and port to another.
struct Stream<'a> {
    hash: u32,
    links: Vec<&'a str>,
}

/// The last samples of a connection: of its sender and of its receiver.
type Ends<'a> = (&'a FlowSample, &'a FlowSample);

pub(super) fn check(trial: &Trial, links: &Links<'_>) {
    probes(trial);
    if trial.plan.plan().links.values().any(|link| link.packet_log.is_none()) {
        return;
    }
    let mut streams = Vec::new();
    let last = last_samples(trial);
    for flow in &trial.flows {
        for number in 0..flow.plan.count {
            let [data, acks] = of_connection(trial, flow, number as u16);
            let id = format!("{}/{number}", flow.group);
            if let Some(ends) = last.get(id.as_str()) {
                connection(trial, links, flow, [&data, &acks], *ends);
            }
            streams.extend([data, acks]);
        }
    }
    streams.extend(of_probes(trial));
    streams.iter().for_each(|stream| hops(trial, links, stream));
    if is_sampled_last(trial) {
        inner_links(trial, links, &streams);
    }
}

/// The hash of packets between these hosts.
fn hash(protocol: u8, (from, from_port): Host, (to, to_port): Host) -> u32 {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) else {
        panic!("the simulator's nodes have addresses of IPv4")
    };
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x00, 0x45, 0, 0, 52, 0, 0, 0x40, 0, 64, protocol, 0, 0]);
    frame.extend(from.octets());
    frame.extend(to.octets());
    frame.extend(from_port.to_be_bytes());
    frame.extend(to_port.to_be_bytes());
    flow_hash(&frame)
}

fn host(trial: &Trial, node: &str, port: u16) -> Host {
    let address = trial.topology.address(node);
    (address.unwrap_or_else(|| panic!("node {node} has no address")), port)
}

/// The segments of a connection with data, and its acknowledgements.
fn of_connection<'a>(trial: &'a Trial, flow: &FlowTask, number: u16) -> [Stream<'a>; 2] {
    let client = host(trial, &flow.plan.from, flow.client_port + number);
    let server = host(trial, &flow.plan.to, flow.server_port);
    let (sender, receiver) = Trial::ends(flow);
    let (sends, receives) = if flow.plan.reverse { (server, client) } else { (client, server) };
    [
        Stream { hash: hash(TCP, sends, receives), links: trial.route(sender, receiver) },
        Stream { hash: hash(TCP, receives, sends), links: trial.route(receiver, sender) },
    ]
}

/// The echoes of all probes and their answers.
fn of_probes(trial: &Trial) -> Vec<Stream<'_>> {
    let plan = trial.plan.plan();
    // Local ports are in the order of nodes and names, those of the other ends in the order of names.
    let mut by_node: Vec<_> = plan.probes.iter().collect();
    by_node.sort_by_key(|(name, probe)| (probe.from.clone(), (*name).clone()));
    let served = plan.probes.iter().filter(|(_, probe)| probe.kind == ProbeKind::Udp);
    let ports: BTreeMap<&String, u16> =
        served.zip(0..).map(|((name, _), index)| (name, probe_port(0, index))).collect();
    let mut streams = Vec::new();
    for ((name, probe), local) in by_node.into_iter().zip(PROBE_PORT..) {
        let (protocol, port) = match ports.get(name) {
            Some(port) => (UDP, *port),
            None => (ICMP, 0),
        };
        let (from, to) = (host(trial, &probe.from, local), host(trial, &probe.to, port));
        let (there, back) =
            (trial.route(&probe.from, &probe.to), trial.route(&probe.to, &probe.from));
        streams.push(Stream { hash: hash(protocol, from, to), links: there });
        streams.push(Stream { hash: hash(protocol, to, from), links: back });
    }
    streams
}

/// The last samples of each connection, by its identifier.
fn last_samples(trial: &Trial) -> BTreeMap<&str, Ends<'_>> {
    let mut last = BTreeMap::<&str, [Option<&FlowSample>; 2]>::new();
    for (_, event) in &trial.rows {
        if let Some(Of::FlowSample(row)) = event.of.as_ref() {
            let at = usize::from(row.side() == Side::Receiver);
            last.entry(&row.flow_id).or_default()[at] = Some(row);
        }
    }
    let both = |(id, [sender, receiver]): (_, [Option<_>; 2])| Some((id, (sender?, receiver?)));
    last.into_iter().filter_map(both).collect()
}

/// The rows of a stream on a link.
fn packets<'a>(links: &Links<'a>, link: &str, hash: u32) -> Vec<&'a LinkPacket> {
    let rows = links.rows(link).packets.iter().copied();
    rows.filter(|packet| packet.flow == hash).collect()
}

fn sent<'a>(packets: &[&'a LinkPacket]) -> Vec<&'a LinkPacket> {
    packets.iter().copied().filter(|packet| packet.fate() == PacketFate::Sent).collect()
}

/// Those that may belong to the handshake, which no counter of a connection contains.
fn handshakes(packets: &[&LinkPacket]) -> u64 {
    packets.iter().filter(|packet| HANDSHAKE_BYTES.contains(&packet.bytes)).count() as u64
}

fn duplicates(trial: &Trial, link: &str) -> bool {
    trial.plan.plan().links[link].duplicate.is_some()
}

/// Compares the counters of both ends with the first and the last link.
fn connection(
    trial: &Trial,
    links: &Links<'_>,
    flow: &FlowTask,
    [data, acks]: [&Stream<'_>; 2],
    (sender, receiver): Ends<'_>,
) {
    let id = &sender.flow_id;
    let count = |pkts: Option<u32>| u64::from(pkts.unwrap_or_else(|| panic!("{id}: no counter")));
    let stop_ns = T0_NS + flow.stop.nanos();
    let sides = [
        (data, count(sender.data_segs_out_pkts), count(receiver.data_segs_in_pkts)),
        (acks, count(receiver.segs_out_pkts), count(sender.segs_in_pkts)),
    ];
    for (at, (stream, out, arrived)) in sides.into_iter().enumerate() {
        let (Some(first), Some(last)) = (stream.links.first(), stream.links.last()) else {
            assert_eq!(out, arrived, "{id}: without links nothing is lost");
            continue;
        };
        let entered = packets(links, first, stream.hash);
        let inside = links.rows(first).inside();
        let entered_count = entered.len() as u64;
        assert!(out <= entered_count + inside, "{id}: {out} sent, {entered_count} in {first}");
        if at == 0 && !duplicates(trial, first) {
            let data = entered_count - handshakes(&entered);
            assert!(data <= out, "{id}: {out} sent, {data} in {first}");
        }
        let left = sent(&packets(links, last, stream.hash));
        assert!(arrived <= left.len() as u64, "{id}: {arrived} arrived, {} left", left.len());
        let links = &trial.plan.plan().links;
        if at == 0 && stream.links.iter().all(|name| links[*name].corrupt.is_none()) {
            let before: Vec<_> =
                left.into_iter().filter(|packet| packet.due_ns < Some(stop_ns)).collect();
            let data = before.len() as u64 - handshakes(&before);
            assert!(data <= arrived, "{id}: {data} left {last}, {arrived} arrived");
        }
    }
}

/// What enters a link has left the one before.
fn hops(trial: &Trial, links: &Links<'_>, stream: &Stream<'_>) {
    for pair in stream.links.windows(2) {
        let left = sent(&packets(links, pair[0], stream.hash)).len();
        let entered = packets(links, pair[1], stream.hash).len();
        if !duplicates(trial, pair[1]) {
            assert!(entered <= left, "{left} left {}, {entered} entered {}", pair[0], pair[1]);
        }
    }
}

/// A link that is no stream's first has, or has had, every packet that has left the links before.
fn inner_links(trial: &Trial, links: &Links<'_>, streams: &[Stream<'_>]) {
    let firsts: BTreeSet<&str> =
        streams.iter().filter_map(|stream| stream.links.first().copied()).collect();
    // Pings between the same nodes have the same hash.
    let unique: BTreeMap<u32, &Stream<'_>> =
        streams.iter().map(|stream| (stream.hash, stream)).collect();
    for name in trial.plan.plan().links.keys() {
        if firsts.contains(name.as_str()) || duplicates(trial, name) {
            continue;
        }
        let mut left = 0;
        for stream in unique.values() {
            let before = stream.links.windows(2).filter(|pair| pair[1] == name.as_str());
            left += before
                .map(|pair| sent(&packets(links, pair[0], stream.hash)).len() as u64)
                .sum::<u64>();
        }
        let rows = links.rows(name);
        let seen = rows.packets.len() as u64 + rows.inside();
        assert_eq!(seen, left, "link {name}: seen, and left the links before");
    }
}

/// Each echo has one row; none is faster than the links.
fn probes(trial: &Trial) {
    let mut seen = BTreeSet::new();
    for (_, event) in &trial.rows {
        let Some(Of::Probe(row)) = event.of.as_ref() else { continue };
        assert!(seen.insert((&row.probe_id, row.seq)), "twice: {row:?}");
        let probe = &trial.plan.plan().probes[&row.probe_id];
        let every_ns = u64::from(row.seq) * probe.every.nanos();
        assert_eq!(row.at_ns, T0_NS + probe.start.nanos() + every_ns, "{row:?}");
        assert_eq!(row.lost, row.rtt_us.is_none(), "{row:?}");
        if let Some(rtt_us) = row.rtt_us {
            let least_us = least_rtt_ns(trial, &probe.from, &probe.to) as f64 / 1e3;
            let timeout_us = probe.timeout().nanos() as f64 / 1e3;
            assert!((least_us..=timeout_us).contains(&rtt_us), "{row:?}: from {least_us} us");
        }
    }
}

/// The delays of all links there and back.
pub(super) fn least_rtt_ns(trial: &Trial, from: &str, to: &str) -> u64 {
    let there_and_back = trial.route(from, to).into_iter().chain(trial.route(to, from));
    there_and_back.map(|link| least_delay_ns(trial, link)).sum()
}
