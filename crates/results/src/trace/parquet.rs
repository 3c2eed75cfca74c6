//! Traces as Parquet, with the columns of ccbench's text format.

use ccbench_proto::trace::{MAX_ROWS, Steps};
use ccbench_proto::units::{Ppm, Rate};
use polars::prelude::*;

use crate::parquet_file;

/// The Parquet file is not a trace, or the trace cannot be written as Parquet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParquetTraceError {
    /// Polars cannot read or write the file.
    #[error(transparent)]
    Polars(#[from] PolarsError),
    /// The time column is missing.
    #[error("the file has no column `{}`", COLUMNS[0])]
    NoTimes,
    /// A cell is not a number.
    #[error("row {row}: {value} is not a number")]
    NotANumber {
        /// The row's number, from 1.
        row: usize,
        /// The cell.
        value: String,
    },
}

const COLUMNS: [&str; 4] = ["t_us", "rate_bps", "delay_us", "loss_ppm"];

/// Writes the steps as a Parquet file. The last row has only the time at which the trace ends.
pub fn of_steps(steps: &Steps) -> Result<Vec<u8>, ParquetTraceError> {
    let rows = || steps.steps.iter().map(Some).chain([None]);
    let times: Vec<f64> =
        rows().map(|row| row.map_or(steps.length_ns, |step| step.at_ns) as f64 / 1000.0).collect();
    let rates: Vec<Option<u64>> = rows().map(|row| row?.rate.map(Rate::bits_per_sec)).collect();
    let delays: Vec<Option<f64>> =
        rows().map(|row| row?.delay_ns.map(|ns| ns as f64 / 1000.0)).collect();
    let losses: Vec<Option<u32>> = rows().map(|row| row?.loss.map(Ppm::get)).collect();
    let mut columns =
        vec![Column::new(COLUMNS[0].into(), times), Column::new(COLUMNS[1].into(), rates)];
    if delays.iter().any(Option::is_some) {
        columns.push(Column::new(COLUMNS[2].into(), delays));
    }
    if losses.iter().any(Option::is_some) {
        columns.push(Column::new(COLUMNS[3].into(), losses));
    }
    let mut frame = DataFrame::new(rows().count(), columns)?;
    let mut bytes = Vec::new();
    ParquetWriter::new(&mut bytes)
        .with_compression(ParquetCompression::Zstd(None))
        .finish(&mut frame)?;
    Ok(bytes)
}

/// Converts a Parquet file to ccbench's text format. Ignores other columns.
pub fn to_text(bytes: Vec<u8>) -> Result<String, ParquetTraceError> {
    // The last row is the end of the trace.
    let frame = parquet_file::read(bytes, Some(&COLUMNS), MAX_ROWS + 1)?;
    let found: Vec<&Column> = COLUMNS.iter().filter_map(|name| frame.column(name).ok()).collect();
    if found.first().is_none_or(|column| column.name() != COLUMNS[0]) {
        return Err(ParquetTraceError::NoTimes);
    }
    let names: Vec<&str> = found.iter().map(|column| column.name().as_str()).collect();
    let mut text = names.join(",");
    text.push('\n');
    for row in 0..frame.height() {
        for (index, column) in found.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            match column.get(row)? {
                AnyValue::Null => {}
                value if value.is_primitive_numeric() => text.push_str(&value.to_string()),
                other => {
                    let value = other.to_string();
                    return Err(ParquetTraceError::NotANumber { row: row + 1, value });
                }
            }
        }
        text.push('\n');
    }
    Ok(text)
}
