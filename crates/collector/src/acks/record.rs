//! Decodes the records of `bpf/acks.bpf.c` and turns rows into columns. Pure.

use std::mem::offset_of;

use ccbench_proto::wire::{self, TcpEventKind};

use super::abi::{Event, Row};
use crate::bytes::{array, u32_at, u64_at};

/// Length of a row, in bytes.
pub const ROW_BYTES: usize = size_of::<Row>();
/// Length of any other record, in bytes.
pub const EVENT_BYTES: usize = size_of::<Event>();

/// The offset of a field in a row.
macro_rules! at {
    ($($field:tt)+) => {
        std::mem::offset_of!(Row, $($field)+)
    };
}

const HAS_RTO: u8 = 1;
const HAS_ACCECN: u8 = 2;

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The state of a socket.
    Row,
    /// The congestion control changed.
    Cc,
    /// Packets were retransmitted.
    Retransmit,
    /// The retransmission timer fired.
    Rto,
    /// `icsk_ca_state` changed.
    CaState,
    /// Packets arrived with CE (receiver), or the peer reported such packets (sender).
    Ce,
}

impl Kind {
    /// Returns the kind as in the table `tcp_events`. Unspecified for a row, which is not an event.
    #[must_use]
    pub fn event_kind(self) -> TcpEventKind {
        match self {
            Self::Row => TcpEventKind::Unspecified,
            Self::Cc => TcpEventKind::Cc,
            Self::Retransmit => TcpEventKind::Retransmit,
            Self::Rto => TcpEventKind::Rto,
            Self::CaState => TcpEventKind::CaState,
            Self::Ce => TcpEventKind::Ce,
        }
    }
}

/// The header of every record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// The kind of the record.
    pub kind: Kind,
    /// Local port.
    pub sport: u16,
    /// Remote port.
    pub dport: u16,
    /// CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// Socket cookie.
    pub cookie: u64,
}

impl RecordHeader {
    /// Reads the header. Returns `None` if the record is too short for its kind or the kind is unknown.
    #[must_use]
    pub fn read(record: &[u8]) -> Option<Self> {
        let (kind, least) = match u32_at(record, at!(kind))? {
            1 => (Kind::Row, ROW_BYTES),
            2 => (Kind::Cc, EVENT_BYTES),
            3 => (Kind::Retransmit, EVENT_BYTES),
            4 => (Kind::Rto, EVENT_BYTES),
            5 => (Kind::CaState, EVENT_BYTES),
            6 => (Kind::Ce, EVENT_BYTES),
            _ => return None,
        };
        let (sport, dport) = ports(u32_at(record, at!(ports))?);
        let (at_ns, cookie) = (u64_at(record, at!(at_ns))?, u64_at(record, at!(cookie))?);
        (record.len() >= least).then_some(Self { kind, sport, dport, at_ns, cookie })
    }
}

/// Splits the field `ports` into local and remote port.
#[must_use]
pub fn ports(both: u32) -> (u16, u16) {
    ((both & 0xffff) as u16, (both >> 16) as u16)
}

/// Returns the name in a record of kind `Cc`, with invalid UTF-8 replaced.
#[must_use]
pub fn cc_name(record: &[u8]) -> String {
    let name: [u8; 16] = array(record, offset_of!(Event, cc)).unwrap_or_default();
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// Returns the event in a record that is not a row. The fields that name its flow stay empty.
#[must_use]
pub fn event(head: &RecordHeader, record: &[u8]) -> wire::TcpEvent {
    let word = |at: usize| u32_at(record, at).unwrap_or_default();
    let changed = head.kind == Kind::CaState;
    wire::TcpEvent {
        at_ns: head.at_ns,
        kind: head.kind.event_kind().into(),
        cookie: head.cookie,
        sport: head.sport.into(),
        dport: head.dport.into(),
        count: if changed { 0 } else { word(offset_of!(Event, count)) },
        ca_state: word(offset_of!(Event, ca_state)),
        ca_state_before: changed.then(|| word(offset_of!(Event, count))),
        snd_cwnd_pkts: word(offset_of!(Event, snd_cwnd)),
        snd_ssthresh_pkts: Some(word(offset_of!(Event, snd_ssthresh)))
            .filter(|&pkts| pkts < SSTHRESH_UNSET_PKTS),
        rtt_us: word(offset_of!(Event, rtt_us)),
        unacked_pkts: word(offset_of!(Event, unacked)),
        lost_pkts: word(offset_of!(Event, lost)),
        total_retrans_pkts: word(offset_of!(Event, total_retrans)),
        ..wire::TcpEvent::default()
    }
}

const SSTHRESH_UNSET_PKTS: u32 = 0x7fff_ffff;

/// Consecutive rows of one socket.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    bytes: &'a [u8],
    /// Length of a jiffy.
    tick_us: u64,
}

impl<'a> Rows<'a> {
    /// Takes whole records of kind `Row`. Ignores an incomplete one at the end.
    #[must_use]
    pub fn new(bytes: &'a [u8], tick_us: u64) -> Self {
        Self { bytes, tick_us }
    }

    /// Returns one value per row, or a single value if all are equal.
    fn column<T: Copy + PartialEq>(&self, value: impl Fn(&'a [u8]) -> T) -> Vec<T> {
        let rows = self.bytes.chunks_exact(ROW_BYTES);
        let mut column: Vec<T> = Vec::with_capacity(rows.len());
        column.extend(rows.map(value));
        if let Some(first) = column.first().copied()
            && column.iter().all(|&value| value == first)
        {
            column.truncate(1);
        }
        column
    }

    fn u64s(&self, at: usize) -> Vec<u64> {
        self.column(|row| u64_at(row, at).unwrap_or_default())
    }

    fn u32s(&self, at: usize) -> Vec<u32> {
        self.column(|row| u32_at(row, at).unwrap_or_default())
    }

    fn u16s(&self, at: usize) -> Vec<u32> {
        self.column(|row| array(row, at).map_or(0, u16::from_ne_bytes).into())
    }

    fn u8s(&self, at: usize) -> Vec<u32> {
        self.column(|row| row.get(at).copied().unwrap_or_default().into())
    }

    /// Converts jiffies to microseconds.
    fn ticks(&self, at: usize) -> Vec<u64> {
        self.column(|row| u64::from(u32_at(row, at).unwrap_or_default()) * self.tick_us)
    }

    fn short_ticks(&self, at: usize) -> Vec<u32> {
        let short = |us| u32::try_from(us).unwrap_or(u32::MAX);
        self.ticks(at).into_iter().map(short).collect()
    }

    /// Fills the columns of a message.
    pub fn fill(&self, acks: &mut wire::Acks) {
        let has = self.bytes.get(at!(has)).copied().unwrap_or_default();
        // Never collapsed to a single value: its length is the number of rows.
        acks.at_ns =
            self.bytes.chunks_exact(ROW_BYTES).filter_map(|row| u64_at(row, at!(at_ns))).collect();
        acks.segments = self.u64s(at!(segments));
        acks.lost_rows = self.u64s(at!(lost_rows));
        self.fill_sender(acks);
        self.fill_counters(acks);
        self.fill_receiver(acks);
        if has & HAS_RTO != 0 {
            acks.total_rto = self.u16s(at!(total_rto));
            acks.total_rto_recoveries = self.u16s(at!(total_rto_recoveries));
            acks.total_rto_time_ms = self.u32s(at!(total_rto_time_ms));
        }
        if has & HAS_ACCECN != 0 {
            acks.received_ce_pkts = self.u32s(at!(received_ce));
            acks.delivered_e1_bytes = self.u32s(at!(delivered_ecn_bytes));
            acks.delivered_e0_bytes = self.u32s(at!(delivered_ecn_bytes) + 4);
            acks.delivered_ce_bytes = self.u32s(at!(delivered_ecn_bytes) + 8);
            acks.received_e1_bytes = self.u32s(at!(received_ecn_bytes));
            acks.received_e0_bytes = self.u32s(at!(received_ecn_bytes) + 4);
            acks.received_ce_bytes = self.u32s(at!(received_ecn_bytes) + 8);
            let nibble =
                |shift: u32| self.u8s(at!(accecn)).into_iter().map(move |both| both >> shift & 15);
            acks.accecn_fail_mode = nibble(0).collect();
            acks.accecn_opt_seen = nibble(4).collect();
        }
    }

    fn fill_sender(&self, acks: &mut wire::Acks) {
        acks.pacing_rate_bytes_per_s = self.u64s(at!(pacing_rate));
        acks.rtt_us = self.u32s(at!(rtt_us));
        acks.rttvar_us = self.u32s(at!(rttvar_us));
        acks.min_rtt_us = self.u32s(at!(min_rtt_us));
        acks.rto_us = self.short_ticks(at!(rto_jiffies));
        acks.snd_cwnd_pkts = self.u32s(at!(snd_cwnd));
        acks.snd_ssthresh_pkts = self.u32s(at!(snd_ssthresh));
        acks.unacked_pkts = self.u32s(at!(unacked));
        acks.sacked_pkts = self.u32s(at!(sacked));
        acks.lost_pkts = self.u32s(at!(lost));
        acks.retrans_pkts = self.u32s(at!(retrans));
        acks.reordering_pkts = self.u32s(at!(reordering));
        acks.rate_delivered_pkts = self.u32s(at!(rate_delivered));
        acks.rate_interval_us = self.u32s(at!(rate_interval_us));
        acks.notsent_bytes = self.u32s(at!(notsent_bytes));
        acks.snd_wnd_bytes = self.u32s(at!(snd_wnd));
        acks.snd_mss_bytes = self.u16s(at!(snd_mss));
        acks.advmss_bytes = self.u16s(at!(advmss));
        acks.rehash = self.u16s(at!(rehash));
        acks.pmtu_bytes = self.u32s(at!(pmtu));
        acks.ca_state = self.u8s(at!(ca_state));
        acks.retransmits = self.u8s(at!(retransmits));
        acks.backoff = self.u8s(at!(backoff));
        acks.probes = self.u8s(at!(probes));
        acks.ecn_flags = self.u8s(at!(ecn_flags));
        acks.app_limited = self.u8s(at!(app_limited)).into_iter().map(|yes| yes != 0).collect();
    }

    fn fill_counters(&self, acks: &mut wire::Acks) {
        acks.bytes_acked = self.u64s(at!(bytes_acked));
        acks.bytes_sent = self.u64s(at!(bytes_sent));
        acks.bytes_retrans = self.u64s(at!(bytes_retrans));
        acks.delivered_pkts = self.u32s(at!(delivered));
        acks.delivered_ce_pkts = self.u32s(at!(delivered_ce));
        acks.total_retrans_pkts = self.u32s(at!(total_retrans));
        acks.segs_out_pkts = self.u32s(at!(segs_out));
        acks.segs_in_pkts = self.u32s(at!(segs_in));
        acks.data_segs_out_pkts = self.u32s(at!(data_segs_out));
        acks.data_segs_in_pkts = self.u32s(at!(data_segs_in));
        acks.dsack_dups_pkts = self.u32s(at!(dsack_dups));
        acks.reord_seen = self.u32s(at!(reord_seen));
        acks.busy_us = self.ticks(at!(busy_jiffies));
        acks.rwnd_limited_us = self.ticks(at!(rwnd_limited_jiffies));
        acks.sndbuf_limited_us = self.ticks(at!(sndbuf_limited_jiffies));
    }

    fn fill_receiver(&self, acks: &mut wire::Acks) {
        acks.bytes_received = self.u64s(at!(bytes_received));
        acks.ato_us = self.short_ticks(at!(ato_jiffies));
        acks.rcv_wnd_bytes = self.u32s(at!(rcv_wnd));
        acks.rcv_ssthresh_bytes = self.u32s(at!(rcv_ssthresh));
        acks.rcv_rtt_us = self.u32s(at!(rcv_rtt_us));
        acks.rcv_space_bytes = self.u32s(at!(rcv_space));
        acks.rcv_ooopack_pkts = self.u32s(at!(rcv_ooopack));
        acks.rcv_mss_bytes = self.u16s(at!(rcv_mss));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn put(record: &mut [u8], at: usize, bytes: &[u8]) {
        record[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn row(at_ns: u64, cwnd: u32) -> Vec<u8> {
        let mut row = vec![0; ROW_BYTES];
        put(&mut row, at!(kind), &1u32.to_ne_bytes());
        put(&mut row, at!(ports), &(40_000u32 | 5201 << 16).to_ne_bytes());
        put(&mut row, at!(at_ns), &at_ns.to_ne_bytes());
        put(&mut row, at!(cookie), &7u64.to_ne_bytes());
        put(&mut row, at!(snd_cwnd), &cwnd.to_ne_bytes());
        put(&mut row, at!(rto_jiffies), &51u32.to_ne_bytes());
        put(&mut row, at!(total_rto), &3u16.to_ne_bytes());
        row[at!(accecn)] = 0x21;
        row
    }

    #[test]
    fn a_constant_column_has_one_value() {
        let bytes = [row(10, 4), row(20, 5), row(30, 5)].concat();
        let mut acks = wire::Acks::default();
        Rows::new(&bytes, 4000).fill(&mut acks);
        assert_eq!(acks.at_ns, [10, 20, 30]);
        assert_eq!(acks.snd_cwnd_pkts, [4, 5, 5]);
        assert_eq!(acks.rto_us, [204_000]);
        assert_eq!(acks.app_limited, [false]);
    }

    #[test]
    fn at_ns_has_one_value_per_row_even_if_constant() {
        let bytes = [row(10, 4), row(10, 4)].concat();
        let mut acks = wire::Acks::default();
        Rows::new(&bytes, 4000).fill(&mut acks);
        assert_eq!((acks.at_ns, acks.snd_cwnd_pkts), (vec![10, 10], vec![4]));
    }

    #[test]
    fn fields_missing_in_the_kernel_have_no_column() {
        let mut bytes = row(10, 4);
        let mut acks = wire::Acks::default();
        Rows::new(&bytes, 4000).fill(&mut acks);
        assert_eq!((acks.total_rto.len(), acks.accecn_fail_mode.len()), (0, 0));
        bytes[at!(has)] = HAS_RTO | HAS_ACCECN;
        Rows::new(&bytes, 4000).fill(&mut acks);
        assert_eq!(
            (acks.total_rto, acks.accecn_fail_mode, acks.accecn_opt_seen),
            (vec![3], vec![1], vec![2])
        );
    }

    #[test]
    fn a_ca_state_event_has_the_old_state() {
        let mut record = vec![0; EVENT_BYTES];
        put(&mut record, at!(kind), &5u32.to_ne_bytes());
        put(&mut record, at!(ports), &(40_000u32 | 5201 << 16).to_ne_bytes());
        put(&mut record, 24, &[0u32, 3, 9, 0x7fff_ffff].map(u32::to_ne_bytes).concat());
        let head = RecordHeader::read(&record).unwrap();
        assert_eq!((head.kind, head.sport, head.dport), (Kind::CaState, 40_000, 5201));
        let event = event(&head, &record);
        assert_eq!((event.ca_state_before, event.ca_state, event.count), (Some(0), 3, 0));
        assert_eq!((event.snd_cwnd_pkts, event.snd_ssthresh_pkts), (9, None));
    }

    #[test]
    fn a_name_ends_at_nul() {
        let mut record = vec![0; EVENT_BYTES];
        put(&mut record, 56, b"cubic\0garbage");
        assert_eq!(cc_name(&record), "cubic");
        put(&mut record, 56, b"sixteen_letters_");
        assert_eq!(cc_name(&record), "sixteen_letters_");
    }

    proptest! {
        #[test]
        fn decodes_any_bytes_without_panic(record in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(head) = RecordHeader::read(&record) {
                let _ = (event(&head, &record), cc_name(&record));
            }
            Rows::new(&record, 4000).fill(&mut wire::Acks::default());
        }
    }
}
