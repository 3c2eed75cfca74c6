//! Tests metrics of the internal state of congestion controls, from the table `cc_state`.

use super::*;

/// Pushes one record: the number of the state, the highest bandwidth in kbit/s and `inflight_hi`.
fn push_state(writer: &mut TrialWriter<'_>, at_s: f64, round: u64, [mode, max_bw, hi]: [u32; 3]) {
    for (variable, value) in [("mode", mode), ("max_bw_kbps", max_bw), ("inflight_hi_pkts", hi)] {
        let row = wire::CcState {
            at_ns: at_ns(0, at_s),
            flow_id: "first/0".into(),
            group: "first".into(),
            cc: "tested".into(),
            algorithm: "bbr3".into(),
            round,
            variable: variable.into(),
            value: f64::from(value),
            ..Default::default()
        };
        push(writer, "src", Payload::CcState(row));
    }
}

#[test]
fn states_and_their_variables_are_metrics() {
    let root = tempfile::tempdir().unwrap();
    let summary = summary_with(root.path(), |writer| {
        push_flow(writer, "first", 0.0);
        push_state(writer, 1.0, 1, [0, 20_000, u32::MAX]);
        push_state(writer, 2.0, 4, [0, 38_000, u32::MAX]);
        push_state(writer, 2.5, 5, [1, 38_000, u32::MAX]);
        push_state(writer, 2.75, 5, [2, 38_000, u32::MAX]);
        push_state(writer, 4.0, 9, [6, 38_000, 33]);
        push_state(writer, 4.25, 11, [3, 38_000, 33]);
        push_state(writer, 11.0, 90, [3, 37_000, 30]);
        // Another congestion control has variables, but no states.
        let vegas = wire::CcState {
            at_ns: at_ns(0, 3.0),
            flow_id: "late/0".into(),
            group: "late".into(),
            variable: "min_rtt_us".into(),
            value: 20_000.0,
            ..Default::default()
        };
        push(writer, "src", Payload::CcState(vegas));
    });
    let of = |scope, subject, metric, stat| {
        let found = summary.summary.find(0, "both", scope, subject, metric, stat);
        found.map(|row| ((row.value * 1e3).round() / 1e3, row.n))
    };
    let group = |metric, stat| of(Scope::Group, "first", metric, stat);
    assert_eq!(group("cc_state_time", "STARTUP"), Some((1.5e6, 1)));
    assert_eq!(group("cc_state_time", "DRAIN"), Some((250_000.0, 1)));
    assert_eq!(group("cc_state_rounds", "DRAIN"), Some((0.0, 1)));
    assert_eq!(group("cc_state_rounds", "STARTUP"), Some((4.0, 1)));
    assert_eq!(group("cc_state_entries", "PROBE_RTT"), Some((1.0, 1)));
    assert_eq!(group("cc_state_entries", "UP"), Some((0.0, 1)));
    assert_eq!(group("cc_state_share", "CRUISE"), Some((0.675, 1)));
    assert_eq!(group("bbr_max_bw", "max_STARTUP"), Some((38e6, 2)));
    assert_eq!(group("bbr_max_bw", "end"), Some((37e6, 1)));
    assert_eq!(group("bbr_inflight_longterm", "begin_CRUISE"), Some((33.0, 1)));
    assert_eq!(group("bbr_inflight_longterm", "undefined"), Some((4.0, 7)));
    assert_eq!(of(Scope::Flow, "first/0", "bbr_inflight_longterm", "min"), Some((30.0, 3)));
    assert_eq!(of(Scope::Group, "late", "cc_state_time", "STARTUP"), None);
    assert_eq!(of(Scope::Group, "late", "bbr_min_rtt", "mean"), None);
    for row in summary.summary.phase_rows.iter().filter(|row| row.metric.starts_with("bbr_")) {
        let metric = find(row.metric, row.scope).unwrap_or_else(|| panic!("{row:?}"));
        assert!(metric.stats.contains(&row.stat), "{row:?}");
        assert_eq!(metric.unit_of(row.stat), row.unit, "{row:?}");
    }
}
