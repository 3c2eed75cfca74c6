//! BPF programs beside the congestion controls. One sets a congestion control before the handshake, one rewrites ECT(0)
//! to ECT(1) at egress, and one probes which flags the kernel accepts. Descriptors of this process hold them, so the
//! kernel removes them when it ends.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use ccbench_shaper::{bpf, netlink};
use libbpf_rs::{Link, MapCore as _, MapFlags, Object, TC_EGRESS, TcHookBuilder};

use super::bpf::{
    BPF_F_LINK, attach_struct_ops, count, load, map, name, open, open_map, patch, read, u64_at,
    with_log,
};
use super::error::{BpfError, NAME_BYTES, SocketError};
use super::node::Port;
use crate::undo::{Step, Undo};

const EARLY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/early.bpf.o"));
const ECT1: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ect1.bpf.o"));
const PROBE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/probe.bpf.o"));

/// Size of an entry of `early_ports`: the name, then four counters.
const EARLY_BYTES: usize = NAME_BYTES + 4 * 8;
/// `ARPHRD_ETHER`, and the size of its header.
const ETHERNET: (u16, u32) = (1, 14);

/// Sets the congestion controls of one control group's sockets before their handshake, by local port.
#[derive(Debug)]
pub struct CcHook {
    _links: Vec<Link>,
    object: Object,
}

impl CcHook {
    /// Attaches to processes in `group` and this network namespace. Sockets on other ports are not touched.
    ///
    /// # Errors
    /// The kernel lacks a feature, or refused.
    pub fn attach(group: &Path, ports: &BTreeMap<Port, String>) -> Result<Self, SocketError> {
        let cookie = bpf::netns_cookie().map_err(|source| {
            let op = "read the cookie of the network namespace".to_owned();
            SocketError::System { op, source }
        })?;
        let folder = File::open(group).map_err(SocketError::file("open", group))?;
        let mut open = open(EARLY, "early")?;
        patch(&mut open, ".rodata.early", 0, &cookie.to_ne_bytes())?;
        let object = with_log(|| load(open, "early"))?;
        let table = map(&object, "early_ports")?;
        for (port, cc) in ports {
            let mut value = [0; EARLY_BYTES];
            value[..NAME_BYTES].copy_from_slice(&name(cc)?);
            table
                .update(&key(*port), &value, MapFlags::ANY)
                .map_err(BpfError::libbpf(format!("add {port:?} to the map early_ports")))?;
        }
        let links = object
            .progs_mut()
            .map(|program| {
                program.attach_cgroup(folder.as_raw_fd()).map_err(BpfError::libbpf(format!(
                    "attach {} to control group {}",
                    program.name().to_string_lossy(),
                    group.display()
                )))
            })
            .collect::<Result<Vec<Link>, BpfError>>()?;
        Ok(Self { _links: links, object })
    }

    /// Returns the counters of a port's sockets: congestion controls set, those that the kernel refused, connections
    /// ended, and how many of these were paced.
    ///
    /// # Errors
    /// The counters cannot be read, or the hook does not have this port.
    pub fn count(&self, port: Port) -> Result<[u64; 4], BpfError> {
        let value = read(&self.object, "early_ports", &key(port))?;
        Ok(std::array::from_fn(|i| u64_at(&value, NAME_BYTES + 8 * i)))
    }
}

fn key(port: Port) -> [u8; 4] {
    let number = match port {
        Port::Local(port) => u32::from(port),
        Port::Remote(port) => u32::from(port) | 0x1_0000,
    };
    number.to_ne_bytes()
}

/// Rewrites ECT(0) to ECT(1) in packets that one congestion control sends through one interface.
#[derive(Debug)]
pub struct Ect1 {
    _link: Option<OwnedFd>,
    object: Object,
    /// The interface.
    pub dev: String,
    /// The congestion control's name in the kernel.
    pub cc: String,
}

impl Ect1 {
    /// Attaches to the egress of `dev`, for sockets of this network namespace with the congestion control `cc`.
    ///
    /// # Errors
    /// The kernel lacks a feature, or refused.
    pub fn attach(dev: &str, cc: &str, undo: &mut Undo) -> Result<Self, SocketError> {
        let (index, object) = Self::load(dev, cc)?;
        let program = object.progs_mut().next().ok_or(BpfError::NoProgram { object: "ect1" })?;
        let link = match bpf::attach_tcx_egress(program.as_fd(), index) {
            Ok(link) => Some(link),
            // Before Linux 6.6, clsact is the only place, and programs stay there.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                attach_clsact(program.as_fd(), (dev, index), undo)?;
                None
            }
            Err(source) => {
                let op = format!("attach to the egress of {dev}");
                return Err(SocketError::System { op, source });
            }
        };
        Ok(Self { _link: link, object, dev: dev.to_owned(), cc: cc.to_owned() })
    }

    fn load(dev: &str, cc: &str) -> Result<(u32, Object), SocketError> {
        let index = netlink::ifindex(dev)?;
        let mut open = open(ECT1, "ect1")?;
        patch(&mut open, ".rodata.ect1", 0, &name(cc)?)?;
        patch(&mut open, ".rodata.ect1", 20, &link_header_bytes(dev).to_ne_bytes())?;
        Ok((index, with_log(|| load(open, "ect1"))?))
    }

    /// Returns the number of packets rewritten so far.
    ///
    /// # Errors
    /// The counter cannot be read.
    pub fn rewritten(&self) -> Result<u64, BpfError> {
        count(&self.object, ".data.ect1", 0)
    }
}

/// Attaches a classifier in clsact, ahead of a userspace link's redirect; `undo` removes it.
fn attach_clsact(
    program: BorrowedFd<'_>,
    (dev, index): (&str, u32),
    undo: &mut Undo,
) -> Result<(), SocketError> {
    let own_clsact = !bpf::has_foreign_clsact(index)?;
    undo.push(Step::Classifier { ifindex: index, dev: dev.to_owned(), own_clsact })?;
    if own_clsact {
        bpf::add_clsact(index)?;
    }
    let attached = TcHookBuilder::new(program)
        .ifindex(index.cast_signed())
        .priority(u32::from(bpf::CLSACT_PRIORITY))
        .hook(TC_EGRESS)
        .attach();
    attached.map(drop).map_err(BpfError::libbpf(format!("attach to clsact of {dev}")))?;
    Ok(())
}

/// Registers a congestion control with these flags and unregisters it at once.
///
/// # Errors
/// The kernel refused.
pub fn try_flags(flags: u32) -> Result<(), BpfError> {
    with_log(|| try_flags_as(flags, true).or_else(|_| try_flags_as(flags, false)))
}

fn try_flags_as(flags: u32, link: bool) -> Result<(), BpfError> {
    let mut open = open(PROBE, "probe")?;
    // Names are global to the machine, so agents that probe at the same time need different ones.
    patch(&mut open, "probe", 0, &name(&format!("ccbp{}", std::process::id()))?)?;
    patch(&mut open, "probe", NAME_BYTES, &flags.to_ne_bytes())?;
    if !link {
        let mut map = open_map(&mut open, "probe")?;
        let flags = map.map_flags() & !BPF_F_LINK;
        map.set_map_flags(flags).map_err(BpfError::libbpf("clear BPF_F_LINK"))?;
    }
    attach_struct_ops(&mut load(open, "probe")?, "probe", "register it").map(drop)
}

/// Returns the length of the interface's link-layer header; 0 without an Ethernet address.
fn link_header_bytes(dev: &str) -> u32 {
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let kind = all
        .filter(|i| i.interface_name == dev)
        .find_map(|i| Some(i.address?.as_link_addr()?.hatype()));
    // Loopback packets have an Ethernet-like header.
    let ethernet =
        matches!(kind, Some(kind) if kind == ETHERNET.0 || kind == libc::ARPHRD_LOOPBACK);
    if ethernet || kind.is_none() { ETHERNET.1 } else { 0 }
}

#[cfg(all(test, feature = "netns"))]
mod tests {
    use super::*;
    use crate::interfaces::Machine;

    #[expect(clippy::disallowed_methods, reason = "a test starts tc")]
    fn tc(args: &str) -> String {
        let output = std::process::Command::new("tc").args(args.split(' ')).output();
        String::from_utf8(output.expect("tc is installed").stdout).expect("text")
    }

    /// On kernels with TCX, nothing else would test this path.
    #[test]
    fn undo_removes_the_classifier_and_keeps_an_earlier_clsact() {
        let in_namespace = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            for earlier in [false, true] {
                if earlier {
                    tc("qdisc add dev lo clsact");
                }
                let before = tc("qdisc show dev lo");
                let mut undo = Undo::in_memory();
                let (index, object) = Ect1::load("lo", "reno").unwrap();
                let program = object.progs_mut().next().unwrap();
                attach_clsact(program.as_fd(), ("lo", index), &mut undo).unwrap();
                let filters = tc("filter show dev lo egress");
                assert!(filters.contains("bpf") && filters.contains("direct-action"), "{filters}");
                let outcome = undo.undo_all(&Machine);
                assert_eq!((outcome.undone.len(), outcome.failed.len()), (1, 0), "{outcome:?}");
                assert_eq!(tc("filter show dev lo egress"), "");
                assert_eq!(tc("qdisc show dev lo"), before);
            }
        };
        std::thread::spawn(in_namespace).join().unwrap();
    }
}
