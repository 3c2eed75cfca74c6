//! Tests exports of a simulated run.

use std::collections::BTreeMap;

use serde_json::Value;

use super::run;
use ccbench_tests::{csv, text};

/// Every acknowledgement gives metrics, and the events of sockets give states and losses.
#[test]
fn a_simulated_run_is_exported_as_qlog() {
    let (bench, _) = run(1, &["--set", "sample.acks=every-ack"]);
    let dir = bench.results().display().to_string();
    let done = bench.run(&["export", "qlog", &dir, "-o", "qlog"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    for point in [0, 1] {
        let file = bench.path(&format!("qlog/point-{point}-trial-01-f-0.qlog"));
        let file: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let events = file["traces"][0]["events"].as_array().unwrap();
        let of = |name: &str| events.iter().filter(|event| event["name"] == name).count();
        // Samples come every 10 ms, acknowledgements every millisecond.
        assert!(of("recovery:metrics_updated") > 1000, "point {point}");
        // The slow start of CUBIC ends with a full queue.
        let states = events.iter().filter(|event| event["data"]["new"] == "recovery");
        let has_losses = states.count() > 0 && of("recovery:packet_lost") > 0;
        assert!(has_losses || point == 1, "point {point}");
    }
}

#[test]
fn an_export_says_that_it_replaced_files() {
    let (bench, _) = run(1, &[]);
    let dir = bench.results().display().to_string();
    let export = || {
        let done = bench.run(&["export", "csv", &dir, "--table", "points", "-o", "tables"]);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
        text(&done)
    };
    let first = export();
    assert!(!first.contains("replaced"), "{first}");
    let second = export();
    assert!(second.contains("tables: replaced 1 existing file\n"), "{second}");
}

/// However seldom counters are read, the last reading counts.
#[test]
fn the_summary_has_what_the_tables_count_until_the_end() {
    for every in ["100ms", "2s"] {
        let [qdisc, tcp] = ["qdisc", "tcp"].map(|key| format!("sample.{key}={every}"));
        let sets = ["--set", "links.bottleneck.loss=1%", "--set", &qdisc, "--set", &tcp];
        let (bench, _) = run(1, &sets);
        let dir = bench.results().display().to_string();
        let done = bench.run(&["export", "csv", &dir, "-o", "tables"]);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
        let summary = csv(&bench.results().join("summary_phase.csv"));
        for (table, key, subject, column, metric) in [
            ("qdisc_samples", "link", "bottleneck", "drops_pkts", "drops"),
            ("flow_samples", "flow_id", "f/0", "total_retrans_pkts", "retransmissions"),
        ] {
            let rows = csv(&bench.path(&format!("tables/{table}.csv")));
            for point in ["0", "1"] {
                let of_point =
                    rows.iter().filter(|row| row["point_id"] == point && row[key] == subject);
                let counted =
                    of_point.filter_map(|row| row[column].parse::<f64>().ok()).fold(0.0, f64::max);
                let wanted = [("point_id", point), ("subject", subject), ("metric", metric)];
                let is_wanted = |row: &&BTreeMap<String, String>| {
                    wanted.iter().all(|(name, value)| row[*name] == *value)
                };
                let found =
                    summary.iter().find(is_wanted).map(|row| row["value"].parse::<f64>().unwrap());
                assert!(
                    counted > 10.0 && found == Some(counted),
                    "{every}, {point}: {found:?}, not {counted} {metric}"
                );
            }
        }
    }
}
