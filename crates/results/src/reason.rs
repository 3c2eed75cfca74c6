//! The reasons why trials are degraded, failed or aborted.

use serde::{Deserialize, Serialize};

/// What failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A node, ccbench itself or a file failed: the trial did not take place, or its data cannot be used. `--resume` repeats the trial.
    Infrastructure,
    /// The trial took place but did not do what the plan specifies, so it may fail again. Only `--retry-failed` repeats it.
    Trial,
}

macro_rules! reason_codes {
    ($($(#[$doc:meta])* $code:ident = $name:literal,)+) => {
        /// The check that a trial did not pass, or the kind of an event. docs/results.md has the limits.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(from = "String", into = "String")]
        pub enum ReasonCode {
            $($(#[$doc])* $code,)+
            /// A code of another version of ccbench.
            Other(String),
        }

        impl ReasonCode {
            /// Every code of this version, in alphabetical order.
            pub const ALL: &'static [Self] = &[$(Self::$code),+];

            /// Returns the text in the journal and in `trials.parquet`.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$code => $name,)+
                    Self::Other(name) => name,
                }
            }
        }

        impl From<&str> for ReasonCode {
            fn from(name: &str) -> Self {
                match name {
                    $($name => Self::$code,)+
                    other => match RENAMED.iter().find(|(former, _)| *former == other) {
                        Some((_, code)) => code.clone(),
                        None => Self::Other(other.to_owned()),
                    },
                }
            }
        }
    };
}

reason_codes! {
    /// The trial ended early.
    Aborted = "aborted",
    /// Event: the rows recorded at acknowledgements cannot be read.
    AcksError = "acks_error",
    /// Rows of table `acks` are missing.
    AcksLost = "acks_lost",
    /// Event: an error of the agent.
    AgentError = "agent_error",
    /// The idle RTT is not the sum of the configured delays.
    BaseRtt = "base_rtt",
    /// Event: a capture does not see every packet.
    CaptureCaveat = "capture_caveat",
    /// Packets arrived faster than a capture could record them.
    CaptureDropped = "capture_dropped",
    /// Event: an error of a capture.
    CaptureError = "capture_error",
    /// A capture's only file was full.
    CaptureFull = "capture_full",
    /// A sender's sockets started with another congestion control than the plan's.
    CcLate = "cc_late",
    /// Event: the state of a congestion control cannot be read.
    CcStateError = "cc_state_error",
    /// A congestion control has no state, so it did nothing.
    CcStateMissing = "cc_state_missing",
    /// The senders' count of CE marks differs from the links' count.
    CeCountOff = "ce_count_off",
    /// Event: the state that triggers a change of the plan never came.
    ChangeNotTriggered = "change_not_triggered",
    /// A node's CLOCK_REALTIME was set.
    ClockStep = "clock_step",
    /// A node's times may be wrong by too much.
    ClockUncertain = "clock_uncertain",
    /// A machine was too busy.
    CpuBound = "cpu_bound",
    /// The trial's files differ from those that were committed.
    Damaged = "damaged",
    /// A congestion control did not get the ECN feedback that it needs.
    EcnFallback = "ecn_fallback",
    /// An error occurred.
    Error = "error",
    /// The controller cannot read a message of a node.
    EventUnreadable = "event_unreadable",
    /// No data arrived.
    FlowDead = "flow_dead",
    /// A flow ended early.
    FlowEarly = "flow_early",
    /// Event: an error of a flow.
    FlowError = "flow_error",
    /// A traffic generator ended with an error.
    FlowExit = "flow_exit",
    /// A flow started late.
    FlowLate = "flow_late",
    /// Data arrived after a flow's stop.
    FlowOverrun = "flow_overrun",
    /// Event: flows share a queue of a discipline that should separate them.
    FlowQueueShared = "flow_queue_shared",
    /// An unlimited flow had no new data for some time.
    FlowStalled = "flow_stalled",
    /// A flow got no data while others of its group did.
    FlowStarved = "flow_starved",
    /// Something other than the trial sent packets through a link.
    ForeignTraffic = "foreign_traffic",
    /// Event: an error of iperf3.
    Iperf3Error = "iperf3_error",
    /// Event: lines of a traffic generator's report cannot be read.
    Iperf3Unread = "iperf3_unread",
    /// Event: the CPU's sleep states cannot be limited.
    KeepAwakeError = "keep_awake_error",
    /// The CPU of the lab's guest was too busy.
    LabBusy = "lab_busy",
    /// The tables do not represent all lines of an imported file completely.
    LinesUnread = "lines_unread",
    /// The kernel rejected a change of a link.
    LinkChangeFailed = "link_change_failed",
    /// Event: an error of a link.
    LinkError = "link_error",
    /// The userspace datapath released packets late.
    LinkLate = "link_late",
    /// A link sent more than its rate.
    LinkRateHigh = "link_rate_high",
    /// A backlogged link sent less than its rate.
    LinkRateLow = "link_rate_low",
    /// A node's stream ended without its last message.
    NodeLost = "node_lost",
    /// The trial could not be prepared.
    NotRun = "not_run",
    /// Packets are missing in the packet log.
    PacketsNotLogged = "packets_not_logged",
    /// A probe has no result.
    ProbeDead = "probe_dead",
    /// Event: an error of a probe.
    ProbeError = "probe_error",
    /// A connection or a fetch failed.
    ProbeFailed = "probe_failed",
    /// The queue to the controller was full.
    RowsDropped = "rows_dropped",
    /// Event: an error of a sampler.
    SampleError = "sample_error",
    /// TCP samples came late.
    SamplesLate = "samples_late",
    /// A table has gaps.
    SamplesMissing = "samples_missing",
    /// Event: something other than ccbench changed a setting during the trial.
    SettingChanged = "setting_changed",
    /// A machine dropped packets before they reached any queue of the plan.
    SoftnetDropped = "softnet_dropped",
    /// A node received the request to start after the start time.
    StartLate = "start_late",
    /// Rows of table `tcp_events` are missing.
    TcpEventsLost = "tcp_events_lost",
    /// Steps of a trace were applied late.
    TraceLate = "trace_late",
    /// The kernel uses another congestion control than the plan's.
    WrongCc = "wrong_cc",
}

/// Deprecated codes and the current ones. The journals of earlier versions have the former. `python/ccbench/_renamed.py` has the same list.
static RENAMED: [(&str, ReasonCode); 1] = [("cc_not_in_force", ReasonCode::WrongCc)];

impl ReasonCode {
    /// Returns what failed in a trial that failed for this reason; `None` for reasons that never fail a trial.
    pub const fn cause(&self) -> Option<Cause> {
        match self {
            Self::Damaged | Self::Error | Self::NodeLost | Self::NotRun => {
                Some(Cause::Infrastructure)
            }
            Self::CcStateMissing
            | Self::FlowDead
            | Self::FlowError
            | Self::LabBusy
            | Self::LinkLate
            | Self::TraceLate
            | Self::WrongCc
            | Self::Other(_) => Some(Cause::Trial),
            _ => None,
        }
    }

    /// Returns whether a lack of CPU time can cause this.
    pub const fn indicates_cpu_shortage(&self) -> bool {
        matches!(
            self,
            Self::AcksLost
                | Self::CpuBound
                | Self::FlowLate
                | Self::LinkLate
                | Self::LinkRateLow
                | Self::SamplesLate
                | Self::SamplesMissing
                | Self::SoftnetDropped
                | Self::TraceLate
        )
    }
}

impl From<String> for ReasonCode {
    fn from(name: String) -> Self {
        Self::from(name.as_str())
    }
}

impl From<ReasonCode> for String {
    fn from(code: ReasonCode) -> Self {
        code.as_str().to_owned()
    }
}

impl std::fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns the codes in the table of reasons in docs/results.md whose verdict `takes` accepts.
    fn listed(manual: &str, takes: impl Fn(&str) -> bool) -> BTreeSet<&str> {
        let rows = manual.lines().filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            let (codes, verdict) = (cells.next()?, cells.next()?);
            takes(verdict).then_some(codes)
        });
        rows.flat_map(|codes| codes.split(", ")).collect()
    }

    fn manual() -> String {
        let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results.md");
        std::fs::read_to_string(manual).unwrap()
    }

    #[test]
    fn manual_lists_every_reason() {
        let manual = manual();
        let is_status = |verdict: &str| {
            verdict.split(", ").all(|status| ["degraded", "failed"].contains(&status))
        };
        // The manual has a single sentence on events of kind `..._error`, and a status for aborted trials.
        let is_listed = |code: &&ReasonCode| {
            **code != ReasonCode::Aborted
                && (code.cause().is_some() || !code.as_str().ends_with("_error"))
        };
        let known = ReasonCode::ALL.iter().filter(is_listed).map(ReasonCode::as_str);
        assert_eq!(listed(&manual, is_status), known.collect());
    }

    #[test]
    fn manual_lists_the_reasons_that_fail_a_trial() {
        let manual = manual();
        let fails = |verdict: &str| verdict.split(", ").any(|status| status == "failed");
        let known = ReasonCode::ALL.iter().filter(|code| code.cause().is_some());
        assert_eq!(listed(&manual, fails), known.map(ReasonCode::as_str).collect());
        let repeated = ReasonCode::ALL.iter();
        let repeated = repeated.filter(|code| code.cause() == Some(Cause::Infrastructure));
        let repeated: Vec<String> = repeated.map(|code| format!("`{code}`")).collect();
        let sentence = format!("({})", repeated.join(", "));
        assert!(manual.contains(&sentence), "docs/results.md lacks {sentence}");
    }

    #[test]
    fn codes_are_texts_in_the_journal() {
        for code in ReasonCode::ALL {
            let json = serde_json::to_value(code).unwrap();
            assert_eq!(json, code.as_str());
            assert_eq!(&serde_json::from_value::<ReasonCode>(json).unwrap(), code);
        }
        let later: ReasonCode = serde_json::from_str("\"queue_on_fire\"").unwrap();
        assert_eq!(later, ReasonCode::Other("queue_on_fire".to_owned()));
        assert_eq!(serde_json::to_string(&later).unwrap(), "\"queue_on_fire\"");
        assert!(ReasonCode::ALL.is_sorted_by_key(ReasonCode::as_str));
    }

    #[test]
    fn journals_of_earlier_versions_have_deprecated_codes() {
        let code: ReasonCode = serde_json::from_str("\"cc_not_in_force\"").unwrap();
        assert_eq!(code, ReasonCode::WrongCc);
        assert_eq!(serde_json::to_string(&code).unwrap(), "\"wrong_cc\"");
        let python = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/ccbench/_renamed.py");
        let python = std::fs::read_to_string(python).unwrap();
        for (former, code) in &RENAMED {
            assert!(ReasonCode::ALL.iter().all(|code| code.as_str() != *former), "{former}");
            assert!(python.contains(&format!("\"{former}\": \"{code}\"")), "{former}");
        }
    }
}
