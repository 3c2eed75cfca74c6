//! The sending end of a connection: its state, and what the congestion control reads and changes of it.

use ccbench_proto::plan::Ecn;
use ccbench_proto::wire::{TcpEvent, TcpEventKind};

use super::delivery_rate::DeliveryRate;
use super::rack::{Rack, TCP_FASTRETRANS_THRESH};
use super::retransmit_queue::RetransmitQueue;
use super::rtt::{NO_RTT_US, Rtt};
use super::timer_wheel::Timer;
use super::write_queue::{SendBuffer, SocketBuffer};
use crate::congestion_control::{
    self, CaState, CcOutput, CcRequirements, CongestionControl, Event, ack_flags,
};
use crate::packet::{MSS_BYTES, MTU_BYTES, Segment};

/// Initial window, packets (RFC 6928).
pub const TCP_INIT_CWND: u32 = 10;
/// Initial slow start threshold, packets.
pub const TCP_INFINITE_SSTHRESH: u32 = 0x7fff_ffff;
/// `snd_cwnd_clamp` of a socket that sets none.
const CWND_CLAMP: u32 = u32::MAX;

/// How marks are fed back to the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EcnMode {
    /// Packets are not ECN-capable.
    #[default]
    Off,
    /// Once per window (RFC 3168).
    Classic,
    /// Each mark is counted (AccECN), and data packets carry this code point.
    Accurate {
        /// [`Ecn::Ect0`] or [`Ecn::Ect1`].
        ect: Ecn,
    },
}

impl EcnMode {
    /// Returns the ECN field of data. Retransmissions are ECN-capable only with accurate feedback.
    pub fn field(self, is_retransmission: bool) -> Ecn {
        match self {
            Self::Off => Ecn::NotEct,
            Self::Classic if is_retransmission => Ecn::NotEct,
            Self::Classic => Ecn::Ect0,
            Self::Accurate { ect } => ect,
        }
    }
}

/// Settings of a sending socket.
#[derive(Debug, Clone)]
pub struct SenderConfig {
    pub ecn: EcnMode,
    /// `tcp_wmem`.
    pub sndbuf: SocketBuffer,
    /// Maximum number of bytes that the application passes to one call of send().
    pub send_bytes: u64,
    /// `tcp_slow_start_after_idle`.
    pub slow_start_after_idle: bool,
    /// `sk_gso_max_segs`: maximum number of segments of a `struct sk_buff`, 1 on a node without segmentation offloads.
    pub gso_max_segs: u32,
    /// Seed of the congestion control's random numbers; not 0.
    pub seed: u64,
}

/// What an end knows from the handshake.
#[derive(Debug, Clone, Copy)]
pub struct Established {
    pub rtt_ns: u64,
    /// TSval of the other end's last segment.
    pub ts_recent_ns: u64,
    /// Initial window, packets.
    pub init_cwnd: u32,
}

/// Counters for the tables. Those without a unit in their name count packets; `reord_seen` and `total_rto` count events.
#[derive(Debug, Clone, Default)]
pub struct SenderCounters {
    pub bytes_sent: u64,
    pub bytes_retrans: u64,
    pub data_segs_out: u32,
    pub segs_in: u32,
    pub total_retrans: u32,
    pub dsack_dups: u32,
    pub reord_seen: u32,
    pub total_rto: u32,
    pub busy_ns: u64,
    pub rwnd_limited_ns: u64,
    pub sndbuf_limited_ns: u64,
}

/// A sending socket after the handshake.
#[derive(Debug)]
pub struct Sender {
    pub(super) config: SenderConfig,
    pub(super) cc: CongestionControl,
    pub(super) requirements: CcRequirements,
    pub(super) rtx_queue: RetransmitQueue,
    pub rtt: Rtt,
    pub(super) rate: DeliveryRate,
    pub(super) rack: Rack,
    pub(super) snd_una: u64,
    pub(super) snd_nxt: u64,
    pub(super) snd_wnd_end: u64,
    /// `max_window`: the largest receive window so far.
    pub(super) max_window_bytes: u64,
    /// What the socket has taken from the application so far.
    pub(super) write_seq: u64,
    pub(super) send_buffer: SendBuffer,
    pub(super) snd_cwnd: u32,
    pub(super) snd_ssthresh: u32,
    pub(super) prior_cwnd: u32,
    pub(super) prior_ssthresh: u32,
    pub(super) ca_state: CaState,
    pub(super) high_seq: u64,
    pub(super) undo_marker: Option<u64>,
    pub(super) undo_retrans: i64,
    /// Time of the first retransmission of this recovery; 0 if there is none.
    pub(super) retrans_stamp_ns: u64,
    pub(super) prr_delivered: u32,
    pub(super) prr_out: u32,
    /// The window was full when packets were last sent.
    pub(super) is_cwnd_limited: bool,
    pub(super) max_packets_out: u32,
    pub(super) cwnd_usage_seq: u64,
    pub(super) snd_cwnd_used: u32,
    pub(super) snd_cwnd_stamp_ns: u64,
    /// `tp->reordering`, packets.
    pub(super) reordering: u32,
    pub(super) reordering_seen: bool,
    /// End of the last segment that was not full.
    pub(super) snd_sml: u64,
    pub(super) tlp_high_seq: Option<u64>,
    pub(super) tlp_retrans: bool,
    pub(super) frto: bool,
    pub(super) retransmits: u32,
    pub(super) backoff: u32,
    pub(super) timer: Option<Timer>,
    pub(super) pacing_rate_bytes_per_s: u64,
    /// Earliest departure of the next packet.
    pub(super) tcp_wstamp_ns: u64,
    pub(super) pacing_until_ns: Option<u64>,
    pub(super) lsndtime_ns: u64,
    pub(super) cwr_pending: bool,
    /// Packets that the receiver has counted with CE (AccECN).
    pub(super) peer_ce_pkts: u32,
    /// `rx_opt.ts_recent`: TSval of the receiver's last segment.
    pub(super) ts_recent_ns: u64,
    pub(super) prior_in_flight: u32,
    seed: u64,
    /// Whether a round of the congestion control has ended.
    pub(super) round_ended: bool,
    state_began: bool,
    rounds: u64,
    pub(super) rcv_tstamp_ns: u64,
    pub counters: SenderCounters,
    pub(super) chrono_start_ns: u64,
    pub(super) chrono_type: Chrono,
    /// Segments to transmit, each with a flag for a retransmission.
    pub outbox: Vec<(Segment, bool)>,
    /// Rows of `tcp_events`, without the fields that name the flow. `None`: events are not recorded.
    pub events: Option<Vec<TcpEvent>>,
}

/// What keeps a busy connection from sending (`tcp_chrono`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chrono {
    Idle,
    Busy,
    RwndLimited,
    SndbufLimited,
}

/// What the congestion control learns from an acknowledgement.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CcSample {
    pub rtt_us: Option<u32>,
    /// Newly delivered.
    pub acked_pkts: u32,
    /// Newly marked lost.
    pub lost_pkts: u32,
    pub is_ack_delayed: bool,
    pub sample: super::delivery_rate::RateSample,
}

/// Returns an RTT estimate from the handshake.
fn handshake_rtt(now_ns: u64, rtt_ns: u64) -> Rtt {
    let mut rtt = Rtt::new();
    let rtt_us = (rtt_ns / 1000) as u32;
    rtt.rtt_estimator(rtt_us, 0, 0);
    rtt.update_rtt_min(now_ns, rtt_us);
    rtt
}

impl Sender {
    /// Creates a socket whose handshake ended at `now_ns`.
    pub fn new(
        config: SenderConfig,
        cc: CongestionControl,
        now_ns: u64,
        established: Established,
        window_end: u64,
    ) -> Self {
        let mut sender = Self {
            requirements: cc.requirements(),
            seed: config.seed.max(1),
            send_buffer: SendBuffer::new(config.sndbuf),
            config,
            cc,
            rtx_queue: RetransmitQueue::default(),
            rtt: handshake_rtt(now_ns, established.rtt_ns),
            // The SYN or SYN-ACK counts as delivered.
            rate: DeliveryRate { delivered: 1, ..DeliveryRate::default() },
            rack: Rack::new(),
            snd_una: 0,
            snd_nxt: 0,
            snd_wnd_end: window_end,
            max_window_bytes: window_end,
            write_seq: 0,
            snd_cwnd: established.init_cwnd,
            snd_ssthresh: TCP_INFINITE_SSTHRESH,
            prior_cwnd: 0,
            prior_ssthresh: 0,
            ca_state: CaState::Open,
            high_seq: 0,
            undo_marker: None,
            undo_retrans: 0,
            retrans_stamp_ns: 0,
            prr_delivered: 0,
            prr_out: 0,
            is_cwnd_limited: false,
            max_packets_out: 0,
            cwnd_usage_seq: 0,
            snd_cwnd_used: 0,
            snd_cwnd_stamp_ns: now_ns,
            reordering: TCP_FASTRETRANS_THRESH,
            reordering_seen: false,
            snd_sml: 0,
            tlp_high_seq: None,
            tlp_retrans: false,
            frto: false,
            retransmits: 0,
            backoff: 0,
            timer: None,
            pacing_rate_bytes_per_s: 0,
            tcp_wstamp_ns: 0,
            pacing_until_ns: None,
            lsndtime_ns: now_ns,
            cwr_pending: false,
            peer_ce_pkts: 0,
            ts_recent_ns: established.ts_recent_ns,
            prior_in_flight: 0,
            round_ended: false,
            state_began: false,
            rounds: 0,
            rcv_tstamp_ns: now_ns,
            counters: SenderCounters::default(),
            chrono_start_ns: now_ns,
            chrono_type: Chrono::Idle,
            outbox: Vec::new(),
            events: None,
        };
        sender.init_congestion_control(now_ns);
        sender.sndbuf_expand();
        sender
    }

    /// `tcp_init_congestion_control()`.
    fn init_congestion_control(&mut self, now_ns: u64) {
        self.update_pacing_rate();
        let view = self.view(now_ns, &CcSample::default());
        let out = self.cc.init(&view);
        self.apply(&out);
    }

    /// Returns what the congestion control sees of the socket.
    pub(super) fn view(&mut self, now_ns: u64, cc_sample: &CcSample) -> congestion_control::Ack {
        let sample = &cc_sample.sample;
        let mut set = 0;
        let mut flag = |flag: u32, on: bool| set |= if on { flag } else { 0 };
        flag(ack_flags::APP_LIMITED, sample.is_app_limited);
        flag(ack_flags::ECN, self.config.ecn != EcnMode::Off);
        flag(ack_flags::ACK_DELAYED, cc_sample.is_ack_delayed);
        congestion_control::Ack {
            now_us: now_ns / 1000,
            pacing_bytes_per_sec: self.pacing_rate_bytes_per_s,
            rtt_us: cc_sample.rtt_us.map_or(0, |rtt_us| rtt_us.max(1)),
            srtt_us: self.rtt.smoothed_us(),
            mdev_us: self.rtt.mdev_us(),
            rtt_min_us: self.rtt.min_us(),
            acked_pkts: cc_sample.acked_pkts,
            lost_pkts: cc_sample.lost_pkts,
            inflight_pkts: self.rtx_queue.in_flight(),
            prior_inflight_pkts: self.prior_in_flight,
            cwnd_pkts: self.snd_cwnd,
            ssthresh_pkts: self.snd_ssthresh,
            cwnd_clamp_pkts: CWND_CLAMP,
            prior_cwnd_pkts: self.prior_cwnd,
            una_seq: self.snd_una as u32,
            nxt_seq: self.snd_nxt as u32,
            delivered_pkts: self.rate.delivered,
            delivered_ce_pkts: self.rate.delivered_ce,
            total_lost_pkts: self.rtx_queue.lost,
            rate_prior_delivered_pkts: sample.prior_delivered,
            rate_delivered_pkts: if sample.interval_us > 0 { sample.delivered } else { 0 },
            rate_delivered_ce_pkts: sample.delivered_ce,
            rate_interval_us: sample.interval_us,
            edt_delay_us: (self.tcp_wstamp_ns.saturating_sub(now_ns) / 1000) as u32,
            mss_bytes: MSS_BYTES,
            mtu_bytes: MTU_BYTES,
            random: congestion_control::random(&mut self.seed),
            ca_state: self.ca_state as u32,
            flags: set,
        }
    }

    pub(super) fn apply(&mut self, out: &CcOutput) {
        if out.pacing_bytes_per_sec != 0 {
            self.pacing_rate_bytes_per_s = out.pacing_bytes_per_sec;
        }
        self.snd_cwnd = out.cwnd_pkts;
        self.snd_ssthresh = out.ssthresh_pkts;
        self.round_ended |= out.ends_round();
        self.state_began |= out.begins_state();
    }

    /// `tcp_set_ca_state()`.
    pub(super) fn set_ca_state(&mut self, now_ns: u64, state: CaState) {
        if state != self.ca_state {
            let (before, after) = (self.ca_state as u32, state as u32);
            let changed =
                |event| TcpEvent { ca_state: after, ca_state_before: Some(before), ..event };
            self.push_event_with(now_ns, TcpEventKind::CaState, changed);
        }
        self.cc_event(now_ns, state.into());
        self.ca_state = state;
    }

    pub(super) fn cc_event(&mut self, now_ns: u64, event: Event) {
        let mut view = self.view(now_ns, &CcSample::default());
        view.flags |= if self.rate.app_limited != 0 { ack_flags::APP_LIMITED } else { 0 };
        let out = self.cc.on_event(event, &view);
        self.apply(&out);
    }

    /// `icsk_ca_ops->ssthresh()`.
    pub(super) fn cc_ssthresh(&mut self, now_ns: u64) -> u32 {
        let view = self.view(now_ns, &CcSample::default());
        self.cc.on_loss(&view)
    }

    /// Returns whether the window was full when packets were last sent, and `tcp_is_cwnd_limited()`.
    pub(super) fn cwnd_flags(&self) -> u32 {
        let full = if self.is_cwnd_limited { ack_flags::CWND_FULL } else { 0 };
        full | if self.tcp_is_cwnd_limited() { ack_flags::CWND_LIMITED } else { 0 }
    }

    /// `tcp_is_cwnd_limited()`.
    pub(super) fn tcp_is_cwnd_limited(&self) -> bool {
        self.is_cwnd_limited
            || (self.snd_cwnd < self.snd_ssthresh
                && self.snd_cwnd < self.max_packets_out.saturating_mul(2))
    }

    /// `tcp_current_ssthresh()`.
    pub(super) fn current_ssthresh(&self) -> u32 {
        match self.ca_state {
            CaState::Cwr | CaState::Recovery => self.snd_ssthresh,
            _ => self.snd_ssthresh.max((self.snd_cwnd >> 1) + (self.snd_cwnd >> 2)),
        }
    }

    /// `tcp_in_cwnd_reduction()`.
    pub(super) fn in_cwnd_reduction(&self) -> bool {
        matches!(self.ca_state, CaState::Cwr | CaState::Recovery)
    }

    /// `tcp_update_pacing_rate()`: twice the window per RTT in slow start, 1.2 times otherwise.
    pub(super) fn update_pacing_rate(&mut self) {
        let percent = if self.snd_cwnd < self.snd_ssthresh / 2 { 200 } else { 120 };
        let packets = self.snd_cwnd.max(self.rtx_queue.packets_out());
        let rate = u64::from(MSS_BYTES) * (10_000 << 3) * percent * u64::from(packets);
        self.pacing_rate_bytes_per_s = rate / u64::from(self.rtt.srtt_us().max(1));
    }

    /// Returns the congestion control's state if a round has ended or a state has begun since the last call: the number of rounds that have
    /// ended, and the values.
    pub fn take_state(&mut self, now_ns: u64) -> Option<(u64, Vec<congestion_control::Stat>)> {
        let began = std::mem::take(&mut self.state_began);
        if std::mem::take(&mut self.round_ended) {
            self.rounds += 1;
            return Some((self.rounds, self.cc_state(now_ns)));
        }
        began.then(|| (self.rounds, self.observed_state(now_ns)))
    }

    /// Returns the congestion control's state.
    pub fn cc_state(&mut self, now_ns: u64) -> Vec<congestion_control::Stat> {
        let view = self.view(now_ns, &CcSample::default());
        self.cc.read(&view)
    }

    /// Returns the same without drawing a random number: observing changes nothing.
    pub fn observed_state(&mut self, now_ns: u64) -> Vec<congestion_control::Stat> {
        let seed = self.seed;
        let stats = self.cc_state(now_ns);
        self.seed = seed;
        stats
    }

    /// Returns a rule that the congestion control violated.
    pub fn violation(&self) -> Option<congestion_control::Violation> {
        self.cc.violation()
    }

    /// Adds an event to [`Self::events`].
    pub fn push_event(&mut self, now_ns: u64, kind: TcpEventKind, count: u32) {
        self.push_event_with(now_ns, kind, |event| TcpEvent { count, ..event });
    }

    /// Adds an event with the fields that `complete` sets.
    pub(super) fn push_event_with(
        &mut self,
        now_ns: u64,
        kind: TcpEventKind,
        complete: impl FnOnce(TcpEvent) -> TcpEvent,
    ) {
        let Some(events) = &mut self.events else { return };
        events.push(complete(TcpEvent {
            at_ns: now_ns,
            kind: kind.into(),
            ca_state: self.ca_state as u32,
            snd_cwnd_pkts: self.snd_cwnd,
            snd_ssthresh_pkts: Some(self.snd_ssthresh).filter(|pkts| *pkts < TCP_INFINITE_SSTHRESH),
            rtt_us: self.rtt.smoothed_us(),
            unacked_pkts: self.rtx_queue.packets_out(),
            lost_pkts: self.rtx_queue.lost_out,
            total_retrans_pkts: self.counters.total_retrans,
            ..TcpEvent::default()
        }));
    }

    /// Attributes the time that has passed to what limited the connection.
    pub(super) fn chrono_set(&mut self, now_ns: u64, chrono_type: Chrono) {
        let passed_ns = now_ns - self.chrono_start_ns;
        self.chrono_start_ns = now_ns;
        let counters = &mut self.counters;
        counters.busy_ns += if self.chrono_type == Chrono::Idle { 0 } else { passed_ns };
        match self.chrono_type {
            Chrono::Idle | Chrono::Busy => {}
            Chrono::RwndLimited => counters.rwnd_limited_ns += passed_ns,
            Chrono::SndbufLimited => counters.sndbuf_limited_ns += passed_ns,
        }
        self.chrono_type = chrono_type;
    }

    /// Returns TCP_INFO at this instant.
    pub fn info(&mut self, now_ns: u64) -> TcpInfo {
        self.chrono_set(now_ns, self.chrono_type);
        TcpInfo {
            ca_state: self.ca_state as u32,
            retransmits: self.retransmits,
            backoff: self.backoff,
            rto_us: self.rtt.backed_off_us(self.backoff) as u32,
            packets_out: self.rtx_queue.packets_out(),
            sacked_out: self.rtx_queue.sacked_out,
            lost_out: self.rtx_queue.lost_out,
            retrans_out: self.rtx_queue.retrans_out,
            snd_cwnd: self.snd_cwnd,
            snd_ssthresh: Some(self.snd_ssthresh).filter(|pkts| *pkts < TCP_INFINITE_SSTHRESH),
            srtt_us: self.rtt.smoothed_us(),
            rttvar_us: self.rtt.mdev_us() >> 2,
            min_rtt_us: Some(self.rtt.min_us()).filter(|rtt_us| *rtt_us != NO_RTT_US),
            pacing_rate_bytes_per_s: self.pacing_rate_bytes_per_s,
            bytes_acked: self.snd_una,
            notsent_bytes: (self.write_seq - self.snd_nxt).min(u32::MAX.into()) as u32,
            reordering: self.reordering,
            delivered: self.rate.delivered,
            delivered_ce: self.rate.delivered_ce,
            rate_delivered: self.rate.rate_delivered,
            rate_interval_us: self.rate.rate_interval_us,
            delivery_rate_bytes_per_s: self.delivery_rate_bytes_per_s(),
            is_app_limited: self.rate.rate_app_limited,
            snd_wnd: (self.snd_wnd_end - self.snd_una).min(u32::MAX.into()) as u32,
            since_sent_ns: now_ns - self.lsndtime_ns,
            since_ack_ns: now_ns - self.rcv_tstamp_ns,
        }
    }

    /// Returns the rate of the latest sample, bytes per second.
    fn delivery_rate_bytes_per_s(&self) -> u64 {
        let bytes = u64::from(self.rate.rate_delivered) * u64::from(MSS_BYTES);
        bytes.saturating_mul(1_000_000).checked_div(self.rate.rate_interval_us.into()).unwrap_or(0)
    }
}

/// A part of TCP_INFO. `packets_out`, `*_out`, `snd_cwnd`, `snd_ssthresh`, `reordering` and `delivered*` are in packets, `snd_wnd` in
/// bytes. `retransmits` and `backoff` count timeouts in a row.
#[derive(Debug, Clone, Copy)]
pub struct TcpInfo {
    pub ca_state: u32,
    pub retransmits: u32,
    pub backoff: u32,
    pub rto_us: u32,
    pub packets_out: u32,
    pub sacked_out: u32,
    pub lost_out: u32,
    pub retrans_out: u32,
    pub snd_cwnd: u32,
    pub snd_ssthresh: Option<u32>,
    pub srtt_us: u32,
    pub rttvar_us: u32,
    pub min_rtt_us: Option<u32>,
    pub pacing_rate_bytes_per_s: u64,
    pub bytes_acked: u64,
    pub notsent_bytes: u32,
    pub reordering: u32,
    pub delivered: u32,
    pub delivered_ce: u32,
    /// The sample that gives the delivery rate: packets and the time that they took.
    pub rate_delivered: u32,
    pub rate_interval_us: u32,
    pub delivery_rate_bytes_per_s: u64,
    pub is_app_limited: bool,
    pub snd_wnd: u32,
    pub since_sent_ns: u64,
    pub since_ack_ns: u64,
}
