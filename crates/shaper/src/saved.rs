//! An interface's root qdisc before ccbench changed it. It is written to disk first, so that another process can restore it after a crash.

use serde::{Deserialize, Serialize};

use crate::ShaperError;
use crate::netlink::message::Message;
use crate::netlink::{self, CREATE, Socket};
use crate::qdisc::{ROOT, TCA_KIND, handle_text, options_attribute};

/// Qdiscs with classes or filters, which ccbench could not restore.
const CLASSFUL: &[&str] = &[
    "htb", "hfsc", "prio", "drr", "qfq", "ets", "multiq", "mqprio", "taprio", "cbq", "atm",
    "dsmark",
];

/// The root qdisc of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "root", rename_all = "snake_case")]
pub enum SavedRoot {
    /// The kernel's default (noqueue, pfifo_fast, mq ...), which returns when another root is removed.
    Default,
    /// A qdisc that a user configured.
    Qdisc {
        /// `"fq"` ...
        kind: String,
        /// Its handle.
        handle: u32,
        /// The payload of its `TCA_OPTIONS` in hexadecimal digits; empty if it has none.
        options: String,
    },
}

/// Returns the current root qdisc of `dev`.
///
/// # Errors
/// [`ShaperError::Occupied`] if it is a qdisc that could not be restored.
pub fn snapshot(dev: &str) -> Result<SavedRoot, ShaperError> {
    let ifindex = netlink::ifindex(dev)?;
    snapshot_of(&mut Socket::open()?, ifindex, dev)
}

/// Restores the root qdisc of `dev`. Idempotent.
///
/// # Errors
/// The kernel's answer.
pub fn restore(dev: &str, saved: &SavedRoot) -> Result<(), ShaperError> {
    let ifindex = netlink::ifindex(dev)?;
    restore_of(&mut Socket::open()?, ifindex, dev, saved)
}

pub(crate) fn snapshot_of(
    socket: &mut Socket,
    ifindex: u32,
    dev: &str,
) -> Result<SavedRoot, ShaperError> {
    let (saved, children) = read(socket, ifindex)?;
    let SavedRoot::Qdisc { kind, handle, .. } = &saved else { return Ok(saved) };
    if children || CLASSFUL.contains(&kind.as_str()) {
        return Err(ShaperError::Occupied {
            dev: dev.to_owned(),
            found: format!("root qdisc {kind} {}", handle_text(*handle)),
            hint: format!("tc qdisc del dev {dev} root"),
        });
    }
    Ok(saved)
}

pub(crate) fn restore_of(
    socket: &mut Socket,
    ifindex: u32,
    dev: &str,
    saved: &SavedRoot,
) -> Result<(), ShaperError> {
    if read(socket, ifindex)? == (saved.clone(), false) {
        return Ok(());
    }
    let options = match saved {
        SavedRoot::Qdisc { options, .. } => from_hex(options).ok_or_else(|| {
            let (op, source) = ("read saved qdisc options", std::io::ErrorKind::InvalidData.into());
            ShaperError::System { op, source }
        })?,
        SavedRoot::Default => Vec::new(),
    };
    netlink::delete_root(socket, ifindex, dev)?;
    let SavedRoot::Qdisc { kind, handle, .. } = saved else { return Ok(()) };
    let mut message = Message::new(libc::RTM_NEWQDISC, CREATE)
        .tcmsg(ifindex, *handle, ROOT, 0)
        .attr_str(TCA_KIND, kind);
    if !options.is_empty() {
        message = message.attr(options_attribute(kind), &options);
    }
    socket.request(&format!("put back root qdisc {kind}"), dev, &message.finish())
}

/// Returns the current root qdisc, and whether it has children.
fn read(socket: &mut Socket, ifindex: u32) -> Result<(SavedRoot, bool), ShaperError> {
    let mut root = SavedRoot::Default;
    let mut parents = Vec::new();
    netlink::qdiscs(socket, ifindex, |listed| {
        if listed.is_root() && listed.handle != 0 {
            root = SavedRoot::Qdisc {
                kind: listed.kind(),
                handle: listed.handle,
                options: to_hex(listed.options().unwrap_or(&[])),
            };
        } else if listed.handle != 0 {
            parents.push(listed.parent);
        }
    })?;
    let children = match &root {
        SavedRoot::Default => false,
        SavedRoot::Qdisc { handle, .. } => {
            parents.iter().any(|parent| parent >> 16 == handle >> 16)
        }
    };
    Ok((root, children))
}

/// Returns two hexadecimal digits per byte.
#[doc(hidden)]
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses pairs of hexadecimal digits. Returns `None` for anything else.
#[doc(hidden)]
pub fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    digits.as_bytes().chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_read_back() {
        assert_eq!(from_hex(&to_hex(&[0, 1, 0xab, 0xff])), Some(vec![0, 1, 0xab, 0xff]));
        assert_eq!((from_hex("0g"), from_hex("012")), (None, None));
        assert_eq!(to_hex(&[]), "");
    }

    #[test]
    fn record_round_trips() {
        let saved = SavedRoot::Qdisc {
            kind: "fq".to_owned(),
            handle: 0x8001_0000,
            options: "0800".to_owned(),
        };
        let text = serde_json::to_string(&saved).unwrap();
        assert_eq!(serde_json::from_str::<SavedRoot>(&text).unwrap(), saved);
        assert_eq!(serde_json::to_string(&SavedRoot::Default).unwrap(), r#"{"root":"default"}"#);
    }
}
