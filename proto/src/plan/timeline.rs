//! `[[phases]]` and `[[changes]]`: what happens when, and when each phase and flow group begins and ends.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::text::Name;
use super::{Flow, Plan};
use crate::units::{Micros, Ppm, Rate};

/// An interval of the timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Its name in the results.
    #[schemars(with = "Name")]
    pub name: String,
    /// How long it lasts.
    pub length: Micros,
    /// Flow groups that run in it; a group keeps running through consecutive phases that list it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Name>")]
    pub flows: Vec<String>,
    /// `false` excludes the phase from summaries: a warm-up.
    #[serde(default = "super::yes", skip_serializing_if = "Clone::clone")]
    #[schemars(extend("default" = true))]
    pub measure: bool,
}

impl Phase {
    /// A measured phase without flows.
    pub fn new(name: impl Into<String>, length: Micros) -> Self {
        Self { name: name.into(), length, flows: Vec::new(), measure: true }
    }
}

/// A phase with its place on the timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhaseSpan {
    /// Its name.
    pub name: String,
    /// After the trial's beginning.
    pub start: Micros,
    /// After the trial's beginning.
    pub end: Micros,
    /// Part of the summaries.
    pub measure: bool,
}

impl PhaseSpan {
    /// A phase that is part of the summaries.
    pub fn new(name: impl Into<String>, start: Micros, end: Micros) -> Self {
        Self { name: name.into(), start, end, measure: true }
    }
}

/// The phases with their places on the timeline.
pub(crate) fn phase_spans(plan: &Plan) -> Vec<PhaseSpan> {
    let mut at = Micros::default();
    plan.phases
        .iter()
        .map(|phase| {
            let start = at;
            at = at + phase.length;
            PhaseSpan { measure: phase.measure, ..PhaseSpan::new(&phase.name, start, at) }
        })
        .collect()
}

/// When the last phase ends, after the trial's beginning.
pub(crate) fn length(plan: &Plan) -> Micros {
    phase_spans(plan).last().map_or(Micros::default(), |last| last.end)
}

/// When a flow group runs, after the trial's beginning; `None` when nothing schedules it.
pub(crate) fn flow_span(plan: &Plan, name: &str, flow: &Flow) -> Option<(Micros, Micros)> {
    if flow.start.is_some() || flow.stop.is_some() {
        let end = length(plan);
        return Some((flow.start.unwrap_or_default(), flow.stop.unwrap_or(end)));
    }
    let spans = phase_spans(plan);
    let names_it = |phase: &&Phase| phase.flows.iter().any(|f| f == name);
    let first = plan.phases.iter().position(|p| names_it(&p))?;
    let last = first + plan.phases[first..].iter().take_while(names_it).count() - 1;
    Some((spans[first].start, spans[last].end))
}

/// A change of link settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Time, from the start of the trial.
    pub at: Micros,
    /// New values: `{ "links.NAME.rate" = "20mbit", "links.NAME.delay" = "20ms", "links.NAME.loss" = "0.1%" }`, any
    /// of them. A link's rate can change if it has a rate that does not come from a trace; delay and loss if the link
    /// starts with one of them, or is a userspace link.
    pub set: BTreeMap<String, Setting>,
}

/// A value that may change during a trial. Its unit determines the quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// `"20mbit"`.
    Rate(Rate),
    /// `"20ms"`.
    Delay(Micros),
    /// `"0.1%"`.
    Loss(Ppm),
}

impl Setting {
    /// The key of a link that it is a value of.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Rate(_) => "rate",
            Self::Delay(_) => "delay",
            Self::Loss(_) => "loss",
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(rate) => rate.fmt(f),
            Self::Delay(delay) => delay.fmt(f),
            Self::Loss(loss) => loss.fmt(f),
        }
    }
}

impl Serialize for Setting {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Setting {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Setting;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a rate (\"20mbit\"), a time (\"20ms\") or a share (\"0.1%\") in quotes",
                )
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Setting, E> {
                let rate = match text.parse() {
                    Ok(rate) => return Ok(Setting::Rate(rate)),
                    Err(error) => error,
                };
                let delay = text.parse().map(Setting::Delay).ok();
                let setting = delay.or_else(|| text.parse().map(Setting::Loss).ok());
                setting.ok_or_else(|| {
                    E::custom(format!("{rate} (or a delay like \"20ms\", or a loss like \"0.1%\")"))
                })
            }
        }
        d.deserialize_str(Text)
    }
}
