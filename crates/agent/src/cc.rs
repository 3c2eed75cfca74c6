//! Congestion controls of a trial: whether those of the kernel can be had, and ccbench's own loaded, verified, recorded
//! and gone afterwards.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use ccbench_proto::cc::{self, Core, Instance};
use ccbench_proto::plan::{Cc, Via};
use ccbench_proto::schedule::NodeTask;
use ccbench_proto::wire;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt::TcpCongestion,
};

use crate::ecn;
use crate::error::AgentError;
use crate::executor::event;
use crate::undo::Outcome;

#[cfg(feature = "ebpf")]
pub mod bpf;
pub mod command;
pub mod global;
pub mod module;
pub mod names;
pub mod state;
pub mod sysfs;

use global::Record;
pub use names::{Names, TrialId};

/// Tries it on a socket, which makes the kernel load its module if it may. `group` is for the message.
///
/// # Errors
/// This kernel does not have it, or we may not use it: what there is, and whether a module would bring it.
pub fn check(group: &str, cc: &str) -> Result<(), AgentError> {
    try_it(cc).map_err(|source| AgentError::CongestionControl {
        group: group.to_owned(),
        cc: cc.to_owned(),
        available: sysfs::available().join(" "),
        way_out: way_out(cc, Path::new("/lib/modules"), &sysfs::release()),
        source,
    })
}

fn try_it(cc: &str) -> Result<(), std::io::Error> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let tried = socket(AddressFamily::Inet, SockType::Stream, flags, None)
        .and_then(|fd| setsockopt(&fd, TcpCongestion, &OsString::from(cc)));
    tried.map_err(Into::into)
}

/// What would bring it: ccbench itself, or a module of this kernel; nothing where there are no modules at all.
fn way_out(name: &str, modules: &Path, release: &str) -> String {
    let module = format!("tcp_{name}");
    let own = cc::scheme(name).map_or(String::new(), |_| {
        format!("; ccbench has its own: write `[cc.my_{name}]` with `algorithm = \"{name}\"` and `cc = \"my_{name}\"`")
    });
    match sysfs::on_disk(modules, release, &module) {
        None => own,
        Some(true) => format!("; its module is there: `modprobe {module}` brings it"),
        Some(false) => format!("; {} has no module {module}{own}", modules.join(release).display()),
    }
}

/// The instances of one trial on this node; dropped, they are gone.
#[derive(Default)]
pub struct InForce {
    held: Vec<Held>,
    /// What is not taken away by the kernel when this process ends. After `held`: it is dropped last.
    record: Record,
    names: Names,
}

struct Held {
    /// As the controller is told.
    told: wire::CongestionControl,
    core: Option<&'static Core>,
    #[cfg(feature = "ebpf")]
    bpf: Option<bpf::Registered>,
}

/// Puts every instance that this node needs into the kernel: those of flows that it sends and of
/// web servers that it has for probes, and those that need both ends. What is made is in the answer, so that an error takes all of it back.
///
/// # Errors
/// The first instance that cannot be had, why, and what to do.
pub fn load(task: &NodeTask, trial: &TrialId, node: &str) -> Result<InForce, AgentError> {
    let mut all = InForce { names: Names::new(task, trial, node), ..InForce::default() };
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
        let wrong = |why: String| AgentError::Cc {
            name: name.clone(),
            algorithm: cc.algorithm.clone(),
            why,
        };
        let tcp_ecn =
            task.sysctls.iter().find(|(key, _)| key.replace('/', ".") == ecn::apply::TCP_ECN);
        let held =
            all.one(cc, &kernels, tcp_ecn.map(|(_, value)| value.as_str())).map_err(wrong)?;
        let told = wire::CongestionControl { name: name.clone(), ..held.told };
        all.held.push(Held { told, ..held });
    }
    Ok(all)
}

impl InForce {
    fn one(&mut self, cc: &Cc, kernels: &str, tcp_ecn: Option<&str>) -> Result<Held, String> {
        let instance = cc::resolve(cc)
            .map_err(|wrong| wrong.into_iter().map(|w| w.why).collect::<Vec<_>>().join("; "))?;
        let made = match instance {
            Instance::Kernel { params } => self.kernels_own(&cc.algorithm, &params)?,
            Instance::Own { params, .. } => {
                let (_, core) = cc::scheme(&cc.algorithm).ok_or("ccbench has no such algorithm")?;
                self.own(cc, core, kernels, &params, tcp_ecn)?
            }
        };
        if !sysfs::available().iter().any(|name| name == kernels) {
            return Err(format!(
                "it is registered as `{kernels}`, and the kernel does not list it"
            ));
        }
        try_it(kernels).map_err(|e| format!("the kernel has `{kernels}` and refuses it: {e}"))?;
        Ok(made)
    }

    fn kernels_own(&mut self, name: &str, params: &[(String, String)]) -> Result<Held, String> {
        // It brings the module along.
        check("", name).map_err(|error| match error {
            AgentError::CongestionControl { source, available, way_out, .. } => {
                format!("this kernel does not have it ({source}); it has: {available}{way_out}")
            }
            other => other.to_string(),
        })?;
        let in_force = module::tune(name, params, &mut self.record)?;
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
    ) -> Result<Held, String> {
        let (via, why) = choose(cc.via, core)?;
        if via == Via::Bpf {
            return self.by_bpf(cc, core, kernels, params, (tcp_ecn, why));
        }
        let in_force = module::register(core, kernels, params, &mut self.record)?;
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
    ) -> Result<Held, String> {
        let wants = ecn::wants(&cc.algorithm, Some(cc));
        let flags = match wants.any() {
            true => ecn::decide(ecn::probe::capabilities(), wants, Via::Bpf, tcp_ecn).flags,
            false => ecn::flag::NON_RESTRICTED,
        };
        let netns_cookie = ccbench_shaper::bpf::netns_cookie();
        let wanted = bpf::Wanted {
            core,
            kernel_name: kernels,
            params,
            flags,
            // Without one, rows of other namespaces are told apart by their ports.
            netns_cookie: Some(netns_cookie.unwrap_or(0)),
        };
        let registered = bpf::register(&wanted, &mut self.record)?;
        let read = registered.params();
        if read.iter().ne(params.iter().map(|(_, value)| value)) {
            return Err(format!("the kernel holds other parameters than asked for: {read:?}"));
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
    ) -> Result<Held, String> {
        Err(NO_EBPF.to_owned())
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
            Some(held) => Some((held.told.kernel_name.clone(), via_of(&held.told.via))),
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
    pub fn readers(&self) -> (state::Reader, Vec<wire::Event>) {
        let (mut sources, mut events, mut devices) = (Vec::new(), Vec::new(), Vec::new());
        for held in &self.held {
            let Some(core) = held.core else { continue };
            #[cfg(feature = "ebpf")]
            if let Some(registered) = &held.bpf {
                match registered.rows() {
                    Ok(ring) => sources.push((core, state::Source::Ring(ring))),
                    Err(why) => events.push(event("cc_state_error", &held.told.name, why)),
                }
                continue;
            }
            if devices.contains(&&core.name) {
                continue;
            }
            devices.push(&core.name);
            let path = format!("/dev/ccb_{}", core.name);
            match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path) {
                Ok(file) => sources.push((core, state::Source::Device(file))),
                Err(e) => {
                    events.push(event(
                        "cc_state_error",
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
        (state::Reader::new(sources, groups), events)
    }

    /// What was lost of inner state so far; each is a reason to doubt the rows.
    pub fn losses(&self) -> Vec<wire::Event> {
        #[cfg(feature = "ebpf")]
        {
            let lost = self.held.iter().filter_map(|held| {
                let lost = held.bpf.as_ref()?.lost();
                let message = format!("{lost} rows of inner state found no room");
                (lost > 0).then(|| event("cc_state_error", &held.told.name, message))
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
            if held.told.via == "bpf" {
                outcome.undone.push(format!("congestion control {}", held.told.kernel_name));
            }
        }
        outcome.merge(self.record.undo());
        outcome
    }
}

#[cfg(not(feature = "ebpf"))]
const NO_EBPF: &str =
    "this ccbench-agent was built without BPF (feature ebpf): build it with clang installed";

/// How one of ccbench's own gets into this kernel, and why so.
///
/// # Errors
/// No way is open: what is missing for each.
pub fn choose(via: Via, core: &Core) -> Result<(Via, String), String> {
    let bpf = || bpf_possible();
    match via {
        Via::Builtin => Err("ccbench's own is not the kernel's".to_owned()),
        Via::Bpf => bpf().map(|()| (Via::Bpf, "the plan says so".to_owned())),
        Via::Module => {
            module::possible(core).map(|()| (Via::Module, "the plan says so".to_owned()))
        }
        Via::Auto => match bpf() {
            Ok(()) => Ok((Via::Bpf, "this kernel takes BPF congestion controls".to_owned())),
            Err(no_bpf) => match module::possible(core) {
                Ok(()) => Ok((Via::Module, format!("not by BPF: {no_bpf}"))),
                Err(no_module) => Err(format!("{no_bpf}; and {no_module}")),
            },
        },
    }
}

/// Whether this process can load BPF congestion controls here.
///
/// # Errors
/// What is missing, and what to do.
pub fn bpf_possible() -> Result<(), String> {
    #[cfg(feature = "ebpf")]
    return bpf::possible(crate::describe::privileges());
    #[cfg(not(feature = "ebpf"))]
    Err(NO_EBPF.to_owned())
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
        via: via_name(via).to_owned(),
        why,
        params: params.into_iter().collect(),
    }
}

/// As in results: "bpf", "module" or "builtin".
pub fn via_name(via: Via) -> &'static str {
    match via {
        Via::Bpf => "bpf",
        Via::Module => "module",
        Via::Auto | Via::Builtin => "builtin",
    }
}

fn via_of(name: &str) -> Via {
    match name {
        "bpf" => Via::Bpf,
        "module" => Via::Module,
        _ => Via::Builtin,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_kernel_has_is_fine() {
        assert!(check("g", "reno").is_ok());
        let error = check("g", "nosuch").unwrap_err().to_string();
        assert!(error.starts_with("flow g: this kernel has no congestion control `nosuch`"));
        assert!(error.contains("it has: ") && error.contains("reno"), "{error}");
    }

    #[test]
    fn a_module_that_would_bring_it_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(way_out("westwood", dir.path(), "6.1"), "");
        std::fs::create_dir(dir.path().join("6.1")).unwrap();
        let list = "kernel/net/ipv4/tcp_vegas.ko.xz: \nkernel/net/ipv4/tcp_bbr.ko: a.ko b.ko\n";
        std::fs::write(dir.path().join("6.1/modules.dep"), list).unwrap();
        for cc in ["vegas", "bbr"] {
            let told = way_out(cc, dir.path(), "6.1");
            assert!(told.contains(&format!("`modprobe tcp_{cc}`")), "{told}");
        }
        let told = way_out("veg", dir.path(), "6.1");
        assert!(told.ends_with("6.1 has no module tcp_veg"), "{told}");
    }

    #[test]
    fn one_that_ccbench_would_bring_is_named() {
        let told = way_out("ta_grad", Path::new("/nowhere"), "6.1");
        assert!(told.contains("`algorithm = \"ta_grad\"`"), "{told}");
    }
}
