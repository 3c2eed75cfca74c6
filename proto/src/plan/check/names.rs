//! Names that authors choose: they become result values, directory names and arguments of commands.

use super::super::Plan;
use super::problems::Problems;

/// Longest name of a node, link, flow group, phase, probe, class, wire, preset or factor.
pub(super) const MAX_NAME: usize = 32;
/// Longest name of a plan, which is a part of a directory's name.
const MAX_PLAN_NAME: usize = 64;
/// Longest description of a plan (`about`), in characters.
const MAX_ABOUT: usize = 500;

/// Why this is not a valid name; `None` if it is.
pub(super) fn refuse(name: &str, max: usize) -> Option<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() {
        Some("the name is empty".to_owned())
    } else if name.len() > max {
        Some(format!("the name is {} characters long; {max} are allowed", name.len()))
    } else if let Some(bad) = name.chars().find(|c| !good(*c)) {
        Some(format!("a name may hold letters, digits, `-` and `_`, not `{}`", bad.escape_debug()))
    } else if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        Some("a name begins with a letter or a digit".to_owned())
    } else {
        None
    }
}

/// Reports an invalid name.
pub(super) fn name(path: &[&str], name: &str, problems: &mut Problems) {
    if let Some(why) = refuse(name, MAX_NAME) {
        problems.error_from(path, &[], why);
    }
}

pub(super) fn check(plan: &Plan, problems: &mut Problems) {
    if let Some(why) = refuse(&plan.name, MAX_PLAN_NAME) {
        problems
            .error(&["name"], format!("{why}; it becomes a part of the results directory's name"));
    }
    if let Some(about) = &plan.about {
        if about.chars().count() > MAX_ABOUT {
            problems.error(
                &["about"],
                format!("is longer than {MAX_ABOUT} characters; one sentence is enough"),
            );
        }
        if about.chars().any(char::is_control) {
            problems.error(&["about"], "holds a line break or a control character; write one line");
        }
    }
    let tables: [(&str, Vec<&String>); 7] = [
        ("nodes", plan.nodes.keys().collect()),
        ("wires", plan.wires.keys().collect()),
        ("path", plan.path.keys().collect()),
        ("links", plan.links.keys().collect()),
        ("flows", plan.flows.keys().collect()),
        ("probes", plan.probes.keys().collect()),
        ("capture", plan.capture.keys().collect()),
    ];
    for (table, keys) in tables {
        for key in keys {
            name(&[table, key], key, problems);
        }
    }
    for (link_name, link) in &plan.links {
        for class in link.classes.keys() {
            name(&["links", link_name, "classes", class], class, problems);
        }
    }
    for (index, phase) in plan.phases.iter().enumerate() {
        name(&["phases", &index.to_string(), "name"], &phase.name, problems);
    }
}
