//! Tests the pages in a real browser. Skipped without chromedriver, unless the feature `browser` is enabled.

use ccbench_results::report;
use serde_json::{Value, json};

use super::lost::half_failed;
use super::*;
use driver::Browser;

mod accessibility;
mod definitions;
mod driver;
mod heatmaps;
mod index;
mod live;
mod screenshots;

/// Opens the report of the made-up run in a browser; returns the folder, too.
fn open_report() -> Option<(Browser, tempfile::TempDir)> {
    open_report_after(|_| ())
}

/// As [`open_report`], after a change to the run's directory.
fn open_report_after(done: impl Fn(&Path)) -> Option<(Browser, tempfile::TempDir)> {
    let made = |root: &Path| {
        let run = made_up(root);
        done(&run);
        run
    };
    open_report_of(made)
}

/// Opens the report of a run that `made` creates.
fn open_report_of(made: impl Fn(&Path) -> PathBuf) -> Option<(Browser, tempfile::TempDir)> {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("report.html");
    let run = made(root.path());
    report::write(&RunSummary::compute(&run, TrialFilter::default()).unwrap(), &file).unwrap();
    Some((open_file(&file)?, root))
}

/// Opens a page in a browser.
fn open_file(file: &Path) -> Option<Browser> {
    let browser = Browser::start()?;
    browser.open(file);
    assert_eq!(
        browser.eval("return document.documentElement.dataset.ready"),
        "yes",
        "{:?}",
        browser.console()
    );
    Some(browser)
}

/// Waits until an expression is true.
fn wait_for(browser: &Browser, expression: &str) {
    let is_true = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        browser.eval(&format!("return {expression}")) == true
    });
    assert!(is_true, "{expression}: {:?}", browser.console());
}

fn column(browser: &Browser, table: &str, nth: usize) -> Value {
    browser.eval(&format!(
        "return [...document.querySelectorAll('{table} tbody tr td:nth-child({nth})')].map(cell => cell.textContent)"
    ))
}

#[test]
fn report_is_self_contained() {
    let Some((browser, _root)) = open_report() else { return };
    assert_eq!(browser.eval("return document.title"), "made-up · ccbench");
    assert_eq!(browser.text("#tally"), "2 ok 1 degraded 1 failed");
    let requests = browser.eval("return performance.getEntriesByType('resource').length");
    assert_eq!((requests, browser.console()), (json!(0), vec![]));
    // Throughput, RTT, cwnd, retransmissions, probe, queue; with drawn content.
    let drawn = browser.eval(
        "return [...document.querySelectorAll('#panels canvas')].map(c => c.getContext('2d')
           .getImageData(0, 0, c.width, c.height).data.some(byte => byte > 0))",
    );
    assert_eq!(drawn, json!([true, true, true, true, true, true]));
    // On a phone, only tables and code may be wider than the screen.
    browser.resize(500, 900);
    // Panels follow the window's width after a moment.
    let wide = "return Math.max(0, document.documentElement.scrollWidth - innerWidth)";
    let narrow = (0..1200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        browser.eval(wide) == 0
    });
    assert!(narrow, "{} pixels too wide", browser.eval(wide));
}

/// Adds a plan with claims to the made-up run.
fn add_claims(run: &Path) {
    let claims = r#"
[[expect]]
claim = "it starves"
source = "the study"
published = "a few Mbit/s"
phase = "compete"
metric = "throughput"
group = "cross"
below = "20mbit"
[[expect]]
claim = "it fills the link"
phase = "alone"
metric = "throughput_sum"
group = "under_test"
above = "60mbit"
[[expect]]
claim = "its delay returns"
source = "another study"
phase = "alone"
metric = "srtt"
group = "cross"
between = ["0.6ms", "12ms"]
"#;
    let plan = ENDS_EARLY.replace("[\"under_test\"]", "[\"under_test\", \"cross\"]");
    put_plan(run, &(plan + claims));
}

fn render(run: &Path) -> String {
    report::html(&RunSummary::compute(run, TrialFilter::default()).unwrap()).unwrap()
}

#[test]
fn report_computes_claims_itself() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    add_claims(&run);
    let page = render(&run);
    assert!(
        page.contains(r#""claim":"it starves""#) && page.contains(r#""verdict":"does_not_hold""#)
    );
    for text in [r#""expected_text":"≤ 20 Mbit/s""#, r#""measured_text":"60 ±0 Mbit/s""#] {
        assert!(page.contains(text), "the texts of the printed table: {text}");
    }
    // A claim without a number.
    assert!(page.contains(r#""measured":null"#) && page.contains(r#""n_trials":0"#));
    summarize::summarize(&run, TrialFilter::default()).unwrap();
    let file = run.join("expectations.parquet");
    assert!(file.is_file());
    assert!(render(&run) == page);
    std::fs::write(file, "not what was computed").unwrap();
    assert!(render(&run) == page);
}

#[test]
fn claims_follow_verdicts() {
    let hidden = "return document.querySelector('#claimed').hidden";
    let Some((browser, _root)) = open_report() else { return };
    assert_eq!(browser.eval(hidden), true, "this plan claims nothing");
    drop(browser);
    let claimed = open_report_after(add_claims);
    let Some((browser, _root)) = claimed else { return };
    assert_eq!(browser.eval(hidden), false);
    let next = "return document.querySelector('#verdicts').nextElementSibling.id";
    assert_eq!(browser.eval(next), "claimed");
    assert_eq!(
        column(&browser, "#claims", 1),
        json!([
            "does not hold",
            "not measured",
            "holds",
            "not measured",
            "not measured",
            "not measured"
        ])
    );
    assert_eq!(
        column(&browser, "#claims", 3),
        json!([
            "a few Mbit/sthe study",
            "a few Mbit/sthe study",
            "-",
            "-",
            "-another study",
            "-another study"
        ]),
        "nothing was published of the second"
    );
    assert_eq!(
        column(&browser, "#claims", 4),
        json!([
            "≤ 20 Mbit/s",
            "≤ 20 Mbit/s",
            "≥ 60 Mbit/s",
            "≥ 60 Mbit/s",
            "0.6 to 12 ms",
            "0.6 to 12 ms"
        ])
    );
    assert_eq!(
        column(&browser, "#claims", 5),
        json!(["60 ±0 Mbit/s", "-", "91 ±12.7 Mbit/s", "-", "-", "-"])
    );
    let room = "const box = document.querySelector('#claims').parentElement; return box.scrollWidth <= box.clientWidth";
    assert_eq!(browser.eval(room), true, "nothing is cut off");
    assert_eq!(browser.console(), Vec::<Value>::new());
}

#[test]
fn best_values_are_those_of_groups_with_equal_numbers_of_flows() {
    let one_flow_each = |root: &Path| {
        let run = RunDir::create(root, &info()).unwrap();
        let mut writer = begin(&run, 0, 1);
        for flow in flows(0.0).into_iter().filter(|flow| flow.index == 0) {
            flow.push(&mut writer, true);
        }
        writer.commit(&verdict(Status::Ok, &[])).unwrap();
        run.finish(RunStatus::Complete).unwrap();
        run.path().to_path_buf()
    };
    let Some((browser, _root)) = open_report_of(one_flow_each) else { return };
    assert_eq!(column(&browser, "#groups", 4), json!(["under_test", "cross", "under_test"]));
    // `under_test` is alone in the first phase.
    let sums = browser.eval(
        "return [...document.querySelectorAll('#groups tbody tr')]\
             .map(row => row.cells[5].querySelector('.best')?.textContent.includes('(best)') ?? false)",
    );
    assert_eq!(sums, json!([false, true, false]));
    assert_eq!(browser.console(), Vec::<Value>::new());
}

#[test]
fn tables_sort() {
    let Some((browser, _root)) = open_report() else { return };
    // Two points with two phases. One group is alone in the first phase.
    let before = column(&browser, "#groups", 4);
    assert_eq!(before.as_array().unwrap().len(), 6, "{before}");
    browser.click("#groups th:nth-child(6) button");
    let order = browser.eval("return document.querySelector('#groups th:nth-child(6)').ariaSort");
    let sums = column(&browser, "#groups", 6);
    let first =
        |text: &Value| text.as_str().unwrap().split(' ').next().unwrap().parse::<f64>().unwrap();
    let numbers: Vec<f64> = sums.as_array().unwrap().iter().map(first).collect();
    assert_eq!((order, numbers.is_sorted_by(|a, b| a >= b)), (json!("descending"), true), "{sums}");
    // The groups have different numbers of flows.
    assert_eq!(browser.eval("return document.querySelectorAll('#groups .best').length"), json!(0));
    // The same with the keyboard.
    browser.keys("#groups th:nth-child(6) button", "\u{e007}");
    let order = browser.eval("return document.querySelector('#groups th:nth-child(6)').ariaSort");
    assert_eq!(order, "ascending");
    browser.keys("#search", "jain");
    let found = column(&browser, "#everything", 5);
    let found = found.as_array().unwrap();
    let jain = |metric: &Value| metric.as_str().unwrap().starts_with("jain_");
    assert!(!found.is_empty() && found.iter().all(jain), "{found:?}");
}

#[test]
fn buttons_with_texts_of_tables_are_printed() {
    let Some((browser, _root)) = open_report() else { return };
    let printed = "const rules = [...document.styleSheets].flatMap(sheet => [...sheet.cssRules])\
             .filter(rule => rule.media?.mediaText === 'print').flatMap(rule => [...rule.cssRules]);\
         const display = (css) => rules.findLast(rule => document.querySelector(css).matches(rule.selectorText))?.style.display;\
         return ['#groups th button', '#reasons td button', '#theme'].map(display)";
    assert_eq!(browser.eval(printed), json!(["inline", "inline", "none"]));
}

#[test]
fn tables_show_failed_points_ccs_links_and_losses() {
    let Some((browser, _root)) = open_report_of(half_failed) else { return };
    assert_eq!(column(&browser, "#reasons", 1), json!(["scheme cubic, buffer 20, trials 1-2"]));
    assert_eq!(
        column(&browser, "#groups", 4),
        json!(["all 2 trials failed", "under_test", "cross", "under_test"])
    );
    assert_eq!(column(&browser, "#groups", 5), json!(["-", "bbr", "cubic", "bbr"]));
    let title = |table: &str| {
        browser.eval(&format!(
            "return [...document.querySelectorAll('{table} th')].map(cell => cell.textContent)"
        ))
    };
    assert_eq!(title("#links")[4], "utilisation %");
    assert_eq!(column(&browser, "#links", 5), json!(["90.00", "90.00"]));
    assert_eq!(title("#probes")[7], "lost %");
    assert_eq!(column(&browser, "#probes", 8), json!(["10", "10"]));
    // A long name must not push the details off a phone's screen.
    browser.resize(500, 900);
    // The page follows the window's width after a moment.
    let seen =
        "const cell = document.querySelector('#reasons td:last-child').getBoundingClientRect();
         return [innerWidth, cell.left >= 0, cell.right <= innerWidth]";
    let is_narrow = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let seen = browser.eval(seen);
        seen[0].as_f64().unwrap() < 1000.0 && seen[1] == true && seen[2] == true
    });
    assert!(is_narrow, "{}", browser.eval(seen));
}

#[test]
fn panels_share_the_time_range() {
    let Some((browser, _root)) = open_report() else { return };
    browser.eval(
        "const real = uPlot;
         window.charts = [];
         uPlot = function (...all) { charts.push(new real(...all)); return charts.at(-1); };
         uPlot.join = real.join;
         document.querySelector('#all').click();
         return 0",
    );
    // Drawing has finished when eval returns.
    let shown =
        browser.eval("return charts.map(chart => [chart.scales.x.min, chart.scales.x.max])");
    assert_eq!(
        shown,
        json!([[0, 9.03], [0, 9.03], [0, 9.03], [0, 9.03], [0, 9.03], [0, 9.03]]),
        "to the last sample"
    );
    // Zoom in, also to a range in which a panel has no samples.
    let zoom = "charts.forEach(chart => chart.setScale('x', {min: 0.01, max: 8.99})); return 0";
    browser.eval(zoom);
    let shown =
        browser.eval("return charts.map(chart => [chart.scales.x.min, chart.scales.x.max])");
    assert_eq!(shown, json!(vec![[0.01, 8.99]; 6]));
}

#[test]
fn headings_wrap_only_after_dots_and_underscores() {
    let Some((browser, _root)) = open_report_after(with_long_factor) else { return };
    browser.resize(500, 900);
    // Each part of the name is on one line, and there are several lines. The page follows the window's width after a moment.
    let rows = "return [...document.querySelector('#groups th button').childNodes].filter(node => node.data).map(node => {
           const range = document.createRange();
           range.selectNodeContents(node);
           const lines = [...range.getClientRects()];
           return [node.data, lines.length, lines[0].top];
         })";
    let fits = "return document.documentElement.scrollWidth <= innerWidth";
    let mut lines: Vec<Value> = Vec::new();
    let narrow = (0..1200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        lines = browser.eval(rows).as_array().unwrap().clone();
        lines[0][2] != lines[lines.len() - 1][2] && browser.eval(fits) == true
    });
    assert!(narrow, "{lines:?}, the page fits: {}", browser.eval(fits));
    let parts: String = lines.iter().filter_map(|line| line[0].as_str()).collect();
    assert_eq!(parts, LONG_FACTOR);
    assert!(lines.iter().all(|line| line[1] == 1), "{lines:?}");
}

#[test]
fn verdict_links_to_the_trial() {
    let Some((browser, _root)) = open_report() else { return };
    assert_eq!(browser.text("#verdict"), "ok");
    browser.click("#next");
    assert_eq!(browser.text("#verdict"), "degraded: cpu_bound: src: busy; samples_late: src: late");
    browser.click("#reasons tbody tr:last-child button");
    assert_eq!(browser.text("#verdict"), "failed: flow_dead: flows.cross: not one byte of data");
    assert_eq!(browser.eval("return document.activeElement.id"), "which");
    browser.click("#previous");
    assert_eq!(browser.text("#verdict"), "ok");
    // A curve can be hidden with the keyboard.
    let hidden = "return document.querySelectorAll('#panels .u-legend .u-off').length";
    assert_eq!(browser.eval(hidden), 0);
    browser.keys("#panels .u-legend tr:nth-child(2) th", "\u{e007}");
    assert_eq!(browser.eval(hidden), 1);
    let theme = "return document.documentElement.dataset.theme";
    let before = browser.eval(theme);
    browser.click("#theme");
    assert_ne!(browser.eval(theme), before);
    assert_eq!(browser.console(), Vec::<Value>::new());
}

/// Returns the names of the curves in the legend of the first panel.
fn legend(browser: &Browser) -> Value {
    browser.eval(
        "return [...document.querySelector('#panels .u-legend').querySelectorAll('th')]\
         .slice(1).map(entry => entry.textContent)",
    )
}

#[test]
fn trials_of_one_point_and_of_several_are_overlaid() {
    let Some((browser, _root)) = open_report() else { return };
    assert_eq!(legend(&browser), json!(["cross/0", "under_test/0", "under_test/1"]));
    // The other trial of the same point.
    browser.click("#add-point");
    let flows = |name: &str| {
        ["cross/0", "under_test/0", "under_test/1"].map(|flow| format!("{name}: {flow}"))
    };
    assert_eq!(legend(&browser), json!([flows("trial 1"), flows("trial 2")].concat()));
    let listed =
        "return [...document.querySelectorAll('#overlaid li')].map(item => item.firstChild.data)";
    assert_eq!(browser.eval(listed), json!(["scheme cubic, buffer 20, trial 2 (degraded) "]));
    assert_eq!(browser.text("#overlay"), "1 trial more");
    // A trial of another point, selected and added with the keyboard. Names contain what differs.
    browser.eval("document.querySelector('#other').value = '2'; return 0");
    browser.keys("#add", "\u{e007}");
    let first = legend(&browser)[6].clone();
    assert_eq!(first, "scheme reno, \"classic\", buffer 40, trial 1: cross/0");
    assert_eq!(browser.text("#overlay"), "2 trials more");
    // Each trial has a colour, and its curves have dashes. Every panel has the curves of all trials.
    let marks = browser.eval(
        "return [...document.querySelector('#panels .u-legend').querySelectorAll('.u-marker')]\
         .slice(1).map(mark => getComputedStyle(mark).borderColor)",
    );
    let marks = marks.as_array().unwrap();
    assert!(marks[0] == marks[1] && marks[0] != marks[3] && marks[3] != marks[6], "{marks:?}");
    let curves = browser.eval(
        "return [...document.querySelectorAll('#panels .u-legend')].map(legend => legend.querySelectorAll('th').length - 1)",
    );
    assert_eq!(curves, json!([9, 9, 9, 9, 3, 3]));
    // The current trial is not in the list of overlaid trials.
    browser.click("#next");
    assert_eq!(browser.eval(listed), json!(["scheme reno, \"classic\", buffer 40, trial 1 (ok) "]));
    browser.click("#overlaid button");
    assert_eq!(browser.eval("return document.activeElement.id"), "other");
    assert_eq!(legend(&browser), json!(["cross/0", "under_test/0", "under_test/1"]));
    assert_eq!(browser.console(), Vec::<Value>::new());
}

/// Clicks a button that saves a file, and returns the file's name, type and bytes instead of saving it.
fn saved(browser: &Browser, css: &str) -> (String, String, Vec<u8>) {
    browser.eval(
        "if (!window.files) {\
             window.files = [];\
             URL.createObjectURL = (blob) => { files.push({ blob }); return 'blob:none'; };\
             HTMLAnchorElement.prototype.click = function () { files.at(-1).name = this.download; };\
         }\
         files.length = 0; return 0",
    );
    browser.click(css);
    let made = (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        browser.eval("return Boolean(files[0]?.name)") == true
    });
    assert!(made, "{css}: {:?}", browser.console());
    let file = browser.eval(
        "return files[0].blob.arrayBuffer().then(bytes => [files[0].name, files[0].blob.type, [...new Uint8Array(bytes)]])",
    );
    let text = |nth: usize| file[nth].as_str().unwrap().to_owned();
    (text(0), text(1), serde_json::from_value(file[2].clone()).unwrap())
}

#[test]
fn figures_are_saved_as_they_are_shown() {
    let Some((browser, root)) = open_report() else { return };
    let button = |format: &str| format!("#panels [aria-label='Save Throughput as {format}']");
    // One curve is hidden.
    browser.keys("#panels .u-legend tr:nth-child(2) th", "\u{e007}");
    let run = std::fs::read_dir(root.path()).unwrap().flatten().find(|entry| entry.path().is_dir());
    let stem = format!("{}-point=0-trial=1-Throughput", run.unwrap().file_name().to_str().unwrap());

    let (name, kind, csv) = saved(&browser, &button("CSV"));
    assert_eq!((name, kind.as_str()), (format!("{stem}.csv"), "text/csv"));
    let csv = String::from_utf8(csv).unwrap();
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "curve,t_s,quantity,unit,value");
    assert!(lines.len() > 100 && !csv.contains("cross/0"), "{} lines", lines.len());
    let is_row =
        |line: &&str| line.starts_with("under_test/") && line.contains(",Throughput,Mbit/s,");
    assert!(lines[1..].iter().all(is_row), "{csv}");

    let (name, kind, svg) = saved(&browser, &button("SVG"));
    assert_eq!((name, kind.as_str()), (format!("{stem}.svg"), "image/svg+xml"));
    let svg = String::from_utf8(svg).unwrap();
    let parsed = browser.eval(&format!(
        "const svg = new DOMParser().parseFromString({}, 'image/svg+xml');\
         return [svg.querySelectorAll('parsererror').length, svg.querySelectorAll('g path').length,\
                 [...svg.querySelectorAll('text')].map(text => text.textContent)]",
        json!(svg)
    ));
    assert_eq!((&parsed[0], &parsed[1]), (&json!(0), &json!(2)), "{svg}");
    let texts = parsed[2].as_array().unwrap();
    for text in ["Throughput (Mbit/s)", "time (s)", "compete", "under_test/0", "under_test/1"] {
        assert!(texts.contains(&json!(text)), "no {text}: {texts:?}");
    }
    assert!(!texts.contains(&json!("cross/0")), "{texts:?}");

    let (name, kind, png) = saved(&browser, &button("PNG"));
    assert_eq!((name, kind.as_str()), (format!("{stem}.png"), "image/png"));
    assert!(png.starts_with(b"\x89PNG\r\n") && png.len() > 10_000, "{} bytes", png.len());
    assert_eq!(png[16..20], 2000_u32.to_be_bytes(), "its width");
    assert_eq!(browser.console(), Vec::<Value>::new());
}

#[test]
fn downsampling_keeps_spikes() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &info()).unwrap();
    let mut writer = begin(&run, 0, 1);
    // 40 000 samples become a curve of 2000 points. One sample is high, one low.
    for nth in 0..40_000_u32 {
        let rtt_us = match nth {
            12_345 => 77_000,
            23_456 => 1_500,
            _ => 10_000 + nth % 7,
        };
        let sample = wire::FlowSample {
            at_ns: T0_NS[0].1 + u64::from(nth) * 9_000_000_000 / 40_000,
            flow_id: "f/0".into(),
            group: "f".into(),
            side: Side::Sender.into(),
            role: Role::Data.into(),
            rtt_us: Some(rtt_us),
            ..Default::default()
        };
        push(&mut writer, "src", Payload::FlowSample(sample));
    }
    writer.commit(&verdict(Status::Ok, &[])).unwrap();
    let page = render(run.path());
    let element = page.split_once("id=\"curves-0-1\">").unwrap().1.split_once('<').unwrap().0;
    let panels: Value = serde_json::from_str(element).unwrap();
    let panels = panels.as_array().unwrap();
    let panel = panels.iter().find(|panel| panel["title"] == "Smoothed RTT").unwrap();
    assert_eq!(panel["samples"], 40_000);
    let curve = &panel["curves"][0];
    let values: Vec<f64> =
        curve["value"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    let times: Vec<f64> =
        curve["t_s"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    assert!(values.len() <= 2000 && times.is_sorted(), "{} points", values.len());
    let at = |value: f64| times[values.iter().position(|v| *v == value).unwrap()];
    assert!((at(77.0) - 12_345.0 * 9.0 / 40_000.0).abs() < 1e-4);
    assert!((at(1.5) - 23_456.0 * 9.0 / 40_000.0).abs() < 1e-4);
}
