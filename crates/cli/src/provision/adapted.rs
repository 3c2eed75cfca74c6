//! The plan for a testbed: the author's text with an agent and an address for each node. `toward` replaces device names, which
//! differ on the testbed.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ccbench_proto::manifest::ReservedNode;
use toml_edit::{DocumentMut, Item, TableLike, value};

use super::{AGENT_PORT, Layout, ProvisionError, devices};

/// Returns a placeholder for the agent of a node that is not reserved yet. No host has a name with this ending (RFC 2606).
fn placeholder(host: &str) -> String {
    format!("{host}.invalid:{AGENT_PORT}")
}

/// Returns the layout's nodes in a manifest, by their names in the plan.
///
/// # Errors
/// The manifest lacks a node.
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

/// Returns the text of the plan for the testbed. Nodes that are not in `assigned` get a placeholder for their agent's address.
///
/// # Errors
/// A link or capture names a device that leads to no node, or the text cannot be parsed.
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

/// Edits the table `kind.name`, whichever TOML syntax it uses.
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

/// Returns a node that `node` reaches through this device: if possible, the one at its other end.
fn reached_by<'l>(layout: &'l Layout<'_>, node: &str, dev: &str) -> Option<&'l str> {
    let topology = &layout.topology;
    let interfaces = &topology.nodes.get(node)?.interfaces;
    let peer = interfaces.iter().find(|interface| interface.dev == dev)?.peer.as_str();
    let all = topology.nodes.keys().map(String::as_str);
    std::iter::once(peer).chain(all).find(|toward| topology.egress(node, toward) == Some(dev))
}
