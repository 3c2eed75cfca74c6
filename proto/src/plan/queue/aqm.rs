//! Active queue management: the structs of all kinds but FIFOs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FlowIsolation, NONZERO, Parameters, TimeKey, ZERO_IS_VALID};
use crate::units::{Bytes, FRAME_BYTES, Limit, Micros, Packets, Ppm, Rate};

/// Proportional integral controller enhanced (RFC 8033).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pie {
    /// Capacity; other units than packets are rounded up to full frames of 1514 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// Target delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Micros>,
    /// Time between two updates of the probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tupdate: Option<Micros>,
    /// Integral gain, in sixteenths of a hertz, as in `tc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 32))]
    pub alpha: Option<u32>,
    /// Proportional gain, in sixteenths of a hertz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 32))]
    pub beta: Option<u32>,
    /// Mark instead of dropping while the probability is low.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecn: Option<bool>,
    /// Scale the drop probability with the packet size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytemode: Option<bool>,
}

impl Parameters for Pie {
    fn times(&self) -> Vec<TimeKey> {
        vec![("target", self.target, NONZERO), ("tupdate", self.tupdate, NONZERO)]
    }
    fn check(&self, error: &mut dyn FnMut(&'static str, String)) {
        for (key, gain) in [("alpha", self.alpha), ("beta", self.beta)] {
            if gain.is_some_and(|gain| gain > 32) {
                error(key, "must be from 0 to 32, in sixteenths of a hertz".to_owned());
            }
        }
    }
}

/// Random early detection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Red {
    /// Capacity.
    #[schemars(extend("examples" = ["60000B", "120000B"]))]
    pub limit: Limit,
    /// Average queue above which packets are dropped or marked.
    #[schemars(extend("examples" = ["5000B", "20000B"]))]
    pub min: Limit,
    /// Average queue at which the drop probability reaches `probability`.
    #[schemars(extend("examples" = ["20000B", "60000B"]))]
    pub max: Limit,
    /// Probability at `max`; absent: `"2%"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<Ppm>,
    /// Average packet size, to convert idle time into packets; absent: `"1000B"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avpkt: Option<Bytes>,
    /// Burst size in packets; absent: (2 min + max) / (3 avpkt).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Mark instead of dropping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecn: Option<bool>,
    /// Always drop above `max`, even packets that could be marked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub harddrop: Option<bool>,
    /// Adapt the probability (Floyd's adaptive RED).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<bool>,
    /// Queue packets that cannot be marked instead of dropping them; needs `ecn = true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodrop: Option<bool>,
}

impl Parameters for Red {
    /// Reports what `tc` refuses.
    fn check(&self, error: &mut dyn FnMut(&'static str, String)) {
        let packet = self.average_packet();
        if packet == 0 || packet > 65_535 {
            error("avpkt", "must be from 1B to 65535B".to_owned());
        }
        if self.probability.is_some_and(|share| share.get() == 0) {
            error(
                "probability",
                "is zero: nothing would be dropped before `max`; raise it".to_owned(),
            );
        }
        if self.nodrop == Some(true) && self.ecn != Some(true) {
            error("nodrop", "needs `ecn = true`".to_owned());
        }
    }

    /// Reports what `tc` refuses, and thresholds that never drop a packet.
    fn check_limits(&self, error: &mut dyn FnMut(&'static str, String)) {
        let bytes = |limit: Limit| match limit {
            Limit::Packets(packets) => Bytes::new(u64::from(packets.get()) * FRAME_BYTES),
            Limit::Bytes(bytes) => bytes,
            Limit::MilliBdp(_) | Limit::Time(_) => Bytes::default(),
        };
        let [limit, min, max] = [self.limit, self.min, self.max].map(bytes);
        let largest = Bytes::new(u64::from(u32::MAX));
        let packet = self.average_packet();
        if limit.get() < FRAME_BYTES || limit > largest {
            error("limit", format!("must be from {FRAME_BYTES}B (a full frame) to {largest}"));
        }
        if packet == 0 || packet > 65_535 {
            return;
        }
        if min.get() == 0 || min >= max {
            return error("min", "must be more than zero and less than `max`".to_owned());
        }
        if max > limit {
            let why = format!(
                "is above the queue's `limit` of {limit}, so the queue would never reach it; lower it"
            );
            error("max", why);
        }
        // `tc` chooses the weight of the average (Wlog) such that a burst of this size stays below `min`.
        let [qth_min, qth_max] = [min, max].map(|it| u32::try_from(it.get()).unwrap_or(u32::MAX));
        if self.wlog(qth_min, qth_max).is_some() {
            return;
        }
        let min_burst = min.get().div_ceil(packet);
        let of_burst = if self.burst.is_some() { "burst" } else { "avpkt" };
        let (key, fix) = if self.burst_of(min.get(), max.get()) < min_burst {
            (of_burst, format!("`burst` must be {min_burst} or more"))
        } else if packet >= min.get() {
            ("avpkt", "it must be less than `min`".to_owned())
        } else {
            (of_burst, "lower `burst`, or raise `avpkt`".to_owned())
        };
        error(key, format!("leaves no weight for the average: {fix}"));
    }
}

impl Red {
    /// `avpkt` with its default, bytes.
    fn average_packet(&self) -> u64 {
        self.avpkt.unwrap_or(Bytes::new(1000)).get()
    }

    /// `burst` with its default for these thresholds in bytes.
    pub fn burst_pkts(&self, qth_min: u32, qth_max: u32) -> u32 {
        let burst = self.burst_of(u64::from(qth_min), u64::from(qth_max));
        u32::try_from(burst).unwrap_or(u32::MAX)
    }

    fn burst_of(&self, min: u64, max: u64) -> u64 {
        let packet = self.average_packet().clamp(1, u64::from(u32::MAX));
        let default = min.saturating_mul(2).saturating_add(max) / (3 * packet);
        self.burst.map_or(default, u64::from)
    }

    /// Wlog for these thresholds in bytes: a packet has weight w = 2^-Wlog in the average. It is the one with which a burst of `burst`
    /// packets into an empty queue leaves the average just below `min` (Floyd and Jacobson 1993, section 6; `tc_red_eval_ewma`):
    /// the first for which `burst + 1 - min/avpkt <= (1 - (1-w)^burst) / w`. `None`: the burst is too small for any weight.
    pub fn wlog(&self, qth_min: u32, qth_max: u32) -> Option<u32> {
        let burst = f64::from(self.burst_pkts(qth_min, qth_max));
        let packet = self.average_packet().clamp(1, u64::from(u32::MAX));
        let wanted = burst + 1.0 - f64::from(qth_min) / packet as f64;
        if wanted < 1.0 {
            return None;
        }
        (1..32_u32).find(|&log| {
            let weight = 0.5_f64.powi(log.cast_signed());
            // Not the system's libm, whose rounding differs between machines.
            wanted <= (1.0 - libm::pow(1.0 - weight, burst)) / weight
        })
    }
}

/// Fair queueing with pacing (`sch_fq`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fq {
    /// Capacity of all queues; other units than packets are rounded up to full frames of 1514 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// Capacity of one queue, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_limit: Option<Limit>,
    /// Number of buckets, a power of two. 1 is a single queue for forwarded packets: since the kernel requires at
    /// least two, it gets `orphan_mask = 0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 262_144))]
    pub buckets: Option<u32>,
    /// Mark ECT packets CE above this sojourn time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ce_threshold: Option<Micros>,
    /// Mask of the hash for packets without a local socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orphan_mask: Option<u32>,
    /// Bytes that a queue may send per round; absent: two frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantum: Option<Bytes>,
    /// Bytes that a new queue may send at once; absent: ten frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_quantum: Option<Bytes>,
    /// Maximum rate of a queue. Kernel only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maxrate: Option<Rate>,
}

/// Rates of `fq` are whole bytes per second in 32 bits; the largest number means no limit.
const FQ_MAX_RATE: Rate = Rate::from_bits_per_sec(8 * (u32::MAX as u64 - 1));
/// Largest quantum that the kernel accepts.
const MAX_QUANTUM: Bytes = Bytes::new(1 << 20);

impl Parameters for Fq {
    fn times(&self) -> Vec<TimeKey> {
        vec![("ce_threshold", self.ce_threshold, ZERO_IS_VALID)]
    }
    fn check(&self, error: &mut dyn FnMut(&'static str, String)) {
        if self.buckets.is_some_and(|n| !n.is_power_of_two() || n > 262_144) {
            error("buckets", "must be a power of two from 1 to 262144".to_owned());
        }
        let quanta = [("quantum", self.quantum), ("initial_quantum", self.initial_quantum)];
        for (key, quantum) in quanta {
            if quantum.is_some_and(|quantum| quantum.get() == 0 || quantum > MAX_QUANTUM) {
                error(key, format!("must be from 1B to {MAX_QUANTUM}"));
            }
        }
        let is_refused = |rate: Rate| rate.bytes_per_sec() == 0 || rate > FQ_MAX_RATE;
        if self.maxrate.is_some_and(is_refused) {
            error("maxrate", format!("must be from 8bit to {FQ_MAX_RATE}"));
        }
    }
    fn kernel_only(&self) -> Option<(&'static str, &'static str)> {
        self.maxrate.map(|_| ("maxrate", "give the flows or the link a rate instead"))
    }
    fn mark_threshold(&self) -> Option<(&'static str, Micros)> {
        Some(("ce_threshold", self.ce_threshold?))
    }
    fn fixed_keys(&self) -> &'static [&'static str] {
        &["buckets", "orphan_mask"]
    }
    fn flow_isolation(&self) -> FlowIsolation {
        let is_single = self.buckets == Some(1) || self.orphan_mask == Some(0);
        if is_single { FlowIsolation::None } else { FlowIsolation::Hash }
    }
    /// `sch_fq` paces the packets of a flow at its rate.
    fn paces(&self) -> bool {
        true
    }
}

/// Controlled delay (RFC 8289).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Codel {
    /// Capacity; other units than packets are rounded up to full frames of 1514 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// Acceptable standing delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Micros>,
    /// Width of the moving time window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Micros>,
    /// Mark instead of dropping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecn: Option<bool>,
    /// Mark ECT packets CE above this sojourn time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ce_threshold: Option<Micros>,
}

impl Parameters for Codel {
    fn times(&self) -> Vec<TimeKey> {
        vec![
            ("target", self.target, NONZERO),
            ("interval", self.interval, NONZERO),
            ("ce_threshold", self.ce_threshold, ZERO_IS_VALID),
        ]
    }
    fn mark_threshold(&self) -> Option<(&'static str, Micros)> {
        Some(("ce_threshold", self.ce_threshold?))
    }
}

/// CoDel per flow (RFC 8290).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FqCodel {
    /// Capacity; other units than packets are rounded up to full frames of 1514 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// Number of queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_536))]
    pub flows: Option<u32>,
    /// Acceptable standing delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Micros>,
    /// Width of the moving time window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Micros>,
    /// Bytes that a queue may send per round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantum: Option<Bytes>,
    /// Mark instead of dropping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecn: Option<bool>,
    /// Mark ECT packets CE above this sojourn time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ce_threshold: Option<Micros>,
    /// Memory limit of all queues. The kernel counts a frame's buffer, about twice the frame's bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<Limit>,
    /// `ce_threshold` marks only packets whose DS field (DSCP and ECN) has this value under `ce_threshold_mask`: `1` under
    /// the mask `3` is ECT(1). In the kernel since Linux 5.17.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ce_threshold_selector: Option<u8>,
    /// Bits of the DS field that `ce_threshold_selector` compares. Bits of the DSCP: kernel only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub ce_threshold_mask: Option<u8>,
    /// Maximum number of packets dropped at once from the longest queue when a limit is reached; absent: `64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub drop_batch: Option<u32>,
}

impl Parameters for FqCodel {
    fn times(&self) -> Vec<TimeKey> {
        vec![
            ("target", self.target, NONZERO),
            ("interval", self.interval, NONZERO),
            ("ce_threshold", self.ce_threshold, ZERO_IS_VALID),
        ]
    }
    fn check(&self, error: &mut dyn FnMut(&'static str, String)) {
        if self.flows.is_some_and(|n| n == 0 || n > 65_536) {
            error("flows", "must be from 1 to 65536".to_owned());
        }
        if self.quantum.is_some_and(|q| q.get() < 256 || q > MAX_QUANTUM) {
            error("quantum", format!("must be from 256B to {MAX_QUANTUM}"));
        }
        if self.drop_batch == Some(0) {
            error("drop_batch", "must be 1 or more".to_owned());
        }
        match (self.ce_threshold_selector, self.ce_threshold_mask) {
            (None, None) => {}
            (Some(_), None) => {
                let why = "is missing: `ce_threshold_selector` needs it";
                error("ce_threshold_mask", why.to_owned());
            }
            (_, Some(0)) => error("ce_threshold_mask", "compares no bits; leave it out".to_owned()),
            (selector, Some(mask)) => {
                if selector.unwrap_or(0) & !mask != 0 {
                    let why = format!("has bits outside the mask {mask}, so no packet matches");
                    error("ce_threshold_selector", why);
                }
                if self.ce_threshold.is_none() {
                    let why = "is missing: `ce_threshold_mask` has no effect without it";
                    error("ce_threshold", why.to_owned());
                }
            }
        }
    }
    fn kernel_only(&self) -> Option<(&'static str, &'static str)> {
        let compares_dscp = self.ce_threshold_mask.is_some_and(|mask| mask & !3 != 0);
        compares_dscp.then_some(("ce_threshold_mask", "compare the ECN field only (mask 3)"))
    }
    fn mark_threshold(&self) -> Option<(&'static str, Micros)> {
        Some(("ce_threshold", self.ce_threshold?))
    }
    fn fixed_keys(&self) -> &'static [&'static str] {
        &["flows"]
    }
    fn flow_isolation(&self) -> FlowIsolation {
        if self.flows == Some(1) { FlowIsolation::None } else { FlowIsolation::Hash }
    }
}

/// Common applications kept enhanced; the link's shaper limits the rate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cake {
    /// Round-trip time for which the AQM is tuned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt: Option<Micros>,
    /// Memory of the queue. The kernel counts a frame's buffer, about twice the frame's bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<Limit>,
}

impl Parameters for Cake {
    fn kernel_only(&self) -> Option<(&'static str, &'static str)> {
        Some(("kind", "use another queue, for example `fq_codel`"))
    }
    fn times(&self) -> Vec<TimeKey> {
        vec![("rtt", self.rtt, NONZERO)]
    }
    fn flow_isolation(&self) -> FlowIsolation {
        FlowIsolation::Hash
    }
}

/// Former names of keys of `dualpi2`, and those of `tc`.
pub(crate) const DUALPI2_RENAMED: &[(&str, &str)] =
    &[("step", "step_thresh"), ("coupling", "coupling_factor")];

/// Dual-queue coupled AQM for L4S (RFC 9332).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dualpi2 {
    /// Capacity; other units than packets are rounded up to full frames of 1514 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// Target delay of the classic queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Micros>,
    /// Time between two updates of the probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tupdate: Option<Micros>,
    /// Integral gain in Hz, as text (`"0.15625"`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("examples" = ["0.15625", "2"]))]
    pub alpha: Option<String>,
    /// Proportional gain in Hz, as text (`"3.195312"`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("examples" = ["3.195312", "20"]))]
    pub beta: Option<String>,
    /// Step marking threshold of the low-latency queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_thresh: Option<Micros>,
    /// Coupling factor k.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 255))]
    pub coupling_factor: Option<u32>,
    /// On overload, drop packets (`true`) or let the queue overflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop_on_overload: Option<bool>,
    /// Drop at dequeue (`true`) or at enqueue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop_dequeue: Option<bool>,
    /// Split super-packets on enqueue. `false`: kernel only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split_gso: Option<bool>,
    /// Share reserved for the classic queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classic_protection: Option<Ppm>,
    /// Step marking threshold of the low-latency queue in packets, instead of `step_thresh`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_thresh_pkts: Option<Packets>,
    /// The step marks only packets that find at least this many in the low-latency queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_qlen_step: Option<Packets>,
    /// Memory limit of both queues. The kernel counts a frame's buffer, about twice the frame's bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<Limit>,
    /// All ECN-capable packets enter the low-latency queue, not only ECT(1) and CE.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub any_ect: Option<bool>,
}

impl Parameters for Dualpi2 {
    fn times(&self) -> Vec<TimeKey> {
        vec![
            ("target", self.target, NONZERO),
            ("tupdate", self.tupdate, NONZERO),
            ("step_thresh", self.step_thresh, ZERO_IS_VALID),
        ]
    }
    fn check(&self, error: &mut dyn FnMut(&'static str, String)) {
        let gains = [("alpha", &self.alpha, "0.15625"), ("beta", &self.beta, "3.195312")];
        for (key, gain, example) in gains {
            if gain.as_deref().is_some_and(|gain| !is_gain(gain)) {
                error(key, format!("must be a number from 0 to 256 as text, like \"{example}\""));
            }
        }
        if self.coupling_factor.is_some_and(|k| k == 0 || k > 255) {
            error("coupling_factor", "must be from 1 to 255".to_owned());
        }
        if self.step_thresh.is_some() && self.step_thresh_pkts.is_some() {
            let why = "is given beside `step_thresh`; leave one of them out";
            error("step_thresh_pkts", why.to_owned());
        }
    }
    /// A userspace queue gets frames, never super-packets.
    fn kernel_only(&self) -> Option<(&'static str, &'static str)> {
        (self.split_gso == Some(false)).then_some(("split_gso", "leave it out"))
    }
    fn mark_threshold(&self) -> Option<(&'static str, Micros)> {
        Some(("step_thresh", self.step_thresh?))
    }
    fn flow_isolation(&self) -> FlowIsolation {
        FlowIsolation::L4s
    }
}

/// Whether `text` is a decimal number from 0 to 256.
fn is_gain(text: &str) -> bool {
    text.len() <= 16
        && text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || c == '.')
        && text.parse::<f64>().is_ok_and(|gain| gain <= 256.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn red_has_a_weight_for_its_average() {
        let bytes = |bytes| Limit::Bytes(Bytes::new(bytes));
        let problems = |(min, max): (u32, u32), avpkt: Option<u64>, burst: Option<u32>| {
            let queue = Red {
                limit: bytes(120_000),
                min: bytes(min.into()),
                max: bytes(max.into()),
                probability: None,
                avpkt: avpkt.map(Bytes::new),
                burst,
                ecn: None,
                harddrop: None,
                adaptive: None,
                nodrop: None,
            };
            let mut found = Vec::new();
            queue.check_limits(&mut |key, why| found.push(format!("{key}: {why}")));
            assert_eq!(found.is_empty(), queue.wlog(min, max).is_some(), "{queue:?}");
            found
        };
        let none = "leaves no weight for the average";
        let cases = [
            ((20_000, 60_000), None, None, String::new()),
            (
                (20_000, 60_000),
                None,
                Some(19),
                format!("burst: {none}: `burst` must be 20 or more"),
            ),
            ((20_000, 21_000), Some(1001), None, String::new()),
            (
                (3_000, 20_000),
                Some(5_000),
                None,
                format!("avpkt: {none}: it must be less than `min`"),
            ),
            (
                (20_000, 60_000),
                None,
                Some(1_000_000),
                format!("burst: {none}: lower `burst`, or raise `avpkt`"),
            ),
        ];
        for (thresholds, avpkt, burst, wanted) in cases {
            assert_eq!(problems(thresholds, avpkt, burst).concat(), wanted);
        }
    }
}
