//! Random early detection.

use ccbench_proto::plan::Queue;
use ccbench_proto::units::{Bytes, Ppm, Rate};

use super::{BadQueue, Qdisc, burst_ticks, size};
use crate::netlink::Message;

const TCA_RED_PARMS: u16 = 1;
const TCA_RED_STAB: u16 = 2;
const TCA_RED_MAX_P: u16 = 3;
const TCA_RED_FLAGS: u16 = 4;
const TC_RED_ECN: u32 = 1;
const TC_RED_HARDDROP: u32 = 2;
const TC_RED_ADAPTATIVE: u32 = 4;
/// Those, and to drop nothing that could not be marked: all are said, on or off.
const ALL_FLAGS: u32 = 15;
/// Entries of the table that turns idle time into steps of the average.
const STAB_BYTES: usize = 256;
/// A step that makes the average vanish.
const MOST_STEP: f64 = 31.0;

/// The parameters with every default filled in, in the kernel's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Params {
    pub(crate) limit: u32,
    pub(crate) min: u32,
    pub(crate) max: u32,
    pub(crate) probability: Ppm,
    /// Average packet, bytes.
    pub(crate) avpkt: u32,
    /// The average moves by `1/2^weight_log` of the distance.
    pub(crate) weight_log: u32,
    pub(crate) ecn: bool,
    pub(crate) harddrop: bool,
    pub(crate) adaptive: bool,
}

/// The parameters of [`Queue::Red`].
///
/// # Errors
/// `min` and `max` the wrong way round, a burst for which there is no weight.
pub(crate) fn params(queue: &Queue) -> Result<Params, BadQueue> {
    let Queue::Red { limit, min, max, probability, avpkt, burst, ecn, harddrop, adaptive } = queue
    else {
        return Err(bad("of another kind", "write kind = \"red\""));
    };
    let (min, max) = (size(*min), size(*max));
    let avpkt = avpkt.map_or(1000, size).max(1);
    if min == 0 || max < min {
        return Err(bad("with max below min or min = 0", "write min below max"));
    }
    let usual = (2 * u64::from(min) + u64::from(max)) / (3 * u64::from(avpkt));
    let burst = burst.unwrap_or(u32::try_from(usual).unwrap_or(u32::MAX));
    let weight_log = weight_log(min, burst, avpkt).ok_or_else(|| {
        let least = min.div_ceil(avpkt);
        let what = format!("with burst = {burst}, less than min / avpkt");
        bad(&what, &format!("write burst = {least} or more, or a larger avpkt"))
    })?;
    Ok(Params {
        limit: size(Bytes::new(limit.get())),
        min,
        max,
        probability: probability.or(Ppm::new(20_000)).unwrap_or_default(),
        avpkt,
        weight_log,
        ecn: ecn.unwrap_or(false),
        harddrop: harddrop.unwrap_or(false),
        adaptive: adaptive.unwrap_or(false),
    })
}

fn bad(what: &str, way_out: &str) -> BadQueue {
    BadQueue { what: format!("queue red {what}"), way_out: way_out.to_owned() }
}

/// The weight, as a power of a half, with which a burst of `burst` packets into an empty queue leaves the
/// average just below `min` (Floyd and Jacobson 1993, section 6): the first for which
/// `burst + 1 - min/avpkt <= (1 - (1-w)^burst) / w`.
fn weight_log(min: u32, burst: u32, avpkt: u32) -> Option<u32> {
    let wanted = f64::from(burst) + 1.0 - f64::from(min) / f64::from(avpkt);
    if wanted < 1.0 {
        return None;
    }
    (1..32_u32).find(|&log| {
        let weight = 0.5_f64.powi(log.cast_signed());
        wanted <= (1.0 - (1.0 - weight).powf(f64::from(burst))) / weight
    })
}

/// Encodes [`Queue::Red`] for a queue that is drained at `rate`.
///
/// # Errors
/// As [`params`].
pub fn encode(queue: &Queue, rate: Option<Rate>) -> Result<Qdisc, BadQueue> {
    let params = params(queue)?;
    // What `tc` takes where nobody says.
    let rate = rate.unwrap_or(Rate::from_bits_per_sec(10_000_000));
    let (cell_log, stab) = idle_table(&params, rate);
    let mut parms = [0; 16];
    for (at, word) in [params.limit, params.min, params.max].into_iter().enumerate() {
        parms[at * 4..at * 4 + 4].copy_from_slice(&word.to_ne_bytes());
    }
    let share = f64::from(params.probability.get()) / 1e6;
    let flags = [
        (params.ecn, TC_RED_ECN),
        (params.harddrop, TC_RED_HARDDROP),
        (params.adaptive, TC_RED_ADAPTATIVE),
    ];
    let flags = flags.into_iter().filter(|(on, _)| *on).fold(0, |all, (_, flag)| all | flag);
    let slope = slope_log(params.max - params.min, share)?;
    parms[12..].copy_from_slice(&[params.weight_log as u8, slope, cell_log, 0]);
    let options = Message::attributes()
        .attr(TCA_RED_PARMS, &parms)
        .attr(TCA_RED_STAB, &stab)
        .attr_u32(TCA_RED_MAX_P, (share * f64::from(u32::MAX)) as u32)
        .attr(TCA_RED_FLAGS, &[flags.to_ne_bytes(), ALL_FLAGS.to_ne_bytes()].concat())
        .into_attributes();
    Ok(Qdisc { kind: "red", options })
}

/// The slope of the probability as a power of a half: the first that exceeds `share` per `range`.
fn slope_log(range: u32, share: f64) -> Result<u8, BadQueue> {
    if range == 0 {
        return Ok(0);
    }
    let per_byte = share / f64::from(range);
    (0..32_u8).find(|&log| per_byte * 2.0_f64.powi(i32::from(log)) > 1.0).ok_or_else(|| {
        bad("with so small a probability", "write a larger probability, or a smaller max")
    })
}

/// How far the average sinks while the queue is idle: by `table[idle >> cell_log]` halvings, as `tc` computes it.
fn idle_table(params: &Params, rate: Rate) -> (u8, [u8; STAB_BYTES]) {
    let packet_ticks = f64::from(burst_ticks(rate, params.avpkt));
    let per_tick = -(1.0 - 0.5_f64.powi(params.weight_log.cast_signed())).ln() / packet_ticks;
    let longest = MOST_STEP / per_tick;
    let cell_log = (0..32_u8).find(|&log| longest / 2.0_f64.powi(i32::from(log)) < 512.0);
    let cell_log = cell_log.unwrap_or(31);
    let mut table = [0; STAB_BYTES];
    for (cell, step) in table.iter_mut().enumerate().skip(1) {
        let idle = (cell as f64) * 2.0_f64.powi(i32::from(cell_log));
        *step = (idle * per_tick).min(MOST_STEP) as u8;
    }
    table[STAB_BYTES - 1] = MOST_STEP as u8;
    (cell_log, table)
}
