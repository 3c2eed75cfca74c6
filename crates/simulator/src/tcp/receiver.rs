//! The receiving end of a connection: `tcp_data_queue()`, delayed and compressed acknowledgements, the receive window.

use ccbench_proto::plan::Ecn;

use super::EcnMode;
use super::rack::TCP_FASTRETRANS_THRESH;
use super::ranges::Ranges;
use super::rtt::RTO_MIN_US;
use super::timer_wheel::wheel_ns;
use crate::packet::{AckSegment, MAX_SACK_BLOCKS, MSS_BYTES, Segment, SeqRange};

/// Shortest delay of an acknowledgement; also TCP_DELACK_MIN.
const TCP_ATO_MIN_NS: u64 = 40_000_000;
/// Longest delay of an acknowledgement.
const TCP_DELACK_MAX_NS: u64 = 200_000_000;
/// Acknowledgements without delay, at most.
const TCP_MAX_QUICKACKS: u32 = 16;
/// After a change of the CE mark.
const QUICK_ACKS_AFTER_CE: u32 = 2;
/// Compressed acknowledgements (sysctls `tcp_comp_sack_*`): how many, their delay, and its limit in percent of the RTT.
const COMP_SACK_NR: u32 = 44;
const COMP_SACK_DELAY_NS: u64 = 1_000_000;
const COMP_SACK_RTT_PERCENT: u64 = 33;
/// `tcp_rcvbuf_low_rtt`.
const RCVBUF_LOW_RTT_NS: u64 = 1_000_000;
/// Share of the buffer that holds payload: a full segment of 1448 bytes takes 2304 bytes with its `struct sk_buff`.
const PAYLOAD_NUMERATOR: u64 = 1448;
const PAYLOAD_DENOMINATOR: u64 = 2304;
/// The receive window of a new socket.
const INITIAL_WINDOW_BYTES: u64 = 65_535;

/// A segment that a receiver sends at once.
type Reply = Option<AckSegment>;

/// A receiving socket.
#[derive(Debug)]
pub struct Receiver {
    ecn: EcnMode,
    rcv_nxt: u64,
    /// `rcv_nxt` of the last acknowledgement.
    rcv_wup: u64,
    rcv_wnd_end: u64,
    /// The window, and its limit by `tcp_rmem`.
    rcv_wnd_bytes: u64,
    window_clamp_bytes: u64,
    out_of_order: Ranges,
    /// Ranges in the order in which they last grew.
    selective_acks: [SeqRange; MAX_SACK_BLOCKS + 1],
    num_sacks: usize,
    duplicate_sack: Option<SeqRange>,
    ts_recent_ns: u64,
    /// `icsk_ack.quick`: so many acknowledgements are not delayed.
    quick: u32,
    /// Delay of an acknowledgement, `icsk_ack.ato`; 0 before the first segment.
    ato_ns: u64,
    /// `icsk_ack.lrcvtime`: when the last segment with data came.
    lrcvtime_ns: u64,
    delack_timer_ns: Option<u64>,
    compressed_ack_timer_ns: Option<u64>,
    compressed_ack: u32,
    dup_ack_counter: u32,
    compressed_ack_rcv_nxt: u64,
    /// `TCP_ECN_DEMAND_CWR` (RFC 3168): echo until the sender's CWR.
    demand_cwr: bool,
    last_ce: bool,
    ce_pkts: u32,
    /// Dynamic right-sizing (`tcp_rcv_space_adjust()`): the RTT as the receiver sees it, and the last measurement.
    rcv_rtt_ns: u64,
    /// Of the handshake.
    handshake_rtt_ns: u64,
    rcv_rtt_last_tsecr_ns: u64,
    rcvq_space_bytes: u64,
    rcvq_space_seq: u64,
    rcvq_space_time_ns: u64,
    /// Counters for tables.
    pub segs_in: u32,
    pub data_segs_in: u32,
    pub segs_out: u32,
    pub rcv_ooopack: u32,
}

impl Receiver {
    /// A socket that may hold `buffer_bytes` (`tcp_rmem`), on a path of this RTT.
    pub fn new(ecn: EcnMode, rcvbuf_bytes: u64, now_ns: u64, rtt_ns: u64) -> Self {
        let window_clamp_bytes = rcvbuf_bytes * PAYLOAD_NUMERATOR / PAYLOAD_DENOMINATOR;
        let rcv_wnd_bytes = INITIAL_WINDOW_BYTES.min(window_clamp_bytes);
        Self {
            ecn,
            rcv_nxt: 0,
            rcv_wup: 0,
            rcv_wnd_end: rcv_wnd_bytes,
            rcv_wnd_bytes,
            window_clamp_bytes,
            out_of_order: Ranges::default(),
            selective_acks: [SeqRange::default(); MAX_SACK_BLOCKS + 1],
            num_sacks: 0,
            duplicate_sack: None,
            ts_recent_ns: 0,
            quick: 0,
            ato_ns: 0,
            lrcvtime_ns: now_ns,
            delack_timer_ns: None,
            compressed_ack_timer_ns: None,
            compressed_ack: 0,
            dup_ack_counter: 0,
            compressed_ack_rcv_nxt: 0,
            demand_cwr: false,
            last_ce: false,
            ce_pkts: 0,
            rcv_rtt_ns: rtt_ns,
            handshake_rtt_ns: rtt_ns,
            rcv_rtt_last_tsecr_ns: 0,
            rcvq_space_bytes: 10 * u64::from(MSS_BYTES),
            rcvq_space_seq: 0,
            rcvq_space_time_ns: now_ns,
            segs_in: 0,
            data_segs_in: 0,
            segs_out: 0,
            rcv_ooopack: 0,
        }
    }

    /// Bytes that the application has read.
    pub fn bytes_received(&self) -> u64 {
        self.rcv_nxt
    }

    /// Right edge of the window that the sender knows.
    pub fn rcv_wnd_end(&self) -> u64 {
        self.rcv_wnd_end
    }

    /// The window in bytes.
    pub fn rcv_wnd_bytes(&self) -> u64 {
        self.rcv_wnd_bytes
    }

    /// Smoothed RTT of a socket that sends no data.
    pub fn handshake_rtt_us(&self) -> u32 {
        (self.handshake_rtt_ns / 1000) as u32
    }

    /// The RTT as the receiver sees it (`tcpi_rcv_rtt`).
    pub fn rcv_rtt_us(&self) -> u32 {
        (self.rcv_rtt_ns / 1000) as u32
    }

    /// Packets that came with CE.
    pub fn ce_pkts(&self) -> u32 {
        self.ce_pkts
    }

    /// When [`Self::on_timer`] is due.
    pub fn timer_ns(&self) -> Option<u64> {
        match (self.delack_timer_ns, self.compressed_ack_timer_ns) {
            (Some(delack_ns), Some(compressed_ns)) => Some(delack_ns.min(compressed_ns)),
            (delack_ns, compressed_ns) => delack_ns.or(compressed_ns),
        }
    }

    /// A timer is due.
    pub fn on_timer(&mut self, now_ns: u64) -> Reply {
        self.timer_ns().filter(|at_ns| *at_ns <= now_ns)?;
        if self.delack_timer_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            // No further segment came within the delay.
            self.ato_ns = (self.ato_ns << 1).min(self.rto_ns());
        }
        Some(self.ack(now_ns))
    }

    /// `icsk_rto` of a socket that sends nothing.
    fn rto_ns(&self) -> u64 {
        self.handshake_rtt_ns + RTO_MIN_US * 1000
    }

    /// A segment arrives with this ECN field.
    pub fn on_segment(&mut self, now_ns: u64, segment: &Segment, ecn: Ecn) -> Reply {
        self.segs_in += 1;
        self.data_segs_in += 1;
        self.data_ecn_check(segment, ecn);
        self.rcv_rtt_measure_ts(now_ns, segment);
        let (start_seq, end_seq) = (segment.seq, segment.seq + u64::from(segment.bytes));
        if start_seq <= self.rcv_wup {
            self.ts_recent_ns = self.ts_recent_ns.max(segment.tsval_ns);
        }
        if end_seq <= self.rcv_nxt
            || self.out_of_order.containing(start_seq).is_some_and(|r| r.end_seq >= end_seq)
        {
            self.duplicate_sack = Some(SeqRange { start_seq, end_seq });
            if end_seq <= self.rcv_nxt {
                self.enter_quickack_mode(TCP_MAX_QUICKACKS);
                return Some(self.ack(now_ns));
            }
            return self.ack_snd_check(now_ns, false);
        }
        self.event_data_recv(now_ns);
        if start_seq > self.rcv_nxt {
            self.data_queue_ofo(SeqRange { start_seq, end_seq });
            return self.ack_snd_check(now_ns, false);
        }
        let had_hole = !self.out_of_order.is_empty();
        self.rcv_nxt = end_seq;
        if let Some(range) =
            self.out_of_order.containing(end_seq).or(self.out_of_order.containing(start_seq))
        {
            self.rcv_nxt = self.rcv_nxt.max(range.end_seq);
        }
        self.out_of_order.remove_below(self.rcv_nxt);
        self.rcv_space_adjust(now_ns);
        if self.out_of_order.is_empty() {
            self.num_sacks = 0;
        }
        self.ack_snd_check(now_ns, had_hole && self.out_of_order.is_empty())
    }

    /// `tcp_event_data_recv()`: the delay of acknowledgements follows the distance of segments.
    fn event_data_recv(&mut self, now_ns: u64) {
        let since_ns = now_ns - std::mem::replace(&mut self.lrcvtime_ns, now_ns);
        if self.ato_ns == 0 {
            self.quick = self.quick.max(TCP_MAX_QUICKACKS);
            self.ato_ns = TCP_ATO_MIN_NS;
        } else if since_ns <= TCP_ATO_MIN_NS / 2 {
            self.ato_ns = self.ato_ns / 2 + TCP_ATO_MIN_NS / 2;
        } else if since_ns < self.ato_ns {
            let longest_ns = self.rto_ns().min(TCP_DELACK_MAX_NS);
            self.ato_ns = (self.ato_ns / 2 + since_ns).min(longest_ns);
        } else if since_ns > self.rto_ns() {
            self.quick = self.quick.max(TCP_MAX_QUICKACKS);
        }
    }

    /// `tcp_enter_quickack_mode()`.
    fn enter_quickack_mode(&mut self, max_quickacks: u32) {
        self.quick = self.quick.max(max_quickacks);
        self.ato_ns = TCP_ATO_MIN_NS;
    }

    /// CE and CWR: `tcp_data_ecn_check()`, `tcp_ecn_accept_cwr()`. A change of CE is acknowledged at once.
    fn data_ecn_check(&mut self, segment: &Segment, ecn: Ecn) {
        let has_ce = ecn == Ecn::Ce;
        self.ce_pkts = self.ce_pkts.wrapping_add(u32::from(has_ce));
        match self.ecn {
            EcnMode::Off => {}
            EcnMode::Classic => {
                if segment.cwr {
                    self.demand_cwr = false;
                    self.quick = self.quick.max(1);
                }
                if has_ce && !self.demand_cwr {
                    self.enter_quickack_mode(QUICK_ACKS_AFTER_CE);
                    self.demand_cwr = true;
                }
            }
            EcnMode::Accurate { .. } => {
                if std::mem::replace(&mut self.last_ce, has_ce) != has_ce {
                    self.quick = self.quick.max(1);
                }
            }
        }
    }

    /// `tcp_rcv_rtt_measure_ts()`, `tcp_rcv_rtt_update()`: the RTT with its queues; a lower sample counts at once.
    fn rcv_rtt_measure_ts(&mut self, now_ns: u64, segment: &Segment) {
        let tsecr_ns = segment.tsecr_ns;
        if tsecr_ns == 0 || tsecr_ns == self.rcv_rtt_last_tsecr_ns || segment.bytes < MSS_BYTES {
            return;
        }
        self.rcv_rtt_last_tsecr_ns = tsecr_ns;
        let sample_ns = now_ns - tsecr_ns;
        self.rcv_rtt_ns = match sample_ns < self.rcv_rtt_ns {
            true => sample_ns,
            false => self.rcv_rtt_ns - self.rcv_rtt_ns / 8 + sample_ns / 8,
        };
    }

    /// Keeps a segment beyond a gap.
    fn data_queue_ofo(&mut self, range: SeqRange) {
        self.rcv_ooopack += 1;
        self.out_of_order.insert(range, |_| {});
        let Some(merged) = self.out_of_order.containing(range.start_seq) else { return };
        let known = &mut self.selective_acks[..self.num_sacks];
        let is_old = |r: &SeqRange| r.start_seq >= merged.start_seq && r.end_seq <= merged.end_seq;
        let mut kept = 0;
        for at in 0..known.len() {
            if !is_old(&known[at]) {
                known[kept] = known[at];
                kept += 1;
            }
        }
        kept = kept.min(MAX_SACK_BLOCKS);
        self.selective_acks.copy_within(0..kept, 1);
        self.selective_acks[0] = merged;
        self.num_sacks = kept + 1;
    }

    /// `__tcp_ack_snd_check()`. `at_once`: the last hole was filled.
    fn ack_snd_check(&mut self, now_ns: u64, at_once: bool) -> Reply {
        let is_full = self.rcv_nxt - self.rcv_wup > u64::from(MSS_BYTES);
        if is_full || at_once || self.quick > 0 {
            return Some(self.ack(now_ns));
        }
        if self.out_of_order.is_empty() {
            return self.send_delayed_ack(now_ns);
        }
        if self.compressed_ack >= COMP_SACK_NR {
            return Some(self.ack(now_ns));
        }
        if self.compressed_ack_rcv_nxt != self.rcv_nxt {
            (self.compressed_ack_rcv_nxt, self.dup_ack_counter) = (self.rcv_nxt, 0);
        }
        if self.dup_ack_counter < TCP_FASTRETRANS_THRESH {
            self.dup_ack_counter += 1;
            return Some(self.ack(now_ns));
        }
        self.compressed_ack += 1;
        if self.compressed_ack_timer_ns.is_none() {
            let rtt_ns = self.rcv_rtt_ns.min(self.handshake_rtt_ns);
            let delay_ns = COMP_SACK_DELAY_NS.min(rtt_ns * COMP_SACK_RTT_PERCENT / 100);
            self.compressed_ack_timer_ns = Some(now_ns + delay_ns);
        }
        None
    }

    /// `tcp_send_delayed_ack()`.
    fn send_delayed_ack(&mut self, now_ns: u64) -> Reply {
        let longest_ns = self.handshake_rtt_ns.clamp(TCP_ATO_MIN_NS, TCP_DELACK_MAX_NS);
        let ato_ns = self.ato_ns.min(longest_ns);
        if self.delack_timer_ns.is_some_and(|at_ns| at_ns <= now_ns + ato_ns / 4) {
            return Some(self.ack(now_ns));
        }
        let at_ns = wheel_ns(now_ns, ato_ns);
        self.delack_timer_ns =
            Some(self.delack_timer_ns.map_or(at_ns, |known_ns| known_ns.min(at_ns)));
        None
    }

    /// `tcp_rcv_space_adjust()`, `tcp_rcvbuf_grow()`: the window is twice what the application read in the last RTT, and more
    /// while it grows.
    fn rcv_space_adjust(&mut self, now_ns: u64) {
        if now_ns - self.rcvq_space_time_ns < self.rcv_rtt_ns {
            return;
        }
        let copied = self.rcv_nxt - self.rcvq_space_seq;
        if copied > self.rcvq_space_bytes {
            let mut wanted = 2 * copied;
            wanted += match self.rcv_rtt_ns < RCVBUF_LOW_RTT_NS {
                true => wanted * self.rcv_rtt_ns / RCVBUF_LOW_RTT_NS,
                false => 2 * wanted * (copied - self.rcvq_space_bytes) / self.rcvq_space_bytes,
            };
            wanted += self.out_of_order.end().map_or(0, |end| end - self.rcv_nxt);
            self.rcv_wnd_bytes = self.rcv_wnd_bytes.max(wanted).min(self.window_clamp_bytes);
            self.rcvq_space_bytes = copied;
        }
        (self.rcvq_space_seq, self.rcvq_space_time_ns) = (self.rcv_nxt, now_ns);
    }

    /// The acknowledgement of everything so far.
    fn ack(&mut self, now_ns: u64) -> AckSegment {
        self.segs_out += 1;
        self.quick = self.quick.saturating_sub(1);
        (self.delack_timer_ns, self.compressed_ack_timer_ns, self.compressed_ack) = (None, None, 0);
        self.rcv_wup = self.rcv_nxt;
        self.rcv_wnd_end = self.rcv_wnd_end.max(self.rcv_nxt + self.rcv_wnd_bytes);
        let mut ack = AckSegment {
            ack_seq: self.rcv_nxt,
            window_end: self.rcv_wnd_end,
            tsval_ns: now_ns,
            tsecr_ns: self.ts_recent_ns,
            ece: self.demand_cwr && self.ecn == EcnMode::Classic,
            ce_pkts: self.ce_pkts,
            ..AckSegment::default()
        };
        let mut count = 0;
        if let Some(range) = self.duplicate_sack.take() {
            (ack.blocks[0], ack.is_dsack, count) = (range, true, 1);
        }
        let held =
            self.selective_acks[..self.num_sacks].iter().filter(|r| r.end_seq > self.rcv_nxt);
        for range in held.take(MAX_SACK_BLOCKS - count) {
            ack.blocks[count] = *range;
            count += 1;
        }
        ack.block_count = count as u8;
        ack
    }
}
