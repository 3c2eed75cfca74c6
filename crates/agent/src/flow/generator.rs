//! Translates a task into arguments of ccbench's own traffic generator.

use ccbench_proto::schedule::{FlowTask, block_bytes};
use ccbench_proto::wire::Side;

use super::FlowEndpoint;

/// Returns the arguments of `ccbench-agent`.
pub fn args(task: &FlowTask, end: FlowEndpoint) -> Vec<String> {
    let mut args = vec!["generate".to_owned()];
    let mut push = |name: &str, value: String| args.extend([format!("--{name}"), value]);
    push("server", task.to_ip.to_string());
    push("server-port", task.server_port.to_string());
    if end == FlowEndpoint::Client {
        push("client", task.from_ip.to_string());
    }
    push("client-port", task.client_port.to_string());
    push("count", task.plan.count.to_string());
    push("interval-us", task.plan.interval.get().to_string());
    // Only the sender sets it: the receiver's node may load it later, or not at all.
    if let Some(cc) = task.plan.cc.as_ref().filter(|_| end.side(task) == Side::Sender) {
        push("cc", cc.clone());
    }
    if let Some(rate) = task.plan.rate {
        push("rate-bps", rate.bits_per_sec().to_string());
        push("block-bytes", block_bytes(rate).to_string());
    }
    if let Some(bytes) = task.plan.bytes {
        push("bytes", bytes.get().to_string());
    }
    if let Some(pause) = task.plan.pause {
        push("pause-after-us", pause.after.get().to_string());
        push("pause-us", pause.duration.get().to_string());
        if let Some(every) = pause.every {
            push("pause-every-us", every.get().to_string());
        }
    }
    if task.plan.reverse {
        args.push("--reverse".to_owned());
    }
    args
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use ccbench_proto::plan::{Flow, Pause};
    use ccbench_proto::units::{Bytes, Micros, Rate};

    use super::*;
    use crate::args::{Cli, Command};
    use crate::flow::example_task;

    #[test]
    fn the_command_line_takes_the_arguments() {
        let rate = Some(Rate::from_bits_per_sec(8_000_000));
        let pause = Some(Pause {
            after: Micros::new(7),
            duration: Micros::new(9),
            every: Some(Micros::new(20)),
        });
        let plan = Flow { count: 3, rate, pause, reverse: true, ..Flow::new("a", "b") };
        let plan = Flow { cc: Some("cubic".into()), bytes: Some(Bytes::new(5000)), ..plan };
        let task = FlowTask { plan, ..example_task() };
        let parsed = |end| {
            let words = std::iter::once("ccbench-agent".to_owned()).chain(args(&task, end));
            match Cli::try_parse_from(words).unwrap().command {
                Command::Generate(args) => args,
                other => panic!("{other:?}"),
            }
        };
        let client = parsed(FlowEndpoint::Client);
        assert_eq!((client.client, client.client_port), (Some(task.from_ip), 10_000));
        assert_eq!((client.server, client.server_port, client.count), (task.to_ip, 5201, 3));
        assert_eq!((client.rate_bps.unwrap().get(), client.block_bytes.get()), (8_000_000, 10_000));
        assert_eq!((client.pause_after_us, client.pause_us), (Some(7), Some(9)));
        assert_eq!(client.pause_every_us, Some(20));
        assert_eq!(client.bytes.unwrap().get(), 5000);
        assert_eq!((client.cc.as_deref(), client.interval_us.get()), (None, 100_000));
        assert!(client.reverse);
        let server = parsed(FlowEndpoint::Server);
        assert_eq!(
            (server.client, server.cc.as_deref()),
            (None, Some("cubic")),
            "the server sends"
        );
    }
}
