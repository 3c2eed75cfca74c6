//! Statistics of one direction of the link: its counters and their differences over an interval, as JSON and as text.

use ccbench_proto::wire::{LinkTiming, QdiscSample, TimingKind};
use serde_json::{Value, json};

/// A direction's counters since its start, at one instant.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Reading {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub(crate) at_ns: u64,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// All drops. Of these, because the queue was full, and because its memory was full.
    pub(crate) drops: u64,
    pub(crate) overlimit: u64,
    pub(crate) overmemory: u64,
    /// Drops by the AQM, and by random loss. 0 for a kernel link.
    pub(crate) early: u64,
    pub(crate) lost: u64,
    /// Drops by the policer, and by the filter of acknowledgements.
    pub(crate) policed: u64,
    pub(crate) ack_filter: u64,
    /// Packets marked CE.
    pub(crate) marks: u64,
    /// Current queue.
    pub(crate) queue_bytes: u64,
    pub(crate) queue_pkts: u64,
    /// Current rate in bit/s; `None` if unshaped.
    pub(crate) rate_bps: Option<u64>,
    /// Packets released more than 1 ms after their due time; `None` for a kernel link.
    pub(crate) late_pkts: Option<u64>,
    pub(crate) max_late_us: Option<u64>,
    /// Scheduling errors of packets and of trace steps.
    pub(crate) packet_timing: Option<LinkTiming>,
    pub(crate) step_timing: Option<LinkTiming>,
    /// Packets for which the packet log had no space; `None` without a log.
    pub(crate) packets_not_logged: Option<u64>,
}

impl Reading {
    /// Collects a link's counters. The root's row has the forwarded packets; the rows below it have marks and drops. The root's backlog
    /// above a netem contains packets that wait for their delay, so that the queue is then that of the other qdiscs, as in summaries.
    pub(crate) fn new(at_ns: u64, rows: &[QdiscSample], timing: &[LinkTiming]) -> Self {
        let timing_of = |kind| timing.iter().find(|row| row.kind() == kind).cloned();
        let mut reading = Self {
            at_ns,
            packet_timing: timing_of(TimingKind::Packets),
            step_timing: timing_of(TimingKind::Steps),
            packets_not_logged: timing_of(TimingKind::Log).map(|row| row.missed),
            ..Self::default()
        };
        let has_netem = rows.iter().any(|row| row.kind == "netem");
        for row in rows {
            let is_class = row.kind == "htb class";
            let is_root = !is_class && row.parent == "root";
            let is_queue =
                if has_netem { !is_class && !is_root && row.kind != "netem" } else { is_root };
            if is_queue {
                reading.queue_bytes += row.backlog_bytes;
                reading.queue_pkts += row.qlen_pkts;
            }
            reading.marks +=
                row.ecn_mark_pkts.unwrap_or_default() + row.ce_mark_pkts.unwrap_or_default();
            reading.overlimit += row.drop_overlimit_pkts.unwrap_or_default();
            reading.overmemory += row.drop_overmemory_pkts.unwrap_or_default();
            reading.early += row.drop_early_pkts.unwrap_or_default();
            reading.lost += row.drop_lost_pkts.unwrap_or_default();
            reading.policed += row.drop_policed_pkts.unwrap_or_default();
            reading.ack_filter += row.drop_ack_filter_pkts.unwrap_or_default();
            reading.rate_bps = reading.rate_bps.or(row.rate_bps);
            if is_root {
                reading.packets = row.sent_pkts;
                reading.bytes = row.sent_bytes;
                reading.drops = row.drops_pkts;
                reading.late_pkts = row.late_pkts;
                reading.max_late_us = row.max_late_us;
            }
        }
        reading
    }

    /// Returns how long the queue takes to drain, in microseconds; `None` without a rate.
    fn queue_delay_us(&self) -> Option<u64> {
        let rate_bps = self.rate_bps.filter(|&rate_bps| rate_bps > 0)?;
        let us = u128::from(self.queue_bytes) * 8_000_000 / u128::from(rate_bps);
        u64::try_from(us).ok()
    }
}

/// A direction's name and its two ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) direction: &'static str,
    pub(crate) from: String,
    pub(crate) to: String,
}

/// A direction over an interval of time.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Interval<'a> {
    pub(crate) name: &'a Name,
    /// When the link started, in nanoseconds.
    pub(crate) began_ns: u64,
    pub(crate) before: &'a Reading,
    pub(crate) now: &'a Reading,
}

impl Interval<'_> {
    /// Returns how much a counter has grown in the interval.
    fn delta(&self, counter: impl Fn(&Reading) -> u64) -> u64 {
        counter(self.now).saturating_sub(counter(self.before))
    }

    fn seconds(&self) -> f64 {
        self.now.at_ns.saturating_sub(self.before.at_ns) as f64 / 1e9
    }

    /// Returns the causes of drops: as a key, in words, and the count.
    fn causes(&self) -> Vec<(&'static str, &'static str, u64)> {
        let mut causes = vec![
            ("overlimit", "queue full", self.delta(|r| r.overlimit)),
            ("overmemory", "memory full", self.delta(|r| r.overmemory)),
            ("early", "control law", self.delta(|r| r.early)),
            ("lost", "random loss", self.delta(|r| r.lost)),
            ("policed", "policer", self.delta(|r| r.policed)),
            ("ack_filter", "superseded ACK", self.delta(|r| r.ack_filter)),
        ];
        let sum: u64 = causes.iter().map(|(_, _, count)| count).sum();
        causes.push(("other", "other", self.delta(|r| r.drops).saturating_sub(sum)));
        causes
    }

    /// Returns the number of packets that the packet log lacks.
    fn not_logged(&self) -> u64 {
        self.delta(|r| r.packets_not_logged.unwrap_or_default())
    }

    /// Returns the delivered rate in bit/s.
    fn delivered_bps(&self) -> f64 {
        let seconds = self.seconds();
        if seconds > 0.0 { self.delta(|r| r.bytes) as f64 * 8.0 / seconds } else { 0.0 }
    }

    /// Returns a JSON object. Counts cover the interval; percentiles of the scheduling error cover the time since the link started.
    pub(crate) fn json(&self, is_final: bool) -> Value {
        let Self { name, now, .. } = self;
        let drops: serde_json::Map<String, Value> = self
            .causes()
            .into_iter()
            .map(|(cause, _, count)| (cause.to_owned(), count.into()))
            .collect();
        let timing = now.packet_timing.as_ref();
        let mut object = json!({
            "t_s": round(now.at_ns.saturating_sub(self.began_ns) as f64 / 1e9, 1e6),
            "seconds": round(self.seconds(), 1e6),
            "direction": name.direction,
            "from": name.from,
            "to": name.to,
            "packets": self.delta(|r| r.packets),
            "bytes": self.delta(|r| r.bytes),
            "rate_bps": self.delivered_bps().round(),
            "link_rate_bps": now.rate_bps,
            "drops_pkts": self.delta(|r| r.drops),
            "drops": drops,
            "marks": self.delta(|r| r.marks),
            "queue_bytes": now.queue_bytes,
            "queue_pkts": now.queue_pkts,
            "queue_delay_us": now.queue_delay_us(),
            "scheduling_error_p50_us": timing.map(|row| round(row.p50_us, 1e3)),
            "scheduling_error_p99_us": timing.map(|row| round(row.p99_us, 1e3)),
            "scheduling_error_max_us": timing.map(|row| round(row.max_us, 1e3)).or(now.max_late_us.map(|us| us as f64)),
            "late_pkts": now.late_pkts.map(|_| self.delta(|r| r.late_pkts.unwrap_or_default())),
            "packets_not_logged": now.packets_not_logged.map(|_| self.not_logged()),
        });
        add_deprecated_keys(&mut object);
        if let Some(steps) = &now.step_timing {
            let mut trace_steps = json!({
                "count": steps.count,
                "missed": steps.missed,
                "scheduling_error_p50_us": round(steps.p50_us, 1e3),
                "scheduling_error_p99_us": round(steps.p99_us, 1e3),
                "scheduling_error_max_us": round(steps.max_us, 1e3),
            });
            add_deprecated_keys(&mut trace_steps);
            object["trace_steps"] = trace_steps;
        }
        if is_final {
            object["final"] = json!(true);
        }
        object
    }

    /// Returns the live line.
    pub(crate) fn live(&self) -> String {
        let now = self.now;
        let of = now.rate_bps.map_or(String::new(), |bps| format!(" of {}", rate(bps as f64)));
        let mut line = format!(
            "{:>8.1} s  {:<4} {:>11}{of}  queue {} p {}",
            now.at_ns.saturating_sub(self.began_ns) as f64 / 1e9,
            self.name.direction,
            rate(self.delivered_bps()),
            now.queue_pkts,
            size(now.queue_bytes),
        );
        if let Some(us) = now.queue_delay_us() {
            line += &format!(" {}", time(us as f64));
        }
        line += &format!("  drops {}  marks {}", self.delta(|r| r.drops), self.delta(|r| r.marks));
        if let Some(timing) = &now.packet_timing {
            line += &format!(
                "  scheduling error p50 {} p99 {} max {}",
                time(timing.p50_us),
                time(timing.p99_us),
                time(timing.max_us)
            );
        } else if let Some(us) = now.max_late_us {
            line += &format!("  scheduling error max {}", time(us as f64));
        }
        line
    }

    /// Returns the final totals, in a few lines.
    pub(crate) fn totals(&self) -> String {
        let (now, Name { direction, from, to }) = (self.now, self.name);
        let drops = self.delta(|r| r.drops);
        let mut text = format!(
            "{direction} ({from} → {to}): {} packets, {} in {:.3} s ({}); dropped {drops}",
            self.delta(|r| r.packets),
            size(self.delta(|r| r.bytes)),
            self.seconds(),
            rate(self.delivered_bps()),
        );
        if drops > 0 {
            let causes: Vec<String> = self
                .causes()
                .iter()
                .filter(|(_, _, count)| *count > 0)
                .map(|(_, cause, count)| format!("{cause} {count}"))
                .collect();
            text += &format!(" ({})", causes.join(", "));
        }
        text += &format!(", marked {}", self.delta(|r| r.marks));
        if let Some(row) = &now.packet_timing {
            text += &format!("\n  scheduling error {}; {} more than 1 ms", spread(row), row.late);
        } else if let Some(us) = now.max_late_us {
            let late = now.late_pkts.unwrap_or_default();
            let max = time(us as f64);
            text += &format!("\n  scheduling error at most {max}; {late} more than 1 ms");
        }
        if let Some(row) = &now.step_timing {
            text += &format!(
                "\n  {} steps of the trace, scheduling error {}; {} more than 200 us, {} missed",
                row.count,
                spread(row),
                row.late,
                row.missed
            );
        }
        if self.not_logged() > 0 {
            text += &format!(
                "\n  {} packets are not in the packet log: it reached --packet-log-limit, or was written too slowly",
                self.not_logged()
            );
        }
        text
    }
}

/// Repeats the scheduling error under its former keys, which are deprecated and stay for one version.
fn add_deprecated_keys(object: &mut Value) {
    for statistic in ["p50", "p99", "max"] {
        let value = object[format!("scheduling_error_{statistic}_us")].clone();
        object[format!("lateness_{statistic}_us")] = value;
    }
}

fn spread(row: &LinkTiming) -> String {
    format!(
        "p50 {} p90 {} p99 {} max {}",
        time(row.p50_us),
        time(row.p90_us),
        time(row.p99_us),
        time(row.max_us)
    )
}

fn round(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let (factor, unit) =
        units.iter().rev().find(|(factor, _)| value >= *factor).unwrap_or(&units[0]);
    let value = value / factor;
    let digits = if *factor == 1.0 || value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {unit}")
}

fn rate(bps: f64) -> String {
    scaled(bps, &[(1.0, "bit/s"), (1e3, "kbit/s"), (1e6, "Mbit/s"), (1e9, "Gbit/s")])
}

fn size(bytes: u64) -> String {
    scaled(bytes as f64, &[(1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB")])
}

fn time(us: f64) -> String {
    if us > 0.0 && us < 10.0 {
        return format!("{us:.1} us");
    }
    scaled(us, &[(1.0, "us"), (1e3, "ms"), (1e6, "s")])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> Name {
        Name { direction: "down", from: "a".to_owned(), to: "b".to_owned() }
    }

    fn row(parent: &str) -> QdiscSample {
        QdiscSample { parent: parent.to_owned(), ..QdiscSample::default() }
    }

    #[test]
    fn an_interval_is_the_difference_of_two_readings() {
        let rows = [
            QdiscSample {
                sent_pkts: 100,
                sent_bytes: 125_000,
                drops_pkts: 7,
                drop_overlimit_pkts: Some(4),
                drop_early_pkts: Some(1),
                drop_policed_pkts: Some(1),
                backlog_bytes: 12_500,
                qlen_pkts: 10,
                rate_bps: Some(1_000_000),
                late_pkts: Some(3),
                max_late_us: Some(2_000),
                ..row("root")
            },
            QdiscSample { ecn_mark_pkts: Some(5), sent_pkts: 1, ..row("1:1") },
        ];
        let now = Reading::new(2_000_000_000, &rows, &[]);
        let before =
            Reading { at_ns: 1_000_000_000, packets: 40, bytes: 50_000, ..Reading::default() };
        let name = name();
        let interval = Interval { name: &name, began_ns: 0, before: &before, now: &now };
        let json = interval.json(false);
        for (key, wanted) in [
            ("t_s", json!(2.0)),
            ("packets", json!(60)),
            ("bytes", json!(75_000)),
            ("rate_bps", json!(600_000.0)),
            (
                "drops",
                json!({
                    "overlimit": 4, "overmemory": 0, "early": 1, "lost": 0, "policed": 1, "ack_filter": 0, "other": 1
                }),
            ),
            ("marks", json!(5)),
            ("queue_delay_us", json!(100_000)),
            ("late_pkts", json!(3)),
            ("scheduling_error_max_us", json!(2000.0)),
            ("scheduling_error_p50_us", Value::Null),
            ("lateness_max_us", json!(2000.0)),
            ("lateness_p50_us", Value::Null),
            ("final", Value::Null),
        ] {
            assert_eq!(json[key], wanted, "{key}");
        }
        assert_eq!(interval.json(true)["final"], json!(true));
        let live = interval.live();
        assert!(live.contains("600 kbit/s of 1.00 Mbit/s  queue 10 p 12.5 kB 100 ms"), "{live}");
        let totals = interval.totals();
        assert!(
            totals
                .contains("dropped 7 (queue full 4, control law 1, policer 1, other 1), marked 5"),
            "{totals}"
        );
    }

    #[test]
    fn packets_in_a_netem_are_not_in_the_queue() {
        let of = |kind: &str, parent, (backlog_bytes, qlen_pkts), sent_pkts, drops_pkts| {
            let kind = kind.to_owned();
            QdiscSample { kind, backlog_bytes, qlen_pkts, sent_pkts, drops_pkts, ..row(parent) }
        };
        let rows = |queue| {
            [
                of("htb", "root", (40_000, 27), 900, 7),
                of("netem", "1:1", (25_000, 17), 950, 0),
                of("bfifo", "100:1", queue, 900, 7),
                of("htb class", "root", (40_000, 27), 901, 0),
            ]
        };
        let queue = |rows: &[QdiscSample]| {
            let reading = Reading::new(0, rows, &[]);
            assert_eq!((reading.packets, reading.drops), (900, 7), "the root, not its class");
            (reading.queue_bytes, reading.queue_pkts)
        };
        assert_eq!(queue(&rows((15_000, 10))), (15_000, 10));
        assert_eq!(queue(&rows((0, 0))), (0, 0));
        let [root, _, child, class] = rows((15_000, 10));
        assert_eq!(queue(&[root, child, class]), (40_000, 27), "the root has its children's");
    }

    #[test]
    fn packets_that_the_log_lacks_are_counted() {
        let log = |missed| {
            let kind = TimingKind::Log.into();
            Reading::new(0, &[], &[LinkTiming { kind, missed, ..LinkTiming::default() }])
        };
        let (name, before, now) = (name(), log(2), log(9));
        let interval = Interval { name: &name, began_ns: 0, before: &before, now: &now };
        assert_eq!(interval.json(true)["packets_not_logged"], json!(7));
        assert!(interval.totals().contains("7 packets are not in the packet log"));
        let complete = Interval { before: &now, ..interval };
        assert_eq!(complete.json(true)["packets_not_logged"], json!(0));
        assert!(!complete.totals().contains("packet log"));
    }

    #[test]
    fn an_empty_interval_has_zero_rates() {
        let (name, empty) = (name(), Reading::default());
        let interval = Interval { name: &name, began_ns: 0, before: &empty, now: &empty };
        assert_eq!(interval.json(false)["rate_bps"], json!(0.0));
        assert_eq!(interval.json(false)["queue_delay_us"], Value::Null);
        assert_eq!(interval.json(false)["packets_not_logged"], Value::Null);
        assert!(interval.live().contains("0 bit/s"));
        assert!(interval.totals().contains("0 packets, 0 B"));
    }

    #[test]
    fn values_have_about_three_digits() {
        assert_eq!(rate(99_950_000.0), "100.0 Mbit/s");
        assert_eq!((rate(1.5e9).as_str(), rate(0.0).as_str()), ("1.50 Gbit/s", "0 bit/s"));
        assert_eq!((time(2.34).as_str(), time(15_000.0).as_str()), ("2.3 us", "15.0 ms"));
    }
}
