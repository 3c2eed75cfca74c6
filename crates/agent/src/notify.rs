//! Notifications to systemd (`sd_notify(3)`): ready, stopping, and watchdog keepalives (`WatchdogSec=`). Without a
//! service manager, nothing is sent.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Reports that the agent listens.
pub fn ready() {
    notify("READY=1");
}

/// Reports that the agent undoes its changes and ends.
pub fn stopping() {
    notify("STOPPING=1");
}

/// Sends keepalives forever, if the service manager expects them. They stop when the runtime's thread hangs.
pub async fn keep_alive() {
    let variable = |name| std::env::var(name).ok();
    let (usec, pid) = (variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"));
    let Some(interval) = interval(usec.as_deref(), pid.as_deref(), std::process::id()) else {
        return;
    };
    loop {
        notify("WATCHDOG=1");
        tokio::time::sleep(interval).await;
    }
}

/// Returns half of the time after which the service manager would kill process `own`; `None` if it would not.
fn interval(usec: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    let usec: u64 = usec?.parse().ok().filter(|usec| *usec > 0)?;
    let is_ours = pid.is_none_or(|pid| pid.parse() == Ok(own));
    is_ours.then(|| Duration::from_micros(usec / 2))
}

fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&socket, state) {
        tracing::warn!(%error, state, "notify the service manager");
    }
}

/// Sends a state to `socket`: a path, or `@` and the name of an abstract socket.
fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    // A full queue of the service manager must not block the agent.
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(receiver: &UnixDatagram) -> String {
        let mut buffer = [0; 64];
        let length = receiver.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn states_reach_a_path_and_an_abstract_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let receiver = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(received(&receiver), "READY=1");
        let name = format!("ccbench-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let receiver = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), "WATCHDOG=1").unwrap();
        assert_eq!(received(&receiver), "WATCHDOG=1");
        assert!(send(dir.path().join("gone").as_os_str(), "READY=1").is_err());
    }

    #[test]
    fn keepalives_come_twice_per_limit_of_this_process() {
        let half = Some(Duration::from_secs(5));
        assert_eq!(interval(Some("10000000"), None, 7), half);
        assert_eq!(interval(Some("10000000"), Some("7"), 7), half);
        for usec in [None, Some("0"), Some("x")] {
            assert_eq!(interval(usec, None, 7), None, "{usec:?}");
        }
        assert_eq!(interval(Some("10000000"), Some("8"), 7), None, "another process's");
    }
}
