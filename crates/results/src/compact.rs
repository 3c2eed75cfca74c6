//! Compaction: moves the rows that a table has of all trials into one file or a few large ones, instead of a file for each trial.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use polars::prelude::*;

use super::digest::Digests;
use super::journal::{SharedRows, TrialEnd};
use super::layout::{list, remove, table_files};
use super::parquet_file::each_frame;
use super::part::{FILE_ROW_GROUPS, Metadata, Writer};
use crate::error::{FileError, Result, polars_error};

/// Size limits of shared files.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Minimum number of rows of a row group. A reader of one trial reads every row group with rows of it.
    row_group_rows: usize,
    /// Maximum number of row groups of a file; then the next trial begins a new file.
    file_row_groups: usize,
}

const LIMITS: Limits = Limits { row_group_rows: 16 * 1024, file_row_groups: FILE_ROW_GROUPS };

/// Moves the rows of these trials of a results directory into shared files, in the order of point and repetition, and returns the digests
/// of these files. The trials' own files must be as they were committed; they are removed.
pub(crate) fn compact(run: &Path, ends: &mut [TrialEnd]) -> Result<Digests> {
    compact_within(run, ends, LIMITS)
}

fn compact_within(run: &Path, ends: &mut [TrialEnd], limits: Limits) -> Result<Digests> {
    let mut ends: Vec<&mut TrialEnd> = ends.iter_mut().collect();
    ends.sort_by_key(|end| (end.point_id, end.trial));
    let tables: BTreeSet<String> = ends.iter().flat_map(|end| end.rows.keys().cloned()).collect();
    let mut digests = Digests::new();
    for table in &tables {
        let mut shared = SharedTable::new(run, table, limits);
        for end in ends.iter_mut().filter(|end| end.rows.contains_key(table)) {
            shared.add(end)?;
        }
        digests.extend(shared.finish()?);
        for point in list(&run.join("tables").join(table))?.iter().filter(|path| path.is_dir()) {
            remove(point)?;
        }
    }
    for end in ends {
        end.digests.retain(|name, _| !name.starts_with("tables/"));
    }
    Ok(digests)
}

/// The shared files of a table.
struct SharedTable<'a> {
    run: &'a Path,
    table: &'a str,
    limits: Limits,
    /// Number of the file that is being written, from 0.
    number: usize,
    /// Rows of this file, including the buffered ones.
    rows: usize,
    /// Columns of this file.
    columns: Option<SchemaRef>,
    buffer: Option<DataFrame>,
    writer: Option<Writer>,
    digests: Digests,
}

impl<'a> SharedTable<'a> {
    fn new(run: &'a Path, table: &'a str, limits: Limits) -> Self {
        let (number, rows, columns, buffer, writer) = (0, 0, None, None, None);
        Self { run, table, limits, number, rows, columns, buffer, writer, digests: Digests::new() }
    }

    /// Returns the path, in the results directory, of the file that is being written.
    fn name(&self) -> String {
        format!("tables/{}/part-{}.parquet", self.table, self.number)
    }

    fn path(&self) -> PathBuf {
        self.run.join(self.name())
    }

    /// Adds the rows of a trial to one file.
    fn add(&mut self, end: &mut TrialEnd) -> Result<()> {
        let files = table_files(self.run, end, self.table);
        let (mut first_row, mut found) = (None, 0);
        for file in &files {
            each_frame(file, self.limits.row_group_rows, |frame| {
                if first_row.is_none() {
                    self.begin(&frame)?;
                    first_row = Some(self.rows);
                }
                found += frame.height() as u64;
                self.put(frame)
            })?;
        }
        let expected = end.rows.get(self.table).copied().unwrap_or(0);
        if found != expected {
            let path = files.into_iter().next().unwrap_or_default();
            let what = format!("it has {found} rows instead of {expected}");
            return Err(FileError::Damaged { path, what });
        }
        end.files.remove(self.table);
        let first_row = first_row.unwrap_or(self.rows) as u64;
        end.shared.insert(self.table.to_owned(), SharedRows { file: self.name(), first_row });
        Ok(())
    }

    /// Ends the file if it is full, or if its columns differ from this trial's: trials of different ccbench versions may have different
    /// columns.
    fn begin(&mut self, first: &DataFrame) -> Result<()> {
        let row_groups = self.writer.as_ref().map_or(0, Writer::row_groups);
        let has_others = self.columns.as_ref().is_some_and(|columns| columns != first.schema());
        if row_groups >= self.limits.file_row_groups || has_others {
            self.close()?;
        }
        self.columns = Some(first.schema().clone());
        Ok(())
    }

    fn put(&mut self, frame: DataFrame) -> Result<()> {
        self.rows += frame.height();
        let buffered = match self.buffer.take() {
            None => frame,
            Some(mut buffer) => {
                buffer.vstack_mut(&frame).map_err(polars_error("add rows to", &self.path()))?;
                buffer
            }
        };
        let is_enough = buffered.height() >= self.limits.row_group_rows;
        self.buffer = Some(buffered);
        if is_enough { self.flush() } else { Ok(()) }
    }

    /// Writes the buffered rows.
    fn flush(&mut self) -> Result<()> {
        let Some(mut frame) = self.buffer.take() else { return Ok(()) };
        frame.rechunk_mut();
        let path = self.path();
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => self.writer.insert(Writer::begin(&path, &Metadata(vec![]), &frame)?),
        };
        writer.put(&frame)
    }

    /// Ends the file.
    fn close(&mut self) -> Result<()> {
        self.flush()?;
        if let Some(writer) = self.writer.take() {
            self.digests.insert(self.name(), writer.finish()?);
            self.number += 1;
            self.rows = 0;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Digests> {
        self.close()?;
        Ok(self.digests)
    }
}

#[cfg(test)]
mod tests;
