//! Network namespaces without a name: each exists while a descriptor or a process holds it. A short-lived thread
//! creates each one, because unshare(2) moves the calling thread and this process must not move.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::thread;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

use super::error::TestbedError;
use super::rtnl::Rtnl;

/// A namespace, held open.
#[derive(Debug)]
pub struct Netns {
    file: File,
    inode: u64,
    rtnl: Rtnl,
}

/// A sysctl, whether the testbed depends on it, and its value.
type Setting = (&'static str, Need, &'static str);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Required,
    Optional,
}

/// Set before the first interface, which inherits the `default` values.
const SETTINGS: &[Setting] = &[
    ("net/ipv4/ip_forward", Need::Required, "1"),
    ("net/ipv4/conf/all/rp_filter", Need::Optional, "0"),
    ("net/ipv4/conf/default/rp_filter", Need::Optional, "0"),
    // Keep router solicitations and neighbour discovery out of the measured packets.
    ("net/ipv6/conf/all/disable_ipv6", Need::Optional, "1"),
    ("net/ipv6/conf/default/disable_ipv6", Need::Optional, "1"),
    // A trial must not start from what an earlier one learnt about the same peer (ssthresh, RTT).
    ("net/ipv4/tcp_no_metrics_save", Need::Required, "1"),
    // The kernel derives these two from the size of the socket table, which is deliberately small here.
    ("net/ipv4/tcp_max_tw_buckets", Need::Optional, "8192"),
    ("net/ipv4/tcp_max_syn_backlog", Need::Optional, "4096"),
];

impl Netns {
    /// Creates the namespace of `node` with its settings.
    ///
    /// # Errors
    /// The namespace, or a setting that traffic depends on, was refused.
    pub fn make(node: &str) -> Result<Self, TestbedError> {
        let fail = |source| TestbedError::Namespace { node: node.to_owned(), source };
        thread::scope(|scope| {
            let make = || -> Result<Self, TestbedError> {
                unshare(CloneFlags::CLONE_NEWNET).map_err(|e| fail(explained(e)))?;
                let file = File::open("/proc/thread-self/ns/net").map_err(fail)?;
                let inode = file.metadata().map_err(fail)?.ino();
                for &(key, need, value) in SETTINGS {
                    match write_sysctl(key, value) {
                        Err(source) if need == Need::Required => {
                            let node = node.to_owned();
                            return Err(TestbedError::Sysctl { node, key, value, source });
                        }
                        _ => {}
                    }
                }
                Ok(Self { file, inode, rtnl: Rtnl::open()? })
            };
            let made = thread::Builder::new().spawn_scoped(scope, make).map_err(fail)?;
            made.join().unwrap_or_else(|_| Err(fail(io::Error::other("its thread panicked"))))
        })
    }

    /// Returns the inode, which identifies the namespace on this machine while it exists.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Returns its descriptor in this process.
    pub fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Returns the path at which a child of this process can open it, without inheriting a descriptor.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.raw_fd()).into()
    }

    /// Returns an rtnetlink socket inside it.
    pub fn rtnl(&mut self) -> &mut Rtnl {
        &mut self.rtnl
    }
}

/// Explains an errno whose text ("No space left on device") is misleading.
fn explained(errno: Errno) -> io::Error {
    match errno {
        Errno::ENOSPC => io::Error::other(
            "there are too many network namespaces; end other testbeds or raise user.max_net_namespaces",
        ),
        other => other.into(),
    }
}

/// Number of buckets of the TCP connection table in each node's namespace.
const EHASH_ENTRIES: &str = "1024";

/// Moves this process into its own namespace, from which the nodes' namespaces are created: a namespace inherits the
/// size of its socket table from the one it is created in. Each `inet_diag` dump walks the whole table, so with a small
/// one it is about eight times cheaper than with the machine's shared one.
///
/// Returns a note about what was not possible.
///
/// # Errors
/// The kernel refused the namespace.
pub fn enter_own_namespace() -> Result<Option<String>, io::Error> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    Ok(small_socket_tables())
}

/// Applies only the setting of [`enter_own_namespace`], for a process that already has its own namespace.
pub fn small_socket_tables() -> Option<String> {
    write_sysctl("net/ipv4/tcp_child_ehash_entries", EHASH_ENTRIES).err().map(|e| {
        format!(
            "net.ipv4.tcp_child_ehash_entries cannot be set ({e}; kernels before 6.1 do not have it): sampling sockets costs more"
        )
    })
}

fn write_sysctl(key: &str, value: &str) -> io::Result<()> {
    std::fs::write(format!("/proc/sys/{key}"), value)
}
