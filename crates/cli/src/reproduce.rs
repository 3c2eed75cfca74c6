//! `ccbench reproduce`: published experiments as plans in the binary, each with the claims that it was published with.

use std::fmt::Write as _;
use std::path::Path;

use ccbench_proto::plan::parse::suggest::near;

use crate::args::{ReproduceArgs, RunArgs};
use crate::error::CliError;
use crate::run::{self, Shown};
use crate::{block_on, extent, print};

mod catalog;

use catalog::{CATALOG, Entry};

/// Lists them, or runs one; returns the exit code.
///
/// # Errors
/// There is none of this name, or as [`run::report`].
pub fn run(args: ReproduceArgs) -> Result<i32, CliError> {
    let Some(name) = &args.name else { return print(&list()?) };
    let entry = find(name)?;
    if let Some(dir) = &args.write {
        return write(entry, dir);
    }
    let (source, run) = (entry.source(), as_run(args));
    let sets = source.sets(&run.sets, run.how.quick)?;
    if !run.how.json {
        print(&heading(entry, &extent(&source.load_quietly(&sets)?)))?;
    }
    let ran = block_on(run::run_plan(&run, source))?;
    run::report(&run, ran, Shown::Claims)
}

fn as_run(args: ReproduceArgs) -> RunArgs {
    let ReproduceArgs { sets, how, .. } = args;
    RunArgs { plan: None, sets, resume: None, retry_failed: false, how }
}

/// As people type it: case, `-` and `_` do not matter.
fn find(name: &str) -> Result<&'static Entry, CliError> {
    let plain = |name: &str| name.to_lowercase().replace('-', "_");
    let found =
        CATALOG.iter().flat_map(|document| document.entries).find(|e| plain(e.name) == plain(name));
    found.ok_or_else(|| {
        let entries = CATALOG.iter().flat_map(|document| document.entries);
        let names: Vec<&str> = entries.map(|entry| entry.name).collect();
        CliError::Usage(format!(
            "there is nothing called `{name}` to reproduce{} (there is {})",
            near(&plain(name), &names),
            names.join(", ")
        ))
    })
}

fn heading(entry: &Entry, extent: &str) -> String {
    format!("{}: {}\n{extent}\n", entry.name, entry.about)
}

/// What there is, with how long it takes.
fn list() -> Result<String, CliError> {
    let mut out = String::from(
        "Published experiments as plans, with their claims. Run one: ccbench reproduce NAME [--quick]\n",
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
            let (whole, quick) = (crate::length(&whole), crate::length(&quick));
            let _ = writeln!(out, "  {:<20} {claims}; takes {whole}, with --quick {quick}", "");
        }
    }
    out.push_str(
        "\nCongestion controls are loaded, which needs root (`ccbench cc list` says how here).\n\
         `--write DIR` writes the plan as a file, to be changed and run with `ccbench run`.\n\
         Exit code 4: a claim does not hold.\n",
    );
    Ok(out)
}

/// Writes the plan and its traces into a folder.
fn write(entry: &Entry, dir: &Path) -> Result<i32, CliError> {
    let file = Path::new(entry.path).file_name().unwrap_or_default();
    let plan = dir.join(file);
    let mut files = vec![(plan.clone(), entry.text.as_bytes())];
    files.extend(entry.files.iter().map(|(name, bytes)| (dir.join(name), *bytes)));
    if let Some((there, _)) = files.iter().find(|(path, _)| path.exists()) {
        let why = "is there already: name another folder for --write, or remove it";
        return Err(CliError::Usage(format!("{} {why}", there.display())));
    }
    for (path, bytes) in files {
        let failed = |source| CliError::File { op: "write", path: path.clone(), source };
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        let mut new = std::fs::OpenOptions::new();
        let mut file = new.write(true).create_new(true).open(&path).map_err(failed)?;
        std::io::Write::write_all(&mut file, bytes).map_err(failed)?;
    }
    print(&format!("{}\n", plan.display()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ccbench_proto::plan::check;

    use super::*;
    use crate::source::Source;

    fn entries() -> impl Iterator<Item = &'static Entry> {
        CATALOG.iter().flat_map(|document| document.entries)
    }

    #[test]
    fn every_plan_of_the_binary_is_right_whole_and_quick_and_has_claims() {
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

    #[test]
    fn a_plan_of_the_binary_brings_its_traces_and_a_name_is_there_once() {
        let names: BTreeSet<&str> = entries().map(|entry| entry.name).collect();
        assert_eq!(names.len(), entries().count());
        for entry in entries() {
            let asked = check::trace_files(entry.text, &[]);
            let brought: BTreeSet<String> =
                entry.files.iter().map(|(name, _)| (*name).to_owned()).collect();
            assert_eq!(asked, brought, "{}", entry.name);
            // Written elsewhere, they must not leave the folder.
            assert!(asked.iter().all(|file| !file.contains("..")), "{}", entry.name);
        }
    }

    #[test]
    fn names_are_found_as_people_type_them() {
        assert_eq!(find("Vegas-Friendliness").unwrap().name, "vegas_friendliness");
        let unknown = find("vegs").err().unwrap().to_string();
        assert!(unknown.contains("vegas_friendliness"), "{unknown}");
    }

    #[test]
    fn the_list_fits_a_terminal_of_a_hundred_columns() {
        let list = list().unwrap();
        assert!(list.lines().all(|line| line.chars().count() <= 100), "{list}");
        assert!(entries().all(|entry| list.contains(entry.name)));
    }

    #[test]
    fn a_plan_is_written_with_its_traces_and_nothing_is_overwritten() {
        for entry in entries() {
            let dir = tempfile::tempdir().unwrap();
            write(entry, dir.path()).unwrap();
            let plan = dir.path().join(Path::new(entry.path).file_name().unwrap());
            Source::read(&plan)
                .unwrap()
                .load(&[])
                .unwrap_or_else(|e| panic!("{}: {e}", entry.name));
            assert!(write(entry, dir.path()).is_err());
        }
    }
}
