//! BPF objects: opening, patching and loading them, what libbpf logs meanwhile, and reading their maps.

use std::ffi::OsStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{
    Map, MapCore as _, MapFlags, MapHandle, MapType, Object, ObjectBuilder, OpenObject,
    PrintCallback, PrintLevel, set_print,
};

use super::sysfs;

/// Bytes of a congestion control's name in the kernel, its final NUL included.
pub(super) const NAME_BYTES: usize = 16;
/// Kernels before 6.4 do not know it.
pub(super) const BPF_F_LINK: u32 = 0x2000;
/// Lines of the verifier's log that an error shows: the last ones say what it refused.
const LOG_LINES: usize = 12;

/// What libbpf and the verifier say goes into the error, not to the terminal.
pub(super) fn quietly<T>(what: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let log = Log::begin();
    what().map_err(|error| match log.tail() {
        said if said.is_empty() => error,
        said => format!("{error}; the kernel said: {said}"),
    })
}

pub(super) fn open(object: &[u8], what: &str) -> Result<OpenObject, String> {
    ObjectBuilder::default()
        .open_memory(object)
        .map_err(|e| format!("read the BPF object {what}: {}", words(&e)))
}

pub(super) fn load(open: OpenObject, what: &str) -> Result<Object, String> {
    open.load().map_err(|e| format!("load the BPF object {what}: {}", words(&e)))
}

/// An error with its causes.
pub(super) fn words(error: &libbpf_rs::Error) -> String {
    format!("{error:#}")
}

pub(super) fn patch(
    open: &mut OpenObject,
    map: &str,
    at: usize,
    bytes: &[u8],
) -> Result<(), String> {
    let missing = || format!("the BPF object has no {map} of {} bytes", at + bytes.len());
    let mut found = open.maps_mut().find(|m| m.name() == OsStr::new(map)).ok_or_else(missing)?;
    let value = found.initial_value_mut().ok_or_else(missing)?;
    value.get_mut(at..at + bytes.len()).ok_or_else(missing)?.copy_from_slice(bytes);
    Ok(())
}

pub(super) fn map<'obj>(object: &'obj Object, name: &str) -> Result<Map<'obj>, String> {
    let found = object.maps().find(|map| map.name() == OsStr::new(name));
    found.ok_or_else(|| format!("the BPF object has no map {name}"))
}

/// A counter in a section of data; 0 if it cannot be read.
pub(super) fn count(object: &Object, section: &str, at: usize) -> u64 {
    let value = map(object, section)
        .ok()
        .and_then(|map| map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()?);
    u64_at(&value.unwrap_or_default(), at)
}

/// 0 if it is not there.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

/// As the kernel keeps it.
pub(super) fn name(cc: &str) -> Result<[u8; NAME_BYTES], String> {
    let mut bytes = [0; NAME_BYTES];
    match bytes[..NAME_BYTES - 1].get_mut(..cc.len()) {
        Some(room) => room.copy_from_slice(cc.as_bytes()),
        None => return Err(format!("`{cc}` is longer than {} bytes", NAME_BYTES - 1)),
    }
    Ok(bytes)
}

/// Unregisters an instance that was registered without a link; one that is gone is fine.
///
/// # Errors
/// The kernel refused, or it is held by a link.
pub fn unregister(name: &str) -> Result<(), String> {
    if !sysfs::available().iter().any(|there| there == name) {
        return Ok(());
    }
    let mut bytes = name.as_bytes().to_vec();
    bytes.push(0);
    for map in MapInfoIter::default().filter(|map| map.ty == MapType::StructOps) {
        let Ok(handle) = MapHandle::from_map_id(map.id) else { continue };
        let key = 0u32.to_ne_bytes();
        let Ok(Some(value)) = handle.lookup(&key, MapFlags::ANY) else { continue };
        if value.windows(bytes.len()).any(|part| part == bytes) {
            return handle.delete(&key).map_err(|e| format!("unregister {name}: {e:#}"));
        }
    }
    Err(format!("no BPF map of this kernel holds {name}"))
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What libbpf says while it loads; it has one listener for the whole process.
pub(crate) struct Log {
    _one: MutexGuard<'static, ()>,
    before: Option<(PrintLevel, PrintCallback)>,
}

static LOADING: Mutex<()> = Mutex::new(());
static SAID: Mutex<String> = Mutex::new(String::new());

impl Log {
    /// Listens until it is dropped; another load waits for that.
    pub(crate) fn begin() -> Self {
        let one = lock(&LOADING);
        lock(&SAID).clear();
        let before = set_print(Some((PrintLevel::Warn, |_, text| lock(&SAID).push_str(&text))));
        Self { _one: one, before }
    }

    /// The last lines that say something.
    pub(crate) fn tail(&self) -> String {
        let said = lock(&SAID);
        tail(&said)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        set_print(self.before.take());
    }
}

fn tail(said: &str) -> String {
    let lines = said.lines().map(str::trim_end);
    let lines: Vec<&str> =
        lines.filter(|line| !line.is_empty() && !line.contains("END PROG LOAD LOG")).collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_log_is_shown() {
        let said: String = (0..40).map(|i| format!("line {i}\n")).collect();
        let end = tail(&format!("{said}\n-- END PROG LOAD LOG --\n"));
        assert!(end.starts_with("line 28\n") && end.ends_with("line 39"), "{end}");
    }
}
