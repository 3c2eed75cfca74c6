//! Tests commands that read a run in a bucket or in a directory of shards.

use std::path::{Path, PathBuf};
use std::process::Output;

use ccbench_tests::run_files::{Contents, assert_equal};
use ccbench_tests::s3::S3Server;
use ccbench_tests::{Bench, csv, text};

use super::plan_file;
use super::shards::{REPEAT, WHOLE, count, merge, shard, three};

/// Runs `ccbench ARGUMENTS` with its own run cache.
fn read(bench: &Bench, arguments: &[&str], server: Option<&S3Server>) -> Output {
    let mut command = bench.command(arguments);
    command.env("XDG_CACHE_HOME", bench.path("cache"));
    if let Some(server) = server {
        command.envs(server.environment());
    }
    command.output().unwrap()
}

/// Returns the copies in the run cache.
fn copies(bench: &Bench) -> Vec<PathBuf> {
    let folders = |path: PathBuf| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<PathBuf>>()
    };
    let locations = folders(bench.path("cache/ccbench/runs")).into_iter();
    locations.flat_map(folders).flat_map(folders).collect()
}

/// Checks that the files of the summary in a folder are those of a run on one machine.
fn assert_summary(folder: &Path) {
    let names =
        ["trials", "points", "summary_phase", "summary_point"].map(|name| format!("{name}.csv"));
    let of = |name: &String| (name.clone(), std::fs::read(folder.join(name)).unwrap());
    let found: Contents = names.iter().map(of).collect();
    for (name, bytes) in &found {
        assert!(WHOLE.with_summaries.get(name) == Some(bytes), "{name} differs");
    }
}

/// Returns a table from `export csv`.
fn exported(bench: &Bench, run: &str, output: &str, server: Option<&S3Server>) -> Vec<u8> {
    let done =
        read(bench, &["export", "csv", run, "--table", "flow_samples", "--output", output], server);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    std::fs::read(bench.path(output).join("flow_samples.csv")).unwrap()
}

#[test]
fn commands_read_a_bucket() {
    let Some(server) = S3Server::start() else { return };
    server.create_bucket("ccbench");
    let bench = Bench::new();
    let plan = plan_file(&bench, REPEAT);
    let url = "s3://ccbench/runs/one";
    for number in 1..=3 {
        let number = format!("{number}/3");
        let arguments = ["run", &plan, "--sim", "--shard", &number, "--out", url];
        let done = read(&bench, &arguments, Some(&server));
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    }
    let reads = |arguments: &[&str], code: i32| {
        let done = read(&bench, arguments, Some(&server));
        assert_eq!(done.status.code(), Some(code), "{arguments:?}: {}", text(&done));
        text(&done)
    };
    let printed = reads(&["summarize", url], 0);
    assert!(!printed.contains("are missing"), "{printed}");
    assert!(printed.contains(&format!("the run stays at {url}, ")), "{printed}");
    let kept = copies(&bench);
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(!kept[0].join("summary_point.csv").exists(), "nothing is written beside a copy");
    reads(&["summarize", url, "--output", "summary"], 0);
    assert_summary(&bench.path("summary"));
    let refused = reads(&["report", url], 2);
    assert!(refused.contains("add --output report.html"), "{refused}");
    reads(&["report", url, "--output", "report.html"], 0);
    assert!(std::fs::metadata(bench.path("report.html")).unwrap().len() > 10_000);
    let refused = reads(&["plot", url, "--kind", "phases"], 2);
    assert!(refused.contains("add --output figures"), "{refused}");
    reads(&["plot", url, "--kind", "phases", "--format", "svg", "--output", "figures"], 0);
    assert!(count(&bench.path("figures")) > 0);
    reads(&["artifact", "pack", url, "--output", "artifact.tar.gz"], 0);
    let verified = reads(&["verify", url], 0);
    assert!(verified.contains(&format!("{url}: {} trials; ", 2 * REPEAT)), "{verified}");
    assert_eq!(copies(&bench), kept, "one copy for all commands");
    // The same shards, merged.
    reads(&["merge", url], 0);
    let merged = bench.results().display().to_string();
    assert!(!reads(&["summarize", &merged], 0).contains("run cache"), "no copy");
    let compared = reads(&["compare", url, &merged], 0);
    assert!(!compared.contains("does not agree"), "{compared}");
    let summary = reads(&["export", "csv", url, "--table", "summary_point", "--output", "-"], 0);
    assert!(summary.contains("throughput_sum"), "{summary}");
    let one = exported(&bench, url, "one", Some(&server));
    assert!(one == exported(&bench, &merged, "other", None), "the exported rows differ");
    let nothing = reads(&["summarize", "s3://ccbench/runs/two"], 2);
    assert!(nothing.contains("s3://ccbench/runs/two has no run"), "{nothing}");
}

#[test]
fn a_copy_follows_the_shards() {
    let bench = Bench::new();
    for number in ["1/3", "3/3"] {
        assert_eq!(shard(&bench, number, "shards").status.code(), Some(0));
    }
    let summary = || {
        let done = read(&bench, &["summarize", "shards", "--output", "summary"], None);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
        (csv(&bench.path("summary/trials.csv")).len(), text(&done))
    };
    let (trials, printed) = summary();
    assert!(trials < 2 * REPEAT as usize, "{trials}");
    assert!(printed.contains("shards: ") && printed.contains(" are missing"), "{printed}");
    let lasting = "\n  (read from a copy in the run cache, which removes copies when it needs room; \
                   the run stays at shards, ";
    assert!(printed.contains(lasting), "{printed}");
    let first = copies(&bench);
    assert_eq!(shard(&bench, "2/3", "shards").status.code(), Some(0));
    // The copy of the first two shards contains their files.
    let files = bench.path("shards/files");
    let before = count(&files);
    for attempt in std::fs::read_dir(&files).unwrap() {
        let attempt = attempt.unwrap().path();
        let id = attempt.file_name().unwrap().to_string_lossy().into_owned();
        let record =
            std::fs::read_to_string(bench.path(&format!("shards/sessions/{id}.json"))).unwrap();
        if !record.contains("\"shard\":2,") {
            std::fs::remove_dir_all(&attempt).unwrap();
        }
    }
    let after = count(&files);
    assert!(0 < after && after < before, "{after} of {before}");
    let (trials, printed) = summary();
    assert_eq!(trials, 2 * REPEAT as usize);
    assert!(!printed.contains(" are missing"), "{printed}");
    assert_summary(&bench.path("summary"));
    let second = copies(&bench);
    assert!(second.len() == 1 && second != first, "{first:?} {second:?}");
    // Requested files that cannot be written are an error, after the tables.
    bench.write("file", "");
    let refused = read(&bench, &["summarize", "shards", "--output", "file"], None);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(text(&refused).contains("could not be written"), "{}", text(&refused));
    // What is in the store is decisive, not the copy.
    let verified = read(&bench, &["verify", "shards"], None);
    assert_eq!(verified.status.code(), Some(1), "{}", text(&verified));
    let missing = text(&verified).lines().filter(|line| line.ends_with(": missing")).count();
    assert!(missing > 0, "{}", text(&verified));
}

#[test]
fn a_damaged_file_is_not_read() {
    let bench = Bench::new();
    three(&bench, "shards");
    let attempt = std::fs::read_dir(bench.path("shards/files")).unwrap().next().unwrap().unwrap();
    let mut file = attempt.path().join("tables");
    while file.is_dir() {
        file = std::fs::read_dir(&file).unwrap().next().unwrap().unwrap().path();
    }
    let length = std::fs::read(&file).unwrap().len();
    std::fs::write(&file, vec![0; length]).unwrap();
    let refused = read(&bench, &["summarize", "shards"], None);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(text(&refused).contains("its SHA-256 differs"), "{}", text(&refused));
    assert!(copies(&bench).is_empty(), "{:?}", copies(&bench));
    let found = read(&bench, &["verify", "shards"], None);
    assert_eq!(found.status.code(), Some(1), "{}", text(&found));
    assert_eq!(text(&found).matches("damaged: files/").count(), 1, "{}", text(&found));
}

#[test]
fn a_run_that_is_too_large_for_the_cache_is_refused() {
    let bench = Bench::new();
    three(&bench, "shards");
    for (limit, code, message) in [
        ("0", 1, "raise CCBENCH_RUN_CACHE_GIB, or make a results directory"),
        ("much", 2, "CCBENCH_RUN_CACHE_GIB=`much` is not a number"),
    ] {
        let mut command = bench.command(&["summarize", "shards"]);
        command.env("XDG_CACHE_HOME", bench.path("cache")).env("CCBENCH_RUN_CACHE_GIB", limit);
        let done = command.output().unwrap();
        assert_eq!(done.status.code(), Some(code), "{}", text(&done));
        assert!(text(&done).contains(message), "{}", text(&done));
    }
}

/// Checks that the folder of a table's files has these entries.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_compacted_run_is_read_as_any_other() {
    let bench = Bench::new();
    three(&bench, "shards");
    let (code, printed) = merge(&bench, &["shards", "--out", "plain"]);
    assert_eq!(code, Some(0), "{printed}");
    let (code, printed) = merge(&bench, &["shards", "--compact"]);
    assert_eq!(code, Some(0), "{printed}");
    let (dir, plain) = (bench.results(), bench.path("plain").join(&names(&bench.path("plain"))[0]));
    let tables = names(&plain.join("tables"));
    assert!(tables.contains(&"flow_samples".to_owned()), "{tables:?}");
    assert_eq!(names(&dir.join("tables")), tables);
    for table in &tables {
        assert_eq!(names(&dir.join("tables").join(table)), ["part-0.parquet"], "{table}");
    }
    assert_summary(&dir);
    let (run, plain) = (dir.display().to_string(), plain.display().to_string());
    let all = |run: &str, output: &str| {
        let done = bench.run(&["export", "csv", run, "--output", output]);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
        let folder = bench.path(output);
        let read = |name: String| (name.clone(), std::fs::read(folder.join(&name)).unwrap());
        names(&folder).into_iter().map(read).collect::<Contents>()
    };
    assert_equal(&all(&run, "of-compacted"), &all(&plain, "of-plain"));
    let runs = |arguments: &[&str], code: i32| {
        let done = bench.run(arguments);
        assert_eq!(done.status.code(), Some(code), "{arguments:?}: {}", text(&done));
        text(&done)
    };
    runs(&["verify", &run], 0);
    runs(&["report", &run], 0);
    runs(&["export", "qlog", &run, "--output", "qlog"], 0);
    let drawn = runs(&["plot", &run, "--kind", "series", "--format", "svg"], 0);
    assert!(
        drawn.contains("`flow_samples` (polled; `--kind time_sequence` draws the rows of `acks`)"),
        "{drawn}"
    );
    let left = runs(&["run", "--resume", &run, "--sim"], 0);
    assert!(left.contains("nothing is left to run"), "{left}");
    let done = bench.run(&["artifact", "pack", &run, "--output", "a.tar.gz"]);
    assert!(!done.status.success() && text(&done).contains("it is compacted"), "{}", text(&done));
    let file = dir.join("tables/flow_samples/part-0.parquet");
    let length = std::fs::read(&file).unwrap().len();
    std::fs::write(&file, vec![0; length]).unwrap();
    let verified = runs(&["verify", &run], 1);
    assert_eq!(verified.matches("damaged: ").count(), 1, "{verified}");
    let summary = runs(&["summarize", &run], 0);
    assert!(summary.contains("tables/flow_samples/part-0.parquet: changed"), "{summary}");
}

#[test]
fn a_run_in_a_bucket_is_there_as_a_whole() {
    let Some(server) = S3Server::start() else { return };
    server.create_bucket("ccbench");
    let bench = Bench::new();
    three(&bench, "shards");
    let reads = |arguments: &[&str], code: i32| {
        let done = read(&bench, arguments, Some(&server));
        assert_eq!(done.status.code(), Some(code), "{arguments:?}: {}", text(&done));
        text(&done)
    };
    let out = "s3://ccbench/results/";
    // The second command finds the first one's run.
    let printed: Vec<String> =
        (0..2).map(|_| reads(&["merge", "shards", "--compact", "--out", out], 0)).collect();
    let url = |printed: &str| {
        let line = printed.lines().find_map(|line| line.strip_prefix("results: s3://"));
        format!("s3://{}", line.unwrap_or_else(|| panic!("{printed}")))
    };
    let (url, again) = (url(&printed[0]), url(&printed[1]));
    assert!(url == again && url.starts_with("s3://ccbench/results/simulated-"), "{url} {again}");
    assert!(bench.all_results().is_empty(), "nothing is left here");
    reads(&["summarize", &url, "--output", "summary"], 0);
    assert_summary(&bench.path("summary"));
    let kept = copies(&bench);
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!(names(&kept[0].join("tables/flow_samples")), ["part-0.parquet"]);
    reads(&["verify", &url], 0);
    reads(&["report", &url, "--output", "report.html"], 0);
    assert_eq!(copies(&bench), kept);
    // The same shards, written in a different way, are another run with the same name.
    let refused = reads(&["merge", "shards", "--out", out], 2);
    assert!(refused.contains("has another run"), "{refused}");
    // As if the command that uploads it had been killed.
    server.remove_object(&format!("{}/journal.ndjson", url.strip_prefix("s3://").unwrap()));
    let refused = reads(&["summarize", &url], 2);
    assert!(refused.contains("has no journal.ndjson, so its upload is incomplete"), "{refused}");
    // Only the same run replaces its files.
    let refused = reads(&["merge", "shards", "--out", out], 2);
    assert!(refused.contains("has another run"), "{refused}");
    reads(&["merge", "shards", "--compact", "--out", out], 0);
    reads(&["verify", &url], 0);
}
