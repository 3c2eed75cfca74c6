//! What a client's scopes permit in a Prepare, and links on the interfaces of its connection.

use std::collections::BTreeMap;

use ccbench_proto::schedule::NodeTask;
use ccbench_proto::scope::{Scope, Scopes};

use super::*;
use crate::identity::Identity;

fn client(scopes: &[Scope]) -> Identity {
    let scopes: Scopes = scopes.iter().copied().collect();
    Identity { serial: "4a".into(), scopes, ..Identity::local("alice") }
}

async fn prepare(rig: &Rig, plan: &str, scopes: &[Scope]) -> Result<(), String> {
    let (_end, connection) = ConnectionHandle::example_of(client(scopes));
    prepare_over(rig, plan, connection).await
}

async fn prepare_over(rig: &Rig, plan: &str, connection: ConnectionHandle) -> Result<(), String> {
    let request = wire::PrepareRequest { plan_toml: plan.to_owned(), ..rig.request() };
    let reply = rig.handle.prepare(request, Some(connection)).await;
    rig.handle.reset(wire::ResetRequest::default()).await.unwrap();
    reply.map(drop).map_err(|error| error.to_string())
}

fn refused(rig: &Rig, error: &str, parts: &[&str]) {
    for part in parts.iter().chain(&["alice (serial 4a)", "`ccbench pki controller DIR alice"]) {
        assert!(error.contains(part), "no `{part}`: {error}");
    }
    assert_eq!(rig.interfaces.calls(), Vec::<String>::new(), "refused before any change");
}

#[tokio::test]
async fn run_is_enough_inside_a_namespace() {
    let rig = Rig::new(Script::Good, FakeInterfaces::default());
    assert_eq!(prepare(&rig, PLAN, &[Scope::Run]).await, Ok(()));
}

#[tokio::test]
async fn another_connection_does_not_start_a_prepared_trial() {
    let rig = Rig::new(Script::Good, FakeInterfaces::default());
    let (_end, connection) = ConnectionHandle::example_of(client(&[Scope::Run]));
    let own = connection.id();
    rig.handle.prepare(rig.request(), Some(connection)).await.unwrap();
    for other in [Some(own + 1), None] {
        let run = wire::RunRequest { start_at_ns: clock::now_ns(), epoch: 1 };
        let refused = rig.handle.run(run, other).await.unwrap_err().to_string();
        assert!(refused.contains("was prepared over another connection"), "{refused}");
    }
    let run = wire::RunRequest { start_at_ns: clock::now_ns(), epoch: 1 };
    rig.handle.run(run, Some(own)).await.expect("its own");
    assert!(rig.handle.reset(wire::ResetRequest::default()).await.unwrap().failed.is_empty());
}

#[tokio::test]
async fn links_and_captures_on_the_machines_interfaces_need_host_net() {
    let shaped = PLAN.replace("eth0", "host0");
    let captured = format!("{PLAN}[capture.c]\nnode = \"one\"\ndev = \"host1\"\n");
    for (plan, what) in [(&shaped, "link l on host0"), (&captured, "capture c on host1")] {
        let rig = Rig::new(Script::Good, FakeInterfaces::default());
        let error = prepare(&rig, plan, &[Scope::Run, Scope::Module]).await.unwrap_err();
        refused(&rig, &error, &[what, "scope `host-net`", "--scope run,host-net,module`"]);
        assert_eq!(prepare(&rig, plan, &[Scope::Run, Scope::HostNet]).await, Ok(()));
    }
}

/// The names of wired interfaces come from the plan.
#[test]
fn offloads_of_wired_names_on_the_machine_need_host_net() {
    let task = NodeTask { wired: vec!["lo".to_owned()], ..NodeTask::default() };
    let choices = choices::Choices::default();
    let check = |interfaces: FakeInterfaces, scopes: &[Scope]| {
        let checked =
            scopes::check(&task, "one", &BTreeMap::new(), &interfaces, &choices, &client(scopes));
        checked.map_err(|error| error.to_string())
    };
    let error = check(FakeInterfaces::of_the_host(), &[Scope::Run]).unwrap_err();
    assert!(error.contains("switching off the offloads of lo"), "{error}");
    assert!(error.contains("scope `host-net`"), "{error}");
    assert_eq!(check(FakeInterfaces::of_the_host(), &[Scope::Run, Scope::HostNet]), Ok(()));
    assert_eq!(check(FakeInterfaces::default(), &[Scope::Run]), Ok(()), "in a namespace");
}

#[tokio::test]
async fn a_check_refuses_what_a_prepare_would_and_changes_nothing() {
    let rig = Rig::new(Script::Good, FakeInterfaces::default());
    let check = async |plan: &str| {
        let (_end, connection) = ConnectionHandle::example_of(client(&[Scope::Run]));
        let request = wire::PrepareRequest { plan_toml: plan.to_owned(), ..rig.request() };
        rig.handle.check(request, Some(connection)).await.map_err(|error| error.to_string())
    };
    let error = check(&PLAN.replace("eth0", "host0")).await.unwrap_err();
    refused(&rig, &error, &["link l on host0", "scope `host-net`"]);
    // Traces come only with a Prepare.
    let traced = PLAN.replace("rate = \"10mbit\"", "trace = { file = \"a.csv\" }");
    let traced = traced.replace("\"links.l.rate\" = \"5mbit\", ", "");
    assert_eq!(check(&traced).await, Ok(()));
    assert_eq!(rig.interfaces.calls(), Vec::<String>::new());
    assert!(rig.calls().is_empty(), "nothing was started");
    assert_eq!(rig.handle.status().generation, 0, "no Prepare");
    rig.prepare().await.unwrap();
    let busy = check(PLAN).await.unwrap_err();
    assert!(busy.contains("is prepared"), "{busy}");
}

#[tokio::test]
async fn ecn_of_flows_in_the_machines_namespace_needs_host_net() {
    let with_cc = |cc: &str| PLAN.replace("[flows.back]", &format!("cc = \"{cc}\"\n[flows.back]"));
    let what = |cc: &str| format!("flow there with congestion control {cc}, whose ECN");
    for cc in ["dctcp", "prague"] {
        let rig = Rig::new(Script::Good, FakeInterfaces::of_the_host());
        let error = prepare(&rig, &with_cc(cc), &[Scope::Run]).await.unwrap_err();
        refused(&rig, &error, &[&what(cc), "scope `host-net`"]);
    }
    let rig = Rig::new(Script::Good, FakeInterfaces::of_the_host());
    let error = prepare(&rig, &with_cc("cubic"), &[Scope::Run]).await.unwrap_err();
    refused(&rig, &error, &["link l on eth0"]);
}

#[tokio::test]
async fn parameters_of_the_kernels_modules_need_module() {
    let tuned = PLAN.replace("[flows.back]", "cc = \"mine\"\n[flows.back]");
    let tuned = format!("{tuned}[cc.mine]\nalgorithm = \"cubic\"\nparams = {{ beta = 717 }}\n");
    let rig = Rig::new(Script::Good, FakeInterfaces::default());
    let error = prepare(&rig, &tuned, &[Scope::Run, Scope::HostNet]).await.unwrap_err();
    refused(&rig, &error, &["congestion control mine", "scope `module`"]);
    let shaped = tuned.replace("eth0", "host0");
    let error = prepare(&rig, &shaped, &[Scope::Read, Scope::Run]).await.unwrap_err();
    refused(&rig, &error, &["scope `module`", "--scope run,host-net,module`"]);
}

#[tokio::test]
async fn what_carries_the_controllers_interface_is_not_shaped() {
    let rig = Rig::new(Script::Good, FakeInterfaces::default());
    let plan = PLAN.replace("eth0", "under-10.8.0.9");
    let connected = || ConnectionHandle::example_from("10.8.0.9".parse().ok());
    let (_end, connection) = connected();
    let error = prepare_over(&rig, &plan, connection).await.unwrap_err();
    assert!(error.starts_with("link l: under-10.8.0.9 is on the route"), "{error}");
    let allowed = plan.replace("backend =", "allow_control_interface = true\nbackend =");
    let (_end, connection) = connected();
    assert_eq!(prepare_over(&rig, &allowed, connection).await, Ok(()));
}

#[tokio::test]
async fn congestion_controls_of_users_need_bpf_or_module() {
    for (key, scope) in [("file", "bpf"), ("module", "module")] {
        let own = PLAN.replace("[flows.back]", "cc = \"mine\"\n[flows.back]");
        let own = format!("{own}[cc.mine]\nalgorithm = \"mine\"\n{key} = \"mine.o\"\n");
        let rig = Rig::new(Script::Good, FakeInterfaces::default());
        let error = prepare(&rig, &own, &[Scope::Run, Scope::HostNet]).await.unwrap_err();
        refused(&rig, &error, &["congestion control mine", &format!("scope `{scope}`")]);
        let all = [Scope::Run, Scope::HostNet, Scope::Bpf, Scope::Module];
        let missing = prepare(&rig, &own, &all).await.unwrap_err();
        assert!(missing.contains("the file `mine.o` is missing from the request"), "{missing}");
    }
}
