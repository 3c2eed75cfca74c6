//! Tests the index of a folder of runs in a real browser.

use super::*;
use crate::index::folder;

/// Opens the index of made-up runs in a browser; returns their folder, too.
pub fn open_index() -> Option<(Browser, tempfile::TempDir)> {
    let root = tempfile::tempdir().unwrap();
    let index = report::Index::read(&folder(root.path())).unwrap();
    let browser = open_file(&index.write().unwrap())?;
    Some((browser, root))
}

#[test]
fn an_index_leads_to_the_reports() {
    let Some((browser, _root)) = open_index() else { return };
    let requests = browser.eval("return performance.getEntriesByType('resource').length");
    assert_eq!((requests, browser.console()), (json!(0), vec![]));
    assert_eq!(column(&browser, "#runs", 1), json!(["later <run>", "made-up"]));
    assert_eq!(column(&browser, "#runs", 2), json!(["2027-01-15 08:00:00", "2023-11-14 22:13:20"]));
    assert_eq!(column(&browser, "#runs", 6), json!(["0 of 4", "4 of 4"]));
    assert_eq!(column(&browser, "#unreadable", 1), json!(["damaged"]));
    assert!(browser.text("#what").ends_with("1 cannot be read · 1 other directory"));
    browser.click("#runs th:nth-child(2) button");
    assert_eq!(column(&browser, "#runs", 1), json!(["made-up", "later <run>"]));
    browser.keys("#search", "simulator");
    assert_eq!(column(&browser, "#runs", 1), json!(["later <run>"]));
    browser.keys("#search", &"\u{e003}".repeat("simulator".len()));
    browser.keys("#search", "MADE-UP");
    assert_eq!(browser.text("#found"), "1 run");
    // Follow the link with the keyboard.
    browser.keys("#runs td a", "\u{e007}");
    assert_eq!(browser.eval("return document.body.textContent"), "a report");
}
