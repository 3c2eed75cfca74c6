//! FABRIC: a notebook that reserves a slice with fablib, installs ccbench, and runs the plan from a node of the slice. Its tables
//! `node_conf`, `net_conf` and `route_conf` have the format of FABRIC's teaching notebooks.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::cloudlab::{python, python_lines};
use super::{Layout, filled, subnet_of};

const TEMPLATE: &str = include_str!("notebook.py");
const CODE: &str = "# %%";
const MARKDOWN: &str = "# %% [markdown]";
const IMAGE: &str = "default_ubuntu_24";

/// Returns the notebook (nbformat 4.5). `files` are the plan and the files that it names, relative to the notebook's directory.
pub fn notebook(layout: &Layout<'_>, files: &[String]) -> Value {
    let machine = |name: &str, cores: u32, ram: u32, disk: u32| {
        let mut machine = json!({ "name": name, "cores": cores, "ram": ram, "disk": disk });
        machine["image"] = json!(IMAGE);
        machine["packages"] = json!([]);
        machine
    };
    let nodes: Vec<Value> =
        layout.nodes().map(|(name, _)| machine(layout.host(name), 4, 8, 20)).collect();
    let networks: Vec<Value> =
        layout.segments().map(|(k, ends)| network(layout, k, &ends)).collect();
    let options: BTreeMap<&str, Value> = layout
        .nodes()
        .map(|(name, _)| (layout.host(name), json!(layout.network_options(name))))
        .collect();
    let code = filled(
        TEMPLATE,
        &[
            ("SLICE", json!(format!("ccbench-{}", layout.plan.name)).to_string()),
            ("NODE_CONF", python_lines(&nodes)),
            ("NET_CONF", python_lines(&networks)),
            ("ROUTE_CONF", python_lines(&routes(layout))),
            ("CONTROLLER_CONF", python(&machine(&layout.controller, 4, 16, 100))),
            ("NETWORK_OPTIONS", python(&json!(options))),
            ("FILES", python(&json!(files))),
            ("TITLE", layout.title()),
        ],
    );
    json!({
        "cells": cells(&code),
        "metadata": {
            "kernelspec": { "display_name": "Python 3", "language": "python", "name": "python3" },
            "language_info": { "name": "python" },
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    })
}

fn network(layout: &Layout<'_>, number: usize, ends: &[(&str, String); 2]) -> Value {
    let interface = |node: &str, addr: &str| json!({ "name": layout.host(node), "addr": addr });
    let nodes: Vec<Value> = ends.iter().map(|(node, address)| interface(node, address)).collect();
    let subnet = subnet_of(&ends[0].1);
    json!({ "name": format!("net{number}"), "subnet": subnet, "nodes": nodes })
}

/// Returns one entry for each subnet and gateway, with the nodes that have this route.
fn routes(layout: &Layout<'_>) -> Vec<Value> {
    let mut nodes_by_route: BTreeMap<(String, String), Vec<&str>> = BTreeMap::new();
    for (name, node) in layout.nodes() {
        for route in &node.routes {
            let key = (format!("{}/24", route.subnet), route.via.to_string());
            nodes_by_route.entry(key).or_default().push(layout.host(name));
        }
    }
    let entry = |((addr, gw), nodes): ((String, String), Vec<&str>)| json!({ "addr": addr, "gw": gw, "nodes": nodes });
    nodes_by_route.into_iter().map(entry).collect()
}

/// Splits a program into notebook cells, which begin with `# %%`. Text lines begin with `# `.
fn cells(code: &str) -> Vec<Value> {
    let mut cells: Vec<(bool, Vec<&str>)> = Vec::new();
    for line in code.lines() {
        match line {
            CODE | MARKDOWN => cells.push((line == MARKDOWN, Vec::new())),
            _ => {
                if let Some((text, lines)) = cells.last_mut() {
                    let plain = line.strip_prefix("# ").unwrap_or(line.trim_start_matches('#'));
                    lines.push(if *text { plain } else { line });
                }
            }
        }
    }
    let cell = |(index, (text, lines)): (usize, (bool, Vec<&str>))| {
        let source =
            lines.join("\n").trim().split_inclusive('\n').map(str::to_owned).collect::<Vec<_>>();
        let (id, metadata) = (format!("cell-{index}"), json!({}));
        if text {
            json!({ "cell_type": "markdown", "id": id, "metadata": metadata, "source": source })
        } else {
            json!({
                "cell_type": "code", "execution_count": null, "id": id, "metadata": metadata, "outputs": [], "source": source,
            })
        }
    };
    cells.into_iter().enumerate().map(cell).collect()
}
