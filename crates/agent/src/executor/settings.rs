//! Detects settings that somebody else changes during a trial. They are read when Prepare has made its changes and at the end of the
//! trial, before these are undone, and never in between: a setting that is changed and changed back is not found.

use std::collections::BTreeSet;

use ccbench_proto::event::{Kind, NoData, SettingChanged};
use ccbench_proto::schedule::NodeTask;
use ccbench_proto::wire::{self, Backend};
use ccbench_shaper::ShaperError;
use ccbench_shaper::settings::{DeviceSettings, SettingChange, changes};

use super::timed_link::TimedLink;
use crate::event::event;
use crate::interfaces::Interfaces;
use crate::sysctl::{self, Saved, SysctlError};
use crate::undo::Undo;

/// The settings on which a trial depends, when its Prepare has made all changes.
#[derive(Debug, Default)]
pub struct TrialSettings {
    devices: Vec<WatchedDevice>,
    sysctls: Vec<Saved>,
}

#[derive(Debug)]
struct WatchedDevice {
    dev: String,
    before: DeviceSettings,
    /// Whether the trial itself changes parameters of its qdiscs.
    is_changing: bool,
}

/// Returns the interfaces of kernel links that change during the trial.
pub fn changing_devices(task: &NodeTask, links: &[TimedLink]) -> BTreeSet<String> {
    let of_task = task.links.iter().zip(links);
    let changing = of_task.filter(|(task, timed)| {
        let is_changing =
            task.config.trace.is_some() || !task.changes.is_empty() || !task.triggered.is_empty();
        is_changing && timed.link.state().backend() == Backend::Kernel
    });
    changing.map(|(_, timed)| timed.dev.clone()).collect()
}

/// Returns the sysctls that the trial sets. The others whose restoration is recorded (`sysctl::save`) have names with `/`: the kernel
/// changes them along with one of all interfaces, and they come and go with their interfaces.
pub fn compared_sysctls<'a>(undo: &'a Undo, task: &NodeTask) -> BTreeSet<&'a str> {
    let is_set =
        |name: &&str| !name.contains('/') || task.sysctls.iter().any(|(set, _)| set == *name);
    undo.sysctls().filter(is_set).collect()
}

impl TrialSettings {
    /// Reads the settings of these interfaces, and these sysctls. Returns an event for each that cannot be read.
    pub fn read(
        devices: &BTreeSet<&String>,
        changing: &BTreeSet<String>,
        sysctls: BTreeSet<&str>,
        interfaces: &dyn Interfaces,
    ) -> (Self, Vec<wire::Event>) {
        let mut events = Vec::new();
        let mut read = Self::default();
        for &dev in devices {
            match interfaces.settings(dev) {
                Ok(Some(mut before)) => {
                    let is_changing = changing.contains(dev);
                    if is_changing {
                        before.forget_parameters();
                    }
                    read.devices.push(WatchedDevice { dev: dev.clone(), before, is_changing });
                }
                // It has gone since its link or flow was prepared, which fails for that.
                Ok(None) => {}
                Err(error) => events.push(unread_device(dev, &error)),
            }
        }
        for name in sysctls {
            match sysctl::read(name) {
                Ok(before) => read.sysctls.push(Saved { name: name.to_owned(), before }),
                Err(error) => events.push(unread_sysctl(name, &error)),
            }
        }
        (read, events)
    }

    /// Reads the settings again, and returns an event for each that differs or cannot be read.
    pub fn changes(&self, interfaces: &dyn Interfaces) -> Vec<wire::Event> {
        let of_devices = self.devices.iter().flat_map(|watched| watched.changes(interfaces));
        let of_sysctls = self.sysctls.iter().filter_map(|saved| match sysctl::read(&saved.name) {
            Ok(found) => (found != saved.before).then(|| sysctl_changed(saved, &found)),
            Err(error) => Some(unread_sysctl(&saved.name, &error)),
        });
        of_devices.chain(of_sysctls).collect()
    }
}

impl WatchedDevice {
    fn changes(&self, interfaces: &dyn Interfaces) -> Vec<wire::Event> {
        let Self { dev, before, is_changing } = self;
        let mut after = match interfaces.settings(dev) {
            Ok(Some(after)) => after,
            Ok(None) => {
                let gone = SettingChange {
                    setting: "interface".to_owned(),
                    expected: "present".to_owned(),
                    found: "none".to_owned(),
                };
                return vec![device_changed(dev, gone)];
            }
            Err(error) => return vec![unread_device(dev, &error)],
        };
        if *is_changing {
            after.forget_parameters();
        }
        changes(before, &after).into_iter().map(|change| device_changed(dev, change)).collect()
    }
}

fn device_changed(dev: &str, change: SettingChange) -> wire::Event {
    let SettingChange { setting, expected, found } = change;
    let message = format!(
        "{setting}: expected {expected}, found {found}; something other than ccbench changed it during the trial \
         (NetworkManager, a script, another experiment, a cable?): keep it away from {dev}, and repeat the trial"
    );
    event(Kind::SettingChanged(SettingChanged { setting, expected, found }), dev, message)
}

fn sysctl_changed(saved: &Saved, found: &str) -> wire::Event {
    let text = |value: &str| if value.is_empty() { "none".to_owned() } else { value.to_owned() };
    let (expected, found) = (text(&saved.before), text(found));
    let message = format!(
        "expected {expected}, found {found}; something other than ccbench set this sysctl during the trial (sysctl.d, a script, another \
         experiment?): keep it from doing so, and repeat the trial"
    );
    let setting = "sysctl".to_owned();
    event(Kind::SettingChanged(SettingChanged { setting, expected, found }), &saved.name, message)
}

fn unread_device(dev: &str, error: &ShaperError) -> wire::Event {
    let message = format!("whether its settings changed during the trial is not known: {error}");
    event(Kind::SampleError(NoData {}), dev, message)
}

fn unread_sysctl(name: &str, error: &SysctlError) -> wire::Event {
    let message = format!("whether it changed during the trial is not known: {error}");
    event(Kind::SampleError(NoData {}), name, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interfaces::fake::FakeInterfaces;
    use crate::undo::Step;

    fn read(changing: &[&str], interfaces: &FakeInterfaces) -> TrialSettings {
        let dev = "eth0".to_owned();
        let changing = changing.iter().map(|dev| (*dev).to_owned()).collect();
        let (settings, events) =
            TrialSettings::read(&[&dev].into(), &changing, BTreeSet::new(), interfaces);
        assert!(events.is_empty(), "{events:?}");
        settings
    }

    fn found(settings: &TrialSettings, interfaces: &FakeInterfaces) -> Vec<(String, String)> {
        let events = settings.changes(interfaces).into_iter();
        events.map(|event| (event.subject.clone(), event.data_json())).collect()
    }

    #[test]
    fn a_changed_setting_is_an_event_with_both_values() {
        let interfaces = FakeInterfaces::default();
        interfaces.set("eth0", "MTU", "1500");
        let settings = read(&[], &interfaces);
        assert!(found(&settings, &interfaces).is_empty());
        interfaces.set("eth0", "MTU", "1400");
        let events = settings.changes(&interfaces);
        let [event] = &events[..] else { panic!("{events:?}") };
        assert_eq!((event.name(), event.subject.as_str()), ("setting_changed", "eth0"));
        assert!(event.read().is_ok());
        assert!(event.message.starts_with("MTU: expected 1500, found 1400; "), "{event:?}");
        assert_eq!(event.data_json(), r#"{"expected":"1500","found":"1400","setting":"MTU"}"#);
    }

    #[test]
    fn what_the_plan_changes_is_not_compared() {
        let interfaces = FakeInterfaces::default();
        interfaces.set("eth0", "parameters of class 1:1", "00");
        let (fixed, changing) = (read(&[], &interfaces), read(&["eth0"], &interfaces));
        interfaces.set("eth0", "parameters of class 1:1", "01");
        assert_eq!(found(&fixed, &interfaces).len(), 1);
        assert!(found(&changing, &interfaces).is_empty());
        interfaces.set("eth0", "root qdisc", "fq 8001:");
        let data = r#"{"expected":"none","found":"fq 8001:","setting":"root qdisc"}"#;
        assert_eq!(found(&changing, &interfaces), [("eth0".to_owned(), data.to_owned())]);
    }

    #[test]
    fn sysctls_that_the_kernel_changes_along_are_not_compared() {
        let names = [
            "net/ipv4/conf/eth0/rp_filter",
            "net/ipv4/conf/veth9/rp_filter",
            "net.ipv4.conf.all.rp_filter",
            "net.ipv4.tcp_ecn",
        ];
        let mut undo = Undo::in_memory();
        for name in names {
            let saved = Saved { name: name.to_owned(), before: "1".to_owned() };
            undo.push(Step::Sysctl(saved)).unwrap();
        }
        let set = ["net/ipv4/conf/eth0/rp_filter", "net.ipv4.conf.all.rp_filter"];
        let sysctls = set.iter().map(|name| ((*name).to_owned(), "1".to_owned())).collect();
        let task = NodeTask { sysctls, ..NodeTask::default() };
        // The agent itself sets the last one, for ECN.
        let compared = BTreeSet::from([names[0], names[2], names[3]]);
        assert_eq!(compared_sysctls(&undo, &task), compared);
    }

    #[test]
    fn a_changed_sysctl_and_an_unreadable_one_are_events() {
        let name = "net.ipv4.tcp_ecn";
        let now = sysctl::read(name).unwrap();
        let saved = |name: &str, before: &str| Saved { name: name.into(), before: before.into() };
        let of = |saved| {
            let settings = TrialSettings { sysctls: vec![saved], ..TrialSettings::default() };
            settings.changes(&FakeInterfaces::default())
        };
        assert!(of(saved(name, &now)).is_empty());
        let changed = of(saved(name, "7"));
        assert_eq!((changed[0].name(), changed[0].subject.as_str()), ("setting_changed", name));
        assert!(changed[0].message.starts_with(&format!("expected 7, found {now}; ")));
        assert_eq!(of(saved("net.ipv4.no_such_setting", "1"))[0].name(), "sample_error");
        let (_, events) = TrialSettings::read(
            &BTreeSet::new(),
            &BTreeSet::new(),
            ["net.ipv4.no_such_setting"].into(),
            &FakeInterfaces::default(),
        );
        assert_eq!(events[0].name(), "sample_error");
    }
}
