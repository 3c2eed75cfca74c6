//! Tests the page of a run in progress.

use ccbench_tests::axe_core;

use super::accessibility::{assert_accessible, assert_tab_reaches_every_control};
use super::definitions::targets;
use super::*;

/// The test sends the updates instead of a run, and it decides when the browser draws a frame.
const STUBS: &str = "<script>
    window.EventSource = class extends EventTarget { constructor() { super(); window.run = this; } };
    window.pending = [];
    window.requestAnimationFrame = (draw) => pending.push(draw);
</script>";
/// Counts how often each chart is drawn, by the title of its panel.
const COUNT_DRAWS: &str = "
    [window.draws, window.charts] = [{}, {}];
    const real = uPlot;
    uPlot = function (options, data, figure) {
        const title = figure.getAttribute('aria-label').split(' in ')[0];
        options.hooks.draw = [() => { draws[title] = (draws[title] ?? 0) + 1; }];
        return (charts[title] = new real(options, data, figure));
    };
    uPlot.join = real.join;
    return 0";
const FLOWS: usize = 2;

/// The live page in a browser.
pub struct LivePage {
    pub browser: Browser,
    _root: tempfile::TempDir,
}

impl LivePage {
    pub fn open() -> Option<Self> {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("live.html");
        let page = report::live_page("n").replacen("</head>", &format!("{STUBS}</head>"), 1);
        std::fs::write(&file, page).unwrap();
        let browser = Browser::start()?;
        browser.open(&file);
        browser.eval(COUNT_DRAWS);
        Some(Self { browser, _root: root })
    }

    /// Sends updates, each in a task of its own, as a browser receives events.
    pub fn send(&self, updates: &[Value]) {
        let texts: Vec<String> = updates.iter().map(Value::to_string).collect();
        self.browser.eval(&format!(
            "return (async () => {{
                 for (const data of {}) {{
                     run.dispatchEvent(new MessageEvent('message', {{ data }}));
                     await new Promise((done) => setTimeout(done));
                 }}
             }})()",
            json!(texts)
        ));
    }

    /// Does what the page wants to do before the browser paints the next frame.
    pub fn frame(&self) {
        self.browser.eval(
            "for (const draw of pending.splice(0)) draw();
             return new Promise((done) => setTimeout(done))",
        );
    }

    /// Returns how often each chart has been drawn since the previous call, by the title of its panel.
    fn draws(&self) -> BTreeMap<String, u64> {
        let draws = self.browser.eval("const all = draws; window.draws = {}; return all");
        serde_json::from_value(draws).unwrap()
    }

    /// Sends updates, the first with this number, and draws a frame after each, until a frame draws the wanted panels. The browser reports
    /// only after a while which panels the window shows. Returns the number of the next update.
    fn until(&self, first: u32, is_wanted: impl Fn(&BTreeMap<String, u64>) -> bool) -> u32 {
        self.draws();
        for nth in first..first + 100 {
            self.send(&[update(nth, FLOWS)]);
            self.frame();
            if is_wanted(&self.draws()) {
                return nth + 1;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("no frame draws the wanted panels: {:?}", self.browser.console());
    }

    /// Returns the value of the first curve of a chart in a bin.
    fn charted(&self, title: &str, bin: u32) -> Value {
        self.browser.eval(&format!("return charts['{title}'].data[1][{}]", 2 * bin))
    }

    fn updates_shown(&self) -> Value {
        self.browser.eval("return document.documentElement.dataset.updates")
    }
}

/// Returns an update in which the bin `nth` of every quantity is new. The values of the first flow, links and probes are `nth` in the unit of
/// the page; those of each further flow are higher by 1.
pub fn update(nth: u32, flows: usize) -> Value {
    let of_flow = |flow: usize, unit: f64| {
        let value = (f64::from(nth) + flow as f64) * unit;
        json!({ "now": value, "bins": [[nth, value, value, value]] })
    };
    let quantity = |unit: f64| of_flow(0, unit);
    let flow = |flow: usize| {
        let of = json!({ "group": "f", "cc": "cubic", "idle_s": 0.05, "rate_bps": of_flow(flow, 1e6), "rtt_us": of_flow(flow, 1e3),
            "cwnd_pkts": of_flow(flow, 1.0), "in_flight_pkts": of_flow(flow, 1.0), "retrans_pkts": nth, "marks_pkts": null });
        (format!("f/{flow}"), of)
    };
    let flows: serde_json::Map<String, Value> = (0..flows).map(flow).collect();
    let link = json!({ "rate_bps": 100_000_000, "backlog_bytes": quantity(1e3), "drops_pkts": nth, "marks_pkts": null });
    let host = json!({ "busy_pct": 1.0, "max_busy_pct": 2.0, "peak_busy_pct": 3.0, "steal_pct": 0.0, "agent_pct": 0.5, "softnet_dropped": 0 });
    json!({
        "run": { "name": "watched", "directory": "results/watched", "trials": 3, "ended": { "ok": 1 },
            "last": [{ "number": 1, "label": "repeat 1/3", "status": "ok" }],
            "running": [{ "number": 2, "label": "repeat 2/3", "phase": "only", "elapsed_s": 1.0, "length_s": 20.0 }],
            "next": "repeat 3/3", "left_s": 30, "messages": ["a message"], "messages_left_out": 2, "status": null },
        "trial": { "number": 2, "attempt": 1, "label": "repeat 2/3", "elapsed_s": 1.0, "length_s": 20.0, "phase": "only", "next_phase": null,
            "phases": [{ "name": "only", "start_us": 0, "end_us": 20_000_000 }], "bin_s": 0.1, "status": "degraded", "has_ended": false,
            "reasons": ["cpu_bound: src: busy"], "flows": flows, "links": { "bottleneck": link },
            "probes": { "rtt": { "rtt_us": quantity(1e3), "sent": nth, "lost": 0 } }, "hosts": { "src": host },
            "rows_left_out": 0, "rows_outside": 0 },
    })
}

#[test]
fn the_live_page_states_the_rows_that_it_does_not_show() {
    let Some(page) = LivePage::open() else { return };
    let shown = |left_out: u64, outside: u64| {
        let mut update = update(0, FLOWS);
        update["trial"]["rows_left_out"] = left_out.into();
        update["trial"]["rows_outside"] = outside.into();
        page.send(&[update]);
        page.frame();
        page.browser.eval(
            "return ['#left-out', '#outside'].map(id => document.querySelector(id).textContent)",
        )
    };
    assert_eq!(shown(0, 0), json!(["", ""]));
    let outside = "2 rows from before the trial's start, or of nodes whose clock is not known, are in the results only.";
    assert_eq!(shown(4, 2), json!(["4 rows of further flows are in the results only.", outside]));
    assert_eq!(page.browser.console(), Vec::<Value>::new());
}

/// The browser draws no frame of such a tab.
#[test]
fn a_tab_in_the_background_has_the_title_of_the_run() {
    let Some(page) = LivePage::open() else { return };
    page.send(&[update(0, FLOWS)]);
    assert_eq!(page.browser.eval("return document.title"), "watched · ccbench");
    assert_eq!(page.updates_shown(), Value::Null, "nothing is drawn");
}

#[test]
fn updates_that_arrive_during_a_frame_are_drawn_once() {
    let Some(page) = LivePage::open() else { return };
    page.browser.eval("document.querySelector('#time-section').scrollIntoView(); return 0");
    page.send(&[update(0, FLOWS)]);
    page.frame();
    let first = page.until(1, |draws| draws.contains_key("Throughput"));
    assert_eq!(page.updates_shown(), first.to_string());
    let last = first + 99;
    page.send(&(first..=last).map(|nth| update(nth, FLOWS)).collect::<Vec<_>>());
    assert_eq!(page.draws(), BTreeMap::new(), "nothing is drawn between two frames");
    assert_eq!(page.updates_shown(), first.to_string());
    page.frame();
    let draws = page.draws();
    assert!(
        draws.contains_key("Throughput") && draws.values().all(|draws| *draws == 1),
        "{draws:?}"
    );
    // The page shows the newest state, with the bins of all updates.
    assert_eq!(page.updates_shown(), (last + 1).to_string());
    let cell = "return document.querySelector('#flows tbody tr').cells[6].textContent";
    assert_eq!(page.browser.eval(cell), last.to_string());
    let bins = [first, first + 50, last];
    assert_eq!(bins.map(|bin| page.charted("Throughput", bin)), bins.map(|bin| json!(bin)));
    assert_eq!(page.browser.console(), Vec::<Value>::new());
}

#[test]
fn panels_out_of_view_are_drawn_when_they_come_into_view() {
    let Some(page) = LivePage::open() else { return };
    page.browser.resize(1280, 500);
    page.send(&[update(0, FLOWS)]);
    page.frame();
    assert_eq!(
        page.draws().len(),
        6,
        "each panel is drawn once, so that the page keeps its height"
    );
    let next = page.until(1, BTreeMap::is_empty);
    let cell = "return document.querySelector('#flows tbody tr').cells[6].textContent";
    assert_eq!(page.browser.eval(cell), (next - 1).to_string(), "the tables are up to date");
    page.browser
        .eval("document.querySelector('#panels').lastElementChild.scrollIntoView(); return 0");
    let is_drawn = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        page.frame();
        page.draws().get("Probe RTT") == Some(&1)
    });
    assert!(is_drawn, "without another update");
    // A page that is paused has one state everywhere.
    page.browser.eval("scrollTo(0, 0); return 0");
    let next = page.until(next, BTreeMap::is_empty);
    page.browser.click("#pause");
    assert_eq!(page.draws().len(), 6);
    page.send(&[update(next, FLOWS)]);
    page.frame();
    assert_eq!((page.draws().len(), page.updates_shown()), (0, json!(next.to_string())));
}

#[test]
fn the_lines_of_many_curves_are_thin() {
    let Some(page) = LivePage::open() else { return };
    // In pixels of the device. A trial of 2 s has 42 points for each curve.
    let width = |flows: usize, length_s: f64, attempt: u64| {
        let mut update = update(0, flows);
        update["trial"]["length_s"] = length_s.into();
        update["trial"]["attempt"] = attempt.into();
        page.send(&[update]);
        page.frame();
        page.browser.eval("return charts.Throughput.series[1].width * devicePixelRatio")
    };
    assert!(width(2, 2.0, 1).as_f64().unwrap() > 1.0, "84 points");
    assert_eq!(width(100, 2.0, 2), 1, "4200 points");
    assert_eq!(width(2, 20.0, 3), 1, "804 points");
}

#[test]
fn numbers_of_the_live_page_lead_to_their_definitions() {
    let Some(page) = LivePage::open() else { return };
    page.send(&[update(0, FLOWS)]);
    page.frame();
    assert_eq!(targets(&page.browser, "#panels h3 a"), json!([6, 6]));
    for (table, definitions) in [("flows", 5), ("links", 3), ("probes", 2)] {
        let links = format!("#{table} th a");
        assert_eq!(targets(&page.browser, &links), json!([definitions, definitions]), "{table}");
    }
    page.browser.click("#links th:nth-child(3) a");
    let target = "return document.querySelector(':target').textContent";
    assert_eq!(page.browser.eval(target), "backlog");
    assert_eq!(page.browser.console(), Vec::<Value>::new());
}

#[test]
fn the_tab_key_reaches_every_control_of_the_live_page() {
    let Some(page) = LivePage::open() else { return };
    page.send(&[update(0, FLOWS)]);
    page.frame();
    assert_tab_reaches_every_control(&page.browser, 50);
}

#[test]
fn the_skip_link_of_the_live_page_leads_to_the_flows() {
    let Some(page) = LivePage::open() else { return };
    page.browser.press("\u{e004}");
    assert_eq!(page.browser.eval("return document.activeElement.className"), "skip");
    page.browser.press("\u{e007}");
    assert_eq!(page.browser.eval("return document.querySelector(':target').id"), "flows-section");
}

#[test]
fn a_live_page_is_accessible() {
    let Some(axe_core) = axe_core() else { return };
    let Some(page) = LivePage::open() else { return };
    page.send(&[update(0, FLOWS)]);
    page.frame();
    assert_accessible(&page.browser, &axe_core);
}
