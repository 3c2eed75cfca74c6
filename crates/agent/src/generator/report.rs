//! Writes the report in the format of iperf3's `--json-stream`. Pure.

use std::net::SocketAddr;

use ccbench_proto::wire::FlowSample;
use serde_json::{Value, json};

use crate::flow::application_bytes;

/// Addresses of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Addresses {
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

/// Bytes of a connection since it was established.
#[derive(Debug, Clone, Default)]
pub(super) struct Counters {
    /// Written to the socket, or read from it.
    pub bytes: u64,
    /// Acknowledged by the receiver; only of a sender.
    pub bytes_acked: u64,
    /// When the receiver had read the last byte of a finite flow, on CLOCK_MONOTONIC; only of a receiver.
    pub completed_ns: Option<u64>,
    /// Latest sample of the socket.
    pub sample: FlowSample,
}

impl Counters {
    /// `moved_bytes` is the thread's count. During a system call it lags behind the kernel's; after the last call it is exact.
    pub fn new(sample: FlowSample, moved_bytes: u64) -> Self {
        let bytes = application_bytes(&sample).unwrap_or(0).max(moved_bytes);
        Self { bytes, bytes_acked: sample.bytes_acked.unwrap_or(0), completed_ns: None, sample }
    }
}

/// Formats the lines of a report.
pub(super) struct Reporter {
    addresses: Vec<Addresses>,
    listens: bool,
    sends: bool,
    zero_ns: u64,
    /// The end of the last interval, and each connection's counters at that time.
    last: (u64, Vec<Counters>),
}

impl Reporter {
    /// `addresses` are ordered by connection number; `zero_ns` is when all were established, on CLOCK_MONOTONIC.
    pub fn new(addresses: Vec<Addresses>, (listens, sends): (bool, bool), zero_ns: u64) -> Self {
        let last = (zero_ns, vec![Counters::default(); addresses.len()]);
        Self { addresses, listens, sends, zero_ns, last }
    }

    /// Returns the line `start`: the connections.
    pub fn start(&self) -> String {
        let connected = self.addresses.iter().zip(0..).map(|(of, number): (_, u32)| {
            json!({
                "socket": number,
                "local_host": of.local.ip(), "local_port": of.local.port(),
                "remote_host": of.remote.ip(), "remote_port": of.remote.port(),
            })
        });
        let reverse = u8::from(self.listens == self.sends);
        line(
            "start",
            &json!({
                "version": concat!("ccbench ", env!("CARGO_PKG_VERSION")),
                "connected": connected.collect::<Vec<_>>(),
                "monotonic_ns": self.zero_ns,
                "test_start": { "protocol": "TCP", "num_streams": self.addresses.len(), "reverse": reverse },
            }),
        )
    }

    /// Returns the line `interval`: what was transferred since the last one, up to `at_ns`.
    pub fn interval(&mut self, counters: &[Counters], at_ns: u64) -> String {
        let (from_ns, before) = &self.last;
        let (start, end) = (self.seconds(*from_ns), self.seconds(at_ns));
        let streams = counters.iter().zip(before).zip(0..).map(|((now, before), number): (_, u32)| {
            let bytes = now.bytes.saturating_sub(before.bytes);
            let mut row = json!({
                "socket": number, "start": start, "end": end, "seconds": end - start, "bytes": bytes,
                "bits_per_second": if end > start { bytes as f64 * 8.0 / (end - start) } else { 0.0 },
                "omitted": false, "sender": self.sends,
            });
            if self.sends {
                let sample = &now.sample;
                let retransmitted = |of: &Counters| of.sample.total_retrans_pkts.unwrap_or(0);
                row["retransmits"] = json!(retransmitted(now).saturating_sub(retransmitted(before)));
                row["snd_cwnd"] = json!(bytes_of(sample.snd_cwnd_pkts, sample.snd_mss_bytes));
                row["snd_wnd"] = json!(sample.snd_wnd_bytes);
                row["rtt"] = json!(sample.rtt_us);
                row["rttvar"] = json!(sample.rttvar_us);
                row["pmtu"] = json!(sample.pmtu_bytes);
                row["reorder"] = json!(sample.reord_seen);
            }
            row
        });
        let text = line("interval", &json!({ "streams": streams.collect::<Vec<Value>>() }));
        self.last = (at_ns, counters.to_vec());
        text
    }

    /// Returns the line `end`: the totals of every connection. A sender counts acknowledged bytes as received. The
    /// receiver of a completed finite flow has one more field, `completed`.
    pub fn end(&self, counters: &[Counters], cc: Option<&str>, at_ns: u64) -> String {
        let end = self.seconds(at_ns);
        let streams = counters.iter().zip(0..).map(|(of, number): (_, u32)| {
            let (sent, received) =
                if self.sends { (of.bytes, of.bytes_acked) } else { (0, of.bytes) };
            let side =
                |bytes: u64| json!({ "socket": number, "start": 0.0, "end": end, "bytes": bytes });
            let mut totals = json!({ "sender": side(sent), "receiver": side(received) });
            if let Some(at_ns) = of.completed_ns {
                totals["receiver"]["completed"] = json!(self.seconds(at_ns));
            }
            totals
        });
        let key = if self.sends { "sender_tcp_congestion" } else { "receiver_tcp_congestion" };
        let mut data = json!({ "streams": streams.collect::<Vec<_>>() });
        data[key] = json!(cc);
        line("end", &data)
    }

    fn seconds(&self, at_ns: u64) -> f64 {
        at_ns.saturating_sub(self.zero_ns) as f64 / 1e9
    }
}

/// Returns the line `error`: why this end stopped before its peer did.
pub(super) fn error(text: &str) -> String {
    line("error", &json!(text))
}

fn line(event: &str, data: &Value) -> String {
    json!({ "event": event, "data": data }).to_string()
}

fn bytes_of(packets: Option<u32>, mss_bytes: Option<u32>) -> Option<u64> {
    Some(u64::from(packets?) * u64::from(mss_bytes?))
}

#[cfg(test)]
mod tests {
    use ccbench_proto::tools::iperf3::{Numbering, Report};
    use ccbench_proto::wire::Side;

    use super::*;

    fn sample(sent: u64, retransmitted: u64, waiting: u32) -> FlowSample {
        FlowSample {
            side: Side::Sender.into(),
            bytes_sent: Some(sent),
            bytes_retrans: Some(retransmitted * 1000),
            notsent_bytes: Some(waiting),
            bytes_acked: Some(sent / 2),
            total_retrans_pkts: Some(retransmitted as u32),
            snd_cwnd_pkts: Some(10),
            snd_mss_bytes: Some(1000),
            rtt_us: Some(20_000),
            ..FlowSample::default()
        }
    }

    /// Parses a report's lines as the controller does.
    fn read(lines: &[String], listens: bool) -> Report {
        let mut report = Report::default();
        let numbering = Numbering { client_port: 10_000, count: 2, listens };
        for line in lines {
            assert!(report.on_line(line.as_bytes(), numbering).is_some(), "{line}");
        }
        report
    }

    fn addresses(local: u16, remote: u16) -> Addresses {
        let address = |host: u8, port| SocketAddr::from(([10, 0, 0, host], port));
        Addresses { local: address(1, local), remote: address(2, remote) }
    }

    #[test]
    fn iperf3_parser_accepts_a_report() {
        let both = vec![addresses(10_000, 5201), addresses(10_001, 5201)];
        let mut reporter = Reporter::new(both, (false, true), 1_000_000_000);
        let at = |first, second| [first, second].map(|s| Counters::new(s, 0));
        let (one, two) =
            (at(sample(5000, 1, 300), sample(0, 0, 0)), at(sample(9000, 3, 0), sample(700, 0, 0)));
        let report = read(
            &[
                reporter.start(),
                reporter.interval(&one, 1_100_000_000),
                reporter.interval(&two, 1_200_000_000),
                reporter.end(&two, Some("cubic"), 1_200_000_000),
            ],
            false,
        );
        assert_eq!(report.zero_ns, Some(1_000_000_000));
        assert_eq!(report.streams[&1].local_port, 10_001);
        let rows: Vec<_> = report
            .intervals
            .iter()
            .map(|i| {
                (i.stream, i.values.end, i.values.bytes, i.values.retransmits, i.values.snd_cwnd)
            })
            .collect();
        assert_eq!(
            rows,
            [
                (0, 0.1, 4300.0, Some(1.0), Some(10_000.0)),
                (1, 0.1, 0.0, Some(0.0), Some(10_000.0)),
                (0, 0.2, 1700.0, Some(2.0), Some(10_000.0)),
                (1, 0.2, 700.0, Some(0.0), Some(10_000.0)),
            ]
        );
        let totals = report.totals[&0];
        assert_eq!((totals.sent_bytes, totals.received_bytes, totals.end_s), (6000, 4500, 0.2));
        assert_eq!((report.sender_cc.as_deref(), report.complete), (Some("cubic"), true));
    }

    #[test]
    fn a_receivers_count_never_goes_back() {
        let mut reporter = Reporter::new(vec![addresses(5201, 10_001)], (true, false), 0);
        let received = |bytes| FlowSample { bytes_received: Some(bytes), ..FlowSample::default() };
        let lines = [
            reporter.start(),
            reporter.interval(&[Counters::new(received(4000), 1000)], 100_000_000),
            // The thread has read more since the sample.
            reporter.interval(&[Counters::new(received(4000), 4500)], 150_000_000),
            reporter.end(
                &[Counters {
                    completed_ns: Some(140_000_000),
                    ..Counters::new(received(4000), 4500)
                }],
                None,
                150_000_000,
            ),
            error("interrupt - the client has terminated"),
        ];
        let report = read(&lines, true);
        let bytes: Vec<_> = report.intervals.iter().map(|i| (i.stream, i.values.bytes)).collect();
        assert_eq!(bytes, [(1, 4000.0), (1, 500.0)]);
        assert_eq!(report.totals[&1].received_bytes, 4500);
        assert_eq!(report.totals[&1].completed_s, Some(0.14));
        assert_eq!(report.error.as_deref(), Some("interrupt - the client has terminated"));
    }
}
