//! Finds the connections in the files, their groups and their roles.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, ends, stream_key};
use crate::column_text::ColumnText as _;
use crate::tools::ss::{Endpoint, Process, Socket};
use crate::wire::{Role, Side};

/// A connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Address and port of the client.
    pub client: Endpoint,
    /// Address and port of the server.
    pub server: Endpoint,
}

/// Names of groups, by the server's port (`5201`) or its address and port (`10.0.3.1:5201`).
pub type Names = BTreeMap<String, String>;

/// The names of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConnectionNames {
    pub(super) flow_id: String,
    pub(super) group: String,
    pub(super) role: Role,
}

/// Everything known of the connections of a trial.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// In the order of their first appearance.
    order: Vec<Key>,
    facts: BTreeMap<Key, Facts>,
    server_ports: BTreeSet<u16>,
    nodes: BTreeMap<std::net::IpAddr, String>,
    /// Bytes acknowledged to and received by an end of a connection (`true`: the server's); the larger number determines the side.
    carried: BTreeMap<(Key, bool), (u64, u64)>,
}

#[derive(Debug, Default)]
struct Facts {
    /// iperf3 lists it as a stream.
    listed: bool,
    process: Option<Process>,
    bytes: u64,
    /// The congestion control of the end that sends more than it receives.
    cc: String,
}

/// Usual ports of iperf3 servers.
const USUAL: std::ops::RangeInclusive<u16> = 5201..=5299;
/// Maximum bytes that a control connection carries for each data connection of its test.
const CONTROL_BYTES: u64 = 100_000;

impl Connections {
    pub(super) fn new(sources: &[&Source], names: &Names) -> Self {
        let mut all = Self::default();
        for name in names.keys() {
            all.server_ports
                .extend(name.rsplit(':').next().and_then(|port| port.parse::<u16>().ok()));
        }
        for test in sources.iter().flat_map(|source| &source.found.tests) {
            all.server_ports.extend(test.server_port());
        }
        for source in sources {
            for test in &source.found.tests {
                for connection in test.report.streams.values() {
                    let Some(key) = stream_key(connection, test.listens()) else { continue };
                    all.entry(key).listed = true;
                    let own = if test.listens() { key.server } else { key.client };
                    all.nodes.entry(own.ip).or_insert_with(|| source.node.clone());
                }
            }
        }
        for source in sources {
            for row in &source.found.sockets {
                let Some(socket) = &row.socket else { continue };
                let key = all.key(socket);
                all.nodes.entry(socket.local.ip).or_insert_with(|| source.node.clone());
                let sample = &row.info.sample;
                let (acked, received) = (
                    sample.bytes_acked.or(sample.bytes_sent).unwrap_or(0),
                    sample.bytes_received.unwrap_or(0),
                );
                let carried = all.carried.entry((key, socket.local == key.server)).or_default();
                *carried = (carried.0.max(acked), carried.1.max(received));
                let sends = carried.0 >= carried.1;
                let facts = all.entry(key);
                facts.bytes = facts.bytes.max(acked).max(received);
                if facts.process.is_none() {
                    facts.process.clone_from(&socket.process);
                }
                if sends && !sample.cc.is_empty() {
                    facts.cc.clone_from(&sample.cc);
                }
            }
        }
        all
    }

    fn entry(&mut self, key: Key) -> &mut Facts {
        if !self.facts.contains_key(&key) {
            self.order.push(key);
        }
        self.facts.entry(key).or_default()
    }

    /// The connection of which a socket is an end.
    pub(super) fn key(&self, socket: &Socket) -> Key {
        let is = |port: u16| self.server_ports.contains(&port);
        let (local, peer) = (socket.local.port, socket.peer.port);
        let local_listens = match (is(local), is(peer)) {
            (false, true) => false,
            (true, false) => true,
            _ if USUAL.contains(&peer) != USUAL.contains(&local) => USUAL.contains(&local),
            _ => local < peer,
        };
        ends(socket, local_listens)
    }

    /// Whether this end of its connection sends or receives the data.
    pub(super) fn side(&self, key: Key, end: Endpoint) -> Side {
        let carried = self.carried.get(&(key, end == key.server));
        if carried.is_none_or(|(acked, received)| acked >= received) {
            Side::Sender
        } else {
            Side::Receiver
        }
    }

    /// Name of the node with this end's address; the address if no file is of that node.
    pub(super) fn node(&self, end: Endpoint) -> String {
        self.nodes.get(&end.ip).cloned().unwrap_or_else(|| end.ip.to_string())
    }

    /// The names of all connections.
    pub(super) fn named(&self, names: &Names) -> BTreeMap<Key, ConnectionNames> {
        let roles = self.roles();
        let groups = self.groups(names, &roles);
        let mut count: BTreeMap<(&str, Role), u32> = BTreeMap::new();
        let mut named = BTreeMap::new();
        for key in &self.order {
            let (Some(&role), Some(group)) = (roles.get(key), groups.get(&key.server)) else {
                continue;
            };
            let number = count.entry((group, role)).or_default();
            let flow_id = match (role, *number) {
                (Role::Data, n) => format!("{group}/{n}"),
                (role, 0) => format!("{group}/{}", role.as_text()),
                (role, n) => format!("{group}/{}-{}", role.as_text(), n + 1),
            };
            *number += 1;
            named.insert(*key, ConnectionNames { flow_id, group: group.clone(), role });
        }
        named
    }

    fn roles(&self) -> BTreeMap<Key, Role> {
        let mut roles: BTreeMap<Key, Role> = BTreeMap::new();
        // Connections of one program to one server.
        let mut together: BTreeMap<(Endpoint, Option<u32>), Vec<Key>> = BTreeMap::new();
        let iperf3 =
            |facts: &Facts| facts.process.as_ref().is_some_and(|p| p.name.starts_with("iperf"));
        let any_iperf3 = self.facts.values().any(|facts| facts.listed || iperf3(facts));
        for (key, facts) in &self.facts {
            let stranger = facts.process.is_some() && !iperf3(facts) && any_iperf3;
            if facts.listed || !stranger {
                let pid = facts.process.as_ref().map(|process| process.pid);
                together.entry((key.server, pid)).or_default().push(*key);
                roles.insert(*key, Role::Data);
            } else {
                roles.insert(*key, Role::Other);
            }
        }
        let listed = self.facts.iter().filter(|(_, facts)| facts.listed);
        let listed: BTreeSet<Endpoint> = listed.map(|(key, _)| key.server).collect();
        for ((server, _), keys) in &together {
            let control: Vec<Key> = match listed.contains(server) {
                true => keys.iter().filter(|key| !self.facts[key].listed).copied().collect(),
                false => self.control_of(keys).into_iter().collect(),
            };
            roles.extend(control.into_iter().map(|key| (key, Role::Control)));
        }
        roles
    }

    /// The control connection among those of one program to one server.
    fn control_of(&self, keys: &[Key]) -> Option<Key> {
        if keys.len() < 2 {
            return None;
        }
        let fd = |key: &Key| self.facts[key].process.as_ref().map(|process| process.fd);
        if keys.iter().all(|key| fd(key).is_some()) {
            return keys.iter().min_by_key(|key| fd(key)).copied();
        }
        let mut by_bytes: Vec<(u64, Key)> =
            keys.iter().map(|key| (self.facts[key].bytes, *key)).collect();
        by_bytes.sort_unstable();
        let ((least, key), (next, _)) = (by_bytes[0], by_bytes[1]);
        let little = least < CONTROL_BYTES && least < next / 10;
        little.then_some(key)
    }

    /// A name for every server: the given one; otherwise its senders' congestion control, if no other server's senders have the
    /// same; otherwise its port, if no other server has the same; otherwise its address and port.
    fn groups(&self, names: &Names, roles: &BTreeMap<Key, Role>) -> BTreeMap<Endpoint, String> {
        let mut ccs: BTreeMap<Endpoint, BTreeSet<&str>> = BTreeMap::new();
        for (key, facts) in &self.facts {
            let of_server = ccs.entry(key.server).or_default();
            if roles.get(key) == Some(&Role::Data) && !facts.cc.is_empty() {
                of_server.insert(&facts.cc);
            }
        }
        // The number of servers whose senders have each congestion control, and of servers with each port.
        let mut of_cc: BTreeMap<&str, u32> = BTreeMap::new();
        let mut of_port: BTreeMap<u16, u32> = BTreeMap::new();
        for (server, ccs) in &ccs {
            *of_port.entry(server.port).or_default() += 1;
            for cc in ccs {
                *of_cc.entry(cc).or_default() += 1;
            }
        }
        let given = |server: &Endpoint| {
            let whole = names.get(&format!("{}:{}", server.ip, server.port));
            whole.or_else(|| names.get(&server.port.to_string())).cloned()
        };
        let only = |own: &BTreeSet<&str>| {
            let name = own.first().filter(|_| own.len() == 1)?;
            (of_cc.get(name) == Some(&1)).then(|| (*name).to_owned())
        };
        let by_port = |server: &Endpoint| match of_port.get(&server.port) {
            Some(1) => format!("port-{}", server.port),
            _ => format!("{}-{}", server.ip, server.port).replace(':', "-"),
        };
        let name = |(server, own): (&Endpoint, &BTreeSet<&str>)| {
            let name = given(server).or_else(|| only(own)).unwrap_or_else(|| by_port(server));
            (*server, name)
        };
        ccs.iter().map(name).collect()
    }
}
