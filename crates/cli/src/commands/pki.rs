//! `ccbench pki`: certificates for agents and controllers.

use crate::args::PkiCommand;
use crate::console::print;
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::pki;

/// Runs one of the sub-commands.
///
/// # Errors
/// A certificate cannot be issued or written.
pub fn run(command: &PkiCommand) -> Result<ExitCode, CliError> {
    match command {
        PkiCommand::Init { dir } => {
            pki::init(dir)?;
            print(&format!(
                "{0} contains the certificate authority (keep ca.key here) and the controller's certificate.\n\
                 For each node run `ccbench pki node {0} HOST`, copy ca.pem, HOST.pem and HOST.key to it, and start\n  \
                 ccbench-agent serve --listen tcp:CONTROL_ADDRESS:7700 --tls-ca ca.pem --tls-cert HOST.pem --tls-key HOST.key\n",
                dir.display()
            ));
        }
        PkiCommand::Node { dir, names } => {
            pki::node(dir, names)?;
            let name = names.first().map_or("", String::as_str);
            print(&format!("{0}/{name}.pem and {0}/{name}.key\n", dir.display()));
        }
    }
    Ok(ExitCode::Success)
}
