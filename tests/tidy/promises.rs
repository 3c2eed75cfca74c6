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

/// Returns whether a source defines a test with this name.
fn has_test(source: &str, name: &str) -> bool {
    source.match_indices(&format!("fn {name}(")).any(|(at, _)| {
        let lines = source[..at].split('\n').rev().skip(1).map(str::trim);
        let mut above = lines.take_while(|line| !line.is_empty());
        above.any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
    })
}

#[test]
fn every_promise_has_tests_that_exist() {
    let documents = files(&["docs/reliability.md"]);
    let sources = files(&[".rs"]);
    let (_, document) = &documents[0];
    let is_row = |line: &&str| {
        line.strip_prefix("| P").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    assert_eq!(document.lines().filter(is_row).count(), PROMISES, "change the number here");
    let mut missing = Vec::new();
    for number in 1..=PROMISES {
        let row = document.lines().find(|line| line.starts_with(&format!("| P{number} |")));
        let row = row.unwrap_or_else(|| panic!("P{number} is not in docs/reliability.md"));
        // The columns are promise, tests and command. `not_run` is a reason of the promise.
        let tests = row.split('|').nth(3).unwrap_or_default();
        assert!(functions(tests).next().is_some(), "P{number} has no test");
        for name in functions(tests) {
            if !sources.iter().any(|(_, text)| has_test(text, name)) {
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

#[test]
fn helpers_are_no_tests() {
    let source = "    #[tokio::test]\n    #[ignore]\n    async fn one() {}\n\n    fn other() {}\n";
    assert!(has_test(source, "one") && !has_test(source, "other"));
}
