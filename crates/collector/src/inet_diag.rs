//! Samples by `NETLINK_SOCK_DIAG`: a dump of the TCP sockets of this network namespace. Works on every
//! kernel, without privileges.

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
use crate::convert::{Instant, flow_sample};
use crate::diag_msg::{DiagMsg, NetlinkMsg, next_msg};
use crate::diag_request::{
    Requests, SOCK_DIAG_BY_FAMILY, TCPDIAG_GETSOCK, bytecode, set_seq, ways,
};
use crate::ports::PortMap;
use crate::tcp_info::KernelVersion;
use crate::{Drained, FlowPorts, SampleError, Sampler};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// The kernel fills a dump's messages up to the largest buffer seen so far, at most this.
const BUFFER_LEN: usize = 32 * 1024;
/// A dump is answered at once; waiting longer means that an answer was lost.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// TCP samples by inet_diag.
#[derive(Default)]
pub struct DiagSampler {
    watch: Option<Watch>,
}

struct Watch {
    socket: Socket,
    buffer: Vec<u8>,
    way: Requests,
    /// Plainer ways to ask, for a kernel that refuses this one; the next one last.
    fallbacks: Vec<Requests>,
    seq: u32,
    pass: Pass,
}

/// What turns messages into rows; apart from the socket and its buffer so that both can be borrowed.
struct Pass {
    ports: PortMap,
    kernel: KernelVersion,
    interval_ns: u64,
    seen: BTreeMap<u64, u64>,
}

impl DiagSampler {
    /// A sampler that watches nothing yet and holds no socket.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the kernel filters by port itself; otherwise it sends every TCP socket of the namespace.
    #[must_use]
    pub fn filters_in_kernel(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.way.filtered)
    }
}

impl Sampler for DiagSampler {
    /// Opens the socket in the network namespace of the calling thread.
    fn start(&mut self, flows: &[FlowPorts], interval_ns: u64) -> Result<(), SampleError> {
        self.watch = None;
        let ports = PortMap::new(flows);
        let filter = bytecode(&ports.ranges());
        let mut fallbacks = ways(filter.as_deref());
        let Some(way) = fallbacks.pop() else {
            return Ok(());
        };
        self.watch = Some(Watch {
            socket: open()?,
            buffer: vec![0; BUFFER_LEN],
            way,
            fallbacks,
            seq: 0,
            pass: Pass {
                ports,
                kernel: KernelVersion::running(),
                interval_ns,
                seen: BTreeMap::new(),
            },
        });
        Ok(())
    }

    fn drain(&mut self, at_ns: u64, into: &mut Vec<FlowSample>) -> Result<Drained, SampleError> {
        match &mut self.watch {
            Some(watch) if !watch.pass.ports.is_empty() => watch.drain(at_ns, into),
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
                    self.pass.forget_closed(at_ns);
                    return Ok(drained);
                }
                Err(error) => error,
            };
            // What is left of a broken dump must not meet the next one, nor its rows be told twice.
            self.socket = open()?;
            into.truncate(rows_before);
            self.pass.seen.retain(|_, &mut last| last != at_ns);
            if !refused(&error) {
                return Err(error);
            }
            self.way = self.fallbacks.pop().ok_or(error)?;
        }
    }

    fn dump_all(
        &mut self,
        at_ns: u64,
        into: &mut Vec<FlowSample>,
        drained: &mut Drained,
    ) -> Result<(), SampleError> {
        for request in &mut self.way.messages {
            self.seq = self.seq.wrapping_add(1);
            set_seq(request, self.seq);
            rustix::net::send(&self.socket, request, SendFlags::empty())
                .map_err(|errno| netlink("ask for TCP sockets", errno.into()))?;
            let mut more = true;
            while more {
                let (_, len) =
                    rustix::net::recv(&self.socket, &mut self.buffer[..], RecvFlags::TRUNC)
                        .map_err(|errno| netlink("receive TCP sockets", errno.into()))?;
                let mut rest = self.buffer.get(..len).ok_or(SampleError::Malformed {
                    what: "netlink buffer, which was too small",
                    at: len,
                })?;
                while let Some(msg) = next_msg(&mut rest)? {
                    if msg.seq == self.seq {
                        more &= self.pass.on_msg(&msg, at_ns, into, drained)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Pass {
    /// Takes one message; `false` after the last of a dump.
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
        // A socket that lingers in FIN_WAIT2 after its owner left has no tcp_info.
        if msg.info.is_empty() {
            return;
        }
        let Some(role) = self.ports.classify(msg.sport, msg.dport) else {
            return;
        };
        let gap_ns = match self.seen.insert(msg.cookie, at_ns) {
            // The hash table changed under the dump and the kernel told this socket twice.
            Some(before) if before == at_ns => return,
            Some(before) => at_ns.saturating_sub(before),
            None => 0,
        };
        if self.interval_ns > 0 && gap_ns > self.interval_ns + self.interval_ns / 2 {
            drained.late += 1;
            drained.lost += missed(gap_ns, self.interval_ns);
        }
        drained.rows += 1;
        into.push(flow_sample(msg, role, Instant { at_ns, gap_ns }, self.kernel));
    }

    /// Bounds the memory by the sockets that exist.
    fn forget_closed(&mut self, at_ns: u64) {
        let keep_ns = self.interval_ns.saturating_mul(16);
        self.seen.retain(|_, &mut last| at_ns.saturating_sub(last) <= keep_ns);
    }
}

/// How many samples a gap swallowed, to the nearest whole number.
fn missed(gap_ns: u64, interval_ns: u64) -> u64 {
    gap_ns.saturating_add(interval_ns / 2).checked_div(interval_ns).unwrap_or(1).saturating_sub(1)
}

fn open() -> Result<Socket, SampleError> {
    let failed = |source| netlink("open a NETLINK_SOCK_DIAG socket", source);
    let mut socket = Socket::new(NETLINK_SOCK_DIAG).map_err(failed)?;
    socket.bind_auto().map_err(failed)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_LIMIT))
        .map_err(|errno| failed(errno.into()))?;
    Ok(socket)
}

/// The answers of kernels that do not know this kind of request or of filter.
fn refused(error: &SampleError) -> bool {
    let SampleError::Netlink { source, .. } = error else {
        return false;
    };
    matches!(
        Errno::from_io_error(source),
        Some(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOENT | Errno::PROTONOSUPPORT)
    )
}

fn netlink(op: &'static str, source: io::Error) -> SampleError {
    SampleError::Netlink { op, source }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const INTERVAL_NS: u64 = 100;

    /// A sampler that watches one connection over loopback, which lives as long as the streams.
    fn watching() -> (DiagSampler, TcpStream, TcpStream) {
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

    fn garbage() -> Requests {
        ways(Some(&[99, 4, 4, 0])).pop().unwrap()
    }

    #[test]
    fn every_way_to_ask_gives_the_same_row() {
        let (mut sampler, _client, _accepted) = watching();
        for at_ns in 1..4 {
            let mut rows = Vec::new();
            let drained = sampler.drain(at_ns, &mut rows).unwrap();
            assert_eq!((drained.rows, rows.len()), (1, 1));
            assert_eq!((&*rows[0].flow_id, &*rows[0].side), ("bulk/0", "rcv"));
            assert_eq!(rows[0].gap_ns, u64::from(at_ns > 1));
            assert!(rows[0].rtt_us.is_some() && !rows[0].cc.is_empty());
            let watch = sampler.watch.as_mut().unwrap();
            assert_eq!(watch.way.filtered, at_ns < 3);
            if let Some(plainer) = watch.fallbacks.pop() {
                watch.way = plainer;
            }
        }
    }

    #[test]
    fn a_refused_request_gives_way_to_a_plainer_one() {
        let (mut sampler, _client, _accepted) = watching();
        let watch = sampler.watch.as_mut().unwrap();
        watch.fallbacks.truncate(1);
        watch.fallbacks.push(garbage());
        watch.way = garbage();
        let mut rows = Vec::new();
        sampler.drain(1, &mut rows).unwrap();
        assert_eq!(rows.len(), 1);
        assert!(!sampler.filters_in_kernel());
    }

    #[test]
    fn a_kernel_that_refuses_everything_is_an_error() {
        let (mut sampler, _client, _accepted) = watching();
        let watch = sampler.watch.as_mut().unwrap();
        watch.fallbacks.clear();
        watch.way = garbage();
        let error = sampler.drain(1, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.starts_with("dump TCP sockets: "), "{error}");
    }

    #[test]
    fn a_gap_is_counted_in_whole_samples() {
        assert_eq!(missed(151, 100), 1);
        assert_eq!(missed(249, 100), 1);
        assert_eq!(missed(303, 100), 2);
        assert_eq!(missed(5, 0), 0);
    }
}
