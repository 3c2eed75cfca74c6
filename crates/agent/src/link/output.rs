//! The output of a link: live statistics on the terminal, JSON in a file, and the packet log in another.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use ccbench_io::console::message;
use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::wire::LinkPacket;

use super::args::Args;
use super::error::LinkError;
use super::report::Interval;

/// Terminal width if it is unknown.
const WIDTH: usize = 100;

/// The columns of the packet log. Times are `CLOCK_MONOTONIC`, nanoseconds.
const COLUMNS: &str =
    "t_ns,direction,bytes,flow,ecn,fate,marked,queued_t_ns,due_t_ns,sent_t_ns,sojourn_us";

/// All output while a link runs.
pub(crate) struct Output {
    json: Option<OutputFile>,
    packets: Option<OutputFile>,
    /// Whether to show live statistics.
    live: bool,
    terminal: bool,
    drawn: usize,
    quiet: bool,
}

struct OutputFile {
    flag: &'static str,
    path: PathBuf,
    to: BufWriter<Box<dyn Write>>,
}

impl OutputFile {
    fn open(flag: &'static str, path: &Path) -> Result<Self, LinkError> {
        let to: Box<dyn Write> = if path.as_os_str() == "-" {
            Box::new(io::stdout())
        } else {
            let failed = |source| LinkError::File { flag, path: path.to_owned(), source };
            Box::new(File::create(path).map_err(failed)?)
        };
        Ok(Self { flag, path: path.to_owned(), to: BufWriter::new(to) })
    }

    fn write(
        &mut self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), LinkError> {
        write(&mut self.to).map_err(|source| {
            let path = self.path.clone();
            LinkError::File { flag: self.flag, path, source }
        })
    }
}

impl Output {
    /// Opens the files of `args`. With a command there are no live statistics: the terminal belongs to the command.
    ///
    /// # Errors
    /// A file cannot be created.
    pub(crate) fn open(args: &Args) -> Result<Self, LinkError> {
        let open = |flag, path: &Option<PathBuf>| {
            path.as_deref().map(|path| OutputFile::open(flag, path)).transpose()
        };
        let mut packets = open("--packet-log", &args.packet_log)?;
        if let Some(file) = &mut packets {
            file.write(|to| writeln!(to, "{COLUMNS}"))?;
        }
        Ok(Self {
            json: open("--stats-json", &args.stats_json)?,
            packets,
            live: args.command.is_empty() && !args.quiet,
            terminal: io::stderr().is_terminal(),
            drawn: 0,
            quiet: args.quiet,
        })
    }

    /// Whether a packet log is requested.
    pub(crate) fn wants_packets(&self) -> bool {
        self.packets.is_some()
    }

    /// Prints to standard error, unless `--quiet`.
    pub(crate) fn log(&self, text: &str) {
        if !self.quiet {
            message(text);
        }
    }

    /// Writes the statistics of an interval.
    ///
    /// # Errors
    /// The output cannot be written.
    pub(crate) fn interval(&mut self, intervals: &[Interval<'_>]) -> Result<(), LinkError> {
        self.json(intervals, false)?;
        if !self.live {
            return Ok(());
        }
        let mut text = String::new();
        if self.terminal && self.drawn > 0 {
            text += &format!("\x1b[{}A", self.drawn);
        }
        let width = width();
        for interval in intervals {
            let line = interval.live();
            if self.terminal {
                text += "\r\x1b[2K";
                text.extend(line.chars().take(width.saturating_sub(1)));
            } else {
                text += &line;
            }
            text.push('\n');
        }
        self.drawn = intervals.len();
        let _ = io::stderr().write_all(text.as_bytes());
        Ok(())
    }

    /// Writes the totals.
    ///
    /// # Errors
    /// The output cannot be written.
    pub(crate) fn totals(&mut self, intervals: &[Interval<'_>]) -> Result<(), LinkError> {
        for interval in intervals {
            self.log(&interval.totals());
        }
        self.json(intervals, true)?;
        match &mut self.packets {
            Some(file) => file.write(|to| to.flush()),
            None => Ok(()),
        }
    }

    fn json(&mut self, intervals: &[Interval<'_>], is_final: bool) -> Result<(), LinkError> {
        let Some(file) = &mut self.json else { return Ok(()) };
        file.write(|to| {
            for interval in intervals {
                writeln!(to, "{}", interval.json(is_final))?;
            }
            to.flush()
        })
    }

    /// Writes packets to the log.
    ///
    /// # Errors
    /// The output cannot be written.
    pub(crate) fn packets(
        &mut self,
        direction: &str,
        packets: &[LinkPacket],
    ) -> Result<(), LinkError> {
        let Some(file) = &mut self.packets else { return Ok(()) };
        file.write(|to| packets.iter().try_for_each(|packet| row(to, direction, packet)))
    }
}

fn row(to: &mut dyn Write, direction: &str, packet: &LinkPacket) -> io::Result<()> {
    let number = |value: Option<u64>| value.map_or(String::new(), |value| value.to_string());
    let LinkPacket { at_ns, bytes, flow, ecn, marked, .. } = packet;
    let fate = packet.fate().as_text();
    writeln!(
        to,
        "{at_ns},{direction},{bytes},{flow},{ecn},{fate},{},{},{},{},{}",
        u8::from(*marked),
        number(packet.queued_ns),
        number(packet.due_ns),
        number(packet.sent_ns),
        number(packet.sojourn_us),
    )
}

fn width() -> usize {
    match rustix::termios::tcgetwinsize(io::stderr()) {
        Ok(size) if size.ws_col > 0 => size.ws_col.into(),
        _ => WIDTH,
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::wire::PacketFate;

    use super::*;

    #[test]
    fn packet_rows_have_all_columns() {
        let mut line = Vec::new();
        let packet = LinkPacket {
            at_ns: 7,
            bytes: 1514,
            fate: PacketFate::Sent.into(),
            marked: true,
            due_ns: Some(9),
            ..LinkPacket::default()
        };
        row(&mut line, "up", &packet).unwrap();
        let line = String::from_utf8(line).unwrap();
        assert_eq!(line, "7,up,1514,0,0,sent,1,,9,,\n");
        assert_eq!(line.matches(',').count(), COLUMNS.matches(',').count());
    }

    #[test]
    fn file_errors_name_the_file() {
        let error = OutputFile::open("--stats-json", Path::new("/nowhere/x")).err().unwrap();
        assert!(error.to_string().starts_with("--stats-json /nowhere/x: "), "{error}");
    }
}
