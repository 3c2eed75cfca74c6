//! The parts of a node that code for its sockets uses: interfaces, undo stack, control group.

use std::path::Path;

use super::error::SocketError;
use crate::interfaces::Interfaces;
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

/// The parts of a node that attaching uses.
pub struct Node<'a> {
    /// The machine.
    pub interfaces: &'a dyn Interfaces,
    /// Records the undo of every changed setting.
    pub undo: &'a mut Undo,
    /// The control group that traffic runs in; none: the agent's own.
    pub group: Option<&'a Path>,
}

/// Sets a sysctl for the trial; its undo is recorded first.
///
/// # Errors
/// The kernel, or the undo journal, refused.
pub(crate) fn set_sysctl(name: &str, value: &str, node: &mut Node<'_>) -> Result<(), SocketError> {
    for saved in sysctl::save(name)? {
        node.undo.push(Step::Sysctl(saved))?;
    }
    Ok(sysctl::write(name, value)?)
}
