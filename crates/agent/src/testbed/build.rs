//! Builds a testbed from a topology: namespaces, wires and listening agents. Dropping it removes all of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ccbench_proto::topology::{Interface, Topology};

use super::children::ChildReaper;
use super::control_input::ControlInput;
use super::error::TestbedError;
use super::identity::ProcessIdentity;
use super::netns::Netns;
use super::record::{NodeRecord, Record, remove_files, socket_path};
use super::rtnl::{FIRST, LO, Rtnl, VethEnd};

/// Limit of a socket's path, without the terminating NUL.
const MAX_SOCKET_PATH: usize = 107;

/// Namespaces, wires and agents.
#[derive(Debug)]
pub struct Testbed<'a> {
    dir: PathBuf,
    names: Vec<String>,
    record: Record,
    namespaces: BTreeMap<String, Netns>,
    children: ChildReaper,
    input: &'a ControlInput,
}

impl<'a> Testbed<'a> {
    /// Builds everything and waits until all agents listen.
    ///
    /// # Errors
    /// The error names what failed; everything created before is removed.
    pub fn build(
        dir: &Path,
        topology: &Topology,
        agent_bin: &Path,
        input: &'a ControlInput,
    ) -> Result<Self, TestbedError> {
        for node in topology.nodes.keys() {
            let path = socket_path(dir, node);
            let length = path.as_os_str().as_bytes().len();
            if length > MAX_SOCKET_PATH {
                return Err(TestbedError::SocketPath { path, length });
            }
        }
        let mut testbed = Self {
            dir: dir.to_owned(),
            names: topology.nodes.keys().cloned().collect(),
            record: Record::own().map_err(TestbedError::system("read /proc"))?,
            namespaces: BTreeMap::new(),
            children: ChildReaper::new(dir)?,
            input,
        };
        // Written first, so that a sweep does not take this directory for a dead testbed's.
        testbed.store_record()?;
        for name in topology.nodes.keys() {
            testbed.namespaces.insert(name.clone(), Netns::make(name)?);
        }
        // The agents start while the wires are created.
        for name in topology.nodes.keys() {
            testbed.start_agent(name, topology, agent_bin)?;
        }
        testbed.wire(topology)?;
        testbed.children.wait_ready(testbed.input)?;
        testbed.store_record()?;
        Ok(testbed)
    }

    /// Returns the testbed's record, as in testbed.json.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Returns the agents that have ended since the last call, and how.
    pub fn reap(&mut self) -> Vec<(String, String)> {
        self.children.reap()
    }

    fn store_record(&self) -> Result<(), TestbedError> {
        let operation = format!("write testbed.json in {}", self.dir.display());
        self.record.store(&self.dir).map_err(TestbedError::system(operation))
    }

    fn start_agent(
        &mut self,
        name: &str,
        topology: &Topology,
        agent_bin: &Path,
    ) -> Result<(), TestbedError> {
        let netns = namespace(&mut self.namespaces, name)?;
        let netns_inode = netns.inode();
        let pid = self.children.start(name, agent_bin, &netns.path())?;
        let process = ProcessIdentity::of(pid).or_else(|e| match e.kind() {
            // If the agent is dead already, wait_ready() reports it.
            std::io::ErrorKind::NotFound => Ok(ProcessIdentity { pid, starttime: 0 }),
            _ => Err(TestbedError::system(format!("read /proc/{pid}/stat"))(e)),
        })?;
        let node = NodeRecord {
            process,
            socket: socket_path(&self.dir, name),
            address: topology.address(name).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            netns_inode,
        };
        self.record.nodes.insert(name.to_owned(), node);
        Ok(())
    }

    fn wire(&mut self, topology: &Topology) -> Result<(), TestbedError> {
        let mut outside = Rtnl::open()?;
        for wire in &topology.wires {
            let (a, b) = (self.end(topology, &wire.a)?, self.end(topology, &wire.b)?);
            outside.add_wire(a, b)?;
        }
        for (name, node) in &topology.nodes {
            let rtnl = namespace(&mut self.namespaces, name)?.rtnl();
            rtnl.set_up(LO, "lo")?;
            for (position, interface) in node.interfaces.iter().enumerate() {
                rtnl.configure(interface, index_at(position))?;
            }
            for route in &node.routes {
                let (index, _) = find(&node.interfaces, name, &route.dev)?;
                rtnl.add_route(route, index)?;
            }
        }
        Ok(())
    }

    fn end<'t>(
        &self,
        topology: &'t Topology,
        (name, dev): &(String, String),
    ) -> Result<VethEnd<'t>, TestbedError> {
        let missing = || no_such(name, dev);
        let node = topology.nodes.get(name).ok_or_else(missing)?;
        let (index, interface) = find(&node.interfaces, name, dev)?;
        let netns = self.namespaces.get(name).ok_or_else(missing)?.raw_fd();
        Ok(VethEnd { interface, index, netns })
    }
}

impl Drop for Testbed<'_> {
    fn drop(&mut self) {
        self.children.stop(self.input);
        self.namespaces.clear();
        remove_files(&self.dir, &mut self.names.iter().map(String::as_str));
    }
}

fn index_at(position: usize) -> u32 {
    FIRST + position as u32
}

fn find<'t>(
    interfaces: &'t [Interface],
    node: &str,
    dev: &str,
) -> Result<(u32, &'t Interface), TestbedError> {
    let position = interfaces.iter().position(|interface| interface.dev == dev);
    let position = position.ok_or_else(|| no_such(node, dev))?;
    Ok((index_at(position), &interfaces[position]))
}

fn namespace<'n>(
    namespaces: &'n mut BTreeMap<String, Netns>,
    name: &str,
) -> Result<&'n mut Netns, TestbedError> {
    namespaces.get_mut(name).ok_or_else(|| no_such(name, "any"))
}

/// Returns the error of a topology that contradicts itself.
fn no_such(node: &str, dev: &str) -> TestbedError {
    TestbedError::System {
        operation: format!("find interface {dev} of node {node} in the topology"),
        source: std::io::ErrorKind::NotFound.into(),
    }
}
