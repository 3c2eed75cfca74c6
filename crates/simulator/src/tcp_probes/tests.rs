use std::collections::BTreeMap;

use ccbench_proto::plan::check;

use super::*;
use crate::congestion_control::Ack;
use crate::{T0_NS, prepare};

const PLAN: &str = r#"
name = "fetches"
[nodes]
src = {}
dst = {}
[wires]
path = ["src", "dst"]
[probes.p]
kind = "http"
bytes = "1000B"
repeat = "back-to-back"
from = "src"
to = "dst"
[[phases]]
name = "only"
length = "10s"
"#;

/// Returns a probe before its first measurement.
fn probe() -> (TcpProbe, Network) {
    let (plan, _) = check::read(PLAN, &[]).unwrap();
    let (nodes, topology) = prepare::trial(&plan, 1);
    let mut network = Network::new(&nodes, &topology, 0, T0_NS).unwrap();
    let probes = prepare::tcp_probes(&nodes, &topology, &mut network, (1, u64::MAX));
    (probes.unwrap().remove(0), network)
}

/// Runs a measurement from beginning to end: packets arrive when they are sent.
fn measure(probe: &mut TcpProbe, network: &mut Network, now_ns: u64) {
    probe.on_event(now_ns, MeasurementEvent::Begin, network);
    while !probe.outbox.is_empty() {
        for packet in std::mem::take(&mut probe.outbox) {
            probe.on_packet(now_ns, &packet);
        }
    }
    assert!(!probe.is_measuring());
}

#[test]
fn a_violation_in_the_last_event_of_a_measurement_is_kept() {
    let (mut probe, mut network) = probe();
    measure(&mut probe, &mut network, T0_NS);
    assert_eq!(probe.violation(), None);
    // A call before `init` violates an invariant.
    let mut broken = CongestionControl::new("reno", &BTreeMap::new()).unwrap();
    broken.on_sample(&Ack::default());
    assert!(broken.violation().is_some());
    probe.sockets[1].cc = broken.clone();
    measure(&mut probe, &mut network, T0_NS + PAUSE_NS);
    assert_eq!(probe.violation(), broken.violation());
}
