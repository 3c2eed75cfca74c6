//! Checks the scheduling error of packets of userspace links (reason `link_late`) and of trace steps (`trace_late`), and whether
//! packet logs are complete (`packets_not_logged`).

use std::collections::BTreeMap;

use ccbench_proto::wire::{LinkTiming, QdiscSample, TimingKind};

use super::findings::Findings;
use crate::model::Status;
use crate::reason::ReasonCode;

/// Share of packets that the userspace datapath may release more than 1 ms late.
pub const LATE_SHARE: f64 = 0.01;
/// Share of late packets that fails the trial.
pub const FAILED_LATE_SHARE: f64 = 0.1;
/// Limit for the scheduling error of a single packet, in microseconds. If it is exceeded, the link stood still, most likely because its
/// thread did not run.
pub const MAX_LATE_US: f64 = 100_000.0;
/// Limit for the 99th percentile of the scheduling error of trace steps, in microseconds. It is short compared with the steps of common
/// traces, and five times the value on a loaded machine.
pub const STEP_P99_US: f64 = 1_000.0;
/// Share of trace steps that may be missed, which means that the next step was due before they were applied.
pub const MISSED_SHARE: f64 = 0.001;
/// Share of missed steps that fails the trial.
pub const FAILED_MISSED_SHARE: f64 = 0.1;

/// Timing reports of all links.
#[derive(Debug, Default)]
pub(crate) struct Timing {
    /// The last counters of each userspace link, by node and link.
    packets: BTreeMap<(String, String), Packets>,
    steps: Vec<LinkTiming>,
    logs: Vec<LinkTiming>,
}

#[derive(Debug, Default)]
struct Packets {
    sent: u64,
    late: u64,
    max_us: f64,
    p99_us: Option<f64>,
}

impl Timing {
    pub(crate) fn sample(&mut self, node: &str, row: &QdiscSample) {
        let Some(late) = row.late_pkts else { return };
        let packets = self.packets.entry((node.to_owned(), row.link.clone())).or_default();
        packets.sent = packets.sent.max(row.sent_pkts);
        packets.late = packets.late.max(late);
        packets.max_us = packets.max_us.max(row.max_late_us.unwrap_or(0) as f64);
    }

    pub(crate) fn row(&mut self, node: &str, row: &LinkTiming) {
        match row.kind() {
            TimingKind::Packets => {
                let key = (node.to_owned(), row.link.clone());
                let packets = self.packets.entry(key).or_default();
                packets.sent = row.count;
                packets.late = row.late;
                packets.max_us = row.max_us;
                packets.p99_us = Some(row.p99_us);
            }
            TimingKind::Steps => self.steps.push(row.clone()),
            TimingKind::Log => self.logs.push(row.clone()),
            // `unreadable` reports this kind.
            TimingKind::Unspecified => {}
        }
    }

    pub(crate) fn finish(self, findings: &mut Findings) {
        for ((_, link), packets) in &self.packets {
            packets.judge(link, findings);
        }
        for row in &self.steps {
            judge_steps(row, findings);
        }
        for row in self.logs.iter().filter(|row| row.missed > 0) {
            let message = format!(
                "link {}: the packet log lacks {} packets and has {}; raise `packet_log`",
                row.link, row.missed, row.count
            );
            let subject = format!("link {}", row.link);
            findings.add(Status::Degraded, ReasonCode::PacketsNotLogged, subject, message);
        }
    }
}

impl Packets {
    fn judge(&self, link: &str, findings: &mut Findings) {
        let share = self.late as f64 / self.sent.max(1) as f64;
        let status = match share {
            _ if share > FAILED_LATE_SHARE => Status::Failed,
            _ if share > LATE_SHARE || self.max_us > MAX_LATE_US => Status::Degraded,
            _ => return,
        };
        let p99 = self.p99_us.map_or(String::new(), |us| format!(", p99 {us:.0} us"));
        let message = format!(
            "link {link}: {:.1} % of {} packets left more than 1 ms late{p99}, max {:.0} us (limits {:.0} %, and \
             {:.0} us for the maximum): its thread got too little CPU time",
            share * 100.0,
            self.sent,
            self.max_us,
            LATE_SHARE * 100.0,
            MAX_LATE_US
        );
        findings.add(status, ReasonCode::LinkLate, format!("link {link}"), message);
    }
}

fn judge_steps(row: &LinkTiming, findings: &mut Findings) {
    let missed = row.missed as f64 / row.count.max(1) as f64;
    let status = match missed {
        _ if missed > FAILED_MISSED_SHARE => Status::Failed,
        _ if missed > MISSED_SHARE || row.p99_us > STEP_P99_US => Status::Degraded,
        _ => return,
    };
    let message = format!(
        "link {}: scheduling error of its trace steps: p50 {:.0} us, p99 {:.0} us, max {:.0} us; {} of {} steps missed \
         (limits {STEP_P99_US:.0} us for p99, {:.1} % missed)",
        row.link,
        row.p50_us,
        row.p99_us,
        row.max_us,
        row.missed,
        row.count,
        MISSED_SHARE * 100.0
    );
    findings.add(status, ReasonCode::TraceLate, format!("link {}", row.link), message);
}
