//! Loads `bpf/acks.bpf.c` with aya and drains its ring buffer.

use std::mem::offset_of;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use aya::maps::{Array, HashMap, Map, MapData, MapError, RingBuf};
use aya::programs::{BtfTracePoint, FExit, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader};
use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::plan::Acks;
use ccbench_proto::wire::{self, AckHook, Side, run_event::Payload};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::time::{ClockId, Timespec, clock_getres};

use super::abi::Flow;
use super::batcher::Batcher;
use super::error::{AcksError, chain};
use super::{AckSource, Watch, record, ring};
use crate::FlowPorts;
use crate::bytes::{array, u32_at, u64_at};

/// The compiled programs, as an ELF file.
pub(super) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/acks.bpf.o"));

/// Minimum time between two rows of a receiver, except in the mode that sets an interval.
const RECEIVER_GAP_NS: u64 = 10_000_000;

/// The bytes of a `struct flow`.
type FlowBytes = [u8; size_of::<Flow>()];

/// The programs while they are attached.
pub struct Source {
    ring: RingBuf<MapData>,
    ring_bytes: u32,
    /// Waits for the ring's wake-ups.
    burst: OwnedFd,
    flows: HashMap<MapData, u64, FlowBytes>,
    global: Array<MapData, [u64; 3]>,
    /// Owns programs and links; dropping it detaches them.
    _programs: Ebpf,
    batcher: Batcher,
    period: Duration,
    mode: wire::AckMode,
    /// The kernel function at which senders are watched.
    hook: AckHook,
    notes: Vec<String>,
    unread: Unread,
}

/// Failed reads of the maps that hold the counts.
#[derive(Debug, Default)]
struct Unread {
    reads: u64,
    first: Option<MapError>,
}

impl Unread {
    fn take<T>(&mut self, read: Result<T, MapError>) -> Option<T> {
        let error = match read {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        self.reads += 1;
        self.first.get_or_insert(error);
        None
    }

    fn message(&self) -> Option<String> {
        let why = chain(self.first.as_ref()?);
        Some(format!(
            "{} reads of counts failed, so rows may be missing that no count has: {why}",
            self.reads
        ))
    }
}

impl Source {
    /// Loads and attaches the programs.
    pub fn open(watch: &Watch<'_>) -> Result<Self, AcksError> {
        let btf = Btf::from_sys_fs().map_err(|e| AcksError::Btf { source: e.into() })?;
        let (bytes, period) = ring(watch);
        let (config, ports) = (config(watch, bytes / 2), port_roles(watch.flows));
        let mut programs = EbpfLoader::new()
            .btf(Some(&btf))
            .map_max_entries("acks_ring", bytes)
            .override_global("acks_config", &config[..], true)
            .override_global("acks_ports", &ports[..], true)
            .load(OBJECT)
            .map_err(|e| AcksError::LoadMaps { source: e.into() })?;
        let mut notes = Vec::new();
        let all_retransmits = load(&mut programs, &btf, &mut notes)?;
        let mut global: Array<_, [u64; 3]> = take_map(&mut programs, ".data.acks")?;
        let mut set_after_ack = |on: bool| {
            let set = global.set(0, [0, u64::from(on), u64::from(all_retransmits)], 0);
            set.map_err(|e| AcksError::SetUp { source: e.into() })
        };
        // Must be set before any program is attached, because the programs read it from their first run on.
        set_after_ack(true)?;
        let (hook, note) = sender_hook(after_ack(&mut programs, &btf));
        if hook != AckHook::FexitTcpAck {
            set_after_ack(false)?;
        }
        notes.extend(note);
        let ring: RingBuf<MapData> = take_map(&mut programs, "acks_ring")?;
        let burst =
            watch_wakeups(ring.as_fd()).map_err(|e| AcksError::SetUp { source: e.into() })?;
        let flows = take_map(&mut programs, "acks_flows")?;
        let mode = watch.mode();
        // Attached after `after_ack` is set, because acks_segment reads it.
        attach(&mut programs)?;
        let (by, row) = (hook.as_text(), mode.text());
        notes.insert(0, format!("senders are watched by {by}, with `acks` = {row}"));
        let batcher = Batcher::new(watch.flows, tick_us());
        let ring_bytes = bytes;
        Ok(Self {
            ring,
            ring_bytes,
            burst,
            flows,
            global,
            _programs: programs,
            batcher,
            period,
            mode,
            hook,
            notes,
            unread: Unread::default(),
        })
    }
}

/// Loads the tracepoint programs that this kernel accepts. Returns whether failed retransmissions are seen too.
fn load(programs: &mut Ebpf, btf: &Btf, notes: &mut Vec<String>) -> Result<bool, AcksError> {
    tracepoint(programs, "acks_segment", "tcp_probe", btf)
        .map_err(|e| AcksError::LoadProgram { tracepoint: "tcp_probe", source: e.into() })?;
    // Tried first. Older kernels refuse it because their tracepoint has no third argument.
    let all_retransmits =
        tracepoint(programs, "acks_retransmit_err", "tcp_retransmit_skb", btf).is_ok();
    if !all_retransmits
        && let Err(e) = tracepoint(programs, "acks_retransmit", "tcp_retransmit_skb", btf)
    {
        notes.push(format!("no retransmission events: {}", chain(&e)));
    }
    if let Err(e) = tracepoint(programs, "acks_state", "tcp_cong_state_set", btf) {
        notes.push(format!("no ca_state events: {}", chain(&e)));
    }
    Ok(all_retransmits)
}

/// Loads and attaches the fexit program. The kernel may refuse either step: loading by policy, or attaching because the function
/// cannot be patched or already has too many programs.
fn after_ack(programs: &mut Ebpf, btf: &Btf) -> Result<(), ProgramError> {
    let program = programs.program_mut("acks_after").ok_or(ProgramError::NotLoaded)?;
    let program: &mut FExit = program.try_into()?;
    program.load("tcp_ack", btf)?;
    program.attach().map(drop).inspect_err(|_| {
        // A program that is not attached does nothing. The error of `attach` matters more than this one.
        let _ = program.unload();
    })
}

/// Returns the hook in use for senders, given the result of [`after_ack`]. Adds a note for the fallback: the tracepoint, which
/// every kernel has and which runs before tcp_ack().
fn sender_hook<E: std::error::Error + 'static>(after: Result<(), E>) -> (AckHook, Option<String>) {
    match after {
        Ok(()) => (AckHook::FexitTcpAck, None),
        Err(error) => {
            let (hook, cause) = (AckHook::FexitTcpAck.as_text(), chain(&error));
            let note = format!(
                "rows hold the state before an acknowledgement, because {hook} is not available: {cause}"
            );
            (AckHook::TpBtfTcpProbe, Some(note))
        }
    }
}

fn tracepoint(programs: &mut Ebpf, name: &str, at: &str, btf: &Btf) -> Result<(), ProgramError> {
    match programs.program_mut(name) {
        Some(program) => <&mut BtfTracePoint>::try_from(program)?.load(at, btf),
        None => Err(ProgramError::NotLoaded),
    }
}

/// Attaches the tracepoint programs that were loaded.
fn attach(programs: &mut Ebpf) -> Result<(), AcksError> {
    for (name, program) in programs.programs_mut() {
        let Ok(program) = <&mut BtfTracePoint>::try_from(program) else { continue };
        if program.fd().is_ok() {
            program
                .attach()
                .map_err(|e| AcksError::Attach { program: name.to_owned(), source: e.into() })?;
        }
    }
    Ok(())
}

fn take_map<M>(programs: &mut Ebpf, name: &'static str) -> Result<M, AcksError>
where
    M: TryFrom<Map, Error = MapError>,
{
    let map = programs.take_map(name).ok_or(AcksError::NoMap { name })?;
    map.try_into().map_err(|e: MapError| AcksError::OpenMap { name, source: e.into() })
}

/// Returns an epoll instance that becomes readable when a program wakes the reader of the ring. It is edge-triggered, because
/// the ring itself is readable whenever it is not empty.
fn watch_wakeups(ring: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&epoll, ring, epoll::EventData::new_u64(0), flags)?;
    Ok(epoll)
}

/// Encodes `acks_config`. From `wakeup_bytes` in the ring on, records wake the reader.
fn config(watch: &Watch<'_>, wakeup_bytes: u32) -> Vec<u8> {
    let (mode, gap_ns): (u32, u64) = match watch.acks() {
        Acks::AtMost(gap) => (1, gap.nanos()),
        Acks::Change => (2, 0),
        Acks::Every | Acks::Auto | Acks::Off => (0, 0),
    };
    let rcv_gap_ns = if mode == 1 { gap_ns } else { RECEIVER_GAP_NS };
    let words = [watch.netns_cookie, gap_ns, rcv_gap_ns].map(u64::to_ne_bytes).concat();
    [words, [mode, wakeup_bytes].map(u32::to_ne_bytes).concat()].concat()
}

/// Encodes `acks_ports`: per port, the flags 1 for the local port of a sender and 2 for its remote port; 4 and 8 likewise for a receiver.
fn port_roles(flows: &[FlowPorts]) -> Vec<u8> {
    let mut roles = vec![0; 65_536];
    for flow in flows {
        let sends = flow.listens == flow.reverse;
        let bit = match (sends, flow.listens) {
            (true, true) => 1,
            (true, false) => 2,
            (false, true) => 4,
            (false, false) => 8,
        };
        roles[usize::from(flow.server_port)] |= bit;
    }
    roles
}

/// Returns the length of a jiffy, which is the resolution of the coarse clocks.
fn tick_us() -> u64 {
    let tick = clock_getres(ClockId::MonotonicCoarse);
    u64::try_from(tick.tv_nsec / 1000).unwrap_or(1).max(1)
}

impl AckSource for Source {
    fn drain(&mut self, now_ns: u64, all: bool, into: &mut Vec<Payload>) {
        // Takes the wake-up before the records, so that those that arrive meanwhile cause another one. If this fails, the next call
        // is only earlier than necessary.
        let mut events = Vec::with_capacity(1);
        let _ = epoll::wait(&self.burst, spare_capacity(&mut events), Some(&Timespec::default()));
        // Reads at most one full ring per call, so that the loop ends even while records keep arriving.
        for _ in 0..self.ring_bytes as usize / record::EVENT_BYTES {
            let Some(record) = self.ring.next() else { break };
            self.batcher.push(&record);
        }
        self.batcher.drain(now_ns, all, into);
    }

    fn count_refused(&mut self, payload: &Payload) {
        self.batcher.count_refused(payload);
    }

    fn counts(&mut self, at_ns: u64) -> Vec<wire::AckCount> {
        let mut counts = Vec::new();
        self.unread = Unread::default();
        for read in self.flows.iter() {
            let Some((cookie, flow)) = self.unread.take(read) else { continue };
            let long = |at| u64_at(&flow, at).unwrap_or_default();
            let word = |at| u32_at(&flow, at).unwrap_or_default();
            let missed_states = array(&flow, offset_of!(Flow, missed_states));
            let missed_states = missed_states.map_or(0, u16::from_ne_bytes);
            let missed_retrans = word(offset_of!(Flow, missed_retrans));
            let (sport, dport) = record::ports(word(offset_of!(Flow, ports)));
            let Some(count) = self.batcher.count(at_ns, cookie, sport, dport) else { continue };
            let hook = match count.side() {
                Side::Sender => self.hook,
                Side::Receiver | Side::Unspecified => AckHook::TpBtfTcpProbe,
            };
            counts.push(wire::AckCount {
                mode: Some(self.mode),
                hook: hook.into(),
                segments: long(offset_of!(Flow, segments)),
                lost_rows: long(offset_of!(Flow, lost_rows)),
                lost_events: long(offset_of!(Flow, lost_events)) + count.lost_events,
                coalesced_segments: word(offset_of!(Flow, coalesced_segs)).into(),
                missed_segments: word(offset_of!(Flow, missed_segs)).into(),
                missed_events: u64::from(missed_retrans) + u64::from(missed_states),
                ..count
            });
        }
        // Segments of sockets that do not fit into the map, and unreadable records, belong to no flow. They go into a row without
        // a flow.
        let unwatched = self.unread.take(self.global.get(&0, 0));
        let unwatched = unwatched.map_or(0, |[unwatched, ..]| unwatched);
        let malformed = self.batcher.malformed();
        if unwatched + malformed > 0 {
            counts.push(wire::AckCount {
                at_ns,
                mode: Some(self.mode),
                hook: self.hook.into(),
                segments: unwatched,
                lost_rows: unwatched,
                refused_rows: malformed,
                ..Default::default()
            });
        }
        counts.sort_by(|a, b| (&a.flow_id, a.side).cmp(&(&b.flow_id, b.side)));
        counts
    }

    fn uncounted(&self) -> Option<String> {
        self.unread.message()
    }

    fn period(&self) -> Duration {
        self.period
    }

    fn burst(&self) -> Option<BorrowedFd<'_>> {
        Some(self.burst.as_fd())
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_cannot_be_read_are_reported() {
        let mut unread = Unread::default();
        assert_eq!((unread.take(Ok(5)), unread.message()), (Some(5), None));
        for _ in 0..2 {
            assert_eq!(unread.take::<u64>(Err(MapError::KeyNotFound)), None);
        }
        let message = unread.message().unwrap();
        assert!(message.starts_with("2 reads of counts failed, "), "{message}");
    }

    #[test]
    fn falls_back_to_the_tracepoint_with_a_note() {
        assert_eq!(sender_hook(Ok::<(), ProgramError>(())), (AckHook::FexitTcpAck, None));
        let (hook, note) = sender_hook(Err(ProgramError::AlreadyAttached));
        assert_eq!(hook, AckHook::TpBtfTcpProbe);
        assert!(
            note.unwrap()
                .starts_with("rows hold the state before an acknowledgement, because fexit/tcp_ack is not available: ")
        );
    }
}
