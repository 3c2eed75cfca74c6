//! Writes the pcapng blocks (draft-ietf-opsawg-pcapng) that a capture of one Ethernet interface needs. Does no I/O.
//!
//! ccbench writes captures but reads none. [`read`] is for checks and tests, and only parses what this module writes.

/// Ethernet.
const LINKTYPE: u16 = 1;
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;

/// Appends the first blocks of a file: a section with one interface and times in nanoseconds.
pub fn begin(into: &mut Vec<u8>, dev: &str, comment: &str, snap_bytes: u32) {
    block(into, SECTION, |body| {
        body.extend_from_slice(&0x1a2b_3c4d_u32.to_le_bytes());
        body.extend_from_slice(&[1, 0, 0, 0]);
        // Section length: unknown.
        body.extend_from_slice(&(-1i64).to_le_bytes());
        option(body, 1, comment.as_bytes());
        option(body, 4, concat!("ccbench ", env!("CARGO_PKG_VERSION")).as_bytes());
        end_of_options(body);
    });
    block(into, INTERFACE, |body| {
        body.extend_from_slice(&LINKTYPE.to_le_bytes());
        body.extend_from_slice(&[0, 0]);
        body.extend_from_slice(&snap_bytes.to_le_bytes());
        option(body, 2, dev.as_bytes());
        // if_tsresol: 10^-9 s.
        option(body, 9, &[9]);
        end_of_options(body);
    });
}

/// Appends a packet: its first `bytes`, its original `length`, and its time `at_ns` since 1970.
pub fn packet(into: &mut Vec<u8>, at_ns: u64, bytes: &[u8], length: u32) {
    block(into, PACKET, |body| {
        body.extend_from_slice(&0u32.to_le_bytes());
        body.extend_from_slice(&((at_ns >> 32) as u32).to_le_bytes());
        body.extend_from_slice(&(at_ns as u32).to_le_bytes());
        body.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        body.extend_from_slice(&length.to_le_bytes());
        padded(body, bytes);
    });
}

/// Returns the size that a packet of this many bytes has in the file.
pub fn packet_bytes(bytes: usize) -> u64 {
    32 + bytes.div_ceil(4) as u64 * 4
}

/// Appends the last block of a file: packets received, and packets dropped because the socket buffer was full.
pub fn end(into: &mut Vec<u8>, at_ns: u64, received: u64, dropped: u64) {
    block(into, STATISTICS, |body| {
        body.extend_from_slice(&0u32.to_le_bytes());
        body.extend_from_slice(&((at_ns >> 32) as u32).to_le_bytes());
        body.extend_from_slice(&(at_ns as u32).to_le_bytes());
        option(body, 4, &received.to_le_bytes());
        option(body, 5, &dropped.to_le_bytes());
        end_of_options(body);
    });
}

fn block(into: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let begin = into.len();
    into.extend_from_slice(&kind.to_le_bytes());
    into.extend_from_slice(&[0; 4]);
    body(into);
    let length = (into.len() - begin + 4) as u32;
    into.extend_from_slice(&length.to_le_bytes());
    into[begin + 4..begin + 8].copy_from_slice(&length.to_le_bytes());
}

fn option(into: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    into.extend_from_slice(&code.to_le_bytes());
    into.extend_from_slice(&(value.len() as u16).to_le_bytes());
    padded(into, value);
}

fn end_of_options(into: &mut Vec<u8>) {
    into.extend_from_slice(&[0; 4]);
}

fn padded(into: &mut Vec<u8>, bytes: &[u8]) {
    into.extend_from_slice(bytes);
    into.resize(into.len() + bytes.len().next_multiple_of(4) - bytes.len(), 0);
}

/// A packet of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Nanoseconds since 1970.
    pub at_ns: u64,
    /// The recorded bytes.
    pub bytes: &'a [u8],
    /// Its length on the wire, in bytes.
    pub length: u32,
}

/// Reads back every complete block that the functions above wrote. Returns `None` for anything else, which Wireshark can read.
pub fn read(file: &[u8]) -> Option<Vec<Packet<'_>>> {
    let word =
        |bytes: &[u8], at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let mut packets = vec![];
    let mut rest = file;
    if word(rest, 0)? != SECTION || word(rest, 8)? != 0x1a2b_3c4d {
        return None;
    }
    while let (Some(kind), Some(length)) = (word(rest, 0), word(rest, 4)) {
        let Some(body) = rest.get(..length as usize) else { break };
        if length < 12 || length % 4 != 0 || word(body, length as usize - 4)? != length {
            return None;
        }
        if kind == PACKET {
            let (high, low) = (word(body, 12)?, word(body, 16)?);
            let kept = word(body, 20)? as usize;
            packets.push(Packet {
                at_ns: u64::from(high) << 32 | u64::from(low),
                bytes: body.get(28..28 + kept)?,
                length: word(body, 24)?,
            });
        }
        rest = &rest[length as usize..];
    }
    Some(packets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn writes_blocks_of_the_standard() {
        let mut file = vec![];
        begin(&mut file, "eth0", "x", 128);
        assert_eq!(file[..8], [0x0a, 0x0d, 0x0d, 0x0a, 60, 0, 0, 0]);
        assert_eq!(file[8..12], [0x4d, 0x3c, 0x2b, 0x1a]);
        assert_eq!(file.len() % 4, 0);
        let before = file.len();
        packet(&mut file, 0x1_0000_0002, b"abcde", 1514);
        assert_eq!((file.len() - before) as u64, packet_bytes(5));
        assert_eq!(file[before..before + 8], [6, 0, 0, 0, 40, 0, 0, 0]);
        assert_eq!(file[before + 28..before + 36], *b"abcde\0\0\0");
        end(&mut file, 7, 1, 0);
        let packets = read(&file).unwrap();
        assert_eq!(packets, [Packet { at_ns: 0x1_0000_0002, bytes: b"abcde", length: 1514 }]);
    }

    proptest! {
        #[test]
        fn round_trips(
            packets in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u8>(), 0..70), any::<u32>()), 0..9),
            dev in "\\PC{0,20}",
            cut in 0usize..40,
        ) {
            let mut file = vec![];
            begin(&mut file, &dev, "about", 64);
            for (at_ns, bytes, length) in &packets {
                packet(&mut file, *at_ns, bytes, *length);
            }
            let whole = read(&file).unwrap();
            prop_assert_eq!(whole.len(), packets.len());
            for (read, (at_ns, bytes, length)) in whole.iter().zip(&packets) {
                prop_assert_eq!((read.at_ns, read.bytes, read.length), (*at_ns, &bytes[..], *length));
            }
            // A file whose writer was killed has a readable prefix.
            let section = u32::from_le_bytes(file[4..8].try_into().unwrap()) as usize;
            file.truncate((file.len() - cut).max(section));
            prop_assert!(read(&file).is_some_and(|prefix| prefix.len() <= packets.len()));
        }

        #[test]
        fn no_bytes_make_reading_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }
    }
}
