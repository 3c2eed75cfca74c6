//! The style of tables in a terminal, and readable units.

use comfy_table::{LineStyle, TableStyle};

/// Only the header has a rule below it; the factor levels set points apart.
pub const TABLE_STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Returns the scale and the name of the unit in which a stored value is shown.
pub(crate) fn readable(unit: &str) -> (f64, &str) {
    match unit {
        "bit/s" => (1e6, "Mbit/s"),
        "us" => (1e3, "ms"),
        "bytes" => (1e3, "kB"),
        other => (1.0, other),
    }
}
