//! Listening TCP sockets of this network namespace.

use std::io::BufRead as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// A listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    /// The address; unspecified means all addresses.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// The socket's inode, as in `/proc/PID/fd`.
    inode: u64,
}

/// Returns all listeners on a port, from /proc/self/net/tcp and tcp6. Listeners come first there, so the first other
/// socket ends the search.
fn listeners(port: u16) -> Vec<Listener> {
    let of = |path: &str| {
        let file = std::fs::File::open(path).ok();
        let lines = file
            .into_iter()
            .flat_map(|file| std::io::BufReader::new(file).lines().skip(1).map_while(Result::ok));
        lines.map_while(|line| listener(&line)).filter(|l| l.port == port).collect::<Vec<_>>()
    };
    let mut found = of("/proc/self/net/tcp");
    found.extend(of("/proc/self/net/tcp6"));
    found
}

/// Whether the process `pid` listens on a port. If its descriptors are not readable, whether any process does.
pub fn listens(pid: u32, port: u16) -> bool {
    listeners(port)
        .iter()
        .any(|l| holds(Path::new(&format!("/proc/{pid}/fd")), l.inode) != Some(false))
}

/// Returns the process that listens on this address and port, if any: `0.0.0.0:5201 (nginx, pid 7)`.
pub fn occupant(address: IpAddr, port: u16) -> Option<String> {
    let taken = |l: &Listener| l.address.is_unspecified() || l.address == address;
    let listener = listeners(port).into_iter().find(taken)?;
    let who =
        owner(listener.inode).unwrap_or_else(|| "a process that is not visible here".to_owned());
    Some(format!("{} ({who})", std::net::SocketAddr::new(listener.address, port)))
}

/// Returns the name and pid of a process that holds a socket.
fn owner(inode: u64) -> Option<String> {
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse::<u32>().ok()?;
        if holds(&entry.path().join("fd"), inode) != Some(true) {
            return None;
        }
        let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        Some(format!("{}, pid {pid}", name.trim()))
    })
}

/// Whether a process has this socket among its descriptors; `None` if they cannot be read.
fn holds(descriptors: &Path, inode: u64) -> Option<bool> {
    let name = format!("socket:[{inode}]");
    let entries = std::fs::read_dir(descriptors).ok()?;
    let is_it =
        |path: std::path::PathBuf| std::fs::read_link(path).is_ok_and(|to| to == Path::new(&name));
    Some(entries.flatten().any(|entry| is_it(entry.path())))
}

/// Parses the line of a listening socket; `None` for any other socket.
fn listener(line: &str) -> Option<Listener> {
    let mut fields = line.split_whitespace().skip(1);
    let local = fields.next()?;
    let state = fields.nth(1)?;
    let inode = fields.nth(5)?.parse().ok()?;
    let (address, port) = local.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    (state == "0A").then_some(Listener { address: address_of(address)?, port, inode })
}

/// Parses an address: the kernel prints four-byte words in native byte order.
fn address_of(digits: &str) -> Option<IpAddr> {
    let word =
        |at: usize| Some(u32::from_str_radix(digits.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    match digits.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let bytes = [word(0)?, word(8)?, word(16)?, word(24)?].concat();
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn parses_address_port_and_state() {
        let line = "   0: 0100007F:1451 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        \
                    0 4711 1 0000000000000000 100 0 0 10 0";
        let found = listener(line).unwrap();
        assert_eq!(found, Listener { address: [127, 0, 0, 1].into(), port: 5201, inode: 4711 });
        assert_eq!(listener(&line.replace(" 0A ", " 01 ")), None);
        assert_eq!(listener("sl local_address rem_address st"), None);
        assert_eq!(
            address_of("00000000000000000000000001000000"),
            Some(IpAddr::V6(Ipv6Addr::LOCALHOST))
        );
        assert_eq!(address_of("0000000"), None);
    }

    #[test]
    fn finds_the_own_listener() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let here = IpAddr::from([127, 0, 0, 1]);
        assert!(listens(std::process::id(), port));
        let who = occupant(here, port).unwrap();
        let (address, pid) = (format!("127.0.0.1:{port} ("), std::process::id());
        assert!(who.starts_with(&address) && who.ends_with(&format!(", pid {pid})")), "{who}");
        assert_eq!(occupant([127, 0, 0, 2].into(), port), None);
        // Another test's child process may hold a copy of the descriptor until its exec, so closing the socket does not
        // end listening reliably.
        socket2::SockRef::from(&socket).shutdown(std::net::Shutdown::Read).unwrap();
        drop(socket);
        assert!(!listens(std::process::id(), port));
        assert_eq!(occupant(here, port), None);
    }
}
