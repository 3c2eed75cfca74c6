//! The command line of `ccbench pki`.

use std::net::SocketAddr;
use std::path::PathBuf;

use ccbench_proto::scope::Scope;
use ccbench_proto::units::Micros;
use clap::{Subcommand, ValueHint};

/// Sub-commands of `pki`.
#[derive(Debug, Subcommand)]
pub enum PkiCommand {
    /// Create a certificate authority, and a controller's certificate that permits everything.
    Init {
        /// The directory to create.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
    /// Issue a node's certificate. Copy it to that node together with `ca.pem`.
    Node {
        /// The directory of `pki init`.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Host name or address by which controllers reach the node.
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Make a one-time token with which a node gets a certificate for a key that it makes itself (`ccbench-agent join`).
    Token {
        /// The directory of `pki init`.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Host name or address by which controllers reach the node.
        #[arg(required = true)]
        names: Vec<String>,
        /// How long the token can be used, at most 720h.
        #[arg(long, value_name = "TIME", default_value = "1h")]
        expires: Micros,
    },
    /// Issue certificates to nodes that have a token, until every token is used or has expired. Also renew the certificates of nodes that ask
    /// (`ccbench-agent renew`).
    Serve {
        /// The directory of `pki init`.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Address and port in the control network.
        #[arg(long, value_name = "ADDRESS:PORT")]
        listen: SocketAddr,
        /// Continue without tokens until it is stopped, for nodes that renew their certificates.
        #[arg(long)]
        until_stopped: bool,
    },
    /// Issue a controller's certificate, in a directory of its own for `--pki`.
    Controller {
        /// The directory of `pki init`.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Who uses it: agents log the name, and it names the directory.
        name: String,
        /// What it permits: read, run, host-net, module, bpf, reboot. `run` includes `read` [default: all].
        #[arg(long, value_name = "SCOPE", value_delimiter = ',')]
        scope: Vec<Scope>,
        /// Days until it expires [default: two years].
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=3650))]
        days: Option<u32>,
    },
    /// Issue a certificate again, with the same key, names and scopes and a new expiry. The file is replaced; the earlier
    /// certificate stays valid.
    Renew {
        /// The directory of `pki init`.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// The certificate; its key is beside it, with the ending `.key`.
        #[arg(value_hint = ValueHint::FilePath)]
        certificate: PathBuf,
        /// Days until it expires [default: two years].
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=3650))]
        days: Option<u32>,
    },
    /// Revoke certificates and the ones that they were renewed from or to: agents and controllers with the new `crl.pem` refuse them.
    /// Without certificates, write the list again.
    Revoke {
        /// The directory of `pki init`.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// The certificates.
        #[arg(value_hint = ValueHint::FilePath)]
        certificates: Vec<PathBuf>,
    },
}
