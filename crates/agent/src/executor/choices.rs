//! How this kernel loads the congestion controls of ccbench that a trial needs. It is found out once for each request, beside the
//! runtime: the loader may take seconds to say whether it has a module.

use ccbench_proto::cc::{self, Core};
use ccbench_proto::plan::{Cc, Via};
use ccbench_proto::schedule::NodeTask;

use crate::blocking;
use crate::error::AgentError;
use crate::sockets::error::{LoadError, SocketError};
use crate::sockets::{load, verify};

/// Chooses how one of ccbench's congestion controls is loaded.
type Choose = fn(Via, &Core) -> Result<Via, SocketError>;

/// The choice for each core and each `via` of the plan; `None` if neither BPF nor a module is possible.
#[derive(Debug, Default)]
pub struct Choices(Vec<(Via, &'static Core, Option<Via>)>);

/// An instance for which there is a choice.
struct Instance {
    name: String,
    algorithm: String,
    via: Via,
    core: &'static Core,
}

/// Chooses by what this kernel has.
///
/// # Errors
/// Neither BPF nor a module is possible.
pub fn choose(via: Via, core: &Core) -> Result<Via, SocketError> {
    Ok(verify::choose(via, core)?.0)
}

impl Choices {
    /// Chooses for each instance that this node needs.
    ///
    /// # Errors
    /// The loader refused or does not answer; it is not asked again.
    pub async fn for_task(task: &NodeTask, node: &str, choose: Choose) -> Result<Self, AgentError> {
        let instances = instances(task, node);
        if instances.is_empty() {
            return Ok(Self::default());
        }
        Ok(blocking::run(move || Self::for_all(instances, choose)).await?)
    }

    fn for_all(
        instances: Vec<Instance>,
        choose: impl Fn(Via, &Core) -> Result<Via, SocketError>,
    ) -> Result<Self, LoadError> {
        let mut choices = Self::default();
        for Instance { name, algorithm, via, core } in instances {
            if choices.find(via, core).is_some() {
                continue;
            }
            let chosen = match choose(via, core) {
                Ok(chosen) => Some(chosen),
                // The other instances could wait as long for it.
                Err(error) if error.is_of_loader() => {
                    return Err(LoadError { name, algorithm, source: Box::new(error) });
                }
                // Its load gives the reason.
                Err(_) => None,
            };
            choices.0.push((via, core, chosen));
        }
        Ok(choices)
    }

    /// Returns how a core of the plan is loaded; `None` if it cannot be.
    pub fn get(&self, via: Via, core: &Core) -> Option<Via> {
        self.find(via, core)?.2
    }

    fn find(&self, via: Via, core: &Core) -> Option<&(Via, &'static Core, Option<Via>)> {
        self.0.iter().find(|found| found.0 == via && found.1.name == core.name)
    }
}

fn instances(task: &NodeTask, node: &str) -> Vec<Instance> {
    let own = load::needed(task, node).filter(|(_, wanted)| cc::is_own(wanted));
    let instance = |(name, wanted): (&String, &Cc)| {
        let (_, core) = cc::scheme(&wanted.algorithm)?;
        let (name, algorithm, via) = (name.clone(), wanted.algorithm.clone(), wanted.via);
        Some(Instance { name, algorithm, via, core })
    };
    own.filter_map(instance).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::PathBuf;

    use super::*;
    use crate::sockets::names::tests::flow;

    /// A task with an instance of each algorithm, from which flows are sent.
    fn task(algorithms: &[&str]) -> NodeTask {
        let instance =
            |name: &&str| (format!("my_{name}"), Cc { via: Via::Module, ..Cc::new(*name) });
        let clients = algorithms.iter().map(|name| flow(name, "src", &format!("my_{name}")));
        NodeTask {
            clients: clients.collect(),
            cc: algorithms.iter().map(instance).collect(),
            ..NodeTask::default()
        }
    }

    fn silent(reason: &str) -> SocketError {
        SocketError::Loader { socket: PathBuf::from("/x"), reason: reason.to_owned() }
    }

    #[test]
    fn a_loader_that_does_not_answer_is_asked_once() {
        let asked = RefCell::new(Vec::new());
        let instances = instances(&task(&["cx", "ta", "vegas"]), "src");
        assert_eq!(instances.len(), 3);
        let hangs = |_: Via, core: &Core| {
            asked.borrow_mut().push(core.name.clone());
            let bpf = Box::new(SocketError::NoEbpf);
            Err(SocketError::NoBackend { bpf, module: Box::new(silent("it does not answer")) })
        };
        let error = Choices::for_all(instances, hangs).unwrap_err().to_string();
        assert_eq!(*asked.borrow(), ["cx"]);
        assert!(error.starts_with("cc.my_cx: cx cannot be loaded"), "{error}");
        assert!(error.ends_with("the module loader at /x: it does not answer"), "{error}");
    }

    #[test]
    fn a_core_is_looked_for_once() {
        let asked = RefCell::new(Vec::new());
        let instances = instances(&task(&["cx", "cx_shadow", "ta", "ta_grad"]), "src");
        let chooses = |via: Via, core: &Core| {
            asked.borrow_mut().push(core.name.clone());
            if core.name == "ta" { Err(SocketError::NotBuiltin) } else { Ok(via) }
        };
        let choices = Choices::for_all(instances, chooses).unwrap();
        assert_eq!(*asked.borrow(), ["cx", "ta"]);
        let of = |algorithm: &str| choices.get(Via::Module, cc::scheme(algorithm).unwrap().1);
        assert_eq!((of("cx_shadow"), of("ta_grad")), (Some(Via::Module), None));
    }

    #[tokio::test]
    async fn the_loader_is_asked_beside_the_runtime() {
        let on_thread: Choose =
            |_, _| Err(silent(std::thread::current().name().unwrap_or_default()));
        let error =
            Choices::for_task(&task(&["ta"]), "src", on_thread).await.unwrap_err().to_string();
        assert!(error.ends_with("the module loader at /x: blocking"), "{error}");
    }
}
