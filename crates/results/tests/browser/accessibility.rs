//! Tests the accessibility of the pages: the rules of axe-core at three widths and in both themes, and the keyboard.

use ccbench_tests::axe_core;

use super::index::open_index;
use super::*;
use crate::lost::sweep;

/// Asserts that axe finds nothing on a phone, a tablet and a desktop, in both themes.
pub fn assert_accessible(browser: &Browser, axe_core: &str) {
    for _ in ["light", "dark"] {
        for width in [500, 900, 1280] {
            browser.resize(width, 900);
            let theme = browser.eval("return document.documentElement.dataset.theme");
            assert_eq!(browser.violations(axe_core), [""; 0], "{width} pixels wide, {theme}");
        }
        browser.click("#theme");
    }
}

/// Shows few rows in the table of all metrics, without moving the focus.
pub fn list_few_metrics(browser: &Browser) {
    browser.eval(
        "const search = document.querySelector('#search');\
         search.value = 'jain_fairness_of_mean';\
         search.dispatchEvent(new Event('input')); return 0",
    );
}

#[test]
fn a_report_is_accessible() {
    let Some(axe_core) = axe_core() else { return };
    let Some((browser, _root)) = open_report_after(add_claims) else { return };
    list_few_metrics(&browser);
    // With an overlay, a hidden curve, and unfolded content.
    browser.click("#add-point");
    browser.keys("#panels .u-legend tr:nth-child(2) th", "\u{e007}");
    browser
        .eval("for (const one of document.querySelectorAll('details')) one.open = true; return 0");
    assert_accessible(&browser, &axe_core);
}

#[test]
fn a_report_with_heatmaps_is_accessible() {
    let Some(axe_core) = axe_core() else { return };
    let Some((browser, _root)) = open_report_of(sweep) else { return };
    list_few_metrics(&browser);
    assert_accessible(&browser, &axe_core);
}

#[test]
fn an_index_is_accessible() {
    let Some(axe_core) = axe_core() else { return };
    let Some((browser, _root)) = open_index() else { return };
    assert_accessible(&browser, &axe_core);
}

/// axe finds a violation if there is one.
#[test]
fn a_button_without_a_name_is_found() {
    let Some(axe_core) = axe_core() else { return };
    let Some((browser, _root)) = open_index() else { return };
    browser
        .eval("document.querySelector('main').append(document.createElement('button')); return 0");
    let found = browser.violations(&axe_core);
    assert!(found.len() == 1 && found[0].starts_with("button-name: <button>"), "{found:?}");
}

/// Asserts that the Tab key moves through all controls, of which there are at least `least`, and that each shows the focus.
pub fn assert_tab_reaches_every_control(browser: &Browser, least: u64) {
    let controls = browser.eval(
        "const controls = 'a[href], button:not(:disabled), select, input, summary, [tabindex=\"0\"]';\
         const visible = [...document.querySelectorAll(controls)].filter(control => control.checkVisibility());\
         visible.forEach((control, nth) => { control.dataset.nth = nth; });\
         return visible.length",
    );
    let controls = controls.as_u64().unwrap();
    assert!(controls >= least, "{controls}");
    for nth in 0..controls {
        browser.press("\u{e004}");
        let focused = browser.eval(
            "const at = document.activeElement;\
             return [at.dataset.nth, getComputedStyle(at).outlineStyle, at.outerHTML.slice(0, 200)]",
        );
        assert_eq!(focused[0], nth.to_string(), "{focused}");
        assert_ne!(focused[1], "none", "the focus is not visible: {focused}");
    }
}

#[test]
fn the_tab_key_reaches_every_control_and_shows_it() {
    let Some((browser, _root)) = open_report_after(add_claims) else { return };
    list_few_metrics(&browser);
    assert_tab_reaches_every_control(&browser, 60);
}

#[test]
fn the_skip_link_leads_to_the_summary() {
    let Some((browser, _root)) = open_report() else { return };
    browser.press("\u{e004}");
    assert_eq!(browser.eval("return document.activeElement.className"), "skip");
    browser.press("\u{e007}");
    assert_eq!(browser.eval("return document.querySelector(':target').id"), "summary");
    // A legend entry says whether its curve is shown.
    let pressed =
        "return document.querySelector('#panels .u-legend tr:nth-child(2) th').ariaPressed";
    assert_eq!(browser.eval(pressed), "true");
    browser.keys("#panels .u-legend tr:nth-child(2) th", " ");
    assert_eq!(browser.eval(pressed), "false");
}
