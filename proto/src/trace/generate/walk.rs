//! A random walk of a rate, a delay or a loss between two limits.

use std::str::FromStr;

use super::{GenerateError, MS_NS, NOTHING, TraceBuilder, checked};
use crate::trace::{MAX_DELAY_NS, MAX_RATE, Step, Trace};
use crate::units::{Micros, Ppm, Rate};

/// The limits of a random walk; their unit selects the quantity (`"10ms..60ms"`, `"0%..1%"`, `"5mbit..40mbit"`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Between {
    /// The rate.
    Rate(Rate, Rate),
    /// The one-way delay.
    Delay(Micros, Micros),
    /// Independent random loss.
    Loss(Ppm, Ppm),
}

impl FromStr for Between {
    type Err = GenerateError;
    fn from_str(text: &str) -> Result<Self, GenerateError> {
        fn both<T: FromStr>(text: &str) -> Option<(T, T)> {
            let (low, high) = text.split_once("..")?;
            Some((low.parse().ok()?, high.parse().ok()?))
        }
        let rates = || both(text).map(|(low, high)| Self::Rate(low, high));
        let delays = || both(text).map(|(low, high)| Self::Delay(low, high));
        let losses = || both(text).map(|(low, high)| Self::Loss(low, high));
        let range = rates().or_else(delays).or_else(losses);
        range.ok_or_else(|| GenerateError::NotARange(text.to_owned()))
    }
}

impl Between {
    /// Minimum and maximum, in whole units of the quantity.
    fn ends(self) -> (u64, u64) {
        match self {
            Self::Rate(low, high) => (low.bits_per_sec(), high.bits_per_sec()),
            Self::Delay(low, high) => (low.get(), high.get()),
            Self::Loss(low, high) => (low.get().into(), high.get().into()),
        }
    }

    /// The maximum of a trace, in the same units and as text.
    fn most(self) -> (u64, String) {
        let longest = Micros::new(MAX_DELAY_NS / 1000);
        match self {
            Self::Rate(..) => (MAX_RATE.bits_per_sec(), MAX_RATE.to_string()),
            Self::Delay(..) => (longest.get(), longest.to_string()),
            Self::Loss(..) => (1_000_000, "100%".to_owned()),
        }
    }

    /// The row at this share of the range from one limit to the other.
    fn row(self, share: f64) -> Step {
        let (low, high) = self.ends();
        let value = low + ((high - low) as f64 * share) as u64;
        match self {
            Self::Rate(..) => Step { rate: Some(Rate::from_bits_per_sec(value)), ..NOTHING },
            Self::Delay(..) => Step { delay_ns: Some(value * 1000), ..NOTHING },
            Self::Loss(..) => Step { loss: Ppm::new(value as u32), ..NOTHING },
        }
    }
}

/// Generates a random walk between two limits. It starts in the middle; every 0.1 s it makes a normal step with a deviation of 5 %
/// of the range, reflected at both limits.
///
/// # Errors
/// The length or the limits are ones that no trace can have.
pub fn walk(seed: u64, length: Micros, between: Between) -> Result<Trace, GenerateError> {
    let length_ns = checked(length)?;
    let ((low, high), (highest, max)) = (between.ends(), between.most());
    if low >= high || high > highest {
        return Err(GenerateError::Limits { max });
    }
    let mut builder = TraceBuilder::new(seed, length_ns);
    let mut share: f64 = 0.5;
    while builder.row(between.row(share), 100 * MS_NS) {
        share = (share + 0.05 * builder.rng.normal()).abs();
        // No step is longer than six deviations.
        share = if share > 1.0 { 2.0 - share } else { share };
    }
    builder.trace()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Format;

    #[test]
    fn walk_covers_the_range_between_its_limits() {
        for (between, names) in [
            ("10ms..60ms", "t_us,delay_us"),
            ("0%..1%", "t_us,loss_ppm"),
            ("5mbit..40mbit", "t_us,rate_bps"),
        ] {
            let ends: Between = between.parse().unwrap();
            let made = walk(1, Micros::from_secs(300), ends).unwrap();
            let text = crate::trace::write(&made, Format::Ccbench).unwrap();
            assert_eq!(crate::trace::parse("made", text.as_bytes()).unwrap().rows(), 3000);
            let mut lines = text.lines();
            assert_eq!(lines.next(), Some(names));
            let values = lines.filter_map(|line| line.split_once(',')?.1.parse::<u64>().ok());
            let values: Vec<u64> = values.collect();
            let (low, high) = ends.ends();
            let (least, most) = (*values.iter().min().unwrap(), *values.iter().max().unwrap());
            let near = (high - low) / 20;
            assert!((low..low + near).contains(&least), "{between}: {least}");
            assert!((high - near..=high).contains(&most), "{between}: {most}");
            assert_eq!(values[0], low.midpoint(high));
        }
    }

    #[test]
    fn rejects_invalid_walk() {
        let second = Micros::from_secs(1);
        for none in ["", "10ms", "10..60ms", "10ms..1%", "10ms..60ms..70ms", "1%..200%"] {
            let why = none.parse::<Between>().unwrap_err().to_string();
            assert!(why.contains("10ms..60ms, 0%..1% or 5mbit..40mbit"), "{none}: {why}");
        }
        for none in ["60ms..10ms", "1%..1%", "1ms..61s", "1mbit..2tbit"] {
            let why = walk(1, second, none.parse().unwrap()).unwrap_err().to_string();
            assert!(why.contains("a higher limit, at most"), "{none}: {why}");
        }
        assert!(walk(1, Micros::new(1), "1ms..2ms".parse().unwrap()).is_err());
        assert!(walk(1, Micros::from_secs(3600 * 24 * 30), "1ms..2ms".parse().unwrap()).is_err());
    }
}
