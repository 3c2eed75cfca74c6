//! Three network namespaces in a row, `src — router — dst`. Each belongs to a thread and ends with it.

use std::process::Command;
use std::sync::mpsc;
use std::sync::{RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

/// A namespace and its thread.
pub struct Node {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    tid: i32,
}

impl Node {
    fn new() -> Self {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
                .expect("these tests need root (CAP_SYS_ADMIN) to make network namespaces");
            sender.send(nix::unistd::gettid().as_raw()).unwrap();
            for job in inbox {
                job();
            }
        });
        let tid = receiver.recv().expect("the namespace was made");
        let node = Self { jobs: Some(jobs), thread: Some(thread), tid };
        node.ip("link set lo up");
        node
    }

    /// Runs `job` in the namespace without waiting for it.
    pub fn start<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> mpsc::Receiver<T> {
        let (sender, receiver) = mpsc::channel();
        let job = Box::new(move || {
            let _ = sender.send(job());
        });
        self.jobs.as_ref().unwrap().send(job).unwrap();
        receiver
    }

    /// Runs `job` in the namespace and waits for it.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.start(job).recv().expect("the job did not panic")
    }

    /// Runs a command in the namespace, which must succeed. Returns its standard output.
    pub fn command(&self, line: &str) -> String {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let output = self.run(move || Command::new(&words[0]).args(&words[1..]).output().unwrap());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// `ip ...`
    pub fn ip(&self, arguments: &str) -> String {
        self.command(&format!("ip {arguments}"))
    }

    /// Returns the state that a link must restore: interfaces, qdiscs, and filters of `dev`.
    pub fn network(&self, dev: &str) -> String {
        [
            self.ip("-o -br link"),
            self.command("tc qdisc show"),
            self.command(&format!("tc filter show dev {dev} egress")),
        ]
        .concat()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A test's turn: alone, or beside other tests of this binary. Tests that measure run alone, because the binary's own load excuses no
/// measurement.
type Turn = (Option<RwLockWriteGuard<'static, ()>>, Option<RwLockReadGuard<'static, ()>>);

fn beside() -> Turn {
    (None, Some(ccbench_tests::beside_others()))
}

/// `src` (10.1.0.1, fd01::1) `s0 — r0` router `r1 — d0` `dst` (10.2.0.2, fd02::2).
pub struct Lab {
    pub src: Node,
    pub router: Node,
    pub dst: Node,
    /// Held until the namespaces are gone.
    _turn: Turn,
}

/// The sender's address, IPv4.
pub const SRC: &str = "10.1.0.1";
/// The receiver's address, IPv4.
pub const DST: &str = "10.2.0.2";
/// The receiver's address, IPv6.
pub const DST6: &str = "fd02::2";

/// The receiver's addresses in [`Lab::flat`].
pub const FLAT_DST: &str = "10.3.0.2";
pub const FLAT_DST6: &str = "fd03::2";

impl Lab {
    fn wired(turn: Turn) -> Self {
        let (src, router, dst) = (Node::new(), Node::new(), Node::new());
        let lab = Self { src, router, dst, _turn: turn };
        let (src, dst) = (lab.src.tid, lab.dst.tid);
        lab.router.ip(&format!("link add r0 type veth peer name s0 netns {src}"));
        lab.router.ip(&format!("link add r1 type veth peer name d0 netns {dst}"));
        lab
    }

    /// Creates both ends in one network, 10.3.0.0/24 and fd03::/64, not connected yet.
    pub fn flat() -> Self {
        let lab = Self::wired(beside());
        let ends = [(&lab.src, "s0", 1), (&lab.dst, "d0", 2)];
        for (node, dev, host) in ends {
            node.ip(&format!("addr add 10.3.0.{host}/24 dev {dev}"));
            node.ip(&format!("addr add fd03::{host}/64 dev {dev} nodad"));
            node.ip(&format!("link set {dev} up"));
        }
        lab.router.ip("link set r0 up");
        lab.router.ip("link set r1 up");
        lab.await_carriers();
        lab
    }

    /// Waits for carrier. Packets sent earlier are lost.
    fn await_carriers(&self) {
        let start = std::time::Instant::now();
        let ends =
            [(&self.src, "s0"), (&self.router, "r0"), (&self.router, "r1"), (&self.dst, "d0")];
        for (node, dev) in ends {
            while !node.ip(&format!("-o link show dev {dev}")).contains("state UP") {
                assert!(start.elapsed() < super::WAIT_TIMEOUT, "{dev} has no carrier");
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
    }

    /// Creates a lab that runs beside other tests.
    pub fn new() -> Self {
        Self::routed(beside())
    }

    /// Creates a lab without other tests of this binary, to measure.
    pub fn alone() -> Self {
        Self::routed((Some(ccbench_tests::alone()), None))
    }

    fn routed(turn: Turn) -> Self {
        let lab = Self::wired(turn);
        let ends = [
            (&lab.src, "s0", "10.1.0.1/24", "fd01::1/64"),
            (&lab.router, "r0", "10.1.0.2/24", "fd01::2/64"),
            (&lab.router, "r1", "10.2.0.1/24", "fd02::1/64"),
            (&lab.dst, "d0", "10.2.0.2/24", "fd02::2/64"),
        ];
        for (node, dev, v4, v6) in ends {
            node.ip(&format!("addr add {v4} dev {dev}"));
            node.ip(&format!("addr add {v6} dev {dev} nodad"));
            node.ip(&format!("link set {dev} up"));
        }
        lab.router.run(|| {
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        });
        lab.src.ip("route add default via 10.1.0.2");
        lab.src.ip("-6 route add default via fd01::2");
        lab.dst.ip("route add default via 10.2.0.1");
        lab.dst.ip("-6 route add default via fd02::1");
        lab.await_carriers();
        lab
    }
}
