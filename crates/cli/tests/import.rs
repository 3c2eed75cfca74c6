//! Tests of `ccbench import`, from the output of other tools to a summary.

#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use ccbench_proto::metric::Scope;
use ccbench_results::TrialStatus;
use ccbench_results::model::TrialFilter;
use ccbench_results::store::RunDir;
use ccbench_results::summary::{Summary, compute};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

const UE1: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto/tests/tools/ue1-ss.txt"));
const UE2: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto/tests/tools/ue2-ss.txt"));
const FLENT: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto/tests/tools/rrul.flent"));
const QLOG: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto/tests/tools/quic.sqlog"));
/// The end of the study's iperf3 run, with one interval line added.
const IPERF: &str = "\
Connecting to host 10.203.1.3, port 5201
[  5] local 10.0.5.1 port 35788 connected to 10.203.1.3 port 5201
[ ID] Interval           Transfer     Bitrate         Retr
[  5]   0.00-20.00  sec  47.8 MBytes  20.0 Mbits/sec  736             sender
[  5]   0.00-20.00  sec  47.6 MBytes  20.0 Mbits/sec                  receiver
";

fn import(arguments: &[&Path], options: &[&str], output: &Path) -> i32 {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccbench"));
    command.arg("import").args(arguments).args(options).arg("--output").arg(output);
    let done = command.output().unwrap();
    println!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    done.status.code().unwrap()
}

fn mean(summary: &Summary, scope: Scope, subject: &str, metric: &str) -> Option<f64> {
    let phase = summary.phases.first()?;
    summary.find(0, phase, scope, subject, metric, "mean").map(|row| row.value)
}

#[test]
fn imports_excerpts_of_the_study_and_summarises_them() {
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("old");
    std::fs::create_dir(&old).unwrap();
    std::fs::write(old.join("low-ss-ue1.txt"), UE1).unwrap();
    std::fs::write(old.join("low-ss-ue2.txt"), format!("{UE2}how odd\n")).unwrap();
    std::fs::write(old.join("cubic-result-ue2.json"), IPERF).unwrap();
    let run = dir.path().join("run");
    assert_eq!(import(&[&old], &["--node", "router1"], &run), 0);

    let summary = compute(&RunDir::open(&run).unwrap(), TrialFilter::default()).unwrap();
    let srtt_ms = |group| mean(&summary, Scope::Group, group, "srtt").unwrap() / 1e3;
    assert!((srtt_ms("cubic") - (4.104 + 5.62) / 2.0).abs() < 1e-9);
    let throughput = mean(&summary, Scope::Group, "cubic", "throughput_sum").unwrap();
    assert!(
        (throughput - 47.6 * 8.0 * 1_048_576.0 / 20.0).abs() < 10.0,
        "20.0 Mbit/s: {throughput}"
    );

    let opened = RunDir::open(&run).unwrap();
    let trials = opened.trials();
    assert_eq!(trials[0].status, TrialStatus::Degraded);
    assert!(trials[0].reasons[0].message.starts_with("2 of "), "{:?}", trials[0].reasons);
    assert_eq!(trials[0].rows["flow_samples"], 7);
    let record: serde_json::Value =
        serde_json::from_slice(&std::fs::read(run.join("run.json")).unwrap()).unwrap();
    let imported = record["imported"].as_array().unwrap();
    assert_eq!(imported.len(), 3);
    assert_eq!(imported[2]["unread"], 2);
    assert_eq!(imported[2]["node"], "router1");
    // A second import does not mix with the first.
    assert_eq!(import(&[&old], &[], &run), 2);
}

#[test]
fn takes_phases_and_trials_from_options() {
    let dir = tempfile::tempdir().unwrap();
    let line = |second: u32, ms: u32| {
        format!(
            "{}.000000 tcp ESTAB 0 0 10.0.5.1:40000 10.0.3.1:5202 users:((\"iperf3\",pid=1,fd=5)) <->\n\
             {0}.000000 \t ts sack vegas wscale:7,7 rto:204 rtt:{ms}/1 cwnd:10 bytes_sent:{second} \
             bytes_acked:{second} minrtt:1\n",
            1_725_877_500 + second
        )
    };
    let paths: Vec<_> = (1..=2)
        .map(|trial| {
            let path = dir.path().join(format!("exp-{trial}-ss.txt"));
            let text: String =
                (0..20).map(|s| line(s, if s < 10 { 10 } else { 20 * trial })).collect();
            std::fs::write(&path, text).unwrap();
            path
        })
        .collect();
    let run = dir.path().join("run");
    let options =
        ["--trials", "--phase", "alone=10s", "--phase", "compete=10s", "--group", "5202=late"];
    assert_eq!(import(&[&paths[0], &paths[1]], &options, &run), 0);
    let summary = compute(&RunDir::open(&run).unwrap(), TrialFilter::default()).unwrap();
    assert_eq!(summary.phases, ["alone", "compete"]);
    let srtt = |phase| summary.find(0, phase, Scope::Group, "late", "srtt", "mean").unwrap();
    assert_eq!((srtt("alone").value, srtt("alone").n_trials), (10_000.0, 2));
    assert_eq!(srtt("compete").value, 30_000.0, "20 ms in the first trial, 40 in the second");
    assert_eq!(summary.planned, 2);
}

#[test]
fn files_of_flent_and_qlog_files_are_imported_also_compressed() {
    let dir = tempfile::tempdir().unwrap();
    let flent = dir.path().join("rrul.flent.gz");
    let mut packed = GzEncoder::new(std::fs::File::create(&flent).unwrap(), Compression::fast());
    packed.write_all(FLENT).unwrap();
    packed.finish().unwrap();
    let qlog = dir.path().join("server.sqlog");
    std::fs::write(&qlog, QLOG).unwrap();
    let run = dir.path().join("run");
    assert_eq!(import(&[&flent, &qlog], &["--node", "src"], &run), 0);
    let opened = RunDir::open(&run).unwrap();
    let end = &opened.trials()[0];
    assert_eq!(end.status, TrialStatus::Ok, "{:?}", end.reasons);
    // Three intervals of qlog and three of flent; a lost ping; two samples of each; three events of the sender.
    let rows = ["intervals", "probes", "flow_samples", "tcp_events"].map(|table| end.rows[table]);
    assert_eq!(rows, [2 + 3 + 3, 3, 4, 3]);
    let summary = compute(&opened, TrialFilter::default()).unwrap();
    let throughput = mean(&summary, Scope::Group, "TCP-download-BE", "throughput_sum").unwrap();
    assert!((10e6..20e6).contains(&throughput), "{throughput}");
    let srtt_us = mean(&summary, Scope::Group, "5ac1", "srtt").unwrap();
    assert!((srtt_us - 10_250.0).abs() < 1.0, "{srtt_us}");
    // A truncated file does not count as an empty one.
    let cut = dir.path().join("cut.flent.gz");
    std::fs::write(&cut, &std::fs::read(&flent).unwrap()[..100]).unwrap();
    assert_ne!(import(&[&cut], &[], &dir.path().join("cut")), 0);
}

#[test]
fn files_with_flents_own_names_are_trials_in_the_order_of_their_times() {
    let dir = tempfile::tempdir().unwrap();
    let names = [
        "ping-2014-10-17T091042.500000.flent",
        "rrul-2014-10-17T090042.516894.fq_codel.flent",
        "rrul-2014-10-17T090542.016894.flent",
    ];
    let text = String::from_utf8(FLENT.to_vec()).unwrap();
    let paths = names.map(|name| {
        // Files with the same content are refused.
        let text = text.replace("\"TITLE\": \"cubic\"", &format!("\"TITLE\": \"{name}\""));
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    });
    let run = dir.path().join("run");
    assert_eq!(import(&[&paths[0], &paths[1], &paths[2]], &["--trials"], &run), 0);
    let record: serde_json::Value =
        serde_json::from_slice(&std::fs::read(run.join("run.json")).unwrap()).unwrap();
    let imported = record["imported"].as_array().unwrap();
    let trials: Vec<u64> = imported.iter().map(|file| file["trial"].as_u64().unwrap()).collect();
    assert_eq!(trials, [3, 1, 2]);
}

#[test]
fn file_without_known_output_makes_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("notes.txt");
    std::fs::write(&file, "to do\n").unwrap();
    let run = dir.path().join("run");
    assert_eq!(import(&[&file], &[], &run), 2);
    assert!(!run.exists());
    assert_eq!(import(&[&dir.path().join("absent")], &[], &run), 2);
}

#[test]
fn trials_longer_than_a_week_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let sample = |second: u64| {
        format!(
            "{second}.000000 tcp ESTAB 0 0 10.0.5.1:40000 10.0.3.1:5202 users:((\"iperf3\",pid=1,fd=5)) <->\n\
             {second}.000000 \t ts sack vegas wscale:7,7 rto:204 rtt:10/1 cwnd:10 bytes_sent:1 bytes_acked:1 minrtt:1\n"
        )
    };
    let [week_s, begin_s] = [7 * 24 * 3600, 1_725_877_500];
    for (last_s, code) in [(3600, 0), (week_s, 2), (88_300_800, 2)] {
        let file = dir.path().join(format!("{last_s}-ss.txt"));
        std::fs::write(&file, sample(begin_s) + &sample(begin_s + last_s)).unwrap();
        assert_eq!(import(&[&file], &[], &dir.path().join(format!("run-{last_s}"))), code);
    }
    let file = dir.path().join("88300800-ss.txt");
    // Rows after the last phase belong to no phase.
    assert_eq!(import(&[&file], &["--phase", "a=10s"], &dir.path().join("phase")), 0);
    for phases in [["--phase", "a=20000h"], ["--phase", "a/b=1s"], ["--phase", "a=0s"]] {
        assert_eq!(import(&[&file], &phases, &dir.path().join("refused")), 2);
    }
    assert!(!dir.path().join("refused").exists());
    // A failed import leaves nothing that stops the next one.
    let output = dir.path().join("run-88300800");
    assert!(!output.exists());
    std::fs::create_dir(&output).unwrap();
    assert_eq!(import(&[&file], &[], &output), 2);
    assert_eq!(std::fs::read_dir(&output).unwrap().count(), 0);
    std::fs::write(output.join("mine"), "").unwrap();
    assert_eq!(import(&[&file], &[], &output), 2);
    assert!(output.join("mine").is_file());
}

#[test]
fn the_same_content_counts_once() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("a.json"), IPERF).unwrap();
    std::fs::write(at("copy-2.json"), IPERF).unwrap();
    let mut packed =
        GzEncoder::new(std::fs::File::create(at("a.json.gz")).unwrap(), Compression::fast());
    packed.write_all(IPERF.as_bytes()).unwrap();
    packed.finish().unwrap();
    let run = at("run");
    for files in [[at("a.json"), at("a.json.gz")], [at("a.json"), at("copy-2.json")]] {
        for options in [&[][..], &["--trials"]] {
            assert_eq!(import(&[&files[0], &files[1]], options, &run), 2, "{files:?}");
            assert!(!run.exists());
        }
    }
    let phases = ["--phase", "a=1s", "--phase", "a=1s"];
    assert_eq!(import(&[&at("a.json")], &phases, &run), 2);
    std::fs::write(at("run-70000.json"), IPERF).unwrap();
    assert_eq!(import(&[&at("run-70000.json")], &["--trials"], &run), 2);
    // Files without rows cannot count twice.
    std::fs::write(at("one.txt"), "to do\n").unwrap();
    std::fs::write(at("two.txt"), "to do\n").unwrap();
    assert_eq!(import(&[&at("a.json"), &at("one.txt"), &at("two.txt")], &[], &run), 0);
}

#[test]
fn what_only_senders_reported_is_exported_to_flent() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let interval = |second: u32| {
        format!(
            "{{\"streams\": [{{\"start\": {second}, \"end\": {}, \"seconds\": 1, \"bytes\": 1000000, \"sender\": true}}]}}",
            second + 1
        )
    };
    let intervals = (0..5).map(interval).collect::<Vec<_>>().join(", ");
    let report = format!("{{\"start\": {{}}, \"intervals\": [{intervals}], \"end\": {{}}}}");
    std::fs::write(at("client.json"), report).unwrap();
    assert_eq!(import(&[&at("client.json")], &[], &at("run")), 0);
    let mut export = Command::new(env!("CARGO_BIN_EXE_ccbench"));
    export.args(["export", "flent"]).arg(at("run")).arg("-o").arg(at("flent"));
    let done = export.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let packed = std::fs::File::open(at("flent").join("point-0-trial-01.flent.gz")).unwrap();
    let document: serde_json::Value = serde_json::from_reader(GzDecoder::new(packed)).unwrap();
    assert_eq!(document["metadata"]["SERIES_META"]["TCP upload::1"]["SIDE"], "snd");
    let rates = document["results"]["TCP upload::1"].as_array().unwrap();
    assert!(rates.iter().any(|rate| rate.as_f64() == Some(8.0)), "{rates:?}");
}
