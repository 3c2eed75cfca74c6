//! Output of other tools as rows: `ss`, iperf3, ping. Pure; parsing never fails, and unreadable lines are reported.
//!
//! - [`iperf3`] reads its JSON, and is what the agent uses too; [`iperf3_text`] its text, into the same report.
//! - [`ss`] reads `ss -ti` and its relatives, [`ping`] reads ping(8), [`stamp`] what ts(1) and `ping -D` put in front.
//! - [`text`] walks over a file and finds out which of them wrote each line.
//! - [`gather`] merges the files about the same connections.

pub mod gather;
pub mod iperf3;
pub mod iperf3_text;
pub mod ping;
pub mod ss;
pub mod stamp;
pub mod text;
