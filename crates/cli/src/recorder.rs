//! Records a running trial: rows go to the tables, and every message goes to the verdict.

use std::collections::BTreeMap;

use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::event::{Kind, NodeCongestionControl};
use ccbench_proto::wire;
use ccbench_results::TrialError;
use ccbench_results::model::Verdict;
use ccbench_results::trial::TrialWriter;
use ccbench_results::verdict::Judge;
use tracing::{debug, info};

use crate::message;

/// Records a trial while it runs.
pub struct TrialRecorder<'a> {
    /// Writes the tables.
    pub writer: TrialWriter<'a>,
    /// Judges the trial.
    pub judge: Judge,
    /// The last message of each node.
    pub done: BTreeMap<String, wire::Done>,
    /// Errors, one sentence each.
    pub errors: Vec<String>,
}

impl<'a> TrialRecorder<'a> {
    /// Makes a recorder without rows.
    pub fn new(writer: TrialWriter<'a>, judge: Judge) -> Self {
        Self { writer, judge, done: BTreeMap::new(), errors: Vec::new() }
    }

    /// Records the nodes' replies to `prepare`: events, links and congestion controls.
    ///
    /// # Errors
    /// A table cannot be written.
    pub fn record_prepared(
        &mut self,
        replies: BTreeMap<String, wire::PrepareReply>,
    ) -> Result<(), TrialError> {
        for (node, reply) in replies {
            for event in reply.events {
                self.record(
                    &node,
                    wire::RunEvent { payload: Some(wire::run_event::Payload::Event(event)) },
                )?;
            }
            for link in reply.links {
                let backend = link.backend().as_text();
                let message = format!("{backend} on {} ({})", link.dev, link.reason_text());
                let name = link.link.clone();
                let kind = Kind::Link(link);
                self.judge.reply(&node, &name, &kind);
                self.writer.note(kind, &name, &message)?;
            }
            for cc in reply.congestion_controls {
                let data = NodeCongestionControl { node: node.clone(), cc: Some(cc.clone()) };
                self.judge.reply(&node, &cc.name, &Kind::CongestionControl(data));
                self.writer.congestion_control(&node, cc)?;
            }
        }
        Ok(())
    }

    /// Records one message of a node's stream.
    ///
    /// # Errors
    /// A table cannot be written.
    pub fn record(&mut self, node: &str, event: wire::RunEvent) -> Result<(), TrialError> {
        debug!(node, kind = message::kind(&event), "message");
        if let Some(wire::run_event::Payload::Done(done)) = &event.payload {
            self.done.insert(node.to_owned(), *done);
        } else {
            self.judge.observe(node, &event);
        }
        self.writer.push(node, event)
    }

    /// Judges the trial and commits it. `amended` may add reasons to the verdict.
    ///
    /// # Errors
    /// A table cannot be written.
    pub async fn commit(
        mut self,
        amended: impl FnOnce(Verdict) -> Verdict,
    ) -> Result<Verdict, TrialError> {
        let verdict = amended(self.judge.finish(&self.done, &self.errors));
        // Other trials continue while the writer finishes.
        self.writer.finished().await;
        info!("commit");
        self.writer.commit(&verdict)?;
        Ok(verdict)
    }
}
