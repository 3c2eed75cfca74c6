//! Fuzzes results directories, and rows on their way to one.

use std::collections::BTreeMap;
use std::path::Path;

use ccbench_proto::plan::check;
use ccbench_proto::trace;
use ccbench_proto::wire::{RunEvent, run_event::Payload};
use ccbench_results::fuzzing;
use ccbench_results::journal;
use ccbench_results::model::NodeClock;
use ccbench_results::shard::{Commit, trial_of_key};
use ccbench_results::trace::parquet as parquet_trace;
use ccbench_results::verdict::Judge;
use prost::Message as _;

use crate::journals::sealed;

const PLAN: &str = include_str!("../../plans/valid/probes-and-captures.toml");

/// The journal of a run: as it is, and with corrected checksums.
pub fn journal(data: &[u8]) {
    for bytes in [data, &sealed(data)] {
        let Ok(state) = journal::read(bytes, Path::new("journal")) else { continue };
        assert_eq!(state.good_bytes + state.torn_bytes, bytes.len() as u64);
        let good = &bytes[..state.good_bytes as usize];
        let again = journal::read(good, Path::new("journal")).ok();
        let again = again.map(|again| (again.committed, again.digests, again.last_epoch));
        assert_eq!(again, Some((state.committed.clone(), state.digests, state.last_epoch)));
        for end in state.committed.values() {
            assert!(end.length_s() >= 0.0);
            let _ = (
                end.needs_repeat(),
                end.phases.iter().map(journal::PhaseRecord::seconds).sum::<f64>(),
            );
        }
    }
}

/// The commit of a shard's trial: as it is, and with a corrected checksum.
pub fn commit(data: &[u8]) {
    for bytes in [data, &sealed(data)] {
        let Ok(commit) = Commit::decode("key", bytes) else { continue };
        let Ok(written) = commit.encode() else { panic!("what was read is written") };
        assert_eq!(Commit::decode("key", &written).ok().as_ref(), Some(&commit));
        let trial = (commit.trial.point_id, commit.trial.trial);
        assert_eq!(trial_of_key(&commit.key()), Some(trial));
    }
}

/// `run.json`.
pub fn run_record(data: &[u8]) {
    if let Ok((written, planned)) = fuzzing::run_record(data) {
        let again = fuzzing::run_record(&written).ok();
        assert_eq!(again, Some((written, planned)));
    }
}

/// Returns the messages of a node's stream, each of which follows its length.
fn events(mut data: &[u8]) -> impl Iterator<Item = RunEvent> {
    std::iter::from_fn(move || RunEvent::decode_length_delimited(&mut data).ok()).take(256)
}

/// The verdict on a trial with any rows.
pub fn verdict(data: &[u8]) {
    let Ok((plan, _)) = check::read(PLAN, &[]) else { panic!("the plan is valid") };
    let nodes = plan.plan().nodes.keys().map(|node| (node.clone(), NodeClock::shared(1_000, 0)));
    let clocks: BTreeMap<String, NodeClock> = nodes.collect();
    let mut judge = Judge::new(&plan, &BTreeMap::new(), &clocks);
    let mut done = BTreeMap::new();
    for (number, event) in events(data).enumerate() {
        let Some(node) = clocks.keys().nth(number % clocks.len()) else { continue };
        match event.payload {
            Some(Payload::Done(last)) => drop(done.insert(node.clone(), last)),
            _ => judge.observe(node, &event),
        }
    }
    let verdict = judge.finish(&done, &[]);
    assert!(verdict.reasons.iter().all(|reason| !reason.code.as_str().is_empty()));
}

/// Rows of tables.
pub fn table(data: &[u8]) {
    for payload in events(data).filter_map(|event| event.payload) {
        let rows = match &payload {
            Payload::Acks(batch) => batch.at_ns.len(),
            Payload::TcpEvents(events) => events.events.len(),
            Payload::Done(_) | Payload::Raw(_) => 0,
            _ => 1,
        };
        match fuzzing::table_of(payload) {
            Ok((height, _)) => assert_eq!(height, rows),
            Err(error) => panic!("{error}"),
        }
    }
}

/// A trace in Parquet.
pub fn parquet(data: &[u8]) {
    match parquet_trace::to_text(data.to_vec()) {
        Ok(text) => {
            let _ = trace::parse_as("t", text.as_bytes(), trace::Format::Ccbench);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// The archive of an artifact: as it is, and with a corrected checksum of the first header.
pub fn archive(data: &[u8]) {
    for bytes in [data.to_vec(), with_checksum(data)] {
        let Ok(files) = fuzzing::archive_files(&bytes) else { continue };
        for (name, _) in &files {
            assert!(name.split('/').all(|part| !["", ".", ".."].contains(&part)), "{name}");
        }
        let contents: usize = files.iter().map(|(_, content)| content.len()).sum();
        assert!(contents <= bytes.len());
        let written = fuzzing::archive_of(&files).ok();
        let again = written.and_then(|written| fuzzing::archive_files(&written).ok());
        assert_eq!(again, Some(files));
    }
}

/// Rows of a slice, and most of those that are read: a file may claim billions of rows that are all equal.
const SLICE_ROWS: usize = 2;
const MAX_ROWS: usize = 1_000;

/// A table in Parquet, whole and in slices.
pub fn parquet_table(data: &[u8]) {
    match fuzzing::read_table(data, MAX_ROWS) {
        Ok((rows, _)) => assert!(rows <= MAX_ROWS),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match fuzzing::read_slices(data, SLICE_ROWS, MAX_ROWS) {
        Ok(rows) => assert!(rows <= MAX_ROWS),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn with_checksum(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    if let Some(block) = bytes.get_mut(..512) {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    bytes
}
