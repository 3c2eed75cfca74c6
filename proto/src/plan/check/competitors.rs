//! Lint: a claim about two congestion controls whose flows compete in one queue.
//!
//! In such an A/B test, treatment and control influence each other: a group that keeps the queue short also shortens it for the
//! other one. The difference between them shows neither each one alone nor the effect of changing from one to the other (Spang et
//! al., Unbiased Experiments in Congested Networks, IMC 2021). The lint applies to claims with all of these properties:
//!
//! - the claim relates (`over`, `minus`) a number of a group to the same metric of another group, in the same phase of the same trial,
//! - the metric is a delay or a loss ([`SHARED`]), which flows in one queue have in common (a ratio of throughputs, in contrast,
//!   answers the question of coexistence),
//! - at some point of the claim, the groups have different congestion controls, run at the same time in this phase, and share a
//!   bottleneck with one queue for all packets: no classes, and a discipline that keeps no flows apart.

use std::collections::BTreeMap;

use toml::Value;

use crate::metric::Scope;
use crate::plan::expect::{Numbered, Operand, Relation};
use crate::plan::repeat::fits;
use crate::plan::timeline::{flow_span, phase_spans};
use crate::plan::{Flow, FlowIsolation, Link, Plan, Queue};
use crate::resolve::{bottleneck_in, normalize};
use crate::topology::Topology;

use super::problems::Problems;

/// Metrics that flows in one queue have in common.
const SHARED: [&str; 7] = [
    "srtt",
    "estimated_queue_delay",
    "one_way_delay",
    "retransmissions",
    "retransmission_share",
    "rtos",
    "recovery_time",
];

/// A claim about two groups in the same phase of the same trial.
pub(super) struct Contrast {
    /// Its number among the claims.
    number: String,
    /// The levels of its points.
    at: BTreeMap<String, Value>,
    metric: &'static str,
    phase: String,
    groups: [String; 2],
}

/// The plan's claims that compare two groups by a metric of [`SHARED`].
pub(super) fn contrasts(plan: &Plan) -> Vec<Contrast> {
    let contrast = |(index, expect): (usize, &crate::plan::Expect)| {
        let claim = expect.claim(plan)?;
        let (Relation::Over(operand) | Relation::Minus(operand)) = claim.relation?;
        let Operand::Number(other) = operand else { return None };
        let number = claim.number;
        let is_of_one_trial = other.at.is_empty() && other.phase == number.phase;
        let metric = number.metric.name;
        let is_shared = other.metric.name == metric && SHARED.contains(&metric);
        let groups = [group_of(&number)?, group_of(&other)?];
        (is_of_one_trial && is_shared && groups[0] != groups[1]).then(|| Contrast {
            number: index.to_string(),
            at: expect.at.clone(),
            metric,
            phase: number.phase.clone(),
            groups,
        })
    };
    plan.expect.iter().enumerate().filter_map(contrast).collect()
}

/// The flow group of a number.
pub(super) fn group_of(number: &Numbered) -> Option<String> {
    match number.scope {
        Scope::Group => Some(number.subject.clone()),
        Scope::Flow => Some(number.subject.rsplit_once('/')?.0.to_owned()),
        Scope::Net | Scope::Probe | Scope::Link => None,
    }
}

/// Warns about claims whose groups compete at a point with these levels.
pub(super) fn check(
    plan: &Plan,
    (levels, topology): (&[(String, String)], &Topology),
    contrasts: &[Contrast],
    problems: &mut Problems,
) {
    let at_this_point: Vec<&Contrast> =
        contrasts.iter().filter(|contrast| fits(&contrast.at, levels)).collect();
    if at_this_point.is_empty() {
        return;
    }
    let normalized = normalize(plan);
    for Contrast { number, metric, phase, groups, .. } in at_this_point {
        let Some(link) = common_queue(&normalized, topology, phase, groups) else { continue };
        let [a, b] = groups;
        let at = ["expect", number.as_str()];
        let reads: [&[&str]; 8] = [
            &at,
            &["flows"],
            &["links"],
            &["path"],
            &["phases"],
            &["wires"],
            &["nodes"],
            &["matrix"],
        ];
        problems.warning_from(
            &at,
            &reads,
            format!(
                "compares `{metric}` of `{a}` and `{b}`, which compete in the queue of `{link}`: the difference is not that of each \
                 congestion control alone (Spang et al., IMC 2021); run them at separate points of the matrix, with `[[compare]]` or \
                 `over = {{ where = ... }}`"
            ),
        );
    }
}

/// The link in whose queue the two groups compete in this phase, if they have different congestion controls.
fn common_queue<'p>(
    normalized: &'p Plan,
    topology: &Topology,
    phase: &str,
    groups: &[String; 2],
) -> Option<&'p str> {
    let [a, b] = groups;
    let (one, other) = (normalized.flows.get(a)?, normalized.flows.get(b)?);
    if one.cc == other.cc {
        return None;
    }
    let spans = phase_spans(normalized);
    let span = spans.iter().find(|span| span.name == phase)?;
    let (first, second) = (flow_span(normalized, a, one)?, flow_span(normalized, b, other)?);
    let (start, end) = (first.0.max(second.0).max(span.start), first.1.min(second.1).min(span.end));
    // Without known cabling, the links on the path are not known, either.
    let is_known = |flow: &Flow| topology.path(&flow.from, &flow.to).is_some();
    if start >= end || !is_known(one) || !is_known(other) {
        return None;
    }
    let (name, link) = bottleneck_in(normalized, topology, a)?;
    let (same, _) = bottleneck_in(normalized, topology, b)?;
    (name == same && has_one_queue(link)).then_some(name)
}

/// Whether all packets of a link wait in one queue.
fn has_one_queue(link: &Link) -> bool {
    let isolation = link.queue.as_ref().map_or(FlowIsolation::None, Queue::flow_isolation);
    link.classes.is_empty() && isolation == FlowIsolation::None
}

#[cfg(test)]
mod tests {
    use crate::plan::check::read;

    const PLAN: &str = r#"
name = "t"
repeat = 2
[nodes]
a = {}
r = {}
b = {}
[wires]
w = ["a", "r", "b"]
[links.l]
node = "r"
toward = "b"
rate = "10mbit"
delay = "10ms"
[flows.one]
from = "a"
to = "b"
cc = "bbr"
[flows.two]
from = "a"
to = "b"
cc = "cubic"
[[phases]]
name = "alone"
length = "20s"
flows = ["one"]
[[phases]]
name = "both"
length = "20s"
flows = ["one", "two"]
[matrix.aqm]
fifo = { "links.l.queue" = { kind = "pfifo", limit = "40p" } }
fair = { "links.l.queue" = { kind = "fq_codel" } }
"#;

    /// The warnings about claims.
    fn warnings(claim: &str, edit: (&str, &str)) -> Vec<String> {
        let text = PLAN.replace(edit.0, edit.1);
        let text = format!("{text}\n[[expect]]\nclaim = \"c\"\n{claim}\n");
        let found = read(&text, &[]).unwrap_or_else(|problems| panic!("{problems:?}")).1;
        let about = found.into_iter().filter(|problem| problem.path.starts_with("expect"));
        about.map(|problem| problem.reason).collect()
    }

    const SRTT: &str = "metric = \"srtt\"\ngroup = \"one\"\nphase = \"both\"\nbelow = 0.5\n";
    const NONE: (&str, &str) = ("", "");

    #[test]
    fn delays_of_competitors_in_one_queue_are_no_comparison() {
        let claim = format!("{SRTT}over = {{ group = \"two\" }}");
        let found = warnings(&claim, NONE);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("`srtt` of `one` and `two`, which compete in the queue of `l`"));
        assert!(found[0].ends_with("(at aqm=fifo)"), "{found:?}");
        let losses = claim.replace("srtt", "retransmission_share");
        assert_eq!(warnings(&losses, NONE).len(), 1);
    }

    #[test]
    fn a_discipline_may_keep_flows_apart() {
        let claim = format!("{SRTT}over = {{ group = \"two\" }}");
        let with =
            |queue: &str| warnings(&claim, (r#"kind = "pfifo", limit = "40p""#, queue)).len();
        assert_eq!([r#"kind = "codel""#, r#"kind = "pie""#].map(with), [1, 1]);
        let apart = [r#"kind = "fq""#, r#"kind = "cake""#, r#"kind = "dualpi2""#];
        assert_eq!(apart.map(with), [0, 0, 0]);
        // Without several queues, they do not.
        let single = [r#"kind = "fq", buckets = 1"#, r#"kind = "fq_codel", flows = 1"#];
        assert_eq!(single.map(with), [1, 1]);
    }

    #[test]
    fn other_claims_have_no_warning() {
        let over_two = format!("{SRTT}over = {{ group = \"two\" }}");
        let fine = |claim: &str, edit: (&str, &str)| {
            assert_eq!(warnings(claim, edit), [""; 0], "{claim}\n{edit:?}");
        };
        // Who gets more is a question about competitors.
        fine(&over_two.replace("srtt", "throughput"), NONE);
        fine(&format!("{SRTT}where = {{ aqm = \"fair\" }}\nover = {{ group = \"two\" }}"), NONE);
        fine(&format!("{SRTT}over = {{ phase = \"alone\" }}"), NONE);
        fine(&format!("{SRTT}over = {{ where = {{ aqm = \"fair\" }} }}"), NONE);
        fine(&SRTT.replace("0.5", "\"90ms\""), NONE);
        fine(&over_two, ("\"cubic\"", "\"bbr\""));
        fine(&over_two, ("flows = [\"one\", \"two\"]", "flows = [\"two\"]"));
    }
}
