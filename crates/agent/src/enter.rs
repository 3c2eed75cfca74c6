//! `ccbench-agent enter`: a command inside a node of a running testbed, for people who look.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

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
enum EnterError {
    #[error("read {}: {source}; is the experiment still running?", .path.display())]
    Record { path: PathBuf, source: io::Error },
    #[error("the testbed of {} has ended", .dir.display())]
    Dead { dir: PathBuf },
    #[error("there is no node `{node}`; the testbed has {known}")]
    NoNode { node: String, known: String },
    #[error("the agent of node `{node}` (pid {pid}) has ended")]
    NoAgent { node: String, pid: u32 },
    #[error("open {path}: {source}; run this as the user who started the experiment, or as root")]
    Open { path: String, source: io::Error },
    #[error(
        "enter the {kind} namespace of node `{node}`: {source}; run this as the user who started the experiment, or as root"
    )]
    Setns { kind: &'static str, node: String, source: io::Error },
    #[error("become the user namespace's root: {0}")]
    Identity(#[source] io::Error),
}

/// Becomes the command inside the node. Returns only when that fails: 125 if the node cannot be entered,
/// 127 where the program is not found, else 126.
pub fn run(args: &Args) -> ExitCode {
    match join(&args.dir, &args.node) {
        Ok(()) => exec("ccbench-agent enter", &args.command),
        Err(error) => {
            eprintln!("ccbench-agent enter: {error}");
            ExitCode::from(125)
        }
    }
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
    // Checked after opening: what was opened belongs to the process that is checked.
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
    let foreign = !same_as_own(&user).unwrap_or(false);
    if foreign {
        enter(&user, "user", CloneFlags::CLONE_NEWUSER)?;
    }
    enter(&net, "network", CloneFlags::CLONE_NEWNET)?;
    if foreign {
        // Whoever is not mapped there would lose every capability at exec.
        setgid(Gid::from_raw(0)).map_err(|e| EnterError::Identity(e.into()))?;
        setuid(Uid::from_raw(0)).map_err(|e| EnterError::Identity(e.into()))?;
    }
    Ok(())
}

fn open_ns(pid: u32, kind: &str) -> Result<File, EnterError> {
    let path = format!("/proc/{pid}/ns/{kind}");
    File::open(&path).map_err(|source| EnterError::Open { path, source })
}

fn same_as_own(user: &File) -> io::Result<bool> {
    Ok(user.metadata()?.ino() == std::fs::metadata("/proc/self/ns/user")?.ino())
}
