//! Parses flags whose value is a small table: `fq_codel,limit=1000p,target=5ms,ecn`. They are deserialized into the
//! plan's types, so keys and units are the plan's.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Why a flag's value cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// A part is not `KEY=VALUE` or `KEY`.
    #[error("`{part}` is neither KEY=VALUE nor KEY; write it like {first},key=value")]
    Part {
        /// The part.
        part: String,
        /// The key of the first value.
        first: String,
    },
    /// A key is given twice.
    #[error("`{0}` is given twice")]
    Duplicate(String),
    /// A required key is missing.
    #[error("`{0}` is missing; add `,{0}={example}`", example = example(.0))]
    Missing(String),
    /// A key without a value is `true`, which the key does not accept.
    #[error("`{0}` needs a value: write `{0}=…`")]
    NoValue(String),
    /// A key or value that the plan's type does not accept.
    #[error("{0}")]
    Value(serde_json::Error),
}

/// Returns an example value of a required key.
fn example(key: &str) -> &'static str {
    match key {
        "enter" => "1%",
        "leave" => "20%",
        "rate" => "10mbit",
        "spread" | "hold" | "every" => "2ms",
        "kind" => "codel",
        "min" => "30kB",
        "max" => "90kB",
        // `limit`, `burst`.
        _ => "100kB",
    }
}

/// Limit of numeric values that are tried both as a string and as an integer. A number is a string for one key (`alpha`
/// of dualpi2) and an integer for another (`alpha` of pie).
const MAX_NUMBERS: usize = 8;

/// Reads one word of a fixed set, like `hold`.
///
/// # Errors
/// The word is not in the set; the message lists the set.
pub(crate) fn word<T: DeserializeOwned>(text: &str) -> Result<T, TableError> {
    serde_json::from_value(Value::String(text.to_owned())).map_err(TableError::Value)
}

/// Parses `WORD,key=value,key`. The first word, if it has no `=`, is the value of `first`. Any other word without `=`
/// is `true`.
///
/// # Errors
/// A key or value is wrong; the error names it.
pub(crate) fn table<T: DeserializeOwned>(first: &str, text: &str) -> Result<T, TableError> {
    build(&fields(first, text)?)
}

/// Splits a table into keys and values as written; the value is `None` for a key without one, which means `true`.
pub(crate) fn fields(first: &str, text: &str) -> Result<Vec<(String, Option<String>)>, TableError> {
    let mut found: Vec<(String, Option<String>)> = Vec::new();
    for (position, part) in text.split(',').enumerate() {
        let part = part.trim();
        let (key, value) = match part.split_once('=') {
            Some((key, value)) => (key.trim(), Some(value.trim().to_owned())),
            None if position == 0 => (first, Some(part.to_owned())),
            None => (part, None),
        };
        if key.is_empty() || value.as_deref() == Some("") {
            return Err(TableError::Part { part: part.to_owned(), first: first.to_owned() });
        }
        if found.iter().any(|(other, _)| other == key) {
            return Err(TableError::Duplicate(key.to_owned()));
        }
        found.push((key.to_owned(), value));
    }
    Ok(found)
}

/// Deserializes keys and values.
pub(crate) fn build<T: DeserializeOwned>(
    fields: &[(String, Option<String>)],
) -> Result<T, TableError> {
    let numbers: Vec<String> = fields
        .iter()
        .filter(|(_, value)| value.as_ref().is_some_and(|value| value.parse::<u64>().is_ok()))
        .map(|(key, _)| key.clone())
        .take(MAX_NUMBERS)
        .collect();
    let mut reported = None;
    for as_text in 0..1_u32 << numbers.len() {
        let value = value_of(fields, |key| {
            numbers.iter().position(|number| number == key).is_some_and(|n| as_text >> n & 1 == 1)
        });
        match serde_json::from_value(value) {
            Ok(built) => return Ok(built),
            Err(error) => {
                // Another attempt may have the right type, so report a wrong type only if there is no other error.
                let wrong_type = error.to_string().starts_with("invalid type");
                if reported.is_none() || !wrong_type {
                    reported = Some(error);
                }
            }
        }
    }
    let error = reported.unwrap_or_else(|| serde::de::Error::custom("no value"));
    // serde_json reports the missing field only in the message, and not the key of a wrong type.
    let text = error.to_string();
    let mut without = fields.iter().filter(|(_, value)| value.is_none());
    let is_written = fields.iter().any(|(_, value)| value.as_deref() == Some("true"));
    if text.starts_with("invalid type: boolean `true`")
        && !is_written
        && let (Some((key, _)), None) = (without.next(), without.next())
    {
        return Err(TableError::NoValue(key.clone()));
    }
    let missing = text.strip_prefix("missing field `").and_then(|rest| rest.split_once('`'));
    Err(missing.map_or(TableError::Value(error), |(key, _)| TableError::Missing(key.to_owned())))
}

fn value_of(fields: &[(String, Option<String>)], is_text: impl Fn(&str) -> bool) -> Value {
    let value = |key: &str, value: &Option<String>| match value.as_deref() {
        None | Some("true") => Value::Bool(true),
        Some("false") => Value::Bool(false),
        Some(text) => match text.parse::<u64>() {
            Ok(number) if !is_text(key) => Value::from(number),
            _ => Value::String(text.to_owned()),
        },
    };
    let map: Map<String, Value> =
        fields.iter().map(|(key, text)| (key.clone(), value(key, text))).collect();
    Value::Object(map)
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::{BurstLoss, Codel, Distribution, Dualpi2, Jitter, OnEnd, Pie, Queue};
    use ccbench_proto::units::{Limit, Micros, Packets};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn queues_use_the_keys_and_units_of_the_plan() {
        let queue: Queue = table("kind", "fq_codel,limit=1000p,flows=64,target=1ms,ecn").unwrap();
        let wanted = r#"{"kind":"fq_codel","limit":"1000p","flows":64,"target":"1ms","ecn":true}"#;
        assert_eq!(queue, serde_json::from_str(wanted).unwrap());
        // The same key is a number in one kind and a string in the other.
        assert!(matches!(table("kind", "pie,alpha=2"), Ok(Queue::Pie(Pie { alpha: Some(2), .. }))));
        let dualpi2: Queue = table("kind", "dualpi2,alpha=1,beta=3.2,coupling_factor=3").unwrap();
        assert!(
            matches!(&dualpi2, Queue::Dualpi2(Dualpi2 { alpha: Some(a), coupling_factor: Some(3), .. }) if a == "1")
        );
        assert!(matches!(
            table("kind", "codel,limit=7p,ecn=false"),
            Ok(Queue::Codel(Codel { limit, ecn: Some(false), .. }))
                if limit == Some(Limit::Packets(Packets::new(7)))
        ));
    }

    #[test]
    fn impairments_are_parsed_as_tables() {
        let jitter: Jitter = table("spread", "2ms,distribution=pareto,correlation=25%").unwrap();
        assert_eq!(jitter.spread, Micros::from_millis(2));
        assert_eq!((jitter.distribution, jitter.reorder), (Distribution::Pareto, false));
        let burst: BurstLoss = table("enter", "1%,leave=20%").unwrap();
        assert_eq!((burst.enter.get(), burst.leave.get()), (10_000, 200_000));
        assert_eq!(word::<OnEnd>("loop").unwrap(), OnEnd::Loop);
    }

    #[test]
    fn errors_name_the_key_or_value() {
        for (text, wanted) in [
            ("codell", "unknown variant `codell`, expected one of `pfifo`"),
            ("codel,targt=5ms", "unknown field `targt`"),
            ("codel,target=5", "the unit is missing"),
            ("codel,target=5furlongs", "the unit is unknown"),
            ("codel,target=5ms,target=6ms", "`target` is given twice"),
            ("codel,,ecn", "neither KEY=VALUE nor KEY"),
            ("codel,limit=", "neither KEY=VALUE nor KEY"),
            ("red", "`limit` is missing; add `,limit=100kB`"),
            ("red,limit=90kB", "`min` is missing; add `,min=30kB`"),
        ] {
            let error = table::<Queue>("kind", text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
        let leave = table::<BurstLoss>("enter", "1%").unwrap_err().to_string();
        assert_eq!(leave, "`leave` is missing; add `,leave=20%`");
        assert!(word::<OnEnd>("holt").unwrap_err().to_string().contains("expected one of `hold`"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,60}") {
            let _ = table::<Queue>("kind", &text);
            let _ = table::<Jitter>("spread", &text);
            let _ = table::<BurstLoss>("enter", &text);
        }

        #[test]
        fn almost_valid_texts_do_not_panic(
            kind in "(pfifo|codel|fq_codel|fq|pie|red|dualpi2|cake)",
            parts in proptest::collection::vec("[a-z_]{1,8}(=[0-9a-zB%.]{0,6})?", 0..5),
            real in proptest::collection::vec(
                "(limit|target|interval|alpha|beta|coupling_factor|flows|min|max)=[0-9]{1,4}(p|B|ms|us|)", 0..9),
        ) {
            let text = [vec![kind], real, parts].concat().join(",");
            let _ = table::<Queue>("kind", &text);
        }

        #[test]
        fn written_values_are_parsed_back(limit in 1_u32..1_000_000, target_us in 1_u64..10_000_000) {
            let text = format!("codel,limit={limit}p,target={target_us}us");
            let queue: Queue = table("kind", &text).unwrap();
            let wanted = Queue::Codel(Codel {
                limit: Some(Limit::Packets(Packets::new(limit))),
                target: Some(Micros::new(target_us)),
                ..Codel::default()
            });
            prop_assert_eq!(queue, wanted);
        }
    }
}
