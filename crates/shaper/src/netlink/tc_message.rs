//! A qdisc, class or filter as the kernel lists it in a dump, and the constants that requests need as well.

use super::message::{Attrs, TCMSG_BYTES, attrs, u32_at, u64_at};

/// `TCA_KIND`: the name of a qdisc, class or filter.
pub const TCA_KIND: u16 = 1;
/// `TCA_OPTIONS`: its parameters.
pub const TCA_OPTIONS: u16 = 2;
/// `TC_H_ROOT`: the parent of a root qdisc.
pub const ROOT: u32 = 0xffff_ffff;
/// `TCA_STATS2`: its statistics, in a dump.
pub(crate) const TCA_STATS2: u16 = 7;

/// A qdisc or class as the kernel lists it.
#[derive(Debug, Clone, Copy)]
pub struct TcMessage<'a> {
    /// The interface.
    pub ifindex: u32,
    /// Its handle; 0 for a default qdisc.
    pub handle: u32,
    /// Handle of its parent.
    pub parent: u32,
    body: &'a [u8],
}

impl<'a> TcMessage<'a> {
    /// Parses the body of an `RTM_NEWQDISC` or `RTM_NEWTCLASS` message.
    pub fn parse(body: &'a [u8]) -> Option<Self> {
        Some(Self {
            ifindex: u32_at(body, 4)?,
            handle: u32_at(body, 8)?,
            parent: u32_at(body, 12)?,
            body: body.get(TCMSG_BYTES..)?,
        })
    }

    /// Returns its kind.
    pub fn kind(&self) -> String {
        attrs(self.body).find(|a| a.kind == TCA_KIND).map(|a| a.text()).unwrap_or_default()
    }

    /// Returns the payload of its options.
    pub fn options(&self) -> Option<&'a [u8]> {
        attrs(self.body).find_kind(TCA_OPTIONS)
    }

    /// Returns whether it is the root qdisc of the interface.
    pub fn is_root(&self) -> bool {
        self.parent == ROOT
    }

    /// Returns the attributes in `TCA_STATS2`.
    pub(crate) fn stats(&self) -> Option<Attrs<'a>> {
        attrs(self.body).find_kind(TCA_STATS2).map(attrs)
    }

    /// Returns the rate in the `struct tc_ratespec` at the beginning of the options' attribute `parms`, or in the 64-bit attribute `rate64`
    /// if it does not fit.
    pub(crate) fn rate_bps(&self, parms: u16, rate64: u16) -> Option<u64> {
        let options = attrs(self.options()?);
        let rate = u64::from(u32_at(options.clone().find_kind(parms)?, 8)?);
        let rate64 = options.find_kind(rate64).and_then(|v| u64_at(v, 0));
        Some(rate64.unwrap_or(0).max(rate) * 8)
    }
}
