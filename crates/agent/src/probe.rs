//! Probes that are not echoes: how long a connection, or a file from a web server, takes; and what answers them.
//!
//! They measure in a thread of their own with nothing else in it, because the agent's other work would be in their
//! times.

pub mod http;
pub mod ping;
pub mod serve;
pub mod tcp;
