//! The plan for a testbed: the author's text, with an agent and an address for each node, and with `toward` instead of devices,
//! whose names differ there.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ccbench_proto::manifest::ReservedNode;
use toml_edit::{DocumentMut, Item, TableLike, value};

use super::{AGENT_PORT, Layout, ProvisionError, devices};

/// The agent's place of a node that is not reserved yet. RFC 2606: no host has a name with this ending.
fn placeholder(host: &str) -> String {
    format!("{host}.invalid:{AGENT_PORT}")
}

/// The nodes of the layout among those of a manifest, by their names in the plan.
///
/// # Errors
/// One is not there.
pub fn assigned<'m>(
    layout: &Layout<'_>,
    reserved: &'m [ReservedNode],
) -> Result<BTreeMap<String, &'m ReservedNode>, ProvisionError> {
    let find = |name: &String| {
        let host = layout.host(name);
        let node = reserved.iter().find(|node| node.name == host);
        let node = node.ok_or_else(|| ProvisionError::NotReserved(host.to_owned()))?;
        Ok((name.clone(), node))
    };
    layout.nodes().map(|(name, _)| find(name)).collect()
}

/// The text of the plan for the testbed. Nodes that are not in `assigned` have a placeholder for their agent's address.
///
/// # Errors
/// A link or a capture is at a device by which no node is reached, or the text cannot be read.
pub fn plan(
    layout: &Layout<'_>,
    text: &str,
    assigned: &BTreeMap<String, &ReservedNode>,
) -> Result<String, ProvisionError> {
    let mut document: DocumentMut = text.parse()?;
    for (name, _) in layout.nodes() {
        let agent = match assigned.get(name) {
            Some(node) => SocketAddr::new(node.control, AGENT_PORT).to_string(),
            None => placeholder(layout.host(name)),
        };
        edit(&mut document, "nodes", name, |node| {
            node.insert("agent", value(agent));
            if let Some(address) = layout.topology.address(name) {
                node.insert("address", value(address.to_string()));
            }
        });
    }
    for (kind, name, node, dev) in devices(layout.plan) {
        let toward = reached_by(layout, node, dev).ok_or_else(|| ProvisionError::Device {
            table: kind,
            name: name.to_owned(),
            node: node.to_owned(),
            dev: dev.to_owned(),
        })?;
        edit(&mut document, kind, name, |interface| {
            interface.remove("dev");
            interface.insert("toward", value(toward));
        });
    }
    Ok(format!("# Written by `ccbench testbed` for the nodes of a testbed.\n{document}"))
}

/// Changes the table `kind.name`, however it is written.
fn edit(
    document: &mut DocumentMut,
    kind: &str,
    name: &str,
    change: impl FnOnce(&mut dyn TableLike),
) {
    let tables = document.get_mut(kind).and_then(Item::as_table_like_mut);
    let Some(item) = tables.and_then(|tables| tables.get_mut(name)) else { return };
    if let Some(table) = item.as_table_like_mut() {
        change(table);
    }
    if let Some(inline) = item.as_inline_table_mut() {
        inline.fmt();
    }
}

/// A node that `node` reaches by this device: the one at its other end, if possible.
fn reached_by<'l>(layout: &'l Layout<'_>, node: &str, dev: &str) -> Option<&'l str> {
    let topology = &layout.topology;
    let interfaces = &topology.nodes.get(node)?.interfaces;
    let peer = interfaces.iter().find(|interface| interface.dev == dev)?.peer.as_str();
    let all = topology.nodes.keys().map(String::as_str);
    std::iter::once(peer).chain(all).find(|toward| topology.egress(node, toward) == Some(dev))
}
