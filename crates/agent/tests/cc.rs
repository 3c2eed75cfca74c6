//! Congestion controls of a plan in a real kernel: loaded under unique names, shown in every row under the plan's name,
//! and gone after the trial, however it ends. Needs root, iperf3 and a kernel with struct_ops.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use ccbench_agent::sockets::names::TrialId;
use ccbench_agent::sockets::names::kernel_name;
use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::wire::{self, Role};
use support::pair::{Pair, Rows};
use support::{AGENT, LOOPBACK_PLAN, Turn, wait_for};
use tokio::sync::RwLock;

/// A starting agent undoes what dead agents have left on this machine. A test holds this lock exclusively while it
/// inspects what a killed agent has left, and takes it before a [`Turn`].
static DEAD_AGENTS: RwLock<()> = RwLock::const_new(());

/// Returns a plan with three flows: two instances of one algorithm, and one of the kernel's congestion controls.
fn plan(seconds: &str) -> String {
    let flow = |name: &str, cc: &str| {
        format!("[flows.{name}]\nfrom = \"one\"\nto = \"two\"\ncc = \"{cc}\"\nrate = \"20mbit\"\n")
    };
    let own = "[cc.quick]\nalgorithm = \"ta\"\nparams = { betao = 1000 }\nvia = \"bpf\"\n[cc.slow]\nalgorithm = \
               \"ta\"\nparams = { betao = 9000, compete = 0 }\nvia = \"bpf\"\n";
    let flows = format!("{}{}{}", flow("a", "quick"), flow("b", "slow"), flow("c", "cubic"));
    let from = LOOPBACK_PLAN.find("[flows.bulk]").unwrap();
    let to = LOOPBACK_PLAN.find("[probes.rtt]").unwrap();
    let text = format!("{}{own}{flows}{}", &LOOPBACK_PLAN[..from], &LOOPBACK_PLAN[to..]);
    text.replace("[\"bulk\"]", "[\"a\", \"b\", \"c\"]")
        .replace("length = \"2s\"", &format!("length = \"{seconds}\""))
}

fn available() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    text.unwrap().split_whitespace().map(str::to_owned).collect()
}

/// Unique per process: kernel names are global to the machine, and these tests may run twice at a time.
fn run_id() -> String {
    format!("test-{}", std::process::id())
}

fn prepare(plan: &str, node: &str, epoch: u64) -> wire::PrepareRequest {
    wire::PrepareRequest { run_id: run_id(), ..support::prepare(plan, node, epoch) }
}

/// Returns the reported congestion control with this name in the plan.
fn reported<'r>(reply: &'r wire::PrepareReply, name: &str) -> &'r wire::CongestionControl {
    reply.congestion_controls.iter().find(|cc| cc.name == name).unwrap()
}

#[tokio::test]
async fn instances_carry_flows_and_are_unloaded() {
    let _beside = DEAD_AGENTS.read().await;
    let mut pair = Pair::start_alone().await;
    let plan = plan("2s");
    let reply = pair.clients[0].prepare(prepare(&plan, "one", 1)).await.unwrap().into_inner();
    let other = pair.clients[1].prepare(prepare(&plan, "two", 1)).await.unwrap().into_inner();
    assert!(other.congestion_controls.is_empty(), "it only receives: {other:?}");
    let (quick, slow) = (reported(&reply, "quick"), reported(&reply, "slow"));
    assert_eq!((quick.algorithm.as_str(), quick.via().as_text()), ("ta", "bpf"));
    assert_eq!((quick.params["betao"].as_str(), quick.params["compete"].as_str()), ("1000", "1"));
    assert_eq!((slow.params["betao"].as_str(), slow.params["compete"].as_str()), ("9000", "0"));
    for cc in [quick, slow] {
        assert!(available().contains(&cc.kernel_name), "{cc:?}");
    }
    let ([client, server], cpu) = pair.trial(1).await;
    for rows in [&client, &server] {
        assert!(rows.events.iter().all(|e| !e.name().ends_with("error")), "{:?}", rows.events);
    }
    sockets_are_set(&client);
    sockets_are_set(&server);
    for (group, cc) in [("a", "quick"), ("b", "slow"), ("c", "cubic")] {
        let flow =
            client.flows.iter().find(|f| f.group == group && f.role() == Role::Data).unwrap();
        assert_eq!((flow.cc_requested.as_str(), flow.cc_actual.as_str()), (cc, cc));
        assert!(server.flows.iter().any(|f| f.group == group && f.cc_requested == cc));
    }
    let of = |group: &str, variable: &str| {
        let rows = client.states.iter().filter(|s| s.group == group && s.variable == variable);
        rows.cloned().collect::<Vec<_>>()
    };
    for (group, cc) in [("a", "quick"), ("b", "slow")] {
        let rows = of(group, "threshold_us");
        assert!(rows.iter().all(|r| r.cc == cc && r.algorithm == "ta" && r.unit == "us"));
        assert!(rows.windows(2).all(|pair| pair[0].round < pair[1].round));
        assert!(rows.iter().all(|r| r.flow_id == format!("{group}/0")));
        assert!(rows.last().unwrap().cookie.is_some(), "the sampler has asked for it by then");
    }
    assert!(of("c", "threshold_us").is_empty() && server.states.is_empty());
    let names = [quick.kernel_name.clone(), slow.kernel_name.clone()];
    pair.reset().await;
    assert!(names.iter().all(|name| !available().contains(name)), "{:?}", available());
    assert!(pair.is_as_found());
    // A delay at the receiver is part of the base RTT, from which the threshold is computed.
    cpu.check(std::time::Duration::from_millis(20), || {
        for (group, cc) in [("a", "quick"), ("b", "slow"), ("c", "cubic")] {
            let samples =
                client.samples.iter().filter(|s| s.group == group && s.role() == Role::Data);
            assert!(samples.filter(|s| s.cc == cc).count() >= 10, "{group}");
        }
        for group in ["a", "b"] {
            let rows = of(group, "threshold_us").len();
            assert!(rows >= 10, "{rows} rows of {group}");
        }
        // compete = 0: the threshold never rises above the plan's.
        let base: Vec<f64> = of("b", "base_us").iter().map(|row| row.value).collect();
        let threshold: Vec<f64> = of("b", "threshold_us").iter().map(|row| row.value).collect();
        assert!(
            threshold.iter().all(|value| (9_000.0..40_000.0).contains(value)),
            "{threshold:?} {base:?}"
        );
    });
}

/// Checks that every socket has its congestion control, and that none is paced.
fn sockets_are_set(rows: &Rows) {
    let data_of = |kind: &str| -> Vec<serde_json::Value> {
        let data = rows.events_of(kind).into_iter().map(|e| serde_json::from_str(&e.data_json()));
        data.collect::<Result<_, _>>().unwrap()
    };
    let sockets = data_of("cc_sockets");
    assert_eq!(sockets.len(), 3);
    for seen in sockets {
        let of = |field: &str| seen[field].as_u64().unwrap();
        assert!(of("set") > 0 && of("refused") == 0 && of("ended") > 0, "{seen}");
        assert_eq!(of("paced"), 0, "none of these congestion controls paces: {seen}");
    }
}

#[tokio::test]
async fn a_killed_agent_leaves_none_registered() {
    let _beside = DEAD_AGENTS.read().await;
    let mut pair = Pair::start().await;
    let reply =
        pair.clients[0].prepare(prepare(&plan("60s"), "one", 2)).await.unwrap().into_inner();
    let names: Vec<String> =
        reply.congestion_controls.iter().map(|cc| cc.kernel_name.clone()).collect();
    assert!(names.len() == 2 && names.iter().all(|name| available().contains(name)), "{names:?}");
    pair.one.kill();
    wait_for("the kernel forgets them", || names.iter().all(|name| !available().contains(name)))
        .await;
}

#[tokio::test]
async fn load_errors_are_reported_and_nothing_stays() {
    let _beside = DEAD_AGENTS.read().await;
    let mut pair = Pair::start().await;
    let one_more = "[cc.mine]\nalgorithm = \"vegas\"\nvia = \"module\"\n[flows.d]\nfrom = \"one\"\nto = \"two\"\n\
                    cc = \"mine\"\nstart = \"0s\"\n[probes.rtt]";
    let plan = plan("2s").replace("[probes.rtt]", one_more);
    let module = std::path::Path::new("/sys/module/ccb_vegas").exists();
    if !module {
        let refused = pair.clients[0].prepare(prepare(&plan, "one", 3)).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unimplemented);
        let why = refused.message();
        assert!(why.starts_with("cc.mine: vegas cannot be loaded: "), "{why}");
        assert!(why.contains("module"), "{why}");
    }
    let tuned =
        plan.replace("via = \"module\"", "via = \"builtin\"").replace("\"vegas\"", "\"cubic\"");
    let unknown = tuned.replace("via = \"builtin\"", "via = \"builtin\"\nparams = { no_such = 1 }");
    let refused = pair.clients[0].prepare(prepare(&unknown, "one", 4)).await.unwrap_err();
    assert!(refused.message().contains("has no parameter `no_such` (it has: "), "{refused:?}");
    for (instance, epoch) in [("quick", 3), ("slow", 3), ("quick", 4), ("slow", 4)] {
        let trial = TrialId { run_id: run_id(), epoch };
        let name = kernel_name(&trial, "one", instance, "ta");
        assert!(!available().contains(&name), "not even one that could be loaded stays");
    }
    assert!(pair.is_as_found());
}

#[tokio::test]
async fn builtin_parameters_are_set_and_restored() {
    let _alone = DEAD_AGENTS.write().await;
    let path = "/sys/module/tcp_cubic/parameters/beta";
    // The parameter belongs to the machine, on which these tests may run twice at a time.
    let file = std::fs::File::open(path).unwrap();
    file.lock().unwrap();
    let before = std::fs::read_to_string(path).unwrap();
    let mut pair = Pair::start().await;
    let plan = LOOPBACK_PLAN.replace("cc = \"reno\"", "cc = \"softer\"").replace(
        "[probes.rtt]",
        "[cc.softer]\nalgorithm = \"cubic\"\nparams = { beta = 800 }\n[probes.rtt]",
    );
    let reply = pair.clients[0].prepare(prepare(&plan, "one", 5)).await.unwrap().into_inner();
    let cc = reported(&reply, "softer");
    assert_eq!((cc.via().as_text(), cc.kernel_name.as_str()), ("builtin", "cubic"));
    assert_eq!(cc.params["beta"], "800");
    assert_eq!(std::fs::read_to_string(path).unwrap().trim(), "800");
    pair.clients[0].reset(wire::ResetRequest::default()).await.unwrap();
    assert_eq!(std::fs::read_to_string(path).unwrap(), before);
    // After a kill, the next start relies on the record. Any other agent that starts on this machine meanwhile does, too.
    pair.clients[0].prepare(prepare(&plan, "one", 6)).await.unwrap();
    assert_eq!(std::fs::read_to_string(path).unwrap().trim(), "800");
    pair.one.kill();
    pair.one.again(pair.namespace.enter());
    let mut client = pair.one.connect().await;
    client.describe(wire::DescribeRequest {}).await.unwrap();
    assert_eq!(std::fs::read_to_string(path).unwrap(), before);
}

#[tokio::test]
async fn privilege_errors_have_a_hint() {
    let _beside = DEAD_AGENTS.read().await;
    let _turn = Turn::beside().await;
    let script = "ip link set lo up && exec \"$0\" \"$@\"";
    let agent = support::Agent::by(|_| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "sh", "-c", script, AGENT]);
        command
    });
    let plan = plan("1s").replace("sysctl = ", "# ");
    let refused = agent.connect().await.prepare(prepare(&plan, "one", 7)).await.unwrap_err();
    assert!(refused.message().contains("run ccbench as root"), "{refused:?}");
}

/// A user namespace has no hook, so a namespace of ccbench's own gets a default that leaves nothing in a socket.
#[tokio::test]
async fn without_the_hook_the_namespace_default_is_changed_and_restored() {
    let _beside = DEAD_AGENTS.read().await;
    let _turn = Turn::beside().await;
    // The name of its interface marks a namespace as the testbed's.
    let script =
        "ip link set lo up && ip link add to-two type veth peer name far && exec \"$0\" \"$@\"";
    let agent = support::Agent::by(|_| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "sh", "-c", script, AGENT]);
        command
    });
    let default = || {
        let pid = agent.child.id().to_string();
        let mut command = Command::new("nsenter");
        command.args(["--user", "--net", "-t", &pid, "cat"]);
        let read = command.arg("/proc/sys/net/ipv4/tcp_congestion_control").output().unwrap();
        String::from_utf8(read.stdout).unwrap().trim().to_owned()
    };
    let mut client = agent.connect().await;
    let before = default();
    let other = "[flows.other]\nfrom = \"one\"\nto = \"two\"\ncc = \"cubic\"\n[probes.rtt]";
    let mixed = LOOPBACK_PLAN
        .replace("sysctl = ", "# ")
        .replace("[probes.rtt]", other)
        .replace("[\"bulk\"]", "[\"bulk\", \"other\"]");
    let alone = mixed.replace("cc = \"reno\"", "cc = \"cubic\"");
    // A restricted congestion control cannot be a namespace's default, and a request for it would leak a reference.
    let allowed = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let allowed = std::fs::read_to_string(allowed).unwrap();
    let (cubic, how) = match allowed.split_whitespace().any(|name| name == "cubic") {
        true => ("cubic", "namespace_default"),
        false => ("reno", "after_connect"),
    };
    for (plan, epoch, wanted) in [
        (&mixed, 8, [("bulk", "reno", "namespace_default"), ("other", "reno", "after_connect")]),
        (&alone, 9, [("bulk", cubic, how), ("other", cubic, how)]),
    ] {
        let reply = client.prepare(prepare(plan, "one", epoch)).await.unwrap().into_inner();
        assert_eq!(default(), wanted[0].1);
        let events: Vec<(String, serde_json::Value)> = reply
            .events
            .iter()
            .filter(|event| event.name() == "initial_cc")
            .map(|e| (e.subject.clone(), serde_json::from_str(&e.data_json()).unwrap()))
            .collect();
        assert_eq!(events.len(), 2, "{events:?}");
        for (group, begins_with, how) in wanted {
            let (_, data) = events.iter().find(|(subject, _)| subject == group).unwrap();
            assert_eq!((&data["begins_with"], &data["method"]), (&begins_with.into(), &how.into()));
            assert!(data["paced_by"].is_null() && data["no_hook"].is_string(), "{data}");
        }
        let reply = client.reset(wire::ResetRequest::default()).await.unwrap().into_inner();
        assert!(reply.failed.is_empty(), "{reply:?}");
        assert_eq!(default(), before);
    }
}

/// Returns the command `ccbench-agent cc` with these words.
fn cc(words: &[&str]) -> Command {
    let mut command = Command::new(AGENT);
    command.arg("cc").args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[tokio::test]
async fn one_is_loaded_by_hand_until_its_command_ends() {
    let _turn = Turn::beside().await;
    let name = format!("t{}", std::process::id());
    let mut held = cc(&["load", "ta", "--as", &name, "betao=5000"]).spawn().unwrap();
    // The command prints this line once the congestion control is registered.
    let mut line = String::new();
    BufReader::new(held.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("betao=5000") && available().contains(&name), "{line:?}");
    let again = cc(&["load", "cx", "--as", &name]).output().unwrap();
    let stderr = String::from_utf8_lossy(&again.stderr).into_owned();
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr.contains(&format!("the name `{name}` is taken")), "{stderr}");
    let unload = cc(&["unload", &name]).output().unwrap();
    assert!(String::from_utf8_lossy(&unload.stderr).contains("held by a process"), "{unload:?}");
    held.kill().unwrap();
    held.wait().unwrap();
    wait_for("it is gone", || !available().contains(&name)).await;
    for (words, why) in [
        (vec!["load", "ta_gard"], "not one of ccbench's own"),
        (vec!["load", "ta", "betao=5"], "from 100 to 1000000 (us)"),
        (vec!["load", "ta", "betoa=5000"], "did you mean `betao`?"),
        (vec!["load", "ta", "--as", "a_name_that_is_too_long"], "the kernel takes 15 at most"),
        (vec!["unload", "no_such_cc"], "has no congestion control `no_such_cc`"),
    ] {
        let refused = cc(&words).output().unwrap();
        // The command itself knows what it can load; the kernel knows what can be unloaded.
        let code = if words[0] == "load" { 2 } else { 1 };
        assert_eq!(refused.status.code(), Some(code), "{words:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(why), "{refused:?}");
    }
}

/// Returns the BTF of a BPF object, without the kernel's types.
fn types_of_an_object() -> Vec<u8> {
    const MAGIC: [u8; 4] = [0x9f, 0xeb, 1, 0];
    let object = std::fs::read(concat!(env!("OUT_DIR"), "/ect1.bpf.o")).unwrap();
    let at = object.windows(4).position(|bytes| bytes == MAGIC).unwrap();
    let u32_at =
        |i: usize| u32::from_ne_bytes(object[at + i..at + i + 4].try_into().unwrap()) as usize;
    // The header, the types and the names: `struct btf_header` of the kernel's ABI.
    let bytes = u32_at(4) + (u32_at(8) + u32_at(12)).max(u32_at(16) + u32_at(20));
    object[at..at + bytes].to_vec()
}

/// Makes this kernel look as if it lacked a feature, in a mount namespace.
#[test]
fn missing_kernel_features_and_privileges_are_reported() {
    let _turn = Turn::beside_blocking();
    let dir = tempfile::tempdir().unwrap();
    let types = dir.path().join("types");
    std::fs::write(&types, types_of_an_object()).unwrap();
    let bind = format!("mount --bind {} /sys/kernel/btf/vmlinux", types.display());
    let name = format!("l{}", std::process::id());
    for (unshare, script, why) in [
        ("--mount", "mount -t tmpfs none /sys/kernel/btf", "this kernel has no BTF"),
        ("--mount", bind.as_str(), "accepts no BPF congestion controls"),
        // A user without a mapping here is no kind of root.
        ("--user", "true", "needs root"),
    ] {
        let script = format!("{script} && exec timeout 20 \"$0\" \"$@\"");
        let refused = Command::new("unshare")
            .args([unshare, "sh", "-c", &script, AGENT, "cc", "load", "ta", "--as", &name])
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{script}: {refused:?}");
        assert!(stderr.contains(why), "{script}: {stderr}");
        assert!(!available().contains(&name), "{script}");
    }
}

/// Every core passes this kernel's verifier and is unregistered afterwards.
#[tokio::test]
async fn every_core_can_be_registered() {
    let _turn = Turn::beside().await;
    for core in &ccbench_proto::cc::table().cores {
        let name = format!("t{}_{}", core.name, std::process::id());
        let mut held = cc(&["load", &core.name, "--as", &name]).spawn().unwrap();
        wait_for(&core.name, || available().contains(&name) || held.try_wait().unwrap().is_some())
            .await;
        assert!(available().contains(&name), "{}: {:?}", core.name, held.wait_with_output());
        held.kill().unwrap();
        held.wait().unwrap();
        wait_for("it is gone", || !available().contains(&name)).await;
    }
}

#[cfg(feature = "ebpf")]
#[test]
fn kernel_refusals_are_reported_and_nothing_stays() {
    let _turn = Turn::beside_blocking();
    use ccbench_agent::sockets::journal::Journal;
    use ccbench_agent::sockets::struct_ops::{InstanceSpec, register};
    let (_, core) = ccbench_proto::cc::scheme("vegas").unwrap();
    let params: Vec<(String, u32)> =
        core.params.iter().map(|p| (p.name.clone(), p.default)).collect();
    let name = format!("r{}", std::process::id());
    let good =
        InstanceSpec { core, kernel_name: &name, params: &params, flags: 1, netns_cookie: None };
    let refused = |wanted: &InstanceSpec<'_>| {
        let error = register(wanted, &mut Journal::default());
        error.expect_err("the kernel refuses it").to_string()
    };
    let why = refused(&InstanceSpec { flags: 1 << 31, ..good.clone() });
    assert!(why.contains("`via = \"module\"`"), "{why}");
    let why = refused(&InstanceSpec { kernel_name: "a!b", ..good.clone() });
    assert!(!why.is_empty() && !available().iter().any(|n| n == "a!b"), "{why}");
    assert!(!available().contains(&name));
    let held = register(&good, &mut Journal::default()).unwrap();
    let why = refused(&good);
    assert!(why.contains("is taken"), "{why}");
    drop(held);
}
