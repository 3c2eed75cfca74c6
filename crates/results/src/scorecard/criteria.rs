//! The criteria of RFC 9743, sections 5 to 7, and how each is measured. The scenarios are those of `plans/scorecard/rfc9743.toml`;
//! docs/scorecard.md explains the rows.

use ccbench_proto::metric::{self, Scope};
use ccbench_proto::plan::Better;

use crate::summary::PhaseRow;

/// The measured phase of every scenario.
pub const PHASE: &str = "main";

/// All flows together.
const ALL: (Scope, &str) = (Scope::Net, "all");
/// The flow under test.
const TEST: (Scope, &str) = (Scope::Group, "test");
/// The flow beside it.
const PEER: (Scope, &str) = (Scope::Group, "peer");
const LINK: (Scope, &str) = (Scope::Link, "bottleneck");
/// Fetches, which are short flows.
const SHORT: (Scope, &str) = (Scope::Probe, "short");
/// Packets at the pace of real-time media.
const MEDIA: (Scope, &str) = (Scope::Probe, "media");

/// A criterion of the RFC.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Criterion {
    /// Section of RFC 9743.
    pub section: &'static str,
    /// Title of the section.
    pub title: &'static str,
    /// The section's question about a congestion control.
    pub question: &'static str,
    /// What is measured.
    pub measures: &'static [Measure],
    /// Why nothing is measured, or which part is not measured.
    pub not_measured: Option<&'static str>,
}

/// A number of the summary that answers a criterion.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measure {
    /// The measure in words.
    pub quantity: &'static str,
    /// Level of the plan's factor `scenario`.
    pub scenario: &'static str,
    /// Kind of subject.
    pub scope: Scope,
    /// The flow group, probe or link; `all` for all flows together.
    pub subject: &'static str,
    /// The metric.
    pub metric: &'static str,
    /// Statistic over the phase.
    pub stat: &'static str,
    /// Which of two numbers is better.
    pub better: Better,
    /// The bound that a document gives.
    pub bound: Option<Bound>,
}

/// The upper bound of a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// The largest permitted value, in the measure's unit.
    pub upper: f64,
    /// The document, and how the bound follows from it.
    pub source: &'static str,
}

impl Measure {
    /// Returns the unit of the values.
    pub fn unit(&self) -> &'static str {
        metric::find(self.metric, self.scope).map_or("1", |metric| metric.unit_of(self.stat))
    }

    /// Returns the summary's name of the number: `queue_delay:p95 of link bottleneck`.
    pub fn number(&self) -> String {
        let Self { scope, subject, metric, stat, .. } = self;
        let of = match scope {
            Scope::Net => "all flows".to_owned(),
            scope => format!("{} {subject}", scope.as_str()),
        };
        format!("{metric}:{stat} of {of}")
    }

    /// Returns whether a row of the summary is this number.
    pub(super) fn is_of(&self, row: &PhaseRow) -> bool {
        row.phase == PHASE
            && row.scope == self.scope
            && row.subject == self.subject
            && row.metric == self.metric
            && row.stat == self.stat
    }
}

/// Returns `Some` of an argument that is present.
macro_rules! optional {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

/// Defines the list of criteria: section, title, question; a line for each measure (quantity: scenario, subject, metric, statistic, which
/// number is better, and optionally a bound with its source); and optionally why nothing, or nothing else, is measured.
macro_rules! criteria {
    ($({
        $section:literal $title:literal
        $question:literal
        $($quantity:literal: $scenario:literal, $subject:ident, $metric:literal $stat:literal, $better:ident
            $(, at most $upper:literal by $source:literal)?;)*
        $(not measured: $why:literal;)?
    })*) => {
        /// All criteria, in the order of the RFC.
        pub const CRITERIA: &[Criterion] = &[$(Criterion {
            section: $section,
            title: $title,
            question: $question,
            measures: &[$(Measure {
                quantity: $quantity,
                scenario: $scenario,
                scope: $subject.0,
                subject: $subject.1,
                metric: $metric,
                stat: $stat,
                better: Better::$better,
                bound: optional!($(Bound { upper: $upper, source: $source })?),
            }),*],
            not_measured: optional!($($why)?),
        }),*];
    };
}

criteria! {
    {
        "5.1.1" "Protection Against Congestion Collapse"
        "Does it reduce its rate to a packet per round trip, and then back off, when congestion persists?"
        "retransmitted share of 12 flows at 1.5 Mbit/s": "collapse", ALL, "retransmission_share" "mean", Lower;
        "goodput of 12 flows at 1.5 Mbit/s": "collapse", ALL, "throughput_sum" "mean", Higher;
        "packets in flight at a loss of 50 %": "heavy_loss", TEST, "in_flight" "mean", Lower;
    }
    {
        "5.1.2" "Protection Against Bufferbloat"
        "Does it avoid maintaining excessive queues?"
        "mean queueing delay with a buffer of 4 BDP": "deep_buffer", LINK, "queue_delay" "mean", Lower;
        "95th percentile of the queueing delay with a buffer of 4 BDP": "deep_buffer", LINK, "queue_delay" "p95", Lower;
    }
    {
        "5.1.3" "Protection Against High Packet Loss"
        "Does it avoid causing excessively high packet loss?"
        "retransmitted share of 4 flows with a buffer of 0.5 BDP": "shallow_buffer", ALL, "retransmission_share" "mean", Lower;
    }
    {
        "5.1.4" "Fairness Within the Proposed Congestion Control Algorithm"
        "How do flows of this congestion control share capacity?"
        "Jain's index of 3 flows and one that joins them": "fairness", ALL, "jain_fairness_of_mean" "mean", Higher;
        "the slowest flow's rate over its fair share": "fairness", ALL, "max_min_fair_share" "min", Higher;
    }
    {
        "5.1.5" "Short Flows"
        "How do short and long flows of this congestion control affect each other?"
        "time to fetch 100 kB beside a long flow": "short_flows", SHORT, "fetch_time" "mean", Lower;
        "goodput of the long flow beside fetches": "short_flows", TEST, "throughput_sum" "mean", Higher;
    }
    {
        "5.2" "Mixed Algorithm Behavior"
        "Does a loss of all feedback result in backoff?"
        "retransmissions in 8 s without feedback": "outage", ALL, "retransmissions" "sum", Lower,
            at most 4.0 by "RFC 8961, section 4, and RFC 6298, rule 5.5: from 200 ms on, the timeout doubles with each retransmission";
    }
    {
        "5.2.1" "Existing General-Purpose Congestion Control"
        "What is the harm to flows with standard congestion controls?"
        "CUBIC's rate over its fair share with 1 BDP": "cubic_1bdp", PEER, "max_min_fair_share" "mean", Higher;
        "CUBIC's retransmitted share": "cubic_1bdp", PEER, "retransmission_share" "mean", Lower;
        "CUBIC's smoothed RTT": "cubic_1bdp", PEER, "srtt" "mean", Lower;
        "CUBIC's rate over its fair share with 4 BDP": "cubic_4bdp", PEER, "max_min_fair_share" "mean", Higher;
        "Reno's rate over its fair share with 1 BDP": "reno_1bdp", PEER, "max_min_fair_share" "mean", Higher;
    }
    {
        "5.2.2" "Real-Time Congestion Control"
        "Does it coexist with real-time flows, which have strict latency bounds?"
        "95th percentile of the RTT of packets every 20 ms": "real_time", MEDIA, "rtt" "p95", Lower;
        "loss of these packets": "real_time", MEDIA, "loss_share" "mean", Lower;
        not measured: "the packets have no congestion control: ccbench has no sender of real-time media";
    }
    {
        "5.2.3" "Short and Long Flows"
        "How do its short and long flows affect those of common congestion controls?"
        "time to fetch 100 kB by CUBIC beside a long flow": "short_cubic", SHORT, "fetch_time" "mean", Lower;
        "goodput of a long CUBIC flow beside fetches": "long_cubic", TEST, "throughput_sum" "mean", Higher;
    }
    {
        "5.3.1" "Differences with Congestion Control Principles"
        "Are deviations from RFC 2914 and RFC 7141 explained?"
        not measured: "the answer is an explanation in the specification, not a number";
    }
    {
        "5.3.2" "Incremental Deployment"
        "Does it work with the equipment of the current Internet?"
        not measured: "the answer is about equipment that ccbench does not have; 6.2 and 7.1 measure tunnels and queues";
    }
    {
        "6.1" "Paths with Tail-Drop Queues"
        "How does it perform with a FIFO buffer?"
        "utilisation with a buffer of 1 BDP": "tail_drop", LINK, "utilisation" "mean", Higher;
        "mean queueing delay": "tail_drop", LINK, "queue_delay" "mean", Lower;
        "retransmitted share": "tail_drop", ALL, "retransmission_share" "mean", Lower;
    }
    {
        "6.2" "Tunnel Behavior"
        "If it relies on signals from the path, what if a tunnel hides them?"
        "95th percentile of the queueing delay if CE marks are lost": "tunnel", LINK, "queue_delay" "p95", Lower;
    }
    {
        "6.3" "Wired Paths"
        "How does it perform at a stable rate if only queues drop packets?"
        "utilisation of 100 Mbit/s": "wired", LINK, "utilisation" "mean", Higher;
        "mean queueing delay": "wired", LINK, "queue_delay" "mean", Lower;
    }
    {
        "6.4" "Wireless Paths"
        "How does it perform with radio loss, a varying rate and jitter?"
        "utilisation": "wireless", LINK, "utilisation" "mean", Higher;
        "95th percentile of the queueing delay": "wireless", LINK, "queue_delay" "p95", Lower;
    }
    {
        "7.1" "Active Queue Management (AQM)"
        "How does it respond to AQM, and does it react to CE marks?"
        "utilisation behind FQ-CoDel": "fq_codel", LINK, "utilisation" "mean", Higher;
        "95th percentile of the queueing delay behind FQ-CoDel": "fq_codel", LINK, "queue_delay" "p95", Lower;
        "utilisation behind PIE": "pie", LINK, "utilisation" "mean", Higher;
        "95th percentile of the queueing delay behind PIE": "pie", LINK, "queue_delay" "p95", Lower;
        "CUBIC's rate over its fair share behind DualPI2 (L4S)": "dualpi2", PEER, "max_min_fair_share" "mean", Higher;
        "smoothed RTT behind DualPI2": "dualpi2", TEST, "srtt" "mean", Lower;
    }
    {
        "7.2" "Operation with the Envelope Set by Network Circuit Breakers"
        "Does it reduce its rate before a circuit breaker would stop it?"
        "goodput at a loss of 5 %": "circuit_breaker", TEST, "throughput_sum" "mean", Lower,
            at most 16_400_000.0 by "RFC 8083, section 4.3: ten times the rate of TCP, 8 × 1500 B / (40 ms × √(2 × 0.05 / 3))";
    }
    {
        "7.3" "Paths with Varying Delay"
        "Is it robust when the minimum delay varies?"
        "utilisation with a jitter of 8 ms": "varying_delay", LINK, "utilisation" "mean", Higher;
    }
    {
        "7.4" "Internet of Things and Constrained Nodes"
        "How does it perform at very low rates and bandwidth-delay products?"
        "utilisation of 250 kbit/s and 200 ms": "constrained", LINK, "utilisation" "mean", Higher;
        "retransmitted share": "constrained", ALL, "retransmission_share" "mean", Lower;
        "smoothed RTT": "constrained", TEST, "srtt" "mean", Lower;
        not measured: "power and CPU time of constrained nodes, and the volume of control packets";
    }
    {
        "7.5" "Paths with High Delay"
        "How does it perform over a satellite?"
        "utilisation at a round trip of 600 ms": "satellite", LINK, "utilisation" "mean", Higher;
        "retransmitted share": "satellite", ALL, "retransmission_share" "mean", Lower;
    }
    {
        "7.6" "Misbehaving Nodes"
        "How does it perform with non-compliant senders, receivers and routers?"
        not measured: "ccbench has no node that violates a protocol; 6.2 measures a tunnel that loses marks";
    }
    {
        "7.7" "Extreme Packet Reordering"
        "How does it perform if packets arrive out of order?"
        "utilisation with 2 % of packets 15 ms late": "reordering", LINK, "utilisation" "mean", Higher;
        "retransmitted share": "reordering", ALL, "retransmission_share" "mean", Lower;
    }
    {
        "7.8" "Transient Events"
        "How does it perform at a sudden onset of congestion, and after it?"
        "retransmitted share in 6 s after the rate fell to a quarter": "rate_drop", ALL, "retransmission_share" "mean", Lower;
        "95th percentile of the queueing delay in these 6 s": "rate_drop", LINK, "queue_delay" "p95", Lower;
        "utilisation in 6 s after the rate quadrupled": "rate_rise", LINK, "utilisation" "mean", Higher;
    }
    {
        "7.9" "Sudden Changes in the Path"
        "Is it robust to changes of the path?"
        "utilisation in 10 s after the round trip doubled": "reroute", LINK, "utilisation" "mean", Higher;
    }
    {
        "7.10" "Multipath Transport"
        "Does it harm other flows when paths share a bottleneck, or fail over?"
        not measured: "ccbench has no multipath flows";
    }
    {
        "7.11" "Data Centers"
        "How does it perform with very low latencies and bursts of many nodes?"
        "utilisation of 8 flows at 200 Mbit/s and 1 ms": "data_center", LINK, "utilisation" "mean", Higher;
        "95th percentile of the queueing delay": "data_center", LINK, "queue_delay" "p95", Lower;
        "Jain's index": "data_center", ALL, "jain_fairness_of_mean" "mean", Higher;
    }
}
