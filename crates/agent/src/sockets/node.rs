//! The parts of a node that its socket code uses: interfaces, undo stack, control group.

use std::path::Path;

use super::error::SocketError;
use crate::interfaces::Interfaces;
use crate::sysctl;
use crate::undo::{Step, Undo};

pub(crate) const TCP_ECN: &str = "net.ipv4.tcp_ecn";

/// Selects sockets of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// Sockets that listen on this port or connect from it.
    Local(u16),
    /// Other sockets that connect to this port: iperf3's control connection.
    Remote(u16),
}

/// The parts of a node that attaching programs uses.
pub struct Node<'a> {
    /// The machine's interfaces.
    pub interfaces: &'a dyn Interfaces,
    /// Records the undo of every changed setting.
    pub undo: &'a mut Undo,
    /// The control group that traffic runs in; `None`: the agent's own.
    pub group: Option<&'a Path>,
}

/// Sets a sysctl for the trial. Its undo is recorded first.
///
/// # Errors
/// The kernel, or the undo journal, refused.
pub(crate) fn set_sysctl(name: &str, value: &str, node: &mut Node<'_>) -> Result<(), SocketError> {
    for saved in sysctl::save(name)? {
        node.undo.push(Step::Sysctl(saved))?;
    }
    Ok(sysctl::write(name, value)?)
}
