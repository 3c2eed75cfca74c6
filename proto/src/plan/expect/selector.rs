//! The keys that select a number of the summary: `metric`, `stat`, `phase`, and the subject.

use std::collections::BTreeMap;

use crate::metric::{self, Metric, Scope, WHOLE_TRIAL};
use crate::plan::Plan;
use crate::plan::parse::suggest::{hint, list_of};

use super::{Fault, Numbered};

/// Declares a table whose keys select a number: keys such as `metric`, those of the phase and the subject, and further ones. serde cannot
/// flatten a struct into a table that rejects unknown keys.
macro_rules! selecting_table {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident { $($before:tt)* }
        phase_and_subject { $($after:tt)* }
    ) => {
        $(#[$attribute])*
        pub struct $name {
            $($before)*
            /// The phase; not for metrics of a whole trial; absent: the only measured one.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(with = "Option<Name>")]
            pub phase: Option<String>,
            /// The flow group. Without `group`, `flow`, `probe` and `link`, all flows together.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(with = "Option<Name>")]
            pub group: Option<String>,
            /// The flow, a group and a number: `"bulk/0"`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub flow: Option<String>,
            /// The probe.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(with = "Option<Name>")]
            pub probe: Option<String>,
            /// The link.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(with = "Option<Name>")]
            pub link: Option<String>,
            $($after)*
        }

        impl $name {
            fn subjects(&self) -> [(&'static str, $crate::metric::Scope, Option<&str>); 4] {
                [
                    ("group", $crate::metric::Scope::Group, self.group.as_deref()),
                    ("flow", $crate::metric::Scope::Flow, self.flow.as_deref()),
                    ("probe", $crate::metric::Scope::Probe, self.probe.as_deref()),
                    ("link", $crate::metric::Scope::Link, self.link.as_deref()),
                ]
            }
        }
    };
}
pub(in crate::plan) use selecting_table;

/// The keys that select a number, in the claim or in its reference.
pub(in crate::plan) struct MetricSelector<'a> {
    /// Prefix of the keys: none, `over` or `minus`.
    pub(in crate::plan) prefix: &'a [&'static str],
    pub(in crate::plan) metric: Option<&'a str>,
    pub(in crate::plan) stat: Option<&'a str>,
    pub(in crate::plan) phase: Option<&'a str>,
    /// The claim's phase, if the other number names none.
    pub(in crate::plan) inherited_phase: Option<&'a str>,
    pub(in crate::plan) subjects: [(&'static str, Scope, Option<&'a str>); 4],
}

impl MetricSelector<'_> {
    fn at(&self, key: &'static str) -> Vec<&'static str> {
        [self.prefix, &[key]].concat()
    }

    pub(in crate::plan) fn number(&self, plan: &Plan) -> Result<Numbered, Vec<Fault>> {
        let mut faults = Vec::new();
        let subject = self.subject(plan, &mut faults);
        let Some((scope, subject)) = subject else { return Err(faults) };
        let Some(name) = self.metric else {
            return Err(vec![(
                self.at("metric"),
                "is missing; write it like `metric = \"throughput\"`".to_owned(),
            )]);
        };
        let Some(metric) = metric::find(name, scope) else {
            let fits = metric::METRICS.iter().filter(|m| m.scopes.contains(&scope));
            let names: Vec<&str> = fits.map(|m| m.name).collect();
            let of = match scope {
                Scope::Net => {
                    "all flows together (name a `group`, `flow`, `probe` or `link` for theirs)"
                        .to_owned()
                }
                scope => format!("a {}", scope.as_str()),
            };
            let why = format!("`{name}` is not a metric of {of}{}", hint(name, &names, "known"));
            return Err(vec![(self.at("metric"), why)]);
        };
        let stat = match self.stat {
            None => Some(metric.default_stat()),
            Some(stat) => metric.stats.iter().copied().find(|known| *known == stat),
        };
        if stat.is_none() {
            let stat = self.stat.unwrap_or_default();
            let why =
                format!("`{name}` has no statistic `{stat}`{}", hint(stat, metric.stats, "it has"));
            faults.push((self.at("stat"), why));
        }
        let phase = self.phase(plan, metric).map_err(|fault| faults.push(fault));
        match (stat, phase) {
            (Some(stat), Ok(phase)) => {
                Ok(Numbered { at: BTreeMap::new(), phase, scope, subject, metric, stat })
            }
            _ => Err(faults),
        }
    }

    fn subject(&self, plan: &Plan, faults: &mut Vec<Fault>) -> Option<(Scope, String)> {
        let mut named =
            self.subjects.iter().filter_map(|(key, scope, name)| Some((*key, *scope, (*name)?)));
        let Some((key, scope, name)) = named.next() else {
            return Some((Scope::Net, "all".to_owned()));
        };
        if let Some((second, ..)) = named.next() {
            faults.push((
                self.at(second),
                format!(
                    "a number has one subject, and `{key}` already names one; leave one of them out"
                ),
            ));
            return None;
        }
        let (what, known): (&str, Vec<&str>) = match scope {
            Scope::Probe => ("probe", plan.probes.keys().map(String::as_str).collect()),
            Scope::Link => ("link", plan.links.keys().map(String::as_str).collect()),
            _ => ("flow group", plan.flows.keys().map(String::as_str).collect()),
        };
        let entry = match (scope, name.rsplit_once('/')) {
            // Results have no other form of the number, such as `00`.
            (Scope::Flow, Some((group, number)))
                if number.parse::<u32>().is_ok_and(|nth| nth.to_string() == number) =>
            {
                group
            }
            (Scope::Flow, parts) => {
                let group = parts.map_or(name, |(group, _)| group);
                let why = format!(
                    "`{name}` is not a flow; write its group and its number, counted from 0: `\"{group}/0\"`"
                );
                faults.push((self.at(key), why));
                return None;
            }
            _ => name,
        };
        if !known.contains(&entry) {
            let why =
                format!("there is no {what} `{entry}`{}", hint(entry, &known, &format!("{what}s")));
            faults.push((self.at(key), why));
            return None;
        }
        Some((scope, name.to_owned()))
    }

    fn phase(&self, plan: &Plan, metric: &Metric) -> Result<String, Fault> {
        let measured: Vec<&str> =
            plan.phases.iter().filter(|p| p.measure).map(|p| p.name.as_str()).collect();
        let inherited = self.inherited_phase.filter(|_| !metric.whole_trial);
        let fault = |why: String| Err((self.at("phase"), why));
        match (self.phase.or(inherited), &measured[..]) {
            (None, _) if metric.whole_trial => Ok(WHOLE_TRIAL.to_owned()),
            (Some(_), _) if metric.whole_trial => {
                fault(format!("`{}` describes the whole trial; leave out the phase", metric.name))
            }
            (None, [only]) => Ok((*only).to_owned()),
            (None, many) => fault(format!("is missing; name one ({})", list_of(many, "measured"))),
            (Some(name), known) if known.contains(&name) => Ok(name.to_owned()),
            (Some(name), _) if plan.phases.iter().any(|phase| phase.name == name) => {
                fault(format!(
                    "`{name}` has `measure = false`, so no summary includes it; name another phase"
                ))
            }
            (Some(name), known) => {
                fault(format!("there is no phase `{name}`{}", hint(name, known, "phases")))
            }
        }
    }
}
