//! Code blocks of the documents, which tests run, check or parse.
//!
//! The words after a block's language say what a test does with it:
//!
//! - `toml plan=FILE`: a whole plan, which must be valid. Later blocks find it as `FILE`.
//! - `toml append=FILE`: what a reader adds to the end of such a file, which must then be valid.
//! - `toml alternatives`: lines that replace each other. Any other `toml` block is a fragment of a plan.
//! - `sh run`: commands that run in this order, in one directory per document. `sh netns` needs the tests' feature `netns` and root,
//!   `sh lab` the feature `lab`.
//! - `python run`: the same for Python with the reader. With `continued`, it uses names of the Python block before it.
//!
//! Commands of any other `sh` block are only parsed. `tests/docs/documents.toml` lists them with the reasons.

use std::path::Path;

use crate::source_root;

/// A code block of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snippet {
    /// Path of the document in the source tree.
    pub document: String,
    /// The line of its opening fence.
    pub line: usize,
    /// The first word after the fence; may be empty.
    pub language: String,
    /// The other words.
    pub marks: Vec<String>,
    /// What is between the fences.
    pub text: String,
}

impl Snippet {
    /// Returns where it is, for messages.
    pub fn place(&self) -> String {
        format!("{}:{}", self.document, self.line)
    }

    /// Returns whether it has this language and this mark.
    pub fn is(&self, language: &str, mark: &str) -> bool {
        self.language == language && self.marks.iter().any(|found| found == mark)
    }

    /// Returns the file of a whole plan.
    pub fn plan_file(&self) -> Option<&str> {
        self.marks.iter().find_map(|mark| mark.strip_prefix("plan="))
    }

    /// Returns the file of a plan to whose end it is added.
    pub fn appended_to(&self) -> Option<&str> {
        self.marks.iter().find_map(|mark| mark.strip_prefix("append="))
    }
}

/// Returns the documents for users: README.md, and everything below docs.
///
/// # Panics
/// Panics if a directory cannot be read.
pub fn documents() -> Vec<String> {
    let mut found = vec!["README.md".to_owned()];
    collect(&source_root(), "docs", &mut found);
    found.sort();
    found
}

#[expect(clippy::unwrap_used, reason = "a test may panic")]
fn collect(root: &Path, folder: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(root.join(folder)).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.file_type().unwrap().is_dir() {
            collect(root, &name, found);
        } else if name.ends_with(".md") {
            found.push(name);
        }
    }
}

/// Returns the code blocks of all documents.
///
/// # Panics
/// Panics if a document cannot be read or a block has no end.
#[expect(clippy::unwrap_used, reason = "a test may panic")]
pub fn all() -> Vec<Snippet> {
    let read = |name: String| {
        let text = std::fs::read_to_string(source_root().join(&name)).unwrap();
        of(&name, &text)
    };
    documents().into_iter().flat_map(read).collect()
}

/// Returns the code blocks of a document.
///
/// # Panics
/// Panics if a block has no end.
pub fn of(document: &str, text: &str) -> Vec<Snippet> {
    let (mut found, mut open) = (Vec::new(), None::<Snippet>);
    for (nth, line) in text.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        open = match (open, fence) {
            (None, None) => None,
            (None, Some(info)) => {
                let mut words = info.split_whitespace().map(str::to_owned);
                let language = words.next().unwrap_or_default();
                let (document, line) = (document.to_owned(), nth + 1);
                Some(Snippet {
                    document,
                    line,
                    language,
                    marks: words.collect(),
                    text: String::new(),
                })
            }
            (Some(snippet), Some(_)) => {
                found.push(snippet);
                None
            }
            (Some(mut snippet), None) => {
                snippet.text += line;
                snippet.text.push('\n');
                Some(snippet)
            }
        };
    }
    let unclosed = open.as_ref().map(Snippet::place).unwrap_or_default();
    assert!(open.is_none(), "{unclosed}: the block has no end");
    found
}

/// Returns the commands of a shell block as words, without comments, redirections, assignments and sudo.
///
/// # Panics
/// Panics if quotes are not balanced.
pub fn commands(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for line in text.replace("\\\n", " ").lines() {
        let words = shlex::split(line).unwrap_or_else(|| panic!("unbalanced quotes: {line}"));
        for part in words.split(|word| ["&&", "||", "|", ";"].contains(&word.as_str())) {
            let is_prefix = |word: &&String| *word == "sudo" || is_assignment(word);
            let is_redirection =
                |word: &&String| word.starts_with(['>', '<']) || word.starts_with("2>");
            let command = part.iter().skip_while(is_prefix);
            let command: Vec<String> =
                command.take_while(|word| !is_redirection(word)).cloned().collect();
            if !command.is_empty() {
                found.push(command);
            }
        }
    }
    found
}

fn is_assignment(word: &str) -> bool {
    let is_name =
        |name: &str| !name.is_empty() && name.chars().all(|c| c == '_' || c.is_ascii_uppercase());
    word.split_once('=').is_some_and(|(name, _)| is_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_language_marks_and_line() {
        let text =
            "a\n```toml plan=p.toml\nname = 1\n```\n\n- b\n  ```sh run\n  x\n  ```\n```\ny\n```\n";
        let found = of("d.md", text);
        let shown: Vec<(usize, &str, Option<&str>, &str)> = found
            .iter()
            .map(|s| (s.line, s.language.as_str(), s.plan_file(), s.text.as_str()))
            .collect();
        let wanted = [
            (2, "toml", Some("p.toml"), "name = 1\n"),
            (7, "sh", None, "  x\n"),
            (10, "", None, "y\n"),
        ];
        assert_eq!(shown, wanted);
        assert!(found[1].is("sh", "run") && !found[0].is("sh", "run"));
    }

    #[test]
    fn commands_are_words_without_what_the_shell_takes() {
        let text = "sudo A_B=1 ccbench run 'a b' \\\n  --sim > out   # comment\nx && ccbench check p 2>/dev/null | y\n";
        let words: Vec<String> = commands(text).iter().map(|command| command.join(",")).collect();
        assert_eq!(words, ["ccbench,run,a b,--sim", "x", "ccbench,check,p", "y"]);
    }
}
