//! Follows each document like a reader from top to bottom, in a directory of its own: writes plans to their files and checks them, and
//! runs the marked commands. `documents.toml` lists what does not run as it is shown, and why.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

use ccbench_tests::s3::S3Server;
use ccbench_tests::skip::skip;
use ccbench_tests::snippets::{self, Snippet};
use ccbench_tests::{
    Bench, beside_others, binary, python, python_program, source_root, text,
    without_variables_of_users,
};

/// Marks of blocks with commands, and whether this build of the tests runs them.
const MARKS: [(&str, bool); 3] =
    [("run", true), ("netns", cfg!(feature = "netns")), ("lab", cfg!(feature = "lab"))];

/// Functions for all scripts.
const FUNCTIONS: &str = r#"
# Prints the newest file or directory whose path begins like this.
newest() { ls -dt -- "$1"* | sed -n 1p; }
# Runs a command. Exit code 4 (a claim does not hold) is no failure: shortened runs decide no claims.
claims() { "$@" || [ $? -eq 4 ]; }
# With the feature `netns`, the tests run as root.
sudo() { "$@"; }
# The first clang that compiles the BPF objects, as `has_clang` in scripts/setup.sh: `clang` alone may be too old.
clang() {
    local name version
    for name in ${CLANG:-clang clang-21 clang-20 clang-19 clang-18 clang-17 clang-16}; do
        version=$(command "$name" --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)\..*/\1/p' | head -n 1) || true
        if [ "${version:-0}" -ge 16 ]; then
            command "$name" "$@"
            return
        fi
    done
    echo "no clang of version 16 or newer" >&2
    return 127
}
"#;

/// How the commands of a document run: a table of `documents.toml`, which explains its keys.
#[derive(Debug, Default)]
struct Document {
    before: String,
    has_bucket: bool,
    /// Commands and reasons.
    only_parsed: Vec<[String; 2]>,
    /// What is shown, and what runs.
    instead: Vec<[String; 2]>,
}

impl Document {
    /// Returns the tables of `documents.toml`.
    fn all() -> BTreeMap<String, Self> {
        let text = std::fs::read_to_string(source_root().join("tests/docs/documents.toml"));
        let tables: toml::Table = text.unwrap().parse().unwrap();
        let read = |(name, table): (String, toml::Value)| {
            let document = Self::of(&name, table.try_into().unwrap());
            (name, document)
        };
        tables.into_iter().map(read).collect()
    }

    fn of(name: &str, table: toml::Table) -> Self {
        let mut document = Self::default();
        for (key, value) in table {
            match key.as_str() {
                "before" => document.before = value.try_into().unwrap(),
                "bucket" => document.has_bucket = value.try_into().unwrap(),
                "only_parsed" => document.only_parsed = value.try_into().unwrap(),
                "instead" => document.instead = value.try_into().unwrap(),
                key => panic!("tests/docs/documents.toml: {name}: unknown key {key}"),
            }
        }
        document
    }

    fn is_only_parsed(&self, command: &str) -> bool {
        self.only_parsed.iter().any(|[listed, _]| listed == first_line(command))
    }

    /// Returns what runs of a marked block. Adds the entries of the lists that it needs to `used`.
    fn script(&self, snippet: &Snippet, used: &mut BTreeSet<String>) -> String {
        let mut script = String::new();
        for command in commands(&snippet.text) {
            if snippet.language != "python" && self.is_only_parsed(&command) {
                used.insert(first_line(&command).to_owned());
            } else {
                script += &command;
            }
        }
        for [shown, runs] in &self.instead {
            if script.contains(shown) {
                used.insert(shown.clone());
                script = script.replace(shown, runs);
            }
        }
        script
    }
}

/// Splits a block into its lines, each with those that continue it.
fn commands(text: &str) -> Vec<String> {
    let (mut commands, mut continues) = (Vec::<String>::new(), false);
    for line in text.split_inclusive('\n') {
        match commands.last_mut() {
            Some(command) if continues => command.push_str(line),
            _ => commands.push(line.to_owned()),
        }
        continues = line.ends_with("\\\n");
    }
    commands
}

/// Returns the first line of a command without its comment.
fn first_line(command: &str) -> &str {
    let line = command.lines().next().unwrap_or_default();
    let line = line.split(" # ").next().unwrap_or_default();
    line.trim().trim_end_matches('\\').trim_end()
}

/// Replaces each path that ends with `…`, the rest of a name, by the path that `newest` returns for its beginning.
fn completed(text: &str, newest: impl Fn(&str) -> String) -> String {
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || "/._:-".contains(c);
    let (mut result, mut parts) = (String::new(), text.split('…').peekable());
    while let Some(part) = parts.next() {
        let start = part.trim_end_matches(is_of_path);
        let beginning = &part[start.len()..];
        result += start;
        match parts.peek() {
            None => result += beginning,
            Some(_) if beginning.is_empty() => result.push('…'),
            Some(_) => result += &newest(beginning),
        }
    }
    result
}

/// Returns whether this build runs a block.
fn is_enabled(snippet: &Snippet) -> bool {
    MARKS.iter().any(|(mark, is_enabled)| *is_enabled && has_mark(snippet, mark))
}

fn has_mark(snippet: &Snippet, mark: &str) -> bool {
    snippet.is("sh", mark) || mark == "run" && snippet.is("python", mark)
}

/// A reader of one document. The directory has `plans` and `notebooks` of the source tree.
struct Reader<'a> {
    document: &'a Document,
    bench: Bench,
    server: Option<S3Server>,
    /// The last Python block, with those that it continues.
    python: String,
}

impl<'a> Reader<'a> {
    /// Makes what the document needs. Without a server for its bucket, returns `None` and reports the test as skipped.
    fn new(name: &str, document: &'a Document) -> Option<Self> {
        let server = if document.has_bucket { Some(S3Server::start()?) } else { None };
        if let Some(server) = &server {
            server.create_bucket("bucket");
        }
        let reader = Self { document, bench: Bench::new(), server, python: String::new() };
        for folder in ["plans", "notebooks"] {
            let source = source_root().join(folder);
            std::os::unix::fs::symlink(source, reader.bench.path(folder)).unwrap();
        }
        reader.shell(&document.before, &format!("{name}: `before`"), false);
        Some(reader)
    }

    /// Does what a block asks for. Returns whether there was anything to do.
    fn follow(&mut self, snippet: &Snippet) -> bool {
        if let Some(file) = snippet.plan_file() {
            self.check(file, &snippet.text, snippet);
        } else if let Some(file) = snippet.appended_to() {
            let before = std::fs::read_to_string(self.bench.path(file)).unwrap();
            self.check(file, &format!("{before}\n{}", snippet.text), snippet);
        } else if !is_enabled(snippet) {
            return false;
        } else {
            let script = self.document.script(snippet, &mut BTreeSet::new());
            let needs_python = snippet.language == "python" || script.contains("python ");
            if needs_python && python().is_none() {
                skip(&format!("{}: run `scripts/setup.sh --test` first", snippet.place()));
                return false;
            }
            if snippet.language == "python" {
                self.python(&script, snippet);
            } else {
                let script = completed(&script, |beginning| format!("$(newest {beginning})"));
                self.shell(&script, &snippet.place(), snippet.is("sh", "lab"));
            }
        }
        true
    }

    fn check(&self, file: &str, plan: &str, snippet: &Snippet) {
        self.bench.write(file, plan);
        let checked = self.bench.run(&["check", file]);
        assert!(checked.status.success(), "{}: {}", snippet.place(), text(&checked));
    }

    fn shell(&self, script: &str, place: &str, is_lab: bool) {
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c"]).arg(format!("{FUNCTIONS}{script}"));
        if !is_lab {
            // The user's cache has the lab's kernels.
            bash.env("XDG_CACHE_HOME", self.bench.path("cache"));
        }
        self.run(&mut bash, place);
    }

    fn python(&mut self, script: &str, snippet: &Snippet) {
        let script = completed(script, |beginning| self.newest(beginning));
        if !snippet.is("python", "continued") {
            self.python.clear();
        }
        self.python += &script;
        let mut python = python().unwrap();
        python.env("PYTHONPATH", source_root().join("python")).arg("-c").arg(&self.python);
        self.run(&mut python, &snippet.place());
    }

    /// Returns the newest path that begins like this; of objects in a bucket, a pattern.
    fn newest(&self, beginning: &str) -> String {
        if beginning.starts_with("s3://") {
            return format!("{beginning}*");
        }
        let (folder, name) = beginning.rsplit_once('/').unwrap_or((".", beginning));
        let entries = std::fs::read_dir(self.bench.path(folder)).unwrap().map(Result::unwrap);
        let found = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(name));
        let newest = found.max_by_key(|entry| entry.metadata().unwrap().modified().unwrap());
        let newest = newest.unwrap_or_else(|| panic!("no path begins with {beginning}"));
        format!("{folder}/{}", newest.file_name().to_string_lossy())
    }

    fn run(&self, interpreter: &mut Command, place: &str) {
        let mut programs = vec![binary("ccbench").parent().unwrap().to_owned()];
        programs
            .extend(python_program("python").as_deref().and_then(Path::parent).map(Path::to_owned));
        let path = std::env::var_os("PATH").unwrap_or_default();
        programs.extend(std::env::split_paths(&path));
        without_variables_of_users(interpreter)
            .current_dir(self.bench.path("."))
            .env("PATH", std::env::join_paths(programs).unwrap())
            .env("CCBENCH_STATE", self.bench.path("state"))
            .env("SOURCE", source_root())
            .stdin(Stdio::null());
        if let Some(server) = &self.server {
            interpreter.envs(server.environment());
        }
        let output = interpreter.output().unwrap();
        assert!(output.status.success(), "{place}: {}", text(&output));
    }
}

/// Follows the documents whose names are chosen. Returns the number of blocks that were run or checked.
fn follow(is_chosen: impl Fn(&str) -> bool) -> usize {
    let _root = cfg!(feature = "netns").then(beside_others);
    let (documents, others) = (Document::all(), Document::default());
    let mut done = 0;
    for (name, snippets) in super::by_document() {
        let is_to_do = |s: &Snippet| is_enabled(s) || s.plan_file().is_some();
        if !is_chosen(&name) || !snippets.iter().any(is_to_do) {
            continue;
        }
        let document = documents.get(&name).unwrap_or(&others);
        let Some(mut reader) = Reader::new(&name, document) else { continue };
        done += snippets.iter().filter(|snippet| reader.follow(snippet)).count();
    }
    done
}

/// Pages for users of other tools. The tests follow the three groups of documents at the same time.
fn is_from_another_tool(document: &str) -> bool {
    document.starts_with("docs/from/")
}

fn is_about_results(document: &str) -> bool {
    ["docs/cluster.md", "docs/results.md", "docs/scorecard.md"].contains(&document)
}

#[test]
fn a_reader_from_another_tool_can_follow_each_document() {
    let done = follow(is_from_another_tool);
    assert!(done >= 14, "only {done} blocks");
}

#[test]
fn a_reader_can_follow_the_documents_about_results() {
    let done = follow(is_about_results);
    assert!(done >= 9, "only {done} blocks");
}

#[test]
fn a_reader_can_follow_each_other_document() {
    let done = follow(|document| !is_from_another_tool(document) && !is_about_results(document));
    assert!(done >= 36, "only {done} blocks");
}

/// Returns why the commands of a block might not run without anybody noticing. Adds the entries that it needs to `used`.
fn unlisted(snippet: &Snippet, document: &Document, used: &mut BTreeSet<String>) -> Option<String> {
    let is_command =
        |line: &str| line.starts_with("ccbench ") || line.starts_with("ccbench-agent ");
    match snippet.language.as_str() {
        // Commands that omit arguments cannot be parsed.
        "" if snippet.text.contains('…') || !snippet.text.lines().any(is_command) => return None,
        "" => {
            return Some("its commands need the language `sh`, so that they are parsed".to_owned());
        }
        "sh" | "bash" | "python" => {}
        _ => return None,
    }
    if MARKS.iter().any(|(mark, _)| has_mark(snippet, mark)) {
        let script = document.script(snippet, used);
        let runs = |line: &str| !line.trim().is_empty() && !line.trim().starts_with('#');
        let why = "no command is left to run: remove the mark, and list its first line";
        return (!script.lines().any(runs)).then(|| why.to_owned());
    }
    if snippet.language == "python" {
        return Some("mark it with `run`".to_owned());
    }
    let first = first_line(&snippet.text);
    used.insert(first.to_owned());
    (!document.is_only_parsed(first)).then(|| {
        format!("mark it (tests/src/snippets.rs), or list `{first}` in tests/docs/documents.toml with the reason")
    })
}

#[test]
fn every_command_runs_or_is_listed_with_a_reason() {
    let (documents, others) = (Document::all(), Document::default());
    let (mut marked, mut wrong, mut used) = (0, Vec::new(), BTreeMap::new());
    for snippet in snippets::all() {
        let document = documents.get(&snippet.document).unwrap_or(&others);
        let used = used.entry(snippet.document.clone()).or_default();
        if let Some(why) = unlisted(&snippet, document, used) {
            wrong.push(format!("{}: {why}", snippet.place()));
        }
        marked += usize::from(MARKS.iter().any(|(mark, _)| has_mark(&snippet, mark)));
    }
    for (name, document) in &documents {
        for [entry, _] in document.only_parsed.iter().chain(&document.instead) {
            if !used.get(name).is_some_and(|used| used.contains(entry)) {
                wrong.push(format!("tests/docs/documents.toml: {name}: no block has `{entry}`"));
            }
        }
        for [command, why] in &document.only_parsed {
            let named = why.split(' ').filter(|word| word.starts_with("tests/"));
            let mut missing = named.filter(|path| !source_root().join(path).exists());
            if why.is_empty() || missing.next().is_some() {
                wrong.push(format!("tests/docs/documents.toml: {name}: `{command}`: {why}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(marked >= 70, "only {marked} blocks run");
}

#[test]
fn commands_that_are_new_or_that_nobody_parses_are_found() {
    let table = "only_parsed = [[\"listed --a\", \"why\"]]\ninstead = [[\"x\", \"y\"]]\n";
    let document = Document::of("d.md", table.parse().unwrap());
    let found = |text: &str| {
        let mut used = BTreeSet::new();
        let block = snippets::of("d.md", text).remove(0);
        let is_unlisted = unlisted(&block, &document, &mut used).is_some();
        (is_unlisted, used.into_iter().collect::<Vec<_>>().join(","))
    };
    let listed =
        |text: &str, used: &str| assert_eq!(found(text), (false, used.to_owned()), "{text}");
    listed("```sh\nlisted --a   # b\nother\n```", "listed --a");
    listed("```sh run\nlisted --a \\\n  --b\nx\n```", "listed --a,x");
    listed("```sh netns\nother\n```", "");
    listed("```python run continued\nx\n```", "x");
    listed("```\nccbench-agent serve …\n```", "");
    listed("```\noutput\n```", "");
    let new =
        ["```sh\nother\nlisted --a\n```", "```bash\nother\n```", "```sh run\nlisted --a\n# b\n```"];
    for text in new.into_iter().chain([
        "```python\nx\n```",
        "```python lab\nx\n```",
        "```\nccbench run x\n```",
    ]) {
        assert!(found(text).0, "{text}");
    }
}

#[test]
fn documents_compile_with_the_first_clang_that_is_new_enough() {
    let bench = Bench::new();
    let install = |name: &str, version: u32| {
        bench.program(
            &format!("bin/{name}"),
            &format!("#!/bin/sh\necho {name} version {version}.0.6\n"),
        );
    };
    let used = || {
        let mut path = bench.path("bin").into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c"]).arg(format!("{FUNCTIONS}clang -c x.c"));
        let output = bash.env("PATH", path).env_remove("CLANG").output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    install("clang-21", 21);
    install("clang", 14);
    assert_eq!(used(), "clang-21 version 21.0.6\n");
    install("clang-21", 14);
    install("clang", 19);
    assert_eq!(used(), "clang version 19.0.6\n", "not the numbered one, which is older");
}

#[test]
fn ellipses_are_completed_and_continued_lines_stay_together() {
    let text = "a \"results/b-…/c\" f=d/…:\n… g … h";
    let found = completed(text, |beginning| format!("<{beginning}>"));
    assert_eq!(found, "a \"<results/b->/c\" f=<d/>:\n… g … h");
    assert_eq!(commands("a \\\n  b\nc # d\n"), ["a \\\n  b\n", "c # d\n"]);
    assert_eq!(first_line("  sed '1i #:s' f \\\n b"), "sed '1i #:s' f");
    assert_eq!(first_line("c   # d"), "c");
}
