//! Parsers for the fuzz targets (`tests/fuzz`) that are private otherwise. Nothing here changes the machine.

use std::net::SocketAddr;

use ccbench_proto::wire::FlowSample;

pub use crate::executor::task_of;
pub use crate::generator::report_lines;
pub use crate::probe::ping::echo_reply_of;
pub use crate::sockets::cc_state::Record;
pub use crate::sockets::journal::{Step as CcStep, steps as cc_journal};
pub use crate::testbed::plan_length;
pub use crate::undo::read_journal as undo_journal;

/// Both ends of a connection, and a sample of its socket at each interval.
pub type Connection = (SocketAddr, SocketAddr, Vec<FlowSample>);
