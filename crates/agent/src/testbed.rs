//! Makes the namespaces of an experiment and holds them open.

/// Its command line.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {}

/// Runs it; the exit code.
///
/// # Errors
/// Never yet.
pub fn main(args: &Args) -> Result<u8, crate::AgentError> {
    let _ = args;
    Ok(2)
}
