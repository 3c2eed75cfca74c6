//! A borrowed view of an `inet_diag_msg` and its attributes. Does not allocate.

use crate::SampleError;
use crate::bytes::{array, be16_at, u16_at, u32_at};
use crate::cc_info;

/// Length of a netlink message header.
pub const NLMSG_HEADER_LEN: usize = 16;
/// Length of `struct inet_diag_msg`, before the attributes.
pub const DIAG_MSG_LEN: usize = 72;

const SOCKID_AT: usize = 4;
const COOKIE_AT: usize = SOCKID_AT + 40;
const UID_AT: usize = 64;
const INODE_AT: usize = 68;
const NLA_HEADER_LEN: usize = 4;
const NLA_TYPE_MASK: u16 = 0x3fff;

const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_CONG: u16 = 4;
/// The last attribute in mainline (`INET_DIAG_SOCKOPT`). Out-of-tree congestion controls use higher numbers for their data.
const INET_DIAG_LAST_KNOWN: u16 = 22;

/// One netlink message of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetlinkMsg<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags`.
    pub flags: u16,
    /// `nlmsg_seq` of the request.
    pub seq: u32,
    /// The bytes after the header, without padding.
    pub payload: &'a [u8],
}

/// Removes the first message from `rest`. Returns `None` at the end.
///
/// # Errors
/// `Malformed` if a length points outside the buffer; `at` counts from the start of `rest`.
pub fn next_msg<'a>(rest: &mut &'a [u8]) -> Result<Option<NetlinkMsg<'a>>, SampleError> {
    if rest.is_empty() {
        return Ok(None);
    }
    let malformed = |at: usize| SampleError::Malformed { what: "netlink message", at };
    let buffer = *rest;
    let len = u32_at(buffer, 0).ok_or_else(|| malformed(0))? as usize;
    let payload = buffer.get(NLMSG_HEADER_LEN..len).ok_or_else(|| malformed(0))?;
    let msg = NetlinkMsg {
        kind: u16_at(buffer, 4).ok_or_else(|| malformed(4))?,
        flags: u16_at(buffer, 6).ok_or_else(|| malformed(6))?,
        seq: u32_at(buffer, 8).ok_or_else(|| malformed(8))?,
        payload,
    };
    *rest = buffer.get(aligned(len)..).unwrap_or_default();
    Ok(Some(msg))
}

/// A socket in an inet_diag dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiagMsg<'a> {
    /// `AF_INET` (2) or `AF_INET6` (10); the latter also for IPv4 on a dual-stack listener.
    pub family: u8,
    /// `TCP_ESTABLISHED` (1) and so on.
    pub state: u8,
    /// Local port.
    pub sport: u16,
    /// Remote port.
    pub dport: u16,
    /// Socket cookie, unique until reboot.
    pub cookie: u64,
    /// User ID of the socket's owner.
    pub uid: u32,
    /// Inode of the socket; 0 if no process has it open.
    pub inode: u32,
    /// `struct inet_diag_sockid`, which selects this socket in a later request.
    pub id: [u8; 48],
    /// `struct tcp_info`; empty for sockets in FIN_WAIT2 or TIME_WAIT that have none.
    pub info: &'a [u8],
    /// Name of the congestion control; empty if absent or not UTF-8.
    pub cong: &'a str,
    /// Attribute type and payload of the congestion control's data.
    pub cc_info: Option<(u16, &'a [u8])>,
}

impl<'a> DiagMsg<'a> {
    /// Parses the payload of a `SOCK_DIAG_BY_FAMILY` message.
    ///
    /// # Errors
    /// `Malformed` if it is shorter than its fixed part or an attribute does not fit.
    pub fn parse(payload: &'a [u8]) -> Result<Self, SampleError> {
        let malformed = |at: usize| SampleError::Malformed { what: "inet_diag message", at };
        let fixed = payload.get(..DIAG_MSG_LEN).ok_or_else(|| malformed(0))?;
        let short = || malformed(payload.len());
        let cookie_low = u32_at(fixed, COOKIE_AT).ok_or_else(short)?;
        let cookie_high = u32_at(fixed, COOKIE_AT + 4).ok_or_else(short)?;
        let mut msg = Self {
            family: fixed[0],
            state: fixed[1],
            sport: be16_at(fixed, SOCKID_AT).ok_or_else(short)?,
            dport: be16_at(fixed, SOCKID_AT + 2).ok_or_else(short)?,
            cookie: u64::from(cookie_high) << 32 | u64::from(cookie_low),
            uid: u32_at(fixed, UID_AT).ok_or_else(short)?,
            inode: u32_at(fixed, INODE_AT).ok_or_else(short)?,
            id: array(fixed, SOCKID_AT).ok_or_else(short)?,
            info: &[],
            cong: "",
            cc_info: None,
        };
        msg.walk_attributes(payload)?;
        Ok(msg)
    }

    fn walk_attributes(&mut self, payload: &'a [u8]) -> Result<(), SampleError> {
        let mut at = DIAG_MSG_LEN;
        while at < payload.len() {
            let malformed = SampleError::Malformed { what: "inet_diag attribute", at };
            let header = u16_at(payload, at).zip(u16_at(payload, at + 2));
            let Some((len, kind)) = header else {
                return Err(malformed);
            };
            let len = usize::from(len);
            let Some(value) = payload.get(at + NLA_HEADER_LEN..at + len) else {
                return Err(malformed);
            };
            self.attribute(kind & NLA_TYPE_MASK, value);
            at += aligned(len);
        }
        Ok(())
    }

    fn attribute(&mut self, kind: u16, value: &'a [u8]) {
        match kind {
            INET_DIAG_INFO => self.info = value,
            INET_DIAG_CONG => {
                let name = value.split(|&byte| byte == 0).next().unwrap_or_default();
                self.cong = str::from_utf8(name).unwrap_or_default();
            }
            cc_info::VEGAS | cc_info::DCTCP | cc_info::BBR => self.cc_info = Some((kind, value)),
            other if other > INET_DIAG_LAST_KNOWN && self.cc_info.is_none() => {
                self.cc_info = Some((other, value));
            }
            _ => {}
        }
    }
}

/// Rounds up to the next multiple of four, the alignment of netlink.
pub(crate) fn aligned(len: usize) -> usize {
    len.saturating_add(3) & !3
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Makes the payload of a diag message with these attributes.
    pub(crate) fn payload(
        (sport, dport): (u16, u16),
        cookie: u64,
        attributes: &[(u16, &[u8])],
    ) -> Vec<u8> {
        let mut bytes = vec![0; DIAG_MSG_LEN];
        bytes[0] = 2;
        bytes[1] = 1;
        bytes[4..6].copy_from_slice(&sport.to_be_bytes());
        bytes[6..8].copy_from_slice(&dport.to_be_bytes());
        bytes[COOKIE_AT..COOKIE_AT + 4].copy_from_slice(&(cookie as u32).to_ne_bytes());
        bytes[COOKIE_AT + 4..COOKIE_AT + 8].copy_from_slice(&((cookie >> 32) as u32).to_ne_bytes());
        for (kind, value) in attributes {
            let len = NLA_HEADER_LEN + value.len();
            bytes.extend_from_slice(&(len as u16).to_ne_bytes());
            bytes.extend_from_slice(&kind.to_ne_bytes());
            bytes.extend_from_slice(value);
            bytes.resize(aligned(bytes.len()), 0);
        }
        bytes
    }

    pub(crate) fn message(kind: u16, seq: u32, payload: &[u8]) -> Vec<u8> {
        let len = (NLMSG_HEADER_LEN + payload.len()) as u32;
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&2u16.to_ne_bytes());
        bytes.extend_from_slice(&seq.to_ne_bytes());
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        bytes.extend_from_slice(payload);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    #[test]
    fn reads_a_socket_with_its_attributes() {
        let info = [7; 280];
        let bytes = payload(
            (5201, 40_000),
            0x1_0000_0002,
            &[(8, &[0]), (2, &info), (4, b"cubic\0"), (16, &[1; 20])],
        );
        let msg = DiagMsg::parse(&bytes).unwrap();
        assert_eq!((msg.family, msg.state), (2, 1));
        assert_eq!((msg.sport, msg.dport), (5201, 40_000));
        assert_eq!(msg.cookie, 0x1_0000_0002);
        assert_eq!(msg.id[..], bytes[4..52]);
        assert_eq!(msg.info, &info);
        assert_eq!(msg.cong, "cubic");
        assert_eq!(msg.cc_info, Some((16, &[1u8; 20][..])));
    }

    #[test]
    fn a_time_wait_socket_has_no_attributes() {
        let bytes = payload((1, 2), 3, &[]);
        let msg = DiagMsg::parse(&bytes).unwrap();
        assert!(msg.info.is_empty() && msg.cong.is_empty() && msg.cc_info.is_none());
    }

    #[test]
    fn unknown_attributes_belong_to_the_congestion_control() {
        let bytes = payload((1, 2), 3, &[(23, &[9; 8]), (15, &[1; 4]), (21, &[2; 8])]);
        let msg = DiagMsg::parse(&bytes).unwrap();
        assert_eq!(msg.cc_info, Some((23, &[9u8; 8][..])));
        let bytes = payload((1, 2), 3, &[(16, &[1; 20]), (23, &[9; 8])]);
        assert_eq!(DiagMsg::parse(&bytes).unwrap().cc_info.unwrap().0, 16);
    }

    #[test]
    fn rejects_an_attribute_beyond_the_end_with_its_offset() {
        let mut bytes = payload((1, 2), 3, &[(4, b"reno\0")]);
        bytes[DIAG_MSG_LEN] = 200;
        let error = DiagMsg::parse(&bytes).unwrap_err().to_string();
        assert_eq!(error, "inet_diag attribute: malformed at byte 72");
        bytes[DIAG_MSG_LEN] = 3;
        assert!(DiagMsg::parse(&bytes).is_err(), "shorter than its header");
        let error = DiagMsg::parse(&[0; 71]).unwrap_err().to_string();
        assert_eq!(error, "inet_diag message: malformed at byte 0");
    }

    #[test]
    fn splits_a_buffer_into_messages() {
        let mut bytes = message(20, 4, &[1, 2, 3, 4, 5]);
        bytes.extend(message(3, 4, &[0; 4]));
        let mut rest = &bytes[..];
        let first = next_msg(&mut rest).unwrap().unwrap();
        assert_eq!((first.kind, first.flags, first.seq), (20, 2, 4));
        assert_eq!(first.payload, &[1, 2, 3, 4, 5]);
        assert_eq!(next_msg(&mut rest).unwrap().unwrap().kind, 3);
        assert_eq!(next_msg(&mut rest).unwrap(), None);
    }

    #[test]
    fn rejects_a_message_longer_than_the_buffer() {
        let mut bytes = message(20, 4, &[0; 8]);
        bytes[0] = 60;
        assert!(next_msg(&mut &bytes[..]).is_err());
        bytes[0] = 15;
        assert!(next_msg(&mut &bytes[..]).is_err());
        assert!(next_msg(&mut &bytes[..3]).is_err());
    }

    proptest! {
        #[test]
        fn parses_any_bytes_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = DiagMsg::parse(&bytes);
            let mut rest = &bytes[..];
            while let Ok(Some(msg)) = next_msg(&mut rest) {
                let _ = DiagMsg::parse(msg.payload);
            }
        }

        #[test]
        fn parses_a_corrupted_message_without_panic(
            at in 0usize..420,
            value in any::<u8>(),
        ) {
            let mut bytes = payload((1, 2), 3, &[(2, &[0; 280]), (4, b"bbr\0"), (16, &[0; 20])]);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            let _ = DiagMsg::parse(&bytes);
        }
    }
}
