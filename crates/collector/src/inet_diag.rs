//! Samples by `NETLINK_SOCK_DIAG`: a dump of the TCP sockets of this network namespace. Works on every
//! kernel, without privileges.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use ccbench_proto::wire::FlowSample;
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};

use crate::bytes::array;
use crate::convert::{Instant, flow_sample};
use crate::diag_msg::{DiagMsg, NetlinkMsg, next_msg};
use crate::diag_request::{AF_INET, AF_INET6, SOCK_DIAG_BY_FAMILY, bytecode, dump, set_seq};
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
    requests: [Vec<u8>; 2],
    filtered: bool,
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
        self.watch.as_ref().is_some_and(|watch| watch.filtered)
    }
}

impl Sampler for DiagSampler {
    /// Opens the socket in the network namespace of the calling thread.
    fn start(&mut self, flows: &[FlowPorts], interval_ns: u64) -> Result<(), SampleError> {
        self.watch = None;
        let ports = PortMap::new(flows);
        let filter = bytecode(&ports.ranges());
        self.watch = Some(Watch {
            socket: open()?,
            buffer: vec![0; BUFFER_LEN],
            requests: [AF_INET, AF_INET6].map(|family| dump(family, filter.as_deref())),
            filtered: filter.is_some(),
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
        let mut drained = Drained::default();
        let result = self.dump_both(at_ns, into, &mut drained);
        let result = match result {
            Err(SampleError::Netlink { source, .. }) if self.filtered && refused(&source) => {
                tracing::debug!(%source, "the kernel refuses the port filter; filtering here");
                into.truncate(rows_before);
                self.filtered = false;
                self.requests = [AF_INET, AF_INET6].map(|family| dump(family, None));
                drained = Drained::default();
                self.pass.seen.retain(|_, &mut last| last != at_ns);
                self.dump_both(at_ns, into, &mut drained)
            }
            other => other,
        };
        if result.is_err() {
            // What is left of a broken dump must not meet the next one.
            self.socket = open()?;
        }
        result?;
        self.pass.forget_closed(at_ns);
        Ok(drained)
    }

    fn dump_both(
        &mut self,
        at_ns: u64,
        into: &mut Vec<FlowSample>,
        drained: &mut Drained,
    ) -> Result<(), SampleError> {
        for request in &mut self.requests {
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
            SOCK_DIAG_BY_FAMILY => {
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

/// The answers of kernels that know no filter, or not this one.
fn refused(source: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(source);
    matches!(errno, Some(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP))
}

fn netlink(op: &'static str, source: io::Error) -> SampleError {
    SampleError::Netlink { op, source }
}
