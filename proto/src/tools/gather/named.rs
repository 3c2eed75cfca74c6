//! Rows of files that name their flows: flent and qlog files.

use std::collections::BTreeMap;

use super::{MergedFiles, Source, seen};
use crate::tools::qlog::NO_CONNECTION;
use crate::wire::{self, Role, Side, run_event::Payload};

/// Rows of `flows`, by node, flow and side.
pub(super) type Flows = BTreeMap<(String, String, Side), wire::Flow>;

/// The beginning of a row's time; `None` for rows that such files do not have.
pub(super) fn begin_ns(row: &Payload) -> Option<u64> {
    match row {
        Payload::FlowSample(row) => Some(row.at_ns),
        Payload::TcpEvents(rows) => rows.events.first().map(|row| row.at_ns),
        Payload::Probe(row) => Some(row.at_ns),
        Payload::Interval(row) => Some(row.at_ns.saturating_sub((row.seconds * 1e9) as u64)),
        _ => None,
    }
}

/// Whether there are several files of a tool.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeveralFiles {
    pub(super) flents: bool,
    pub(super) qlogs: bool,
}

/// Adds the rows of a file. Flows have the same names in all flent files, and in qlog traces that name no connection. If there are
/// several such files, the file's name precedes the flow's name.
pub(super) fn rows(
    source: &Source,
    several: SeveralFiles,
    flows: &mut Flows,
    out: &mut MergedFiles,
) {
    let named = &source.found.named;
    out.notes.extend(named.notes.iter().map(|note| format!("{}: {note}", source.stem)));
    let name = |name: &mut String| {
        let by_file = match named.tool {
            "flent" => several.flents,
            _ => several.qlogs && name.split('/').next() == Some(NO_CONNECTION),
        };
        if by_file {
            name.insert_str(0, &format!("{}-", source.stem));
        }
    };
    for row in &named.rows {
        let mut row = row.clone();
        let from_ns = begin_ns(&row).unwrap_or(0);
        let at_ns = match &mut row {
            Payload::FlowSample(row) => {
                name(&mut row.flow_id);
                name(&mut row.group);
                let flow =
                    flow(flows, source, (row.flow_id.as_str(), row.group.as_str()), row.side());
                if row.side() == Side::Sender && !row.cc.is_empty() {
                    flow.cc_actual.clone_from(&row.cc);
                }
                span(flow, out.begin_ns, from_ns, row.at_ns);
                row.at_ns
            }
            Payload::Interval(row) => {
                name(&mut row.flow_id);
                name(&mut row.group);
                let flow =
                    flow(flows, source, (row.flow_id.as_str(), row.group.as_str()), row.side());
                flow.bytes = flow.bytes.saturating_add(row.bytes);
                span(flow, out.begin_ns, from_ns, row.at_ns);
                row.at_ns
            }
            Payload::TcpEvents(rows) => {
                for row in &mut rows.events {
                    name(&mut row.flow_id);
                    name(&mut row.group);
                }
                from_ns
            }
            Payload::Probe(row) => {
                name(&mut row.probe_id);
                row.at_ns
            }
            _ => 0,
        };
        out.put(&source.node, at_ns, row);
    }
}

/// The row of a flow, created at its first appearance.
fn flow<'a>(
    flows: &'a mut Flows,
    source: &Source,
    (flow_id, group): (&str, &str),
    side: Side,
) -> &'a mut wire::Flow {
    let key = (source.node.clone(), flow_id.to_owned(), side);
    flows.entry(key).or_insert_with(|| wire::Flow {
        flow_id: flow_id.to_owned(),
        group: group.to_owned(),
        node_src: if side == Side::Sender { source.node.clone() } else { String::new() },
        node_dst: if side == Side::Receiver { source.node.clone() } else { String::new() },
        role: Role::Data.into(),
        side: side.into(),
        tool: source.found.named.tool.to_owned(),
        ..Default::default()
    })
}

/// Extends the time in which a flow was seen.
fn span(flow: &mut wire::Flow, begin_ns: u64, from_ns: u64, to_ns: u64) {
    let [from_s, to_s] = [from_ns, to_ns].map(|at_ns| (at_ns as f64 - begin_ns as f64) / 1e9);
    seen(flow, from_s, to_s);
}
