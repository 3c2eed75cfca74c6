//! Tests probes of every kind, and captures, from the plan to the results.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ccbench_shaper::capture::pcapng;
use ccbench_tests::cpu::CpuWatch;
use ccbench_tests::{Bench, SETUP_TIMEOUT, alone, beside_others, csv, text, wait_for};

/// A row of a CSV file, by column.
type Row = BTreeMap<String, String>;

/// The access link and page of the bufferbloat study, with a queue that holds a whole page and drops no packet of a probe.
const PLAN: &str = r#"
name = "page"

[nodes]
src = {}
router = {}
dst = {}

[wires]
path = ["src", "router", "dst"]

[links.down]
node = "router"
toward = "src"
rate = "1.5mbit"
queue = { kind = "bfifo", limit = "302800B" }

[probes.page]
kind = "http"
from = "src"
to = "dst"
bytes = "177669B"
repeat = "back-to-back"
cc = "reno"

[probes.once]
kind = "http"
from = "src"
to = "dst"
bytes = "1000B"
repeat = "once"
start = "1s"

[probes.connect]
kind = "tcp_connect"
from = "src"
to = "dst"
every = "200ms"

[probes.rtt]
kind = "ping"
from = "src"
to = "dst"
every = "200ms"
tos = 1

[probes.udp]
kind = "udp"
from = "src"
to = "dst"
every = "200ms"
tos = 1

[capture.page]
node = "src"
toward = "dst"
snap = "64B"

[capture.ring]
node = "dst"
toward = "src"
snap = "1514B"
size = "100kB"
files = 3

[[phases]]
name = "all"
length = "4s"
"#;

/// Returns the number of TCP segments with data from the web server's port, in frames that were truncated after their headers.
fn data_segments(packets: &[pcapng::Packet<'_>]) -> usize {
    let is_data = |p: &&pcapng::Packet<'_>| {
        let ip = p.bytes.get(14..).unwrap_or_default();
        let from_server =
            ip.get(20..22).is_some_and(|port| u16::from_be_bytes([port[0], port[1]]) >= 6400);
        ip.get(9) == Some(&6) && from_server && p.length > 100
    };
    packets.iter().filter(is_data).count()
}

/// Returns how many packets another program finds in a capture.
fn read_by_tcpdump(file: &Path) -> usize {
    let done = Command::new("tcpdump").args(["-nnqr", &file.to_string_lossy()]).output();
    let done = done.expect("tcpdump is installed (make test does it)");
    assert!(done.status.success(), "{}", text(&done));
    String::from_utf8_lossy(&done.stdout).lines().count()
}

#[test]
fn every_probe_measures_and_its_packets_are_captured() {
    let _alone = alone();
    let bench = Bench::new();
    let plan = bench.write("plan.toml", PLAN);
    let watch = CpuWatch::start();
    let output = bench.run(&["run", &plan.to_string_lossy()]);
    let cpu = watch.report();
    let has_run = || assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    if cpu.check_run(&bench.all_results(), has_run).is_none() {
        return;
    }
    let results = bench.results();
    let rows = csv(&results.join("summary_phase.csv"));
    let of = |subject, metric, stat, column| {
        let wanted = [("subject", subject), ("metric", metric), ("stat", stat)];
        let fits = |row: &&Row| wanted.iter().all(|(name, value)| row[*name] == *value);
        let found: Vec<&Row> = rows.iter().filter(fits).collect();
        assert_eq!(found.len(), 1, "{metric} of {subject}: {}", text(&output));
        found[0][column].parse::<f64>().unwrap()
    };
    for probe in ["connect", "rtt", "udp"] {
        assert!(of(probe, "rtt", "median", "value") > 0.0);
    }
    assert!(String::from_utf8_lossy(&output.stdout).contains("first byte ms"), "{}", text(&output));
    if rows.iter().any(|row| row["subject"] == "page" && row["metric"] == "fetch_time") {
        let page = |metric, stat| of("page", metric, stat, "value");
        // 177 669 bytes in 123 segments of 1514 bytes take at least this long at 1.5 Mbit/s.
        assert!(page("fetch_time", "min") > 0.95e6);
        assert!(page("first_byte_time", "mean") < page("fetch_time", "mean"));
    }

    let raw = results.join("raw/point=0/trial-01");
    let file = std::fs::read(raw.join("src/capture-page.pcapng")).unwrap();
    let packets = pcapng::read(&file).unwrap();
    assert!(packets.iter().all(|packet| packet.bytes.len() <= 64));
    let segments = data_segments(&packets);
    let times: Vec<u64> = packets.iter().map(|packet| packet.at_ns).collect();
    assert!(times.windows(2).filter(|pair| pair[0] > pair[1]).count() * 100 < times.len());
    assert_eq!(read_by_tcpdump(&raw.join("src/capture-page.pcapng")), packets.len());
    let ring: Vec<_> = std::fs::read_dir(raw.join("dst")).unwrap().flatten().collect();
    for entry in &ring {
        let bytes = std::fs::read(entry.path()).unwrap();
        let packets = pcapng::read(&bytes).unwrap().len();
        assert!(bytes.len() <= 101_000 && packets > 0);
        assert_eq!(read_by_tcpdump(&entry.path()), packets, "{entry:?}");
    }
    assert!(bench.processes().is_empty(), "left: {:?}", bench.processes());
    // A fetch takes 1 s, so four fit in the phase.
    let complete = cpu.check(Duration::from_secs(1), || {
        let fetches = of("page", "fetch_time", "mean", "n");
        assert!(fetches >= 2.0, "back to back");
        assert!(segments >= fetches as usize * 123, "{segments} of {} packets", packets.len());
        assert_eq!(of("once", "fetch_time", "mean", "n"), 1.0);
        // 600 kB passed. Of files of 100 kB, the last three are kept.
        assert_eq!(ring.len(), 3, "{ring:?}");
    });
    if complete.is_none() {
        return;
    }
    // An echo is lost after 1 s. Half of that is the delay of a queue that a page fills.
    cpu.check(Duration::from_millis(400), || {
        for probe in ["connect", "rtt", "udp"] {
            assert_eq!(of(probe, "loss_share", "mean", "value"), 0.0, "{probe}");
        }
    });
}

#[test]
fn killed_controller_leaves_no_process() {
    let _beside = beside_others();
    let bench = Bench::new();
    let plan = bench.write("plan.toml", &PLAN.replace("length = \"4s\"", "length = \"60s\""));
    let mut child = bench.spawn(&["run", &plan.to_string_lossy()]);
    let listens = || {
        bench.processes().iter().any(|(pid, _)| {
            let tasks =
                std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            tasks.into_iter().any(|task| {
                std::fs::read_to_string(task.path().join("comm"))
                    .is_ok_and(|name| name.starts_with("capture-"))
            })
        })
    };
    wait_for("a capture", SETUP_TIMEOUT, listens);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("the end of everything", Duration::from_secs(10), || bench.processes().is_empty());
}

#[test]
fn failed_fetch_degrades_the_trial() {
    let _alone = alone();
    let bench = Bench::new();
    let head = PLAN.split("[probes.page]").next().unwrap();
    // A page takes 950 ms. A connection, which takes no time, and the end of a fetch each have half a second to spare.
    let plan = format!(
        "{head}[probes.page]\nkind = \"http\"\nfrom = \"src\"\nto = \"dst\"\nbytes = \"177669B\"\ntimeout = \"500ms\"\n\
         every = \"1s\"\n\n[[phases]]\nname = \"all\"\nlength = \"2s\"\n"
    );
    let plan = bench.write("plan.toml", &plan);
    let output = bench.run(&["run", "--strict", &plan.to_string_lossy()]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let trials = std::fs::read_to_string(bench.results().join("trials.csv")).unwrap();
    assert!(
        trials.contains(
            "probe_dead: page: none of 2 http probes was answered; first error: fetch from"
        ),
        "{trials}"
    );
}

/// Both directions together take 1.2 s. The last answers arrive 2.3 s after the trial, through links that no node may have removed.
const LONG: &str = r#"
name = "long"
repeat = 1

[nodes]
src = {}
dst = {}

[wires]
path = ["src", "dst"]

[links.there]
node = "src"
toward = "dst"
delay = "1200ms"

[links.back]
node = "dst"
toward = "src"
delay = "1200ms"

[probes.rtt]
kind = "ping"
from = "src"
to = "dst"
every = "100ms"
timeout = "10s"

[[phases]]
name = "all"
length = "1s"
"#;

#[test]
fn echoes_arrive_after_the_trial() {
    let _beside = beside_others();
    let bench = Bench::new();
    let plan = bench.write("plan.toml", LONG);
    let watch = CpuWatch::start();
    let output = bench.run(&["run", &plan.to_string_lossy()]);
    let cpu = watch.report();
    // One of the few packets may leave late. Summaries omit failed trials.
    let has_run = || assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    if cpu.check_run(&bench.all_results(), has_run).is_none() {
        return;
    }
    let rows = csv(&bench.results().join("summary_phase.csv"));
    let of = |metric: &str, stat: &str| {
        let mut found = rows.iter().filter(|row| row["subject"] == "rtt");
        let row = found.find(|row| row["metric"] == metric && row["stat"] == stat).unwrap();
        (row["value"].parse::<f64>().unwrap(), row["n"].parse::<u32>().unwrap())
    };
    let (least_us, answered) = of("rtt", "min");
    assert!(least_us >= 2.4e6, "{}", text(&output));
    assert_eq!(of("loss_share", "mean"), (0.0, answered), "{}", text(&output));
    assert!(bench.processes().is_empty(), "left: {:?}", bench.processes());
}
