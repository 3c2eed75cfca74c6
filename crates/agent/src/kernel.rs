//! The agent's one door to the machine's interfaces: what the shaper does, behind a seam so that the
//! executor's tests need no root.

use ccbench_proto::resolve::{Egress, LinkConfig};
use ccbench_shaper::offload::{self, Features, Offloads};
use ccbench_shaper::saved::{self, SavedRoot};
use ccbench_shaper::{Link, ShaperError, netlink, route, user_link};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Changes interfaces of the calling thread's network namespace. Saved states are opaque JSON, for the
/// undo journal.
pub trait Kernel: Send + Sync {
    /// The interface that `egress` means.
    ///
    /// # Errors
    /// No such interface, or no route.
    fn device(&self, egress: &Egress) -> Result<String, ShaperError>;
    /// The state of the interface's segmentation offloads; nothing if all are off.
    ///
    /// # Errors
    /// The kernel refused.
    fn save_offloads(&self, dev: &str) -> Result<Option<Value>, ShaperError>;
    /// Switches TSO, GSO and GRO off.
    ///
    /// # Errors
    /// The kernel refused.
    fn offloads_off(&self, dev: &str) -> Result<(), ShaperError>;
    /// Puts saved offloads back; an interface that is gone is fine.
    ///
    /// # Errors
    /// The kernel refused.
    fn restore_offloads(&self, dev: &str, before: &Value) -> Result<(), ShaperError>;
    /// The interface's root qdisc and identity.
    ///
    /// # Errors
    /// The kernel refused.
    fn save_root(&self, dev: &str) -> Result<Value, ShaperError>;
    /// Puts a saved root back, and takes away what a dead agent's link left; an interface that is gone, or
    /// another one by the same name, is left alone.
    ///
    /// # Errors
    /// The kernel refused.
    fn restore_root(&self, dev: &str, before: &Value) -> Result<(), ShaperError>;
    /// Makes a link.
    ///
    /// # Errors
    /// What the kernel lacks or refuses.
    fn open(&self, config: &LinkConfig, dev: &str) -> Result<Box<dyn Link>, ShaperError>;
}

/// The real machine.
#[derive(Debug, Clone, Copy)]
pub struct Machine;

impl Kernel for Machine {
    fn device(&self, egress: &Egress) -> Result<String, ShaperError> {
        match egress {
            Egress::Dev(dev) => Ok(dev.clone()),
            Egress::Toward(address) => route::egress_dev(*address),
        }
    }
    fn save_offloads(&self, dev: &str) -> Result<Option<Value>, ShaperError> {
        if offload::get(dev)? == Offloads::OFF {
            return Ok(None);
        }
        Saved { ifindex: netlink::ifindex(dev)?, state: offload::snapshot(dev)? }
            .to_json()
            .map(Some)
    }
    fn offloads_off(&self, dev: &str) -> Result<(), ShaperError> {
        offload::set(dev, Offloads::OFF).map(drop)
    }
    fn restore_offloads(&self, dev: &str, before: &Value) -> Result<(), ShaperError> {
        match Saved::<Features>::still_on(dev, before)? {
            Some(features) => offload::restore(dev, &features),
            None => Ok(()),
        }
    }
    fn save_root(&self, dev: &str) -> Result<Value, ShaperError> {
        Saved { ifindex: netlink::ifindex(dev)?, state: saved::snapshot(dev)? }.to_json()
    }
    fn restore_root(&self, dev: &str, before: &Value) -> Result<(), ShaperError> {
        let Some(root) = Saved::<SavedRoot>::still_on(dev, before)? else { return Ok(()) };
        user_link::cleanup(dev)?;
        saved::restore(dev, &root)
    }
    fn open(&self, config: &LinkConfig, dev: &str) -> Result<Box<dyn Link>, ShaperError> {
        ccbench_shaper::open(config, dev)
    }
}

/// The state of an interface; its index tells it from another one that got its name later.
#[derive(Serialize, Deserialize)]
struct Saved<T> {
    ifindex: u32,
    state: T,
}

impl<T: Serialize + DeserializeOwned> Saved<T> {
    fn to_json(&self) -> Result<Value, ShaperError> {
        serde_json::to_value(self).map_err(not_json("save an interface's state"))
    }

    /// The state, if the interface is still there and still the same.
    fn still_on(dev: &str, json: &Value) -> Result<Option<T>, ShaperError> {
        let saved: Self = serde_json::from_value(json.clone())
            .map_err(not_json("read an interface's saved state"))?;
        match netlink::ifindex(dev) {
            Ok(now) => Ok((now == saved.ifindex).then_some(saved.state)),
            Err(ShaperError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn not_json(op: &'static str) -> impl FnOnce(serde_json::Error) -> ShaperError {
    move |error| ShaperError::System { op, source: error.into() }
}

/// A machine that only writes down what it is asked.
#[cfg(test)]
pub(crate) mod fake {
    use std::sync::{Arc, Mutex};

    use ccbench_proto::units::Rate;
    use ccbench_proto::wire;

    use super::*;

    #[derive(Debug, Clone, Default)]
    pub(crate) struct FakeKernel {
        calls: Arc<Mutex<Vec<String>>>,
        failing: Option<&'static str>,
    }

    impl FakeKernel {
        pub(crate) fn failing(call: &'static str) -> Self {
            Self { failing: Some(call), ..Self::default() }
        }
        pub(crate) fn calls(&self) -> Vec<String> {
            self.calls.lock().expect("no test panics while it holds this").clone()
        }
        fn call(&self, call: String) -> Result<(), ShaperError> {
            let failing = self.failing == Some(call.as_str());
            self.calls.lock().expect("no test panics while it holds this").push(call);
            if failing {
                let source = std::io::Error::other("as the test wants");
                return Err(ShaperError::System { op: "fake", source });
            }
            Ok(())
        }
    }

    impl Kernel for FakeKernel {
        fn device(&self, egress: &Egress) -> Result<String, ShaperError> {
            Ok(match egress {
                Egress::Dev(dev) => dev.clone(),
                Egress::Toward(address) => format!("to-{address}"),
            })
        }
        fn save_offloads(&self, dev: &str) -> Result<Option<Value>, ShaperError> {
            Ok((dev != "plain").then(|| Value::from(dev)))
        }
        fn offloads_off(&self, dev: &str) -> Result<(), ShaperError> {
            self.call(format!("offloads_off {dev}"))
        }
        fn restore_offloads(&self, dev: &str, _: &Value) -> Result<(), ShaperError> {
            self.call(format!("restore_offloads {dev}"))
        }
        fn save_root(&self, dev: &str) -> Result<Value, ShaperError> {
            Ok(Value::from(dev))
        }
        fn restore_root(&self, dev: &str, _: &Value) -> Result<(), ShaperError> {
            self.call(format!("restore_root {dev}"))
        }
        fn open(&self, config: &LinkConfig, dev: &str) -> Result<Box<dyn Link>, ShaperError> {
            self.call(format!("open {} on {dev}", config.name))?;
            Ok(Box::new(FakeLink { name: config.name.clone(), kernel: self.clone(), up: true }))
        }
    }

    struct FakeLink {
        name: String,
        kernel: FakeKernel,
        up: bool,
    }

    impl Link for FakeLink {
        fn state(&self) -> wire::LinkState {
            wire::LinkState { link: self.name.clone(), ..Default::default() }
        }
        fn set_rate(&mut self, rate: Rate) -> Result<(), ShaperError> {
            self.kernel.call(format!("set_rate {} {rate}", self.name))
        }
        fn counters(
            &mut self,
            at_ns: u64,
            into: &mut Vec<wire::QdiscSample>,
        ) -> Result<(), ShaperError> {
            into.push(wire::QdiscSample { at_ns, link: self.name.clone(), ..Default::default() });
            Ok(())
        }
        fn remove(&mut self) -> Result<(), ShaperError> {
            if std::mem::take(&mut self.up) {
                self.kernel.call(format!("remove {}", self.name))?;
            }
            Ok(())
        }
    }

    impl Drop for FakeLink {
        fn drop(&mut self) {
            drop(self.remove());
        }
    }
}
