//! Tests partitions of the control network.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::failure::Failure;
use crate::lane::{FaultResult, Lane, SHORT};
use crate::nodes::controller;

/// When a partition begins, after the start of the controller: while it connects, prepares, runs each trial, and at the end.
const AT_MS: [u64; 6] = [100, 400, 800, 1_200, 1_800, 2_600];
/// Just shorter than the longest interruption that loses no node, and longer than the tolerated silence.
const LENGTH_MS: [u64; 2] = [2_900, 8_000];
const DIRECTIONS: [(&str, [bool; 2]); 3] =
    [("to", [true, false]), ("from", [false, true]), ("both", [true, true])];

/// Cuts node b off from the controller on node a. Written as `partition:to:400:2000`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// "to" node b, "from" it, or "both".
    direction: &'static str,
    /// Whether to drop what goes to node b, and what comes from it.
    drops: [bool; 2],
    at_ms: u64,
    length_ms: u64,
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition:{}:{}:{}", self.direction, self.at_ms, self.length_ms)
    }
}

/// Text that names no partition.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not partition:to|from|both:AT_MS:LENGTH_MS")]
pub struct NotAPartition(String);

impl FromStr for Partition {
    type Err = NotAPartition;

    fn from_str(text: &str) -> Result<Self, NotAPartition> {
        let wrong = || NotAPartition(text.to_owned());
        let ["partition", direction, at_ms, length_ms] = text.split(':').collect::<Vec<_>>()[..]
        else {
            return Err(wrong());
        };
        let (direction, drops) =
            DIRECTIONS.into_iter().find(|(name, _)| *name == direction).ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        let (at_ms, length_ms) = (number(at_ms)?, number(length_ms)?);
        Ok(Self { direction, drops, at_ms, length_ms })
    }
}

/// Returns every combination of length, phase and direction.
pub fn partitions() -> Vec<Partition> {
    let mut partitions = Vec::new();
    for length_ms in LENGTH_MS {
        for at_ms in AT_MS {
            for (direction, drops) in DIRECTIONS {
                partitions.push(Partition { direction, drops, at_ms, length_ms });
            }
        }
    }
    partitions
}

impl Lane {
    pub fn partition(&mut self, partition: &Partition) -> Result<FaultResult, Failure> {
        self.ensure_started()?;
        let mut child = controller(&self.bench, &self.nodes[0], &[], &SHORT).spawn().unwrap();
        let [a, b] = &self.nodes;
        let ends = [(a, b.control), (b, a.control)];
        let mut injected = false;
        for (is_cut, after_ms) in [(true, partition.at_ms), (false, partition.length_ms)] {
            std::thread::sleep(Duration::from_millis(after_ms));
            injected |= is_cut && child.try_wait().unwrap().is_none();
            let dropped = ends.iter().zip(partition.drops).filter(|(_, drops)| *drops);
            dropped.for_each(|((node, address), _)| node.cut(address, is_cut));
        }
        let status = self.wait(child)?;
        self.check_code(status, false)?;
        self.check_logs()?;
        self.check_results(status.success().then_some(2))?;
        if partition.length_ms < 3_000 && self.lost_a_node() {
            return Err(Failure::NodeLost { printed: self.bench.printed() });
        }
        self.check_after()?;
        Ok(FaultResult { code: status.code(), injected })
    }
}

#[test]
fn a_partition_is_read_back() {
    for partition in partitions() {
        assert_eq!(partition.to_string().parse::<Partition>().unwrap(), partition);
    }
    assert!("partition:up:1:2".parse::<Partition>().is_err());
}
