//! The options and statistics of `sch_red`, and the parameters that `tc` derives: Wlog, the default burst, and the table for idle time.

use ccbench_proto::plan::Red;
use ccbench_proto::units::{Ppm, Rate};
use ccbench_proto::wire::QdiscSample;

use crate::discipline::Discipline;
use crate::netlink::Message;
use crate::qdisc::{BadQueue, Qdisc, burst_ticks, limit_size, size, word};

const TCA_RED_PARMS: u16 = 1;
const TCA_RED_STAB: u16 = 2;
const TCA_RED_MAX_P: u16 = 3;
const TCA_RED_FLAGS: u16 = 4;
const TC_RED_ECN: u32 = 1;
const TC_RED_HARDDROP: u32 = 2;
const TC_RED_ADAPTATIVE: u32 = 4;
const TC_RED_NODROP: u32 = 8;
/// The selector of the flags below.
const FLAGS_SELECTOR: u32 = 15;
/// Size of the table for idle time (`Stab`).
const STAB_BYTES: usize = 256;
/// The largest entry of that table, which shifts qavg right by 31.
const MAX_STEP: f64 = 31.0;

/// The parameters with all defaults filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Params {
    /// Bytes.
    pub(super) limit: u32,
    /// Bytes.
    pub(super) qth_min: u32,
    /// Bytes.
    pub(super) qth_max: u32,
    pub(super) max_p: Ppm,
    /// Average packet size, bytes.
    pub(super) avpkt: u32,
    /// A packet has weight 2^-Wlog in the average.
    pub(super) wlog: u32,
    pub(super) ecn: bool,
    pub(super) harddrop: bool,
    pub(super) adaptive: bool,
    pub(super) nodrop: bool,
}

/// Fills in the defaults.
///
/// # Errors
/// Fails if `min` and `max` are in the wrong order, or if no weight fits the burst.
pub(super) fn params(queue: &Red) -> Result<Params, BadQueue> {
    let Red { limit, min, max, probability, avpkt, ecn, harddrop, adaptive, nodrop, .. } = queue;
    let (qth_min, qth_max) = (limit_size(*min)?, limit_size(*max)?);
    let avpkt = avpkt.map_or(1000, size).max(1);
    if qth_min == 0 || qth_max < qth_min {
        return Err(bad("with min = 0 or max below min", "write a min above 0 and below max"));
    }
    let wlog = queue.wlog(qth_min, qth_max).ok_or_else(|| {
        let burst = queue.burst_pkts(qth_min, qth_max);
        let min_burst = qth_min.div_ceil(avpkt);
        let what = format!("with burst = {burst}, less than min / avpkt");
        bad(&what, &format!("write burst = {min_burst} or more, or a larger avpkt"))
    })?;
    Ok(Params {
        limit: limit_size(*limit)?,
        qth_min,
        qth_max,
        max_p: probability.or(Ppm::new(20_000)).unwrap_or_default(),
        avpkt,
        wlog,
        ecn: ecn.unwrap_or(false),
        harddrop: harddrop.unwrap_or(false),
        adaptive: adaptive.unwrap_or(false),
        nodrop: nodrop.unwrap_or(false),
    })
}

fn bad(what: &str, hint: &str) -> BadQueue {
    BadQueue::new(format!("queue red {what}"), hint)
}

/// Returns the qdisc in front of `rate`.
///
/// # Errors
/// As for [`params`].
pub(super) fn encode(queue: &Red, rate: Option<Rate>) -> Result<Qdisc, BadQueue> {
    let params = params(queue)?;
    // The default of `tc`.
    let rate = rate.unwrap_or(Rate::from_bits_per_sec(10_000_000));
    let (cell_log, stab) = idle_table(&params, rate);
    let mut parms = [0; 16];
    for (at, word) in [params.limit, params.qth_min, params.qth_max].into_iter().enumerate() {
        parms[at * 4..at * 4 + 4].copy_from_slice(&word.to_ne_bytes());
    }
    let share = f64::from(params.max_p.get()) / 1e6;
    let flags = [
        (params.ecn, TC_RED_ECN),
        (params.harddrop, TC_RED_HARDDROP),
        (params.adaptive, TC_RED_ADAPTATIVE),
        (params.nodrop, TC_RED_NODROP),
    ];
    let flags = flags.into_iter().filter(|(on, _)| *on).fold(0, |all, (_, flag)| all | flag);
    let plog = plog(params.qth_max - params.qth_min, share)?;
    // The kernel starts the timer of the adaptation only for a flag in this byte. It knows `nodrop` only in the attribute, and refuses flags
    // in both places.
    let in_byte = if params.nodrop { 0 } else { flags as u8 };
    parms[12..].copy_from_slice(&[params.wlog as u8, plog, cell_log, in_byte]);
    let mut message = Message::attributes()
        .attr(TCA_RED_PARMS, &parms)
        .attr(TCA_RED_STAB, &stab)
        .attr_u32(TCA_RED_MAX_P, (share * f64::from(u32::MAX)) as u32);
    if params.nodrop {
        let flags = [flags.to_ne_bytes(), FLAGS_SELECTOR.to_ne_bytes()].concat();
        message = message.attr(TCA_RED_FLAGS, &flags);
    }
    Ok(Qdisc { kind: Red::KIND, options: message.into_attributes() })
}

/// Plog: the slope `share / range` of the probability as a power of one half (`tc_red_eval_P`).
fn plog(range: u32, share: f64) -> Result<u8, BadQueue> {
    if range == 0 {
        return Ok(0);
    }
    let per_byte = share / f64::from(range);
    (0..32_u8).find(|&log| per_byte * 2.0_f64.powi(i32::from(log)) > 1.0).ok_or_else(|| {
        bad("with such a small probability", "write a larger probability, or a smaller max")
    })
}

/// Returns Scell_log and Stab (`tc_red_eval_idle_damping`): after an idle time, qavg is shifted right by `table[idle >> cell_log]`.
fn idle_table(params: &Params, rate: Rate) -> (u8, [u8; STAB_BYTES]) {
    let packet_ticks = f64::from(burst_ticks(rate, params.avpkt));
    let per_tick = -(1.0 - 0.5_f64.powi(params.wlog.cast_signed())).ln() / packet_ticks;
    let longest = MAX_STEP / per_tick;
    let cell_log = (0..32_u8).find(|&log| longest / 2.0_f64.powi(i32::from(log)) < 512.0);
    let cell_log = cell_log.unwrap_or(31);
    let mut table = [0; STAB_BYTES];
    for (cell, step) in table.iter_mut().enumerate().skip(1) {
        let idle = (cell as f64) * 2.0_f64.powi(i32::from(cell_log));
        *step = (idle * per_tick).min(MAX_STEP) as u8;
    }
    table[STAB_BYTES - 1] = MAX_STEP as u8;
    (cell_log, table)
}

/// `struct tc_red_xstats`.
pub(super) fn read_xstats(xstats: &[u8], row: &mut QdiscSample) {
    row.ecn_mark_pkts = word(xstats, 12);
}

#[cfg(test)]
mod tests {
    use ccbench_proto::units::{Bytes, Limit};

    use super::*;
    use crate::netlink::message::attrs;

    #[test]
    fn flags_are_where_the_kernel_starts_the_adaptation() {
        let bytes = |bytes| Limit::Bytes(Bytes::new(bytes));
        let red = Red {
            limit: bytes(400_000),
            min: bytes(30_000),
            max: bytes(90_000),
            probability: None,
            avpkt: None,
            burst: None,
            ecn: Some(true),
            harddrop: None,
            adaptive: None,
            nodrop: None,
        };
        // Returns the byte of the parameters, and the attribute.
        let flags = |queue: &Red| {
            let options = encode(queue, None).unwrap().options;
            let value = |wanted: u16| {
                attrs(&options).find(|attr| attr.kind == wanted).map(|attr| attr.value.to_vec())
            };
            (value(TCA_RED_PARMS).unwrap()[15], value(TCA_RED_FLAGS))
        };
        assert_eq!(flags(&red), (1, None));
        let adaptive = Red { adaptive: Some(true), harddrop: Some(true), ..red.clone() };
        assert_eq!(flags(&adaptive), (7, None));
        assert_eq!(flags(&Red { ecn: None, ..red.clone() }), (0, None));
        let attribute = [9_u32, 15].map(u32::to_ne_bytes).concat();
        assert_eq!(flags(&Red { nodrop: Some(true), ..red }), (0, Some(attribute)));
    }
}
