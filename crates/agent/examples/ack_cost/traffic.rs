//! Connections that send as fast as they can, or at a given rate, until they are stopped.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::PORT;
use crate::other_namespace::Namespace;

/// How often a paced sender writes.
const TURN: Duration = Duration::from_millis(1);

pub struct Traffic {
    stop: Arc<AtomicBool>,
    /// Bytes received.
    pub bytes: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Traffic {
    /// Starts this many connections over loopback.
    pub fn start(flows: u32) -> Self {
        Self::paced(flows, None)
    }

    /// Like [`Self::start`]; each connection sends `turn_bytes` per millisecond.
    pub fn paced(flows: u32, turn_bytes: Option<usize>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, PORT)).unwrap();
        let mut traffic = Self::none();
        for _ in 0..flows {
            let sender = TcpStream::connect((Ipv4Addr::LOCALHOST, PORT)).unwrap();
            traffic.receive(listener.accept().unwrap().0);
            traffic.send(sender, turn_bytes);
        }
        traffic
    }

    /// Opens one connection to a listener in the namespace `there`.
    pub fn between(address: IpAddr, there: &Namespace) -> Self {
        let listener =
            there.run(move || TcpListener::bind(SocketAddr::new(address, PORT)).unwrap());
        let sender = TcpStream::connect((address, PORT)).unwrap();
        let mut traffic = Self::none();
        traffic.receive(listener.accept().unwrap().0);
        traffic.send(sender, None);
        traffic
    }

    fn none() -> Self {
        Self { stop: Arc::default(), bytes: Arc::default(), threads: Vec::new() }
    }

    fn send(&mut self, mut sender: TcpStream, turn_bytes: Option<usize>) {
        let stopped = Arc::clone(&self.stop);
        self.threads.push(thread::spawn(move || {
            let block = vec![7; turn_bytes.unwrap_or(1 << 17)];
            let mut next = Instant::now();
            while !stopped.load(Ordering::Relaxed) && sender.write_all(&block).is_ok() {
                if turn_bytes.is_some() {
                    next += TURN;
                    thread::sleep(next.saturating_duration_since(Instant::now()));
                }
            }
        }));
    }

    fn receive(&mut self, mut receiver: TcpStream) {
        let count = Arc::clone(&self.bytes);
        self.threads.push(thread::spawn(move || {
            let mut block = vec![0; 1 << 17];
            while let Ok(read @ 1..) = receiver.read(&mut block) {
                count.fetch_add(read as u64, Ordering::Relaxed);
            }
        }));
    }

    pub fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
