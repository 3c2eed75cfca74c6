//! Arguments of `new`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use ccbench_proto::cc::{refuse_kernel_name, refuse_source};
use ccbench_proto::plan::Queue;
use ccbench_proto::plan::parse::suggest::near;
use ccbench_proto::units::{Limit, Micros, Rate};
use clap::{Args, ValueHint};

use super::values::ValueError;

/// Arguments of `new`.
#[derive(Debug, Args)]
pub struct NewArgs {
    /// The plan to write; it must not exist.
    #[arg(default_value = "plan.toml", value_hint = ValueHint::FilePath)]
    pub plan: PathBuf,
    /// Rate of the bottleneck: `50mbit` [default: 100mbit]. Without any of these options, `new` asks at the terminal.
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
    /// Congestion controls that compete, separated by commas; each has one flow [default: cubic,bbr]. Name your own by their files:
    /// `mine.bpf.o` or `tcp_mine.ko`.
    #[arg(long, value_name = "CC,CC")]
    pub cc: Option<CcNames>,
}

/// A discipline that needs no key except possibly a limit.
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

    /// Whether every plan must give its limit.
    pub fn is_fifo(self) -> bool {
        self.0.contains("fifo")
    }
}

impl FromStr for QueueKind {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        Self::all().find(|kind| kind.0 == text).ok_or_else(|| {
            let names: Vec<&str> = Self::all().map(Self::name).collect();
            ValueError::Part(format!("write one of {}{}", names.join(", "), near(text, &names)))
        })
    }
}

/// Congestion controls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CcNames(pub Vec<NewCc>);

/// A congestion control of a new plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCc {
    /// Its name in flows.
    pub name: String,
    /// For a supplied congestion control, the key of `[cc.NAME]`, `file` or `module`, and the file.
    pub file: Option<(&'static str, PathBuf)>,
}

impl FromStr for NewCc {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let endings = [(".bpf.o", "file"), (".ko", "module"), (".o", "file")];
        let path = Path::new(text);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let stem = |(ending, key): (&str, &'static str)| {
            name.strip_suffix(ending).map(|stem| (stem.to_owned(), key))
        };
        if let Some((stem, key)) = endings.into_iter().find_map(stem) {
            let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            let name = stem.chars().map(|c| if good(c) { c } else { '_' }).collect();
            return Ok(Self { name, file: Some((key, path.to_owned())) });
        }
        if let Some(reason) = refuse_source(text) {
            return Err(ValueError::Part(reason));
        }
        match refuse_kernel_name(text) {
            None => Ok(Self { name: text.to_owned(), file: None }),
            Some(reason) => {
                let files = "a file with one ends in `.bpf.o`, `.o` or `.ko`";
                Err(ValueError::Part(format!("{reason}; {files}")))
            }
        }
    }
}

impl FromStr for CcNames {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let ccs: Vec<NewCc> =
            text.split(',').map(|cc| cc.trim().parse()).collect::<Result<_, _>>()?;
        let same_name = |cc: &&NewCc| ccs.iter().any(|one| one.name == cc.name && one != *cc);
        if let Some(cc) = ccs.iter().find(same_name) {
            let reason = "two congestion controls would be called";
            return Err(ValueError::Part(format!("{reason} `{}`; rename a file", cc.name)));
        }
        Ok(Self(ccs))
    }
}
