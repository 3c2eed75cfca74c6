//! `[[phases]]` and `[[changes]]`, and the times at which each phase and flow group begins and ends.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::text::Name;
use super::{Flow, Plan};
use crate::units::{Micros, Ppm, Rate};

/// Longest trial: a week. Code that divides a trial into instants relies on it.
pub const MAX_TRIAL: Micros = Micros::from_secs(7 * 24 * 3600);
/// Most phases of a trial.
pub const MAX_PHASES: usize = 1_000;

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
    /// Time since the trial's beginning.
    pub start: Micros,
    /// Time since the trial's beginning.
    pub end: Micros,
    /// Whether summaries include it.
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

/// When a flow group runs, relative to the trial's beginning; `None` if nothing schedules it.
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

/// Whether a flow group runs: a phase names it, or it has `start` or `stop`.
pub(crate) fn is_scheduled(plan: &Plan, name: &str, flow: &Flow) -> bool {
    let mut named = plan.phases.iter().flat_map(|phase| &phase.flows);
    flow.start.is_some() || flow.stop.is_some() || named.any(|group| group == name)
}

/// An idle time of a flow's application. It writes nothing, and afterwards continues where it stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// Time from the flow's start to the pause.
    pub after: Micros,
    /// How long it lasts.
    #[serde(rename = "for")]
    pub duration: Micros,
    /// Time from the beginning of one pause to that of the next: an on-off application; absent: only one pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Micros>,
}

/// A change of link settings, at a time or when a flow is in a state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Time, from the start of the trial. Either `at` or `when` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Micros>,
    /// The state that triggers the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<When>,
    /// New values: `{ "links.NAME.rate" = "20mbit", "links.NAME.delay" = "20ms", "links.NAME.loss" = "0.1%",
    /// "links.NAME.queue.target" = "5ms" }`, any of them. A link's rate can change if the link has one that does not come from a
    /// trace; its delay and loss, if the link starts with one of them or is a userspace link; keys of its own queue, except `kind`
    /// and the number of queues.
    pub set: BTreeMap<String, Setting>,
}

/// A state of a flow's congestion control that triggers a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct When {
    /// Flow group; each of its flows can trigger the change.
    #[schemars(with = "Name")]
    pub flow: String,
    /// State of its congestion control, for example `"DRAIN"`.
    pub cc_state: String,
    /// Time from the beginning of the state to the change; absent: `"0s"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Micros>,
    /// How long the change is in force; then its keys return to the values that they have without it; absent: to the end of the
    /// trial.
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub duration: Option<Micros>,
    /// Only the first time that a flow enters the state; with `false`, every time.
    #[serde(default = "super::yes", skip_serializing_if = "Clone::clone")]
    #[schemars(extend("default" = true))]
    pub once: bool,
}

/// A value that may change during a trial. Its unit determines the quantity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setting {
    /// `"20mbit"`.
    Rate(Rate),
    /// `"20ms"`.
    Delay(Micros),
    /// `"0.1%"`.
    Loss(Ppm),
    /// Any other text, such as `"40p"` for a queue.
    Text(String),
    /// A switch, such as `ecn` of a queue.
    Flag(bool),
    /// A number, such as `alpha` of `pie`.
    Number(i64),
}

impl Setting {
    /// The key of a link to which the value belongs, or its type.
    pub const fn key(&self) -> &'static str {
        match self {
            Self::Rate(_) => "rate",
            Self::Delay(_) => "delay",
            Self::Loss(_) => "loss",
            Self::Text(_) => "text",
            Self::Flag(_) => "switch",
            Self::Number(_) => "number",
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(rate) => rate.fmt(f),
            Self::Delay(delay) => delay.fmt(f),
            Self::Loss(loss) => loss.fmt(f),
            Self::Text(text) => text.fmt(f),
            Self::Flag(flag) => flag.fmt(f),
            Self::Number(number) => number.fmt(f),
        }
    }
}

impl Serialize for Setting {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Flag(flag) => s.serialize_bool(*flag),
            Self::Number(number) => s.serialize_i64(*number),
            text => s.collect_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for Setting {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Setting;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text in quotes, a whole number, `true` or `false`")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Setting, E> {
                let rate = text.parse().map(Setting::Rate).ok();
                let delay = rate.or_else(|| text.parse().map(Setting::Delay).ok());
                let setting = delay.or_else(|| text.parse().map(Setting::Loss).ok());
                Ok(setting.unwrap_or_else(|| Setting::Text(text.to_owned())))
            }
            fn visit_bool<E: serde::de::Error>(self, flag: bool) -> Result<Setting, E> {
                Ok(Setting::Flag(flag))
            }
            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Setting, E> {
                Ok(Setting::Number(number))
            }
            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Setting, E> {
                i64::try_from(number).map(Setting::Number).map_err(E::custom)
            }
        }
        d.deserialize_any(Text)
    }
}
