//! `ccbench lab`: builds, packs and installs the lab's kernels, and opens a shell in the lab.

use ccbench_proto::plan::{Engine, Series};

use crate::args::LabCommand;
use crate::commands::agent::replace;
use crate::console::print;
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::lab::error::LabError;
use crate::lab::package::{self, Installed};
use crate::lab::userland::Programs;
use crate::lab::vm::VmImage;
use crate::lab::{kernel, modules};

/// Runs one of the sub-commands.
///
/// # Errors
/// A tool is missing, or the kernel cannot be built, packed or installed.
pub fn run(command: &LabCommand) -> Result<ExitCode, CliError> {
    match command {
        LabCommand::Build { kernel, engine: Some(engine), modules } => {
            if !engine.runs(*kernel) {
                return Err(LabError::NotItsKernel { engine: *engine, kernel: *kernel }.into());
            }
            build(*engine, *kernel, *modules)
        }
        LabCommand::Build { kernel, engine: None, modules } => {
            for engine in [Engine::Uml, Engine::Qemu].into_iter().filter(|e| e.runs(*kernel)) {
                build(engine, *kernel, *modules)?;
            }
            Ok(ExitCode::Success)
        }
        LabCommand::Pack { output } => {
            for (engine, release) in package::pack(&kernel::lab_cache_dir(), output)? {
                print(&format!("{}: kernel {release} for the engine {engine}\n", output.display()));
            }
            Ok(ExitCode::Success)
        }
        LabCommand::Install { file } => {
            for Installed { engine, release, is_new } in
                package::install(&kernel::lab_cache_dir(), file)?
            {
                let how = if is_new { "installed" } else { "was installed already" };
                print(&format!("kernel {release} for the engine {engine}: {how}\n"));
            }
            Ok(ExitCode::Success)
        }
        LabCommand::Shell { kernel, dilation } => {
            let image = VmImage::open(Engine::Qemu, *kernel, Programs::Shell)?;
            Err(replace(&mut image.shell(*dilation)?))
        }
    }
}

/// Builds or fetches a kernel, with ccbench's modules if requested, and checks that it can be packed with the userland.
fn build(engine: Engine, series: Series, with_modules: bool) -> Result<ExitCode, CliError> {
    let kernel = kernel::build(engine, series)?;
    let mut image = VmImage::open(engine, series, Programs::None)?;
    if with_modules {
        print(&format!("{}\n", modules::build(&kernel)?.display()));
        image = image.with_modules()?;
    }
    print(&format!(
        "{} ({}), {}\n{}\n",
        kernel.release,
        kernel.version,
        image.emulator,
        kernel.image.display()
    ));
    Ok(ExitCode::Success)
}
