//! The controller: `ccbench run plan.toml` coordinates agents, stores what they send, summarises and judges
//! it. It never touches a kernel setting itself and knows nodes only through the wire protocol.
#![forbid(unsafe_code)]

mod args;
mod cc;
mod coordinate;
mod error;
mod fleet;
mod import;
mod lab;
mod link;
mod live;
mod local;
mod pki;
mod plan;
mod reproduce;
mod run;
mod source;
mod trace;
mod traces;
mod trials;

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::resolve;
use clap::{CommandFactory, Parser};

use args::{
    CheckArgs, Cli, Command, CompareArgs, DescribeArgs, ExecArgs, ExportCommand, LabCommand,
    PkiCommand, PlotArgs, ReportArgs, SummarizeArgs,
};
use ccbench_results::summarize::RunSummary;
use ccbench_results::summary::Choice;
use coordinate::Experiment;
use error::CliError;
use source::Source;
use trials::Ground as _;

/// Runs one command line and returns the process's exit code (see `ccbench --help`).
pub fn run(arguments: impl Iterator<Item = OsString>) -> i32 {
    let arguments: Vec<OsString> = arguments.collect();
    if let Some(rest) = link::arguments(&arguments) {
        let error = link::exec(rest);
        eprintln!("ccbench: {error}");
        return error.exit_code();
    }
    if let Some(rest) = cc::arguments(&arguments) {
        let error = cc::exec(rest);
        eprintln!("ccbench: {error}");
        return error.exit_code();
    }
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output and are no error.
            let _ = error.print();
            return if error.use_stderr() { 2 } else { 0 };
        }
    };
    log_to_stderr(cli.verbose);
    match dispatch(cli.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("ccbench: {error}");
            error.exit_code()
        }
    }
}

fn log_to_stderr(verbose: u8) {
    let level = ["warn", "info", "debug"][usize::from(verbose.min(2))];
    let filter = tracing_subscriber::EnvFilter::try_from_env("CCBENCH_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}

fn dispatch(command: Command) -> Result<i32, CliError> {
    match command {
        Command::Run(args) => {
            let ran = block_on(run::run_plan(&args, run::source(&args)?))?;
            run::report(&args, ran, run::Shown::Summary)
        }
        Command::Plan(command) => plan::run(&command),
        Command::Reproduce(args) => reproduce::run(args),
        Command::Check(args) => check_plan(&args),
        Command::Summarize(args) => summarize(&args),
        Command::Import(args) => import::run(&args),
        Command::Report(args) => write_report(&args),
        Command::Compare(args) => compare(&args),
        Command::Export(command) => export(&command),
        Command::Plot(args) => plot(args),
        Command::Describe(args) => block_on(describe(args)),
        Command::Exec(args) => Err(exec(&args)),
        Command::Lab(command) => lab_command(&command),
        Command::Cc { arguments } => Err(cc::exec(&arguments)),
        Command::Link { arguments } => Err(link::exec(&arguments)),
        Command::Trace(command) => trace::run(command),
        Command::Clean => {
            let mut clean = std::process::Command::new(local::agent_binary());
            Err(replace(clean.arg("clean").arg("--root").arg(local::state_root())))
        }
        Command::Pki(PkiCommand::Init { dir }) => {
            pki::init(&dir)?;
            print(&format!(
                "{0} holds the authority (ca.key stays here) and the controller's certificate.\n\
                 For each node: ccbench pki node {0} HOST, then copy ca.pem, HOST.pem and HOST.key to it and run\n  \
                 ccbench-agent serve --listen tcp:0.0.0.0:7700 --tls-ca ca.pem --tls-cert HOST.pem --tls-key HOST.key\n",
                dir.display()
            ))
        }
        Command::Pki(PkiCommand::Node { dir, names }) => {
            pki::node(&dir, &names)?;
            let name = names.first().map_or("", String::as_str);
            print(&format!("{0}/{name}.pem and {0}/{name}.key\n", dir.display()))
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "ccbench", &mut std::io::stdout());
            Ok(0)
        }
        Command::Man { dir } => {
            let made = std::fs::create_dir_all(&dir)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), &dir));
            made.map(|()| 0).map_err(|source| CliError::File {
                op: "write man pages to",
                path: dir,
                source,
            })
        }
    }
}

fn lab_command(command: &LabCommand) -> Result<i32, CliError> {
    match command {
        LabCommand::Build { kernel } => {
            let kernel = lab::build(*kernel)?;
            let lab = lab::Lab::open(kernel.series)?;
            print(&format!(
                "{} ({}), {}\n{}\n",
                kernel.release,
                kernel.version,
                lab.emulator,
                kernel.image.display()
            ))
        }
        LabCommand::Shell { kernel, dilation } => {
            Err(replace(&mut lab::Lab::open(*kernel)?.shell(*dilation)?))
        }
    }
}

/// Everything runs on this thread: children die with the thread that made them, and rows are few.
fn block_on<T>(future: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| CliError::Usage(format!("cannot start: {e}")))?;
    runtime.block_on(future)
}

/// Writes to standard output; a reader that went away is no error.
fn print(text: &str) -> Result<i32, CliError> {
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(0)
}

fn check_plan(args: &CheckArgs) -> Result<i32, CliError> {
    let source = Source::read(&args.plan.plan)?;
    let plan = source.load(&source.sets(&args.plan.sets, args.quick)?)?.plan;
    if args.expand {
        for point in plan.points() {
            let factors: Vec<String> =
                point.factors.iter().map(|(factor, level)| format!("{factor} = {level}")).collect();
            print(&format!(
                "# point {} {}\n{}\n",
                point.id,
                factors.join(", "),
                resolve::to_toml(&point.plan)
            ))?;
        }
        return Ok(0);
    }
    print(&format!("{}: {}\n", plan.plan().name, extent(&plan)))
}

/// How much a plan is to run, in words.
fn extent(plan: &CheckedPlan) -> String {
    let (points, repeat) = (plan.point_count(), plan.plan().repeat);
    let trials = points * repeat;
    format!("{points} point(s) × {repeat} = {trials} trial(s), {} of traffic", length(plan))
}

/// How long all trials of a plan are together, in words.
fn length(plan: &CheckedPlan) -> String {
    let points = plan.points();
    let lengths = points.iter().map(|p| ccbench_proto::schedule::length(&p.plan).as_secs_f64());
    let all = lengths.sum::<f64>() * f64::from(plan.plan().repeat);
    live::clock_text(std::time::Duration::from_secs_f64(all))
}

/// A run's summary, with the claims of another plan if one is named.
fn summary_of(run: &Path, choice: Choice, expect: Option<&Path>) -> Result<RunSummary, CliError> {
    // Whether the other plan is right is told before anything is read.
    let expect = expect.map(|plan| Source::read(plan)?.load(&[])).transpose()?;
    let mut summary = RunSummary::compute(run, choice)?;
    if let Some(other) = &expect {
        summary.judge(other.plan.plan());
    }
    Ok(summary)
}

fn summarize(args: &SummarizeArgs) -> Result<i32, CliError> {
    let mut summary = summary_of(&args.run, Choice::default(), args.expect.as_deref())?;
    summary.written = summary.write();
    ccbench_results::table::print(&summary, &mut std::io::stdout(), terminal_width())?;
    if let Some(group) = &args.six_columns {
        print(&ccbench_results::six_columns::csv(&summary.summary, group)?)?;
    }
    // A directory that may only be read (somebody else's run) is no error: the table says it.
    Ok(0)
}

fn write_report(args: &ReportArgs) -> Result<i32, CliError> {
    let file = args.output.clone().unwrap_or_else(|| args.run.join("report.html"));
    let choice = Choice { include_failed: args.include_failed, ..<_>::default() };
    let summary = summary_of(&args.run, choice, args.expect.as_deref())?;
    ccbench_results::report::write(&summary, &file)?;
    print(&format!("{}\n", file.display()))
}

fn export(command: &ExportCommand) -> Result<i32, CliError> {
    use ccbench_results::export::{csv, failed_trials, flent, iperf3};
    let (run, tables, written) = match command {
        ExportCommand::Csv { run, tables, output } => (run, &tables[..], csv(run, tables, output)),
        ExportCommand::Flent(args) => (&args.run, &[][..], flent(&args.run, &args.output)),
        ExportCommand::Iperf3(args) => (&args.run, &[][..], iperf3(&args.run, &args.output)),
    };
    for path in written? {
        print(&format!("{}\n", path.display()))?;
    }
    if let Some(said) = failed_trials(run, tables)? {
        eprintln!("ccbench: {said}");
    }
    Ok(0)
}

fn compare(args: &CompareArgs) -> Result<i32, CliError> {
    use ccbench_results::compare::{With, compare, csv, plans_differ, text};
    let with = match (&args.b, &args.by) {
        (Some(other), _) => With::Run(other),
        (None, Some((factor, one, other))) => With::Levels(factor, one, other),
        (None, None) => return Err(CliError::Usage("give a second run, or --by".to_owned())),
    };
    let choice =
        ccbench_results::summary::Choice { include_failed: args.include_failed, ..<_>::default() };
    let (names, compared) = compare(&args.a, &with, &args.metrics, choice)?;
    if let Some(path) = &args.csv {
        if path.as_os_str() == "-" {
            return print(&csv(&compared));
        }
        let failed = |source| CliError::File { op: "write", path: path.clone(), source };
        std::fs::write(path, csv(&compared)).map_err(failed)?;
    }
    let apart = args.b.as_ref().and_then(|other| plans_differ(&args.a, other));
    print(&(text(&names, &compared) + &apart.unwrap_or_default()))
}

fn plot(args: PlotArgs) -> Result<i32, CliError> {
    let request = ccbench_results::figure::Request {
        kind: args.kind,
        wheres: args.wheres,
        metrics: args.metrics,
        width_mm: args.width_mm,
        height_mm: args.height_mm,
        choice: ccbench_results::summary::Choice {
            include_failed: args.include_failed,
            ..<_>::default()
        },
    };
    let figures = ccbench_results::figure::draw(&args.run, &request)?;
    let output = args.output.unwrap_or_else(|| args.run.join("figures"));
    for path in ccbench_results::figure::write(&figures, &output, &args.format)? {
        print(&format!("{}\n", path.display()))?;
    }
    Ok(0)
}

fn terminal_width() -> u16 {
    rustix::termios::tcgetwinsize(std::io::stdout()).map_or(120, |size| size.ws_col.max(60))
}

async fn describe(args: DescribeArgs) -> Result<i32, CliError> {
    let loaded = Source::read(&args.plan.plan)?.load(&args.plan.sets)?;
    let experiment = Experiment::new(loaded, args.rootless, args.tls.pki, false);
    let nodes = experiment.open().await?;
    for (node, agent) in &nodes.fleet.agents {
        print(&describe_node(node, &agent.info))?;
    }
    nodes.close().await;
    Ok(0)
}

fn describe_node(node: &str, info: &ccbench_proto::wire::NodeInfo) -> String {
    use std::fmt::Write;
    let mut text = format!("{node}\n");
    let mut line = |what: &str, value: String| {
        if !value.is_empty() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {what:<20} {value}");
        }
    };
    line("kernel", format!("{} {}", info.kernel, info.machine));
    line("CPUs", format!("{} × {}", info.cpus, info.cpu_model));
    line("agent", format!("{} ({})", info.agent_version, info.privileges));
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

/// Replaces this process by the agent's `enter`; returns only if that fails.
fn exec(args: &ExecArgs) -> CliError {
    let mut running = local::running();
    if let Some(part) = &args.run {
        running.retain(|dir| {
            dir.file_name().is_some_and(|name| name.to_string_lossy().contains(part))
        });
    }
    let dir = match running.as_slice() {
        [one] => one,
        [] => return CliError::Usage("no experiment of yours is running on this machine".into()),
        many => {
            let ids: Vec<_> = many.iter().filter_map(|dir| dir.file_name()?.to_str()).collect();
            return CliError::Usage(format!(
                "several are running; choose one with --run: {}",
                ids.join(", ")
            ));
        }
    };
    let mut enter = std::process::Command::new(local::agent_binary());
    replace(enter.arg("enter").arg("--dir").arg(dir).arg(&args.node).arg("--").args(&args.command))
}

fn replace(command: &mut std::process::Command) -> CliError {
    let error = command.exec();
    CliError::Usage(format!("cannot start {}: {error}", command.get_program().to_string_lossy()))
}
