//! Tests the simulator: trials without a kernel. No test needs root or the lab.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::Write as _;
use std::process::Stdio;
use std::sync::LazyLock;

use ccbench_tests::run_files::{Contents, assert_equal, edit_record, tables, tables_and_summaries};
use ccbench_tests::{Bench, SETUP_TIMEOUT, csv, text, wait_for};
use rustix::process::{Pid, Signal, kill_process};

mod artifact;
mod columns;
mod compare;
mod conformance;
mod export;
mod packets;
mod probes;
mod record;
mod repeat;
mod scorecard;
mod shards;
mod sweep;
mod urls;

/// CUBIC and then BBR over a bottleneck of 20 Mbit/s, 10 ms each way.
const PLAN: &str = r#"
name = "simulated"
seed = 1
[nodes]
src = {}
router = {}
dst = {}
[wires]
path = ["src", "router", "dst"]
[links.bottleneck]
node = "router"
toward = "dst"
rate = "20mbit"
delay = "10ms"
queue = { kind = "bfifo", limit = "75000B" }
[links.back]
node = "router"
toward = "src"
delay = "10ms"
[flows.f]
from = "src"
to = "dst"
[probes.rtt]
kind = "ping"
from = "src"
to = "dst"
every = "200ms"
[[phases]]
name = "only"
length = "3s"
flows = ["f"]
[matrix]
"flows.f.cc" = ["cubic", "bbr"]
"#;

/// Writes the plan with this number of trials of each point. Returns the file.
fn plan_file(bench: &Bench, repeat: u32) -> String {
    let text = PLAN.replace("seed = 1", &format!("seed = 1\nrepeat = {repeat}"));
    bench.write("plan.toml", &text).display().to_string()
}

/// Makes a finished run whose trials are all ok.
fn run(repeat: u32, arguments: &[&str]) -> (Bench, String) {
    let bench = Bench::new();
    let plan = plan_file(&bench, repeat);
    let done = bench.run(&[&["run", &plan, "--sim"], arguments].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let trials = csv(&bench.results().join("trials.csv"));
    assert_eq!(trials.len(), 2 * repeat as usize);
    assert!(trials.iter().all(|trial| trial["status"] == "ok"), "{}", text(&done));
    (bench, text(&done))
}

/// Enough repetitions that a run has not ended when a test interrupts it after two trials.
const MANY: u32 = 30;

/// The tables of such a run without interruption.
static UNINTERRUPTED: LazyLock<Contents> = LazyLock::new(|| tables(&run(MANY, &[]).0));

#[test]
fn a_run_that_prints_its_table_can_be_interrupted() {
    let bench = Bench::new();
    let plan = plan_file(&bench, 1);
    // The table waits for room in this pipe.
    let (_reader, mut full) = std::io::pipe().unwrap();
    let bytes = rustix::pipe::fcntl_getpipe_size(&full).unwrap();
    full.write_all(&vec![b' '; bytes]).unwrap();
    let mut command = bench.command(&["run", &plan, "--sim"]);
    let mut run = command.stdout(full).stderr(Stdio::null()).spawn().unwrap();
    wait_for("the end of the trials", SETUP_TIMEOUT, || {
        let journal = |dir: std::path::PathBuf| std::fs::read_to_string(dir.join("journal.ndjson"));
        let mut journals = bench.all_results().into_iter().map(journal);
        journals.any(|journal| journal.is_ok_and(|text| text.contains("\"run_end\"")))
    });
    let pid = Pid::from_raw(i32::try_from(run.id()).unwrap()).unwrap();
    let mut status = None;
    // The command may not yet have come to the table.
    wait_for("the end of the command", SETUP_TIMEOUT, || {
        kill_process(pid, Signal::INT).unwrap();
        status = run.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(130));
}

#[test]
fn fills_the_bottleneck_and_the_verdict_is_ok() {
    let (bench, printed) = run(1, &[]);
    assert!(printed.contains("note: simulated: model "), "{printed}");
    let record = std::fs::read_to_string(bench.results().join("run.json")).unwrap();
    assert!(record.contains("\"simulated: model "), "{record}");
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["topology"]["nodes"]["src"]["interfaces"][0]["peer"], "router");
    let rows = csv(&bench.results().join("summary_phase.csv"));
    let value = |point: &str, metric: &str| {
        let wanted =
            [("point_id", point), ("scope", "group"), ("metric", metric), ("stat", "mean")];
        let row =
            rows.iter().find(|row| wanted.iter().all(|(column, value)| row[*column] == *value));
        let row = row.unwrap_or_else(|| panic!("no {metric} of point {point}"));
        row["value"].parse::<f64>().unwrap()
    };
    for (point, cc) in [("0", "cubic"), ("1", "bbr")] {
        // 1448 of 1514 bytes are payload. Start and first recovery take some tenths of a second.
        let goodput = value(point, "throughput_sum") / 20e6;
        assert!((0.75..0.96).contains(&goodput), "{cc}: {goodput} of the rate");
        // Both delays, and at most a full queue (30 ms) plus a packet on the line.
        let srtt_ms = value(point, "srtt") / 1e3;
        assert!((20.0..51.0).contains(&srtt_ms), "{cc}: {srtt_ms} ms");
    }
    assert!(rows.iter().any(|row| row["subject"] == "rtt"), "the probe has rows");
    let verified = bench.run(&["verify", &bench.results().display().to_string()]);
    assert_eq!(verified.status.code(), Some(0), "{}", text(&verified));
}

#[test]
fn two_runs_are_equal_for_any_number_of_jobs() {
    let files = |jobs: &str| tables_and_summaries(&run(2, &["--jobs", jobs]).0);
    let one = files("1");
    for table in ["flow_samples", "intervals", "flows", "qdisc_samples", "probes", "events"] {
        assert!(one.keys().any(|name| name.starts_with(table)), "{table}: {:?}", one.keys());
    }
    assert_equal(&one, &files("1"));
    assert_equal(&one, &files("2"));
    assert_equal(&one, &files("4"));
}

#[test]
fn another_seed_is_another_trial() {
    let (bench, _) = run(2, &[]);
    let rows = csv(&bench.results().join("summary_phase.csv"));
    let srtt = |trial: &str| {
        let is = |row: &&std::collections::BTreeMap<String, String>| {
            (row["trial"].as_str(), row["point_id"].as_str()) == (trial, "0")
                && (row["metric"].as_str(), row["stat"].as_str()) == ("srtt", "std")
        };
        rows.iter().find(is).unwrap()["value"].clone()
    };
    assert_ne!(srtt("1"), srtt("2"));
}

/// Ctrl-C discards the running trials. The resumed run has the results of an uninterrupted one.
#[test]
fn an_interrupted_run_is_resumed() {
    let bench = Bench::new();
    let plan = plan_file(&bench, MANY);
    let mut controller = bench.spawn(&["run", &plan, "--sim", "--jobs", "1"]);
    let committed = || {
        let dir = bench.all_results().into_iter().next().unwrap_or_default();
        let journal = std::fs::read_to_string(dir.join("journal.ndjson")).unwrap_or_default();
        journal.matches("\"trial_end\"").count() >= 2
    };
    wait_for("two trials", SETUP_TIMEOUT, committed);
    let pid = Pid::from_raw(i32::try_from(controller.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let status = controller.wait().unwrap();
    let printed = bench.printed();
    assert_eq!(status.code(), Some(130), "{printed}");
    let dir = bench.results().display().to_string();
    let in_lab = bench.run(&["run", "--resume", &dir, "--lab"]);
    assert_eq!(in_lab.status.code(), Some(2), "{}", text(&in_lab));
    assert!(text(&in_lab).contains("this run was simulated; leave out --lab"), "{}", text(&in_lab));
    let status = |status: &str| {
        let report = std::fs::read_to_string(bench.results().join("report.html")).unwrap();
        report.contains(&format!("\"status\":\"{status}\",\"planned\""))
    };
    let report = bench.run(&["report", &dir]);
    assert_eq!(report.status.code(), Some(0), "{}", text(&report));
    assert!(status("interrupted"));
    // The command as it was printed. The directory knows that the run is simulated.
    let advice =
        printed.lines().find_map(|line| line.trim_end().strip_prefix("resume with: ccbench "));
    let resumed = bench.run(&advice.unwrap().split(' ').collect::<Vec<_>>());
    assert_eq!(resumed.status.code(), Some(0), "{}", text(&resumed));
    assert!(text(&resumed).contains("report.html: written again"), "{}", text(&resumed));
    assert!(status("complete"));
    // `trials.csv` also has the interrupted trial.
    assert_equal(&tables(&bench), &UNINTERRUPTED);
}

/// The reader of the log may leave (`2>&1 | head -1`); the run must go on.
#[test]
fn a_closed_standard_error_does_not_end_a_run() {
    let bench = Bench::new();
    let plan = plan_file(&bench, 1);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = bench.command(&["run", &plan, "--sim", "-v"]);
    let done = command.stderr(writer).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let journal = std::fs::read_to_string(bench.results().join("journal.ndjson")).unwrap();
    assert!(journal.contains("run_end"), "{journal}");
}

/// Trials of another backend or model are not repetitions of the same point.
#[test]
fn a_run_of_another_backend_or_model_is_not_resumed() {
    let (bench, _) = run(1, &[]);
    let file = bench.results().join("run.json");
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(record["backend"]["kind"], "simulator");
    let resume = |record: &serde_json::Value, options: &[&str]| {
        edit_record(&bench.results(), |old| old.clone_from(record));
        let dir = bench.results().display().to_string();
        let done = bench.run(&[&["run", "--resume", &dir][..], options].concat());
        (done.status.code(), text(&done))
    };
    let mut other = record.clone();
    other["backend"]["model_version"] = 1.into();
    let (code, printed) = resume(&other, &["--sim"]);
    assert_eq!(code, Some(2), "{printed}");
    assert!(printed.contains("with another version of the model"), "{printed}");
    other["backend"] = serde_json::json!({ "kind": "testbed" });
    let (code, printed) = resume(&other, &["--sim"]);
    assert_eq!(code, Some(2), "{printed}");
    assert!(printed.contains("this run was not simulated; leave out --sim"), "{printed}");
    // For a run of an earlier version, there is only a note.
    let mut earlier = record;
    earlier.as_object_mut().unwrap().remove("backend");
    for options in [&[][..], &["--sim"]] {
        let (code, printed) = resume(&earlier, options);
        assert_eq!(code, Some(0), "{printed}");
        assert!(printed.contains("nothing is left to run"), "{printed}");
    }
}

/// The simulator reports the ECN mode of both ends like an agent, and the verdict draws the same conclusions.
#[test]
fn ecn_that_is_off_degrades_those_that_count_marks() {
    let text_of = |sysctl: &str| {
        PLAN.replace("dst = {}", &format!("dst = {{ {sysctl} }}"))
            .replace("kind = \"bfifo\", limit = \"75000B\"", "kind = \"dualpi2\"")
            .replace("[\"cubic\", \"bbr\"]", "[\"d\", \"p\", \"cubic\"]")
            + "[cc.d]\nalgorithm = \"dctcp\"\n[cc.p]\nalgorithm = \"prague\"\n"
    };
    // Returns the codes of the reasons of each trial, in order, and the output.
    let run = |sysctl: &str| {
        let bench = Bench::new();
        let plan = bench.write("plan.toml", &text_of(sysctl)).display().to_string();
        let printed = text(&bench.run(&["run", &plan, "--sim"]));
        let trials = csv(&bench.results().join("trials.csv"));
        let mut reasons: Vec<_> =
            trials.iter().map(|trial| trial["reasons"].replace('"', "")).collect();
        reasons.sort_unstable();
        (reasons, printed)
    };
    let (reasons, printed) = run("");
    assert_eq!(reasons, [""; 3], "{printed}");
    let (reasons, printed) = run("sysctl = { \"net.ipv4.tcp_ecn\" = 0 }");
    let codes: Vec<_> = reasons.iter().map(|reason| reason.split(':').next()).collect();
    assert_eq!(codes, ["", "ecn_fallback", "ecn_fallback"].map(Some), "{printed}");
    for asked in ["d requested dctcp_feedback", "p requested accecn"] {
        let why = "dst uses none: the plan sets tcp_ecn = 0 on this node";
        assert!(printed.contains(&format!("flows.f: {asked}, {why}")), "{printed}");
    }
}
