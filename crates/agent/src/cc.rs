//! Whether a congestion control can be had here, and if not, what can be done.

use std::ffi::OsString;
use std::path::Path;

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt::TcpCongestion,
};

use crate::error::AgentError;
use crate::sysctl;

/// Tries it on a socket, which makes the kernel load its module if it may. `group` is for the message.
///
/// # Errors
/// This kernel does not have it, or we may not use it: what there is, and whether a module would bring it.
pub fn check(group: &str, cc: &str) -> Result<(), AgentError> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let tried = socket(AddressFamily::Inet, SockType::Stream, flags, None)
        .and_then(|fd| setsockopt(&fd, TcpCongestion, &OsString::from(cc)));
    tried.map_err(|errno| {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        AgentError::CongestionControl {
            group: group.to_owned(),
            cc: cc.to_owned(),
            available: sysctl::read("net.ipv4.tcp_available_congestion_control")
                .unwrap_or_default(),
            way_out: way_out(cc, Path::new("/lib/modules"), &release),
            source: errno.into(),
        }
    })
}

/// Whether a module of this kernel is the congestion control; nothing where there are no modules at all.
fn way_out(cc: &str, modules: &Path, release: &str) -> String {
    let folder = modules.join(release);
    let Ok(list) = std::fs::read_to_string(folder.join("modules.dep")) else {
        return String::new();
    };
    let module = format!("tcp_{cc}");
    let files = list.lines().filter_map(|line| line.split_once(':')?.0.rsplit('/').next());
    let mut names = files.filter_map(|file| file.split_once(".ko"));
    if names.any(|(name, _)| name.replace('-', "_") == module) {
        return format!("; its module is there: `modprobe {module}` brings it");
    }
    format!("; {} has no module {module}", folder.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_kernel_has_is_fine() {
        assert!(check("g", "reno").is_ok());
        let error = check("g", "nosuch").unwrap_err().to_string();
        assert!(error.starts_with("flow g: this kernel has no congestion control `nosuch`"));
        assert!(error.contains("it has: ") && error.contains("reno"), "{error}");
    }

    #[test]
    fn a_module_that_would_bring_it_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(way_out("vegas", dir.path(), "6.1"), "");
        std::fs::create_dir(dir.path().join("6.1")).unwrap();
        let list = "kernel/net/ipv4/tcp_vegas.ko.xz: \nkernel/net/ipv4/tcp_bbr.ko: a.ko b.ko\n";
        std::fs::write(dir.path().join("6.1/modules.dep"), list).unwrap();
        for cc in ["vegas", "bbr"] {
            let told = way_out(cc, dir.path(), "6.1");
            assert!(told.contains(&format!("`modprobe tcp_{cc}`")), "{told}");
        }
        let told = way_out("veg", dir.path(), "6.1");
        assert!(told.ends_with("6.1 has no module tcp_veg"), "{told}");
    }
}
