//! Detects which qdiscs this kernel has.

use crate::ShaperError;
use crate::discipline::{self, KernelSupport};
use crate::netlink::message::Message;
use crate::netlink::{self, CREATE, Socket};
use crate::qdisc::{ROOT, TCA_KIND};

/// Qdiscs that shape rate and delay, with their kernel options.
const SHAPERS: [(&str, &str); 3] =
    [("htb", "NET_SCH_HTB"), ("tbf", "NET_SCH_TBF"), ("netem", "NET_SCH_NETEM")];

/// Returns every qdisc that a plan can need.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    let queues =
        discipline::KINDS.iter().filter(|(_, kernel)| *kernel != KernelSupport::UserspaceOnly);
    SHAPERS.iter().map(|(kind, _)| *kind).chain(queues.map(|(kind, _)| *kind))
}

/// Returns the kernel option of a qdisc, filter or action, without `CONFIG_`.
pub fn missing_config(kind: &str) -> &'static str {
    if let Some((_, option)) = SHAPERS.iter().find(|(name, _)| *name == kind) {
        return option;
    }
    match discipline::KINDS.iter().find(|(name, _)| *name == kind) {
        Some((_, KernelSupport::Config(option))) => return option,
        Some(_) => return "NET_SCHED",
        None => {}
    }
    match kind {
        "clsact" | "ingress" => "NET_SCH_INGRESS",
        "u32" => "NET_CLS_U32",
        "mirred" => "NET_ACT_MIRRED",
        "police" => "NET_ACT_POLICE",
        _ => "NET_SCHED",
    }
}

/// Returns those [`kinds`] that this kernel accepts. Tries each on the loopback interface of a new network namespace, which does not touch
/// the machine's interfaces but may load modules. Without permission to create a namespace, the list comes from the kernel's module files;
/// without those it is empty.
pub fn supported_qdiscs() -> Vec<String> {
    tried().unwrap_or_else(|error| {
        tracing::debug!(%error, "cannot try qdiscs in a namespace; reading the kernel's files instead");
        from_files(&modules_files())
    })
}

fn tried() -> Result<Vec<String>, ShaperError> {
    let thread = std::thread::Builder::new().name("probe".to_owned()).spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).map_err(|errno| {
            ShaperError::System { op: "make a network namespace", source: errno.into() }
        })?;
        let ifindex = netlink::ifindex("lo")?;
        let mut socket = Socket::open()?;
        let mut found = Vec::new();
        for kind in kinds() {
            if accepts(&mut socket, ifindex, kind)? {
                found.push(kind.to_owned());
            }
        }
        Ok(found)
    });
    let thread = thread.map_err(|source| ShaperError::System { op: "start a thread", source })?;
    thread.join().unwrap_or_else(|_| {
        Err(ShaperError::System {
            op: "try qdiscs in a namespace",
            source: std::io::Error::other("the thread panicked"),
        })
    })
}

/// A kind that requires options answers `EINVAL` without them; an unknown kind answers `ENOENT`.
fn accepts(socket: &mut Socket, ifindex: u32, kind: &str) -> Result<bool, ShaperError> {
    let message = Message::new(libc::RTM_NEWQDISC, CREATE)
        .tcmsg(ifindex, 0x1_0000, ROOT, 0)
        .attr_str(TCA_KIND, kind)
        .finish();
    match socket.request("try qdisc", "lo", &message) {
        Ok(()) => netlink::delete_root(socket, ifindex, "lo").map(|()| true),
        Err(error) if error.is_errno(libc::ENOENT) => Ok(false),
        Err(error) if error.is_errno(libc::EINVAL) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Returns the contents of the files that list loaded, built-in and available modules.
fn modules_files() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    [
        "/proc/modules".to_owned(),
        format!("/lib/modules/{release}/modules.builtin"),
        format!("/lib/modules/{release}/modules.dep"),
    ]
    .iter()
    .filter_map(|path| std::fs::read_to_string(path).ok())
    .collect()
}

/// Returns the kinds whose module is listed, and those that every kernel with a packet scheduler has.
fn from_files(files: &str) -> Vec<String> {
    if files.is_empty() {
        return Vec::new();
    }
    let named = |kind: &str| {
        let module = format!("sch_{kind}");
        files.split([' ', '/', '\n', ':']).any(|word| {
            word == module || word.strip_prefix(&module).is_some_and(|rest| rest.starts_with(".ko"))
        })
    };
    let always = |kind: &str| discipline::KINDS.contains(&(kind, KernelSupport::Always));
    kinds().filter(|kind| always(kind) || named(kind)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_loaded_built_in_and_available_modules() {
        let files = "sch_htb 32768 1 - Live 0x0\n\
                     kernel/net/sched/sch_tbf.ko\n\
                     kernel/net/sched/sch_fq_codel.ko.zst: kernel/x/y.ko\n";
        assert_eq!(
            from_files(files),
            ["htb", "tbf", "pfifo", "bfifo", "pfifo_head_drop", "fq_codel"]
        );
        assert_eq!(from_files(""), Vec::<String>::new());
    }

    #[test]
    fn every_kind_has_an_option() {
        for kind in kinds().filter(|kind| !kind.contains("fifo")) {
            let option = missing_config(kind);
            assert_eq!(option, format!("NET_SCH_{}", kind.to_uppercase()));
        }
    }
}
