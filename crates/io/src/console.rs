//! Standard output and standard error: lines, messages and log lines. Parts of them may come from a controller, another program
//! or a file name (`ccbench_proto::printable`).

use std::fmt::Display;
use std::io::{self, Write};

use ccbench_proto::printable;

/// Writes lines to standard output. A closed pipe is not an error.
pub fn print(text: &str) {
    let mut out = io::stdout();
    let _ = out.write_all(printable::text(text).as_bytes()).and_then(|()| out.flush());
}

/// Writes a message to standard error. A closed pipe is not an error.
pub fn message(text: impl Display) {
    let line = format!("{}\n", printable::message(&text.to_string()));
    // In a single write, because other processes write there too.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Standard error for log lines. Each write is one line. A closed pipe is not an error: tracing-subscriber would report it with
/// `eprintln!`, which then panics.
#[derive(Debug, Clone, Copy)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let line = printable::line(text.strip_suffix('\n').unwrap_or(&text));
        // In a single write, because other processes write there too.
        let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
