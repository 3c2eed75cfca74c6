//! One node of an experiment: owns its links, flows and samplers for one trial, and restores the machine afterwards. A
//! controller drives it over gRPC; the agent starts nothing on its own.

#![forbid(unsafe_code)]

pub mod accept;
pub mod access;
pub mod args;
pub mod audit;
mod blocking;
pub mod boot_loader;
pub mod caller;
pub mod cgroup;
pub mod clean;
pub mod clock;
pub mod control_interface;
pub mod describe;
pub mod enter;
pub mod error;
pub mod event;
pub mod exchange;
pub mod executor;
pub mod files;
pub mod flow;
pub mod front;
#[doc(hidden)]
pub mod fuzzing;
pub mod generator;
pub mod guest;
pub mod identity;
pub mod interfaces;
pub mod join;
pub mod launch;
pub mod link;
pub mod listening;
pub mod loader;
pub mod local_socket;
mod mountinfo;
pub mod notify;
pub mod placement;
pub mod ports;
pub mod privileges;
pub mod probe;
pub mod renew;
mod rtnetlink;
pub mod serve;
pub mod service;
pub mod session;
pub mod sockets;
pub mod sysctl;
pub mod testbed;
pub mod tls;
pub mod undo;
mod user;

pub use error::AgentError;
