//! Samples with `NETLINK_SOCK_DIAG`: dumps the TCP sockets of this network namespace. Needs no privileges and works on every
//! supported kernel.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use ccbench_proto::wire::FlowSample;
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};

use crate::bytes::array;
use crate::diag_msg::{DiagMsg, NetlinkMsg, next_msg};
use crate::diag_request::{
    Requests, SOCK_DIAG_BY_FAMILY, TCPDIAG_GETSOCK, bytecode, set_seq, variants,
};
use crate::flow_sample::{SampleTime, flow_sample};
use crate::ports::PortMap;
use crate::tcp_info::KernelVersion;
use crate::{Drained, FlowPorts, SampleError, Sampler};

pub(crate) const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// Maximum length of a message in a dump. The kernel fills messages up to the largest receive buffer seen, at most 32 KiB.
const BUFFER_LEN: usize = 32 * 1024;
/// The kernel replies to a dump at once; a longer wait means that a reply was lost.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// A sampler of TCP sockets that uses inet_diag.
#[derive(Default)]
pub struct DiagSampler {
    watch: Option<Watch>,
}

struct Watch {
    socket: Socket,
    buffer: Vec<u8>,
    requests: Requests,
    /// Simpler requests for a kernel that rejects `requests`. The last one is tried next.
    fallbacks: Vec<Requests>,
    seq: u32,
    rows: Rows,
}

/// Turns messages into rows. Separate from the socket and its buffer, so that both can be borrowed.
struct Rows {
    ports: PortMap,
    kernel: KernelVersion,
    interval_ns: u64,
    /// Time of the last sample, by socket cookie.
    last_at_ns: BTreeMap<u64, u64>,
}

impl DiagSampler {
    /// Makes a sampler without flows and without a socket.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether the kernel filters by port. Otherwise it returns every TCP socket of the namespace.
    #[must_use]
    pub fn filters_in_kernel(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.requests.filtered)
    }
}

impl Sampler for DiagSampler {
    /// Opens the socket in the network namespace of the calling thread.
    fn start(&mut self, flows: &[FlowPorts], interval_ns: u64) -> Result<(), SampleError> {
        self.watch = None;
        let ports = PortMap::new(flows);
        let filter = bytecode(&ports.ranges());
        let mut fallbacks = variants(filter.as_deref());
        let Some(requests) = fallbacks.pop() else {
            return Ok(());
        };
        self.watch = Some(Watch {
            socket: open()?,
            buffer: vec![0; BUFFER_LEN],
            requests,
            fallbacks,
            seq: 0,
            rows: Rows {
                ports,
                kernel: KernelVersion::running(),
                interval_ns,
                last_at_ns: BTreeMap::new(),
            },
        });
        Ok(())
    }

    fn drain(&mut self, at_ns: u64, into: &mut Vec<FlowSample>) -> Result<Drained, SampleError> {
        match &mut self.watch {
            Some(watch) if !watch.rows.ports.is_empty() => watch.drain(at_ns, into),
            _ => Ok(Drained::default()),
        }
    }

    fn stop(&mut self) {
        self.watch = None;
    }
}

impl Watch {
    fn drain(&mut self, at_ns: u64, into: &mut Vec<FlowSample>) -> Result<Drained, SampleError> {
        let rows_before = into.len();
        loop {
            let mut drained = Drained::default();
            let error = match self.dump_all(at_ns, into, &mut drained) {
                Ok(()) => {
                    self.rows.forget_closed(at_ns);
                    return Ok(drained);
                }
                Err(error) => error,
            };
            self.rows.discard(into.drain(rows_before..));
            // Replies to a failed dump must not mix with those of the next one.
            self.socket = open()?;
            if !is_unsupported(&error) {
                return Err(error);
            }
            self.requests = self.fallbacks.pop().ok_or(error)?;
        }
    }

    fn dump_all(
        &mut self,
        at_ns: u64,
        into: &mut Vec<FlowSample>,
        drained: &mut Drained,
    ) -> Result<(), SampleError> {
        for request in &mut self.requests.messages {
            self.seq = self.seq.wrapping_add(1);
            set_seq(request, self.seq);
            rustix::net::send(&self.socket, request, SendFlags::empty())
                .map_err(|errno| netlink("request TCP sockets", errno.into()))?;
            let mut more = true;
            while more {
                let mut rest = receive(&self.socket, &mut self.buffer)?;
                while let Some(msg) = next_msg(&mut rest)? {
                    if msg.seq == self.seq {
                        more &= self.rows.on_msg(&msg, at_ns, into, drained)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Rows {
    /// Processes one message. Returns `false` after the last message of a dump.
    fn on_msg(
        &mut self,
        msg: &NetlinkMsg<'_>,
        at_ns: u64,
        into: &mut Vec<FlowSample>,
        drained: &mut Drained,
    ) -> Result<bool, SampleError> {
        match msg.kind {
            SOCK_DIAG_BY_FAMILY | TCPDIAG_GETSOCK => {
                self.on_socket(&DiagMsg::parse(msg.payload)?, at_ns, into, drained);
            }
            NLMSG_DONE | NLMSG_ERROR => {
                return match array(msg.payload, 0).map_or(0, i32::from_ne_bytes) {
                    0 => Ok(false),
                    code => Err(netlink(
                        "dump TCP sockets",
                        io::Error::from_raw_os_error(code.saturating_abs()),
                    )),
                };
            }
            _ => {}
        }
        Ok(true)
    }

    fn on_socket(
        &mut self,
        msg: &DiagMsg<'_>,
        at_ns: u64,
        into: &mut Vec<FlowSample>,
        drained: &mut Drained,
    ) {
        // An orphaned socket in FIN_WAIT2 has no tcp_info.
        if msg.info.is_empty() {
            return;
        }
        let Some(role) = self.ports.classify(msg.sport, msg.dport) else {
            return;
        };
        let gap_ns = match self.last_at_ns.insert(msg.cookie, at_ns) {
            // The hash table changed during the dump, and the kernel returned this socket twice.
            Some(before) if before == at_ns => return,
            Some(before) => at_ns.saturating_sub(before),
            None => 0,
        };
        if self.interval_ns > 0 && gap_ns > self.interval_ns + self.interval_ns / 2 {
            drained.late += 1;
            drained.lost += missed(gap_ns, self.interval_ns);
        }
        drained.rows += 1;
        into.push(flow_sample(msg, role, SampleTime { at_ns, gap_ns }, self.kernel));
    }

    /// Removes closed sockets to bound the memory.
    fn forget_closed(&mut self, at_ns: u64) {
        let keep_ns = self.interval_ns.saturating_mul(16);
        self.last_at_ns.retain(|_, &mut last| at_ns.saturating_sub(last) <= keep_ns);
    }

    /// Forgets the rows of a dump that failed: the samples before them are the last ones again.
    fn discard(&mut self, rows: impl Iterator<Item = FlowSample>) {
        for row in rows {
            let Some(cookie) = row.cookie else { continue };
            match row.gap_ns {
                0 => self.last_at_ns.remove(&cookie),
                gap_ns => self.last_at_ns.insert(cookie, row.at_ns.saturating_sub(gap_ns)),
            };
        }
    }
}

/// Returns the number of samples missing in a gap, rounded to nearest.
fn missed(gap_ns: u64, interval_ns: u64) -> u64 {
    gap_ns.saturating_add(interval_ns / 2).checked_div(interval_ns).unwrap_or(1).saturating_sub(1)
}

/// Opens a socket in the network namespace of the calling thread.
pub(crate) fn open() -> Result<Socket, SampleError> {
    let failed = |source| netlink("open a NETLINK_SOCK_DIAG socket", source);
    let mut socket = Socket::new(NETLINK_SOCK_DIAG).map_err(failed)?;
    socket.bind_auto().map_err(failed)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(REPLY_TIMEOUT))
        .map_err(|errno| failed(errno.into()))?;
    Ok(socket)
}

/// Receives the next messages into `buffer`.
///
/// # Errors
/// `NoReply` if nothing arrives in time, `Truncated` if the messages do not fit.
pub(crate) fn receive<'a>(socket: &Socket, buffer: &'a mut [u8]) -> Result<&'a [u8], SampleError> {
    let (_, len) =
        rustix::net::recv(socket, &mut *buffer, RecvFlags::TRUNC).map_err(|errno| match errno {
            Errno::AGAIN => SampleError::NoReply { timeout: REPLY_TIMEOUT },
            _ => netlink("receive TCP sockets", errno.into()),
        })?;
    let buffer_len = buffer.len();
    buffer.get(..len).ok_or(SampleError::Truncated { len, buffer_len })
}

/// Returns whether the kernel does not support this kind of request or filter.
fn is_unsupported(error: &SampleError) -> bool {
    let SampleError::Netlink { source, .. } = error else {
        return false;
    };
    matches!(
        Errno::from_io_error(source),
        Some(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOENT | Errno::PROTONOSUPPORT)
    )
}

pub(crate) fn netlink(op: &'static str, source: io::Error) -> SampleError {
    SampleError::Netlink { op, source }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::wire::Side;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::diag_msg::tests::payload;
    use crate::ports::tests::flow;

    const INTERVAL_NS: u64 = 100;

    /// Makes a sampler of one loopback connection, which stays open until the streams are dropped.
    fn sampler_with_connection() -> (DiagSampler, TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let flow = FlowPorts {
            group: "bulk".to_owned(),
            server_port: address.port(),
            client_port: client.local_addr().unwrap().port(),
            count: 1,
            listens: false,
            reverse: true,
        };
        let mut sampler = DiagSampler::new();
        sampler.start(&[flow], INTERVAL_NS).unwrap();
        (sampler, client, accepted)
    }

    fn unsupported_requests() -> Requests {
        variants(Some(&[99, 4, 4, 0])).pop().unwrap()
    }

    #[test]
    fn every_request_variant_returns_the_same_row() {
        let (mut sampler, _client, _accepted) = sampler_with_connection();
        for at_ns in 1..4 {
            let mut rows = Vec::new();
            let drained = sampler.drain(at_ns, &mut rows).unwrap();
            assert_eq!((drained.rows, rows.len()), (1, 1));
            assert_eq!((&*rows[0].flow_id, rows[0].side()), ("bulk/0", Side::Receiver));
            assert_eq!(rows[0].gap_ns, u64::from(at_ns > 1));
            assert!(rows[0].rtt_us.is_some() && !rows[0].cc.is_empty());
            let watch = sampler.watch.as_mut().unwrap();
            assert_eq!(watch.requests.filtered, at_ns < 3);
            if let Some(simpler) = watch.fallbacks.pop() {
                watch.requests = simpler;
            }
        }
    }

    #[test]
    fn falls_back_to_a_simpler_request() {
        let (mut sampler, _client, _accepted) = sampler_with_connection();
        let watch = sampler.watch.as_mut().unwrap();
        watch.fallbacks.truncate(1);
        watch.fallbacks.push(unsupported_requests());
        watch.requests = unsupported_requests();
        let mut rows = Vec::new();
        sampler.drain(1, &mut rows).unwrap();
        assert_eq!(rows.len(), 1);
        assert!(!sampler.filters_in_kernel());
    }

    #[test]
    fn fails_if_the_kernel_rejects_every_request() {
        let (mut sampler, _client, _accepted) = sampler_with_connection();
        let watch = sampler.watch.as_mut().unwrap();
        watch.fallbacks.clear();
        watch.requests = unsupported_requests();
        let error = sampler.drain(1, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.starts_with("dump TCP sockets: "), "{error}");
    }

    #[test]
    fn a_reply_that_does_not_come_is_no_malformed_one() {
        let socket = open().unwrap();
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_millis(1))).unwrap();
        let error = receive(&socket, &mut [0; 64]).unwrap_err().to_string();
        assert_eq!(error, "the kernel did not reply to a netlink request within 1 s");
    }

    #[test]
    fn a_reply_longer_than_the_buffer_is_no_malformed_one() {
        let (mut sampler, _client, _accepted) = sampler_with_connection();
        let watch = sampler.watch.as_mut().unwrap();
        watch.buffer.truncate(64);
        let error = sampler.drain(1, &mut Vec::new()).unwrap_err();
        assert!(matches!(error, SampleError::Truncated { len: 65.., buffer_len: 64 }), "{error}");
        let error = error.to_string();
        assert!(error.contains("but the buffer only 64: their end is lost"), "{error}");
    }

    #[test]
    fn a_failed_dump_leaves_the_gaps_as_they_were() {
        let mut rows = Rows {
            ports: PortMap::new(&[flow("bulk", 5201, false, false)]),
            kernel: KernelVersion { major: 0, minor: 0 },
            interval_ns: INTERVAL_NS,
            last_at_ns: BTreeMap::new(),
        };
        let mut into = Vec::new();
        let gap_ns = |rows: &mut Rows, into: &mut Vec<FlowSample>, cookie, at_ns| {
            let bytes = payload((40_000, 5201), cookie, &[(2, &[0; 104])]);
            let mut drained = Drained::default();
            rows.on_socket(&DiagMsg::parse(&bytes).unwrap(), at_ns, into, &mut drained);
            (into[into.len() - 1].gap_ns, drained.lost)
        };
        assert_eq!(gap_ns(&mut rows, &mut into, 1, 1000), (0, 0));
        // This dump has both sockets, then fails.
        assert_eq!(gap_ns(&mut rows, &mut into, 1, 1100), (100, 0));
        assert_eq!(gap_ns(&mut rows, &mut into, 2, 1100), (0, 0));
        rows.discard(into.drain(1..));
        assert_eq!(gap_ns(&mut rows, &mut into, 1, 1200), (200, 1));
        assert_eq!(gap_ns(&mut rows, &mut into, 2, 1200), (0, 0), "its first sample");
    }

    #[test]
    fn counts_missed_samples_in_a_gap() {
        assert_eq!(missed(151, 100), 1);
        assert_eq!(missed(249, 100), 1);
        assert_eq!(missed(303, 100), 2);
        assert_eq!(missed(5, 0), 0);
    }
}
