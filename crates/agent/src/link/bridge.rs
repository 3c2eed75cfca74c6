//! Two interfaces joined by the link.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use ccbench_shaper::user_link::{Bridge, bridge};

use super::args::{DOWN, UP};
use super::error::LinkError;
use super::report::Name;
use super::rtnl::{Device, Rtnl};
use super::session::Direction;
use super::spec::Spec;

/// The exclusive use of an interface by one `ccbench link`. The kernel releases it when the process ends.
pub(crate) struct InterfaceLock {
    _socket: UnixListener,
}

impl InterfaceLock {
    /// Locks an interface of the calling thread's namespace, by an abstract socket name, which is per namespace, too.
    ///
    /// # Errors
    /// Another process has locked it.
    pub(crate) fn take(flag: &'static str, device: &Device) -> Result<Self, LinkError> {
        let name = format!("ccbench-link-{}", device.index);
        let bind = || UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?);
        match bind() {
            Ok(socket) => Ok(Self { _socket: socket }),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                Err(LinkError::InUse { flag, name: device.name.clone() })
            }
            Err(error) => Err(LinkError::system(format!("take {}", device.name))(error)),
        }
    }
}

/// Returns the interface that `flag` names.
///
/// # Errors
/// The interface does not exist.
pub(crate) fn find(net: &mut Rtnl, flag: &'static str, name: &str) -> Result<Device, LinkError> {
    let devices = net.devices()?;
    if let Some(device) = devices.iter().find(|device| device.name == name) {
        return Ok(device.clone());
    }
    let known: Vec<String> = devices.into_iter().map(|device| device.name).collect();
    Err(LinkError::NoInterface { flag, name: name.to_owned(), known: known.join(" ") })
}

/// Checks and locks both interfaces.
///
/// # Errors
/// The interfaces cannot be joined.
pub(crate) fn take(
    left: &str,
    right: &str,
) -> Result<([InterfaceLock; 2], Vec<String>), LinkError> {
    let mut net = Rtnl::open()?;
    let (a, b) = (find(&mut net, "--left", left)?, find(&mut net, "--right", right)?);
    if a.index == b.index {
        return Err(LinkError::SameInterface { name: left.to_owned() });
    }
    if a.mtu_bytes != b.mtu_bytes {
        let (larger, smaller_bytes) =
            if a.mtu_bytes > b.mtu_bytes { (left, b.mtu_bytes) } else { (right, a.mtu_bytes) };
        return Err(LinkError::Mtu {
            left: left.to_owned(),
            left_bytes: a.mtu_bytes,
            right: right.to_owned(),
            right_bytes: b.mtu_bytes,
            larger: larger.to_owned(),
            smaller_bytes,
        });
    }
    let locks = [InterfaceLock::take("--left", &a)?, InterfaceLock::take("--right", &b)?];
    let down = [&a, &b].into_iter().filter(|device| !device.up);
    let warnings = down.map(|one| format!("{0} is down: `ip link set {0} up`", one.name)).collect();
    Ok((locks, warnings))
}

/// Joins two interfaces of the calling thread's namespace. The names are only for messages.
///
/// # Errors
/// The shaper refused.
pub(crate) fn join(
    (left, right): (&str, &str),
    (left_name, right_name): (&str, &str),
    spec: &Spec,
) -> Result<Vec<Direction>, LinkError> {
    let Bridge { forward, backward } = bridge(left, right, &spec.down, &spec.up)
        .map_err(LinkError::shaper(format!("join {left} and {right}")))?;
    let name = |direction, from: &str, to: &str| Name {
        direction,
        from: from.to_owned(),
        to: to.to_owned(),
    };
    Ok(vec![
        Direction::new(name(DOWN, left_name, right_name), Box::new(forward)),
        Direction::new(name(UP, right_name, left_name), Box::new(backward)),
    ])
}
