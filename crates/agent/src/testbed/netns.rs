//! Network namespaces without a name: each exists while a descriptor or a process holds it. A
//! short-lived thread makes each, because unshare(2) moves the calling thread and this process must stay where it is.

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

/// A kernel setting, whether the testbed is wrong without it, and its value.
type Setting = (&'static str, Need, &'static str);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Must,
    May,
}

/// Set before the first interface, which takes over the `default` ones.
const SETTINGS: &[Setting] = &[
    ("net/ipv4/ip_forward", Need::Must, "1"),
    ("net/ipv4/conf/all/rp_filter", Need::May, "0"),
    ("net/ipv4/conf/default/rp_filter", Need::May, "0"),
    // No router solicitations or neighbour discovery among the measured packets.
    ("net/ipv6/conf/all/disable_ipv6", Need::May, "1"),
    ("net/ipv6/conf/default/disable_ipv6", Need::May, "1"),
    // A trial must not start from what an earlier one learnt (ssthresh, RTT) about the same peer.
    ("net/ipv4/tcp_no_metrics_save", Need::Must, "1"),
    // The kernel derives these two from the size of the socket table, which is small on purpose here.
    ("net/ipv4/tcp_max_tw_buckets", Need::May, "8192"),
    ("net/ipv4/tcp_max_syn_backlog", Need::May, "4096"),
];

impl Netns {
    /// Makes the namespace of `node` with its settings.
    ///
    /// # Errors
    /// The namespace, or a setting that traffic depends on, was refused.
    pub fn make(node: &str) -> Result<Self, TestbedError> {
        let fail = |source| TestbedError::Namespace { node: node.to_owned(), source };
        thread::scope(|scope| {
            let made = scope.spawn(|| -> Result<Self, TestbedError> {
                unshare(CloneFlags::CLONE_NEWNET).map_err(|e| fail(explained(e)))?;
                let file = File::open("/proc/thread-self/ns/net").map_err(fail)?;
                let inode = file.metadata().map_err(fail)?.ino();
                for &(key, need, value) in SETTINGS {
                    match write_sysctl(key, value) {
                        Err(source) if need == Need::Must => {
                            let node = node.to_owned();
                            return Err(TestbedError::Sysctl { node, key, value, source });
                        }
                        _ => {}
                    }
                }
                Ok(Self { file, inode, rtnl: Rtnl::open()? })
            });
            made.join().unwrap_or_else(|_| Err(fail(io::Error::other("its thread panicked"))))
        })
    }

    /// Identifies the namespace on this machine while it exists.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Its descriptor in this process.
    pub fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Where a child of this process opens it; no descriptor need be inherited.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.raw_fd()).into()
    }

    /// Uses rtnetlink inside it.
    pub fn rtnl(&mut self) -> &mut Rtnl {
        &mut self.rtnl
    }
}

/// Explains the errno whose text ("No space left on device") is misleading.
fn explained(errno: Errno) -> io::Error {
    match errno {
        Errno::ENOSPC => io::Error::other(
            "there are too many of them; end other testbeds or raise user.max_net_namespaces",
        ),
        other => other.into(),
    }
}

/// Buckets of the table of TCP connections in each node's namespace.
const EHASH_ENTRIES: &str = "1024";

/// Moves this process into a namespace of its own, from which the nodes' are made: every namespace has the
/// size of its socket table from the one it is made in. A small table makes each `inet_diag` dump, which
/// walks all of it, about eight times cheaper than the machine's shared one.
///
/// Returns a note for what was not possible.
///
/// # Errors
/// The namespace was refused.
pub fn enter_own_namespace() -> Result<Option<String>, io::Error> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    Ok(small_socket_tables())
}

/// The setting of [`enter_own_namespace`] alone, for a process that already has a namespace of its own.
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
