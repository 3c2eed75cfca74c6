//! What attaching to sockets needs of the node.

use std::path::Path;

use crate::kernel::Kernel;
use crate::sysctl;
use crate::undo::{Step, Undo};

pub(crate) const TCP_ECN: &str = "net.ipv4.tcp_ecn";

/// Which sockets of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// Those that listen on it or connect from it.
    Local(u16),
    /// What connects to it otherwise: iperf3's control connection.
    Remote(u16),
}

/// What is needed of the node.
pub struct Node<'a> {
    /// The machine.
    pub kernel: &'a dyn Kernel,
    /// Takes the undo of every change of a setting.
    pub undo: &'a mut Undo,
    /// The control group that traffic runs in; none: the agent's own.
    pub group: Option<&'a Path>,
}

/// Sets a setting for the trial.
pub(crate) fn set(name: &str, value: &str, node: &mut Node<'_>) -> Result<(), String> {
    let saved = sysctl::save(name).map_err(|e| e.to_string())?;
    for saved in saved {
        node.undo.push(Step::Sysctl(saved)).map_err(|e| e.to_string())?;
    }
    sysctl::write(name, value).map_err(|e| e.to_string())
}
