//! The bandwidth models of the netem-trace crate, in its JSON form. Random models use the same distributions and seeds, but another
//! generator: the values differ, the statistics are the same.

use serde_json::{Map, Value};

use super::error::Problems;
use super::number::scaled;
use super::random::Rng;
use super::{Format, MAX_LENGTH_NS, MAX_RATE, MAX_ROWS, Step, Steps, TraceError};
use crate::units::Rate;

const SECOND_NS: u64 = 1_000_000_000;
const DEFAULT_BPS: u64 = 12_000_000;
const DEFAULT_SEED: u64 = 42;
/// Limit of repetitions of models of zero duration.
const MAX_IDLE: usize = MAX_ROWS;
/// Maximum depth of patterns within patterns.
const MAX_DEPTH: usize = 16;

const BPS_UNITS: [(&str, u32); 5] =
    [("bps", 0), ("kbps", 3), ("mbps", 6), ("gbps", 9), ("tbps", 12)];
const NS_UNITS: [(&str, u64); 21] = [
    ("ns", 1),
    ("nsec", 1),
    ("us", 1_000),
    ("usec", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("msec", 1_000_000),
    ("millis", 1_000_000),
    ("s", SECOND_NS),
    ("sec", SECOND_NS),
    ("secs", SECOND_NS),
    ("second", SECOND_NS),
    ("seconds", SECOND_NS),
    ("m", 60 * SECOND_NS),
    ("min", 60 * SECOND_NS),
    ("mins", 60 * SECOND_NS),
    ("minute", 60 * SECOND_NS),
    ("minutes", 60 * SECOND_NS),
    ("h", 3600 * SECOND_NS),
    ("hour", 3600 * SECOND_NS),
    ("hours", 3600 * SECOND_NS),
];

/// A problem of a model, and its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{kind}", before(path))]
struct ModelError {
    /// Models and fields, outermost first; empty for the whole file.
    path: String,
    kind: ModelErrorKind,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum ModelErrorKind {
    #[error("the rate {0} is beyond {MAX_RATE}")]
    Rate(Rate),
    #[error("a row lasts less than a microsecond")]
    TooShort,
    #[error("there are more than {MAX_ROWS} rows")]
    TooManyRows,
    #[error("models of zero duration are repeated more than {MAX_IDLE} times")]
    TooManyIdle,
    #[error("it lasts longer than 31 days")]
    LastsTooLong,
    #[error("it is not a model: {{\"StaticBwConfig\": ...}}")]
    NoModel,
    #[error("it is not an object")]
    NoObject,
    #[error(
        "the model {0} is unknown or not a bandwidth model; known are StaticBwConfig, NormalizedBwConfig, SawtoothBwConfig, RepeatedBwPatternConfig, TraceBwConfig"
    )]
    UnknownModel(String),
    #[error("patterns are nested more than {MAX_DEPTH} deep")]
    TooDeep,
    #[error("it repeats forever; give it a count above zero")]
    Endless,
    #[error("bottom is above top")]
    BottomAboveTop,
    #[error("the interval is zero")]
    ZeroInterval,
    #[error("the step is zero")]
    ZeroStep,
    #[error("duty_ratio is not between 0 and 1")]
    DutyRatio,
    #[error("it is not [duration, [rates]]")]
    NoRow,
    #[error("its length is zero")]
    NoTime,
    #[error("it is not a whole number")]
    NoWholeNumber,
    #[error("it is not a number")]
    NoNumber,
    #[error("it is not a list")]
    NoList,
    #[error("it is not a bandwidth: {{\"gbps\": 0, \"bps\": 12000000}}")]
    BandwidthParts,
    #[error("it is not a bandwidth, like \"12Mbps\"")]
    Bandwidth,
    #[error("it is beyond {MAX_RATE}")]
    BandwidthTooHigh,
    #[error("it is not a duration: {{\"secs\": 1, \"nanos\": 0}}")]
    DurationParts,
    #[error("it is not a duration, like \"100ms\"")]
    Duration,
    #[error("it is longer than 31 days")]
    DurationTooLong,
}

impl ModelErrorKind {
    fn at(self, path: &str) -> ModelError {
        ModelError { path: path.to_owned(), kind: self }
    }
}

/// Reads a model and plays it to its end.
pub(super) fn parse(name: &str, text: &str) -> Result<Steps, TraceError> {
    let refuse = |line, what| TraceError::one(name, Some(Format::Netem), line, what);
    let value: Value = serde_json::from_str(text).map_err(|error| {
        let line = u32::try_from(error.line()).unwrap_or(u32::MAX);
        refuse(line, format!("it is not JSON: {error}"))
    })?;
    let mut player = Player { steps: Vec::new(), at_ns: 0, idle: 0 };
    player.model(&value, "", 0).map_err(|error| refuse(0, error.to_string()))?;
    if player.steps.is_empty() {
        let mut problems = Problems::default();
        problems.push(0, "it has no rows".to_owned());
        return Err(problems.refuse(name, Format::Netem));
    }
    Ok(Steps { steps: player.steps, length_ns: player.at_ns })
}

struct Player {
    steps: Vec<Step>,
    at_ns: u64,
    /// Models without a row so far.
    idle: usize,
}

impl Player {
    fn push(&mut self, bps: u64, length_ns: u64, path: &str) -> Result<(), ModelError> {
        let rate = Rate::from_bits_per_sec(bps);
        if rate > MAX_RATE {
            return Err(ModelErrorKind::Rate(rate).at(path));
        }
        if length_ns < super::rows::MIN_ROW_NS {
            return Err(ModelErrorKind::TooShort.at(path));
        }
        if self.steps.len() >= MAX_ROWS {
            return Err(ModelErrorKind::TooManyRows.at(path));
        }
        let line = 0;
        let step = Step { at_ns: self.at_ns, rate: Some(rate), delay_ns: None, loss: None, line };
        self.steps.push(step);
        self.at_ns = self.at_ns.saturating_add(length_ns);
        if self.at_ns > MAX_LENGTH_NS {
            return Err(ModelErrorKind::LastsTooLong.at(path));
        }
        Ok(())
    }

    /// Plays a model. `path` is its place, for messages.
    fn model(&mut self, value: &Value, path: &str, depth: usize) -> Result<(), ModelError> {
        let tagged = value.as_object().filter(|object| object.len() == 1);
        let Some((kind, fields)) = tagged.and_then(|object| object.iter().next()) else {
            return Err(ModelErrorKind::NoModel.at(path));
        };
        let path = format!("{}{kind}", before(path).replace(": ", "."));
        let Some(fields) = fields.as_object() else {
            return Err(ModelErrorKind::NoObject.at(&path));
        };
        let fields = Fields { fields, path: &path };
        match kind.as_str() {
            "StaticBwConfig" => {
                let bps = fields.bps("bw")?.unwrap_or(DEFAULT_BPS);
                match fields.ns("duration")?.unwrap_or(SECOND_NS) {
                    0 => Ok(()),
                    length_ns => self.push(bps, length_ns, &path),
                }
            }
            "NormalizedBwConfig" => self.normal(&fields),
            "SawtoothBwConfig" => self.sawtooth(&fields),
            "RepeatedBwPatternConfig" => self.repeated(&fields, depth),
            "TraceBwConfig" => self.rows(&fields),
            other => {
                let path = String::new();
                let kind = ModelErrorKind::UnknownModel(super::lines::shown(other));
                Err(ModelError { path, kind })
            }
        }
    }

    fn repeated(&mut self, fields: &Fields<'_>, depth: usize) -> Result<(), ModelError> {
        let path = fields.path;
        if depth >= MAX_DEPTH {
            return Err(ModelErrorKind::TooDeep.at(path));
        }
        let pattern = fields.list("pattern")?;
        let count = match fields.integer("count")?.unwrap_or(0) {
            // An infinite pattern is played once; the link's `on_end` decides what follows.
            0 if depth == 0 => 1,
            0 => return Err(ModelErrorKind::Endless.at(path)),
            count => count,
        };
        for _ in 0..count {
            let before = self.steps.len();
            for (index, model) in pattern.iter().enumerate() {
                let (rows, path) = (self.steps.len(), format!("{path}.pattern[{index}]"));
                self.model(model, &path, depth + 1)?;
                self.idle += usize::from(self.steps.len() == rows);
                if self.idle > MAX_IDLE {
                    return Err(ModelErrorKind::TooManyIdle.at(&path));
                }
            }
            if self.steps.len() == before {
                break;
            }
        }
        Ok(())
    }

    fn normal(&mut self, fields: &Fields<'_>) -> Result<(), ModelError> {
        let mean = fields.bps("mean")?.unwrap_or(DEFAULT_BPS);
        let deviation = fields.bps("std_dev")?.unwrap_or(0);
        let lower = fields.bps("lower_bound")?.unwrap_or(0);
        let upper = fields.bps("upper_bound")?.unwrap_or(u64::MAX);
        let mut rng = Rng::new(fields.integer("seed")?.unwrap_or(DEFAULT_SEED));
        fields.each_step(|length_ns, _| {
            let drawn = mean as f64 + deviation as f64 * rng.normal();
            self.push((drawn as u64).max(lower).min(upper), length_ns, fields.path)
        })
    }

    fn sawtooth(&mut self, fields: &Fields<'_>) -> Result<(), ModelError> {
        let path = fields.path;
        let bottom = fields.bps("bottom")?.unwrap_or(0);
        let top = fields.bps("top")?.unwrap_or(DEFAULT_BPS);
        if bottom > top {
            return Err(ModelErrorKind::BottomAboveTop.at(path));
        }
        let interval_ns = fields.ns("interval")?.unwrap_or(SECOND_NS);
        if interval_ns == 0 {
            return Err(ModelErrorKind::ZeroInterval.at(path));
        }
        let duty = fields.number("duty_ratio")?.unwrap_or(0.5);
        if !(0.0..=1.0).contains(&duty) {
            return Err(ModelErrorKind::DutyRatio.at(path));
        }
        let deviation = fields.bps("std_dev")?.unwrap_or(0) as f64;
        let above = fields.bps("upper_noise_bound")?.map_or(f64::MAX, |bps| bps as f64);
        let below = fields.bps("lower_noise_bound")?.map_or(f64::MAX, |bps| bps as f64);
        let mut rng = Rng::new(fields.integer("seed")?.unwrap_or(DEFAULT_SEED));
        let (height, turn) = ((top - bottom) as f64, interval_ns as f64 * duty);
        fields.each_step(|length_ns, at_ns| {
            let at = (at_ns % interval_ns) as f64;
            let share =
                if at < turn { at / turn } else { 1.0 - (at - turn) / (interval_ns as f64 - turn) };
            let noise = (deviation * rng.normal()).min(above).max(-below);
            self.push((bottom as f64 + height * share + noise) as u64, length_ns, path)
        })
    }

    /// `[["25ms", ["769.23kbps", "12.2Mbps"]], ...]`: each rate lasts that long.
    fn rows(&mut self, fields: &Fields<'_>) -> Result<(), ModelError> {
        for (index, entry) in fields.list("pattern")?.iter().enumerate() {
            let path = format!("{}.pattern[{index}]", fields.path);
            let entry = entry.as_array().map(Vec::as_slice);
            let Some([length, Value::Array(rates)]) = entry else {
                return Err(ModelErrorKind::NoRow.at(&path));
            };
            let length_ns = ns_of(length).map_err(|kind| kind.at(&path))?;
            if length_ns == 0 {
                return Err(ModelErrorKind::NoTime.at(&path));
            }
            for rate in rates {
                let bps = bps_of(rate).map_err(|kind| kind.at(&path))?;
                self.push(bps, length_ns, &path)?;
            }
        }
        Ok(())
    }
}

fn before(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!("{path}: ") }
}

/// The fields of one model; absent and null fields have their defaults.
struct Fields<'a> {
    fields: &'a Map<String, Value>,
    path: &'a str,
}

impl<'a> Fields<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.fields.get(key).filter(|value| !value.is_null())
    }

    fn read<T>(
        &self,
        key: &str,
        read: impl FnOnce(&'a Value) -> Result<T, ModelErrorKind>,
    ) -> Result<Option<T>, ModelError> {
        let value = self.get(key).map(read).transpose();
        value.map_err(|kind| kind.at(&format!("{}.{key}", self.path)))
    }

    fn bps(&self, key: &str) -> Result<Option<u64>, ModelError> {
        self.read(key, bps_of)
    }

    fn ns(&self, key: &str) -> Result<Option<u64>, ModelError> {
        self.read(key, ns_of)
    }

    fn integer(&self, key: &str) -> Result<Option<u64>, ModelError> {
        self.read(key, |value| value.as_u64().ok_or(ModelErrorKind::NoWholeNumber))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.read(key, |value| value.as_f64().ok_or(ModelErrorKind::NoNumber))
    }

    fn list(&self, key: &str) -> Result<&'a [Value], ModelError> {
        let list = self
            .read(key, |value| value.as_array().map(Vec::as_slice).ok_or(ModelErrorKind::NoList))?;
        Ok(list.unwrap_or_default())
    }

    /// Calls `row` with the length and the beginning of every `step` of the `duration`.
    fn each_step(
        &self,
        mut row: impl FnMut(u64, u64) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let duration_ns = self.ns("duration")?.unwrap_or(SECOND_NS);
        let step_ns = self.ns("step")?.unwrap_or(1_000_000);
        if step_ns == 0 {
            return Err(ModelErrorKind::ZeroStep.at(self.path));
        }
        let mut at_ns = 0;
        while at_ns < duration_ns {
            let length_ns = step_ns.min(duration_ns - at_ns);
            row(length_ns, at_ns)?;
            at_ns += length_ns;
        }
        Ok(())
    }
}

/// `{"gbps": 0, "bps": 12000000}` or `"12Mbps"`.
fn bps_of(value: &Value) -> Result<u64, ModelErrorKind> {
    let bps = match value {
        Value::Object(parts) => {
            let part = |key: &str| parts.get(key).map_or(Some(0), Value::as_u64);
            let (Some(giga), Some(one)) = (part("gbps"), part("bps")) else {
                return Err(ModelErrorKind::BandwidthParts);
            };
            giga.checked_mul(1_000_000_000).and_then(|bps| bps.checked_add(one))
        }
        Value::String(text) => quantities(text, |number, unit| {
            let lower = unit.to_ascii_lowercase();
            let &(_, power) = BPS_UNITS.iter().find(|(name, _)| *name == lower)?;
            scaled(number, power).ok()
        }),
        _ => None,
    };
    let bps = bps.ok_or(ModelErrorKind::Bandwidth)?;
    if bps > MAX_RATE.bits_per_sec() { Err(ModelErrorKind::BandwidthTooHigh) } else { Ok(bps) }
}

/// `{"secs": 1, "nanos": 0}` or `"1s 500ms"`.
fn ns_of(value: &Value) -> Result<u64, ModelErrorKind> {
    let ns = match value {
        Value::Object(parts) => {
            let part = |key: &str| parts.get(key).map_or(Some(0), Value::as_u64);
            let (Some(secs), Some(nanos)) = (part("secs"), part("nanos")) else {
                return Err(ModelErrorKind::DurationParts);
            };
            secs.checked_mul(SECOND_NS).and_then(|ns| ns.checked_add(nanos))
        }
        Value::String(text) => quantities(text, |number, unit| {
            let &(_, factor) = NS_UNITS.iter().find(|(name, _)| *name == unit)?;
            // Exact in billionths of the unit.
            let parts = u128::from(scaled(number, 9).ok()?) * u128::from(factor);
            u64::try_from(parts / 1_000_000_000).ok()
        }),
        _ => None,
    };
    match ns.ok_or(ModelErrorKind::Duration)? {
        long if long > MAX_LENGTH_NS => Err(ModelErrorKind::DurationTooLong),
        ns => Ok(ns),
    }
}

/// The sum of `1m 30s` and its like.
fn quantities(text: &str, read: impl Fn(&str, &str) -> Option<u64>) -> Option<u64> {
    let mut rest = text.trim();
    let mut sum: Option<u64> = None;
    while !rest.is_empty() {
        let unit = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, behind) = rest.split_at(unit);
        let behind = behind.trim_start();
        let end =
            behind.find(|c: char| c.is_ascii_digit() || c.is_whitespace()).unwrap_or(behind.len());
        let (unit, next) = behind.split_at(end);
        sum = Some(sum.unwrap_or(0).checked_add(read(number, unit)?)?);
        rest = next.trim_start();
    }
    sum
}
