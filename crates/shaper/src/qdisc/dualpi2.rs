//! Dual-queue coupled AQM (Linux 6.17 and later).

use ccbench_proto::plan::Queue;
use ccbench_proto::units::Packets;

use super::{BadQueue, Qdisc, micros};
use crate::netlink::Message;

const TCA_DUALPI2_LIMIT: u16 = 1;
const TCA_DUALPI2_TARGET: u16 = 3;
const TCA_DUALPI2_TUPDATE: u16 = 4;
const TCA_DUALPI2_ALPHA: u16 = 5;
const TCA_DUALPI2_BETA: u16 = 6;
const TCA_DUALPI2_STEP_THRESH_US: u16 = 8;
const TCA_DUALPI2_COUPLING: u16 = 10;
const TCA_DUALPI2_DROP_OVERLOAD: u16 = 11;
const TCA_DUALPI2_DROP_EARLY: u16 = 12;
const TCA_DUALPI2_C_PROTECTION: u16 = 13;
const TCA_DUALPI2_SPLIT_GSO: u16 = 15;
/// Gains are sent in 1/256 Hz.
const GAIN_SCALE: f64 = 256.0;
/// The largest gain that still fits 32 bits after the kernel's own scaling: 2^23 - 1.
const MOST_GAIN: f64 = 8_388_607.0;

/// Encodes [`Queue::Dualpi2`].
///
/// # Errors
/// A gain that is no number or out of range, a coupling factor over 255.
pub fn encode(queue: &Queue) -> Result<Qdisc, BadQueue> {
    let mut message = Message::attributes();
    if let Queue::Dualpi2 {
        limit,
        target,
        tupdate,
        alpha,
        beta,
        step,
        coupling,
        drop_on_overload,
        drop_dequeue,
        split_gso,
        classic_protection,
    } = queue
    {
        let alpha = alpha.as_deref().map(|text| gain("alpha", text)).transpose()?;
        let beta = beta.as_deref().map(|text| gain("beta", text)).transpose()?;
        let words = [
            (TCA_DUALPI2_LIMIT, limit.map(Packets::get)),
            (TCA_DUALPI2_TARGET, target.map(micros)),
            (TCA_DUALPI2_TUPDATE, tupdate.map(micros)),
            (TCA_DUALPI2_ALPHA, alpha),
            (TCA_DUALPI2_BETA, beta),
            (TCA_DUALPI2_STEP_THRESH_US, step.map(micros)),
        ];
        let coupling = coupling.map(factor).transpose()?;
        let bytes = [
            (TCA_DUALPI2_COUPLING, coupling),
            (TCA_DUALPI2_DROP_OVERLOAD, drop_on_overload.map(u8::from)),
            // The kernel's attribute is true for dropping early, at enqueue.
            (TCA_DUALPI2_DROP_EARLY, drop_dequeue.map(|at_dequeue| u8::from(!at_dequeue))),
            (TCA_DUALPI2_C_PROTECTION, classic_protection.map(|p| (p.get() / 10_000) as u8)),
            (TCA_DUALPI2_SPLIT_GSO, split_gso.map(u8::from)),
        ];
        message = super::with_some(message, &words);
        for (kind, value) in bytes {
            if let Some(value) = value {
                message = message.attr_u8(kind, value);
            }
        }
    }
    Ok(Qdisc { kind: "dualpi2", options: message.into_attributes() })
}

/// A gain in Hz as text, in 1/256 Hz rounded to nearest.
pub(crate) fn gain(name: &str, text: &str) -> Result<u32, BadQueue> {
    let scaled = text.trim().parse::<f64>().map(|hz| (hz * GAIN_SCALE).round());
    match scaled {
        Ok(scaled) if (1.0..=MOST_GAIN).contains(&scaled) => Ok(scaled as u32),
        _ => Err(BadQueue {
            what: format!("dualpi2 cannot have {name} = `{text}`"),
            way_out: "write a number of Hz between 0.004 and 32767, like \"0.16\"".to_owned(),
        }),
    }
}

/// The coupling factor as the kernel's byte.
pub(crate) fn factor(coupling: u32) -> Result<u8, BadQueue> {
    u8::try_from(coupling).ok().filter(|&k| k > 0).ok_or_else(|| BadQueue {
        what: format!("dualpi2 cannot have coupling = {coupling}"),
        way_out: "write 1 to 255".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_are_scaled_as_tc_does() {
        assert_eq!(gain("alpha", "0.16"), Ok(41));
        assert_eq!(gain("beta", "3.2"), Ok(819));
        assert!(gain("alpha", "fast").unwrap_err().to_string().contains("alpha = `fast`"));
        assert!(gain("alpha", "0").is_err());
    }
}
