//! Samples socket state at every received segment, and events between segments, with eBPF: rows of the tables `acks` and
//! `tcp_events`. Losses are counted per socket. Polling ([`crate::inet_diag`]) runs independently and needs no eBPF.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use ccbench_proto::plan::Acks;
use ccbench_proto::wire::{self, run_event::Payload};

use crate::FlowPorts;

mod abi;
pub mod batcher;
#[cfg(feature = "ebpf")]
mod bpf;
mod error;
pub mod record;

pub use error::AcksError;

/// Maximum size of the ring buffer. 300 000 rows per second, drained every 10 ms, need 0.9 MB; the rest absorbs a late reader.
const RING_BYTES: u32 = 4 << 20;
/// Minimum size of the ring buffer, for bursts of events.
const MIN_RING_BYTES: u32 = 512 << 10;
/// Time between drains if the rate of rows is unbounded.
const PERIOD: Duration = Duration::from_millis(10);
/// Time between drains if the rate of rows is bounded. It is longer, to wake CPUs less often.
const LONG_PERIOD: Duration = Duration::from_millis(100);

/// The sockets to watch.
#[derive(Debug, Clone)]
pub struct Watch<'a> {
    /// The flows of this node.
    pub flows: &'a [FlowPorts],
    /// Which acknowledgements write a row. [`Watch::acks`] resolves [`Acks::Auto`].
    pub acks: Acks,
    /// Cookie of the network namespace of the sockets.
    pub netns_cookie: u64,
}

impl Watch<'_> {
    /// Returns the number of sockets of the flows: data connections, and one control connection per group.
    fn sockets(&self) -> u64 {
        self.flows.iter().map(|flow| u64::from(flow.count) + 1).sum()
    }

    /// Returns which acknowledgements write a row, with `auto` resolved by the number of sockets.
    #[must_use]
    pub fn acks(&self) -> Acks {
        self.acks.of_sockets(self.sockets())
    }

    /// Returns the same value as it appears in rows of `ack_counts`.
    #[must_use]
    pub fn mode(&self) -> wire::AckMode {
        wire::AckMode::of_sockets(self.acks, self.sockets())
    }
}

/// A source of rows: BPF programs, or a fake in the agent's tests.
pub trait AckSource: Send {
    /// Appends the batches that are ready at `now_ns` (CLOCK_MONOTONIC). With `all`, also appends incomplete ones.
    fn drain(&mut self, now_ns: u64, all: bool, into: &mut Vec<Payload>);
    /// Counts a batch from [`AckSource::drain`] that could not be sent: rows as refused (`refused_rows`), events as lost
    /// (`lost_events`).
    fn count_refused(&mut self, payload: &Payload);
    /// Returns the counts of each socket: rows sent, lost in the ring, and [refused](AckSource::count_refused); events sent and lost.
    fn counts(&mut self, at_ns: u64) -> Vec<wire::AckCount>;
    /// Returns why the last [`AckSource::counts`] may lack some; losses of their sockets are unknown.
    fn uncounted(&self) -> Option<String> {
        None
    }
    /// Returns the time between calls of [`AckSource::drain`].
    fn period(&self) -> Duration;
    /// Returns a descriptor that is readable while [`AckSource::drain`] should be called before the period ends, because of a burst.
    fn burst(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Returns messages for the user: the hook in use, and what this kernel lacks.
    fn notes(&self) -> &[String];
}

/// Loads and attaches the programs. Dropping the source, or the end of its process, detaches them.
///
/// # Errors
/// This node cannot run them. The message names the missing kernel option or capability.
#[cfg(feature = "ebpf")]
pub fn open(watch: &Watch<'_>) -> Result<Box<dyn AckSource>, AcksError> {
    Ok(Box::new(bpf::Source::open(watch)?))
}

/// Replaces the function above in a build without the feature `ebpf`.
///
/// # Errors
/// Always [`AcksError::NotBuilt`].
#[cfg(not(feature = "ebpf"))]
pub fn open(_: &Watch<'_>) -> Result<Box<dyn AckSource>, AcksError> {
    Err(AcksError::NotBuilt)
}

/// Returns the size of the ring buffer, a power of two in bytes, and the time between drains.
#[cfg_attr(not(feature = "ebpf"), allow(dead_code, reason = "only eBPF has a ring"))]
fn ring(watch: &Watch<'_>) -> (u32, Duration) {
    let Acks::AtMost(gap) = watch.acks() else { return (RING_BYTES, PERIOD) };
    let rows = LONG_PERIOD.as_micros() as u64 / gap.get().max(1) + 1;
    let need = watch.sockets() * rows * (record::ROW_BYTES as u64 + 8) * 4;
    match u32::try_from(need).ok().and_then(u32::checked_next_power_of_two) {
        Some(bytes) if bytes <= RING_BYTES => (bytes.max(MIN_RING_BYTES), LONG_PERIOD),
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
    fn sizes_the_ring_for_the_rows_between_two_drains() {
        assert_eq!(ring_of(1, Acks::Every), (4 << 20, 10));
        assert_eq!(ring_of(128, Acks::Change), (4 << 20, 10));
        assert_eq!(ring_of(1, Acks::AtMost(Micros::from_millis(10))), (512 << 10, 100));
        assert_eq!(ring_of(128, Acks::AtMost(Micros::from_millis(10))), (2 << 20, 100));
        assert_eq!(ring_of(128, Acks::AtMost(Micros::from_millis(1))), (4 << 20, 10));
        assert_eq!(ring_of(1, Acks::Auto), (512 << 10, 100));
        assert_eq!(ring_of(1000, Acks::Auto), (2 << 20, 100));
    }
}
