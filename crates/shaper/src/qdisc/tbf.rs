//! Token bucket filter.

use ccbench_proto::units::Rate;

use super::{Qdisc, burst_ticks, rate64, ratespec};
use crate::netlink::Message;

pub(crate) const TCA_TBF_PARMS: u16 = 1;
pub(crate) const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_PRATE64: u16 = 5;
const TCA_TBF_BURST: u16 = 6;
const TCA_TBF_PBURST: u16 = 7;
const PARMS_BYTES: usize = 36;
/// Size of the parameters, the burst and `TCA_TBF_RATE64`, each with its header.
const RATE64_BYTES: usize = 4 + PARMS_BYTES + 8 + 12;

/// Parameters of a `tbf` qdisc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tbf {
    /// Rate of tokens.
    pub rate: Rate,
    /// Size of the bucket.
    pub burst_bytes: u32,
    /// Limit in the unit of the queue below it (bytes for bfifo, packets for pfifo), because the kernel sets that queue's limit whenever
    /// the token bucket changes.
    pub limit: u32,
    /// Added to the size of every packet, which is that of the Ethernet frame.
    pub overhead_bytes: u16,
    /// Bucket of the peak rate.
    pub peak: Option<Peak>,
}

/// The bucket that limits the rate within a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peak {
    /// Rate of tokens.
    pub rate: Rate,
    /// Size of the bucket.
    pub mtu_bytes: u32,
}

impl Tbf {
    /// Returns `struct tc_tbf_qopt`.
    fn parms(&self) -> [u8; PARMS_BYTES] {
        let mut parms = [0; PARMS_BYTES];
        parms[..12].copy_from_slice(&ratespec(self.rate, self.overhead_bytes));
        parms[24..28].copy_from_slice(&self.limit.to_ne_bytes());
        let buffer = burst_ticks(self.rate, self.burst_bytes);
        parms[28..32].copy_from_slice(&buffer.to_ne_bytes());
        if let Some(Peak { rate, mtu_bytes }) = self.peak {
            parms[12..24].copy_from_slice(&ratespec(rate, self.overhead_bytes));
            parms[32..].copy_from_slice(&burst_ticks(rate, mtu_bytes).to_ne_bytes());
        }
        parms
    }

    /// Adds the attributes of the peak rate.
    fn peak_attributes(&self, message: Message) -> Message {
        let Some(Peak { rate, mtu_bytes }) = self.peak else { return message };
        let message = match rate64(rate) {
            Some(rate) => message.attr_u64(TCA_TBF_PRATE64, rate),
            None => message,
        };
        message.attr_u32(TCA_TBF_PBURST, mtu_bytes)
    }

    /// Encodes a new qdisc.
    pub fn encode(&self) -> Qdisc {
        let mut message = Message::attributes()
            .attr(TCA_TBF_PARMS, &self.parms())
            .attr_u32(TCA_TBF_BURST, self.burst_bytes);
        if let Some(rate) = rate64(self.rate) {
            message = message.attr_u64(TCA_TBF_RATE64, rate);
        }
        Qdisc { kind: "tbf", options: self.peak_attributes(message).into_attributes() }
    }

    /// Encodes a change. Its size does not depend on the rate: see [`Self::patch`].
    pub fn encode_rate64(&self) -> Qdisc {
        let mut options = self.peak_attributes(Message::attributes()).into_attributes();
        options.extend(self.rate64());
        Qdisc { kind: "tbf", options }
    }

    /// Rewrites the parameters of a message from [`Self::encode_rate64`] with the same peak rate. Does not allocate.
    pub fn patch(&self, message: &mut [u8]) {
        let start = message.len() - RATE64_BYTES;
        message[start..].copy_from_slice(&self.rate64());
    }

    /// Returns the attributes, with `TCA_TBF_RATE64` for any rate.
    fn rate64(&self) -> [u8; RATE64_BYTES] {
        let mut bytes = [0; RATE64_BYTES];
        let burst = self.burst_bytes.to_ne_bytes();
        let rate = self.rate.bytes_per_sec().to_ne_bytes();
        let parms = self.parms();
        let attributes: [(u16, &[u8]); 3] =
            [(TCA_TBF_PARMS, &parms), (TCA_TBF_BURST, &burst), (TCA_TBF_RATE64, &rate)];
        let mut at = 0;
        for (kind, value) in attributes {
            let end = at + 4 + value.len();
            bytes[at..at + 2].copy_from_slice(&((end - at) as u16).to_ne_bytes());
            bytes[at + 2..at + 4].copy_from_slice(&kind.to_ne_bytes());
            bytes[at + 4..end].copy_from_slice(value);
            at = end;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patch_equals_a_new_message() {
        let tbf = |bits| Tbf {
            rate: Rate::from_bits_per_sec(bits),
            burst_bytes: 1600,
            limit: 9,
            overhead_bytes: 4,
            peak: None,
        };
        let mut message = tbf(1_000_000).encode_rate64().change(3, 0x1_0000, super::super::ROOT);
        tbf(80_000_000_000).patch(&mut message);
        let rate64 = tbf(80_000_000_000).encode_rate64();
        assert_eq!(message, rate64.change(3, 0x1_0000, super::super::ROOT));
        // Above 2^32 bytes per second, both forms have the same attributes.
        assert_eq!(rate64.options, tbf(80_000_000_000).encode().options);
    }

    #[test]
    fn peak_rate_has_its_own_bucket() {
        let rate = Rate::from_bits_per_sec;
        let peak = Some(Peak { rate: rate(200_000_000), mtu_bytes: 1518 });
        let tbf = |bits| Tbf {
            rate: rate(bits),
            burst_bytes: 100_000,
            limit: 9,
            overhead_bytes: 0,
            peak,
        };
        let options = tbf(100_000_000).encode().options;
        let (header, parms) = (4, 4 + PARMS_BYTES);
        let spec = |at: usize| &options[header + at..header + at + 12];
        assert_eq!(spec(0), ratespec(rate(100_000_000), 0));
        assert_eq!(spec(12), ratespec(rate(200_000_000), 0));
        let ticks = burst_ticks(rate(200_000_000), 1518).to_ne_bytes();
        assert_eq!(options[parms - 4..parms], ticks);
        // The last attribute: length 8, kind 7.
        let last = [8_u16.to_ne_bytes(), TCA_TBF_PBURST.to_ne_bytes()].concat();
        assert_eq!(options[options.len() - 8..], [last, 1518_u32.to_ne_bytes().to_vec()].concat());
        let mut message = tbf(1_000_000).encode_rate64().change(3, 0x1_0000, super::super::ROOT);
        tbf(80_000_000).patch(&mut message);
        let new = tbf(80_000_000).encode_rate64();
        assert_eq!(message, new.change(3, 0x1_0000, super::super::ROOT));
        let fast = Some(Peak { rate: rate(80_000_000_000), mtu_bytes: 1518 });
        let wide = Tbf { peak: fast, ..tbf(100_000_000) }.encode().options;
        assert_eq!(wide.len(), options.len() + 12);
    }
}
