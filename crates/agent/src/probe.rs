//! Probes: echoes (ICMP and UDP), TCP connections, HTTP fetches and UDP streams, and the servers that answer them.
//!
//! Each probe has a process of its own without privileges, on either side, so that other work of the agent does not add to its times.

pub mod http;
pub mod ping;
pub mod process;
pub mod serve;
pub mod stream;
pub mod tcp;
