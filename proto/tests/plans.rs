//! The plans under `tests/plans`: valid ones become the schedules under `tests/golden/schedule`, invalid
//! ones fail with exactly their `.err`. `UPDATE_GOLDEN=1` rewrites both; read the diff.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use ccbench_proto::plan::check::{CheckedPlan, PlanProblem, Severity, check, quick_sets, read};
use ccbench_proto::plan::parse::{parse, parse_with};
use ccbench_proto::plan::{self, Acks, Link, Probe, ProbeKind, Queue};
use ccbench_proto::resolve::{ETHERNET_BYTES, to_toml};
use ccbench_proto::schedule::{
    FlowTask, LinkTask, NodeTask, TrialContext, length, phases, task_for, trials,
};
use ccbench_proto::topology::Topology;

#[path = "plans/conformance.rs"]
mod conformance;
#[path = "plans/lenient.rs"]
mod lenient;
#[path = "plans/simulator.rs"]
mod simulator;
#[path = "plans/traces.rs"]
mod traces;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn tomls(folder: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(root().join(folder))
        .unwrap_or_else(|e| panic!("{folder}: {e}"))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    files.sort();
    files
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}

/// Compares with the golden file, or rewrites it.
fn golden(path: &Path, actual: &str, wrong: &mut Vec<String>) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, actual).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    if expected != actual {
        wrong.push(format!("{}\n--- expected\n{expected}--- actual\n{actual}", path.display()));
    }
}

fn print(problems: &[PlanProblem]) -> String {
    problems.iter().fold(String::new(), |mut text, p| {
        let line = p.line.map(|line| format!("{line}: ")).unwrap_or_default();
        let _ = writeln!(text, "{}: {line}{p}", p.severity);
        text
    })
}

fn checked(text: &str) -> Result<(CheckedPlan, Vec<PlanProblem>), Vec<PlanProblem>> {
    let read = read(text, &[]);
    let in_two_steps = parse(text).and_then(check);
    assert_eq!(read.is_ok(), in_two_steps.is_ok(), "{text}");
    read
}

#[test]
fn invalid_plans_match_their_golden_errors() {
    let files = tomls("tests/plans/invalid");
    assert!(files.len() >= 45, "only {} invalid plans", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        match checked(&text) {
            Ok(_) => wrong.push(format!("{} passes", file.display())),
            Err(problems) => {
                assert!(problems.iter().any(|p| p.severity == Severity::Error));
                golden(&file.with_extension("err"), &print(&problems), &mut wrong);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// This error is not in a golden file, so that a new kind changes none.
#[test]
fn unknown_kind_of_queue_names_those_that_exist() {
    let text = std::fs::read_to_string(root().join("tests/plans/valid/minimal.toml")).unwrap();
    let queue = "[path.p]\nrate = \"1mbit\"\nqueue = { kind = \"bfif0\", limit = \"187500B\" }\n";
    let problems = print(&checked(&(text + queue)).unwrap_err());
    let kinds: Vec<String> = Queue::kinds().iter().map(|kind| format!("`{kind}`")).collect();
    let expected = format!(
        "path.p.queue.kind: `bfif0` is unknown; did you mean `bfifo`? (known: {})\n",
        kinds.join(", ")
    );
    assert!(problems.ends_with(&expected), "{problems}");
    assert!(Queue::kinds().contains(&"fq_codel"));
}

#[test]
fn valid_plans_become_their_golden_schedules() {
    let mut files = tomls("tests/plans/valid");
    assert!(files.len() >= 12, "only {} valid plans", files.len());
    files.extend(tomls("plans"));
    files.extend(tomls("plans/cc"));
    files.extend(tomls("plans/coexistence"));
    files.extend(tomls("plans/l4s"));
    files.extend(tomls("plans/lab"));
    files.extend(tomls("plans/dumbbell"));
    let mut wrong = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let (plan, warnings) = match checked(&text) {
            Ok(plan) => plan,
            Err(problems) => {
                wrong.push(format!("{} fails:\n{}", file.display(), print(&problems)));
                continue;
            }
        };
        let shown = describe(&plan, &warnings);
        let golden_file = root().join("tests/golden/schedule").join(stem(&file) + ".txt");
        golden(&golden_file, &shown, &mut wrong);
        round_trips(&file, &plan);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Plans with thousands of points. Their whole schedules would have megabytes, so the golden ones are those of the `[quick]`
/// overrides.
#[test]
fn sweeps_become_their_golden_quick_schedules() {
    let mut wrong = Vec::new();
    for file in tomls("plans/sweeps") {
        let text = std::fs::read_to_string(&file).unwrap();
        let (plan, _) =
            checked(&text).unwrap_or_else(|e| panic!("{}: {}", file.display(), print(&e)));
        assert!(plan.points().len() >= 1000, "{}: belongs to another folder", file.display());
        let sets = quick_sets(&text, &[]).unwrap();
        let (quick, warnings) = read(&text, &sets)
            .unwrap_or_else(|e| panic!("{} --quick: {}", file.display(), print(&e)));
        let golden_file =
            root().join("tests/golden/schedule").join(format!("{}-quick.txt", stem(&file)));
        golden(&golden_file, &describe(&quick, &warnings), &mut wrong);
        round_trips(&file, &quick);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The resolved text reads back to the same plan, for the plan and for each of its points.
fn round_trips(file: &Path, plan: &CheckedPlan) {
    let points = plan.points();
    let all = std::iter::once(plan).chain(points.iter().map(|point| &point.plan));
    for plan in all {
        let text = to_toml(plan);
        let again = checked(&text)
            .unwrap_or_else(|e| panic!("{}: {}\n{text}", file.display(), print(&e)))
            .0;
        assert_eq!(&again, plan, "{}", file.display());
        assert_eq!(plan::digest(&to_toml(&again)), plan::digest(&text));
    }
    for point in &points {
        let alone = point.plan.points();
        assert_eq!(alone.len(), 1);
        assert_eq!(alone[0].plan, point.plan, "settling a point changes nothing");
    }
}

/// Prints a schedule for people.
fn describe(plan: &CheckedPlan, warnings: &[PlanProblem]) -> String {
    let mut out = print(warnings);
    let points = plan.points();
    for point in &points {
        let factors: Vec<String> = point.factors.iter().map(|(f, l)| format!("{f}={l}")).collect();
        let _ = writeln!(out, "point {} {}", point.id, factors.join(" "));
    }
    for run in trials(plan) {
        let _ = writeln!(
            out,
            "run {} point {} trial {} seed {:016x}",
            run.index, run.point_id, run.trial, run.seed
        );
    }
    for point in &points {
        let _ = writeln!(out, "\n== point {}: {} long", point.id, length(&point.plan));
        for phase in phases(&point.plan) {
            let measured = if phase.measure { "" } else { ", not measured" };
            let _ = writeln!(out, "phase {} {}..{}{measured}", phase.name, phase.start, phase.end);
        }
        let topology = Topology::build(point.plan.plan());
        if point.id == 0 {
            wires(&mut out, &topology);
        }
        let mut addresses = topology.addresses();
        for (name, node) in &point.plan.plan().nodes {
            addresses.extend(node.address.map(|address| (name.clone(), address)));
        }
        let context = TrialContext { addresses, port_slot: 0, seed: 1, ..TrialContext::default() };
        for node in point.plan.plan().nodes.keys() {
            task(&mut out, node, &task_for(&point.plan, node, &context));
        }
    }
    out
}

fn wires(out: &mut String, topology: &Topology) {
    for (name, node) in &topology.nodes {
        for i in &node.interfaces {
            let _ = writeln!(out, "node {name}: {} {}/24 to {}", i.dev, i.address, i.peer);
        }
        for r in &node.routes {
            let _ = writeln!(out, "node {name}: {}/24 via {} dev {}", r.subnet, r.via, r.dev);
        }
    }
}

fn task(out: &mut String, node: &str, task: &NodeTask) {
    let acks = match task.sample.acks {
        acks if acks == Acks::default() => String::new(),
        acks => format!(" acks {acks}"),
    };
    let _ = writeln!(
        out,
        "{node}: sample tcp {}{acks} qdisc {} host {}, offloads {}",
        task.sample.tcp,
        task.sample.qdisc,
        task.sample.host,
        if task.keep_offloads { "kept" } else { "off" }
    );
    if task.keep_awake {
        let _ = writeln!(out, "  keeps its machine awake");
    }
    for (key, value) in &task.sysctls {
        let _ = writeln!(out, "  sysctl {key} = {value}");
    }
    for link in &task.links {
        self::link(out, link);
    }
    for (what, flows) in [("serve", &task.servers), ("connect", &task.clients)] {
        for flow in flows {
            self::flow(out, what, flow);
        }
    }
    for p in &task.probes {
        let _ = writeln!(
            out,
            "  probe {} {:?} to {} {} every {} tos {}",
            p.id, p.plan.kind, p.plan.to, p.to_ip, p.plan.every, p.plan.tos
        );
        if p.plan.kind != ProbeKind::Ping {
            let Probe { repeat, start, bytes, cc, host, .. } = &p.plan;
            let _ = writeln!(
                out,
                "    port {} {repeat:?} start {start} timeout {} bytes {} cc {cc:?} host {host:?}",
                p.port,
                p.plan.timeout(),
                bytes.unwrap_or_default().get()
            );
        }
    }
    for p in &task.served {
        let _ = writeln!(out, "  answer {} {:?} at {}:{}", p.id, p.plan.kind, p.to_ip, p.port);
    }
    for c in &task.captures {
        let _ = writeln!(
            out,
            "  capture {} {:?}: {} bytes of packets, {} files of {} bytes",
            c.name,
            c.egress,
            c.plan.snap.get(),
            c.plan.files,
            c.plan.size.get()
        );
    }
    for (peer, address) in &task.peers {
        let _ = writeln!(out, "  peer {peer} {address}");
    }
}

fn link(out: &mut String, task: &LinkTask) {
    let c = &task.config;
    let plan = &c.plan;
    let rate = plan.rate.map_or("unshaped".to_owned(), |r| r.to_string());
    let (delay, loss) = (plan.delay.unwrap_or_default(), plan.loss.unwrap_or_default());
    let _ = writeln!(
        out,
        "  link {} at {:?}: {rate} delay {delay} loss {loss} {:?} {:?} {:?} seed {:016x}",
        c.name, task.egress, plan.shaper, plan.backend, c.queue, c.seed
    );
    let Link { jitter, burst_loss, reorder, .. } = plan;
    let [duplicate, corrupt] = [plan.duplicate, plan.corrupt].map(Option::unwrap_or_default);
    let random = jitter.is_some() || burst_loss.is_some() || reorder.is_some();
    if random || duplicate.get() > 0 || corrupt.get() > 0 {
        let _ = writeln!(
            out,
            "    {jitter:?} {burst_loss:?} duplicate {duplicate} {reorder:?} corrupt {corrupt}"
        );
    }
    let overhead = plan.overhead.unwrap_or(ETHERNET_BYTES);
    if overhead != ETHERNET_BYTES || plan.packet_log.is_some() {
        let _ = writeln!(out, "    overhead {overhead} packet log {:?}", plan.packet_log);
    }
    if plan.gso == Some(false) {
        let _ = writeln!(out, "    no gso");
    }
    for class in &c.classes {
        let _ = writeln!(
            out,
            "    class {}: {} up to {} priority {} {:?}",
            class.name,
            class.plan.rate,
            class.plan.ceil.unwrap_or(class.plan.rate),
            class.plan.priority.unwrap_or_default(),
            class.queue
        );
        for m in &class.matches {
            let _ = writeln!(out, "      {m:?}");
        }
    }
    for change in &task.changes {
        let rate = change.rate.map(|rate| rate.to_string());
        let delay = change.delay.map(|delay| format!("delay {delay}"));
        let loss = change.loss.map(|loss| format!("loss {loss}"));
        let set: Vec<String> = [rate, delay, loss].into_iter().flatten().collect();
        let _ = writeln!(out, "    at {} {} ({})", change.at, set.join(" "), change.source);
    }
}

fn flow(out: &mut String, what: &str, f: &FlowTask) {
    let reverse = if f.plan.reverse { " reverse" } else { "" };
    let rate = f.plan.rate.map_or(String::new(), |r| format!(" at {r}"));
    let _ = writeln!(
        out,
        "  {what} {}: {} {}:{}.. -> {} {}:{} x{}{reverse}{rate} cc {} {}..{} every {}",
        f.group,
        f.plan.from,
        f.from_ip,
        f.client_port,
        f.plan.to,
        f.to_ip,
        f.server_port,
        f.plan.count,
        f.plan.cc.as_deref().unwrap_or("default"),
        f.start,
        f.stop,
        f.plan.interval
    );
}

#[test]
fn the_manual_names_every_table_and_preset() {
    let manual = std::fs::read_to_string(root().join("docs/plan.md")).unwrap();
    let sections = ccbench_proto::plan::reference::sections();
    let presets = ccbench_proto::resolve::builtin_paths();
    let mut words: Vec<&str> = presets.keys().map(String::as_str).collect();
    let tables = sections[0].keys.iter().filter(|key| key.value.contains("table"));
    words.extend(tables.map(|key| key.name.as_str()));
    assert!(words.len() > 20, "found only {words:?}");
    for word in words {
        let named = [format!("`{word}`"), format!("`[{word}]`"), format!("`[[{word}]]`")];
        assert!(
            named.iter().any(|form| manual.contains(form)),
            "docs/plan.md does not name `{word}`"
        );
    }
}

/// The quickstart plan with overrides, or what is wrong with them.
fn quickstart(sets: &[&str]) -> Result<CheckedPlan, String> {
    let text = std::fs::read_to_string(root().join("plans/quickstart.toml")).unwrap();
    let sets: Vec<String> = sets.iter().map(|s| (*s).to_owned()).collect();
    let plan = parse_with(&text, &sets).map_err(|p| print(&p))?;
    check(plan).map(|(plan, _)| plan).map_err(|p| print(&p))
}

#[test]
fn overrides_reach_every_kind_of_key() {
    let plan = quickstart(&[
        "links.bottleneck.rate=50mbit",
        "links.bottleneck.queue.limit = 1.5bdp",
        "phases.0.length=5s",
        "flows.second.count=3",
        "sample.tcp=\"50ms\"",
        "nodes.src.sysctl.net.ipv4.tcp_ecn=1",
        "nodes.dst.sysctl.\"net.ipv4.tcp_ecn\"=1",
        "phases.1.flows=[\"second\"]",
        "phases.2.flows=[]",
        "flows.third={ from = \"dst\", to = \"src\", start = \"1s\" }",
        "repeat=9",
    ])
    .unwrap();
    let plan = plan.plan();
    assert_eq!(plan.links["bottleneck"].rate.unwrap().to_string(), "50mbit");
    assert_eq!(plan.phases[0].length.to_string(), "5s");
    assert_eq!(plan.phases[1].flows, ["second"]);
    assert_eq!((plan.flows["second"].count, plan.repeat.at_most()), (3, 9));
    assert_eq!(plan.sample.tcp.to_string(), "50ms");
    assert_eq!(plan.nodes["src"].sysctl, plan.nodes["dst"].sysctl);
    assert!(plan.flows.contains_key("third"));
}

#[test]
fn invalid_override_shows_the_fix() {
    let refused = |set: &str| quickstart(&[set]).unwrap_err();
    let check = |set: &str, text: &str| {
        let refusal = refused(set);
        assert!(refusal.contains(text), "{set}: {refusal}");
    };
    check(
        "links.botleneck.rate=1mbit",
        "--set links.botleneck.rate: there is no link `botleneck`; did you mean `bottleneck`?",
    );
    check(
        "links.bottleneck.rait=1mbit",
        "links.bottleneck.rait: is not a key of a link; did you mean `rate`?",
    );
    check("links.bottleneck.rate", "write it as KEY=VALUE");
    check("phases.first.length=1s", "name an element by its number, `phases.0`");
    check("phases.3.length=1s", "`phases` has no element `3`: it has 3, counted from 0");
    check("name.x=1", "`name` is a string and has no keys");
    check("a..b=1", "is not a dotted key");
    check("nodes.src.sysctl.\"net=1", "write it as KEY=VALUE");
    check("\"a\"b=1", "a dot is missing");
    check("=1", "is not a dotted key");
    check("matrix.scheme=bbr", "there is no factor `scheme`");
    check("matrix.flows.first.cc=bbr", "write `--set flows.first.cc=bbr`");
    check("links.bottleneck.rate=fast", "`fast` is not a rate");
}

#[test]
fn overrides_and_plan_are_checked_together() {
    let text = std::fs::read_to_string(root().join("tests/plans/invalid/zero-rate.toml")).unwrap();
    let problems = |sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|s| (*s).to_owned()).collect();
        read(&text, &sets).map(|_| ()).map_err(|p| print(&p)).err().unwrap_or_default()
    };
    let rate = "error: 16: links.bottleneck.rate: is zero";
    assert!(problems(&[]).starts_with(rate));
    assert_eq!(problems(&["links.bottleneck.rate=1mbit"]), "");
    let both = problems(&["flows.a.count=\"many\"", "repaet=3"]);
    let lines: Vec<&str> = both.lines().collect();
    assert_eq!(lines.len(), 3, "{both}");
    assert!(lines[0].starts_with("error: flows.a.count: must be a whole number from 1 to 128"));
    assert!(lines[0].ends_with("(from `--set flows.a.count`)"), "{both}");
    assert!(lines[1].starts_with("error: repaet: is not a key of a plan; did you mean `repeat`?"));
    assert!(lines[2].starts_with(rate), "{both}");
    // The refused override might have corrected the rate.
    let refused = problems(&["links.botleneck.rate=1mbit"]);
    assert_eq!(refused.lines().count(), 1, "{refused}");
    assert!(refused.starts_with("error: --set links.botleneck.rate: there is no link"));
}

#[test]
fn overrides_choose_among_the_levels_of_a_factor() {
    let text = std::fs::read_to_string(root().join("plans/coexistence/1v1.toml")).unwrap();
    let points = |sets: &[&str]| -> Result<Vec<String>, String> {
        let sets: Vec<String> = sets.iter().map(|s| (*s).to_owned()).collect();
        let plan = parse_with(&text, &sets).map_err(|p| print(&p))?;
        let plan = check(plan).map_err(|p| print(&p))?.0;
        Ok(plan.points().iter().map(|p| p.factors[0].1.clone()).collect())
    };
    assert_eq!(points(&[]).unwrap(), ["bbr", "cubic", "reno"]);
    assert_eq!(points(&["matrix.scheme=bbr"]).unwrap(), ["bbr"]);
    assert_eq!(points(&["matrix.scheme=[\"reno\", \"bbr\"]"]).unwrap(), ["bbr", "reno"]);
    let error = points(&["matrix.scheme=bbbr"]).unwrap_err();
    assert!(error.contains("no level `bbbr`; did you mean `bbr`?"), "{error}");
    let error = points(&["flows.delay_based.cc=bbr"]).unwrap_err();
    assert!(error.contains("choose a level with `--set matrix.scheme=NAME`"), "{error}");
    let rates = "matrix.\"links.bottleneck.rate\"=[\"10mbit\", \"20mbit\"]";
    assert_eq!(points(&["matrix.scheme=bbr", rates]).unwrap(), ["10mbit", "20mbit"]);
    let one = points(&["matrix.scheme=bbr", rates, "links.bottleneck.rate=30mbit"]);
    assert_eq!(one.unwrap(), ["30mbit"]);
}

#[test]
fn the_order_of_trials_is_shuffled_within_repetitions_and_the_same_everywhere() {
    let text = std::fs::read_to_string(root().join("plans/coexistence/1v1.toml")).unwrap();
    let order = |seed: u64| -> Vec<u32> {
        let plan = parse_with(&text, &[format!("seed={seed}")]).unwrap();
        let trials = trials(&check(plan).unwrap().0);
        assert!(trials.iter().zip(0..).all(|(run, index)| run.index == index));
        for block in trials.chunks(3) {
            let mut points: Vec<u32> = block.iter().map(|run| run.point_id).collect();
            points.sort_unstable();
            assert_eq!(points, [0, 1, 2], "each repetition has every point once");
        }
        trials.iter().map(|run| run.point_id).collect()
    };
    assert_eq!(order(1), order(1));
    let all: std::collections::BTreeSet<Vec<u32>> = (0..20).map(order).collect();
    assert!(all.len() > 10, "seeds give different orders");
}

#[test]
fn ten_thousand_points_are_checked() {
    let text = std::fs::read_to_string(root().join("plans/quickstart.toml")).unwrap();
    let delays: Vec<String> = (1..=100).map(|ms| format!("\"{ms}ms\"")).collect();
    let counts: Vec<String> = (1..=100).map(|count| count.to_string()).collect();
    let sets = [
        format!("matrix.\"links.delay.delay\"=[{}]", delays.join(", ")),
        format!("matrix.\"flows.first.count\"=[{}]", counts.join(", ")),
    ];
    let (plan, warnings) = check(parse_with(&text, &sets).unwrap()).unwrap();
    assert_eq!(plan.point_count(), 10_000);
    assert!(warnings.len() < 20, "{}", print(&warnings));
}

#[test]
fn warns_of_a_bucket_that_holds_a_whole_phase() {
    let text = std::fs::read_to_string(root().join("plans/quickstart.toml")).unwrap();
    let warned = |burst: &str| {
        let set = format!("links.bottleneck.tbf={{ burst = \"{burst}\" }}");
        let (_, warnings) = check(parse_with(&text, &[set]).unwrap()).unwrap();
        print(&warnings).contains("links.bottleneck.tbf.burst: 100mbit takes ")
    };
    // The bytes that 100 Mbit/s send in 6 s.
    assert!(!warned("75MB") && warned("75000001B"));
}

mod any_text {
    use super::*;
    use proptest::prelude::*;

    fn whole_way(text: &str, set: &str) {
        let Ok(plan) = parse_with(text, &[set.to_owned()]).or_else(|_| parse(text)) else { return };
        let Ok((plan, _)) = check(plan) else { return };
        let again = checked(&to_toml(&plan)).unwrap().0;
        assert_eq!(again, plan, "resolved text reads back");
        for point in plan.points().iter().take(3) {
            let addresses = Topology::build(point.plan.plan()).addresses();
            let context =
                TrialContext { addresses, port_slot: 40, seed: 1, ..TrialContext::default() };
            for node in point.plan.plan().nodes.keys() {
                task_for(&point.plan, node, &context);
            }
        }
        if plan.plan().repeat.at_most() < 100 {
            trials(&plan);
        }
    }

    /// A valid plan with some of its parts exchanged.
    fn mutated() -> impl Strategy<Value = String> {
        let texts: Vec<String> = tomls("tests/plans/valid")
            .iter()
            .chain(&tomls("tests/plans/invalid"))
            .map(|path| std::fs::read_to_string(path).unwrap())
            .collect();
        let words = prop_oneof![
            Just("0".to_owned()),
            Just("-1".to_owned()),
            Just("9223372036854775807".to_owned()),
            Just("\"1us\"".to_owned()),
            Just("\"18446744073709551615us\"".to_owned()),
            Just("\"18446744073709551615bit\"".to_owned()),
            Just("\"1bit\"".to_owned()),
            Just("\"4294967bdp\"".to_owned()),
            Just("[]".to_owned()),
            Just("{}".to_owned()),
            Just("nan".to_owned()),
            Just("1979-05-27".to_owned()),
            Just("true".to_owned()),
            "\\PC{0,12}",
        ];
        let edits = proptest::collection::vec((any::<prop::sample::Index>(), words), 0..4);
        (proptest::sample::select(texts), edits).prop_map(|(text, edits)| {
            let mut pieces: Vec<String> =
                text.split_inclusive(['=', '\n', ',', ']', '}']).map(str::to_owned).collect();
            for (index, word) in edits {
                let at = index.index(pieces.len());
                let end: String = pieces[at].chars().rev().take(1).collect();
                pieces[at] = format!(" {word}{end}");
            }
            pieces.concat()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

        #[test]
        fn never_panics(text in "\\PC{0,200}", set in "\\PC{0,40}") {
            whole_way(&text, &set);
        }

        #[test]
        fn nor_do_nearly_valid_plans_and_what_passes_reads_back(text in mutated(), set in "[a-z.=0-9]{0,30}") {
            whole_way(&text, &set);
        }
    }
}
