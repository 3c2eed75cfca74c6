//! `ccbench cc`: lists, shows, loads and unloads congestion controls.

use std::fmt::Write as _;
use std::path::Path;

use ccbench_io::console::{self, message};
use ccbench_proto::cc::{self, BUILTINS, Core, Scheme};
use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::plan::parse::suggest::near;
use ccbench_proto::plan::{Cc, SysctlValue, Via};
use clap::builder::{PossibleValuesParser, TypedValueParser as _};

#[cfg(feature = "ebpf")]
use super::ecn;
use super::error::{NotAvailable, SocketError};
use super::journal::Journal;
use super::{kernel_module, module_loader, sysfs, verify};
use crate::link::text;

mod supplied;

const EXAMPLES: &str = "Examples:\n  \
ccbench cc list\n  \
ccbench cc show ta_grad\n  \
ccbench cc show mine.bpf.o                              its name, parameters and digest\n  \
ccbench cc load ta --as my_ta betao=5000 comeback=1     until it is interrupted\n  \
iperf3 -c HOST -C my_ta                                 meanwhile, in another shell\n  \
ccbench cc load prague --pin && ccbench cc unload ccb_prague\n\n\
Exit codes: 0; 1 it cannot be loaded or unloaded; 2 the command line is wrong.";

/// `ccbench cc`
#[derive(Debug, Clone, clap::Args)]
#[command(about = "Congestion controls: list, show, load and unload", after_help = EXAMPLES)]
pub struct Args {
    /// Sub-commands.
    #[command(subcommand)]
    pub command: Command,
}

/// Sub-commands.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Command {
    /// List the congestion controls of ccbench and of the kernel, and how each is loaded here
    List,
    /// Show the parameters (units, defaults, ranges) and the internal state of one, or what is in a file of yours
    Show {
        /// Its name, or the path of a BPF object or a kernel module
        name: String,
    },
    /// Load one into the kernel, for all programs of this machine
    Load(LoadArgs),
    /// Unload one that was pinned, or an instance of a module
    Unload {
        /// Its name in the kernel
        name: String,
    },
}

/// The values of `--via`: every [`Via`] except `builtin`, because the kernel's own need no loading.
const BACKENDS: [&str; 3] = ["auto", "bpf", "module"];

/// `ccbench cc load`
#[derive(Debug, Clone, clap::Args)]
pub struct LoadArgs {
    /// One of ccbench's own, or the path of a BPF object or a kernel module
    pub name: String,
    /// Parameters that differ from its defaults: `betao=5000`
    #[arg(value_name = "KEY=VALUE")]
    pub params: Vec<String>,
    /// Of a file with several, the one with this name; of a module, the name that it registers
    #[arg(long, value_name = "NAME")]
    pub algorithm: Option<String>,
    /// Its name in the kernel, at most 15 characters [default: ccb_NAME; of a file, the name in it]
    #[arg(long = "as", value_name = "KERNELNAME")]
    pub kernel_name: Option<String>,
    /// Backend
    #[arg(
        long,
        value_name = "BACKEND",
        default_value = "auto",
        value_parser = PossibleValuesParser::new(BACKENDS).try_map(|via| text::word::<Via>(&via)),
    )]
    pub via: Via,
    /// Keep it until this command is interrupted (the default)
    #[arg(long, conflicts_with = "pin")]
    pub hold: bool,
    /// Keep it until `ccbench cc unload` or a reboot
    #[arg(long)]
    pub pin: bool,
}

/// Runs the command. Returns the exit code.
pub fn main(args: &Args) -> u8 {
    let done = match &args.command {
        Command::List => Ok(list()),
        Command::Show { name } => show(name),
        Command::Load(args) => load(args).map(|()| String::new()),
        Command::Unload { name } => unload(name),
    };
    match done {
        Ok(text) => {
            console::print(&text);
            0
        }
        Err(error) => {
            message(format_args!("ccbench: {error}"));
            error.exit_code()
        }
    }
}

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    /// A parameter without a value.
    #[error("`{0}` is not KEY=VALUE, like betao=5000")]
    NotKeyValue(String),
    /// Neither ccbench nor any kernel has a congestion control of this name.
    #[error("{0}")]
    UnknownName(String),
    /// The congestion control is not ccbench's own, so there is nothing to load.
    #[error(
        "`{name}` is not one of ccbench's own ({known}); those of the kernel need no loading{hint}"
    )]
    UnknownScheme {
        /// The name.
        name: String,
        /// The congestion controls of ccbench.
        known: String,
        /// A similar name, beginning with "; "; may be empty.
        hint: String,
    },
    /// Parameters that the congestion control does not have, or values out of range.
    #[error("{}", .0.join("\n"))]
    BadParameters(Vec<String>),
    /// A file cannot be read.
    #[error("read {path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A parameter has two values.
    #[error("the parameter `{0}` is given twice")]
    RepeatedParameter(String),
    /// A name already is that of a congestion control.
    #[error("--algorithm is for files; leave it out, because `{0}` is a name")]
    AlgorithmOfName(String),
    /// A module registers its own name.
    #[error("a module registers its own name: leave out --as")]
    ModuleName,
    /// The name cannot be used in the kernel.
    #[error(transparent)]
    BadName(#[from] NameError),
    /// This kernel has no such congestion control.
    #[error("this kernel has no congestion control `{name}`{source}")]
    NoSuchCc {
        /// Its name.
        name: String,
        /// The kernel's answer.
        source: NotAvailable,
    },
    /// The kernel has nothing of this name to unload.
    #[error("this kernel has no congestion control `{0}` (`ccbench cc list` shows those it has)")]
    NotRegistered(String),
    /// One of the kernel's own cannot be unloaded.
    #[error("`{0}` is the kernel's own; ccbench unloads only what it has loaded")]
    BuiltIn(String),
    /// A process holds it, or another program registered it.
    #[error(
        "`{0}` is held by a process (a trial, or `ccbench cc load`), or ccbench did not load it; end the process that holds it"
    )]
    Held(String),
    /// It was unloaded, but the kernel still lists it.
    #[error("`{0}` is still registered: another process holds it too")]
    StillRegistered(String),
    /// The kernel refused.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

impl CommandError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::NotKeyValue(_)
            | Self::RepeatedParameter(_)
            | Self::AlgorithmOfName(_)
            | Self::UnknownName(_)
            | Self::UnknownScheme { .. }
            | Self::BadParameters(_)
            | Self::File { .. }
            | Self::ModuleName
            | Self::BadName(_) => 2,
            Self::NoSuchCc { .. }
            | Self::NotRegistered(_)
            | Self::BuiltIn(_)
            | Self::Held(_)
            | Self::StillRegistered(_)
            | Self::Socket(_) => 1,
        }
    }
}

/// Why a name cannot be used in the kernel.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum NameError {
    /// Longer than `TCP_CA_NAME_MAX` allows.
    #[error(
        "`{name}` is {} characters long, but the kernel takes {} at most; choose another with --as",
        .name.len(),
        cc::MAX_KERNEL_NAME
    )]
    TooLong {
        /// The name.
        name: String,
    },
    /// Empty, or with characters that `struct_ops` refuses.
    #[error("`{0}` is not a valid name for the kernel; use only letters, digits, `_` and `.`")]
    Characters(String),
    /// The name of a congestion control of the kernel.
    #[error("`{0}` is one of the kernel's own: choose another with --as")]
    Reserved(String),
}

fn list() -> String {
    let mut text =
        String::from("ccbench's own (write `[cc.NAME]` with `algorithm = …` in a plan):\n");
    let mut last = String::new();
    for scheme in &cc::table().schemes {
        let Some((_, core)) = cc::scheme(&scheme.name) else { continue };
        let how = match verify::choose(Via::Auto, core) {
            Ok((via, reason)) => {
                let via = super::load::via_on_wire(via).as_text();
                format!("loaded by {via}: {}", reason.text())
            }
            Err(why) => format!("cannot be loaded here: {why}"),
        };
        // On most machines all of them load in the same way.
        if how != last {
            let _ = writeln!(text, " {how}");
            last = how;
        }
        let _ = writeln!(text, "  {:<12} {}", scheme.name, differs(scheme));
    }
    text.push_str("the kernel's:\n");
    let available = sysfs::available();
    for name in &available {
        let params = sysfs::parameters(&format!("tcp_{name}"));
        let params: Vec<&str> = params.keys().map(String::as_str).collect();
        let with = if params.is_empty() {
            String::new()
        } else {
            format!("; parameters: {}", params.join(", "))
        };
        let kind = if BUILTINS.contains(&name.as_str()) { "builtin" } else { "registered now" };
        let _ = writeln!(text, "  {name:<15} {kind}{with}");
    }
    let release = sysfs::release();
    for name in BUILTINS.iter().filter(|name| !available.iter().any(|a| a == *name)) {
        let module = format!("tcp_{name}");
        let there = sysfs::is_installed(Path::new("/lib/modules"), &release, &module);
        let how = match there {
            Some(true) => format!("module {module}, loaded when it is first used"),
            Some(false) => format!("not available: {release} has no module {module}"),
            None => "not available: it is not built in, and this kernel has no modules".to_owned(),
        };
        let _ = writeln!(text, "  {name:<15} {how}");
    }
    text
}

fn differs(scheme: &Scheme) -> String {
    let params: Vec<String> =
        scheme.params.iter().map(|(name, value)| format!("{name} = {value}")).collect();
    let core =
        if scheme.core == scheme.name { String::new() } else { format!("{} with ", scheme.core) };
    if params.is_empty() {
        "its defaults".to_owned()
    } else {
        format!("{core}{}", params.join(", "))
    }
}

fn show(name: &str) -> Result<String, CommandError> {
    if supplied::is_file(name) {
        return supplied::show(name);
    }
    let Some((scheme, core)) = cc::scheme(name) else {
        return show_kernel_cc(name);
    };
    let mut text = format!("{name}: {}\n", differs(scheme));
    let _ = writeln!(text, "core {}{}", core.name, requirements(core));
    text.push_str("\nparameters:\n");
    let width = core.params.iter().map(|param| param.name.len()).max().unwrap_or(0);
    for param in &core.params {
        let value = scheme.params.get(&param.name).copied().unwrap_or(param.default);
        let _ = writeln!(
            text,
            "  {:<width$} {value:>8} {:<10} {} to {}: {}",
            param.name, param.unit, param.min, param.max, param.doc
        );
    }
    for rule in &core.rules {
        let _ = writeln!(text, "  {}: {}", rule.param, rule.message);
    }
    text.push_str("\ninternal state, once per round trip (table cc_state):\n");
    for stat in &core.stats {
        let _ = writeln!(text, "  {:<24} {}", stat.name, stat.unit);
    }
    let bpf = verify::check_bpf_available()
        .map_or_else(|why| format!("no: {why}"), |()| "yes".to_owned());
    let module = kernel_module::check_available(core)
        .map_or_else(|why| format!("no: {why}"), |()| "yes".to_owned());
    let _ = writeln!(text, "\nby BPF: {bpf}\nas a module: {module}");
    Ok(text)
}

fn requirements(core: &Core) -> String {
    let requirements = [
        (core.owns_cwnd, "sets the window at every ACK"),
        (core.wants_pacing, "paces"),
        (core.wants_ecn, "counts ECN marks, so both ends must use it before they connect"),
        (core.may_want_ecn, "counts ECN marks with ecn_enable=1"),
        (core.wants_ect1, "sends ECT(1)"),
    ];
    let requirements: Vec<&str> =
        requirements.into_iter().filter(|(yes, _)| *yes).map(|(_, what)| what).collect();
    if requirements.is_empty() { String::new() } else { format!(": {}", requirements.join(", ")) }
}

fn show_kernel_cc(name: &str) -> Result<String, CommandError> {
    let cc = Cc::new(name);
    if !sysfs::available().iter().any(|there| there == name) {
        verify::check(name).map_err(|error| {
            // A name unknown to all kernels is a mistake in the command line; one that only this kernel lacks is not.
            let wrong =
                cc::resolve(&cc).err().and_then(|wrong| Some(wrong.into_iter().next()?.reason));
            // Keys of plans do not help here.
            let wrong =
                wrong.map(|text| text.split("; if only").next().unwrap_or_default().to_owned());
            let lacks = || CommandError::NoSuchCc { name: name.to_owned(), source: error };
            wrong.map_or_else(lacks, CommandError::UnknownName)
        })?;
    }
    let params = sysfs::parameters(&format!("tcp_{name}"));
    let is_own = BUILTINS.contains(&name);
    let mut text = match is_own {
        true => format!("{name}: the kernel's own\n"),
        false => supplied::describe_registered(name),
    };
    if params.is_empty() && is_own {
        text.push_str("no parameters\n");
    }
    for (name, value) in params {
        let _ = writeln!(text, "  {name:<24} {value}");
    }
    Ok(text)
}

/// Translates the command line into an instance as in a plan.
fn instance(args: &LoadArgs) -> Result<Cc, CommandError> {
    let mut params = std::collections::BTreeMap::new();
    for pair in &args.params {
        let (name, value) =
            pair.split_once('=').ok_or_else(|| CommandError::NotKeyValue(pair.clone()))?;
        let value = SysctlValue::Text(value.to_owned());
        if params.insert(name.to_owned(), value).is_some() {
            return Err(CommandError::RepeatedParameter(name.to_owned()));
        }
    }
    Ok(Cc { params, via: args.via, ..Cc::new(&args.name) })
}

fn load(args: &LoadArgs) -> Result<(), CommandError> {
    if supplied::is_file(&args.name) {
        return supplied::load(args);
    }
    if args.algorithm.is_some() {
        return Err(CommandError::AlgorithmOfName(args.name.clone()));
    }
    let cc = instance(args)?;
    let Some((_, core)) = cc::scheme(&cc.algorithm).filter(|_| !cc::is_kernel_algorithm(&cc))
    else {
        let own: Vec<&str> = cc::table().schemes.iter().map(|s| s.name.as_str()).collect();
        let (known, hint) = (own.join(", "), near(&cc.algorithm, &own));
        return Err(CommandError::UnknownScheme { name: cc.algorithm, known, hint });
    };
    for deprecated in cc::deprecated_params(&cc) {
        message(format_args!("ccbench: {deprecated}"));
    }
    let params = match cc::resolve(&cc) {
        Ok(cc::Instance::Own { params, .. }) => params,
        Ok(cc::Instance::Kernel { .. } | cc::Instance::Supplied) => Vec::new(),
        Err(wrong) => {
            return Err(CommandError::BadParameters(wrong.into_iter().map(|w| w.reason).collect()));
        }
    };
    let name = args.kernel_name.clone().unwrap_or_else(|| format!("ccb_{}", cc.algorithm));
    check_name(&name)?;
    let (via, reason) = verify::choose(cc.via, core)?;
    let reason = reason.text();
    let mut journal = Journal::default();
    if via == Via::Module {
        let params_loaded = kernel_module::register(core, &name, &params, &mut journal)?;
        print(&name, &cc.algorithm, "module", &reason, &params_loaded);
        if args.pin {
            journal.forget();
        } else {
            wait();
        }
        return Ok(());
    }
    Ok(load_bpf(args, core, &name, &params, &reason, &mut journal)?)
}

/// Checks a name: `struct_ops` accepts fewer characters than a plan.
fn check_name(name: &str) -> Result<(), NameError> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    if name.len() > cc::MAX_KERNEL_NAME {
        return Err(NameError::TooLong { name: name.to_owned() });
    }
    if name.is_empty() || !name.chars().all(good) {
        return Err(NameError::Characters(name.to_owned()));
    }
    match BUILTINS.contains(&name) {
        true => Err(NameError::Reserved(name.to_owned())),
        false => Ok(()),
    }
}

#[cfg(feature = "ebpf")]
fn load_bpf(
    args: &LoadArgs,
    core: &'static Core,
    name: &str,
    params: &[(String, u32)],
    reason: &str,
    journal: &mut Journal,
) -> Result<(), SocketError> {
    let needs = ecn::ecn_needs(&args.name, instance(args).ok().as_ref());
    let flags = match needs.any() {
        true => ecn::decide(super::capabilities::capabilities(), needs, Via::Bpf, None).flags,
        false => ecn::flag::NON_RESTRICTED,
    };
    let wanted = super::struct_ops::InstanceSpec {
        core,
        kernel_name: name,
        params,
        flags,
        netns_cookie: None,
    };
    let registered = super::struct_ops::register(&wanted, journal)?;
    let names = params.iter().map(|(name, _)| name.clone());
    let params_loaded =
        names.zip(registered.params().iter().map(u32::to_string)).collect::<Vec<_>>();
    let loaded = || print(name, &args.name, "bpf", reason, &params_loaded);
    keep(registered, (args.pin, name), journal, loaded)
}

/// Holds an instance until this command is interrupted, or pins it. `loaded` reports it.
#[cfg(feature = "ebpf")]
fn keep(
    registered: super::struct_ops::Registered,
    (pin, name): (bool, &str),
    journal: &mut Journal,
    loaded: impl FnOnce(),
) -> Result<(), SocketError> {
    if !pin {
        loaded();
        wait();
        return Ok(());
    }
    if registered.outlives {
        journal.forget();
        std::mem::forget(registered);
    } else {
        let path = registered.pin(name)?;
        console::print(&format!("pinned as {}\n", path.display()));
    }
    loaded();
    Ok(())
}

#[cfg(not(feature = "ebpf"))]
fn load_bpf(
    _: &LoadArgs,
    _: &'static Core,
    _: &str,
    _: &[(String, u32)],
    _: &str,
    _: &mut Journal,
) -> Result<(), SocketError> {
    Err(SocketError::NoEbpf)
}

fn print(name: &str, algorithm: &str, via: &str, reason: &str, params: &[(String, String)]) {
    let params: Vec<String> =
        params.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let params = params.join(" ");
    // A program that waits for this line may start now.
    console::print(&format!(
        "{algorithm} is `{name}` in this kernel, by {via} ({reason}): {params}\n"
    ));
}

/// Waits for SIGINT, SIGTERM or SIGHUP.
fn wait() {
    message(format_args!("loaded until this command is interrupted (Ctrl-C)"));
    let mut set = nix::sys::signal::SigSet::empty();
    for signal in [nix::sys::signal::SIGINT, nix::sys::signal::SIGTERM, nix::sys::signal::SIGHUP] {
        set.add(signal);
    }
    if set.thread_block().is_ok() {
        let _ = set.wait();
    }
}

fn unload(name: &str) -> Result<String, CommandError> {
    if BUILTINS.contains(&name) {
        return Err(CommandError::BuiltIn(name.to_owned()));
    }
    if !sysfs::available().iter().any(|there| there == name) {
        return Err(CommandError::NotRegistered(name.to_owned()));
    }
    #[cfg(feature = "ebpf")]
    {
        let pin = Path::new(super::struct_ops::PINS).join(name);
        if pin.exists() {
            std::fs::remove_file(&pin).map_err(SocketError::file("remove", &pin))?;
            return wait_unregistered(name);
        }
    }
    for core in &cc::table().cores {
        let module = format!("ccb_{}", core.name);
        let instances =
            std::fs::read_to_string(sysfs::parameter(&module, "instances")).unwrap_or_default();
        if instances.lines().any(|line| line.split_whitespace().next() == Some(name)) {
            if name == module {
                module_loader::unload(&module)?;
            } else {
                sysfs::write(&sysfs::parameter(&module, "remove"), name)?;
            }
            return wait_unregistered(name);
        }
    }
    #[cfg(feature = "ebpf")]
    if super::bpf::unregister(name).is_ok() {
        return wait_unregistered(name);
    }
    Err(CommandError::Held(name.to_owned()))
}

/// Waits until the kernel no longer lists the congestion control.
fn wait_unregistered(name: &str) -> Result<String, CommandError> {
    for _ in 0..100 {
        if !sysfs::available().iter().any(|there| there == name) {
            return Ok(format!(
                "{name} is unloaded; sockets that use it keep it until they close\n"
            ));
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Err(CommandError::StillRegistered(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_shows_all_congestion_controls() {
        let text = list();
        for scheme in &cc::table().schemes {
            assert!(text.contains(&format!("  {} ", scheme.name)), "{text}");
            let shown = show(&scheme.name).unwrap();
            assert!(shown.contains("parameters:") && shown.contains("as a module: "), "{shown}");
        }
        assert!(text.contains("  reno "), "{text}");
        let shown = show("ta_grad").unwrap();
        let comeback = shown.lines().find(|line| line.trim_start().starts_with("comeback "));
        assert!(comeback.unwrap().contains(" 1 flag"), "{shown}");
        assert!(show("reno").unwrap().contains("the kernel's own"));
        let refused = show("ta_gard").unwrap_err();
        assert!(refused.to_string().contains("did you mean `ta_grad`?"), "{refused}");
        assert!(!refused.to_string().contains("builtin"), "{refused}");
        assert_eq!(refused.exit_code(), 2);
    }

    #[test]
    fn rejects_invalid_kernel_names() {
        let why = |name: &str| check_name(name).unwrap_err().to_string();
        assert!(why("sixteen_letters_").contains("16 characters"));
        assert!(why("a-b").contains("letters, digits"));
        assert!(why("cubic").contains("kernel's own"));
        assert_eq!(check_name("ccb_cx15_rttvar"), Ok(()));
    }
}
