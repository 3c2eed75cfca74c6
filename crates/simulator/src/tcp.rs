//! TCP as Linux does it around a congestion control. Names are the kernel's; each function names the one that it follows
//! (Linux 7.3, net/ipv4). Sequence numbers do not wrap; lengths of segments are those of the application's data.

mod ack;
mod delivery_rate;
mod output;
mod rack;
mod ranges;
mod receiver;
mod recovery;
mod retransmit_queue;
mod rtt;
mod sender;
mod timers;

pub use receiver::Receiver;
pub use sender::{EcnMode, INFINITE_SSTHRESH, INITIAL_CWND, Sender, SenderConfig};
pub use timers::wheel_ns;

#[cfg(test)]
mod tests;
