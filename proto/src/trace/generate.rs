//! Generated traces. The same kind, seed, length and rate give the same trace on every machine.

use std::fmt;
use std::str::FromStr;

use super::random::Rng;
use super::{
    Format, MAX_LENGTH_NS, MAX_OPPORTUNITIES_LENGTH_NS, MAX_RATE, MAX_ROWS, Opportunities, Step,
    Steps, Trace,
};
use crate::units::{Micros, Rate};

mod walk;

pub use walk::{Between, walk};

const MS_NS: u64 = 1_000_000;
/// IP bytes that an opportunity carries.
const BYTES: u32 = 1500;

/// Why a trace cannot be generated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GenerateError {
    /// The name is not that of a kind.
    #[error("`{0}` is not a kind of trace; write {names}", names = Kind::ALL.map(Kind::name).join(", "))]
    UnknownKind(String),
    /// The text is not a range of a walk.
    #[error(
        "`{0}` is not two delays, losses or rates; write them like 10ms..60ms, 0%..1% or 5mbit..40mbit"
    )]
    NotARange(String),
    /// The length is out of range.
    #[error("the length {0} is out of range: from 1 ms to 31 days")]
    Length(Micros),
    /// The kind has fixed rates.
    #[error("`{0}` has fixed rates; leave the rate out")]
    FixedRate(Kind),
    /// The rate, in bit/s, is out of range.
    #[error("the rate {0} bit/s is out of range: from 1 kbit/s to {MAX_RATE}")]
    Rate(u64),
    /// The limits of a walk are out of range, or in the wrong order.
    #[error("a walk needs a lower and then a higher limit, at most {max}")]
    Limits {
        /// The highest limit, with its unit.
        max: String,
    },
    /// The trace would have too many rows.
    #[error("the trace would have {0} rows; {MAX_ROWS} are allowed")]
    TooManyRows(usize),
    /// A trace of opportunities would last too long.
    #[error("the length {0} is out of range: a trace of opportunities lasts a day at most")]
    LengthOfOpportunities(Micros),
    /// The trace would have too many opportunities.
    #[error("the trace would have more than {MAX_ROWS} opportunities")]
    TooManyOpportunities,
}

/// Kinds of generated traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// 60 GHz WLAN, static: about 2.9 Gbit/s, at times 2.3.
    Sl,
    /// 60 GHz WLAN, short blockages: down to about 1 Gbit/s for a second or two.
    Sb,
    /// 60 GHz WLAN, long blockages: 1.5 Gbit/s and less for ten seconds.
    Lb,
    /// 60 GHz WLAN, mobility and blockages: up to 3.85 Gbit/s, occasionally nothing.
    Mobb,
    /// A cellular downlink, as opportunities: 5 Mbit/s on average, with fades and outages.
    Lte,
    /// Opportunities of a Poisson process: exponential gaps, the given rate on average.
    Poisson,
    /// Random levels of 5 s each, from an eighth of the rate to all of it.
    Steps,
    /// From a tenth of the rate to all of it every 10 s.
    Sawtooth,
    /// A random walk between a tenth of the rate and all of it.
    RandomWalk,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Sl,
        Self::Sb,
        Self::Lb,
        Self::Mobb,
        Self::Lte,
        Self::Poisson,
        Self::Steps,
        Self::Sawtooth,
        Self::RandomWalk,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sl => "sl",
            Self::Sb => "sb",
            Self::Lb => "lb",
            Self::Mobb => "mobb",
            Self::Lte => "lte",
            Self::Poisson => "poisson",
            Self::Steps => "steps",
            Self::Sawtooth => "sawtooth",
            Self::RandomWalk => "random-walk",
        }
    }

    /// The format that traces of this kind usually come in.
    pub const fn format(self) -> Format {
        match self {
            Self::Sl | Self::Sb | Self::Lb | Self::Mobb => Format::Dwell,
            Self::Lte | Self::Poisson => Format::Mahimahi,
            Self::Steps | Self::Sawtooth | Self::RandomWalk => Format::Ccbench,
        }
    }

    /// The default rate; `None` if the kind has fixed rates.
    pub const fn default_rate(self) -> Option<Rate> {
        match self {
            Self::Poisson => Some(Rate::from_bits_per_sec(3_000_000)),
            Self::Steps | Self::Sawtooth | Self::RandomWalk => {
                Some(Rate::from_bits_per_sec(100_000_000))
            }
            Self::Sl | Self::Sb | Self::Lb | Self::Mobb | Self::Lte => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = GenerateError;
    fn from_str(text: &str) -> Result<Self, GenerateError> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| GenerateError::UnknownKind(text.to_owned()))
    }
}

/// Checks the length of a trace. Returns it in nanoseconds.
fn checked(length: Micros) -> Result<u64, GenerateError> {
    let length_ns = length.nanos();
    if !(MS_NS..=MAX_LENGTH_NS).contains(&length_ns) {
        return Err(GenerateError::Length(length));
    }
    Ok(length_ns)
}

/// Generates a trace. `rate` is the highest rate of steps, sawtooth and random walk, and the mean rate of a Poisson process; the
/// other kinds have fixed rates.
///
/// # Errors
/// The length or the rate is one that no trace can have, or the kind has fixed rates.
pub fn generate(
    kind: Kind,
    seed: u64,
    length: Micros,
    rate: Option<Rate>,
) -> Result<Trace, GenerateError> {
    let length_ns = checked(length)?;
    if rate.is_some() && kind.default_rate().is_none() {
        return Err(GenerateError::FixedRate(kind));
    }
    let top = rate.or(kind.default_rate()).map_or(0, Rate::bits_per_sec);
    if top > MAX_RATE.bits_per_sec() || rate.is_some_and(|rate| rate.bits_per_sec() < 1000) {
        return Err(GenerateError::Rate(top));
    }
    let mut builder = TraceBuilder::new(seed, length_ns);
    match kind {
        Kind::Lte => return lte(&mut builder.rng, length_ns).map(Trace::Opportunities),
        Kind::Poisson => {
            return poisson(&mut builder.rng, length_ns, top).map(Trace::Opportunities);
        }
        Kind::Sl => builder.wlan(&SL),
        Kind::Sb => builder.wlan(&SB),
        Kind::Lb => builder.wlan(&LB),
        Kind::Mobb => builder.wlan(&MOBB),
        Kind::Steps => builder.levels(top),
        Kind::Sawtooth => builder.sawtooth(top),
        Kind::RandomWalk => builder.random_walk(top),
    }
    builder.trace()
}

/// One level of a 60 GHz link's rate: its share of the time, and its centre and spread in Mbit/s.
struct Level {
    share: f64,
    mbit: f64,
    spread: f64,
}

/// A scenario on 60 GHz. Rows last 0.25 to 0.3 s, and the level usually changes only after ten.
struct Wlan {
    dwell_ms: f64,
    plateau_rows: f64,
    max_mbit: f64,
    levels: &'static [Level],
    /// Time from the end of a blockage to the next one, seconds; zero: no blockages.
    gap_s: (f64, f64),
    blocked_s: (f64, f64),
    blocked_mbit: (f64, f64),
    /// How many rows a blocked level lasts.
    blocked_rows: f64,
    /// Probability that a row of a blockage is a deep fade, and the range of its rate; values below zero become zero.
    deep_fade_probability: f64,
    deep_fade_mbit: (f64, f64),
}

const SL: Wlan = Wlan {
    dwell_ms: 303.7,
    plateau_rows: 10.0,
    max_mbit: 3080.0,
    levels: &[
        Level { share: 0.93, mbit: 2950.0, spread: 65.0 },
        Level { share: 0.07, mbit: 2310.0, spread: 0.0 },
    ],
    gap_s: (0.0, 0.0),
    blocked_s: (0.0, 0.0),
    blocked_mbit: (0.0, 0.0),
    blocked_rows: 1.0,
    deep_fade_probability: 0.0,
    deep_fade_mbit: (0.0, 0.0),
};

const SB: Wlan = Wlan {
    dwell_ms: 301.1,
    levels: &[
        Level { share: 0.73, mbit: 3000.0, spread: 80.0 },
        Level { share: 0.27, mbit: 2310.0, spread: 0.0 },
    ],
    gap_s: (8.0, 22.0),
    blocked_s: (0.6, 1.8),
    blocked_mbit: (962.0, 1155.0),
    blocked_rows: 6.0,
    ..SL
};

const LB: Wlan = Wlan {
    dwell_ms: 303.5,
    levels: &[
        Level { share: 0.82, mbit: 3000.0, spread: 80.0 },
        Level { share: 0.18, mbit: 2310.0, spread: 0.0 },
    ],
    gap_s: (11.0, 16.0),
    blocked_s: (5.0, 8.5),
    blocked_mbit: (1540.0, 2000.0),
    blocked_rows: 5.0,
    deep_fade_probability: 0.05,
    deep_fade_mbit: (-400.0, 1155.0),
    ..SL
};

const MOBB: Wlan = Wlan {
    dwell_ms: 253.7,
    plateau_rows: 9.0,
    max_mbit: 3850.0,
    levels: &[
        Level { share: 0.40, mbit: 3790.0, spread: 60.0 },
        Level { share: 0.26, mbit: 2960.0, spread: 60.0 },
        Level { share: 0.34, mbit: 2310.0, spread: 0.0 },
    ],
    gap_s: (3.0, 11.0),
    blocked_s: (0.25, 1.1),
    blocked_mbit: (900.0, 1200.0),
    blocked_rows: 2.0,
    deep_fade_probability: 0.2,
    deep_fade_mbit: (-200.0, 770.0),
};

const NOTHING: Step = Step { at_ns: 0, rate: None, delay_ns: None, loss: None, line: 0 };

struct TraceBuilder {
    rng: Rng,
    steps: Vec<Step>,
    at_ns: u64,
    length_ns: u64,
}

impl TraceBuilder {
    fn new(seed: u64, length_ns: u64) -> Self {
        Self { rng: Rng::new(seed), steps: Vec::new(), at_ns: 0, length_ns }
    }

    /// Adds a row behind the last one; `false` once the trace is complete.
    fn row(&mut self, step: Step, lasts_ns: u64) -> bool {
        if self.at_ns >= self.length_ns || self.steps.len() > MAX_ROWS {
            return false;
        }
        self.steps.push(Step { at_ns: self.at_ns, ..step });
        self.at_ns += lasts_ns.max(1);
        true
    }

    fn push(&mut self, bps: f64, lasts_ns: u64) -> bool {
        let rate = Some(Rate::from_bits_per_sec(bps as u64));
        self.row(Step { rate, ..NOTHING }, lasts_ns)
    }

    fn trace(self) -> Result<Trace, GenerateError> {
        if self.steps.len() > MAX_ROWS {
            return Err(GenerateError::TooManyRows(self.steps.len()));
        }
        Ok(Trace::Steps(Steps { steps: self.steps, length_ns: self.length_ns }))
    }

    fn wlan(&mut self, of: &Wlan) {
        let gap = |rng: &mut Rng| match of.gap_s {
            (_, 0.0) => f64::MAX,
            (low, high) => rng.between(low, high),
        };
        let mut block_s = gap(&mut self.rng);
        let (mut until_s, mut left, mut level) = (0.0, 0.0, 0.0);
        loop {
            let at_s = self.at_ns as f64 / 1e9;
            let blocked = at_s >= block_s;
            if blocked && until_s < block_s {
                until_s = block_s + self.rng.between(of.blocked_s.0, of.blocked_s.1);
                left = 0.0;
            } else if blocked && at_s >= until_s {
                block_s = until_s + gap(&mut self.rng);
                left = 0.0;
                continue;
            }
            if left < 1.0 && blocked {
                level = self.rng.between(of.blocked_mbit.0, of.blocked_mbit.1);
                left = of.blocked_rows * self.rng.between(0.5, 1.5);
            } else if left < 1.0 {
                level = draw_level(of, &mut self.rng);
                left = of.plateau_rows + self.rng.between(0.0, 1.5);
            }
            left -= 1.0;
            let is_deep_fade = blocked && self.rng.unit() < of.deep_fade_probability;
            let mbit = if is_deep_fade {
                self.rng.between(of.deep_fade_mbit.0, of.deep_fade_mbit.1)
            } else {
                level
            };
            // The resolution of the measured traces: whole Mbit/s, hundredths of a second.
            let hundredths = (of.dwell_ms + 4.5 * self.rng.normal()) / 10.0 + 0.5;
            let lasts_ns = (hundredths as u64).max(1) * 10 * MS_NS;
            if !self.push(f64::from(mbit as u32) * 1e6, lasts_ns) {
                return;
            }
        }
    }

    fn levels(&mut self, top: u64) {
        let mut last = 8;
        loop {
            // One of the seven other levels.
            let eighths = 1 + (last + (self.rng.unit() * 7.0) as u64) % 8;
            last = eighths;
            if !self.push(top as f64 * eighths as f64 / 8.0, 5_000 * MS_NS) {
                return;
            }
        }
    }

    fn sawtooth(&mut self, top: u64) {
        for row in 0_u32.. {
            let share = 0.1 + 0.9 * f64::from(row % 100) / 99.0;
            if !self.push(top as f64 * share, 100 * MS_NS) {
                return;
            }
        }
    }

    fn random_walk(&mut self, top: u64) {
        let mut share: f64 = 0.5;
        while self.push(top as f64 * share, 100 * MS_NS) {
            share *= 1.0 + 0.08 * self.rng.normal();
            // Reflected at both ends.
            if share > 1.0 {
                share = 2.0 - share;
            }
            share = if share < 0.1 { 0.2 - share } else { share }.clamp(0.1, 1.0);
        }
    }
}

fn draw_level(of: &Wlan, rng: &mut Rng) -> f64 {
    let mut drawn = rng.unit();
    let mut levels = of.levels.iter();
    let level = levels.find(|level| {
        drawn -= level.share;
        drawn < 0.0
    });
    let level = level.unwrap_or(&of.levels[0]);
    (level.mbit + level.spread * rng.normal()).clamp(0.0, of.max_mbit)
}

/// Each millisecond has the number of opportunities of a Poisson process, whose rate varies slowly with the distance and fast with
/// fading, and is zero in outages.
fn lte(rng: &mut Rng, length_ns: u64) -> Result<Opportunities, GenerateError> {
    const PACKETS_PER_MS: f64 = 5.0e6 / 12_000.0 / 1000.0;
    let length_ms = length_ns / MS_NS;
    let (mut slow, mut fast) = (rng.normal(), rng.normal());
    let (mut now, mut outage_ms) = (PACKETS_PER_MS, 0.0_f64);
    let mut wait = rng.exponential();
    let mut at_ns = Vec::new();
    for ms in 0..length_ms {
        if ms % 20 == 0 {
            // Each 20 ms keep 0.994 and 0.9 of the state: time constants of 3.3 s and 0.2 s.
            slow = 0.994 * slow + 0.1094 * rng.normal();
            fast = 0.9 * fast + 0.4359 * rng.normal();
            now = PACKETS_PER_MS * (1.0 + 0.72 * slow + 0.5 * fast).max(0.02);
            if outage_ms <= 0.0 && rng.unit() < 0.0012 {
                outage_ms = 1000.0 * rng.exponential();
            }
            outage_ms -= 20.0;
        }
        if outage_ms > 0.0 {
            continue;
        }
        wait -= now;
        while wait <= 0.0 {
            at_ns.push(ms * MS_NS);
            wait += rng.exponential();
        }
        check_opportunity_count(&at_ns)?;
    }
    until(at_ns, length_ms)
}

/// Packets of 1500 bytes at exponential gaps, each rounded down to its millisecond.
fn poisson(rng: &mut Rng, length_ns: u64, bps: u64) -> Result<Opportunities, GenerateError> {
    let gap_ns = f64::from(BYTES) * 8e9 / bps as f64;
    let (length_ms, mut at_ns) = (length_ns / MS_NS, Vec::new());
    let mut next_ns = rng.exponential() * gap_ns;
    while next_ns < (length_ms * MS_NS) as f64 {
        at_ns.push(next_ns as u64 / MS_NS * MS_NS);
        next_ns += rng.exponential() * gap_ns;
        check_opportunity_count(&at_ns)?;
    }
    until(at_ns, length_ms)
}

fn check_opportunity_count(at_ns: &[u64]) -> Result<(), GenerateError> {
    if at_ns.len() > MAX_ROWS {
        return Err(GenerateError::TooManyOpportunities);
    }
    Ok(())
}

/// mahimahi's traces end with their last instant.
fn until(mut at_ns: Vec<u64>, length_ms: u64) -> Result<Opportunities, GenerateError> {
    let length_ns = length_ms * MS_NS;
    if length_ns > MAX_OPPORTUNITIES_LENGTH_NS {
        return Err(GenerateError::LengthOfOpportunities(Micros::from_millis(length_ms)));
    }
    at_ns.push(length_ns);
    check_opportunity_count(&at_ns)?;
    Ok(Opportunities { at_ns, bytes: BYTES, length_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(trace: &Trace) -> (f64, f64, f64) {
        let rates = trace.rates();
        let weigh = |of: &dyn Fn(f64) -> f64| {
            let sum: f64 = rates
                .iter()
                .map(|(rate, ns)| of(rate.unwrap().bits_per_sec() as f64 / 1e6) * *ns as f64)
                .sum();
            sum / rates.iter().map(|(_, ns)| *ns as f64).sum::<f64>()
        };
        let mean = weigh(&|mbit| mbit);
        let deviation = weigh(&|mbit| (mbit - mean) * (mbit - mean)).sqrt();
        (mean, deviation, weigh(&|mbit| f64::from(u8::from(mbit < 1900.0))))
    }

    /// Mean and deviation in Mbit/s and the share of the time below 1900 Mbit/s of the measured traces, and how
    /// far the mean of twenty seeds may be from each.
    #[test]
    fn wlan_kinds_match_the_statistics_of_their_originals() {
        for (kind, mean, deviation, blocked) in [
            (Kind::Sl, 2905.0, 172.0, 0.0),
            (Kind::Sb, 2726.0, 516.0, 0.06),
            (Kind::Lb, 2520.0, 620.0, 0.21),
            (Kind::Mobb, 2961.0, 826.0, 0.06),
            (Kind::Lte, 5.0, 4.0, 1.0),
        ] {
            let made: Vec<_> = (0..20)
                .map(|seed| figures(&generate(kind, seed, Micros::from_secs(120), None).unwrap()))
                .collect();
            let over = |of: fn(&(f64, f64, f64)) -> f64| made.iter().map(of).sum::<f64>() / 20.0;
            let found = (over(|f| f.0), over(|f| f.1), over(|f| f.2));
            let near =
                |found: f64, wanted: f64, share: f64| (found - wanted).abs() <= share * wanted;
            assert!(
                near(found.0, mean, 0.05) && near(found.1, deviation, 0.15),
                "{kind}: {found:?}, wanted {mean}, {deviation}"
            );
            assert!((found.2 - blocked).abs() <= 0.08, "{kind}: {found:?}, wanted {blocked}");
        }
    }

    #[test]
    fn poisson_process_has_its_rate_and_unit_dispersion() {
        // The cellular path of Mexico: 2.64 Mbit/s are 220 packets a second.
        let rate = Some(Rate::from_bits_per_sec(2_640_000));
        let made = generate(Kind::Poisson, 3, Micros::from_secs(600), rate).unwrap();
        let Trace::Opportunities(made) = made else { panic!("rows") };
        let mut counts = vec![0.0_f64; 600];
        for at_ns in &made.at_ns[..made.at_ns.len() - 1] {
            counts[(at_ns / 1_000_000_000) as usize] += 1.0;
        }
        let mean = counts.iter().sum::<f64>() / 600.0;
        let variance = counts.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / 599.0;
        assert!((mean - 220.0).abs() < 3.0, "{mean}");
        // Index of dispersion: 1 within 2.5 of its standard deviations, (2 / 599)^0.5.
        assert!((variance / mean - 1.0).abs() < 0.145, "{variance} of {mean}");
        assert!(generate(Kind::Poisson, 3, Micros::from_secs(3600 * 24 * 30), rate).is_err());
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes_and_they_read_back() {
        for kind in Kind::ALL {
            let text = |seed| {
                let trace = generate(kind, seed, Micros::from_secs(20), None).unwrap();
                crate::trace::write(&trace, kind.format()).unwrap()
            };
            assert_eq!(text(1), text(1), "{kind}");
            if kind != Kind::Sawtooth {
                assert_ne!(text(1), text(2), "{kind}");
            }
            let read = crate::trace::parse("made", text(1).as_bytes()).unwrap();
            assert!(read.length_ns().abs_diff(20_000_000_000) < 400_000_000, "{kind}");
        }
    }

    /// The traces of `plans/dumbbell`, each with the arguments of `ccbench trace generate`.
    #[test]
    fn committed_traces_are_what_the_generator_makes() {
        let rate = |text: &str| Some(text.parse().unwrap());
        let of = |kind, seed, length_s, rate| {
            (generate(kind, seed, Micros::from_secs(length_s), rate).unwrap(), kind.format())
        };
        let walk_of = |between: &str| {
            let between = between.parse().unwrap();
            (walk(1, Micros::from_secs(30), between).unwrap(), Format::Ccbench)
        };
        for (file, (made, format)) in [
            ("lte-30s.trace", of(Kind::Lte, 1, 30, None)),
            ("poisson-nepal.trace", of(Kind::Poisson, 3, 60, rate("0.57mbit"))),
            ("poisson-mexico.trace", of(Kind::Poisson, 3, 60, rate("2.64mbit"))),
            ("poisson-brazil.trace", of(Kind::Poisson, 3, 60, rate("3.04mbit"))),
            ("random-walk.csv", of(Kind::RandomWalk, 1, 30, rate("40mbit"))),
            ("walk-delay.csv", walk_of("10ms..60ms")),
            ("walk-loss.csv", walk_of("0%..1%")),
        ] {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../plans/dumbbell/traces");
            let committed = std::fs::read_to_string(format!("{folder}/{file}")).unwrap();
            assert!(crate::trace::write(&made, format).unwrap() == committed, "{file}");
        }
    }

    #[test]
    fn rejects_invalid_length_and_rate() {
        let second = Micros::from_secs(1);
        let rate = |bps| Some(Rate::from_bits_per_sec(bps));
        assert!(generate(Kind::Sl, 1, Micros::new(1), None).is_err());
        assert!(generate(Kind::Sl, 1, Micros::new(u64::MAX), None).is_err());
        assert!(generate(Kind::Sl, 1, second, rate(1_000_000)).is_err());
        assert!(generate(Kind::Steps, 1, second, rate(10)).is_err());
        assert!(generate(Kind::Steps, 1, second, rate(1 << 60)).is_err());
        assert!(generate(Kind::Sawtooth, 1, Micros::from_secs(3600 * 24 * 30), None).is_err());
    }
}
