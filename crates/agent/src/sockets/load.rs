//! Congestion controls of a trial. Checks that the kernel's own are available. Loads, verifies and reports ccbench's,
//! and unloads them afterwards.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;

use ccbench_proto::cc::supplied::{BpfObject, SuppliedFile};
use ccbench_proto::cc::{self, Core, Instance};
use ccbench_proto::event::{Kind, NoData};
use ccbench_proto::plan::{Cc, Via};
use ccbench_proto::schedule::{FlowTask, NodeTask};
use ccbench_proto::wire;

use super::ecn;
use super::error::{LoadError, SocketError};
use super::journal::Journal;
use super::names::{self, Names, TrialId};
use super::node::TCP_ECN;
#[cfg(feature = "ebpf")]
use super::struct_ops;
use super::supplied::{Supplied, SuppliedCc};
use super::verify::{check, choose, try_on_socket};
use super::{cc_state, kernel_module, supplied_module, sysfs};
use crate::blocking;
use crate::event::event;
use crate::undo::Outcome;

/// The congestion controls that one trial has loaded on this node. Dropping it unloads them.
#[derive(Default)]
pub struct LoadedCcs {
    held: Vec<LoadedInstance>,
    /// Changes that outlive this process. Declared after `held`, because it must be dropped last.
    journal: Journal,
    names: Names,
}

/// An instance of a congestion control that was loaded or was already available.
struct LoadedInstance {
    /// Its description for the controller.
    message: wire::CongestionControl,
    core: Option<&'static Core>,
    #[cfg(feature = "ebpf")]
    bpf: Option<struct_ops::Registered>,
}

/// Loads every instance that this node needs: those of flows that it sends, of web servers that it runs for probes, and
/// those that both ends need. Returns what is loaded also on an error, so that the caller undoes it and learns what cannot be undone.
///
/// # Errors
/// An instance cannot be loaded. The error names the first one, the reason and a fix.
pub fn load(
    task: &NodeTask,
    trial: &TrialId,
    node: &str,
    supplied: &BTreeMap<String, SuppliedCc>,
) -> (LoadedCcs, Result<(), LoadError>) {
    let mut loaded = LoadedCcs { names: Names::new(task, trial, node), ..LoadedCcs::default() };
    let result = needed(task, node).try_for_each(|(name, cc)| -> Result<(), LoadError> {
        let kernel_name = match cc::has_fixed_name(cc) {
            true => cc.algorithm.clone(),
            false => names::kernel_name(trial, node, name, &cc.algorithm),
        };
        let tcp_ecn = task.sysctls.iter().find(|(key, _)| key.replace('/', ".") == TCP_ECN);
        let tcp_ecn = tcp_ecn.map(|(_, value)| value.as_str());
        let held = loaded
            .load_one(cc, &kernel_name, tcp_ecn, supplied.get(name))
            .map_err(failed(name, cc))?;
        let message = wire::CongestionControl { name: name.clone(), ..held.message };
        loaded.held.push(LoadedInstance { message, ..held });
        Ok(())
    });
    (loaded, result)
}

/// As [`load`], beside the runtime: the kernel may take seconds to load a module.
///
/// # Errors
/// As [`load`].
pub async fn load_in_thread(
    task: &NodeTask,
    trial: &TrialId,
    node: &str,
    supplied: BTreeMap<String, SuppliedCc>,
) -> (LoadedCcs, Result<(), LoadError>) {
    if needed(task, node).next().is_none() {
        return load(task, trial, node, &supplied);
    }
    let (task, trial, node) = (task.clone(), trial.clone(), node.to_owned());
    blocking::run(move || load(&task, &trial, &node, &supplied)).await
}

/// Refuses instances of this node whose digest in the plan is not allowed. Needs no files.
///
/// # Errors
/// The first such instance.
pub fn check_digests(task: &NodeTask, node: &str, supplied: Supplied<'_>) -> Result<(), LoadError> {
    needed(task, node).try_for_each(|(name, cc)| {
        let known = cc.supplied().zip(cc.sha256.as_deref());
        known.map_or(Ok(()), |((path, _), sha256)| {
            supplied.permit(path, sha256).map_err(failed(name, cc))
        })
    })
}

/// Returns the files of the instances that this node needs, by instance name. Changes nothing.
///
/// # Errors
/// Those of [`Supplied::read`], for the first instance that fails.
pub fn read_supplied(
    task: &NodeTask,
    node: &str,
    supplied: Supplied<'_>,
) -> Result<BTreeMap<String, SuppliedCc>, LoadError> {
    let mut found = BTreeMap::new();
    for (name, cc) in needed(task, node) {
        if let Some(file) = supplied.read(cc).map_err(failed(name, cc))? {
            found.insert(name.clone(), file);
        }
    }
    Ok(found)
}

fn failed(name: &str, cc: &Cc) -> impl FnOnce(SocketError) -> LoadError {
    let (name, algorithm) = (name.to_owned(), cc.algorithm.clone());
    move |source| LoadError { name, algorithm, source: Box::new(source) }
}

/// Returns the instances that this node needs, by name.
pub fn needed<'a>(task: &'a NodeTask, node: &str) -> impl Iterator<Item = (&'a String, &'a Cc)> {
    task.cc.iter().filter(move |&(name, cc)| {
        let flows = || task.clients.iter().chain(&task.servers);
        let is_named = |cc: &Option<String>| cc.as_deref() == Some(name.as_str());
        let serves = task.served.iter().any(|probe| is_named(&probe.plan.cc));
        let sends = serves || flows().any(|f| is_named(&f.plan.cc) && names::sender(f) == node);
        let both_ends = ecn::ecn_needs(name, Some(cc)).any();
        // iperf3 sets a congestion control whose name is the same everywhere on both ends.
        sends || both_ends || cc::has_fixed_name(cc)
    })
}

impl LoadedCcs {
    fn load_one(
        &mut self,
        cc: &Cc,
        kernel_name: &str,
        tcp_ecn: Option<&str>,
        supplied: Option<&SuppliedCc>,
    ) -> Result<LoadedInstance, SocketError> {
        let instance = cc::resolve(cc).map_err(SocketError::Params)?;
        let made = match instance {
            Instance::Supplied => {
                let (path, _) = cc.supplied().unwrap_or(("", Via::Auto));
                let missing = || SocketError::FileMissing { path: path.to_owned() };
                self.load_supplied(cc, kernel_name, supplied.ok_or_else(missing)?)?
            }
            Instance::Kernel { params } => self.load_builtin(&cc.algorithm, &params)?,
            Instance::Own { params, .. } => {
                let (_, core) = cc::scheme(&cc.algorithm)
                    .ok_or_else(|| SocketError::UnknownAlgorithm(cc.algorithm.clone()))?;
                self.load_own(cc, core, kernel_name, &params, tcp_ecn)?
            }
        };
        if !sysfs::available().iter().any(|name| name == kernel_name) {
            return Err(SocketError::NotRegistered(kernel_name.to_owned()));
        }
        try_on_socket(kernel_name)
            .map_err(|source| SocketError::Refused { name: kernel_name.to_owned(), source })?;
        Ok(made)
    }

    fn load_builtin(
        &mut self,
        name: &str,
        params: &[(String, String)],
    ) -> Result<LoadedInstance, SocketError> {
        // This also loads the module.
        check(name)?;
        let params_loaded = kernel_module::set_parameters(name, params, &mut self.journal)?;
        let reason = wire::ViaReason::kernel_algorithm();
        let message = message(name, name, Via::Builtin, reason, params_loaded);
        Ok(LoadedInstance {
            message,
            core: None,
            #[cfg(feature = "ebpf")]
            bpf: None,
        })
    }

    fn load_supplied(
        &mut self,
        cc: &Cc,
        kernel_name: &str,
        supplied: &SuppliedCc,
    ) -> Result<LoadedInstance, SocketError> {
        let params = supplied.facts.file.values(cc).map_err(SocketError::Params)?;
        match &supplied.facts.file {
            SuppliedFile::Bpf(object) => {
                self.load_supplied_object(cc, kernel_name, supplied, (object, &params[..]))
            }
            SuppliedFile::Module(module) => {
                let wanted = supplied_module::ModuleSpec {
                    bytes: supplied.content.bytes(),
                    module,
                    sha256: &supplied.facts.sha256,
                    algorithm: &cc.algorithm,
                    params: &params,
                };
                let params_loaded = supplied_module::load(&wanted, &mut self.journal)?;
                Ok(LoadedInstance {
                    message: supplied_message(
                        cc,
                        kernel_name,
                        Via::Module,
                        params_loaded,
                        supplied,
                    ),
                    core: None,
                    #[cfg(feature = "ebpf")]
                    bpf: None,
                })
            }
        }
    }

    #[cfg(feature = "ebpf")]
    fn load_supplied_object(
        &mut self,
        cc: &Cc,
        kernel_name: &str,
        supplied: &SuppliedCc,
        (object, params): (&BpfObject, &[(String, String)]),
    ) -> Result<LoadedInstance, SocketError> {
        super::verify::check_bpf_available()?;
        let wanted = struct_ops::supplied::ObjectSpec {
            bytes: supplied.content.bytes(),
            object,
            algorithm: &cc.algorithm,
            kernel_name,
            params,
        };
        let registered = struct_ops::supplied::register(&wanted, &mut self.journal)?;
        let params_loaded = registered.supplied_params(&wanted)?;
        let message = supplied_message(cc, kernel_name, Via::Bpf, params_loaded, supplied);
        Ok(LoadedInstance { message, core: None, bpf: Some(registered) })
    }

    #[cfg(not(feature = "ebpf"))]
    fn load_supplied_object(
        &mut self,
        _: &Cc,
        _: &str,
        _: &SuppliedCc,
        _: (&BpfObject, &[(String, String)]),
    ) -> Result<LoadedInstance, SocketError> {
        Err(SocketError::NoEbpf)
    }

    fn load_own(
        &mut self,
        cc: &Cc,
        core: &'static Core,
        kernel_name: &str,
        params: &[(String, u32)],
        tcp_ecn: Option<&str>,
    ) -> Result<LoadedInstance, SocketError> {
        let (via, reason) = choose(cc.via, core)?;
        if via == Via::Bpf {
            return self.load_bpf(cc, core, kernel_name, params, (tcp_ecn, reason));
        }
        let params_loaded = kernel_module::register(core, kernel_name, params, &mut self.journal)?;
        Ok(LoadedInstance {
            message: message(&cc.algorithm, kernel_name, via, reason, params_loaded),
            core: Some(core),
            #[cfg(feature = "ebpf")]
            bpf: None,
        })
    }

    #[cfg(feature = "ebpf")]
    fn load_bpf(
        &mut self,
        cc: &Cc,
        core: &'static Core,
        kernel_name: &str,
        params: &[(String, u32)],
        (tcp_ecn, reason): (Option<&str>, wire::ViaReason),
    ) -> Result<LoadedInstance, SocketError> {
        let needs = ecn::ecn_needs(&cc.algorithm, Some(cc));
        let flags = match needs.any() {
            true => {
                ecn::decide(super::capabilities::capabilities(), needs, Via::Bpf, tcp_ecn).flags
            }
            false => ecn::flag::NON_RESTRICTED,
        };
        let netns_cookie = ccbench_shaper::bpf::netns_cookie();
        let wanted = struct_ops::InstanceSpec {
            core,
            kernel_name,
            params,
            flags,
            // Without a cookie, record all namespaces; ports tell the rows apart.
            netns_cookie: Some(netns_cookie.unwrap_or(0)),
        };
        let registered = struct_ops::register(&wanted, &mut self.journal)?;
        let read = registered.params();
        if read.iter().ne(params.iter().map(|(_, value)| value)) {
            return Err(SocketError::ParamsDiffer(read));
        }
        let params_loaded =
            params.iter().zip(read).map(|((name, _), v)| (name.clone(), v.to_string()));
        let message =
            message(&cc.algorithm, kernel_name, Via::Bpf, reason, params_loaded.collect());
        Ok(LoadedInstance { message, core: Some(core), bpf: Some(registered) })
    }

    #[cfg(not(feature = "ebpf"))]
    fn load_bpf(
        &mut self,
        _: &Cc,
        _: &'static Core,
        _: &str,
        _: &[(String, u32)],
        _: (Option<&str>, wire::ViaReason),
    ) -> Result<LoadedInstance, SocketError> {
        Err(SocketError::NoEbpf)
    }

    /// Returns the loaded congestion controls, for the controller.
    pub fn messages(&self) -> Vec<wire::CongestionControl> {
        self.held.iter().map(|held| held.message.clone()).collect()
    }

    /// Returns the names in the plan and in the kernel.
    pub fn names(&self) -> Names {
        self.names.clone()
    }

    /// Maps a name of the plan to its name in this node's kernel and its backend; `None` for an instance that only
    /// other nodes need. A name that is not an instance is a built-in congestion control.
    pub fn outcome_of(&self, task: &NodeTask, name: &str) -> Option<(String, Via)> {
        match self.held.iter().find(|held| held.message.name == name) {
            Some(held) => Some((held.message.kernel_name.clone(), via_of(held.message.via()))),
            None if task.cc.contains_key(name) => None,
            None => Some((name.to_owned(), Via::Builtin)),
        }
    }

    /// Replaces the plan's names by the kernel's in the flows of `task`.
    pub fn rename(&self, task: &mut NodeTask) {
        for flow in task.clients.iter_mut().chain(&mut task.servers) {
            *flow = self.renamed(flow);
        }
    }

    /// Returns a flow with the kernel's name of its congestion control.
    pub fn renamed(&self, flow: &FlowTask) -> FlowTask {
        let mut renamed = flow.clone();
        if let Some(kernel_name) = self.names.of_flow(flow) {
            renamed.plan.cc = Some(kernel_name.to_owned());
        }
        renamed
    }

    /// Returns readers of internal state, and an event for each that cannot be opened.
    pub fn readers(&self) -> (cc_state::Reader, Vec<wire::Event>) {
        let (mut sources, mut events, mut devices) = (Vec::new(), Vec::new(), Vec::new());
        for held in &self.held {
            let Some(core) = held.core else { continue };
            #[cfg(feature = "ebpf")]
            if let Some(registered) = &held.bpf {
                match registered.rows() {
                    Ok(ring) => sources.push((core, cc_state::Source::Ring(ring))),
                    Err(why) => events.push(event(
                        Kind::CcStateError(NoData {}),
                        &held.message.name,
                        why.to_string(),
                    )),
                }
                continue;
            }
            if devices.contains(&&core.name) {
                continue;
            }
            devices.push(&core.name);
            let path = format!("/dev/ccb_{}", core.name);
            match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path) {
                Ok(file) => sources.push((core, cc_state::Source::Device(file))),
                Err(e) => {
                    events.push(event(
                        Kind::CcStateError(NoData {}),
                        &held.message.name,
                        format!("open {path}: {e}"),
                    ));
                }
            }
        }
        let groups = self.names.groups().map(|(group, plan)| {
            let held = self.held.iter().find(|held| held.message.name == plan);
            let algorithm = held.map(|held| held.message.algorithm.clone()).unwrap_or_default();
            (group.to_owned(), (plan.to_owned(), algorithm))
        });
        let groups: BTreeMap<_, _> = groups.collect();
        (cc_state::Reader::new(sources, groups), events)
    }

    /// Returns events for lost rows of internal state of BPF instances; [`cc_state::Reader::losses`] covers modules.
    pub fn losses(&self) -> Vec<wire::Event> {
        #[cfg(feature = "ebpf")]
        {
            let lost = self.held.iter().filter_map(|held| {
                cc_state::loss(&held.message.name, "the ring", held.bpf.as_ref()?.lost())
            });
            lost.collect()
        }
        #[cfg(not(feature = "ebpf"))]
        Vec::new()
    }

    /// Unloads all instances.
    pub fn remove(mut self) -> Outcome {
        let mut outcome = Outcome::default();
        for held in self.held.drain(..) {
            if held.message.via() == wire::Via::Bpf {
                outcome.undone.push(format!("congestion control {}", held.message.kernel_name));
            }
        }
        outcome.merge(self.journal.undo());
        outcome
    }
}

fn message(
    algorithm: &str,
    kernel_name: &str,
    via: Via,
    reason: wire::ViaReason,
    params: Vec<(String, String)>,
) -> wire::CongestionControl {
    wire::CongestionControl {
        name: String::new(),
        algorithm: algorithm.to_owned(),
        kernel_name: kernel_name.to_owned(),
        via: via_on_wire(via).into(),
        reason: Some(reason),
        params: params.into_iter().collect(),
        sha256: String::new(),
    }
}

fn supplied_message(
    cc: &Cc,
    kernel_name: &str,
    via: Via,
    params: Vec<(String, String)>,
    supplied: &SuppliedCc,
) -> wire::CongestionControl {
    let reason = wire::ViaReason::configured();
    wire::CongestionControl {
        sha256: supplied.facts.sha256.clone(),
        ..message(&cc.algorithm, kernel_name, via, reason, params)
    }
}

/// Returns the value that messages use.
pub fn via_on_wire(via: Via) -> wire::Via {
    match via {
        Via::Bpf => wire::Via::Bpf,
        Via::Module => wire::Via::Module,
        Via::Auto | Via::Builtin => wire::Via::Builtin,
    }
}

fn via_of(via: wire::Via) -> Via {
    match via {
        wire::Via::Bpf => Via::Bpf,
        wire::Via::Module => Via::Module,
        wire::Via::Builtin | wire::Via::Unspecified => Via::Builtin,
    }
}

#[cfg(test)]
impl LoadedCcs {
    /// Returns what is to be undone by this journal.
    pub(crate) fn of_journal(journal: Journal) -> Self {
        Self { journal, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_error_of_an_instance_arrives_from_the_thread() {
        let cc = BTreeMap::from([("mine".to_owned(), Cc::new("none_such"))]);
        let task = NodeTask { cc, ..NodeTask::default() };
        let (_, loaded) = load_in_thread(&task, &TrialId::default(), "node", BTreeMap::new()).await;
        let error = loaded.unwrap_err();
        assert_eq!((error.name.as_str(), error.algorithm.as_str()), ("mine", "none_such"));
        assert!(matches!(*error.source, SocketError::Params(_)), "{error}");
    }
}
