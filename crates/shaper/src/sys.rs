//! System calls that no safe library offers, or only with allocations: batches on packet sockets, scheduling policies, tcx links,
//! `TCP_INFO`. The only unsafe code of the project.
#![expect(
    unsafe_code,
    reason = "recvmmsg, sendmmsg and packet socket options have no safe wrapper"
)]

use std::io;
use std::marker::PhantomData;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

/// Opens a packet socket that is not bound, hence receives nothing yet.
pub(crate) fn packet_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds a packet socket to an interface. `protocol` is an EtherType in host byte order; 0: receive nothing.
pub(crate) fn bind_packet(fd: BorrowedFd<'_>, ifindex: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: all zeroes is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = ifindex.cast_signed();
    // SAFETY: the pointer is to a sockaddr_ll that lives through the call, with its size.
    let rc = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets an integer socket option.
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the pointer is to an int that lives through the call, with its size.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Gives the calling thread real-time priority (`SCHED_FIFO`), which its children do not inherit.
pub(crate) fn set_fifo(priority: libc::c_int) -> io::Result<()> {
    set_scheduler(libc::SCHED_FIFO, priority)
}

/// Returns the calling thread to `SCHED_OTHER` with its previous niceness.
pub(crate) fn set_other() -> io::Result<()> {
    set_scheduler(libc::SCHED_OTHER, 0)
}

/// Gives the calling thread `SCHED_IDLE`: it runs only when no other thread does.
pub(crate) fn set_idle() -> io::Result<()> {
    set_scheduler(libc::SCHED_IDLE, 0)
}

fn set_scheduler(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    let parameters = priority;
    // SAFETY: a sched_param is one int, which lives through the call; 0 is the calling thread. The function of this name in musl only
    // returns ENOSYS.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            0,
            policy | libc::SCHED_RESET_ON_FORK,
            &raw const parameters,
        )
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets an interface to promiscuous mode for as long as the socket is open.
pub(crate) fn set_promiscuous(fd: BorrowedFd<'_>, ifindex: u32) -> io::Result<()> {
    // SAFETY: all zeroes is a valid packet_mreq.
    let mut request: libc::packet_mreq = unsafe { zeroed() };
    request.mr_ifindex = ifindex.cast_signed();
    request.mr_type = libc::PACKET_MR_PROMISC as u16;
    // SAFETY: the pointer is to a packet_mreq that lives through the call, with its size.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            (&raw const request).cast(),
            size_of::<libc::packet_mreq>() as libc::socklen_t,
        )
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the number of packets dropped since the last call because the socket's buffer was full.
pub(crate) fn take_packet_drops(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: all zeroes is a valid tpacket_stats.
    let mut stats: libc::tpacket_stats = unsafe { zeroed() };
    let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    // SAFETY: both pointers are to values that live through the call, and `length` is the first one's size.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut stats).cast(),
            &raw mut length,
        )
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(u64::from(stats.tp_drops)) }
}

/// Space for the two control messages that are enabled (`timespec`, `tpacket_auxdata`), with their alignment.
const CONTROL_WORDS: usize = 12;

/// Buffers to read several packets with one system call.
pub(crate) struct RxBatch {
    bytes: Vec<u8>,
    headroom: usize,
    packet_bytes: usize,
    control: Vec<[u64; CONTROL_WORDS]>,
    parts: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
    received: usize,
}

// SAFETY: the pointers in its headers are to buffers that it owns, and every call rewrites them.
unsafe impl Send for RxBatch {}

/// A received packet.
pub(crate) struct Received<'a> {
    /// Headroom, vnet header and frame.
    pub(crate) bytes: &'a mut [u8],
    /// Whether it was truncated to the buffer.
    pub(crate) truncated: bool,
    /// When the kernel received it, `CLOCK_REALTIME` nanoseconds; `None` without `SO_TIMESTAMPNS`.
    pub(crate) real_ns: Option<u64>,
    /// The VLAN tag that the kernel removed from the frame: protocol, then control information.
    pub(crate) vlan: Option<[u8; 4]>,
    /// Length of the frame before truncation; `None` without `PACKET_AUXDATA`.
    pub(crate) length: Option<u32>,
}

impl RxBatch {
    /// Allocates buffers for `packets` packets of up to `packet_bytes` bytes, each with headroom.
    pub(crate) fn new(packets: usize, headroom: usize, packet_bytes: usize) -> Self {
        // SAFETY: all zeroes is a valid mmsghdr and a valid iovec.
        let (header, part) = unsafe { (zeroed::<libc::mmsghdr>(), zeroed::<libc::iovec>()) };
        Self {
            bytes: vec![0; packets * (headroom + packet_bytes)],
            headroom,
            packet_bytes,
            control: vec![[0; CONTROL_WORDS]; packets],
            parts: vec![part; packets],
            headers: vec![header; packets],
            received: 0,
        }
    }

    /// Receives up to `most` packets without blocking. Returns their number.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>, most: usize) -> io::Result<usize> {
        self.received = 0;
        let slots =
            self.bytes.chunks_exact_mut(self.headroom + self.packet_bytes).zip(&mut self.control);
        let mut count = 0;
        for (header, (part, (bytes, control))) in
            self.headers.iter_mut().zip(self.parts.iter_mut().zip(slots)).take(most)
        {
            let bytes = &mut bytes[self.headroom..];
            part.iov_base = bytes.as_mut_ptr().cast();
            part.iov_len = bytes.len();
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = size_of_val(control) as _;
            count += 1;
        }
        // SAFETY: the first `count` headers point to one iovec and one control buffer each, of the lengths in them,
        // all owned by self and mutably borrowed through the call.
        let count = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT,
                null_mut(),
            )
        };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        self.received = count as usize;
        Ok(self.received)
    }

    /// Returns the packets of the last [`Self::receive`].
    pub(crate) fn packets(&mut self) -> impl Iterator<Item = Received<'_>> {
        let headroom = self.headroom;
        let slots = self.bytes.chunks_exact_mut(headroom + self.packet_bytes);
        self.headers[..self.received].iter().zip(slots).map(move |(header, bytes)| {
            let end = (headroom + header.msg_len as usize).min(bytes.len());
            let Control { real_ns, vlan, length } = control_of(&header.msg_hdr);
            Received {
                bytes: &mut bytes[..end],
                truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
                real_ns,
                vlan,
                length,
            }
        })
    }
}

/// The control messages of a packet.
#[derive(Default)]
struct Control {
    real_ns: Option<u64>,
    vlan: Option<[u8; 4]>,
    length: Option<u32>,
}

/// Returns the control messages of a header that `receive` filled in.
fn control_of(header: &libc::msghdr) -> Control {
    let mut parsed = Control::default();
    // SAFETY: called only for headers that recvmmsg filled in, whose control buffer is still owned and
    // borrowed by the batch; the CMSG functions stay within msg_controllen.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !control.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return null or a whole header within the buffer.
        let message = unsafe { &*control };
        match (message.cmsg_level, message.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                // SAFETY: a message of this type has one timespec; read_unaligned needs no alignment.
                let time =
                    unsafe { libc::CMSG_DATA(control).cast::<libc::timespec>().read_unaligned() };
                parsed.real_ns = Some(
                    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned(),
                );
            }
            (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                // SAFETY: a message of this type has one tpacket_auxdata; read_unaligned needs no alignment.
                let aux = unsafe {
                    libc::CMSG_DATA(control).cast::<libc::tpacket_auxdata>().read_unaligned()
                };
                parsed.length = Some(aux.tp_len);
                if aux.tp_status & libc::TP_STATUS_VLAN_VALID != 0 {
                    let known = aux.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
                    let protocol = if known { aux.tp_vlan_tpid } else { 0x8100 };
                    let ([a, b], [c, d]) = (protocol.to_be_bytes(), aux.tp_vlan_tci.to_be_bytes());
                    parsed.vlan = Some([a, b, c, d]);
                }
            }
            _ => {}
        }
        // SAFETY: as for CMSG_FIRSTHDR.
        control = unsafe { libc::CMSG_NXTHDR(header, control) };
    }
    parsed
}

/// Headers for `sendmmsg`: several packets, each of several parts.
pub(crate) struct TxBatch {
    parts: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

// SAFETY: every call rewrites the pointers in its headers, which are not dereferenced between calls.
unsafe impl Send for TxBatch {}

impl TxBatch {
    /// Allocates headers for up to `packets` packets per call, with up to `parts` parts in total.
    pub(crate) fn new(packets: usize, parts: usize) -> Self {
        // SAFETY: all zeroes is a valid mmsghdr and a valid iovec.
        let (header, part) = unsafe { (zeroed::<libc::mmsghdr>(), zeroed::<libc::iovec>()) };
        Self { parts: vec![part; parts], headers: vec![header; packets] }
    }

    /// Starts an empty batch.
    pub(crate) fn begin(&mut self) -> Outgoing<'_, '_> {
        Outgoing { batch: self, packets: 0, parts: 0, bytes: PhantomData }
    }
}

/// Packets to send with one system call. Their bytes are borrowed until then.
pub(crate) struct Outgoing<'batch, 'bytes> {
    batch: &'batch mut TxBatch,
    packets: usize,
    parts: usize,
    bytes: PhantomData<&'bytes [u8]>,
}

impl<'bytes> Outgoing<'_, 'bytes> {
    /// Adds a packet (vnet header and frame) that consists of `parts`. Returns `false` if the batch is full.
    pub(crate) fn add(&mut self, parts: impl Iterator<Item = &'bytes [u8]>) -> bool {
        let begin = self.parts;
        let Some(header) = self.batch.headers.get_mut(self.packets) else { return false };
        let mut end = begin;
        for part in parts {
            let Some(room) = self.batch.parts.get_mut(end) else { return false };
            room.iov_base = part.as_ptr().cast_mut().cast();
            room.iov_len = part.len();
            end += 1;
        }
        header.msg_hdr.msg_iov = self.batch.parts[begin..].as_mut_ptr();
        header.msg_hdr.msg_iovlen = (end - begin) as _;
        self.parts = end;
        self.packets += 1;
        true
    }

    /// Sends the batch without blocking. Returns the number of packets sent; an error refers to the first packet.
    pub(crate) fn send(self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        if self.packets == 0 {
            return Ok(0);
        }
        // SAFETY: the first `packets` headers point to iovecs that `add` wrote since `begin`, which point to bytes
        // borrowed for 'bytes, which outlives self; sendmmsg only reads them. Name and control are null.
        let sent = unsafe {
            libc::sendmmsg(
                fd.as_raw_fd(),
                self.batch.headers.as_mut_ptr(),
                self.packets as libc::c_uint,
                libc::MSG_DONTWAIT,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }
}

/// Attaches a loaded classifier to the egress of an interface of this network namespace, in front of clsact. Closing the descriptor
/// detaches it. Needs Linux 6.6 or later.
pub(crate) fn attach_tcx_egress(program: BorrowedFd<'_>, ifindex: u32) -> io::Result<OwnedFd> {
    const BPF_LINK_CREATE: libc::c_long = 28;
    const BPF_TCX_EGRESS: u32 = 47;
    // The first fields of the kernel's union bpf_attr: program, interface, attach type, flags; no relative program.
    let attributes: [u32; 12] =
        [program.as_raw_fd().cast_unsigned(), ifindex, BPF_TCX_EGRESS, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: the kernel reads `size_of` bytes of attributes that live through the call, and no pointer in them.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_LINK_CREATE,
            attributes.as_ptr(),
            size_of_val(&attributes) as libc::c_long,
        )
    };
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns `struct tcp_info` of a TCP socket, in this kernel's length. The counters remain available after the connection has ended, until
/// the socket is closed.
///
/// # Errors
/// The socket is not a TCP socket.
pub fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    // Larger than in any kernel (280 bytes in 7.0).
    let mut info = vec![0u8; 1024];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: both pointers are to values that live through the call, and `length` is the first one's size.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    info.truncate(length as usize);
    Ok(info)
}

/// Returns the cookie of a socket's network namespace. Unlike an inode number, it is never reused.
pub(crate) fn netns_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let (mut cookie, mut bytes) = (0u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: both pointers are to locals that live through the call, and `bytes` is the size of the first.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut bytes,
        )
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
}
