//! Checks whether this kernel has a congestion control, can load one of ccbench's own, and accepts it on a socket.

use std::ffi::OsString;
use std::path::Path;

use ccbench_proto::cc::{self, Core};
use ccbench_proto::plan::Via;
use ccbench_proto::wire::ViaReason;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt::TcpCongestion,
};

use super::error::{NotAvailable, SocketError};
use super::{kernel_module, sysfs};

/// Tries a congestion control on a socket, which makes the kernel load its module if it can.
///
/// # Errors
/// This kernel does not have it or refuses it. The error names those that it has, and a module to load.
pub fn check(cc: &str) -> Result<(), NotAvailable> {
    try_on_socket(cc).map_err(|source| NotAvailable {
        available: sysfs::available().join(" "),
        hint: hint(cc, Path::new("/lib/modules"), &sysfs::release()),
        source,
    })
}

/// As [`check`], but accepts one that this process may not use: a trial may change `tcp_allowed_congestion_control`.
///
/// # Errors
/// This kernel does not have it.
pub fn check_exists(cc: &str) -> Result<(), NotAvailable> {
    match check(cc) {
        Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(super) fn try_on_socket(cc: &str) -> Result<(), std::io::Error> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let tried = socket(AddressFamily::Inet, SockType::Stream, flags, None)
        .and_then(|fd| setsockopt(&fd, TcpCongestion, &OsString::from(cc)));
    tried.map_err(Into::into)
}

/// Returns how to get a congestion control that this kernel does not have.
fn hint(name: &str, modules: &Path, release: &str) -> String {
    let module = format!("tcp_{name}");
    let own = cc::scheme(name).map_or(String::new(), |_| {
        format!("; ccbench has its own: write `[cc.my_{name}]` with `algorithm = \"{name}\"` and `cc = \"my_{name}\"`")
    });
    match sysfs::is_installed(modules, release, &module) {
        None => own,
        Some(true) => format!("; its module is installed: load it with `modprobe {module}`"),
        Some(false) => format!("; {} has no module {module}{own}", modules.join(release).display()),
    }
}

/// Chooses BPF or a module for one of ccbench's congestion controls, with the reason.
///
/// # Errors
/// Neither is possible; the error has the reasons.
pub fn choose(via: Via, core: &Core) -> Result<(Via, ViaReason), SocketError> {
    let bpf = || check_bpf_available();
    match via {
        Via::Builtin => Err(SocketError::NotBuiltin),
        Via::Bpf => bpf().map(|()| (Via::Bpf, ViaReason::configured())),
        Via::Module => {
            kernel_module::check_available(core).map(|()| (Via::Module, ViaReason::configured()))
        }
        Via::Auto => match bpf() {
            Ok(()) => Ok((Via::Bpf, ViaReason::bpf_supported())),
            Err(no_bpf) => match kernel_module::check_available(core) {
                Ok(()) => Ok((Via::Module, ViaReason::bpf_unavailable(no_bpf.to_string()))),
                Err(no_module) => Err(SocketError::NoBackend {
                    bpf: Box::new(no_bpf),
                    module: Box::new(no_module),
                }),
            },
        },
    }
}

/// Checks that this process can load BPF congestion controls here.
///
/// # Errors
/// The reason why it cannot, and how to fix it.
pub fn check_bpf_available() -> Result<(), SocketError> {
    #[cfg(feature = "ebpf")]
    return super::struct_ops::check_available(crate::privileges::privileges());
    #[cfg(not(feature = "ebpf"))]
    Err(SocketError::NoEbpf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reno_is_available_and_unknown_names_are_refused() {
        assert!(check("reno").is_ok());
        let error = check("nosuch").unwrap_err().to_string();
        assert!(error.starts_with("; it has: ") && error.contains("reno"), "{error}");
        assert!(check_exists("reno").is_ok() && check_exists("nosuch").is_err());
    }

    #[test]
    fn hint_names_a_module() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(hint("westwood", dir.path(), "6.1"), "");
        std::fs::create_dir(dir.path().join("6.1")).unwrap();
        let list = "kernel/net/ipv4/tcp_vegas.ko.xz: \nkernel/net/ipv4/tcp_bbr.ko: a.ko b.ko\n";
        std::fs::write(dir.path().join("6.1/modules.dep"), list).unwrap();
        for cc in ["vegas", "bbr"] {
            let text = hint(cc, dir.path(), "6.1");
            assert!(text.contains(&format!("`modprobe tcp_{cc}`")), "{text}");
        }
        let text = hint("veg", dir.path(), "6.1");
        assert!(text.ends_with("6.1 has no module tcp_veg"), "{text}");
    }

    #[test]
    fn hint_names_an_instance_of_ccbench() {
        let text = hint("ta_grad", Path::new("/nowhere"), "6.1");
        assert!(text.contains("`algorithm = \"ta_grad\"`"), "{text}");
    }
}
