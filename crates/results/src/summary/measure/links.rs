//! Metrics of links, from the samples of their queues.

use std::collections::BTreeMap;

use ccbench_proto::metric::Scope;
use polars::prelude::{Expr, col};

use super::super::query::{self, Lines, first, last, samples};
use super::super::schedule::Schedule;
use super::super::statistics;
use super::counters::FirstSamples;
use super::{RowCollector, Trial};
use crate::error::Result;
use crate::journal::TrialEnd;
use crate::store::RunDir;

/// Counters and samples of each link in each phase.
pub(super) fn read(
    run: &RunDir,
    trials: &[&TrialEnd],
    schedule: &Schedule,
) -> Result<Option<Lines>> {
    let sampled = ["backlog_bytes", "queue_delay_us", "rate_bps"];
    let mut aggregates: Vec<Expr> = sampled.map(|name| samples(col(name), name)).into();
    aggregates.extend([first("t_s"), last("t_s"), last("sent_bytes"), first("sent_bytes")]);
    let counters = ["drops_pkts", "marks_pkts"];
    aggregates.extend(counters.into_iter().flat_map(|name| [first(name), last(name)]));
    aggregates.extend([first("offered_bytes"), last("offered_bytes")]);
    aggregates.extend([first("line_bytes"), last("line_bytes")]);
    let extra_bytes = |point_id: u32, link: &str| {
        schedule.network(point_id).map_or(0.0, |network| network.extra_bytes(link))
    };
    let extra_bytes: &dyn Fn(u32, &str) -> f64 = &extra_bytes;
    let extra_bytes = schedule.has_extra_bytes().then_some(extra_bytes);
    query::links(run, trials, extra_bytes, aggregates)
}

impl RowCollector<'_> {
    /// Adds the metrics of links. In the simulator, no packet passes a link before the trial.
    pub(super) fn links(&mut self, lines: &Lines, is_simulated: bool) {
        let counters = |end: &str, line: usize| {
            ["drops_pkts", "marks_pkts"].map(|name| lines.number(&format!("{name}.{end}"), line))
        };
        let mut order: Vec<(usize, usize)> = Vec::new();
        let mut firsts: BTreeMap<(Trial, String), FirstSamples<2>> = BTreeMap::new();
        for line in 0..lines.len() {
            let (trial, phase) = (lines.trial(line), lines.text("phase", line));
            if let Some(position) = self.timeline.position(trial, &phase) {
                let first = firsts.entry((trial, lines.text("link", line))).or_default();
                first.add(position, counters("first", line));
                order.push((position, line));
            }
        }
        order.sort_unstable();
        let mut before: BTreeMap<(Trial, String), [f64; 2]> = BTreeMap::new();
        for (position, line) in order {
            let (trial, phase, link) =
                (lines.trial(line), lines.text("phase", line), lines.text("link", line));
            let last = counters("last", line);
            let first = firsts.get(&(trial, link.clone()));
            let at_end = first.map_or(last, |first| first.at_end(position, last));
            let counted = at_end.map(|count| count.unwrap_or(0.0));
            let past = before.insert((trial, link.clone()), counted);
            // The sample at the start has what was counted before the trial, such as losses of the pings that measure base RTTs.
            let past = past.unwrap_or_else(|| {
                let interval_s = self.schedule.queue_interval_s(trial.0);
                let first_s = lines.number("t_s.first", line);
                let is_at_start = !is_simulated && first_s.is_some_and(|at_s| at_s <= interval_s);
                let at_start = is_at_start.then(|| counters("first", line));
                at_start.unwrap_or_default().map(|count| count.unwrap_or(0.0))
            });
            if self.measured_phase(trial, &phase).is_none() {
                continue;
            }
            let place = (trial, phase.as_str(), Scope::Link, link.as_str());
            let [mut backlog, mut delay, rates] = ["backlog_bytes", "queue_delay_us", "rate_bps"]
                .map(|name| lines.samples(name, line));
            let n = backlog.len() as u32;
            let increase = |stem: &str| {
                let at = |end: &str| lines.number(&format!("{stem}.{end}"), line);
                Some(at("last")? - at("first")?)
            };
            if let (Some(bytes), Some(seconds)) =
                (increase("sent_bytes"), increase("t_s").filter(|s| *s > 0.0))
            {
                let sent = bytes * 8.0 / seconds;
                self.row(place, "throughput", "bit/s", "mean", sent, n);
                let offered = increase("offered_bytes").map(|bytes| bytes * 8.0 / seconds);
                let capacity = offered.or_else(|| statistics::mean(&rates));
                let used = increase("line_bytes").map(|bytes| bytes * 8.0 / seconds);
                if let Some((used, rate)) = used.zip(capacity.filter(|rate| *rate > 0.0)) {
                    self.row(place, "utilisation", "1", "mean", used / rate, n);
                }
            }
            self.row(place, "drops", "packets", "sum", (counted[0] - past[0]).max(0.0), n);
            if at_end[1].is_some() {
                self.row(place, "marks", "packets", "sum", (counted[1] - past[1]).max(0.0), n);
            }
            for (values, metric, unit) in
                [(&mut backlog, "backlog", "bytes"), (&mut delay, "queue_delay", "us")]
            {
                for (stat, value) in statistics::sample_stats(values) {
                    self.row(place, metric, unit, stat, value, n);
                }
            }
        }
    }
}
