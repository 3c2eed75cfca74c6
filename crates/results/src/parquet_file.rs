//! Reads Parquet files that ccbench may not have written, or that nobody has compared with a digest.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use polars::prelude::*;

/// Reads these columns of a file, all without `columns`; those that it lacks are left out.
///
/// # Errors
/// It is damaged, or has more rows than `max_rows`.
pub(crate) fn read(
    bytes: Vec<u8>,
    columns: Option<&[&str]>,
    max_rows: usize,
) -> PolarsResult<DataFrame> {
    let read = || {
        let mut reader = ParquetReader::new(Cursor::new(bytes));
        let rows = reader.get_metadata()?.num_rows;
        polars_ensure!(rows <= max_rows, ComputeError: "it has {rows} rows; {max_rows} are allowed");
        let wanted = columns.map(|columns| reader.schema().map(|schema| of(columns, &schema)));
        reader
            .with_columns(wanted.transpose()?)
            // In this thread, where a panic is caught.
            .read_parallel(ParallelStrategy::None)
            .finish()
    };
    // Polars panics at some damage.
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(polars_err!(ComputeError: "the Parquet file is damaged")))
}

fn of(columns: &[&str], schema: &ArrowSchema) -> Vec<String> {
    let there = columns.iter().filter(|name| schema.contains(name));
    there.map(|name| (*name).to_owned()).collect()
}
