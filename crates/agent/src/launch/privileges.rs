//! Privileges of a traffic process. It receives data from the network, so it runs as an unprivileged user, without
//! capabilities, inherited descriptors or a way to gain privileges.
//!
//! One exception: setting a congestion control outside `net.ipv4.tcp_allowed_congestion_control` needs CAP_NET_ADMIN in
//! the user namespace that owns the network namespace. A process that must set one keeps this capability.

use std::fmt;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::unistd::{Gid, Group, Uid, User, setgroups, setresgid, setresuid};
use rustix::fs::{Access, AtFlags, CWD, Mode, accessat};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities,
    clear_ambient_capability_set, configure_capability_in_ambient_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits,
    set_no_new_privs,
};

/// The dedicated traffic user, if it exists.
const USER: &str = "ccbench-traffic";
/// The unprivileged user that every distribution has.
const FALLBACK: &str = "nobody";
/// The kernel's overflow user and group, used where users have no names (the lab's guest has no /etc/passwd).
const OVERFLOW: u32 = 65_534;

/// A user and a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    uid: u32,
    gid: u32,
}

/// Why a text does not name a user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a user; give the name of a user of this machine, a UID or UID:GID, but not root"
)]
pub struct CredentialsError {
    text: String,
}

impl FromStr for Credentials {
    type Err = CredentialsError;

    fn from_str(text: &str) -> Result<Self, CredentialsError> {
        let named = || {
            let (user, group) = text.split_once(':').map_or((text, None), |(u, g)| (u, Some(g)));
            let known = User::from_name(user).ok().flatten();
            let uid = known.as_ref().map(|user| user.uid.as_raw()).or_else(|| user.parse().ok())?;
            let gid = match group {
                None => known.map_or(uid, |user| user.gid.as_raw()),
                Some(name) => {
                    let group = Group::from_name(name).ok().flatten();
                    group.map(|group| group.gid.as_raw()).or_else(|| name.parse().ok())?
                }
            };
            Some(Self { uid, gid })
        };
        let right =
            |found: &Self| ![found.uid, found.gid].iter().any(|id| [0, u32::MAX].contains(id));
        named().filter(right).ok_or_else(|| CredentialsError { text: text.to_owned() })
    }
}

impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { uid, gid } = *self;
        write!(f, "{uid}:{gid}")?;
        match User::from_uid(Uid::from_raw(uid)).ok().flatten() {
            Some(user) => write!(f, " ({})", user.name),
            None => Ok(()),
        }
    }
}

impl Default for Credentials {
    fn default() -> Self {
        let found = [USER, FALLBACK].into_iter().find_map(|name| name.parse().ok());
        found.unwrap_or(Self { uid: OVERFLOW, gid: OVERFLOW })
    }
}

impl Credentials {
    /// Returns the user.
    pub(super) fn uid(self) -> u32 {
        self.uid
    }

    /// Whether this process can switch to this user and then execute the program. In the agent's own user namespace the
    /// user may not be mapped, and a program may be executable by its owner only.
    pub(super) fn is_usable(self, program: Option<&Metadata>) -> bool {
        let mapped = |map: &str, id: u32| {
            let text = std::fs::read_to_string(map).unwrap_or_default();
            text.lines().any(|line| {
                let mut numbers = line.split_whitespace().map(|n| n.parse::<u64>().unwrap_or(0));
                let (first, _, count) = (numbers.next(), numbers.next(), numbers.next());
                let (first, count) = (first.unwrap_or(0), count.unwrap_or(0));
                (first..first.saturating_add(count)).contains(&u64::from(id))
            })
        };
        let executable = |file: &Metadata| {
            let bit = match (file.uid() == self.uid, file.gid() == self.gid) {
                (true, _) => 0o100,
                (false, true) => 0o010,
                (false, false) => 0o001,
            };
            file.mode() & bit != 0
        };
        Uid::effective().is_root()
            && mapped("/proc/self/uid_map", self.uid)
            && mapped("/proc/self/gid_map", self.gid)
            && program.is_none_or(executable)
    }
}

/// Why privileges could not be dropped.
#[derive(Debug, thiserror::Error)]
#[error("drop privileges for traffic: {op}: {source}")]
pub struct DropError {
    op: &'static str,
    source: io::Error,
}

fn failed<E: Into<io::Error>>(op: &'static str) -> impl FnOnce(E) -> DropError {
    move |source| DropError { op, source: source.into() }
}

/// Switches to the user `credentials` if possible. Drops all capabilities, but keeps CAP_NET_ADMIN with `net_admin`.
/// Clears the parent-death signal.
///
/// # Errors
/// The kernel refused; the process must not continue.
pub fn drop_all(
    credentials: Credentials,
    net_admin: bool,
    program: Option<&Metadata>,
) -> Result<(), DropError> {
    rustix::process::umask(Mode::from_raw_mode(0o077));
    let has = capabilities(None).map_err(failed("read the capabilities"))?;
    let wanted = if net_admin { CapabilitySet::NET_ADMIN } else { CapabilitySet::empty() };
    let kept = wanted & has.permitted;
    if has.effective.contains(CapabilitySet::SETPCAP) {
        // UID 0 then grants no capability at exec, and changing the UID does not clear the kept ones.
        let bits = CapabilitiesSecureBits::NO_ROOT
            | CapabilitiesSecureBits::NO_ROOT_LOCKED
            | CapabilitiesSecureBits::KEEP_CAPS;
        set_capabilities_secure_bits(bits).map_err(failed("set the secure bits"))?;
        for bit in (0..64).map(|nth| CapabilitySet::from_bits_retain(1 << nth)) {
            // EINVAL: beyond the last capability of this kernel.
            if !kept.contains(bit) && remove_capability_from_bounding_set(bit).is_err() {
                break;
            }
        }
    }
    let usable = credentials.is_usable(program);
    // A user namespace whose owner may not change groups denies that; the capabilities are dropped anyway.
    let denied = std::fs::read_to_string("/proc/self/setgroups");
    let denied = denied.is_ok_and(|text| text.trim() == "deny");
    if has.effective.contains(CapabilitySet::SETGID) && !denied {
        setgroups(&[]).map_err(failed("leave the supplementary groups"))?;
    }
    if usable {
        let (uid, gid) = (Uid::from_raw(credentials.uid), Gid::from_raw(credentials.gid));
        setresgid(gid, gid, gid).map_err(failed("take the group"))?;
        setresuid(uid, uid, uid).map_err(failed("take the user"))?;
    }
    clear_ambient_capability_set().map_err(failed("clear the ambient capabilities"))?;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: kept };
    set_capabilities(None, sets).map_err(failed("drop the capabilities"))?;
    if !kept.is_empty() {
        configure_capability_in_ambient_set(CapabilitySet::NET_ADMIN, true)
            .map_err(failed("keep CAP_NET_ADMIN"))?;
    }
    set_no_new_privs(true).map_err(failed("set no_new_privs"))
}

/// Closes all descriptors above standard error.
pub fn close_descriptors() {
    let open: Vec<i32> = match std::fs::read_dir("/proc/self/fd") {
        Ok(entries) => {
            let names = entries.flatten().map(|entry| entry.file_name());
            names.filter_map(|name| name.to_str()?.parse().ok()).collect()
        }
        Err(_) => (3..1024).collect(),
    };
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // The descriptor of the listing itself is closed already.
        let _ = nix::unistd::close(fd);
    }
}

/// Returns a folder for iperf3's temporary files, if the remaining privileges cannot write to the default one.
pub fn temporary_folder() -> Option<PathBuf> {
    let writable = |folder: &Path| {
        accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok()
    };
    let given = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    if writable(&given) {
        return None;
    }
    ["/tmp", "/var/tmp", "/dev/shm"].into_iter().map(PathBuf::from).find(|path| writable(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_name_or_numbers_but_is_not_root() {
        assert_eq!("1234:5678".parse(), Ok(Credentials { uid: 1234, gid: 5678 }));
        assert_eq!("4000000".parse(), Ok(Credentials { uid: 4_000_000, gid: 4_000_000 }));
        for wrong in ["", "root", "0", "0:5", "5:0", "4294967295", "-1", "no such user"] {
            let error = wrong.parse::<Credentials>().unwrap_err().to_string();
            assert!(error.contains("not root"), "{error}");
        }
        let default = Credentials::default();
        assert!(default.uid > 0 && default.gid > 0);
        assert!(default.to_string().starts_with(&format!("{}:{}", default.uid, default.gid)));
        assert_eq!(
            Credentials { uid: 4_000_000, gid: 5 }.to_string(),
            "4000000:5",
            "it has no name"
        );
    }
}
