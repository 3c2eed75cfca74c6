//! Was every sender's congestion control alone with its socket? What another one left there (pacing, by bbr) stays.

use ccbench_proto::wire::Event;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Findings, Status};

/// What a node said of one end of a flow group before the trial (event `cc_in_force`).
#[derive(Debug, Deserialize)]
struct Began {
    cc: String,
    how: String,
    paced_by: Option<String>,
    no_hook: Option<String>,
}

/// What its hook saw during the trial (event `cc_sockets`).
#[derive(Debug, Deserialize)]
struct Sockets {
    cc: String,
    set: u64,
    refused: u64,
}

/// What an event says. That it cannot be read must not pass for a good word: agent and controller are of two builds.
fn read<T: DeserializeOwned>(node: &str, event: &Event, findings: &mut Findings) -> Option<T> {
    let read = serde_json::from_str(&event.data_json);
    if let Err(error) = &read {
        let message = format!(
            "{node}: the event {} of flows.{} cannot be read ({error}); give node and controller the same build of ccbench",
            event.kind, event.subject
        );
        findings.add(Status::Degraded, "event_unread", message);
    }
    read.ok()
}

/// Judges what flows began with.
pub(crate) fn began(node: &str, event: &Event, findings: &mut Findings) {
    let Some(began) = read::<Began>(node, event, findings) else { return };
    let Some(by) = began.paced_by else { return };
    let why = began.no_hook.map_or(String::new(), |why| format!(" ({why})"));
    let message = format!(
        "flows.{}: {} was set {} on {node}{why}: its sockets began with {by}, which leaves them paced; set \
         net.ipv4.tcp_congestion_control there to one that does not pace (cubic, reno)",
        event.subject,
        began.cc,
        began.how.replace('_', " "),
    );
    findings.add(Status::Degraded, "cc_late", message);
}

/// Judges what was set before the handshake.
pub(crate) fn sockets(node: &str, event: &Event, findings: &mut Findings) {
    let Some(seen) = read::<Sockets>(node, event, findings) else { return };
    if seen.refused > 0 {
        let message = format!(
            "flows.{}: {node}'s kernel refused {} to {} of {} sockets before their handshake",
            event.subject,
            seen.cc,
            seen.refused,
            seen.set + seen.refused
        );
        findings.add(Status::Degraded, "cc_late", message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(judge: fn(&str, &Event, &mut Findings), data_json: &str) -> Vec<String> {
        let mut findings = Findings::default();
        let event =
            Event { subject: "delay".into(), data_json: data_json.into(), ..Event::default() };
        judge("src", &event, &mut findings);
        let told = findings.verdict().reasons;
        told.iter().map(|reason| format!("{} {}", reason.code, reason.message)).collect()
    }

    #[test]
    fn leftovers_of_another_one_degrade() {
        let late = r#"{"cc":"vegas","how":"after_connect","paced_by":"bbr","no_hook":"no BPF"}"#;
        let told_of_it = told(began, late);
        let [why] = &told_of_it[..] else { panic!("one reason: {told_of_it:?}") };
        assert!(
            why.starts_with("cc_late flows.delay: vegas was set after connect on src (no BPF)")
        );
        let fine = r#"{"cc":"vegas","how":"before_connect","paced_by":null,"no_hook":null}"#;
        assert_eq!(told(began, fine), Vec::<String>::new());
    }

    #[test]
    fn what_cannot_be_read_degrades() {
        for judge in [began, sockets] {
            let told = told(judge, r#"{"cc":7}"#);
            assert!(
                told[0].starts_with("event_unread src: the event  of flows.delay cannot be read"),
                "{told:?}"
            );
        }
    }

    #[test]
    fn refusals_degrade() {
        let of = |refused: u64| format!(r#"{{"cc":"vegas","set":3,"refused":{refused}}}"#);
        assert_eq!(told(sockets, &of(0)), Vec::<String>::new());
        assert!(
            told(sockets, &of(1))[0]
                .ends_with("refused vegas to 1 of 4 sockets before their handshake")
        );
    }
}
