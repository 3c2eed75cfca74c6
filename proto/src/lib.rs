//! The vocabulary of ccbench: units, plan, schedule, topology and wire format. This crate does no I/O and
//! reads no clock. Every other crate uses its types.
//!
//! Terms: a **plan** is what a user writes. Its matrix expands to **points**; a point is run `repeat`
//! times, each a **trial**. A trial is a timeline of **phases**. A **link** is one direction of one
//! interface with a rate, a delay and a queue. A **flow group** is a number of TCP sockets that start
//! and stop together. A **node** is a machine or a namespace, with one **agent**.
#![forbid(unsafe_code)]

pub mod ack_mode;
pub mod cc;
pub mod column_text;
pub mod event;
pub mod flow_hash;
pub mod http;
pub mod join;
pub mod link_state;
pub mod manifest;
pub mod metric;
pub mod plan;
pub mod printable;
pub mod resolve;
pub mod schedule;
pub mod scope;
pub mod sealed_line;
pub mod testbed;
pub mod tools;
pub mod topology;
pub mod trace;
pub mod trigger;
pub mod units;
pub mod via_reason;
pub mod wire;
