//! Standard output and standard error of the commands. Everything that the controller prints passes through this module, because
//! nearly all of it contains text from a plan, an agent, an imported file or a file name (`ccbench_proto::printable`).

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};

use ccbench_proto::printable;

pub use ccbench_io::console::{Log, print};

use crate::virtual_network;

/// Writes a message to standard error. A closed pipe is not an error. In a simulation, writes nothing.
pub fn message(text: impl Display) {
    if virtual_network::now_ns().is_none() {
        ccbench_io::console::message(text);
    }
}

/// Writes a JSON document and a line break to standard output. A closed pipe is not an error.
pub fn print_json(document: &impl Display) {
    let _ = write_json(document);
}

/// Like [`print_json`], for endless output.
///
/// # Errors
/// Standard output cannot be written, usually because its reader has gone.
pub fn write_json(document: &impl Display) -> io::Result<()> {
    let document = document.to_string();
    writeln!(io::stdout(), "{}", printable::json(&document))
}

/// Returns whether standard output is a terminal.
pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Returns the number of columns of the terminal; 120 if standard output is not a terminal.
pub fn terminal_width() -> u16 {
    rustix::termios::tcgetwinsize(io::stdout()).map_or(120, |size| size.ws_col.max(60))
}
