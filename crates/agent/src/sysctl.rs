//! Sysctls: read, set, restore. Only names under `net.` are ever written.

use std::io;
use std::path::{Path, PathBuf};

/// A sysctl could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    /// The name is not one that ccbench writes.
    #[error("sysctl: `{0}` is not a setting under net. (like net.ipv4.tcp_ecn)")]
    Name(String),
    /// The kernel refused.
    #[error("{op} sysctl {name}{value}: {source}{hint}")]
    Refused {
        /// "read", "set" or "restore".
        op: &'static str,
        /// Dotted name.
        name: String,
        /// " = 3"; empty when reading.
        value: String,
        /// The kernel's answer.
        source: io::Error,
        /// How to fix it, beginning with "; "; may be empty.
        hint: String,
    },
}

/// A sysctl as it was before a trial.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Saved {
    /// Dotted name.
    pub name: String,
    /// Its value at that time.
    pub before: String,
}

/// Returns the file of a sysctl. If a part of the name itself contains a dot (an interface `eth0.5`), write the name
/// with `/` as separator, as in sysctl(8).
///
/// # Errors
/// The name is outside `net.`, or climbs out of it.
pub fn path_of(name: &str) -> Result<PathBuf, SysctlError> {
    let relative = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
    let safe = relative.strip_prefix("net/").is_some_and(|rest| {
        rest.split('/').all(|part| {
            !part.is_empty()
                && !part.chars().all(|c| c == '.')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "_-.@:".contains(c))
        })
    });
    if safe {
        return Ok(PathBuf::from("/proc/sys").join(relative));
    }
    Err(SysctlError::Name(name.to_owned()))
}

/// Returns the sysctl's value, with single spaces between numbers.
///
/// # Errors
/// The name is refused, or the kernel has no such sysctl.
pub fn read(name: &str) -> Result<String, SysctlError> {
    let path = path_of(name)?;
    std::fs::read_to_string(path).map(|text| normal(&text)).map_err(|source| SysctlError::Refused {
        op: "read",
        name: name.to_owned(),
        value: String::new(),
        hint: if source.kind() == io::ErrorKind::NotFound {
            "; this kernel, or this network namespace, has no such setting".to_owned()
        } else {
            String::new()
        },
        source,
    })
}

/// Returns the sysctl's current value, last, preceded by those of all sysctls that the kernel changes along with it. A
/// sysctl for all interfaces or for new ones changes those of the interfaces, and forwarding changes redirects.
///
/// # Errors
/// The name is refused, or the kernel has no such sysctl.
pub fn save(name: &str) -> Result<Vec<Saved>, SysctlError> {
    let of = |name: String| read(&name).map(|before| Saved { name, before });
    let along = dependent_sysctls(&path_of(name)?, Path::new("/proc/sys"));
    // An unreadable one (an interface with an odd name) is left to the kernel, which changes it back along with `name`.
    let mut saved: Vec<Saved> = along.into_iter().filter_map(|other| of(other).ok()).collect();
    saved.push(of(name.to_owned())?);
    Ok(saved)
}

/// Returns the sysctls in the reverse of the order in which to restore them: the interfaces, then `default`, then `all`.
fn dependent_sysctls(path: &Path, root: &Path) -> Vec<String> {
    let Ok(name) = path.strip_prefix("/proc/sys/net") else { return Vec::new() };
    let parts: Vec<&str> = name.iter().filter_map(|part| part.to_str()).collect();
    let (version, key) = match parts[..] {
        ["ipv4", "ip_forward"] => ("ipv4", "forwarding"),
        [version, "conf", "all" | "default", key] => (version, key),
        _ => return Vec::new(),
    };
    let keys = if key == "forwarding" { vec![key, "accept_redirects"] } else { vec![key] };
    let conf = root.join("net").join(version).join("conf");
    let mut devs: Vec<String> = std::fs::read_dir(conf)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    devs.sort_by_key(|dev| match dev.as_str() {
        "all" => 2,
        "default" => 1,
        _ => 0,
    });
    let names = |dev: &String| {
        let of = |key| format!("net/{version}/conf/{dev}/{key}");
        keys.iter().map(of).collect::<Vec<_>>()
    };
    devs.iter().flat_map(names).collect()
}

/// Sets the sysctl and reads it back.
///
/// # Errors
/// The name is refused, or the kernel refused the value.
pub fn write(name: &str, value: &str) -> Result<(), SysctlError> {
    if name.replace('/', ".") == DEFAULT_CC {
        let allowed = read(ALLOWED_CC)?;
        check_default_cc(value, &allowed)?;
    }
    put("set", name, value)?;
    let now = read(name)?;
    if normal(value) == now {
        return Ok(());
    }
    Err(SysctlError::Refused {
        op: "set",
        name: name.to_owned(),
        value: format!(" = {value}"),
        source: io::Error::other(format!("the kernel set `{now}` instead")),
        hint: String::new(),
    })
}

const DEFAULT_CC: &str = "net.ipv4.tcp_congestion_control";
const ALLOWED_CC: &str = "net.ipv4.tcp_allowed_congestion_control";

/// Refuses a restricted congestion control as the default. In a network namespace, the kernel refuses it, too, but kernels up
/// to at least 7.2 then leak a reference to its module, which could never be unloaded again. So this does not even try.
fn check_default_cc(value: &str, allowed: &str) -> Result<(), SysctlError> {
    if allowed.split_whitespace().any(|cc| cc == value) {
        return Ok(());
    }
    Err(SysctlError::Refused {
        op: "set",
        name: DEFAULT_CC.to_owned(),
        value: format!(" = {value}"),
        source: io::ErrorKind::PermissionDenied.into(),
        hint: format!(
            "; first add it to {ALLOWED_CC} (now: {allowed}) in the initial network namespace"
        ),
    })
}

/// Restores the saved value if the current one differs. Does nothing if the sysctl's interface is gone.
///
/// # Errors
/// The kernel refused.
pub fn restore(saved: &Saved) -> Result<(), SysctlError> {
    match read(&saved.name) {
        Ok(now) if now == normal(&saved.before) => Ok(()),
        Err(SysctlError::Refused { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(())
        }
        _ => put("restore", &saved.name, &saved.before),
    }
}

fn put(op: &'static str, name: &str, value: &str) -> Result<(), SysctlError> {
    let path = path_of(name)?;
    std::fs::write(path, value).map_err(|source| SysctlError::Refused {
        op,
        name: name.to_owned(),
        value: format!(" = {value}"),
        hint: match source.raw_os_error() {
            Some(libc::EINVAL) => "; this kernel does not know that value".to_owned(),
            Some(libc::EACCES | libc::EPERM) => {
                "; it belongs to the whole machine, not to a namespace: set it by hand".to_owned()
            }
            _ => String::new(),
        },
        source,
    })
}

fn normal(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_file_under_net() {
        let path = |name| path_of(name).expect("allowed");
        assert_eq!(path("net.ipv4.tcp_ecn"), PathBuf::from("/proc/sys/net/ipv4/tcp_ecn"));
        assert_eq!(
            path("net/ipv4/conf/eth0.5/rp_filter"),
            PathBuf::from("/proc/sys/net/ipv4/conf/eth0.5/rp_filter")
        );
    }

    #[test]
    fn saves_and_restores_dependent_settings() {
        let root = tempfile::tempdir().unwrap();
        for dev in ["all", "default", "eth0.5"] {
            std::fs::create_dir_all(root.path().join("net/ipv4/conf").join(dev)).unwrap();
        }
        let along = |name: &str| dependent_sysctls(&path_of(name).unwrap(), root.path());
        let of = |dev: &str, key: &str| format!("net/ipv4/conf/{dev}/{key}");
        assert_eq!(
            along("net.ipv4.conf.default.rp_filter"),
            ["eth0.5", "default", "all"].map(|dev| of(dev, "rp_filter"))
        );
        let forwarding = along("net.ipv4.ip_forward");
        assert_eq!(forwarding.len(), 6);
        assert!(forwarding.contains(&of("eth0.5", "accept_redirects")), "{forwarding:?}");
        assert_eq!(along("net.ipv4.conf.eth0.rp_filter"), Vec::<String>::new());
        assert_eq!(along("net.ipv4.tcp_ecn"), Vec::<String>::new());
    }

    #[test]
    fn rejects_names_outside_net() {
        for name in [
            "kernel.panic",
            "net",
            "net.",
            "net/../kernel/panic",
            "net.ipv4..x",
            "/net/ipv4/x",
            "net/./x",
            "net.ipv4.tcp ecn",
            "vm.swappiness",
        ] {
            assert!(path_of(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_restricted_default_congestion_control_is_not_tried() {
        assert!(check_default_cc("cubic", "reno cubic").is_ok());
        let error = check_default_cc("bbr", "reno cubic").unwrap_err().to_string();
        assert!(
            error.contains("tcp_congestion_control = bbr") && error.contains("now: reno cubic")
        );
    }

    #[test]
    fn errors_name_setting_and_value() {
        let error = read("net.ipv4.no_such_setting").unwrap_err().to_string();
        assert!(error.starts_with("read sysctl net.ipv4.no_such_setting: "), "{error}");
        assert!(error.contains("has no such setting"), "{error}");
    }
}
