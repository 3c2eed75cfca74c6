//! What a trial may change on a node, as text for comparison.

/// Returns the state of a network namespace with these interfaces. `run` executes a shell command inside and returns its output.
pub fn read_state(run: impl Fn(&str) -> String, devs: &[&str]) -> String {
    let mut commands: Vec<String> = [
        "ip -d link",
        "ip address",
        "ip route show table all",
        "tc -d qdisc",
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

/// Returns what is in only one of the texts, for people to read.
pub fn difference(before: &str, after: &str) -> String {
    let lines = |text: &str, other: &str, sign: char| {
        let other: Vec<&str> = other.lines().collect();
        let only = text.lines().filter(|line| !other.contains(line));
        only.map(|line| format!("{sign} {line}\n")).collect::<String>()
    };
    lines(before, after, '-') + &lines(after, before, '+')
}
