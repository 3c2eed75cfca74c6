//! Checks `[[changes]]`: the changes of links during a trial.
//!
//! A change of a queue is checked on top of the changes before it. If a state changes a queue, all changes of the queue must set
//! the same keys, so that their order does not matter. A change of a rate, a delay or a loss is checked by itself, also if a state
//! triggers it: nothing that limits these values can change, so no combination of changes matters.

use std::collections::BTreeMap;

use crate::plan::parse::set::join_key;
use crate::plan::parse::suggest::{hint, list};
use crate::plan::{Backend, Change, Link, Plan, Setting, timeline};
use crate::resolve::{base_rtt_in, drain_rate};
use crate::topology::Topology;
use crate::units::{Micros, Rate};

use super::limits::{LENGTHS, MAX_DELAY, MAX_RATE};
use super::links::Sources;
use super::lints::ROUND_TRIP;
use super::problems::Problems;
use super::{lints, names, queues, triggers};

/// Checks the changes of a plan. `normalized` is the plan with its presets merged.
pub(super) fn check(
    (plan, normalized): (&Plan, &Plan),
    topology: &Topology,
    problems: &mut Problems,
) {
    let end = timeline::length(plan);
    let mut seen = BTreeMap::new();
    for (index, change) in plan.changes.iter().enumerate() {
        let number = index.to_string();
        let at = ["changes", &number, "at"];
        triggers::check(plan, &number, change, problems);
        if let Some(time) = change.at
            && time >= end
            && !plan.phases.is_empty()
        {
            let why = format!(
                "{time} is not inside the trial, which ends at {end}; change earlier, or lengthen the last phase"
            );
            problems.error_from(&at, &[LENGTHS], why);
        }
        if change.set.is_empty() {
            problems.error(
                &["changes", &number, "set"],
                "is empty; write it like `set = { \"links.bottleneck.rate\" = \"20mbit\" }`",
            );
        }
        for (key, value) in &change.set {
            let path = ["changes", &number, "set", key];
            if let Some(time) = change.at
                && let Some(earlier) = seen.insert((time, key), index)
            {
                problems.error_from(
                    &path,
                    &[&at, &["changes", &earlier.to_string(), "at"]],
                    format!(
                        "`changes.{earlier}` sets this at the same instant; leave one of the two out"
                    ),
                );
            }
            refuse_change((plan, normalized, change), &path, value, problems);
        }
    }
    for (name, link) in &normalized.links {
        let rtt = || base_rtt_in(normalized, topology, name);
        changed_queues(plan, (name.as_str(), link), rtt, problems);
    }
}

/// Reports parameters of a link's queue that contradict each other after one of its changes. Changes add up in the order of time.
/// Only changes whose values are valid by themselves count; the others have been reported before.
fn changed_queues(
    plan: &Plan,
    (name, link): (&str, &Link),
    rtt: impl Fn() -> Micros,
    problems: &mut Problems,
) {
    let (Some(queue), Some(rate)) = (&link.queue, drain_rate(link)) else { return };
    let prefix = format!("links.{name}.queue.");
    let mut entries: Vec<(Option<Micros>, usize, &Change)> = plan
        .changes
        .iter()
        .enumerate()
        .filter(|(_, entry)| entry.set.keys().any(|key| key.starts_with(&prefix)))
        .map(|(index, entry)| (entry.at, index, entry))
        .collect();
    if entries.is_empty() {
        return;
    }
    same_keys(&prefix, &entries, problems);
    entries.sort_by_key(|(at, ..)| *at);
    let rate_reads: [&[&str]; 2] = [&["links", name, "rate"], &["links", name, "trace"]];
    let is_rtt_known = !problems.is_unread(ROUND_TRIP) && !problems.is_unread(&rate_reads);
    let rate_and_rtt = (rate, is_rtt_known.then(rtt));
    let mut queue = queue.clone();
    let mut before = queues::contradictions(&queue, rate_and_rtt);
    for (_, index, entry) in entries {
        let number = index.to_string();
        let reads: [&[&str]; 4] =
            [&["changes"], &["links", name, "queue"], &["links", name, "path"], &["path"]];
        for (whole, value) in &entry.set {
            let path = ["changes", &number, "set", whole];
            let place = join_key(&path);
            if let Some(key) = whole.strip_prefix(&prefix)
                && problems.found.iter().all(|found| found.path != place)
                && let Ok(changed) = queue.with(key, value)
            {
                queue = changed;
                let clamped = rate_and_rtt.1.map(|rtt| lints::clamped_limits(&queue, (rate, rtt)));
                let clamped = clamped.into_iter().flatten().find(|(limit, _)| *limit == key);
                if let Some((_, why)) = clamped {
                    problems.warning_from(&path, &reads, why);
                }
            }
        }
        let after = queues::contradictions(&queue, rate_and_rtt);
        for (key, why) in after.iter().filter(|found| !before.contains(found)) {
            let whole = format!("{prefix}{key}");
            let set = ["changes", &number, "set"];
            if entry.set.contains_key(&whole) {
                problems.error_from(&[&set[..], &[whole.as_str()]].concat(), &reads, why.clone());
            } else {
                problems.error_from(&set, &reads, format!("after this change, `{whole}` {why}"));
            }
        }
        before = after;
    }
}

/// Reports changes of a queue that set other keys than a triggered change: their order is not known.
fn same_keys(prefix: &str, entries: &[(Option<Micros>, usize, &Change)], problems: &mut Problems) {
    let keys = |entry: &Change| -> Vec<String> {
        entry.set.keys().filter(|key| key.starts_with(prefix)).cloned().collect()
    };
    let Some((_, first, triggered)) = entries.iter().find(|(.., entry)| entry.when.is_some())
    else {
        return;
    };
    for (_, index, _) in entries.iter().filter(|(.., entry)| keys(entry) != keys(triggered)) {
        let why = format!(
            "sets other keys of the queue than `changes.{first}`, which a state may trigger at any time; set the same keys in both"
        );
        problems.error_from(&["changes", &index.to_string(), "set"], &[&["changes"]], why);
    }
}

/// Reports a key, the path's last segment, that cannot change to this value during a trial.
fn refuse_change(
    (plan, normalized, change): (&Plan, &Plan, &Change),
    path: &[&str; 4],
    value: &Setting,
    problems: &mut Problems,
) {
    let whole = path[3].strip_prefix("links.").unwrap_or_default();
    let of_queue = whole.split_once(".queue.");
    let (name, key) = of_queue.or_else(|| whole.rsplit_once('.')).unwrap_or_default();
    let names: Vec<&str> = normalized.links.keys().map(String::as_str).collect();
    let is_known = of_queue.is_some() || ["rate", "delay", "loss"].contains(&key);
    if !is_known || names::refuse(name, usize::MAX).is_some() {
        let why = format!(
            "only a link's rate, delay, loss and queue can change during a trial: write `\"links.NAME.rate\"`, `.delay`, \
             `.loss` or `.queue.KEY` (links: {})",
            list(&names)
        );
        problems.error_from(path, &[], why);
        return;
    }
    let (Some(link), Some(written)) = (normalized.links.get(name), plan.links.get(name)) else {
        let why = format!("there is no link `{name}`{}", hint(name, &names, "links"));
        problems.error_from(path, &[&["links", name]], why);
        return;
    };
    let from = Sources::new(name, written);
    if of_queue.is_some() {
        return queues::check_change((link, change), path, (key, value), problems);
    }
    match (key, value) {
        ("rate", Setting::Rate(rate)) => change_of_rate(&from, link, path, *rate, problems),
        ("delay", Setting::Delay(delay)) => {
            if *delay > MAX_DELAY {
                problems.error(path, format!("must be {MAX_DELAY} or less"));
            }
            needs_netem(&from, link, path, problems);
        }
        ("loss", Setting::Loss(loss)) => {
            if loss.get() == 1_000_000 {
                problems.error(path, "is 100%: no packet would get through; write less");
            }
            needs_netem(&from, link, path, problems);
        }
        (_, Setting::Text(text)) => {
            let rate = text.parse::<Rate>().err().map_or(String::new(), |error| error.to_string());
            let why = format!("{rate} (or a delay like \"20ms\", or a loss like \"0.1%\")");
            problems.error(path, why);
        }
        (_, value) => {
            let example = match key {
                "rate" => "\"20mbit\"",
                "delay" => "\"20ms\"",
                _ => "\"0.1%\"",
            };
            let why = format!("`{value}` is a {}; write it like {example}", value.key());
            problems.error(path, why);
        }
    }
}

fn change_of_rate(
    from: &Sources<'_>,
    link: &Link,
    path: &[&str; 4],
    rate: Rate,
    problems: &mut Problems,
) {
    let name = from.name;
    if rate.bits_per_sec() == 0 || rate > MAX_RATE {
        problems.error(path, format!("must be more than zero, and {MAX_RATE} or less"));
    }
    if let Some(peak) = link.tbf.as_ref().and_then(|tbf| tbf.peakrate)
        && rate >= peak
    {
        let peakrate: &[&str] = &["links", name, "tbf", "peakrate"];
        let why = format!("must be less than {peak}, the `peakrate` of the link's `tbf`");
        problems.error_from(path, &[path, peakrate], why);
    }
    let is_traced = link.trace.as_ref().is_some_and(|used| used.mean_rate.is_some());
    if (link.rate.is_none() || is_traced) && !from.is_unread(&["rate"], problems) {
        let why = match link.trace {
            Some(_) => format!("the trace of `links.{name}` sets its rate; change it there"),
            None => {
                format!(
                    "`links.{name}` has no rate to change; give the link a `rate` to begin with"
                )
            }
        };
        problems.error(path, why);
    }
}

/// Reports changes of delay and loss without a netem: the kernel backend has one only if the link begins with a delay or a loss. All
/// links of the simulator are userspace links.
fn needs_netem(from: &Sources<'_>, link: &Link, path: &[&str; 4], problems: &mut Problems) {
    if !problems.target.is_kernel() {
        return;
    }
    let begins = link.delay.is_some_and(|delay| delay.get() > 0)
        || link.loss.is_some_and(|loss| loss.get() > 0);
    if begins || link.backend == Backend::Userspace || from.is_unread(&["delay", "loss"], problems)
    {
        return;
    }
    let name = from.name;
    let why = format!(
        "`links.{name}` begins without delay or loss, so a kernel link has nothing to change; give it a small \
         delay to begin with, or write `backend = \"userspace\"` there"
    );
    problems.error_from(path, &[&["links", name, "backend"]], why);
}

#[cfg(test)]
pub mod tests {
    use crate::plan::check::{PlanProblem, Severity, Target, TraceFiles, read, read_for};

    /// A plan with a link of 100 Mbit/s and 10 ms, these further keys of the link, and these changes: time and what is set.
    pub fn plan(keys: &str, changes: &[(&str, String)]) -> String {
        let mut text = format!(
            r#"
            name = "t"
            [nodes]
            a = {{}}
            b = {{}}
            [wires]
            path = ["a", "b"]
            [links.l]
            node = "a"
            toward = "b"
            rate = "100mbit"
            delay = "10ms"
            {keys}
            [flows.f]
            from = "a"
            to = "b"
            [[phases]]
            name = "p"
            length = "9s"
            flows = ["f"]
            "#
        );
        for (at, set) in changes {
            text += &format!("\n[[changes]]\nat = \"{at}\"\nset = {{ {set} }}\n");
        }
        text
    }

    /// The problems of this severity.
    fn problems(target: Target, text: &str, severity: Severity) -> Vec<PlanProblem> {
        let found = match read_for(target, text, &[], TraceFiles::new()) {
            Ok((_, warnings)) => warnings,
            Err(problems) => problems,
        };
        found.into_iter().filter(|problem| problem.severity == severity).collect()
    }

    /// The errors of a plan.
    pub fn errors_of(text: &str) -> Vec<String> {
        let errors = problems(Target::Any, text, Severity::Error);
        errors.iter().map(ToString::to_string).collect()
    }

    /// The errors of a plan with this queue and these changes.
    fn errors(queue: &str, changes: &[(&str, String)]) -> Vec<String> {
        errors_of(&plan(&format!("queue = {{ {queue} }}"), changes))
    }

    const RED: &str = r#"kind = "red", limit = "400000B", min = "30000B", max = "90000B""#;

    fn min(limit: &str) -> String {
        format!(r#""links.l.queue.min" = "{limit}""#)
    }

    fn max(limit: &str) -> String {
        format!(r#""links.l.queue.max" = "{limit}""#)
    }

    #[test]
    fn a_queue_is_checked_with_all_changes_before() {
        let why = "must be more than zero and less than `max`";
        let found = errors(RED, &[("1s", min("95000B"))]);
        assert_eq!(found, [format!(r#"changes.0.set."links.l.queue.min": {why}"#)]);
        // With a higher `max`, the same value is valid; the order is that of time.
        let raised = [("2s", min("95000B")), ("1s", max("200000B"))];
        assert_eq!(errors(RED, &raised), Vec::<String>::new());
        // A contradiction is reported once, at the change that it begins with.
        let lowered = [("1s", min("60000B")), ("2s", max("50000B")), ("3s", max("55000B"))];
        let found = errors(RED, &lowered);
        assert_eq!(found, [format!("changes.1.set: after this change, `links.l.queue.min` {why}")]);
        // Limits in other units are compared as bytes: these are 500 000.
        let found = errors(RED, &[("1s", max("4bdp"))]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("is above the queue's `limit` of 400000B"), "{found:?}");
        assert!(found[0].contains("a base round-trip time of 10ms"), "{found:?}");
    }

    #[test]
    fn a_bfifo_does_not_grow_beyond_what_the_kernel_can_hold() {
        let limit = |limit: &str| [("1s", format!(r#""links.l.queue.limit" = "{limit}""#))];
        let queue = r#"kind = "bfifo", limit = "100kB""#;
        assert_eq!(errors(queue, &limit("4294967295B")), Vec::<String>::new());
        for more in ["5GB", "40000bdp"] {
            let found = errors(queue, &limit(more));
            assert!(
                found.len() == 1 && found[0].contains("holds at most 4294967295B"),
                "{found:?}"
            );
        }
    }

    #[test]
    fn warns_of_a_raised_limit() {
        let warned = |kind: &str, key: &str, limit: &str| -> Vec<String> {
            let set = format!(r#""links.l.queue.{key}" = "{limit}""#);
            let text = plan(&format!("queue = {{ {kind} }}"), &[("1s", set)]);
            let found = problems(Target::Any, &text, Severity::Warning).into_iter();
            let found = found.filter(|problem| problem.reason.contains("full frames"));
            found.map(|problem| problem.path).collect()
        };
        let pie = r#"kind = "pie", limit = "1bdp""#;
        // 10 full frames are 15140 of the 125 000 bytes of a BDP.
        assert_eq!(warned(pie, "limit", "0.12bdp"), [r#"changes.0.set."links.l.queue.limit""#]);
        assert_eq!(warned(pie, "limit", "0.13bdp"), [""; 0]);
        assert_eq!(warned(pie, "limit", "1p"), [""; 0]);
        let red = r#"kind = "red", limit = "2bdp", min = "0.2bdp", max = "0.6bdp""#;
        assert_eq!(warned(red, "min", "0.1bdp"), [""; 0]);
        // Only the limit that is too low.
        let low = r#"kind = "pie", limit = "0.1bdp""#;
        assert_eq!(warned(low, "target", "5ms"), ["links.l.queue.limit"]);
    }

    /// They change in proportion to the link's rate.
    #[test]
    fn guaranteed_rates_do_not_limit_a_change_of_the_rate() {
        let class = r#"classes.c = { rate = "90mbit", match = { dscp = 46 } }"#;
        let text = plan(class, &[("1s", r#""links.l.rate" = "1mbit""#.to_owned())]);
        assert!(read(&text, &[]).is_ok());
    }

    #[test]
    fn simulated_links_can_begin_without_a_delay() {
        let set = r#""links.l.delay" = "5ms", "links.l.loss" = "1%""#.to_owned();
        let text = plan("", &[("1s", set)]).replace("delay = \"10ms\"", "");
        let paths = |target| -> Vec<String> {
            let errors = problems(target, &text, Severity::Error).into_iter();
            errors.map(|error| error.path).collect()
        };
        let both = ["delay", "loss"].map(|key| format!("changes.0.set.\"links.l.{key}\""));
        for target in [Target::Kernel, Target::Lab] {
            assert_eq!(paths(target), both, "{target:?}");
        }
        for target in [Target::Simulator, Target::Any] {
            assert_eq!(paths(target), [""; 0], "{target:?}");
        }
    }

    #[test]
    fn a_dotted_key_without_quotes_is_reported_with_them() {
        let found = errors(RED, &[("1s", r#"links.l.delay = "80ms""#.to_owned())]);
        let why = "must be a text in quotes, a whole number, `true` or `false`, not a table";
        let fix = r#"write the dotted key in quotes, `"links.l.delay" = "80ms"`"#;
        assert!(found.contains(&format!("changes.0.set.links: {why}; {fix}")), "{found:?}");
    }

    #[test]
    fn a_key_that_another_one_needs_can_change_before_it() {
        let ecn = |ecn: bool| format!(r#""links.l.queue.ecn" = {ecn}"#);
        let nodrop = r#""links.l.queue.nodrop" = true"#.to_owned();
        let in_order = [("1s", ecn(true)), ("2s", nodrop.clone())];
        assert_eq!(errors(RED, &in_order), Vec::<String>::new());
        let found = errors(RED, &[("2s", ecn(true)), ("1s", nodrop)]);
        assert_eq!(found, [r#"changes.1.set."links.l.queue.nodrop": needs `ecn = true`"#]);
        let marks = format!("{RED}, ecn = true, nodrop = true");
        let found = errors(&marks, &[("1s", ecn(false))]);
        assert_eq!(
            found,
            ["changes.0.set: after this change, `links.l.queue.nodrop` needs `ecn = true`"]
        );
    }
}
