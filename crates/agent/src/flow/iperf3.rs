//! Translates a task into iperf3's arguments. [`ccbench_proto::tools::iperf3`] parses the output. The exit code says
//! little (3.12 with `-J` exits 0 after "connection refused"), so the report's `error` decides.

use std::fmt;

use ccbench_proto::schedule::{FlowTask, block_bytes};

/// iperf3's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 3 in "3.12".
    pub major: u32,
    /// 12 in "3.12".
    pub minor: u32,
}

impl Version {
    /// Parses the output of `iperf3 --version` ("iperf 3.12 (cJSON 1.7.15)").
    pub fn parse(text: &str) -> Option<Self> {
        let number = text.split_whitespace().nth(1)?;
        let (major, rest) = number.split_once('.')?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        Some(Self { major: major.parse().ok()?, minor: rest[..digits].parse().ok()? })
    }

    /// Whether it can write one line of JSON per interval while it runs (`--json-stream`, since 3.17).
    pub fn has_json_stream(self) -> bool {
        self >= Self { major: 3, minor: 17 }
    }

    /// Whether it has `--pacing-timer`, the interval of its rate limit (since 3.2).
    fn has_pacing_timer(self) -> bool {
        self >= Self { major: 3, minor: 2 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Returns the arguments of the listening end: one test, then exit.
pub fn server_args(task: &FlowTask, version: Version) -> Vec<String> {
    let mut args = vec!["-s".to_owned(), "-1".to_owned()];
    push_common(&mut args, task, version);
    args.extend(["-B".to_owned(), task.to_ip.to_string()]);
    args
}

/// Returns the arguments of the connecting end. Data connection `i` comes from port `client_port + i`.
pub fn client_args(task: &FlowTask, version: Version) -> Vec<String> {
    let mut args = vec!["-c".to_owned(), task.to_ip.to_string()];
    push_common(&mut args, task, version);
    // The agent ends the client at its stop. `-t` only has to be longer, and iperf3 allows at most a day.
    let seconds = ((task.stop - task.start).get().div_ceil(1_000_000) + SPARE_SECONDS).min(86_400);
    args.extend([
        "-B".to_owned(),
        task.from_ip.to_string(),
        "--cport".to_owned(),
        task.client_port.to_string(),
        "-P".to_owned(),
        task.plan.count.to_string(),
        "-t".to_owned(),
        seconds.to_string(),
        "--connect-timeout".to_owned(),
        "3000".to_owned(),
    ]);
    if let Some(cc) = &task.plan.cc {
        args.extend(["-C".to_owned(), cc.clone()]);
    }
    if let Some(rate) = task.plan.rate {
        args.extend(["-b".to_owned(), rate.bits_per_sec().to_string()]);
        args.extend(["-l".to_owned(), block_bytes(rate).to_string()]);
        if version.has_pacing_timer() {
            args.extend(["--pacing-timer".to_owned(), "1000".to_owned()]);
        }
    }
    if task.plan.reverse {
        args.push("-R".to_owned());
    }
    args
}

/// How much longer than planned a client would run if the agent did not end it.
const SPARE_SECONDS: u64 = 5;
fn push_common(args: &mut Vec<String>, task: &FlowTask, version: Version) {
    // iperf3 itself refuses intervals outside 0.1 to 60 s.
    let interval = task.plan.interval.get().clamp(100_000, 60_000_000);
    args.extend(["-p".to_owned(), task.server_port.to_string()]);
    args.extend(["-i".to_owned(), format!("{:.3}", interval as f64 / 1e6)]);
    args.push(if version.has_json_stream() { "--json-stream" } else { "-J" }.to_owned());
}

#[cfg(test)]
mod tests;
