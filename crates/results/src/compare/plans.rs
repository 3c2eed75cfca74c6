//! Differences between the plans of two runs.

use ccbench_io::input;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use toml::Value;

/// Maximum number of keys that the note lists.
const MAX_KEYS: usize = 5;
/// Keys that do not change what a trial measures: name, expectations, comparisons, matrix and the `[quick]` overrides.
const IGNORED: [&str; 5] = ["name", "expect.", "compare.", "matrix.", "quick."];

/// Returns a note on the keys that differ between the resolved plans of two runs; `None` if none differs or a plan is missing.
pub fn plans_differ(a: &Path, b: &Path) -> Option<String> {
    let read =
        |run: &Path| input::read_to_string(&run.join("plan.resolved.toml"), &input::RECORD).ok();
    note(&read(a)?, &read(b)?)
}

fn note(a: &str, b: &str) -> Option<String> {
    let (a, b) = (keys(a)?, keys(b)?);
    let all: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let relevant = |key: &&String| !IGNORED.iter().any(|prefix| key.starts_with(prefix));
    let differ: Vec<String> = all
        .into_iter()
        .filter(relevant)
        .filter(|key| a.get(*key) != b.get(*key))
        .map(|key| {
            let of = |keys: &BTreeMap<String, String>| {
                keys.get(key).map_or_else(|| "missing".to_owned(), Clone::clone)
            };
            format!("{key} ({} and {})", of(&a), of(&b))
        })
        .collect();
    let more = differ.len().saturating_sub(MAX_KEYS);
    let more = if more > 0 { format!(" and {more} more keys") } else { String::new() };
    let first = differ.iter().take(MAX_KEYS).cloned().collect::<Vec<_>>().join(", ");
    (!differ.is_empty()).then(|| format!("note: the plans differ in {first}{more}\n"))
}

/// Returns every key of a plan with its value. Indices in an array of tables count from 0.
fn keys(text: &str) -> Option<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let mut left: Vec<(String, Value)> = vec![(String::new(), Value::Table(text.parse().ok()?))];
    while let Some((place, value)) = left.pop() {
        let below =
            |key: &str| if place.is_empty() { key.to_owned() } else { format!("{place}.{key}") };
        match value {
            Value::Table(table) => {
                left.extend(table.into_iter().map(|(key, value)| (below(&key), value)));
            }
            Value::Array(values) if values.iter().any(Value::is_table) => {
                left.extend(
                    values
                        .into_iter()
                        .zip(0..)
                        .map(|(value, nth)| (below(&format!("{nth}")), value)),
                );
            }
            value => {
                found.insert(place, value.to_string());
            }
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = "name = \"a\"\nseed = 1\n\n[flows.one]\ncc = \"bbr\"\n\n[[phases]]\nname = \"p\"\nlength = \"6s\"\n\n\
                        [[phases]]\nname = \"q\"\nlength = \"6s\"\n\n[phases.more]\nx = 1\n";

    #[test]
    fn lists_differing_keys_with_both_values() {
        assert_eq!(note(PLAN, &PLAN.replace("\"a\"", "\"b\"")), None, "the name is ignored");
        let other = PLAN.replace("cc = \"bbr\"\n", "");
        let other = other.replace("\"q\"\nlength = \"6s\"", "\"q\"\nlength = \"3s\"");
        let wanted = "note: the plans differ in flows.one.cc (\"bbr\" and missing), \
                      phases.1.length (\"6s\" and \"3s\")\n";
        assert_eq!(note(PLAN, &other).as_deref(), Some(wanted));
        assert!(keys(PLAN).unwrap().contains_key("phases.1.more.x"));
    }
}
