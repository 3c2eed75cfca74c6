//! Netlink messages as bytes: a builder for those we send, an iterator for those we receive.

/// Flags of a change that the kernel acknowledges.
pub const ACK: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
/// Flags that create an object, and fail if it exists.
pub const CREATE: u16 = ACK | (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
/// Flags that create an object or replace an existing one.
pub const REPLACE: u16 = ACK | (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;
/// Flags of a dump.
pub const DUMP: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;

/// Size of `struct nlmsghdr` in bytes.
pub const HEADER_BYTES: usize = 16;
/// Size of `struct tcmsg` in bytes.
pub const TCMSG_BYTES: usize = 20;
/// `NLA_F_NESTED`: the attribute holds attributes.
pub const NESTED: u16 = 0x8000;

/// A message being built: header, fixed part, attributes, in the order of the calls.
#[derive(Debug, Clone, Default)]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// Creates a message of this type (`RTM_NEWQDISC` ...) with these flags. The socket fills in the sequence number.
    pub fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 8]);
        Self { bytes }
    }

    /// Creates attributes without a header, as the content of a nested attribute.
    pub fn attributes() -> Self {
        Self { bytes: Vec::new() }
    }

    /// Appends raw bytes, for a fixed part that has no method.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self.align()
    }

    /// Appends `struct tcmsg`.
    pub fn tcmsg(self, ifindex: u32, handle: u32, parent: u32, info: u32) -> Self {
        let mut fixed = [0; TCMSG_BYTES];
        for (at, word) in [ifindex, handle, parent, info].into_iter().enumerate() {
            fixed[4 + at * 4..8 + at * 4].copy_from_slice(&word.to_ne_bytes());
        }
        self.raw(&fixed)
    }

    /// Appends `struct ifinfomsg` for this interface; index 0: none.
    pub fn ifinfo(self, index: u32) -> Self {
        self.ifinfo_flags(index, 0, 0)
    }

    /// Appends `struct ifinfomsg` that sets the bits in `change` to those of `flags` (`IFF_UP` ...).
    pub fn ifinfo_flags(self, index: u32, flags: u32, change: u32) -> Self {
        let mut fixed = [0; 16];
        fixed[4..8].copy_from_slice(&index.to_ne_bytes());
        fixed[8..12].copy_from_slice(&flags.to_ne_bytes());
        fixed[12..16].copy_from_slice(&change.to_ne_bytes());
        self.raw(&fixed)
    }

    /// Appends an attribute.
    pub fn attr(mut self, kind: u16, value: &[u8]) -> Self {
        let length = (value.len() + 4) as u16;
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.align()
    }

    /// Appends an attribute of 8 bits.
    pub fn attr_u8(self, kind: u16, value: u8) -> Self {
        self.attr(kind, &[value])
    }

    /// Appends an attribute of 16 bits.
    pub fn attr_u16(self, kind: u16, value: u16) -> Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    /// Appends an attribute of 32 bits.
    pub fn attr_u32(self, kind: u16, value: u32) -> Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    /// Appends an attribute of 64 bits.
    pub fn attr_u64(self, kind: u16, value: u64) -> Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    /// Appends a text attribute with the terminating zero byte that the kernel expects.
    pub fn attr_str(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attr(kind, &bytes)
    }

    /// Appends an attribute that contains what `inner` appends. Set [`NESTED`] in `kind` where the kernel requires it.
    pub fn nested(mut self, kind: u16, inner: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self.bytes.extend([0; 2]);
        self.bytes.extend(kind.to_ne_bytes());
        let mut whole = inner(self);
        let length = (whole.bytes.len() - start) as u16;
        whole.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        whole
    }

    /// Returns the bytes with the header's length filled in. Not for [`Message::attributes`].
    pub fn finish(mut self) -> Vec<u8> {
        let length = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes
    }

    /// Returns the bytes of [`Message::attributes`].
    pub fn into_attributes(self) -> Vec<u8> {
        self.bytes
    }

    fn align(mut self) -> Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }
}

/// A parsed attribute: its kind without flag bits, and its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr<'a> {
    /// The kind of attribute.
    pub kind: u16,
    /// Its payload.
    pub value: &'a [u8],
}

impl<'a> Attr<'a> {
    /// Returns the payload as text, up to the first zero byte.
    pub fn text(&self) -> String {
        let end = self.value.iter().position(|&b| b == 0).unwrap_or(self.value.len());
        String::from_utf8_lossy(&self.value[..end]).into_owned()
    }
    /// Returns the nested attributes.
    pub fn attrs(&self) -> Attrs<'a> {
        attrs(self.value)
    }
}

/// Iterates over attributes. Stops at the first malformed one.
#[derive(Debug, Clone)]
pub struct Attrs<'a> {
    rest: &'a [u8],
}

/// Returns the attributes in `bytes`.
pub fn attrs(bytes: &[u8]) -> Attrs<'_> {
    Attrs { rest: bytes }
}

impl<'a> Attrs<'a> {
    /// Returns the payload of the first attribute of this kind.
    pub fn find_kind(mut self, kind: u16) -> Option<&'a [u8]> {
        self.find(|a| a.kind == kind).map(|a| a.value)
    }
}

impl<'a> Iterator for Attrs<'a> {
    type Item = Attr<'a>;
    fn next(&mut self) -> Option<Attr<'a>> {
        let length = usize::from(u16_at(self.rest, 0)?);
        let kind = u16_at(self.rest, 2)? & 0x3fff;
        let value = self.rest.get(4..length)?;
        self.rest = self.rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(Attr { kind, value })
    }
}

/// Iterates over the messages of one datagram: type, flags and body (after the header).
pub fn messages(mut datagram: &[u8]) -> impl Iterator<Item = (u16, u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32_at(datagram, 0)? as usize;
        let (kind, flags) = (u16_at(datagram, 4)?, u16_at(datagram, 6)?);
        let body = datagram.get(HEADER_BYTES..length)?;
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, flags, body))
    })
}

/// Returns the 16-bit number at this byte offset.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Returns the 32-bit number at this byte offset.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Returns the 64-bit number at this byte offset.
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builder_round_trips() {
        let bytes = Message::new(36, ACK)
            .tcmsg(7, 0x1_0000, 0xffff_ffff, 0)
            .attr_str(1, "htb")
            .nested(2, |m| m.attr_u32(1, 5).attr(9, &[1, 2, 3]))
            .finish();
        let all: Vec<_> = messages(&bytes).collect();
        assert_eq!(all.len(), 1);
        let (kind, flags, body) = all[0];
        assert_eq!((kind, flags), (36, ACK));
        assert_eq!(u32_at(body, 4), Some(7));
        let found: Vec<_> = attrs(&body[TCMSG_BYTES..]).collect();
        assert_eq!(found[0].text(), "htb");
        let inner: Vec<_> = found[1].attrs().collect();
        assert_eq!(inner[0].value, 5_u32.to_ne_bytes());
        assert_eq!(inner[1].value, [1, 2, 3]);
    }

    #[test]
    fn malformed_bytes_end_the_walk() {
        assert_eq!(attrs(&[3, 0, 1, 0]).count(), 0);
        assert_eq!(attrs(&[200, 0, 1, 0, 5]).count(), 0);
        assert_eq!(messages(&[1, 2, 3]).count(), 0);
        assert_eq!(messages(&[4, 0, 0, 0, 0, 0, 0, 0]).count(), 0);
    }
}
