//! `ccbench lab`: builds the lab's kernels and opens a shell in the lab.

use crate::args::LabCommand;
use crate::commands::agent::replace;
use crate::console::print;
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::lab::{kernel, vm::VmImage};

/// Runs one of the sub-commands.
///
/// # Errors
/// A tool is missing, or the kernel cannot be built.
pub fn run(command: &LabCommand) -> Result<ExitCode, CliError> {
    match command {
        LabCommand::Build { kernel } => {
            let kernel = kernel::build(*kernel)?;
            let image = VmImage::open(kernel.series)?;
            print(&format!(
                "{} ({}), {}\n{}\n",
                kernel.release,
                kernel.version,
                image.emulator,
                kernel.image.display()
            ));
            Ok(ExitCode::Success)
        }
        LabCommand::Shell { kernel, dilation } => {
            Err(replace(&mut VmImage::open(*kernel)?.shell(*dilation)?))
        }
    }
}
