//! `ccbench pki`: certificates for agents and controllers.

use std::path::Path;

use ccbench_proto::scope::{Scope, Scopes};

use crate::args::PkiCommand;
use crate::console::{message, print};
use crate::error::CliError;
use crate::exit::ExitCode;
use crate::pki;
use crate::runtime::block_on;

/// Runs one of the sub-commands.
///
/// # Errors
/// A certificate cannot be issued or written.
pub fn run(command: &PkiCommand) -> Result<ExitCode, CliError> {
    match command {
        PkiCommand::Init { dir } => {
            pki::init(dir)?;
            print(&format!(
                "{0} contains the certificate authority (keep ca.key here) and the controller's certificate, which permits everything.\n\
                 For each node run `ccbench pki node {0} HOST`, copy ca.pem, crl.pem, HOST.pem and HOST.key to it (to /etc/ccbench, the last two \
                 as\nnode.pem and node.key), write CCBENCH_LISTEN to /etc/ccbench/agent.conf, and start the service ccbench-agent-front; \
                 or without systemd\n  \
                 ccbench-agent serve --listen tcp:CONTROL_ADDRESS:7700 --tls-ca ca.pem --tls-cert HOST.pem --tls-key HOST.key \
                 --tls-crl crl.pem\n\
                 For other users run `ccbench pki controller {0} NAME --scope run`.\n",
                dir.display()
            ));
        }
        PkiCommand::Node { dir, names } => {
            pki::node(dir, names)?;
            let name = names.first().map_or("", String::as_str);
            print(&format!("{0}/{name}.pem and {0}/{name}.key\n", dir.display()));
        }
        PkiCommand::Token { dir, names, expires } => {
            let token = pki::token(dir, names, *expires)?;
            print(&format!("{token}\n"));
            message(format_args!(
                "start `ccbench pki serve {} --listen ADDRESS:PORT` here, and within {} on the node\n  \
                 ccbench-agent join --controller ADDRESS:PORT --token TOKEN --dir DIR",
                dir.display(),
                expires.in_largest_unit()
            ));
        }
        PkiCommand::Serve { dir, listen, until_stopped } => {
            let serving = pki::serve(dir, *listen, *until_stopped);
            block_on(async { Ok::<_, CliError>(serving.await?) })?;
        }
        PkiCommand::Controller { dir, name, scope, days } => {
            controller(dir, name, scope, *days)?;
        }
        PkiCommand::Renew { dir, certificate, days } => {
            pki::renew(dir, certificate, *days)?;
            print(&format!(
                "{0} has a new expiry and serial number; copy it to where the earlier one is in use. The earlier one stays valid\n\
                 until it expires. Revoking one of them revokes both.\n",
                certificate.display()
            ));
        }
        PkiCommand::Revoke { dir, certificates } => {
            let list = pki::revoke(dir, certificates)?;
            print(&format!(
                "{0}: copy it to each node as the file of --tls-crl, which agents read again within a second, and to the --pki\n\
                 directories on other controllers, which read it when they start.\n",
                list.display()
            ));
        }
    }
    Ok(ExitCode::Success)
}

fn controller(dir: &Path, name: &str, scopes: &[Scope], days: Option<u32>) -> Result<(), CliError> {
    let own = pki::controller(dir, name, scopes, days)?;
    let permitted: Scopes = scopes.iter().copied().collect();
    if !scopes.is_empty() && !permitted.has(Scope::Read) {
        print("warning: without `read` or `run` this certificate permits no RPC\n");
    }
    print(&format!("{0}: give the directory to {name}, for `--pki {0}`\n", own.display()));
    Ok(())
}
