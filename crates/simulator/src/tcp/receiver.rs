//! The receiving end of a connection: `tcp_data_queue()`, delayed and compressed acknowledgements, the receive window.

use ccbench_proto::plan::Ecn;

use super::EcnMode;
use super::ranges::Ranges;
use super::rtt::RTO_MIN_US;
use super::timers::wheel_ns;
use crate::packet::{Ack, MAX_SACK_BLOCKS, MSS_BYTES, Range, Segment};

/// TCP_ATO_MIN, TCP_DELACK_MIN.
const ATO_MIN_NS: u64 = 40_000_000;
/// TCP_DELACK_MAX.
const DELAYED_ACK_MAX_NS: u64 = 200_000_000;
/// TCP_MAX_QUICKACKS.
const QUICK_ACKS: u32 = 16;
/// After a change of the CE mark.
const QUICK_ACKS_AFTER_CE: u32 = 2;
/// `tcp_comp_sack_nr`, `tcp_comp_sack_delay_ns`, `tcp_comp_sack_rtt_percent`.
const COMPRESSED_ACKS: u32 = 44;
const COMPRESSED_ACK_NS: u64 = 1_000_000;
const COMPRESSED_ACK_RTT_PERCENT: u64 = 33;
/// `tcp_rcvbuf_low_rtt`.
const LOW_RTT_NS: u64 = 1_000_000;
/// TCP_FASTRETRANS_THRESH: so many duplicates are not compressed.
const UNCOMPRESSED_DUPLICATES: u32 = 3;
/// Share of the buffer that holds payload: a full segment of 1448 bytes takes 2304 bytes with its `struct sk_buff`.
const PAYLOAD_NUMERATOR: u64 = 1448;
const PAYLOAD_DENOMINATOR: u64 = 2304;
/// The receive window of a new socket.
const INITIAL_WINDOW_BYTES: u64 = 65_535;

/// A segment that a receiver sends at once.
type Reply = Option<Ack>;

/// A receiving socket.
#[derive(Debug)]
pub struct Receiver {
    ecn: EcnMode,
    rcv_nxt: u64,
    /// `rcv_nxt` of the last acknowledgement.
    rcv_wup: u64,
    window_end: u64,
    /// The window's size, and its limit by `tcp_rmem`.
    window: u64,
    max_window: u64,
    out_of_order: Ranges,
    /// Ranges in the order in which they last grew.
    recent: [Range; MAX_SACK_BLOCKS + 1],
    recent_count: usize,
    dsack: Option<Range>,
    ts_recent_ns: u64,
    quick_acks: u32,
    /// Delay of an acknowledgement, `icsk_ack.ato`; 0 before the first segment.
    ato_ns: u64,
    /// `icsk_ack.lrcvtime`.
    last_segment_ns: u64,
    delayed_ns: Option<u64>,
    compressed_ns: Option<u64>,
    compressed: u32,
    duplicates: u32,
    duplicates_of: u64,
    /// RFC 3168: echo until the sender's CWR.
    echo: bool,
    last_ce: bool,
    ce_pkts: u32,
    /// Dynamic right-sizing (`tcp_rcv_space_adjust()`): the RTT as the receiver sees it, and the last measurement.
    rtt_ns: u64,
    /// Of the handshake.
    handshake_rtt_ns: u64,
    last_echo_ns: u64,
    space: u64,
    space_seq: u64,
    space_ns: u64,
    /// Counters for tables.
    pub segs_in: u32,
    pub data_segs_in: u32,
    pub segs_out: u32,
    pub out_of_order_pkts: u32,
}

impl Receiver {
    /// A socket that may hold `buffer_bytes` (`tcp_rmem`), on a path of this RTT.
    pub fn new(ecn: EcnMode, buffer_bytes: u64, now_ns: u64, rtt_ns: u64) -> Self {
        let max_window = buffer_bytes * PAYLOAD_NUMERATOR / PAYLOAD_DENOMINATOR;
        let window = INITIAL_WINDOW_BYTES.min(max_window);
        Self {
            ecn,
            rcv_nxt: 0,
            rcv_wup: 0,
            window_end: window,
            window,
            max_window,
            out_of_order: Ranges::default(),
            recent: [Range::default(); MAX_SACK_BLOCKS + 1],
            recent_count: 0,
            dsack: None,
            ts_recent_ns: 0,
            quick_acks: 0,
            ato_ns: 0,
            last_segment_ns: now_ns,
            delayed_ns: None,
            compressed_ns: None,
            compressed: 0,
            duplicates: 0,
            duplicates_of: 0,
            echo: false,
            last_ce: false,
            ce_pkts: 0,
            rtt_ns,
            handshake_rtt_ns: rtt_ns,
            last_echo_ns: 0,
            space: 10 * u64::from(MSS_BYTES),
            space_seq: 0,
            space_ns: now_ns,
            segs_in: 0,
            data_segs_in: 0,
            segs_out: 0,
            out_of_order_pkts: 0,
        }
    }

    /// Bytes that the application has read.
    pub fn received(&self) -> u64 {
        self.rcv_nxt
    }

    /// Right edge of the window that the sender knows after the handshake.
    pub fn window_end(&self) -> u64 {
        self.window_end
    }

    /// The window in bytes.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Smoothed RTT of a socket that sends no data.
    pub fn handshake_rtt_us(&self) -> u32 {
        (self.handshake_rtt_ns / 1000) as u32
    }

    /// Packets that came with CE.
    pub fn ce_pkts(&self) -> u32 {
        self.ce_pkts
    }

    /// When [`Self::on_timer`] is due.
    pub fn timer_ns(&self) -> Option<u64> {
        match (self.delayed_ns, self.compressed_ns) {
            (Some(delayed_ns), Some(compressed_ns)) => Some(delayed_ns.min(compressed_ns)),
            (delayed_ns, compressed_ns) => delayed_ns.or(compressed_ns),
        }
    }

    /// A timer is due.
    pub fn on_timer(&mut self, now_ns: u64) -> Reply {
        self.timer_ns().filter(|at_ns| *at_ns <= now_ns)?;
        if self.delayed_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            // The delay was too short for the next segment.
            self.ato_ns = (self.ato_ns << 1).min(self.rto_ns());
        }
        Some(self.ack(now_ns))
    }

    /// `icsk_rto` of a socket that sends nothing.
    fn rto_ns(&self) -> u64 {
        self.handshake_rtt_ns + RTO_MIN_US * 1000
    }

    /// A segment arrives with this ECN field.
    pub fn on_segment(&mut self, now_ns: u64, segment: &Segment, field: Ecn) -> Reply {
        self.segs_in += 1;
        self.data_segs_in += 1;
        self.take_mark(segment, field);
        self.measure_rtt(now_ns, segment);
        let (begin, end) = (segment.seq, segment.seq + u64::from(segment.bytes));
        if begin <= self.rcv_wup {
            self.ts_recent_ns = self.ts_recent_ns.max(segment.sent_ns);
        }
        if end <= self.rcv_nxt || self.out_of_order.containing(begin).is_some_and(|r| r.end >= end)
        {
            self.dsack = Some(Range { begin, end });
            if end <= self.rcv_nxt {
                self.enter_quick_acks(QUICK_ACKS);
                return Some(self.ack(now_ns));
            }
            return self.check_ack(now_ns, false);
        }
        self.estimate_ato(now_ns);
        if begin > self.rcv_nxt {
            self.hold(Range { begin, end });
            return self.check_ack(now_ns, false);
        }
        let had_hole = !self.out_of_order.is_empty();
        self.rcv_nxt = end;
        if let Some(range) =
            self.out_of_order.containing(end).or(self.out_of_order.containing(begin))
        {
            self.rcv_nxt = self.rcv_nxt.max(range.end);
        }
        self.out_of_order.remove_below(self.rcv_nxt);
        self.adjust_window(now_ns);
        if self.out_of_order.is_empty() {
            self.recent_count = 0;
        }
        self.check_ack(now_ns, had_hole && self.out_of_order.is_empty())
    }

    /// `tcp_event_data_recv()`: the delay of acknowledgements follows the distance of segments.
    fn estimate_ato(&mut self, now_ns: u64) {
        let since_ns = now_ns - std::mem::replace(&mut self.last_segment_ns, now_ns);
        if self.ato_ns == 0 {
            self.quick_acks = self.quick_acks.max(QUICK_ACKS);
            self.ato_ns = ATO_MIN_NS;
        } else if since_ns <= ATO_MIN_NS / 2 {
            self.ato_ns = self.ato_ns / 2 + ATO_MIN_NS / 2;
        } else if since_ns < self.ato_ns {
            let longest_ns = self.rto_ns().min(DELAYED_ACK_MAX_NS);
            self.ato_ns = (self.ato_ns / 2 + since_ns).min(longest_ns);
        } else if since_ns > self.rto_ns() {
            self.quick_acks = self.quick_acks.max(QUICK_ACKS);
        }
    }

    /// `tcp_enter_quickack_mode()`.
    fn enter_quick_acks(&mut self, most: u32) {
        self.quick_acks = self.quick_acks.max(most);
        self.ato_ns = ATO_MIN_NS;
    }

    /// CE and CWR: `tcp_ecn_check_ce()`, `tcp_ecn_accept_cwr()`. A change is acknowledged at once.
    fn take_mark(&mut self, segment: &Segment, field: Ecn) {
        let has_ce = field == Ecn::Ce;
        self.ce_pkts = self.ce_pkts.wrapping_add(u32::from(has_ce));
        match self.ecn {
            EcnMode::Off => {}
            EcnMode::Classic => {
                if segment.cwr {
                    self.echo = false;
                    self.quick_acks = self.quick_acks.max(1);
                }
                if has_ce && !self.echo {
                    self.enter_quick_acks(QUICK_ACKS_AFTER_CE);
                    self.echo = true;
                }
            }
            EcnMode::Accurate { .. } => {
                if std::mem::replace(&mut self.last_ce, has_ce) != has_ce {
                    self.quick_acks = self.quick_acks.max(1);
                }
            }
        }
    }

    /// `tcp_rcv_rtt_measure_ts()`, `tcp_rcv_rtt_update()`: the RTT with its queues; a lower sample counts at once.
    fn measure_rtt(&mut self, now_ns: u64, segment: &Segment) {
        let echoed_ns = segment.echoed_ns;
        if echoed_ns == 0 || echoed_ns == self.last_echo_ns || segment.bytes < MSS_BYTES {
            return;
        }
        self.last_echo_ns = echoed_ns;
        let sample_ns = now_ns - echoed_ns;
        self.rtt_ns = match sample_ns < self.rtt_ns {
            true => sample_ns,
            false => self.rtt_ns - self.rtt_ns / 8 + sample_ns / 8,
        };
    }

    /// Keeps a segment beyond a gap.
    fn hold(&mut self, range: Range) {
        self.out_of_order_pkts += 1;
        self.out_of_order.insert(range, |_| {});
        let Some(merged) = self.out_of_order.containing(range.begin) else { return };
        let known = &mut self.recent[..self.recent_count];
        let is_old = |r: &Range| r.begin >= merged.begin && r.end <= merged.end;
        let mut kept = 0;
        for at in 0..known.len() {
            if !is_old(&known[at]) {
                known[kept] = known[at];
                kept += 1;
            }
        }
        kept = kept.min(MAX_SACK_BLOCKS);
        self.recent.copy_within(0..kept, 1);
        self.recent[0] = merged;
        self.recent_count = kept + 1;
    }

    /// `__tcp_ack_snd_check()`. `at_once`: the last hole was filled.
    fn check_ack(&mut self, now_ns: u64, at_once: bool) -> Reply {
        let is_full = self.rcv_nxt - self.rcv_wup > u64::from(MSS_BYTES);
        if is_full || at_once || self.quick_acks > 0 {
            return Some(self.ack(now_ns));
        }
        if self.out_of_order.is_empty() {
            return self.delay_ack(now_ns);
        }
        if self.compressed >= COMPRESSED_ACKS {
            return Some(self.ack(now_ns));
        }
        if self.duplicates_of != self.rcv_nxt {
            (self.duplicates_of, self.duplicates) = (self.rcv_nxt, 0);
        }
        if self.duplicates < UNCOMPRESSED_DUPLICATES {
            self.duplicates += 1;
            return Some(self.ack(now_ns));
        }
        self.compressed += 1;
        if self.compressed_ns.is_none() {
            let rtt_ns = self.rtt_ns.min(self.handshake_rtt_ns);
            let delay_ns = COMPRESSED_ACK_NS.min(rtt_ns * COMPRESSED_ACK_RTT_PERCENT / 100);
            self.compressed_ns = Some(now_ns + delay_ns);
        }
        None
    }

    /// `tcp_send_delayed_ack()`.
    fn delay_ack(&mut self, now_ns: u64) -> Reply {
        let longest_ns = self.handshake_rtt_ns.clamp(ATO_MIN_NS, DELAYED_ACK_MAX_NS);
        let ato_ns = self.ato_ns.min(longest_ns);
        if self.delayed_ns.is_some_and(|at_ns| at_ns <= now_ns + ato_ns / 4) {
            return Some(self.ack(now_ns));
        }
        let at_ns = wheel_ns(now_ns, ato_ns);
        self.delayed_ns = Some(self.delayed_ns.map_or(at_ns, |known_ns| known_ns.min(at_ns)));
        None
    }

    /// `tcp_rcv_space_adjust()`, `tcp_rcvbuf_grow()`: the window is twice what the application read in the last RTT, and more
    /// while it grows.
    fn adjust_window(&mut self, now_ns: u64) {
        if now_ns - self.space_ns < self.rtt_ns {
            return;
        }
        let copied = self.rcv_nxt - self.space_seq;
        if copied > self.space {
            let mut wanted = 2 * copied;
            wanted += match self.rtt_ns < LOW_RTT_NS {
                true => wanted * self.rtt_ns / LOW_RTT_NS,
                false => 2 * wanted * (copied - self.space) / self.space,
            };
            wanted += self.out_of_order.end().map_or(0, |end| end - self.rcv_nxt);
            self.window = self.window.max(wanted).min(self.max_window);
            self.space = copied;
        }
        (self.space_seq, self.space_ns) = (self.rcv_nxt, now_ns);
    }

    /// The acknowledgement of everything so far.
    fn ack(&mut self, now_ns: u64) -> Ack {
        self.segs_out += 1;
        self.quick_acks = self.quick_acks.saturating_sub(1);
        (self.delayed_ns, self.compressed_ns, self.compressed) = (None, None, 0);
        self.rcv_wup = self.rcv_nxt;
        self.window_end = self.window_end.max(self.rcv_nxt + self.window);
        let mut ack = Ack {
            ack: self.rcv_nxt,
            window_end: self.window_end,
            sent_ns: now_ns,
            echoed_ns: self.ts_recent_ns,
            ece: self.echo && self.ecn == EcnMode::Classic,
            ce_pkts: self.ce_pkts,
            ..Ack::default()
        };
        let mut count = 0;
        if let Some(dsack) = self.dsack.take() {
            (ack.blocks[0], ack.dsack, count) = (dsack, true, 1);
        }
        let held = self.recent[..self.recent_count].iter().filter(|r| r.end > self.rcv_nxt);
        for range in held.take(MAX_SACK_BLOCKS - count) {
            ack.blocks[count] = *range;
            count += 1;
        }
        ack.block_count = count as u8;
        ack
    }
}
