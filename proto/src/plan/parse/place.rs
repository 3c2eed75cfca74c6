//! A deserializer over a TOML value whose errors contain their place and the expectation, so that [`super`] can name the place,
//! repair it and look for the next problem.

use std::fmt::Display;

use serde::de::value::StrDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, Expected, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use toml::{Table, Value};

use crate::plan::Queue;

/// What is wrong with a key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum KeyErrorKind {
    /// A key that the table does not have, and those it has.
    Unknown(String, &'static [&'static str]),
    /// A key that the table must have.
    Missing(&'static str),
    /// A word that is not one of these.
    Word(String, &'static [&'static str]),
    /// Anything else, in words.
    Other(String),
}

/// An error and its place: the segments of its dotted key. For a missing or unknown key, it is the place of the table, otherwise
/// that of the value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct KeyError {
    pub(super) path: Option<Vec<String>>,
    pub(super) kind: KeyErrorKind,
}

impl KeyError {
    fn new(kind: KeyErrorKind) -> Self {
        Self { path: None, kind }
    }

    fn at(mut self, path: &[String]) -> Self {
        self.path.get_or_insert_with(|| path.to_vec());
        self
    }
}

impl Display for KeyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.kind)
    }
}

impl std::error::Error for KeyError {}

impl serde::de::Error for KeyError {
    fn custom<T: Display>(message: T) -> Self {
        Self::new(KeyErrorKind::Other(message.to_string()))
    }
    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format!("must be {}, not {}", needed(expected), found_words(found)))
    }
    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }
    fn unknown_variant(word: &str, known: &'static [&'static str]) -> Self {
        Self::new(KeyErrorKind::Word(word.to_owned(), known))
    }
    fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        Self::new(KeyErrorKind::Unknown(field.to_owned(), known))
    }
    fn missing_field(field: &'static str) -> Self {
        Self::new(KeyErrorKind::Missing(field))
    }
}

/// The type's expectation, in terms of a plan.
fn needed(expected: &dyn Expected) -> String {
    let text = expected.to_string();
    match text.as_str() {
        "a string" | "str" => "text in quotes".to_owned(),
        "a boolean" => "`true` or `false`".to_owned(),
        "a sequence" => "a list".to_owned(),
        "u8" => "a whole number from 0 to 255".to_owned(),
        "u16" => "a whole number from 0 to 65535".to_owned(),
        "u32" => "a whole number from 0 to 4294967295".to_owned(),
        "u64" => "a whole number from 0 to 9223372036854775807".to_owned(),
        "internally tagged enum Queue" => {
            "a table like { kind = \"bfifo\", limit = \"187500B\" }".to_owned()
        }
        "struct Node" => "a table like {} or { agent = \"host:7700\" }".to_owned(),
        "struct Link" => "a table with `node`, `toward` and `rate`".to_owned(),
        "struct Flow" => "a table with `from` and `to`".to_owned(),
        "struct Probe" => "a table with `kind`, `from` and `to`".to_owned(),
        "struct Capture" => "a table with `node` and `toward`".to_owned(),
        "struct Phase" => "a table with `name`, `length` and `flows`".to_owned(),
        "struct Expect" => "a table with `claim`, `metric` and what it must be".to_owned(),
        "struct Design" => "a table like { kind = \"latin-hypercube\", points = 200 }".to_owned(),
        "struct Until" => "a table with `metric` and `within`".to_owned(),
        "struct Compare" => "a table with `a`, `b`, `metric`, `better` and `margin`".to_owned(),
        "struct Change" => "a table with `at` and `set`".to_owned(),
        "struct Class" => "a table with `rate` and `match`".to_owned(),
        "struct TraceUse" => "a table like { file = \"traces/lte.csv\" }".to_owned(),
        "struct Jitter" => "a table like { spread = \"2ms\" }".to_owned(),
        "struct BurstLoss" => "a table like { enter = \"1%\", leave = \"25%\" }".to_owned(),
        "struct Reorder" => "a table like { share = \"1%\" }".to_owned(),
        "struct EcnRewrite" => "a table like { ect1 = \"ect0\" }".to_owned(),
        "struct Policer" => "a table like { rate = \"10mbit\", burst = \"100kB\" }".to_owned(),
        "struct AckAggregation" => "a table like { hold = \"2ms\" }".to_owned(),
        "struct Slot" => "a table like { every = \"5ms\", bytes = \"60kB\" }".to_owned(),
        "struct Tbf" => "a table like { burst = \"100kB\" }".to_owned(),
        "struct Cc" => "a table with `algorithm`".to_owned(),
        "struct Match" => "a table like { to = \"dst\" }".to_owned(),
        "a map" => "a table".to_owned(),
        other if other.starts_with("struct ") => "a table".to_owned(),
        other => other.to_owned(),
    }
}

fn found_words(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(b) => format!("`{b}`"),
        Unexpected::Signed(n) => format!("the number `{n}`"),
        Unexpected::Unsigned(n) => format!("the number `{n}`"),
        Unexpected::Float(n) => format!("the number `{n}`"),
        Unexpected::Str(s) => format!("the text `{s}`"),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a table".to_owned(),
        other => other.to_string(),
    }
}

impl Queue {
    /// Every `kind`, in the order of the variants: serde lists them in its error about an unknown one.
    pub fn kinds() -> &'static [&'static str] {
        let value = Value::Table(Table::from_iter([("kind".to_owned(), "?".into())]));
        match Self::deserialize(At { value: &value, path: Vec::new() }) {
            Err(KeyError { kind: KeyErrorKind::Word(_, known), .. }) => known,
            _ => &[],
        }
    }
}

/// A value and its place.
pub(super) struct At<'v> {
    pub(super) value: &'v Value,
    pub(super) path: Vec<String>,
}

impl At<'_> {
    fn unexpected(&self) -> Unexpected<'_> {
        match self.value {
            Value::String(s) => Unexpected::Str(s),
            Value::Integer(n) => Unexpected::Signed(*n),
            Value::Float(n) => Unexpected::Float(*n),
            Value::Boolean(b) => Unexpected::Bool(*b),
            Value::Datetime(_) => Unexpected::Other("a date"),
            Value::Array(_) => Unexpected::Seq,
            Value::Table(_) => Unexpected::Map,
        }
    }

    fn child<'v>(path: &[String], segment: String, value: &'v Value) -> At<'v> {
        let mut path = path.to_vec();
        path.push(segment);
        At { value, path }
    }
}

impl<'v> Deserializer<'v> for At<'v> {
    type Error = KeyError;

    fn deserialize_any<V: Visitor<'v>>(self, visitor: V) -> Result<V::Value, KeyError> {
        match self.value {
            Value::String(s) => visitor.visit_borrowed_str(s),
            Value::Integer(n) => visitor.visit_i64(*n),
            Value::Float(n) => visitor.visit_f64(*n),
            Value::Boolean(b) => visitor.visit_bool(*b),
            Value::Datetime(_) => Err(KeyError::invalid_type(self.unexpected(), &visitor)),
            Value::Array(items) => {
                visitor.visit_seq(Items { items: items.iter(), index: 0, path: self.path })
            }
            Value::Table(table) => visitor.visit_map(Entries {
                entries: Box::new(table.iter()),
                value: None,
                path: self.path,
            }),
        }
    }

    fn deserialize_option<V: Visitor<'v>>(self, visitor: V) -> Result<V::Value, KeyError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'v>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, KeyError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'v>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, KeyError> {
        match self.value {
            // Serde would otherwise accept a list as the fields in their order.
            Value::Array(_) => Err(KeyError::invalid_type(self.unexpected(), &visitor)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'v>>(
        self,
        _name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, KeyError> {
        let Value::String(word) = self.value else {
            let words: Vec<String> = known.iter().map(|w| format!("\"{w}\"")).collect();
            let expected = format!("one of {}", words.join(", "));
            return Err(KeyError::invalid_type(self.unexpected(), &expected.as_str()));
        };
        let word: StrDeserializer<'_, KeyError> = word.as_str().into_deserializer();
        visitor.visit_enum(word)
    }

    forward_to_deserialize_any! {
        <V: Visitor<'v>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

struct Items<'v> {
    items: std::slice::Iter<'v, Value>,
    index: usize,
    path: Vec<String>,
}

impl<'v> SeqAccess<'v> for Items<'v> {
    type Error = KeyError;

    fn next_element_seed<T: DeserializeSeed<'v>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, KeyError> {
        let Some(value) = self.items.next() else { return Ok(None) };
        let item = At::child(&self.path, self.index.to_string(), value);
        self.index += 1;
        let path = item.path.clone();
        seed.deserialize(item).map(Some).map_err(|e| e.at(&path))
    }
}

struct Entries<'v> {
    entries: Box<dyn Iterator<Item = (&'v String, &'v Value)> + 'v>,
    value: Option<At<'v>>,
    path: Vec<String>,
}

impl<'v> MapAccess<'v> for Entries<'v> {
    type Error = KeyError;

    fn next_key_seed<K: DeserializeSeed<'v>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, KeyError> {
        let Some((key, value)) = self.entries.next() else { return Ok(None) };
        self.value = Some(At::child(&self.path, key.clone(), value));
        let key: StrDeserializer<'_, KeyError> = key.as_str().into_deserializer();
        seed.deserialize(key).map(Some).map_err(|e| e.at(&self.path))
    }

    fn next_value_seed<T: DeserializeSeed<'v>>(&mut self, seed: T) -> Result<T::Value, KeyError> {
        let Some(value) = self.value.take() else {
            return Err(KeyError::custom("a value was requested before its key"));
        };
        let path = value.path.clone();
        seed.deserialize(value).map_err(|e| e.at(&path))
    }
}
