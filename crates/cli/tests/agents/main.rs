//! Tests of the controller with fake agents that send scripted messages.

#![allow(clippy::disallowed_methods, reason = "the fake agent has a clock")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod fake;
mod log;
mod lost;
mod reboot;
mod refused;
mod reset;
mod revoked;
mod version;
