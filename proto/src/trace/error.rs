//! Errors of reading traces, with their lines.

use std::fmt;

use super::Format;

/// Maximum number of problems of one file that are reported.
const MAX_PROBLEMS: usize = 20;

/// Why a trace was refused. Its text names the file, the lines and what is wrong with each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceError {
    /// The file's name as it was given.
    pub name: String,
    /// The format it was read as; `None` if unknown.
    pub format: Option<Format>,
    /// Problems in the order of lines; at least one, at most twenty.
    pub problems: Vec<TraceProblem>,
    /// Problems beyond those.
    pub more: usize,
}

/// A problem of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceProblem {
    /// The line, from 1; 0 if it is about the whole file.
    pub line: u32,
    /// The problem and its fix.
    pub message: String,
}

impl TraceError {
    /// A single problem.
    pub(super) fn one(name: &str, format: Option<Format>, line: u32, message: String) -> Self {
        let problems = vec![TraceProblem { line, message }];
        Self { name: name.to_owned(), format, problems, more: 0 }
    }
}

/// Collects the problems of one file.
#[derive(Debug, Default)]
pub(super) struct Problems {
    problems: Vec<TraceProblem>,
    more: usize,
}

impl Problems {
    /// Adds a problem.
    pub(super) fn push(&mut self, line: u32, message: String) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(TraceProblem { line, message });
        } else {
            self.more += 1;
        }
    }

    /// Whether there is no problem.
    pub(super) fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// All of them as one error.
    pub(super) fn refuse(self, name: &str, format: Format) -> TraceError {
        let Self { problems, more } = self;
        TraceError { name: name.to_owned(), format: Some(format), problems, more }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, TraceProblem { line, message }) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            if *line > 0 {
                write!(f, "line {line}: ")?;
            }
            f.write_str(message)?;
        }
        if self.more > 0 {
            write!(f, "; and {} more", self.more)?;
        }
        match self.format {
            Some(format) => write!(f, " (read as {format})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for TraceError {}
