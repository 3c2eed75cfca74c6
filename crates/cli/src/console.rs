//! Standard output of the commands.

use std::io::Write as _;

/// Writes to standard output. A closed pipe is not an error.
pub fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Columns of the terminal; 120 if standard output is not a terminal.
pub fn terminal_width() -> u16 {
    rustix::termios::tcgetwinsize(std::io::stdout()).map_or(120, |size| size.ws_col.max(60))
}
