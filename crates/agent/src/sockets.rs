//! Congestion control and ECN of a trial's sockets. Congestion controls are loaded, verified and removed afterwards. A
//! hook sets them before a handshake.

pub mod allowed;
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
pub mod module_loader;
pub mod names;
pub mod node;
mod row_limit;
#[cfg(feature = "ebpf")]
pub mod struct_ops;
pub mod supplied;
pub mod supplied_module;
pub mod sysfs;
pub mod verify;
