//! Splits the one JSON document of an iperf3 without `--json-stream` (`-J`) into the lines that `--json-stream` would print, so that the
//! document need not be in memory. Pure.
//!
//! A document may be cut anywhere: every complete member and every complete interval becomes a line. What precedes the document is left
//! out, and so is what follows it.

/// Limit of one line; a longer one becomes an empty one, which cannot be read and is counted. 1024 streams have 500 kB.
pub const MAX_LINE_BYTES: usize = 1 << 20;

/// A document that arrives in pieces.
#[derive(Debug, Default)]
pub struct Document {
    /// Brackets and braces that are open.
    depth: usize,
    in_string: bool,
    escaped: bool,
    is_over: bool,
    /// The last string in the outermost object; the key of the member, once its value begins.
    key: Vec<u8>,
    /// Whether the value of the member has begun.
    in_value: bool,
    /// The value so far, if it becomes a line.
    value: Vec<u8>,
    is_too_long: bool,
    /// An end that has failed may report more errors while it exits: the first one is the cause.
    has_error: bool,
}

impl Document {
    /// Returns the lines that become complete with these bytes.
    pub fn split(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        bytes.iter().filter_map(|&byte| self.step(byte)).collect()
    }

    fn step(&mut self, byte: u8) -> Option<Vec<u8>> {
        if self.is_over || (self.depth == 0 && byte != b'{') {
            return None;
        }
        if self.in_string {
            self.keep(byte);
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => {
                    self.in_string = false;
                    return self.ends_value(1);
                }
                _ => {}
            }
            return None;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                if self.depth == 1 && !self.in_value {
                    self.key.clear();
                }
                self.keep(byte);
            }
            b'{' | b'[' => {
                self.depth += 1;
                self.keep(byte);
            }
            b'}' | b']' => {
                self.keep(byte);
                self.depth -= 1;
                if self.depth == 0 {
                    self.is_over = true;
                    return None;
                }
                // An interval ends at the array's depth, any other value at the object's.
                return if self.is_interval() { self.ends_value(2) } else { self.ends_value(1) };
            }
            b':' if self.depth == 1 && !self.in_value => self.in_value = true,
            b',' if self.depth == 1 => self.ends_member(),
            _ => self.keep(byte),
        }
        None
    }

    fn is_interval(&self) -> bool {
        self.key == b"\"intervals\""
    }

    /// Keeps a byte of a key, or of a value that becomes a line.
    fn keep(&mut self, byte: u8) {
        if self.depth == 1 && !self.in_value {
            // No key that matters is longer than `"intervals"`.
            if self.in_string && self.key.len() < 16 {
                self.key.push(byte);
            }
            return;
        }
        let is_kept = match &self.key[..] {
            b"\"intervals\"" => self.depth > 2,
            b"\"start\"" | b"\"end\"" | b"\"error\"" => self.in_value,
            _ => false,
        };
        if is_kept && self.value.len() < MAX_LINE_BYTES {
            self.value.push(byte);
        } else {
            self.is_too_long |= is_kept;
        }
    }

    /// Returns the line of the value that ends here, if it ends at this depth.
    fn ends_value(&mut self, depth: usize) -> Option<Vec<u8>> {
        if self.depth != depth || !self.in_value || self.value.is_empty() {
            return None;
        }
        let value = std::mem::take(&mut self.value);
        let event = match &self.key[..] {
            b"\"intervals\"" => "interval",
            b"\"start\"" => "start",
            b"\"end\"" => "end",
            _ => "error",
        };
        if event == "error" && std::mem::replace(&mut self.has_error, true) {
            return None;
        }
        if std::mem::take(&mut self.is_too_long) {
            return Some(Vec::new());
        }
        let opening = format!("{{\"event\":\"{event}\",\"data\":");
        Some([opening.as_bytes(), &value[..], b"}"].concat())
    }

    fn ends_member(&mut self) {
        (self.in_value, self.is_too_long) = (false, false);
        self.key.clear();
        self.value.clear();
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::tools::iperf3::{Numbering, Report};
    use ccbench_tests::source_root;

    use super::*;

    const NUMBERING: Numbering = Numbering { client_port: 10_000, count: 5, listens: false };

    /// Reads a document that arrives in pieces of this length. Returns the report, and how many lines could not be read.
    fn read(text: &[u8], piece: usize) -> (Report, usize) {
        let (mut document, mut report) = (Document::default(), Report::default());
        let lines = text.chunks(piece).flat_map(|bytes| document.split(bytes));
        let unread = lines.filter(|line| report.on_line(line, NUMBERING).is_none()).count();
        (report, unread)
    }

    #[test]
    fn the_lines_of_a_document_have_its_contents() {
        let mut count = 0;
        for entry in std::fs::read_dir(source_root().join("proto/tests/iperf3")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            count += 1;
            let text = std::fs::read(&path).unwrap();
            for piece in [1, 7, text.len()] {
                let expected = (Report::from_json(&text, NUMBERING), 0);
                assert_eq!(read(&text, piece), expected, "{}", path.display());
            }
            for length in (0..text.len()).step_by(37) {
                let cut = &text[..length];
                let expected = (Report::from_json(cut, NUMBERING), 0);
                assert_eq!(read(cut, 100), expected, "{}: {length} bytes", path.display());
            }
        }
        assert!(count > 5, "{count} documents");
    }

    #[test]
    fn text_around_a_document_is_left_out() {
        let document = br#"{"title":"a \"}{\" b","intervals":[{"streams":[]},{"streams":[]}],"error":"first","error":"second"}"#;
        let text = [&b"warning: \n"[..], &document[..], b"\n{\"start\":{}}"].concat();
        let (report, unread) = read(&text, 3);
        assert_eq!((report.error.as_deref(), unread), (Some("first"), 0));
        let lines = Document::default().split(&text);
        assert_eq!(lines.len(), 3, "two intervals and the first error");
    }

    #[test]
    fn a_value_that_is_too_long_is_counted() {
        let streams = "0,".repeat(MAX_LINE_BYTES);
        let text = format!("{{\"intervals\":[{{\"streams\":[{streams}0]}},{{\"streams\":[]}}]}}");
        let mut document = Document::default();
        let lines: Vec<Vec<u8>> =
            text.as_bytes().chunks(4096).flat_map(|bytes| document.split(bytes)).collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].is_empty() && !lines[1].is_empty());
        assert_eq!(read(text.as_bytes(), 4096).1, 1);
    }
}
