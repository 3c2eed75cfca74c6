//! Traces as Parquet: the columns of ccbench's own text format.

use std::io::Cursor;

use ccbench_proto::trace::Steps;
use ccbench_proto::units::{Ppm, Rate};
use polars::prelude::*;

const COLUMNS: [&str; 4] = ["t_us", "rate_bps", "delay_us", "loss_ppm"];

/// The file of these steps; a last row of nothing is their end.
pub fn of_steps(steps: &Steps) -> Result<Vec<u8>, String> {
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
    let mut frame = DataFrame::new(rows().count(), columns).map_err(|e| e.to_string())?;
    let mut bytes = Vec::new();
    ParquetWriter::new(&mut bytes)
        .with_compression(ParquetCompression::Zstd(None))
        .finish(&mut frame)
        .map_err(|e| e.to_string())?;
    Ok(bytes)
}

/// The file as text. Columns of other names are left out.
pub fn to_text(bytes: Vec<u8>) -> Result<String, String> {
    let frame = ParquetReader::new(Cursor::new(bytes)).finish().map_err(|e| e.to_string())?;
    let found: Vec<&Column> = COLUMNS.iter().filter_map(|name| frame.column(name).ok()).collect();
    if found.first().is_none_or(|column| column.name() != COLUMNS[0]) {
        return Err(format!("it has no column {}", COLUMNS[0]));
    }
    let names: Vec<&str> = found.iter().map(|column| column.name().as_str()).collect();
    let mut text = names.join(",");
    text.push('\n');
    for row in 0..frame.height() {
        for (index, column) in found.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            match column.get(row).map_err(|e| e.to_string())? {
                AnyValue::Null => {}
                value if value.is_primitive_numeric() => text.push_str(&value.to_string()),
                other => return Err(format!("row {}: {other} is no number", row + 1)),
            }
        }
        text.push('\n');
    }
    Ok(text)
}
