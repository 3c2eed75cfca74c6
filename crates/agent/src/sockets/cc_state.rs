//! Rows of internal state. The instances' rings hold one record per socket and round trip, and one whenever a state
//! begins. Each record becomes several rows of `cc_state`, one per variable. The rows per second of one node are
//! limited: above the limit, records are skipped evenly, but never one whose state differs from the previous one. BPF
//! instances do not even record rounds that would be skipped for a lone socket.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;

use ccbench_collector::ports::PortMap;
use ccbench_proto::cc::Core;
use ccbench_proto::event::{Kind, NoData};
use ccbench_proto::wire::{self, Role};

use super::row_limit::gap_ns;
#[cfg(feature = "ebpf")]
use super::struct_ops::Ring;
use crate::event::event;

/// Limit of records taken from one ring at once.
const MAX_BATCH_RECORDS: usize = 4096;
/// The variable that holds the state of cores with states.
const STATE_VARIABLE: &str = "mode";
/// Offset of the variables in a record.
const STATS: usize = 32;
/// Limit of sockets whose last row is remembered.
const MAX_SOCKETS: usize = 4096;
/// A socket without a record for this long has no share of the rows. It has closed, or its rounds are as long as this.
const SILENT_NS: u64 = 1_000_000_000;

/// One record as the adapters write it (`kmod/bpf/README.md`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// The socket's cookie; 0 if the kernel has not generated one.
    pub cookie: u64,
    /// Number of rounds of the socket that have ended.
    pub round: u32,
    /// Local port.
    pub sport: u16,
    /// Remote port.
    pub dport: u16,
    /// The variables, in the order of the core's table.
    pub stats: Vec<u32>,
}

impl Record {
    /// Parses a record; returns `None` if it is too short.
    pub fn read(bytes: &[u8], stats: usize) -> Option<Self> {
        let u64_at = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let u16_at = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        Some(Self {
            at_ns: u64_at(0)?,
            cookie: u64_at(8)?,
            round: u32_at(24)?,
            sport: u16_at(28)?,
            dport: u16_at(30)?,
            stats: (0..stats).map(|i| u32_at(STATS + 4 * i)).collect::<Option<_>>()?,
        })
    }
}

/// A source of records.
pub enum Source {
    /// The ring of a BPF instance.
    #[cfg(feature = "ebpf")]
    Ring(Ring),
    /// The device of a core's module, for all its instances.
    Device(File),
}

impl Source {
    fn take(&mut self, stats: usize) -> Vec<Record> {
        match self {
            #[cfg(feature = "ebpf")]
            Self::Ring(ring) => {
                ring.take(MAX_BATCH_RECORDS).iter().filter_map(|b| Record::read(b, stats)).collect()
            }
            Self::Device(file) => {
                let size = (STATS + 4 * stats).next_multiple_of(8);
                let mut bytes = vec![0; size * MAX_BATCH_RECORDS];
                // An empty device returns EAGAIN.
                let read = file.read(&mut bytes).unwrap_or(0);
                bytes[..read].chunks_exact(size).filter_map(|b| Record::read(b, stats)).collect()
            }
        }
    }

    /// Returns the rounds that a BPF instance did not record. A module records all rounds.
    fn skipped(&self) -> u64 {
        match self {
            #[cfg(feature = "ebpf")]
            Self::Ring(ring) => ring.skipped(),
            Self::Device(_) => 0,
        }
    }

    /// Returns the rows that did not fit into the buffer of a module's file; 0 for a ring, whose instance counts them.
    fn rows_lost(&self) -> io::Result<u64> {
        match self {
            #[cfg(feature = "ebpf")]
            Self::Ring(_) => Ok(0),
            Self::Device(file) => {
                let text =
                    std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
                rows_lost(&text).ok_or_else(|| {
                    let why = "the module is older than this agent; build and install it again (make -C kmod module-install)";
                    io::Error::new(io::ErrorKind::Unsupported, why)
                })
            }
        }
    }
}

/// Parses the count in the `fdinfo` of a module's file (`kmod/module/rows.h`).
fn rows_lost(fdinfo: &str) -> Option<u64> {
    fdinfo.lines().find_map(|line| line.strip_prefix("rows_lost:")?.trim().parse().ok())
}

/// Returns the event for rows that were lost because `buffer` was full, or may have been lost.
pub(super) fn loss(
    subject: &str,
    buffer: &str,
    lost: Result<u64, impl fmt::Display>,
) -> Option<wire::Event> {
    let message = match lost {
        Ok(0) => return None,
        Ok(lost) => format!("{lost} rows of internal state were lost: {buffer} was full"),
        Err(error) => format!(
            "rows of internal state may have been lost; their number cannot be read: {error}"
        ),
    };
    Some(event(Kind::CcStateError(NoData {}), subject, message))
}

/// The times of a socket's last row and last record, and the state in that record.
struct Last {
    row_ns: u64,
    record_ns: u64,
    state: Option<u32>,
}

/// Reads the records of a node's instances, for the sampler thread.
#[derive(Default)]
pub struct Reader {
    sources: Vec<(&'static Core, Source)>,
    /// Flow group to the plan's name of the instance, and its algorithm.
    groups: BTreeMap<String, (String, String)>,
    /// What is known of each socket, by its ports.
    last: BTreeMap<(u16, u16), Last>,
    /// Rounds skipped so far.
    thinned: u64,
}

impl Reader {
    /// Returns a reader of these sources, for the flow groups with an instance.
    pub fn new(
        sources: Vec<(&'static Core, Source)>,
        groups: BTreeMap<String, (String, String)>,
    ) -> Self {
        Self { sources, groups, ..Self::default() }
    }

    /// Whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Returns the rounds that were skipped to stay within the limit, here or by the BPF programs.
    pub fn thinned(&self) -> u64 {
        self.thinned + self.sources.iter().map(|(_, source)| source.skipped()).sum::<u64>()
    }

    /// Returns an event for each module that lost rows, or whose count of them cannot be read.
    pub fn losses(&self) -> impl Iterator<Item = wire::Event> {
        self.sources.iter().filter_map(|(core, source)| {
            loss(&format!("ccb_{}", core.name), "the module's buffer", source.rows_lost())
        })
    }

    /// Reads new rows of sockets of these flows. Returns whether a source may have more.
    pub fn drain(&mut self, ports: &PortMap, into: &mut Vec<wire::CcState>) -> bool {
        self.forget_silent();
        let mut sources = std::mem::take(&mut self.sources);
        let mut has_more = false;
        for (core, source) in &mut sources {
            let records = source.take(core.stats.len());
            has_more |= records.len() >= MAX_BATCH_RECORDS;
            for record in records {
                self.put(core, &record, ports, into);
            }
        }
        self.sources = sources;
        has_more
    }

    /// Forgets silent sockets, so that the others have their share of the rows.
    fn forget_silent(&mut self) {
        let newest_ns = self.last.values().map(|last| last.record_ns).max().unwrap_or(0);
        self.last.retain(|_, last| last.record_ns.saturating_add(SILENT_NS) > newest_ns);
    }

    fn put(
        &mut self,
        core: &Core,
        record: &Record,
        ports: &PortMap,
        into: &mut Vec<wire::CcState>,
    ) {
        let Some(socket) = ports.classify(record.sport, record.dport) else { return };
        let Some((cc, algorithm)) = self.groups.get(socket.group) else { return };
        if socket.role != Role::Data {
            return;
        }
        if !is_due(&mut self.last, core, record) {
            self.thinned += 1;
            return;
        }
        into.extend(core.stats.iter().zip(&record.stats).map(|(stat, value)| wire::CcState {
            at_ns: record.at_ns,
            flow_id: socket.flow_id.to_owned(),
            group: socket.group.to_owned(),
            cc: cc.clone(),
            algorithm: algorithm.clone(),
            cookie: (record.cookie > 0).then_some(record.cookie),
            sport: u32::from(record.sport),
            dport: u32::from(record.dport),
            round: u64::from(record.round),
            variable: stat.name.clone(),
            unit: stat.unit.clone(),
            value: f64::from(*value),
        }));
    }
}

/// Whether a record becomes rows: every socket gets the same share, plus a row for each state that begins.
fn is_due(last: &mut BTreeMap<(u16, u16), Last>, core: &Core, record: &Record) -> bool {
    let socket = (record.sport, record.dport);
    let gap_ns = gap_ns(core, last.len().max(1) as u64);
    let nth = core.stats.iter().position(|stat| stat.name == STATE_VARIABLE);
    let state = nth.and_then(|nth| record.stats.get(nth).copied());
    match last.get_mut(&socket) {
        Some(last) => {
            last.record_ns = record.at_ns;
            let began = std::mem::replace(&mut last.state, state) != state;
            let is_due = began || record.at_ns >= last.row_ns.saturating_add(gap_ns);
            if is_due {
                last.row_ns = record.at_ns;
            }
            is_due
        }
        None => {
            if last.len() < MAX_SOCKETS {
                let at_ns = record.at_ns;
                last.insert(socket, Last { row_ns: at_ns, record_ns: at_ns, state });
            }
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, Write as _};

    use ccbench_collector::FlowPorts;

    use super::super::row_limit::ROWS_PER_S;
    use super::*;

    fn core() -> &'static Core {
        ccbench_proto::cc::scheme("ta").unwrap().1
    }

    fn bytes(at_ns: u64, sport: u16) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(at_ns.to_ne_bytes());
        bytes.extend(77u64.to_ne_bytes());
        bytes.extend(1u64.to_ne_bytes());
        bytes.extend(9u32.to_ne_bytes());
        bytes.extend(sport.to_ne_bytes());
        bytes.extend(5201u16.to_ne_bytes());
        (0..core().stats.len() as u32).for_each(|i| bytes.extend((100 + i).to_ne_bytes()));
        bytes
    }

    fn reader(sources: Vec<(&'static Core, Source)>) -> (Reader, PortMap) {
        let flow = FlowPorts {
            group: "a".into(),
            server_port: 5201,
            client_port: 10_000,
            count: 20,
            listens: false,
            reverse: false,
        };
        let groups = [("a".to_owned(), ("scheme".to_owned(), "ta".to_owned()))].into();
        (Reader::new(sources, groups), PortMap::new(&[flow]))
    }

    fn rows(records: &[Record]) -> (Vec<wire::CcState>, u64) {
        let (mut reader, ports) = reader(Vec::new());
        let mut rows = Vec::new();
        records.iter().for_each(|record| reader.put(core(), record, &ports, &mut rows));
        (rows, reader.thinned())
    }

    #[test]
    fn each_variable_of_a_record_is_a_row() {
        let stats = core().stats.len();
        assert_eq!(Record::read(&bytes(5, 10_001)[..40], stats), None);
        let record = Record::read(&bytes(5, 10_001), stats).unwrap();
        let (rows, _) = rows(&[record]);
        assert_eq!(rows.len(), stats);
        let row = &rows[2];
        assert_eq!((row.flow_id.as_str(), row.cc.as_str(), row.round), ("a/1", "scheme", 9));
        assert_eq!(
            (row.variable.as_str(), row.unit.as_str(), row.value),
            ("alpha", "1/256", 102.0)
        );
        assert_eq!((row.cookie, row.at_ns), (Some(77), 5));
    }

    /// At a trial's end, every record of a congestion control becomes a row or is counted as thinned.
    #[test]
    fn a_source_is_drained_until_it_has_no_more() {
        let records = MAX_BATCH_RECORDS + 10;
        let size = (STATS + 4 * core().stats.len()).next_multiple_of(8);
        let record = |at: usize| {
            let mut record = bytes(at as u64 * 1_000_000_000, 10_000);
            record.resize(size, 0);
            record
        };
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&(0..records).flat_map(record).collect::<Vec<u8>>()).unwrap();
        file.rewind().unwrap();
        let (mut reader, ports) = reader(vec![(core(), Source::Device(file))]);
        let mut rows = Vec::new();
        assert!(reader.drain(&ports, &mut rows), "ten are left");
        assert_eq!(rows.len(), MAX_BATCH_RECORDS * core().stats.len());
        assert!(!reader.drain(&ports, &mut rows));
        assert_eq!(rows.len(), records * core().stats.len());
    }

    #[test]
    fn rows_that_a_module_lost_are_events() {
        let fdinfo = "pos:\t0\nflags:\t02100000\nmnt_id:\t25\nino:\t9\nrows_lost:\t41\n";
        assert_eq!(rows_lost(fdinfo), Some(41));
        let loss = |lost| loss("ccb_ta", "the ring", lost);
        let lost = loss(Ok(41)).unwrap();
        assert_eq!(
            (lost.subject.as_str(), lost.kind),
            ("ccb_ta", Some(Kind::CcStateError(NoData {})))
        );
        assert_eq!(lost.message, "41 rows of internal state were lost: the ring was full");
        assert_eq!(loss(Ok(0)), None);
        let unknown = loss(Err("no map")).unwrap().message;
        assert!(unknown.ends_with("their number cannot be read: no map"), "{unknown}");
        // A different file, in which nobody counts lost rows.
        let (reader, _) = reader(vec![(core(), Source::Device(tempfile::tempfile().unwrap()))]);
        let events: Vec<_> = reader.losses().collect();
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].subject, "ccb_ta");
        assert!(events[0].message.contains("make -C kmod module-install"), "{}", events[0].message);
    }

    #[test]
    fn sockets_of_other_programs_have_no_rows() {
        let stats = core().stats.len();
        let strange = Record::read(&bytes(5, 4_000), stats).unwrap();
        assert_eq!(rows(&[Record { dport: 80, ..strange.clone() }]).0.len(), 0);
        assert_eq!(rows(&[strange]).0.len(), 0, "a control connection neither");
    }

    #[test]
    fn sockets_share_the_row_limit() {
        let stats = core().stats.len();
        let one = Record::read(&bytes(0, 10_000), stats).unwrap();
        let every_10_ms = |sockets: u16| -> Vec<Record> {
            (0..300u64)
                .flat_map(|i| (0..sockets).map(move |s| (i, s)))
                .map(|(i, s)| Record { at_ns: i * 10_000_000, sport: 10_000 + s, ..one.clone() })
                .collect()
        };
        let (few, thinned) = rows(&every_10_ms(1));
        assert_eq!((few.len(), thinned), (300 * stats, 0));
        let (many, thinned) = rows(&every_10_ms(20));
        assert!(many.len() as u64 <= 3 * ROWS_PER_S + 20 * stats as u64, "{}", many.len());
        assert!(many.len() as u64 > 2 * ROWS_PER_S && thinned > 0, "{}", many.len());
        let of = |id: &str| many.iter().filter(|row| row.flow_id == id).count();
        assert!(of("a/0").abs_diff(of("a/19")) <= 2 * stats, "{} {}", of("a/0"), of("a/19"));
    }

    #[test]
    fn sockets_that_have_closed_have_no_share() {
        let stats = core().stats.len();
        let one = Record::read(&bytes(0, 10_000), stats).unwrap();
        let (mut reader, ports) = reader(Vec::new());
        let mut rows = Vec::new();
        for sport in 10_000..10_020 {
            reader.put(core(), &Record { sport, ..one.clone() }, &ports, &mut rows);
        }
        for i in 0..400 {
            // As the sampler, ten times per second.
            if i % 10 == 0 {
                reader.drain(&ports, &mut rows);
            }
            let record = Record { at_ns: i * 10_000_000, ..one.clone() };
            reader.put(core(), &record, &ports, &mut rows);
        }
        let late = rows.iter().filter(|row| row.at_ns >= 2_000_000_000).count();
        assert_eq!(late, 200 * stats);
    }

    #[test]
    fn a_state_that_begins_has_its_row() {
        let core = ccbench_proto::cc::scheme("bbr3").unwrap().1;
        assert_eq!(core.stats[0].name, STATE_VARIABLE);
        let mut last = BTreeMap::new();
        let mut has_row = |at_ns, mode| {
            let mut stats = vec![0; core.stats.len()];
            stats[0] = mode;
            let record = Record { at_ns, cookie: 1, round: 1, sport: 1, dport: 2, stats };
            is_due(&mut last, core, &record)
        };
        assert!(has_row(0, 0));
        // With 15 variables, one record in 7.5 ms.
        assert!(!has_row(1_000_000, 0));
        assert!(has_row(1_100_000, 1), "DRAIN begins");
        assert!(!has_row(1_200_000, 1));
        assert!(has_row(1_300_000, 2), "and ends");
        assert!(!has_row(8_000_000, 2));
        assert!(has_row(9_000_000, 2));
    }
}
