//! Tests `ccbench artifact`: packs a simulated run, and runs it again from the archive alone.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ccbench_tests::snippets::{self, Snippet};
use ccbench_tests::{Bench, SETUP_TIMEOUT, binary, text, wait_for, without_variables_of_users};
use rustix::process::{Pid, Signal, kill_process};

use super::PLAN;

/// Packs both points of [`PLAN`] with two trials each, with a claim that holds and one that does not.
fn packed(bench: &Bench) -> String {
    let claim = |text: &str, bound: &str| {
        format!("[[expect]]\nclaim = \"{text}\"\nmetric = \"throughput\"\ngroup = \"f\"\n{bound}\n")
    };
    let plan = PLAN.replace("seed = 1", "seed = 1\nrepeat = 2")
        + &claim("fills the link", "above = \"10mbit\"")
        + &claim("is slow", "below = \"1mbit\"");
    let plan = bench.write("plan.toml", &plan).display().to_string();
    let done = bench.run(&["run", &plan, "--sim"]);
    assert_eq!(done.status.code(), Some(4), "one claim does not hold: {}", text(&done));
    let results = bench.results().display().to_string();
    let done = bench.run(&["artifact", "pack", &results, "-o", "a.tar.gz"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    bench.path("a.tar.gz").display().to_string()
}

/// Returns the directory that a rerun created.
fn unpacked(bench: &Bench) -> std::path::PathBuf {
    let dirs = std::fs::read_dir(bench.path("")).unwrap().map(|entry| entry.unwrap().path());
    let mut dirs = dirs.filter(|path| path.join("artifact.json").exists());
    dirs.next().unwrap()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn a_rerun_elsewhere_is_equal_and_each_claim_agrees() {
    let author = Bench::new();
    let archive = packed(&author);
    let reviewer = Bench::new();
    let done = reviewer.run(&["artifact", "rerun", &archive, "--jobs", "2"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let printed = String::from_utf8_lossy(&done.stdout).into_owned();
    let last = printed.lines().last().unwrap();
    assert!(last.starts_with("reproduced: ") && last.ends_with(" agree"), "{printed}");
    for item in ["verdicts: 4 of 4", "tables/flow_samples: 4 of 4 files", "summary_point.parquet"] {
        assert!(printed.contains(&format!("agrees   {item}")), "no {item}: {printed}");
    }
    let dir = unpacked(&reviewer);
    assert_eq!(name(&dir), name(&author.results()));
    for number in ["1", "2", "3", "4"] {
        let done = reviewer.run(&["artifact", "claim", &name(&dir), number]);
        assert_eq!(done.status.code(), Some(0), "claim {number}: {}", text(&done));
    }
    let done = reviewer.run(&["artifact", "claim", &name(&dir), "5"]);
    assert_eq!(done.status.code(), Some(2), "{}", text(&done));
    assert!(
        text(&done).contains("there is no claim 5; the artifact has 4, numbered from 1"),
        "{}",
        text(&done)
    );
    // It does not overwrite an unpacked one.
    let again = reviewer.run(&["artifact", "rerun", &archive]);
    assert_eq!(again.status.code(), Some(2), "{}", text(&again));
    assert!(text(&again).contains("or remove this earlier rerun"), "{}", text(&again));
}

/// Runs a shell's commands in the directory of a reviewer who has installed ccbench. Each must succeed. Returns what they print.
fn paste(reviewer: &Bench, commands: &str) -> String {
    let programs = binary("ccbench").parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(programs).chain(std::env::split_paths(&path)));
    let mut shell = Command::new("bash");
    let shell = without_variables_of_users(&mut shell).args(["-euo", "pipefail", "-c", commands]);
    let shell = shell.current_dir(reviewer.path(".")).env("PATH", path.unwrap());
    let shell = shell.env("CCBENCH_STATE", reviewer.path("state")).stdin(Stdio::null());
    let done = shell.output().unwrap();
    assert!(done.status.success(), "{commands}{}", text(&done));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Two reviewers follow the README: one has unpacked the archive to read it, the other has read it elsewhere.
#[test]
fn the_commands_of_the_readme_work_in_their_order() {
    let author = Bench::new();
    let archive = packed(&author);
    let name = name(&author.results());
    let readme = paste(&author, &format!("tar -xOf a.tar.gz {name}/README.md"));
    let blocks = snippets::of("README.md", &readme);
    assert!(blocks.iter().all(|block| block.language == "sh"), "{readme}");
    let commands: String = blocks.iter().map(|Snippet { text, .. }| text.as_str()).collect();
    let of_ccbench = snippets::commands(&commands);
    let of_ccbench = of_ccbench.iter().filter(|words| words[0] == "ccbench");
    let of_ccbench: Vec<String> = of_ccbench.map(|words| words[1..].join(" ")).collect();
    let first =
        [format!("verify {name}/run"), "artifact rerun $ARCHIVE --directory evaluation".to_owned()];
    let claims = (1..=4).map(|number| format!("artifact claim evaluation/{name} {number}"));
    assert_eq!(of_ccbench, first.into_iter().chain(claims).collect::<Vec<_>>(), "{readme}");
    for is_unpacked in [false, true] {
        let reviewer = Bench::new();
        std::fs::copy(&archive, reviewer.path(&format!("{name}.tar.gz"))).unwrap();
        if is_unpacked {
            paste(&reviewer, &format!("tar xf {name}.tar.gz\n"));
        }
        let printed = paste(&reviewer, &commands);
        assert!(printed.contains(", 0 damaged, "), "{printed}");
        assert!(printed.lines().any(|line| line.starts_with("reproduced: ")), "{printed}");
        assert!(printed.contains("agrees   claim 4, is slow"), "{printed}");
    }
}

#[test]
fn other_results_differ_with_exit_code_4() {
    let bench = Bench::new();
    let archive = packed(&bench);
    let done = bench.run(&["artifact", "rerun", &archive]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let dir = unpacked(&bench);
    std::fs::remove_dir_all(dir.join("rerun")).unwrap();
    let claim = |number: &str| bench.run(&["artifact", "claim", &name(&dir), number]);
    let done = claim("1");
    assert_eq!(done.status.code(), Some(2), "{}", text(&done));
    assert!(text(&done).contains("has no complete rerun"), "{}", text(&done));
    // At a tenth of the rate, the first claim does not hold.
    let plan = dir.join("run/plan.toml").display().to_string();
    let out = dir.join("rerun").display().to_string();
    let slower = ["--set", "links.bottleneck.rate=2mbit"];
    bench.run(&[&["run", &plan, "--sim", "--out", &out][..], &slower].concat());
    let done = claim("1");
    assert_eq!(done.status.code(), Some(4), "{}", text(&done));
    assert!(text(&done).contains("DIFFERS  claim 1, fills the link"), "{}", text(&done));
}

#[test]
fn a_rerun_that_prints_its_comparison_can_be_interrupted() {
    let author = Bench::new();
    let archive = packed(&author);
    let done = Bench::new().run(&["artifact", "rerun", &archive]);
    let begin = String::from_utf8_lossy(&done.stdout).find("agrees   ").unwrap();
    let comparison = done.stdout.len() - begin;
    let reviewer = Bench::new();
    // The comparison waits for room in this pipe. What is printed before it fits into the pipe's last page.
    let (_reader, mut almost_full) = std::io::pipe().unwrap();
    let bytes = rustix::pipe::fcntl_getpipe_size(&almost_full).unwrap();
    let room = begin + comparison / 2;
    assert!(room < 4096, "{}", text(&done));
    almost_full.write_all(&vec![b' '; bytes - room]).unwrap();
    let mut command = reviewer.command(&["artifact", "rerun", &archive]);
    let mut rerun = command.stdout(almost_full).stderr(Stdio::null()).spawn().unwrap();
    wait_for("the end of the trials", SETUP_TIMEOUT, || {
        let dirs = std::fs::read_dir(reviewer.path("")).unwrap().flatten();
        let runs = dirs.filter_map(|dir| std::fs::read_dir(dir.path().join("rerun")).ok());
        let runs = runs.flatten().flatten();
        let mut journals =
            runs.map(|run| std::fs::read_to_string(run.path().join("journal.ndjson")));
        journals.any(|journal| journal.is_ok_and(|text| text.contains("\"run_end\"")))
    });
    // The summary of the rerun, which can be interrupted too, is then complete.
    std::thread::sleep(Duration::from_secs(1));
    let pid = Pid::from_raw(i32::try_from(rerun.id()).unwrap()).unwrap();
    let mut status = None;
    wait_for("the end of the command", SETUP_TIMEOUT, || {
        kill_process(pid, Signal::INT).unwrap();
        status = rerun.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(130));
}

#[test]
fn archives_of_others_are_refused() {
    let bench = Bench::new();
    bench.write("text.tar.gz", "not an archive");
    let damaged = bench.run(&["artifact", "rerun", "text.tar.gz"]);
    assert_eq!(damaged.status.code(), Some(1), "{}", text(&damaged));
    let absent = bench.run(&["artifact", "rerun", "nowhere.tar.gz"]);
    assert_eq!(absent.status.code(), Some(2), "{}", text(&absent));
    let device = bench.run(&["artifact", "rerun", "/dev/zero"]);
    assert_eq!(device.status.code(), Some(2), "{}", text(&device));
    assert!(text(&device).contains("it is a device, not a regular file"), "{}", text(&device));
    let here = std::fs::read_dir(bench.path("")).unwrap().count();
    assert_eq!(here, 1, "nothing was unpacked");
}
