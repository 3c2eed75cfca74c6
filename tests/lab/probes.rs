//! Tests probes of every kind, and captures, in both engines. With uml, the packets of one seed are the same to the byte.

use ccbench_shaper::capture::pcapng;
use ccbench_tests::run_files::{Contents, assert_equal, tables};
use ccbench_tests::{Bench, csv, text};

use crate::{exported, plan};

/// Those with a round trip or a duration.
const PROBES: [&str; 4] = ["page", "connect", "rtt", "udp"];
const SECTIONS: &str = r#"
[probes.page]
kind = "http"
from = "a"
to = "b"
bytes = "20000B"
repeat = "back-to-back"

[probes.connect]
kind = "tcp_connect"
from = "a"
to = "b"
every = "200ms"

[probes.rtt]
kind = "ping"
from = "a"
to = "b"
every = "200ms"

[probes.udp]
kind = "udp"
from = "a"
to = "b"
every = "200ms"

[probes.stream]
kind = "udp_stream"
from = "a"
to = "b"
rate = "1mbit"

[capture.sent]
node = "a"
toward = "b"
snap = "96B"

[capture.received]
node = "b"
toward = "a"
snap = "96B"
"#;

/// Returns the tables of a run, and its captures.
fn run(engine: &[&str]) -> Contents {
    let bench = Bench::new();
    let path = bench.write("plan.toml", &(plan(1) + SECTIONS)).display().to_string();
    let done = bench.run(&[&["run", &path, "--lab"], engine].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let rows = csv(&bench.results().join("summary_phase.csv"));
    for probe in PROBES {
        let values = rows.iter().filter(|row| row["subject"] == probe);
        let measured = |value: &str| value.parse::<f64>().is_ok_and(|value| value > 0.0);
        assert!(values.clone().any(|row| measured(&row["value"])), "{probe}: {}", text(&done));
    }
    let rows = exported(&bench, "probes");
    let of_stream = rows.iter().filter(|row| row["probe_id"] == "stream");
    let bytes: Vec<u64> = of_stream.map(|row| row["bytes"].parse().unwrap()).collect();
    // One Mbit/s for three seconds, less two round trips.
    let sum: u64 = bytes.iter().sum();
    assert!((300_000..=375_000).contains(&sum), "{bytes:?}");
    let mut found = tables(&bench);
    for (node, capture) in [("a", "sent"), ("b", "received")] {
        let file = format!("raw/point=0/trial-01/{node}/capture-{capture}.pcapng");
        let bytes = std::fs::read(bench.results().join(&file)).unwrap();
        let packets = pcapng::read(&bytes).unwrap();
        // The flow alone sends 800 packets in a second.
        assert!(packets.len() > 1000, "{file}: {} packets", packets.len());
        assert!(packets.iter().all(|packet| packet.bytes.len() <= 96));
        found.insert(file, bytes);
    }
    found
}

#[test]
fn every_probe_measures_and_its_packets_are_captured() {
    let uml: &[&str] = &["--engine", "uml"];
    assert_equal(&run(uml), &run(uml));
}

#[test]
fn every_probe_measures_and_its_packets_are_captured_in_qemu() {
    run(&["--engine", "qemu", "--dilation", "5"]);
}
