//! What a trial may change on a node, as text that can be compared.

/// The state of a network namespace with these interfaces; `run` executes a shell command inside and returns what it prints.
pub fn everything(run: impl Fn(&str) -> String, devs: &[&str]) -> String {
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

/// What is in one text and not in the other, to be read by people.
pub fn difference(before: &str, after: &str) -> String {
    let lines = |text: &str, other: &str, sign: char| {
        let other: Vec<&str> = other.lines().collect();
        let only = text.lines().filter(|line| !other.contains(line));
        only.map(|line| format!("{sign} {line}\n")).collect::<String>()
    };
    lines(before, after, '-') + &lines(after, before, '+')
}
