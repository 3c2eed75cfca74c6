//! Settings that change during a trial.

use super::*;

/// Runs a trial, and changes a setting of the link's interface between Prepare and the end. Returns the events about settings.
async fn changed(setting: &str, value: &str) -> Vec<wire::Event> {
    let rig = Rig::new(Script::Good, FakeInterfaces::default());
    rig.interfaces.set("eth0", "MTU", "1500");
    rig.prepare().await.unwrap();
    let rows = rig.run().await;
    rig.interfaces.set("eth0", setting, value);
    let events = all(rows).await.into_iter().filter_map(|payload| match payload {
        Payload::Event(event) if event.name() == "setting_changed" => Some(event),
        _ => None,
    });
    let events = events.collect();
    assert!(rig.handle.reset(wire::ResetRequest::default()).await.unwrap().failed.is_empty());
    events
}

#[tokio::test]
async fn a_setting_that_changes_during_a_trial_is_reported() {
    let events = changed("MTU", "1400").await;
    let [event] = &events[..] else { panic!("{events:?}") };
    assert_eq!(event.subject, "eth0");
    assert_eq!(event.data_json(), r#"{"expected":"1500","found":"1400","setting":"MTU"}"#);
    assert!(changed("MTU", "1500").await.is_empty());
}
