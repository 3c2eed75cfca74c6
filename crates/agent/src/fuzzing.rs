//! Exposes private parsers to the fuzz targets (`tests/fuzz`). Nothing here changes the machine.

pub use crate::boot_loader::grub::{entries as grub_entries, with_variable as grub_with_variable};
pub use crate::executor::task_of;
pub use crate::generator::{Connection, report_lines};
pub use crate::probe::ping::echo_reply_of;
pub use crate::sockets::cc_state::Record;
pub use crate::sockets::journal::{Step as CcStep, steps as cc_journal};
pub use crate::testbed::plan_length;
pub use crate::undo::read_journal as undo_journal;
