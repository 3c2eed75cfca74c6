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
    /// Its text in the column `scope`.
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
/// Name of the statistic that counts the undefined values of a metric.
pub const UNDEFINED: &str = "undefined";

/// A metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// The scopes that have it.
    pub scopes: &'static [Scope],
    /// Unit of its values; the statistics `cov` and `undefined` have `1`.
    pub unit: &'static str,
    /// Its statistics over a phase; the first one is the default.
    pub stats: &'static [&'static str],
    /// Whether it describes a trial as a whole, not a phase.
    pub whole_trial: bool,
}

impl Metric {
    /// The statistic that its name alone means.
    pub const fn default_stat(&self) -> &'static str {
        self.stats[0]
    }

    /// The unit of one of its statistics.
    pub fn unit_of(&self, stat: &str) -> &'static str {
        if ["cov", UNDEFINED].contains(&stat) { "1" } else { self.unit }
    }

    /// Whether this statistic depends on the timescale (`sample.timescale`).
    pub fn depends_on_timescale(&self, stat: &str) -> bool {
        let is_throughput = ["throughput", "throughput_sum"].contains(&self.name);
        INSTANTANEOUS.contains(&self.name) || is_throughput && ["std", "cov"].contains(&stat)
    }
}

/// Metrics that are computed over instants and then averaged.
const INSTANTANEOUS: [&str; 7] = [
    "power",
    "jain_fairness",
    "product_fairness",
    "entropy_fairness",
    "min_max_ratio",
    "utility_pf",
    "utility_mpd",
];

/// The statistics of samples.
pub const SAMPLED: [&str; 8] = ["mean", "median", "p5", "p95", "p99", "std", "min", "max"];
/// [`SAMPLED`], and the coefficient of variation.
const SAMPLED_WITH_COV: &[&str] =
    &["mean", "median", "p5", "p95", "p99", "std", "min", "max", "cov"];
/// [`SAMPLED`], and the Kaplan-Meier median.
const SAMPLED_OR_CENSORED: &[&str] =
    &["mean", "median", "p5", "p95", "p99", "std", "min", "max", "km_median"];
/// [`SAMPLED_OR_CENSORED`], and the number of censored values (`undefined`).
const SAMPLED_OF_DEFINED: &[&str] =
    &["mean", "median", "p5", "p95", "p99", "std", "min", "max", "km_median", "undefined"];
/// Statistics of a variable of `cc_state` over the rows of a phase: `end` is the last value, `undefined` counts unset bounds.
const ROW_STATS: &[&str] = &["mean", "min", "max", "end", "undefined"];

/// Defines the lists of states, and of statistics in them.
macro_rules! bbr_states {
    ($($state:literal)+) => {
        /// The states of `bbr2` and `bbr3`, by the value of the variable `mode` of `cc_state`.
        pub const BBR_STATES: &[&str] = &[$($state),+];
        /// Statistics of the rows in each state: the lowest, the highest, and the mean of those at which the state began.
        pub const BBR_STATE_STATS: &[[&str; 3]] =
            &[$([concat!("min_", $state), concat!("max_", $state), concat!("begin_", $state)]),+];
        /// [`ROW_STATS`] and [`BBR_STATE_STATS`].
        const ROW_AND_STATE_STATS: &[&str] = &[
            "mean", "min", "max", "end", "undefined",
            $(concat!("min_", $state), concat!("max_", $state), concat!("begin_", $state)),+
        ];
    };
}
bbr_states!("STARTUP" "DRAIN" "DOWN" "CRUISE" "REFILL" "UP" "PROBE_RTT");

const MEAN: &[&str] = &["mean"];
const SUM: &[&str] = &["sum"];
const RANGE: &[&str] = &["min", "max"];
const MEAN_OF_DEFINED: &[&str] = &["mean", "undefined"];
const SCHEDULING_ERROR: &[&str] = &["p50", "p90", "p99", "max"];
const DELAY: &[&str] = &["mean", "p50", "p95", "p99", "undefined"];
const ALL_OR_GROUP: &[Scope] = &[Scope::Net, Scope::Group];
const EVERY_FLOW: &[Scope] = &[Scope::Net, Scope::Group, Scope::Flow];
const FLOWS_AND_LINK: &[Scope] = &[Scope::Net, Scope::Group, Scope::Flow, Scope::Link];
const NET: &[Scope] = &[Scope::Net];
const GROUP: &[Scope] = &[Scope::Group];
const FLOW: &[Scope] = &[Scope::Flow];
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

/// Every metric.
pub const METRICS: &[Metric] = &[
    metric("throughput", &[Scope::Flow, Scope::Link], "bit/s", &["mean", "std", "cov"]),
    metric("throughput_sum", ALL_OR_GROUP, "bit/s", &["mean", "std", "cov"]),
    metric("throughput_per_flow_mean", ALL_OR_GROUP, "bit/s", MEAN),
    metric("coverage_share", GROUP, "1", MEAN),
    metric("bandwidth_utilisation", FLOW, "1", MEAN),
    metric("bandwidth_utilisation", NET, "1", SUM),
    metric("max_min_fair_share", SENDERS, "1", MEAN),
    metric("max_min_fair_share", NET, "1", &["min"]),
    metric("retransmissions", EVERY_FLOW, "packets", SUM),
    metric("retransmission_share", ALL_OR_GROUP, "1", MEAN),
    metric("rtos", EVERY_FLOW, "1", SUM),
    metric("recovery_time", SENDERS, "us", MEAN_OF_DEFINED),
    metric("srtt", SENDERS, "us", &SAMPLED),
    metric("estimated_queue_delay", SENDERS, "us", &SAMPLED),
    metric("one_way_delay", FLOWS_AND_LINK, "us", DELAY),
    metric("cwnd", SENDERS, "packets", &SAMPLED),
    metric("in_flight", SENDERS, "packets", SAMPLED_WITH_COV),
    metric("in_flight", NET, "packets", SUM),
    metric("bdp_utilisation", FLOW, "1", MEAN),
    metric("bdp_utilisation", NET, "1", SUM),
    metric("delivery_rate", SENDERS, "bit/s", &SAMPLED),
    metric("ecn_mode", SENDERS, "1", RANGE),
    metric("timescale", NET, "us", MEAN),
    metric("power", FLOW, "bit/s/s", MEAN_OF_DEFINED),
    metric("jain_fairness_of_mean", ALL_OR_GROUP, "1", MEAN),
    metric("jain_fairness", NET, "1", MEAN_OF_DEFINED),
    metric("product_fairness", NET, "(Mbit/s)^flows", MEAN_OF_DEFINED),
    metric("entropy_fairness", NET, "1", MEAN_OF_DEFINED),
    metric("min_max_ratio", NET, "1", MEAN_OF_DEFINED),
    metric("convergence_time", NET, "us", MEAN_OF_DEFINED),
    metric("jain_convergence_time", NET, "us", MEAN_OF_DEFINED),
    metric("settling_time", EVERY_FLOW, "us", MEAN_OF_DEFINED),
    metric("srtt_settling_time", SENDERS, "us", MEAN_OF_DEFINED),
    metric("utility_pf", FLOW, "ln(Mbit/s)", MEAN_OF_DEFINED),
    metric("utility_pf", NET, "ln(Mbit/s)", SUM),
    metric("utility_mpd", FLOW, "s/Mbit", MEAN_OF_DEFINED),
    metric("utility_mpd", NET, "s/Mbit", SUM),
    metric("cc_state_time", SENDERS, "us", BBR_STATES),
    metric("cc_state_share", SENDERS, "1", BBR_STATES),
    metric("cc_state_entries", SENDERS, "1", BBR_STATES),
    metric("cc_state_rounds", SENDERS, "1", BBR_STATES),
    metric("bbr_bw", FLOW, "bit/s", ROW_STATS),
    metric("bbr_bw", GROUP, "bit/s", ROW_AND_STATE_STATS),
    metric("bbr_max_bw", FLOW, "bit/s", ROW_STATS),
    metric("bbr_max_bw", GROUP, "bit/s", ROW_AND_STATE_STATS),
    metric("bbr_bw_shortterm", FLOW, "bit/s", ROW_STATS),
    metric("bbr_bw_shortterm", GROUP, "bit/s", ROW_AND_STATE_STATS),
    metric("bbr_min_rtt", FLOW, "us", ROW_STATS),
    metric("bbr_min_rtt", GROUP, "us", ROW_AND_STATE_STATS),
    metric("bbr_bdp", FLOW, "packets", ROW_STATS),
    metric("bbr_bdp", GROUP, "packets", ROW_AND_STATE_STATS),
    metric("bbr_inflight_longterm", FLOW, "packets", ROW_STATS),
    metric("bbr_inflight_longterm", GROUP, "packets", ROW_AND_STATE_STATS),
    metric("bbr_inflight_shortterm", FLOW, "packets", ROW_STATS),
    metric("bbr_inflight_shortterm", GROUP, "packets", ROW_AND_STATE_STATS),
    metric("bbr_extra_acked", FLOW, "packets", ROW_STATS),
    metric("bbr_extra_acked", GROUP, "packets", ROW_AND_STATE_STATS),
    metric("bbr_full_bw_reached", FLOW, "1", ROW_STATS),
    metric("bbr_full_bw_reached", GROUP, "1", ROW_AND_STATE_STATS),
    metric("bbr_pacing_gain", FLOW, "1", ROW_STATS),
    metric("bbr_pacing_gain", GROUP, "1", ROW_AND_STATE_STATS),
    metric("bbr_cwnd_gain", FLOW, "1", ROW_STATS),
    metric("bbr_cwnd_gain", GROUP, "1", ROW_AND_STATE_STATS),
    metric("bbr_cwnd", FLOW, "packets", ROW_STATS),
    metric("bbr_cwnd", GROUP, "packets", ROW_AND_STATE_STATS),
    metric("bbr_inflight", FLOW, "packets", ROW_STATS),
    metric("bbr_inflight", GROUP, "packets", ROW_AND_STATE_STATS),
    metric("harm_throughput", GROUP, "1", MEAN),
    metric("harm_srtt", GROUP, "1", MEAN),
    metric("rtt", PROBE, "us", &SAMPLED),
    metric("dns_time", PROBE, "us", &SAMPLED),
    metric("connect_time", PROBE, "us", &SAMPLED),
    metric("first_byte_time", PROBE, "us", &SAMPLED),
    metric("fetch_time", PROBE, "us", SAMPLED_OR_CENSORED),
    metric("unfinished_fetches", PROBE, "1", SUM),
    metric("rpm", PROBE, "1/min", MEAN_OF_DEFINED),
    metric("foreign_responsiveness", PROBE, "1/min", MEAN_OF_DEFINED),
    metric("loaded_responsiveness", PROBE, "1/min", MEAN),
    metric("loss_share", PROBE, "1", MEAN),
    metric("utilisation", LINK, "1", MEAN),
    metric("queue_delay", LINK, "us", &SAMPLED),
    metric("drops", LINK, "packets", SUM),
    metric("marks", LINK, "packets", SUM),
    metric("backlog", LINK, "bytes", &SAMPLED),
    Metric { whole_trial: true, ..metric("flow_completion_time", FLOW, "us", MEAN_OF_DEFINED) },
    Metric { whole_trial: true, ..metric("flow_completion_time", GROUP, "us", SAMPLED_OF_DEFINED) },
    Metric { whole_trial: true, ..metric("unfinished_flows", GROUP, "1", SUM) },
    Metric { whole_trial: true, ..metric("packet_scheduling_error", LINK, "us", SCHEDULING_ERROR) },
    Metric { whole_trial: true, ..metric("step_scheduling_error", LINK, "us", SCHEDULING_ERROR) },
];

/// Deprecated metric names and their replacements. Plans and `--metric` accept them with a warning.
const RENAMED: [(&str, &str); 3] = [
    ("packet_lateness", "packet_scheduling_error"),
    ("step_lateness", "step_scheduling_error"),
    // The metric is the quotient of RFC 5166's epsilon-fairness, not a max-min fair allocation.
    ("max_min_fairness", "min_max_ratio"),
];

/// The replacement of a deprecated metric name; `None` for all other names.
pub fn replacement(name: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(old, _)| *old == name).map(|(_, new)| *new)
}

/// The metric with this name, which may be deprecated, and this scope. `throughput` of a group or of all flows is their
/// `throughput_sum`.
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
    fn states_have_the_numbers_of_the_cores() {
        for algorithm in ["bbr2", "bbr3"] {
            let states = crate::cc::states(&crate::plan::Cc::new(algorithm));
            let names: Vec<&str> = states.iter().map(|state| state.name).collect();
            assert_eq!(names, BBR_STATES, "{algorithm}");
            assert!(states.iter().zip(0..).all(|(state, number)| state.number == number));
        }
    }

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
            let scopes = [Scope::Link, Scope::Net];
            let found = scopes.iter().find_map(|scope| find(old, *scope));
            assert_eq!(found.map(|m| m.name), Some(new));
            assert!(METRICS.iter().all(|m| m.name != old), "{old} is a metric and deprecated");
        }
        assert_eq!(find("throughput_sum", Scope::Net).unwrap().unit_of("cov"), "1");
        assert!(INSTANTANEOUS.iter().all(|name| METRICS.iter().any(|metric| metric.name == *name)));
        let throughput = find("throughput", Scope::Flow).unwrap();
        let depends = ["mean", "cov"].map(|stat| throughput.depends_on_timescale(stat));
        assert_eq!(depends, [false, true]);
        assert!(ROW_AND_STATE_STATS.starts_with(ROW_STATS));
        assert_eq!(ROW_AND_STATE_STATS[ROW_STATS.len()..], *BBR_STATE_STATS.concat());
        for (extended, last) in [(SAMPLED_WITH_COV, "cov"), (SAMPLED_OR_CENSORED, "km_median")] {
            assert_eq!(extended.split_last(), Some((&last, &SAMPLED[..])));
        }
        assert_eq!(SAMPLED_OF_DEFINED.split_last(), Some((&"undefined", SAMPLED_OR_CENSORED)));
    }
}
