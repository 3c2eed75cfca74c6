//! Flow groups.

use crate::cc::refuse_kernel_name;
use crate::plan::timeline::{flow_span, phase_spans};
use crate::plan::{Flow, Pause, Plan, Tool};
use crate::resolve::on_round_trip;
use crate::schedule::{CONNECT_TIMEOUT_S, MAX_GROUPS, MAX_SOCKETS};
use crate::topology::Topology;
use crate::units::{Bytes, Micros, Rate};

use super::endpoints::ends;
use super::limits::{LENGTHS, PHASE_FLOWS, SCHEDULE, SOCKETS, groups_here, sockets_here};
use super::lints::ROUND_TRIP;
use super::problems::Problems;
use super::{Target, probes};

/// Most parallel streams of one process.
const MAX_COUNT: u32 = 128;
/// Verdicts treat connections with fewer bytes as ones without data.
const MIN_BYTES: Bytes = Bytes::new(100);

/// Checks the flow groups of a plan. `normalized` is the plan with its presets merged.
pub(super) fn check(
    (plan, normalized): (&Plan, &Plan),
    topology: &Topology,
    problems: &mut Problems,
) {
    nothing_to_measure(plan, problems);
    let groups = groups_here(plan, problems).count();
    if groups > MAX_GROUPS as usize {
        problems.error_from(
            &["flows"],
            &SCHEDULE,
            format!("there are {groups} groups; {MAX_GROUPS} are allowed"),
        );
    }
    let sockets = sockets_here(plan, problems);
    if sockets > u64::from(MAX_SOCKETS) {
        problems.error_from(
            &["flows"],
            &SOCKETS,
            format!("their counts sum to {sockets} sockets; {MAX_SOCKETS} are allowed"),
        );
    }
    for (name, flow) in &plan.flows {
        let path = |key: &'static str| ["flows", name.as_str(), key];
        ends(plan, topology, ["flows", name], (&flow.from, &flow.to), problems);
        if flow.count == 0 || flow.count > MAX_COUNT {
            problems.error(
                &path("count"),
                format!("must be from 1 to {MAX_COUNT}, the parallel streams of one process; use more groups for more"),
            );
        }
        // The name of an instance need not be a kernel name: the kernel gets another one.
        if let Some(cc) = flow.cc.as_ref().filter(|cc| !plan.cc.contains_key(*cc))
            && let Some(why) = refuse_kernel_name(cc)
        {
            problems.error(&path("cc"), why);
        }
        if flow.rate == Some(Rate::from_bits_per_sec(0)) {
            problems.error(
                &path("rate"),
                "is zero: it would send nothing; leave it out for as fast as possible",
            );
        }
        if flow.interval < Micros::from_millis(100) || flow.interval > Micros::from_secs(60) {
            problems.error(&path("interval"), "must be from 100ms to 60s, iperf3's own limits");
        }
        times(plan, name, flow, problems);
        handshake(name, flow, (normalized, topology), problems);
        let length = flow_span(plan, name, flow).map(|(start, stop)| stop - start);
        if let Some((jitter, length)) = flow.start_jitter.zip(length).filter(|(j, l)| j >= l) {
            problems.error(
                &path("start_jitter"),
                format!("is {jitter}, but the group runs for only {length}; make it shorter"),
            );
        }
        let is_ours = is_ours(plan, flow, problems.target);
        if let Some(bytes) = flow.bytes {
            self::bytes(name, (bytes, is_ours), problems);
        }
        if let Some(pause) = flow.pause {
            self::pause(name, flow, (pause, length, is_ours), problems);
        }
    }
    probes::check(plan, topology, problems);
}

/// Reports a trial without flow groups and probes.
fn nothing_to_measure(plan: &Plan, problems: &mut Problems) {
    if !plan.probes.is_empty() {
        return;
    }
    if plan.flows.is_empty() {
        problems.error_from(
            &["flows"],
            &[&["flows"], &["probes"]],
            "there is no flow group and no probe: nothing would be measured; write `[flows.a]` with `from` and `to`",
        );
    }
    // Groups that run at no point have errors of their own.
    if !plan.flows.is_empty() && groups_here(plan, problems).next().is_none() {
        problems.error_from(
            &["flows"],
            &[&["flows"], &["probes"], PHASE_FLOWS],
            "no flow group runs, and there is no probe: nothing would be measured; name a group in `flows` of a phase",
        );
    }
}

/// Checks the round-trip time: ccbench's generator gives up a connection that takes longer than a limit.
fn handshake(
    name: &str,
    flow: &Flow,
    (normalized, topology): (&Plan, &Topology),
    problems: &mut Problems,
) {
    let is_limited = match problems.target {
        Target::Kernel | Target::Lab => is_ours(normalized, flow, problems.target),
        // It generates the traffic of `iperf3` in the same way.
        Target::Simulator => true,
        // Without `tool`, a controller has checked it.
        Target::Any => flow.tool == Some(Tool::Ccbench),
    };
    if !is_limited || topology.round_trip(&flow.from, &flow.to).is_none() {
        return;
    }
    let links = on_round_trip(normalized, topology, name);
    let delays = links.iter().filter_map(|(_, link)| link.delay);
    let rtt = delays.fold(Micros::default(), std::ops::Add::add);
    let limit = Micros::from_secs(CONNECT_TIMEOUT_S);
    if rtt <= limit || problems.is_unread(ROUND_TRIP) {
        return;
    }
    let tool: &[&str] = &["flows", name, "tool"];
    let why = format!(
        "a handshake takes {rtt} (the base round-trip time), but the traffic generator gives up after {limit}; write shorter delays"
    );
    let is_constant = normalized.changes.is_empty()
        && links.iter().all(|(_, link)| link.jitter.is_none() && link.trace.is_none());
    // The kernel's timers may expire an eighth late.
    if is_constant && rtt > limit + Micros::new(limit.get() / 8) {
        problems.error_from(&["flows", name], &[tool], why);
    } else {
        problems.warning_from(&["flows", name], &[tool], why);
    }
}

/// Whether ccbench's generator makes the traffic of a flow. Without `tool`, it does so in the simulator and the lab.
fn is_ours(plan: &Plan, flow: &Flow, target: Target) -> bool {
    match flow.tool {
        Some(tool) => tool == Tool::Ccbench,
        // Results may come from either, and their controller has checked the plan.
        None => target != Target::Kernel || plan.in_lab(),
    }
}

/// Checks the length of a finite flow. `is_ours`: ccbench's generator makes its traffic.
fn bytes(name: &str, (bytes, is_ours): (Bytes, bool), problems: &mut Problems) {
    let at = ["flows", name, "bytes"];
    if bytes < MIN_BYTES {
        problems.error(
            &at,
            format!(
                "is {bytes}; write at least {MIN_BYTES}, or leave it out for a flow without end"
            ),
        );
    } else if !is_ours {
        let why = "needs `tool = \"ccbench\"`: iperf3 closes its sockets after the last byte";
        problems.error_from(&at, &[&["flows", name, "tool"]], why);
    }
}

/// Checks the pause of a flow. `length` is how long the group runs. `is_ours`: ccbench's generator makes its traffic.
fn pause(
    name: &str,
    flow: &Flow,
    (pause, length, is_ours): (Pause, Option<Micros>, bool),
    problems: &mut Problems,
) {
    let at = |key| ["flows", name, "pause", key];
    if flow.rate.is_none() {
        let why =
            "needs a `rate`: without one, the full send buffer keeps sending during the pause";
        problems.error_from(&["flows", name, "pause"], &[&["flows", name, "rate"]], why);
    }
    if !is_ours {
        let why = "needs `tool = \"ccbench\"`: iperf3 does not pause";
        problems.error_from(&["flows", name, "pause"], &[&["flows", name, "tool"]], why);
    }
    if pause.duration.get() == 0 {
        problems.error(&at("for"), "is zero; write how long it lasts, like \"5s\"");
    }
    if let Some(every) = pause.every.filter(|every| *every <= pause.duration) {
        let why = format!("is {every}, but a pause lasts {}; make it longer", pause.duration);
        problems.error_from(&at("every"), &[&at("every"), &at("for")], why);
    }
    if let Some(length) = length.filter(|length| pause.after >= *length) {
        let why =
            format!("is {}, but the group runs for only {length}; make it shorter", pause.after);
        problems.error_from(&at("after"), &[&at("after"), LENGTHS, PHASE_FLOWS], why);
    }
}

/// Checks when a group runs: by phases or by `start` and `stop`, without a gap, inside the trial.
fn times(plan: &Plan, name: &str, flow: &Flow, problems: &mut Problems) {
    let spans = phase_spans(plan);
    let end = spans.last().map(|last| last.end).unwrap_or_default();
    let named: Vec<usize> = plan
        .phases
        .iter()
        .enumerate()
        .filter(|(_, phase)| phase.flows.iter().any(|f| f == name))
        .map(|(index, _)| index)
        .collect();
    if flow.start.is_none() && flow.stop.is_none() {
        if named.is_empty() && !plan.phases.is_empty() && !problems.runs_at_a_point(name) {
            problems.error_from(
                &["flows", name],
                &[&["flows", name, "start"], &["flows", name, "stop"], PHASE_FLOWS],
                "never runs: name it in `flows` of a phase, or give it `start` and `stop`",
            );
        }
        if let Some(gap) = named.windows(2).find(|pair| pair[1] != pair[0] + 1) {
            let phase = |index: usize| plan.phases[index].name.as_str();
            problems.error_from(
                &["phases", &gap[1].to_string(), "flows"],
                &[&["flows", name, "start"], &["flows", name, "stop"], PHASE_FLOWS],
                format!(
                    "`{name}` stopped after phase `{}` and would start a second time in `{}`; a group runs once: \
                     make a second group for the second run, or name it in the phases between",
                    phase(gap[0]),
                    phase(gap[1])
                ),
            );
        }
        return;
    }
    if let Some(first) = named.first() {
        problems.error_from(
            &["flows", name, if flow.start.is_some() { "start" } else { "stop" }],
            &[&["phases", &first.to_string(), "flows"]],
            format!(
                "the group has `start` or `stop` and is named by phase `{}` too; keep one of the two",
                plan.phases[*first].name
            ),
        );
    }
    let (start, stop) = (flow.start.unwrap_or_default(), flow.stop.unwrap_or(end));
    if flow.stop.is_some() && start >= stop {
        problems.error_from(
            &["flows", name, "stop"],
            &[&["flows", name, "start"]],
            format!(
                "{stop} is not after the start at {start}; both count from the trial's beginning"
            ),
        );
    } else if start >= end && !plan.phases.is_empty() {
        problems.error_from(
            &["flows", name, "start"],
            &[LENGTHS],
            format!("{start} is not inside the trial, which ends at {end}; start earlier, or lengthen the last phase"),
        );
    }
    if stop > end && !plan.phases.is_empty() {
        problems.error_from(
            &["flows", name, "stop"],
            &[LENGTHS],
            format!("{stop} is after the trial's end at {end}; lengthen the last phase, or leave `stop` out"),
        );
    }
}
