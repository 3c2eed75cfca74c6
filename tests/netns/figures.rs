//! Tests what a reader makes of one real run: figures of every kind, comparisons, notebooks, and other tools' formats.

use std::path::{Path, PathBuf};
use std::process::Command;

use ccbench_tests::cpu::CpuReport;
use ccbench_tests::run_files::edit_record;
use ccbench_tests::{Bench, alone, beside_others, source_root, text, watched_run};

use crate::plan;

/// Returns Python with the packages with which notebooks are tested.
fn python() -> Command {
    ccbench_tests::python().unwrap_or_else(|| panic!("run `scripts/setup.sh --test` first"))
}

/// Fails with the command's output unless the command succeeds.
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn ends(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        files.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    found.sort();
    found
}

#[test]
fn figures_comparisons_exports_and_notebooks_of_a_run() {
    let measures = alone();
    let plan = plan("figures", "3s", 2)
        + "\n[matrix.scheme]\nslow = { \"links.bottleneck.rate\" = \"20mbit\" }\nfast = { \"links.bottleneck.rate\" = \"60mbit\" }\n";
    let (bench, output, cpu) = watched_run(&plan, &[]);
    let has_run = || assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    // Summaries omit failed trials.
    if cpu.check_run(&bench.all_results(), has_run).is_none() {
        return;
    }
    drop(measures);
    let _beside = beside_others();
    let results = bench.results();
    let run = results.to_string_lossy().into_owned();
    figures(&bench, &run);
    comparison(&bench, &run, &cpu);
    exports(&bench, &run);
    notebooks(&bench, &results);
}

fn figures(bench: &Bench, run: &str) {
    let folder = bench.path("figures");
    let output = folder.to_string_lossy().into_owned();
    for (kind, count) in [
        ("phases", 1),
        ("series", 2),
        ("operating_point", 2),
        ("plane", 1),
        ("ecdf", 2),
        ("strips", 1),
        ("heatmap", 1),
        ("lines", 1),
    ] {
        let printed = succeed(&mut bench.command(&["plot", run, "--kind", kind, "-o", &output]));
        // SVG, PNG and CSV for each.
        assert_eq!(printed.lines().count(), 3 * count, "{kind}: {printed}");
    }
    // None of our congestion controls ran, so there is no state. The error lists what the run has.
    let refused = bench.run(&["plot", run, "--kind", "cc_state", "-o", &output]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(
        text(&refused).contains("this run has data for: phases, series,"),
        "{}",
        text(&refused)
    );
    let check = "import sys, xml.dom.minidom\n\
        from PIL import Image\n\
        for path in sys.argv[1:]:\n    \
            xml.dom.minidom.parse(path)\n    \
            picture = Image.open(path[:-3] + 'png').convert('L')\n    \
            pixels = picture.histogram()\n    \
            dark, all = sum(pixels[:200]), picture.width * picture.height\n    \
            assert 0.002 < dark / all < 0.9, (path, dark, all)\n    \
            rows = open(path[:-3] + 'csv').read().splitlines()\n    \
            assert len(rows) > 2 and len(rows[0].split(',')) > 4, path\n";
    let svgs = ends(&folder, ".svg");
    assert_eq!(svgs.len(), 11, "{svgs:?}");
    succeed(python().arg("-c").arg(check).args(&svgs));
}

fn comparison(bench: &Bench, run: &str, cpu: &CpuReport) {
    let csv = bench.path("by.csv");
    let printed = succeed(&mut bench.command(&[
        "compare",
        run,
        "--by",
        "scheme=slow,fast",
        "--csv",
        &csv.to_string_lossy(),
    ]));
    assert!(printed.contains("throughput_sum") && printed.contains("2 + 2"), "{printed}");
    let rows = ccbench_tests::csv(&csv);
    let row = rows
        .iter()
        .find(|row| {
            row["metric"] == "throughput_sum" && row["phase"] == "alone" && row["scope"] == "group"
        })
        .unwrap();
    let number = |name: &str| row[name].parse::<f64>().unwrap();
    // Chance determines the width of the interval of two trials, so zero may be inside.
    let (low, difference, high) = (number("t95_low"), number("difference"), number("t95_high"));
    assert!(low < difference && difference < high, "{row:?}");
    let (slow, fast) = (number("mean_a"), number("mean_b"));
    let near = |a: f64, b: f64| (a - b).abs() < 1e-3 * b.abs();
    assert!(near(difference, fast - slow) && near(number("ratio"), fast / slow), "{row:?}");
    assert_eq!(number("hedges_g") > 0.0, difference > 0.0, "{row:?}");
    // An emulated link that lacks CPU time is slower than its rate.
    cpu.check_run(&bench.all_results(), || {
        let ratio = number("ratio");
        assert!((2.4..3.4).contains(&ratio), "scheme=fast over slow: 60 over 20 Mbit/s is {ratio}");
    });
    // A run compared with itself: the same seeds, so the trials are paired and do not differ.
    let printed =
        succeed(&mut bench.command(&["compare", run, run, "--metric", "srtt", "--csv", "-"]));
    assert!(printed.contains(",true,0,0,0,"), "{printed}");
    let refused = bench.run(&["compare", run, "--by", "scheme=slow,slower"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains("its levels: fast, slow"), "{}", text(&refused));
}

fn exports(bench: &Bench, run: &str) {
    let to = |name: &str| bench.path(name).to_string_lossy().into_owned();
    let printed = succeed(&mut bench.command(&["export", "csv", run, "-o", &to("csv")]));
    let lists = |file: &str| printed.contains(file);
    assert!(lists("flow_samples.csv") && lists("summary_point.csv"), "{printed}");
    let rows = ccbench_tests::csv(&bench.path("csv/intervals.csv"));
    assert!(rows.iter().any(|row| row["trial"] == "2" && row["side"] == "rcv"), "{}", rows.len());
    let one =
        succeed(&mut bench.command(&["export", "csv", run, "--table", "intervals", "-o", "-"]));
    assert_eq!(one.lines().count(), rows.len() + 1);
    let refused = bench.run(&["export", "csv", run, "--table", "interval", "-o", "-"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));

    succeed(&mut bench.command(&["export", "iperf3", run, "-o", &to("iperf3")]));
    let files = ends(&bench.path("iperf3"), ".json");
    // Two points, two trials, two groups, two ends.
    assert_eq!(files.len(), 16, "{files:?}");
    for file in &files {
        let object: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        assert!(object["start"]["version"].is_string(), "{}", file.display());
        assert!(!object["intervals"].as_array().unwrap().is_empty(), "{}", file.display());
    }

    succeed(&mut bench.command(&["export", "flent", run, "-o", &to("flent")]));
    let files = ends(&bench.path("flent"), ".flent.gz");
    assert_eq!(files.len(), 4, "{files:?}");
    // flent itself reads and draws them.
    let check = "import sys\nfrom flent import resultset\n\
        for path in sys.argv[1:]:\n    \
            r = resultset.load(path)\n    \
            rate = [v for v in r.series('TCP upload sum') if v is not None]\n    \
            assert (r.metadata['LOCAL_HOST'], r.metadata['HOST']) == ('src', 'dst'), r.metadata\n    \
            assert len(rate) > 20 and 5 < sum(rate) / len(rate) < 100, rate\n    \
            assert any('tcp_rtt' in v for v in r.raw_values['TCP upload::1'])\n    \
            assert max(v for v in r.series('Ping (ms) ICMP') if v is not None) > 9\n";
    succeed(python().arg("-c").arg(check).args(&files));
    let picture = bench.path("flent.png");
    let drawn = ["-m", "flent", "-p", "upload_with_ping_and_tcp_rtt", "-o"];
    succeed(python().args(drawn).arg(&picture).arg(&files[0]));
    assert!(std::fs::metadata(&picture).unwrap().len() > 10_000);
}

fn notebooks(bench: &Bench, results: &Path) {
    let report = bench.path("report.html");
    let run = results.to_string_lossy();
    succeed(&mut bench.command(&["report", &run, "-o", &report.to_string_lossy()]));
    let folder = results.parent().unwrap();
    let snippets = source_root().join("tests/notebooks/snippets.py");
    let manuals = ["README.md", "docs/results.md"].map(|name| source_root().join(name));
    let mut program = python();
    let printed = succeed(program.current_dir(folder).arg(snippets).arg(&report).args(&manuals));
    assert!(printed.contains("4 snippets"), "{printed}");
    let pictures = bench.path("notebook");
    std::fs::create_dir(&pictures).unwrap();
    let notebook = source_root().join("notebooks/five_figures.py");
    succeed(python().arg(&notebook).arg(results).arg("-o").arg(&pictures));
    let made = ends(&pictures, ".png");
    assert_eq!(made.len(), 5, "{made:?}");
    assert!(made.iter().all(|path| std::fs::metadata(path).unwrap().len() > 10_000), "{made:?}");
    // Of a flow with intervals of 1 s, and of one with intervals of 0.1 s and a remainder, only the remainder is left out.
    let whole = "import polars as pl, runpy, sys\n\
        run = runpy.run_path(sys.argv[1], run_name='cells')['Run'](sys.argv[2])\n\
        rows = {'point_id': [0] * 6, 'trial': [1] * 6, 'flow_id': ['slow'] * 3 + ['fast'] * 3,\n\
        'side': ['rcv'] * 6, 'omitted': [False] * 6, 'seconds': [1.0, 1.0, 1.0, 0.1, 0.1, 0.004]}\n\
        run.table = lambda name: pl.DataFrame(rows)\n\
        seconds = run.received()['seconds'].to_list()\n\
        assert seconds == [1.0, 1.0, 1.0, 0.1, 0.1], seconds\n";
    succeed(python().arg("-c").arg(whole).arg(&notebook).arg(results));
    of_each_document(bench, results, &notebook);
}

/// Checks that the newest run of a document's plan is found among others, that a named run is used, and that Jupyter shows the same.
fn of_each_document(bench: &Bench, results: &Path, notebook: &Path) {
    let (runs, pictures) = (bench.path("documents"), bench.path("each"));
    std::fs::create_dir_all(&pictures).unwrap();
    for name in ["bufferbloat", "other"] {
        let run = runs.join(name);
        std::fs::create_dir_all(&run).unwrap();
        for file in std::fs::read_dir(results).unwrap().flatten() {
            std::os::unix::fs::symlink(file.path(), run.join(file.file_name())).unwrap();
        }
        edit_record(&run, |record| record["plan_name"] = name.into());
    }
    let named = format!("e5={}", results.display());
    let mut program = python();
    program.arg(notebook).arg(&runs).arg(&named).arg("-o").arg(&pictures);
    let printed = program.output().unwrap();
    assert!(printed.status.success(), "{}", text(&printed));
    assert!(text(&printed).contains("no run of e1 (coexistence or "), "{}", text(&printed));
    let made: Vec<PathBuf> =
        ends(&pictures, ".png").iter().map(|path| path.file_name().unwrap().into()).collect();
    assert_eq!(made, [Path::new("e3.png"), Path::new("e5.png")]);
    // As in a Jupyter kernel: arguments of its own, and a function that scripts do not have.
    let cells = "import matplotlib.pyplot as plt, sys\n\
        cells = {'get_ipython': print, '__name__': '__main__'}\n\
        exec(compile(open(sys.argv[1]).read(), sys.argv[1], 'exec'), cells)\n\
        assert list(cells['RUNS']) == ['e3'] and len(plt.get_fignums()) == 1, cells['RUNS']\n";
    let mut kernel = python();
    kernel.env("CCBENCH_RESULTS", &runs).env("MPLBACKEND", "Agg");
    succeed(kernel.arg("-c").arg(cells).arg(notebook).args(["-f", "kernel.json"]));
}
