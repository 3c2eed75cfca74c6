//! Tests the controller without a testbed: exit codes and messages for invalid command lines and plans.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use ccbench_tests::{Bench, source_root, text};

mod first_steps;
mod inputs;
mod join;
mod renew;
mod simulator;
mod submit;
mod systemd;
mod testbed;

use inputs::PING;

fn out(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn names_a_missing_plan() {
    let output = Bench::new().run(&["run", "nowhere.toml"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(err(&output).contains("cannot read the plan nowhere.toml"), "{}", text(&output));
    let output = Bench::new().run(&["run", "plans/nowhere.toml"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(err(&output).contains("`ccbench new` writes a plan"), "{}", text(&output));
}

#[test]
fn first_steps_of_the_help_work_without_the_sources() {
    let bench = Bench::new();
    let help = out(&bench.run(&["--help"]));
    // The terminal's width may wrap the line.
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, steps) = help.split_once("First steps: ").unwrap();
    let commands: Vec<&str> = steps.split('`').skip(1).step_by(2).collect();
    assert!(commands.len() > 1, "{steps}");
    for command in commands.iter().filter(|command| !command.starts_with("ccbench run")) {
        let arguments: Vec<&str> = command.split(' ').skip(1).collect();
        let done = bench.run(&arguments);
        assert_eq!(done.status.code(), Some(0), "{command}: {}", text(&done));
    }
}

#[test]
fn invalid_plan_prints_every_problem_and_runs_nothing() {
    let bench = Bench::new();
    let plan = bench.write(
        "bad.toml",
        "name = \"bad\"\nrepeet = 3\n[nodes]\na = {}\nb = {}\n[wires]\nw = [\"a\", \"b\"]\n\
         [flows.f]\nfrom = \"a\"\nto = \"c\"\n[[phases]]\nname = \"p\"\nlength = \"10\"\nflows = [\"f\"]\n",
    );
    let output = bench.run(&["run", &plan.to_string_lossy()]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    for place in ["repeet", "phases"] {
        assert!(err(&output).contains(place), "{place} is missing: {}", text(&output));
    }
    assert!(!bench.path("results").exists(), "nothing may run");
    // The last line counts the errors and warnings that were printed.
    let printed = err(&output);
    let count = |kind: &str| printed.lines().filter(|line| line.starts_with(kind)).count();
    let (errors, warnings) = (count("error: "), count("warning: "));
    let warnings = match warnings {
        0 => String::new(),
        1 => ", 1 warning".to_owned(),
        many => format!(", {many} warnings"),
    };
    let last = format!("bad.toml: {errors} errors{warnings}; it cannot be run");
    assert!(errors > 1 && printed.contains(&last), "no `{last}`: {printed}");
    let sections = printed.lines().next_back().and_then(|line| line.strip_prefix("see "));
    let sections: Vec<&str> = sections.unwrap_or_default().split(", ").collect();
    assert!(sections.contains(&"docs/plan.md#units"), "{printed}");
}

#[test]
fn shipped_plans_are_valid() {
    for plan in [
        "quickstart.toml",
        "four-machines.toml",
        "coexistence/1v1.toml",
        "coexistence/5v5.toml",
        "coexistence/10v1.toml",
    ] {
        let path = source_root().join("plans").join(plan);
        let output = Bench::new().run(&["check", &path.to_string_lossy()]);
        assert_eq!(output.status.code(), Some(0), "{plan}: {}", text(&output));
        assert!(!err(&output).contains("error:"), "{plan}: {}", text(&output));
    }
}

#[test]
fn applies_overrides_and_rejects_unknown_keys() {
    let plan = source_root().join("plans/quickstart.toml");
    let plan = plan.to_string_lossy();
    let bench = Bench::new();
    let output = bench.run(&["check", &plan, "--expand", "--set", "links.bottleneck.rate=50mbit"]);
    assert!(out(&output).contains("50mbit"), "{}", text(&output));
    // As plain `check`, but as a comment.
    let size = out(&bench.run(&["check", &plan]));
    assert!(size.starts_with("quickstart: ") && size.contains(" trial(s), "), "{size}");
    assert!(out(&output).ends_with(&format!("\n# {size}")), "{}", text(&output));
    // 50 Mbit/s times 10 ms, and 10 full frames.
    for (limit, amount) in [("2bdp", "125000B"), ("0.01bdp", "15140B")] {
        let set = format!("links.bottleneck.queue.limit={limit}");
        let sets = ["--set", "links.bottleneck.rate=50mbit", "--set", &set];
        let output = bench.run(&[&["check", &plan, "--expand"][..], &sets].concat());
        let line = format!("\n# links.bottleneck.queue.limit = {limit} is {amount}\n");
        assert!(out(&output).contains(&line), "no `{line}`: {}", text(&output));
    }
    let output = bench.run(&["check", &plan, "--set", "links.bottleneck.speed=50mbit"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(err(&output).contains("links.bottleneck.speed"), "{}", text(&output));
}

/// A flow without `tool` uses ccbench's generator in the lab, which `--lab` selects as a plan does.
#[test]
fn check_for_the_lab_knows_its_default_generator() {
    let bench = Bench::new();
    let plan = std::fs::read_to_string(source_root().join("plans/quickstart.toml")).unwrap();
    let finite = "[flows.finite]\nfrom = \"src\"\nto = \"dst\"\nbytes = \"1MB\"\nstart = \"1s\"\nstop = \"2s\"\n";
    let path = bench.write("plan.toml", &(plan + finite));
    let path = path.to_string_lossy();
    let here = bench.run(&["check", &path]);
    assert_eq!(here.status.code(), Some(2), "{}", text(&here));
    assert!(err(&here).contains("needs `tool = \"ccbench\"`"), "{}", text(&here));
    let lab = bench.run(&["check", &path, "--lab"]);
    assert_eq!(lab.status.code(), Some(0), "{}", text(&lab));
}

#[test]
fn pki_overwrites_nothing_and_makes_private_keys() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    assert_eq!(bench.run(&["pki", "init", "pki"]).status.code(), Some(0));
    assert_eq!(
        bench.run(&["pki", "node", "pki", "node1.example", "10.0.0.1"]).status.code(),
        Some(0)
    );
    let issued = bench.run(&["pki", "controller", "pki", "alice", "--scope", "run,host-net"]);
    assert_eq!(issued.status.code(), Some(0), "{}", text(&issued));
    assert!(out(&issued).contains("`--pki pki/alice`"), "{}", text(&issued));
    let unknown = bench.run(&["pki", "controller", "pki", "bob", "--scope", "root"]);
    assert_eq!(unknown.status.code(), Some(2), "{}", text(&unknown));
    assert!(err(&unknown).contains("`root` is not a scope"), "{}", text(&unknown));
    for action in ["renew", "revoke"] {
        let done = bench.run(&["pki", action, "pki", "pki/alice/controller.pem"]);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    }
    for key in ["ca.key", "controller.key", "alice/controller.key", "node1.example.key"] {
        let mode = std::fs::metadata(bench.path("pki").join(key)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{key}");
    }
    let again = bench.run(&["pki", "init", "pki"]);
    assert_ne!(again.status.code(), Some(0));
    assert!(err(&again).contains("already holds an authority"), "{}", text(&again));
}

#[test]
fn prints_help_completions_and_man_pages() {
    let bench = Bench::new();
    let help = bench.run(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(out(&help).contains("Exit codes"), "{}", text(&help));
    let names_shards = |command: &str| {
        let help = out(&bench.run(&[command, "--help"]));
        let words: Vec<&str> = help.split_whitespace().collect();
        assert!(help.contains("--out <DIR>"), "{help}");
        words.join(" ").contains("with --shard")
    };
    assert_eq!(["run", "reproduce", "scorecard"].map(names_shards), [true, false, false]);
    let resume = out(&bench.run(&["run", "--help"]));
    let resume = resume.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(resume.contains("nodes with agents need --pki again"), "{resume}");
    // Lines are wrapped.
    let words = out(&help).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("Of commands that run trials (`run`, `merge`,"), "{words}");
    assert!(out(&bench.run(&["completions", "bash"])).contains("ccbench"));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let unread = bench.command(&["completions", "bash"]).stdout(writer).status().unwrap();
    assert_eq!(unread.code(), Some(0));
    assert_eq!(bench.run(&["man", "man"]).status.code(), Some(0));
    assert!(bench.path("man/ccbench-run.1").exists());
}

#[test]
fn a_trace_that_cannot_be_written_to_standard_output_is_an_error() {
    let bench = Bench::new();
    bench.write("in.csv", "10,2\n20,1\n");
    let convert = || bench.command(&["trace", "convert", "in.csv", "-"]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let failed = convert().stdout(full).output().unwrap();
    assert_eq!(failed.status.code(), Some(1), "{}", text(&failed));
    assert!(err(&failed).contains("cannot write to standard output: "), "{}", text(&failed));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(convert().stdout(writer).status().unwrap().code(), Some(0));
}

#[test]
fn mistyped_names_exit_with_2() {
    let bench = Bench::new();
    let plan = bench.write("mine.toml", "name = \"mine\"\n");
    let plan = plan.to_string_lossy();
    std::fs::create_dir(bench.path("full")).unwrap();
    bench.write("full/x", "");
    let ping = bench.write("ping.txt", PING);
    let (ping, full) = (ping.to_string_lossy(), bench.path("full"));
    let full = full.to_string_lossy();
    for (words, message) in [
        (&["summarize", &plan][..], "`ccbench run "),
        (&["report", &full], "it has no run.json"),
        (&["index", &full], "has no results directories"),
        (&["run", "--resume", "nosuch"], "it does not exist"),
        (&["run", &plan, "--resume", "run"], "a new run: ccbench run PLAN --set repeat=N"),
        (&["run", "--resume", "run", "--set", "repeat=3"], "leave out --set"),
        (&["import", "nosuch", "-o", "out"], "cannot read nosuch"),
        (&["import", &ping, "-o", &full], "is not empty"),
        (&["cc", "show", "nope"], "`nope` is neither one of"),
        (&["cc", "load", "nope"], "`nope` is not one of"),
        (&["cc", "load", "vgeas"], "did you mean `vegas`?"),
        (&["reproduce", "l4s_sweeep"], "did you mean `l4s_sweep`?"),
        (&["plan", "reference", "likns"], "did you mean `links`?"),
    ] {
        let done = bench.run(words);
        assert_eq!(done.status.code(), Some(2), "{words:?}: {}", text(&done));
        assert!(err(&done).contains(message), "{words:?}: {}", text(&done));
    }
}

#[test]
fn an_error_about_a_missing_argument_names_the_alternative() {
    let bench = Bench::new();
    for (words, alternative) in [
        (&["run"][..], "ccbench run [OPTIONS] --resume <DIR>\n"),
        (
            &["compare", "results"],
            "ccbench compare [OPTIONS] <DIR|URL> --by <FACTOR=LEVEL,LEVEL>\n",
        ),
        (&["scorecard"], "ccbench scorecard [OPTIONS] --resume <DIR>\n"),
    ] {
        let done = bench.run(words);
        assert_eq!(done.status.code(), Some(2), "{words:?}: {}", text(&done));
        assert!(err(&done).contains("required arguments"), "{words:?}: {}", text(&done));
        assert!(err(&done).contains(alternative), "{words:?}: {}", text(&done));
    }
}

#[test]
fn jobs_need_the_lab() {
    let bench = Bench::new();
    let plan = ccbench_tests::source_root().join("plans/quickstart.toml");
    let plan = plan.to_string_lossy();
    let done = bench.run(&["run", &plan, "--jobs", "2"]);
    assert_eq!(done.status.code(), Some(2), "{}", text(&done));
    assert!(err(&done).contains("--jobs 2 needs the lab"), "{}", text(&done));
    assert!(err(&done).contains("add --lab"), "{}", text(&done));
    assert!(bench.all_results().is_empty());
    assert_eq!(bench.run(&["run", &plan, "--lab", "--jobs", "0"]).status.code(), Some(2));
}

/// Imports a ping into the results directory `imported`.
fn import_ping(bench: &Bench) {
    let ping = bench.write("ping.txt", PING);
    let imported = bench.run(&["import", &ping.to_string_lossy(), "-o", "imported"]);
    assert_eq!(imported.status.code(), Some(0), "{}", text(&imported));
}

#[test]
fn six_columns_of_unknown_flow_group_exits_with_2() {
    let bench = Bench::new();
    import_ping(&bench);
    let done = bench.run(&["summarize", "imported", "--six-columns", "nosuch"]);
    assert_eq!(done.status.code(), Some(2), "{}", text(&done));
    assert!(err(&done).contains("no committed trial has a flow group `nosuch`"), "{}", text(&done));
}

#[test]
fn nothing_of_the_progress_of_reading_goes_into_a_pipe() {
    let bench = Bench::new();
    import_ping(&bench);
    for words in [&["report", "imported"][..], &["compare", "imported", "imported"]] {
        let done = bench.run(words);
        assert_eq!(done.status.code(), Some(0), "{words:?}: {}", text(&done));
        assert_eq!(err(&done), "", "{words:?}");
    }
}

#[test]
fn published_experiments_are_embedded() {
    let bench = Bench::new();
    let list = bench.run(&["reproduce"]);
    assert_eq!(list.status.code(), Some(0), "{}", text(&list));
    for name in ["coexistence", "mmwave", "bufferbloat", "l4s", "vegas_friendliness"] {
        assert!(out(&list).contains(name), "{name} is missing: {}", text(&list));
    }
    let unknown = bench.run(&["reproduce", "vegas_fairness"]);
    assert_eq!(unknown.status.code(), Some(2), "{}", text(&unknown));
    assert!(err(&unknown).contains("vegas_friendliness"), "{}", text(&unknown));
    // Runs outside the source tree, with its traces.
    assert_eq!(bench.run(&["reproduce", "mmwave", "--write", "mm"]).status.code(), Some(0));
    let check = bench.run(&["check", "mm/mmwave.toml", "--quick"]);
    assert_eq!(check.status.code(), Some(0), "{}", text(&check));
    assert!(out(&check).contains("8 point(s)"), "{}", text(&check));
}

#[test]
fn fifos_and_devices_are_refused_at_once() {
    let bench = Bench::new();
    let fifo = bench.path("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let fifo = fifo.to_string_lossy().into_owned();
    let plan = std::fs::read_to_string(source_root().join("plans/quickstart.toml")).unwrap();
    let with_trace = |file: &str| {
        let lines = plan.lines().map(|line| match line.starts_with("rate ") {
            true => format!("trace = {{ file = \"{file}\" }}\n"),
            false => format!("{line}\n"),
        });
        bench.write("traced.toml", &lines.collect::<String>()).to_string_lossy().into_owned()
    };
    let output = bench.path("results").to_string_lossy().into_owned();
    for (file, kind) in [(fifo.as_str(), "a FIFO"), ("/dev/zero", "a device")] {
        let traced = with_trace(file);
        for arguments in [
            vec!["check", file],
            vec!["check", traced.as_str()],
            vec!["trace", "info", file],
            vec!["import", file, "-o", &output],
            vec!["link", "--rate", "1mbit", "--trace", file, "--", "true"],
        ] {
            let output = bench.run(&arguments);
            assert_ne!(output.status.code(), Some(0), "{arguments:?}");
            let printed = err(&output);
            assert!(printed.contains(&format!("it is {kind}, not a regular file")), "{printed}");
            assert!(printed.contains(file), "{printed}");
        }
    }
}

#[test]
fn prints_no_control_characters_of_files_and_their_names() {
    let bench = Bench::new();
    let hostile = "x\u{1b}]0;title\u{7}\u{1b}[31m\u{9b}31m\u{202e}y";
    let acts = |text: &str| {
        text.chars().any(|c| c != '\n' && c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c))
    };
    let imported = bench.write(
        &format!("{hostile}\nerror: z.txt"),
        &format!("{hostile}\n64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=1 ms\n"),
    );
    let escaped = r"x\u001b]0;title\u0007\u001b[31m\u009b31m\u202ey";
    let plan = bench.write("hostile.toml", &format!("name = \"x\"\n\"{escaped}\" = 1\n"));
    let absent = format!("{hostile}.toml");
    let output = bench.path("results").to_string_lossy().into_owned();
    for (arguments, is_refused) in [
        (vec!["import", &imported.to_string_lossy(), "-o", &output], false),
        (vec!["check", &plan.to_string_lossy()], true),
        (vec!["check", &absent], true),
        (vec!["trace", "info", &imported.to_string_lossy()], true),
        (vec!["summarize", &output], false),
        (vec!["summarize", &absent], true),
    ] {
        let output = bench.run(&arguments);
        let printed = text(&output);
        assert!(!acts(&printed) && !printed.contains("\nerror: z"), "{arguments:?}: {printed:?}");
        let shown = printed.contains("\\u{1b}]0;title\\u{7}");
        assert!(shown || !is_refused && output.status.success(), "{arguments:?}: {printed:?}");
    }
}
