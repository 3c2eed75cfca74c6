//! The write queue of a sending socket, and the state of the application that fills it.

use std::collections::VecDeque;

/// `tcp_wmem` or `tcp_rmem`: the length of a new socket's buffer, and its limit.
#[derive(Debug, Clone, Copy)]
pub struct SocketBuffer {
    pub default_bytes: u64,
    pub max_bytes: u64,
}

/// A `struct sk_buff` of the write queue. It begins where the previous one ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct WriteSkb {
    pub(super) end_seq: u64,
    /// TCPHDR_PSH.
    pub(super) has_psh: bool,
}

/// The write queue, and the application that fills it.
#[derive(Debug)]
pub struct SendBuffer {
    /// `sk_write_queue`: data that has not been sent yet.
    pub(super) skbs: VecDeque<WriteSkb>,
    /// `sk_sndbuf`, and its limit.
    pub(super) sndbuf_bytes: u64,
    pub(super) max_bytes: u64,
    /// Offset in the stream up to which the application writes.
    pub(super) app_seq: u64,
    /// Where the current or last call of send() began.
    pub(super) call_start_seq: u64,
    pub(super) call_end_seq: u64,
    pub(super) pushed_seq: u64,
    /// SOCK_NOSPACE: the call is waiting for memory.
    pub(super) is_waiting: bool,
}

impl SendBuffer {
    pub fn new(sndbuf: SocketBuffer) -> Self {
        Self {
            skbs: VecDeque::new(),
            sndbuf_bytes: sndbuf.default_bytes,
            max_bytes: sndbuf.max_bytes,
            app_seq: 0,
            call_start_seq: 0,
            call_end_seq: 0,
            pushed_seq: 0,
            is_waiting: false,
        }
    }
}
