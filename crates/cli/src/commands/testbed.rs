//! `ccbench testbed`: writes a request for a plan's nodes, and the plan for the nodes that the testbed has reserved.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use ccbench_io::input;
use ccbench_io::replace::replace;
use ccbench_proto::manifest::{self, ReservedNode};

use self::error::TestbedUsageError;
use crate::args::testbed::{TestbedArgs, TestbedKind};
use crate::console::print;
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::file::FileError;
use crate::plan_source::{LoadedPlan, PlanSource};
use crate::provision::{INSTALL_SCRIPT, Layout, adapted, cloudlab, containerlab, fabric, joining};

pub mod error;

/// Runs the command.
///
/// # Errors
/// The plan or the manifest cannot be used, or a file cannot be written.
pub fn run(args: &TestbedArgs) -> Result<ExitCode, CliError> {
    let loaded = PlanSource::read(&args.plan)?.load(&[])?;
    let layout = Layout::from_plan(&loaded.plan)?;
    let directory = args.output.clone().unwrap_or_else(|| default_output(args));
    let reserved = args.manifest.as_ref().map(|path| reserved(args.testbed, path)).transpose()?;
    let (assigned, files) = match &reserved {
        Some(reserved) => {
            let assigned = adapted::assigned(&layout, reserved)?;
            let script = joining::script(assigned.values().copied());
            let script = script.map(|script| ("join.sh".to_owned(), script.into_bytes()));
            (assigned, script.into_iter().collect::<Vec<_>>())
        }
        None => (BTreeMap::new(), request(args, &layout, &loaded)?),
    };
    // Fails before anything is written if a device of the plan has no place on a testbed.
    let text = adapted::plan(&layout, &loaded.text, &assigned)?;
    for (name, content) in &files {
        write(&directory.join(name), content)?;
    }
    let path = args.plan.with_extension("testbed.toml");
    write(&path, text.as_bytes())?;
    // Checks the new plan: errors that appear only with agents, such as an IPv6 address of one end, then name a line of the new
    // file.
    PlanSource::read(&path)?.load_again(&[])?;
    print(&next_steps(args, &directory, &path));
    Ok(ExitCode::Success)
}

fn default_output(args: &TestbedArgs) -> PathBuf {
    let stem = args.plan.file_stem().unwrap_or_default().to_string_lossy();
    args.plan.with_file_name(format!("{stem}-{}", args.testbed.name()))
}

fn reserved(testbed: TestbedKind, path: &Path) -> Result<Vec<ReservedNode>, CliError> {
    let read = input::read_to_string(path, &input::MANIFEST);
    let text = read.map_err(FileError::io("read", path))?;
    let nodes = match testbed {
        TestbedKind::Cloudlab => manifest::cloudlab(&text),
        TestbedKind::Fabric => manifest::fabric(&text),
        TestbedKind::Containerlab => manifest::containerlab(&text),
    };
    Ok(nodes.map_err(|source| TestbedUsageError::Manifest { path: path.to_owned(), source })?)
}

/// Returns the files of the request, by name.
fn request(
    args: &TestbedArgs,
    layout: &Layout<'_>,
    loaded: &LoadedPlan,
) -> Result<Vec<(String, Vec<u8>)>, CliError> {
    let mut files = vec![("install-agent.sh".to_owned(), INSTALL_SCRIPT.as_bytes().to_vec())];
    let name = &layout.plan.name;
    match args.testbed {
        TestbedKind::Cloudlab => {
            files.push(("profile.py".to_owned(), cloudlab::profile(layout).into_bytes()));
        }
        TestbedKind::Fabric => {
            let inputs = inputs(args, loaded)?;
            let names: Vec<String> = inputs.iter().map(|(name, _)| name.clone()).collect();
            let notebook = format!("{:#}\n", fabric::notebook(layout, &names));
            files.push((format!("{name}.ipynb"), notebook.into_bytes()));
            files.extend(inputs);
        }
        TestbedKind::Containerlab => {
            files.push((format!("{name}.clab.yml"), containerlab::topology(layout).into_bytes()));
            files.push(("Containerfile".to_owned(), containerlab::CONTAINERFILE.into()));
        }
    }
    Ok(files)
}

/// Returns the plan and the files that it names, which the notebook copies to the controller's node.
fn inputs(
    args: &TestbedArgs,
    loaded: &LoadedPlan,
) -> Result<Vec<(String, Vec<u8>)>, TestbedUsageError> {
    let plan = args.plan.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut inputs = vec![(plan, loaded.text.clone().into_bytes())];
    for (name, content) in loaded.traces.iter().chain(&loaded.ccs) {
        let inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        if !inside {
            return Err(TestbedUsageError::Outside(name.clone()));
        }
        inputs.push((name.clone(), content.clone()));
    }
    Ok(inputs)
}

fn write(path: &Path, content: &[u8]) -> Result<(), CliError> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(FileError::io("create", parent))?;
    }
    replace(path, content).map_err(FileError::io("write", path))?;
    Ok(())
}

fn next_steps(args: &TestbedArgs, directory: &Path, plan: &Path) -> String {
    let (dir, plan) = (directory.display(), plan.display());
    let name = args.testbed.name();
    if args.manifest.is_some() {
        let join = match args.testbed {
            TestbedKind::Fabric => String::new(),
            TestbedKind::Cloudlab | TestbedKind::Containerlab => {
                format!("start the agents:  sh {dir}/join.sh pki ADDRESS:7701\n")
            }
        };
        return format!(
            "{join}check the nodes:   ccbench describe {plan} --pki pki\nrun the plan:      ccbench run {plan} --pki pki\n"
        );
    }
    let step = match args.testbed {
        TestbedKind::Cloudlab => {
            "commit its files and ccbench.tar.gz (the tarball of `make dist`) to a repository, and make a profile of it"
        }
        TestbedKind::Fabric => {
            "copy it with ccbench.tar.gz (the tarball of `make dist`) to FABRIC's JupyterHub, and run the notebook"
        }
        TestbedKind::Containerlab => {
            "copy ccbench.tar.gz (the tarball of `make dist`) there; in it run `docker build -f Containerfile -t ccbench-agent .` \
             and `sudo containerlab deploy`"
        }
    };
    format!(
        "{dir}: {step}\n{plan}: the plan for the testbed; `ccbench testbed {name} {} --manifest FILE` fills in the addresses of its agents\n",
        args.plan.display()
    )
}
