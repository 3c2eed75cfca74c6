//! Tests the documents: their plans are valid, their commands run or parse, and their links lead somewhere on GitHub and in the book.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use ccbench_proto::plan::check;
use ccbench_tests::snippets::{self, Snippet};
use ccbench_tests::source_root;

mod follow;
mod links;

fn by_document() -> BTreeMap<String, Vec<Snippet>> {
    let mut documents = BTreeMap::<String, Vec<Snippet>>::new();
    for snippet in snippets::all() {
        documents.entry(snippet.document.clone()).or_default().push(snippet);
    }
    documents
}

/// The plan in README.md must be the quickstart without its comments.
#[test]
fn the_readme_shows_the_quickstart() {
    let documents = by_document();
    let shown = documents["README.md"].iter().find(|s| s.plan_file().is_some()).unwrap();
    let shipped = std::fs::read_to_string(source_root().join("plans/quickstart.toml")).unwrap();
    let parsed = |text: &str| {
        let mut plan: toml::Table = text.parse().unwrap();
        for key in ["about", "gap", "seed"] {
            plan.remove(key);
        }
        plan
    };
    assert_eq!(parsed(&shown.text), parsed(&shipped));
}

/// A fragment is not a whole plan, so keys are missing. But it must not have keys that plans do not have.
#[test]
fn fragments_of_plans_have_only_known_keys() {
    const UNKNOWN: &str = "is not a key of";
    let unknown = check::read("[links.shown]\nrait = \"1mbit\"\n", &[]).unwrap_err();
    assert!(unknown.iter().any(|problem| problem.to_string().contains(UNKNOWN)), "{unknown:?}");
    let mut fragments = 0;
    for snippet in snippets::all() {
        if snippet.language != "toml" || snippet.plan_file().is_some() {
            continue;
        }
        let texts: Vec<&str> = match snippet.is("toml", "alternatives") {
            true => snippet.text.lines().collect(),
            false => vec![&snippet.text],
        };
        for text in texts {
            let table: toml::Table =
                text.parse().unwrap_or_else(|error| panic!("{}: {error}", snippet.place()));
            let whole = table.contains_key("name") && table.contains_key("phases");
            assert!(!whole, "{}: mark it with plan=FILE, so that it is checked", snippet.place());
            fragments += 1;
            // Keys of a single link are shown without its table.
            let of_link = table.keys().any(|key| LINK_KEYS.contains(&key.as_str()));
            let text = if of_link { format!("[links.shown]\n{text}") } else { text.to_owned() };
            for problem in check::read(&text, &[]).err().unwrap_or_default() {
                let problem = problem.to_string();
                assert!(!problem.contains(UNKNOWN), "{}: {problem}", snippet.place());
            }
        }
    }
    assert!(fragments >= 15, "only {fragments} fragments");
}

/// Link keys in fragments that have no table.
const LINK_KEYS: [&str; 2] = ["jitter", "policer"];
