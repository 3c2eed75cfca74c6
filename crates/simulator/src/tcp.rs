//! TCP around a congestion control, as Linux implements it. Names are the kernel's. Each function names the kernel function that it follows
//! (Linux 7.3, net/ipv4). Sequence numbers do not wrap. Segment lengths are those of the application's data.

mod ack;
mod ack_state;
mod delivery_rate;
mod loss_detection;
mod output;
mod rack;
mod ranges;
mod receiver;
mod recovery;
mod retransmit_queue;
mod rtt;
mod send_buffer;
mod sender;
mod timer_wheel;
mod timers;
mod write_queue;

pub use ack_state::tsval_ms;
pub use rack::TCP_FASTRETRANS_THRESH;
pub use receiver::Receiver;
pub use rtt::TCP_TIMEOUT_INIT_US;
pub use sender::{
    EcnMode, Established, Sender, SenderConfig, TCP_INFINITE_SSTHRESH, TCP_INIT_CWND,
};
pub use timer_wheel::wheel_ns;
pub use write_queue::SocketBuffer;

#[cfg(test)]
mod tests;
