//! Otherwise private parsers, for the fuzz targets (`tests/fuzz`).

use std::io::Write as _;
use std::path::Path;

use ccbench_proto::wire::run_event::Payload;
use polars::prelude::{DataFrame, PolarsResult};

use crate::artifact::tar::{self, Archive};
use crate::artifact::{Limits, TarError};
use crate::cells::TimeAxis;
use crate::columns::*;
use crate::error::{FileError, io_error, polars_error};
use crate::parquet_file::{each_frame_within, open, read};
use crate::part::write_parquet;
use crate::record::RunRecord;

/// Parses `run.json`. Returns it serialised again, and the number of trials that it announces.
pub fn run_record(bytes: &[u8]) -> Result<(Vec<u8>, u32), serde_json::Error> {
    let record: RunRecord = serde_json::from_slice(bytes)?;
    Ok((serde_json::to_vec(&record)?, record.planned()))
}

/// Returns names and contents of the files in an artifact's archive (without gzip).
pub fn archive_files(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>, TarError> {
    let limits = Limits { max_files: 100, max_bytes: 1 << 20 };
    let (mut archive, mut files) = (Archive::new(bytes, limits), vec![]);
    while let Some(entry) = archive.next_entry()? {
        let mut content = Vec::new();
        archive.copy(&entry, &mut content)?;
        files.push((entry.name, content));
    }
    Ok(files)
}

/// Returns an archive of these files.
pub fn archive_of(files: &[(String, Vec<u8>)]) -> Result<Vec<u8>, TarError> {
    let mut out = Vec::new();
    for (name, content) in files {
        tar::append(&mut out, name, content.len() as u64, &mut content.as_slice())?;
    }
    tar::finish(&mut out)?;
    Ok(out)
}

/// Returns the numbers of rows and columns of the table that a message becomes. A message with several events becomes a table of them.
pub fn table_of(payload: Payload) -> PolarsResult<(usize, usize)> {
    frame_of(payload).map(|(rows, frame)| (rows, frame.width()))
}

/// Returns these columns of the table that a message becomes, as a Parquet file.
pub fn table_file(payload: Payload, columns: &[&str]) -> Result<Vec<u8>, FileError> {
    with_file(&[], |path| {
        let frame = frame_of(payload).and_then(|(_, frame)| frame.select(columns.iter().copied()));
        write_parquet(&frame.map_err(polars_error("gather the rows of", path))?, path)?;
        std::fs::read(path).map_err(io_error("read", path))
    })
}

/// Reads a table whole, like `points.parquet`. Returns the numbers of rows and columns.
pub fn read_table(bytes: &[u8], max_rows: usize) -> PolarsResult<(usize, usize)> {
    read(bytes.to_vec(), None, max_rows).map(|frame| frame.shape())
}

/// Reads at most `max_rows` rows of a table in slices, like the tables of a trial. Returns the number of rows.
pub fn read_slices(bytes: &[u8], slice_rows: usize, max_rows: usize) -> Result<usize, FileError> {
    with_file(bytes, |path| {
        let mut first = open(path, None)?;
        let metadata = first.get_metadata().map_err(polars_error("read", path))?.clone();
        let range = 0..metadata.num_rows.min(max_rows);
        let mut rows = 0;
        each_frame_within(path, (first, &metadata), None, (range, slice_rows), |frame| {
            rows += frame.height();
            Ok(())
        })?;
        Ok(rows)
    })
}

/// Calls `act` with the path of a temporary file.
fn with_file<T>(
    bytes: &[u8],
    act: impl FnOnce(&Path) -> Result<T, FileError>,
) -> Result<T, FileError> {
    let dir = std::env::temp_dir();
    let mut file = tempfile::NamedTempFile::new_in(&dir).map_err(io_error("create", &dir))?;
    file.write_all(bytes).map_err(io_error("write", file.path()))?;
    act(file.path())
}

/// Returns the table that a message becomes, and the number of rows that were added.
fn frame_of(payload: Payload) -> PolarsResult<(usize, DataFrame)> {
    match payload {
        Payload::FlowSample(row) => table::<FlowSampleColumns>([row]),
        Payload::Interval(row) => table::<IntervalColumns>([row]),
        Payload::Probe(row) => table::<ProbeColumns>([row]),
        Payload::QdiscSample(row) => table::<QdiscSampleColumns>([row]),
        Payload::LinkChange(row) => table::<LinkChangeColumns>([row]),
        Payload::LinkTiming(row) => table::<LinkTimingColumns>([row]),
        Payload::LinkPacket(row) => table::<LinkPacketColumns>([row]),
        Payload::CcState(row) => table::<CcStateColumns>([row]),
        Payload::Acks(rows) => table::<AckColumns>([rows]),
        Payload::TcpEvents(rows) => table::<TcpEventColumns>(rows.events),
        Payload::AckCount(row) => table::<AckCountColumns>([row]),
        Payload::HostSample(row) => table::<HostSampleColumns>([row]),
        Payload::Event(row) => table::<EventColumns>([row.into()]),
        Payload::Flow(row) => table::<FlowColumns>([row]),
        Payload::Done(_) | Payload::Raw(_) => Ok((0, DataFrame::default())),
    }
}

fn table<C: Columns>(rows: impl IntoIterator<Item = C::Row>) -> PolarsResult<(usize, DataFrame)> {
    let axis = TimeAxis { t0_ns: 5, realtime_offset_ns: 7, drift_ppb: -3, phases: vec![] };
    let origin = Origin { point_id: 0, trial: 1, node: "src", axis: &axis };
    let mut columns = C::new();
    let count = rows.into_iter().map(|row| columns.put(&origin, row)).sum();
    let frame = columns.take()?;
    debug_assert_eq!(frame.height(), count);
    Ok((count, frame))
}
