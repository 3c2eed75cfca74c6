//! The states of senders over time, for exports that show them as spans.

use std::collections::BTreeSet;

use super::{
    NamedValue, Sample, SocketEvent, Tables, ca_state, named_values, senders, socket_events,
};
use crate::export::error::Result;
use crate::journal::TrialEnd;
use crate::store::RunDir;

/// The kind of the states of loss recovery.
const LOSS_RECOVERY: &str = "Loss recovery";

/// The states of one kind in which a sender was.
pub(in crate::export) struct States {
    /// [`LOSS_RECOVERY`], or a congestion control and its variable: `bbr3: mode`.
    pub(in crate::export) kind: String,
    pub(in crate::export) flow_id: String,
    /// When each state began, in milliseconds after the trial's beginning. A state differs from the previous one.
    pub(in crate::export) changes: Vec<(f64, &'static str)>,
}

/// Returns the states of every sender of a trial, by kind and flow.
///
/// # Errors
/// A table cannot be read.
pub(in crate::export) fn states(run: &RunDir, end: &TrialEnd) -> Result<Vec<States>> {
    let senders = senders(run, end)?;
    let tables = Tables::read(run, end, &senders)?;
    let mut all = Vec::new();
    for sender in senders {
        let flow_id = &sender.flow_id;
        let mut put = |kind: String, changes: Vec<(f64, &'static str)>| {
            if !changes.is_empty() {
                all.push(States { kind, flow_id: flow_id.clone(), changes });
            }
        };
        let socket = socket_events(&tables.socket_events, flow_id);
        put(LOSS_RECOVERY.to_owned(), loss_recovery(&socket, &tables.samples(flow_id)));
        let named = named_values(&tables.states, flow_id);
        let variables: BTreeSet<&str> = named.iter().map(|value| value.variable).collect();
        for variable in variables {
            put(format!("{}: {variable}", sender.cc), of_variable(&named, variable));
        }
    }
    all.sort_by(|a, b| (&a.kind, &a.flow_id).cmp(&(&b.kind, &b.flow_id)));
    Ok(all)
}

/// Returns the states of loss recovery. Rows of the socket have every change; samples miss those between them.
fn loss_recovery(socket: &[SocketEvent], polled: &[Sample]) -> Vec<(f64, &'static str)> {
    match socket.is_empty() {
        true => changes(polled.iter().filter_map(|at| Some((at.time_ms, ca_state(at.ca_state)?)))),
        false => changes(socket.iter().filter_map(|at| Some((at.time_ms, ca_state(at.ca_state)?)))),
    }
}

fn of_variable(named: &[NamedValue], variable: &str) -> Vec<(f64, &'static str)> {
    let own = named.iter().filter(|value| value.variable == variable);
    changes(own.map(|value| (value.time_ms, value.name)))
}

fn changes(states: impl Iterator<Item = (f64, &'static str)>) -> Vec<(f64, &'static str)> {
    let mut all: Vec<(f64, &'static str)> = states.collect();
    all.dedup_by_key(|(_, name)| *name);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::qlog::METRICS;

    #[test]
    fn rows_of_the_socket_come_before_samples() {
        let polled = [(1.0, 0), (2.0, 0), (3.0, 3), (4.0, 0)].map(|(time_ms, state)| Sample {
            time_ms,
            metrics: [None; METRICS.len()],
            sent_bytes: None,
            ca_state: Some(state),
        });
        let expected = [(1.0, "open"), (3.0, "recovery"), (4.0, "open")];
        assert_eq!(loss_recovery(&[], &polled), expected);
        let socket = [(0.5, "cc", 0), (2.5, "ca_state", 4), (2.5, "rto", 4), (2.7, "ca_state", 9)]
            .map(|(time_ms, kind, state)| SocketEvent {
                time_ms,
                kind: kind.to_owned(),
                count: 0,
                ca_state: Some(state),
                ca_state_before: None,
            });
        assert_eq!(loss_recovery(&socket, &polled), [(0.5, "open"), (2.5, "loss")]);
    }

    #[test]
    fn each_variable_has_its_own_states() {
        let value = |time_ms, variable, name| NamedValue { time_ms, variable, name };
        let named = [
            value(1.0, "mode", "STARTUP"),
            value(1.5, "phase", "UP"),
            value(2.0, "mode", "STARTUP"),
            value(3.0, "mode", "DRAIN"),
        ];
        assert_eq!(of_variable(&named, "mode"), [(1.0, "STARTUP"), (3.0, "DRAIN")]);
        assert_eq!(of_variable(&named, "phase"), [(1.5, "UP")]);
    }
}
