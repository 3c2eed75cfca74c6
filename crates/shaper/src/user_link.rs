//! A [`Link`] that uses the userspace datapath: the control side. It sets up the redirection, starts the packet loop, and controls it only
//! through atomics and an eventfd.
//!
//! On the egress of a routing node ([`UserLink::open`]), unicast IP packets pass through the link. ARP, other protocols, broadcast and
//! multicast bypass it. Between two interfaces ([`bridge`]), every frame passes through. The interface's own qdisc is bypassed.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;
use std::sync::mpsc;
use std::thread::JoinHandle;

use ccbench_proto::resolve::LinkConfig;
use ccbench_proto::units::{Bytes, Micros, Ppm, Rate};
use ccbench_proto::wire;
use rustix::event::{EventfdFlags, eventfd};

use crate::clock::monotonic_ns;
use crate::datapath::{Datapath, LinkSpec, PacketSockets, Privileges, Shared};
use crate::replay::{self, PlayedRows};
use crate::{Link, ShaperError, sys};
use spec::spec_of;
use veth_redirect::VethRedirect;

mod bridge;
pub(crate) mod report;
pub(crate) mod spec;
pub(crate) mod veth_redirect;

pub use bridge::{Bridge, bridge};
pub use veth_redirect::cleanup;

/// Receive and send buffers of the packet sockets. Packets that do not fit are dropped and counted.
const SOCKET_BYTES: i32 = 32 << 20;

/// The receiving end of the packet loop.
struct RxEnd {
    rx: OwnedFd,
    own_address: Option<[u8; 6]>,
}

/// The sending end of the packet loop.
struct TxEnd<'a> {
    dev: &'a str,
    ifindex: u32,
    mtu_bytes: u32,
}

/// The source of the packet loop's packets.
enum PacketSource {
    /// Packets redirected from the egress of an interface.
    Redirected(VethRedirect),
    /// Packets received on another interface.
    Bridged {
        /// The name of that interface.
        from: String,
    },
}

/// One direction of one interface, shaped in user space.
pub struct UserLink {
    name: String,
    dev: String,
    spec: LinkSpec,
    source: PacketSource,
    shared: Arc<Shared>,
    wake: Arc<OwnedFd>,
    /// The loop's receiving socket, for its drop counter.
    rx: OwnedFd,
    socket_drops: u64,
    loop_thread: Option<JoinHandle<()>>,
    privileges: Privileges,
    played: Option<PlayedRows>,
}

impl UserLink {
    /// Shapes the egress of `dev` in the calling thread's network namespace. Needs `CAP_NET_ADMIN` and `CAP_NET_RAW` there.
    ///
    /// # Errors
    /// [`ShaperError::Unsupported`] for the queue `cake`, unsupported values of a queue, classes without a rate, and interfaces that are
    /// not Ethernet; [`ShaperError::Occupied`] if the interface already has such a link or other filters; errors of the kernel.
    pub fn open(config: &LinkConfig, dev: &str) -> Result<Self, ShaperError> {
        let mut redirect = VethRedirect::create(&config.name, dev)?;
        let rx_end = RxEnd {
            rx: reading_socket(redirect.reader())?,
            own_address: Some(redirect.entry_address()),
        };
        let tx_end = TxEnd { dev, ifindex: redirect.ifindex(), mtu_bytes: redirect.mtu_bytes() };
        let spec = spec_of(config)?;
        let mut link = Self::start(config, spec, rx_end, &tx_end)?;
        redirect.redirect()?;
        link.source = PacketSource::Redirected(redirect);
        Ok(link)
    }

    /// Starts the packet loop between two ends. The caller then directs packets to `rx_end`.
    fn start(
        config: &LinkConfig,
        spec: LinkSpec,
        rx_end: RxEnd,
        tx_end: &TxEnd<'_>,
    ) -> Result<Self, ShaperError> {
        let sockets = PacketSockets {
            rx: rx_end.rx.try_clone().map_err(system("duplicate a packet socket"))?,
            tx: sending_socket(tx_end.ifindex)?,
            own_address: rx_end.own_address,
            mtu_bytes: tx_end.mtu_bytes,
        };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| system("create an eventfd")(e.into()))?;
        let wake = Arc::new(wake);
        let shared = Arc::new(Shared::new(config.plan.packet_log.map(Bytes::get)));
        let (loop_thread, privileges) =
            start(Datapath::new(sockets, &spec, Arc::clone(&wake), Arc::clone(&shared)))?;
        Ok(Self {
            name: config.name.clone(),
            dev: tx_end.dev.to_owned(),
            spec,
            source: PacketSource::Bridged { from: String::new() },
            shared,
            wake,
            rx: rx_end.rx,
            socket_drops: 0,
            loop_thread: Some(loop_thread),
            privileges,
            played: config.trace.as_ref().map(PlayedRows::new),
        })
    }

    fn wake_thread(&self) {
        // This fails only if the counter overflows, and then the loop is already awake.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    fn stop(&mut self) {
        self.shared.stop.store(true, Release);
        self.wake_thread();
        if let Some(thread) = self.loop_thread.take() {
            // The panic hook has already printed a panic.
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
        wire::LinkState {
            link: self.name.clone(),
            dev: self.dev.clone(),
            backend: wire::Backend::Userspace.into(),
            reason: None,
            qdiscs: vec![
                match &self.source {
                    PacketSource::Redirected(_) => "clsact".to_owned(),
                    PacketSource::Bridged { from } => format!("packet socket on {from}"),
                },
                format!("userspace {}", self.spec.describe()),
                self.privileges.describe(self.shared.counters.read().demotions),
            ],
        }
    }

    fn set_rate(&mut self, rate: Rate) -> Result<(), ShaperError> {
        self.check_running()?;
        if self.played.is_some() {
            return Err(replay::rate_change_with_trace(&self.name, "userspace"));
        }
        self.shared.request_rate(monotonic_ns(), rate.bits_per_sec());
        self.wake_thread();
        Ok(())
    }

    fn set_delay(&mut self, delay: Micros) -> Result<(), ShaperError> {
        self.check_running()?;
        self.shared.request_delay(monotonic_ns(), delay.nanos());
        self.wake_thread();
        Ok(())
    }

    fn set_loss(&mut self, loss: Ppm) -> Result<(), ShaperError> {
        self.check_running()?;
        self.shared.request_loss(loss.get());
        self.wake_thread();
        Ok(())
    }

    fn set_queue(&mut self, number: usize) -> Result<(), ShaperError> {
        self.check_running()?;
        self.shared.request_queue(monotonic_ns(), number);
        self.wake_thread();
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
        let names = (self.name.as_str(), self.dev.as_str());
        into.push(report::qdisc_sample(&self.spec, &now, self.socket_drops, at_ns, names));
        Ok(())
    }

    fn begin(&mut self, at_ns: u64) -> Result<(), ShaperError> {
        self.check_running()?;
        self.shared.begin_at_ns.store(at_ns, Release);
        self.wake_thread();
        Ok(())
    }

    fn changes(&mut self, into: &mut Vec<wire::LinkChange>) {
        let Some(played) = &mut self.played else { return };
        match self.shared.counters.read().trace_began_ns {
            0 => {}
            began_ns => played.begin(began_ns),
        }
        played.rows(monotonic_ns(), (&self.name, &self.dev), into);
    }

    fn packets(&mut self, into: &mut Vec<wire::LinkPacket>) {
        let rows = std::iter::from_fn(|| self.shared.log.as_ref()?.read());
        into.extend(rows.map(|row| report::packet(&self.name, &self.dev, &row)));
    }

    fn timing(&mut self, into: &mut Vec<wire::LinkTiming>) {
        let row = wire::LinkTiming {
            at_ns: monotonic_ns(),
            link: self.name.clone(),
            iface: self.dev.clone(),
            ..wire::LinkTiming::default()
        };
        into.extend(report::steps_timing(self.played.as_ref(), row.clone()));
        let late = self.shared.counters.read().late_pkts;
        into.push(report::packets_timing(&self.shared.scheduling_error, late, row.clone()));
        into.extend(self.shared.log.as_ref().map(|log| report::log_timing(log, row)));
    }

    /// Drops the packets that are still in the link.
    fn remove(&mut self) -> Result<(), ShaperError> {
        let PacketSource::Redirected(redirect) = &mut self.source else {
            self.stop();
            return Ok(());
        };
        let redirect_stopped = redirect.stop_redirect();
        self.stop();
        match &mut self.source {
            PacketSource::Redirected(redirect) => redirect_stopped.and(redirect.remove()),
            PacketSource::Bridged { .. } => redirect_stopped,
        }
    }
}

impl Drop for UserLink {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(link = self.name, %error, "could not remove all parts of a userspace link");
        }
    }
}

fn system(op: &'static str) -> impl FnOnce(std::io::Error) -> ShaperError {
    move |source| ShaperError::System { op, source }
}

fn reading_socket(ifindex: u32) -> Result<OwnedFd, ShaperError> {
    let socket = packet_socket(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)?;
    let fd = socket.as_fd();
    sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)
        .map_err(system("ignore outgoing packets (needs Linux 4.20)"))?;
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
        .map_err(system("enable receive timestamps"))?;
    sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)
        .map_err(system("enable PACKET_AUXDATA for VLAN tags"))?;
    sys::bind_packet(fd, ifindex, libc::ETH_P_ALL as u16)
        .map_err(system("bind a packet socket"))?;
    Ok(socket)
}

fn sending_socket(ifindex: u32) -> Result<OwnedFd, ShaperError> {
    let socket = packet_socket(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)?;
    let fd = socket.as_fd();
    // This also prevents packets from being redirected again.
    sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)
        .map_err(system("enable PACKET_QDISC_BYPASS"))?;
    sys::bind_packet(fd, ifindex, 0).map_err(system("bind a packet socket"))?;
    Ok(socket)
}

fn packet_socket(force_buffer: i32, buffer: i32) -> Result<OwnedFd, ShaperError> {
    let socket =
        sys::packet_socket().map_err(system("open a packet socket (needs CAP_NET_RAW)"))?;
    let fd = socket.as_fd();
    // The FORCE options need CAP_NET_ADMIN in the initial user namespace.
    if sys::set_option(fd, libc::SOL_SOCKET, force_buffer, SOCKET_BYTES).is_err() {
        sys::set_option(fd, libc::SOL_SOCKET, buffer, SOCKET_BYTES)
            .map_err(system("set the buffer size of a packet socket"))?;
    }
    sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)
        .map_err(system("enable vnet headers"))?;
    Ok(socket)
}

/// Starts the packet loop and waits until its thread has requested its privileges.
fn start(mut datapath: Datapath) -> Result<(JoinHandle<()>, Privileges), ShaperError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name("ccbench-link".to_owned())
        .spawn(move || {
            let privileges = Privileges::acquire();
            let _ = sender.send(privileges);
            datapath.run(privileges);
        })
        .map_err(system("start the packet loop"))?;
    let privileges = receiver.recv().unwrap_or_default();
    Ok((thread, privileges))
}
