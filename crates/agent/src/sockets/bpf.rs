//! BPF functions that other modules share. [`super::hook`] uses them to open, patch and load its objects and to read
//! their maps. [`super::struct_ops`], whose objects have another layout, finds, registers and reads maps, and captures libbpf's log.
//! `unregister` is for [`super::journal`] and [`super::command`].

use std::ffi::OsStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{
    Link, Map, MapCore as _, MapFlags, MapHandle, MapType, Object, ObjectBuilder, OpenMapMut,
    OpenObject, PrintCallback, PrintLevel, set_print,
};

use super::error::{BpfError, NAME_BYTES};

/// Unknown to kernels before 6.4.
pub(super) const BPF_F_LINK: u32 = 0x2000;
/// How many lines of the verifier's log an error shows; the last ones give the reason.
const LOG_LINES: usize = 12;

/// Runs `operation`. On a failure, the log of libbpf and the verifier goes into the error instead of to the terminal.
pub(super) fn with_log<T>(operation: impl FnOnce() -> Result<T, BpfError>) -> Result<T, BpfError> {
    let capture = LogCapture::begin();
    operation().map_err(|error| match capture.tail() {
        log if log.is_empty() => error,
        log => BpfError::Logged { source: Box::new(error), log },
    })
}

pub(super) fn open(object: &[u8], name: &str) -> Result<OpenObject, BpfError> {
    ObjectBuilder::default()
        .open_memory(object)
        .map_err(BpfError::libbpf(format!("read the BPF object {name}")))
}

pub(super) fn load(open: OpenObject, name: &str) -> Result<Object, BpfError> {
    open.load().map_err(BpfError::libbpf(format!("load the BPF object {name}")))
}

pub(super) fn patch(
    open: &mut OpenObject,
    map: &str,
    at: usize,
    bytes: &[u8],
) -> Result<(), BpfError> {
    let mut found = open_map(open, map)?;
    let value = initial_value(&mut found)?;
    let end = at + bytes.len();
    let short = || BpfError::ShortMap { name: map.to_owned(), bytes: end };
    value.get_mut(at..end).ok_or_else(short)?.copy_from_slice(bytes);
    Ok(())
}

/// Returns a map of an object that is not yet in the kernel.
pub(super) fn open_map<'obj>(
    open: &'obj mut OpenObject,
    name: &str,
) -> Result<OpenMapMut<'obj>, BpfError> {
    let found = open.maps_mut().find(|map| map.name() == OsStr::new(name));
    found.ok_or_else(|| BpfError::NoMap { name: name.to_owned() })
}

/// Returns what the kernel's map will contain first.
pub(super) fn initial_value<'map>(
    map: &'map mut OpenMapMut<'_>,
) -> Result<&'map mut [u8], BpfError> {
    let name = map.name();
    let missing = || BpfError::NoInitialValue { name: name.to_string_lossy().into_owned() };
    map.initial_value_mut().ok_or_else(missing)
}

/// Registers the congestion control in a map of a loaded object, until the link is dropped. `op` describes the operation.
pub(super) fn attach_struct_ops(
    object: &mut Object,
    name: &str,
    op: &str,
) -> Result<Link, BpfError> {
    let found = object.maps_mut().find(|map| map.name() == OsStr::new(name));
    let mut map = found.ok_or_else(|| BpfError::NoMap { name: name.to_owned() })?;
    map.attach_struct_ops().map_err(BpfError::libbpf(op))
}

pub(super) fn map<'obj>(object: &'obj Object, name: &str) -> Result<Map<'obj>, BpfError> {
    let found = object.maps().find(|map| map.name() == OsStr::new(name));
    found.ok_or_else(|| BpfError::NoMap { name: name.to_owned() })
}

/// Returns a counter in a data section.
pub(super) fn count(object: &Object, section: &str, at: usize) -> Result<u64, BpfError> {
    let value = section_bytes(object, section)?;
    let counter = value.get(at..).and_then(|bytes| bytes.first_chunk::<8>());
    let missing = || BpfError::NoCounter { section: section.to_owned(), at };
    counter.copied().map(u64::from_ne_bytes).ok_or_else(missing)
}

/// Returns the contents of a data section, which is a map with one element.
pub(super) fn section_bytes(object: &Object, section: &str) -> Result<Vec<u8>, BpfError> {
    read(object, section, &0u32.to_ne_bytes())
}

/// Returns the value of a key that the map has.
pub(super) fn read(object: &Object, name: &str, key: &[u8]) -> Result<Vec<u8>, BpfError> {
    let value = map(object, name)?
        .lookup(key, MapFlags::ANY)
        .map_err(BpfError::libbpf(format!("read the BPF map {name}")))?;
    value.ok_or_else(|| BpfError::NoKey { map: name.to_owned(), key: key.to_owned() })
}

/// Returns the value at an offset; 0 if it is missing.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

/// Encodes a congestion control's name as in `struct tcp_congestion_ops`.
pub(super) fn name(cc: &str) -> Result<[u8; NAME_BYTES], BpfError> {
    let mut bytes = [0; NAME_BYTES];
    match bytes[..NAME_BYTES - 1].get_mut(..cc.len()) {
        Some(room) => room.copy_from_slice(cc.as_bytes()),
        None => return Err(BpfError::NameTooLong(cc.to_owned())),
    }
    Ok(bytes)
}

/// Unregisters an instance that has no BPF link.
///
/// # Errors
/// The kernel refused, a link holds the instance, or there is none.
pub fn unregister(name: &str) -> Result<(), BpfError> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.push(0);
    for map in MapInfoIter::default().filter(|map| map.ty == MapType::StructOps) {
        let Ok(handle) = MapHandle::from_map_id(map.id) else { continue };
        let key = 0u32.to_ne_bytes();
        let Ok(Some(value)) = handle.lookup(&key, MapFlags::ANY) else { continue };
        if value.windows(bytes.len()).any(|part| part == bytes) {
            return handle.delete(&key).map_err(BpfError::libbpf(format!("unregister {name}")));
        }
    }
    Err(BpfError::NotFound(name.to_owned()))
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Captures what libbpf prints. libbpf has one print callback per process, so only one capture exists at a time.
pub(super) struct LogCapture {
    _one: MutexGuard<'static, ()>,
    before: Option<(PrintLevel, PrintCallback)>,
}

static LOADING: Mutex<()> = Mutex::new(());
static LINES: Mutex<String> = Mutex::new(String::new());

impl LogCapture {
    /// Captures until the capture is dropped.
    pub(super) fn begin() -> Self {
        let one = lock(&LOADING);
        lock(&LINES).clear();
        let before = set_print(Some((PrintLevel::Warn, |_, text| lock(&LINES).push_str(&text))));
        Self { _one: one, before }
    }

    /// Returns the last non-empty lines.
    pub(super) fn tail(&self) -> String {
        let text = lock(&LINES);
        tail(&text)
    }
}

impl Drop for LogCapture {
    fn drop(&mut self) {
        set_print(self.before.take());
    }
}

fn tail(text: &str) -> String {
    let lines = text.lines().map(str::trim_end);
    let lines: Vec<&str> =
        lines.filter(|line| !line.is_empty() && !line.contains("END PROG LOAD LOG")).collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_object_lacks_is_named() {
        const ECT1: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ect1.bpf.o"));
        let mut object = open(ECT1, "ect1").unwrap();
        let missing = patch(&mut object, "nosuch", 0, &[0]).unwrap_err();
        assert!(matches!(missing, BpfError::NoMap { .. }), "{missing:?}");
        assert_eq!(missing.to_string(), "the BPF object has no map nosuch");
        let short = patch(&mut object, ".rodata.ect1", 1 << 20, &[0]).unwrap_err();
        assert!(matches!(short, BpfError::ShortMap { .. }), "{short:?}");
        assert_eq!(short.to_string(), "the BPF object has no map .rodata.ect1 of 1048577 bytes");
        patch(&mut object, ".rodata.ect1", 0, &[0]).unwrap();
    }

    #[test]
    fn shows_the_end_of_the_log() {
        let text: String = (0..40).map(|i| format!("line {i}\n")).collect();
        let end = tail(&format!("{text}\n-- END PROG LOAD LOG --\n"));
        assert!(end.starts_with("line 28\n") && end.ends_with("line 39"), "{end}");
    }
}
