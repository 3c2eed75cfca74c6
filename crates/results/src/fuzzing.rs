//! Otherwise private parsers, for the fuzz targets (`tests/fuzz`).

use ccbench_proto::wire::run_event::Of;
use polars::prelude::PolarsResult;

use crate::artifact::tar::{self, Archive};
use crate::artifact::{Limits, TarError};
use crate::cells::TimeAxis;
use crate::columns::*;
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
pub fn table_of(of: Of) -> PolarsResult<(usize, usize)> {
    match of {
        Of::FlowSample(row) => table::<FlowSampleColumns>([row]),
        Of::Interval(row) => table::<IntervalColumns>([row]),
        Of::Probe(row) => table::<ProbeColumns>([row]),
        Of::QdiscSample(row) => table::<QdiscSampleColumns>([row]),
        Of::LinkChange(row) => table::<LinkChangeColumns>([row]),
        Of::LinkTiming(row) => table::<LinkTimingColumns>([row]),
        Of::LinkPacket(row) => table::<LinkPacketColumns>([row]),
        Of::CcState(row) => table::<CcStateColumns>([row]),
        Of::Acks(rows) => table::<AckColumns>([rows]),
        Of::TcpEvents(rows) => table::<TcpEventColumns>(rows.events),
        Of::AckCount(row) => table::<AckCountColumns>([row]),
        Of::HostSample(row) => table::<HostSampleColumns>([row]),
        Of::Event(row) => table::<EventColumns>([row.into()]),
        Of::Flow(row) => table::<FlowColumns>([row]),
        Of::Done(_) | Of::Raw(_) => Ok((0, 0)),
    }
}

fn table<C: Columns>(rows: impl IntoIterator<Item = C::Row>) -> PolarsResult<(usize, usize)> {
    let axis = TimeAxis { t0_ns: 5, realtime_offset_ns: 7, drift_ppb: -3, phases: vec![] };
    let origin = Origin { point_id: 0, trial: 1, node: "src", axis: &axis };
    let mut columns = C::new();
    let count = rows.into_iter().map(|row| columns.put(&origin, row)).sum();
    let frame = columns.take()?;
    debug_assert_eq!(frame.height(), count);
    Ok((count, frame.width()))
}
