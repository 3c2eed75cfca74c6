//! The plans under `tests/plans`: valid ones become the schedules under `tests/golden/schedule`, invalid
//! ones fail with exactly their `.err`. `UPDATE_GOLDEN=1` rewrites both; read the diff.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use ccbench_proto::plan::check::{CheckedPlan, PlanProblem, Severity, check};
use ccbench_proto::plan::{self, parse::parse};
use ccbench_proto::resolve::to_toml;
use ccbench_proto::schedule::{
    FlowTask, LinkTask, NodeTask, TrialContext, length, phases, runs, task_for,
};
use ccbench_proto::topology::Topology;

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
        let _ = writeln!(text, "{}: {p}", p.severity);
        text
    })
}

fn checked(text: &str) -> Result<(CheckedPlan, Vec<PlanProblem>), Vec<PlanProblem>> {
    check(parse(text)?)
}

#[test]
fn invalid_plans_say_exactly_what_is_wrong() {
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

#[test]
fn valid_plans_become_their_golden_schedules() {
    let mut files = tomls("tests/plans/valid");
    assert!(files.len() >= 12, "only {} valid plans", files.len());
    files.extend(tomls("plans"));
    files.extend(tomls("plans/coexistence"));
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

/// A schedule for people to read.
fn describe(plan: &CheckedPlan, warnings: &[PlanProblem]) -> String {
    let mut out = print(warnings);
    let points = plan.points();
    for point in &points {
        let factors: Vec<String> = point.factors.iter().map(|(f, l)| format!("{f}={l}")).collect();
        let _ = writeln!(out, "point {} {}", point.id, factors.join(" "));
    }
    for run in runs(plan) {
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
        let context = TrialContext { addresses, port_slot: 0, seed: 1 };
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
    let _ = writeln!(
        out,
        "{node}: sample tcp {} qdisc {} host {}, offloads {}",
        task.sample.tcp,
        task.sample.qdisc,
        task.sample.host,
        if task.keep_offloads { "kept" } else { "off" }
    );
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
            p.id, p.kind, p.to, p.to_ip, p.every, p.tos
        );
    }
    for (peer, address) in &task.peers {
        let _ = writeln!(out, "  peer {peer} {address}");
    }
}

fn link(out: &mut String, task: &LinkTask) {
    let c = &task.config;
    let rate = c.rate.map_or("unshaped".to_owned(), |r| r.to_string());
    let _ = writeln!(
        out,
        "  link {} at {:?}: {rate} delay {} loss {} {:?} {:?} {:?} seed {:016x}",
        c.name, task.egress, c.delay, c.loss, c.shaper, c.backend, c.queue, c.seed
    );
    for class in &c.classes {
        let _ = writeln!(
            out,
            "    class {}: {} up to {} {:?}",
            class.name, class.rate, class.ceil, class.queue
        );
        for m in &class.matches {
            let _ = writeln!(out, "      {m:?}");
        }
    }
    for change in &task.changes {
        let _ = writeln!(out, "    at {} {} ({})", change.at, change.rate, change.source);
    }
}

fn flow(out: &mut String, what: &str, f: &FlowTask) {
    let reverse = if f.reverse { " reverse" } else { "" };
    let rate = f.rate.map_or(String::new(), |r| format!(" at {r}"));
    let _ = writeln!(
        out,
        "  {what} {}: {} {}:{}.. -> {} {}:{} x{}{reverse}{rate} cc {} {}..{} every {}",
        f.group,
        f.from,
        f.from_ip,
        f.client_port,
        f.to,
        f.to_ip,
        f.server_port,
        f.count,
        f.cc.as_deref().unwrap_or("default"),
        f.start,
        f.stop,
        f.interval
    );
}
