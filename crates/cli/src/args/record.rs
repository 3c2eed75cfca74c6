//! Arguments of `trace record`.

use std::net::IpAddr;
use std::path::PathBuf;

use ccbench_proto::units::{Bytes, Micros, Rate};
use clap::{Args, ValueHint};

use super::RunOptions;

/// Arguments of `trace record`.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// A plan whose nodes, wires and links are the path; its other keys do not matter.
    #[arg(value_hint = ValueHint::FilePath, required_unless_present = "peer", requires_all = ["from", "to"])]
    pub plan: Option<PathBuf>,
    /// Node of the plan at this end.
    #[arg(long, value_name = "NODE", requires = "plan")]
    pub from: Option<String>,
    /// Node of the plan at the other end.
    #[arg(long, value_name = "NODE", requires = "plan")]
    pub to: Option<String>,
    /// Instead of a plan: the running agent at the other end (`ccbench-agent serve`).
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "plan", requires_all = ["peer_address", "here_address"])]
    pub peer: Option<String>,
    /// Address of the other end on the path.
    #[arg(long, value_name = "IP", requires = "peer")]
    pub peer_address: Option<IpAddr>,
    /// The agent at this end.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7700")]
    pub here: String,
    /// Address of this end on the path.
    #[arg(long, value_name = "IP", requires = "peer")]
    pub here_address: Option<IpAddr>,
    /// Rate of the streams, above the capacity of the path in both directions. A small excess disturbs other traffic less.
    #[arg(long)]
    pub rate: Rate,
    /// Length of the traces: whole intervals.
    #[arg(long, default_value = "60s")]
    pub length: Micros,
    /// Length of a row, the resolution. At low rates, a row has few packets.
    #[arg(long, default_value = "100ms")]
    pub every: Micros,
    /// Bytes that count against the rate in addition to each IP packet, like a link's `overhead`.
    #[arg(long, default_value = "14B")]
    pub overhead: Bytes,
    /// Prefix of the names of the traces: `-o cell` writes cell.down.csv (from the other end to this one) and cell.up.csv.
    #[arg(short, long, value_name = "NAME", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Options of the run that measures.
    #[command(flatten)]
    pub options: RunOptions,
}
