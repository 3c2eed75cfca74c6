//! Rules that depend on the contents of trace files.

use std::sync::Arc;

use ccbench_proto::plan::check::{
    CheckedPlan, PlanProblem, TraceFacts, TraceFiles, UnreadableTrace, read_with, trace_files,
};
use ccbench_proto::resolve::{drain_rate, to_toml};
use ccbench_proto::schedule::{TrialContext, task_for};
use ccbench_proto::trace::{Opportunities, Step, Steps, Trace};
use ccbench_proto::units::Rate;

const PLAN: &str = r#"
name = "traced"
repeat = 2
[nodes]
src = {}
router = {}
dst = {}
[wires]
path = ["src", "router", "dst"]
[links.l]
node = "router"
toward = "dst"
delay = "10ms"
trace = { file = "a.csv" }
[flows.f]
from = "src"
to = "dst"
[[phases]]
name = "all"
length = "20s"
flows = ["f"]
"#;

const SHA: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

fn step(at_s: u64, mbit: Option<u64>) -> Step {
    let rate = mbit.map(|mbit| Rate::from_bits_per_sec(mbit * 1_000_000));
    Step { at_ns: at_s * 1_000_000_000, rate, delay_ns: None, loss: None, line: at_s as u32 + 1 }
}

fn steps(steps: Vec<Step>, length_s: u64) -> Result<TraceFacts, UnreadableTrace> {
    let trace = Trace::Steps(Steps { steps, length_ns: length_s * 1_000_000_000 });
    Ok(TraceFacts { sha256: SHA.to_owned(), trace: Arc::new(trace) })
}

fn files(all: &[(&str, Result<TraceFacts, UnreadableTrace>)]) -> TraceFiles {
    all.iter().map(|(name, facts)| ((*name).to_owned(), facts.clone())).collect()
}

fn read(
    sets: &[&str],
    traces: TraceFiles,
) -> Result<(CheckedPlan, Vec<PlanProblem>), Vec<PlanProblem>> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    read_with(PLAN, &sets, traces)
}

fn refused(sets: &[&str], traces: TraceFiles) -> String {
    let problems = read(sets, traces).map(|_| ()).expect_err("it is wrong");
    problems.iter().map(|p| format!("{}: {p}\n", p.line.unwrap_or(0))).collect()
}

#[test]
fn a_traces_mean_rate_is_what_relative_limits_refer_to() {
    // 10 mbit for 5 s, 30 for 15: 25 on average.
    let facts = steps(vec![step(0, Some(10)), step(5, Some(30))], 20);
    let (plan, warnings) = read(&[], files(&[("a.csv", facts)])).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    let text = to_toml(&plan);
    assert!(text.contains("mean_rate = \"25mbit\"") && text.contains(SHA), "{text}");
    let point = &plan.points()[0].plan;
    let task = task_for(point, "router", &TrialContext::default());
    // 1.5 times the bytes that 25 mbit carry in 10 ms.
    assert!(format!("{:?}", task.links[0].config.queue).contains("46875"), "{task:?}");
    // The agent reads the resolved text without the files.
    let again = ccbench_proto::plan::check::read(&to_toml(point), &[]).unwrap().0;
    assert_eq!(task_for(&again, "router", &TrialContext::default()), task);
}

/// One opportunity per millisecond.
fn opportunities() -> TraceFiles {
    let at_ns = (1..=1000).map(|ms| ms * 1_000_000).collect();
    let all = Opportunities { at_ns, bytes: 1500, length_ns: 1_000_000_000 };
    let trace = Arc::new(Trace::Opportunities(all));
    files(&[("a.csv", Ok(TraceFacts { sha256: SHA.to_owned(), trace }))])
}

#[test]
fn opportunities_have_a_mean_too() {
    let sets = ["links.l.trace.on_end=loop"];
    let (plan, _) = read(&sets, opportunities()).unwrap();
    let mean = plan.plan().links["l"].trace.as_ref().unwrap().mean_rate;
    assert_eq!(mean, Some(Rate::from_bits_per_sec(12_112_000)));
}

/// 10 mbit, and the link's own rate from 5 s on.
fn half_empty() -> TraceFiles {
    files(&[("a.csv", steps(vec![step(0, Some(10)), step(5, None)], 20))])
}

#[test]
fn a_row_without_a_rate_has_the_rate_of_its_link() {
    let mean = |sets: &[&str]| {
        let (plan, _) = read(sets, half_empty()).unwrap();
        let link = plan.points()[0].plan.plan().links["l"].clone();
        (link.rate.unwrap().to_string(), drain_rate(&link).unwrap().to_string())
    };
    // 10 mbit for 5 s, 30 for 15.
    assert_eq!(mean(&["links.l.rate=30mbit"]), ("30mbit".to_owned(), "25mbit".to_owned()));
    let preset = ["path.slow={ rate = \"2mbit\" }", "links.l.path=slow"];
    assert_eq!(mean(&preset), ("2mbit".to_owned(), "4mbit".to_owned()));
    // The agent reads the resolved text without the files.
    let (plan, _) = read(&["links.l.rate=30mbit"], half_empty()).unwrap();
    let point = &plan.points()[0].plan;
    let again = ccbench_proto::plan::check::read(&to_toml(point), &[]).unwrap().0;
    assert_eq!(again.plan().links, point.plan().links);
    // If the rate varies, each point has its own.
    let (plan, _) =
        read(&["matrix.\"links.l.rate\"=[\"30mbit\", \"10mbit\"]"], half_empty()).unwrap();
    let points = plan.points();
    let means = points.iter().map(|point| drain_rate(&point.plan.plan().links["l"]).unwrap());
    assert_eq!(means.map(|rate| rate.to_string()).collect::<Vec<_>>(), ["25mbit", "10mbit"]);
    let change = "[[changes]]\nat = \"9s\"\nset = { \"links.l.rate\" = \"5mbit\" }\n";
    let sets = ["links.l.rate=30mbit".to_owned()];
    let problems = read_with(&format!("{PLAN}{change}"), &sets, half_empty()).unwrap_err();
    let message: String = problems.iter().map(ToString::to_string).collect();
    assert!(message.contains("the trace of `links.l` sets its rate"), "{message}");
}

#[test]
fn a_missing_rate_is_that_of_a_row() {
    let queue = "links.l.queue={ kind = \"bfifo\", limit = \"1bdp\" }";
    let message = refused(&[queue], half_empty());
    let why = "needs a rate at which it drains; line 6 of `a.csv` has none: write it there, or add the link's `rate`";
    assert!(message.contains(why), "{message}");
}

#[test]
fn each_point_has_its_own_file() {
    let sets = ["matrix.\"links.l.trace.file\"=[\"a.csv\", \"b.csv\"]"];
    let owned: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    assert_eq!(trace_files(PLAN, &owned).into_iter().collect::<Vec<_>>(), ["a.csv", "b.csv"]);
    let facts = [
        ("a.csv", steps(vec![step(0, Some(10))], 20)),
        ("b.csv", steps(vec![step(0, Some(40))], 20)),
    ];
    let (plan, _) = read(&sets, files(&facts)).unwrap();
    assert_eq!(plan.plan().links["l"].trace.as_ref().unwrap().mean_rate, None, "it varies");
    let means: Vec<String> = plan
        .points()
        .iter()
        .map(|p| p.plan.plan().links["l"].trace.as_ref().unwrap().mean_rate.unwrap().to_string())
        .collect();
    assert_eq!(means, ["10mbit", "40mbit"]);
}

#[test]
fn trace_contents_are_checked_with_the_plan() {
    let good = || steps(vec![step(0, Some(10)), step(5, Some(0))], 20);
    let a = |facts| files(&[("a.csv", facts)]);
    let message =
        refused(&[], a(Err(UnreadableTrace { reason: "there is no such file".to_owned() })));
    assert_eq!(message, "14: links.l.trace.file: `a.csv`: there is no such file\n");
    let message = refused(&["links.l.rate=10mbit"], a(good()));
    assert!(message.contains("links.l.trace: its file gives the rate"), "{message}");
    let message = refused(&["links.l.backend=kernel"], a(good()));
    assert!(message.contains("line 6 of `a.csv` is a rate of zero"), "{message}");
    assert!(read(&["links.l.backend=kernel", "links.l.trace.floor=1mbit"], a(good())).is_ok());
    let message = refused(&[&format!("links.l.trace.sha256={}", "b".repeat(64))], a(good()));
    assert!(message.contains("has changed: its sha256 is now"), "{message}");
    let message = refused(&["links.l.trace.mean_rate=9mbit"], a(good()));
    assert!(message.contains("the mean of `a.csv` is 2500kbit"), "{message}");
    let nothing = || steps(vec![step(0, Some(0))], 20);
    assert!(refused(&[], a(nothing())).contains("never lets anything pass"));
    let delay = Step { delay_ns: Some(1_000), ..step(0, None) };
    let message =
        refused(&["links.l.backend=kernel", "links.l.rate=1mbit"], a(steps(vec![delay], 20)));
    assert!(message.contains("can change only the rate"), "{message}");
    let message = refused(
        &["links.l.queue={ kind = \"bfifo\", limit = \"1bdp\" }"],
        a(steps(vec![delay], 20)),
    );
    assert!(message.contains("links.l.queue: needs a rate"), "{message}");
}

#[test]
fn kernel_backend_has_neither_opportunities_nor_a_stop() {
    let kernel = "links.l.backend=kernel";
    let message = refused(&[kernel], opportunities());
    assert!(message.contains("`a.csv` has delivery opportunities"), "{message}");
    let rows = || files(&[("a.csv", steps(vec![step(0, Some(10))], 20))]);
    let stop = "links.l.trace.on_end=stop";
    let message = refused(&[kernel, stop], rows());
    assert!(message.contains("on_end: \"stop\" needs the userspace backend"), "{message}");
    assert!(read(&[stop], rows()).is_ok() && read(&[kernel], rows()).is_ok());
}

/// The rates of classes change in proportion to the link's rate, so only its mean limits their sum.
#[test]
fn guaranteed_rates_are_those_at_the_mean_rate() {
    // 4 mbit for 15 s, 24 for 5 s: 9 on average.
    let rows = || files(&[("a.csv", steps(vec![step(0, Some(4)), step(15, Some(24))], 20))]);
    let checked = |rate: &str, facts: TraceFiles| {
        let class = format!("[links.l.classes.c]\nrate = \"{rate}\"\nmatch = {{ dscp = 46 }}\n");
        read_with(&PLAN.replace("[flows.f]", &format!("{class}[flows.f]")), &[], facts)
    };
    assert!(checked("9mbit", rows()).is_ok() && checked("12mbit", opportunities()).is_ok());
    for (rate, facts, mean) in
        [("9001kbit", rows(), "9mbit"), ("12113kbit", opportunities(), "12112kbit")]
    {
        let problems = checked(rate, facts).unwrap_err();
        let why = format!(
            "their guaranteed rates sum to {rate}, more than {mean}, the mean rate of `a.csv`"
        );
        let is_it = |p: &PlanProblem| p.path == "links.l.classes" && p.reason.starts_with(&why);
        assert!(problems.iter().any(is_it), "{problems:?}");
    }
}

#[test]
fn warns_when_trial_is_longer_than_trace() {
    let facts = || files(&[("a.csv", steps(vec![step(0, Some(10))], 5))]);
    let warned = |sets: &[&str]| read(sets, facts()).unwrap().1.len();
    assert_eq!(warned(&[]), 1);
    assert_eq!(warned(&["links.l.trace.on_end=loop"]), 0);
}
