//! Tests that a value that cannot be read is reported once, without follow-on errors.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::*;

/// The place of each scalar value of a plan, and its dotted key.
fn leaves(text: &str) -> Vec<(String, Range<usize>)> {
    fn walk(
        way: &str,
        value: &toml::Spanned<DeValue<'_>>,
        found: &mut Vec<(String, Range<usize>)>,
    ) {
        match value.get_ref() {
            DeValue::Table(table) => {
                for (key, value) in table {
                    walk(&format!("{way}.{}", key.get_ref()), value, found);
                }
            }
            DeValue::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    walk(&format!("{way}.{index}"), item, found);
                }
            }
            _ => found.push((way.to_owned(), value.span())),
        }
    }
    let mut found = Vec::new();
    for (key, value) in DeTable::parse(text).unwrap().into_inner() {
        walk(key.get_ref(), &value, &mut found);
    }
    found
}

/// Each value that cannot be read is one problem, on its line, and no rule reports follow-on errors.
#[test]
fn unreadable_values_have_no_consequences() {
    let mut spurious = Vec::new();
    let mut tried = 0;
    let mut files = tomls("tests/plans/valid");
    files.extend(tomls("plans"));
    files.extend(tomls("plans/coexistence"));
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let usual: Vec<String> =
            read(&text, &[]).unwrap().1.iter().map(|p| p.reason.clone()).collect();
        let mut leaves = leaves(&text);
        leaves.sort_by_key(|(_, span)| span.start);
        let alone = leaves.chunks(1);
        for chosen in alone.chain(leaves.windows(2)).chain(leaves.chunks(5)) {
            let mut wrong = text.clone();
            for (_, span) in chosen.iter().rev() {
                wrong.replace_range(span.clone(), "1979-05-27");
            }
            let line = |at: usize| u32::try_from(text[..at].matches('\n').count() + 1).ok();
            let lines: Vec<_> = chosen.iter().map(|(_, span)| line(span.start)).collect();
            tried += 1;
            let problems = read(&wrong, &[]).err().unwrap_or_default();
            let (errors, warnings): (Vec<_>, Vec<_>) =
                problems.into_iter().partition(|p| p.severity == Severity::Error);
            let right = errors.iter().all(|e| lines.contains(&e.line))
                && (1..=chosen.len()).contains(&errors.len())
                && warnings.iter().all(|w| usual.contains(&w.reason));
            if !right {
                let keys: Vec<&str> = chosen.iter().map(|(key, _)| key.as_str()).collect();
                let all = print(&errors) + &print(&warnings);
                spurious.push(format!("{} {keys:?} at {lines:?}:\n{all}", stem(&file)));
            }
        }
    }
    assert!(tried > 600, "only {tried} plans");
    assert!(spurious.is_empty(), "{}", spurious.join("\n"));
}

/// A misspelt key has no follow-on errors, either.
#[test]
fn misspelt_key_causes_no_follow_on_errors() {
    let mut spurious = Vec::new();
    let mut refused = 0;
    for file in tomls("tests/plans/valid") {
        let text = std::fs::read_to_string(&file).unwrap();
        let usual: Vec<String> =
            read(&text, &[]).unwrap().1.iter().map(|p| p.reason.clone()).collect();
        for word in [
            "rate", "delay", "toward", "node", "queue", "from", "to", "count", "cc", "start",
            "flows", "length", "measure", "agent", "address", "path", "dev", "classes", "loss",
            "limit", "at", "set", "every", "repeat", "wires", "links", "nodes",
        ] {
            for (at, _) in text.match_indices(word) {
                let alone = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                let (before, after) = (&text[..at], &text[at + word.len()..]);
                let is_key = after.trim_start().starts_with('=')
                    || before.ends_with('[') && after.starts_with(']');
                if alone(before.chars().next_back()) || alone(after.chars().next()) || !is_key {
                    continue;
                }
                let names = before.lines().next_back().unwrap_or_default();
                if names.contains(['#', '"']) {
                    continue;
                }
                let singular = word.strip_suffix('s').unwrap_or("zz");
                for typo in [format!("{word}x"), "zzzzzz".to_owned(), singular.to_owned()] {
                    let wrong = format!("{before}{typo}{after}");
                    let Err(problems) = read(&wrong, &[]) else { continue };
                    refused += 1;
                    let errors = problems.iter().filter(|p| p.severity == Severity::Error).count();
                    let news = problems
                        .iter()
                        .any(|p| p.severity == Severity::Warning && !usual.contains(&p.reason));
                    let missing =
                        problems.iter().filter(|p| p.reason.starts_with("is missing")).count();
                    if errors - missing != 1 || missing > 1 || news {
                        let all = print(&problems);
                        spurious.push(format!("{} {word} as {typo}:\n{all}", stem(&file)));
                    }
                }
            }
        }
    }
    assert!(refused > 200, "only {refused} plans were refused");
    assert!(spurious.is_empty(), "{}", spurious.join("\n"));
}
