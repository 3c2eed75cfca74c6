//! `ccbench-agent enter`: runs a command inside a node of a running testbed (`ccbench exec`).

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};
use nix::unistd::{Gid, Uid, setgid, setuid};

use crate::launch::exec;
use crate::testbed::record::Record;

/// `ccbench-agent enter`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The running experiment's directory (the one with testbed.json)
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Which node
    #[arg(value_name = "NODE")]
    pub node: String,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Why a node could not be entered.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// There is no record of a testbed.
    #[error("read {}: {source}; is the experiment still running?", .path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The recorded testbed has ended.
    #[error("the testbed of {} has ended", .dir.display())]
    Dead {
        /// The experiment's directory.
        dir: PathBuf,
    },
    /// The testbed has no such node.
    #[error("there is no node `{node}`; the testbed has {known}")]
    NoNode {
        /// The requested name.
        node: String,
        /// The testbed's nodes.
        known: String,
    },
    /// The node's agent has ended.
    #[error("the agent of node `{node}` (pid {pid}) has ended")]
    NoAgent {
        /// The node.
        node: String,
        /// Its agent's pid.
        pid: u32,
    },
    /// The node's namespaces cannot be opened.
    #[error("open {path}: {source}; run this as the user who started the experiment, or as root")]
    Open {
        /// The namespace's file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused.
    #[error(
        "enter the {kind} namespace of node `{node}`: {source}; run this as the user who started the experiment, or as root"
    )]
    Setns {
        /// `user` or `network`.
        kind: &'static str,
        /// The node.
        node: String,
        /// Why.
        source: io::Error,
    },
    /// No root identity in the user namespace.
    #[error("become the user namespace's root: {0}")]
    Identity(#[source] io::Error),
}

/// Executes the command inside the node. Returns only when the program cannot be started: 127 if it is not found, else
/// 126, with the reason on standard error.
///
/// # Errors
/// The node cannot be entered.
pub fn main(args: &Args) -> Result<u8, EnterError> {
    join(&args.dir, &args.node)?;
    Ok(exec(&args.command))
}

/// Moves the calling (only) thread into the node's namespaces.
fn join(dir: &Path, node: &str) -> Result<(), EnterError> {
    let record = Record::load(dir)
        .map_err(|source| EnterError::Record { path: dir.join("testbed.json"), source })?;
    if !record.is_live() {
        return Err(EnterError::Dead { dir: dir.to_owned() });
    }
    let agent = record.nodes.get(node).ok_or_else(|| EnterError::NoNode {
        node: node.to_owned(),
        known: record.nodes.keys().map(String::as_str).collect::<Vec<_>>().join(", "),
    })?;
    let pid = agent.process.pid;
    let opened = open_ns(pid, "user").and_then(|user| Ok((user, open_ns(pid, "net")?)));
    // Checked after opening, so that the opened namespaces belong to the checked process.
    if !agent.process.is_live() {
        return Err(EnterError::NoAgent { node: node.to_owned(), pid });
    }
    let (user, net) = opened?;
    let enter = |file: &File, kind, flag| {
        setns(file, flag).map_err(|e| EnterError::Setns {
            kind,
            node: node.to_owned(),
            source: e.into(),
        })
    };
    let foreign = !is_own_user_namespace(&user).unwrap_or(false);
    if foreign {
        enter(&user, "user", CloneFlags::CLONE_NEWUSER)?;
    }
    enter(&net, "network", CloneFlags::CLONE_NEWNET)?;
    if foreign {
        // A user that is not mapped there would lose every capability at exec.
        setgid(Gid::from_raw(0)).map_err(|e| EnterError::Identity(e.into()))?;
        setuid(Uid::from_raw(0)).map_err(|e| EnterError::Identity(e.into()))?;
    }
    Ok(())
}

fn open_ns(pid: u32, kind: &str) -> Result<File, EnterError> {
    let path = format!("/proc/{pid}/ns/{kind}");
    File::open(&path).map_err(|source| EnterError::Open { path, source })
}

fn is_own_user_namespace(user: &File) -> io::Result<bool> {
    Ok(user.metadata()?.ino() == std::fs::metadata("/proc/self/ns/user")?.ino())
}
