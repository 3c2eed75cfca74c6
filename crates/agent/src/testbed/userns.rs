//! A testbed without root privileges: a user namespace in which the user is root.

use std::io;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

use super::error::TestbedError;
use super::netns;

/// Returns notes about what a testbed in a user namespace cannot do.
fn limits() -> [String; 2] {
    let available = read_setting("net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    [
        "no eBPF without root: sockets are sampled with inet_diag".to_owned(),
        format!("no congestion control can be loaded without root; there are {available}"),
    ]
}

/// Moves this process, which must be single-threaded, out of the machine's network: as root into a network namespace,
/// otherwise into a user namespace that owns one. Returns whether it is rootless, and notes.
///
/// # Errors
/// User namespaces are disabled; the error names the setting.
pub fn isolate(rootless: bool) -> Result<(bool, Vec<String>), TestbedError> {
    let mut notes = Vec::new();
    let root = geteuid().is_root();
    if root && !rootless {
        match netns::enter_own_namespace() {
            Ok(note) => {
                notes.extend(note);
                let inner = in_user_namespace();
                notes.extend(limits().into_iter().filter(|_| inner));
                return Ok((inner, notes));
            }
            Err(e) if e.raw_os_error() == Some(Errno::EPERM as i32) => {
                notes.push(
                    "root without CAP_SYS_ADMIN (a container?): using a user namespace".into(),
                );
            }
            Err(source) => {
                return Err(TestbedError::Namespace { node: "the testbed itself".into(), source });
            }
        }
    }
    enter_user_namespace()?;
    notes.extend(netns::small_socket_tables());
    notes.extend(limits());
    Ok((true, notes))
}

fn enter_user_namespace() -> Result<(), TestbedError> {
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET).map_err(refused)?;
    // Kernels before 3.19 lack this file, and gid_map does not need it there.
    match std::fs::write("/proc/self/setgroups", "deny") {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(not_mapped(e)),
        _ => {}
    }
    std::fs::write("/proc/self/uid_map", format!("0 {uid} 1")).map_err(not_mapped)?;
    std::fs::write("/proc/self/gid_map", format!("0 {gid} 1")).map_err(not_mapped)
}

fn refused(errno: Errno) -> TestbedError {
    TestbedError::UserNamespace { source: errno.into(), hint: hint(errno, read_setting) }
}

fn not_mapped(source: io::Error) -> TestbedError {
    let errno = Errno::from_raw(source.raw_os_error().unwrap_or(0));
    TestbedError::UserNamespace { source, hint: hint(errno, read_setting) }
}

fn read_setting(key: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/sys/{key}")).ok()?;
    Some(text.trim().to_owned())
}

/// Returns how to enable user namespaces, from the settings with which distributions restrict them.
fn hint(errno: Errno, setting: impl Fn(&str) -> Option<String>) -> String {
    let is = |key: &str, value: &str| setting(key).is_some_and(|now| now == value);
    let run = |command: &str| format!("ask the administrator to run `{command}`, or run as root");
    if is("user/max_user_namespaces", "0") {
        return run("sysctl user.max_user_namespaces=10000");
    }
    if is("user/max_net_namespaces", "0") {
        return run("sysctl user.max_net_namespaces=10000");
    }
    if is("kernel/unprivileged_userns_clone", "0") {
        return run("sysctl kernel.unprivileged_userns_clone=1");
    }
    if is("kernel/apparmor_restrict_unprivileged_userns", "1") {
        return run("sysctl kernel.apparmor_restrict_unprivileged_userns=0");
    }
    match errno {
        Errno::EPERM | Errno::EACCES => {
            "a chroot, a container or a security module forbids it here; run it outside, or as root"
                .into()
        }
        Errno::ENOSPC | Errno::EUSERS => run("sysctl user.max_user_namespaces=10000"),
        Errno::EINVAL | Errno::ENOSYS => {
            "this kernel was built without CONFIG_USER_NS; run as root".into()
        }
        _ => "run as root".into(),
    }
}

/// Whether this is not the initial user namespace, which maps every identity to itself.
fn in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_ascii_whitespace().ne(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_setting_that_forbids_user_namespaces() {
        let only = |key: &'static str, value: &'static str| {
            move |asked: &str| (asked == key).then(|| value.to_owned())
        };
        let cases = [
            (Errno::ENOSPC, "user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
            (
                Errno::EPERM,
                "kernel/unprivileged_userns_clone",
                "0",
                "kernel.unprivileged_userns_clone=1",
            ),
            (
                Errno::EPERM,
                "kernel/apparmor_restrict_unprivileged_userns",
                "1",
                "kernel.apparmor_restrict_unprivileged_userns=0",
            ),
            (Errno::EPERM, "user/max_user_namespaces", "9", "a chroot, a container"),
            (Errno::EINVAL, "user/max_user_namespaces", "9", "CONFIG_USER_NS"),
        ];
        for (errno, key, value, expected) in cases {
            let text = hint(errno, only(key, value));
            assert!(text.contains(expected), "{errno} {key}={value}: {text}");
        }
    }
}
