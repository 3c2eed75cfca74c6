//! The keys of generated plans that come from the schema of plans: those of queues, and what links do to packets. A new key, table or kind of
//! queue is generated without a line here. A key of a new type needs values in [`QUANTITIES`], or `examples` in the schema.

use std::sync::LazyLock;

use ccbench_proto::plan::schema::schema;
use serde_json::Value;

use super::plan::Generator;

/// The keys of a link that the generator writes without the schema, and one without effect in the simulator.
const OTHER_KEYS: [&str; 14] = [
    "node",
    "toward",
    "dev",
    "path",
    "rate",
    "delay",
    "loss",
    "trace",
    "packet_log",
    "queue",
    "classes",
    "backend",
    "shaper",
    "allow_control_interface",
];

/// Values of quantities, by the titles of their types. The first value makes the simplest plan.
const QUANTITIES: [(&str, &[&str]); 6] = [
    ("rate", &["20mbit", "300kbit", "1mbit", "64mbit"]),
    ("size", &["1514B", "20000B", "0B", "38B", "256B", "1000000B"]),
    ("packets", &["2p", "0p", "1p", "16p"]),
    ("time", &["5ms", "0us", "1us", "100us", "1ms", "15ms", "20ms", "100ms"]),
    ("share", &["1%", "0%", "0.1%", "10%", "25%", "100%"]),
    ("queue limit", &["30p", "1p", "4p", "1000p", "20000B", "1514B", "100ms", "2bdp", "0.5bdp"]),
];

/// Whole numbers, as far as a key accepts them; its maximum is another value.
const NUMBERS: [u64; 6] = [2, 0, 1, 3, 16, 1024];

/// How often, of 256 times, a key of a link is written, one of a queue, and one of another table.
const OF_LINK: u8 = 48;
const OF_QUEUE: u8 = 160;
const OF_TABLE: u8 = 128;

/// A key of a table.
#[derive(Debug)]
struct Key {
    name: String,
    is_required: bool,
    values: Values,
}

#[derive(Debug)]
enum Values {
    /// One of these, as TOML and JSON write them.
    Any(Vec<String>),
    /// A table with these keys.
    Table(Vec<Key>),
}

/// The keys of a link, and those of each kind of queue.
#[derive(Debug)]
struct Keys {
    link: Vec<Key>,
    queues: Vec<(String, Vec<Key>)>,
}

static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    let whole = schema();
    let links = resolve(&whole, &whole["properties"]["links"]);
    let link = resolve(&whole, &links["additionalProperties"]);
    let queue = resolve(&whole, &link["properties"]["queue"]);
    let kinds = queue["oneOf"].as_array().cloned().unwrap_or_default();
    let kind = |one: &Value| {
        let name = one["properties"]["kind"]["const"].as_str().unwrap_or_default().to_owned();
        (name, keys(&whole, one, &["kind"]))
    };
    Keys { link: keys(&whole, link, &OTHER_KEYS), queues: kinds.iter().map(kind).collect() }
});

/// Follows a reference of the schema `whole`.
fn resolve<'s>(whole: &'s Value, schema: &'s Value) -> &'s Value {
    let inner = schema.pointer("/allOf/0").unwrap_or(schema);
    let target = inner.get("$ref").and_then(Value::as_str);
    let target = target.map(|target| target.trim_start_matches('#').replace("%20", " "));
    target.and_then(|target| whole.pointer(&target)).unwrap_or(inner)
}

/// Returns the keys of a table, except these.
fn keys(whole: &Value, table: &Value, except: &[&str]) -> Vec<Key> {
    let required = table["required"].as_array();
    let key = |(name, property): (&String, &Value)| Key {
        name: name.clone(),
        is_required: required.is_some_and(|all| all.iter().any(|one| one == name)),
        values: values(whole, name, property),
    };
    let properties = table["properties"].as_object().into_iter().flatten();
    properties.filter(|(name, _)| !except.contains(&name.as_str())).map(key).collect()
}

/// Returns the values that a key gets: the examples in its schema or, without any, those of its type.
fn values(whole: &Value, name: &str, property: &Value) -> Values {
    let schema = resolve(whole, property);
    if schema.get("properties").is_some() {
        return Values::Table(keys(whole, schema, &[]));
    }
    let text = |all: &Value| -> Vec<String> {
        all.as_array().into_iter().flatten().map(Value::to_string).collect()
    };
    let title = schema.get("title").and_then(Value::as_str);
    let quantity = QUANTITIES.iter().find(|(of, _)| Some(*of) == title);
    let words = schema.get("oneOf").and_then(Value::as_array);
    let found = match (property.get("examples"), quantity, words, schema["type"].as_str()) {
        (Some(examples), ..) => text(examples),
        (_, Some((_, values)), ..) => values.iter().map(|value| format!("\"{value}\"")).collect(),
        (_, _, Some(words), _) => words.iter().map(|word| word["const"].to_string()).collect(),
        (.., Some("boolean")) => vec!["true".to_owned(), "false".to_owned()],
        (.., Some("integer")) => numbers(property),
        _ => text(&schema["enum"]),
    };
    assert!(!found.is_empty(), "no values of `{name}`: give it `examples` in the schema");
    Values::Any(found)
}

/// Returns values of a whole number.
fn numbers(property: &Value) -> Vec<String> {
    let least = property["minimum"].as_u64().unwrap_or(0);
    let most = property["maximum"].as_u64();
    let fits = |number: &u64| *number >= least && most.is_none_or(|most| *number <= most);
    NUMBERS.into_iter().filter(fits).chain(most).map(|number| number.to_string()).collect()
}

/// Writes a queue of any kind to this table.
pub(super) fn queue(plan: &mut Generator<'_>, table: &str) {
    let kinds = &KEYS.queues;
    let (kind, keys) = &kinds[plan.choices.below(kinds.len() as u64) as usize];
    plan.optional(table, "queue.kind", &format!("\"{kind}\""), true);
    write(plan, table, "queue.", keys, OF_QUEUE);
}

/// Writes what a link does to packets to its table.
pub(super) fn link(plan: &mut Generator<'_>, table: &str) {
    write(plan, table, "", &KEYS.link, OF_LINK);
}

/// Writes the required keys to the table `table`, below `prefix`, and each other one with this probability.
fn write(plan: &mut Generator<'_>, table: &str, prefix: &str, keys: &[Key], of_256: u8) {
    for Key { name, is_required, values } in keys {
        if !is_required && !plan.choices.chance(of_256) {
            continue;
        }
        let name = format!("{prefix}{name}");
        match values {
            Values::Table(keys) => write(plan, table, &format!("{name}."), keys, OF_TABLE),
            Values::Any(values) => {
                let value = &values[plan.choices.below(values.len() as u64) as usize];
                plan.optional(table, &name, value, *is_required);
            }
        }
    }
}

/// Returns the keys that none of these plans has, although the simulator models them.
#[cfg(test)]
pub(super) fn missing(plans: &[String]) -> Vec<String> {
    use std::collections::BTreeSet;

    let mut found = BTreeSet::new();
    let mut kind = "";
    for line in plans.iter().flat_map(|plan| plan.lines()) {
        let Some((key, value)) = line.split_once(" = ") else { continue };
        kind = if key == "queue.kind" { value } else { kind };
        let is_of_queue = key.starts_with("queue.");
        found.insert(if is_of_queue { format!("{kind} {key}") } else { key.to_owned() });
    }
    let mut wanted = names("", &KEYS.link);
    for (kind, keys) in &KEYS.queues {
        let simulated = keys.iter().filter(|key| is_simulated(kind, keys, Some(*key)));
        let own = simulated.map(|key| format!("\"{kind}\" queue.{}", key.name));
        let kind_itself = is_simulated(kind, keys, None).then(|| format!("\"{kind}\" queue.kind"));
        wanted.extend(own.chain(kind_itself));
    }
    wanted.retain(|name| !found.contains(name));
    wanted
}

/// Returns the dotted names of all keys that are no tables.
#[cfg(test)]
fn names(prefix: &str, keys: &[Key]) -> Vec<String> {
    let of = |key: &Key| match &key.values {
        Values::Table(inner) => names(&format!("{prefix}{}.", key.name), inner),
        Values::Any(_) => vec![format!("{prefix}{}", key.name)],
    };
    keys.iter().flat_map(of).collect()
}

/// Returns whether the userspace queue has this kind with any value of this key, or at all.
#[cfg(test)]
fn is_simulated(kind: &str, keys: &[Key], key: Option<&Key>) -> bool {
    use ccbench_proto::plan::Queue;

    let values = |key: &Key| match &key.values {
        Values::Any(values) => values.clone(),
        Values::Table(_) => Vec::new(),
    };
    let name = |key: &Key| key.name.clone();
    let required = keys
        .iter()
        .filter(|other| other.is_required && Some(&other.name) != key.map(|key| &key.name));
    let mut fields = vec![format!("\"kind\": \"{kind}\"")];
    fields.extend(required.map(|key| format!("\"{}\": {}", name(key), values(key)[0])));
    let with = |more: Option<String>| {
        let fields: Vec<String> = fields.iter().cloned().chain(more).collect();
        let queue = serde_json::from_str::<Queue>(&format!("{{ {} }}", fields.join(", ")));
        queue.is_ok_and(|queue| !queue.needs_kernel())
    };
    let Some(key) = key else { return with(None) };
    values(key).into_iter().any(|value| with(Some(format!("\"{}\": {value}", key.name))))
}
