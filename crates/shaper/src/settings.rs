//! The settings of an interface on which measurements depend, to find those that somebody else changes during a trial.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::netlink::message::{ACK, DUMP, Message, attrs, u32_at};
use crate::netlink::{self, CLSACT_EGRESS, Socket};
use crate::qdisc::{TcMessage, handle_text};
use crate::saved::to_hex;
use crate::{ShaperError, offload, route};

const IFINFO_BYTES: usize = 16;
const IFLA_ADDRESS: u16 = 1;
const IFLA_MTU: u16 = 4;
/// `IFF_LOWER_UP`: the interface has a carrier.
const LOWER_UP: u32 = 0x1_0000;
/// Size of `struct ifaddrmsg`.
const IFADDR_BYTES: usize = 8;
/// `IFA_F_PERMANENT`: an address without a lifetime.
const PERMANENT: u8 = 0x80;
const CLSACT_INGRESS: u32 = 0xffff_fff2;
const HTB: &str = "htb";
/// `TCA_HTB_INIT` is `struct tc_htb_glob`, the last word of which counts packets: the attribute, and its bytes before that.
const HTB_INIT: (u16, usize) = (2, 16);
/// `TCA_RED_MAX_P` is state if RED is adaptive.
const RED_MAX_P: (u16, usize) = (3, 0);
/// `TCA_GRED_PARMS` and `TCA_GRED_VQ_LIST` list counters of the virtual queues among their parameters.
const GRED_PARMS: (u16, usize) = (1, 0);
const GRED_VQ_LIST: (u16, usize) = (6, 0);
/// `TCA_CAKE_BASE_RATE64` is state if `TCA_CAKE_AUTORATE` is set.
const CAKE_BASE_RATE64: (u16, usize) = (2, 0);
const CAKE_AUTORATE: u16 = 9;
/// Bytes of `struct tc_sfq_qopt_v1` before its counters. It is not in an attribute.
const SFQ_PARAMETERS_BYTES: usize = 48;
const CARRIER: &str = "carrier";
const PRESENT: &str = "present";
const ABSENT: &str = "absent";
/// Begins the names of settings that are parameters of a qdisc or class.
const PARAMETERS: &str = "parameters of ";
const ROOT_QDISC: &str = "root qdisc";

/// The settings of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceSettings {
    /// Values by the name of the setting (`MTU` ...).
    pub values: BTreeMap<String, String>,
}

/// A setting that differs between two times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingChange {
    /// Its name.
    pub setting: String,
    /// Its value at the first time; `none` if there was no such setting.
    pub expected: String,
    /// Its value at the second time, likewise.
    pub found: String,
}

/// Reads the settings of `dev` in the calling thread's network namespace: state, carrier, MTU, addresses, offloads, qdiscs, HTB's classes,
/// and filters. Returns `None` if there is no such interface.
///
/// # Errors
/// The kernel's answer.
pub fn read(dev: &str) -> Result<Option<DeviceSettings>, ShaperError> {
    let Some(ifindex) = netlink::find_ifindex(dev)? else { return Ok(None) };
    let mut socket = Socket::open()?;
    let mut settings = DeviceSettings::default();
    settings.set("interface index", ifindex.to_string());
    settings.read_link(&mut socket, ifindex, dev)?;
    settings.set("addresses", addresses(&mut socket, ifindex)?);
    settings.read_offloads(dev);
    let listed = settings.read_qdiscs(&mut socket, ifindex);
    settings.allow_missing_qdiscs(listed)?;
    Ok(Some(settings))
}

impl DeviceSettings {
    fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.values.insert(name.into(), value.into());
    }

    fn read_link(
        &mut self,
        socket: &mut Socket,
        ifindex: u32,
        dev: &str,
    ) -> Result<(), ShaperError> {
        let message = Message::new(libc::RTM_GETLINK, ACK).ifinfo(ifindex).finish();
        socket.request_reply("read interface", dev, &message, |_, body| self.add_link(body))
    }

    /// Takes the body of an `RTM_NEWLINK` message.
    fn add_link(&mut self, body: &[u8]) {
        let flags = u32_at(body, 8).unwrap_or_default();
        let is_up = flags & libc::IFF_UP as u32 != 0;
        self.set("administrative state", if is_up { "up" } else { "down" });
        self.set(CARRIER, if flags & LOWER_UP != 0 { PRESENT } else { ABSENT });
        for attr in attrs(body.get(IFINFO_BYTES..).unwrap_or(&[])) {
            match attr.kind {
                IFLA_MTU => self.set("MTU", u32_at(attr.value, 0).unwrap_or_default().to_string()),
                IFLA_ADDRESS => self.set("MAC address", to_hex(attr.value)),
                _ => {}
            }
        }
    }

    /// A kernel without ethtool's netlink family has this error both times.
    fn read_offloads(&mut self, dev: &str) {
        match offload::snapshot(dev) {
            Ok(features) => {
                for (name, on) in features.wanted {
                    self.set(format!("offload {name}"), if on { "on" } else { "off" });
                }
                self.set("gso_max_segs", features.gso_max_segs.to_string());
            }
            Err(error) => self.set("offloads", format!("unreadable ({error})")),
        }
    }

    fn read_qdiscs(&mut self, socket: &mut Socket, ifindex: u32) -> Result<(), ShaperError> {
        let mut parents = vec![CLSACT_INGRESS, CLSACT_EGRESS];
        netlink::qdiscs(socket, ifindex, |listed| {
            let name = match listed.is_root() {
                true => ROOT_QDISC.to_owned(),
                false => format!("qdisc under {}", handle_text(listed.parent)),
            };
            if listed.handle != 0 {
                parents.push(listed.handle);
            }
            self.add(name, listed, &listed.kind());
        })?;
        netlink::classes(socket, ifindex, |listed| {
            // Other qdiscs list their current flows as classes.
            if listed.kind() == HTB {
                self.add(format!("class {}", handle_text(listed.handle)), listed, "");
            }
        })?;
        let mut filters: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for parent in parents {
            netlink::filters(socket, ifindex, parent, |listed| {
                let filter = format!("{} {:x}", listed.kind(), listed.handle);
                filters.entry(parent).or_default().push(filter);
            })?;
        }
        for (parent, mut listed) in filters {
            listed.sort();
            self.set(format!("filters of {}", handle_text(parent)), listed.join(", "));
        }
        Ok(())
    }

    /// A kernel without qdiscs (`CONFIG_NET_SCHED`) or filters (`CONFIG_NET_CLS`) refuses to list them, both times.
    fn allow_missing_qdiscs(&mut self, listed: Result<(), ShaperError>) -> Result<(), ShaperError> {
        match listed {
            Err(error) if error.is_errno(libc::EOPNOTSUPP) => {
                self.set("traffic control", "unavailable");
                Ok(())
            }
            other => other,
        }
    }

    /// Adds a qdisc, or a class of HTB if `kind` is empty.
    fn add(&mut self, name: String, listed: &TcMessage<'_>, kind: &str) {
        let parameters = configured(&listed.kind(), listed.options().unwrap_or(&[]));
        self.set(format!("{PARAMETERS}{name}"), parameters);
        match kind {
            "" => self.set(name, format!("under {}", handle_text(listed.parent))),
            kind => self.set(name, format!("{kind} {}", handle_text(listed.handle))),
        }
    }

    /// Forgets the parameters of qdiscs and classes, for a link that changes them itself.
    pub fn forget_parameters(&mut self) {
        self.values.retain(|name, _| !name.starts_with(PARAMETERS));
    }
}

/// Returns the options of a qdisc or class in hexadecimal digits, without the state that some kinds list among them.
fn configured(kind: &str, options: &[u8]) -> String {
    let has_autorate = || {
        let autorate = attrs(options).find_kind(CAKE_AUTORATE);
        autorate.and_then(|value| u32_at(value, 0)).is_some_and(|on| on != 0)
    };
    let masked: &[(u16, usize)] = match kind {
        HTB => &[HTB_INIT],
        "red" => &[RED_MAX_P],
        "gred" => &[GRED_PARMS, GRED_VQ_LIST],
        "cake" if has_autorate() => &[CAKE_BASE_RATE64],
        "sfq" => return to_hex(options.get(..SFQ_PARAMETERS_BYTES).unwrap_or(options)),
        _ => return to_hex(options),
    };
    let configured = attrs(options).map(|attr| {
        let mask = masked.iter().find(|(kind, _)| *kind == attr.kind);
        let kept = mask.and_then(|(_, kept)| attr.value.get(..*kept)).unwrap_or(attr.value);
        format!("{}={}", attr.kind, to_hex(kept))
    });
    configured.collect::<Vec<_>>().join(" ")
}

/// Returns the addresses of an interface, except those of IPv6 that come and go by themselves: link-local ones, and those with a lifetime
/// (router advertisements, DHCPv6).
fn addresses(socket: &mut Socket, ifindex: u32) -> Result<String, ShaperError> {
    let mut found = Vec::new();
    let message = Message::new(libc::RTM_GETADDR, DUMP).raw(&[0; IFADDR_BYTES]).finish();
    socket.dump(&message, |body| found.extend(address(body, ifindex)))?;
    found.sort();
    Ok(found.join(", "))
}

/// Parses the body of an `RTM_NEWADDR` message. Returns `None` for an address of another interface, and for one that is not compared.
fn address(body: &[u8], ifindex: u32) -> Option<String> {
    let flags = *body.get(2)?;
    let (index, address) = route::address(body)?;
    let ip: IpAddr = address.split_once('/')?.0.parse().ok()?;
    let is_automatic =
        matches!(ip, IpAddr::V6(six) if six.is_unicast_link_local() || flags & PERMANENT == 0);
    (index == ifindex && !is_automatic).then_some(address)
}

/// Returns what differs between two times. If another root qdisc is in place, the qdiscs and classes below it are not listed.
pub fn changes(before: &DeviceSettings, after: &DeviceSettings) -> Vec<SettingChange> {
    let value = |of: &DeviceSettings, name: &str| {
        of.values.get(name).filter(|value| !value.is_empty()).cloned()
    };
    let differs = |name: &str| value(before, name) != value(after, name);
    let is_replaced = differs(ROOT_QDISC);
    // A consequence of another difference, which says more.
    let follows = |name: &str| {
        let of = name.strip_prefix(PARAMETERS);
        let is_below = |begin: &str| of.unwrap_or(name).starts_with(begin);
        let is_below_root = is_below("class ") || is_below("qdisc under ");
        (is_replaced && is_below_root) || of.is_some_and(&differs)
    };
    // Prepare changes offloads, which resets some cards: they have no carrier for a while.
    let is_carrier_back = |name: &str| {
        let at = |of| value(of, CARRIER).unwrap_or_default();
        name == CARRIER && at(before) == ABSENT && at(after) == PRESENT
    };
    let names: BTreeSet<&String> = before.values.keys().chain(after.values.keys()).collect();
    let changed =
        names.into_iter().filter(|name| differs(name) && !follows(name) && !is_carrier_back(name));
    let text =
        |of: &DeviceSettings, name: &str| value(of, name).unwrap_or_else(|| "none".to_owned());
    changed
        .map(|name| SettingChange {
            setting: name.clone(),
            expected: text(before, name),
            found: text(after, name),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(values: &[(&str, &str)]) -> DeviceSettings {
        let owned = values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        DeviceSettings { values: owned.collect() }
    }

    /// Returns the differences as text.
    fn found(before: &DeviceSettings, after: &DeviceSettings) -> Vec<String> {
        let texts = changes(before, after).into_iter();
        texts
            .map(|SettingChange { setting, expected, found }| {
                format!("{setting}: {expected} -> {found}")
            })
            .collect()
    }

    const LINK: [(&str, &str); 7] = [
        ("MTU", "1500"),
        ("addresses", ""),
        ("class 1:1", "under root"),
        ("parameters of class 1:1", "00"),
        ("parameters of root qdisc", "2=03"),
        ("qdisc under 1:1", "bfifo 10:"),
        ("root qdisc", "htb 1:"),
    ];

    fn with(name: &str, value: &str) -> DeviceSettings {
        let mut after = settings(&LINK);
        after.values.insert(name.to_owned(), value.to_owned());
        after
    }

    #[test]
    fn every_difference_has_both_values() {
        let before = settings(&LINK);
        assert!(changes(&before, &before).is_empty());
        assert_eq!(found(&before, &with("MTU", "1400")), ["MTU: 1500 -> 1400"]);
        let address = with("addresses", "10.0.0.1/24");
        assert_eq!(found(&before, &address), ["addresses: none -> 10.0.0.1/24"]);
        assert_eq!(found(&address, &before), ["addresses: 10.0.0.1/24 -> none"]);
        let filter = with("filters of 1:", "u32 80000800");
        assert_eq!(found(&before, &filter), ["filters of 1:: none -> u32 80000800"]);
        let rate = with("parameters of class 1:1", "01");
        assert_eq!(found(&before, &rate), ["parameters of class 1:1: 00 -> 01"]);
        let queue = with("qdisc under 1:1", "fq_codel 8001:");
        assert_eq!(found(&before, &queue), ["qdisc under 1:1: bfifo 10: -> fq_codel 8001:"]);
    }

    #[test]
    fn another_root_qdisc_is_one_difference() {
        let after = settings(&[
            ("MTU", "1500"),
            ("parameters of root qdisc", "00"),
            ("root qdisc", "fq 8001:"),
        ]);
        assert_eq!(found(&settings(&LINK), &after), ["root qdisc: htb 1: -> fq 8001:"]);
    }

    #[test]
    fn a_link_that_changes_its_parameters_is_compared_without_them() {
        let (mut before, mut after) = (settings(&LINK), with("parameters of class 1:1", "01"));
        after.values.insert("MTU".to_owned(), "9000".to_owned());
        before.forget_parameters();
        after.forget_parameters();
        assert_eq!(found(&before, &after), ["MTU: 1500 -> 9000"]);
    }

    #[test]
    fn only_a_carrier_that_is_lost_is_a_difference() {
        let (absent, present) = (settings(&[(CARRIER, ABSENT)]), settings(&[(CARRIER, PRESENT)]));
        assert!(found(&absent, &present).is_empty());
        assert_eq!(found(&present, &absent), ["carrier: present -> absent"]);
    }

    #[test]
    fn a_kernel_without_traffic_control_can_be_read() {
        let refused = |errno: i32| {
            let source = std::io::Error::from_raw_os_error(errno);
            netlink::NetlinkError { source, message: None }.on("read from the kernel", "")
        };
        let mut read = settings(&[("MTU", "1500")]);
        read.allow_missing_qdiscs(Ok(())).unwrap();
        assert_eq!(read, settings(&[("MTU", "1500")]));
        read.allow_missing_qdiscs(Err(refused(libc::EOPNOTSUPP))).unwrap();
        let unavailable = settings(&[("MTU", "1500"), ("traffic control", "unavailable")]);
        assert_eq!(read, unavailable);
        assert!(read.allow_missing_qdiscs(Err(refused(libc::EPERM))).is_err());
    }

    #[test]
    fn counters_of_htb_and_the_probability_of_red_are_no_parameters() {
        let options = |sent: u8| {
            let init = [[3; 16].as_slice(), &[sent, 0, 0, 0]].concat();
            Message::attributes().attr(HTB_INIT.0, &init).attr_u32(5, 1000).into_attributes()
        };
        assert_eq!(configured("htb", &options(1)), configured("htb", &options(2)));
        assert_ne!(configured("fq", &options(1)), configured("fq", &options(2)));
        let red = |share: u32, flags: u32| {
            Message::attributes().attr_u32(RED_MAX_P.0, share).attr_u32(4, flags).into_attributes()
        };
        assert_eq!(configured("red", &red(1, 4)), configured("red", &red(2, 4)));
        assert_ne!(configured("red", &red(1, 4)), configured("red", &red(1, 5)));
    }

    #[test]
    fn counters_of_gred_are_no_parameters() {
        let options = |sent: u8, limit: u32| {
            let queue = [5, 0, 0, 0, sent, 0, 0, 0];
            let all = Message::attributes().attr(GRED_PARMS.0, &queue).attr_u32(5, limit);
            let list = all.nested(GRED_VQ_LIST.0, |list| list.nested(1, |of| of.attr(3, &queue)));
            list.into_attributes()
        };
        assert_eq!(configured("gred", &options(1, 9)), configured("gred", &options(2, 9)));
        assert_ne!(configured("gred", &options(1, 9)), configured("gred", &options(1, 8)));
    }

    #[test]
    fn counters_of_sfq_are_no_parameters() {
        let options = |limit: u8, sent: u8| [[limit; 48].as_slice(), &[sent; 24]].concat();
        assert_eq!(configured("sfq", &options(1, 2)), configured("sfq", &options(1, 3)));
        assert_ne!(configured("sfq", &options(1, 2)), configured("sfq", &options(2, 2)));
        assert_eq!(configured("sfq", &[1; 20]), "01".repeat(20), "an older kernel");
    }

    #[test]
    fn the_rate_of_cake_is_no_parameter_if_it_adapts() {
        let options = |rate: u64, autorate: u32, rtt: u32| {
            let rated = Message::attributes().attr_u64(CAKE_BASE_RATE64.0, rate);
            rated.attr_u32(CAKE_AUTORATE, autorate).attr_u32(7, rtt).into_attributes()
        };
        let of = |rate, autorate, rtt| configured("cake", &options(rate, autorate, rtt));
        assert_eq!(of(1000, 1, 100), of(2000, 1, 100));
        assert_ne!(of(1000, 1, 100), of(1000, 1, 200));
        assert_ne!(of(1000, 0, 100), of(2000, 0, 100));
        assert_ne!(of(1000, 0, 100), of(1000, 1, 100));
    }

    #[test]
    fn addresses_that_come_and_go_by_themselves_are_left_out() {
        let body = |ip: &[u8], prefix: u8, flags: u8| {
            let mut body = vec![2, prefix, flags, 0];
            body.extend(7_u32.to_ne_bytes());
            let ifa_address = 1;
            body.extend(Message::attributes().attr(ifa_address, ip).into_attributes());
            body
        };
        let of = |text: &str, prefix: u8, flags: u8| {
            let ip: IpAddr = text.parse().unwrap();
            let bytes = match ip {
                IpAddr::V4(four) => four.octets().to_vec(),
                IpAddr::V6(six) => six.octets().to_vec(),
            };
            address(&body(&bytes, prefix, flags), 7)
        };
        // A DHCP client refreshes the lifetime of an IPv4 address in place.
        assert_eq!(of("10.0.0.1", 24, 0).as_deref(), Some("10.0.0.1/24"));
        assert_eq!(of("fd00::1", 64, PERMANENT).as_deref(), Some("fd00::1/64"));
        let temporary = 1;
        assert_eq!(of("fd00::1", 64, temporary), None);
        assert_eq!(of("fd00::1", 64, 0), None, "of a router advertisement");
        assert_eq!(of("fe80::1", 64, PERMANENT), None);
        assert_eq!(address(&body(&[10, 0, 0, 1], 24, 0), 8), None, "of another interface");
        assert_eq!(address(&[2, 24], 7), None);
    }

    #[test]
    fn the_settings_of_this_machine_can_be_read_without_root() {
        let before = read("lo").unwrap().unwrap();
        for name in ["MTU", "administrative state", "carrier", "interface index"] {
            assert!(before.values.contains_key(name), "{name}: {before:?}");
        }
        assert_eq!(read("lo").unwrap().as_ref(), Some(&before));
        assert_eq!(read("nosuchdev0").unwrap(), None);
    }
}
