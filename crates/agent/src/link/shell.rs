//! A command behind the link, in a network namespace of its own.
//!
//! ```text
//!  this namespace │ an unnamed one, where the link is     │ the command's
//!  ccl42 ─────────┼─ outer ═ down ═> inner ───────────────┼─ ccbench0
//!  100.64.0.1     │        <═  up  ═                      │ 100.64.0.2, default route
//! ```
//!
//! Nothing has a name in the file system. However this process ends, the middle namespace dies with it, and so do the
//! interfaces, addresses and routes on both sides.

use std::ffi::OsString;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus};

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::addresses::{self, Block};
use super::error::LinkError;
use super::rtnl::{Device, Rtnl, is_taken, unspecified};
use super::signals::ReceivedSignal;

use ccbench_io::console::message;

/// The interface in the middle namespace that leads out of it.
pub(crate) const OUTER: &str = "outer";
/// The interface that leads to the command.
pub(crate) const INNER: &str = "inner";
/// The command's interface.
const COMMANDS: &str = "ccbench0";
const LOOPBACK: &str = "lo";

/// The block of the shell around this one.
const BLOCK_VARIABLE: &str = "CCBENCH_LINK_BLOCK";
/// The address of the other end.
const HOST_VARIABLE: &str = "CCBENCH_LINK_HOST";
/// The IPv6 address of the other end.
const HOST6_VARIABLE: &str = "CCBENCH_LINK_HOST6";
/// The namespace of the other end, for entering it.
const OUTSIDE_VARIABLE: &str = "CCBENCH_LINK_OUTSIDE";
/// The address of the outermost shell's other end, as in mahimahi.
const BASE_VARIABLE: &str = "MAHIMAHI_BASE";

/// Base of the exit code of a killed command; its signal is added.
const KILLED: i32 = 128;

/// Settings of the command's namespace, written before it has interfaces. Nested shells need it to forward packets.
const SETTINGS: &[(&str, &str)] = &[
    ("ipv4/ip_forward", "1"),
    ("ipv6/conf/all/forwarding", "1"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv6/conf/default/router_solicitations", "0"),
];
/// Settings of the middle namespace, which must send no packets of its own.
const SILENT: &[(&str, &str)] =
    &[("ipv6/conf/all/disable_ipv6", "1"), ("ipv6/conf/default/disable_ipv6", "1")];

/// The namespaces, the addresses and the processes.
pub(crate) struct Shell {
    outside: File,
    inside: File,
    middle: File,
    block: Block,
    command: Option<Child>,
    server: Option<Child>,
    terminated: bool,
}

impl Shell {
    /// Creates the command's namespace and the way to it, up to the two interfaces [`OUTER`] and [`INNER`]. The calling
    /// thread must be the only one of this process; it moves into their namespace. `own_outside`: the namespace outside
    /// is new, too.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn make(own_outside: bool) -> Result<Self, LinkError> {
        let mut here = Rtnl::open()?;
        if own_outside {
            let loopback = expect(&mut here, LOOPBACK)?;
            here.set_up(&loopback)?;
        }
        let enclosing = enclosing_block();
        let outside = own_namespace()?;
        let (inside, mut there) = enter_new(SETTINGS)?;
        let (middle, mut between) = enter_new(SILENT)?;
        let device = format!("ccl{}", std::process::id());
        between.add_pair(OUTER, &device, outside.as_raw_fd())?;
        between.add_pair(INNER, COMMANDS, inside.as_raw_fd())?;
        for name in [OUTER, INNER] {
            let device = expect(&mut between, name)?;
            between.set_up(&device)?;
        }
        let block = configure((&mut here, &device), &mut there, enclosing)?;
        Ok(Self { outside, inside, middle, block, command: None, server: None, terminated: false })
    }

    /// Describes what the command can reach.
    pub(crate) fn describe(&self) -> String {
        format!(
            "the command has {} and {}; the other end of the link is {} and {} (${HOST_VARIABLE}, ${HOST6_VARIABLE})",
            self.block.inner(),
            addresses::v6(self.block.inner()),
            self.block.outer(),
            addresses::v6(self.block.outer()),
        )
    }

    /// Runs `text` with `sh -c` at the other end of the link.
    ///
    /// # Errors
    /// The program could not be started.
    pub(crate) fn start_server(&mut self, text: &str) -> Result<(), LinkError> {
        let mut command = launch(&[OsString::from("sh"), "-c".into(), text.into()])?;
        // Signals from the terminal are for the command only.
        command.process_group(0);
        self.server = Some(self.spawn(&mut command, &self.outside, "sh")?);
        Ok(())
    }

    /// Runs the command.
    ///
    /// # Errors
    /// The command could not be started.
    pub(crate) fn start(&mut self, words: &[OsString]) -> Result<(), LinkError> {
        let mut command = launch(words)?;
        let host = self.block.outer().to_string();
        command.env(HOST_VARIABLE, &host);
        command.env(HOST6_VARIABLE, addresses::v6(self.block.outer()).to_string());
        command.env(BLOCK_VARIABLE, self.block.to_string());
        let own = std::process::id();
        command.env(OUTSIDE_VARIABLE, format!("/proc/{own}/fd/{}", self.outside.as_raw_fd()));
        if std::env::var_os(BASE_VARIABLE).is_none() {
            command.env(BASE_VARIABLE, &host);
        }
        let name = words.first().map(|word| word.to_string_lossy().into_owned());
        self.command = Some(self.spawn(&mut command, &self.inside, &name.unwrap_or_default())?);
        Ok(())
    }

    /// Starts a child in a namespace. A child inherits the namespace of the thread that creates it.
    fn spawn(&self, command: &mut Command, at: &File, name: &str) -> Result<Child, LinkError> {
        let enter = |namespace: &File| {
            setns(namespace, CloneFlags::CLONE_NEWNET)
                .map_err(LinkError::system("enter a network namespace"))
        };
        enter(at)?;
        let child = command.spawn();
        enter(&self.middle)?;
        child.map_err(LinkError::system(format!("start {name}")))
    }

    /// Handles a signal. Returns the command's exit code once it has ended. Forwards signals except SIGCHLD to the
    /// command, unless the terminal has already sent them to it. The second SIGTERM becomes a SIGKILL.
    pub(crate) fn on_signal(&mut self, received: ReceivedSignal) -> Option<u8> {
        let Some(command) = &mut self.command else { return Some(1) };
        if let Ok(Some(status)) = command.try_wait() {
            self.command = None;
            return Some(exit_code(status));
        }
        if let Some(server) = &mut self.server
            && let Ok(Some(status)) = server.try_wait()
        {
            self.server = None;
            if !status.success() {
                message(format_args!("ccbench link: the command of --outside has ended: {status}"));
            }
        }
        if received.signal == Signal::SIGCHLD || received.from_terminal {
            return None;
        }
        let is_term = received.signal == Signal::SIGTERM;
        let signal = if is_term && self.terminated { Signal::SIGKILL } else { received.signal };
        self.terminated |= is_term;
        let _ = kill(pid(command), signal);
        None
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        if let Some(mut command) = self.command.take() {
            let _ = kill(pid(&command), Signal::SIGKILL);
            let _ = command.wait();
        }
        if let Some(mut server) = self.server.take() {
            let _ = killpg(pid(&server), Signal::SIGTERM);
            let _ = killpg(pid(&server), Signal::SIGKILL);
            let _ = server.wait();
        }
        // The kernel would remove it, too, but later.
        if let Ok(mut middle) = Rtnl::open() {
            let _ = middle.remove(OUTER);
        }
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX))
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| KILLED + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// Returns a command that dies with this process.
#[expect(clippy::disallowed_methods, reason = "starts the user's command")]
fn launch(words: &[OsString]) -> Result<Command, LinkError> {
    let program = std::env::current_exe().map_err(LinkError::system("find this program"))?;
    let mut command = Command::new(program);
    command.arg("launch").arg("--parent").arg(std::process::id().to_string()).arg("--");
    command.args(words);
    Ok(command)
}

/// Whether this process may create network namespaces without a user namespace: it must be root, and not restricted by
/// a container.
pub(crate) fn may_make_namespaces() -> bool {
    let root = nix::unistd::geteuid().is_root();
    // Uses a short-lived thread, whose end removes the namespace.
    let attempt = || std::thread::spawn(|| unshare(CloneFlags::CLONE_NEWNET).is_ok()).join();
    root && attempt().unwrap_or(false)
}

fn own_namespace() -> Result<File, LinkError> {
    File::open("/proc/thread-self/ns/net").map_err(LinkError::system("open the network namespace"))
}

/// Moves the calling thread into a new namespace with the loopback interface up.
fn enter_new(settings: &[(&str, &str)]) -> Result<(File, Rtnl), LinkError> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(LinkError::system("make a network namespace"))?;
    for (key, value) in settings {
        // A kernel without IPv6 lacks some of them, and a read-only /proc/sys leaves the defaults.
        let _ = std::fs::write(format!("/proc/sys/net/{key}"), value);
    }
    let mut net = Rtnl::open()?;
    let loopback = expect(&mut net, LOOPBACK)?;
    net.set_up(&loopback)?;
    Ok((own_namespace()?, net))
}

fn expect(net: &mut Rtnl, name: &str) -> Result<Device, LinkError> {
    net.device(name)?.ok_or_else(|| LinkError::Netlink {
        operation: format!("find the interface {name} that was just made"),
        source: std::io::ErrorKind::NotFound.into(),
    })
}

/// Gives both ends addresses and routes to each other.
fn configure(
    (here, device): (&mut Rtnl, &str),
    there: &mut Rtnl,
    enclosing: Option<Block>,
) -> Result<Block, LinkError> {
    let (outer, inner) = (expect(here, device)?, expect(there, COMMANDS)?);
    here.set_up(&outer)?;
    there.set_up(&inner)?;
    let routes = here.routes()?;
    let has_loopback = expect(here, LOOPBACK)?.up;
    for block in addresses::free(enclosing, &routes) {
        // Adding the route reserves the block: if two shells start at once, one is refused and tries the next block.
        let via = block.inner().into();
        match here.add_route(&outer, block.base().into(), block.prefix(), via) {
            Err(error) if is_taken(&error) => continue,
            // If `lo` has never been up in a namespace, it has no local table, in which the kernel looks up the gateway.
            Err(LinkError::Netlink { operation, source }) if !has_loopback => {
                let hint =
                    "; the interface lo of this network namespace is down: `ip link set lo up`";
                return Err(LinkError::System { operation, source, hint });
            }
            other => other?,
        }
        let ends = (block.outer(), block.inner());
        address(here, &outer, ends.0, (ends.1, &inner.mac), None)?;
        address(there, &inner, ends.1, (ends.0, &outer.mac), Some(ends.0))?;
        let base = addresses::v6(block.base()).into();
        let via = addresses::v6(block.inner()).into();
        // Without IPv6 this route fails.
        let _ = here.add_route(&outer, base, addresses::v6_prefix(block.prefix()), via);
        return Ok(block);
    }
    let nested = enclosing.map_or("", |_| ", or the shells are nested too deeply");
    Err(LinkError::NoAddresses { nested })
}

/// Sets one end's addresses, its neighbour entry and its default route.
fn address(
    net: &mut Rtnl,
    device: &Device,
    own: Ipv4Addr,
    (neighbour, mac): (Ipv4Addr, &[u8]),
    default: Option<Ipv4Addr>,
) -> Result<(), LinkError> {
    const PAIR: u8 = 30;
    let both = |address: Ipv4Addr| {
        [(IpAddr::V4(address), PAIR), (addresses::v6(address).into(), addresses::v6_prefix(PAIR))]
    };
    for ((own, prefix), (neighbour, _)) in both(own).into_iter().zip(both(neighbour)) {
        let mut set = || -> Result<(), LinkError> {
            net.add_address(device, own, prefix)?;
            net.add_neighbour(device, neighbour, mac)?;
            match default {
                Some(_) => net.add_route(device, unspecified(own), 0, neighbour),
                None => Ok(()),
            }
        };
        match set() {
            // This machine may have no IPv6.
            Err(error) if own.is_ipv6() => tracing::debug!(%error, "no IPv6 for the command"),
            other => other?,
        }
    }
    Ok(())
}

/// Returns the surrounding shell's block, if this is its network and not another one that inherited the variable.
fn enclosing_block() -> Option<Block> {
    let block: Block = std::env::var(BLOCK_VARIABLE).ok()?.parse().ok()?;
    UdpSocket::bind((block.inner(), 0)).ok().map(|_| block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_shells() {
        assert_eq!(exit_code(ExitStatus::from_raw(0)), 0);
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
    }
}
