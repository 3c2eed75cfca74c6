//! Links of the documents.

use std::path::{Component, Path};

use crate::source_root;

/// Returns the pages of the book in the order of docs/SUMMARY.md, as paths in the source tree.
///
/// # Panics
/// Panics if docs/SUMMARY.md cannot be read.
#[expect(clippy::unwrap_used, reason = "a test may panic")]
pub fn pages() -> Vec<String> {
    let summary = std::fs::read_to_string(source_root().join("docs/SUMMARY.md")).unwrap();
    targets(&summary).into_iter().map(|target| resolved("docs/SUMMARY.md", &target)).collect()
}

/// Returns the targets of Markdown links outside of code.
pub fn targets(text: &str) -> Vec<String> {
    let (mut found, mut is_code) = (Vec::new(), false);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        let parts = line.split("](").skip(1).filter(|_| !is_code);
        let target = |part: &str| Some(part.split_once(')')?.0.to_owned());
        found.extend(parts.filter_map(target));
    }
    found.retain(|target| !target.contains("://") && !target.starts_with("mailto:"));
    found
}

/// Returns the path of a link's target without its anchor, relative to the same root as the document's path.
pub fn resolved(document: &str, target: &str) -> String {
    let path = target.split('#').next().unwrap_or_default();
    if path.is_empty() {
        return document.to_owned();
    }
    let mut parts: Vec<String> = Vec::new();
    let folder = Path::new(document).parent().unwrap_or(Path::new(""));
    for part in folder.join(path).components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            Component::CurDir => {}
            part => parts.push(part.as_os_str().to_string_lossy().into_owned()),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_outside_of_code_and_resolved_from_their_document() {
        assert_eq!(resolved("docs/from/a.md", "../plan.md#x"), "docs/plan.md");
        assert_eq!(resolved("docs/a.md", "../README.md"), "README.md");
        assert_eq!(resolved("docs/a.md", "#x"), "docs/a.md");
        assert_eq!(targets("[a](b.md#c) `x`\n```\n[d](e)\n```\n[f](https://g)"), ["b.md#c"]);
    }
}
