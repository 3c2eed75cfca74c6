//! What a trial may change on a node, as text for comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::namespace_of;

/// Fields of `/proc/PID/fdinfo` that name a BPF object.
const BPF_OBJECTS: [&str; 3] = ["prog_id", "map_id", "link_id"];

/// Returns the state of a network namespace with these interfaces. `run` executes a shell command inside and returns its output.
pub fn read_state(run: impl Fn(&str) -> String, devs: &[&str]) -> String {
    let mut commands: Vec<String> = [
        "ip -d link",
        "ip address",
        "ip route show table all",
        "ip rule",
        "ip -6 rule 2>/dev/null || true",
        "tc -d qdisc",
        "nft list ruleset 2>/dev/null || true",
        "sysctl -a -r ^net 2>/dev/null || true",
    ]
    .map(str::to_owned)
    .into();
    for dev in devs {
        for command in ["tc filter show dev D", "tc filter show dev D egress", "ethtool -k D"] {
            commands.push(command.replace('D', dev));
        }
    }
    commands.iter().map(|command| format!("# {command}\n{}", run(command))).collect()
}

/// Returns the BPF programs, maps and links that the processes in the network namespace of a process hold, one line for each: its kind, and
/// the program that holds it. What nobody holds belongs to no namespace, so it could be another test's.
pub fn bpf_objects(inside: u32) -> String {
    let mut lines = String::new();
    for pid in processes_in(inside) {
        let mut held = BTreeSet::new();
        let files = std::fs::read_dir(format!("/proc/{pid}/fdinfo"));
        for file in files.into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(file.path()).unwrap_or_default();
            let fields = text.lines().filter_map(|line| line.split_once(':'));
            let objects = fields.filter(|(key, _)| BPF_OBJECTS.contains(key));
            held.extend(objects.map(|(key, id)| (key.to_owned(), id.trim().to_owned())));
        }
        let holder = program(pid);
        lines.extend(held.iter().map(|(kind, _)| format!("{kind} of {holder}\n")));
    }
    lines
}

/// Returns the names of the programs that run in the network namespace of a process.
pub fn programs_in(inside: u32) -> Vec<String> {
    processes_in(inside).into_iter().map(program).collect()
}

/// Returns the control groups below a folder, one line for each.
pub fn control_groups(below: &Path) -> String {
    let (mut lines, mut unread) = (String::new(), vec![below.to_owned()]);
    while let Some(folder) = unread.pop() {
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        for group in entries.map(|entry| entry.path()).filter(|path| path.is_dir()) {
            lines += &format!("{}\n", group.display());
            unread.push(group);
        }
    }
    lines
}

/// Returns the mounts of this process's namespace that name one of these texts, one line for each.
pub fn mounts_naming(texts: &[&str]) -> String {
    let all = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let named = all.lines().filter(|line| texts.iter().any(|text| line.contains(text)));
    named.map(|line| format!("{line}\n")).collect()
}

fn processes_in(inside: u32) -> Vec<u32> {
    let Some(namespace) = namespace_of(&inside.to_string()) else { return Vec::new() };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| namespace_of(&pid.to_string()).as_ref() == Some(&namespace)).collect()
}

fn program(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim().to_owned()
}

/// Returns how two texts differ, for people to read: the lines that one of them has more often than the other. Each line begins with the
/// command that printed it and, where it belongs to an interface whose name is in a line above, with the interface.
pub fn difference(before: &str, after: &str) -> String {
    let (before, after) = (labelled(before), labelled(after));
    let surplus = |lines: &[String], other: &[String], sign: char| {
        let mut unmatched: BTreeMap<&str, usize> = BTreeMap::new();
        for line in other {
            *unmatched.entry(line.as_str()).or_default() += 1;
        }
        let mut text = String::new();
        for line in lines {
            match unmatched.get_mut(line.as_str()) {
                Some(count) if *count > 0 => *count -= 1,
                _ => text += &format!("{sign} {line}\n"),
            }
        }
        text
    };
    surplus(&before, &after, '-') + &surplus(&after, &before, '+')
}

/// Returns the lines below `# COMMAND` headers, each with its command and interface.
fn labelled(text: &str) -> Vec<String> {
    let (mut command, mut dev) = ("", "");
    let mut lines = Vec::new();
    for line in text.lines() {
        if let Some(header) = line.strip_prefix("# ") {
            (command, dev) = (header.split(" 2>").next().unwrap_or(header), "");
            continue;
        }
        if !line.starts_with(char::is_whitespace) {
            dev = interface(line);
        }
        let line = line.trim();
        lines.push(match dev {
            "" => format!("{command}: {line}"),
            _ => format!("{command}: {dev}: {line}"),
        });
    }
    lines
}

/// Returns the interface that a line such as `2: v@if3: <UP> mtu 1500` introduces; empty if it introduces none.
fn interface(line: &str) -> &str {
    let Some((index, rest)) = line.split_once(": ") else { return "" };
    let is_index = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
    if is_index { rest.split(": ").next().unwrap_or_default() } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "# ip -d link\n2: v: <UP> mtu 1500\n    promiscuity 0\n3: w: <UP> mtu 1500\n    promiscuity 0\n";

    #[test]
    fn a_line_that_another_interface_has_too_is_not_missed() {
        let of_v = TWO.replacen("    promiscuity 0\n", "", 1);
        assert_eq!(difference(TWO, &of_v), "- ip -d link: v: promiscuity 0\n");
        let moved = of_v.clone() + "    promiscuity 0\n";
        assert_eq!(
            difference(TWO, &moved),
            "- ip -d link: v: promiscuity 0\n+ ip -d link: w: promiscuity 0\n"
        );
        assert_eq!(difference(TWO, TWO), "");
    }

    #[test]
    fn a_doubled_line_is_not_missed() {
        let before = "# tc -d qdisc\nqdisc noqueue 0: dev v root\n";
        let doubled = before.to_owned() + "qdisc noqueue 0: dev v root\n";
        assert_eq!(difference(before, &doubled), "+ tc -d qdisc: qdisc noqueue 0: dev v root\n");
        assert_eq!(difference(&doubled, before).lines().count(), 1);
    }

    #[test]
    fn equal_lines_of_two_commands_differ() {
        let [one, other] = ["ethtool -k v", "ethtool -k w 2>/dev/null || true"]
            .map(|command| format!("# {command}\ntcp-segmentation-offload: off\n"));
        assert_eq!(
            difference(&one, &other),
            "- ethtool -k v: tcp-segmentation-offload: off\n\
             + ethtool -k w: tcp-segmentation-offload: off\n"
        );
    }

    #[test]
    fn groups_and_mounts_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("one/two")).unwrap();
        assert_eq!(control_groups(dir.path()).lines().count(), 2);
        assert!(mounts_naming(&["/proc "]).contains(" /proc "), "the mount of /proc");
        assert_eq!(mounts_naming(&["no mount has this name"]), "");
    }

    #[test]
    fn the_programs_of_a_namespace_are_found() {
        let own = program(std::process::id());
        assert!(programs_in(std::process::id()).contains(&own), "{own}");
        assert_eq!(programs_in(u32::MAX), [""; 0]);
    }
}
