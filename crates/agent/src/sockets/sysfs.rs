//! What the kernel shows of congestion controls in files, and modules.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
const MODULES: &str = "/sys/module";

/// Names that the kernel has now, whoever registered them.
pub fn available() -> Vec<String> {
    let text = std::fs::read_to_string(AVAILABLE).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// A loaded module's parameter.
pub fn parameter(module: &str, name: &str) -> PathBuf {
    Path::new(MODULES).join(module).join("parameters").join(name)
}

/// A loaded module's parameters, those that can be read.
pub fn parameters(module: &str) -> BTreeMap<String, String> {
    let folder = Path::new(MODULES).join(module).join("parameters");
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries
        .filter_map(|entry| {
            let value = std::fs::read_to_string(entry.path()).ok()?;
            Some((entry.file_name().into_string().ok()?, value.trim().to_owned()))
        })
        .collect()
}

/// Whether it is loaded, or part of the kernel's image and known by name.
pub fn is_loaded(module: &str) -> bool {
    Path::new(MODULES).join(module).is_dir()
}

/// This kernel's release.
pub fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Whether this kernel has the module in its folder; nothing where there are no modules at all.
pub fn on_disk(modules: &Path, release: &str, module: &str) -> Option<bool> {
    let list = std::fs::read_to_string(modules.join(release).join("modules.dep")).ok()?;
    let files = list.lines().filter_map(|line| line.split_once(':')?.0.rsplit('/').next());
    let mut names = files.filter_map(|file| file.split_once(".ko"));
    Some(names.any(|(name, _)| name.replace('-', "_") == module))
}

/// Loads a module of this kernel.
///
/// # Errors
/// What `modprobe` said and what to do, for a module that is ccbench's own or the kernel's.
pub fn modprobe(module: &str) -> Result<(), String> {
    let ran = Command::new("modprobe").arg(module).env("LC_ALL", "C").output();
    let ran = match ran {
        Ok(ran) => ran,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(format!(
                "modprobe is not installed (apt install kmod); load {module} by hand: insmod {module}.ko"
            ));
        }
        Err(error) => return Err(format!("run modprobe {module}: {error}")),
    };
    if ran.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ran.stderr).trim().to_owned();
    Err(format!("{said}{}", way_out(module, &said)))
}

/// What to do about a module that does not load.
fn way_out(module: &str, said: &str) -> String {
    let own = module.starts_with("ccb_");
    let release = release();
    // kmod's words, and busybox's.
    if said.contains("Exec format") || said.to_lowercase().contains("invalid module format") {
        return format!(
            "; it was built for another kernel than this {release}: build it again{}",
            if own { " (make -C kmod module-install)" } else { "" }
        );
    }
    if said.contains("Operation not permitted") {
        return "; loading modules needs root, outside of any user namespace".to_owned();
    }
    if said.contains("Key was rejected") || said.contains("Required key not available") {
        return "; this kernel only takes signed modules: sign it, switch Secure Boot off, or use `via = \"bpf\"`".to_owned();
    }
    if own && (said.contains("not found") || said.contains("could not find")) {
        return format!(
            "; build and install it for {release}: make -C kmod module-install (needs linux-headers-{release}), or use \
             `via = \"bpf\"`"
        );
    }
    String::new()
}

/// Takes a module out of the kernel.
///
/// # Errors
/// What `rmmod` said.
pub fn rmmod(module: &str) -> Result<(), String> {
    let ran = Command::new("rmmod").arg(module).env("LC_ALL", "C").output();
    let ran = ran.map_err(|e| format!("run rmmod {module}: {e}"))?;
    if ran.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&ran.stderr).trim().to_owned())
}

/// Writes a parameter.
///
/// # Errors
/// The file, the value, and the last line of the kernel's log that names the module, if it can be read.
pub fn write(path: &Path, value: &str) -> Result<(), String> {
    std::fs::write(path, value).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::NotFound => "the kernel has no such parameter".to_owned(),
            io::ErrorKind::PermissionDenied => {
                "it cannot be changed while the module is loaded, or this is not root".to_owned()
            }
            _ => error.to_string(),
        };
        format!("write `{value}` to {}: {why}", path.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_has_is_read() {
        assert!(available().iter().any(|name| name == "reno"));
        assert!(!is_loaded("ccb_no_such_module"));
    }

    #[test]
    fn a_module_of_another_kernel_is_told_from_one_that_is_not_there() {
        let said = "modprobe: ERROR: could not insert 'ccb_ta': Exec format error";
        assert!(way_out("ccb_ta", said).contains("another kernel"));
        let said = "modprobe: can't load module ccb_ta (extra/ccb_ta.ko): invalid module format";
        assert!(way_out("ccb_ta", said).contains("another kernel"));
        let said = "modprobe: FATAL: Module ccb_ta not found in directory /lib/modules/6.1";
        assert!(way_out("ccb_ta", said).contains("make -C kmod module-install"));
        assert_eq!(way_out("tcp_vegas", said), "");
    }

    #[test]
    fn the_list_of_modules_is_searched_by_name() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(on_disk(dir.path(), "6.1", "tcp_vegas"), None);
        std::fs::create_dir(dir.path().join("6.1")).unwrap();
        let list = "kernel/net/ipv4/tcp_vegas.ko.xz: \nupdates/ccb-ta.ko: a.ko\n";
        std::fs::write(dir.path().join("6.1/modules.dep"), list).unwrap();
        assert_eq!(on_disk(dir.path(), "6.1", "tcp_vegas"), Some(true));
        assert_eq!(on_disk(dir.path(), "6.1", "ccb_ta"), Some(true));
        assert_eq!(on_disk(dir.path(), "6.1", "tcp_veg"), Some(false));
    }
}
