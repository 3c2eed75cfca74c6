//! The state of a socket whenever a segment comes to it, and what happens to it in between, by eBPF: rows of the
//! tables `acks` and `tcp_events`. What could not be kept is counted per socket. Polling ([`crate::inet_diag`]) goes on
//! beside it and does without eBPF.

use std::time::Duration;

use ccbench_proto::plan::Acks;
use ccbench_proto::wire::{self, run_event::Of};

use crate::FlowPorts;

mod abi;
#[cfg(feature = "ebpf")]
mod bpf;
mod error;
pub mod gather;
pub mod record;

pub use error::AcksError;

/// The ring at its largest: 300 000 rows in a second, emptied every 10 ms, need 0.9 MB; the rest is for a late reader.
const RING_BYTES: u32 = 4 << 20;
/// The ring at its smallest: for bursts of events.
const LEAST_RING_BYTES: u32 = 512 << 10;
/// How often the ring is emptied where rows may come at any rate.
const PERIOD: Duration = Duration::from_millis(10);
/// How often it is emptied where their rate is bounded: less often wakes fewer processors up.
const LONG_PERIOD: Duration = Duration::from_millis(100);

/// What is to be watched.
#[derive(Debug, Clone)]
pub struct Watch<'a> {
    /// Whose sockets.
    pub flows: &'a [FlowPorts],
    /// Which acknowledgements leave a row. [`Acks::Auto`] is settled by [`Watch::acks`].
    pub acks: Acks,
    /// The cookie of the network namespace whose sockets they are.
    pub netns_cookie: u64,
}

impl Watch<'_> {
    /// Sockets that these flows have: both ends may be here, and a control connection beside the data.
    fn sockets(&self) -> u64 {
        self.flows.iter().map(|flow| u64::from(flow.count) + 1).sum()
    }

    /// Which acknowledgements leave a row, of so many sockets.
    #[must_use]
    pub fn acks(&self) -> Acks {
        self.acks.of_sockets(self.sockets())
    }
}

/// Where rows come from. Real: a BPF program; fake: a script, in the agent's tests.
pub trait AckSource: Send {
    /// Appends what is ready at `now_ns` (CLOCK_MONOTONIC); with `all`, what is not full yet too.
    fn drain(&mut self, now_ns: u64, all: bool, into: &mut Vec<Of>);
    /// What [`AckSource::drain`] gave could not be sent: it counts as lost.
    fn refused(&mut self, of: &Of);
    /// What was seen and lost, socket by socket.
    fn counts(&mut self, at_ns: u64) -> Vec<wire::AckCount>;
    /// How often to drain.
    fn period(&self) -> Duration;
    /// For people: how senders are watched, and what this kernel lacks.
    fn notes(&self) -> &[String];
}

/// Loads and attaches the programs; they are gone when the source is dropped, or its process dies.
///
/// # Errors
/// This node cannot run them; the message names the missing kernel option or capability.
#[cfg(feature = "ebpf")]
pub fn open(watch: &Watch<'_>) -> Result<Box<dyn AckSource>, AcksError> {
    Ok(Box::new(bpf::Source::open(watch)?))
}

/// Stands in for the version with the feature `ebpf`, which this build lacks.
///
/// # Errors
/// Always [`AcksError::NotBuilt`].
#[cfg(not(feature = "ebpf"))]
pub fn open(_: &Watch<'_>) -> Result<Box<dyn AckSource>, AcksError> {
    Err(AcksError::NotBuilt)
}

/// Size of the ring, a power of two in bytes, and how often to empty it.
#[cfg_attr(not(feature = "ebpf"), allow(dead_code))]
fn ring(watch: &Watch<'_>) -> (u32, Duration) {
    let Acks::AtMost(gap) = watch.acks() else { return (RING_BYTES, PERIOD) };
    let rows = LONG_PERIOD.as_micros() as u64 / gap.get().max(1) + 1;
    let need = watch.sockets() * rows * (record::ROW_BYTES as u64 + 8) * 4;
    match u32::try_from(need).ok().and_then(u32::checked_next_power_of_two) {
        Some(bytes) if bytes <= RING_BYTES => (bytes.max(LEAST_RING_BYTES), LONG_PERIOD),
        _ => (RING_BYTES, PERIOD),
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::units::Micros;

    use super::*;

    fn ring_of(count: u32, acks: Acks) -> (u32, u128) {
        let flow = FlowPorts {
            group: "a".to_owned(),
            server_port: 1,
            client_port: 2,
            count,
            listens: false,
            reverse: false,
        };
        let (bytes, period) = ring(&Watch { flows: &[flow], acks, netns_cookie: 1 });
        (bytes, period.as_millis())
    }

    #[test]
    fn a_ring_has_room_for_what_can_come_until_it_is_emptied() {
        assert_eq!(ring_of(1, Acks::Every), (4 << 20, 10));
        assert_eq!(ring_of(128, Acks::Change), (4 << 20, 10));
        assert_eq!(ring_of(1, Acks::AtMost(Micros::from_millis(10))), (512 << 10, 100));
        assert_eq!(ring_of(128, Acks::AtMost(Micros::from_millis(10))), (2 << 20, 100));
        assert_eq!(ring_of(128, Acks::AtMost(Micros::from_millis(1))), (4 << 20, 10));
        assert_eq!(ring_of(1, Acks::Auto), (512 << 10, 100));
        assert_eq!(ring_of(1000, Acks::Auto), (2 << 20, 100));
    }
}
