//! Probes: echoes (ICMP and UDP), TCP connections, HTTP fetches and UDP streams, and the servers that answer them.
//!
//! A dedicated thread measures connections and fetches, so that other work of the agent does not add to the times.

pub mod http;
pub mod ping;
pub mod serve;
pub mod stream;
pub mod tcp;
