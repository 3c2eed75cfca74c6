//! A fault at one system call of one process, which strace injects.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// The process that gets the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// `ccbench-agent serve` on node a, which makes the most changes.
    Agent,
    /// `ccbench run`.
    Controller,
}

impl Victim {
    /// Returns its name in the text of a fault.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Controller => "controller",
        }
    }

    /// Returns the process with this name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Agent, Self::Controller].into_iter().find(|victim| victim.name() == name)
    }
}

/// The system calls of a process that change something, or that a full disk, a broken disk or a limit can make fail. Each has its effects:
/// "KILL" before the call is executed, or an error in its place.
const CALLS: [(Victim, &str, &[&str]); 24] = [
    (Victim::Agent, "sendto", &["KILL", "ENOBUFS"]),
    (Victim::Agent, "write", &["KILL", "ENOSPC", "EIO"]),
    (Victim::Agent, "fdatasync", &["KILL", "ENOSPC", "EIO"]),
    (Victim::Agent, "fsync", &["KILL", "ENOSPC", "EIO"]),
    (Victim::Agent, "rename", &["KILL", "EROFS", "ENOSPC", "EIO"]),
    (Victim::Agent, "unlink", &["KILL", "EROFS"]),
    (Victim::Agent, "openat", &["EMFILE", "EROFS", "ENOSPC"]),
    (Victim::Agent, "mkdir", &["KILL", "ENOSPC", "EROFS"]),
    (Victim::Agent, "rmdir", &["KILL"]),
    (Victim::Agent, "accept4", &["EMFILE", "ENOBUFS"]),
    (Victim::Agent, "socket", &["EMFILE", "ENOBUFS"]),
    (Victim::Agent, "bpf", &["KILL", "EPERM"]),
    (Victim::Agent, "ioctl", &["KILL", "EIO"]),
    (Victim::Agent, "clone3", &["KILL", "EAGAIN"]),
    (Victim::Controller, "write", &["KILL", "ENOSPC", "EIO"]),
    (Victim::Controller, "fdatasync", &["KILL", "ENOSPC", "EIO"]),
    (Victim::Controller, "fsync", &["KILL", "ENOSPC", "EIO", "EIO+"]),
    (Victim::Controller, "rename", &["KILL", "ENOSPC", "EROFS"]),
    (Victim::Controller, "openat", &["KILL", "EMFILE", "EROFS", "ENOSPC", "EROFS+"]),
    (Victim::Controller, "renameat2", &["KILL", "ENOSPC", "EROFS", "EIO"]),
    (Victim::Controller, "unlink", &["KILL", "EROFS"]),
    (Victim::Controller, "unlinkat", &["KILL", "EROFS"]),
    (Victim::Controller, "mkdir", &["KILL", "ENOSPC", "EROFS"]),
    (Victim::Controller, "socket", &["EMFILE", "ENOBUFS"]),
];

/// System calls that take longer: a controller that reads slowly, slow disks, and a node with a slow kernel.
const SLOW: [(Victim, &str, &str); 4] = [
    (Victim::Controller, "recvfrom", "DELAY20000+"),
    (Victim::Controller, "fdatasync", "DELAY500000+"),
    (Victim::Agent, "fdatasync", "DELAY500000+"),
    (Victim::Agent, "sendto", "DELAY10000+"),
];

/// A fault. Written as `agent:sendto:KILL:17`, or `controller:write:ENOSPC+:5` for the fifth call and all later ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The process.
    pub victim: Victim,
    /// The system call.
    pub call: String,
    /// "KILL", an error, or "DELAY" with microseconds; with "+", it also applies to all later calls.
    pub effect: String,
    /// Which of a thread's calls, counted from 1.
    pub nth: u32,
}

impl Fault {
    /// Returns whether it kills the process.
    pub fn kills(&self) -> bool {
        self.effect == "KILL"
    }

    /// Returns whether strace injected it, according to the calls that strace wrote. Of a killed process, they show only how it ended.
    pub fn was_injected(&self, calls: &str) -> bool {
        calls.contains(match &*self.effect {
            "KILL" => "killed by SIGKILL",
            effect if effect.starts_with("DELAY") => "(DELAYED)",
            _ => "(INJECTED)",
        })
    }

    /// Returns the beginning of a command line whose program gets the fault. strace writes the calls to this file.
    pub fn strace(&self, into: &Path) -> Vec<String> {
        let (effect, more) =
            self.effect.strip_suffix('+').map_or((&*self.effect, ""), |e| (e, "+"));
        let what = match effect.strip_prefix("DELAY") {
            Some(delay_us) => format!("delay_enter={delay_us}"),
            None if effect == "KILL" => "signal=KILL".to_owned(),
            None => format!("error={effect}"),
        };
        let Self { call, nth, .. } = self;
        let inject = format!("inject={call}:{what}:when={nth}{more}");
        let into = into.display().to_string();
        let trace = format!("trace={call}");
        ["strace", "-f", "-y", "-qq", "-o", &into, "-e", &trace, "-e", &inject, "--"]
            .map(str::to_owned)
            .into()
    }
}

/// Returns whether strace injected an error into a write to a pipe, a socket or an eventfd, which are not on a disk. tokio wakes itself
/// through them, and such an error makes it panic or hang.
pub fn is_impossible(calls: &str) -> bool {
    let injected = calls.lines().filter(|line| line.contains("(INJECTED)"));
    injected.filter_map(|line| line.split_once("write(")).any(|(_, arguments)| {
        !arguments.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with("</")
    })
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.victim.name(), self.call, self.effect, self.nth)
    }
}

/// Text that names no fault.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not VICTIM:CALL:EFFECT:NUMBER")]
pub struct NotAFault(String);

impl FromStr for Fault {
    type Err = NotAFault;

    fn from_str(text: &str) -> Result<Self, NotAFault> {
        let wrong = || NotAFault(text.to_owned());
        let [victim, call, effect, nth] = &text.split(':').collect::<Vec<_>>()[..] else {
            return Err(wrong());
        };
        let victim = Victim::named(victim).ok_or_else(wrong)?;
        let nth = nth.parse().map_err(|_| wrong())?;
        Ok(Self { victim, call: (*call).to_owned(), effect: (*effect).to_owned(), nth })
    }
}

/// Returns the beginning of a command line whose program's calls are counted in this file.
pub fn counting(victim: Victim, into: &Path) -> Vec<String> {
    let calls = CALLS.iter().filter(|(of, ..)| *of == victim).map(|(_, call, _)| *call);
    let trace = format!("trace={}", calls.collect::<Vec<_>>().join(","));
    let into = into.display().to_string();
    ["strace", "-f", "-y", "-qq", "-o", &into, "-e", &trace, "--"].map(str::to_owned).into()
}

/// Returns all faults of a process whose calls strace has counted, separately for each thread.
pub fn faults(victim: Victim, counted: &str) -> Vec<Fault> {
    let mut by_thread: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    // Call, its number in the thread, and whether it writes.
    let mut possible: BTreeSet<(&str, u32, bool)> = BTreeSet::new();
    let mut loads_library: BTreeSet<(&str, u32)> = BTreeSet::new();
    for line in counted.lines() {
        // `1234 write(1</dev/null>, ...) = 5`; for an interrupted call, a second line says "resumed".
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let Some((call, arguments)) = rest.trim_start().split_once('(') else { continue };
        let nth = by_thread.entry((call, thread)).or_default();
        *nth += 1;
        // Pipes, sockets and eventfds are not on a disk.
        let descriptor = arguments.trim_start_matches(|c: char| c.is_ascii_digit());
        let is_on_disk = call != "write" || descriptor.starts_with("</");
        if call == "openat" && (arguments.contains(".so.") || arguments.contains(".so\"")) {
            loads_library.insert((call, *nth));
        } else if is_on_disk {
            let writes = ["O_WRONLY", "O_RDWR", "O_CREAT"].iter().any(|f| arguments.contains(f));
            possible.insert((call, *nth, call != "openat" || writes));
        }
    }
    // strace injects into the call with this number of every thread, and the program cannot be loaded without its libraries.
    possible.retain(|&(call, nth, _)| !loads_library.contains(&(call, nth)));
    let mut faults = Vec::new();
    for (_, call, effects) in CALLS.iter().filter(|(of, ..)| *of == victim) {
        if !by_thread.keys().any(|(of, _)| of == call) {
            eprintln!("{call} was not called");
        }
        for (_, nth, writes) in possible.iter().filter(|(of, ..)| of == call) {
            let to_disk = |effect: &str| effect.starts_with("EROFS") || effect == "ENOSPC";
            for effect in effects.iter().filter(|effect| *writes || !to_disk(effect)) {
                let (nth, call, effect) = (*nth, (*call).to_owned(), (*effect).to_owned());
                faults.push(Fault { victim, call, effect, nth });
            }
        }
    }
    faults
}

/// Returns the faults of a slow process.
pub fn slow(of: Victim) -> impl Iterator<Item = Fault> {
    SLOW.into_iter().filter(move |(victim, ..)| *victim == of).map(|(victim, call, effect)| Fault {
        victim,
        call: call.to_owned(),
        effect: effect.to_owned(),
        nth: 1,
    })
}

/// Returns at most `count` of them, evenly spread.
pub fn sample<F>(faults: Vec<F>, count: usize) -> Vec<F> {
    let all = faults.len();
    let is_kept = |at: usize| all <= count || at * count / all != (at + 1) * count / all;
    faults.into_iter().enumerate().filter(|(at, _)| is_kept(*at)).map(|(_, fault)| fault).collect()
}

#[test]
fn a_fault_is_read_back() {
    for text in ["agent:sendto:KILL:17", "controller:write:ENOSPC+:5", "agent:sendto:DELAY10000+:1"]
    {
        assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
    }
    assert!("agent:sendto:KILL".parse::<Fault>().is_err());
}

#[test]
fn calls_are_counted_by_thread() {
    let counted = "7 write(1</dev/null>, \"(\", 1) = 1\n8 write(1</a>, \"a\", 1 <unfinished ...>\n\
        8 <... write resumed>) = 1\n8 write(1</a>, \"b\") = 1\n8 write(9<anon_inode:[eventfd]>, \"\") = 8\n";
    let found = faults(Victim::Controller, counted);
    assert_eq!(found.len(), 2 * 3, "the first and the second, with three effects: {found:?}");
    assert_eq!(sample(found.clone(), 4).len(), 4);
    assert_eq!(sample(found.clone(), 100), found);
}

#[test]
fn no_fault_keeps_the_program_from_being_loaded() {
    let counted = "7 openat(AT_FDCWD</>, \"/lib/libc.so.6\", O_RDONLY|O_CLOEXEC) = 3</lib/libc.so.6>\n\
        8 openat(AT_FDCWD</>, \"/a\", O_WRONLY|O_CREAT, 0666) = 4</a>\n\
        8 openat(AT_FDCWD</>, \"/b\", O_WRONLY|O_CREAT, 0666) = 4</b>\n";
    let found = faults(Victim::Controller, counted);
    assert_eq!(found.len(), 5, "{found:?}");
    assert!(found.iter().all(|fault| fault.nth == 2), "{found:?}");
}
