//! Checks the links of the documents. On GitHub they are paths in the source tree; in the book (scripts/docs.sh) they are paths of its
//! pages.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ccbench_tests::links::{pages, resolved, targets};
use ccbench_tests::source_root;

/// Returns the anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut found, mut counts, mut is_code) = (BTreeSet::new(), BTreeMap::new(), false);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        let Some(heading) = line.starts_with('#').then(|| line.trim_start_matches('#').trim())
        else {
            continue;
        };
        if is_code {
            continue;
        }
        let anchor: String = heading
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let count = counts.entry(anchor.clone()).and_modify(|count| *count += 1).or_insert(0);
        found.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
    }
    found
}

/// Returns what scripts/docs.sh copies beside the pages.
fn copied() -> Vec<String> {
    let script = std::fs::read_to_string(source_root().join("scripts/docs.sh")).unwrap();
    let list = script.lines().find_map(|line| line.strip_prefix("copied=(")).unwrap();
    list.trim_end_matches(')').split_whitespace().map(str::to_owned).collect()
}

#[test]
fn every_document_is_in_the_book() {
    let pages = pages();
    for document in ccbench_tests::snippets::documents() {
        assert!(document == "docs/SUMMARY.md" || pages.contains(&document), "{document}");
    }
    let unique: BTreeSet<&String> = pages.iter().collect();
    assert_eq!(unique.len(), pages.len(), "a page is there twice");
}

#[test]
fn links_work_in_the_source_tree_and_in_the_book() {
    let (pages, copied) = (pages(), copied());
    let read = |page: &String| std::fs::read_to_string(source_root().join(page)).unwrap();
    let texts: BTreeMap<&String, String> = pages.iter().map(|page| (page, read(page))).collect();
    let (mut links, mut wrong) = (0, Vec::new());
    for (page, text) in &texts {
        for target in targets(text) {
            links += 1;
            let path = resolved(page, &target);
            let in_book = texts.contains_key(&path)
                || !path.ends_with(".md")
                    && copied.iter().any(|entry| Path::new(&path).starts_with(entry));
            if !source_root().join(&path).is_file() {
                wrong.push(format!("{page}: {target} is no file of the source tree"));
            } else if !in_book {
                wrong.push(format!("{page}: {target} is neither in docs/SUMMARY.md nor copied"));
            } else if let Some((_, anchor)) = target.split_once('#')
                && !texts.get(&path).is_some_and(|text| anchors(text).contains(anchor))
            {
                wrong.push(format!("{page}: {target}: no such heading"));
            }
        }
    }
    assert!(links > 150, "only {links} links");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn sections_that_errors_name_exist() {
    let pages = pages();
    let (mut sections, mut wrong) = (0, Vec::new());
    for section in ccbench::sections() {
        sections += 1;
        let (page, anchor) = section.split_once('#').unwrap_or((section, ""));
        let text = std::fs::read_to_string(source_root().join(page)).unwrap_or_default();
        let is_there = anchor.is_empty() || anchors(&text).contains(anchor);
        if !pages.iter().any(|known| known == page) || !is_there {
            wrong.push(section);
        }
    }
    assert!(sections > 40 && wrong.is_empty(), "of {sections} sections: {wrong:?}");
}

#[test]
fn anchors_are_those_of_github() {
    let text = "# A `b`: c_d -- E!\n```\n# code\n```\n## Twice\n## Twice\n";
    let expected = ["a-b-c_d----e", "twice", "twice-1"].map(str::to_owned);
    assert_eq!(anchors(text), expected.into());
}
