//! Events: the name, the severity and the JSON body of every kind. Table `events` stores them.
//!
//! To add a kind: a member of `Event.kind` in `agent.proto`, its line in [`Kind::name`] and in [`Kind::severity`], and, if it
//! has data, its body in `Kind::data_json` and its required fields in `Kind::missing`.

use serde_json::{Value, json};
use thiserror::Error;

use crate::column_text::ColumnText as _;
use crate::wire::{Backend, CongestionControl, Event, LinkState, Side, Via};

pub use crate::wire::event::{
    BaseRtt, Capture, CcMethod, CcSockets, ClockStep, Ecn, EcnEct1, EcnMode, EcnRequest,
    FlowQueueShared, Import, InitialCc, Kind, Lab, LabEngine, NoData, NodeCongestionControl,
    SettingChanged,
};

/// Name of [`Kind::Link`].
pub const LINK: &str = "link";
/// Column `kind` of an event whose kind this build does not know.
pub const UNREADABLE: &str = "unreadable";

/// Consequence of an event for its trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// None by its kind alone; its data may have one.
    Info,
    /// The trial is degraded.
    Degraded,
    /// The trial failed.
    Failed,
}

/// An event of an agent of another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum UnreadableEvent {
    /// The kind is not in this build's `agent.proto`.
    #[error("its kind is unknown")]
    UnknownKind,
    /// A required field is absent, or has a value that this build does not know.
    #[error("the event `{kind}` has no valid `{field}`")]
    MissingField {
        /// Name of the kind.
        kind: &'static str,
        /// Name of the field.
        field: &'static str,
    },
}

impl Event {
    /// The kind, if this build can read the event.
    ///
    /// # Errors
    /// The kind is unknown, or lacks a required field.
    pub fn read(&self) -> Result<&Kind, UnreadableEvent> {
        let kind = self.kind.as_ref().ok_or(UnreadableEvent::UnknownKind)?;
        match kind.missing() {
            Some(field) => Err(UnreadableEvent::MissingField { kind: kind.name(), field }),
            None => Ok(kind),
        }
    }

    /// Column `kind`.
    pub fn name(&self) -> &'static str {
        self.kind.as_ref().map_or(UNREADABLE, Kind::name)
    }

    /// Column `data_json`: a JSON object, or empty.
    pub fn data_json(&self) -> String {
        self.kind.as_ref().and_then(Kind::data_json).map_or(String::new(), |data| data.to_string())
    }
}

/// The kinds without data. All matches use this list, so they stay exhaustive.
macro_rules! without_data {
    () => {
        Kind::PhaseStart(NoData {})
            | Kind::TrialEnd(NoData {})
            | Kind::FlowStart(NoData {})
            | Kind::FlowEnd(NoData {})
            | Kind::FlowError(NoData {})
            | Kind::Iperf3Unread(NoData {})
            | Kind::ProbeError(NoData {})
            | Kind::ProbeUnfinished(NoData {})
            | Kind::Sysctl(NoData {})
            | Kind::OffloadsOff(NoData {})
            | Kind::LinkUp(NoData {})
            | Kind::KeepAwake(NoData {})
            | Kind::KeepAwakeError(NoData {})
            | Kind::Acks(NoData {})
            | Kind::AcksOff(NoData {})
            | Kind::AcksError(NoData {})
            | Kind::CaptureCaveat(NoData {})
            | Kind::CaptureError(NoData {})
            | Kind::CcStateError(NoData {})
            | Kind::CcStateThinned(NoData {})
            | Kind::SampleError(NoData {})
            | Kind::LinkError(NoData {})
            | Kind::AgentError(NoData {})
            | Kind::StartLate(NoData {})
            | Kind::FlowQueuesUnknown(NoData {})
            | Kind::ChangeTriggered(NoData {})
            | Kind::ChangeNotTriggered(NoData {})
            | Kind::Iperf3Error(NoData {})
            | Kind::NodeRebooted(NoData {})
    };
}

impl Kind {
    /// Column `kind`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::PhaseStart(_) => "phase_start",
            Self::TrialEnd(_) => "trial_end",
            Self::FlowStart(_) => "flow_start",
            Self::FlowEnd(_) => "flow_end",
            Self::FlowError(_) => "flow_error",
            Self::Iperf3Unread(_) => "iperf3_unread",
            Self::ProbeError(_) => "probe_error",
            Self::ProbeUnfinished(_) => "probe_unfinished",
            Self::Sysctl(_) => "sysctl",
            Self::OffloadsOff(_) => "offloads_off",
            Self::LinkUp(_) => "link_up",
            Self::KeepAwake(_) => "keep_awake",
            Self::KeepAwakeError(_) => "keep_awake_error",
            Self::BaseRtt(_) => "base_rtt",
            Self::Acks(_) => "acks",
            Self::AcksOff(_) => "acks_off",
            Self::AcksError(_) => "acks_error",
            Self::Capture(_) => "capture",
            Self::CaptureCaveat(_) => "capture_caveat",
            Self::CaptureError(_) => "capture_error",
            Self::CcStateError(_) => "cc_state_error",
            Self::CcStateThinned(_) => "cc_state_thinned",
            Self::SampleError(_) => "sample_error",
            Self::LinkError(_) => "link_error",
            Self::AgentError(_) => "agent_error",
            Self::ClockStep(_) => "clock_step",
            Self::StartLate(_) => "start_late",
            Self::FlowQueueShared(_) => "flow_queue_shared",
            Self::FlowQueuesUnknown(_) => "flow_queues_unknown",
            Self::ChangeTriggered(_) => "change_triggered",
            Self::ChangeNotTriggered(_) => "change_not_triggered",
            Self::SettingChanged(_) => "setting_changed",
            Self::InitialCc(_) => "initial_cc",
            Self::CcSockets(_) => "cc_sockets",
            Self::Ecn(_) => "ecn",
            Self::EcnEct1(_) => "ecn_ect1",
            Self::Link(_) => LINK,
            Self::CongestionControl(_) => "congestion_control",
            Self::Lab(_) => "lab",
            Self::StreamEnd(_) => "stream_end",
            Self::Import(_) => "import",
            Self::Iperf3Error(_) => "iperf3_error",
            Self::NodeRebooted(_) => "node_rebooted",
        }
    }

    /// Consequence of an event of this kind for its trial. The name is the code of the verdict's reason.
    pub fn severity(&self) -> Severity {
        match self {
            Self::FlowError(_) => Severity::Failed,
            Self::ProbeError(_)
            | Self::KeepAwakeError(_)
            | Self::AcksError(_)
            | Self::CaptureCaveat(_)
            | Self::CaptureError(_)
            | Self::CcStateError(_)
            | Self::SampleError(_)
            | Self::LinkError(_)
            | Self::AgentError(_)
            | Self::ClockStep(_)
            | Self::StartLate(_)
            | Self::FlowQueueShared(_)
            | Self::ChangeNotTriggered(_)
            | Self::SettingChanged(_)
            | Self::Iperf3Unread(_)
            | Self::Iperf3Error(_) => Severity::Degraded,
            Self::PhaseStart(_)
            | Self::TrialEnd(_)
            | Self::FlowStart(_)
            | Self::FlowEnd(_)
            | Self::ProbeUnfinished(_)
            | Self::Sysctl(_)
            | Self::OffloadsOff(_)
            | Self::LinkUp(_)
            | Self::KeepAwake(_)
            | Self::BaseRtt(_)
            | Self::Acks(_)
            | Self::AcksOff(_)
            | Self::Capture(_)
            | Self::CcStateThinned(_)
            | Self::FlowQueuesUnknown(_)
            | Self::ChangeTriggered(_)
            | Self::InitialCc(_)
            | Self::CcSockets(_)
            | Self::Ecn(_)
            | Self::EcnEct1(_)
            | Self::Link(_)
            | Self::CongestionControl(_)
            | Self::Lab(_)
            | Self::StreamEnd(_)
            | Self::Import(_)
            | Self::NodeRebooted(_) => Severity::Info,
        }
    }

    /// Whether it reports that something went wrong.
    pub fn is_error(&self) -> bool {
        self.severity() > Severity::Info
    }

    /// The first required field without a valid value.
    fn missing(&self) -> Option<&'static str> {
        let side = |side: i32| ("side", Side::is_known(side));
        match self {
            Self::Capture(capture) => first_invalid(&[
                ("dropped", capture.dropped.is_some()),
                ("left_out", capture.left_out.is_some()),
            ]),
            Self::InitialCc(start) => first_invalid(&[
                side(start.side),
                ("cc", !start.cc.is_empty()),
                ("begins_with", !start.begins_with.is_empty()),
                ("method", CcMethod::is_known(start.method)),
            ]),
            Self::CcSockets(sockets) => first_invalid(&[
                side(sockets.side),
                ("cc", !sockets.cc.is_empty()),
                ("set", sockets.set.is_some()),
                ("refused", sockets.refused.is_some()),
            ]),
            Self::Ecn(ecn) => first_invalid(&[
                side(ecn.side),
                ("cc", !ecn.cc.is_empty()),
                ("asked", EcnRequest::is_known(ecn.asked)),
                ("mode", EcnMode::is_known(ecn.mode)),
                ("counts_marks", ecn.counts_marks.is_some()),
            ]),
            Self::FlowQueueShared(shared) => first_invalid(&[("flows", shared.flows.len() > 1)]),
            Self::Link(link) => first_invalid(&[
                ("backend", link.backend() != Backend::Unspecified),
                ("reason", link.reason.as_ref().is_some_and(|reason| reason.reason.is_some())),
            ]),
            Self::CongestionControl(instance) => {
                let cc = instance.cc.as_ref();
                let via = cc.map_or(Via::Unspecified, CongestionControl::via);
                let reason = cc.and_then(|cc| cc.reason.as_ref());
                first_invalid(&[
                    ("via", via != Via::Unspecified),
                    ("reason", reason.is_some_and(|reason| reason.reason.is_some())),
                ])
            }
            Self::Lab(lab) => first_invalid(&[("engine", LabEngine::is_known(lab.engine))]),
            Self::SettingChanged(change) => first_invalid(&[
                ("setting", !change.setting.is_empty()),
                ("expected", !change.expected.is_empty()),
                ("found", !change.found.is_empty()),
            ]),
            Self::BaseRtt(_)
            | Self::ClockStep(_)
            | Self::EcnEct1(_)
            | Self::StreamEnd(_)
            | Self::Import(_)
            | without_data!() => None,
        }
    }

    /// The body in column `data_json`. Its keys are part of the results' format.
    fn data_json(&self) -> Option<Value> {
        Some(match self {
            Self::BaseRtt(rtt) => match rtt.min_us {
                // The resolution of ping is a tenth of a microsecond.
                Some(min_us) => json!({ "min_us": (min_us * 10.0).round() / 10.0, "n": rtt.n }),
                None => json!({ "n": rtt.n }),
            },
            Self::Capture(capture) => json!({
                "packets": capture.packets,
                "dropped": capture.dropped,
                "left_out": capture.left_out,
                "files_overwritten": capture.files_overwritten,
            }),
            Self::ClockStep(step) => json!({ "step_ns": step.step_ns }),
            Self::SettingChanged(SettingChanged { setting, expected, found }) => {
                json!({ "setting": setting, "expected": expected, "found": found })
            }
            Self::FlowQueueShared(shared) => {
                json!({ "class": shared.class, "flows": shared.flows })
            }
            Self::InitialCc(start) => initial_cc_json(start),
            Self::CcSockets(sockets) => cc_sockets_json(sockets),
            Self::Ecn(ecn) => ecn_json(ecn),
            Self::EcnEct1(ect1) => json!({ "cc": ect1.cc, "rewritten": ect1.rewritten }),
            Self::Link(link) => link_json(link),
            Self::CongestionControl(NodeCongestionControl { node, cc }) => {
                let cc = cc.as_ref()?;
                let mut data = json!({
                    "node": node, "algorithm": cc.algorithm, "kernel_name": cc.kernel_name, "via": cc.via().as_text(),
                    "reason": cc.reason_text(), "params": cc.params,
                });
                if !cc.sha256.is_empty() {
                    data["sha256"] = cc.sha256.as_str().into();
                }
                data
            }
            Self::Lab(lab) => lab_json(lab),
            Self::StreamEnd(done) => json!({
                "rows_sent": done.rows_sent,
                "rows_dropped": done.rows_dropped,
                "samples_late": done.samples_late,
                "samples_missed": done.samples_missed,
            }),
            Self::Import(import) => json!({
                "lines": import.lines, "unread": import.unread, "unread_lines": import.unread_lines,
            }),
            without_data!() => return None,
        })
    }
}

/// The first of these fields that is absent or has no known value.
#[must_use]
pub fn first_invalid(fields: &[(&'static str, bool)]) -> Option<&'static str> {
    fields.iter().find(|(_, valid)| !valid).map(|(name, _)| *name)
}

fn initial_cc_json(start: &InitialCc) -> Value {
    json!({
        "side": Side::text_of(start.side),
        "cc": start.cc,
        "kernel_name": start.kernel_name,
        "begins_with": start.begins_with,
        "method": CcMethod::text_of(start.method),
        "no_hook": start.no_hook,
        "paced_by": start.paced_by,
    })
}

fn cc_sockets_json(sockets: &CcSockets) -> Value {
    json!({
        "side": Side::text_of(sockets.side),
        "cc": sockets.cc,
        "set": sockets.set,
        "refused": sockets.refused,
        "ended": sockets.ended,
        "paced": sockets.paced,
    })
}

fn lab_json(lab: &Lab) -> Value {
    json!({
        "engine": LabEngine::text_of(lab.engine), "engine_sha256": lab.engine_sha256,
        "emulator": lab.emulator, "kernel": lab.kernel, "source": lab.source,
        "userland_sha256": lab.userland_sha256, "dilation": lab.dilation, "seed": lab.seed,
        "busy_pct": lab.busy_pct,
    })
}

fn link_json(link: &LinkState) -> Value {
    let mut body = json!({
        "dev": link.dev, "backend": link.backend().as_text(), "reason": link.reason_text(),
        "qdiscs": link.qdiscs,
    });
    if let Some(fallback) = link.fallback() {
        body["fallback"] = json!(fallback);
    }
    body
}

fn ecn_json(ecn: &Ecn) -> Value {
    json!({
        "side": Side::text_of(ecn.side),
        "cc": ecn.cc,
        "kernel_name": ecn.kernel_name,
        "requested": EcnRequest::text_of(ecn.asked),
        "mode": EcnMode::text_of(ecn.mode),
        "reason": ecn.reason,
        "counts_marks": ecn.counts_marks,
        "ect1_wanted": ecn.ect1_wanted,
        "ect1_dev": ecn.ect1_dev,
        "ect1_error": ecn.ect1_error,
    })
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::wire::encoded_field as field;

    fn event(kind: Kind) -> Event {
        Event { kind: Some(kind), ..Event::default() }
    }

    #[test]
    fn an_unknown_kind_is_unreadable() {
        let newer = Event { subject: "l4s".into(), ..Event::default() };
        let bytes = [newer.encode_to_vec(), field(4242, b"what a later version sends")].concat();
        let read = Event::decode(bytes.as_slice()).unwrap();
        assert_eq!(read.read(), Err(UnreadableEvent::UnknownKind));
        assert_eq!((read.name(), read.subject.as_str()), (UNREADABLE, "l4s"));
    }

    #[test]
    fn an_event_with_a_kind_as_string_is_unreadable() {
        let older = [field(2, b"flow_error"), field(4, b"unable to connect")].concat();
        let read = Event::decode(older.as_slice()).unwrap();
        assert_eq!(read.read(), Err(UnreadableEvent::UnknownKind));
        assert_eq!(read.message, "unable to connect");
    }

    #[test]
    fn a_missing_field_is_unreadable() {
        let sockets = CcSockets {
            side: Side::Sender.into(),
            cc: "vegas".into(),
            set: Some(3),
            refused: Some(0),
            ..CcSockets::default()
        };
        assert!(event(Kind::CcSockets(sockets.clone())).read().is_ok());
        let field_of = |sockets| match event(Kind::CcSockets(sockets)).read() {
            Err(UnreadableEvent::MissingField { kind: "cc_sockets", field }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(field_of(CcSockets { refused: None, ..sockets.clone() }), "refused");
        assert_eq!(field_of(CcSockets { side: 7, ..sockets.clone() }), "side");
        assert_eq!(field_of(CcSockets { cc: String::new(), ..sockets }), "cc");
        let start = |method: i32| InitialCc {
            side: Side::Sender.into(),
            cc: "vegas".into(),
            begins_with: "reno".into(),
            method,
            ..InitialCc::default()
        };
        assert!(event(Kind::InitialCc(start(CcMethod::BeforeConnect.into()))).read().is_ok());
        for method in [0, 99] {
            let missing = UnreadableEvent::MissingField { kind: "initial_cc", field: "method" };
            assert_eq!(event(Kind::InitialCc(start(method))).read(), Err(missing));
        }
        for kind in [
            Kind::Ecn(Ecn::default()),
            Kind::FlowQueueShared(FlowQueueShared::default()),
            Kind::InitialCc(InitialCc::default()),
            Kind::Capture(Capture::default()),
            Kind::Link(LinkState::default()),
            Kind::CongestionControl(NodeCongestionControl::default()),
            Kind::Lab(Lab::default()),
            Kind::SettingChanged(SettingChanged::default()),
        ] {
            assert!(event(kind.clone()).read().is_err(), "{kind:?}");
        }
    }

    #[test]
    fn bodies_keep_their_format() {
        let json = |kind| event(kind).data_json();
        assert_eq!(json(Kind::FlowEnd(NoData {})), "");
        let rtt = |min_us, n| json(Kind::BaseRtt(BaseRtt { min_us, n }));
        assert_eq!(rtt(Some(20_123.456), 5), r#"{"min_us":20123.5,"n":5}"#);
        assert_eq!(rtt(Some(20_000.0), 5), r#"{"min_us":20000.0,"n":5}"#);
        assert_eq!(rtt(None, 0), r#"{"n":0}"#);
        let flows = vec!["one/0".to_owned(), "two/0".to_owned()];
        assert_eq!(
            json(Kind::FlowQueueShared(FlowQueueShared { class: None, flows })),
            r#"{"class":null,"flows":["one/0","two/0"]}"#
        );
        let change =
            SettingChanged { setting: "MTU".into(), expected: "1500".into(), found: "1400".into() };
        assert_eq!(
            json(Kind::SettingChanged(change)),
            r#"{"expected":"1500","found":"1400","setting":"MTU"}"#
        );
        let start = InitialCc {
            side: Side::Receiver.into(),
            cc: "quick".into(),
            begins_with: "reno".into(),
            method: CcMethod::AfterConnect.into(),
            ..InitialCc::default()
        };
        assert_eq!(
            json(Kind::InitialCc(start)),
            r#"{"begins_with":"reno","cc":"quick","kernel_name":null,"method":"after_connect","no_hook":null,"paced_by":null,"side":"rcv"}"#
        );
        let lab = Lab { engine: LabEngine::Uml.into(), seed: 7, ..Lab::default() };
        assert_eq!(
            json(Kind::Lab(lab)),
            concat!(
                r#"{"busy_pct":null,"dilation":null,"emulator":"","engine":"uml","engine_sha256":"","#,
                r#""kernel":"","seed":7,"source":"","userland_sha256":""}"#
            )
        );
    }
}
