//! `[[expect]]`: claims must refer to existing factors, phases, subjects and metrics.

use std::collections::BTreeMap;

use toml::Value;

use crate::metric;
use crate::plan::expect::{Expect, Reference, levels};
use crate::plan::parse::suggest::hint;
use crate::plan::{Factor, Plan};

use super::matrix;
use super::problems::Problems;

/// Longest text of a claim, in characters, because tables print it.
const MAX_TEXT: usize = 200;

pub(super) fn check(plan: &Plan, problems: &mut Problems) {
    for (index, expect) in plan.expect.iter().enumerate() {
        let number = index.to_string();
        texts(&number, expect, problems);
        if expect.skip.is_some() {
            continue;
        }
        places(plan, &["expect", &number, "where"], &expect.at, true, problems);
        warn_if_renamed(&["expect", &number, "metric"], expect.metric.as_deref(), problems);
        for (key, reference) in [("over", &expect.over), ("minus", &expect.minus)] {
            if let Some(Reference::Number(other)) = reference {
                let place = ["expect", &number, key, "metric"];
                warn_if_renamed(&place, other.metric.as_deref(), problems);
                places(plan, &["expect", &number, key, "where"], &other.at, false, problems);
            }
        }
        // The numbers depend on names that could not be read.
        let reads: [&[&str]; 5] =
            [&["expect", &number], &["phases"], &["flows"], &["probes"], &["links"]];
        for (key, why) in expect.faults_or_claim(plan).err().unwrap_or_default() {
            let place = [&["expect", &number][..], &key[..]].concat();
            problems.error_from(&place, &reads, why);
        }
    }
}

/// Warns about a deprecated metric name.
pub(super) fn warn_if_renamed(place: &[&str], name: Option<&str>, problems: &mut Problems) {
    if let Some((old, new)) = name.and_then(|name| Some((name, metric::replacement(name)?))) {
        let why = format!("`{old}` is deprecated; use `{new}`");
        problems.warning_from(place, &[place], why);
    }
}

fn texts(number: &str, expect: &Expect, problems: &mut Problems) {
    let texts = [
        ("claim", Some(&expect.claim)),
        ("source", expect.source.as_ref()),
        ("published", expect.published.as_ref()),
        ("skip", expect.skip.as_ref()),
    ];
    for (key, text) in texts {
        let Some(text) = text else { continue };
        let path = ["expect", number, key];
        if text.trim().is_empty() {
            problems.error(&path, "is empty; write a sentence");
        } else if text.chars().count() > MAX_TEXT {
            problems.error(
                &path,
                format!("is longer than {MAX_TEXT} characters; shorten it to fit into a table"),
            );
        } else if text.chars().any(char::is_control) {
            problems.error(&path, "holds a line break or a control character; write one line");
        }
    }
}

/// Checks that factors and levels exist. `many`: a factor may have a list of levels.
pub(super) fn places(
    plan: &Plan,
    path: &[&str],
    at: &BTreeMap<String, Value>,
    many: bool,
    problems: &mut Problems,
) {
    for (factor, value) in at {
        let place = [path, &[factor.as_str()]].concat();
        let reads: [&[&str]; 2] = [&place, &["matrix"]];
        let Some(known) = plan.matrix.get(factor) else {
            let names: Vec<&str> = plan.matrix.keys().map(String::as_str).collect();
            let why =
                format!("the matrix has no factor `{factor}`{}", hint(factor, &names, "factors"));
            problems.error_from(&place, &reads, why);
            continue;
        };
        if !many && value.is_array() {
            problems.error_from(&place, &reads, "is a list; name one level");
            continue;
        }
        if value.as_array().is_some_and(Vec::is_empty) {
            let why = "is an empty list, which selects no point; name a level, or leave it out";
            problems.error_from(&place, &reads, why);
            continue;
        }
        let known = names(factor, known);
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        for level in levels(value) {
            if !known.contains(&level.as_str()) {
                let why =
                    format!("the factor has no level `{level}`{}", hint(&level, &known, "levels"));
                problems.error_from(&place, &reads, why);
            }
        }
    }
}

fn names(factor: &str, levels: &Factor) -> Vec<String> {
    matrix::levels(factor, levels).into_iter().map(|level| level.name).collect()
}
