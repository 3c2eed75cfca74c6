//! The options and statistics of `sch_dualpi2` (Linux 6.17 and later).

use ccbench_proto::plan::Dualpi2;
use ccbench_proto::units::Packets;
use ccbench_proto::wire::QdiscSample;

use crate::discipline::Discipline;
use crate::netlink::Message;
use crate::netlink::message::u32_at;
use crate::qdisc::{BadQueue, Qdisc, limit_bytes, limit_packets, micros, with_some, word};

const TCA_DUALPI2_LIMIT: u16 = 1;
const TCA_DUALPI2_MEMORY_LIMIT: u16 = 2;
const TCA_DUALPI2_TARGET: u16 = 3;
const TCA_DUALPI2_TUPDATE: u16 = 4;
const TCA_DUALPI2_ALPHA: u16 = 5;
const TCA_DUALPI2_BETA: u16 = 6;
const TCA_DUALPI2_STEP_THRESH_PKTS: u16 = 7;
const TCA_DUALPI2_STEP_THRESH_US: u16 = 8;
const TCA_DUALPI2_MIN_QLEN_STEP: u16 = 9;
const TCA_DUALPI2_COUPLING: u16 = 10;
const TCA_DUALPI2_DROP_OVERLOAD: u16 = 11;
const TCA_DUALPI2_DROP_EARLY: u16 = 12;
const TCA_DUALPI2_C_PROTECTION: u16 = 13;
const TCA_DUALPI2_ECN_MASK: u16 = 14;
const TCA_DUALPI2_SPLIT_GSO: u16 = 15;
/// Masks of the ECN fields that select the L queue: the bit of ECT(1), or any bit.
const ECN_MASK_L4S_ECT: u8 = 1;
const ECN_MASK_ANY_ECT: u8 = 3;
/// The netlink attributes carry gains in 1/256 Hz.
const GAIN_SCALE: f64 = 256.0;
/// The largest gain that fits 32 bits after the kernel's own scaling: 2^23 - 1.
const MAX_GAIN: f64 = 8_388_607.0;

/// Returns the qdisc.
///
/// # Errors
/// Fails for a gain that is not a number or out of range, a coupling factor over 255, or a limit that is neither packets nor bytes.
pub(super) fn encode(queue: &Dualpi2) -> Result<Qdisc, BadQueue> {
    let mut message = Message::attributes();
    let Dualpi2 {
        limit,
        target,
        tupdate,
        alpha,
        beta,
        step_thresh,
        coupling_factor,
        drop_on_overload,
        drop_dequeue,
        split_gso,
        classic_protection,
        step_thresh_pkts,
        min_qlen_step,
        memory_limit,
        any_ect,
    } = queue;
    let alpha = alpha.as_deref().map(|text| gain("alpha", text)).transpose()?;
    let beta = beta.as_deref().map(|text| gain("beta", text)).transpose()?;
    let words = [
        (TCA_DUALPI2_LIMIT, limit.map(limit_packets).transpose()?),
        (TCA_DUALPI2_MEMORY_LIMIT, memory_limit.map(limit_bytes).transpose()?),
        (TCA_DUALPI2_TARGET, target.map(micros)),
        (TCA_DUALPI2_TUPDATE, tupdate.map(micros)),
        (TCA_DUALPI2_ALPHA, alpha),
        (TCA_DUALPI2_BETA, beta),
        (TCA_DUALPI2_STEP_THRESH_PKTS, step_thresh_pkts.map(Packets::get)),
        (TCA_DUALPI2_STEP_THRESH_US, step_thresh.map(micros)),
        (TCA_DUALPI2_MIN_QLEN_STEP, min_qlen_step.map(Packets::get)),
    ];
    let coupling = coupling_factor.map(coupling_byte).transpose()?;
    let ecn_mask = |any| if any { ECN_MASK_ANY_ECT } else { ECN_MASK_L4S_ECT };
    let bytes = [
        (TCA_DUALPI2_COUPLING, coupling),
        (TCA_DUALPI2_DROP_OVERLOAD, drop_on_overload.map(u8::from)),
        // The kernel's attribute is true for dropping at enqueue (early).
        (TCA_DUALPI2_DROP_EARLY, drop_dequeue.map(|at_dequeue| u8::from(!at_dequeue))),
        (TCA_DUALPI2_C_PROTECTION, classic_protection.map(|p| (p.get() / 10_000) as u8)),
        (TCA_DUALPI2_ECN_MASK, any_ect.map(ecn_mask)),
        (TCA_DUALPI2_SPLIT_GSO, split_gso.map(u8::from)),
    ];
    message = with_some(message, &words);
    for (kind, value) in bytes {
        if let Some(value) = value {
            message = message.attr_u8(kind, value);
        }
    }
    Ok(Qdisc { kind: Dualpi2::KIND, options: message.into_attributes() })
}

/// `struct tc_dualpi2_xstats`.
pub(super) fn read_xstats(xstats: &[u8], row: &mut QdiscSample) {
    row.prob = u32_at(xstats, 0).map(|p| f64::from(p) / f64::from(u32::MAX));
    row.delay_c_us = word(xstats, 4);
    row.delay_l_us = word(xstats, 8);
    row.pkts_in_c = word(xstats, 12);
    row.pkts_in_l = word(xstats, 16);
    row.maxq_pkts = word(xstats, 20);
    row.ecn_mark_pkts = word(xstats, 24);
    row.step_mark_pkts = word(xstats, 28);
    row.credit = u32_at(xstats, 32).map(|value| i64::from(value.cast_signed()));
    row.memory_used_bytes = word(xstats, 36);
}

/// Parses a gain in Hz to 1/256 Hz, rounded to nearest.
pub(super) fn gain(name: &str, text: &str) -> Result<u32, BadQueue> {
    let scaled = text.trim().parse::<f64>().map(|hz| (hz * GAIN_SCALE).round());
    match scaled {
        Ok(scaled) if (1.0..=MAX_GAIN).contains(&scaled) => Ok(scaled as u32),
        _ => Err(BadQueue {
            problem: format!("dualpi2 with {name} = `{text}`"),
            hint: "write a number of Hz between 0.004 and 32767, like \"0.16\"".to_owned(),
        }),
    }
}

/// Returns the coupling factor as the kernel's byte.
pub(super) fn coupling_byte(coupling_factor: u32) -> Result<u8, BadQueue> {
    u8::try_from(coupling_factor).ok().filter(|&k| k > 0).ok_or_else(|| BadQueue {
        problem: format!("dualpi2 with coupling_factor = {coupling_factor}"),
        hint: "write 1 to 255".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use ccbench_proto::units::{Bytes, Limit};

    use super::*;
    use crate::netlink::message::attrs;

    #[test]
    fn step_in_packets_memory_and_ecn_mask_have_their_attributes() {
        let queue = Dualpi2 {
            step_thresh_pkts: Some(Packets::new(5)),
            min_qlen_step: Some(Packets::new(2)),
            memory_limit: Some(Limit::Bytes(Bytes::new(1_000_000))),
            any_ect: Some(true),
            ..Dualpi2::default()
        };
        let options = encode(&queue).unwrap().options;
        let sent: Vec<(u16, Vec<u8>)> =
            attrs(&options).map(|a| (a.kind, a.value.to_vec())).collect();
        let number = |n: u32| n.to_ne_bytes().to_vec();
        assert_eq!(sent, [(2, number(1_000_000)), (7, number(5)), (9, number(2)), (14, vec![3])]);
    }

    #[test]
    fn gains_are_scaled_as_tc_does() {
        assert_eq!(gain("alpha", "0.16"), Ok(41));
        assert_eq!(gain("beta", "3.2"), Ok(819));
        assert!(gain("alpha", "fast").unwrap_err().to_string().contains("alpha = `fast`"));
        assert!(gain("alpha", "0").is_err());
    }
}
