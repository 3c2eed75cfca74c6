//! `ccbench reproduce`: published experiments as embedded plans, with the published claims.

use std::fmt::Write as _;
use std::path::Path;

use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::plan::parse::suggest::near;

use crate::args::{ReproduceArgs, RunArgs, RunOptions};
use crate::commands::check::{duration, size};
use crate::commands::run::{self, Conclusion, Tables};
use crate::console::{message, print, print_json};
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::file::FileError;
use crate::lab::engine;
use crate::plan_source::{PlanSource, PlanSourceError};
use crate::runtime::block_on;

mod catalog;
pub mod error;

use catalog::{CATALOG, Entry};
use error::ReproduceUsageError;

/// Lists the experiments, or runs one.
///
/// # Errors
/// There is no experiment of this name, or the run failed.
pub fn run(args: ReproduceArgs) -> Result<ExitCode, CliError> {
    let Some(name) = &args.name else {
        print(&list()?);
        return Ok(ExitCode::Success);
    };
    let entries = find(name)?;
    if let Some(dir) = &args.write {
        return write(&entries, dir);
    }
    let args = run_args(args);
    match entries[..] {
        [entry] => {
            let source = source(entry, &args.options);
            let sets = source.sets(&args.sets, args.options.quick)?;
            let plan = source.load_quietly(&sets)?;
            Ok(run_one(entry, source, &plan, &args)?.exit_code)
        }
        _ => run_all(&entries, &args),
    }
}

/// Returns the plan of an experiment, for the backend that the options select.
fn source(entry: &Entry, options: &RunOptions) -> PlanSource {
    entry.source().for_backend(options.lab, options.sim)
}

fn run_one(
    entry: &Entry,
    source: PlanSource,
    plan: &CheckedPlan,
    args: &RunArgs,
) -> Result<Conclusion, CliError> {
    if !args.options.json {
        print(&format!("{}: {}\n{}\n", entry.name, entry.about, size(plan)));
    }
    let completed = block_on(run::run_plan(args, source))?;
    run::conclude(args, completed, Tables::Claims)
}

/// How one of several experiments ended: with the exit code of an error, or as its claims say. `None` if its plan lacks what `--set`
/// selects.
type Ended = Option<Result<Conclusion, ExitCode>>;

/// Runs experiments one after the other and prints a line for each. Skips experiments whose plan lacks what `--set` selects. An error ends
/// only its experiment.
///
/// # Errors
/// The user has interrupted the command, or a plan cannot be read.
fn run_all(entries: &[&'static Entry], args: &RunArgs) -> Result<ExitCode, CliError> {
    let mut ended = Vec::new();
    for entry in entries {
        let source = source(entry, &args.options);
        let sets = source.sets(&args.sets, args.options.quick)?;
        let conclusion = match source.load_quietly(&sets) {
            Ok(plan) => Some(match run_one(entry, source, &plan, args) {
                Ok(conclusion) => Ok(conclusion),
                Err(error) => Err(print_error(entry, error)?),
            }),
            // Its problems have been printed.
            Err(PlanSourceError::Invalid { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        ended.push((*entry, conclusion));
    }
    for (entry, ended) in &ended {
        let (result, claims) = outcome(*ended);
        let conclusion = ended.and_then(Result::ok);
        if args.options.json {
            print_json(&serde_json::json!({
                "event": "reproduced", "name": entry.name, "about": entry.about, "result": result,
                "held": conclusion.map(|c| c.held), "refuted": conclusion.map(|c| c.refuted),
                "unmeasured": conclusion.map(|c| c.unmeasured),
            }));
        } else {
            print(&format!("{:<16} {result:<13} {claims:<34} {}\n", entry.name, entry.about));
        }
    }
    Ok(worst(ended.into_iter().map(|(_, ended)| ended)))
}

/// Prints the error of an experiment, and returns its exit code.
///
/// # Errors
/// The user has interrupted the command.
fn print_error(entry: &Entry, error: CliError) -> Result<ExitCode, CliError> {
    match error.exit_code() {
        ExitCode::Interrupted | ExitCode::Terminated => Err(error),
        code => {
            message(format_args!("ccbench: {}: {error}", entry.name));
            Ok(code)
        }
    }
}

/// Returns the exit code of the experiment that ended worst.
fn worst(ended: impl Iterator<Item = Ended>) -> ExitCode {
    let code = |ended| match ended {
        Ok(Conclusion { exit_code, .. }) | Err(exit_code) => exit_code,
    };
    let codes: Vec<ExitCode> = ended.flatten().map(code).collect();
    let worst = [ExitCode::Unavailable, ExitCode::Usage, ExitCode::Failure, ExitCode::ClaimRefuted];
    match worst.into_iter().find(|code| codes.contains(code)) {
        Some(code) => code,
        None if codes.is_empty() => ExitCode::Usage,
        None => ExitCode::Success,
    }
}

/// Returns the result of an experiment, and how many of its claims hold.
fn outcome(ended: Ended) -> (&'static str, String) {
    let Conclusion { exit_code, held, refuted, unmeasured } = match ended {
        None => return ("not run", String::new()),
        Some(Err(_)) => return ("error", String::new()),
        Some(Ok(conclusion)) => conclusion,
    };
    let result = match exit_code {
        ExitCode::Success if held == 0 => "not measured",
        ExitCode::Success => "holds",
        ExitCode::ClaimRefuted => "does not hold",
        _ => "failed",
    };
    let not_measured = match unmeasured {
        0 => String::new(),
        count => format!(", {count} not measured"),
    };
    (result, format!("{held} of {} claims{not_measured}", held + refuted))
}

/// Returns the options of the run. If the lab is installed, it is the default, because the claims are about emulated networks and
/// do not depend on the machine there.
fn run_args(args: ReproduceArgs) -> RunArgs {
    let ReproduceArgs { sets, mut options, no_lab, .. } = args;
    let decided = options.lab || no_lab || options.sim || options.rootless;
    if !decided && !engine::usable().is_empty() {
        message(format_args!(
            "note: the experiment runs in the lab; to run it in network namespaces of this machine, add `--no-lab`"
        ));
        options.lab = true;
    }
    RunArgs { sets, ..RunArgs::from_options(options) }
}

/// Returns the experiments of all documents.
fn entries() -> impl Iterator<Item = &'static Entry> {
    CATALOG.iter().flat_map(|document| document.entries)
}

/// Finds an experiment, or the experiments of a document that has a name. Ignores case and treats `-` and `_` as equal.
fn find(name: &str) -> Result<Vec<&'static Entry>, ReproduceUsageError> {
    let plain = |name: &str| name.to_lowercase().replace('-', "_");
    let of_document = CATALOG.iter().find(|d| d.name.is_some_and(|d| plain(d) == plain(name)));
    if let Some(document) = of_document {
        return Ok(document.entries.iter().collect());
    }
    let found = entries().find(|entry| plain(entry.name) == plain(name));
    found.map(|entry| vec![entry]).ok_or_else(|| {
        let documents = CATALOG.iter().filter_map(|document| document.name);
        let names: Vec<&'static str> = entries().map(|entry| entry.name).chain(documents).collect();
        let numbered =
            names.iter().find(|known| without_zeros(known) == without_zeros(&plain(name)));
        let hint = match numbered {
            Some(known) => format!("; did you mean `{known}`?"),
            None => near(&plain(name), &names),
        };
        ReproduceUsageError::Unknown { name: name.to_owned(), hint, known: names }
    })
}

/// Returns the parts of a name between `_`, numbers without leading zeros.
fn without_zeros(name: &str) -> Vec<&str> {
    let parts = name.split('_');
    let plain = parts.map(|part| match part.chars().all(|c| c.is_ascii_digit()) {
        true => part.trim_start_matches('0'),
        false => part,
    });
    plain.collect()
}

/// Returns a list of all experiments, with their claims and durations.
fn list() -> Result<String, CliError> {
    let mut out = String::from(
        "Published experiments and their claims. Run one with: ccbench reproduce NAME [--quick]\n",
    );
    for document in CATALOG {
        let _ = write!(out, "\n{}\n", document.title);
        if let Some(name) = document.name {
            let _ =
                writeln!(out, "  {name:<20} all of them, in turn, with a line for each at the end");
        }
        for entry in document.entries {
            let source = entry.source();
            let of = |quick| source.load_quietly(&source.sets(&[], quick)?);
            let (whole, quick) = (of(false)?, of(true)?);
            let _ = writeln!(out, "  {:<20} {}", entry.name, entry.about);
            let claims = whole.plan().expect.len();
            let claims =
                if claims == 1 { "1 claim".to_owned() } else { format!("{claims} claims") };
            let (whole, quick) = (duration(&whole), duration(&quick));
            let _ = writeln!(out, "  {:<20} {claims}; takes {whole}, with --quick {quick}", "");
        }
    }
    out.push_str(
        "\nLoading congestion controls needs root (`ccbench cc list` shows how they are loaded here).\n\
         `--write DIR` writes the plan to a file that you can edit and run with `ccbench run`.\n\
         Exit code 4: a claim does not hold.\n",
    );
    Ok(out)
}

/// Writes plans and their traces into a folder.
fn write(entries: &[&Entry], dir: &Path) -> Result<ExitCode, CliError> {
    let plan_of = |entry: &Entry| dir.join(Path::new(entry.path).file_name().unwrap_or_default());
    let mut files = Vec::new();
    for entry in entries {
        files.push((plan_of(entry), entry.text.as_bytes()));
        files.extend(entry.files.iter().map(|(name, bytes)| (dir.join(name), *bytes)));
    }
    if let Some((path, _)) = files.iter().find(|(path, _)| path.exists()) {
        return Err(ReproduceUsageError::Exists(path.clone()).into());
    }
    for (path, bytes) in files {
        let failed = FileError::io("write", &path);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(&failed)?;
        }
        let mut new = std::fs::OpenOptions::new();
        let mut file = new.write(true).create_new(true).open(&path).map_err(&failed)?;
        std::io::Write::write_all(&mut file, bytes).map_err(&failed)?;
    }
    for entry in entries {
        print(&format!("{}\n", plan_of(entry).display()));
    }
    Ok(ExitCode::Success)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ccbench_proto::plan::{Engine, check};

    use super::*;

    #[test]
    fn embedded_plans_are_valid_and_have_claims() {
        for entry in entries() {
            let source = entry.source();
            for quick in [false, true] {
                let sets = source.sets(&[], quick).unwrap();
                let plan =
                    source.load(&sets).unwrap_or_else(|e| panic!("{}: {e}", entry.name)).plan;
                assert!(!plan.plan().expect.is_empty(), "{} claims nothing", entry.name);
                let measured = plan.plan().expect.iter().filter(|claim| claim.skip.is_none());
                assert!(!quick || measured.count() > 0, "{}: --quick measures nothing", entry.name);
            }
        }
    }

    /// Experiments that the lab's default engine cannot run, with the reason that `ccbench check --lab --engine uml` prints.
    const NOT_ON_UML: [(&str, &str); 0] = [];

    /// Every experiment either runs on the default engine or is listed above.
    #[test]
    fn embedded_plans_run_on_uml_or_are_listed_with_the_reason() {
        let expected = NOT_ON_UML.map(|(name, why)| (name, why.to_owned()));
        for quick in [false, true] {
            let error = |entry: &Entry| {
                let source = entry.source();
                let mut sets = source.sets(&[], quick).unwrap();
                sets.push(engine::as_override(Engine::Uml));
                Some((entry.name, source.first_error(&sets)?))
            };
            let errors: Vec<_> = entries().filter_map(error).collect();
            assert_eq!(errors, expected, "with --quick: {quick}");
        }
    }

    #[test]
    fn embedded_plans_have_their_traces_and_unique_names() {
        let names: BTreeSet<&str> = entries().map(|entry| entry.name).collect();
        assert_eq!(names.len(), entries().count());
        for entry in entries() {
            let expected = check::trace_files(entry.text, &[]);
            let embedded: BTreeSet<String> =
                entry.files.iter().map(|(name, _)| (*name).to_owned()).collect();
            assert_eq!(expected, embedded, "{}", entry.name);
            // When they are written to a folder, they must stay inside it.
            assert!(expected.iter().all(|file| !file.contains("..")), "{}", entry.name);
        }
    }

    #[test]
    fn ignores_case_and_dashes_in_names() {
        assert_eq!(find("Vegas-Friendliness").unwrap()[0].name, "vegas_friendliness");
        let numbered = find("conformance_1").err().unwrap().to_string();
        assert!(numbered.contains("did you mean `conformance_01`?"), "{numbered}");
        let cases = find("Conformance").unwrap();
        assert_eq!(cases.len(), 22);
        for (number, case) in (1..).zip(&cases) {
            assert_eq!(case.name, format!("conformance_{number:02}"));
        }
        assert_eq!(find("conformance-07").unwrap()[0].name, "conformance_07");
        let unknown = find("vegs").err().unwrap().to_string();
        assert!(unknown.contains("vegas_friendliness"), "{unknown}");
    }

    #[test]
    fn list_fits_a_terminal_of_100_columns() {
        let list = list().unwrap();
        assert!(list.lines().all(|line| line.chars().count() <= 100), "{list}");
        assert!(entries().all(|entry| list.contains(entry.name)));
    }

    #[test]
    fn writes_plan_and_traces_and_overwrites_nothing() {
        for entry in entries() {
            let dir = tempfile::tempdir().unwrap();
            write(&[entry], dir.path()).unwrap();
            let plan = dir.path().join(Path::new(entry.path).file_name().unwrap());
            PlanSource::read(&plan)
                .unwrap()
                .load(&[])
                .unwrap_or_else(|e| panic!("{}: {e}", entry.name));
            assert!(write(&[entry], dir.path()).is_err());
        }
    }

    fn conclusion(exit_code: ExitCode, refuted: usize) -> Conclusion {
        Conclusion { exit_code, held: 3, refuted, unmeasured: 1 }
    }

    #[test]
    fn result_of_an_experiment_is_that_of_its_claims() {
        let text = |conclusion: Option<Conclusion>| {
            let (result, claims) = outcome(conclusion.map(Ok));
            format!("{result}: {claims}")
        };
        let held = conclusion(ExitCode::Success, 0);
        assert_eq!(text(Some(held)), "holds: 3 of 3 claims, 1 not measured");
        let refuted = conclusion(ExitCode::ClaimRefuted, 2);
        assert_eq!(text(Some(refuted)), "does not hold: 3 of 5 claims, 1 not measured");
        assert_eq!(text(Some(conclusion(ExitCode::Failure, 0))).split(':').next(), Some("failed"));
        let none = Conclusion { held: 0, unmeasured: 0, ..held };
        assert_eq!(text(Some(none)), "not measured: 0 of 0 claims");
        assert_eq!(text(None), "not run: ");
        assert_eq!(outcome(Some(Err(ExitCode::Unavailable))), ("error", String::new()));
    }

    #[test]
    fn an_error_of_an_experiment_counts_like_a_failed_one() {
        let ended = |code| Some(Ok(conclusion(code, 0)));
        let [held, refuted] = [ExitCode::Success, ExitCode::ClaimRefuted].map(ended);
        let error = Some(Err(ExitCode::Unavailable));
        for (all, code) in [
            (vec![held, refuted, None], ExitCode::ClaimRefuted),
            (vec![refuted, ended(ExitCode::Failure), held], ExitCode::Failure),
            (vec![held, error, refuted], ExitCode::Unavailable),
            (vec![None, held], ExitCode::Success),
            (vec![None, None], ExitCode::Usage),
        ] {
            assert_eq!(worst(all.into_iter()), code);
        }
    }

    /// Its own traces are in the binary.
    #[test]
    fn a_trace_of_the_user_is_in_the_working_directory() {
        let set = r#"matrix.link.lb."links.bottleneck.trace.file"=none.csv"#.to_owned();
        let error = find("mmwave").unwrap()[0].source().first_error(&[set]).unwrap();
        assert!(error.contains("there is no file none.csv;"), "{error}");
    }
}
