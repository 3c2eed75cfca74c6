//! A second network namespace for both ends of a veth pair.

use std::sync::mpsc;
use std::thread;

use crate::namespace;

/// A second network namespace, held by a thread that runs closures in it.
pub struct Namespace {
    work: mpsc::Sender<Box<dyn FnOnce() + Send>>,
    pub thread_id: i32,
}

impl Namespace {
    pub fn new() -> Self {
        let (work, requests) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let (reply, result) = mpsc::channel();
        thread::spawn(move || {
            namespace(true);
            reply.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            requests.into_iter().for_each(|work| work());
        });
        Self { work, thread_id: result.recv().unwrap() }
    }

    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (reply, result) = mpsc::channel();
        self.work.send(Box::new(move || reply.send(work()).unwrap())).unwrap();
        result.recv().unwrap()
    }
}
