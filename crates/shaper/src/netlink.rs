//! A blocking netlink socket that waits for the kernel's acknowledgement and reads its extended error message, and the requests that both
//! backends need. A socket stays in the network namespace of the thread that opened it.

use std::io;
use std::ops::Range;
use std::time::Duration;

use netlink_sys::{SocketAddr, protocols::NETLINK_GENERIC, protocols::NETLINK_ROUTE};

use crate::ShaperError;

mod dump;
pub mod message;
mod setup;
pub mod tc_message;

pub use dump::{classes, delete_root, filters, frame_bytes, qdiscs};
pub use message::{ACK, CREATE, DUMP, Message, REPLACE};
pub(crate) use setup::{CLSACT_EGRESS, TC_H_CLSACT, U32Key, filter_info, redirect_filter};
pub use setup::{
    add_clsact, add_redirect, add_veth, del_clsact, del_redirect, delete_link, find_ifindex,
    ifindex, ifname, set_down, set_up,
};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Flag of an error message that is followed by attributes with an explanation.
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;
/// Flag of the messages of a dump after its objects have changed: some may be missing, and others listed twice.
const NLM_F_DUMP_INTR: u16 = 0x10;
/// How often a dump is read until its objects do not change meanwhile.
const MAX_DUMPS: usize = 10;
/// The kernel fills at most 32 KiB per datagram of a dump.
const BUFFER_BYTES: usize = 64 << 10;
/// Timeout of an answer. rtnetlink answers before `send` returns, so the timeout expires only if an answer was lost.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// A blocking netlink socket.
#[derive(Debug)]
pub struct Socket {
    inner: netlink_sys::Socket,
    sequence: u32,
    buffer: Vec<u8>,
    outgoing: Vec<u8>,
}

impl Socket {
    /// Opens a rtnetlink socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// The system refused a socket.
    pub fn open() -> Result<Self, ShaperError> {
        Self::open_family(NETLINK_ROUTE)
    }

    /// Opens a generic netlink socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// The system refused a socket.
    pub fn open_generic() -> Result<Self, ShaperError> {
        Self::open_family(NETLINK_GENERIC)
    }

    fn open_family(family: isize) -> Result<Self, ShaperError> {
        let system = |op| move |source| ShaperError::System { op, source };
        let mut inner =
            netlink_sys::Socket::new(family).map_err(system("open a netlink socket"))?;
        inner.bind_auto().map_err(system("bind a netlink socket"))?;
        inner.connect(&SocketAddr::new(0, 0)).map_err(system("connect a netlink socket"))?;
        // Extended error messages are optional: kernels before 4.12 do not have them.
        let _ = inner.set_ext_ack(true);
        let _ = inner.set_cap_ack(true);
        rustix::net::sockopt::set_socket_timeout(
            &inner,
            rustix::net::sockopt::Timeout::Recv,
            Some(REPLY_TIMEOUT),
        )
        .map_err(|e| ShaperError::System {
            op: "limit a netlink socket's wait",
            source: e.into(),
        })?;
        Ok(Self {
            inner,
            sequence: 1,
            buffer: Vec::with_capacity(BUFFER_BYTES),
            outgoing: Vec::with_capacity(1024),
        })
    }

    /// Sends `message` (with the flags [`ACK`]) and waits for the acknowledgement. `op` ("add qdisc htb") and `dev` appear in the error
    /// message.
    ///
    /// # Errors
    /// [`ShaperError::Netlink`] with the kernel's answer and explanation.
    pub fn request(&mut self, op: &str, dev: &str, message: &[u8]) -> Result<(), ShaperError> {
        self.request_reply(op, dev, message, |_, _| {})
    }

    /// Sends a request like [`Self::request`], and passes type and body of every message before the acknowledgement to `each`. Repeats a
    /// dump whose objects changed meanwhile.
    ///
    /// # Errors
    /// [`ShaperError::Netlink`] with the kernel's answer and explanation; EINTR if the objects of a dump changed each time. `each` is then
    /// not called.
    pub fn request_reply(
        &mut self,
        op: &str,
        dev: &str,
        message: &[u8],
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<(), ShaperError> {
        let replies = consistent(|| self.ask(message)).map_err(|error| error.on(op, dev))?;
        for (kind, body) in &replies.messages {
            each(*kind, body);
        }
        Ok(())
    }

    fn ask(&mut self, message: &[u8]) -> Result<Replies, NetlinkError> {
        self.outgoing.clear();
        self.outgoing.extend_from_slice(message);
        self.sequence = self.sequence.wrapping_add(1);
        self.outgoing[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        self.inner.send(&self.outgoing, 0)?;
        self.collect()
    }

    /// Dumps (`message` has the flags [`DUMP`]). Passes the body of every answer to `each`, starting with its fixed part (`struct tcmsg`
    /// ...).
    ///
    /// # Errors
    /// As [`Self::request_reply`].
    pub fn dump(&mut self, message: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), ShaperError> {
        self.request_reply("read from the kernel", "", message, |_, body| each(body))
    }

    /// Sends several messages at once. They are complete except for their sequence numbers, and only the last one requests an
    /// acknowledgement. Waits for the acknowledgement or the first error: two system calls, and no allocation unless the kernel reports an
    /// error. `parts` has the range of each message.
    ///
    /// # Errors
    /// The kernel's answer to the first message that it refused. It has executed the later messages.
    pub fn request_all(
        &mut self,
        messages: &mut [u8],
        parts: &[Range<usize>],
    ) -> Result<(), NetlinkError> {
        self.number(messages, parts);
        self.send_numbered(messages)?;
        self.take_answer()
    }

    /// First step of [`Self::request_all`]: numbers the messages.
    pub(crate) fn number(&mut self, messages: &mut [u8], parts: &[Range<usize>]) {
        self.sequence = self.sequence.wrapping_add(1);
        for part in parts {
            let sequence = self.sequence.to_ne_bytes();
            messages[part.start + 8..part.start + 12].copy_from_slice(&sequence);
        }
    }

    /// Second step: sends the messages. When it returns, the kernel has executed or refused them.
    pub(crate) fn send_numbered(&self, messages: &[u8]) -> io::Result<()> {
        self.inner.send(messages, 0).map(|_| ())
    }

    /// Third step: waits for the answer.
    pub(crate) fn take_answer(&mut self) -> Result<(), NetlinkError> {
        self.collect().map(drop)
    }

    /// Reads until the last request's acknowledgement, end of dump, or refusal.
    fn collect(&mut self) -> Result<Replies, NetlinkError> {
        let mut replies = Replies::default();
        loop {
            self.buffer.clear();
            let length = loop {
                match self.inner.recv(&mut self.buffer, 0) {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    other => break other?,
                }
            };
            let datagram = &self.buffer[..length.min(self.buffer.len())];
            if message::u32_at(datagram, 8) != Some(self.sequence) {
                continue;
            }
            if let Some(outcome) = replies.add(datagram) {
                return outcome.map(|()| replies);
            }
        }
    }
}

/// What the kernel answers to a request.
#[derive(Debug, Default)]
struct Replies {
    /// Type and body of every message before the last one.
    messages: Vec<(u16, Vec<u8>)>,
    /// Whether the objects of a dump changed meanwhile.
    interrupted: bool,
}

impl Replies {
    /// Adds a datagram. Returns the outcome of the request if the datagram has its last message.
    fn add(&mut self, datagram: &[u8]) -> Option<Result<(), NetlinkError>> {
        for (kind, flags, body) in message::messages(datagram) {
            if kind == NLMSG_ERROR {
                return Some(acknowledgement(body, flags));
            }
            self.interrupted |= flags & NLM_F_DUMP_INTR != 0;
            if kind == NLMSG_DONE {
                // The error of a dump that ended early is here, where `struct nlmsgerr` has it.
                return Some(acknowledgement(body, 0));
            }
            self.messages.push((kind, body.to_vec()));
        }
        None
    }
}

/// Asks until the objects of a dump do not change meanwhile.
fn consistent(
    mut ask: impl FnMut() -> Result<Replies, NetlinkError>,
) -> Result<Replies, NetlinkError> {
    for _ in 0..MAX_DUMPS {
        let replies = ask()?;
        if !replies.interrupted {
            return Ok(replies);
        }
    }
    let message =
        format!("the list changed each of the {MAX_DUMPS} times that the kernel returned it");
    Err(NetlinkError { source: io::Error::from_raw_os_error(libc::EINTR), message: Some(message) })
}

/// Parses `struct nlmsgerr`. An acknowledgement is an error of zero.
///
/// # Errors
/// The request was refused.
#[doc(hidden)]
pub fn acknowledgement(body: &[u8], flags: u16) -> Result<(), NetlinkError> {
    let errno = message::u32_at(body, 0).unwrap_or(0).cast_signed();
    if errno == 0 {
        return Ok(());
    }
    let message = if flags & NLM_F_ACK_TLVS == 0 {
        None
    } else {
        // With NETLINK_CAP_ACK, the kernel returns only the header of the refused message.
        let explained = body.get(4 + message::HEADER_BYTES..).unwrap_or(&[]);
        message::attrs(explained).find(|a| a.kind == NLMSGERR_ATTR_MSG).map(|a| a.text())
    };
    Err(NetlinkError { source: io::Error::from_raw_os_error(errno.saturating_neg()), message })
}

/// Why the kernel refused a request.
#[derive(Debug)]
pub struct NetlinkError {
    /// The error number.
    pub source: io::Error,
    /// The kernel's explanation, if it gave one.
    pub message: Option<String>,
}

impl From<io::Error> for NetlinkError {
    fn from(source: io::Error) -> Self {
        Self { source, message: None }
    }
}

impl NetlinkError {
    /// Adds the operation and the object.
    pub fn on(self, op: &str, dev: &str) -> ShaperError {
        let kernel_message = self.message.map(|text| format!(" ({text})")).unwrap_or_default();
        ShaperError::Netlink {
            op: op.to_owned(),
            dev: dev.to_owned(),
            source: self.source,
            kernel_message,
        }
    }
}

impl ShaperError {
    /// Returns whether the kernel answered with this error number (`libc::ENOENT` ...).
    pub fn is_errno(&self, errno: i32) -> bool {
        matches!(self, Self::Netlink { source, .. } if source.raw_os_error() == Some(errno))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_has_the_kernels_message() {
        let mut body = (-libc::EINVAL).to_ne_bytes().to_vec();
        body.extend([0; message::HEADER_BYTES]);
        body.extend(Message::attributes().attr_str(1, "bad limit").into_attributes());
        let answer = acknowledgement(&body, NLM_F_ACK_TLVS).unwrap_err();
        let error = answer.on("add qdisc fq", "eth0");
        assert_eq!(
            error.to_string(),
            "add qdisc fq on eth0: Invalid argument (os error 22) (bad limit)"
        );
        assert!(error.is_errno(libc::EINVAL));
        assert!(acknowledgement(&[0; 20], 0).is_ok());
    }

    #[test]
    fn a_dump_that_ended_early_fails() {
        let read = |errno: i32| {
            let part = Message::new(libc::RTM_NEWQDISC, DUMP).tcmsg(7, 0, 0, 0).finish();
            let end = Message::new(NLMSG_DONE, DUMP).raw(&errno.to_ne_bytes()).finish();
            let mut replies = Replies::default();
            let outcome = replies.add(&[part, end].concat()).unwrap();
            let kinds: Vec<u16> = replies.messages.iter().map(|(kind, _)| *kind).collect();
            assert_eq!(kinds, [libc::RTM_NEWQDISC]);
            outcome
        };
        assert!(read(0).is_ok());
        let error = read(-libc::ENOMEM).unwrap_err().on("read from the kernel", "eth0");
        assert!(error.is_errno(libc::ENOMEM), "{error}");
        let part = Message::new(libc::RTM_NEWQDISC, DUMP).tcmsg(7, 0, 0, 0).finish();
        assert!(Replies::default().add(&part).is_none(), "more datagrams follow");
    }

    #[test]
    fn a_dump_whose_objects_changed_is_repeated() {
        let message = |kind, flags| Message::new(kind, flags).raw(&[0; 16]).finish();
        let interrupted = |flags: [u16; 3]| {
            let [first, second, end] = flags;
            let new = libc::RTM_NEWLINK;
            let all = [message(new, first), message(new, second), message(NLMSG_DONE, end)];
            let mut replies = Replies::default();
            replies.add(&all.concat()).unwrap().unwrap();
            assert_eq!(replies.messages.len(), 2);
            replies.interrupted
        };
        assert!(!interrupted([2, 2, 2]));
        assert!(interrupted([2, 2 | NLM_F_DUMP_INTR, 2]));
        assert!(interrupted([2, 2, 2 | NLM_F_DUMP_INTR]));

        let after = |changes: usize| {
            let mut asked = 0;
            let replies = consistent(|| {
                asked += 1;
                let messages = vec![(libc::RTM_NEWLINK, vec![asked])];
                Ok(Replies { messages, interrupted: usize::from(asked) <= changes })
            });
            replies.map(|replies| replies.messages)
        };
        assert_eq!(after(0).unwrap(), [(libc::RTM_NEWLINK, vec![1])]);
        assert_eq!(after(2).unwrap(), [(libc::RTM_NEWLINK, vec![3])], "only the last one counts");
        let error = after(usize::MAX).unwrap_err().on("read from the kernel", "");
        assert!(error.is_errno(libc::EINTR), "{error}");
        assert!(
            error
                .to_string()
                .ends_with("(the list changed each of the 10 times that the kernel returned it)")
        );
    }

    #[test]
    fn an_unknown_interface_is_named() {
        let error = ifindex("nosuchdev0").unwrap_err();
        assert_eq!(error.to_string(), "no interface named nosuchdev0");
        assert_eq!(find_ifindex("nosuchdev0").unwrap(), None);
        assert_eq!(find_ifindex("lo").unwrap(), ifindex("lo").ok());
    }

    #[test]
    fn a_dump_needs_no_root() {
        let mut socket = Socket::open().unwrap();
        let mut found = 0;
        let message = Message::new(libc::RTM_GETLINK, DUMP).ifinfo(0).finish();
        socket.dump(&message, |_| found += 1).unwrap();
        assert!(found > 0);
    }
}
