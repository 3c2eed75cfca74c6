//! Summary of a trace: length, rates and other statistics.

use super::Trace;
use crate::units::{Micros, Ppm, Rate};

/// The statistics of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// When its last row ends.
    pub length: Micros,
    /// Rows, or opportunities.
    pub rows: usize,
    /// Weighted by time; `None` if a row has no rate.
    pub mean_rate: Option<Rate>,
    /// The lowest row; for opportunities the slowest 100 ms.
    pub min_rate: Option<Rate>,
    /// The highest row; for opportunities the fastest 100 ms.
    pub max_rate: Option<Rate>,
    /// Share of the time at a rate of zero (for opportunities: of 100 ms windows without one), parts per million.
    pub zero_ppm: u32,
    /// The shortest and the longest delay that a row gives; `None` if none does.
    pub delay: Option<(Micros, Micros)>,
    /// The lowest and the highest loss that a row gives; `None` if none does.
    pub loss: Option<(Ppm, Ppm)>,
}

/// Opportunities are instants, so their rate is counted over windows of this length.
const WINDOW_NS: u64 = 100_000_000;

fn min_max<T: Copy + Ord>(values: impl Iterator<Item = T>) -> Option<(T, T)> {
    values.fold(None, |ends, value| {
        let (low, high) = ends.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

impl Trace {
    /// Its statistics.
    pub fn summary(&self) -> Summary {
        let rates = self.rates();
        let known = || rates.iter().filter_map(|(rate, length_ns)| Some(((*rate)?, *length_ns)));
        let zero_ns: u64 =
            known().filter(|(rate, _)| rate.bits_per_sec() == 0).map(|(_, length)| length).sum();
        let length_ns = self.length_ns().max(1);
        let steps = match self {
            Self::Steps(steps) => steps.steps.as_slice(),
            Self::Opportunities(_) => &[],
        };
        Summary {
            length: Micros::new(length_ns.div_ceil(1000)),
            rows: self.rows(),
            mean_rate: self.mean_rate(),
            min_rate: known().map(|(rate, _)| rate).min(),
            max_rate: known().map(|(rate, _)| rate).max(),
            zero_ppm: (u128::from(zero_ns) * 1_000_000 / u128::from(length_ns)) as u32,
            delay: min_max(
                steps.iter().filter_map(|step| Some(Micros::new(step.delay_ns? / 1000))),
            ),
            loss: min_max(steps.iter().filter_map(|step| step.loss)),
        }
    }

    /// Rates with their durations in nanoseconds: of the rows; for opportunities, of windows of 100 ms.
    pub fn rates(&self) -> Vec<(Option<Rate>, u64)> {
        match self {
            Self::Steps(steps) => steps.spans().map(|(step, length)| (step.rate, length)).collect(),
            Self::Opportunities(all) => {
                let windows = all.length_ns.div_ceil(WINDOW_NS).max(1);
                let mut counts = vec![0_u64; windows as usize];
                for &at_ns in &all.at_ns {
                    // The last instant closes the last window.
                    let window = (at_ns / WINDOW_NS).min(windows - 1);
                    counts[window as usize] += 1;
                }
                let lengths =
                    (0..windows).map(|nth| (all.length_ns - nth * WINDOW_NS).min(WINDOW_NS));
                counts
                    .into_iter()
                    .zip(lengths)
                    .map(|(count, length_ns)| {
                        let bits = u128::from(count) * u128::from(all.bytes) * 8_000_000_000;
                        let rate = bits / u128::from(length_ns.max(1));
                        (Some(Rate::from_bits_per_sec(rate as u64)), length_ns)
                    })
                    .collect()
            }
        }
    }
}
