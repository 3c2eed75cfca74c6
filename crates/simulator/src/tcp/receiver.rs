//! The receiving end of a connection: `tcp_data_queue()`, delayed and compressed acknowledgements, and the receive window. The application
//! reads in-order data as soon as it arrives.

mod buffer;

use ccbench_proto::plan::Ecn;

use super::ack_state::{TCP_PAWS_WINDOW_MS, tsval_ms};
use super::rack::TCP_FASTRETRANS_THRESH;
use super::ranges::Ranges;
use super::rtt::RTO_MIN_US;
use super::timer_wheel::wheel_ns;
use super::{EcnMode, SocketBuffer};
use crate::packet::{AckSegment, MAX_SACK_BLOCKS, MSS_BYTES, Segment, SeqRange, TCP_HEADER_BYTES};

/// Minimum delay of an acknowledgement; also TCP_DELACK_MIN.
const TCP_ATO_MIN_NS: u64 = 40_000_000;
/// Maximum delay of an acknowledgement.
const TCP_DELACK_MAX_NS: u64 = 200_000_000;
/// Maximum number of acknowledgements without delay.
const TCP_MAX_QUICKACKS: u32 = 16;
/// Number of acknowledgements without delay after CE, and after a segment without ECT.
const ECN_QUICKACKS: u32 = 2;
/// Compressed acknowledgements (sysctls `tcp_comp_sack_*`): their maximum number, their delay, and its limit in percent of the RTT.
const COMP_SACK_NR: u32 = 44;
const COMP_SACK_DELAY_NS: u64 = 1_000_000;
const COMP_SACK_RTT_PERCENT: u64 = 33;
/// If this many ranges precede the range of a new segment, the range is announced at once.
const TCP_SACK_BLOCKS_EXPECTED: usize = 2;
/// `tcp_rcvbuf_low_rtt`.
const RCVBUF_LOW_RTT_NS: u64 = 1_000_000;
/// What a segment occupies in the buffer, including its `struct sk_buff` (`truesize`).
const TRUESIZE_BYTES: u64 = 2304;
/// `TCP_DEFAULT_SCALING_RATIO`: the share of the buffer that holds payload, in 256ths, before it has been measured.
const DEFAULT_SCALING_RATIO: u64 = 128;
/// Maximum window of a SYN or SYN-ACK.
const MAX_UNSCALED_WINDOW_BYTES: u64 = 65_535;
/// `net.core.rmem_max`, which limits the window scale.
const RMEM_MAX_BYTES: u64 = 212_992;
/// Half of SOCK_MIN_RCVBUF.
const MIN_WINDOW_CLAMP_BYTES: u64 = 1152;
/// TCP_MSS_DEFAULT, TCP_MIN_MSS, and the length of a TCP header without options.
const TCP_MSS_DEFAULT: u32 = 536;
const TCP_MIN_MSS: u32 = 88;
const BARE_TCP_HEADER_BYTES: u32 = 20;
/// Segments shorter than this do not raise the window.
const MIN_GROWING_BYTES: u32 = 128;

/// An acknowledgement that a receiver sends at once.
type Reply = Option<AckSegment>;

/// A receiving socket.
#[derive(Debug)]
pub struct Receiver {
    ecn: EcnMode,
    rcv_nxt: u64,
    /// `rcv_nxt` in the last acknowledgement.
    rcv_wup: u64,
    rcv_wnd_end: u64,
    /// The window in the last acknowledgement, a multiple of 2^`rcv_wscale`.
    rcv_wnd_bytes: u64,
    rcv_wscale: u32,
    /// The window grows up to this. This grows up to the window for which the buffer has room.
    rcv_ssthresh_bytes: u64,
    window_clamp_bytes: u64,
    /// `sk_rcvbuf`, and its limit from `tcp_rmem`.
    rcvbuf_bytes: u64,
    max_rcvbuf_bytes: u64,
    /// The share of the buffer that holds payload, in 256ths.
    scaling_ratio: u64,
    /// `icsk_ack.rcv_mss`: the length from which a segment counts as full. `last_seg_size` is that of a segment that did not.
    rcv_mss_bytes: u32,
    last_seg_size_bytes: u32,
    /// ICSK_ACK_PUSHED: a segment with PSH or a partial segment has arrived since the last acknowledgement.
    is_pushed: bool,
    out_of_order: Ranges,
    out_of_order_bytes: u64,
    /// Ranges, starting with the one that grew last.
    selective_acks: [SeqRange; MAX_SACK_BLOCKS + 1],
    num_sacks: usize,
    duplicate_sack: Option<SeqRange>,
    ts_recent_ns: u64,
    /// `icsk_ack.quick`: number of acknowledgements that will not be delayed.
    quick: u32,
    /// `icsk_ack.ato`: delay of an acknowledgement; 0 before the first segment.
    ato_ns: u64,
    /// `icsk_ack.lrcvtime`: when the last segment with data arrived.
    lrcvtime_ns: u64,
    delack_timer_ns: Option<u64>,
    compressed_ack_timer_ns: Option<u64>,
    compressed_ack: u32,
    dup_ack_counter: u32,
    compressed_ack_rcv_nxt: u64,
    /// `TCP_ECN_DEMAND_CWR` (RFC 3168): echo CE until the sender's CWR.
    demand_cwr: bool,
    /// `TCP_ECN_SEEN` (RFC 3168): a segment with ECT or CE has arrived.
    ecn_seen: bool,
    last_ce: bool,
    ce_pkts: u32,
    /// Dynamic right-sizing (`tcp_rcv_space_adjust()`): the RTT as the receiver sees it (0 before the first sample), and the last
    /// measurement.
    rcv_rtt_ns: u64,
    /// RTT of the handshake.
    handshake_rtt_ns: u64,
    rcv_rtt_last_tsecr_ms: u64,
    /// `rcv_rtt_est.seq` and `time`: end of the window at the last measurement, and when that was.
    rcv_rtt_window: Option<(u64, u64)>,
    rcvq_space_bytes: u64,
    rcvq_space_seq: u64,
    rcvq_space_time_ns: u64,
    /// Counters for the tables.
    pub segs_in: u32,
    pub data_segs_in: u32,
    pub segs_out: u32,
    pub rcv_ooopack: u32,
}

impl Receiver {
    /// Creates a socket on a path with this RTT. Its buffer follows `tcp_rmem`: `tcp_select_initial_window()`, `tcp_init_buffer_space()`.
    pub fn new(ecn: EcnMode, rcvbuf: SocketBuffer, now_ns: u64, rtt_ns: u64) -> Self {
        let mss = u64::from(MSS_BYTES);
        let space_bytes = (rcvbuf.default_bytes * DEFAULT_SCALING_RATIO) >> 8;
        let whole_bytes = space_bytes / mss * mss;
        let rcv_wnd_bytes = if whole_bytes > 0 { whole_bytes } else { space_bytes };
        // One segment is reserved.
        let window_clamp_bytes = match space_bytes > 2 * mss {
            true => (2 * mss).max(space_bytes - mss),
            false => space_bytes,
        };
        let rcv_ssthresh_bytes = rcv_wnd_bytes.min(window_clamp_bytes);
        Self {
            ecn,
            rcv_nxt: 0,
            rcv_wup: 0,
            rcv_wnd_end: rcv_wnd_bytes.min(MAX_UNSCALED_WINDOW_BYTES),
            rcv_wnd_bytes,
            rcv_wscale: (rcvbuf.max_bytes.max(RMEM_MAX_BYTES).ilog2() - 15).min(14),
            rcv_ssthresh_bytes,
            window_clamp_bytes,
            rcvbuf_bytes: rcvbuf.default_bytes,
            max_rcvbuf_bytes: rcvbuf.max_bytes,
            scaling_ratio: DEFAULT_SCALING_RATIO,
            rcv_mss_bytes: TCP_MSS_DEFAULT,
            last_seg_size_bytes: 0,
            is_pushed: false,
            out_of_order: Ranges::default(),
            out_of_order_bytes: 0,
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
            ecn_seen: false,
            last_ce: false,
            ce_pkts: 0,
            rcv_rtt_ns: 0,
            handshake_rtt_ns: rtt_ns,
            rcv_rtt_last_tsecr_ms: 0,
            rcv_rtt_window: None,
            rcvq_space_bytes: rcv_ssthresh_bytes.min(10 * mss),
            rcvq_space_seq: 0,
            rcvq_space_time_ns: now_ns,
            segs_in: 0,
            data_segs_in: 0,
            segs_out: 0,
            rcv_ooopack: 0,
        }
    }

    /// Returns the bytes that the application has read.
    pub fn bytes_received(&self) -> u64 {
        self.rcv_nxt
    }

    /// Returns the right edge of the window that the sender knows.
    pub fn rcv_wnd_end(&self) -> u64 {
        self.rcv_wnd_end
    }

    /// Returns the window in bytes.
    pub fn rcv_wnd_bytes(&self) -> u64 {
        self.rcv_wnd_bytes
    }

    /// Returns the smoothed RTT of a socket that sends no data.
    pub fn handshake_rtt_us(&self) -> u32 {
        (self.handshake_rtt_ns / 1000) as u32
    }

    /// Returns the RTT as the receiver sees it (`tcpi_rcv_rtt`).
    pub fn rcv_rtt_us(&self) -> u32 {
        (self.rcv_rtt_ns / 1000) as u32
    }

    /// Returns the number of packets that arrived with CE.
    pub fn ce_pkts(&self) -> u32 {
        self.ce_pkts
    }

    /// Returns when [`Self::on_timer`] is due.
    pub fn timer_ns(&self) -> Option<u64> {
        match (self.delack_timer_ns, self.compressed_ack_timer_ns) {
            (Some(delack_ns), Some(compressed_ns)) => Some(delack_ns.min(compressed_ns)),
            (delack_ns, compressed_ns) => delack_ns.or(compressed_ns),
        }
    }

    /// Processes a timer that is due.
    pub fn on_timer(&mut self, now_ns: u64) -> Reply {
        self.timer_ns().filter(|at_ns| *at_ns <= now_ns)?;
        if self.delack_timer_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            // No further segment arrived within the delay.
            self.ato_ns = (self.ato_ns << 1).min(self.rto_ns());
        }
        Some(self.ack(now_ns))
    }

    /// Returns `icsk_rto` of a socket that sends nothing.
    fn rto_ns(&self) -> u64 {
        self.handshake_rtt_ns + RTO_MIN_US * 1000
    }

    /// Processes a segment with this ECN field.
    pub fn on_segment(&mut self, now_ns: u64, segment: &Segment, ecn: Ecn) -> Reply {
        self.segs_in += 1;
        self.data_segs_in += 1;
        if tsval_ms(segment.tsval_ns) + TCP_PAWS_WINDOW_MS < tsval_ms(self.ts_recent_ns) {
            return Some(self.send_dupack(now_ns, segment));
        }
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
            let reply = self.sack_new_ofo_skb(now_ns, SeqRange { start_seq, end_seq });
            return reply.or_else(|| self.ack_snd_check(now_ns, false));
        }
        if start_seq > self.rcv_nxt {
            let reply = self.data_queue_ofo(now_ns, segment, SeqRange { start_seq, end_seq });
            return reply.or_else(|| self.ack_snd_check(now_ns, false));
        }
        self.event_data_recv(now_ns, segment);
        let had_hole = !self.out_of_order.is_empty();
        self.rcv_nxt = end_seq;
        if let Some(range) =
            self.out_of_order.containing(end_seq).or(self.out_of_order.containing(start_seq))
        {
            self.rcv_nxt = self.rcv_nxt.max(range.end_seq);
        }
        self.out_of_order_bytes -= self.out_of_order.remove_below(self.rcv_nxt);
        self.sack_remove();
        let reply = self.ack_snd_check(now_ns, had_hole && self.out_of_order.is_empty());
        self.rcv_space_adjust(now_ns);
        reply.or_else(|| self.cleanup_rbuf(now_ns))
    }

    /// `tcp_send_dupack()` for a segment that is dropped, because its timestamp is older than that of the data in order (PAWS, RFC 7323): a
    /// retransmission has overtaken it.
    fn send_dupack(&mut self, now_ns: u64, segment: &Segment) -> AckSegment {
        if segment.seq < self.rcv_nxt {
            self.enter_quickack_mode(TCP_MAX_QUICKACKS);
            let end_seq = (segment.seq + u64::from(segment.bytes)).min(self.rcv_nxt);
            self.duplicate_sack = Some(SeqRange { start_seq: segment.seq, end_seq });
        }
        self.ack(now_ns)
    }

    /// `tcp_cleanup_rbuf()`: called when the application has read everything and an acknowledgement is delayed.
    fn cleanup_rbuf(&mut self, now_ns: u64) -> Reply {
        let left_bytes = self.rcv_wnd_end.saturating_sub(self.rcv_nxt);
        let window_bytes = self.select_window_bytes();
        let doubles = 2 * left_bytes <= self.window_clamp_bytes
            && window_bytes > 0
            && window_bytes >= 2 * left_bytes;
        let is_drained = self.is_pushed && self.out_of_order.is_empty();
        (is_drained || doubles).then(|| self.ack(now_ns))
    }

    /// `tcp_event_data_recv()`: adapts the delay of acknowledgements to the distance of segments.
    fn event_data_recv(&mut self, now_ns: u64, segment: &Segment) {
        self.measure_rcv_mss(segment);
        self.rcv_rtt_measure(now_ns, segment.seq + u64::from(segment.bytes));
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
        if segment.bytes >= MIN_GROWING_BYTES {
            // The segment is in the queue.
            self.grow_window(segment, TRUESIZE_BYTES);
        }
    }

    /// `tcp_measure_rcv_mss()`.
    fn measure_rcv_mss(&mut self, segment: &Segment) {
        let last_bytes = std::mem::take(&mut self.last_seg_size_bytes);
        let bytes = segment.bytes;
        if bytes >= self.rcv_mss_bytes {
            if bytes != self.rcv_mss_bytes {
                self.set_scaling_ratio((u64::from(bytes) << 8) / TRUESIZE_BYTES);
            }
            self.rcv_mss_bytes = bytes;
            // The end of a write: more data may not come soon.
            self.is_pushed |= segment.psh;
            return;
        }
        let packet_bytes = bytes + TCP_HEADER_BYTES;
        if packet_bytes >= TCP_MSS_DEFAULT + BARE_TCP_HEADER_BYTES
            || (packet_bytes >= TCP_MIN_MSS + BARE_TCP_HEADER_BYTES && !segment.psh)
        {
            self.last_seg_size_bytes = bytes;
            if bytes == last_bytes {
                self.rcv_mss_bytes = bytes;
                return;
            }
        }
        self.is_pushed = true;
    }

    /// `tcp_enter_quickack_mode()`.
    fn enter_quickack_mode(&mut self, max_quickacks: u32) {
        self.quick = self.quick.max(max_quickacks);
        self.ato_ns = TCP_ATO_MIN_NS;
    }

    /// `tcp_data_ecn_check()`, `tcp_ecn_accept_cwr()`: processes the ECN field and CWR. A change of CE is acknowledged at once.
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
                    self.enter_quickack_mode(ECN_QUICKACKS);
                    self.demand_cwr = true;
                }
                if ecn != Ecn::NotEct {
                    self.ecn_seen = true;
                } else if self.ecn_seen {
                    // Probably a retransmission.
                    self.enter_quickack_mode(ECN_QUICKACKS);
                }
            }
            EcnMode::Accurate { .. } => {
                if std::mem::replace(&mut self.last_ce, has_ce) != has_ce {
                    self.quick = self.quick.max(1);
                }
            }
        }
    }

    /// `tcp_data_queue_ofo()`: keeps a segment behind a gap.
    fn data_queue_ofo(&mut self, now_ns: u64, segment: &Segment, range: SeqRange) -> Reply {
        self.measure_rcv_mss(segment);
        self.rcv_ooopack += 1;
        self.grow_window(segment, 0);
        let bytes = &mut self.out_of_order_bytes;
        self.out_of_order.insert(range, |part| *bytes += part.end_seq - part.start_seq);
        self.rcvbuf_grow(self.rcvq_space_bytes);
        self.sack_new_ofo_skb(now_ns, range)
    }

    /// `tcp_sack_new_ofo_skb()`: puts the range of a segment behind a gap in front of the others. If it was not among the first ones, the
    /// waiting acknowledgement is sent before, so that each range is announced at least once. The segment itself is then not acknowledged
    /// (`tcp_sack_compress_send_ack()` leaves no ICSK_ACK_SCHED).
    fn sack_new_ofo_skb(&mut self, now_ns: u64, range: SeqRange) -> Reply {
        let merged = self.out_of_order.containing(range.start_seq)?;
        let known = &self.selective_acks[..self.num_sacks];
        let is_extended =
            |r: &SeqRange| range.start_seq <= r.end_seq && r.start_seq <= range.end_seq;
        let nth = known.iter().position(is_extended).unwrap_or(known.len());
        let is_waiting = nth >= TCP_SACK_BLOCKS_EXPECTED && self.compressed_ack > 0;
        let reply = is_waiting.then(|| self.ack(now_ns));
        self.retain_sacks(|r| r.start_seq < merged.start_seq || r.end_seq > merged.end_seq);
        let kept = self.num_sacks.min(MAX_SACK_BLOCKS);
        self.selective_acks.copy_within(0..kept, 1);
        self.selective_acks[0] = merged;
        self.num_sacks = kept + 1;
        reply
    }

    /// `tcp_sack_remove()`: forgets the ranges that are now in order.
    fn sack_remove(&mut self) {
        let rcv_nxt = self.rcv_nxt;
        self.retain_sacks(|r| r.start_seq > rcv_nxt);
    }

    fn retain_sacks(&mut self, is_kept: impl Fn(&SeqRange) -> bool) {
        let mut kept = 0;
        for at in 0..self.num_sacks {
            let range = self.selective_acks[at];
            if is_kept(&range) {
                self.selective_acks[kept] = range;
                kept += 1;
            }
        }
        self.num_sacks = kept;
    }

    /// `__tcp_ack_snd_check()`. `at_once`: the last hole was filled.
    fn ack_snd_check(&mut self, now_ns: u64, at_once: bool) -> Reply {
        let is_full = self.rcv_nxt - self.rcv_wup > u64::from(self.rcv_mss_bytes);
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
            let rtt_ns = match self.rcv_rtt_ns {
                0 => self.handshake_rtt_ns,
                rcv_rtt_ns => rcv_rtt_ns.min(self.handshake_rtt_ns),
            };
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

    /// `__tcp_select_window()`: returns the window for an acknowledgement, as its header can represent it.
    fn select_window_bytes(&self) -> u64 {
        self.scaled_bytes(self.space_bytes(0).min(self.rcv_ssthresh_bytes))
    }

    /// Rounds up to a multiple of the window's unit.
    fn scaled_bytes(&self, window_bytes: u64) -> u64 {
        window_bytes.next_multiple_of(1 << self.rcv_wscale)
    }

    /// Returns the acknowledgement of everything received so far.
    fn ack(&mut self, now_ns: u64) -> AckSegment {
        self.segs_out += 1;
        if self.quick == 1 {
            // `tcp_dec_quickack_mode()`
            self.ato_ns = TCP_ATO_MIN_NS;
        }
        self.quick = self.quick.saturating_sub(1);
        self.is_pushed = false;
        (self.delack_timer_ns, self.compressed_ack_timer_ns, self.compressed_ack) = (None, None, 0);
        self.rcv_wup = self.rcv_nxt;
        // The right edge never moves back.
        let left_bytes = self.rcv_wnd_end.saturating_sub(self.rcv_nxt);
        let window_bytes = self.select_window_bytes();
        self.rcv_wnd_bytes = match window_bytes < left_bytes {
            true => self.scaled_bytes(left_bytes),
            false => window_bytes,
        };
        self.rcv_wnd_end = self.rcv_nxt + self.rcv_wnd_bytes;
        let mut ack = AckSegment {
            ack_seq: self.rcv_nxt,
            window_end: self.rcv_wnd_end,
            tsval_ns: now_ns,
            tsecr_ns: self.ts_recent_ns,
            ece: self.demand_cwr && self.ecn == EcnMode::Classic,
            ce_pkts: self.ce_pkts,
            is_accecn: matches!(self.ecn, EcnMode::Accurate { .. }),
            ..AckSegment::default()
        };
        let mut count = 0;
        if let Some(range) = self.duplicate_sack.take() {
            (ack.blocks[0], ack.is_dsack, count) = (range, true, 1);
        }
        for range in self.selective_acks[..self.num_sacks].iter().take(MAX_SACK_BLOCKS - count) {
            ack.blocks[count] = *range;
            count += 1;
        }
        ack.block_count = count as u8;
        ack
    }
}
