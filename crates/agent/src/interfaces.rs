//! Changes to network interfaces: links, root qdiscs, offloads. The trait separates the executor from the shaper, so
//! that the executor's tests need no root.
//!
//! If an interface is gone, or another one of the same name has replaced it, nothing is restored and no error results.
//! `Saved::is_same_interface` decides this.

use std::collections::{BTreeMap, BTreeSet};

use ccbench_proto::resolve::{Egress, LinkConfig};
use ccbench_shaper::keep_awake::KeepAwake;
use ccbench_shaper::offload::{self, Features, Offloads};
use ccbench_shaper::saved::{self, SavedRoot};
use ccbench_shaper::settings::{self, DeviceSettings};
use ccbench_shaper::{Link, ShaperError, netlink, route, stack, user_link};
use nix::ifaddrs::{InterfaceAddressIterator, getifaddrs};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::control_interface::{self, Peer};
use crate::privileges::in_initial_user_namespace;

/// The interfaces that a trial uses, by user: ("link" or "flow", its name).
pub type Devices = BTreeMap<(&'static str, String), String>;

/// Reads and changes interfaces of the calling thread's network namespace. Saved states are opaque JSON, for the undo
/// journal.
pub trait Interfaces: Send + Sync {
    /// Returns the interface that `egress` means, by the kernel's name. An interface may have alternative names, which
    /// no list of interfaces includes.
    ///
    /// # Errors
    /// There is no such interface, or no route.
    fn device(&self, egress: &Egress) -> Result<String, ShaperError>;
    /// Returns the interfaces that packets to a controller may use.
    ///
    /// # Errors
    /// The kernel refused.
    fn control_devices(&self, controller: &Peer) -> Result<BTreeSet<String>, ShaperError>;
    /// Whether this is the machine's network namespace, that of process 1.
    fn is_host_namespace(&self) -> bool;
    /// Whether an interface belongs to the machine: a network card, or any interface in its network namespace.
    ///
    /// # Errors
    /// The kernel refused.
    fn is_host_interface(&self, dev: &str) -> Result<bool, ShaperError>;
    /// Whether an interface has an IPv6 address that the kernel does not assign by itself: neither link-local nor loopback.
    ///
    /// # Errors
    /// The kernel refused.
    fn has_assigned_ipv6(&self, dev: &str) -> Result<bool, ShaperError>;
    /// Returns the state of the interface's segmentation offloads; `None` if all are off.
    ///
    /// # Errors
    /// The kernel refused.
    fn save_offloads(&self, dev: &str) -> Result<Option<Value>, ShaperError>;
    /// Switches TSO, GSO and GRO off.
    ///
    /// # Errors
    /// The kernel refused.
    fn offloads_off(&self, dev: &str) -> Result<(), ShaperError>;
    /// Restores saved offloads; does nothing if the interface is gone.
    ///
    /// # Errors
    /// The kernel refused.
    fn restore_offloads(&self, dev: &str, before: &Value) -> Result<(), ShaperError>;
    /// Returns the interface's root qdisc and identity.
    ///
    /// # Errors
    /// The kernel refused.
    fn save_root(&self, dev: &str) -> Result<Value, ShaperError>;
    /// Restores a saved root qdisc, unless the interface is gone or another one has its name. In any case, removes the
    /// veth pair of a dead agent's userspace link.
    ///
    /// # Errors
    /// The kernel refused.
    fn restore_root(&self, dev: &str, before: &Value) -> Result<(), ShaperError>;
    /// Returns the settings of an interface on which measurements depend; `None` if it is gone.
    ///
    /// # Errors
    /// The kernel refused.
    fn settings(&self, dev: &str) -> Result<Option<DeviceSettings>, ShaperError>;
    /// Creates a link.
    ///
    /// # Errors
    /// The kernel lacks a feature, or refused.
    fn open(&self, config: &LinkConfig, dev: &str) -> Result<Box<dyn Link>, ShaperError>;
    /// Keeps the CPUs from halting until the guard is dropped.
    ///
    /// # Errors
    /// The kernel refused.
    fn keep_awake(&self) -> Result<Box<dyn Send>, ShaperError>;
}

/// The real machine.
#[derive(Debug, Clone, Copy)]
pub struct Machine;

impl Interfaces for Machine {
    fn device(&self, egress: &Egress) -> Result<String, ShaperError> {
        match egress {
            Egress::Dev(dev) => netlink::ifname(netlink::ifindex(dev)?),
            Egress::Toward(address) => route::egress_dev(*address),
        }
    }
    fn control_devices(&self, controller: &Peer) -> Result<BTreeSet<String>, ShaperError> {
        control_interface::devices(controller)
    }
    fn is_host_namespace(&self) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        let inode = |process: &str| {
            let file = std::fs::metadata(format!("/proc/{process}/ns/net"));
            file.ok().map(|file| file.ino())
        };
        is_host(inode("self"), inode("1"), in_initial_user_namespace)
    }
    fn is_host_interface(&self, dev: &str) -> Result<bool, ShaperError> {
        if self.is_host_namespace() {
            return Ok(true);
        }
        Ok(stack::interfaces()?.iter().any(|one| one.name == dev && one.is_physical()))
    }
    fn has_assigned_ipv6(&self, dev: &str) -> Result<bool, ShaperError> {
        Ok(addresses()?.filter(|i| i.interface_name == dev).any(|i| {
            let v6 = i.address.and_then(|address| Some(address.as_sockaddr_in6()?.ip()));
            v6.is_some_and(|ip| !ip.is_unicast_link_local() && !ip.is_loopback())
        }))
    }
    fn save_offloads(&self, dev: &str) -> Result<Option<Value>, ShaperError> {
        if offload::get(dev)? == Offloads::OFF {
            return Ok(None);
        }
        Saved::new(dev, offload::snapshot(dev)?)?.to_json().map(Some)
    }
    fn offloads_off(&self, dev: &str) -> Result<(), ShaperError> {
        offload::set(dev, Offloads::OFF).map(drop)
    }
    fn restore_offloads(&self, dev: &str, before: &Value) -> Result<(), ShaperError> {
        let saved = Saved::<Features>::from_json(before)?;
        if saved.is_same_interface(dev)? { offload::restore(dev, &saved.state) } else { Ok(()) }
    }
    fn save_root(&self, dev: &str) -> Result<Value, ShaperError> {
        Saved::new(dev, saved::snapshot(dev)?)?.to_json()
    }
    fn restore_root(&self, dev: &str, before: &Value) -> Result<(), ShaperError> {
        let saved = Saved::<SavedRoot>::from_json(before)?;
        if !saved.is_same_interface(dev)? {
            return remove_orphan(saved.ifindex);
        }
        user_link::cleanup(dev)?;
        saved::restore(dev, &saved.state)
    }
    fn settings(&self, dev: &str) -> Result<Option<DeviceSettings>, ShaperError> {
        settings::read(dev)
    }
    fn open(&self, config: &LinkConfig, dev: &str) -> Result<Box<dyn Link>, ShaperError> {
        ccbench_shaper::open(config, dev)
    }
    fn keep_awake(&self) -> Result<Box<dyn Send>, ShaperError> {
        let awake = KeepAwake::start();
        let awake =
            awake.map_err(|source| ShaperError::System { op: "keep the CPUs awake", source })?;
        Ok(Box::new(awake))
    }
}

/// Removes the veth pair of a dead agent's userspace link, which outlives the interface that it served.
fn remove_orphan(ifindex: u32) -> Result<(), ShaperError> {
    let entry = format!("ccbu{ifindex}a");
    let served = ShaperError::optional(netlink::ifname(ifindex))?;
    if served.is_some() || netlink::find_ifindex(&entry)?.is_none() {
        return Ok(());
    }
    netlink::delete_link(&mut netlink::Socket::open()?, &entry)
}

/// The saved state of an interface. Index and address distinguish it from a later interface of the same name.
#[derive(Serialize, Deserialize)]
struct Saved<T> {
    ifindex: u32,
    address: Option<[u8; 6]>,
    state: T,
}

/// Whether a network namespace is the machine's. If process 1 cannot be inspected, assume that it is, except in a user namespace:
/// there, the kernel permits no change to the machine's network.
fn is_host(
    own: Option<u64>,
    of_process_1: Option<u64>,
    in_initial_user_namespace: impl FnOnce() -> bool,
) -> bool {
    of_process_1
        .map_or_else(|| own.is_none() || in_initial_user_namespace(), |host| own == Some(host))
}

fn addresses() -> Result<InterfaceAddressIterator, ShaperError> {
    getifaddrs()
        .map_err(|e| ShaperError::System { op: "list the interfaces' addresses", source: e.into() })
}

/// Returns the interface's Ethernet address, if it has one.
fn address(dev: &str) -> Result<Option<[u8; 6]>, ShaperError> {
    let link = addresses()?
        .filter(|i| i.interface_name == dev)
        .find_map(|i| i.address?.as_link_addr()?.addr());
    Ok(link)
}

impl<T: Serialize + DeserializeOwned> Saved<T> {
    fn to_json(&self) -> Result<Value, ShaperError> {
        serde_json::to_value(self).map_err(not_json("save an interface's state"))
    }

    fn new(dev: &str, state: T) -> Result<Self, ShaperError> {
        Ok(Self { ifindex: netlink::ifindex(dev)?, address: address(dev)?, state })
    }

    fn from_json(json: &Value) -> Result<Self, ShaperError> {
        serde_json::from_value(json.clone()).map_err(not_json("read an interface's saved state"))
    }

    /// Whether `dev` is the saved interface: neither gone nor replaced by one of the same name.
    fn is_same_interface(&self, dev: &str) -> Result<bool, ShaperError> {
        let Some(now) = netlink::find_ifindex(dev)? else { return Ok(false) };
        let same = now == self.ifindex && address(dev)? == self.address;
        if !same {
            tracing::warn!(
                dev,
                "another interface of this name replaced the one that was changed; it is left alone"
            );
        }
        Ok(same)
    }
}

fn not_json(op: &'static str) -> impl FnOnce(serde_json::Error) -> ShaperError {
    move |error| ShaperError::System { op, source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_found_by_its_name() {
        let device = |name: &str| Machine.device(&Egress::Dev(name.to_owned()));
        assert_eq!(device("lo").unwrap(), "lo");
        assert!(matches!(device("nosuchdev0"), Err(ShaperError::NotFound { .. })));
    }

    #[test]
    fn a_namespace_is_the_machines_unless_something_shows_otherwise() {
        assert!(is_host(Some(7), Some(7), || false), "that of process 1");
        assert!(!is_host(Some(7), Some(8), || true), "another one");
        assert!(is_host(Some(7), None, || true), "process 1 cannot be inspected");
        assert!(is_host(None, None, || false), "nothing can be inspected");
        assert!(!is_host(Some(7), None, || false), "a testbed without root, in a user namespace");
    }
}

/// Fake interfaces that record the calls.
#[cfg(test)]
pub(crate) mod fake {
    use std::sync::{Arc, Mutex};

    use ccbench_proto::units::{Micros, Rate};
    use ccbench_proto::wire;

    use super::*;

    #[derive(Debug, Clone, Default)]
    pub(crate) struct FakeInterfaces {
        calls: Arc<Mutex<Vec<String>>>,
        settings: Arc<Mutex<BTreeMap<String, DeviceSettings>>>,
        failing: Option<&'static str>,
        /// Whether the namespace is the machine's.
        is_host: bool,
    }

    impl FakeInterfaces {
        pub(crate) fn failing(call: &'static str) -> Self {
            Self { failing: Some(call), ..Self::default() }
        }
        pub(crate) fn of_the_host() -> Self {
            Self { is_host: true, ..Self::default() }
        }
        /// Changes a setting of an interface.
        pub(crate) fn set(&self, dev: &str, setting: &str, value: &str) {
            let mut all = self.settings.lock().expect("no test panics while it holds this");
            let values = &mut all.entry(dev.to_owned()).or_default().values;
            values.insert(setting.to_owned(), value.to_owned());
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

    impl Interfaces for FakeInterfaces {
        fn device(&self, egress: &Egress) -> Result<String, ShaperError> {
            Ok(match egress {
                Egress::Dev(dev) => dev.clone(),
                Egress::Toward(address) => format!("to-{address}"),
            })
        }
        fn control_devices(&self, controller: &Peer) -> Result<BTreeSet<String>, ShaperError> {
            let ip = controller.ip;
            Ok(BTreeSet::from([format!("to-{ip}"), format!("under-{ip}")]))
        }
        fn is_host_namespace(&self) -> bool {
            self.is_host
        }
        fn is_host_interface(&self, dev: &str) -> Result<bool, ShaperError> {
            Ok(self.is_host || dev.starts_with("host"))
        }
        fn has_assigned_ipv6(&self, dev: &str) -> Result<bool, ShaperError> {
            Ok(dev.starts_with("v6"))
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
        fn settings(&self, dev: &str) -> Result<Option<DeviceSettings>, ShaperError> {
            let all = self.settings.lock().expect("no test panics while it holds this");
            Ok(Some(all.get(dev).cloned().unwrap_or_default()))
        }
        fn open(&self, config: &LinkConfig, dev: &str) -> Result<Box<dyn Link>, ShaperError> {
            self.call(format!("open {} on {dev}", config.name))?;
            Ok(Box::new(FakeLink {
                name: config.name.clone(),
                interfaces: self.clone(),
                up: true,
                changed: true,
            }))
        }
        fn keep_awake(&self) -> Result<Box<dyn Send>, ShaperError> {
            self.call("keep_awake".to_owned())?;
            Ok(Box::new(()))
        }
    }

    struct FakeLink {
        name: String,
        interfaces: FakeInterfaces,
        up: bool,
        /// Whether a change of its trace has yet to be reported.
        changed: bool,
    }

    impl Link for FakeLink {
        fn state(&self) -> wire::LinkState {
            wire::LinkState { link: self.name.clone(), ..Default::default() }
        }
        fn set_rate(&mut self, rate: Rate) -> Result<(), ShaperError> {
            self.interfaces.call(format!("set_rate {} {rate}", self.name))
        }
        fn set_delay(&mut self, delay: Micros) -> Result<(), ShaperError> {
            self.interfaces.call(format!("set_delay {} {delay}", self.name))
        }
        fn begin(&mut self, _at_ns: u64) -> Result<(), ShaperError> {
            self.interfaces.call(format!("begin {}", self.name))
        }
        fn changes(&mut self, into: &mut Vec<wire::LinkChange>) {
            if std::mem::take(&mut self.changed) {
                into.push(wire::LinkChange { source: "trace row 2".into(), ..Default::default() });
            }
        }
        fn packets(&mut self, into: &mut Vec<wire::LinkPacket>) {
            into.extend((0..2).map(|_| wire::LinkPacket::default()));
        }
        fn timing(&mut self, into: &mut Vec<wire::LinkTiming>) {
            into.push(wire::LinkTiming { link: self.name.clone(), ..Default::default() });
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
                self.interfaces.call(format!("remove {}", self.name))?;
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
