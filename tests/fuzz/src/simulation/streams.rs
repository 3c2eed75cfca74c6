//! Checks the conservation of packets: what a host sends enters the first link of its route, what leaves a link enters the next one, and
//! what leaves the last one arrives. The hash in `link_packets` identifies a stream.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ccbench_proto::plan::ProbeKind;
use ccbench_proto::schedule::{FlowTask, probe_port};
use ccbench_proto::wire::run_event::Payload;
use ccbench_proto::wire::{FlowSample, LinkPacket, PacketFate, Side};
use ccbench_shaper::fuzzing::flow_hash;
use ccbench_simulator::T0_NS;

use super::Trial;
use super::links::{Links, is_sampled_last, least_delay_ns};

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Local port of the first probe that sends echoes.
const PROBE_PORT: u16 = 40_000;
/// Local ports of probes over TCP (`ip_local_port_range`), and the distance between the first ports of two probes.
const FIRST_LOCAL_PORT: u16 = 32_768;
const LOCAL_PORTS: u64 = 28_232;
const PORTS_PER_PROBE: u64 = 800;
/// Frames of a handshake: SYN and SYN-ACK, and the last segment, which is as long as an acknowledgement.
const HANDSHAKE_BYTES: [u32; 2] = [74, 66];

/// Address and port.
type Host = (IpAddr, u16);

/// Packets of one protocol from one host and port to another.
struct Stream<'a> {
    hash: u32,
    links: Vec<&'a str>,
}

/// The last samples of a connection: of its sender and its receiver.
type Ends<'a> = (&'a FlowSample, &'a FlowSample);

pub(super) fn check(trial: &Trial, links: &Links<'_>) {
    if trial.plan.plan().links.values().any(|link| link.packet_log.is_none()) {
        return;
    }
    let mut connections = Vec::new();
    for flow in &trial.flows {
        for number in 0..flow.plan.count {
            let id = format!("{}/{number}", flow.group);
            connections.push((flow, id, of_connection(trial, flow, number as u16)));
        }
    }
    let mut streams = of_probes(trial);
    if is_ambiguous(&streams, connections.iter().flat_map(|(_, _, both)| both)) {
        return;
    }
    let last = last_samples(trial);
    for (flow, id, [data, acks]) in connections {
        if let Some(ends) = last.get(id.as_str()) {
            connection(trial, links, flow, [&data, &acks], *ends);
        }
        streams.extend([data, acks]);
    }
    streams.iter().for_each(|stream| hops(trial, links, stream));
    if is_sampled_last(trial) {
        inner_links(trial, links, &streams);
    }
}

/// Returns whether a flow's connection has the hash of another stream, or streams of probes with the same hash use different links. The
/// streams of packets are then unknown. With thousands of fetches, this can happen by chance.
fn is_ambiguous<'a>(
    probes: &'a [Stream<'a>],
    mut connections: impl Iterator<Item = &'a Stream<'a>>,
) -> bool {
    let mut routes: BTreeMap<u32, &[&str]> = BTreeMap::new();
    let differs = |stream: &'a Stream<'a>| {
        *routes.entry(stream.hash).or_insert(&stream.links) != stream.links
    };
    probes.iter().any(differs)
        || connections.any(|stream| routes.insert(stream.hash, &stream.links).is_some())
}

/// Returns the hash of packets between these hosts.
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

/// Returns a connection's data segments, and its acknowledgements.
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

/// Returns the packets of all probes and their answers. A probe over TCP has two streams for each measurement.
fn of_probes(trial: &Trial) -> Vec<Stream<'_>> {
    let plan = trial.plan.plan();
    // Local ports are in order of nodes and names; those of the other ends are in order of names.
    let mut by_node: Vec<_> = plan.probes.iter().collect();
    by_node.sort_by_key(|(name, probe)| (probe.from.clone(), (*name).clone()));
    let served = plan.probes.iter().filter(|(_, probe)| probe.kind.is_served());
    let ports: BTreeMap<&String, u16> =
        served.zip(0..).map(|((name, _), index)| (name, probe_port(0, index))).collect();
    let mut measurements = BTreeMap::<&str, u64>::new();
    for (_, event) in &trial.rows {
        if let Some(Payload::Probe(row)) = event.payload.as_ref() {
            *measurements.entry(&row.probe_id).or_default() += 1;
        }
    }
    let (mut echoes, mut connecting) = (0, 0);
    let mut streams = Vec::new();
    for (name, probe) in by_node {
        let protocol = match probe.kind {
            ProbeKind::Ping => ICMP,
            ProbeKind::Udp | ProbeKind::UdpStream => UDP,
            ProbeKind::TcpConnect | ProbeKind::Http => TCP,
        };
        let local_ports: Vec<u16> = if probe.kind.connects() {
            connecting += 1;
            // The last one may have no row.
            let count = measurements.get(name.as_str()).copied().unwrap_or(0) + 1;
            (0..count).map(|seq| local_port(connecting - 1, seq)).collect()
        } else {
            echoes += 1;
            vec![PROBE_PORT + echoes - 1]
        };
        let to = host(trial, &probe.to, ports.get(name).copied().unwrap_or(0));
        let (there, back) =
            (trial.route(&probe.from, &probe.to), trial.route(&probe.to, &probe.from));
        for port in local_ports {
            let from = host(trial, &probe.from, port);
            streams.push(Stream { hash: hash(protocol, from, to), links: there.clone() });
            streams.push(Stream { hash: hash(protocol, to, from), links: back.clone() });
        }
    }
    streams
}

/// Returns the hashes of pings and their answers that have more than one DSCP. Echoes over ICMP have no ports, so the packets of all pings
/// from one node to another are one flow.
pub(super) fn pings_with_several_dscps(trial: &Trial) -> BTreeSet<u32> {
    let mut dscps = BTreeMap::<u32, BTreeSet<u8>>::new();
    for probe in trial.plan.plan().probes.values().filter(|probe| probe.kind == ProbeKind::Ping) {
        for (from, to) in [(&probe.from, &probe.to), (&probe.to, &probe.from)] {
            let flow = hash(ICMP, host(trial, from, 0), host(trial, to, 0));
            dscps.entry(flow).or_default().insert(probe.tos >> 2);
        }
    }
    dscps.into_iter().filter(|(_, dscps)| dscps.len() > 1).map(|(flow, _)| flow).collect()
}

/// Returns the port of a measurement. `probe` counts those over TCP.
fn local_port(probe: u64, seq: u64) -> u16 {
    FIRST_LOCAL_PORT + ((probe * PORTS_PER_PROBE + seq * 2) % LOCAL_PORTS) as u16
}

/// Returns the last samples of each connection, by its identifier.
fn last_samples(trial: &Trial) -> BTreeMap<&str, Ends<'_>> {
    let mut last = BTreeMap::<&str, [Option<&FlowSample>; 2]>::new();
    for (_, event) in &trial.rows {
        if let Some(Payload::FlowSample(row)) = event.payload.as_ref() {
            let at = usize::from(row.side() == Side::Receiver);
            last.entry(&row.flow_id).or_default()[at] = Some(row);
        }
    }
    let both = |(id, [sender, receiver]): (_, [Option<_>; 2])| Some((id, (sender?, receiver?)));
    last.into_iter().filter_map(both).collect()
}

/// Returns the rows of a stream on a link.
fn packets<'l, 'a>(links: &'l Links<'a>, link: &str, hash: u32) -> &'l [&'a LinkPacket] {
    links.rows(link).of_flow(hash)
}

fn sent<'a>(packets: &[&'a LinkPacket]) -> Vec<&'a LinkPacket> {
    packets.iter().copied().filter(|packet| packet.fate() == PacketFate::Sent).collect()
}

/// Returns the number of packets that may belong to the handshake, which no counter of a connection includes.
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
            let data = entered_count - handshakes(entered);
            assert!(data <= out, "{id}: {out} sent, {data} in {first}");
        }
        let left = sent(packets(links, last, stream.hash));
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

/// Checks that what enters a link has left the previous one.
fn hops(trial: &Trial, links: &Links<'_>, stream: &Stream<'_>) {
    for pair in stream.links.windows(2) {
        let left = sent(packets(links, pair[0], stream.hash)).len();
        let entered = packets(links, pair[1], stream.hash).len();
        if !duplicates(trial, pair[1]) {
            assert!(entered <= left, "{left} left {}, {entered} entered {}", pair[0], pair[1]);
        }
    }
}

/// Checks a link that is not the first of any stream: it has, or has had, every packet that has left the previous links.
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
                .map(|pair| sent(packets(links, pair[0], stream.hash)).len() as u64)
                .sum::<u64>();
        }
        let rows = links.rows(name);
        let seen = rows.packets.len() as u64 + rows.inside();
        assert_eq!(seen, left, "link {name}: seen, and left the links before");
    }
}

/// Returns the sum of the delays of all links there and back.
pub(super) fn least_rtt_ns(trial: &Trial, from: &str, to: &str) -> u64 {
    let there_and_back = trial.route(from, to).into_iter().chain(trial.route(to, from));
    there_and_back.map(|link| least_delay_ns(trial, link)).sum()
}
