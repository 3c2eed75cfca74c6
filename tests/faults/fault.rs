//! A fault at one system call of one process, which strace injects.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::calls::{SLOW, effects};
use crate::victim::Victim;

/// Names of the files in a state directory to which an agent writes, and of those that replace them.
pub const STATE_FILES: [&str; 5] =
    ["undo.ndjson", ".undo.ndjson.new", "audit.ndjson", "generation", ".generation.new"];
/// What tokio writes to its own socket when a signal arrives, as strace prints it.
const WAKE_UP: &str = "\"\\1\", 1, MSG_NOSIGNAL";

/// A fault. Written as `agent:sendto:KILL:17`, or `agent:ioctl:EIO+:6` for the sixth call and all later ones.
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

    /// Returns whether the process does not learn of a signal, because tokio sends it to the process's own socket.
    pub fn hides_signals(&self) -> bool {
        self.call == "sendto" && self.effect.starts_with("ENOBUFS") && self.is_persistent()
    }

    fn is_persistent(&self) -> bool {
        self.effect.ends_with('+')
    }

    /// Returns whether only writes to files of a state directory are counted and get the fault: tokio wakes itself by writes to an eventfd,
    /// which no broken disk makes fail.
    fn is_of_state_files(&self) -> bool {
        self.call == "write" && self.is_persistent() && self.victim != Victim::Controller
    }

    /// Returns whether strace injected it, according to the calls that strace wrote. A process that strace killed has not returned from its
    /// call with this number.
    pub fn was_injected(&self, traced: &str) -> bool {
        match &*self.effect {
            "KILL" => {
                traced.contains("killed by SIGKILL") && has_no_result(traced, &self.call, self.nth)
            }
            effect if effect.starts_with("DELAY") => traced.contains("(DELAYED)"),
            _ => traced.contains("(INJECTED)"),
        }
    }

    /// Returns the beginning of a command line whose program gets the fault. strace writes the calls to `into`. `state_files` are the paths
    /// of the [`STATE_FILES`].
    pub fn strace(&self, into: &Path, state_files: &[PathBuf]) -> Vec<String> {
        let (effect, more) =
            self.effect.strip_suffix('+').map_or((&*self.effect, ""), |e| (e, "+"));
        let what = match effect.strip_prefix("DELAY") {
            Some(delay_us) => format!("delay_enter={delay_us}"),
            None if effect == "KILL" => "signal=KILL".to_owned(),
            None => format!("error={effect}"),
        };
        let Self { call, nth, .. } = self;
        let mut line = tracing(into);
        line.extend(["-e".to_owned(), format!("trace={call}")]);
        line.extend(["-e".to_owned(), format!("inject={call}:{what}:when={nth}{more}")]);
        for file in state_files.iter().filter(|_| self.is_of_state_files()) {
            line.extend(["-P".to_owned(), file.display().to_string()]);
        }
        line.push("--".to_owned());
        line
    }
}

fn tracing(into: &Path) -> Vec<String> {
    ["strace", "-f", "-y", "-qq", "-o", &into.display().to_string()].map(str::to_owned).into()
}

/// Returns the beginning of a command line whose program's calls are written to this file.
pub fn counting(into: &Path) -> Vec<String> {
    let mut line = tracing(into);
    line.push("--".to_owned());
    line
}

/// Returns whether strace injected an error that cannot happen: into a write to a pipe, a socket or an eventfd, which are not on a disk, or
/// into what tokio sends to itself. tokio wakes itself through them, and such an error makes it panic or hang.
pub fn is_impossible(traced: &str) -> bool {
    let mut by_thread: BTreeMap<&str, bool> = BTreeMap::new();
    for line in traced.lines() {
        if let Some(call) = parse(line) {
            by_thread.insert(call.thread, call.is_wake_up() || !call.is_on_disk());
        }
        // It may be on the second line of an interrupted call.
        let thread = line.split(' ').next().unwrap_or_default();
        if line.contains("(INJECTED)") && by_thread.get(thread) == Some(&true) {
            return true;
        }
    }
    false
}

/// A line that strace writes when a call begins.
struct Call<'a> {
    thread: &'a str,
    name: &'a str,
    arguments: &'a str,
}

/// Parses `1234  write(1</dev/null>, ...) = 5`. The second line of an interrupted call has `<... write resumed>` instead of the name.
fn parse(line: &str) -> Option<Call<'_>> {
    let (thread, rest) = line.split_once(' ')?;
    let (name, arguments) = rest.trim_start().split_once('(')?;
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let is_call = !name.is_empty() && name.bytes().all(is_name);
    is_call.then_some(Call { thread, name, arguments })
}

impl Call<'_> {
    /// Returns the descriptor that is the first argument, as `-y` prints it: "</dev/null>, ...".
    fn descriptor(&self) -> &str {
        self.arguments.trim_start_matches(|c: char| c.is_ascii_digit())
    }

    /// Returns whether a broken disk can make it fail.
    fn is_on_disk(&self) -> bool {
        self.name != "write" || self.descriptor().starts_with("</")
    }

    fn is_wake_up(&self) -> bool {
        self.name == "sendto" && self.arguments.contains(WAKE_UP)
    }

    fn opens(&self) -> bool {
        ["open", "openat"].contains(&self.name)
    }

    fn loads_library(&self) -> bool {
        self.opens() && (self.arguments.contains(".so.") || self.arguments.contains(".so\""))
    }

    fn writes(&self) -> bool {
        !self.opens()
            || ["O_WRONLY", "O_RDWR", "O_CREAT"].iter().any(|flag| self.arguments.contains(flag))
    }

    fn is_of_state_file(&self) -> bool {
        let path = self.descriptor().split('>').next().unwrap_or_default();
        let name = path.rsplit('/').next().unwrap_or_default();
        self.name == "write" && path.starts_with("</") && STATE_FILES.contains(&name)
    }
}

/// Returns whether the call with this number of a thread is without a result, as strace prints it.
fn has_no_result(traced: &str, name: &str, nth: u32) -> bool {
    let mut by_thread: BTreeMap<&str, u32> = BTreeMap::new();
    let mut unfinished = BTreeSet::new();
    for line in traced.lines() {
        let Some(call) = parse(line).filter(|call| call.name == name) else {
            // The rest of a call.
            let thread = line.split(' ').next().unwrap_or_default();
            if line.contains(" resumed>") && !line.ends_with("= ?") {
                unfinished.remove(thread);
            }
            continue;
        };
        let count = by_thread.entry(call.thread).or_default();
        *count += 1;
        if *count == nth && (line.ends_with("= ?") || line.ends_with("<unfinished ...>")) {
            unfinished.insert(call.thread);
        }
    }
    !unfinished.is_empty()
}

/// The calls of all threads with the same name and number, to which strace injects the same fault.
#[derive(Debug, Default)]
struct Point {
    /// The program cannot be loaded without one of them.
    loads_library: bool,
    /// One of them can get a fault.
    can_fail: bool,
    /// One of them writes, or creates a file.
    writes: bool,
}

/// The calls of a process without a fault.
#[derive(Debug, Default)]
struct Counted<'a> {
    points: BTreeMap<(&'a str, u32), Point>,
    /// The most writes of a thread to files of a state directory.
    state_writes: u32,
}

impl<'a> Counted<'a> {
    /// Reads what strace has written.
    fn read(traced: &'a str) -> Self {
        let mut by_thread: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        let mut writes_by_thread: BTreeMap<&str, u32> = BTreeMap::new();
        let mut counted = Self::default();
        for (line, call) in traced.lines().filter_map(parse).enumerate() {
            let nth = by_thread.entry((call.name, call.thread)).or_default();
            *nth += 1;
            if call.is_of_state_file() {
                let writes = writes_by_thread.entry(call.thread).or_default();
                *writes += 1;
                counted.state_writes = counted.state_writes.max(*writes);
            }
            // strace does not inject into the execution of the program itself, which is the first call.
            let can_fail = line > 0 && call.is_on_disk() && !call.is_wake_up();
            let point = counted.points.entry((call.name, *nth)).or_default();
            point.loads_library |= call.loads_library();
            point.can_fail |= can_fail && !call.loads_library();
            point.writes |= call.writes();
        }
        counted
    }
}

/// Calls of which neither list in `calls.rs` says whether they change anything.
#[derive(Debug, thiserror::Error)]
#[error(
    "strace has found system calls that tests/faults/calls.rs does not have; add each to HARMLESS or to CALLS: {0}"
)]
pub struct UnknownCalls(String);

/// Returns all faults of a process whose calls strace has written, separately for each thread: each effect once and, unless it is a kill, in
/// the persistent form.
///
/// # Errors
/// Names the calls that no list has.
pub fn faults(victim: Victim, traced: &str) -> Result<Vec<Fault>, UnknownCalls> {
    let counted = Counted::read(traced);
    let names: BTreeSet<&str> = counted.points.keys().map(|(name, _)| *name).collect();
    let (mut faults, mut unknown) = (Vec::new(), Vec::new());
    for name in names {
        let Some(effects) = effects(victim, name) else {
            unknown.push(name);
            continue;
        };
        let fault = |nth: u32, effect: String| Fault { victim, call: name.to_owned(), effect, nth };
        let points = counted.points.range((name, 0)..=(name, u32::MAX));
        for (&(_, nth), point) in points.filter(|(_, point)| point.can_fail && !point.loads_library)
        {
            for effect in effects.iter().filter(|effect| point.writes || **effect == "EMFILE") {
                faults.push(fault(nth, (*effect).to_owned()));
                // In the persistent form, only writes to some files fail.
                if *effect != "KILL" && name != "write" {
                    faults.push(fault(nth, format!("{effect}+")));
                }
            }
        }
        let is_of_state = name == "write" && victim != Victim::Controller;
        for nth in (1..=counted.state_writes).filter(|_| is_of_state) {
            let errors = effects.iter().filter(|effect| **effect != "KILL");
            faults.extend(errors.map(|effect| fault(nth, format!("{effect}+"))));
        }
    }
    if unknown.is_empty() { Ok(faults) } else { Err(UnknownCalls(unknown.join(", "))) }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The first call of every trace.
    const START: &str = "7 execve(\"/bin/x\", [\"x\"], 0x1 /* 9 vars */) = 0\n";

    fn found(victim: Victim, traced: &str) -> Vec<String> {
        let all = faults(victim, &format!("{START}{traced}")).unwrap();
        all.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_fault_is_read_back() {
        for text in
            ["agent:sendto:KILL:17", "undo:ioctl:EIO+:5", "controller:recvfrom:DELAY10000+:1"]
        {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        assert!("agent:sendto:KILL".parse::<Fault>().is_err());
    }

    #[test]
    fn calls_are_counted_by_thread() {
        let traced = "7 read(3</a>, \"a\", 1) = 1\n7 write(1</dev/null>, \"(\", 1) = 1\n\
            8 write(1</a>, \"a\", 1 <unfinished ...>\n8 <... write resumed>) = 1\n8 write(1</a>, \"b\") = 1\n\
            8 write(9<anon_inode:[eventfd]>, \"\") = 8\n";
        let all = found(Victim::Controller, traced);
        let of = |nth: u32| {
            ["KILL", "ENOSPC", "EIO"].map(|effect| format!("controller:write:{effect}:{nth}"))
        };
        assert_eq!(all, [of(1), of(2)].concat(), "the first and the second");
        assert_eq!(sample(all.clone(), 4).len(), 4);
        assert_eq!(sample(all.clone(), 100), all);
    }

    #[test]
    fn every_error_also_persists() {
        let all = found(Victim::Agent, "7 ioctl(3<socket:[1]>, SIOCGIFINDEX) = 0\n");
        let expected = ["KILL", "EIO", "EIO+"].map(|effect| format!("agent:ioctl:{effect}:1"));
        assert_eq!(all, expected);
        let traced = "7 write(3</x/state/undo.ndjson>, \"{\", 1) = 1\n8 write(4</x/log>, \"l\", 1) = 1\n\
            8 write(4</x/log>, \"l\", 1) = 1\n";
        let all = found(Victim::Undo, traced);
        assert!(all.contains(&"undo:write:EIO+:1".to_owned()), "{all:?}");
        assert!(!all.contains(&"undo:write:EIO+:2".to_owned()), "the log is no state: {all:?}");
    }

    #[test]
    fn a_call_of_no_list_is_an_error() {
        let error = faults(Victim::Agent, "7 nosuchcall(1) = 0\n").unwrap_err().to_string();
        assert!(error.ends_with("nosuchcall"), "{error}");
    }

    #[test]
    fn no_fault_keeps_the_program_from_being_loaded() {
        let traced = "7 openat(AT_FDCWD</>, \"/lib/libc.so.6\", O_RDONLY|O_CLOEXEC) = 3</lib/libc.so.6>\n\
            8 openat(AT_FDCWD</>, \"/a\", O_WRONLY|O_CREAT, 0666) = 4</a>\n\
            8 openat(AT_FDCWD</>, \"/b\", O_WRONLY|O_CREAT, 0666) = 4</b>\n";
        let all = found(Victim::Controller, traced);
        assert_eq!(all.len(), 7, "{all:?}");
        assert!(all.iter().all(|fault| fault.ends_with(":2")), "{all:?}");
        let reads = "7 openat(AT_FDCWD</>, \"/a\", O_RDONLY) = 3</a>\n";
        assert_eq!(
            found(Victim::Agent, reads),
            ["agent:openat:EMFILE:1", "agent:openat:EMFILE+:1"]
        );
    }

    #[test]
    fn only_what_strace_has_injected_counts() {
        let kill: Fault = "agent:write:KILL:2".parse().unwrap();
        let killed = "7 write(1</a>, \"a\", 1) = 1\n7 write(1</a>, \"b\", 1) = ?\n7 +++ killed by SIGKILL +++\n";
        assert!(kill.was_injected(killed));
        // Another process has killed it.
        let by_other = "7 write(1</a>, \"a\", 1) = 1\n7 write(1</a>, \"b\", 1) = 1\n7 +++ killed by SIGKILL +++\n";
        assert!(!kill.was_injected(by_other));
        let of_two = "7 write(1</a>, \"a\", 1) = 1\n7 write(1</a>, \"b\", 1 <unfinished ...>\n\
            8 +++ killed by SIGKILL +++\n7 <... write resumed>) = ?\n7 +++ killed by SIGKILL +++\n";
        assert!(kill.was_injected(of_two));
        let error: Fault = "agent:write:EIO:2".parse().unwrap();
        assert!(!error.was_injected(killed));
        assert!(
            error.was_injected(
                "7 write(1</a>, \"b\", 1) = -1 EIO (Input/output error) (INJECTED)\n"
            )
        );
    }

    #[test]
    fn errors_in_what_tokio_sends_to_itself_are_impossible() {
        let injected = |call: &str| format!("7 {call} = -1 EIO (Input/output error) (INJECTED)\n");
        assert!(is_impossible(&injected("write(9<anon_inode:[eventfd]>, \"\", 8)")));
        assert!(!is_impossible(&injected("write(9</a>, \"\", 8)")));
        let resumed = "7 write(9<pipe:[1]>, \"\", 8 <unfinished ...>\n7 <... write resumed>) = -1 EIO (Input/output error) (INJECTED)\n";
        assert!(is_impossible(resumed));
        assert!(is_impossible(&injected(
            "sendto(6<socket:[1]>, \"\\1\", 1, MSG_NOSIGNAL, NULL, 0)"
        )));
        assert!(!is_impossible(&injected(
            "sendto(6<socket:[1]>, [{nlmsg_len=40}], 40, 0, NULL, 0)"
        )));
        let wake_up = "7 sendto(6<socket:[1]>, \"\\1\", 1, MSG_NOSIGNAL, NULL, 0) = 1\n";
        assert_eq!(found(Victim::Agent, wake_up), [""; 0]);
    }
}
