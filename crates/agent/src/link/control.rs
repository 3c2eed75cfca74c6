//! The SSH session that a command was started in. A link on an interface of the route to the session's client could cut it off.

use std::net::IpAddr;

use ccbench_shaper::{ShaperError, netlink, route};

use super::error::LinkError;
use crate::control_interface::{self, Peer};

/// Set by sshd: address and port of the client, then of the server. sudo removes it, so the parents' environments count, too.
const VARIABLE: &str = "SSH_CONNECTION";
/// Limit of parents to check.
const MAX_PARENTS: usize = 32;

/// Refuses interfaces (each with its flag) that packets of this command's SSH session may use.
///
/// # Errors
/// The first such interface, or the kernel's error.
pub(crate) fn check(interfaces: &[(&'static str, &str)]) -> Result<(), LinkError> {
    if interfaces.is_empty() {
        return Ok(());
    }
    for client in connections().iter().filter_map(|text| client_of(text)) {
        let control = control_interface::devices(&client);
        let failed = LinkError::shaper(format!("find the route to {}", client.ip));
        let control = control.map_err(failed)?;
        for &(flag, name) in interfaces {
            let kernel_name = kernel_name(name).map_err(LinkError::shaper(flag))?;
            if control.contains(&kernel_name) {
                let (name, client) = (name.to_owned(), client.ip);
                return Err(LinkError::ControlInterface { flag, name, client });
            }
        }
    }
    Ok(())
}

/// Returns the kernel's name of an interface that a user names, perhaps by an alternative name. A nonexistent one is refused later.
fn kernel_name(name: &str) -> Result<String, ShaperError> {
    match netlink::ifindex(name).and_then(netlink::ifname) {
        Err(ShaperError::NotFound { .. }) => Ok(name.to_owned()),
        found => found,
    }
}

/// Returns the client, if its session ends in this network namespace.
fn client_of(connection: &str) -> Option<Peer> {
    let (client, server) = parse(connection)?;
    // The route to an address of this namespace uses `lo`.
    let is_here = |address| matches!(route::egress_dev(address), Ok(dev) if dev == "lo");
    if client.scope_id == 0 && !is_here(server) {
        return None;
    }
    Some(Peer { local: Some(server), ..client })
}

/// Parses the addresses of client and server from the variable.
fn parse(connection: &str) -> Option<(Peer, IpAddr)> {
    let words: Vec<&str> = connection.split_whitespace().collect();
    let [client, _, server, _] = words[..] else { return None };
    let (address, zone) = client.split_once('%').unwrap_or((client, ""));
    let ip = address.parse::<IpAddr>().ok()?.to_canonical();
    let scope_id = index_of(zone)?;
    let server = server.split('%').next().unwrap_or(server).parse::<IpAddr>().ok()?;
    Some((Peer { scope_id, ..Peer::at(ip) }, server.to_canonical()))
}

/// Returns the index of the interface that a zone names; 0 without a zone, `None` if the interface is not in this namespace.
fn index_of(zone: &str) -> Option<u32> {
    if zone.is_empty() {
        return Some(0);
    }
    zone.parse().ok().or_else(|| netlink::ifindex(zone).ok())
}

/// Returns the variable of this process and of its parents.
fn connections() -> Vec<String> {
    let mut found: Vec<String> = std::env::var(VARIABLE).into_iter().collect();
    let mut pid = std::os::unix::process::parent_id();
    for _ in 0..MAX_PARENTS {
        if pid <= 1 {
            break;
        }
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        found.extend(variable(&environment));
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        pid = parent.and_then(|parent| parent.trim().parse().ok()).unwrap_or(0);
    }
    found.sort();
    found.dedup();
    found
}

/// Returns the variable from a process's environment, as /proc shows it.
fn variable(environment: &[u8]) -> Option<String> {
    let entries = environment.split(|&byte| byte == 0);
    let mut values = entries.filter_map(|entry| {
        let value = entry.strip_prefix(VARIABLE.as_bytes())?.strip_prefix(b"=")?;
        String::from_utf8(value.to_vec()).ok()
    });
    values.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_of_a_session_is_parsed() {
        let (client, server) = parse("192.0.2.7 50000 10.0.0.1 22").unwrap();
        assert_eq!(client, Peer::at("192.0.2.7".parse().unwrap()));
        assert_eq!(server, "10.0.0.1".parse::<IpAddr>().unwrap());
        let (client, _) = parse("::ffff:192.0.2.7 50000 ::ffff:10.0.0.1 22").unwrap();
        assert_eq!(client.ip, "192.0.2.7".parse::<IpAddr>().unwrap());
        let (client, _) = parse("fe80::7%lo 50000 fe80::1%lo 22").unwrap();
        assert_eq!((client.ip, client.scope_id), ("fe80::7".parse::<IpAddr>().unwrap(), 1));
        for bad in ["", "192.0.2.7", "host 1 10.0.0.1 22", "fe80::7%nosuchdev0 1 fe80::1 22"] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_session_that_ends_elsewhere_is_none_of_ours() {
        assert!(client_of("127.0.0.1 50000 127.0.0.1 22").is_some());
        // A documentation address belongs to nobody.
        assert!(client_of("192.0.2.7 50000 192.0.2.1 22").is_none());
    }

    #[test]
    fn names_are_those_of_the_kernel() {
        assert_eq!(kernel_name("lo").unwrap(), "lo");
        assert_eq!(kernel_name("nosuchdev0").unwrap(), "nosuchdev0");
    }

    #[test]
    fn the_variable_is_found_in_an_environment() {
        let environment = b"A=1\0XSSH_CONNECTION=no\0SSH_CONNECTION=a 1 b 2\0B=2\0";
        assert_eq!(variable(environment).as_deref(), Some("a 1 b 2"));
        assert_eq!(variable(b"SSH_CLIENT=a\0"), None);
    }
}
