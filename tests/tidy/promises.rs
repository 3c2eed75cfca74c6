//! Checks that the tests that docs/reliability.md names for each promise exist.

use super::files;

/// Number of promises in the document.
const PROMISES: usize = 14;

/// Returns the names of functions in backticks: words with an underscore that consist of lower-case letters, digits and underscores.
fn functions(line: &str) -> impl Iterator<Item = &str> {
    let is_function = |word: &&str| {
        let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        word.contains('_') && word.chars().all(is_part)
    };
    line.split('`').skip(1).step_by(2).filter(is_function)
}

#[test]
fn every_promise_has_tests_that_exist() {
    let documents = files(&["docs/reliability.md"]);
    let sources = files(&[".rs"]);
    let (_, document) = &documents[0];
    let mut missing = Vec::new();
    for number in 1..=PROMISES {
        let row = document.lines().find(|line| line.starts_with(&format!("| P{number} |")));
        let row = row.unwrap_or_else(|| panic!("P{number} is not in docs/reliability.md"));
        // The columns are promise, tests and command. `not_run` is a reason of the promise.
        let tests = row.split('|').nth(3).unwrap_or_default();
        assert!(functions(tests).next().is_some(), "P{number} has no test");
        for name in functions(tests) {
            let defined = format!("fn {name}(");
            if !sources.iter().any(|(_, text)| text.contains(&defined)) {
                missing.push(format!("P{number}: {name}"));
            }
        }
    }
    assert!(missing.is_empty(), "no such test:\n{}", missing.join("\n"));
}

#[test]
fn names_of_functions_are_found() {
    let line = "`a_b`, `make soak`, c_d, `Path`, `e_1`";
    assert_eq!(functions(line).collect::<Vec<_>>(), ["a_b", "e_1"]);
}
