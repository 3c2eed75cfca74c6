//! The kernel modules that this agent would load for a trial. They are checked before anything is changed.

use ccbench_proto::cc::{self, Core};
use ccbench_proto::plan::Via;
use ccbench_proto::schedule::NodeTask;

use super::choices::Choices;
use crate::error::AgentError;
use crate::sockets::allowed::AllowedModules;
use crate::sockets::{load, sysfs};

/// The state of the kernel that decides which modules are needed.
struct Kernel<'a> {
    /// The congestion controls that it has now.
    available: &'a [String],
    /// Whether it has a module.
    has_module: &'a dyn Fn(&str) -> bool,
    /// How one of ccbench's congestion controls is loaded; `None` if it cannot be.
    choose: &'a dyn Fn(Via, &Core) -> Option<Via>,
}

/// Refuses a trial that needs a module that this agent may not load.
///
/// # Errors
/// The first such module is named.
pub fn check(
    task: &NodeTask,
    node: &str,
    allowed: &AllowedModules,
    choices: &Choices,
) -> Result<(), AgentError> {
    let kernel = Kernel {
        available: &sysfs::available(),
        has_module: &sysfs::is_loaded,
        choose: &|via, core| choices.get(via, core),
    };
    decide(task, node, allowed, &kernel)
}

fn decide(
    task: &NodeTask,
    node: &str,
    allowed: &AllowedModules,
    kernel: &Kernel<'_>,
) -> Result<(), AgentError> {
    let not_permitted = |(_, module): &(String, String)| !allowed.permit(module);
    match needed(task, node, kernel).into_iter().find(not_permitted) {
        None => Ok(()),
        Some((what, module)) => {
            Err(AgentError::ModuleNotAllowed { what, module, allowed: allowed.to_string() })
        }
    }
}

/// Returns each missing module, with what needs it.
fn needed(task: &NodeTask, node: &str, kernel: &Kernel<'_>) -> Vec<(String, String)> {
    // The kernel loads this module when a socket names the congestion control.
    let of_kernel = |cc: &str| {
        let is_there = kernel.available.iter().any(|available| available == cc);
        (!is_there).then(|| format!("tcp_{cc}"))
    };
    let instances = load::needed(task, node).filter_map(|(name, wanted)| {
        let what = format!("congestion control {name}");
        if cc::is_kernel_algorithm(wanted) {
            return Some((what, of_kernel(&wanted.algorithm)?));
        }
        // Digests, not module names, permit supplied congestion controls.
        let (_, core) = cc::scheme(&wanted.algorithm).filter(|_| cc::is_own(wanted))?;
        let module = format!("ccb_{}", core.name);
        let is_loaded = (kernel.choose)(wanted.via, core)? == Via::Module;
        (is_loaded && !(kernel.has_module)(&module)).then_some((what, module))
    });
    let flows = task.clients.iter().chain(&task.servers);
    let flows = flows.map(|flow| (format!("flow {}", flow.group), &flow.plan.cc));
    let probes = task.served.iter().map(|probe| (format!("probe {}", probe.id), &probe.plan.cc));
    let builtins = flows.chain(probes).filter_map(|(what, cc)| {
        let cc = cc.as_ref().filter(|cc| !task.cc.contains_key(*cc))?;
        Some((what, of_kernel(cc)?))
    });
    instances.chain(builtins).collect()
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::{check as plan_check, parse};
    use ccbench_proto::schedule::{self, TrialContext};

    use super::*;

    const PLAN: &str = r#"
name = "modules"
[nodes]
one = {}
two = {}
[wires]
w = ["one", "two"]
[flows.kernel]
from = "one"
to = "two"
cc = "bbr"
[flows.instance]
from = "one"
to = "two"
cc = "gentle"
[flows.own]
from = "one"
to = "two"
cc = "mine"
[cc.gentle]
algorithm = "cubic"
[cc.mine]
algorithm = "ta"
[[phases]]
name = "only"
length = "1s"
flows = ["kernel", "instance", "own"]
"#;

    fn modules(available: &[&str], loaded: &[&str], own: Option<Via>) -> Vec<String> {
        let (plan, _) = plan_check::check(parse::parse(PLAN).unwrap()).unwrap();
        let task = schedule::task_for(&plan, "one", &TrialContext::default());
        let available: Vec<String> = available.iter().map(|cc| (*cc).to_owned()).collect();
        let kernel = Kernel {
            available: &available,
            has_module: &|module| loaded.contains(&module),
            choose: &|_, _| own,
        };
        let needed = needed(&task, "one", &kernel);
        let other = AllowedModules::new(&["other".parse().unwrap()]);
        assert_eq!(decide(&task, "one", &other, &kernel).is_err(), !needed.is_empty());
        let by_default = decide(&task, "one", &AllowedModules::default(), &kernel);
        assert!(by_default.is_ok(), "{by_default:?}");
        needed.into_iter().map(|(what, module)| format!("{what}: {module}")).collect()
    }

    #[test]
    fn a_module_is_needed_unless_the_kernel_has_it() {
        let [gentle, mine, kernel] = [
            "congestion control gentle: tcp_cubic",
            "congestion control mine: ccb_ta",
            "flow kernel: tcp_bbr",
        ];
        let has_both = &["bbr", "cubic"];
        assert_eq!(modules(&["reno"], &[], Some(Via::Module)), [gentle, mine, kernel]);
        assert_eq!(modules(has_both, &[], Some(Via::Module)), [mine]);
        assert_eq!(modules(has_both, &["ccb_ta"], Some(Via::Module)), [""; 0]);
        for own in [Some(Via::Bpf), None] {
            assert_eq!(modules(has_both, &[], own), [""; 0], "{own:?}");
        }
    }
}
