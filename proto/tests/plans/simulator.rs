//! Plans that the simulator cannot run, and keys without effect there.

use std::sync::Arc;

use ccbench_proto::plan::check::{PlanProblem, Severity, Target, TraceFacts, TraceFiles, read_for};
use ccbench_proto::plan::digest_bytes;
use ccbench_proto::trace;

/// A plan that the simulator runs. Tests insert lines at `# nodes`, `# link` and `# flow`.
const PLAN: &str = r#"
name = "simulated"
repeat = 2
[nodes]
src = {}
router = {}
dst = {}
# nodes
[wires]
path = ["src", "router", "dst"]
[links.l]
node = "router"
toward = "dst"
rate = "10mbit"
delay = "10ms"
# link
[flows.f]
from = "src"
to = "dst"
# flow
[[phases]]
name = "all"
length = "20s"
flows = ["f"]
"#;

/// The problems of a plan that this target will run.
fn problems(target: Target, text: &str) -> Vec<PlanProblem> {
    match read_for(target, text, &[], TraceFiles::new()) {
        Ok((_, warnings)) => warnings,
        Err(problems) => problems,
    }
}

fn with(place: &str, lines: &str) -> String {
    PLAN.replacen(&format!("# {place}\n"), &format!("{lines}\n"), 1)
}

/// Asserts that a plan has one problem, and only for the simulator: `key: why`, with this beginning and its line.
#[track_caller]
fn has(severity: Severity, text: &str, key: &str, why: &str) {
    let [kernel, simulator] = [Target::Kernel, Target::Simulator].map(|t| problems(t, text));
    let others: Vec<&PlanProblem> = simulator.iter().filter(|p| !kernel.contains(p)).collect();
    let [problem] = others[..] else { panic!("one problem: {others:#?}") };
    assert_eq!((problem.severity, problem.path.as_str()), (severity, key), "{problem}");
    assert!(problem.reason.starts_with(why), "{problem}");
    assert!(problem.line.is_some(), "{problem}");
    let fix = [
        "leave",
        "remove",
        "use ",
        "write",
        "without --sim",
        "no effect",
        "simulated as",
        "only makes",
    ];
    assert!(fix.iter().any(|fix| problem.reason.contains(fix)), "{problem}");
}

#[test]
fn runs_what_it_has_models_of() {
    let flow = "cc = \"mine\"\n[flows.other]\nfrom = \"dst\"\nto = \"src\"\nrate = \"1mbit\"\ncc = \"bbr\"\n\
                [cc.mine]\nalgorithm = \"vegas\"\n[probes.rtt]\nkind = \"udp\"\nfrom = \"src\"\nto = \"dst\"\n\
                [probes.page]\nkind = \"http\"\nfrom = \"dst\"\nto = \"src\"\nbytes = \"177669B\"\ncc = \"mine\"\n\
                [probes.connect]\nkind = \"tcp_connect\"\nfrom = \"src\"\nto = \"dst\"\n\
                [sample]\nacks = \"every-ack\"";
    let nodes = "[nodes.dst.sysctl]\n\"net.ipv4.tcp_rmem\" = \"4096 131072 6291456\"\n\"net.ipv4.tcp_sack\" = 1\n\
                 \"net.core.default_qdisc\" = \"fq\"";
    let plan =
        PLAN.replace("dst = {}\n", "").replace("flows = [\"f\"]", "flows = [\"f\", \"other\"]");
    let plan = plan.replace("# flow", flow).replace("# nodes", nodes);
    let found = problems(Target::Simulator, &plan);
    assert_eq!(found, problems(Target::Kernel, &plan));
    assert!(found.iter().all(|p| p.severity == Severity::Warning), "{found:#?}");
}

#[test]
fn rejects_what_it_has_no_model_of() {
    let error = |place, lines: &str, key, why| has(Severity::Error, &with(place, lines), key, why);
    error("nodes", "[lab]\nkernel = \"6.12\"", "lab.kernel", "the simulator runs no kernel");
    let cake = "queue = { kind = \"cake\" }";
    error("link", cake, "links.l.queue", "the simulator does not model this kind of queue");
    let gso = "queue = { kind = \"dualpi2\", split_gso = false }";
    let key = "links.l.queue.split_gso";
    error("link", gso, key, "the simulator does not model `split_gso`");
    let userspace = with("link", &format!("backend = \"userspace\"\n{gso}"));
    let found = problems(Target::Kernel, &userspace);
    assert!(found.iter().any(|p| p.severity == Severity::Error && p.path == key), "{found:#?}");
    let vegas = "the simulator has no model of the kernel's `vegas`, only of cubic, reno, bbr and ccbench's own: for";
    error("flow", "cc = \"vegas\"", "flows.f.cc", vegas);
    let nv = "the simulator has no model of the kernel's `nv`, only of cubic, reno, bbr and ccbench's own: use one of these";
    error("flow", "cc = \"nv\"", "flows.f.cc", nv);
    let builtin = "cc = \"mine\"\n[cc.mine]\nalgorithm = \"dctcp\"\nvia = \"builtin\"";
    error(
        "flow",
        builtin,
        "cc.mine.algorithm",
        "the simulator has no model of the kernel's `dctcp`",
    );
    let params = "cc = \"mine\"\n[cc.mine]\nalgorithm = \"cubic\"\nparams = { beta = 700 }";
    error("flow", params, "cc.mine.params", "the simulator's cubic has no module parameters");
    let page = "[probes.p]\nkind = \"http\"\nbytes = \"1000B\"\nfrom = \"src\"\nto = \"dst\"\n";
    error("flow", &format!("{page}cc = \"vegas\""), "probes.p.cc", vegas);
    error("flow", &format!("{page}cc = \"nv\""), "probes.p.cc", nv);
    let named = format!("{page}host = \"localhost\"");
    error("flow", &named, "probes.p.host", "simulated nodes resolve no names");
    let capture = "[capture.c]\nnode = \"router\"\ntoward = \"dst\"";
    error("flow", capture, "capture.c", "simulated packets have no payload");
}

#[test]
fn rejects_changes_to_what_it_has_no_model_of() {
    let queue = "queue = { kind = \"fq\" }";
    let change = "[[changes]]\nat = \"5s\"\nset = { \"links.l.queue.maxrate\" = \"1mbit\" }\n";
    let why = "only the kernel's qdisc has it: give the flows or the link a rate instead";
    let path = "changes.0.set.\"links.l.queue.maxrate\"";
    let errors = |target| -> Vec<(String, String)> {
        let found = problems(target, &(with("link", queue) + change)).into_iter();
        let found = found.filter(|problem| problem.severity == Severity::Error);
        found.map(|problem| (problem.path, problem.reason)).collect()
    };
    assert!(errors(Target::Kernel).is_empty());
    assert_eq!(errors(Target::Simulator), [(path.to_owned(), why.to_owned())]);
}

#[test]
fn rejects_nodes_with_agents_and_values_of_sysctls() {
    let sack = PLAN.replace("dst = {}", "[nodes.dst.sysctl]\n\"net.ipv4.tcp_sack\" = 0");
    let key = "nodes.dst.sysctl.\"net.ipv4.tcp_sack\"";
    let found = problems(Target::Simulator, &sack);
    let error = found.iter().find(|p| p.severity == Severity::Error).unwrap();
    assert_eq!(error.path, key, "{error}");
    assert!(error.reason.contains("always has `net.ipv4.tcp_sack = 1`, not 0"), "{error}");
    let of_ecn = |ecn: u32| {
        let sysctls = format!(
            "[nodes.dst.sysctl]\n\"net.ipv4.tcp_ecn\" = {ecn}\n\"net.ipv4.tcp_ecn_fallback\" = 0"
        );
        let found = problems(Target::Simulator, &PLAN.replace("dst = {}", &sysctls));
        let about: Vec<String> = found.into_iter().map(|problem| problem.reason).collect();
        about.into_iter().filter(|reason| reason.contains("tcp_ecn") || reason.contains("0 to 5"))
    };
    assert_eq!((0..=5).flat_map(of_ecn).collect::<Vec<_>>(), Vec::<String>::new());
    let why = "the simulator supports 0 to 5, not 6: use one of them, or run without --sim";
    assert_eq!(of_ecn(6).collect::<Vec<_>>(), [why]);
    let agent = |name: &str, host: u8| {
        format!("{name} = {{ agent = \"h{host}:7700\", address = \"10.0.0.{host}\" }}")
    };
    let mut agents = PLAN.to_owned();
    for (host, name) in (1..).zip(["src", "router", "dst"]) {
        agents = agents.replace(&format!("{name} = {{}}"), &agent(name, host));
    }
    let found = problems(Target::Simulator, &agents);
    let of = |name: &str| {
        let path = format!("nodes.{name}.agent");
        found.iter().any(|p| p.path == path && p.reason.contains("creates its own nodes"))
    };
    assert!(["src", "router", "dst"].into_iter().all(of), "{found:#?}");
}

/// The default is ccbench's generator in the simulator and in the lab. A plan that names an engine runs in the lab.
#[test]
fn finite_flows_and_pauses_need_no_tool_where_the_default_has_them() {
    let pause = "rate = \"1mbit\"\npause = { after = \"1s\", for = \"1s\" }";
    for keys in ["bytes = \"1MB\"", pause] {
        let plan = with("flow", keys);
        let errors = |target, plan: &str| {
            let found = problems(target, plan).into_iter();
            found.filter(|problem| problem.severity == Severity::Error).count()
        };
        for target in [Target::Simulator, Target::Lab, Target::Any] {
            assert_eq!(errors(target, &plan), 0, "{target:?}");
        }
        assert_eq!(errors(Target::Kernel, &plan), 1);
        let lab = plan.replace("[nodes]", "[lab]\nengine = \"qemu\"\n[nodes]");
        assert_eq!(errors(Target::Kernel, &lab), 0);
        let iperf3 = with("flow", &format!("tool = \"iperf3\"\n{keys}"));
        for target in [Target::Simulator, Target::Lab] {
            assert_eq!(errors(target, &iperf3), 1, "{target:?}");
        }
    }
}

#[test]
fn a_handshake_takes_less_than_the_generator_waits() {
    let with_delay =
        |delay: &str| PLAN.replace("\"10ms\"", &format!("\"{delay}\"")).replace("20s", "600s");
    let error = |delay, severity| {
        let why = format!("a handshake takes {delay} (the base round-trip time), but the traffic");
        has(severity, &with_delay(delay), "flows.f", &why);
    };
    error("4s", Severity::Error);
    // The timer may expire later.
    error("3100ms", Severity::Warning);
    let found = problems(Target::Simulator, &with_delay("3s"));
    assert_eq!(found, problems(Target::Kernel, &with_delay("3s")));
    // In the lab, the generator is the default, too.
    let warned = |target, text: &str| {
        let found = problems(target, text);
        found.iter().any(|problem| problem.reason.starts_with("a handshake takes 4s"))
    };
    let slow = with_delay("4s");
    assert!(warned(Target::Lab, &slow) && !warned(Target::Kernel, &slow));
    let lab = slow.replace("[nodes]", "[lab]\nengine = \"qemu\"\n[nodes]");
    assert!(warned(Target::Kernel, &lab) && !warned(Target::Any, &lab));
    let iperf3 = slow.replace("# flow", "tool = \"iperf3\"");
    assert!(!warned(Target::Lab, &iperf3));
    let change = "[[changes]]\nat = \"1s\"\nset = { \"links.l.delay\" = \"1s\" }\n";
    let why = "a handshake takes 4s";
    has(Severity::Warning, &(with_delay("4s") + change), "flows.f", why);
}

#[test]
fn rejects_a_flow_that_nothing_limits() {
    let plan = PLAN.replace("rate = \"10mbit\"\n", "");
    let why = "no link from src to dst has a rate, and simulated hosts are infinitely fast";
    has(Severity::Error, &plan, "flows.f", why);
}

#[test]
fn rejects_a_flow_over_a_trace_without_rates() {
    let plan = PLAN.replace("rate = \"10mbit\"", "trace = { file = \"a.csv\", on_end = \"loop\" }");
    let read = |rows: &str| {
        let trace = Arc::new(trace::parse("a.csv", rows.as_bytes()).unwrap());
        let facts = TraceFacts { sha256: digest_bytes(rows.as_bytes()), trace };
        read_for(Target::Simulator, &plan, &[], TraceFiles::from([("a.csv".to_owned(), Ok(facts))]))
    };
    let limited = read("t_us,rate_bps\n0,1000000\n500000,2000000\n");
    assert!(limited.is_ok(), "{limited:#?}");
    let problems = read("t_us,delay_us\n0,1000\n500000,2000\n").unwrap_err();
    let why = "no link from src to dst has a rate";
    let is_it = |p: &PlanProblem| p.path == "flows.f" && p.reason.starts_with(why);
    assert!(problems.iter().any(is_it), "{problems:#?}");
}

#[test]
fn warns_of_what_has_no_effect() {
    let warning =
        |place, lines: &str, key, why| has(Severity::Warning, &with(place, lines), key, why);
    let kernel = "the simulator has no kernel qdiscs: the link is simulated as with `backend = \"userspace\"`";
    warning("link", "backend = \"kernel\"", "links.l.backend", kernel);
    warning("link", "shaper = \"tbf\"", "links.l.shaper", "has no effect with --sim");
    warning("flow", "tool = \"iperf3\"", "flows.f.tool", "has no effect with --sim");
    warning("nodes", "[lab]\nengine = \"qemu\"", "lab.engine", "has no effect with --sim");
    let via = "cc = \"mine\"\n[cc.mine]\nalgorithm = \"vegas\"\nvia = \"module\"";
    warning("flow", via, "cc.mine.via", "has no effect with --sim");
    let awake = PLAN.replace("repeat = 2", "repeat = 2\nkeep_awake = true");
    has(Severity::Warning, &awake, "keep_awake", "has no effect with --sim");
    let offloads = PLAN.replace("src = {}", "src = { offloads = true }");
    has(
        Severity::Warning,
        &offloads,
        "nodes.src.offloads",
        "simulated links get single segments, never super-packets; with --sim",
    );
}

#[test]
fn names_the_level_of_a_factor() {
    let matrix = "[matrix]\n\"lab.kernel\" = [\"own\", \"6.12\"]\n[[phases]]";
    let found = problems(Target::Simulator, &PLAN.replace("[[phases]]", matrix));
    let errors = found.iter().filter(|p| p.severity == Severity::Error);
    let errors: Vec<String> = errors.map(ToString::to_string).collect();
    assert_eq!(errors.len(), 2, "one for each level: {errors:#?}");
    assert!(
        errors[0].contains("cannot run own") && errors[1].contains("cannot run 6.12"),
        "{errors:#?}"
    );
}

#[test]
fn only_the_simulator_triggers_changes_of_links_of_other_nodes() {
    let lines = "cc = \"probing\"\n[cc.probing]\nalgorithm = \"bbr3\"\n[[changes]]\n\
                 when = { flow = \"f\", cc_state = \"DRAIN\" }\nset = { \"links.l.rate\" = \"9mbit\" }";
    let errors = |target, text: &str| -> Vec<String> {
        let found = problems(target, text).into_iter();
        found.filter(|p| p.severity == Severity::Error).map(|p| p.path).collect()
    };
    let elsewhere = with("flow", lines);
    for target in [Target::Kernel, Target::Lab] {
        assert_eq!(errors(target, &elsewhere), [r#"changes.0.set."links.l.rate""#]);
    }
    for target in [Target::Simulator, Target::Any] {
        assert_eq!(errors(target, &elsewhere), Vec::<String>::new());
    }
    let beside = elsewhere.replace("node = \"router\"", "node = \"src\"");
    assert_eq!(errors(Target::Kernel, &beside), Vec::<String>::new());
}
