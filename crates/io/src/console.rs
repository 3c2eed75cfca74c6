//! Standard output and standard error: lines, messages and log lines, which may have parts that a controller, another program or a file's name
//! supplied (`ccbench_proto::printable`).

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
    // In one piece: other processes write there too.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Standard error for log lines, which arrive one at a time. A closed pipe is not an error: tracing-subscriber reports errors of
/// its writer with `eprintln!`, which panics there.
#[derive(Debug, Clone, Copy)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let line = printable::line(text.strip_suffix('\n').unwrap_or(&text));
        // In one piece: other processes write there too.
        let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
