//! The system calls of our programs, and the faults of each. A call that no list has fails the campaign, which names it.

use crate::victim::Victim;

/// Calls without a fault. They read, wait, close, or change only the process itself, so a kill before one of them leaves the same as a kill
/// before the next call that changes something. Out of memory has its own faults (`process.rs`). tokio cannot start without its `socketpair`
/// for signals, and nothing has been changed by then.
const HARMLESS: &str = "\
    access alarm arch_prctl brk capget chdir clock_getres clock_gettime clock_nanosleep close close_range dup dup2 dup3 epoll_ctl \
    epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait exit exit_group faccessat faccessat2 fadvise64 fchdir fcntl fgetxattr flistxattr \
    fstat fstatfs futex futex_waitv get_mempolicy get_robust_list getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups \
    getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid \
    getsockname getsockopt gettid gettimeofday getuid getxattr inotify_add_watch inotify_rm_watch io_uring_enter lgetxattr listxattr \
    lseek lstat madvise membarrier mincore mlock mlock2 mlockall mmap mprotect mremap msync munlock munlockall munmap nanosleep \
    newfstatat pause pidfd_getfd poll ppoll prctl pread64 preadv preadv2 prlimit64 pselect6 read readahead readlink readlinkat readv \
    recvfrom recvmmsg recvmsg restart_syscall riscv_hwprobe rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo \
    rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity \
    sched_getattr sched_getparam sched_getscheduler sched_yield select set_mempolicy set_robust_list set_tid_address setitimer \
    setrlimit setsid shutdown sigaltstack socketpair stat statfs statx sysinfo tgkill timerfd_gettime timerfd_settime times tkill \
    umask uname wait4 waitid";

/// Calls that change something, or that a full disk, a broken disk, a limit or a kernel without memory can make fail. Each has its effects:
/// "KILL" before the call is executed, or an error in its place. The files that only open for reading are neither created nor on a full
/// disk, so of the effects of `open` and `openat` they have only "EMFILE".
const CALLS: &[(&str, &[&str])] = &[
    ("accept", &["EMFILE", "ENOBUFS"]),
    ("accept4", &["EMFILE", "ENOBUFS"]),
    ("bind", &["KILL", "EADDRINUSE"]),
    ("bpf", &["KILL", "EPERM"]),
    ("capset", &["EPERM"]),
    ("chmod", &["KILL", "EROFS"]),
    ("chown", &["KILL", "EROFS"]),
    ("clone", &["KILL", "EAGAIN"]),
    ("clone3", &["KILL", "EAGAIN"]),
    ("connect", &["KILL", "ECONNREFUSED"]),
    ("copy_file_range", &["KILL", "ENOSPC"]),
    ("delete_module", &["KILL", "EAGAIN"]),
    ("epoll_create", &["EMFILE"]),
    ("epoll_create1", &["EMFILE"]),
    ("eventfd2", &["EMFILE"]),
    ("execve", &["KILL", "EIO", "EAGAIN"]),
    ("execveat", &["KILL", "EIO", "EAGAIN"]),
    ("fallocate", &["KILL", "ENOSPC"]),
    ("fchmod", &["KILL", "EROFS"]),
    ("fchmodat", &["KILL", "EROFS"]),
    ("fchown", &["KILL", "EROFS"]),
    ("fchownat", &["KILL", "EROFS"]),
    ("fdatasync", &["KILL", "ENOSPC", "EIO"]),
    ("finit_module", &["KILL", "ENOMEM"]),
    ("flock", &["ENOLCK"]),
    ("fork", &["KILL", "EAGAIN"]),
    ("fsync", &["KILL", "ENOSPC", "EIO"]),
    ("ftruncate", &["KILL", "EIO"]),
    ("init_module", &["KILL", "ENOMEM"]),
    ("inotify_init1", &["EMFILE"]),
    ("ioctl", &["KILL", "EIO"]),
    ("kill", &["KILL", "EPERM"]),
    ("link", &["KILL", "ENOSPC", "EROFS"]),
    ("linkat", &["KILL", "ENOSPC", "EROFS"]),
    ("listen", &["KILL", "EADDRINUSE"]),
    ("memfd_create", &["EMFILE"]),
    ("mkdir", &["KILL", "ENOSPC", "EROFS"]),
    ("mkdirat", &["KILL", "ENOSPC", "EROFS"]),
    ("mount", &["KILL", "EPERM"]),
    ("open", &["KILL", "EMFILE", "EROFS", "ENOSPC"]),
    ("openat", &["KILL", "EMFILE", "EROFS", "ENOSPC"]),
    ("perf_event_open", &["EMFILE"]),
    ("pidfd_open", &["EMFILE"]),
    ("pidfd_send_signal", &["KILL", "EPERM"]),
    ("pipe", &["EMFILE"]),
    ("pipe2", &["EMFILE"]),
    ("pwrite64", &["KILL", "ENOSPC", "EIO"]),
    ("rename", &["KILL", "EROFS", "ENOSPC", "EIO"]),
    ("renameat", &["KILL", "EROFS", "ENOSPC", "EIO"]),
    ("renameat2", &["KILL", "EROFS", "ENOSPC", "EIO"]),
    ("rmdir", &["KILL", "EBUSY"]),
    ("sched_setaffinity", &["EPERM"]),
    ("sched_setattr", &["EPERM"]),
    ("sched_setscheduler", &["EPERM"]),
    ("sendfile", &["KILL", "EIO"]),
    ("sendmmsg", &["KILL", "ENOBUFS"]),
    ("sendmsg", &["KILL", "ENOBUFS"]),
    ("sendto", &["KILL", "ENOBUFS"]),
    ("setgid", &["EPERM"]),
    ("setgroups", &["EPERM"]),
    ("setns", &["KILL", "EPERM"]),
    ("setpgid", &["EPERM"]),
    ("setpriority", &["EPERM"]),
    ("setresgid", &["EPERM"]),
    ("setresuid", &["EPERM"]),
    ("setsockopt", &["KILL", "ENOMEM"]),
    ("setuid", &["EPERM"]),
    ("signalfd4", &["EMFILE"]),
    ("socket", &["EMFILE", "ENOBUFS"]),
    ("splice", &["KILL", "EIO"]),
    ("symlink", &["KILL", "ENOSPC", "EROFS"]),
    ("symlinkat", &["KILL", "ENOSPC", "EROFS"]),
    ("timerfd_create", &["EMFILE"]),
    ("umount2", &["KILL", "EBUSY"]),
    ("unlink", &["KILL", "EROFS"]),
    ("unlinkat", &["KILL", "EROFS"]),
    ("unshare", &["KILL", "ENOSPC"]),
    ("utimensat", &["KILL", "EROFS"]),
    ("vfork", &["KILL", "EAGAIN"]),
    ("write", &["KILL", "ENOSPC", "EIO"]),
    ("writev", &["KILL", "ECONNRESET"]),
];

/// Errors that the controller's library of tables, Polars, does not handle: it panics when it cannot start its threads or its runtime.
const OF_TABLES: [(&str, &str); 7] = [
    ("clone", "EAGAIN"),
    ("clone3", "EAGAIN"),
    ("epoll_create", "EMFILE"),
    ("epoll_create1", "EMFILE"),
    ("eventfd2", "EMFILE"),
    ("fork", "EAGAIN"),
    ("vfork", "EAGAIN"),
];

/// System calls that take longer: a controller that reads slowly, slow disks, and a node with a slow kernel.
pub const SLOW: [(Victim, &str, &str); 4] = [
    (Victim::Controller, "recvfrom", "DELAY20000+"),
    (Victim::Controller, "fdatasync", "DELAY500000+"),
    (Victim::Agent, "fdatasync", "DELAY500000+"),
    (Victim::Agent, "sendto", "DELAY10000+"),
];

/// Returns the effects of faults at a call of a process; none if the call is harmless, and `None` if no list has it.
pub fn effects(victim: Victim, call: &str) -> Option<Vec<&'static str>> {
    if HARMLESS.split_whitespace().any(|harmless| harmless == call) {
        return Some(Vec::new());
    }
    let (_, effects) = CALLS.iter().find(|(name, _)| *name == call)?;
    let effects = effects.iter().copied();
    Some(match victim {
        Victim::Controller => {
            effects.filter(|effect| !OF_TABLES.contains(&(call, *effect))).collect()
        }
        _ => effects.collect(),
    })
}

#[test]
fn a_call_is_in_one_list() {
    for (name, _) in CALLS {
        let count = CALLS.iter().filter(|(other, _)| other == name).count();
        assert_eq!(count, 1, "{name}");
        assert!(!HARMLESS.split_whitespace().any(|harmless| harmless == *name), "{name}");
    }
    assert_eq!(effects(Victim::Agent, "read"), Some(vec![]));
    assert_eq!(effects(Victim::Agent, "clone3"), Some(vec!["KILL", "EAGAIN"]));
    assert_eq!(effects(Victim::Controller, "clone3"), Some(vec!["KILL"]));
    assert_eq!(effects(Victim::Agent, "nosuchcall"), None);
}
