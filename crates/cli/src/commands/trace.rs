//! `ccbench trace`: prints, converts, plots, generates and records ([`record`]) capacity traces. [`ccbench_proto::trace`] reads
//! and writes the formats; this module handles files, Parquet and figures.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::path::Path;

use ccbench_io::input;
use ccbench_proto::trace::generate::{Kind, generate, walk};
use ccbench_proto::trace::{self, Format, Trace, TraceError};
use ccbench_proto::units::{Micros, Ppm, Rate};
use ccbench_results::svg::short;
use ccbench_results::trace::{parquet, plot};
use ccbench_results::write_bytes;

use self::error::TraceUsageError;
use crate::args::trace::{ConvertArgs, GenerateArgs, TraceCommand};
use crate::args::values::TraceFormat;
use crate::commands::record;
use crate::console::{message, print};
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::file::FileError;
use crate::plan_source::print_trace_problems;

pub mod error;

/// Runs one of the sub-commands.
///
/// # Errors
/// The trace is invalid, or a file cannot be written.
pub fn run(command: TraceCommand) -> Result<ExitCode, CliError> {
    match command {
        TraceCommand::Info { files } => info(&files),
        TraceCommand::Convert(args) => convert(&args),
        TraceCommand::Plot { file, output } => {
            if output.extension().is_some_and(|ending| !ending.eq_ignore_ascii_case("svg")) {
                return Err(TraceUsageError::NotSvg(output).into());
            }
            let (trace, _) = read(&file, None)?;
            save(&output, plot::svg(&file.to_string_lossy(), &trace).as_bytes())?;
            Ok(ExitCode::Success)
        }
        TraceCommand::Generate(args) => generate_trace(&args),
        TraceCommand::Record(args) => record::run(*args),
    }
}

/// Reads a trace and detects its format unless `format` is given. Prints every problem as `FILE:LINE: why`.
fn read(path: &Path, format: Option<Format>) -> Result<(Trace, String), TraceUsageError> {
    let bytes = input::read(path, &input::TRACE)
        .map_err(|source| TraceUsageError::Read { path: path.to_owned(), source })?;
    let name = path.to_string_lossy();
    let invalid = |error: TraceError| invalid(path, &error);
    if bytes.starts_with(b"PAR1") {
        let text = parquet::to_text(bytes)
            .map_err(|source| TraceUsageError::ReadParquet { path: path.to_owned(), source })?;
        let read = trace::parse_as(&name, text.as_bytes(), Format::Ccbench);
        return Ok((read.map_err(invalid)?, "parquet: ccbench's columns".to_owned()));
    }
    let format = match format {
        Some(format) => format,
        None => trace::format_of(&name, &bytes).map_err(invalid)?,
    };
    let read = trace::parse_as(&name, &bytes, format).map_err(invalid)?;
    Ok((read, format.to_string()))
}

/// Prints the problems of a trace.
fn invalid(path: &Path, error: &TraceError) -> TraceUsageError {
    print_trace_problems(path, error);
    let count = error.problems.len() + error.more;
    TraceUsageError::Invalid { path: path.to_owned(), count, format: error.format }
}

fn info(files: &[std::path::PathBuf]) -> Result<ExitCode, CliError> {
    let mut code = ExitCode::Success;
    for path in files {
        match read(path, None) {
            Ok((trace, format)) => {
                print(&describe(path, &trace, &format));
            }
            // The other files may be valid.
            Err(error) => {
                message(format_args!("ccbench: {error}"));
                code = CliError::from(error).exit_code();
            }
        }
    }
    Ok(code)
}

fn describe(path: &Path, trace: &Trace, format: &str) -> String {
    let figures = trace.summary();
    let mut text = format!("{}\n", path.display());
    let mut line = |what: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {what:<10} {value}");
    };
    let rate = |rate: Option<Rate>| {
        rate.map_or("none".to_owned(), |rate| plot::rate_text(rate.bits_per_sec() as f64))
    };
    line("format", format.to_owned());
    line("length", format!("{:.3} s", figures.length.as_secs_f64()));
    match trace {
        Trace::Steps(_) => line("rows", figures.rows.to_string()),
        Trace::Opportunities(all) => {
            line("packets", format!("{} of {} B of IP", figures.rows, all.bytes));
        }
    }
    if figures.max_rate.is_some() {
        line("mean", rate(figures.mean_rate));
        let over = if matches!(trace, Trace::Steps(_)) { "" } else { " over 100 ms" };
        line("range", format!("{} to {}{over}", rate(figures.min_rate), rate(figures.max_rate)));
        line("at zero", format!("{:.2} % of the time", f64::from(figures.zero_ppm) / 10_000.0));
    }
    if let Some((low, high)) = figures.delay {
        let ms = |delay: Micros| short(delay.get() as f64 / 1000.0);
        line("delay", format!("{} to {} ms", ms(low), ms(high)));
    }
    if let Some((low, high)) = figures.loss {
        let percent = |loss: Ppm| f64::from(loss.get()) / 10_000.0;
        line("loss", format!("{} to {} %", percent(low), percent(high)));
    }
    if figures.zero_ppm > 0 && matches!(trace, Trace::Steps(_)) {
        line("note", "the kernel backend needs a `floor` for rows with rate 0".to_owned());
    }
    text
}

fn convert(args: &ConvertArgs) -> Result<ExitCode, CliError> {
    let output = match args.format.or_else(|| TraceFormat::of(&args.output)) {
        Some(format) => format,
        None if args.output.extension().is_none() => TraceFormat::Text(Format::Ccbench),
        None => {
            return Err(TraceUsageError::UnknownExtension(args.output.clone()).into());
        }
    };
    let (trace, _) = read(&args.input, args.from)?;
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    if real(&args.output).is_some_and(|output| Some(output) == real(&args.input)) {
        return Err(TraceUsageError::SameFile(args.output.clone()).into());
    }
    write(&args.output, &trace, output)
}

fn generate_trace(args: &GenerateArgs) -> Result<ExitCode, CliError> {
    let kind: Kind = args.kind;
    let trace = match (args.between, args.rate) {
        (None, rate) => generate(kind, args.seed, args.length, rate),
        (Some(_), _) if kind != Kind::RandomWalk => {
            return Err(TraceUsageError::NoWalk(kind).into());
        }
        (Some(_), Some(_)) => return Err(TraceUsageError::TwoLimits.into()),
        (Some(between), None) => walk(args.seed, args.length, between),
    };
    let trace = trace.map_err(TraceUsageError::Generate)?;
    let format = args.format.or_else(|| match TraceFormat::of(&args.output) {
        // The formats `timed` and `dwell` also use the extension .csv.
        Some(TraceFormat::Text(Format::Ccbench)) | None => None,
        other => other,
    });
    write(&args.output, &trace, format.unwrap_or(TraceFormat::Text(kind.format())))
}

fn write(path: &Path, trace: &Trace, output: TraceFormat) -> Result<ExitCode, CliError> {
    if !output.fits(path) {
        let (path, format) = (path.to_owned(), output.name());
        return Err(TraceUsageError::OtherExtension { path, format }.into());
    }
    let text = |format| {
        trace::write(trace, format)
            .map_err(|source| TraceUsageError::Format { path: path.to_owned(), source })
    };
    match output {
        TraceFormat::Text(format) => save(path, text(format)?.as_bytes())?,
        TraceFormat::Parquet => {
            let Trace::Steps(steps) =
                trace::parse_as("", text(Format::Ccbench)?.as_bytes(), Format::Ccbench)
                    .map_err(TraceUsageError::Columns)?
            else {
                return Err(TraceUsageError::NoRows.into());
            };
            let bytes = parquet::of_steps(&steps).map_err(TraceUsageError::WriteParquet)?;
            save(path, &bytes)?;
        }
    }
    Ok(ExitCode::Success)
}

fn save(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    if path.as_os_str() == "-" {
        let mut out = std::io::stdout().lock();
        return match out.write_all(bytes).and_then(|()| out.flush()) {
            // A closed pipe is not an error.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(FileError::io("write to", Path::new("standard output"))(error).into())
            }
            _ => Ok(()),
        };
    }
    Ok(write_bytes(bytes, path)?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn ccbench(arguments: &[&str]) -> i32 {
        let line = ["ccbench", "trace"].iter().chain(arguments);
        let Ok(cli) = Cli::try_parse_from(line) else { return 2 };
        let Command::Trace(command) = cli.command else { panic!("no trace command") };
        run(command).unwrap_or_else(|error| error.exit_code()).number()
    }

    #[test]
    fn parquet_round_trip_keeps_the_trace() {
        let dir = folder();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let text = "t_us,rate_bps,delay_us,loss_ppm\n0,1000000,20000,\n1.5,2000000,,100\n3000,0,1,0\n4000,,,\n";
        std::fs::write(at("in.csv"), text).unwrap();
        assert_eq!(ccbench(&["convert", &at("in.csv"), &at("a.parquet")]), 0);
        assert_eq!(ccbench(&["convert", &at("a.parquet"), &at("out.csv")]), 0);
        assert_eq!(std::fs::read_to_string(at("out.csv")).unwrap(), text);
        assert_eq!(ccbench(&["info", &at("a.parquet"), &at("in.csv")]), 0);
        assert_eq!(ccbench(&["plot", &at("in.csv"), "-o", &at("p.svg")]), 0);
        assert!(std::fs::read_to_string(at("p.svg")).unwrap().starts_with("<svg"));
    }

    #[test]
    fn endings_that_contradict_the_content_are_refused() {
        let dir = folder();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(at("in.csv"), "10,2\n20,1\n").unwrap();
        let convert = |output: &str, options: &[&str]| {
            let code = ccbench(&[&["convert", &at("in.csv"), &at(output)], options].concat());
            assert_eq!(code == 0, Path::new(&at(output)).exists(), "{output} {options:?}");
            code
        };
        assert_eq!(convert("a.xyz", &[]), 2);
        assert_eq!(convert("b.json", &["--format", "dwell"]), 2);
        assert_eq!(convert("c.csv", &["--format", "parquet"]), 2);
        assert_eq!(convert("d.down", &["--format", "timed"]), 2);
        assert_eq!(convert("e.xyz", &["--format", "timed"]), 0);
        assert_eq!(convert("f.csv", &["--format", "dwell"]), 0);
        // The input is not overwritten.
        assert_eq!(ccbench(&["convert", &at("in.csv"), &at("./in.csv"), "--format", "timed"]), 2);
        assert_eq!(std::fs::read_to_string(at("in.csv")).unwrap(), "10,2\n20,1\n");
        assert_eq!(convert("g.json", &["--format", "netem-trace"]), 0);
        assert_eq!(convert("h", &[]), 0);
        assert!(std::fs::read_to_string(at("h")).unwrap().starts_with("t_us,rate_bps"));
        for (output, code) in [("p.pdf", 2), ("p.SVG", 0), ("p", 0)] {
            assert_eq!(ccbench(&["plot", &at("in.csv"), "-o", &at(output)]), code, "{output}");
            assert_eq!(Path::new(&at(output)).exists(), code == 0, "{output}");
        }
        let generate = ["generate", "lb", "--length", "5s", "--format", "dwell", "-o"];
        assert_eq!(ccbench(&[&generate[..], &[at("i.json").as_str()]].concat()), 2);
    }

    #[test]
    fn generated_traces_depend_only_on_the_seed() {
        let dir = folder();
        let make = |kind: &str, seed: &str, name: &str| {
            let path = dir.path().join(name);
            let out = path.to_str().unwrap();
            let code = ccbench(&["generate", kind, "--seed", seed, "--length", "5s", "-o", out]);
            assert_eq!(code, 0, "{kind}");
            std::fs::read(path).unwrap()
        };
        for kind in Kind::ALL {
            assert_eq!(make(kind.name(), "1", "a.csv"), make(kind.name(), "1", "b.csv"));
        }
        assert_ne!(make("lb", "1", "a.csv"), make("lb", "2", "b.csv"));
    }

    #[test]
    fn an_output_is_replaced_as_a_whole() {
        use std::io::Read as _;
        let dir = folder();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(at("in.csv"), "10,2\n20,1\n").unwrap();
        let input = at("in.csv");
        for (command, name) in [("convert", "out.csv"), ("plot", "out.svg")] {
            let output = at(name);
            std::fs::write(&output, "old").unwrap();
            let mut opened = std::fs::File::open(&output).unwrap();
            let arguments = match command {
                "plot" => vec![command, &input, "-o", &output],
                _ => vec![command, &input, &output],
            };
            assert_eq!(ccbench(&arguments), 0, "{command}");
            // If the file were written in place, a reader that had opened it would see the new contents.
            let mut content = String::new();
            opened.read_to_string(&mut content).unwrap();
            assert_eq!(content, "old", "{command}");
            assert_ne!(std::fs::read_to_string(&output).unwrap(), "old", "{command}");
        }
    }

    #[test]
    fn describes_and_plots_delay_and_loss_traces() {
        let of = |between: &str| walk(1, Micros::from_secs(60), between.parse().unwrap()).unwrap();
        for (between, line, unit) in [
            ("10ms..60ms", "delay      10.", "ms of delay"),
            ("0%..1%", "loss       0.0", "% of loss"),
        ] {
            let text = describe(Path::new("a.csv"), &of(between), "ccbench");
            assert!(text.contains(line) && !text.contains("at zero"), "{text}");
            let svg = plot::svg("a.csv", &of(between));
            assert!(svg.contains(&format!(">{unit}<")) && !svg.contains("bit/s"), "{svg}");
        }
    }

    #[test]
    fn invalid_input_exits_2_and_an_unwritable_file_1() {
        let dir = folder();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(at("bad.csv"), "10,1\n-1,1\n").unwrap();
        std::fs::write(at("good.csv"), "10,1\n").unwrap();
        std::fs::write(at("bad.parquet"), "PAR1 and nothing").unwrap();
        assert_eq!(ccbench(&["info", &at("bad.csv"), &at("good.csv")]), 2);
        assert_eq!(ccbench(&["info", &at("absent.csv")]), 2);
        assert_eq!(ccbench(&["info", &at("bad.parquet")]), 2);
        assert_eq!(ccbench(&["convert", &at("bad.csv"), &at("x.csv")]), 2);
        assert_eq!(ccbench(&["generate", "nothing", "-o", &at("x")]), 2);
        assert_eq!(ccbench(&["generate", "sl", "--rate", "1mbit", "-o", &at("x")]), 2);
        assert_eq!(ccbench(&["plot", &at("good.csv"), "-o", &at("no/where.svg")]), 1);
        let walk = |kind: &str, more: &[&str]| {
            ccbench(&[&["generate", kind, "-o", &at("walk.csv"), "--between"], more].concat())
        };
        assert_eq!(walk("random-walk", &["10ms..1%"]), 2);
        assert_eq!(walk("random-walk", &["60ms..10ms"]), 2);
        assert_eq!(walk("random-walk", &["10ms..60ms", "--rate", "1mbit"]), 2);
        assert_eq!(walk("random-walk", &["10ms..60ms", "--format", "dwell"]), 2);
        assert_eq!(walk("steps", &["10ms..60ms"]), 2);
        assert_eq!(walk("random-walk", &["10ms..60ms"]), 0);
    }
}
