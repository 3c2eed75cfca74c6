//! The plan's types as a JSON schema, with which editors complete and explain keys and mark errors. It is generated from the types
//! that parse a plan and their documentation. Rules about several keys are only in [`super::check`].
//!
//! Two keywords extend JSON Schema: `x-from` and `x-to` are the minimum and the maximum of a quantity, as text.

use std::borrow::Cow;

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use super::text::{Address, Levels, Name, Scalar};
use super::{Acks, AdaptiveRepeat, Plan, Repetitions, Setting};
use crate::units::{
    BYTE_UNITS, Bytes, Limit, Micros, PACKET_UNITS, Packets, Ppm, RATE_UNITS, Rate, SHARE_UNITS,
    TIME_UNITS,
};

/// The schema of a plan, in JSON Schema draft 7, which most editors' TOML plug-ins support.
pub fn schema() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| {
        settings.transforms.insert(0, Box::new(RecursiveTransform(without_null)));
    });
    settings.into_generator().into_root_schema_for::<Plan>().to_value()
}

/// Removes null, which TOML does not have: optional keys are simply not required.
fn without_null(schema: &mut Schema) {
    if let Some(types) = schema.get_mut("type").filter(|types| types.is_array()) {
        let one = types.as_array().and_then(|all| all.iter().find(|one| *one != "null"));
        *types = one.cloned().unwrap_or_default();
    }
    let null = |one: &Value| one.get("type").is_some_and(|it| it == "null");
    let Some(options) = schema.get("anyOf").and_then(Value::as_array) else { return };
    if let ([only, other], true) = (&options[..], options.iter().any(null)) {
        let left = if null(only) { other } else { only }.clone();
        schema.remove("anyOf");
        for (key, value) in left.as_object().into_iter().flatten() {
            schema.insert(key.clone(), value.clone());
        }
    }
}

/// A number with one of these units, in any case, as a pattern of ECMA 262.
fn pattern(units: &[(&str, u64)]) -> String {
    let letter = |c: char| match c.is_ascii_alphabetic() {
        true => format!("[{}{}]", c.to_ascii_lowercase(), c.to_ascii_uppercase()),
        false => c.to_string(),
    };
    let names: Vec<String> =
        units.iter().map(|(name, _)| name.chars().map(letter).collect()).collect();
    format!("^\\s*([0-9]+(\\.[0-9]*)?|\\.[0-9]+)\\s*({})\\s*$", names.join("|"))
}

/// A quantity: text with a unit.
fn quantity(title: &str, units: &[(&str, u64)], about: &str, examples: &[&str]) -> Schema {
    let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
    json_schema!({
        "title": title,
        "description": format!("{about} Units: {}.", names.join(", ")),
        "type": "string",
        "pattern": pattern(units),
        "examples": examples,
    })
}

macro_rules! quantities {
    ($($type:ty: $title:literal, $units:expr, $about:literal, $examples:expr;)+) => {$(
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $title.into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                quantity($title, $units, $about, &$examples)
            }
        }
    )+};
}
quantities! {
    Rate: "rate", RATE_UNITS, "Bits per second at layer 2; decimal prefixes, as in `tc`.", ["100mbit", "1.5gbit"];
    Bytes: "size", BYTE_UNITS, "A number of bytes.", ["187500B", "256KiB"];
    Packets: "packets", PACKET_UNITS, "A number of packets.", ["40p"];
    Micros: "time", TIME_UNITS, "A length of time, whole microseconds.", ["15ms", "60s"];
    Ppm: "share", SHARE_UNITS, "A share, to the millionth.", ["0.1%", "100ppm"];
}

/// Names one schema that is written by hand.
macro_rules! schema_of {
    ($($type:ty: $name:literal, $generator:ident => $schema:expr;)+) => {$(
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }
            fn json_schema($generator: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    )+};
}

schema_of! {
    Name: "name", _generator => json_schema!({
        "title": "name",
        "description": "1 to 32 letters, digits, `-` and `_`, beginning with a letter or a digit. Names become values in the results.",
        "type": "string",
        "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$",
        "examples": ["a", "bulk-1"],
    });
    Address: "address", _generator => json_schema!({
        "title": "IP address",
        "type": "string",
        "anyOf": [{ "format": "ipv4" }, { "format": "ipv6" }],
        "examples": ["10.0.1.1"],
    });
    Scalar: "level", _generator => json_schema!({
        "title": "level",
        "description": "A factor's level, as the matrix writes it.",
        "type": ["string", "number", "boolean"],
        "examples": ["heavy"],
    });
    Levels: "levels", generator => json_schema!({
        "title": "level, or list of levels",
        "anyOf": [Scalar::json_schema(generator), { "type": "array", "items": generator.subschema_for::<Scalar>() }],
        "examples": ["heavy"],
    });
    Limit: "queue limit", generator => json_schema!({
        "title": "queue limit",
        "description": "How much a queue may hold: a size, packets, what the rate drains in a time, or bandwidth-delay products (`\"1.5bdp\"`).",
        "anyOf": [
            generator.subschema_for::<Bytes>(), generator.subschema_for::<Packets>(), generator.subschema_for::<Micros>(),
            { "type": "string", "pattern": pattern(&[("bdp", 1000)]) },
        ],
        "examples": ["187500B", "40p", "15ms", "1.5bdp"],
    });
    Repetitions: "repetitions", generator => json_schema!({
        "anyOf": [
            { "type": "integer", "minimum": 1, "maximum": 65535 },
            generator.subschema_for::<AdaptiveRepeat>(),
        ],
        "examples": [5],
    });
    Setting: "setting", _generator => json_schema!({
        "title": "value",
        "anyOf": [{ "type": "string" }, { "type": "integer" }, { "type": "boolean" }],
        "examples": ["20mbit", "20ms", "0.1%"],
    });
    Acks: "acks", generator => json_schema!({
        "anyOf": [
            { "const": "auto", "description": "At most one per 10 ms and socket; a longer interval if a node has more than 100 sockets." },
            { "const": "off", "description": "None; nothing is loaded." },
            { "const": "every-ack", "description": "Each." },
            { "const": "on-change", "description": "Those that find `cwnd`, `ssthresh`, the state of loss recovery, the lowest RTT, \
or the counts of lost, resent and CE-marked packets changed." },
            generator.subschema_for::<Micros>(),
        ],
        "examples": ["auto", "10ms"],
    });
}
