//! A model of a node's kernel: one interface with segmentation offloads, and its links. It outlives agents.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use ccbench_agent::clock;
use ccbench_agent::control_interface::Peer;
use ccbench_agent::interfaces::Interfaces;
use ccbench_agent::undo::{Step, read_journal};
use ccbench_proto::resolve::{Egress, LinkConfig};
use ccbench_proto::units::Rate;
use ccbench_proto::wire;
use ccbench_shaper::settings::DeviceSettings;
use ccbench_shaper::{Link, ShaperError};
use serde_json::{Value, json};

use crate::Flaw;
use crate::controller::TRIALS;
use crate::faults::PEERS;
use crate::violation::NodeViolation;

/// The interface of every node. No machine has one of this name or index.
const DEV: &str = "ccb-turmoil0";
const IFINDEX: u32 = 2_000_000_011;

/// A link that the kernel has, or had.
#[derive(Debug, Clone)]
pub struct KernelLink {
    pub name: String,
    pub opened_ns: u64,
    /// When its trial began.
    pub begun_ns: Option<u64>,
    pub removed_ns: Option<u64>,
    /// When the agent died while it was there.
    died_ns: Option<u64>,
}

impl KernelLink {
    /// Returns whether it was there for `length_ns` from the beginning of its trial on, with its agent.
    pub fn is_whole(&self, length_ns: u64) -> bool {
        // An agent that dies after the trial has reported it.
        let span = self.begun_ns.zip(self.died_ns.or(self.removed_ns));
        span.is_some_and(|(begun, end)| end >= begun + length_ns)
    }
}

#[derive(Debug, Default)]
struct State {
    has_no_offloads: bool,
    /// The last one may still be there.
    links: Vec<KernelLink>,
    violations: Vec<NodeViolation>,
    /// The agent dies in the last of this number of calls.
    calls_left: Option<u64>,
    /// The agent has died in a call: until it starts again, no call has an effect.
    is_dead: bool,
    /// The last of this number of calls that undo a change fails.
    undos_left: Option<u64>,
    failed_undos: usize,
    /// Whether [`Flaw::FailsOnce`] has shown.
    has_failed: bool,
}

impl State {
    fn current(&mut self) -> Option<&mut KernelLink> {
        self.links.last_mut().filter(|link| link.removed_ns.is_none())
    }

    fn close(&mut self) {
        if let Some(link) = self.current() {
            link.removed_ns = Some(clock::now_ns());
        }
    }
}

fn refused(why: &'static str) -> ShaperError {
    ShaperError::System { op: "model", source: io::Error::other(why) }
}

/// What the agent saves, in the form that the product reads: a journal that is undone on the real machine by mistake changes nothing there,
/// and the model notices it.
fn saved(state: &Value) -> Value {
    json!({ "ifindex": IFINDEX, "address": null, "state": state })
}

fn saved_offloads() -> Value {
    saved(&json!({ "wanted": { "tx-tcp-segmentation": true }, "gso_max_segs": 65_535 }))
}

fn saved_root() -> Value {
    saved(&json!({ "root": "qdisc", "kind": "fq_codel", "handle": 0, "options": "" }))
}

/// The kernel of a node.
#[derive(Debug, Clone)]
pub struct Kernel {
    state: Arc<Mutex<State>>,
    /// The undo journal of the node's agent.
    journal: PathBuf,
    boot_id: String,
    flaw: Flaw,
}

impl Kernel {
    pub fn new(journal: PathBuf, flaw: Flaw) -> Self {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        Self { state: Arc::default(), journal, boot_id: boot_id.trim().to_owned(), flaw }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Begins a call of the agent.
    fn call(&self) -> Result<MutexGuard<'_, State>, ShaperError> {
        let mut state = self.state();
        if let Some(left) = &mut state.calls_left {
            *left = left.saturating_sub(1);
            state.is_dead |= *left == 0;
        }
        if state.is_dead { Err(refused("the agent is dead")) } else { Ok(state) }
    }

    /// Begins a call that undoes a change. Returns `None` if it has no effect.
    fn undoing_call(&self) -> Result<Option<MutexGuard<'_, State>>, ShaperError> {
        let mut state = self.call()?;
        state.undos_left = state.undos_left.map(|left| left - 1);
        if state.undos_left == Some(0) {
            state.undos_left = None;
            state.failed_undos += 1;
            return Err(refused("it fails once"));
        }
        let skips = self.flaw == Flaw::SkipsUndo && state.links.len() >= PEERS * TRIALS;
        Ok(Some(state).filter(|_| !skips))
    }

    /// A change needs a record in the undo journal, on disk.
    fn require_record(&self, state: &mut State, is_of_change: impl Fn(&Step) -> bool) {
        let journal = std::fs::read(&self.journal).unwrap_or_default();
        let (steps, ..) = read_journal(&journal, &self.boot_id).unwrap();
        if !steps.iter().any(is_of_change) {
            state.violations.push(NodeViolation::NotRecorded(format!("{steps:?}")));
        }
    }

    /// Lets the agent die in one of its next calls.
    pub fn die_in_call(&self, number: u64) {
        self.state().calls_left = Some(number);
    }

    /// Returns whether the agent has died in a call.
    pub fn is_agent_dead(&self) -> bool {
        self.state().is_dead
    }

    /// Lets calls succeed again.
    pub fn agent_starts(&self) {
        let mut state = self.state();
        (state.calls_left, state.is_dead) = (None, false);
    }

    /// Lets this one of the next calls that undo a change fail.
    pub fn fail_undo(&self, call: u64) {
        self.state().undos_left = Some(call);
    }

    /// Ends [`Self::fail_undo`]. Returns whether the call has failed.
    pub fn end_failing_undo(&self) -> bool {
        self.state().undos_left.take().is_none()
    }

    pub fn failed_undos(&self) -> usize {
        self.state().failed_undos
    }

    /// Removes the link behind the agent's back.
    pub fn remove_link(&self, at_ns: u64) {
        if let Some(link) = self.state().current() {
            link.removed_ns = Some(at_ns);
        }
    }

    /// Returns the link that is there.
    pub fn link(&self) -> Option<KernelLink> {
        self.state().current().cloned()
    }

    /// Returns all links that were there.
    pub fn links(&self) -> Vec<KernelLink> {
        self.state().links.clone()
    }

    /// Records that the agent died.
    pub fn agent_died(&self, at_ns: u64) {
        if let Some(link) = self.state().current() {
            link.died_ns = Some(at_ns);
        }
    }

    /// # Errors
    /// A trial has found changes of another one, or a change has no record.
    pub fn check(&self) -> Result<(), NodeViolation> {
        self.state().violations.first().map_or(Ok(()), |violation| Err(violation.clone()))
    }

    /// # Errors
    /// The kernel is not as it was found.
    pub fn check_untouched(&self) -> Result<(), NodeViolation> {
        let mut state = self.state();
        match (state.current().cloned(), state.has_no_offloads) {
            (None, false) => Ok(()),
            left => Err(NodeViolation::NotUndone(format!("{left:?}"))),
        }
    }
}

impl Interfaces for Kernel {
    fn device(&self, _: &Egress) -> Result<String, ShaperError> {
        self.call().map(|_| DEV.to_owned())
    }
    fn control_devices(&self, _: &Peer) -> Result<BTreeSet<String>, ShaperError> {
        Ok(BTreeSet::new())
    }
    fn is_host_namespace(&self) -> bool {
        false
    }
    fn is_host_interface(&self, _: &str) -> Result<bool, ShaperError> {
        Ok(false)
    }
    fn has_assigned_ipv6(&self, _: &str) -> Result<bool, ShaperError> {
        Ok(false)
    }
    fn settings(&self, _: &str) -> Result<Option<DeviceSettings>, ShaperError> {
        self.call().map(|_| Some(DeviceSettings::default()))
    }
    fn save_offloads(&self, _: &str) -> Result<Option<Value>, ShaperError> {
        let mut state = self.call()?;
        if state.has_no_offloads {
            let found = "no offloads of the interface".to_owned();
            state.violations.push(NodeViolation::FoundChanges(found));
        }
        Ok(Some(saved_offloads()))
    }
    fn offloads_off(&self, _: &str) -> Result<(), ShaperError> {
        let mut state = self.call()?;
        self.require_record(&mut state, |step| matches!(step, Step::Offloads { .. }));
        state.has_no_offloads = true;
        Ok(())
    }
    fn restore_offloads(&self, _: &str, before: &Value) -> Result<(), ShaperError> {
        let Some(mut state) = self.undoing_call()? else { return Ok(()) };
        if *before != saved_offloads() {
            state.violations.push(NodeViolation::OtherState(format!("offloads: {before}")));
        }
        state.has_no_offloads = false;
        Ok(())
    }
    fn save_root(&self, _: &str) -> Result<Value, ShaperError> {
        let mut state = self.call()?;
        if let Some(link) = state.current().cloned() {
            state.violations.push(NodeViolation::FoundChanges(format!("{link:?}")));
        }
        Ok(saved_root())
    }
    fn restore_root(&self, _: &str, before: &Value) -> Result<(), ShaperError> {
        let Some(mut state) = self.undoing_call()? else { return Ok(()) };
        if *before != saved_root() {
            state.violations.push(NodeViolation::OtherState(format!("root qdisc: {before}")));
        }
        state.close();
        Ok(())
    }
    fn open(&self, config: &LinkConfig, _: &str) -> Result<Box<dyn Link>, ShaperError> {
        let mut state = self.call()?;
        let (name, opened_ns) = (config.name.clone(), clock::now_ns());
        let is_of_link = |step: &Step| matches!(step, Step::Link { link, .. } if *link == name);
        self.require_record(&mut state, is_of_link);
        if self.flaw == Flaw::FailsOnce && !std::mem::replace(&mut state.has_failed, true) {
            return Err(refused("a flaw"));
        }
        state.links.push(KernelLink {
            name: name.clone(),
            opened_ns,
            begun_ns: None,
            removed_ns: None,
            died_ns: None,
        });
        drop(state);
        Ok(Box::new(OpenLink { name, kernel: self.clone() }))
    }
    fn keep_awake(&self) -> Result<Box<dyn Send>, ShaperError> {
        Ok(Box::new(()))
    }
}

/// The agent's handle of a link. Dropping it changes nothing: `sim.crash` drops the agent's tasks, and SIGKILL would run no destructors.
struct OpenLink {
    name: String,
    kernel: Kernel,
}

impl Link for OpenLink {
    fn state(&self) -> wire::LinkState {
        let (link, dev) = (self.name.clone(), DEV.to_owned());
        wire::LinkState { link, dev, ..wire::LinkState::default() }
    }
    fn set_rate(&mut self, _: Rate) -> Result<(), ShaperError> {
        Ok(())
    }
    fn counters(&mut self, _: u64, _: &mut Vec<wire::QdiscSample>) -> Result<(), ShaperError> {
        Ok(())
    }
    fn begin(&mut self, at_ns: u64) -> Result<(), ShaperError> {
        if let Some(link) = self.kernel.call()?.current() {
            link.begun_ns = Some(at_ns);
        }
        Ok(())
    }
    fn remove(&mut self) -> Result<(), ShaperError> {
        if let Some(mut state) = self.kernel.undoing_call()? {
            state.close();
        }
        Ok(())
    }
}

/// Otherwise, an undo journal that is opened with the machine's interfaces would fail there, and not leave the model's changes in place.
#[test]
fn the_machine_reads_what_the_model_saves() {
    use ccbench_agent::interfaces::Machine;
    Machine.restore_offloads(DEV, &saved_offloads()).unwrap();
    Machine.restore_root(DEV, &saved_root()).unwrap();
    assert!(Machine.restore_root(DEV, &saved(&json!("fq_codel"))).is_err());
}
