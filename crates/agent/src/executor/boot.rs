//! The kernel that a plan names for this node: checks that it runs, and reboots into it.

use ccbench_proto::schedule::NodeTask;
use ccbench_proto::scope::Scope;
use ccbench_proto::wire;

use super::{Executor, ExecutorRequest, Handle};
use crate::accept::ConnectionHandle;
use crate::boot_loader::{Boot, BootError, Selected};
use crate::error::AgentError;
use crate::session::{Command, Holder};
use crate::sockets::sysfs;

impl Handle {
    /// Begins the reboot of the machine into an installed kernel.
    ///
    /// # Errors
    /// A trial holds the node, the agent may not reboot, or the kernel cannot be booted.
    pub async fn reboot(
        &self,
        request: wire::RebootRequest,
        controller: Option<ConnectionHandle>,
    ) -> Result<wire::RebootReply, AgentError> {
        self.ask(|answer| ExecutorRequest::Reboot(request, controller, answer)).await
    }
}

impl Executor {
    /// Refuses a trial whose plan names a kernel other than the running one. The session's refusals must come first: after a
    /// reboot, the controller must describe the node again before it requests the kernel.
    pub(super) fn check_running(&self, task: &NodeTask) -> Result<(), AgentError> {
        let running = sysfs::release();
        match task.kernel_release.as_ref().filter(|named| **named != running) {
            Some(named) => Err(AgentError::OtherKernel { named: named.clone(), running }),
            None => Ok(()),
        }
    }

    /// Refuses a trial whose kernel is not running and cannot be booted for this client.
    pub(super) fn check_boot(
        &self,
        task: &NodeTask,
        controller: Option<&ConnectionHandle>,
    ) -> Result<(), AgentError> {
        let running = sysfs::release();
        let Some(release) = task.kernel_release.as_ref().filter(|named| **named != running) else {
            return Ok(());
        };
        if let Some(client) = controller.map(ConnectionHandle::identity) {
            client.check(Scope::Reboot, || format!("rebooting into kernel {release}"))?;
        }
        self.boot(release)?.loader.entry(release)?;
        Ok(())
    }

    /// Selects a kernel for the next boot and begins the reboot. The session does not change: the agent ends soon.
    pub(super) fn reboot(
        &self,
        request: &wire::RebootRequest,
        controller: Option<&ConnectionHandle>,
    ) -> Result<wire::RebootReply, AgentError> {
        let wire::RebootRequest { run_id, kernel_release, generation, boot_id } = request.clone();
        if kernel_release.is_empty() {
            let reason = "it is empty; give a release as `uname -r` prints it".to_owned();
            return Err(AgentError::Request { field: "kernel_release", reason });
        }
        // A client that may prepare a trial now may also reboot.
        let connection = controller.map(ConnectionHandle::id);
        let holder = Holder { run_id: run_id.clone(), point_id: 0, trial: 0, epoch: 0, connection };
        self.session.clone().on(Command::Prepare { holder, generation, boot_id })?;
        let boot = self.boot(&kernel_release)?;
        // An unbootable kernel is refused before the change is recorded.
        boot.loader.entry(&kernel_release)?;
        let audit = self.deps.undo.audit();
        audit.set_trial(&run_id, controller.map(ConnectionHandle::identity));
        audit.change(format_args!("reboot into kernel {kernel_release}"));
        let Selected { loader, entry } = boot.reboot_into(&kernel_release)?;
        tracing::warn!(kernel_release, loader, entry, "rebooting");
        // The machine may go down before the log's thread has written.
        audit.flush();
        Ok(wire::RebootReply { boot_loader: loader.to_owned(), entry })
    }

    fn boot(&self, release: &str) -> Result<&Boot, BootError> {
        let boot = self.deps.boot.as_ref();
        boot.ok_or_else(|| BootError::NotAllowed { release: release.to_owned() })
    }
}
