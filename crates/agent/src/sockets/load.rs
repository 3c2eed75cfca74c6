//! Congestion controls of a trial: whether those of the kernel can be had, and ccbench's own loaded, verified, recorded
//! and gone afterwards.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;

use ccbench_proto::cc::{self, Core, Instance};
use ccbench_proto::event::{Kind, NoData};
use ccbench_proto::plan::{Cc, Via};
use ccbench_proto::schedule::NodeTask;
use ccbench_proto::wire;

use super::ecn;
use super::error::SocketError;
use super::journal::Journal;
use super::names::{self, Names, TrialId};
use super::node::TCP_ECN;
#[cfg(feature = "ebpf")]
use super::struct_ops;
use super::verify::{check, choose, try_on_socket};
use super::{cc_state, kernel_module, sysfs};
use crate::error::AgentError;
use crate::event::event;
use crate::undo::Outcome;

/// The instances of one trial on this node; dropped, they are gone.
#[derive(Default)]
pub struct LoadedCc {
    held: Vec<Held>,
    /// What is not taken away by the kernel when this process ends. After `held`: it is dropped last.
    journal: Journal,
    names: Names,
}

struct Held {
    /// As the controller is told.
    told: wire::CongestionControl,
    core: Option<&'static Core>,
    #[cfg(feature = "ebpf")]
    bpf: Option<struct_ops::Registered>,
}

/// Puts every instance that this node needs into the kernel: those of flows that it sends and of
/// web servers that it has for probes, and those that need both ends. What is made is in the answer, so that an error takes all of it back.
///
/// # Errors
/// The first instance that cannot be had, why, and what to do.
pub fn load(task: &NodeTask, trial: &TrialId, node: &str) -> Result<LoadedCc, AgentError> {
    let mut loaded = LoadedCc { names: Names::new(task, trial, node), ..LoadedCc::default() };
    for (name, cc) in &task.cc {
        let flows = || task.clients.iter().chain(&task.servers);
        let serves = task.served.iter().any(|probe| probe.cc.as_deref() == Some(name));
        let sends =
            serves || flows().any(|f| f.cc.as_deref() == Some(name) && names::sender(f) == node);
        let both_ends = ecn::wants(name, Some(cc)).any();
        // iperf3 sets the kernel's own on both ends.
        if !sends && !both_ends && !cc::is_kernels(cc) {
            continue;
        }
        let kernels = match cc::is_kernels(cc) {
            true => cc.algorithm.clone(),
            false => names::kernel_name(trial, node, name, &cc.algorithm),
        };
        let failed = |source| AgentError::Cc {
            name: name.clone(),
            algorithm: cc.algorithm.clone(),
            source: Box::new(source),
        };
        let tcp_ecn = task.sysctls.iter().find(|(key, _)| key.replace('/', ".") == TCP_ECN);
        let held = loaded
            .load_one(cc, &kernels, tcp_ecn.map(|(_, value)| value.as_str()))
            .map_err(failed)?;
        let told = wire::CongestionControl { name: name.clone(), ..held.told };
        loaded.held.push(Held { told, ..held });
    }
    Ok(loaded)
}

impl LoadedCc {
    fn load_one(
        &mut self,
        cc: &Cc,
        kernels: &str,
        tcp_ecn: Option<&str>,
    ) -> Result<Held, SocketError> {
        let instance = cc::resolve(cc).map_err(|wrong| {
            SocketError::Params(wrong.into_iter().map(|w| w.why).collect::<Vec<_>>().join("; "))
        })?;
        let made = match instance {
            Instance::Kernel { params } => self.kernels_own(&cc.algorithm, &params)?,
            Instance::Own { params, .. } => {
                let (_, core) = cc::scheme(&cc.algorithm)
                    .ok_or_else(|| SocketError::UnknownAlgorithm(cc.algorithm.clone()))?;
                self.own(cc, core, kernels, &params, tcp_ecn)?
            }
        };
        if !sysfs::available().iter().any(|name| name == kernels) {
            return Err(SocketError::NotRegistered(kernels.to_owned()));
        }
        try_on_socket(kernels)
            .map_err(|source| SocketError::Refused { name: kernels.to_owned(), source })?;
        Ok(made)
    }

    fn kernels_own(
        &mut self,
        name: &str,
        params: &[(String, String)],
    ) -> Result<Held, SocketError> {
        // It brings the module along.
        check("", name).map_err(|error| match error {
            AgentError::CongestionControl { source, available, hint, .. } => {
                SocketError::NotAvailable { source, available, hint }
            }
            error => error.into(),
        })?;
        let in_force = kernel_module::tune(name, params, &mut self.journal)?;
        let told = told(name, name, Via::Builtin, "the kernel's own".to_owned(), in_force);
        Ok(Held {
            told,
            core: None,
            #[cfg(feature = "ebpf")]
            bpf: None,
        })
    }

    fn own(
        &mut self,
        cc: &Cc,
        core: &'static Core,
        kernels: &str,
        params: &[(String, u32)],
        tcp_ecn: Option<&str>,
    ) -> Result<Held, SocketError> {
        let (via, why) = choose(cc.via, core)?;
        if via == Via::Bpf {
            return self.by_bpf(cc, core, kernels, params, (tcp_ecn, why));
        }
        let in_force = kernel_module::register(core, kernels, params, &mut self.journal)?;
        Ok(Held {
            told: told(&cc.algorithm, kernels, via, why, in_force),
            core: Some(core),
            #[cfg(feature = "ebpf")]
            bpf: None,
        })
    }

    #[cfg(feature = "ebpf")]
    fn by_bpf(
        &mut self,
        cc: &Cc,
        core: &'static Core,
        kernels: &str,
        params: &[(String, u32)],
        (tcp_ecn, why): (Option<&str>, String),
    ) -> Result<Held, SocketError> {
        let wants = ecn::wants(&cc.algorithm, Some(cc));
        let flags = match wants.any() {
            true => {
                ecn::decide(super::capabilities::capabilities(), wants, Via::Bpf, tcp_ecn).flags
            }
            false => ecn::flag::NON_RESTRICTED,
        };
        let netns_cookie = ccbench_shaper::bpf::netns_cookie();
        let wanted = struct_ops::Wanted {
            core,
            kernel_name: kernels,
            params,
            flags,
            // Without one, rows of other namespaces are told apart by their ports.
            netns_cookie: Some(netns_cookie.unwrap_or(0)),
        };
        let registered = struct_ops::register(&wanted, &mut self.journal)?;
        let read = registered.params();
        if read.iter().ne(params.iter().map(|(_, value)| value)) {
            return Err(SocketError::ParamsDiffer(read));
        }
        let in_force = params.iter().zip(read).map(|((name, _), v)| (name.clone(), v.to_string()));
        let told = told(&cc.algorithm, kernels, Via::Bpf, why, in_force.collect());
        Ok(Held { told, core: Some(core), bpf: Some(registered) })
    }

    #[cfg(not(feature = "ebpf"))]
    fn by_bpf(
        &mut self,
        _: &Cc,
        _: &'static Core,
        _: &str,
        _: &[(String, u32)],
        _: (Option<&str>, String),
    ) -> Result<Held, SocketError> {
        Err(SocketError::NoEbpf)
    }

    /// What is in force, for the controller.
    pub fn told(&self) -> Vec<wire::CongestionControl> {
        self.held.iter().map(|held| held.told.clone()).collect()
    }

    /// The names of the plan and of the kernel.
    pub fn names(&self) -> Names {
        self.names.clone()
    }

    /// What a name of the plan is on this node: its name in the kernel and how it got there. None: an instance that only
    /// other nodes need. What is no instance is the kernel's own by its own name.
    pub fn became(&self, task: &NodeTask, name: &str) -> Option<(String, Via)> {
        match self.held.iter().find(|held| held.told.name == name) {
            Some(held) => Some((held.told.kernel_name.clone(), via_of(held.told.via()))),
            None if task.cc.contains_key(name) => None,
            None => Some((name.to_owned(), Via::Builtin)),
        }
    }

    /// The flows' congestion controls as the kernel calls them.
    pub fn rename(&self, task: &mut NodeTask) {
        for flow in task.clients.iter_mut().chain(&mut task.servers) {
            if let Some(kernels) = self.names.of_flow(flow).map(str::to_owned) {
                flow.cc = Some(kernels);
            }
        }
    }

    /// Readers of inner state; what cannot be read is an event.
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
                        &held.told.name,
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
                        &held.told.name,
                        format!("open {path}: {e}"),
                    ));
                }
            }
        }
        let groups = self.names.groups().map(|(group, plan)| {
            let held = self.held.iter().find(|held| held.told.name == plan);
            let algorithm = held.map(|held| held.told.algorithm.clone()).unwrap_or_default();
            (group.to_owned(), (plan.to_owned(), algorithm))
        });
        let groups: BTreeMap<_, _> = groups.collect();
        (cc_state::Reader::new(sources, groups), events)
    }

    /// What was lost of inner state so far; each is a reason to doubt the rows.
    pub fn losses(&self) -> Vec<wire::Event> {
        #[cfg(feature = "ebpf")]
        {
            let lost = self.held.iter().filter_map(|held| {
                let lost = held.bpf.as_ref()?.lost();
                let message = format!("{lost} rows of inner state found no room");
                (lost > 0).then(|| event(Kind::CcStateError(NoData {}), &held.told.name, message))
            });
            lost.collect()
        }
        #[cfg(not(feature = "ebpf"))]
        Vec::new()
    }

    /// Takes all of them back.
    pub fn remove(mut self) -> Outcome {
        let mut outcome = Outcome::default();
        for held in self.held.drain(..) {
            if held.told.via() == wire::Via::Bpf {
                outcome.undone.push(format!("congestion control {}", held.told.kernel_name));
            }
        }
        outcome.merge(self.journal.undo());
        outcome
    }
}

fn told(
    algorithm: &str,
    kernel_name: &str,
    via: Via,
    why: String,
    params: Vec<(String, String)>,
) -> wire::CongestionControl {
    wire::CongestionControl {
        name: String::new(),
        algorithm: algorithm.to_owned(),
        kernel_name: kernel_name.to_owned(),
        via: via_on_wire(via).into(),
        why,
        params: params.into_iter().collect(),
    }
}

/// As messages have it.
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
