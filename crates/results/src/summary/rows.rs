//! Reads some columns of one trial's files in slices, without Polars queries: planning a query and starting its threads takes longer than
//! reading a small trial.

use std::collections::HashMap;

use polars::prelude::*;

use crate::columns::RenamedColumns;
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
        let renamed = RenamedColumns::new(table, |name| schema.contains(name));
        let there = wanted.iter().map(|name| renamed.in_file(name));
        let there = there.filter(|name| schema.contains(name));
        let columns: Vec<String> = there.map(str::to_owned).collect();
        let opened = (first, &metadata);
        each_frame_within(&rows.path, opened, Some(&columns), (range, SLICE_ROWS), |mut frame| {
            renamed.rename(&mut frame).map_err(polars_error("read", &rows.path))?;
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

#[cfg(test)]
mod tests {
    use ccbench_proto::wire::{self, run_event::Payload};

    use super::*;
    use crate::journal::Entry;
    use crate::model::{TrialKey, TrialStatus};
    use crate::part::write_parquet;
    use crate::summary::query::scan;
    use crate::trial::tests::{filled, good, info};

    /// Resumes a run whose first trial is of an earlier version.
    #[test]
    fn tables_of_earlier_versions_have_current_columns() {
        const TABLE: &str = "link_changes";
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), &info()).unwrap();
        let key = TrialKey { point_id: 0, trial: 1, seed: 9, epoch: run.next_epoch() };
        let TrialKey { point_id, trial, seed, epoch } = key;
        run.shared.append(Entry::TrialBegin { point_id, trial, seed, epoch }).unwrap();
        let file = run.part(TABLE, point_id, trial);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let rows = df!("link" => ["l"], "asked_t_ns" => [7_i64], "rc" => [0_i32]).unwrap();
        write_parquet(&rows, &file).unwrap();
        let rows = [(TABLE.to_owned(), 1)].into();
        let end = TrialEnd { rows, ..TrialEnd::new(key, TrialStatus::Ok) };
        run.shared.append(Entry::TrialEnd(end)).unwrap();
        let path = run.path().to_path_buf();
        drop(run);
        let run = RunDir::resume(&path, &info()).unwrap();
        let mut writer = filled(&run, 2);
        let change = wire::LinkChange {
            requested_at_ns: 6_000_000_000,
            applied_at_ns: 6_000_000_100,
            ..wire::LinkChange::default()
        };
        writer.push("src", wire::RunEvent { payload: Some(Payload::LinkChange(change)) }).unwrap();
        writer.commit(&good()).unwrap();
        let requested_t_ns = [Some(7), Some(1_700_000_006_000_000_000)];
        let ends = run.trials();
        let ends: Vec<&TrialEnd> = ends.iter().collect();
        let rows = scan(&run, TABLE, &ends).unwrap().unwrap().select([col("requested_t_ns")]);
        let rows = rows.collect().unwrap();
        let times: Vec<Option<i64>> =
            rows.column("requested_t_ns").unwrap().i64().unwrap().iter().collect();
        assert_eq!(times, requested_t_ns);
        for (end, expected) in ends.iter().zip(requested_t_ns) {
            let mut found = Vec::new();
            each_slice(&run, TABLE, end, &["requested_t_ns", "rc"], |slice| {
                let times = slice.0.column("requested_t_ns").unwrap().i64().unwrap();
                found.extend(times.iter());
                assert_eq!(slice.0.width(), 2);
            })
            .unwrap();
            assert_eq!(found, [expected]);
        }
    }
}
