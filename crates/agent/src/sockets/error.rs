//! Errors of loading congestion controls and attaching programs to sockets.

use std::io;
use std::path::{Path, PathBuf};

use ccbench_proto::cc::InstanceProblem;
use ccbench_proto::cc::supplied::SuppliedError;
use ccbench_shaper::ShaperError;

use crate::sysctl::SysctlError;
use crate::undo::error::JournalError;

/// Why a congestion control cannot be loaded, or a program cannot be attached.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A file operation failed.
    #[error("{op} {}: {source}{hint}", .path.display())]
    File {
        /// "open", "write", "make" ...
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
        /// How to fix it, beginning with "; "; may be empty.
        hint: &'static str,
    },
    /// A system call failed.
    #[error("{op}: {source}")]
    System {
        /// The operation and its object.
        op: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A module parameter cannot be written.
    #[error("write `{value}` to {}: {}", .path.display(), parameter_reason(.source))]
    Parameter {
        /// Its file in sysfs.
        path: PathBuf,
        /// The value.
        value: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A module refused an instance.
    #[error("{source}; the kernel's log (dmesg) names the parameter that {module} refused")]
    ModuleRefused {
        /// The module.
        module: String,
        /// The failed write.
        source: Box<SocketError>,
    },
    /// `modprobe` is not installed.
    #[error(
        "modprobe is not installed (apt install kmod); load {module} by hand: insmod {module}.ko"
    )]
    NoModprobe {
        /// The module.
        module: String,
    },
    /// `modprobe` did not start.
    #[error("run {tool} {module}: {source}")]
    RunTool {
        /// The program.
        tool: &'static str,
        /// The module.
        module: String,
        /// The system's answer.
        source: io::Error,
    },
    /// `modprobe` failed.
    #[error("{stderr}{hint}")]
    ToolFailed {
        /// Its message.
        stderr: String,
        /// How to fix it, beginning with "; "; may be empty.
        hint: String,
    },
    /// The process that loads modules for this one failed.
    #[error("the module loader at {}: {reason}", .socket.display())]
    Loader {
        /// Its socket.
        socket: PathBuf,
        /// Why.
        reason: String,
    },
    /// ccbench's module is not installed.
    #[error(
        "module {module} is not installed for this kernel {release}; install it with `make -C kmod module-install`"
    )]
    ModuleNotInstalled {
        /// The module.
        module: String,
        /// The kernel's release.
        release: String,
    },
    /// The kernel was built without modules.
    #[error("this kernel {release} has no modules")]
    NoModules {
        /// The kernel's release.
        release: String,
    },
    /// The kernel already has a congestion control of this name.
    #[error("the name `{name}` is taken in this kernel: {hint}")]
    NameTaken {
        /// The name.
        name: String,
        /// How to fix it.
        hint: String,
    },
    /// A module accepted an instance but does not list it.
    #[error("{module} accepted {name} but does not list it")]
    NotListed {
        /// The module.
        module: String,
        /// The instance.
        name: String,
    },
    /// The kernel's congestion control does not have this parameter.
    #[error("the kernel's `{algorithm}` has no parameter `{name}` (it has: {known})")]
    UnknownParameter {
        /// The congestion control.
        algorithm: String,
        /// The parameter.
        name: String,
        /// Its parameters.
        known: String,
    },
    /// The kernel stored a value other than the one written.
    #[error("the kernel stored {module}.{name} = {actual} instead of {wanted}")]
    ParameterChanged {
        /// The module.
        module: String,
        /// The parameter.
        name: String,
        /// The value in the kernel.
        actual: String,
        /// The value that was written.
        wanted: String,
    },
    /// A step cannot be encoded for the journal.
    #[error("encode a step of the journal: {0}")]
    Encode(#[from] serde_json::Error),
    /// Every journal name of this process is in use.
    #[error("{} is full of journals of changes that cannot be undone", .folder.display())]
    JournalFull {
        /// The folder.
        folder: PathBuf,
    },
    /// This build cannot unregister a BPF instance.
    #[error("bpftool struct_ops unregister name {name}: {}", NO_EBPF)]
    UnregisterWithoutEbpf {
        /// The instance.
        name: String,
    },
    /// This build does not include BPF.
    #[error("{}", NO_EBPF)]
    NoEbpf,
    /// BPF congestion controls need root.
    #[error("loading a BPF congestion control needs root")]
    NeedsRoot,
    /// BPF congestion controls cannot be loaded from a user namespace.
    #[error("a user namespace may not load BPF congestion controls: run ccbench as root")]
    UserNamespace,
    /// The kernel has no BTF.
    #[error("this kernel has no BTF ({path}, CONFIG_DEBUG_INFO_BTF), which BPF programs need")]
    NoBtf {
        /// Where BTF would be.
        path: &'static str,
    },
    /// The kernel has no `struct_ops` for TCP.
    #[error(
        "this kernel accepts no BPF congestion controls (they need struct_ops, CONFIG_BPF_JIT and Linux 5.6)"
    )]
    NoStructOps,
    /// A BPF operation failed.
    #[cfg(feature = "ebpf")]
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// BPF refused a congestion control.
    #[cfg(feature = "ebpf")]
    #[error("{source}; try `via = \"module\"`, or another kernel{log}")]
    LoadRefused {
        /// The refused operation.
        source: BpfError,
        /// The end of the kernel's log, beginning with "; "; may be empty.
        log: String,
    },
    /// BPF refused because of missing privileges.
    #[cfg(feature = "ebpf")]
    #[error("{source}; it needs root (CAP_BPF and CAP_NET_ADMIN), outside of any user namespace")]
    NoPrivilege {
        /// The refused operation.
        source: BpfError,
    },
    /// ccbench's own congestion controls cannot be `builtin`.
    #[error("ccbench's own congestion controls are not built into the kernel")]
    NotBuiltin,
    /// Neither BPF nor a module works.
    #[error("{bpf}; and {module}")]
    NoBackend {
        /// Why BPF does not work.
        bpf: Box<SocketError>,
        /// Why a module does not work.
        module: Box<SocketError>,
    },
    /// The instance's table is wrong.
    #[error("{}", reasons(.0))]
    Params(Vec<InstanceProblem>),
    /// ccbench has no such algorithm.
    #[error("ccbench has no algorithm `{0}`")]
    UnknownAlgorithm(String),
    /// The kernel does not have this congestion control.
    #[error("this kernel does not have it{0}")]
    NotAvailable(#[from] NotAvailable),
    /// It is registered, but the kernel does not list it.
    #[error("it is registered as `{0}`, but the kernel does not list it")]
    NotRegistered(String),
    /// The kernel lists it but refuses it on a socket.
    #[error("the kernel has `{name}` but refuses it on a socket: {source}")]
    Refused {
        /// Its name in the kernel.
        name: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel's parameters differ from those loaded.
    #[error("the kernel's parameters differ from the requested ones: {0:?}")]
    ParamsDiffer(Vec<u32>),
    /// The controller has not sent the file.
    #[error(
        "the file `{path}` is missing from the request; use the same version of ccbench and ccbench-agent"
    )]
    FileMissing {
        /// Its path in the plan.
        path: String,
    },
    /// The agent's configuration does not allow the file.
    #[error(
        "`{path}` (sha256 {sha256}) is not allowed on this node: if you trust it, start `ccbench-agent serve` there with \
         `--allow-cc-digest {sha256}`"
    )]
    DigestNotAllowed {
        /// Its path in the plan.
        path: String,
        /// Its digest, hexadecimal.
        sha256: String,
    },
    /// The file is not one that a plan may name.
    #[error("`{path}`: {source}")]
    NoCongestionControl {
        /// Its path in the plan.
        path: String,
        /// Why.
        source: SuppliedError,
    },
    /// BPF refused the supplied object.
    #[cfg(feature = "ebpf")]
    #[error("{source}{log}")]
    ObjectRefused {
        /// The refused operation.
        source: BpfError,
        /// The end of the kernel's log, beginning with "; "; may be empty.
        log: String,
    },
    /// The module was built for another kernel.
    #[error(
        "module {module} was built for kernel {built_for}, but this is {release}; rebuild it for this kernel"
    )]
    OtherKernel {
        /// The module.
        module: String,
        /// The first word of its `vermagic`.
        built_for: String,
        /// The kernel's release.
        release: String,
    },
    /// Another agent has loaded a different module of this name.
    #[error(
        "another run has loaded the module {module} with sha256 {sha256} and parameters `{params}`, and a kernel can load it \
         only once; wait until that run has ended"
    )]
    ModuleInUse {
        /// The module.
        module: String,
        /// The SHA-256 of the loaded module's file.
        sha256: String,
        /// The parameters of the loaded module.
        params: String,
    },
    /// The module is loaded, but not by ccbench.
    #[error(
        "module {module} is already loaded, but not by ccbench; run `rmmod {module}` first, or use it with `via = \"builtin\"`"
    )]
    ModuleLoaded {
        /// The module.
        module: String,
    },
    /// The kernel refused the module.
    #[error("load the module {module}: {source}{hint}")]
    LoadModule {
        /// The module.
        module: String,
        /// The kernel's answer.
        source: io::Error,
        /// How to fix it, beginning with "; "; may be empty.
        hint: &'static str,
    },
    /// The module registers another name, or none.
    #[error(
        "module {module} is loaded, but has not registered `{algorithm}`{hint}; set `algorithm` to the name that it registers"
    )]
    OtherAlgorithm {
        /// The module.
        module: String,
        /// The name in the plan, or the one derived from the module's name.
        algorithm: String,
        /// The names that it has registered, beginning with ", but "; may be empty.
        hint: String,
    },
    /// The module cannot be unloaded.
    #[error("unload the module {module}: {source}; end what uses it, then `rmmod {module}`")]
    UnloadModule {
        /// The module.
        module: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// There is no control group to attach to.
    #[error(
        "this process sees no control groups version 2; if the agent was started with `ip netns exec`, which hides them, use \
         `ccbench-agent serve --netns PATH` or `nsenter --net=PATH`"
    )]
    NoCgroup,
    /// The shaper refused.
    #[error(transparent)]
    Shaper(#[from] ShaperError),
    /// A sysctl could not be read or written.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// The agent's undo journal could not be used.
    #[error(transparent)]
    Undo(#[from] JournalError),
}

/// The message of a build without the feature `ebpf`.
const NO_EBPF: &str =
    "this ccbench-agent was built without BPF (feature ebpf): build it with clang installed";

impl SocketError {
    /// Returns a closure for `map_err` on a file operation.
    pub(super) fn file(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { op, path, source, hint: "" }
    }

    /// Whether the loader refused or does not answer.
    pub(crate) fn is_of_loader(&self) -> bool {
        match self {
            Self::Loader { .. } => true,
            Self::NoBackend { module, .. } => module.is_of_loader(),
            _ => false,
        }
    }
}

fn reasons(problems: &[InstanceProblem]) -> String {
    let reasons: Vec<&str> = problems.iter().map(|problem| problem.reason.as_str()).collect();
    reasons.join("; ")
}

/// The error of an instance of a congestion control that cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[error("cc.{name}: {algorithm} cannot be loaded: {source}")]
pub struct LoadError {
    /// The instance's name in the plan.
    pub name: String,
    /// Its algorithm.
    pub algorithm: String,
    /// Why.
    pub source: Box<SocketError>,
}

impl LoadError {
    /// Whether the agent's configuration forbids it.
    pub fn is_not_allowed(&self) -> bool {
        matches!(*self.source, SocketError::DigestNotAllowed { .. })
    }
}

/// The error of a congestion control that the kernel does not have.
#[derive(Debug, thiserror::Error)]
#[error("{}; it has: {available}{hint}", kernel_answer(.source))]
pub struct NotAvailable {
    /// The kernel's answer.
    pub source: io::Error,
    /// The congestion controls that it has.
    pub available: String,
    /// How to fix it, beginning with "; "; may be empty.
    pub hint: String,
}

/// The kernel's answer to a congestion control, if it says more than that there is none of this name.
fn kernel_answer(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::NotFound => String::new(),
        _ => format!(" ({source})"),
    }
}

fn parameter_reason(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::NotFound => "the kernel has no such parameter".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "it cannot be changed while the module is loaded, or ccbench does not run as root"
                .to_owned()
        }
        _ => source.to_string(),
    }
}

/// A failed operation on a BPF object.
#[cfg(feature = "ebpf")]
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// libbpf or the kernel refused.
    #[error("{op}: {source:#}")]
    Libbpf {
        /// The operation and its object.
        op: String,
        /// The error.
        source: libbpf_rs::Error,
    },
    /// The kernel's BTF cannot be read.
    #[error("read {path}: {source:#}")]
    UnreadableBtf {
        /// Its file.
        path: &'static str,
        /// Why; the BTF is read only once.
        source: &'static libbpf_rs::Error,
    },
    /// This agent was built without the object.
    #[error("this agent contains no object {object}: rebuild it")]
    NoObject {
        /// The object.
        object: String,
    },
    /// The object has no such map.
    #[error("the BPF object has no map {name}")]
    NoMap {
        /// The map.
        name: String,
    },
    /// libbpf does not have the initial value of the map.
    #[error("the BPF map {name} has no initial value")]
    NoInitialValue {
        /// The map.
        name: String,
    },
    /// The map is shorter than this agent expects.
    #[error("the BPF object has no map {name} of {bytes} bytes")]
    ShortMap {
        /// The map.
        name: String,
        /// The least size that this agent expects.
        bytes: usize,
    },
    /// A data section has no counter at an offset.
    #[error("the BPF map {section} has no counter at byte {at}")]
    NoCounter {
        /// The section.
        section: String,
        /// The offset.
        at: usize,
    },
    /// The map does not have a key.
    #[error("the BPF map {map} has no key {key:?}")]
    NoKey {
        /// The map.
        map: String,
        /// The key.
        key: Vec<u8>,
    },
    /// The object has no program.
    #[error("the BPF object {object} has no program")]
    NoProgram {
        /// The object.
        object: &'static str,
    },
    /// The object has other parameters than the table of congestion controls.
    #[error("the object has {in_object} parameters, the table {in_table}: rebuild ccbench-agent")]
    OtherParameters {
        /// The number of parameters in the object.
        in_object: usize,
        /// The number in the table.
        in_table: usize,
    },
    /// A parameter of the supplied object is not where its BTF places it, or does not take the value.
    #[error(
        "set the parameter {name} in the BPF object: it is not where its BTF places it, or does not take the value"
    )]
    Parameter {
        /// The parameter.
        name: String,
    },
    /// The kernel does not accept the name.
    #[error("`{0}` is longer than {max} characters, the kernel's limit", max = NAME_BYTES - 1)]
    NameTooLong(String),
    /// An error with the log of libbpf and the verifier.
    #[error("{source}; the kernel's log: {log}")]
    Logged {
        /// The error.
        source: Box<BpfError>,
        /// The end of the log.
        log: String,
    },
    /// No map of the kernel holds an instance of this name.
    #[error("no BPF map of this kernel holds an instance named {0}")]
    NotFound(String),
}

#[cfg(feature = "ebpf")]
impl BpfError {
    /// Returns a closure for `map_err` on a refusal by libbpf.
    pub(super) fn libbpf(op: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> Self {
        let op = op.into();
        move |source| Self::Libbpf { op, source }
    }

    /// Returns the kind of a refusal; `InvalidData` for an object that does not fit.
    pub(super) fn kind(&self) -> libbpf_rs::ErrorKind {
        match self {
            Self::Libbpf { source, .. } => source.kind(),
            Self::Logged { source, .. } => source.kind(),
            Self::UnreadableBtf { source, .. } => source.kind(),
            Self::NoObject { .. }
            | Self::NoMap { .. }
            | Self::NoInitialValue { .. }
            | Self::ShortMap { .. }
            | Self::NoCounter { .. }
            | Self::NoKey { .. }
            | Self::NoProgram { .. }
            | Self::OtherParameters { .. }
            | Self::Parameter { .. }
            | Self::NameTooLong(_)
            | Self::NotFound(_) => libbpf_rs::ErrorKind::InvalidData,
        }
    }
}

/// Size of a congestion control's name in the kernel, including the final NUL.
#[cfg(feature = "ebpf")]
pub(super) const NAME_BYTES: usize = 16;
