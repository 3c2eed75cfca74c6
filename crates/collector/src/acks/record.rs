//! The records of `bpf/acks.bpf.c`, and many of them as the columns of a table. Pure.

use ccbench_proto::wire;

use crate::bytes::{array, u32_at, u64_at};

/// Bytes of a row's record.
pub const ROW_BYTES: usize = 272;
/// Bytes of any other record.
pub const EVENT_BYTES: usize = 72;

/// Where the fields of `struct row` lie, in its order.
macro_rules! layout {
    ($at:expr; ) => { const _: () = assert!(($at as usize).next_multiple_of(8) == ROW_BYTES); };
    ($at:expr; $name:ident: $bytes:literal, $($rest:tt)*) => {
        const $name: usize = $at;
        layout! { $at + $bytes; $($rest)* }
    };
}

layout! { 0;
    KIND: 4, PORTS: 4, AT_NS: 8, COOKIE: 8, SEGMENTS: 8, LOST_ROWS: 8,
    BYTES_ACKED: 8, BYTES_RECEIVED: 8, BYTES_SENT: 8, BYTES_RETRANS: 8, PACING_RATE: 8,
    RTT: 4, RTTVAR: 4, MIN_RTT: 4, RTO: 4, ATO: 4,
    SND_CWND: 4, SND_SSTHRESH: 4, UNACKED: 4, SACKED: 4, LOST: 4, RETRANS: 4, REORDERING: 4,
    DELIVERED: 4, DELIVERED_CE: 4, RATE_DELIVERED: 4, RATE_INTERVAL: 4,
    TOTAL_RETRANS: 4, SEGS_OUT: 4, SEGS_IN: 4, DATA_SEGS_OUT: 4, DATA_SEGS_IN: 4, NOTSENT: 4,
    SND_WND: 4, RCV_WND: 4, RCV_SSTHRESH: 4, RCV_RTT: 4, RCV_SPACE: 4, RCV_OOOPACK: 4,
    DSACK_DUPS: 4, REORD_SEEN: 4, PMTU: 4, SND_MSS: 2, RCV_MSS: 2, ADVMSS: 2, REHASH: 2,
    BUSY: 4, RWND_LIMITED: 4, SNDBUF_LIMITED: 4,
    TOTAL_RTO: 2, TOTAL_RTO_RECOVERIES: 2, TOTAL_RTO_TIME: 4,
    RECEIVED_CE: 4, DELIVERED_E1: 4, DELIVERED_E0: 4, DELIVERED_CE_BYTES: 4,
    RECEIVED_E1: 4, RECEIVED_E0: 4, RECEIVED_CE_BYTES: 4,
    CA_STATE: 1, RETRANSMITS: 1, BACKOFF: 1, PROBES: 1, APP_LIMITED: 1, ECN_FLAGS: 1, ACCECN: 1, HAS: 1,
}

const HAS_RTO: u8 = 1;
const HAS_ACCECN: u8 = 2;

/// What a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The state of a socket.
    Row,
    /// The congestion control is now another.
    Cc,
    /// Packets were sent again.
    Retransmit,
    /// The retransmission timer fired.
    Rto,
    /// The state of loss recovery changed.
    CaState,
    /// Packets came with CE (receiver), or were counted as such by the peer (sender).
    Ce,
}

impl Kind {
    /// As in table `tcp_events`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Row => "row",
            Self::Cc => "cc",
            Self::Retransmit => "retransmit",
            Self::Rto => "rto",
            Self::CaState => "ca_state",
            Self::Ce => "ce",
        }
    }
}

/// What all records begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// What the rest is.
    pub kind: Kind,
    /// This end's port.
    pub sport: u16,
    /// The peer's port.
    pub dport: u16,
    /// CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// The kernel's name for the socket.
    pub cookie: u64,
}

impl Head {
    /// Reads it; `None` if the record is too short for its kind, or of a kind that is not known.
    #[must_use]
    pub fn read(record: &[u8]) -> Option<Self> {
        let (kind, least) = match u32_at(record, KIND)? {
            1 => (Kind::Row, ROW_BYTES),
            2 => (Kind::Cc, EVENT_BYTES),
            3 => (Kind::Retransmit, EVENT_BYTES),
            4 => (Kind::Rto, EVENT_BYTES),
            5 => (Kind::CaState, EVENT_BYTES),
            6 => (Kind::Ce, EVENT_BYTES),
            _ => return None,
        };
        let (sport, dport) = ports(u32_at(record, PORTS)?);
        let (at_ns, cookie) = (u64_at(record, AT_NS)?, u64_at(record, COOKIE)?);
        (record.len() >= least).then_some(Self { kind, sport, dport, at_ns, cookie })
    }
}

/// This end's port and the peer's.
#[must_use]
pub fn ports(both: u32) -> (u16, u16) {
    ((both & 0xffff) as u16, (both >> 16) as u16)
}

/// The name in a record of kind `Cc`; bytes that are no text are replaced.
#[must_use]
pub fn cc_name(record: &[u8]) -> String {
    let name: [u8; 16] = array(record, 56).unwrap_or_default();
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// The event in a record that is no row; whose it is, is left empty.
#[must_use]
pub fn event(head: &Head, record: &[u8]) -> wire::TcpEvent {
    let word = |index: usize| u32_at(record, 24 + 4 * index).unwrap_or_default();
    let changed = head.kind == Kind::CaState;
    wire::TcpEvent {
        at_ns: head.at_ns,
        kind: head.kind.as_str().to_owned(),
        cookie: head.cookie,
        sport: head.sport.into(),
        dport: head.dport.into(),
        count: if changed { 0 } else { word(0) },
        ca_state: word(1),
        ca_state_before: changed.then(|| word(0)),
        snd_cwnd_pkts: word(2),
        snd_ssthresh_pkts: Some(word(3)).filter(|&pkts| pkts < SSTHRESH_UNSET_PKTS),
        rtt_us: word(4),
        unacked_pkts: word(5),
        lost_pkts: word(6),
        total_retrans_pkts: word(7),
        ..wire::TcpEvent::default()
    }
}

const SSTHRESH_UNSET_PKTS: u32 = 0x7fff_ffff;

/// Rows of one socket, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    bytes: &'a [u8],
    /// Length of a jiffy.
    tick_us: u64,
}

impl<'a> Rows<'a> {
    /// Of whole records of kind `Row`; what is cut off at the end does not count.
    #[must_use]
    pub fn new(bytes: &'a [u8], tick_us: u64) -> Self {
        Self { bytes, tick_us }
    }

    /// A value per row, or one if all are the same.
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

    /// Microseconds, of jiffies.
    fn ticks(&self, at: usize) -> Vec<u64> {
        self.column(|row| u64::from(u32_at(row, at).unwrap_or_default()) * self.tick_us)
    }

    fn short_ticks(&self, at: usize) -> Vec<u32> {
        let short = |us| u32::try_from(us).unwrap_or(u32::MAX);
        self.ticks(at).into_iter().map(short).collect()
    }

    /// Puts all columns into a message.
    pub fn fill(&self, acks: &mut wire::Acks) {
        let has = self.bytes.get(HAS).copied().unwrap_or_default();
        // One value per row here, whatever they are: their number is the batch's.
        acks.at_ns =
            self.bytes.chunks_exact(ROW_BYTES).filter_map(|row| u64_at(row, AT_NS)).collect();
        acks.segments = self.u64s(SEGMENTS);
        acks.lost_rows = self.u64s(LOST_ROWS);
        self.fill_sender(acks);
        self.fill_counters(acks);
        self.fill_receiver(acks);
        if has & HAS_RTO != 0 {
            acks.total_rto = self.u16s(TOTAL_RTO);
            acks.total_rto_recoveries = self.u16s(TOTAL_RTO_RECOVERIES);
            acks.total_rto_time_ms = self.u32s(TOTAL_RTO_TIME);
        }
        if has & HAS_ACCECN != 0 {
            acks.received_ce_pkts = self.u32s(RECEIVED_CE);
            acks.delivered_e1_bytes = self.u32s(DELIVERED_E1);
            acks.delivered_e0_bytes = self.u32s(DELIVERED_E0);
            acks.delivered_ce_bytes = self.u32s(DELIVERED_CE_BYTES);
            acks.received_e1_bytes = self.u32s(RECEIVED_E1);
            acks.received_e0_bytes = self.u32s(RECEIVED_E0);
            acks.received_ce_bytes = self.u32s(RECEIVED_CE_BYTES);
            let nibble =
                |shift: u32| self.u8s(ACCECN).into_iter().map(move |both| both >> shift & 15);
            acks.accecn_fail_mode = nibble(0).collect();
            acks.accecn_opt_seen = nibble(4).collect();
        }
    }

    fn fill_sender(&self, acks: &mut wire::Acks) {
        acks.pacing_rate_bytes_per_s = self.u64s(PACING_RATE);
        acks.rtt_us = self.u32s(RTT);
        acks.rttvar_us = self.u32s(RTTVAR);
        acks.min_rtt_us = self.u32s(MIN_RTT);
        acks.rto_us = self.short_ticks(RTO);
        acks.snd_cwnd_pkts = self.u32s(SND_CWND);
        acks.snd_ssthresh_pkts = self.u32s(SND_SSTHRESH);
        acks.unacked_pkts = self.u32s(UNACKED);
        acks.sacked_pkts = self.u32s(SACKED);
        acks.lost_pkts = self.u32s(LOST);
        acks.retrans_pkts = self.u32s(RETRANS);
        acks.reordering_pkts = self.u32s(REORDERING);
        acks.rate_delivered_pkts = self.u32s(RATE_DELIVERED);
        acks.rate_interval_us = self.u32s(RATE_INTERVAL);
        acks.notsent_bytes = self.u32s(NOTSENT);
        acks.snd_wnd_bytes = self.u32s(SND_WND);
        acks.snd_mss_bytes = self.u16s(SND_MSS);
        acks.advmss_bytes = self.u16s(ADVMSS);
        acks.rehash = self.u16s(REHASH);
        acks.pmtu_bytes = self.u32s(PMTU);
        acks.ca_state = self.u8s(CA_STATE);
        acks.retransmits = self.u8s(RETRANSMITS);
        acks.backoff = self.u8s(BACKOFF);
        acks.probes = self.u8s(PROBES);
        acks.ecn_flags = self.u8s(ECN_FLAGS);
        acks.app_limited = self.u8s(APP_LIMITED).into_iter().map(|yes| yes != 0).collect();
    }

    fn fill_counters(&self, acks: &mut wire::Acks) {
        acks.bytes_acked = self.u64s(BYTES_ACKED);
        acks.bytes_sent = self.u64s(BYTES_SENT);
        acks.bytes_retrans = self.u64s(BYTES_RETRANS);
        acks.delivered_pkts = self.u32s(DELIVERED);
        acks.delivered_ce_pkts = self.u32s(DELIVERED_CE);
        acks.total_retrans_pkts = self.u32s(TOTAL_RETRANS);
        acks.segs_out_pkts = self.u32s(SEGS_OUT);
        acks.segs_in_pkts = self.u32s(SEGS_IN);
        acks.data_segs_out_pkts = self.u32s(DATA_SEGS_OUT);
        acks.data_segs_in_pkts = self.u32s(DATA_SEGS_IN);
        acks.dsack_dups_pkts = self.u32s(DSACK_DUPS);
        acks.reord_seen = self.u32s(REORD_SEEN);
        acks.busy_us = self.ticks(BUSY);
        acks.rwnd_limited_us = self.ticks(RWND_LIMITED);
        acks.sndbuf_limited_us = self.ticks(SNDBUF_LIMITED);
    }

    fn fill_receiver(&self, acks: &mut wire::Acks) {
        acks.bytes_received = self.u64s(BYTES_RECEIVED);
        acks.ato_us = self.short_ticks(ATO);
        acks.rcv_wnd_bytes = self.u32s(RCV_WND);
        acks.rcv_ssthresh_bytes = self.u32s(RCV_SSTHRESH);
        acks.rcv_rtt_us = self.u32s(RCV_RTT);
        acks.rcv_space_bytes = self.u32s(RCV_SPACE);
        acks.rcv_ooopack_pkts = self.u32s(RCV_OOOPACK);
        acks.rcv_mss_bytes = self.u16s(RCV_MSS);
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
        put(&mut row, KIND, &1u32.to_ne_bytes());
        put(&mut row, PORTS, &(40_000u32 | 5201 << 16).to_ne_bytes());
        put(&mut row, AT_NS, &at_ns.to_ne_bytes());
        put(&mut row, COOKIE, &7u64.to_ne_bytes());
        put(&mut row, SND_CWND, &cwnd.to_ne_bytes());
        put(&mut row, RTO, &51u32.to_ne_bytes());
        put(&mut row, TOTAL_RTO, &3u16.to_ne_bytes());
        row[ACCECN] = 0x21;
        row
    }

    #[test]
    fn a_column_of_one_value_is_told_once() {
        let bytes = [row(10, 4), row(20, 5), row(30, 5)].concat();
        let mut acks = wire::Acks::default();
        Rows::new(&bytes, 4000).fill(&mut acks);
        assert_eq!(acks.at_ns, [10, 20, 30]);
        assert_eq!(acks.snd_cwnd_pkts, [4, 5, 5]);
        assert_eq!(acks.rto_us, [204_000]);
        assert_eq!(acks.app_limited, [false]);
    }

    #[test]
    fn equal_times_still_say_how_many_rows_there_are() {
        let bytes = [row(10, 4), row(10, 4)].concat();
        let mut acks = wire::Acks::default();
        Rows::new(&bytes, 4000).fill(&mut acks);
        assert_eq!((acks.at_ns, acks.snd_cwnd_pkts), (vec![10, 10], vec![4]));
    }

    #[test]
    fn what_the_kernel_does_not_have_has_no_column() {
        let mut bytes = row(10, 4);
        let mut acks = wire::Acks::default();
        Rows::new(&bytes, 4000).fill(&mut acks);
        assert_eq!((acks.total_rto.len(), acks.accecn_fail_mode.len()), (0, 0));
        bytes[HAS] = HAS_RTO | HAS_ACCECN;
        Rows::new(&bytes, 4000).fill(&mut acks);
        assert_eq!(
            (acks.total_rto, acks.accecn_fail_mode, acks.accecn_opt_seen),
            (vec![3], vec![1], vec![2])
        );
    }

    #[test]
    fn a_change_of_state_says_from_what() {
        let mut record = vec![0; EVENT_BYTES];
        put(&mut record, KIND, &5u32.to_ne_bytes());
        put(&mut record, PORTS, &(40_000u32 | 5201 << 16).to_ne_bytes());
        put(&mut record, 24, &[0u32, 3, 9, 0x7fff_ffff].map(u32::to_ne_bytes).concat());
        let head = Head::read(&record).unwrap();
        assert_eq!((head.kind, head.sport, head.dport), (Kind::CaState, 40_000, 5201));
        let told = event(&head, &record);
        assert_eq!((told.ca_state_before, told.ca_state, told.count), (Some(0), 3, 0));
        assert_eq!((told.snd_cwnd_pkts, told.snd_ssthresh_pkts), (9, None));
    }

    #[test]
    fn a_name_ends_at_its_zero() {
        let mut record = vec![0; EVENT_BYTES];
        put(&mut record, 56, b"cubic\0garbage");
        assert_eq!(cc_name(&record), "cubic");
        put(&mut record, 56, b"sixteen_letters_");
        assert_eq!(cc_name(&record), "sixteen_letters_");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_none(record in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(head) = Head::read(&record) {
                let _ = (event(&head, &record), cc_name(&record));
            }
            Rows::new(&record, 4000).fill(&mut wire::Acks::default());
        }
    }
}
