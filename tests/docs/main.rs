//! Tests the documents: their plans are valid, their commands run or parse, and their links lead somewhere on GitHub and in the book.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use ccbench_proto::plan::check;
use ccbench_tests::skip::skip;
use ccbench_tests::snippets::{self, Snippet};
use ccbench_tests::{Bench, binary, python, source_root, text, without_variables_of_users};

mod links;

/// Documents with no command to run: their commands need other machines, the lab or root, or take long.
const ONLY_PARSED: [&str; 12] = [
    "README.md",
    "docs/benchmarks.md",
    "docs/cluster.md",
    "docs/conformance.md",
    "docs/congestion-controls.md",
    "docs/link.md",
    "docs/plan.md",
    "docs/reproductions.md",
    "docs/results.md",
    "docs/scorecard.md",
    "docs/testbeds.md",
    "docs/traces.md",
];

fn by_document() -> BTreeMap<String, Vec<Snippet>> {
    let mut documents = BTreeMap::<String, Vec<Snippet>>::new();
    for snippet in snippets::all() {
        documents.entry(snippet.document.clone()).or_default().push(snippet);
    }
    documents
}

/// Follows a document like a reader from top to bottom: writes plans to their files and checks them, and runs marked commands. `plans` is
/// the directory in the source tree; `…` in the name of a results directory is a pattern.
fn go_through(snippets: &[Snippet], bench: &Bench) -> usize {
    std::os::unix::fs::symlink(source_root().join("plans"), bench.path("plans")).unwrap();
    let mut done = 0;
    for snippet in snippets {
        if let Some(file) = snippet.plan_file().or(snippet.appended_to()) {
            let before = match snippet.appended_to() {
                Some(_) => std::fs::read_to_string(bench.path(file)).unwrap(),
                None => String::new(),
            };
            bench.write(file, &format!("{before}\n{}", snippet.text));
            let checked = bench.run(&["check", file]);
            assert!(checked.status.success(), "{}: {}", snippet.place(), text(&checked));
        } else if snippet.is("sh", "run") {
            run(Command::new("bash").args(["-euo", "pipefail", "-c"]), snippet, bench);
        } else if snippet.is("python", "run") {
            let Some(mut python) = python() else {
                skip(&format!("{}: run `scripts/setup.sh --test` first", snippet.place()));
                continue;
            };
            python.env("PYTHONPATH", source_root().join("python")).arg("-c");
            run(&mut python, snippet, bench);
        } else {
            continue;
        }
        done += 1;
    }
    done
}

fn run(interpreter: &mut Command, snippet: &Snippet, bench: &Bench) {
    let programs = binary("ccbench").parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(programs).chain(std::env::split_paths(&path)));
    let output = without_variables_of_users(interpreter)
        .arg(snippet.text.replace('…', "*"))
        .current_dir(bench.path("."))
        .env("PATH", path.unwrap())
        .env("CCBENCH_STATE", bench.path("state"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}: {}", snippet.place(), text(&output));
}

/// Follows the documents whose names are chosen.
fn follow(is_chosen: impl Fn(&str) -> bool) -> usize {
    let documents = by_document().into_iter().filter(|(document, _)| is_chosen(document));
    documents.map(|(_, snippets)| go_through(&snippets, &Bench::new())).sum()
}

/// Returns whether it is a page for users of other tools. These pages and all other documents are followed at the same time.
fn is_from_another_tool(document: &str) -> bool {
    document.starts_with("docs/from/")
}

#[test]
fn a_reader_from_another_tool_can_follow_each_document() {
    let done = follow(is_from_another_tool);
    assert!(done >= 12, "only {done} blocks");
}

#[test]
fn a_reader_can_follow_each_document() {
    let done = follow(|document| !is_from_another_tool(document));
    assert!(done >= 13, "only {done} blocks");
}

#[test]
fn commands_of_most_documents_run() {
    let mut parsed = BTreeSet::new();
    for (document, snippets) in by_document() {
        let has_run = snippets.iter().any(|snippet| snippet.is("sh", "run"));
        if !has_run && snippets.iter().any(|snippet| snippet.language == "sh") {
            parsed.insert(document);
        }
    }
    assert_eq!(parsed, ONLY_PARSED.map(str::to_owned).into(), "documents of which nothing runs");
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
