//! The controller with fake agents, which send what a test gives them.

#![allow(clippy::disallowed_methods, reason = "the fake agent has a clock")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod fake;
mod log;
mod lost;
mod reboot;
mod refused;
mod revoked;
mod version;
