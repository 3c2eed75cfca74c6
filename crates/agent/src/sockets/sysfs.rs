//! Congestion controls and modules in procfs and sysfs.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::SocketError;

const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
const MODULES: &str = "/sys/module";

/// Returns the congestion controls that are registered now (`tcp_available_congestion_control`); none if they cannot be read.
pub fn available() -> Vec<String> {
    registered().unwrap_or_default()
}

/// As [`available`].
///
/// # Errors
/// The list cannot be read, for example without a free descriptor.
pub fn registered() -> Result<Vec<String>, SocketError> {
    let path = Path::new(AVAILABLE);
    let text = std::fs::read_to_string(path).map_err(SocketError::file("read", path))?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// Returns the path of a loaded module's parameter.
pub fn parameter(module: &str, name: &str) -> PathBuf {
    Path::new(MODULES).join(module).join("parameters").join(name)
}

/// Returns a loaded module's readable parameters and their values.
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

/// Whether a module is loaded or built in.
pub fn is_loaded(module: &str) -> bool {
    Path::new(MODULES).join(module).is_dir()
}

/// As [`is_loaded`].
///
/// # Errors
/// The module cannot be looked up.
pub fn look_up_module(module: &str) -> Result<bool, SocketError> {
    let path = Path::new(MODULES).join(module);
    path.try_exists().map_err(SocketError::file("look up", &path))
}

/// Returns this kernel's release.
pub fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Whether this kernel's `modules.dep` lists the module; `None` if it has no modules.
pub fn is_installed(modules: &Path, release: &str, module: &str) -> Option<bool> {
    let list = std::fs::read_to_string(modules.join(release).join("modules.dep")).ok()?;
    let files = list.lines().filter_map(|line| line.split_once(':')?.0.rsplit('/').next());
    let mut names = files.filter_map(|file| file.split_once(".ko"));
    Some(names.any(|(name, _)| name.replace('-', "_") == module))
}

/// Loads a module.
///
/// # Errors
/// `modprobe` failed; the error has its message and a hint.
#[expect(clippy::disallowed_methods, reason = "starts modprobe")]
pub fn modprobe(module: &str) -> Result<(), SocketError> {
    let ran = Command::new("modprobe").arg(module).env("LC_ALL", "C").output();
    let ran = match ran {
        Ok(ran) => ran,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(SocketError::NoModprobe { module: module.to_owned() });
        }
        Err(source) => {
            return Err(SocketError::RunTool {
                tool: "modprobe",
                module: module.to_owned(),
                source,
            });
        }
    };
    if ran.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&ran.stderr).trim().to_owned();
    let hint = hint(module, &stderr);
    Err(SocketError::ToolFailed { stderr, hint })
}

/// Returns how to load a module that `modprobe` refused with this message.
pub(super) fn hint(module: &str, stderr: &str) -> String {
    let own = module.starts_with("ccb_");
    let release = release();
    // The messages of kmod and busybox.
    if stderr.contains("Exec format") || stderr.to_lowercase().contains("invalid module format") {
        return format!(
            "; it was built for a kernel other than {release}; rebuild it{}",
            if own { " (make -C kmod module-install)" } else { "" }
        );
    }
    if stderr.contains("Operation not permitted") {
        return "; loading modules needs root, outside of any user namespace".to_owned();
    }
    if stderr.contains("Key was rejected") || stderr.contains("Required key not available") {
        return "; this kernel only takes signed modules: sign this one, switch off Secure Boot, or use `via = \"bpf\"`".to_owned();
    }
    if own && (stderr.contains("not found") || stderr.contains("could not find")) {
        return format!(
            "; build and install it for {release}: make -C kmod module-install (needs linux-headers-{release}), or use \
             `via = \"bpf\"`"
        );
    }
    String::new()
}

/// Writes a parameter.
///
/// # Errors
/// The kernel refused; the error names the file and the value.
pub fn write(path: &Path, value: &str) -> Result<(), SocketError> {
    std::fs::write(path, value).map_err(|source| SocketError::Parameter {
        path: path.to_owned(),
        value: value.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_available_congestion_controls() {
        assert!(available().iter().any(|name| name == "reno"));
        assert!(!is_loaded("ccb_no_such_module"));
    }

    #[test]
    fn hint_distinguishes_a_wrong_kernel_from_a_missing_module() {
        let stderr = "modprobe: ERROR: could not insert 'ccb_ta': Exec format error";
        assert!(hint("ccb_ta", stderr).contains("a kernel other than"));
        let stderr = "modprobe: can't load module ccb_ta (extra/ccb_ta.ko): invalid module format";
        assert!(hint("ccb_ta", stderr).contains("a kernel other than"));
        let stderr = "modprobe: FATAL: Module ccb_ta not found in directory /lib/modules/6.1";
        assert!(hint("ccb_ta", stderr).contains("make -C kmod module-install"));
        assert_eq!(hint("tcp_vegas", stderr), "");
    }

    #[test]
    fn finds_modules_by_name() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(is_installed(dir.path(), "6.1", "tcp_vegas"), None);
        std::fs::create_dir(dir.path().join("6.1")).unwrap();
        let list = "kernel/net/ipv4/tcp_vegas.ko.xz: \nupdates/ccb-ta.ko: a.ko\n";
        std::fs::write(dir.path().join("6.1/modules.dep"), list).unwrap();
        assert_eq!(is_installed(dir.path(), "6.1", "tcp_vegas"), Some(true));
        assert_eq!(is_installed(dir.path(), "6.1", "ccb_ta"), Some(true));
        assert_eq!(is_installed(dir.path(), "6.1", "tcp_veg"), Some(false));
    }
}
