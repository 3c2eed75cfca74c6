//! Links: where they are, what they do, their classes, and how they change.

use std::collections::BTreeMap;

use crate::plan::parse::suggest::{hint, list};
use crate::plan::{Class, Link, Plan, Shaper};
use crate::resolve::{builtin_paths, settle};
use crate::schedule::spans;
use crate::topology::Topology;
use crate::units::Rate;

use super::limits::{MAX_CLASSES, MAX_DELAY, MAX_RATE, known_flow, known_node};
use super::{Problems, names, queues};

pub(super) fn check(plan: &Plan, problems: &mut Problems) {
    let topology = Topology::build(plan);
    let settled = settle(plan);
    let mut egresses: BTreeMap<(String, String), &str> = BTreeMap::new();
    for (name, written) in &plan.links {
        let preset_known = preset(plan, name, written, problems);
        if let Some(egress) = place(plan, &topology, name, written, problems)
            && let Some(other) = egresses.insert(egress.clone(), name)
        {
            problems.error(
                &["links", name],
                format!(
                    "shapes {} of `{}`, as `links.{other}` does; make them one link with rate, delay and loss together",
                    egress.1, egress.0
                ),
            );
        }
        // `settle` keeps the names.
        let Some(link) = settled.links.get(name) else { continue };
        characteristics(name, link, preset_known, problems);
        classes(plan, name, link, problems);
    }
    for (name, preset) in &plan.path {
        if let Some(queue) = &preset.queue {
            queues::check(&["path", name, "queue"], queue, preset.rate, problems);
        }
    }
    changes(plan, &settled, problems);
}

/// Whether a link's preset is known, if it has one.
fn preset(plan: &Plan, name: &str, link: &Link, problems: &mut Problems) -> bool {
    let Some(path) = &link.path else { return true };
    let builtin = builtin_paths();
    if plan.path.contains_key(path) || builtin.contains_key(path) {
        return true;
    }
    let known: Vec<&str> = plan.path.keys().chain(builtin.keys()).map(String::as_str).collect();
    problems.error(
        &["links", name, "path"],
        format!(
            "there is no preset `{path}`{}",
            hint(path, &known, "[path] tables and built-in ones")
        ),
    );
    false
}

/// Checks where a link is; the result says which two links are on the same interface.
fn place(
    plan: &Plan,
    topology: &Topology,
    name: &str,
    link: &Link,
    problems: &mut Problems,
) -> Option<(String, String)> {
    let node_known = known_node(plan, &["links", name, "node"], &link.node, problems);
    match (&link.toward, &link.dev) {
        (Some(_), Some(_)) => {
            problems
                .error(&["links", name], "has both `toward` and `dev`; keep the one that you mean");
            None
        }
        (None, None) => {
            problems.error(
                &["links", name],
                "which interface? Write `toward = \"dst\"` (the one that the route to this node leaves by) or `dev = \"eth1\"`",
            );
            None
        }
        (Some(toward), None) if node_known => {
            toward_place(plan, topology, name, link, toward, problems)
        }
        (Some(toward), None) => {
            known_node(plan, &["links", name, "toward"], toward, problems);
            None
        }
        (None, Some(dev)) => dev_place(plan, topology, name, link, dev, problems),
    }
}

/// Whether ccbench makes this link's node.
fn ours(plan: &Plan, link: &Link) -> bool {
    plan.nodes.get(&link.node).is_some_and(|node| node.agent.is_none())
}

fn toward_place(
    plan: &Plan,
    topology: &Topology,
    name: &str,
    link: &Link,
    toward: &str,
    problems: &mut Problems,
) -> Option<(String, String)> {
    let path = ["links", name, "toward"];
    if !known_node(plan, &path, toward, problems) {
        return None;
    }
    if *toward == link.node {
        problems.error(
            &path,
            format!("`{toward}` is the link's own node; name one that its traffic goes to"),
        );
        return None;
    }
    if !ours(plan, link) {
        let because = format!("`links.{name}` is found by the route to it");
        needs_address(plan, toward, &because, problems);
        return Some((link.node.clone(), format!("the interface toward `{toward}`")));
    }
    let dev = topology.egress(&link.node, toward);
    if dev.is_none() && !plan.wires.is_empty() {
        problems.error(
            &path,
            format!(
                "`{}` has no wire that leads to `{toward}`; join them under [wires]",
                link.node
            ),
        );
    }
    Some((link.node.clone(), format!("the interface `{}`", dev?)))
}

fn dev_place(
    plan: &Plan,
    topology: &Topology,
    name: &str,
    link: &Link,
    dev: &str,
    problems: &mut Problems,
) -> Option<(String, String)> {
    let path = ["links", name, "dev"];
    if let Some(why) = refuse_dev(dev) {
        problems.error(&path, why);
        return None;
    }
    if ours(plan, link) {
        let devs: Vec<&str> = topology
            .nodes
            .get(&link.node)
            .map(|node| node.interfaces.iter().map(|i| i.dev.as_str()).collect())
            .unwrap_or_default();
        if !devs.contains(&dev) {
            problems.error(
                &path,
                format!(
                    "`{}` has no interface `{dev}`{}",
                    link.node,
                    hint(dev, &devs, "interfaces")
                ),
            );
            return None;
        }
    }
    Some((link.node.clone(), format!("the interface `{dev}`")))
}

/// A node that traffic or a route search goes to must say where it is, when ccbench did not build it.
pub(super) fn needs_address(plan: &Plan, node: &str, because: &str, problems: &mut Problems) {
    let Some(found) = plan.nodes.get(node) else { return };
    if found.agent.is_none() || found.address.is_some() {
        return;
    }
    let before = problems.0.len();
    problems.error(
        &["nodes", node, "address"],
        format!("is missing: {because}; write its address in the experiment's network, like `address = \"10.0.1.1\"`"),
    );
    let path = problems.0[before].path.clone();
    if problems.0[..before].iter().any(|p| p.path == path && p.why.starts_with("is missing")) {
        problems.0.truncate(before);
    }
}

/// Why this cannot be a device's name, if it cannot.
fn refuse_dev(dev: &str) -> Option<String> {
    let good = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | ':' | '"' | '\'' | '\\' | '`');
    let fits = (1..=15).contains(&dev.len());
    if fits && dev.chars().all(good) && !dev.starts_with(['-', '.']) {
        return None;
    }
    Some(format!(
        "`{}` is not a device's name: 1 to 15 visible characters without `/` and `:`, like \"eth1\"",
        dev.escape_debug()
    ))
}

fn characteristics(name: &str, link: &Link, preset_known: bool, problems: &mut Problems) {
    if link.rate == Some(Rate::from_bits_per_sec(0)) {
        problems.error(&["links", name, "rate"], "is zero; leave it out for a link without a rate");
    }
    if link.rate.is_some_and(|rate| rate > MAX_RATE) {
        problems.error(&["links", name, "rate"], format!("must be {MAX_RATE} or less"));
    }
    if link.delay.is_some_and(|delay| delay > MAX_DELAY) {
        problems.error(&["links", name, "delay"], format!("must be {MAX_DELAY} or less"));
    }
    if link.loss.is_some_and(|loss| loss.get() == 1_000_000) {
        problems.error(&["links", name, "loss"], "is everything: no packet would get through");
    }
    if link.rate.is_none() {
        if link.queue.is_some() && preset_known {
            problems.error(
                &["links", name, "queue"],
                "needs a rate to build up at; add `rate`, or leave the queue out",
            );
        }
        if !link.classes.is_empty() {
            problems.error(&["links", name, "classes"], "share a rate; add `rate` to the link");
        }
        if link.delay.is_none() && link.loss.is_none() && preset_known {
            problems.warning(
                &["links", name],
                "does nothing; give it a rate, a delay or a loss, or leave it out",
            );
        }
    } else if let Some(queue) = &link.queue {
        queues::check(&["links", name, "queue"], queue, link.rate, problems);
    }
}

fn classes(plan: &Plan, name: &str, link: &Link, problems: &mut Problems) {
    if link.classes.is_empty() {
        return;
    }
    if link.classes.len() > MAX_CLASSES {
        problems.error(
            &["links", name, "classes"],
            format!("there are {}; {MAX_CLASSES} are allowed", link.classes.len()),
        );
    }
    if link.shaper == Shaper::Tbf {
        problems.error(
            &["links", name, "shaper"],
            "\"tbf\" has no classes; leave `shaper` out (HTB), or leave out the classes",
        );
    }
    for (class_name, class) in &link.classes {
        let at = ["links", name, "classes", class_name];
        class_rates(&at, class, link.rate, problems);
        if let Some(queue) = &class.queue {
            queues::check(&[&at[..], &["queue"]].concat(), queue, Some(class.rate), problems);
        }
        class_match(plan, &at, class, problems);
    }
    let sum: u64 =
        link.classes.values().fold(0, |sum, c| sum.saturating_add(c.rate.bits_per_sec()));
    if let Some(rate) = link.rate
        && sum > rate.bits_per_sec()
    {
        problems.error(
            &["links", name, "classes"],
            format!(
                "their guaranteed rates sum to {}, more than the link's {rate}; lower them, and let them borrow with `ceil`",
                Rate::from_bits_per_sec(sum)
            ),
        );
    }
}

fn class_rates(at: &[&str], class: &Class, link_rate: Option<Rate>, problems: &mut Problems) {
    if class.rate.bits_per_sec() == 0 {
        problems.error(&[at, &["rate"]].concat(), "is zero; a class needs a guaranteed rate");
    }
    let Some(ceil) = class.ceil else { return };
    let path = [at, &["ceil"]].concat();
    if ceil < class.rate {
        problems
            .error(&path, format!("{ceil} is below the class's guaranteed rate of {}", class.rate));
    }
    if let Some(rate) = link_rate
        && ceil > rate
    {
        problems.error(&path, format!("{ceil} is above the link's rate of {rate}"));
    }
}

fn class_match(plan: &Plan, at: &[&str], class: &Class, problems: &mut Problems) {
    let wanted = &class.matches;
    let path = |key: &'static str| [at, &["match", key]].concat();
    if *wanted == crate::plan::Match::default() {
        problems.error(
            &[at, &["match"]].concat(),
            "is empty; say which packets belong to the class: `to`, `from`, `flow`, `dscp` or `port`",
        );
    }
    for (key, node) in [("to", &wanted.to), ("from", &wanted.from)] {
        if let Some(node) = node
            && known_node(plan, &path(key), node, problems)
        {
            needs_address(plan, node, "a class matches packets by it", problems);
        }
    }
    if let Some(flow) = &wanted.flow
        && known_flow(plan, &path("flow"), flow, problems)
        && let Some(group) = plan.flows.get(flow)
    {
        for (key, node) in [("to", &wanted.to), ("from", &wanted.from)] {
            if let Some(node) = node
                && *node != group.from
                && *node != group.to
            {
                problems.error(
                    &path(key),
                    format!(
                        "no packet of `{flow}` matches: the group runs between `{}` and `{}`",
                        group.from, group.to
                    ),
                );
            }
        }
    }
    if wanted.dscp.is_some_and(|dscp| dscp > 63) {
        problems.error(&path("dscp"), "must be from 0 to 63 (the TOS byte divided by 4)");
    }
    if wanted.port == Some(0) {
        problems.error(&path("port"), "must be from 1 to 65535");
    }
}

fn changes(plan: &Plan, settled: &Plan, problems: &mut Problems) {
    let end = spans(plan).last().map(|last| last.end).unwrap_or_default();
    let mut seen = BTreeMap::new();
    for (index, change) in plan.changes.iter().enumerate() {
        let number = index.to_string();
        let at = ["changes", &number, "at"];
        if change.at >= end && !plan.phases.is_empty() {
            problems
                .error(&at, format!("{} is not inside the trial, which ends at {end}", change.at));
        }
        if change.set.is_empty() {
            problems.error(
                &["changes", &number, "set"],
                "is empty; write it like `set = { \"links.bottleneck.rate\" = \"20mbit\" }`",
            );
        }
        for (key, rate) in &change.set {
            let path = ["changes", &number, "set", key];
            if rate.bits_per_sec() == 0 || *rate > MAX_RATE {
                problems.error(&path, format!("must be more than zero, and {MAX_RATE} or less"));
            }
            if let Some(earlier) = seen.insert((change.at, key), index) {
                problems.error(&path, format!("`changes.{earlier}` sets this at the same instant"));
            }
            if let Some(why) = refuse_change(settled, key, *rate) {
                problems.error(&path, why);
            }
        }
    }
}

/// Why this key cannot change to this rate in the course of a trial, if it cannot.
fn refuse_change(settled: &Plan, key: &str, rate: Rate) -> Option<String> {
    let link_name = key.strip_prefix("links.").and_then(|rest| rest.strip_suffix(".rate"));
    let names: Vec<&str> = settled.links.keys().map(String::as_str).collect();
    let Some(link_name) = link_name.filter(|name| names::refuse(name, usize::MAX).is_none()) else {
        return Some(format!(
            "only a link's rate can change during a trial: write `\"links.NAME.rate\"` (links: {})",
            list(&names)
        ));
    };
    let Some(link) = settled.links.get(link_name) else {
        return Some(format!("there is no link `{link_name}`{}", hint(link_name, &names, "links")));
    };
    if link.rate.is_none() {
        return Some(format!(
            "`links.{link_name}` has no rate to change; give it the one it begins with"
        ));
    }
    let sum: u64 =
        link.classes.values().fold(0, |sum, c| sum.saturating_add(c.rate.bits_per_sec()));
    (sum > rate.bits_per_sec()).then(|| {
        format!(
            "{rate} is less than the guaranteed rates of the link's classes, {}",
            Rate::from_bits_per_sec(sum)
        )
    })
}
