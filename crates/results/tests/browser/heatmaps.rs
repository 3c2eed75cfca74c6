//! Tests heatmaps of the report: their cells open the trials of a point.

use super::*;
use crate::lost::sweep;

#[test]
fn cells_open_the_trials_of_their_point() {
    let Some((browser, _root)) = open_report_of(sweep) else { return };
    let cells =
        "return document.querySelector('#overview figure svg').querySelectorAll('a').length";
    assert_eq!(browser.eval(cells), 50);
    let in_order = "return [...document.querySelectorAll('#overview figure')]\
         .map(figure => figure.querySelectorAll('svg a[tabindex=\"0\"]').length)";
    let in_order = browser.eval(in_order);
    let figures = in_order.as_array().unwrap();
    assert!(figures.iter().all(|cells| *cells == 1), "the Tab key passes each once: {figures:?}");
    // Arrow keys, and Enter.
    browser.eval("document.querySelector('#overview figure svg a').focus(); return 0");
    let here = || browser.eval("return document.activeElement.getAttribute('href')");
    let steps =
        ["\u{e014}", "\u{e013}", "\u{e015}", "\u{e012}", "\u{e012}", "\u{e014}"].map(|key| {
            browser.press(key);
            here()
        });
    let steps: Vec<&str> = steps.iter().map(|target| target.as_str().unwrap()).collect();
    assert_eq!(
        steps,
        ["#point-1", "#point-11", "#point-1", "#point-0", "#point-0", "#point-1"],
        "right, up, down, left, against the edge, right"
    );
    let name = "return document.querySelector('#overview figure svg a').getAttribute('aria-label')";
    assert_eq!(browser.eval(name), "row 0, column 0: all trials failed");
    browser.press("\u{e007}");
    wait_for(&browser, "document.activeElement.id === 'which'");
    let shown = "return document.querySelector('#which').selectedOptions[0].textContent";
    assert_eq!(browser.eval(shown), "row 0, column 1, trial 1 (ok)");
    assert_eq!(browser.text("#overlaid"), "");
    // All trials of the point are shown. Its cell may be used again.
    let notes =
        "return [...document.querySelectorAll('#panels .note')].map(note => note.textContent)";
    for _ in 0..2 {
        browser.click("#overview figure a[href='#point-2']");
        wait_for(&browser, "document.querySelectorAll('#overlaid li').length === 1");
        assert_eq!(
            browser.eval(notes),
            json!([
                "row 0, column 2, trial 1 has no samples.",
                "row 0, column 2, trial 2 has no samples."
            ])
        );
        browser.click("#alone");
        assert_eq!(browser.eval("return document.querySelectorAll('#overlaid li').length"), 0);
    }
    browser.click("#overview figure a[href='#point-3']");
    wait_for(&browser, "document.querySelector('#overlay').textContent.includes('no trial')");
    assert_eq!(browser.text("#overlay"), "There is no trial of row 0, column 3.");
    // The same works from the table of points, and from an address.
    browser.click("#points a[href='#point-1']");
    wait_for(&browser, "document.querySelector('#which').value === '1'");
    browser.eval("location.hash = '#point-2'; return 0");
    wait_for(&browser, "document.querySelector('#which').value === '2'");
    assert_eq!(browser.console(), Vec::<Value>::new());
}

/// Creates 2 by 2 points, each with a trial. Those of the last two points are degraded.
fn small_grid(root: &Path) -> PathBuf {
    let level = |factor: &str, nth: u32| (factor.to_owned(), nth.to_string());
    let points = (0..4).map(|id| (id, vec![level("row", id / 2), level("column", id % 2)]));
    let run = RunDir::create(root, &RunInfo { points: points.collect(), ..info() }).unwrap();
    for point_id in 0..4 {
        let mut writer = begin(&run, point_id, 1);
        fill(&mut writer, f64::from(point_id) * 1e6);
        let why = format!("src: {point_id} s late");
        let late = verdict(Status::Degraded, &[("samples_late", &why)]);
        let ok = verdict(Status::Ok, &[]);
        writer.commit(if point_id > 1 { &late } else { &ok }).unwrap();
    }
    run.finish(RunStatus::Complete).unwrap();
    run.path().to_path_buf()
}

#[test]
fn every_cell_of_a_small_grid_opens_a_trial_with_curves() {
    let Some((browser, _root)) = open_report_of(small_grid) else { return };
    let cells =
        "return document.querySelector('#overview figure svg').querySelectorAll('a').length";
    assert_eq!(browser.eval(cells), 4);
    for point in (0..4).rev() {
        browser.eval("document.querySelector('#panels').replaceChildren(); return 0");
        browser.click(&format!("#overview figure svg a[href='#point-{point}']"));
        wait_for(&browser, "document.querySelectorAll('#panels canvas').length > 0");
        let shown = browser.eval("return document.querySelector('#which').value");
        assert_eq!(shown, point.to_string());
    }
    // With few points, each reason has its details.
    assert_eq!(column(&browser, "#reasons", 4), json!(["src: 2 s late", "src: 3 s late"]));
    assert_eq!(browser.console(), Vec::<Value>::new());
}

#[test]
fn heatmaps_are_saved_without_links() {
    let Some((browser, _root)) = open_report_of(sweep) else { return };
    let button = |format: &str| format!("#overview figure [aria-label$='as {format}']");
    let (name, _, svg) = saved(&browser, &button("SVG"));
    let svg = String::from_utf8(svg).unwrap();
    assert!(name.contains("heatmap") && name.ends_with(".svg"), "{name}");
    assert!(
        svg.starts_with("<svg ") && svg.contains("role=\"img\"") && !svg.contains("<a "),
        "{svg}"
    );
    let (_, _, csv) = saved(&browser, &button("CSV"));
    let csv = String::from_utf8(csv).unwrap();
    assert!(csv.starts_with("point_id,column,row,") && csv.lines().count() == 51, "{csv}");
    let (_, _, png) = saved(&browser, &button("PNG"));
    assert!(png.starts_with(b"\x89PNG\r\n") && png.len() > 10_000, "{} bytes", png.len());
}
