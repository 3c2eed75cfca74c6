//! Nodes that were lost or are rebooting: waits until they answer again and finds out what happened meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ccbench_proto::units::Micros;
use ccbench_proto::wire;
use futures_util::future::join_all;
use tracing::info;

use super::{Agent, AgentError, Agents, call};
use crate::clock;
use crate::clock_offset::ClockHistory;

/// Time between two attempts to reach a lost node.
const AWAIT_INTERVAL: Duration = Duration::from_millis(500);

impl Agents {
    /// Waits until every node answers again, and frees the nodes from this run's trials up to `epoch`. Adds the nodes that were
    /// rebooted, each once and with a description, to `rebooted`, even if another node does not answer.
    ///
    /// # Errors
    /// A node does not answer within `limit`, another controller has used it meanwhile, or it runs another kernel.
    pub async fn await_all(
        &mut self,
        run_id: &str,
        epoch: u64,
        limit: Micros,
        rebooted: &mut BTreeMap<String, String>,
    ) -> Result<(), AgentError> {
        let until = clock::now() + limit.duration();
        let calls = self.by_node.iter_mut().map(|(node, agent)| async move {
            loop {
                let error = match agent.recover(node, run_id, epoch).await {
                    Err(error @ AgentError::Call { .. }) => error,
                    recovered => return recovered.map(|what| (node, what)),
                };
                if clock::now() >= until {
                    return Err(error);
                }
                tokio::time::sleep(AWAIT_INTERVAL).await;
            }
        });
        note_all(rebooted, join_all(calls).await)
    }

    /// Undoes the trial `epoch`, which could not be prepared, on every node. Returns one error for each node with what could not be
    /// undone. The next trial may measure these leftovers, too.
    pub async fn reset_unprepared(&mut self, run_id: &str, epoch: u64) -> Vec<AgentError> {
        let mut errors = Vec::new();
        for (node, reply) in self.reset_each(run_id, epoch).await {
            match reply {
                Ok(reply) if reply.failed.is_empty() => {}
                Ok(wire::ResetReply { failed, .. }) => {
                    errors.push(refusal(&node, "reset", failed.join("; ")));
                    if let Some(agent) = self.by_node.get_mut(&node) {
                        agent.not_undone.extend(failed);
                    }
                }
                // The node undoes the trial by itself when its lease ends, or at the next reset.
                Err(error) => errors.push(error),
            }
        }
        errors
    }

    /// Takes by node what resets after its losses, and after a failed Prepare, could not undo. The next trial may measure these leftovers.
    pub fn take_not_undone(&mut self) -> BTreeMap<String, Vec<String>> {
        let agents = self.by_node.iter_mut();
        agents
            .filter(|(_, agent)| !agent.not_undone.is_empty())
            .map(|(node, agent)| {
                (node.clone(), std::mem::take(&mut agent.not_undone).into_iter().collect())
            })
            .collect()
    }

    /// Reboots every node that does not run the kernel of its release, and waits at most `limit` for each. Adds the rebooted
    /// nodes with a description to `rebooted`, even if another node fails.
    ///
    /// # Errors
    /// The first node that refuses, is not back in time, is back with another kernel, or is the same machine as this one or
    /// another node.
    pub async fn boot(
        &mut self,
        run_id: &str,
        releases: &BTreeMap<String, String>,
        limit: Micros,
        rebooted: &mut BTreeMap<String, String>,
    ) -> Result<(), AgentError> {
        for (node, release) in releases {
            let Some(agent) = self.by_node.get(node) else { continue };
            if agent.info.kernel != *release {
                self.check_machine(node, agent)?;
                agent.check_kernel(node, release)?;
            }
        }
        let calls = self.by_node.iter_mut().filter_map(|(node, agent)| {
            let release = releases.get(node)?;
            agent.has_kernel_of_plan = true;
            if agent.info.kernel == *release {
                return None;
            }
            Some(async move {
                let booted = agent.boot(node, run_id, release, limit).await;
                booted.map(|what| (node, Some(what)))
            })
        });
        note_all(rebooted, join_all(calls).await)
    }

    /// Refuses to reboot a machine that is not only this node.
    fn check_machine(&self, node: &str, agent: &Agent) -> Result<(), AgentError> {
        let refused = |reason: String| Err(refusal(node, "reboot", reason));
        let boot_id = &agent.info.boot_id;
        if boot_id.is_empty() {
            let why = "its agent cannot read the boot ID of its machine, so a reboot could not be verified; mount /proc";
            return refused(why.to_owned());
        }
        if clock::is_this_boot(&agent.info) {
            let why = "it is the machine on which ccbench runs; leave out its `kernel_release`, or run ccbench on another machine";
            return refused(why.to_owned());
        }
        let same = |(other, of): &(&String, &Agent)| *other != node && of.info.boot_id == *boot_id;
        match self.by_node.iter().find(same) {
            Some((other, _)) => refused(format!(
                "it is on the same machine as node {other}, and ccbench reboots only a machine with a single node; leave out its \
                 `kernel_release`, or give it a machine of its own"
            )),
            None => Ok(()),
        }
    }
}

impl Agent {
    /// Reads the node's generation after a call whose reply may have been lost, and frees the node from this run's trial. Returns
    /// a description of the reboot if the node was rebooted.
    async fn recover(
        &mut self,
        node: &str,
        run_id: &str,
        epoch: u64,
    ) -> Result<Option<String>, AgentError> {
        let info = call(node, "describe", self.client.describe(wire::DescribeRequest {})).await;
        let info = info.map_err(|error| error.at(&self.address))?;
        let known = self.generation.load(Ordering::Relaxed);
        let rebooted = match self.has_kernel_of_plan {
            // Another kernel is no error: the plan's kernel was booted only once, and the next trial boots it again.
            true => {
                check_ours(node, run_id, known, &self.info, &info)?;
                boot_of(&self.info, &info)
            }
            false => after_loss(node, run_id, known, &self.info, &info)?,
        };
        self.generation.store(info.generation, Ordering::Relaxed);
        let request = wire::ResetRequest { run_id: run_id.to_owned(), epoch };
        let reply = call(node, "reset", self.client.reset(request)).await?;
        // A later reset repeats some of these steps, but not those that an earlier one gave up.
        self.not_undone.extend(reply.failed);
        if rebooted.is_some() {
            self.info = info;
            // The node's clock started anew.
            self.clock = ClockHistory::default();
        } else {
            // Who has used the node is compared with these the next time.
            self.info.generation = info.generation;
            self.info.last_run_id = info.last_run_id;
        }
        Ok(rebooted)
    }

    /// Refuses another reboot into a kernel that did not start. With `--keep-going`, each remaining trial would otherwise reboot
    /// the node in vain.
    fn check_kernel(&self, node: &str, release: &str) -> Result<(), AgentError> {
        if self.not_booted.as_deref() != Some(release) {
            return Ok(());
        }
        let reason = format!(
            "an earlier reboot into kernel {release} ended in another kernel, so ccbench does not try {release} again; look at the \
             node's console, then continue with `--resume`"
        );
        Err(refusal(node, "reboot", reason))
    }

    /// Reboots the node into this kernel and waits until its agent is back. Returns a description.
    async fn boot(
        &mut self,
        node: &str,
        run_id: &str,
        release: &str,
        limit: Micros,
    ) -> Result<String, AgentError> {
        info!(node, release, "reboot");
        let request = wire::RebootRequest {
            run_id: run_id.to_owned(),
            kernel_release: release.to_owned(),
            generation: Some(self.generation.load(Ordering::Relaxed)),
            boot_id: Some(self.info.boot_id.clone()),
        };
        let until = clock::now() + limit.duration();
        let mut is_accepted = false;
        let answer = loop {
            if !is_accepted {
                let asked = self.client.reboot(request.clone());
                match call(node, "reboot", asked).await {
                    Ok(wire::RebootReply { boot_loader, entry }) => {
                        info!(node, boot_loader, entry, "reboots");
                        is_accepted = true;
                    }
                    // The machine may go down before its reply arrives. A repeated request is safe: after the reboot, the agent
                    // refuses it because it names an earlier boot.
                    Err(AgentError::Call { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            tokio::time::sleep(AWAIT_INTERVAL).await;
            let described = self.client.describe(wire::DescribeRequest {});
            let answer = match call(node, "describe", described).await {
                Ok(now) if now.boot_id == self.info.boot_id => {
                    format!("it is still up with kernel {}", now.kernel)
                }
                Ok(now) => return self.booted(node, run_id, release, now),
                Err(AgentError::Call { reason, .. }) => reason,
                Err(error) => return Err(error),
            };
            if clock::now() >= until {
                break answer;
            }
        };
        let reason = format!(
            "it did not come back with kernel {release} within {} ({answer}); look at its console, use `--await-reboot TIME` if it \
             only needs longer, or power-cycle it, which boots its usual kernel",
            limit.in_largest_unit()
        );
        Err(refusal(node, "reboot", reason))
    }

    /// Takes over the description `now` of a node that is back after a reboot. Returns a description of the reboot.
    fn booted(
        &mut self,
        node: &str,
        run_id: &str,
        release: &str,
        now: wire::NodeInfo,
    ) -> Result<String, AgentError> {
        check_ours(node, run_id, self.generation.load(Ordering::Relaxed), &self.info, &now)?;
        let before = std::mem::replace(&mut self.info, now);
        self.generation.store(self.info.generation, Ordering::Relaxed);
        // The node's clock started anew.
        self.clock = ClockHistory::default();
        let wire::NodeInfo { kernel, boot_id, .. } = &self.info;
        if kernel != release {
            self.not_booted = Some(release.to_owned());
            let reason = format!(
                "it was rebooted, but runs kernel {kernel}, not {release}: the boot loader took another entry, or {release} did not \
                 start; look at its console and at the boot loader's environment (`grub-editenv list`, `bootctl status`)"
            );
            return Err(refusal(node, "reboot", reason));
        }
        Ok(format!(
            "rebooted into kernel {kernel}, which the plan names (boot ID {boot_id}, previously {} with kernel {})",
            before.boot_id, before.kernel
        ))
    }
}

/// Decides whether `run_id` may go on using a node that answers again after a call whose reply may have been lost. `generation`
/// is the last known one; `before` and `now` are descriptions of the node. Returns a description of the reboot, if there was one.
///
/// # Errors
/// Another run has used the node meanwhile, or the node runs another kernel.
#[doc(hidden)]
pub fn after_loss(
    node: &str,
    run_id: &str,
    generation: u64,
    before: &wire::NodeInfo,
    now: &wire::NodeInfo,
) -> Result<Option<String>, AgentError> {
    check_ours(node, run_id, generation, before, now)?;
    reboot(node, before, now)
}

/// Refuses a node that another run has used, or may have used, since its agent had accepted `generation` Prepares. `before` describes it at that time,
/// or before the run's last Prepare.
fn check_ours(
    node: &str,
    run_id: &str,
    generation: u64,
    before: &wire::NodeInfo,
    now: &wire::NodeInfo,
) -> Result<(), AgentError> {
    let is_ours = now.last_run_id == run_id;
    let is_unchanged = [before.generation, now.generation] == [generation; 2]
        && now.last_run_id == before.last_run_id;
    // An agent that has lost its state, for example by a reboot, counts from 0. If another run has used it since, its generation may be
    // any, but it has the name of that run.
    let is_unused = now.last_run_id.is_empty() && now.generation <= generation;
    if is_ours || is_unchanged || is_unused {
        return Ok(());
    }
    let reason = match now.last_run_id.as_str() {
        "" => {
            "this node has lost the record of who has used it; continue with `--resume`".to_owned()
        }
        other => format!(
            "run {other} has used this node meanwhile; continue with `--resume` when it is done"
        ),
    };
    Err(refusal(node, "describe", reason))
}

/// Returns a description of the reboot between two descriptions of a node, if there was one.
fn boot_of(before: &wire::NodeInfo, now: &wire::NodeInfo) -> Option<String> {
    let is_same = before.boot_id == now.boot_id;
    if is_same || before.boot_id.is_empty() || now.boot_id.is_empty() {
        return None;
    }
    Some(format!(
        "rebooted since the last attempt (boot ID {}, previously {})",
        now.boot_id, before.boot_id
    ))
}

/// Adds a reboot of a node to those since the last attempt at a trial.
fn note(rebooted: &mut BTreeMap<String, String>, node: &str, what: &str) {
    let known = rebooted.entry(node.to_owned()).or_default();
    if !known.is_empty() {
        known.push_str("; then ");
    }
    known.push_str(what);
}

/// Adds the reboots of several nodes. Returns the first error.
fn note_all(
    rebooted: &mut BTreeMap<String, String>,
    results: Vec<Result<(&String, Option<String>), AgentError>>,
) -> Result<(), AgentError> {
    let mut all = Ok(());
    for result in results {
        match result {
            Ok((node, Some(what))) => note(rebooted, node, &what),
            Ok((_, None)) => {}
            Err(error) => all = all.and(Err(error)),
        }
    }
    all
}

fn refusal(node: &str, step: &'static str, reason: String) -> AgentError {
    AgentError::Refused { node: node.to_owned(), step, reason }
}

/// Returns a description of the reboot between two descriptions of a node, if there was one.
///
/// # Errors
/// The node was rebooted into another kernel, but all trials of a run need the same one.
fn reboot(
    node: &str,
    before: &wire::NodeInfo,
    now: &wire::NodeInfo,
) -> Result<Option<String>, AgentError> {
    let Some(what) = boot_of(before, now) else { return Ok(None) };
    let [earlier, kernel] = [before, now].map(|info| (&info.kernel, &info.kernel_version));
    if earlier != kernel {
        let reason = format!(
            "it was rebooted into another kernel ({} {}, previously {} {}); boot the previous kernel, then continue with `--resume`",
            kernel.0, kernel.1, earlier.0, earlier.1
        );
        return Err(refusal(node, "describe", reason));
    }
    Ok(Some(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reboot_is_described_unless_it_is_into_another_kernel() {
        let info = |boot_id: &str, kernel: &str| wire::NodeInfo {
            boot_id: boot_id.to_owned(),
            kernel: kernel.to_owned(),
            ..wire::NodeInfo::default()
        };
        let between = |before: (&str, &str), now: (&str, &str)| {
            reboot("n1", &info(before.0, before.1), &info(now.0, now.1)).map_err(|e| e.to_string())
        };
        assert_eq!(between(("b1", "6.1"), ("b1", "6.1")), Ok(None));
        assert_eq!(between(("", "6.1"), ("b1", "6.1")), Ok(None), "an agent that has no /proc");
        let rebooted = between(("b1", "6.1"), ("b2", "6.1")).unwrap();
        assert!(rebooted.is_some_and(|text| text.contains("boot ID b2, previously b1")));
        let error = between(("b1", "6.1"), ("b2", "6.12")).unwrap_err();
        assert!(error.contains("node n1: ") && error.contains("another kernel (6.12 "), "{error}");
    }

    #[test]
    fn reboots_since_the_last_attempt_are_one_text() {
        let mut rebooted = BTreeMap::new();
        note(&mut rebooted, "n1", "after a crash");
        note(&mut rebooted, "n1", "into its kernel");
        assert_eq!(rebooted["n1"], "after a crash; then into its kernel");
    }

    #[test]
    fn another_run_on_the_node_ends_this_one_also_after_a_reboot() {
        let info = |generation, last_run_id: &str| wire::NodeInfo {
            generation,
            last_run_id: last_run_id.to_owned(),
            ..wire::NodeInfo::default()
        };
        let check = |generation, now: &wire::NodeInfo| {
            let before = info(4, "earlier");
            check_ours("n1", "mine", generation, &before, now).map_err(|e| e.to_string())
        };
        assert_eq!(check(4, &info(0, "")), Ok(()), "its state is gone");
        assert_eq!(check(4, &info(4, "earlier")), Ok(()), "the first Prepare did not arrive");
        // The second one: of an agent that has lost its state and then accepted a Prepare whose reply was lost.
        for generation in [5, 1] {
            assert_eq!(check(4, &info(generation, "mine")), Ok(()));
        }
        for (known, generation, last_run_id) in [
            (4, 5, "other"),
            // Counted from 0, since the state is gone.
            (4, 3, "other"),
            (10, 3, "other"),
            (4, 4, "other"),
            (5, 5, "earlier"),
            (5, 4, "earlier"),
        ] {
            let error = check(known, &info(generation, last_run_id)).unwrap_err();
            let expected = format!("run {last_run_id} has used this node");
            assert!(error.contains(&expected), "{known}, {generation}: {error}");
        }
        let error = check(4, &info(5, "")).unwrap_err();
        assert!(error.contains("has lost the record of who has used it"), "{error}");
    }
}
