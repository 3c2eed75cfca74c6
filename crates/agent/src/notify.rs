//! Notifications to systemd (`sd_notify(3)`): ready, stopping, and watchdog keepalives (`WatchdogSec=`). Without a
//! service manager, nothing is sent.

use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::pin::pin;
use std::time::Duration;

/// How long an agent may work on one request. Each step of a request has a limit of a few seconds: a module, the servers of a trial, a
/// process that does not end. An agent that works for longer hangs, for example in an undo that blocks.
const LONGEST_WORK: Duration = Duration::from_secs(60);

/// Reports that the agent listens.
pub fn ready() {
    notify("READY=1");
}

/// Reports that the agent undoes its changes and ends.
pub fn stopping() {
    notify("STOPPING=1");
}

/// Sends keepalives, if the service manager expects them. They stop when the runtime's thread hangs, and when the agent works on one
/// request for longer than a minute: `ask` asks it, and resolves when the agent has handled all earlier requests, to false if it has ended.
pub async fn keep_alive<A: Future<Output = bool>>(ask: impl Fn() -> A) {
    let variable = |name| std::env::var(name).ok();
    let (usec, pid) = (variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"));
    let Some(interval) = interval(usec.as_deref(), pid.as_deref(), std::process::id()) else {
        return;
    };
    let ticks = LONGEST_WORK.as_nanos() / interval.as_nanos().max(1);
    let limit = u32::try_from(ticks).unwrap_or(u32::MAX);
    feed(|| tokio::time::sleep(interval), limit, ask, || notify("WATCHDOG=1")).await;
}

/// Calls `send` at each tick, unless the agent has not answered for more than `limit` ticks. Returns when the agent has ended.
async fn feed<T: Future<Output = ()>, A: Future<Output = bool>>(
    tick: impl Fn() -> T,
    limit: u32,
    ask: impl Fn() -> A,
    send: impl Fn(),
) {
    send();
    // One tick after the other, whenever answers come: the service manager counts from the last keepalive.
    let mut next = pin!(tick());
    loop {
        let mut answer = pin!(ask());
        let mut unanswered = 0;
        let is_alive = loop {
            tokio::select! {
                biased;
                is_alive = &mut answer => break is_alive,
                () = &mut next => {
                    next.set(tick());
                    unanswered += 1;
                    if unanswered <= limit {
                        send();
                    } else if unanswered == limit.saturating_add(1) {
                        tracing::error!("a request has taken more than a minute; no more keepalives until it is handled");
                    }
                }
            }
        };
        if !is_alive {
            tracing::error!(
                "nothing handles requests any more (a bug in ccbench); no more keepalives"
            );
            return;
        }
        if unanswered > 0 {
            send();
        }
        next.as_mut().await;
        next.set(tick());
        send();
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::{Semaphore, watch};
    use tokio::task::JoinHandle;

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

    /// A watchdog with a limit of 3 ticks. Time passes by permits.
    struct Rig {
        time: Arc<Semaphore>,
        sent: Arc<AtomicU32>,
        answers: watch::Sender<bool>,
        fed: JoinHandle<()>,
    }

    impl Rig {
        /// A tick takes this many permits, one after the other.
        fn new(permits_per_tick: u32) -> Self {
            let (time, sent) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicU32::new(0)));
            let (answers, answer) = watch::channel(false);
            let (ticks, count) = (Arc::clone(&time), Arc::clone(&sent));
            let tick = move || {
                let ticks = Arc::clone(&ticks);
                async move {
                    for _ in 0..permits_per_tick {
                        ticks.acquire().await.unwrap().forget();
                    }
                }
            };
            let ask = move || {
                let mut answer = answer.clone();
                async move { answer.wait_for(|answers| *answers).await.is_ok() }
            };
            let send = move || {
                count.fetch_add(1, Ordering::SeqCst);
            };
            let fed = tokio::spawn(feed(tick, 3, ask, send));
            Self { time, sent, answers, fed }
        }

        /// Lets time pass. Returns the number of keepalives meanwhile.
        async fn pass(&self, permits: usize) -> u32 {
            self.time.add_permits(permits);
            while self.time.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            self.sent.swap(0, Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn an_agent_that_does_not_answer_gets_no_keepalives() {
        let rig = Rig::new(1);
        assert_eq!(rig.pass(3).await, 4, "at the start, and while it works on a request");
        assert_eq!(rig.pass(5).await, 0, "it hangs");
        rig.answers.send_replace(true);
        assert_eq!(rig.pass(0).await, 1, "it has answered");
        assert_eq!(rig.pass(4).await, 4);
        rig.answers.send_replace(false);
        assert_eq!(rig.pass(2).await, 2, "it works on another request");
        drop(rig.answers);
        rig.fed.await.unwrap();
    }

    #[tokio::test]
    async fn an_answer_between_two_ticks_does_not_delay_the_next_keepalive() {
        let rig = Rig::new(2);
        assert_eq!(rig.pass(1).await, 1, "at the start");
        rig.answers.send_replace(true);
        assert_eq!(rig.pass(0).await, 0, "it has answered before the tick");
        assert_eq!(rig.pass(1).await, 1, "at the tick, not one and a half ticks after the start");
        drop(rig.answers);
        rig.fed.abort();
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
