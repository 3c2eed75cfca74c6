//! Congestion controls as BPF programs: one load of an embedded object is one instance. The kernel holds it for the
//! link's descriptor, so it is gone with its process, however that ends. `kmod/bpf/README.md` is the contract.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use ccbench_proto::cc::Core;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Struct;
use libbpf_rs::{
    ErrorKind, Link, MapCore as _, MapFlags, Object, ObjectBuilder, OpenObject, RingBuffer,
    RingBufferBuilder,
};

use super::bpf::{BPF_F_LINK, Log, NAME_BYTES, lock};
use super::journal::{Journal, Step};
use super::sysfs;

include!(concat!(env!("OUT_DIR"), "/objects.rs"));

/// Where the kernel's pointer to `cwnd_event_tx_start` is in the object.
const TX_START: std::ops::Range<usize> = 24..32;
/// Where the parameters begin in the object's configuration.
const PARAMS: usize = 16;
const BTF: &str = "/sys/kernel/btf/vmlinux";
/// Where instances are kept that shall outlive their loader.
pub const PINS: &str = "/sys/fs/bpf/ccbench";

/// What is to be registered.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    /// The core.
    pub core: &'a Core,
    /// At most 15 letters, digits, `_` and `.`.
    pub kernel_name: &'a str,
    /// Every parameter of the core, in its order.
    pub params: &'a [(String, u32)],
    /// Of the kernel's `struct tcp_congestion_ops`.
    pub flags: u32,
    /// Record inner state of sockets of this network namespace; 0: of all, none: do not record.
    pub netns_cookie: Option<u64>,
}

/// A registered instance; dropped, the kernel has it no longer (sockets that use it keep it until they close).
#[derive(Debug)]
pub struct Registered {
    link: Link,
    object: Arc<Object>,
    /// The kernel knows no links of struct_ops: this instance would outlive a killed process.
    pub outlives: bool,
}

/// Whether this machine can, and if not why and what to do.
///
/// # Errors
/// In words for people.
pub fn possible(privileges: &str) -> Result<(), String> {
    match privileges {
        "root" => {}
        "user-namespace" => {
            return Err(
                "a user namespace may not load BPF congestion controls: run ccbench as root"
                    .to_owned(),
            );
        }
        _ => return Err("loading a BPF congestion control needs root".to_owned()),
    }
    if !Path::new(BTF).exists() {
        return Err(format!(
            "this kernel has no description of its types ({BTF}, CONFIG_DEBUG_INFO_BTF), which BPF programs need"
        ));
    }
    match &kernel().known {
        Ok(true) => Ok(()),
        Ok(false) => Err("this kernel takes no congestion controls by BPF (struct_ops, CONFIG_BPF_JIT, Linux 5.6)".to_owned()),
        Err(why) => Err(format!("read {BTF}: {why}")),
    }
}

/// What matters of the kernel's types.
struct Kernel {
    known: Result<bool, String>,
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
                known: Ok(has("bpf_struct_ops_tcp_congestion_ops")),
                tx_start: ops.is_some_and(|ops| ops.iter().any(|m| m.name == Some(member))),
            }
        }
        Err(error) => Kernel { known: Err(format!("{error:#}")), tx_start: false },
    })
}

/// Registers an instance. On an error nothing of it is left.
///
/// # Errors
/// What the kernel refused, the end of the verifier's log, and what to do.
pub fn register(wanted: &Wanted<'_>, journal: &mut Journal) -> Result<Registered, String> {
    let object = format!("ccb_{}", wanted.core.name);
    let Some((_, bytes)) = OBJECTS.iter().find(|(name, _)| *name == object) else {
        return Err(format!("this agent carries no object {object}: rebuild it"));
    };
    register_object(bytes, wanted, journal)
}

fn register_object(
    bytes: &[u8],
    wanted: &Wanted<'_>,
    journal: &mut Journal,
) -> Result<Registered, String> {
    // The kernel would say "exists" as well, but only after the work.
    if sysfs::available().iter().any(|name| name == wanted.kernel_name) {
        return Err(taken(wanted.kernel_name));
    }
    let log = Log::begin();
    let registered = register_as(bytes, wanted, true).or_else(|first| {
        if first.kind != ErrorKind::InvalidInput {
            return Err(first);
        }
        // Before Linux 6.4 there are no links, and it outlives whoever is killed.
        let name = wanted.kernel_name.to_owned();
        journal.push(Step::Bpf { name }).map_err(wrong)?;
        register_as(bytes, wanted, false).map_err(|_| first)
    });
    registered.map_err(|failed| {
        let said = log.tail();
        if failed.kind == ErrorKind::AlreadyExists {
            return taken(wanted.kernel_name);
        }
        if failed.kind == ErrorKind::PermissionDenied && said.is_empty() {
            return format!(
                "{}; it needs root (CAP_BPF and CAP_NET_ADMIN), outside of any user namespace",
                failed.what
            );
        }
        let log =
            if said.is_empty() { String::new() } else { format!("; the kernel said:\n{said}") };
        format!("{}; try `via = \"module\"`, or another kernel{log}", failed.what)
    })
}

fn taken(name: &str) -> String {
    format!(
        "the name `{name}` is taken in this kernel: `ccbench cc unload {name}` if it is a leftover of ccbench, else choose another"
    )
}

struct Failed {
    what: String,
    kind: ErrorKind,
}

fn failed(op: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Failed {
    move |error| Failed { what: format!("{op}: {error:#}"), kind: error.kind() }
}

fn wrong(what: impl Into<String>) -> Failed {
    Failed { what: what.into(), kind: ErrorKind::InvalidData }
}

fn register_as(bytes: &[u8], wanted: &Wanted<'_>, linked: bool) -> Result<Registered, Failed> {
    let mut open =
        ObjectBuilder::default().open_memory(bytes).map_err(failed("read the BPF object"))?;
    patch_ops(&mut open, wanted, linked)?;
    patch_config(&mut open, wanted)?;
    let mut object = open.load().map_err(failed("load it into the kernel"))?;
    let link = {
        let mut map = object
            .maps_mut()
            .find(|map| map.name() == OsStr::new("ccb"))
            .ok_or_else(|| wrong("the object has no map ccb"))?;
        map.attach_struct_ops().map_err(failed("register it"))?
    };
    Ok(Registered { link, object: Arc::new(object), outlives: !linked })
}

fn patch_ops(open: &mut OpenObject, wanted: &Wanted<'_>, linked: bool) -> Result<(), Failed> {
    let mut map = open
        .maps_mut()
        .find(|map| map.name() == OsStr::new("ccb"))
        .ok_or_else(|| wrong("the object has no map ccb"))?;
    if !linked {
        let flags = map.map_flags() & !BPF_F_LINK;
        map.set_map_flags(flags).map_err(failed("clear a flag"))?;
    }
    let value = map.initial_value_mut().ok_or_else(|| wrong("map ccb has no value"))?;
    if value.len() < TX_START.end || wanted.kernel_name.len() >= NAME_BYTES {
        return Err(wrong(format!(
            "`{}` is longer than {} characters, the kernel's limit",
            wanted.kernel_name,
            NAME_BYTES - 1
        )));
    }
    value[..NAME_BYTES].fill(0);
    value[..wanted.kernel_name.len()].copy_from_slice(wanted.kernel_name.as_bytes());
    value[NAME_BYTES..NAME_BYTES + 4].copy_from_slice(&wanted.flags.to_ne_bytes());
    if !kernel().tx_start {
        value[TX_START].fill(0);
    }
    Ok(())
}

fn patch_config(open: &mut OpenObject, wanted: &Wanted<'_>) -> Result<(), Failed> {
    let mut map = open
        .maps_mut()
        .find(|map| map.name() == OsStr::new(".rodata.ccb"))
        .ok_or_else(|| wrong("the object has no map .rodata.ccb"))?;
    let value = map.initial_value_mut().ok_or_else(|| wrong("map .rodata.ccb has no value"))?;
    let count = u32_at(value, 12).unwrap_or(0) as usize;
    if count != wanted.params.len() || value.len() < PARAMS + 4 * count {
        return Err(wrong(format!(
            "the object has {count} parameters, the table {}: rebuild ccbench-agent",
            wanted.params.len()
        )));
    }
    value[..8].copy_from_slice(&wanted.netns_cookie.unwrap_or(0).to_ne_bytes());
    value[8..12].copy_from_slice(&u32::from(wanted.netns_cookie.is_some()).to_ne_bytes());
    for (place, (_, param)) in value[PARAMS..].chunks_exact_mut(4).zip(wanted.params) {
        place.copy_from_slice(&param.to_ne_bytes());
    }
    Ok(())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl Registered {
    /// The parameters, as the kernel holds them, in the core's order.
    pub fn params(&self) -> Vec<u32> {
        let value = self.value(".rodata.ccb").unwrap_or_default();
        let count = u32_at(&value, 12).unwrap_or(0) as usize;
        (0..count).filter_map(|at| u32_at(&value, PARAMS + 4 * at)).collect()
    }

    /// Rows of inner state that found the ring full, so far.
    pub fn lost(&self) -> u64 {
        let value = self.value(".data.ccb").unwrap_or_default();
        value.get(..8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
    }

    fn value(&self, map: &str) -> Option<Vec<u8>> {
        let map = self.object.maps().find(|m| m.name() == OsStr::new(map))?;
        map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()?
    }

    /// A reader of its rows.
    ///
    /// # Errors
    /// The ring cannot be mapped.
    pub fn rows(&self) -> Result<Ring, String> {
        let map = self.object.maps().find(|m| m.name() == OsStr::new("ccb_rows"));
        let map = map.ok_or("the object has no map ccb_rows")?;
        let rows = Arc::new(Mutex::new(Vec::new()));
        let mut builder = RingBufferBuilder::new();
        let into = Arc::clone(&rows);
        builder
            .add(&map, move |bytes| {
                lock(&into).push(bytes.to_vec());
                0
            })
            .map_err(|e| format!("{e:#}"))?;
        let ring = builder.build().map_err(|e| format!("{e:#}"))?;
        Ok(Ring { ring, rows, _object: Arc::clone(&self.object) })
    }

    /// Makes it outlive this process.
    ///
    /// # Errors
    /// There is no BPF file system, or the name is taken.
    pub fn pin(mut self, name: &str) -> Result<PathBuf, String> {
        let folder = Path::new(PINS);
        let path = folder.join(name);
        let mounted = Path::new("/sys/fs/bpf");
        std::fs::create_dir_all(folder).map_err(|e| {
            format!(
                "make {}: {e}; mount the BPF file system: mount -t bpf bpf {}",
                folder.display(),
                mounted.display()
            )
        })?;
        self.link.pin(&path).map_err(|e| {
            format!(
                "pin it as {}: {e:#}; mount the BPF file system: mount -t bpf bpf {}",
                path.display(),
                mounted.display()
            )
        })?;
        Ok(path)
    }
}

/// Rows of inner state of one instance.
pub struct Ring {
    ring: RingBuffer<'static>,
    rows: Arc<Mutex<Vec<Vec<u8>>>>,
    _object: Arc<Object>,
}

impl Ring {
    /// At most `limit` rows, oldest first.
    pub fn take(&mut self, limit: usize) -> Vec<Vec<u8>> {
        self.ring.consume_raw_n(limit);
        std::mem::take(&mut lock(&self.rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_core_of_the_table_has_an_object_with_as_many_parameters() {
        for core in &ccbench_proto::cc::table().cores {
            let name = format!("ccb_{}", core.name);
            let object = OBJECTS.iter().find(|(object, _)| *object == name);
            let mut open =
                ObjectBuilder::default().open_memory(object.expect("it is there").1).unwrap();
            let params: Vec<(String, u32)> =
                core.params.iter().map(|p| (p.name.clone(), p.default)).collect();
            let wanted =
                Wanted { core, kernel_name: "x", params: &params, flags: 1, netns_cookie: None };
            let patched = patch_config(&mut open, &wanted).map_err(|failed| failed.what);
            assert_eq!(patched, Ok(()), "{name}");
            let fewer = Wanted { params: &params[1..], ..wanted };
            assert!(patch_config(&mut open, &fewer).is_err_and(|f| f.what.contains("rebuild")));
        }
    }

    #[test]
    fn a_user_namespace_is_told_what_to_do() {
        assert!(possible("user-namespace").unwrap_err().contains("run ccbench as root"));
        assert!(possible("unprivileged").unwrap_err().contains("needs root"));
    }

    /// Programs whose end is cut off, so that they run into nothing.
    #[cfg(feature = "netns")]
    #[test]
    fn what_the_verifier_refuses_is_told_with_its_words_and_is_not_there() {
        const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];
        const NOTHING: [u8; 8] = [0xbf, 0, 0, 0, 0, 0, 0, 0]; // r0 = r0
        let core = ccbench_proto::cc::scheme("vegas").unwrap().1;
        let whole = OBJECTS.iter().find(|(object, _)| *object == "ccb_vegas").unwrap().1;
        let mut cut = whole.to_vec();
        for word in cut.chunks_exact_mut(8).filter(|word| **word == EXIT) {
            word.copy_from_slice(&NOTHING);
        }
        let params: Vec<(String, u32)> =
            core.params.iter().map(|p| (p.name.clone(), p.default)).collect();
        let name = format!("v{}", std::process::id());
        let wanted =
            Wanted { core, kernel_name: &name, params: &params, flags: 1, netns_cookie: None };
        let why = register_object(&cut, &wanted, &mut Journal::default()).unwrap_err();
        for part in ["load it into the kernel", "via = \"module\"", "the kernel said:", "last insn"]
        {
            assert!(why.contains(part), "{why}");
        }
        assert!(!sysfs::available().contains(&name));
        drop(register_object(whole, &wanted, &mut Journal::default()).unwrap());
    }
}
