//! The command line. Nothing here is checked against the machine.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use ccbench_proto::cc::supplied::is_digest;
use ccbench_proto::scope::Scope;
use ccbench_proto::units::Bytes;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};

use crate::boot_loader::BootLoaderKind;
use crate::sockets::allowed::{AllowedModules, ModulePattern};
use crate::tls::TlsArgs;
use crate::user;

/// One node of an experiment. `ccbench` starts it in every namespace that it makes; on a testbed, start
/// `ccbench-agent serve` on every node yourself.
#[derive(Debug, Parser)]
#[command(name = "ccbench-agent", version, max_term_width = 100)]
pub struct Cli {
    /// Sub-commands.
    #[command(subcommand)]
    pub command: Command,
}

/// Returns the advice for an argument of `link` that looks like its COMMAND. `words` is the whole command line.
pub fn command_hint(error: &clap::Error, words: &[OsString]) -> Option<&'static str> {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let is_link = words.get(1).is_some_and(|word| word.as_os_str() == "link");
    let is_word = error.kind() == ErrorKind::UnknownArgument && !argument.starts_with('-');
    (is_link && is_word)
        .then_some("write `--` before the COMMAND: ccbench link [OPTIONS] -- COMMAND")
}

/// Whether an error names an argument of `join` that may be a part of a token: one without `--token`, or the rest of one with a space.
pub fn may_name_token(error: &clap::Error, words: &[OsString]) -> bool {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return false;
    };
    let is_join = words.get(1).is_some_and(|word| word.as_os_str() == "join");
    is_join && error.kind() == ErrorKind::UnknownArgument && !argument.starts_with('-')
}

/// Sub-commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run as a node: serve a controller until stopped
    Serve(ServeArgs),
    /// Serve controllers without privileges, and pass their requests to a worker (started as a service)
    Front(FrontArgs),
    /// Run as a node for the front on this machine (started as a service)
    Worker(WorkerArgs),
    /// Load and unload kernel modules for the worker on this machine (started as a service)
    Loader(LoaderArgs),
    /// Get this node's first certificate, for a key made here, with a token of `ccbench pki token`
    Join(crate::join::Args),
    /// Renew this node's certificate, with the same key, at `ccbench pki serve`
    Renew(crate::renew::Args),
    /// Create the namespaces of an experiment and keep them (started by `ccbench run`)
    Testbed(crate::testbed::Args),
    /// Run a command that dies with this process's parent (started by `serve`)
    Launch(crate::launch::Args),
    /// Run one end of a flow group with ccbench's own traffic generator (started by `serve`)
    Generate(crate::generator::Args),
    /// Answer or measure a probe (started by `serve`)
    #[command(hide = true)]
    Probe(Box<crate::probe::process::Args>),
    /// Run a command inside another process's network namespace (started by `ccbench exec`)
    Enter(crate::enter::Args),
    /// Run a stand-alone emulated link, or a command behind one (`ccbench link`)
    #[command(long_about = crate::link::args::ABOUT)]
    Link(Box<crate::link::Args>),
    /// Congestion controls: list, show, load and unload (`ccbench cc`)
    Cc(crate::sockets::command::Args),
    /// Undo a link's changes to an interface when the link is gone (started by `link`)
    #[command(hide = true)]
    LinkGuard(crate::link::GuardArgs),
    /// Remove what dead testbeds and agents left behind under the run directory
    Clean(CleanArgs),
    /// Undo what a dead agent left behind, from the journal in one state directory
    Undo(UndoArgs),
    /// Write man pages to a directory
    Man(ManArgs),
}

/// `ccbench-agent serve`
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Where to listen: `unix:PATH` or `tcp:HOST:PORT`
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Listen,
    /// This node's name, for log lines
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Certificates.
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Stop, and undo everything, when the process that started this one ends
    #[arg(long)]
    pub die_with_parent: bool,
    /// Enter this network namespace first (a file like /run/netns/NAME or /proc/PID/ns/net)
    #[arg(long, value_name = "PATH")]
    pub netns: Option<PathBuf>,
    /// Changes to the machine.
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// `ccbench-agent front`
#[derive(Debug, Clone, Args)]
pub struct FrontArgs {
    /// Where to listen: `tcp:HOST:PORT`
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Listen,
    /// Certificates.
    #[command(flatten)]
    pub tls: TlsArgs,
    /// The worker's socket
    #[arg(long, value_name = "PATH", default_value = WORKER_SOCKET)]
    pub worker: PathBuf,
    /// Directory of the audit log
    #[arg(long, value_name = "DIR")]
    pub state_dir: PathBuf,
    /// Size at which the audit log, `audit.ndjson` in the state directory, is rotated; 0B: no audit log
    #[arg(long, value_name = "SIZE", default_value = "4MB")]
    pub audit_size: Bytes,
}

/// Default path of the worker's socket.
pub const WORKER_SOCKET: &str = "/run/ccbench-agent-worker.sock";

/// `ccbench-agent worker`
#[derive(Debug, Clone, Args)]
pub struct WorkerArgs {
    /// Where to listen: `unix:PATH`, or `stdin` if standard input is a listening socket (systemd: StandardInput=socket)
    #[arg(long, value_name = "ADDRESS")]
    pub listen: LocalListen,
    /// The front's user, a name or a number: only its processes and root may connect
    #[arg(long, value_name = "USER", value_parser = user::uid)]
    pub front_user: u32,
    /// Limit of what controllers may do on this machine, whatever their certificates permit [default: all]
    #[arg(long, value_name = "SCOPE", value_delimiter = ',')]
    pub scope: Vec<Scope>,
    /// Changes to the machine.
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// `ccbench-agent loader`
#[derive(Debug, Clone, Args)]
pub struct LoaderArgs {
    /// Where to listen: `unix:PATH`, or `stdin` if standard input is a listening socket (systemd: StandardInput=socket)
    #[arg(long, value_name = "ADDRESS")]
    pub listen: LocalListen,
    /// Directory that lists the loaded modules of users
    #[arg(long, value_name = "DIR", default_value = "/run/ccbench-loader")]
    pub state_dir: PathBuf,
    /// What may be loaded.
    #[command(flatten)]
    pub allow: AllowArgs,
}

/// What a process that changes its machine may do, and where it keeps its undo journal.
#[derive(Debug, Clone, Args)]
pub struct MachineArgs {
    /// Directory of the undo journal and of the audit log; it remains when the agent ends [default:
    /// /run/ccbench/agent-NAMESPACE_INODE]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// The namespace ends with this process: keep no undo journal and no audit log
    #[arg(long)]
    pub ephemeral: bool,
    /// Size at which the audit log, `audit.ndjson` in the state directory, is rotated; 0B: no audit log
    #[arg(long, value_name = "SIZE", default_value = "4MB")]
    pub audit_size: Bytes,
    /// What may be loaded.
    #[command(flatten)]
    pub allow: AllowArgs,
    /// Let controllers with the scope `reboot` reboot this machine into a kernel that a plan names (`kernel_release` of a node),
    /// which this boot loader boots once [default: no reboots]
    #[arg(long, env = "CCBENCH_ALLOW_REBOOT", value_name = "BOOT_LOADER", value_enum)]
    pub allow_reboot: Option<BootLoaderKind>,
}

/// What may be loaded on this machine. A worker and its loader read the same environment variables.
#[derive(Debug, Clone, Args)]
pub struct AllowArgs {
    /// SHA-256 of a user's congestion control (`file` or `module` in `[cc.NAME]`) that controllers may load here; may be repeated.
    /// `serve` on a Unix socket loads all
    #[arg(
        long,
        env = "CCBENCH_ALLOW_CC_DIGEST",
        value_name = "SHA256",
        value_delimiter = ',',
        value_parser = digest
    )]
    pub allow_cc_digest: Vec<String>,
    /// An installed kernel module that may be loaded for a congestion control; with `*` at the end, all names with this prefix. May
    /// be repeated [default: ccb_*, tcp_*]
    #[arg(long, env = "CCBENCH_ALLOW_MODULE", value_name = "NAME", value_delimiter = ',')]
    pub allow_module: Vec<ModulePattern>,
}

impl AllowArgs {
    /// Digests of the users' files that may be loaded.
    pub fn digests(&self) -> BTreeSet<String> {
        self.allow_cc_digest.iter().cloned().collect()
    }

    /// The installed modules that may be loaded.
    pub fn modules(&self) -> AllowedModules {
        AllowedModules::new(&self.allow_module)
    }
}

/// A SHA-256 was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is not 64 hexadecimal digits; `sha256sum FILE` and `ccbench cc show FILE` print them")]
pub struct DigestError;

fn digest(text: &str) -> Result<String, DigestError> {
    let text = text.to_ascii_lowercase();
    if is_digest(&text) { Ok(text) } else { Err(DigestError) }
}

/// `ccbench-agent undo`
#[derive(Debug, Clone, Args)]
pub struct UndoArgs {
    /// The dead agent's state directory
    #[arg(long, value_name = "DIR")]
    pub state_dir: PathBuf,
    /// Enter this network namespace first, and undo only what was changed in it [default: enter the one that each change names]
    #[arg(long, value_name = "PATH")]
    pub netns: Option<PathBuf>,
    /// Remove the journal's damaged lines, after you have undone their changes by hand
    #[arg(long)]
    pub discard_damaged: bool,
    /// Remove from the journal, and print, the changes in network namespaces that are not found or cannot be entered. First run
    /// this without the option, as root and outside of services and containers, to undo the changes in all namespaces that are
    /// found
    #[arg(long)]
    pub discard_unreachable: bool,
}

/// `ccbench-agent clean`
#[derive(Debug, Clone, Args)]
pub struct CleanArgs {
    /// Where the state directories are
    #[arg(long, value_name = "DIR", default_value = "/run/ccbench")]
    pub root: PathBuf,
    /// The deprecated name of --root
    #[arg(long, value_name = "DIR", hide = true, conflicts_with = "root")]
    pub run_dir: Option<PathBuf>,
}

/// `ccbench-agent man`
#[derive(Debug, Clone, Args)]
pub struct ManArgs {
    /// The directory, which is created if missing
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// Where an agent listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A path socket, mode 0600; only root and the agent's own user may connect.
    Unix(PathBuf),
    /// A TCP address; beyond loopback only with mutual TLS. Without TLS, only root and the agent's own user may connect.
    Tcp(SocketAddr),
}

/// Why an address to listen on was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not an address to listen on: write unix:PATH or tcp:HOST:PORT (HOST an IP address)"
)]
pub struct ListenError {
    text: String,
}

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        let refused = || ListenError { text: text.to_owned() };
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() && !path.starts_with(['@', '\0']) => {
                Ok(Self::Unix(PathBuf::from(path)))
            }
            Some(("tcp", address)) => address
                .strip_prefix("localhost:")
                .map_or_else(|| address.to_owned(), |port| format!("127.0.0.1:{port}"))
                .parse()
                .map(Self::Tcp)
                .map_err(|_| refused()),
            _ => Err(refused()),
        }
    }
}

/// Where a process listens for other processes of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalListen {
    /// Standard input is the listening socket.
    Stdin,
    /// A path socket, which this process makes.
    Unix(PathBuf),
}

/// Why such an address was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an address to listen on: write unix:PATH or stdin")]
pub struct LocalListenError {
    text: String,
}

impl FromStr for LocalListen {
    type Err = LocalListenError;

    fn from_str(text: &str) -> Result<Self, LocalListenError> {
        match text.parse() {
            Ok(Listen::Unix(path)) => Ok(Self::Unix(path)),
            _ if text == "stdin" => Ok(Self::Stdin),
            _ => Err(LocalListenError { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for LocalListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdin => f.write_str("standard input"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ccbench_tests::snippets;

    use super::*;

    #[test]
    fn a_command_of_a_link_without_dashes_has_a_hint() {
        let hint = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            command_hint(&Cli::try_parse_from(&words).unwrap_err(), &words)
        };
        let missing = hint("ccbench-agent link --rate 10mbit true");
        assert!(missing.is_some_and(|hint| hint.contains("-- COMMAND")), "{missing:?}");
        assert_eq!(hint("ccbench-agent link --rat 10mbit"), None);
        assert_eq!(hint("ccbench-agent clean true"), None);
    }

    #[test]
    fn an_argument_of_join_that_may_be_a_token_is_not_printed() {
        let names = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            may_name_token(&Cli::try_parse_from(&words).unwrap_err(), &words)
        };
        assert!(names("ccbench-agent join --controller n:1 ccbench-join-1:ab:cd"));
        assert!(names("ccbench-agent join --controller n:1 --token ccbench-join-1:ab :cd"));
        assert!(!names("ccbench-agent join --controler n:1"));
        assert!(!names("ccbench-agent clean true"));
    }

    #[test]
    fn listen_address_needs_a_scheme() {
        assert_eq!("unix:/x/a.sock".parse(), Ok(Listen::Unix("/x/a.sock".into())));
        assert_eq!(
            "tcp:127.0.0.1:7700".parse(),
            Ok(Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 7700))))
        );
        assert!("tcp:localhost:7700".parse::<Listen>().is_ok());
        for bad in ["", "/x/a.sock", "unix:", "unix:@abstract", "tcp:7700", "tcp:host:99999"] {
            assert!(bad.parse::<Listen>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_worker_listens_on_a_path_or_on_what_it_inherits() {
        assert_eq!("unix:/x/w.sock".parse(), Ok(LocalListen::Unix("/x/w.sock".into())));
        assert_eq!("stdin".parse(), Ok(LocalListen::Stdin));
        for bad in ["", "/x/w.sock", "tcp:127.0.0.1:7700", "unix:@abstract"] {
            let error = bad.parse::<LocalListen>().unwrap_err().to_string();
            assert!(error.contains("unix:PATH or stdin"), "{error}");
        }
    }

    #[test]
    fn the_front_of_a_worker_is_a_user() {
        let worker = |more: &[&str]| {
            let line = ["ccbench-agent", "worker", "--listen", "stdin"];
            let cli = Cli::try_parse_from(line.iter().chain(more).copied())?;
            let Command::Worker(args) = cli.command else { panic!("{cli:?}") };
            Ok::<_, clap::Error>(args)
        };
        assert_eq!(worker(&["--front-user", "root"]).unwrap().front_user, 0);
        let args = worker(&["--front-user", "1234", "--scope", "run,bpf"]).unwrap();
        assert_eq!((args.front_user, args.scope), (1234, vec![Scope::Run, Scope::Bpf]));
        let error = worker(&["--front-user", "no such user"]).unwrap_err().to_string();
        assert!(error.contains("systemd-sysusers"), "{error}");
        assert!(worker(&[]).unwrap_err().to_string().contains("--front-user"));
    }

    #[test]
    fn digests_are_repeated_and_checked() {
        let serve = |more: &[&str]| {
            let line = ["ccbench-agent", "serve", "--listen", "unix:/x"];
            Cli::try_parse_from(line.iter().chain(more).copied())
        };
        let (a, b) = ("A".repeat(64), "1".repeat(64));
        let cli = serve(&["--allow-cc-digest", &a, "--allow-cc-digest", &b]).unwrap();
        let Command::Serve(args) = cli.command else { panic!("{cli:?}") };
        assert_eq!(args.machine.allow.allow_cc_digest, [a.to_lowercase(), b]);
        let error = serve(&["--allow-cc-digest", "abc"]).unwrap_err().to_string();
        assert!(error.contains("64 hexadecimal digits"), "{error}");
    }

    /// Its settings, also those in comments: every variable of an option of `serve` is there.
    #[test]
    fn the_example_of_the_configuration_is_accepted() {
        use clap::CommandFactory as _;
        let example = include_str!("../../../systemd/agent.conf.example").lines();
        let settings: BTreeMap<&str, &str> = example
            .filter_map(|line| line.trim_start_matches('#').split_once('='))
            .filter(|(name, _)| name.starts_with("CCBENCH_"))
            .collect();
        let command = Cli::command();
        let options = command.find_subcommand("serve").unwrap().get_arguments();
        let options = options.filter_map(|option| Some((option.get_long()?, option.get_env()?)));
        let of_options: Vec<String> = options
            .map(|(long, variable)| format!("--{long}={}", settings[variable.to_str().unwrap()]))
            .collect();
        assert!(of_options.len() >= 3, "{of_options:?}");
        let accepted = |subcommand: &str, listen: &str, more: &[&str], arguments: &str| {
            let line = ["ccbench-agent", subcommand, "--listen", listen];
            let line = line.iter().chain(more).copied().chain(arguments.split(' '));
            let line = line.chain(of_options.iter().map(String::as_str));
            if let Err(error) = Cli::try_parse_from(line) {
                panic!("{subcommand}: {error}");
            }
        };
        accepted("serve", settings["CCBENCH_LISTEN"], &[], settings["CCBENCH_ARGUMENTS"]);
        let of_worker = settings["CCBENCH_WORKER_ARGUMENTS"];
        accepted("worker", "stdin", &["--front-user", "root"], of_worker);
    }

    #[test]
    fn run_dir_is_a_deprecated_name_of_root() {
        let clean = |flag: &str| {
            let cli = Cli::try_parse_from(["ccbench-agent", "clean", flag, "/x"]).unwrap();
            let Command::Clean(args) = cli.command else { panic!("{cli:?}") };
            (args.root, args.run_dir)
        };
        assert_eq!(clean("--root"), (PathBuf::from("/x"), None));
        assert_eq!(clean("--run-dir").1, Some(PathBuf::from("/x")));
    }

    #[test]
    fn allowed_modules_are_repeated_or_separated_by_commas() {
        let of = |given: &[&str]| {
            let before = ["ccbench-agent", "serve", "--listen", "unix:/x"];
            let cli = Cli::try_parse_from(before.iter().chain(given)).ok()?;
            let Command::Serve(args) = cli.command else { return None };
            Some(args.machine.allow.modules().to_string())
        };
        let both = Some("ccb_*, tcp_bbr".to_owned());
        assert_eq!(of(&["--allow-module", "ccb_*", "--allow-module", "tcp-bbr"]), both);
        assert_eq!(of(&["--allow-module", "ccb_*,tcp_bbr"]), both);
        assert_eq!(of(&["--allow-module", "../x"]), None);
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    /// `ccbench link` and `ccbench cc` are passed on to this program.
    #[test]
    fn commands_in_the_documents_parse() {
        let mut parsed = 0;
        for snippet in snippets::all().iter().filter(|snippet| snippet.language == "sh") {
            for words in snippets::commands(&snippet.text) {
                let rest = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                    ["ccbench-agent", ..] | ["ccbench", "link" | "cc", ..] => &words[1..],
                    _ => continue,
                };
                let line = std::iter::once("ccbench-agent").chain(rest.iter().map(String::as_str));
                if let Err(error) = Cli::try_parse_from(line) {
                    assert!(!error.use_stderr(), "{}: {error}", snippet.place());
                }
                parsed += 1;
            }
        }
        assert!(parsed >= 10, "only {parsed} commands");
    }
}
