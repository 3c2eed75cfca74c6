//! The page of a run in progress, which finally shows the report. A server sends it the numbers (`ccbench run --view`).

use super::{
    CHART_SCRIPT, CHART_STYLE, COMMON_SCRIPT, EXPORT_SCRIPT, STYLE, definitions, render_template,
};

const PAGE: &str = include_str!("live.html");
const LIVE_STYLE: &str = include_str!("live.css");
const SCRIPT: &str = include_str!("live.js");

/// Returns the page. Its server answers at `events` with server-sent events and at `report` with the report, both relative to the page's
/// address. The page's style and scripts have this nonce, which must be safe within an HTML attribute.
pub fn live_page(nonce: &str) -> String {
    render_template(
        PAGE,
        &[
            ("nonce", nonce),
            ("style", &format!("{CHART_STYLE}\n{STYLE}\n{LIVE_STYLE}")),
            ("definitions", &definitions::html()),
            ("nonce", nonce),
            ("chart", CHART_SCRIPT),
            ("nonce", nonce),
            ("script", &[COMMON_SCRIPT, EXPORT_SCRIPT, SCRIPT].join("\n")),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_and_style_has_the_nonce() {
        let page = live_page("abc123");
        let begins = |tag: &str| page.matches(&format!("<{tag} nonce=\"abc123\">")).count();
        assert_eq!((begins("style"), begins("script")), (1, 2));
        assert!(
            !PAGE.contains("style=") && !PAGE.contains("onclick"),
            "the policy would refuse them"
        );
        assert!(!page.contains("{{"), "a placeholder is left");
    }
}
