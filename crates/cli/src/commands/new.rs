//! `ccbench new`: writes a first plan from the answers to five questions.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::io::{BufRead, IsTerminal as _, Write as _};
use std::path::Path;
use std::str::FromStr;

use ccbench_proto::cc;
use ccbench_proto::units::{Limit, Micros, Rate};

use self::error::NewError;
use crate::args::new::{CcNames, NewArgs, NewCc, QueueKind};
use crate::commands::check::size;
use crate::console::{message, print};
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::file::FileError;
use crate::plan_source::PlanSource;

pub mod error;

const DEFAULT_RATE: &str = "100mbit";
const DEFAULT_RTT: &str = "20ms";
const DEFAULT_QUEUE: &str = "bfifo";
const DEFAULT_BUFFER: &str = "1bdp";
const DEFAULT_CCS: &str = "cubic,bbr";
/// Length of a phase in round trips, so that congestion controls settle.
const ROUND_TRIPS: f64 = 50.0;
const MIN_PHASE_S: f64 = 10.0;

/// Asks questions or takes the options, and writes the plan.
///
/// # Errors
/// The file exists, an answer is invalid, or the file cannot be written.
pub fn run(args: NewArgs) -> Result<ExitCode, CliError> {
    let path = args.plan.clone();
    if path.exists() {
        return Err(NewError::Exists(path).into());
    }
    let has_no_answers = has_no_answers(&args);
    let can_ask = std::io::stdin().is_terminal();
    let mut answers = if has_no_answers && can_ask {
        Answers::ask(&mut std::io::stdin().lock())?
    } else {
        Answers::from_args(args)?
    };
    answers.files_for(&path)?;
    let text = answers.plan(&plan_name(&path));
    // Checks the plan before writing it, because the answers may contradict each other.
    let plan = PlanSource::embedded(&path.to_string_lossy(), &text, &[]).load(&[])?.plan;
    let failed = FileError::io("write", &path);
    let mut file = std::fs::File::create_new(&path).map_err(&failed)?;
    file.write_all(text.as_bytes()).map_err(&failed)?;
    print(&format!(
        "{path}: {}\nnext: ccbench run {path} --set repeat=1\n",
        size(&plan),
        path = path.display()
    ));
    if has_no_answers && !can_ask {
        message(format_args!(
            "note: standard input is not a terminal, so `ccbench new` asked nothing and the plan has the defaults; choose with --rate, \
             --rtt, --queue, --buffer and --cc"
        ));
    }
    Ok(ExitCode::Success)
}

/// Returns whether no option gives an answer.
fn has_no_answers(args: &NewArgs) -> bool {
    let NewArgs { plan: _, rate, rtt, queue, buffer, cc } = args;
    rate.is_none() && rtt.is_none() && queue.is_none() && buffer.is_none() && cc.is_none()
}

/// The answers from which a plan is made.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answers {
    rate: Rate,
    rtt: Micros,
    queue: QueueKind,
    /// The limit of a FIFO. Other disciplines keep the kernel's limits.
    buffer: Option<Limit>,
    ccs: Vec<NewCc>,
}

impl Answers {
    fn from_args(args: NewArgs) -> Result<Self, NewError> {
        let queue = args.queue.map_or_else(|| parsed(DEFAULT_QUEUE), Ok)?;
        let buffer = match (queue.is_fifo(), args.buffer) {
            (true, Some(limit)) => Some(limit),
            (true, None) => Some(parsed(DEFAULT_BUFFER)?),
            (false, None) => None,
            (false, Some(_)) => {
                return Err(NewError::NoFifo { queue: queue.name() });
            }
        };
        Ok(Self {
            rate: args.rate.map_or_else(|| parsed(DEFAULT_RATE), Ok)?,
            rtt: args.rtt.map_or_else(|| parsed(DEFAULT_RTT), Ok)?,
            queue,
            buffer,
            ccs: args.cc.map_or_else(|| parsed(DEFAULT_CCS), Ok)?.0,
        })
    }

    fn ask(input: &mut impl BufRead) -> Result<Self, NewError> {
        let kinds: Vec<&str> = QueueKind::all().map(QueueKind::name).collect();
        let rate = ask(input, "Rate of the bottleneck", DEFAULT_RATE)?;
        let rtt = ask(input, "Round-trip time without a queue", DEFAULT_RTT)?;
        let which = format!("Queue discipline ({})", kinds.join(", "));
        let queue: QueueKind = ask(input, &which, DEFAULT_QUEUE)?;
        let buffer = match queue.is_fifo() {
            true => Some(ask(input, "Buffer (1.5bdp, 100p, 187500B, 15ms)", DEFAULT_BUFFER)?),
            false => None,
        };
        let CcNames(ccs) = ask(input, "Congestion controls that compete", DEFAULT_CCS)?;
        Ok(Self { rate, rtt, queue, buffer, ccs })
    }

    /// Converts paths of files, which are given relative to the working directory but read relative to the plan.
    fn files_for(&mut self, plan: &Path) -> Result<(), NewError> {
        if plan.parent().is_none_or(|folder| folder.as_os_str().is_empty()) {
            return Ok(());
        }
        for (_, file) in self.ccs.iter_mut().filter_map(|cc| cc.file.as_mut()) {
            *file = std::path::absolute(&*file).map_err(NewError::WorkingDirectory)?;
        }
        Ok(())
    }

    /// Returns the plan, with comments.
    fn plan(&self, name: &str) -> String {
        let Self { rate, rtt, queue, buffer, ccs } = self;
        let names: Vec<&str> = ccs.iter().map(|cc| cc.name.as_str()).collect();
        let (about, queue) = (names.join(" and "), queue.name());
        let limit = buffer.map_or(String::new(), |limit| format!(", limit = \"{limit}\""));
        let mut text = format!(
            r#"# Written by `ccbench new`. `ccbench plan reference` explains every key, `ccbench check` checks the plan.

name   = "{name}"
about  = "{about} at a bottleneck of {rate} with a round-trip time of {rtt}"
repeat = 3                       # trials; more of them give narrower confidence intervals
gap    = "1s"                    # between trials
seed   = 1                       # of the order of trials and of everything random

[nodes]                          # without an agent's address: network namespaces of this machine
src    = {{}}
router = {{}}
dst    = {{}}

[wires]
path = ["src", "router", "dst"]

[links.bottleneck]               # packets that leave router towards dst
node   = "router"
toward = "dst"
rate   = "{rate}"
queue  = {{ kind = "{queue}"{limit} }}

[links.back]                     # the whole round-trip time; a delay at the sender would disturb its TCP
node   = "router"
toward = "src"
delay  = "{rtt}"
"#
        );
        // The plan loads these, because the kernel lacks them.
        let loaded: BTreeMap<&str, String> = ccs.iter().filter_map(loaded).collect();
        for (cc, key) in loaded {
            let _ = write!(
                text,
                "\n[cc.{cc}]                     # loaded before each trial and unloaded after it\n{key}\n"
            );
        }
        let groups = group_names(&names);
        for (nth, (group, cc)) in groups.iter().zip(names).enumerate() {
            let count = match nth {
                0 => "# count = 4                      # parallel flows; otherwise one\n",
                _ => "",
            };
            let _ = write!(
                text,
                "\n[flows.{group}]\nfrom = \"src\"\nto   = \"dst\"\ncc   = \"{cc}\"\n{count}"
            );
        }
        text += &self.phases(&groups);
        text += &claim(&groups);
        text
    }

    fn phases(&self, groups: &[String]) -> String {
        let length_s = (self.rtt.as_secs_f64() * ROUND_TRIPS).max(MIN_PHASE_S).ceil();
        let names: Vec<String> = groups.iter().map(|group| format!("\"{group}\"")).collect();
        let rest = format!("length = \"{length_s}s\"\nflows  = [{}]\n", names.join(", "));
        if groups.len() == 1 {
            return format!("\n[[phases]]\nname   = \"alone\"\n{rest}");
        }
        // With a head start, the first of two CUBIC flows still had 1.5 times the other's share after 20 s at 100 Mbit/s and 100
        // ms.
        format!(
            "\n# All flows start together: one that starts later finds a full queue, and has a smaller share for a long time. The\n\
             # first seconds are not measured: in slow start, shares depend on who fills the queue first.\n\
             [[phases]]\nname   = \"settle\"\nmeasure = false\n{rest}\
             \n[[phases]]\nname   = \"together\"\n{rest}"
        )
    }
}

/// Returns the name of a congestion control that the plan loads, and the key that names its file or algorithm.
fn loaded(cc: &NewCc) -> Option<(&str, String)> {
    let name = cc.name.as_str();
    match &cc.file {
        Some((key, path)) => {
            let path = toml_edit::Value::from(&*path.to_string_lossy());
            Some((name, format!("{key} = {path}")))
        }
        None if cc::BUILTINS.contains(&name) || cc::scheme(name).is_none() => None,
        None => Some((name, format!("algorithm = \"{name}\""))),
    }
}

/// Returns an example of a claim, as a comment.
fn claim(groups: &[String]) -> String {
    let [first, second, ..] = groups else { return String::new() };
    format!(
        "\n# A claim; `ccbench run` prints whether it holds. Remove the comment signs to use it.\n\
         # [[expect]]\n\
         # claim  = \"{second} leaves {first} half of its own throughput\"\n\
         # phase  = \"together\"\n\
         # metric = \"throughput\"\n\
         # group  = \"{first}\"\n\
         # over   = {{ group = \"{second}\" }}\n\
         # above  = 0.5\n"
    )
}

/// Returns a name for the flow of each congestion control. Flows with the same one are numbered.
fn group_names(ccs: &[&str]) -> Vec<String> {
    let mut names: Vec<String> = Vec::with_capacity(ccs.len());
    for cc in ccs {
        let plain = cc.replace('.', "_");
        let numbered = (2..).map(|number| format!("{plain}-{number}"));
        let mut candidates = std::iter::once(plain.clone()).chain(numbered);
        let name = candidates.find(|name| !names.contains(name));
        names.extend(name);
    }
    names
}

/// Returns the name of the plan: that of the file, without characters that a plan's name may not have.
fn plan_name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let name: String = stem.chars().map(|c| if good(c) { c } else { '-' }).take(60).collect();
    let name = name.trim_start_matches(['-', '_']);
    if name.is_empty() { "plan".to_owned() } else { name.to_owned() }
}

/// Parses one of the defaults above.
fn parsed<T: FromStr<Err: Error + Send + Sync + 'static>>(
    text: &'static str,
) -> Result<T, NewError> {
    text.parse().map_err(|error: T::Err| NewError::Default { text, source: error.into() })
}

/// Asks until the answer is valid. An empty answer and the end of the input mean the default.
fn ask<T: FromStr<Err: Error + Send + Sync + 'static>>(
    input: &mut impl BufRead,
    question: &str,
    default: &'static str,
) -> Result<T, NewError> {
    loop {
        print(&format!("{question} [{default}]: "));
        let mut line = String::new();
        input.read_line(&mut line).map_err(NewError::Input)?;
        let answer = line.trim();
        if answer.is_empty() {
            return parsed(default);
        }
        match answer.parse::<T>() {
            Ok(value) => return Ok(value),
            Err(error) => message(format_args!("{error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::check::{self, CheckedPlan};
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    fn args(words: &[&str]) -> NewArgs {
        let line = ["ccbench", "new"].iter().chain(words);
        let Command::New(args) = Cli::try_parse_from(line).unwrap().command else {
            panic!("another command")
        };
        args
    }

    fn checked(answers: &Answers) -> CheckedPlan {
        let text = answers.plan("mine");
        check::read(&text, &[]).unwrap_or_else(|problems| panic!("{problems:?}\n{text}")).0
    }

    #[test]
    fn every_combination_of_options_is_a_valid_plan() {
        let mut count = 0;
        for rate in ["10mbit", "100mbit", "1gbit"] {
            for rtt in ["10ms", "20ms", "300ms"] {
                for cc in ["cubic", "cubic,bbr", "reno,reno,vegas"] {
                    for queue in QueueKind::all() {
                        let buffers: &[&str] = match queue.is_fifo() {
                            true => &["1bdp", "0.5bdp", "100p", "15ms", "187500B"],
                            false => &[""],
                        };
                        for buffer in buffers {
                            let mut words = vec!["--rate", rate, "--rtt", rtt, "--cc", cc];
                            words.extend(["--queue", queue.name()]);
                            if !buffer.is_empty() {
                                words.extend(["--buffer", buffer]);
                            }
                            let plan = checked(&Answers::from_args(args(&words)).unwrap());
                            let groups = cc.split(',').count();
                            assert_eq!(plan.plan().flows.len(), groups, "{words:?}");
                            assert_eq!(plan.plan().phases.len(), groups.min(2), "{words:?}");
                            count += 1;
                        }
                    }
                }
            }
        }
        assert!(count > 500, "{count}");
    }

    #[test]
    fn competing_flows_start_together_and_settle_before_they_are_measured() {
        let plan = checked(&Answers::from_args(args(&["--cc", "cubic,bbr,reno"])).unwrap());
        let phases = &plan.plan().phases;
        let measured: Vec<bool> = phases.iter().map(|phase| phase.measure).collect();
        assert_eq!(measured, [false, true]);
        assert!(phases.iter().all(|phase| phase.flows.len() == 3), "{phases:?}");
        let one = checked(&Answers::from_args(args(&["--cc", "cubic"])).unwrap());
        assert!(one.plan().phases[0].measure);
    }

    #[test]
    fn the_commented_key_adds_flows() {
        let text = Answers::from_args(args(&["--cc", "cubic,bbr"])).unwrap().plan("mine");
        let flows = |text: &str| {
            let (plan, _) = check::read(text, &[]).unwrap();
            plan.plan().flows.values().map(|flow| u64::from(flow.count)).sum::<u64>()
        };
        assert_eq!((flows(&text), flows(&text.replacen("# count", "count", 1))), (2, 5));
    }

    #[test]
    fn an_unknown_queue_suggests_the_nearest_kind() {
        let line = ["ccbench", "new", "--queue", "fq-codel"];
        let error = Cli::try_parse_from(line).unwrap_err().to_string();
        assert!(error.contains("did you mean `fq_codel`?"), "{error}");
    }

    #[test]
    fn ccbenchs_own_congestion_controls_are_loaded() {
        let answers = Answers::from_args(args(&["--cc", "bbr3,cubic,bbr3,vegas"])).unwrap();
        let loaded: Vec<String> = checked(&answers).plan().cc.keys().cloned().collect();
        assert_eq!(loaded, ["bbr3"]);
    }

    #[test]
    fn files_are_congestion_controls_of_the_users_own() {
        let mut answers = Answers::from_args(args(&[
            "--cc",
            "tcp_mine.bpf.o,cubic,out/tcp_it.v2.ko,tcp_mine.bpf.o",
        ]))
        .unwrap();
        let text = answers.plan("mine");
        let files = check::cc_files(&text, &[]);
        assert_eq!(files, ["out/tcp_it.v2.ko", "tcp_mine.bpf.o"].map(str::to_owned).into());
        for (table, key) in [("tcp_mine", "file"), ("tcp_it_v2", "module")] {
            let (_, rest) = text.split_once(&format!("\n[cc.{table}] ")).unwrap();
            assert!(rest.lines().nth(1).unwrap().starts_with(&format!("{key} = \"")), "{text}");
            assert!(text.contains(&format!("cc   = \"{table}\"\n")), "{text}");
        }
        answers.files_for(Path::new("plan.toml")).unwrap();
        assert_eq!(answers.plan("mine"), text);
        answers.files_for(Path::new("plans/plan.toml")).unwrap();
        let files = check::cc_files(&answers.plan("mine"), &[]);
        assert!(files.iter().all(|file| Path::new(file).is_absolute()), "{files:?}");
        // Rust escapes a combining character in a way that TOML does not.
        let accent = "e\u{301}/tcp_it.ko";
        let text = Answers::from_args(args(&["--cc", accent])).unwrap().plan("mine");
        assert_eq!(check::cc_files(&text, &[]), [accent.to_owned()].into(), "{text}");
    }

    #[test]
    fn the_claim_in_the_comments_is_valid() {
        let answers = Answers::from_args(args(&[])).unwrap();
        let text = answers.plan("mine");
        let (plan, claim) = text.split_once("# [[expect]]").unwrap();
        let claim: Vec<&str> = claim.lines().map(|line| line.trim_start_matches("# ")).collect();
        let text = format!("{plan}[[expect]]{}\n", claim.join("\n"));
        let plan = check::read(&text, &[]).unwrap_or_else(|problems| panic!("{problems:?}"));
        assert_eq!(plan.0.plan().expect.len(), 1);
    }

    #[test]
    fn answers_on_a_terminal_are_those_of_the_options() {
        let mut input = "fast\n1gbit\n\ncodel\nreno, bbr\n".as_bytes();
        let asked = Answers::ask(&mut input).unwrap();
        let words = ["--rate", "1gbit", "--queue", "codel", "--cc", "reno,bbr"];
        assert_eq!(asked, Answers::from_args(args(&words)).unwrap());
        let nothing = Answers::ask(&mut "".as_bytes()).unwrap();
        assert_eq!(nothing, Answers::from_args(args(&[])).unwrap());
    }

    #[test]
    fn contradictions_and_unknown_names_are_refused() {
        let both = Answers::from_args(args(&["--queue", "codel", "--buffer", "1bdp"]));
        assert!(both.unwrap_err().to_string().contains("--queue bfifo"));
        let ccs = ["cubic,,bbr", "a b", "a/x.o,b/x.o", "x,x.ko", "x.so/", "x.bpf.c"];
        let ccs = ccs.map(|ccs| ["--cc", ccs]);
        for words in [["--queue", "red"], ["--rate", "1"]].into_iter().chain(ccs) {
            let line = ["ccbench", "new"].iter().chain(&words);
            assert!(Cli::try_parse_from(line).is_err(), "{words:?}");
        }
    }

    #[test]
    fn nothing_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("my first plan.toml");
        let new = || run(args(&[path.to_str().unwrap(), "--rate", "10mbit"]));
        assert_eq!(new().unwrap(), ExitCode::Success);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("name   = \"my-first-plan\""), "{text}");
        assert!(matches!(new(), Err(CliError::New(NewError::Exists(found))) if found == path));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
}
