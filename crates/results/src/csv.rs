//! Comma-separated values.

use std::fmt::Write as _;

/// A CSV table of text and numbers.
#[derive(Debug, Default)]
pub(crate) struct Table {
    text: String,
}

/// One cell.
#[derive(Debug, Clone)]
pub(crate) enum Cell {
    Text(String),
    Number(f64),
    Empty,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<Option<f64>> for Cell {
    fn from(number: Option<f64>) -> Self {
        number.map_or(Self::Empty, Self::Number)
    }
}

impl Table {
    /// Creates an empty table with these columns.
    pub(crate) fn new(columns: &[&str]) -> Self {
        Self { text: columns.join(",") + "\n" }
    }

    pub(crate) fn row(&mut self, cells: &[Cell]) {
        for (nth, cell) in cells.iter().enumerate() {
            if nth > 0 {
                self.text.push(',');
            }
            match cell {
                Cell::Text(text) => self.text.push_str(&quoted(text)),
                // Writing to a String cannot fail.
                Cell::Number(number) => _ = write!(self.text, "{number}"),
                Cell::Empty => {}
            }
        }
        self.text.push('\n');
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }
}

/// Quotes a field if RFC 4180 requires it.
pub(crate) fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_fields_with_commas_or_quotes() {
        let mut table = Table::new(&["name", "value", "low"]);
        table.row(&["reno, \"classic\"".into(), 1.5.into(), None.into()]);
        assert_eq!(table.finish(), "name,value,low\n\"reno, \"\"classic\"\"\",1.5,\n");
        // A carriage return alone ends a line for many readers.
        assert_eq!(quoted("one\rtwo"), "\"one\rtwo\"");
    }
}
