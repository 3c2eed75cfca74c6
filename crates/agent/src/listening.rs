//! Whether something listens on a TCP port of this network namespace.

/// Looks into /proc/self/net/tcp and tcp6; listeners come first there, so the first other socket ends it.
pub fn listens(port: u16) -> bool {
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"].iter().any(|path| {
        use std::io::BufRead as _;
        let Ok(file) = std::fs::File::open(path) else { return false };
        std::io::BufReader::new(file)
            .lines()
            .skip(1)
            .map_while(Result::ok)
            .map_while(|line| listener(&line))
            .any(|found| found == port)
    })
}

/// The port of a listening socket's line; none for any other socket.
fn listener(line: &str) -> Option<u16> {
    let mut fields = line.split_whitespace().skip(1);
    let local = fields.next()?;
    let state = fields.nth(1)?;
    let (_, port) = local.rsplit_once(':')?;
    (state == "0A").then(|| u16::from_str_radix(port, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_port_and_state() {
        let line = "   0: 0100007F:1451 00000000:0000 0A 00000000:00000000 00:00000000 00000000";
        assert_eq!(listener(line), Some(5201));
        assert_eq!(listener(&line.replace(" 0A ", " 01 ")), None);
        assert_eq!(listener("sl local_address rem_address st"), None);
    }

    #[test]
    fn our_own_listener_is_seen() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert!(listens(port));
        drop(socket);
        assert!(!listens(port));
    }
}
