//! What the sockets of a trial use: congestion controls (loaded, verified and removed afterwards), the hook that sets
//! them before a handshake, and ECN.

pub mod before_handshake;
#[cfg(feature = "ebpf")]
mod bpf;
pub mod capabilities;
pub mod cc_state;
pub mod command;
pub mod ecn;
pub mod error;
#[cfg(feature = "ebpf")]
pub mod hook;
pub mod journal;
pub mod kernel_module;
pub mod load;
pub mod names;
pub mod node;
#[cfg(feature = "ebpf")]
pub mod struct_ops;
pub mod sysfs;
pub mod verify;
