//! The metrics of the summaries: names, units and scopes. The controller computes them; `[[expect]]` refers to them.

/// Subject of a number in a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// All data flows together.
    Net,
    /// The flows of one group.
    Group,
    /// One flow.
    Flow,
    /// One probe.
    Probe,
    /// One link.
    Link,
}

impl Scope {
    /// As it is written in the column `scope`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Net => "net",
            Self::Group => "group",
            Self::Flow => "flow",
            Self::Probe => "probe",
            Self::Link => "link",
        }
    }
}

/// The `phase` of rows about a whole trial.
pub const WHOLE_TRIAL: &str = "(trial)";

/// A metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// The scopes that have it.
    pub scopes: &'static [Scope],
    /// Unit of its values; the statistics `cov` and `undefined` have `1`.
    pub unit: &'static str,
    /// How it is taken over a phase; the first one is meant where none is named.
    pub stats: &'static [&'static str],
    /// Of the trial as a whole, not of a phase.
    pub whole_trial: bool,
}

impl Metric {
    /// The unit of one of its statistics.
    pub fn unit_of(&self, stat: &str) -> &'static str {
        if ["cov", "undefined"].contains(&stat) { "1" } else { self.unit }
    }
}

/// The statistics of samples.
pub const SAMPLED: [&str; 8] = ["mean", "median", "p5", "p95", "p99", "std", "min", "max"];
const MEAN: &[&str] = &["mean"];
const SUM: &[&str] = &["sum"];
const MEAN_OF_DEFINED: &[&str] = &["mean", "undefined"];
const SCHEDULING_ERROR: &[&str] = &["p50", "p90", "p99", "max"];
const ALL_OR_GROUP: &[Scope] = &[Scope::Net, Scope::Group];
const NET: &[Scope] = &[Scope::Net];
const SENDERS: &[Scope] = &[Scope::Group, Scope::Flow];
const PROBE: &[Scope] = &[Scope::Probe];
const LINK: &[Scope] = &[Scope::Link];

const fn metric(
    name: &'static str,
    scopes: &'static [Scope],
    unit: &'static str,
    stats: &'static [&'static str],
) -> Metric {
    Metric { name, scopes, unit, stats, whole_trial: false }
}

/// Every metric there is.
pub const METRICS: &[Metric] = &[
    metric("throughput", &[Scope::Flow, Scope::Link], "bit/s", &["mean", "std", "cov"]),
    metric("throughput_sum", ALL_OR_GROUP, "bit/s", &["mean", "std", "cov"]),
    metric("throughput_per_flow_mean", ALL_OR_GROUP, "bit/s", MEAN),
    metric("coverage_share", &[Scope::Group], "1", MEAN),
    metric("retransmissions", &[Scope::Net, Scope::Group, Scope::Flow], "packets", SUM),
    metric("retransmission_share", ALL_OR_GROUP, "1", MEAN),
    metric("srtt", SENDERS, "us", &SAMPLED),
    metric("cwnd", SENDERS, "packets", &SAMPLED),
    metric("power", &[Scope::Flow], "bit/s/s", MEAN_OF_DEFINED),
    metric("jain_fairness_of_mean", ALL_OR_GROUP, "1", MEAN),
    metric("jain_fairness", NET, "1", MEAN_OF_DEFINED),
    metric("product_fairness", NET, "(Mbit/s)^flows", MEAN_OF_DEFINED),
    metric("entropy_fairness", NET, "1", MEAN_OF_DEFINED),
    metric("max_min_fairness", NET, "1", MEAN_OF_DEFINED),
    metric("convergence_time", NET, "us", MEAN_OF_DEFINED),
    metric("settling_time", &[Scope::Net, Scope::Group, Scope::Flow], "us", MEAN_OF_DEFINED),
    metric("srtt_settling_time", SENDERS, "us", MEAN_OF_DEFINED),
    metric("utility_pf", &[Scope::Flow], "ln(Mbit/s)", MEAN_OF_DEFINED),
    metric("utility_pf", NET, "ln(Mbit/s)", SUM),
    metric("utility_mpd", &[Scope::Flow], "s/Mbit", MEAN_OF_DEFINED),
    metric("utility_mpd", NET, "s/Mbit", SUM),
    metric("harm_throughput", &[Scope::Group], "1", MEAN),
    metric("harm_srtt", &[Scope::Group], "1", MEAN),
    metric("rtt", PROBE, "us", &SAMPLED),
    metric("dns_time", PROBE, "us", &SAMPLED),
    metric("connect_time", PROBE, "us", &SAMPLED),
    metric("first_byte_time", PROBE, "us", &SAMPLED),
    metric("fetch_time", PROBE, "us", &SAMPLED),
    metric("loss_share", PROBE, "1", MEAN),
    metric("utilisation", LINK, "1", MEAN),
    metric("queue_delay", LINK, "us", &SAMPLED),
    metric("drops", LINK, "packets", SUM),
    metric("marks", LINK, "packets", SUM),
    metric("backlog", LINK, "bytes", &SAMPLED),
    Metric { whole_trial: true, ..metric("packet_scheduling_error", LINK, "us", SCHEDULING_ERROR) },
    Metric { whole_trial: true, ..metric("step_scheduling_error", LINK, "us", SCHEDULING_ERROR) },
];

/// Deprecated metric names and their replacements. Plans and `--metric` accept them with a warning.
const RENAMED: [(&str, &str); 2] =
    [("packet_lateness", "packet_scheduling_error"), ("step_lateness", "step_scheduling_error")];

/// The replacement of a deprecated metric name; `None` for all other names.
pub fn replacement(name: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(old, _)| *old == name).map(|(_, new)| *new)
}

/// The metric of this name, which may be a deprecated one, and scope. `throughput` of a group or of all flows is their `throughput_sum`.
pub fn find(name: &str, scope: Scope) -> Option<&'static Metric> {
    let name = match replacement(name).unwrap_or(name) {
        "throughput" if ALL_OR_GROUP.contains(&scope) => "throughput_sum",
        other => other,
    };
    METRICS.iter().find(|metric| metric.name == name && metric.scopes.contains(&scope))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_once_for_each_scope() {
        for metric in METRICS {
            for scope in metric.scopes {
                assert_eq!(
                    find(metric.name, *scope),
                    Some(metric),
                    "{} is there twice",
                    metric.name
                );
            }
            assert!(!metric.stats.is_empty() && !metric.scopes.is_empty());
        }
        assert_eq!(find("throughput", Scope::Group).map(|m| m.name), Some("throughput_sum"));
        assert_eq!(find("throughput", Scope::Flow).map(|m| m.name), Some("throughput"));
        assert_eq!(find("srtt", Scope::Link), None);
        for (old, new) in RENAMED {
            assert_eq!(find(old, Scope::Link).map(|m| m.name), Some(new));
            assert!(METRICS.iter().all(|m| m.name != old), "{old} is a metric and deprecated");
        }
        assert_eq!(find("throughput_sum", Scope::Net).unwrap().unit_of("cov"), "1");
    }
}
