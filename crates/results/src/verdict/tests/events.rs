//! Tests events whose kind degrades the trial.

use ccbench_proto::event::{FlowQueueShared, SettingChanged};

use super::*;

#[test]
fn flows_that_share_a_queue_degrade() {
    let flows = vec!["main/0".to_owned(), "main/1".to_owned()];
    let shared = Kind::FlowQueueShared(FlowQueueShared { class: None, flows });
    let scenario = Scenario {
        event: Some((Some(shared), "main/0, main/1 share a queue")),
        ..Scenario::default()
    };
    let message = only(&scenario, Status::Degraded, "flow_queue_shared");
    assert_eq!(message, "src: main: main/0, main/1 share a queue");
    let unknown = Kind::FlowQueuesUnknown(NoData {});
    fine(&Scenario { event: Some((Some(unknown), "")), ..Scenario::default() });
}

#[test]
fn a_setting_that_changed_degrades() {
    let changed =
        SettingChanged { setting: "MTU".into(), expected: "1500".into(), found: "1400".into() };
    let changed = Some(Kind::SettingChanged(changed));
    let scenario = Scenario {
        event: Some((changed, "MTU: expected 1500, found 1400")),
        ..Scenario::default()
    };
    let message = only(&scenario, Status::Degraded, "setting_changed");
    assert_eq!(message, "src: main: MTU: expected 1500, found 1400");
}

#[test]
fn problems_are_known_before_the_end() {
    let (plan, _) = check::check(parse::parse(PLAN).unwrap()).unwrap();
    let names = ["src", "mid", "dst"].map(str::to_owned);
    let nodes = names.iter().map(|name| (name.clone(), NodeInfo::default())).collect();
    let clocks = names.iter().map(|name| (name.clone(), NodeClock::shared(T0_NS, 0))).collect();
    let mut judge = Judge::new(&plan, &nodes, &clocks);
    assert_eq!(
        judge.so_far().status,
        Status::Ok,
        "no row yet: missing rows are no reason before the end"
    );
    let sample = HostSample { at_ns: at(100), softnet_dropped: 3, ..Default::default() };
    judge.observe("mid", &RunEvent { payload: Some(Payload::HostSample(sample)) });
    let kind = Some(Kind::FlowError(NoData {}));
    let error =
        Event { at_ns: at(200), subject: "main".into(), message: "no listener".into(), kind };
    judge.observe("src", &RunEvent { payload: Some(Payload::Event(error)) });
    let found = judge.so_far();
    let codes: Vec<&str> = found.reasons.iter().map(|reason| reason.code.as_str()).collect();
    assert_eq!((found.status, codes), (Status::Failed, vec!["flow_error", "softnet_dropped"]));
    assert_eq!(judge.so_far(), found, "looking changes nothing");
}
