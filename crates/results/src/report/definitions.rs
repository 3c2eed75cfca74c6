//! Definitions of the metrics in the report, taken from the list in docs/results.md so that the wording is the same.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use ccbench_proto::metric::{METRICS, Scope};

use super::escape_html;

const MANUAL: &str = include_str!("../../../../docs/results.md");

/// Returns the list as HTML. A metric has the id `definition-NAME` where it is first named, and `definition-NAME-SCOPE` where the list
/// defines it for another scope.
pub(super) fn html() -> String {
    let mut ids = BTreeSet::new();
    let mut html = "<ul class=\"definitions\">\n".to_owned();
    for item in items() {
        // Writing to a String cannot fail.
        let _ = writeln!(html, "<li>{}</li>", item_html(&item, &mut ids));
    }
    html + "</ul>"
}

/// Returns the items of the list of metrics, each as one line of Markdown.
fn items() -> Vec<String> {
    let summaries = MANUAL.split_once("\n## Summaries\n").map_or("", |(_, section)| section);
    let mut items: Vec<String> = Vec::new();
    let mut is_item = false;
    for line in summaries.lines().take_while(|line| !line.starts_with('#')) {
        if let Some(first) = line.strip_prefix("- ") {
            items.push(first.to_owned());
            is_item = true;
        } else if let (true, Some(more), Some(item)) =
            (is_item, line.strip_prefix("  "), items.last_mut())
        {
            item.push(' ');
            item.push_str(more);
        } else {
            is_item = false;
        }
    }
    items
}

/// Converts an item to HTML: bold, code, and links to other sites. Links within the documents become plain text.
fn item_html(item: &str, ids: &mut BTreeSet<String>) -> String {
    let mut html = String::new();
    let mut rest = item;
    while let Some(at) = rest.find(['*', '`', '[']) {
        html += &escape_html(&rest[..at]);
        rest = mark_html(&rest[at..], &mut html, ids);
    }
    html + &escape_html(rest)
}

/// Converts the mark at the beginning of the text and what it encloses, or a single character if it encloses nothing. Returns the rest.
fn mark_html<'a>(text: &'a str, html: &mut String, ids: &mut BTreeSet<String>) -> &'a str {
    if let Some((name, rest)) = between(text, "**", "**") {
        let id = definition_id(name, rest, ids).map(|id| format!(" id=\"{id}\""));
        *html += &format!("<strong{}>{}</strong>", id.unwrap_or_default(), escape_html(name));
        return rest;
    }
    if let Some((code, rest)) = between(text, "`", "`") {
        *html += &format!("<code>{}</code>", escape_html(code));
        return rest;
    }
    if let Some((label, rest)) = between(text, "[", "](")
        && let Some((target, rest)) = rest.split_once(')')
    {
        *html += &match target.starts_with("https://") {
            true => format!("<a href=\"{}\">{}</a>", escape_html(target), escape_html(label)),
            false => escape_html(label),
        };
        return rest;
    }
    let (character, rest) = text.split_at(1);
    html.push_str(character);
    rest
}

/// Splits off the part of a text between a mark at its beginning and the next closing one.
fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<(&'a str, &'a str)> {
    text.strip_prefix(open)?.split_once(close)
}

/// Returns the id of a bold name that is a metric, unless an earlier one is its definition.
fn definition_id(name: &str, rest: &str, ids: &mut BTreeSet<String>) -> Option<String> {
    let metric = METRICS.iter().find(|metric| metric.name == name)?;
    let id = format!("definition-{}", metric.name);
    if ids.insert(id.clone()) {
        return Some(id);
    }
    let scopes = [Scope::Group, Scope::Flow, Scope::Probe, Scope::Link].map(Scope::as_str);
    let scope = scopes.into_iter().find(|scope| rest.starts_with(&format!(" of a {scope}")))?;
    let id = format!("{id}-{scope}");
    ids.insert(id.clone()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_a_definition() {
        let html = html();
        for metric in METRICS {
            let id = format!("<strong id=\"definition-{}\">", metric.name);
            assert_eq!(html.matches(&id).count(), 1, "docs/results.md lacks **{}**", metric.name);
        }
        assert!(
            html.contains(
                "<strong id=\"definition-throughput-link\">throughput</strong> of a link"
            )
        );
        assert!(!html.contains("**") && !html.contains("]("), "Markdown is left");
    }

    #[test]
    fn marks_become_elements() {
        let html = |item: &str| item_html(item, &mut BTreeSet::new());
        assert_eq!(
            html("**srtt** < `a<b>`, [a link](#here), [draft](https://example.org/) * [x]"),
            "<strong id=\"definition-srtt\">srtt</strong> &lt; <code>a&lt;b></code>, a link, <a href=\"https://example.org/\">draft</a> * [x]"
        );
        assert_eq!(html("**Instantaneous metrics**"), "<strong>Instantaneous metrics</strong>");
        assert_eq!(html("**not closed"), "**not closed");
    }
}
