//! The command line of `ccbench reset`.

use clap::Args;

use super::TlsArgs;

/// Arguments of `reset`.
#[derive(Debug, Args)]
pub struct ResetArgs {
    /// The agents, each as `node1.example`, `192.0.2.11:7700` or `[2001:db8::1]:7700` (port 7700 if it is omitted), or plans
    /// (`plan.toml`), which stand for all agents that they name.
    #[arg(required = true, value_name = "HOST[:PORT]|PLAN")]
    pub nodes: Vec<String>,
    /// Options for agents over TCP.
    #[command(flatten)]
    pub tls: TlsArgs,
}
