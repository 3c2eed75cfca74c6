//! Checks what must hold of the samples of sockets: counters agree with each other and never shrink, nothing arrives that was not sent, and
//! what is in flight is within the windows.

use std::collections::BTreeMap;

use ccbench_proto::plan::Acks;
use ccbench_proto::schedule::{FlowTask, block_bytes, block_offset_ns};
use ccbench_proto::wire::run_event::Payload;
use ccbench_proto::wire::{self, FlowSample, Interval, Side, TcpEvent, TcpEventKind};
use ccbench_simulator::T0_NS;

use super::Trial;
use super::links::Links;
use super::streams::least_rtt_ns;

/// Payload of a full segment.
const MSS_BYTES: u64 = 1448;
/// `truesize` of a `struct sk_buff` without its data.
const SKB_OVERHEAD_BYTES: u64 = 832;
/// Buffers without a sysctl (`tcp_wmem`, `tcp_rmem`), and the maximum of any sysctl.
const WMEM_BYTES: u64 = 4_194_304;
const RMEM_BYTES: u64 = 6_291_456;
const INT_MAX: u64 = i32::MAX as u64;
/// Timestamps count milliseconds, and smoothed values are rounded down.
const CLOCK_US: u64 = 1_001;

/// The rows of a connection.
#[derive(Default)]
struct Connection<'a> {
    /// The samples of the sender and of the receiver.
    samples: [Vec<&'a FlowSample>; 2],
    intervals: [Vec<&'a Interval>; 2],
    flows: [Vec<&'a wire::Flow>; 2],
    /// Rows of the sender.
    acks: Vec<&'a wire::Acks>,
    events: Vec<&'a TcpEvent>,
}

pub(super) fn check(trial: &Trial, links: &Links<'_>) {
    let connections = connections(trial);
    for flow in &trial.flows {
        for number in 0..flow.plan.count {
            let id = format!("{}/{number}", flow.group);
            let Some(rows) = connections.get(id.as_str()) else { panic!("{id} has no rows") };
            assert_eq!(rows.flows.each_ref().map(Vec::len), [1, 1], "{id}: rows of `flows`");
            rows.samples.iter().for_each(|samples| counters(samples));
            both_ends(rows);
            intervals(rows);
            rows.samples[0].iter().for_each(|row| sender(trial, flow, row));
            rows.samples[1].iter().for_each(|row| receiver(trial, flow, row));
            if trial.plan.plan().sample.acks == Acks::Every {
                congestion_window(rows);
            }
        }
    }
    marks(trial, links, &connections);
}

fn connections(trial: &Trial) -> BTreeMap<&str, Connection<'_>> {
    let mut connections = BTreeMap::<&str, Connection<'_>>::new();
    let at = |side: Side| usize::from(side == Side::Receiver);
    for (_, event) in &trial.rows {
        match event.payload.as_ref() {
            Some(Payload::FlowSample(row)) => {
                let connection = connections.entry(&row.flow_id).or_default();
                connection.samples[at(row.side())].push(row);
            }
            Some(Payload::Interval(row)) => {
                let connection = connections.entry(&row.flow_id).or_default();
                connection.intervals[at(row.side())].push(row);
            }
            Some(Payload::Flow(row)) => {
                let connection = connections.entry(&row.flow_id).or_default();
                connection.flows[at(row.side())].push(row);
            }
            Some(Payload::Acks(batch)) if batch.side() == Side::Sender => {
                connections.entry(&batch.flow_id).or_default().acks.push(batch);
            }
            Some(Payload::TcpEvents(rows)) => {
                for row in rows.events.iter().filter(|row| row.side() == Side::Sender) {
                    connections.entry(&row.flow_id).or_default().events.push(row);
                }
            }
            _ => {}
        }
    }
    connections
}

fn pkts(count: Option<u32>) -> u64 {
    u64::from(count.unwrap_or_else(|| panic!("a sample has no count")))
}

fn bytes(count: Option<u64>) -> u64 {
    count.unwrap_or_else(|| panic!("a sample has no count of bytes"))
}

/// Returns the bytes of the stream that a sender has sent.
fn sent_bytes(row: &FlowSample) -> u64 {
    bytes(row.bytes_sent) - bytes(row.bytes_retrans)
}

fn in_flight(row: &FlowSample) -> u64 {
    let out = pkts(row.unacked_pkts) + pkts(row.retrans_pkts);
    out.saturating_sub(pkts(row.sacked_pkts) + pkts(row.lost_pkts))
}

/// Checks that the counters of an end never shrink.
fn counters(samples: &[&FlowSample]) {
    for pair in samples.windows(2) {
        let counts = |row: &FlowSample| {
            let packets = [row.segs_in_pkts, row.segs_out_pkts, row.data_segs_in_pkts];
            let events = [row.delivered_pkts, row.total_retrans_pkts, row.total_rto];
            let bytes = [row.bytes_acked, row.bytes_received, row.bytes_sent, row.bytes_retrans];
            let times = [row.busy_us, row.rwnd_limited_us, row.sndbuf_limited_us];
            let all = packets.into_iter().chain(events).map(|count| count.map(u64::from));
            all.chain(bytes).chain(times).collect::<Vec<_>>()
        };
        let (before, after) = (counts(pair[0]), counts(pair[1]));
        let grows = before.iter().zip(&after).all(|(before, after)| before <= after);
        assert!(grows && pair[0].at_ns < pair[1].at_ns, "{pair:?}");
    }
}

/// Checks that what is acknowledged has been received, and that what is received has been sent.
fn both_ends(rows: &Connection<'_>) {
    let [senders, receivers] = &rows.samples;
    assert_eq!(senders.len(), receivers.len(), "both ends are sampled together");
    for (sender, receiver) in senders.iter().zip(receivers) {
        assert_eq!(sender.at_ns, receiver.at_ns, "{sender:?}");
        let received = bytes(receiver.bytes_received);
        assert!(bytes(sender.bytes_acked) <= received, "{sender:?} {receiver:?}");
        assert!(received <= sent_bytes(sender), "{sender:?} {receiver:?}");
    }
}

/// Checks that intervals follow each other, and that those of the receiver have all its bytes.
fn intervals(rows: &Connection<'_>) {
    for intervals in &rows.intervals {
        for pair in intervals.windows(2) {
            assert!(pair[0].end_s.to_bits() == pair[1].start_s.to_bits(), "{pair:?}");
            assert!(pair[0].at_ns < pair[1].at_ns, "{pair:?}");
        }
        assert!(intervals.iter().all(|row| row.start_s < row.end_s), "{intervals:?}");
    }
    let received: u64 = rows.intervals[1].iter().map(|row| row.bytes).sum();
    for flow in &rows.flows[1] {
        assert_eq!(flow.bytes, received, "bytes of {}", flow.flow_id);
    }
}

/// Returns the third number of a node's sysctl.
fn buffer_bytes(trial: &Trial, node: &str, sysctl: &str, default: u64) -> u64 {
    let value = trial.plan.plan().nodes[node].sysctl.get(sysctl).map(ToString::to_string);
    let third = value.and_then(|value| value.split_whitespace().nth(2)?.parse().ok());
    third.map_or(default, |bytes: u64| bytes.min(INT_MAX))
}

/// Checks that the counters of a sender agree, that the receive window and the send buffer limit it, and that its RTT is not below the
/// path's.
fn sender(trial: &Trial, flow: &FlowTask, row: &FlowSample) {
    let (node, peer) = Trial::ends(flow);
    let (unacked, retrans) = (pkts(row.unacked_pkts), pkts(row.total_retrans_pkts));
    let outstanding = sent_bytes(row) - bytes(row.bytes_acked);
    assert!(outstanding <= unacked * MSS_BYTES, "{row:?}");
    assert_eq!(outstanding == 0, unacked == 0, "{row:?}");
    assert!(pkts(row.sacked_pkts) + pkts(row.lost_pkts) <= unacked, "{row:?}");
    assert!(pkts(row.retrans_pkts) <= unacked, "{row:?}");
    assert!(pkts(row.snd_cwnd_pkts) >= 1, "{row:?}");
    // The handshake counts as delivered, and so does an unnecessary retransmission (`tcp_dsack_seen()`).
    let new_segments = pkts(row.data_segs_out_pkts) - retrans;
    let duplicates = pkts(row.dsack_dups_pkts);
    assert!(pkts(row.delivered_pkts) <= 1 + new_segments + duplicates, "{row:?}");
    assert!(outstanding <= pkts(row.snd_wnd_bytes), "beyond the receive window: {row:?}");
    // With offloads, data is added to the last packet whether or not the buffer has room.
    if !trial.plan.plan().nodes[node].offloads {
        let sndbuf_bytes = buffer_bytes(trial, node, "net.ipv4.tcp_wmem", WMEM_BYTES);
        // Each packet has one segment. The last packet is made as long as the buffer has room for a byte.
        let limit_bytes = sndbuf_bytes + SKB_OVERHEAD_BYTES + MSS_BYTES;
        // Selectively acknowledged segments share packets (`tcp_shift_skb_data()`).
        let queued_bytes = outstanding + SKB_OVERHEAD_BYTES * (unacked - pkts(row.sacked_pkts));
        assert!(queued_bytes < limit_bytes, "beyond the send buffer: {row:?}");
    }
    let rtt_us = [row.rtt_us, row.min_rtt_us].into_iter().flatten().min().map_or(0, u64::from);
    let least_us = least_rtt_ns(trial, node, peer) / 1000;
    assert!(rtt_us + CLOCK_US >= least_us, "the path has {least_us} us: {row:?}");
    let since_ns = row.at_ns - (T0_NS + flow.start.nanos());
    if let Some(rate) = flow.plan.rate
        && let Some(last) = sent_bytes(row).div_ceil(block_bytes(rate)).checked_sub(1)
    {
        let due_ns = block_offset_ns(rate, block_bytes(rate), last);
        assert!(due_ns <= since_ns, "more than the application has written: {row:?}");
    }
}

/// Checks that the buffer limits the receive window.
fn receiver(trial: &Trial, flow: &FlowTask, row: &FlowSample) {
    let (_, node) = Trial::ends(flow);
    let rcvbuf_bytes = buffer_bytes(trial, node, "net.ipv4.tcp_rmem", RMEM_BYTES);
    assert!(pkts(row.rcv_wnd_bytes) <= rcvbuf_bytes, "beyond tcp_rmem: {row:?}");
    assert!(pkts(row.data_segs_in_pkts) * MSS_BYTES >= bytes(row.bytes_received), "{row:?}");
}

/// Checks that between two samples, the packets in flight grow at most to the maximum congestion window, plus a tail loss probe. An undo
/// makes lost packets count as in flight again, but it changes the state.
fn congestion_window(rows: &Connection<'_>) {
    let acks: Vec<(u64, u64)> = rows
        .acks
        .iter()
        .flat_map(|batch| {
            assert_eq!(batch.at_ns.len(), batch.snd_cwnd_pkts.len(), "{batch:?}");
            batch.at_ns.iter().copied().zip(batch.snd_cwnd_pkts.iter().copied().map(u64::from))
        })
        .collect();
    for pair in rows.samples[0].windows(2) {
        let (from_ns, to_ns) = (pair[0].at_ns, pair[1].at_ns);
        let is_between = move |at_ns: u64| (from_ns..=to_ns).contains(&at_ns);
        let events = || rows.events.iter().filter(move |row| is_between(row.at_ns));
        if events().any(|row| row.kind() == TcpEventKind::CaState) {
            continue;
        }
        let samples = pair.iter().map(|row| pkts(row.snd_cwnd_pkts));
        let at_acks = acks.iter().filter(|(at_ns, _)| is_between(*at_ns)).map(|(_, pkts)| *pkts);
        let at_events = events().map(|row| u64::from(row.snd_cwnd_pkts));
        let highest = samples.chain(at_acks).chain(at_events).max().unwrap_or(0);
        // A tail loss probe is sent even when the window is full.
        let most = highest.max(in_flight(pair[0])) + 1;
        assert!(in_flight(pair[1]) <= most, "{} in flight of {most}: {pair:?}", in_flight(pair[1]));
    }
}

/// Checks that the marks that receivers have counted were set by links, or by senders of packets that already had them.
fn marks(trial: &Trial, links: &Links<'_>, connections: &BTreeMap<&str, Connection<'_>>) {
    let plan = trial.plan.plan();
    if plan.links.values().any(|link| link.packet_log.is_none() || link.duplicate.is_some()) {
        return;
    }
    let last = connections.values().filter_map(|rows| rows.samples[1].last());
    let received: u64 = last.map(|row| pkts(row.received_ce_pkts)).sum();
    let of_link = |name: &String| links.rows(name).packets.iter().filter(|row| row.marked).count();
    let marked = plan.links.keys().map(of_link).sum::<usize>() as u64;
    assert!(received <= marked, "{received} marks received, {marked} set");
}
