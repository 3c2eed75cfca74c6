//! Shards: parts of an experiment that run on different machines.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use super::random::{derive, shuffle};
use super::{ScheduledTrial, first_compared, trials};
use crate::plan::checked::CheckedPlan;

/// Most shards of an experiment: Slurm's `MaxArraySize` is below it on every cluster.
pub const MAX_SHARDS: u32 = 1_000_000;

/// One shard of several: `2/3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shard {
    number: u32,
    count: u32,
}

/// A text that is not a shard.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a shard; write NUMBER/SHARDS, as in 2/3, with 1 <= NUMBER <= SHARDS <= {max}",
    max = MAX_SHARDS
)]
pub struct ShardError(String);

impl Shard {
    /// Shard `number` (from 1) of `count`; `None` if there is no such shard.
    pub const fn new(number: u32, count: u32) -> Option<Self> {
        if number >= 1 && number <= count && count <= MAX_SHARDS {
            Some(Self { number, count })
        } else {
            None
        }
    }

    /// From 1.
    pub const fn number(self) -> u32 {
        self.number
    }

    /// The number of shards.
    pub const fn count(self) -> u32 {
        self.count
    }
}

impl Display for Shard {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.count)
    }
}

impl FromStr for Shard {
    type Err = ShardError;
    fn from_str(text: &str) -> Result<Self, ShardError> {
        let parts = text.split_once('/');
        parts
            .and_then(|(number, count)| Self::new(number.parse().ok()?, count.parse().ok()?))
            .ok_or_else(|| ShardError(text.to_owned()))
    }
}

/// The shard number (from 1) of every trial of [`trials`], in the same order. The same on every machine.
///
/// Within each repetition, the plan's seed shuffles the trials, so that differences between machines do not coincide with factors.
/// Then each trial, the longest first, goes to the shard whose trials take the least time so far. If rules end the repetition,
/// whole points are distributed instead, each with all its trials and with the points that it is compared with: each rule is then
/// about trials of one shard, which can decide it.
pub fn partition(plan: &CheckedPlan, count: u32) -> Vec<u32> {
    let all = trials(plan);
    let lengths = plan.trial_lengths();
    let length_us = |trial: &ScheduledTrial| {
        lengths.get(trial.point_id as usize).copied().unwrap_or_default().get()
    };
    let mut loads: BinaryHeap<Reverse<(u64, u32)>> =
        (1..=count.max(1)).map(|number| Reverse((0, number))).collect();
    let mut shards = vec![1; all.len()];
    for (repetition, mut block) in blocks(plan, &all) {
        shuffle(&mut block, derive(plan.plan().seed, "shards", &[u64::from(repetition)]));
        let load_us = |together: &[usize]| -> u64 {
            together.iter().map(|index| length_us(&all[*index])).sum()
        };
        // Stable: trials of equal length stay shuffled.
        block.sort_by_key(|together| Reverse(load_us(together)));
        for together in block {
            if let Some(Reverse((before_us, number))) = loads.pop() {
                together.iter().for_each(|index| shards[*index] = number);
                loads.push(Reverse((before_us + load_us(&together), number)));
            }
        }
    }
    shards
}

/// The indices of trials that must be in one shard.
type Together = Vec<usize>;

/// The blocks that are divided one after the other: each repetition, trial by trial; a single block if rules end the repetition.
fn blocks(plan: &CheckedPlan, all: &[ScheduledTrial]) -> BTreeMap<u16, Vec<Together>> {
    let mut blocks: BTreeMap<u16, Vec<Together>> = BTreeMap::new();
    if plan.plan().repeat.adaptive().is_none() {
        for (index, trial) in all.iter().enumerate() {
            blocks.entry(trial.trial).or_default().push(vec![index]);
        }
        return blocks;
    }
    let firsts = first_compared(plan);
    let mut groups: BTreeMap<u32, Together> = BTreeMap::new();
    for (index, trial) in all.iter().enumerate() {
        let first = firsts.get(trial.point_id as usize).copied().unwrap_or(trial.point_id);
        groups.entry(first).or_default().push(index);
    }
    blocks.insert(0, groups.into_values().collect());
    blocks
}

/// The trials of a shard, with their order, indices and seeds in the experiment.
pub fn shard_trials(plan: &CheckedPlan, shard: Shard) -> Vec<ScheduledTrial> {
    let of_trials = partition(plan, shard.count).into_iter();
    let own = trials(plan).into_iter().zip(of_trials);
    own.filter(|(_, number)| *number == shard.number).map(|(trial, _)| trial).collect()
}

#[cfg(test)]
mod tests {
    use ccbench_tests::plans;

    use super::*;
    use crate::plan::check;

    fn plan(repeat: u32) -> CheckedPlan {
        let head = format!("name = \"shards\"\nseed = 7\nrepeat = {repeat}");
        let text = plans::of_lengths(&head, &["10s", "20s", "30s", "40s", "50s"]);
        check::read(&text, &[]).unwrap().0
    }

    #[test]
    fn shards_are_written_as_number_and_count() {
        let shard: Shard = "2/3".parse().unwrap();
        assert_eq!((shard.number(), shard.count(), shard.to_string()), (2, 3, "2/3".to_owned()));
        for text in ["", "1", "0/3", "4/3", "1/0", "-1/3", "1/3/5", "1/1000001", "a/b"] {
            let error = text.parse::<Shard>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is not a shard; write")), "{error}");
        }
    }

    #[test]
    fn every_trial_is_in_one_shard_with_its_index_and_seed() {
        let plan = plan(7);
        for count in [1, 2, 3, 16, 35, 100] {
            let shards = (1..=count).map(|number| Shard::new(number, count).unwrap());
            let mut found: Vec<ScheduledTrial> =
                shards.flat_map(|shard| shard_trials(&plan, shard)).collect();
            found.sort_by_key(|trial| trial.index);
            assert_eq!(found, trials(&plan), "{count} shards");
        }
    }

    /// A rule looks at all repetitions of its points, and one machine has them.
    #[test]
    fn trials_that_a_rule_needs_are_in_one_shard() {
        let of_shards = |compare: &str| {
            let until = r#"{ metric = "rtt", probe = "rtt", within = "5%" }"#;
            let repeat = format!("repeat = {{ at_least = 5, at_most = 9, until = [{until}] }}");
            let head = format!("name = \"shards\"\nseed = 7\n{repeat}");
            let text = plans::of_lengths(&head, &["10s", "20s", "30s", "40s", "50s"]) + compare;
            let plan = check::read(&text, &[]).unwrap().0;
            let mut of_points = vec![std::collections::BTreeSet::new(); 5];
            for (trial, number) in trials(&plan).iter().zip(partition(&plan, 4)) {
                of_points[trial.point_id as usize].insert(number);
            }
            assert!(of_points.iter().all(|shards| shards.len() == 1), "{of_points:?}");
            of_points.into_iter().map(|shards| *shards.first().unwrap()).collect::<Vec<u32>>()
        };
        let alone = of_shards("");
        // The longest ones first, and 10 s and 20 s together.
        assert_eq!(alone[0], alone[1], "{alone:?}");
        let used: std::collections::BTreeSet<&u32> = alone.iter().collect();
        assert_eq!(used.len(), 4, "{alone:?}");
        let pair = |a: &str, b: &str| {
            format!(
                "[[compare]]\na = {{ \"phases.0.length\" = \"{a}\" }}\nb = {{ \"phases.0.length\" = \"{b}\" }}\nmetric = \"rtt\"\n\
                 probe = \"rtt\"\nbetter = \"lower\"\nmargin = \"1us\"\n"
            )
        };
        let chained = of_shards(&(pair("50s", "10s") + &pair("30s", "50s")));
        assert!(chained[0] == chained[2] && chained[2] == chained[4], "{chained:?}");
        assert_ne!(chained[3], chained[4], "{chained:?}");
    }

    #[test]
    fn shards_take_about_the_same_time_and_mix_the_points() {
        let plan = plan(8);
        let of_trials = partition(&plan, 4);
        let mut loads = [0; 4];
        let mut points = [const { Vec::new() }; 4];
        for (trial, number) in trials(&plan).iter().zip(&of_trials) {
            let place = *number as usize - 1;
            loads[place] += 10 * (u64::from(trial.point_id) + 1);
            points[place].push(trial.point_id);
        }
        let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
        assert!(most - least <= 50, "they differ by the longest trial at most: {loads:?}");
        // A shard that has the same point in every repetition would confound point and machine.
        for of_shard in &points {
            let count = |point| of_shard.iter().filter(|other| **other == point).count();
            assert!((0..5).all(|point| count(point) < 8), "{points:?}");
        }
    }
}
