//! A link between two interfaces, for benchmarks: runs until it is killed or its standard input ends.
//!
//! `link --left A --right B [--rate-mbit R] [--delay-ms D] [--queue-bytes Q] [--queue fq|dualpi2]
//! [--keep-awake] [--stats]`; a rate of 0 is none, and both directions are the same.

use std::io::Read;
use std::process::ExitCode;

use ccbench_proto::plan::{Backend, Queue, Shaper};
use ccbench_proto::resolve::{ETHERNET_BYTES, Impairments, LinkConfig};
use ccbench_proto::units::{Bytes, Limit, Micros, Ppm, Rate};
use ccbench_shaper::Link;
use ccbench_shaper::keep_awake::KeepAwake;
use ccbench_shaper::user_link::bridge;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let text = |key: &str| {
        arguments.windows(2).find(|two| two[0] == format!("--{key}")).map(|two| two[1].as_str())
    };
    let number = |key: &str| text(key).map_or(Ok(0.0), str::parse::<f64>);
    let rate_bps = (number("rate-mbit")? * 1e6) as u64;
    let limit = match number("queue-bytes")? as u64 {
        0 => 64 * 1514,
        bytes => bytes,
    };
    let config = LinkConfig {
        name: "bench".to_owned(),
        rate: (rate_bps > 0).then(|| Rate::from_bits_per_sec(rate_bps)),
        delay: Micros::new((number("delay-ms")? * 1e3) as u64),
        loss: Ppm::default(),
        queue: queue(text("queue").unwrap_or("bfifo"), limit)?,
        shaper: Shaper::Htb,
        backend: Backend::Userspace,
        classes: Vec::new(),
        impairments: Impairments::default(),
        trace: None,
        overhead: ETHERNET_BYTES,
        packet_log: None,
        seed: 1,
    };
    let left = text("left").ok_or("--left INTERFACE is missing")?;
    let right = text("right").ok_or("--right INTERFACE is missing")?;
    let _awake = arguments
        .iter()
        .any(|argument| argument == "--keep-awake")
        .then(KeepAwake::start)
        .transpose()?;
    let mut link = bridge(left, right, &config, &config)?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    if arguments.iter().any(|argument| argument == "--stats") {
        for direction in [&mut link.forward, &mut link.backward] {
            let mut rows = Vec::new();
            direction.counters(0, &mut rows)?;
            let mut timing = Vec::new();
            direction.timing(&mut timing);
            println!("{:?}\n{rows:?}\n{timing:?}", direction.state());
        }
    }
    Ok(())
}

/// `kind` is a kind without obligatory parameters.
fn queue(kind: &str, limit: u64) -> Result<Queue, serde_json::Error> {
    match kind {
        "bfifo" => Ok(Queue::Bfifo { limit: Limit::Bytes(Bytes::new(limit)) }),
        other => serde_json::from_value(serde_json::json!({ "kind": other })),
    }
}
