//! One quantity over the duration of a trial, in bins of equal width, and its mean at the end of the trial so far.

use super::update::Bin;

/// The time bins of a trial. The last bin also holds everything after the trial's planned end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bins {
    /// Width of a bin in nanoseconds.
    pub width_ns: u64,
    count: u64,
}

/// Maximum number of bins of a quantity: as many as fit into a chart in a usual window.
const MAX_BINS: u64 = 240;
/// Minimum number of bins of a quantity, for trials with very many flows.
const MIN_BINS: u64 = 8;
/// Minimum width of a bin. Samples are rarely denser than 10 ms, and nobody can read shorter bins.
const MIN_WIDTH_NS: u64 = 100_000_000;
/// Maximum number of bins of one quantity over all flows: 5 MB for each of four quantities.
const MAX_BINS_OF_ALL_FLOWS: u64 = 120_000;

impl Bins {
    /// Returns the bins of a trial of this length with this many flows.
    pub fn new(length_ns: u64, flows: u64) -> Self {
        let most = (MAX_BINS_OF_ALL_FLOWS / flows.max(1)).clamp(MIN_BINS, MAX_BINS);
        // Rounds to whole milliseconds, the resolution of times in updates.
        let width_ns = length_ns.div_ceil(most).max(MIN_WIDTH_NS).next_multiple_of(1_000_000);
        Self { width_ns, count: length_ns.div_ceil(width_ns).max(1) }
    }

    /// Returns the bin of an instant after the trial's start.
    pub fn index(self, elapsed_ns: u64) -> u32 {
        // At most `MAX_BINS`, so the cast is lossless.
        (elapsed_ns / self.width_ns).min(self.count) as u32
    }
}

/// When a value was measured, and when it arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleTime {
    /// Time since the trial's start.
    pub elapsed_ns: u64,
    /// The bin of this time.
    pub bin: u32,
    /// The revision of the state during which the value arrived.
    pub revision: u32,
}

/// The time over which [`Series::now`] averages, in slots: 0.2 s, as long as the time between two updates of a view. A bin of an hour's
/// trial has 15 s.
const RECENT_SLOTS: u64 = 4;
/// Width of a slot in nanoseconds.
const SLOT_NS: u64 = 50_000_000;

/// The values of one quantity within one slot; empty while `weight` is 0.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// Number of slots between the trial's start and this one.
    index: u64,
    weighted_sum: f64,
    weight: f64,
}

/// The newest values of one quantity, in fixed memory however many flows and samples there are.
#[derive(Debug, Clone, Default)]
struct Recent {
    /// A slot is at the position of its index modulo their number.
    slots: [Slot; RECENT_SLOTS as usize],
    /// Index of the newest slot.
    newest: u64,
}

impl Recent {
    fn add(&mut self, elapsed_ns: u64, value: f64, weight: f64) {
        let index = elapsed_ns / SLOT_NS;
        let Some(slot) = self.slots.get_mut((index % RECENT_SLOTS) as usize) else { return };
        if index < slot.index {
            // A late row.
            return;
        }
        if index > slot.index {
            *slot = Slot { index, ..Slot::default() };
        }
        slot.weighted_sum += value * weight;
        slot.weight += weight;
        self.newest = self.newest.max(index);
    }

    /// Returns the weighted mean of the slots up to the newest value.
    fn mean(&self) -> Option<f64> {
        let recent = self.slots.iter().filter(|slot| slot.index + RECENT_SLOTS > self.newest);
        let add = |(sum, weight): (f64, f64), slot: &Slot| {
            (sum + slot.weighted_sum, weight + slot.weight)
        };
        let (sum, weight) = recent.fold((0.0, 0.0), add);
        (weight > 0.0).then(|| sum / weight)
    }
}

/// The values of one quantity within one bin; empty while `weight` is 0.
#[derive(Debug, Clone, Copy, Default)]
struct Aggregate {
    min: f64,
    max: f64,
    weighted_sum: f64,
    weight: f64,
    /// The revision of the state in which the bin last changed.
    revision: u32,
}

/// Minimum, weighted mean and maximum of one quantity in each bin, and its mean over the last 0.2 s.
#[derive(Debug, Clone, Default)]
pub struct Series {
    bins: Vec<Aggregate>,
    recent: Recent,
    /// The newest revision of any bin.
    revision: u32,
}

impl Series {
    /// Adds a value. Ignores values that are not finite and weights that are not positive, because they have no meaning.
    pub fn add(&mut self, at: SampleTime, value: f64, weight: f64) {
        if !value.is_finite() || weight <= 0.0 || !weight.is_finite() {
            return;
        }
        self.recent.add(at.elapsed_ns, value, weight);
        let index = at.bin as usize;
        if self.bins.len() <= index {
            self.bins.resize(index + 1, Aggregate::default());
        }
        let Some(bin) = self.bins.get_mut(index) else { return };
        if bin.weight == 0.0 {
            (bin.min, bin.max) = (value, value);
        }
        bin.min = bin.min.min(value);
        bin.max = bin.max.max(value);
        bin.weighted_sum += value * weight;
        bin.weight += weight;
        bin.revision = at.revision;
        self.revision = at.revision;
    }

    /// Returns the weighted mean of the values of the 0.2 s up to the newest one, whatever the width of the bins. If values are rarer, it
    /// is the newest one. `None` without a value.
    pub fn now(&self) -> Option<f64> {
        self.recent.mean()
    }

    /// Returns the bins that have changed since this revision.
    pub fn since(&self, revision: u32) -> Vec<Bin> {
        if self.revision <= revision {
            return vec![];
        }
        let changed = |(index, bin): (u32, &Aggregate)| {
            (bin.weight > 0.0 && bin.revision > revision).then(|| {
                let mean = bin.weighted_sum / bin.weight;
                Bin(index, rounded(bin.min), rounded(mean), rounded(bin.max))
            })
        };
        (0..).zip(&self.bins).filter_map(changed).collect()
    }
}

/// Rounds to seven significant digits. A screen shows fewer, and the JSON is half as long.
pub fn rounded(value: f64) -> f32 {
    value as f32
}
