//! What the plan's claims came to, as the summary wrote it.

use std::path::Path;

use polars::prelude::*;
use serde_json::Value;

use crate::results::{Result, frame_error, io_error};

/// Rows of `expectations.parquet`, each an object by column; none where the plan claims nothing.
pub(super) fn of(run_dir: &Path) -> Result<Vec<Value>> {
    let path = run_dir.join("expectations.parquet");
    if !path.exists() {
        return Ok(vec![]);
    }
    let file = std::fs::File::open(&path).map_err(io_error("open", &path))?;
    let frame = ParquetReader::new(file).finish().map_err(frame_error("read", &path))?;
    let cell = |column: &Column, row: usize| {
        if let Ok(text) = column.str() {
            return text.get(row).map_or(Value::Null, Value::from);
        }
        let number = column.cast(&DataType::Float64).ok();
        number.and_then(|column| column.f64().ok()?.get(row)).map_or(Value::Null, Value::from)
    };
    let object = |row: usize| -> Value {
        frame
            .columns()
            .iter()
            .map(|column| (column.name().to_string(), cell(column, row)))
            .collect()
    };
    Ok((0..frame.height()).map(object).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_objects_with_what_is_unknown_as_null() {
        let dir = tempfile::tempdir().unwrap();
        assert!(of(dir.path()).unwrap().is_empty());
        let mut frame = df!(
            "claim" => ["it starves", "it returns"],
            "measured" => [Some(3.5), None],
            "n_trials" => [5_u32, 0],
            "verdict" => ["holds", "not_measured"],
        )
        .unwrap();
        let file = std::fs::File::create(dir.path().join("expectations.parquet")).unwrap();
        ParquetWriter::new(file).finish(&mut frame).unwrap();
        let claims = of(dir.path()).unwrap();
        assert_eq!(
            (&claims[0]["claim"], &claims[0]["measured"]),
            (&"it starves".into(), &3.5.into())
        );
        assert_eq!((&claims[1]["measured"], &claims[1]["n_trials"]), (&Value::Null, &0.0.into()));
    }
}
