//! Congestion controls as BPF `struct_ops`. Each load of an embedded object is one instance. The BPF link's descriptor
//! holds it, so the kernel unregisters it when the process ends. Interface: `kmod/bpf/README.md`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use ccbench_proto::cc::Core;
use ccbench_proto::wire::Privileges;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Struct;
use libbpf_rs::{
    ErrorKind, Link, Object, ObjectBuilder, OpenObject, RingBuffer, RingBufferBuilder,
};

use super::bpf::{
    BPF_F_LINK, LogCapture, attach_struct_ops, count, initial_value, lock, map, name, open_map,
    section_bytes,
};
use super::error::{BpfError, NAME_BYTES, SocketError};
use super::journal::{Journal, Step};
use super::{row_limit, sysfs};

pub mod supplied;

include!(concat!(env!("OUT_DIR"), "/objects.rs"));

/// The map of the object's `struct tcp_congestion_ops`.
const OPS: &str = "ccb";
/// The map of its configuration.
const CONFIG: &str = ".rodata.ccb";
/// Position of the kernel's pointer to `cwnd_event_tx_start` in the object.
const TX_START: std::ops::Range<usize> = 24..32;
/// Offset of the parameters in the object's configuration.
const PARAMS: usize = 20;
const BTF: &str = "/sys/kernel/btf/vmlinux";
/// The ring with rows of internal state.
const ROWS: &str = "ccb_rows";
/// The section with an object's counts (`kmod/bpf/README.md`), and the offsets of rows lost and of rounds skipped.
const COUNTS: &str = ".data.ccb";
const LOST: usize = 0;
const SKIPPED: usize = 8;
/// Folder of pinned instances.
pub const PINS: &str = "/sys/fs/bpf/ccbench";

/// An instance to register.
#[derive(Debug, Clone)]
pub struct InstanceSpec<'a> {
    /// The core.
    pub core: &'a Core,
    /// At most 15 letters, digits, `_` and `.`.
    pub kernel_name: &'a str,
    /// Every parameter of the core, in its order.
    pub params: &'a [(String, u32)],
    /// Flags of the kernel's `struct tcp_congestion_ops`.
    pub flags: u32,
    /// Whose internal state to record: that of sockets in this network namespace; 0: in all namespaces; `None`: of no socket.
    pub netns_cookie: Option<u64>,
}

/// A registered instance. Dropping it unregisters it; sockets that use it keep it until they close.
#[derive(Debug)]
pub struct Registered {
    link: Link,
    object: Arc<Object>,
    /// Registered without a BPF link (Linux before 6.4), so it outlives a killed process.
    pub outlives: bool,
}

/// Checks that BPF congestion controls can be registered here.
///
/// # Errors
/// The reason why they cannot, and how to fix it.
pub fn check_available(privileges: Privileges) -> Result<(), SocketError> {
    match privileges {
        Privileges::Root => {}
        Privileges::UserNamespace => return Err(SocketError::UserNamespace),
        Privileges::Unprivileged | Privileges::Unspecified => return Err(SocketError::NeedsRoot),
    }
    if !Path::new(BTF).exists() {
        return Err(SocketError::NoBtf { path: BTF });
    }
    match &kernel().struct_ops {
        Ok(true) => Ok(()),
        Ok(false) => Err(SocketError::NoStructOps),
        Err(source) => Err(BpfError::UnreadableBtf { path: BTF, source }.into()),
    }
}

/// Facts from the kernel's BTF.
struct Kernel {
    /// Whether it has `struct_ops` for TCP; an error if its BTF cannot be read.
    struct_ops: Result<bool, libbpf_rs::Error>,
    tx_start: bool,
}

fn kernel() -> &'static Kernel {
    static KERNEL: OnceLock<Kernel> = OnceLock::new();
    KERNEL.get_or_init(|| match Btf::from_vmlinux() {
        Ok(btf) => {
            let has = |name: &str| btf.type_by_name::<Struct<'_>>(name).is_some();
            let ops = btf.type_by_name::<Struct<'_>>("tcp_congestion_ops");
            let member = OsStr::new("cwnd_event_tx_start");
            Kernel {
                struct_ops: Ok(has("bpf_struct_ops_tcp_congestion_ops")),
                tx_start: ops.is_some_and(|ops| ops.iter().any(|m| m.name == Some(member))),
            }
        }
        Err(error) => Kernel { struct_ops: Err(error), tx_start: false },
    })
}

/// Registers an instance. On an error nothing stays registered.
///
/// # Errors
/// The kernel refused; the error has the end of the verifier's log and a hint.
pub fn register(
    wanted: &InstanceSpec<'_>,
    journal: &mut Journal,
) -> Result<Registered, SocketError> {
    let object = format!("ccb_{}", wanted.core.name);
    let Some((_, bytes)) = OBJECTS.iter().find(|(name, _)| *name == object) else {
        return Err(BpfError::NoObject { object }.into());
    };
    register_object(bytes, wanted, journal)
}

fn register_object(
    bytes: &[u8],
    wanted: &InstanceSpec<'_>,
    journal: &mut Journal,
) -> Result<Registered, SocketError> {
    register_by(wanted.kernel_name, journal, |linked| load_and_register(bytes, wanted, linked))
}

/// Registers an instance with `load`, whose argument is whether to use a BPF link.
fn register_by(
    kernel_name: &str,
    journal: &mut Journal,
    load: impl Fn(bool) -> Result<Registered, BpfError>,
) -> Result<Registered, SocketError> {
    // The kernel would refuse it, too, but only after the verifier has run.
    if sysfs::available().iter().any(|name| name == kernel_name) {
        return Err(name_taken(kernel_name));
    }
    let capture = LogCapture::begin();
    let registered = match load(true) {
        // Linux before 6.4 has no struct_ops links, so the instance outlives a killed process.
        Err(first) if first.kind() == ErrorKind::InvalidInput => {
            journal.push(Step::Bpf { name: kernel_name.to_owned() })?;
            load(false).map_err(|_| first)
        }
        other => other,
    };
    registered.map_err(|source| {
        let log = capture.tail();
        match source.kind() {
            ErrorKind::AlreadyExists => name_taken(kernel_name),
            ErrorKind::PermissionDenied if log.is_empty() => SocketError::NoPrivilege { source },
            _ if log.is_empty() => SocketError::LoadRefused { source, log },
            _ => SocketError::LoadRefused { source, log: format!("; the kernel's log:\n{log}") },
        }
    })
}

fn name_taken(name: &str) -> SocketError {
    let hint =
        format!("`ccbench cc unload {name}` if it is a leftover of ccbench, else choose another");
    SocketError::NameTaken { name: name.to_owned(), hint }
}

fn load_and_register(
    bytes: &[u8],
    wanted: &InstanceSpec<'_>,
    linked: bool,
) -> Result<Registered, BpfError> {
    let mut open = ObjectBuilder::default()
        .open_memory(bytes)
        .map_err(BpfError::libbpf("read the BPF object"))?;
    patch_ops(&mut open, wanted, linked)?;
    patch_config(&mut open, wanted)?;
    let mut object =
        open.load().map_err(BpfError::libbpf("load the BPF object into the kernel"))?;
    let link = attach_struct_ops(&mut object, OPS, "register the congestion control")?;
    Ok(Registered { link, object: Arc::new(object), outlives: !linked })
}

fn patch_ops(
    open: &mut OpenObject,
    wanted: &InstanceSpec<'_>,
    linked: bool,
) -> Result<(), BpfError> {
    let mut map = open_map(open, OPS)?;
    if !linked {
        let flags = map.map_flags() & !BPF_F_LINK;
        map.set_map_flags(flags).map_err(BpfError::libbpf("clear a flag"))?;
    }
    let value = initial_value(&mut map)?;
    if value.len() < TX_START.end {
        return Err(BpfError::ShortMap { name: OPS.to_owned(), bytes: TX_START.end });
    }
    value[..NAME_BYTES].copy_from_slice(&name(wanted.kernel_name)?);
    value[NAME_BYTES..NAME_BYTES + 4].copy_from_slice(&wanted.flags.to_ne_bytes());
    if !kernel().tx_start {
        value[TX_START].fill(0);
    }
    Ok(())
}

fn patch_config(open: &mut OpenObject, wanted: &InstanceSpec<'_>) -> Result<(), BpfError> {
    let mut map = open_map(open, CONFIG)?;
    let value = initial_value(&mut map)?;
    let (in_object, in_table) =
        (u32_at(value, PARAMS - 4).unwrap_or(0) as usize, wanted.params.len());
    if in_object != in_table {
        return Err(BpfError::OtherParameters { in_object, in_table });
    }
    let bytes = PARAMS + 4 * in_table;
    if value.len() < bytes {
        return Err(BpfError::ShortMap { name: CONFIG.to_owned(), bytes });
    }
    value[..8].copy_from_slice(&wanted.netns_cookie.unwrap_or(0).to_ne_bytes());
    value[8..12].copy_from_slice(&u32::from(wanted.netns_cookie.is_some()).to_ne_bytes());
    // One more than the reader's gap, because the adapter rounds times down to microseconds.
    let gap_us = row_limit::min_gap_us(wanted.core).saturating_add(1);
    value[12..16].copy_from_slice(&gap_us.to_ne_bytes());
    for (place, (_, param)) in value[PARAMS..].chunks_exact_mut(4).zip(wanted.params) {
        place.copy_from_slice(&param.to_ne_bytes());
    }
    Ok(())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl Registered {
    /// Returns the parameters that the kernel holds, in the core's order.
    pub fn params(&self) -> Vec<u32> {
        let value = section_bytes(&self.object, CONFIG).unwrap_or_default();
        let count = u32_at(&value, PARAMS - 4).unwrap_or(0) as usize;
        (0..count).filter_map(|at| u32_at(&value, PARAMS + 4 * at)).collect()
    }

    /// Returns how many rows of internal state were lost because the ring was full. An object of the user has no ring.
    ///
    /// # Errors
    /// The count cannot be read.
    pub fn lost(&self) -> Result<u64, BpfError> {
        if map(&self.object, ROWS).is_ok() { count(&self.object, COUNTS, LOST) } else { Ok(0) }
    }

    /// Returns a reader of its rows.
    ///
    /// # Errors
    /// The ring cannot be mapped.
    pub fn rows(&self) -> Result<Ring, BpfError> {
        let map = map(&self.object, ROWS)?;
        let rows = Arc::new(Mutex::new(Vec::new()));
        let mut builder = RingBufferBuilder::new();
        let into = Arc::clone(&rows);
        builder
            .add(&map, move |bytes| {
                lock(&into).push(bytes.to_vec());
                0
            })
            .map_err(BpfError::libbpf("map the ring of rows"))?;
        let ring = builder.build().map_err(BpfError::libbpf("map the ring of rows"))?;
        Ok(Ring { ring, rows, object: Arc::clone(&self.object) })
    }

    /// Pins the link, so that the instance outlives this process.
    ///
    /// # Errors
    /// There is no BPF file system, or the name is taken.
    pub fn pin(mut self, name: &str) -> Result<PathBuf, SocketError> {
        let folder = Path::new(PINS);
        let path = folder.join(name);
        std::fs::create_dir_all(folder).map_err(|source| SocketError::File {
            op: "make",
            path: folder.to_owned(),
            source,
            hint: "; mount the BPF file system: mount -t bpf bpf /sys/fs/bpf",
        })?;
        let op = format!(
            "pin it as {} (needs the BPF file system: mount -t bpf bpf /sys/fs/bpf)",
            path.display()
        );
        self.link.pin(&path).map_err(BpfError::libbpf(op))?;
        Ok(path)
    }
}

/// Rows of internal state of one instance.
pub struct Ring {
    ring: RingBuffer<'static>,
    rows: Arc<Mutex<Vec<Vec<u8>>>>,
    object: Arc<Object>,
}

impl Ring {
    /// Returns the rounds that the programs did not record, because the previous row was too recent.
    pub fn skipped(&self) -> u64 {
        count(&self.object, COUNTS, SKIPPED).unwrap_or(0)
    }

    /// Returns up to `limit` rows, oldest first.
    pub fn take(&mut self, limit: usize) -> Vec<Vec<u8>> {
        self.ring.consume_raw_n(limit);
        std::mem::take(&mut lock(&self.rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults(core: &Core) -> Vec<(String, u32)> {
        core.params.iter().map(|param| (param.name.clone(), param.default)).collect()
    }

    /// With 15 variables, the reader takes a lone socket's row every 7.5 ms.
    #[test]
    fn rows_are_recorded_as_often_as_they_are_taken() {
        let core = ccbench_proto::cc::scheme("bbr3").unwrap().1;
        let (_, bytes) = OBJECTS.iter().find(|(object, _)| *object == "ccb_bbr3").unwrap();
        let mut open = ObjectBuilder::default().open_memory(bytes).unwrap();
        let params = defaults(core);
        for (netns_cookie, record) in [(Some(5), 1), (None, 0)] {
            let wanted =
                InstanceSpec { core, kernel_name: "x", params: &params, flags: 1, netns_cookie };
            patch_config(&mut open, &wanted).unwrap();
            let mut config =
                open.maps_mut().find(|map| map.name() == OsStr::new(".rodata.ccb")).unwrap();
            let value = config.initial_value_mut().unwrap();
            assert_eq!([8, 12].map(|at| u32_at(value, at)), [Some(record), Some(7501)]);
        }
    }

    #[test]
    fn every_core_has_an_object_with_its_parameters() {
        for core in &ccbench_proto::cc::table().cores {
            let name = format!("ccb_{}", core.name);
            let object = OBJECTS.iter().find(|(object, _)| *object == name);
            let mut open =
                ObjectBuilder::default().open_memory(object.expect("it is there").1).unwrap();
            let params = defaults(core);
            let wanted = InstanceSpec {
                core,
                kernel_name: "x",
                params: &params,
                flags: 1,
                netns_cookie: None,
            };
            let patched = patch_config(&mut open, &wanted);
            assert!(patched.is_ok(), "{name}: {patched:?}");
            let fewer = InstanceSpec { params: &params[1..], ..wanted };
            let refused = patch_config(&mut open, &fewer).unwrap_err();
            assert!(matches!(refused, BpfError::OtherParameters { .. }), "{refused:?}");
            assert!(refused.to_string().contains("rebuild"), "{refused}");
        }
    }

    #[test]
    fn errors_without_privilege_name_the_fix() {
        assert!(
            check_available(Privileges::UserNamespace)
                .unwrap_err()
                .to_string()
                .contains("run ccbench as root")
        );
        assert!(
            check_available(Privileges::Unprivileged)
                .unwrap_err()
                .to_string()
                .contains("needs root")
        );
    }

    /// Uses programs without `exit`, which the verifier rejects.
    #[cfg(feature = "netns")]
    #[test]
    fn verifier_errors_have_the_log_and_leave_nothing_registered() {
        const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];
        const NOTHING: [u8; 8] = [0xbf, 0, 0, 0, 0, 0, 0, 0]; // r0 = r0
        let core = ccbench_proto::cc::scheme("vegas").unwrap().1;
        let whole = OBJECTS.iter().find(|(object, _)| *object == "ccb_vegas").unwrap().1;
        let mut cut = whole.to_vec();
        for word in cut.chunks_exact_mut(8).filter(|word| **word == EXIT) {
            word.copy_from_slice(&NOTHING);
        }
        let params = defaults(core);
        let name = format!("v{}", std::process::id());
        let wanted = InstanceSpec {
            core,
            kernel_name: &name,
            params: &params,
            flags: 1,
            netns_cookie: None,
        };
        let why = register_object(&cut, &wanted, &mut Journal::default()).unwrap_err();
        let why = why.to_string();
        for part in [
            "load the BPF object into the kernel",
            "via = \"module\"",
            "the kernel's log:",
            "last insn",
        ] {
            assert!(why.contains(part), "{why}");
        }
        assert!(!sysfs::available().contains(&name));
        drop(register_object(whole, &wanted, &mut Journal::default()).unwrap());
    }

    /// Over loopback, a round trip is far shorter than the 7.5 ms of `bbr3`.
    #[cfg(feature = "netns")]
    #[test]
    fn rounds_without_a_row_are_counted() {
        use std::io::{Read as _, Write as _};

        let core = ccbench_proto::cc::scheme("bbr3").unwrap().1;
        let params = defaults(core);
        let kernel_name = &format!("bbr3.{}", std::process::id());
        let netns_cookie = ccbench_shaper::bpf::netns_cookie().ok();
        assert!(netns_cookie.is_some());
        let wanted = InstanceSpec { core, kernel_name, params: &params, flags: 1, netns_cookie };
        let registered = register(&wanted, &mut Journal::default()).unwrap();
        let mut ring = registered.rows().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        nix::sys::socket::setsockopt(
            &sender,
            nix::sys::socket::sockopt::TcpCongestion,
            &kernel_name.into(),
        )
        .unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        let reader = std::thread::spawn(move || {
            let mut bytes = vec![0; 100_000];
            for _ in 0..100 {
                receiver.read_exact(&mut bytes).unwrap();
            }
        });
        (0..100).for_each(|_| sender.write_all(&[7; 100_000]).unwrap());
        reader.join().unwrap();
        drop(sender); // counts the rounds since the last row
        assert!(!ring.take(1000).is_empty());
        assert!(ring.skipped() > 0);
        assert_eq!(registered.lost().unwrap(), 0);
    }
}
