//! CloudLab: a profile, that is, a geni-lib program that prints a request (RSpec).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Layout, filled};

const TEMPLATE: &str = include_str!("profile.py");
/// Port speeds that the profile offers.
const SPEEDS_KBPS: [u64; 4] = [1_000_000, 10_000_000, 25_000_000, 100_000_000];

/// Returns `profile.py`.
pub fn profile(layout: &Layout<'_>) -> String {
    let mut interfaces: BTreeMap<&str, Vec<(String, String)>> = BTreeMap::new();
    for (number, ends) in layout.segments() {
        for (node, address) in ends {
            interfaces.entry(node).or_default().push((format!("link{number}"), address));
        }
    }
    let nodes: Vec<Value> = layout
        .nodes()
        .map(|(name, node)| {
            json!({
                "host": layout.host(name),
                "interfaces": interfaces.get(name.as_str()).cloned().unwrap_or_default(),
                "network": layout.network(name, node),
            })
        })
        .collect();
    filled(
        TEMPLATE,
        &[
            ("NODES", python_lines(&nodes)),
            ("CONTROLLER", layout.controller.clone()),
            ("LINK_SPEED_KBPS", link_speed_kbps(layout).to_string()),
            // The title is inside a docstring.
            ("TITLE", layout.title().replace('\\', r"\\").replace('"', "\\\"")),
        ],
    )
}

/// Formats a Python list with one element per line.
pub fn python_lines(elements: &[Value]) -> String {
    let lines: String =
        elements.iter().map(|element| format!("    {},\n", python(element))).collect();
    if lines.is_empty() { "[]".to_owned() } else { format!("[\n{lines}]") }
}

/// Formats a value without booleans and null as Python.
pub fn python(value: &Value) -> String {
    match value {
        Value::Array(elements) => {
            let elements: Vec<String> = elements.iter().map(python).collect();
            format!("[{}]", elements.join(", "))
        }
        Value::Object(members) => {
            let member =
                |(key, value): (&String, &Value)| format!("{}: {}", json!(key), python(value));
            let members: Vec<String> = members.iter().map(member).collect();
            format!("{{{}}}", members.join(", "))
        }
        // Strings and numbers are written as in JSON.
        other => other.to_string(),
    }
}

/// Returns the lowest speed that is at least the plan's highest rate, or 0 (any) if every port has that speed.
fn link_speed_kbps(layout: &Layout<'_>) -> u64 {
    let Some(rate) = layout.max_rate else { return 0 };
    let rate_kbps = rate.bits_per_sec().div_ceil(1000);
    let speed = SPEEDS_KBPS.into_iter().find(|speed| *speed >= rate_kbps);
    speed.filter(|speed| *speed > SPEEDS_KBPS[0]).unwrap_or(0)
}
