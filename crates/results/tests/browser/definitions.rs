//! Tests that the numbers of a page lead to their definitions.

use super::*;
use crate::lost::sweep;

/// Returns the number of these links, and of those that lead to a definition.
pub fn targets(browser: &Browser, links: &str) -> Value {
    browser.eval(&format!(
        "const links = [...document.querySelectorAll('{links}')];\
         const target = (link) => document.getElementById(link.getAttribute('href').slice(1));\
         return [links.length, links.filter((link) => target(link)?.tagName === 'STRONG').length]"
    ))
}

#[test]
fn names_of_metrics_lead_to_their_definitions() {
    let Some((browser, _root)) = open_report_after(add_claims) else { return };
    // Every number of the summary has one, and so do all metrics in the table of all metrics, and the numbers of claims.
    let targets = |links: &str| targets(&browser, links);
    let numbers = "return document.querySelectorAll('#summary th.number button').length \
                   - document.querySelectorAll('#summary table').length";
    let numbers = browser.eval(numbers);
    assert!(numbers.as_u64().unwrap() > 10, "{numbers}");
    assert_eq!(targets("#summary th.number a"), json!([numbers, numbers]), "all but `trials`");
    let rows = column(&browser, "#everything", 5).as_array().unwrap().len();
    assert_eq!(targets("#everything td:nth-child(5) a"), json!([rows, rows]));
    let claims = column(&browser, "#claims", 2).as_array().unwrap().len();
    assert_eq!(targets("#claims td:nth-child(2) a"), json!([claims, claims]));
    let panels = browser.eval("return document.querySelectorAll('#panels h3').length");
    assert_eq!(targets("#panels h3 a"), json!([panels, panels]));
    // `throughput` of a link differs from that of a flow.
    browser.keys("#search", "bottleneck throughput");
    browser.click("#everything td:nth-child(5) a");
    let target = "return document.querySelector(':target').parentElement.textContent";
    let definition = browser.eval(target);
    let definition = definition.as_str().unwrap();
    assert!(definition.starts_with("throughput of a link: bytes sent"), "{definition}");
    assert_eq!(browser.console(), Vec::<Value>::new());
}

#[test]
fn captions_of_heatmaps_lead_to_definitions() {
    let Some((browser, _root)) = open_report_of(sweep) else { return };
    let figures = browser.eval("return document.querySelectorAll('#overview figure').length");
    assert_eq!(targets(&browser, "#overview figcaption a"), json!([figures, figures]));
    assert_eq!(browser.console(), Vec::<Value>::new());
}

/// Creates a run with internal state of two congestion controls. Only `tested` has states, and therefore metrics.
fn with_cc_state(root: &Path) -> PathBuf {
    let run = RunDir::create(root, &info()).unwrap();
    let mut writer = begin(&run, 0, 1);
    fill(&mut writer, 0.0);
    let of_tested = ["mode", "inflight_hi_pkts", "bw_lo_kbps", "full_pipe", "cwnd_pkts"];
    let of_tested = of_tested.map(|variable| ("under_test/0", "tested", variable));
    for (flow_id, cc, variable) in of_tested.into_iter().chain([("cross/0", "other", "min_rtt_us")])
    {
        let row = wire::CcState {
            at_ns: T0_NS[0].1 + STEP_NS,
            flow_id: flow_id.into(),
            cc: cc.into(),
            variable: variable.into(),
            value: 3.0,
            ..Default::default()
        };
        push(&mut writer, "src", Payload::CcState(row));
    }
    writer.commit(&verdict(Status::Ok, &[])).unwrap();
    run.finish(RunStatus::Complete).unwrap();
    run.path().to_path_buf()
}

#[test]
fn panels_of_internal_state_lead_to_the_definitions_of_its_metrics() {
    let Some((browser, _root)) = open_report_of(with_cc_state) else { return };
    let links = browser.eval(
        "return [...document.querySelectorAll('#panels h3')].map(heading =>\
           [heading.textContent.split(',')[0], heading.querySelector('a')?.getAttribute('href') ?? ''])\
         .filter(([title]) => title.includes(': '))",
    );
    let expected = json!([
        ["other: min_rtt_us", ""],
        ["tested: bw_lo_kbps", "#definition-bbr_bw_shortterm"],
        ["tested: cwnd_pkts", "#definition-bbr_cwnd"],
        ["tested: full_pipe", "#definition-bbr_full_bw_reached"],
        ["tested: inflight_hi_pkts", "#definition-bbr_inflight_longterm"],
        ["tested: mode", "#definition-cc_state_time"],
    ]);
    assert_eq!(links, expected);
    let panels = browser.eval("return document.querySelectorAll('#panels h3').length - 1");
    assert_eq!(targets(&browser, "#panels h3 a"), json!([panels, panels]));
}

#[test]
fn the_live_page_has_the_definitions_of_the_report() {
    let root = tempfile::tempdir().unwrap();
    let list = |page: &str| {
        let (_, rest) = page.split_once("<ul class=\"definitions\">").unwrap();
        rest.split_once("</ul>").unwrap().0.to_owned()
    };
    let of_report = list(&render(&made_up(root.path())));
    assert!(of_report.contains("id=\"definition-srtt\""), "{of_report}");
    assert_eq!(list(&report::live_page("n")), of_report);
}
