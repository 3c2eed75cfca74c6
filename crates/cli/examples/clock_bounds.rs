//! Measures the error of clock offsets and whether their bounds hold. It exchanges timestamps with an agent in a time namespace
//! whose CLOCK_MONOTONIC is ahead by a known time. Needs root.
//!
//! `clock_bounds AGENT EXCHANGES` prints the largest error and the largest bound. It fails if an error exceeds its bound.
#![allow(clippy::disallowed_methods, reason = "starts unshare")]
#![allow(clippy::unwrap_used, reason = "a measurement may panic")]

use std::process::ExitCode;
use std::time::Duration;

use tokio::process::Command;

const OFFSET_S: i64 = 5_000;
/// Time limit for the agent to start listening.
const START_TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let count = |text: &String| text.parse().ok().filter(|&count| count > 0);
    let (agent, count) = match &arguments[..] {
        [_, agent, exchanges] if let Some(count) = count(exchanges) => (agent, count),
        _ => {
            eprintln!("usage: clock_bounds AGENT EXCHANGES, where EXCHANGES is a number above 0");
            return ExitCode::from(2);
        }
    };
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("agent.sock");
    let mut command = Command::new("unshare");
    command.args(["--time", "--monotonic", &OFFSET_S.to_string(), "--kill-child", "--fork", agent]);
    command.args(["serve", "--listen", &format!("unix:{}", socket.display()), "--state-dir"]);
    let mut running = command.arg(dir.path().join("state")).kill_on_drop(true).spawn().unwrap();
    let listens = async {
        while !socket.exists() {
            assert_eq!(running.try_wait().unwrap(), None, "the agent ended");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(START_TIMEOUT, listens).await.expect("the agent does not listen");
    let offsets = ccbench::exchange_timestamps(socket, count).await.unwrap();
    let error_ns = |offset_ns: i64| offset_ns.abs_diff(OFFSET_S * 1_000_000_000);
    let wrong = offsets.iter().filter(|o| error_ns(o.offset_ns) > o.error_bound_ns).count();
    println!("exchanges              {}", offsets.len());
    println!("errors above the bound {wrong}");
    println!(
        "largest error, ns      {}",
        offsets.iter().map(|o| error_ns(o.offset_ns)).max().unwrap()
    );
    println!("largest bound, ns      {}", offsets.iter().map(|o| o.error_bound_ns).max().unwrap());
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
