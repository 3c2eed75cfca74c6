//! `ccbench reproduce`: published experiments as embedded plans, with the published claims.

use std::fmt::Write as _;
use std::path::Path;

use ccbench_proto::plan::parse::suggest::near;

use crate::args::{ReproduceArgs, RunArgs};
use crate::commands::check::{duration, size};
use crate::commands::run::{self, Tables};
use crate::console::{message, print};
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::file::FileError;
use crate::lab::engine;
use crate::runtime::block_on;

mod catalog;

use catalog::{CATALOG, Entry};

/// Lists the experiments, or runs one.
///
/// # Errors
/// There is no experiment of this name, or the run failed.
pub fn run(args: ReproduceArgs) -> Result<ExitCode, CliError> {
    let Some(name) = &args.name else {
        print(&list()?);
        return Ok(ExitCode::Success);
    };
    let entry = find(name)?;
    if let Some(dir) = &args.write {
        return write(entry, dir);
    }
    let args = run_args(args);
    let source = entry.source().for_simulator(args.options.sim);
    let sets = source.sets(&args.sets, args.options.quick)?;
    if !args.options.json {
        let plan = source.load_quietly(&sets)?;
        print(&format!("{}: {}\n{}\n", entry.name, entry.about, size(&plan)));
    }
    let completed = block_on(run::run_plan(&args, source))?;
    run::conclude(&args, completed, Tables::Claims)
}

/// The claims are about emulated networks, so the lab is the default where it is installed: there they do not depend on the
/// machine.
fn run_args(args: ReproduceArgs) -> RunArgs {
    let ReproduceArgs { sets, mut options, no_lab, .. } = args;
    let decided = options.lab || no_lab || options.sim || options.rootless;
    if !decided && !engine::usable().is_empty() {
        message(format_args!(
            "note: runs in the lab; `--no-lab` runs in network namespaces of this machine"
        ));
        options.lab = true;
    }
    RunArgs { plan: None, sets, resume: None, retry_failed: false, options }
}

/// Finds an experiment; ignores case and the difference between `-` and `_`.
fn find(name: &str) -> Result<&'static Entry, CliError> {
    let plain = |name: &str| name.to_lowercase().replace('-', "_");
    let found =
        CATALOG.iter().flat_map(|document| document.entries).find(|e| plain(e.name) == plain(name));
    found.ok_or_else(|| {
        let entries = CATALOG.iter().flat_map(|document| document.entries);
        let names: Vec<&str> = entries.map(|entry| entry.name).collect();
        CliError::Usage(format!(
            "there is no experiment `{name}`{} (available: {})",
            near(&plain(name), &names),
            names.join(", ")
        ))
    })
}

/// All experiments, with their claims and durations.
fn list() -> Result<String, CliError> {
    let mut out = String::from(
        "Published experiments and their claims. Run one with: ccbench reproduce NAME [--quick]\n",
    );
    for document in CATALOG {
        let _ = write!(out, "\n{}\n", document.title);
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

/// Writes the plan and its traces into a folder.
fn write(entry: &Entry, dir: &Path) -> Result<ExitCode, CliError> {
    let file = Path::new(entry.path).file_name().unwrap_or_default();
    let plan = dir.join(file);
    let mut files = vec![(plan.clone(), entry.text.as_bytes())];
    files.extend(entry.files.iter().map(|(name, bytes)| (dir.join(name), *bytes)));
    if let Some((path, _)) = files.iter().find(|(path, _)| path.exists()) {
        let reason = "already exists; choose another directory for --write, or remove it";
        return Err(CliError::Usage(format!("{} {reason}", path.display())));
    }
    for (path, bytes) in files {
        let failed = FileError::of("write", &path);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(&failed)?;
        }
        let mut new = std::fs::OpenOptions::new();
        let mut file = new.write(true).create_new(true).open(&path).map_err(&failed)?;
        std::io::Write::write_all(&mut file, bytes).map_err(&failed)?;
    }
    print(&format!("{}\n", plan.display()));
    Ok(ExitCode::Success)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ccbench_proto::plan::{Engine, check};

    use super::*;
    use crate::plan_source::PlanSource;

    fn entries() -> impl Iterator<Item = &'static Entry> {
        CATALOG.iter().flat_map(|document| document.entries)
    }

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

    /// Experiments that the lab's default engine cannot run, and the reason that `ccbench check --lab --engine uml` prints.
    const NOT_ON_UML: [(&str, &str); 0] = [];

    /// A new experiment runs on the default engine, or is listed above.
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
            // Written to a folder, they must stay in it.
            assert!(expected.iter().all(|file| !file.contains("..")), "{}", entry.name);
        }
    }

    #[test]
    fn ignores_case_and_dashes_in_names() {
        assert_eq!(find("Vegas-Friendliness").unwrap().name, "vegas_friendliness");
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
            write(entry, dir.path()).unwrap();
            let plan = dir.path().join(Path::new(entry.path).file_name().unwrap());
            PlanSource::read(&plan)
                .unwrap()
                .load(&[])
                .unwrap_or_else(|e| panic!("{}: {e}", entry.name));
            assert!(write(entry, dir.path()).is_err());
        }
    }
}
