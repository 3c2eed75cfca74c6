//! Checks links: their interfaces, their keys, and their classes.

use std::collections::BTreeMap;

use crate::plan::parse::set::join_key;
use crate::plan::parse::suggest::hint;
use crate::plan::{Class, Link, Plan, Shaper};
use crate::resolve::{builtin_paths, drain_rate};
use crate::topology::Topology;
use crate::units::Rate;

use super::limits::{
    AGENTS, MAX_CLASSES, MAX_DELAY, MAX_PRIORITY, MAX_RATE, is_ours, known_flow, known_node,
};
use super::problems::Problems;
use super::{impair, queues, traces};

/// Checks the links of a plan. `normalized` is the plan with its presets merged.
pub(super) fn check(
    (plan, normalized): (&Plan, &Plan),
    topology: &Topology,
    problems: &mut Problems,
) {
    let mut egresses: BTreeMap<(String, String), &str> = BTreeMap::new();
    for (name, written) in &plan.links {
        preset(plan, name, written, problems);
        if let Some(egress) = place(plan, topology, name, written, problems)
            && let Some(other) = egresses.insert(egress.clone(), name)
        {
            let places = [name.as_str(), other]
                .map(|link| ["node", "toward", "dev"].map(|key| ["links", link, key]));
            let mut reads: Vec<&[&str]> =
                places.iter().flatten().map(<[&str; 3]>::as_slice).collect();
            reads.extend([&["wires"], AGENTS]);
            problems.error_from(
                &["links", name],
                &reads,
                format!(
                    "shapes {} of `{}`, as `links.{other}` already does; combine them into one link",
                    egress.1, egress.0
                ),
            );
        }
        // `normalize` keeps the names.
        let Some(link) = normalized.links.get(name) else { continue };
        let from = Sources::new(name, written);
        characteristics(&from, link, problems);
        impair::check(name, written, link, problems);
        traces::check(plan, name, written, problems);
        classes(plan, &from, link, problems);
    }
    for (name, preset) in &plan.path {
        if let Some(queue) = &preset.queue {
            let rate: &[&str] = &["path", name, "rate"];
            queues::check(&["path", name, "queue"], queue, (preset.rate, &[rate]), problems);
        }
    }
}

/// The places where the characteristics of a link may be written.
pub(super) struct Sources<'p> {
    pub(super) name: &'p str,
    preset: Option<&'p str>,
}

impl<'p> Sources<'p> {
    pub(super) fn new(name: &'p str, link: &'p Link) -> Self {
        Self { name, preset: link.path.as_deref() }
    }

    /// The places that determine one characteristic.
    fn reads(&self, key: &'p str) -> Vec<Vec<&'p str>> {
        let own = [vec!["links", self.name, key], vec!["links", self.name, "path"]];
        own.into_iter().chain(self.preset.map(|preset| vec!["path", preset, key])).collect()
    }

    /// Whether one of these characteristics is written at a place that could not be read.
    pub(super) fn is_unread(&self, keys: &[&'p str], problems: &Problems) -> bool {
        let mut reads = keys.iter().flat_map(|key| self.reads(key));
        reads.any(|read| problems.is_unread(&[&read]))
    }
}

/// Reports a preset that does not exist.
fn preset(plan: &Plan, name: &str, link: &Link, problems: &mut Problems) {
    let Some(path) = &link.path else { return };
    let builtin = builtin_paths();
    if plan.path.contains_key(path) || builtin.contains_key(path) {
        return;
    }
    let own = plan.path.keys();
    let others = builtin.keys().filter(|name| !plan.path.contains_key(*name));
    let known: Vec<&str> = own.chain(others).map(String::as_str).collect();
    problems.error_from(
        &["links", name, "path"],
        &[&["path", path]],
        format!(
            "there is no preset `{path}`{}",
            hint(path, &known, "[path] tables and built-in ones")
        ),
    );
    problems.mark_uncertain(&["links", name, "path"]);
}

/// Checks the place of a link; the result identifies links on the same interface.
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
            let why = "has both `toward` and `dev`; keep the one that you mean";
            problems.error_from(&["links", name], &[], why);
            None
        }
        (None, None) => {
            problems.error_from(
                &["links", name],
                &[&["links", name, "toward"], &["links", name, "dev"]],
                "names no interface; write `toward = \"dst\"` (the one that the route to this node leaves by) or `dev = \"eth1\"`",
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
    if !is_ours(plan, &link.node) {
        let because = format!("`links.{name}` is found by the route to it");
        needs_address(plan, toward, &because, problems);
        return Some((link.node.clone(), format!("the interface toward `{toward}`")));
    }
    let dev = topology.egress(&link.node, toward);
    if dev.is_none() {
        unreachable(plan, &path, (&link.node, toward), problems);
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
    known_dev((plan, topology), ["links", name], (&link.node, dev), problems)
        .then(|| (link.node.clone(), format!("the interface `{dev}`")))
}

/// Whether a node may have the interface that `dev` of this table names; otherwise reports the problem.
pub(super) fn known_dev(
    (plan, topology): (&Plan, &Topology),
    [table, name]: [&str; 2],
    (node, dev): (&str, &str),
    problems: &mut Problems,
) -> bool {
    let path = [table, name, "dev"];
    if let Some(why) = refuse_dev(dev) {
        problems.error(&path, why);
        return false;
    }
    if !is_ours(plan, node) {
        return true;
    }
    let interfaces = topology.nodes.get(node).map(|node| node.interfaces.as_slice());
    let devs: Vec<&str> =
        interfaces.unwrap_or_default().iter().map(|interface| interface.dev.as_str()).collect();
    let is_known = devs.contains(&dev);
    if !is_known {
        problems.error_from(
            &path,
            &[&["wires"], AGENTS, &[table, name, "node"]],
            format!("`{node}` has no interface `{dev}`{}", hint(dev, &devs, "interfaces")),
        );
    }
    is_known
}

/// Reports a node to which no wire of another node leads.
pub(super) fn unreachable(
    plan: &Plan,
    path: &[&str],
    (node, toward): (&str, &str),
    problems: &mut Problems,
) {
    if !plan.wires.is_empty() {
        problems.error_from(
            path,
            &[&["wires"], AGENTS],
            format!("`{node}` has no wire that leads to `{toward}`; join them under [wires]"),
        );
    }
}

/// Reports a node that ccbench does not create and that has no address, although it is a destination of traffic or of a route
/// lookup.
pub(super) fn needs_address(plan: &Plan, node: &str, because: &str, problems: &mut Problems) {
    let Some(found) = plan.nodes.get(node) else { return };
    if found.agent.is_none() || found.address.is_some() {
        return;
    }
    let missing = "is missing: ";
    let place = join_key(&["nodes", node, "address"]);
    if problems.found.iter().any(|p| p.path == place && p.reason.starts_with(missing)) {
        return;
    }
    problems.error_from(
        &["nodes", node, "address"],
        &[&["nodes", node, "agent"]],
        format!("{missing}{because}; write its address in the experiment's network, like `address = \"10.0.1.1\"`"),
    );
}

/// Why this is not a valid device name; `None` if it is.
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

fn characteristics(from: &Sources<'_>, link: &Link, problems: &mut Problems) {
    let name = from.name;
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
        problems.error(
            &["links", name, "loss"],
            "is 100%: no packet would get through; write less, like \"1%\"",
        );
    }
    // A trace that has not been read may have the rate.
    let rate_unread = from.is_unread(&["rate", "trace"], problems)
        || (link.trace.is_some() && !traces::is_known(link, problems));
    if drain_rate(link).is_none() && !rate_unread {
        let lacks = traces::lacks_rate(link, problems);
        if link.queue.is_some() {
            let lacks = lacks.as_deref().unwrap_or("add `rate`, or leave the queue out");
            let why = format!("needs a rate at which it drains; {lacks}");
            problems.error_from(&["links", name, "queue"], &[], why);
        }
        if !link.classes.is_empty() {
            let lacks = lacks.as_deref().unwrap_or("it has none; add `rate` to the link");
            let why = format!("share the link's rate, and {lacks}");
            problems.error_from(&["links", name, "classes"], &[], why);
        }
        if does_nothing(link) && !from.is_unread(&["delay", "loss"], problems) {
            let why = "does nothing; give it a rate, a delay or a loss, or leave it out";
            problems.warning_from(&["links", name], &[], why);
        }
    }
    if let Some(queue) = &link.queue {
        let reads = from.reads("rate");
        let reads: Vec<&[&str]> = reads.iter().map(Vec::as_slice).collect();
        // A missing rate has been reported above.
        let rate = drain_rate(link).unwrap_or(MAX_RATE);
        queues::check(&["links", name, "queue"], queue, (Some(rate), &reads), problems);
        queues::check_backend(&["links", name, "queue"], link.backend, queue, problems);
    }
}

/// Whether the link has only keys without effect.
fn does_nothing(link: &Link) -> bool {
    let Link { node, toward, dev, path, queue, classes, reorder, .. } = link.clone();
    let Link { backend, shaper, overhead, allow_control_interface, .. } = *link;
    let place = Link { node, toward, dev, path, ..Link::default() };
    *link
        == Link {
            queue,
            classes,
            reorder,
            backend,
            shaper,
            overhead,
            allow_control_interface,
            ..place
        }
}

fn classes(plan: &Plan, from: &Sources<'_>, link: &Link, problems: &mut Problems) {
    let name = from.name;
    if link.classes.is_empty() {
        return;
    }
    if link.classes.len() > MAX_CLASSES {
        problems.error_from(
            &["links", name, "classes"],
            &[],
            format!("there are {}; {MAX_CLASSES} are allowed", link.classes.len()),
        );
    }
    if link.shaper == Shaper::Tbf {
        problems.error(
            &["links", name, "shaper"],
            "\"tbf\" has no classes; leave `shaper` out (HTB), or leave out the classes",
        );
    }
    let link_rate = link.rate.filter(|_| !from.is_unread(&["rate"], problems));
    for (class_name, class) in &link.classes {
        let at = ["links", name, "classes", class_name];
        class_rates(&at, class, link_rate, problems);
        if class.priority.is_some_and(|priority| priority > MAX_PRIORITY) {
            let why = format!("must be from 0 (served first) to {MAX_PRIORITY}");
            problems.error(&[&at[..], &["priority"]].concat(), why);
        }
        if let Some(queue) = &class.queue {
            let rate: &[&str] = &["links", name, "classes", class_name, "rate"];
            let place = [&at[..], &["queue"]].concat();
            queues::check(&place, queue, (Some(class.rate), &[rate]), problems);
            queues::check_backend(&place, link.backend, queue, problems);
        }
        class_match(plan, &at, class, problems);
    }
    let sum: u64 =
        link.classes.values().fold(0, |sum, c| sum.saturating_add(c.rate.bits_per_sec()));
    if let Some(rate) = link_rate
        && sum > rate.bits_per_sec()
    {
        problems.error_from(
            &["links", name, "classes"],
            &[&["links", name, "classes", "*", "rate"]],
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
        let why = format!(
            "{ceil} is below the class's guaranteed rate of {}; raise it, or leave it out",
            class.rate
        );
        problems.error_from(&path, &[&[at, &["rate"]].concat()], why);
    }
    if let Some(rate) = link_rate
        && ceil > rate
    {
        problems.error(
            &path,
            format!("{ceil} is above the link's rate of {rate}, so the class could never reach it; lower it, or leave it out"),
        );
    }
}

fn class_match(plan: &Plan, at: &[&str], class: &Class, problems: &mut Problems) {
    let wanted = &class.matches;
    let path = |key: &'static str| [at, &["match", key]].concat();
    if *wanted == crate::plan::Match::default() {
        problems.error(
            &[at, &["match"]].concat(),
            "is empty; say which packets belong to the class: `to`, `from`, `flow`, `dscp`, `ecn` or `port`",
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
                problems.error_from(
                    &path(key),
                    &[&["flows", flow, "from"], &["flows", flow, "to"]],
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
