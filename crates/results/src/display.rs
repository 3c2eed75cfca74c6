//! How tables look in a terminal, and the units of numbers for people.

use comfy_table::{LineStyle, TableStyle};

/// A line under the header; a point is set off by its factors.
pub const TABLE_STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// A unit that people read, and how much of the summary's it is.
pub(crate) fn readable(unit: &str) -> (f64, &str) {
    match unit {
        "bit/s" => (1e6, "Mbit/s"),
        "us" => (1e3, "ms"),
        "bytes" => (1e3, "kB"),
        other => (1.0, other),
    }
}
