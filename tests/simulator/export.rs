//! Exports of a simulated run.

use serde_json::Value;

use super::run;
use ccbench_tests::text;

/// Every acknowledgement is a source of metrics, and the events of sockets one of states and losses.
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
