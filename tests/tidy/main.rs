//! Tests the style guide: dependencies, imports, lengths, `unsafe`, clocks, shells, and paths and figures in documents.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use ccbench_tests::source_root;

mod clones;
mod former_names;
mod imports;
mod promises;

const MAX_FILE_LINES: usize = 600;
const MAX_FUNCTION_LINES: usize = 70;

/// Returns the repository's files with their text: tracked ones, and new ones that are not ignored. Excludes binary files.
fn files(endings: &[&str]) -> Vec<(String, String)> {
    let output = Command::new("git")
        // In a container, the clone may belong to another user.
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .args(["--cached", "--others", "--exclude-standard"])
        .current_dir(source_root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).unwrap();
    let names = names.split_terminator('\0');
    let wanted = names
        .filter(|name| endings.is_empty() || endings.iter().any(|ending| name.ends_with(ending)));
    let read = |name: &str| {
        // A file may be deleted without the deletion being committed yet.
        let bytes = std::fs::read(source_root().join(name)).ok()?;
        Some((name.to_owned(), String::from_utf8(bytes).ok()?))
    };
    let found: Vec<(String, String)> = wanted.filter_map(read).collect();
    assert!(!found.is_empty(), "no files {endings:?}");
    found
}

/// Returns lines of code with their numbers, without comments.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

#[test]
fn crates_depend_only_downwards() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(source_root())
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("ccbench-proto", &[] as &[&str]),
        ("ccbench-io", &["ccbench-proto"]),
        ("ccbench-shaper", &["ccbench-proto"]),
        ("ccbench-collector", &["ccbench-proto"]),
        ("ccbench-agent", &["ccbench-proto", "ccbench-io", "ccbench-shaper", "ccbench-collector"]),
        ("ccbench-results", &["ccbench-proto", "ccbench-io"]),
        ("ccbench-simulator", &["ccbench-proto", "ccbench-shaper"]),
        ("ccbench-store", &["ccbench-io"]),
        (
            "ccbench",
            &[
                "ccbench-proto",
                "ccbench-io",
                "ccbench-results",
                "ccbench-simulator",
                "ccbench-store",
            ],
        ),
        // Test support, which every crate's tests may use.
        ("ccbench-tests", &["ccbench-proto"]),
        (
            "ccbench-fuzz",
            &[
                "ccbench-proto",
                "ccbench-shaper",
                "ccbench-collector",
                "ccbench-io",
                "ccbench-agent",
                "ccbench-results",
                "ccbench-simulator",
            ],
        ),
    ]);
    // Who may use a library outside of tests.
    let users: [(&str, &[&str]); 6] = [
        ("object_store", &["ccbench-store"]),
        ("polars", &["ccbench-results"]),
        ("polars-io", &["ccbench-results"]),
        ("tonic", &["ccbench-proto", "ccbench-agent", "ccbench"]),
        ("tokio", &["ccbench-agent", "ccbench-results", "ccbench-store", "ccbench"]),
        ("netlink-sys", &["ccbench-shaper", "ccbench-collector", "ccbench-agent"]),
    ];
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let allowed = allowed.get(name).unwrap_or_else(|| panic!("{name} is not listed here"));
        for dependency in package["dependencies"].as_array().unwrap() {
            let of_tests = dependency["kind"] == "dev";
            let dependency = dependency["name"].as_str().unwrap();
            if dependency.starts_with("ccbench") {
                let may = allowed.contains(&dependency)
                    || of_tests && (dependency == "ccbench-tests" || name == "ccbench-tests");
                assert!(may, "{name} must not depend on {dependency}");
            }
            for (library, users) in users {
                let may = of_tests || dependency != library || users.contains(&name);
                assert!(may, "{name} must not use {library}; only {users:?} may");
            }
        }
    }
}

/// Returns whether a trimmed line begins a function: `fn` after a visibility and any of `const`, `async`, `unsafe`, `extern "C"`.
fn begins_function(line: &str) -> bool {
    let mut rest = line;
    loop {
        if rest.starts_with("fn ") {
            return true;
        }
        let (word, after) = match rest.split_once(' ') {
            Some((word, after)) => (word, after),
            None => return false,
        };
        rest = match word {
            "pub" | "default" | "const" | "async" | "unsafe" | "extern" => after,
            _ if word.starts_with("pub(") => match rest.split_once(") ") {
                Some((_, after)) => after,
                None => return false,
            },
            // An ABI.
            _ if word.starts_with('"') => after,
            _ => return false,
        };
    }
}

/// Returns the first and last line of every function with a body of several lines. rustfmt ends a function with a brace at the indentation
/// with which it began.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        if !begins_function(line.trim_start()) {
            continue;
        }
        // A declaration ends with a semicolon. A function on one line, or with an empty body, ends with a brace.
        let signature = lines[start..].iter().find(|line| line.ends_with(['{', ';', '}']));
        if !signature.is_some_and(|line| line.ends_with('{')) {
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let closes = |line: &&str| line.trim() == "}" && line.len() == indent + 1;
        let length = lines[start..].iter().position(closes);
        found.push((start + 1, start + 1 + length.unwrap_or(0)));
    }
    found
}

#[test]
fn functions_of_every_form_are_measured() {
    let text = "pub(super) async fn a() {\n    x();\n}\n\nimpl B {\n    pub(in crate::b) unsafe extern \"C\" fn b(\n        \
                c: u8,\n    ) -> u8 {\n        c\n    }\n\n    fn c(&self);\n    const fn d() {}\n}\n";
    assert_eq!(functions(text), [(1, 3), (6, 10)]);
    assert!(!begins_function("let fn_name = 1;") && !begins_function("pub struct A {"));
}

/// Files that may be longer: the schema of all rows and messages, which has one owner. Each message is short.
const LONG_FILES: [&str; 1] = ["proto/ccbench/v1/agent.proto"];

/// Returns whether a file's length is limited: sources, plans and configuration, and scripts without an ending.
fn is_measured(name: &str, text: &str) -> bool {
    let endings = [".rs", ".c", ".h", ".sh", ".py", ".js", ".css", ".proto", ".toml", ".config"];
    let base = name.rsplit('/').next().unwrap_or(name);
    let script = !base.trim_start_matches('.').contains('.') && text.starts_with("#!");
    script || base == "Makefile" || endings.iter().any(|ending| name.ends_with(ending))
}

#[test]
fn files_and_functions_are_short() {
    let mut long = Vec::new();
    for (name, text) in files(&[]).iter().filter(|(name, text)| is_measured(name, text)) {
        let lines = text.lines().count();
        if lines > MAX_FILE_LINES && !LONG_FILES.contains(&name.as_str()) {
            long.push(format!("{name}: {lines} lines (at most {MAX_FILE_LINES})"));
        }
        let functions = if name.ends_with(".rs") { functions(text) } else { Vec::new() };
        for (first, last) in functions {
            let lines = last - first + 1;
            if lines > MAX_FUNCTION_LINES {
                long.push(format!("{name}:{first}: {lines} lines (at most {MAX_FUNCTION_LINES})"));
            }
        }
    }
    assert!(long.is_empty(), "too long:\n{}", long.join("\n"));
}

/// Files that may contain unsafe code.
const UNSAFE: [&str; 2] =
    ["crates/shaper/src/sys.rs", "crates/simulator/src/congestion_control.rs"];

#[test]
fn unsafe_code_stays_in_its_files() {
    let marks = [concat!("unsafe", " {"), concat!("unsafe", " fn"), concat!("unsafe", " impl")];
    let used: BTreeSet<String> = files(&[".rs"])
        .into_iter()
        .filter(|(_, text)| {
            code(text).any(|(_, line)| marks.iter().any(|mark| line.contains(mark)))
        })
        .map(|(name, _)| name)
        .filter(|name| name != "tests/tidy/main.rs")
        .collect();
    assert_eq!(used, UNSAFE.map(str::to_owned).into(), "the files with unsafe code");
}

#[test]
fn crates_without_unsafe_code_forbid_it() {
    let roots = files(&["src/lib.rs", "src/main.rs"]);
    let has_unsafe = |name: &str| UNSAFE.iter().any(|file| file.starts_with(dir_of(name)));
    for (name, text) in roots.iter().filter(|(name, _)| !has_unsafe(name)) {
        assert!(text.contains("#![forbid(unsafe_code)]"), "{name} does not forbid unsafe code");
    }
}

fn dir_of(name: &str) -> &str {
    Path::new(name).parent().and_then(Path::to_str).unwrap()
}

#[test]
fn nothing_names_a_path_of_a_developers_machine() {
    let places = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/tmp/tar", "get")];
    for (name, text) in files(&[]) {
        for place in places {
            assert!(!text.contains(place), "{name} names {place}");
        }
    }
}

/// Measurements that a document announces have to be in it before a release.
#[test]
fn no_document_lacks_a_figure() {
    let marker = concat!("TODO-", "FIGURE");
    let mut found = Vec::new();
    for (name, text) in files(&[]) {
        let lines = text.lines().zip(1..).filter(|(line, _)| line.contains(marker));
        found.extend(lines.map(|(_, number)| format!("{name}:{number}")));
    }
    assert!(found.is_empty(), "fill in the figures marked {marker}:\n{}", found.join("\n"));
}

/// Files that name a shell: the console of the lab's guest, `ccbench-agent link --outside`, the lab's build, and the list of tools in the
/// guest's initramfs.
const SHELLS: [&str; 4] = [
    "crates/agent/src/guest/machine.rs",
    "crates/agent/src/link/shell.rs",
    "crates/cli/src/lab/kernel.rs",
    "crates/cli/src/lab/userland.rs",
];

/// Returns the code of every file outside of tests and examples.
fn programs() -> Vec<(String, String)> {
    let mut programs = files(&[".rs"]);
    programs.retain(|(name, _)| {
        let tests = name.starts_with("tests/") || name.contains("/tests/");
        !tests && !name.contains("/examples/") && !name.ends_with("/tests.rs")
    });
    for (_, text) in &mut programs {
        text.truncate(text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len()));
    }
    programs
}

#[test]
fn only_listed_files_name_shells() {
    let shells = ["\"sh\"", "\"bash\"", "\"/bin/sh\"", "\"/bin/bash\""];
    let named: BTreeSet<String> = programs()
        .into_iter()
        .filter(|(_, text)| {
            code(text).any(|(_, line)| shells.iter().any(|shell| line.contains(shell)))
        })
        .map(|(name, _)| name)
        .collect();
    assert_eq!(named, SHELLS.map(str::to_owned).into(), "the files that name a shell");
}

/// clippy.toml bans reading a clock and starting a program. Only clock.rs may allow the former; whatever allows the latter names the
/// program.
#[test]
fn only_clock_rs_reads_clocks() {
    let lint = concat!("disallowed", "_methods");
    let mut allowed = Vec::new();
    for (name, text) in programs().iter().filter(|(name, _)| !name.ends_with("/clock.rs")) {
        let lines = code(text).filter(|(_, line)| line.contains(lint));
        let others = lines.filter(|(_, line)| {
            !line.contains("reason = \"starts ") && !line.contains("reason = \"a test starts ")
        });
        allowed.extend(others.map(|(nth, line)| format!("{name}:{nth}: {}", line.trim())));
    }
    assert!(allowed.is_empty(), "only clock.rs may read clocks:\n{}", allowed.join("\n"));
}

#[test]
fn programs_print_through_their_console() {
    let mut found = Vec::new();
    for (name, text) in files(&[".rs"]) {
        let ours = ["crates/cli/src/", "crates/agent/src/"].iter().any(|dir| name.starts_with(dir));
        if !ours || name.ends_with("/tests.rs") || name.contains("/tests/") {
            continue;
        }
        let program = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let prints = |line: &str| line.contains("println!(") || line.contains("eprint!(");
        let lines = code(program).filter(|(_, line)| prints(line));
        found.extend(lines.map(|(nth, line)| format!("{name}:{nth}: {}", line.trim())));
    }
    assert!(found.is_empty(), "use console.rs, which escapes:\n{}", found.join("\n"));
}

#[test]
fn skipped_tests_are_counted() {
    let mut found = Vec::new();
    for (name, text) in files(&[".rs"]) {
        // The function that counts them, and this test.
        if name == "tests/src/skip.rs" || name == "tests/tidy/main.rs" {
            continue;
        }
        let lines = code(&text).filter(|(_, line)| line.contains("println!(\"skip"));
        found.extend(lines.map(|(nth, line)| format!("{name}:{nth}: {}", line.trim())));
    }
    assert!(found.is_empty(), "use ccbench_tests::skip::skip:\n{}", found.join("\n"));
}

/// Returns whether a word in backticks is a path of the repository: it contains a slash or has a source file's ending. Absolute paths,
/// commands and expressions are not.
fn is_path(word: &str) -> bool {
    let endings = [".rs", ".md", ".toml", ".proto", ".json", ".py", ".sh", ".c", ".h"];
    let ours = |c: char| c.is_ascii_alphanumeric() || "_-./*".contains(c);
    !word.starts_with('/')
        && word.chars().all(ours)
        && (word.contains('/') || endings.iter().any(|ending| word.ends_with(ending)))
}

/// Returns whether consecutive components of `file` match `path`, in which a component may contain one `*`. A path that begins with a
/// directory at the root must match from there; others may omit the first directories.
fn names_file(path: &str, file: &str, roots: &BTreeSet<&str>) -> bool {
    let wanted: Vec<&str> = path.trim_end_matches('/').split('/').collect();
    let components: Vec<&str> = file.split('/').collect();
    let matches = |pattern: &str, name: &str| match pattern.split_once('*') {
        Some((start, end)) => name.starts_with(start) && name.ends_with(end),
        None => name == pattern,
    };
    let limit = if roots.contains(wanted[0]) { 1 } else { usize::MAX };
    let mut windows = components.windows(wanted.len()).take(limit);
    windows.any(|window| wanted.iter().zip(window).all(|(pattern, name)| matches(pattern, name)))
}

/// Two screens.
#[test]
fn the_architecture_is_a_short_map() {
    let text = std::fs::read_to_string(source_root().join("ARCHITECTURE.md")).unwrap();
    let (lines, columns) =
        (text.lines().count(), text.lines().map(|line| line.chars().count()).max().unwrap());
    assert!(
        lines <= 100,
        "ARCHITECTURE.md has {lines} lines (at most 100); move details to docs/design.md"
    );
    assert!(columns <= 130, "ARCHITECTURE.md has a line of {columns} columns (at most 130)");
}

#[test]
fn paths_in_the_developers_documents_exist() {
    let all = files(&[]);
    let names: BTreeSet<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    let roots =
        names.iter().filter_map(|name| name.split_once('/')).map(|(root, _)| root).collect();
    let (mut checked, mut missing) = (0, Vec::new());
    for (document, text) in &all {
        if !["CONTRIBUTING.md", "ARCHITECTURE.md", "docs/design.md"].contains(&document.as_str()) {
            continue;
        }
        // Every second part of a line is between backticks.
        let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
        for word in quoted.filter(|word| is_path(word)) {
            // NAME stands for the name of what is added.
            let path = word.replace("NAME", "*");
            checked += 1;
            if !names.iter().any(|name| names_file(&path, name, &roots)) {
                missing.push(format!("{document}: {word}"));
            }
        }
    }
    assert!(checked > 50, "only {checked} paths found");
    assert!(missing.is_empty(), "no such file or directory:\n{}", missing.join("\n"));
}
