//! Reads some columns of one trial's files in slices, without Polars queries: planning a query and starting its threads takes longer than
//! reading a small trial.

use std::collections::HashMap;

use polars::prelude::*;

use crate::error::{Result, polars_error};
use crate::journal::TrialEnd;
use crate::layout::table_rows;
use crate::parquet_file::each_frame_within;
use crate::store::RunDir;

/// Maximum number of rows of a slice, to bound the memory for a file.
pub(super) const SLICE_ROWS: usize = 1 << 19;

/// Some rows of a table.
pub(super) struct Slice(DataFrame);

/// A text column.
pub(super) struct Texts<'a>(Option<&'a StringChunked>);

impl<'a> Texts<'a> {
    /// Returns the text in a row.
    pub(super) fn get(&self, row: usize) -> Option<&'a str> {
        self.0?.get(row)
    }
}

/// A numeric column.
pub(super) enum Numbers<'a> {
    Narrow(&'a UInt16Chunked),
    Short(&'a UInt32Chunked),
    Long(&'a UInt64Chunked),
    Float(&'a Float64Chunked),
    Missing,
}

impl Numbers<'_> {
    /// Returns the number in a row; `None` for null and NaN.
    pub(super) fn get(&self, row: usize) -> Option<f64> {
        match self {
            Self::Narrow(numbers) => numbers.get(row).map(f64::from),
            Self::Short(numbers) => numbers.get(row).map(f64::from),
            Self::Long(numbers) => numbers.get(row).map(|number| number as f64),
            Self::Float(numbers) => numbers.get(row).filter(|number| !number.is_nan()),
            Self::Missing => None,
        }
    }
}

impl Slice {
    /// Returns the number of rows.
    pub(super) fn len(&self) -> usize {
        self.0.height()
    }

    /// Returns a numeric column.
    pub(super) fn numbers(&self, name: &str) -> Numbers<'_> {
        let Ok(column) = self.0.column(name) else { return Numbers::Missing };
        match (column.u16(), column.u32(), column.u64(), column.f64()) {
            (Ok(numbers), ..) => Numbers::Narrow(numbers),
            (_, Ok(numbers), ..) => Numbers::Short(numbers),
            (_, _, Ok(numbers), _) => Numbers::Long(numbers),
            (.., Ok(numbers)) => Numbers::Float(numbers),
            _ => Numbers::Missing,
        }
    }

    /// Returns a text column.
    pub(super) fn texts(&self, name: &str) -> Texts<'_> {
        Texts(self.0.column(name).and_then(|column| column.str()).ok())
    }

    /// Returns the boolean in a row.
    pub(super) fn flag(&self, name: &str, row: usize) -> Option<bool> {
        self.0.column(name).and_then(|column| column.bool()).ok()?.get(row)
    }
}

/// Passes these columns of all rows of a trial's table to `take`, in order. Columns that a file of an older version lacks are empty.
pub(super) fn each_slice(
    run: &RunDir,
    table: &str,
    end: &TrialEnd,
    wanted: &[&str],
    mut take: impl FnMut(&Slice),
) -> Result<()> {
    if !end.rows.contains_key(table) {
        return Ok(());
    }
    for rows in table_rows(run.path(), end, table) {
        let (mut first, metadata, range) = run.metadata.open(&rows)?;
        let schema = first.schema().map_err(polars_error("read", &rows.path))?;
        let there = wanted.iter().filter(|name| schema.contains(name));
        let columns: Vec<String> = there.map(ToString::to_string).collect();
        let opened = (first, &metadata);
        each_frame_within(&rows.path, opened, Some(&columns), (range, SLICE_ROWS), |mut frame| {
            // Access by row number needs one chunk, not one per row group.
            frame.rechunk_mut();
            take(&Slice(frame));
            Ok(())
        })?;
    }
    Ok(())
}

/// Values by phase, group and a third name (flow, or flow and side).
pub(super) struct GroupedRows<T> {
    rows: Vec<(Names, T)>,
    index: HashMap<Names, usize>,
    last: usize,
}

/// Phase, group and a third name.
pub(super) type Names = [String; 3];

impl<T: Default> GroupedRows<T> {
    pub(super) fn new() -> Self {
        Self { rows: Vec::new(), index: HashMap::new(), last: 0 }
    }

    /// Returns the value with these names. Looks at the last one first, because the rows of a flow are adjacent.
    pub(super) fn at(&mut self, names: [&str; 3]) -> &mut T {
        let is = |known: &(Names, T)| known.0.iter().zip(names).all(|(known, name)| known == name);
        if !self.rows.get(self.last).is_some_and(is) {
            let names = names.map(str::to_owned);
            self.last = *self.index.entry(names.clone()).or_insert(self.rows.len());
            if self.last == self.rows.len() {
                self.rows.push((names, T::default()));
            }
        }
        &mut self.rows[self.last].1
    }

    /// Returns all values, sorted by name.
    pub(super) fn sorted(mut self) -> Vec<(Names, T)> {
        self.rows.sort_by(|a, b| a.0.cmp(&b.0));
        self.rows
    }
}
