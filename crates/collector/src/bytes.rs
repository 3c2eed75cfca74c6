//! Reads fixed-width integers at an offset of a byte slice. Returns `None` beyond its end.

/// Reads `N` bytes at `at`.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Reads a `u16` in the kernel's byte order.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_ne_bytes)
}

/// Reads a `u32` in the kernel's byte order.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_ne_bytes)
}

/// Reads a `u64` in the kernel's byte order.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_ne_bytes)
}

/// Reads a `u16` in network byte order.
pub(crate) fn be16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}
