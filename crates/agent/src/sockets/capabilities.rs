//! ECN capabilities of this kernel. They are probed once at run time, not derived from the version.

use std::sync::OnceLock;

use super::ecn::Capabilities;
#[cfg(feature = "ebpf")]
use super::ecn::flag;

static FOUND: OnceLock<Capabilities> = OnceLock::new();

/// Returns the capabilities. The first call probes them: it creates a network namespace and briefly registers a congestion control.
pub fn capabilities() -> &'static Capabilities {
    FOUND.get_or_init(|| {
        let (ops_flags, ops_reason) = ops_flags();
        Capabilities { accecn_sysctl: accecn_sysctl(), ops_flags, ops_reason }
    })
}

/// Tries the setting in a new network namespace, which ends with the thread that created it.
fn accecn_sysctl() -> bool {
    let tried = std::thread::Builder::new().name("probe-ecn".to_owned()).spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).is_ok()
            && std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "3").is_ok()
    });
    tried.is_ok_and(|thread| thread.join().unwrap_or(false))
}

/// Returns the largest accepted set of flags; if none is accepted, 0 and the reason.
#[cfg(feature = "ebpf")]
fn ops_flags() -> (u32, String) {
    let plain = flag::NON_RESTRICTED;
    let sets =
        [flag::ACCECN | flag::NO_FALLBACK_RFC3168, flag::ACCECN, plain | flag::NEEDS_ECN, plain];
    let mut why = String::new();
    for set in sets {
        match super::hook::try_flags(set) {
            Ok(()) => return (set, String::new()),
            Err(error) => why = error.to_string(),
        }
    }
    (0, why)
}

#[cfg(not(feature = "ebpf"))]
fn ops_flags() -> (u32, String) {
    (0, "this ccbench-agent was built without the feature ebpf".to_owned())
}
