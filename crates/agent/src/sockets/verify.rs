//! Whether this kernel has a congestion control, takes one of ccbench's own, and accepts it on a socket.

use std::ffi::OsString;
use std::path::Path;

use ccbench_proto::cc::{self, Core};
use ccbench_proto::plan::Via;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt::TcpCongestion,
};

use super::{kernel_module, sysfs};
use crate::error::AgentError;

/// Tries it on a socket, which makes the kernel load its module if it may. `group` is for the message.
///
/// # Errors
/// This kernel does not have it, or we may not use it: what there is, and whether a module would bring it.
pub fn check(group: &str, cc: &str) -> Result<(), AgentError> {
    try_it(cc).map_err(|source| AgentError::CongestionControl {
        group: group.to_owned(),
        cc: cc.to_owned(),
        available: sysfs::available().join(" "),
        way_out: way_out(cc, Path::new("/lib/modules"), &sysfs::release()),
        source,
    })
}

pub(super) fn try_it(cc: &str) -> Result<(), std::io::Error> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let tried = socket(AddressFamily::Inet, SockType::Stream, flags, None)
        .and_then(|fd| setsockopt(&fd, TcpCongestion, &OsString::from(cc)));
    tried.map_err(Into::into)
}

/// What would bring it: ccbench itself, or a module of this kernel; nothing where there are no modules at all.
fn way_out(name: &str, modules: &Path, release: &str) -> String {
    let module = format!("tcp_{name}");
    let own = cc::scheme(name).map_or(String::new(), |_| {
        format!("; ccbench has its own: write `[cc.my_{name}]` with `algorithm = \"{name}\"` and `cc = \"my_{name}\"`")
    });
    match sysfs::on_disk(modules, release, &module) {
        None => own,
        Some(true) => format!("; its module is there: `modprobe {module}` brings it"),
        Some(false) => format!("; {} has no module {module}{own}", modules.join(release).display()),
    }
}

#[cfg(not(feature = "ebpf"))]
pub(super) const NO_EBPF: &str =
    "this ccbench-agent was built without BPF (feature ebpf): build it with clang installed";

/// How one of ccbench's own gets into this kernel, and why so.
///
/// # Errors
/// No way is open: what is missing for each.
pub fn choose(via: Via, core: &Core) -> Result<(Via, String), String> {
    let bpf = || bpf_possible();
    match via {
        Via::Builtin => Err("ccbench's own is not the kernel's".to_owned()),
        Via::Bpf => bpf().map(|()| (Via::Bpf, "the plan says so".to_owned())),
        Via::Module => {
            kernel_module::possible(core).map(|()| (Via::Module, "the plan says so".to_owned()))
        }
        Via::Auto => match bpf() {
            Ok(()) => Ok((Via::Bpf, "this kernel takes BPF congestion controls".to_owned())),
            Err(no_bpf) => match kernel_module::possible(core) {
                Ok(()) => Ok((Via::Module, format!("not by BPF: {no_bpf}"))),
                Err(no_module) => Err(format!("{no_bpf}; and {no_module}")),
            },
        },
    }
}

/// Whether this process can load BPF congestion controls here.
///
/// # Errors
/// What is missing, and what to do.
pub fn bpf_possible() -> Result<(), String> {
    #[cfg(feature = "ebpf")]
    return super::struct_ops::possible(crate::privileges::privileges());
    #[cfg(not(feature = "ebpf"))]
    Err(NO_EBPF.to_owned())
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
        assert_eq!(way_out("westwood", dir.path(), "6.1"), "");
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

    #[test]
    fn one_that_ccbench_would_bring_is_named() {
        let told = way_out("ta_grad", Path::new("/nowhere"), "6.1");
        assert!(told.contains("`algorithm = \"ta_grad\"`"), "{told}");
    }
}
