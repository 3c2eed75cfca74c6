//! Errors of a node: operation, object, source and hint.

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ccbench_collector::SampleError;
use ccbench_shaper::ShaperError;

use crate::audit::AuditError;
use crate::boot_loader::BootError;
use crate::identity::MissingScope;
use crate::probe::process::ProcessError;
use crate::session::Refused;
use crate::sockets::error::{LoadError, NotAvailable};
use crate::sysctl::SysctlError;
use crate::undo::error::JournalError;

/// An error of the agent. Only [`crate::service`] turns it into a gRPC status.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The plan text is wrong.
    #[error("the plan is wrong:\n{problems}")]
    Plan {
        /// One problem per line, each with its path.
        problems: String,
    },
    /// A request's field is wrong.
    #[error("{field}: {reason}")]
    Request {
        /// The field, as in agent.proto.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A request names a file that this node does not hold.
    #[error("the file `{name}` (sha256 {sha256}) was not sent, or its connection has ended")]
    FileNotSent {
        /// Its name in the plan.
        name: String,
        /// Its SHA-256 in the request.
        sha256: String,
    },
    /// The request does not fit the session's state.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The client's certificate does not permit what the plan asks for.
    #[error(transparent)]
    MissingScope(#[from] Box<MissingScope>),
    /// The agent's configuration does not permit a kernel module.
    #[error(
        "{what} needs the kernel module {module}, but this agent may load only {allowed}; start it with an additional \
         `--allow-module {module}`, or load the module by hand"
    )]
    ModuleNotAllowed {
        /// "flow NAME", "congestion control NAME" ...
        what: String,
        /// The module.
        module: String,
        /// The permitted modules.
        allowed: String,
    },
    /// The machine cannot be booted into another kernel.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// The plan names a kernel other than the running one.
    #[error("the plan names kernel {named} for this node, which runs {running}: reboot it first")]
    OtherKernel {
        /// The plan's kernel.
        named: String,
        /// The running kernel, as `uname -r` prints it.
        running: String,
    },
    /// Changes of an earlier trial are still in place.
    #[error("changes to this node could not be undone: {}", .left.join("; "))]
    NotUndone {
        /// What could not be undone, each with its reason.
        left: Vec<String>,
    },
    /// A link could not be made.
    #[error("link {link}: {source}")]
    Link {
        /// The link's name in the plan.
        link: String,
        /// Why.
        source: ShaperError,
    },
    /// The link's interface leads to the controller.
    #[error(
        "link {link}: {dev} is on the route to the controller ({controller}), which the link could cut off; use a control \
         network of its own, or write `allow_control_interface = true`"
    )]
    ControlInterface {
        /// The link's name in the plan.
        link: String,
        /// The interface.
        dev: String,
        /// The controller.
        controller: IpAddr,
    },
    /// The interface that leads to the controller could not be determined.
    #[error("find the interfaces on the route to the controller ({controller}): {source}")]
    ControlRoute {
        /// The controller.
        controller: IpAddr,
        /// Why.
        source: ShaperError,
    },
    /// A capture could not start.
    #[error("capture {capture}: {source}")]
    Capture {
        /// The capture's name in the plan.
        capture: String,
        /// Why.
        source: ShaperError,
    },
    /// Segmentation offloads could not be switched off.
    #[error("switch off the offloads of {dev}: {source}")]
    Offloads {
        /// The interface.
        dev: String,
        /// Why.
        source: ShaperError,
    },
    /// A kernel setting could not be read or written.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// A kernel setting would delete IPv6 addresses and routes.
    #[error(
        "sysctl {name}: the kernel would delete the IPv6 addresses and routes of {dev}, and no undo brings them back; disable IPv6 by hand \
         before the experiment, or run the plan in network namespaces"
    )]
    DisablesIpv6 {
        /// The sysctl's name in the plan.
        name: String,
        /// An interface with IPv6.
        dev: String,
    },
    /// The IPv6 addresses of an interface could not be read.
    #[error("read the IPv6 addresses of {dev}: {source}")]
    Ipv6Addresses {
        /// The interface.
        dev: String,
        /// Why.
        source: ShaperError,
    },
    /// The kernel has no such congestion control.
    #[error("flow {group}: this kernel has no congestion control `{cc}`{source}")]
    CongestionControl {
        /// The flow group.
        group: String,
        /// The congestion control's name.
        cc: String,
        /// The kernel's answer.
        source: NotAvailable,
    },
    /// An instance of a congestion control cannot be loaded.
    #[error(transparent)]
    Cc(#[from] LoadError),
    /// iperf3 is not installed.
    #[error(
        "run iperf3: {source}; install it on this node (apt install iperf3), in a directory of the agent's PATH"
    )]
    NoIperf3 {
        /// Why it did not start.
        source: io::Error,
    },
    /// Another socket uses a port of the trial. The trial can be prepared again with other ports.
    #[error("{subject}: {address}: Address already in use{}", occupied(.listener.as_deref()))]
    PortInUse {
        /// "flow NAME" or "probe NAME".
        subject: String,
        /// Address and port.
        address: SocketAddr,
        /// The process that listens there, if known.
        listener: Option<String>,
    },
    /// A server did not start to listen.
    #[error("flow {group}: iperf3 server on {address}: {source}")]
    Server {
        /// The flow group.
        group: String,
        /// Address and port.
        address: String,
        /// Why.
        source: ListenError,
    },
    /// The process that answers a probe did not start.
    #[error("start the server of probe {id}: {source}")]
    ProbeServer {
        /// The probe's name.
        id: String,
        /// Why.
        source: ProcessError,
    },
    /// A sampler failed.
    #[error("sample {what}: {source}")]
    Sample {
        /// "TCP sockets", "host" ...
        what: &'static str,
        /// Why.
        source: SampleError,
    },
    /// The undo journal could not be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The audit log cannot be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The address cannot be listened on.
    #[error("listen on {address}: {reason}")]
    Listen {
        /// The address as on the command line.
        address: String,
        /// What is wrong, and how to fix it.
        reason: String,
    },
    /// A certificate file cannot be used.
    #[error("read {what} {path}: {source}")]
    Tls {
        /// "certificate", "key" ...
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The gRPC server stopped.
    #[error("serve on {address}: {source}")]
    Serve {
        /// The address as on the command line.
        address: String,
        /// Why.
        source: tonic::transport::Error,
    },
    /// A system call failed.
    #[error("{op}: {source}")]
    System {
        /// The operation and its object.
        op: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The executor is gone: the agent is stopping.
    #[error("the agent is stopping")]
    Stopping,
}

impl AgentError {
    /// Returns a closure for `map_err` on a system call.
    pub(crate) fn system(op: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let op = op.into();
        move |source| Self::System { op, source }
    }
}

/// Why a server does not listen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// The process ended.
    #[error("it ended with exit code {exit_code}: {message}")]
    Ended {
        /// Exit code, or minus the signal that ended it.
        exit_code: i32,
        /// Its error message.
        message: String,
    },
    /// The process took too long.
    #[error("it did not listen within {} s", limit.as_secs())]
    Timeout {
        /// The time limit.
        limit: Duration,
    },
}

fn occupied(listener: Option<&str>) -> String {
    listener.map_or(String::new(), |process| format!("; {process} listens there: end that process"))
}

/// Returns the error's message, followed by causes that it leaves out, as errors of tonic do.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = error.source();
    }
    text
}
