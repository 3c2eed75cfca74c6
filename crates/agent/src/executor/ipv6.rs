//! Refuses settings that delete IPv6 addresses, which no undo brings back: with a value other than 0 in an interface's `disable_ipv6`,
//! the kernel deletes the interface's IPv6 addresses and routes, and with 0 it assigns only the link-local address again.

use std::path::Path;

use crate::error::AgentError;
use crate::interfaces::Interfaces;
use crate::sysctl::path_of;

const SETTINGS: &str = "/proc/sys";
const CONF: &str = "net/ipv6/conf";
const DISABLE: &str = "disable_ipv6";

/// Refuses sysctls that disable IPv6 on an interface of the machine's network namespace, or on one with an address that the kernel
/// does not assign by itself. An interface whose IPv6 is disabled already has none.
///
/// # Errors
/// The first such sysctl, or an interface cannot be read.
pub fn check(sysctls: &[(String, String)], interfaces: &dyn Interfaces) -> Result<(), AgentError> {
    check_in(Path::new(SETTINGS), sysctls, interfaces)
}

fn check_in(
    root: &Path,
    sysctls: &[(String, String)],
    interfaces: &dyn Interfaces,
) -> Result<(), AgentError> {
    for (name, value) in sysctls {
        let devs = disabled_by(name, value, root);
        if devs.is_empty() {
            continue;
        }
        let is_host = interfaces.is_host_namespace();
        for dev in devs {
            let failed = |source| AgentError::Ipv6Addresses { dev: dev.clone(), source };
            if is_host || interfaces.has_assigned_ipv6(&dev).map_err(failed)? {
                return Err(AgentError::DisablesIpv6 { name: name.clone(), dev });
            }
        }
    }
    Ok(())
}

/// Returns the interfaces on which the sysctl disables IPv6, in the order of their names. The kernel restores loopback's address.
fn disabled_by(name: &str, value: &str, root: &Path) -> Vec<String> {
    let Ok(path) = path_of(name) else { return Vec::new() };
    let Ok(path) = path.strip_prefix(Path::new(SETTINGS).join(CONF)) else { return Vec::new() };
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    let [dev, DISABLE] = parts[..] else { return Vec::new() };
    if value.trim() == "0" {
        return Vec::new();
    }
    let conf = root.join(CONF);
    let mut devs = match dev {
        // It applies to interfaces that are added later.
        "default" => Vec::new(),
        "all" => names_in(&conf),
        dev => vec![dev.to_owned()],
    };
    let is_on = |dev: &str| {
        let now = std::fs::read_to_string(conf.join(dev).join(DISABLE));
        now.is_ok_and(|now| now.trim() == "0")
    };
    devs.retain(|dev| !matches!(dev.as_str(), "all" | "default" | "lo") && is_on(dev));
    devs.sort();
    devs
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interfaces::fake::FakeInterfaces;

    /// Returns settings in which IPv6 is on, except on `off0`.
    fn settings() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for dev in ["all", "default", "lo", "eth0.5", "off0", "v6eth0"] {
            let folder = root.path().join(CONF).join(dev);
            std::fs::create_dir_all(&folder).unwrap();
            let value = if dev == "off0" { "1\n" } else { "0\n" };
            std::fs::write(folder.join(DISABLE), value).unwrap();
        }
        root
    }

    #[test]
    fn a_setting_that_would_delete_addresses_is_refused() {
        let root = settings();
        let check = |name: &str, value: &str, interfaces: &FakeInterfaces| {
            let sysctls = [(name.to_owned(), value.to_owned())];
            check_in(root.path(), &sysctls, interfaces).map_err(|error| error.to_string())
        };
        let (host, other) = (FakeInterfaces::of_the_host(), FakeInterfaces::default());
        let error = check("net.ipv6.conf.all.disable_ipv6", "1", &host).unwrap_err();
        assert!(error.contains("net.ipv6.conf.all.disable_ipv6") && error.contains("eth0.5"));
        let of_vlan = "net/ipv6/conf/eth0.5/disable_ipv6";
        assert!(check(of_vlan, "1", &host).is_err());
        for (name, value) in [
            (of_vlan, "0"),
            ("net.ipv6.conf.default.disable_ipv6", "1"),
            ("net.ipv6.conf.lo.disable_ipv6", "1"),
            // Set by hand before the experiment.
            ("net.ipv6.conf.off0.disable_ipv6", "1"),
            ("net.ipv6.conf.all.forwarding", "1"),
            ("net.ipv4.tcp_ecn", "1"),
        ] {
            assert_eq!(check(name, value, &host), Ok(()), "{name} = {value}");
        }
        assert_eq!(check(of_vlan, "1", &other), Ok(()), "only its link-local address");
        let error = check("net.ipv6.conf.all.disable_ipv6", "1", &other).unwrap_err();
        assert!(error.contains("v6eth0"), "{error}");
    }
}
