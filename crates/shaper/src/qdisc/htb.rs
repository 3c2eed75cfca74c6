//! Hierarchical token bucket: the root and its classes.

use ccbench_proto::units::Rate;

use super::{Qdisc, TCA_KIND, TCA_OPTIONS, burst_ticks, rate64, ratespec};
use crate::netlink::{ACK, CREATE, Message};

pub(crate) const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
pub(crate) const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
/// Default divisor (`r2q`) that derives a class's quantum from its rate. Unused, because our classes always have a quantum.
const RATE_TO_QUANTUM: u32 = 10;
const PARMS_BYTES: usize = 44;
/// `TCA_HTB_RATE64`, `TCA_HTB_CEIL64` (12 bytes each) and the parameters with their header.
const RATE64_BYTES: usize = 12 + 12 + 4 + PARMS_BYTES;

/// Returns the root. Packets that no filter matches go to the class with this minor number.
pub fn root(default_class: u16) -> Qdisc {
    let mut init = [0; 20];
    for (at, word) in [3, RATE_TO_QUANTUM, u32::from(default_class)].into_iter().enumerate() {
        init[at * 4..at * 4 + 4].copy_from_slice(&word.to_ne_bytes());
    }
    let options = Message::attributes().attr(TCA_HTB_INIT, &init).into_attributes();
    Qdisc { kind: "htb", options }
}

/// A class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class {
    /// Guaranteed rate.
    pub rate: Rate,
    /// Maximum rate, including borrowed bandwidth.
    pub ceil: Rate,
    /// Bucket of the guaranteed rate, in bytes.
    pub burst_bytes: u32,
    /// Bucket of the ceil, in bytes.
    pub cburst_bytes: u32,
    /// Bytes per turn while the class borrows. Without it, the kernel derives one from the rate and logs a warning above 16 Mbit/s.
    pub quantum_bytes: u32,
    /// Priority from 0 to 7; lower numbers are served first.
    pub priority: u32,
    /// Added to the size of every packet, which is that of the Ethernet frame.
    pub overhead_bytes: u16,
}

impl Class {
    /// Returns `struct tc_htb_opt`.
    fn parms(&self) -> [u8; PARMS_BYTES] {
        let mut parms = [0; PARMS_BYTES];
        parms[..12].copy_from_slice(&ratespec(self.rate, self.overhead_bytes));
        parms[12..24].copy_from_slice(&ratespec(self.ceil, self.overhead_bytes));
        let buffer = burst_ticks(self.rate, self.burst_bytes);
        let cbuffer = burst_ticks(self.ceil, self.cburst_bytes);
        parms[24..28].copy_from_slice(&buffer.to_ne_bytes());
        parms[28..32].copy_from_slice(&cbuffer.to_ne_bytes());
        parms[32..36].copy_from_slice(&self.quantum_bytes.to_ne_bytes());
        parms[40..44].copy_from_slice(&self.priority.to_ne_bytes());
        parms
    }

    /// Returns the request that adds this class.
    pub fn add(&self, ifindex: u32, class: u32, parent: u32) -> Vec<u8> {
        Message::new(libc::RTM_NEWTCLASS, CREATE)
            .tcmsg(ifindex, class, parent, 0)
            .attr_str(TCA_KIND, "htb")
            .nested(TCA_OPTIONS, |mut m| {
                if let Some(rate) = rate64(self.rate) {
                    m = m.attr_u64(TCA_HTB_RATE64, rate);
                }
                if let Some(ceil) = rate64(self.ceil) {
                    m = m.attr_u64(TCA_HTB_CEIL64, ceil);
                }
                m.attr(TCA_HTB_PARMS, &self.parms())
            })
            .finish()
    }

    /// Returns the request that changes this class. Its size does not depend on the rate: see [`Self::patch`].
    pub fn change(&self, ifindex: u32, class: u32, parent: u32) -> Vec<u8> {
        Message::new(libc::RTM_NEWTCLASS, ACK)
            .tcmsg(ifindex, class, parent, 0)
            .attr_str(TCA_KIND, "htb")
            .nested(TCA_OPTIONS, |m| m.raw(&self.rate64()))
            .finish()
    }

    /// Rewrites the parameters of a message from [`Self::change`]. Does not allocate.
    pub fn patch(&self, message: &mut [u8]) {
        let start = message.len() - RATE64_BYTES;
        message[start..].copy_from_slice(&self.rate64());
    }

    /// Returns the parameters with both 64-bit rates, which the kernel uses instead of the 32-bit ones if they are larger.
    fn rate64(&self) -> [u8; RATE64_BYTES] {
        let mut bytes = [0; RATE64_BYTES];
        for (at, kind, rate) in [(0, TCA_HTB_RATE64, self.rate), (12, TCA_HTB_CEIL64, self.ceil)] {
            bytes[at..at + 2].copy_from_slice(&12_u16.to_ne_bytes());
            bytes[at + 2..at + 4].copy_from_slice(&kind.to_ne_bytes());
            bytes[at + 4..at + 12].copy_from_slice(&rate.bytes_per_sec().to_ne_bytes());
        }
        bytes[24..26].copy_from_slice(&(4 + PARMS_BYTES as u16).to_ne_bytes());
        bytes[26..28].copy_from_slice(&TCA_HTB_PARMS.to_ne_bytes());
        bytes[28..].copy_from_slice(&self.parms());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patch_equals_a_new_message() {
        let class = |bits| {
            let rate = Rate::from_bits_per_sec(bits);
            Class {
                rate,
                ceil: rate,
                burst_bytes: 1600,
                cburst_bytes: 1600,
                quantum_bytes: 1514,
                priority: 2,
                overhead_bytes: 24,
            }
        };
        let mut message = class(1_000_000).change(3, 0x1_0001, 0x1_0000);
        class(80_000_000_000).patch(&mut message);
        assert_eq!(message, class(80_000_000_000).change(3, 0x1_0001, 0x1_0000));
    }
}
