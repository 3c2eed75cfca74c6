//! Collects ring buffer records into batches of rows per socket and batches of events. Pure: records and time are arguments.

use std::collections::HashMap;

use ccbench_proto::wire::{self, run_event::Payload};

use super::record::{self, Kind, ROW_BYTES, RecordHeader, Rows};
use crate::FlowPorts;
use crate::ports::PortMap;

/// Rows in a full batch: enough to make the cost of the per-batch fields negligible.
const BATCH_ROWS: usize = 1024;
/// Maximum age of a batch that is not full.
const BATCH_NS: u64 = 100_000_000;
/// Events in a full batch.
const BATCH_EVENTS: usize = 1024;

/// Collects batches until they are sent.
pub struct Batcher {
    ports: PortMap,
    tick_us: u64,
    /// Index into `sockets` by cookie.
    index: HashMap<u64, usize>,
    sockets: Vec<Socket>,
    events: Vec<wire::TcpEvent>,
    events_since_ns: u64,
    ready: Vec<Payload>,
    /// Records that could not be read.
    malformed: u64,
}

struct Socket {
    /// The per-batch fields; the columns are empty.
    template: wire::Acks,
    rows: Vec<u8>,
    since_ns: u64,
    sent: SentCounts,
}

/// Rows and events of one socket: sent and refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct SentCounts {
    /// Rows.
    pub rows: u64,
    /// Rows that the outbox refused.
    pub refused_rows: u64,
    /// Events.
    pub events: u64,
    /// Events that the outbox refused.
    pub refused_events: u64,
}

impl Batcher {
    /// Makes batches for the sockets of these flows. `tick_us` is the length of a jiffy.
    #[must_use]
    pub fn new(flows: &[FlowPorts], tick_us: u64) -> Self {
        Self {
            ports: PortMap::new(flows),
            tick_us,
            index: HashMap::new(),
            sockets: Vec::new(),
            events: Vec::new(),
            events_since_ns: 0,
            ready: Vec::new(),
            malformed: 0,
        }
    }

    /// Adds one record of the ring buffer.
    pub fn push(&mut self, bytes: &[u8]) {
        let Some(head) = RecordHeader::read(bytes) else {
            self.malformed += 1;
            return;
        };
        let Some(at) = self.socket(head.cookie, head.sport, head.dport) else { return };
        match head.kind {
            Kind::Row => {
                let socket = &mut self.sockets[at];
                if socket.rows.is_empty() {
                    socket.since_ns = head.at_ns;
                }
                socket.rows.extend_from_slice(&bytes[..ROW_BYTES]);
                if socket.rows.len() >= BATCH_ROWS * ROW_BYTES {
                    self.close(at);
                }
            }
            Kind::Cc => {
                // All rows of a batch have the same congestion control.
                self.close(at);
                self.sockets[at].template.cc = record::cc_name(bytes);
                self.push_event(at, &head, bytes);
            }
            _ => self.push_event(at, &head, bytes),
        }
    }

    /// Returns the index of the socket with this cookie; `None` if it belongs to no flow.
    fn socket(&mut self, cookie: u64, sport: u16, dport: u16) -> Option<usize> {
        if let Some(&at) = self.index.get(&cookie) {
            return Some(at);
        }
        let role = self.ports.classify(sport, dport)?;
        let template = wire::Acks {
            flow_id: role.flow_id.to_owned(),
            group: role.group.to_owned(),
            side: role.side.into(),
            role: role.role.into(),
            cookie,
            sport: sport.into(),
            dport: dport.into(),
            ..wire::Acks::default()
        };
        let at = self.sockets.len();
        self.sockets.push(Socket {
            template,
            rows: Vec::new(),
            since_ns: 0,
            sent: SentCounts::default(),
        });
        self.index.insert(cookie, at);
        Some(at)
    }

    fn push_event(&mut self, at: usize, head: &RecordHeader, bytes: &[u8]) {
        let socket = &mut self.sockets[at];
        socket.sent.events += 1;
        let (template, event) = (&socket.template, record::event(head, bytes));
        if self.events.is_empty() {
            self.events_since_ns = head.at_ns;
        }
        self.events.push(wire::TcpEvent {
            flow_id: template.flow_id.clone(),
            group: template.group.clone(),
            side: template.side,
            role: template.role,
            cc: template.cc.clone(),
            ..event
        });
        if self.events.len() >= BATCH_EVENTS {
            self.close_events();
        }
    }

    fn close(&mut self, at: usize) {
        let socket = &mut self.sockets[at];
        if socket.rows.is_empty() {
            return;
        }
        let mut acks = socket.template.clone();
        Rows::new(&socket.rows, self.tick_us).fill(&mut acks);
        socket.sent.rows += acks.at_ns.len() as u64;
        socket.rows.clear();
        self.ready.push(Payload::Acks(acks));
    }

    fn close_events(&mut self) {
        let events = std::mem::take(&mut self.events);
        if !events.is_empty() {
            self.ready.push(Payload::TcpEvents(wire::TcpEvents { events }));
        }
    }

    /// Appends full batches and those that reached their maximum age at `now_ns`. With `all`, appends every batch.
    pub fn drain(&mut self, now_ns: u64, all: bool, into: &mut Vec<Payload>) {
        let due = |since_ns: u64| all || now_ns.saturating_sub(since_ns) >= BATCH_NS;
        for at in 0..self.sockets.len() {
            if due(self.sockets[at].since_ns) {
                self.close(at);
            }
        }
        if due(self.events_since_ns) {
            self.close_events();
        }
        into.append(&mut self.ready);
    }

    /// Counts a batch from [`Batcher::drain`] as refused rather than sent.
    pub fn count_refused(&mut self, payload: &Payload) {
        let mut count = |cookie: u64, rows: u64, events: u64| {
            if let Some(&at) = self.index.get(&cookie) {
                let sent = &mut self.sockets[at].sent;
                sent.rows -= rows;
                sent.refused_rows += rows;
                sent.events -= events;
                sent.refused_events += events;
            }
        };
        match payload {
            Payload::Acks(acks) => count(acks.cookie, acks.at_ns.len() as u64, 0),
            Payload::TcpEvents(events) => {
                events.events.iter().for_each(|event| count(event.cookie, 0, 1));
            }
            _ => {}
        }
    }

    /// Returns a row of `ack_counts` with the fields that are known here: flow, rows and events sent and refused. `None` if the
    /// socket belongs to no flow.
    pub fn count(
        &mut self,
        at_ns: u64,
        cookie: u64,
        sport: u16,
        dport: u16,
    ) -> Option<wire::AckCount> {
        let (template, sent) = self.sent(cookie, sport, dport)?;
        Some(wire::AckCount {
            at_ns,
            flow_id: template.flow_id.clone(),
            group: template.group.clone(),
            side: template.side,
            role: template.role,
            cookie,
            rows: sent.rows,
            refused_rows: sent.refused_rows,
            events: sent.events,
            lost_events: sent.refused_events,
            ..Default::default()
        })
    }

    fn sent(&mut self, cookie: u64, sport: u16, dport: u16) -> Option<(&wire::Acks, SentCounts)> {
        let at = self.socket(cookie, sport, dport)?;
        let socket = self.sockets.get(at)?;
        Some((&socket.template, socket.sent))
    }

    /// Returns the number of unreadable records; 0 unless the versions of the BPF object and this code differ.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.malformed
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::column_text::ColumnText as _;

    use super::*;
    use crate::ports::tests::flow;

    fn batcher() -> Batcher {
        Batcher::new(&[flow("bulk", 5201, false, false)], 4000)
    }

    fn record(kind: u32, at_ns: u64, cookie: u64, sport: u32) -> Vec<u8> {
        let mut bytes = vec![0; if kind == 1 { ROW_BYTES } else { record::EVENT_BYTES }];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&(sport | 5201 << 16).to_ne_bytes());
        bytes[8..16].copy_from_slice(&at_ns.to_ne_bytes());
        bytes[16..24].copy_from_slice(&cookie.to_ne_bytes());
        if kind == 2 {
            bytes[56..60].copy_from_slice(b"reno");
        }
        bytes
    }

    fn batches(batcher: &mut Batcher, now_ns: u64, all: bool) -> Vec<(String, String, usize)> {
        let mut ready = Vec::new();
        batcher.drain(now_ns, all, &mut ready);
        let describe = |payload: Payload| match payload {
            Payload::Acks(acks) => (acks.flow_id, acks.cc, acks.at_ns.len()),
            Payload::TcpEvents(events) => {
                let kind = events.events[0].kind().as_text();
                (kind.to_owned(), String::new(), events.events.len())
            }
            _ => panic!("nothing else comes out"),
        };
        ready.into_iter().map(describe).collect()
    }

    #[test]
    fn a_batch_holds_one_socket_and_is_sent_when_full_or_old() {
        let mut batcher = batcher();
        for at_ns in 0..BATCH_ROWS as u64 + 1 {
            batcher.push(&record(1, at_ns, 1, 40_000));
        }
        batcher.push(&record(1, 5, 2, 40_001));
        assert_eq!(
            batches(&mut batcher, 10, false),
            [("bulk/0".into(), String::new(), BATCH_ROWS)]
        );
        let rest = [("bulk/0".into(), String::new(), 1), ("bulk/1".into(), String::new(), 1)];
        assert_eq!(batches(&mut batcher, 2 * BATCH_NS, false), rest);
        assert_eq!(batches(&mut batcher, 3 * BATCH_NS, true), []);
    }

    #[test]
    fn a_batch_holds_one_congestion_control() {
        let mut batcher = batcher();
        batcher.push(&record(1, 1, 1, 40_000));
        batcher.push(&record(2, 2, 1, 40_000));
        batcher.push(&record(1, 3, 1, 40_000));
        let expected = [
            ("bulk/0".into(), String::new(), 1),
            ("bulk/0".into(), "reno".into(), 1),
            ("cc".into(), String::new(), 1),
        ];
        assert_eq!(batches(&mut batcher, 4, true), expected);
    }

    #[test]
    fn counts_refused_batches() {
        let mut batcher = batcher();
        batcher.push(&record(1, 1, 1, 40_000));
        batcher.push(&record(3, 2, 1, 40_000));
        let mut ready = Vec::new();
        batcher.drain(0, true, &mut ready);
        let sent = |rows, refused_rows, events, refused_events| SentCounts {
            rows,
            refused_rows,
            events,
            refused_events,
        };
        assert_eq!(batcher.sent(1, 40_000, 5201).unwrap().1, sent(1, 0, 1, 0));
        ready.iter().for_each(|payload| batcher.count_refused(payload));
        assert_eq!(batcher.sent(1, 40_000, 5201).unwrap().1, sent(0, 1, 0, 1));
    }

    #[test]
    fn ignores_other_sockets_and_counts_malformed_records() {
        let mut batcher = batcher();
        let mut other = record(1, 1, 9, 40_000);
        other[6..8].copy_from_slice(&80u16.to_ne_bytes());
        batcher.push(&other);
        batcher.push(&[1, 2, 3]);
        batcher.push(&record(77, 1, 1, 40_000));
        assert_eq!(batches(&mut batcher, 0, true), []);
        assert_eq!(batcher.malformed(), 2);
    }
}
