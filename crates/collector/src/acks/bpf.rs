//! Loads `bpf/acks.bpf.c` with aya, and empties its ring.

use std::mem::offset_of;
use std::time::Duration;

use aya::maps::{Array, HashMap, MapData, RingBuf};
use aya::programs::{BtfTracePoint, FExit, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader};
use ccbench_proto::plan::Acks;
use ccbench_proto::wire::{self, run_event::Of};
use rustix::time::{ClockId, clock_getres};

use super::abi::Flow;
use super::gather::Gather;
use super::{AckSource, Watch, record, ring};
use crate::FlowPorts;
use crate::bytes::{array, u32_at, u64_at};

/// The programs, as an ELF file.
pub(super) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/acks.bpf.o"));

/// A receiver has a row at most so often, in every mode but the one with a time of its own.
const RECEIVER_GAP_NS: u64 = 10_000_000;

/// The bytes of a `struct flow`.
type FlowBytes = [u8; size_of::<Flow>()];

/// The programs while they are attached.
pub struct Source {
    ring: RingBuf<MapData>,
    ring_bytes: u32,
    flows: HashMap<MapData, u64, FlowBytes>,
    global: Array<MapData, [u64; 3]>,
    /// Holds programs and links; they go with it.
    _programs: Ebpf,
    gather: Gather,
    period: Duration,
    mode: String,
    hook: &'static str,
    notes: Vec<String>,
}

impl Source {
    /// Loads and attaches. Every step that fails says what it was.
    pub fn open(watch: &Watch<'_>) -> Result<Self, String> {
        let btf = Btf::from_sys_fs().map_err(|e| {
            format!("read the kernel's types (CONFIG_DEBUG_INFO_BTF): {}", told(&e))
        })?;
        let (bytes, period) = ring(watch);
        let (config, ports) = (config(watch), port_roles(watch.flows));
        let mut programs = EbpfLoader::new()
            .btf(Some(&btf))
            .map_max_entries("acks_ring", bytes)
            .override_global("acks_config", &config[..], true)
            .override_global("acks_ports", &ports[..], true)
            .load(OBJECT)
            .map_err(|e| format!("load BPF maps (needs CAP_BPF and CAP_PERFMON): {}", told(&e)))?;
        let mut notes = Vec::new();
        let all_retransmits = load(&mut programs, &btf, &mut notes)?;
        let mut global: Array<_, [u64; 3]> = take(&mut programs, ".data.acks")?;
        let mut after = |on: bool| {
            let set = global.set(0, [0, u64::from(on), u64::from(all_retransmits)], 0);
            set.map_err(|e| format!("set up BPF programs: {}", told(&e)))
        };
        // Before anything is attached: it counts from then on.
        after(true)?;
        let (hook, why) = sender_hook(after_ack(&mut programs, &btf));
        if hook != AFTER {
            after(false)?;
        }
        notes.extend(why);
        let (ring, flows) = (take(&mut programs, "acks_ring")?, take(&mut programs, "acks_flows")?);
        let mode = mode(watch);
        // What sees senders otherwise comes after it is told whether it must.
        attach(&mut programs)?;
        notes.insert(0, format!("senders are watched by {hook}, a row: {mode}"));
        let gather = Gather::new(watch.flows, tick_us());
        let ring_bytes = bytes;
        Ok(Self {
            ring,
            ring_bytes,
            flows,
            global,
            _programs: programs,
            gather,
            period,
            mode,
            hook,
            notes,
        })
    }
}

/// The hook that sees a sender after an acknowledgement was taken in.
const AFTER: &str = "fexit/tcp_ack";
/// And the one that every kernel has, before it.
const BEFORE: &str = "tp_btf/tcp_probe";

/// Loads every tracepoint's program that this kernel accepts. True if one of them also sees retransmissions that fail.
fn load(programs: &mut Ebpf, btf: &Btf, notes: &mut Vec<String>) -> Result<bool, String> {
    tracepoint(programs, "acks_segment", "tcp_probe", btf)
        .map_err(|e| format!("load a BPF program at the tracepoint tcp_probe: {}", told(&e)))?;
    // The one for newer kernels first: what it reads is refused on the others.
    let all_retransmits =
        tracepoint(programs, "acks_resent_err", "tcp_retransmit_skb", btf).is_ok();
    if !all_retransmits
        && let Err(e) = tracepoint(programs, "acks_resent", "tcp_retransmit_skb", btf)
    {
        notes.push(format!("no events of retransmissions: {}", told(&e)));
    }
    if let Err(e) = tracepoint(programs, "acks_state", "tcp_cong_state_set", btf) {
        notes.push(format!("no events of changes of state: {}", told(&e)));
    }
    Ok(all_retransmits)
}

/// Loads and attaches the program that sees senders after an acknowledgement. Kernels refuse either step: the first by
/// policy, the second where the function cannot be patched, or too many programs are there already.
fn after_ack(programs: &mut Ebpf, btf: &Btf) -> Result<(), ProgramError> {
    let program = programs.program_mut("acks_after").ok_or(ProgramError::NotLoaded)?;
    let program: &mut FExit = program.try_into()?;
    program.load("tcp_ack", btf)?;
    program.attach().map(drop).inspect_err(|_| {
        // What is not attached does nothing; the refusal is what counts.
        let _ = program.unload();
    })
}

/// How senders are watched after an attempt to see them after their acknowledgements, and for people, why it failed.
fn sender_hook<E: std::error::Error>(after: Result<(), E>) -> (&'static str, Option<String>) {
    match after {
        Ok(()) => (AFTER, None),
        Err(refused) => {
            let why = told(&refused);
            (BEFORE, Some(format!("rows hold the state before an acknowledgement: {AFTER}: {why}")))
        }
    }
}

fn tracepoint(programs: &mut Ebpf, name: &str, at: &str, btf: &Btf) -> Result<(), ProgramError> {
    match programs.program_mut(name) {
        Some(program) => <&mut BtfTracePoint>::try_from(program)?.load(at, btf),
        None => Err(ProgramError::NotLoaded),
    }
}

/// Attaches the tracepoints' programs that were loaded.
fn attach(programs: &mut Ebpf) -> Result<(), String> {
    for (name, program) in programs.programs_mut() {
        let Ok(program) = <&mut BtfTracePoint>::try_from(program) else { continue };
        if program.fd().is_ok() {
            program.attach().map_err(|e| format!("attach the BPF program {name}: {}", told(&e)))?;
        }
    }
    Ok(())
}

fn take<M>(programs: &mut Ebpf, name: &str) -> Result<M, String>
where
    M: TryFrom<aya::maps::Map, Error = aya::maps::MapError>,
{
    let map = programs.take_map(name).ok_or_else(|| format!("the BPF object has no map {name}"))?;
    map.try_into().map_err(|e| format!("open the BPF map {name}: {}", told(&e)))
}

/// An error with its causes, on one line.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // The log of the verifier comes after it.
        if !text.contains(&more) {
            text = format!("{}: {more}", text.trim_end());
        }
        cause = error.source();
    }
    one_line(&text)
}

/// Of the verifier's log, which is for nobody's results, what it found wrong: the line before the figures at its end.
fn one_line(text: &str) -> String {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let figures = ["verification time", "stack depth", "processed "];
    let wrong =
        |line: &&str| !line.trim().is_empty() && !figures.iter().any(|f| line.starts_with(f));
    match lines.rfind(wrong) {
        Some(last) => format!("{first} ... {last}"),
        None => first.to_owned(),
    }
}

/// What a plan says, and what that is here.
fn mode(watch: &Watch<'_>) -> String {
    match watch.acks {
        Acks::Auto => format!("auto ({})", watch.acks()),
        asked => asked.to_string(),
    }
}

/// `acks_config`.
fn config(watch: &Watch<'_>) -> Vec<u8> {
    let (mode, gap_ns): (u32, u64) = match watch.acks() {
        Acks::AtMost(gap) => (1, gap.nanos()),
        Acks::Change => (2, 0),
        Acks::Every | Acks::Auto | Acks::Off => (0, 0),
    };
    let rcv_gap_ns = if mode == 1 { gap_ns } else { RECEIVER_GAP_NS };
    let words = [watch.netns_cookie, gap_ns, rcv_gap_ns].map(u64::to_ne_bytes).concat();
    [words, [mode, 0].map(u32::to_ne_bytes).concat()].concat()
}

/// `acks_ports`: by port, whose it is (1: of a sender, 2: of a sender's peer, 4 and 8: of receivers).
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

/// Length of a jiffy: the resolution of the coarse clocks.
fn tick_us() -> u64 {
    let tick = clock_getres(ClockId::MonotonicCoarse);
    u64::try_from(tick.tv_nsec / 1000).unwrap_or(1).max(1)
}

impl AckSource for Source {
    fn drain(&mut self, now_ns: u64, all: bool, into: &mut Vec<Of>) {
        // A ringful at a time: what comes meanwhile is the next turn's, or this one would never end.
        for _ in 0..self.ring_bytes as usize / record::EVENT_BYTES {
            let Some(record) = self.ring.next() else { break };
            self.gather.take(&record);
        }
        self.gather.drain(now_ns, all, into);
    }

    fn refused(&mut self, of: &Of) {
        self.gather.refused(of);
    }

    fn counts(&mut self, at_ns: u64) -> Vec<wire::AckCount> {
        let mut counts = Vec::new();
        for (cookie, flow) in self.flows.iter().flatten() {
            let long = |at| u64_at(&flow, at).unwrap_or_default();
            let word = |at| u32_at(&flow, at).unwrap_or_default();
            let missed_states = array(&flow, offset_of!(Flow, missed_states));
            let missed_states = missed_states.map_or(0, u16::from_ne_bytes);
            let missed_retrans = word(offset_of!(Flow, missed_retrans));
            let (sport, dport) = record::ports(word(offset_of!(Flow, ports)));
            let Some(count) = self.gather.count(at_ns, cookie, sport, dport) else { continue };
            let hook = if count.side == "snd" { self.hook } else { BEFORE };
            counts.push(wire::AckCount {
                mode: self.mode.clone(),
                hook: hook.to_owned(),
                segments: long(offset_of!(Flow, segments)),
                lost_rows: long(offset_of!(Flow, lost)),
                lost_events: long(offset_of!(Flow, events_lost)) + count.lost_events,
                coalesced_segments: word(offset_of!(Flow, coalesced_segs)).into(),
                missed_segments: word(offset_of!(Flow, missed_segs)).into(),
                missed_events: u64::from(missed_retrans) + u64::from(missed_states),
                ..count
            });
        }
        // Segments of sockets beyond what the map holds belong to no flow in particular, nor do records that cannot be read.
        let unwatched = self.global.get(&0, 0).map_or(0, |[unwatched, ..]| unwatched);
        let broken = self.gather.broken();
        if unwatched + broken > 0 {
            counts.push(wire::AckCount {
                at_ns,
                mode: self.mode.clone(),
                hook: self.hook.to_owned(),
                segments: unwatched,
                lost_rows: unwatched,
                refused_rows: broken,
                ..Default::default()
            });
        }
        counts.sort_by(|a, b| (&a.flow_id, &a.side).cmp(&(&b.flow_id, &b.side)));
        counts
    }

    fn period(&self) -> Duration {
        self.period
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_either_step_is_told_and_leaves_the_tracepoint() {
        assert_eq!(sender_hook(Ok::<(), ProgramError>(())), (AFTER, None));
        let (hook, why) = sender_hook(Err(ProgramError::AlreadyAttached));
        assert_eq!(hook, BEFORE);
        assert!(
            why.unwrap()
                .starts_with("rows hold the state before an acknowledgement: fexit/tcp_ack: ")
        );
    }

    #[test]
    fn of_a_log_the_error_is_told() {
        let log = "BPF_PROG_LOAD failed: 0: R1=ctx()\n1: (85) call x\ninvalid func x\nprocessed 2 insns\n\n";
        assert_eq!(one_line(log), "BPF_PROG_LOAD failed: 0: R1=ctx() ... invalid func x");
        assert_eq!(one_line("not permitted"), "not permitted");
    }
}
