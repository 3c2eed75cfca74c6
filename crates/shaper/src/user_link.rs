//! A [`Link`] over the userspace data path: the control face. It lays the plumbing, starts the packet loop,
//! and speaks to it only by atomics and an eventfd.
//!
//! What leaves the interface as unicast IP passes through the link; ARP, other protocols, and IP to broadcast
//! and multicast addresses leave as they always did. The interface's own qdisc is passed by.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;
use std::sync::mpsc;
use std::thread::JoinHandle;

use ccbench_proto::plan::Queue;
use ccbench_proto::resolve::LinkConfig;
use ccbench_proto::units::{Limit, Rate};
use ccbench_proto::wire;
use rustix::event::{EventfdFlags, eventfd};

use crate::clock::monotonic_ns;
use crate::datapath::{Datapath, Ends, FifoLimit, LinkSpec, Privileges, Shared};
use crate::{Link, ShaperError, sys};
use plumbing::Plumbing;

mod plumbing;

pub use plumbing::cleanup;

/// Receive and send buffers of the packet sockets. What the socket cannot hold is lost and counted.
const SOCKET_BYTES: i32 = 32 << 20;

/// One direction of one interface, shaped in user space.
pub struct UserLink {
    name: String,
    dev: String,
    spec: LinkSpec,
    plumbing: Plumbing,
    shared: Arc<Shared>,
    wake: Arc<OwnedFd>,
    /// The socket that the loop reads, to ask it what it had to throw away.
    rx: OwnedFd,
    socket_drops: u64,
    loop_thread: Option<JoinHandle<()>>,
    privileges: Privileges,
}

impl UserLink {
    /// Shapes the egress of `dev` in the calling thread's network namespace. Needs `CAP_NET_ADMIN` and
    /// `CAP_NET_RAW` there.
    ///
    /// # Errors
    /// [`ShaperError::Unsupported`] for classes, queues other than `pfifo` and `bfifo`, and interfaces that are
    /// not Ethernet; [`ShaperError::Occupied`] if the interface has such a link or filters in the way already;
    /// what the kernel refused.
    pub fn open(config: &LinkConfig, dev: &str) -> Result<Self, ShaperError> {
        let spec = spec_of(config)?;
        let plumbing = Plumbing::lay(&config.name, dev)?;
        let rx = reading_socket(plumbing.reader())?;
        let tx = sending_socket(plumbing.ifindex())?;
        let ends = Ends {
            rx: rx.try_clone().map_err(system("duplicate a packet socket"))?,
            tx,
            own_address: plumbing.entry_address(),
            mtu_bytes: plumbing.mtu_bytes(),
        };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| system("make an eventfd")(e.into()))?;
        let wake = Arc::new(wake);
        let shared = Arc::new(Shared::default());
        let (loop_thread, privileges) =
            start(Datapath::new(ends, &spec, Arc::clone(&wake), Arc::clone(&shared)))?;
        let mut link = Self {
            name: config.name.clone(),
            dev: dev.to_owned(),
            spec,
            plumbing,
            shared,
            wake,
            rx,
            socket_drops: 0,
            loop_thread: Some(loop_thread),
            privileges,
        };
        link.plumbing.redirect()?;
        Ok(link)
    }

    fn nudge(&self) {
        // Can only fail if the counter would overflow, and then the loop is awake anyway.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    fn stop(&mut self) {
        self.shared.stop.store(true, Release);
        self.nudge();
        if let Some(thread) = self.loop_thread.take() {
            // A panic has been printed by the thread itself; there is nothing else to undo for it.
            let _ = thread.join();
        }
    }

    fn check_running(&self) -> Result<(), ShaperError> {
        if self.loop_thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Ok(());
        }
        Err(ShaperError::NotFound { what: "running packet loop", name: self.name.clone() })
    }
}

impl Link for UserLink {
    fn state(&self) -> wire::LinkState {
        let LinkSpec { rate_bps, delay_ns, loss_ppm, limit, .. } = self.spec;
        let rate = rate_bps.map_or("none".to_owned(), |bps| format!("{bps}bit"));
        let queue = match limit {
            FifoLimit::Bytes(bytes) => format!("bfifo limit {bytes}B"),
            FifoLimit::Packets(packets) => format!("pfifo limit {packets}p"),
        };
        wire::LinkState {
            link: self.name.clone(),
            dev: self.dev.clone(),
            backend: "userspace".to_owned(),
            why: String::new(),
            qdiscs: vec![
                "clsact".to_owned(),
                format!(
                    "userspace {queue} rate {rate} delay {}us loss {loss_ppm}ppm",
                    delay_ns / 1000
                ),
                self.privileges.text(self.shared.counters.read().yields),
            ],
        }
    }

    fn set_rate(&mut self, rate: Rate) -> Result<(), ShaperError> {
        self.check_running()?;
        self.shared.ask_rate(monotonic_ns(), rate.bits_per_sec());
        self.nudge();
        Ok(())
    }

    fn counters(
        &mut self,
        at_ns: u64,
        into: &mut Vec<wire::QdiscSample>,
    ) -> Result<(), ShaperError> {
        self.check_running()?;
        self.socket_drops += sys::take_packet_drops(self.rx.as_fd())
            .map_err(system("read a packet socket's statistics"))?;
        let now = self.shared.counters.read();
        let overmemory = now.overmemory_pkts + self.socket_drops;
        into.push(wire::QdiscSample {
            at_ns,
            link: self.name.clone(),
            iface: self.dev.clone(),
            parent: "root".to_owned(),
            kind: "userspace".to_owned(),
            sent_bytes: now.sent_bytes,
            sent_pkts: now.sent_pkts,
            drops_pkts: now.lost_pkts
                + now.overlimit_pkts
                + overmemory
                + now.unfit_pkts
                + now.device_pkts,
            backlog_bytes: now.backlog_bytes,
            qlen_pkts: now.backlog_pkts,
            drop_overlimit_pkts: Some(now.overlimit_pkts),
            drop_overmemory_pkts: Some(overmemory),
            memory_used_bytes: Some(now.memory_bytes),
            rate_bps: (now.rate_bps != u64::MAX).then_some(now.rate_bps),
            late_pkts: Some(now.late_pkts),
            max_late_us: Some(now.max_late_ns.div_ceil(1000)),
            ..wire::QdiscSample::default()
        });
        Ok(())
    }

    /// Packets inside the link are dropped.
    fn remove(&mut self) -> Result<(), ShaperError> {
        let undirected = self.plumbing.undirect();
        self.stop();
        undirected.and(self.plumbing.remove())
    }
}

impl Drop for UserLink {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(link = self.name, %error, "a userspace link left something behind");
        }
    }
}

fn system(op: &'static str) -> impl FnOnce(std::io::Error) -> ShaperError {
    move |source| ShaperError::System { op, source }
}

/// What the data path is to do, or why it cannot.
fn spec_of(config: &LinkConfig) -> Result<LinkSpec, ShaperError> {
    let refuse = |what: &str, way_out: &str| ShaperError::Unsupported {
        link: config.name.clone(),
        backend: "userspace",
        what: what.to_owned(),
        way_out: way_out.to_owned(),
    };
    if !config.classes.is_empty() {
        return Err(refuse("classes", "use backend = \"kernel\", or a link without classes"));
    }
    let limit = match &config.queue {
        Queue::Bfifo { limit: Limit::Bytes(bytes) } => FifoLimit::Bytes(bytes.get()),
        Queue::Pfifo { limit: Limit::Packets(packets) } => {
            FifoLimit::Packets(u64::from(packets.get()))
        }
        Queue::Bfifo { .. } | Queue::Pfifo { .. } => {
            return Err(refuse(
                "a queue limit that is neither bytes (bfifo) nor packets (pfifo)",
                "write it like \"187500B\" or \"40p\"",
            ));
        }
        other => {
            let kind = match other {
                Queue::Fq { .. } => "fq",
                Queue::Codel { .. } => "codel",
                Queue::FqCodel { .. } => "fq_codel",
                Queue::Cake { .. } => "cake",
                _ => "dualpi2",
            };
            return Err(refuse(
                &format!("queue {kind}"),
                "use backend = \"kernel\" on a kernel that has it, or a queue of kind bfifo or pfifo",
            ));
        }
    };
    Ok(LinkSpec {
        rate_bps: config.rate.map(Rate::bits_per_sec),
        delay_ns: config.delay.nanos(),
        loss_ppm: config.loss.get(),
        seed: config.seed,
        limit,
    })
}

fn reading_socket(ifindex: u32) -> Result<OwnedFd, ShaperError> {
    let socket = packet_socket(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)?;
    let fd = socket.as_fd();
    sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)
        .map_err(system("ignore outgoing packets (needs Linux 4.20)"))?;
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
        .map_err(system("ask for receive times"))?;
    sys::bind_packet(fd, ifindex, libc::ETH_P_ALL as u16)
        .map_err(system("bind a packet socket"))?;
    Ok(socket)
}

fn sending_socket(ifindex: u32) -> Result<OwnedFd, ShaperError> {
    let socket = packet_socket(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)?;
    let fd = socket.as_fd();
    // Also what keeps packets from being redirected again.
    sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)
        .map_err(system("pass the qdisc by"))?;
    sys::bind_packet(fd, ifindex, 0).map_err(system("bind a packet socket"))?;
    Ok(socket)
}

fn packet_socket(force_buffer: i32, buffer: i32) -> Result<OwnedFd, ShaperError> {
    let socket =
        sys::packet_socket().map_err(system("open a packet socket (needs CAP_NET_RAW)"))?;
    let fd = socket.as_fd();
    // Beyond the system's limit only root of the whole machine may go.
    if sys::set_option(fd, libc::SOL_SOCKET, force_buffer, SOCKET_BYTES).is_err() {
        sys::set_option(fd, libc::SOL_SOCKET, buffer, SOCKET_BYTES)
            .map_err(system("size a packet socket's buffer"))?;
    }
    sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)
        .map_err(system("ask for vnet headers"))?;
    Ok(socket)
}

/// Starts the packet loop and waits until its thread has asked for its privileges.
fn start(mut datapath: Datapath) -> Result<(JoinHandle<()>, Privileges), ShaperError> {
    let (tell, told) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name("ccbench-link".to_owned())
        .spawn(move || {
            let privileges = Privileges::claim();
            let _ = tell.send(privileges);
            datapath.run(privileges);
        })
        .map_err(system("start the packet loop"))?;
    let privileges = told.recv().unwrap_or_default();
    Ok((thread, privileges))
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::{Backend, Shaper};
    use ccbench_proto::resolve::ClassConfig;
    use ccbench_proto::units::{Bytes, Micros, Packets, Ppm};

    use super::*;

    fn config(queue: Queue) -> LinkConfig {
        LinkConfig {
            name: "bottleneck".to_owned(),
            rate: Some(Rate::from_bits_per_sec(1_000_000)),
            delay: Micros::from_millis(10),
            loss: Ppm::default(),
            queue,
            shaper: Shaper::Htb,
            backend: Backend::Userspace,
            classes: Vec::new(),
            seed: 3,
        }
    }

    #[test]
    fn what_it_cannot_do_is_refused_with_a_way_out() {
        let codel = Queue::Codel {
            limit: None,
            target: None,
            interval: None,
            ecn: None,
            ce_threshold: None,
        };
        assert_eq!(
            spec_of(&config(codel)).unwrap_err().to_string(),
            "link bottleneck: the userspace back end cannot do queue codel; use backend = \"kernel\" on a \
             kernel that has it, or a queue of kind bfifo or pfifo"
        );
        let fifo = Queue::Bfifo { limit: Limit::Bytes(Bytes::new(1000)) };
        let mut classes = config(fifo.clone());
        classes.classes.push(ClassConfig {
            name: "a".to_owned(),
            rate: Rate::from_bits_per_sec(1),
            ceil: Rate::from_bits_per_sec(1),
            matches: Vec::new(),
            queue: fifo,
        });
        assert!(matches!(spec_of(&classes), Err(ShaperError::Unsupported { .. })));
        let unresolved = Queue::Pfifo { limit: Limit::MilliBdp(1500) };
        assert!(matches!(spec_of(&config(unresolved)), Err(ShaperError::Unsupported { .. })));
    }

    #[test]
    fn a_fifo_is_taken_over() {
        let spec =
            spec_of(&config(Queue::Pfifo { limit: Limit::Packets(Packets::new(40)) })).unwrap();
        assert_eq!(spec.limit, FifoLimit::Packets(40));
        assert_eq!(spec.delay_ns, 10_000_000);
        assert_eq!(spec.rate_bps, Some(1_000_000));
    }
}
