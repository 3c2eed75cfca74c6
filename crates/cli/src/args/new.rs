//! Arguments of `new`.

use std::path::PathBuf;
use std::str::FromStr;

use ccbench_proto::cc::refuse_kernel_name;
use ccbench_proto::plan::Queue;
use ccbench_proto::units::{Limit, Micros, Rate};
use clap::{Args, ValueHint};

use super::values::ValueError;

/// Arguments of `new`.
#[derive(Debug, Args)]
pub struct NewArgs {
    /// The plan to write; it must not exist.
    #[arg(default_value = "plan.toml", value_hint = ValueHint::FilePath)]
    pub plan: PathBuf,
    /// Rate of the bottleneck: `50mbit` [default: 100mbit]. Without any of these options, a terminal is asked.
    #[arg(long)]
    pub rate: Option<Rate>,
    /// Round-trip time of the path without a queue: `40ms` [default: 20ms].
    #[arg(long)]
    pub rtt: Option<Micros>,
    /// Discipline of the bottleneck's queue: bfifo, pfifo, codel, fq_codel, pie … [default: bfifo].
    #[arg(long, value_name = "KIND")]
    pub queue: Option<QueueKind>,
    /// Limit of a FIFO: `1.5bdp`, `100p`, `187500B`, `15ms` [default: 1bdp].
    #[arg(long, value_name = "LIMIT")]
    pub buffer: Option<Limit>,
    /// Congestion controls that compete, separated by commas; each has one flow [default: cubic,bbr].
    #[arg(long, value_name = "CC,CC")]
    pub cc: Option<CcNames>,
}

/// A discipline that needs no other key than perhaps a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueKind(&'static str);

impl QueueKind {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        // The thresholds of RED depend on the experiment.
        Queue::kinds().iter().filter(|kind| **kind != "red").map(|kind| Self(kind))
    }

    /// Its name in plans.
    pub const fn name(self) -> &'static str {
        self.0
    }

    /// Whether it has a limit of its own in every plan.
    pub fn is_fifo(self) -> bool {
        self.0.contains("fifo")
    }
}

impl FromStr for QueueKind {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        Self::all().find(|kind| kind.0 == text).ok_or_else(|| {
            let names: Vec<&str> = Self::all().map(Self::name).collect();
            ValueError::Part(format!("write one of {}", names.join(", ")))
        })
    }
}

/// Names of congestion controls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CcNames(pub Vec<String>);

impl FromStr for CcNames {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let names = text.split(',').map(|name| {
            let name = name.trim();
            match refuse_kernel_name(name) {
                None => Ok(name.to_owned()),
                Some(reason) => Err(ValueError::Part(reason)),
            }
        });
        names.collect::<Result<_, _>>().map(Self)
    }
}
