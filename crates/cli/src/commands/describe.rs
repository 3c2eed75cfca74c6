//! `ccbench describe`: prints what the nodes of a plan are and what they support.

use std::fmt::Write as _;

use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::wire::NodeInfo;

use crate::args::DescribeArgs;
use crate::backend::Backend as _;
use crate::console::print;
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::experiment::{Experiment, ExperimentOptions};
use crate::plan_source::PlanSource;
use crate::testbed::Testbed;

/// Builds the testbed or connects to the agents, and prints every node.
///
/// # Errors
/// The plan is invalid, or a node cannot be reached.
pub async fn run(args: DescribeArgs) -> Result<ExitCode, CliError> {
    let loaded = PlanSource::read(&args.plan.plan)?.load(&args.plan.sets)?;
    let options = ExperimentOptions {
        rootless: args.rootless,
        tls: args.tls,
        ..ExperimentOptions::default()
    };
    let experiment = Experiment::new(loaded, options);
    let testbed = Testbed::open(&experiment).await?;
    for (node, agent) in &testbed.agents.by_node {
        print(&describe(node, &agent.info));
    }
    testbed.close().await;
    Ok(ExitCode::Success)
}

fn describe(node: &str, info: &NodeInfo) -> String {
    let mut text = format!("{node}\n");
    let mut line = |what: &str, value: String| {
        if !value.is_empty() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {what:<20} {value}");
        }
    };
    line("kernel", format!("{} {}", info.kernel, info.machine));
    line("CPUs", format!("{} × {}", info.cpus, info.cpu_model));
    line("agent", format!("{} ({})", info.agent_version, info.privileges().as_text()));
    line("traffic runs as", info.traffic_user.clone());
    line("iperf3", info.iperf3_version.clone());
    line("congestion controls", info.congestion_controls.join(" "));
    line("default", info.default_congestion_control.clone());
    line("qdiscs", info.qdiscs.join(" "));
    line("ecn", info.ecn.join(" "));
    for interface in &info.interfaces {
        let on = |name: &str, on: bool| if on { format!(" {name}") } else { String::new() };
        let offloads =
            on("tso", interface.tso) + &on("gso", interface.gso) + &on("gro", interface.gro);
        let offloads = if offloads.is_empty() { " none".to_owned() } else { offloads };
        let addresses = interface.addresses.join(" ");
        line(
            &interface.name,
            format!(
                "{addresses} mtu {} {} offloads:{offloads}",
                interface.mtu_bytes, interface.root_qdisc
            ),
        );
    }
    for note in &info.notes {
        line("note", note.clone());
    }
    text
}
