//! Every key of a plan with its type, default and meaning, generated from [`schema`], for the manual and the terminal.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};
use toml::Table;

use super::parse::keys_at;
use super::schema::schema;

/// A table of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Its header, `[links.NAME]`; for a table that several tables contain, its key, `queue`; for a kind of queue,
    /// `queue = { kind = "pie" }`.
    pub title: String,
    /// Its path, with `NAME` for names and `0` for elements of lists; the first path if there are several.
    pub path: Vec<String>,
    /// The queue's kind, for a section about one.
    pub kind: Option<String>,
    /// All its paths, dotted, if there are several.
    pub within: Vec<String>,
    /// Description.
    pub about: String,
    /// In the order in which the type declares them.
    pub keys: Vec<Key>,
}

/// A key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its name in the plan.
    pub name: String,
    /// Its type, with unit and range.
    pub value: String,
    /// The value if it is absent, or `required`.
    pub default: String,
    /// Description; for enums, also of each value.
    pub meaning: String,
    /// The title of the section about its value, if that is a table.
    pub section: Option<String>,
}

/// All tables of a plan, each before those in it.
pub fn sections() -> Vec<Section> {
    let schema = schema();
    let definitions = schema.get("definitions").and_then(Value::as_object);
    let mut builder = ReferenceBuilder {
        definitions: definitions.unwrap_or(&Map::new()).clone(),
        ..<_>::default()
    };
    // The first pass finds the paths of every table, which the titles depend on.
    builder.visit(&schema, &[]);
    builder.sections.clear();
    builder.visit(&schema, &[]);
    builder.sections
}

/// Finds the sections of a table by its header, `[links.NAME]`, by its path with or without names, `links.trace`, or by its last
/// key. Sections of queues are also found by their kind.
pub fn find<'s>(sections: &'s [Section], wanted: &str) -> Vec<&'s Section> {
    let bare = wanted.trim_matches(['[', ']']);
    let unnamed = |dotted: &str| dotted.replace(".NAME", "");
    let all = |is: &dyn Fn(&Section) -> bool| -> Vec<&'s Section> {
        sections.iter().filter(|section| is(section)).collect()
    };
    let places = |section: &Section| match section.kind {
        // The paths of the section that its kinds belong to.
        Some(_) => sections
            .iter()
            .find(|of| of.path == section.path)
            .map(|of| of.within.clone())
            .unwrap_or_default(),
        None => [&section.within[..], &[dotted(&section.path)]].concat(),
    };
    let exact = all(&|section| {
        let kind = section.kind.as_deref() == Some(bare);
        kind || places(section).iter().any(|at| at == bare || unnamed(at) == bare)
    });
    if !exact.is_empty() {
        return exact;
    }
    all(&|section| places(section).iter().any(|at| unnamed(at).rsplit('.').next() == Some(bare)))
}

#[derive(Default)]
struct ReferenceBuilder {
    definitions: Map<String, Value>,
    /// The paths of each definition.
    places: BTreeMap<String, Vec<Vec<String>>>,
    sections: Vec<Section>,
}

/// The kind of value that a schema describes.
enum Shape {
    /// A table with known keys.
    Table,
    /// One of several tables, by `kind`.
    Kinds,
    /// Tables or values by name.
    Named(Value),
    /// A list.
    List(Value),
    /// Anything else.
    Value,
}

impl ReferenceBuilder {
    /// Follows references. Returns the name of the definition, if there is one, and the schema.
    fn resolve(&self, schema: &Value) -> (Option<String>, Value) {
        let inner = schema.get("allOf").and_then(|all| all.get(0)).unwrap_or(schema);
        let name = inner.get("$ref").and_then(Value::as_str).and_then(|at| at.rsplit('/').next());
        // A name with a space is escaped in the reference.
        let name = name.map(|name| name.replace("%20", " "));
        match name.as_ref().and_then(|name| self.definitions.get(name)) {
            Some(definition) => (name, definition.clone()),
            None => (None, inner.clone()),
        }
    }

    fn shape(&self, schema: &Value) -> Shape {
        let options = schema.get("oneOf").or(schema.get("anyOf")).and_then(Value::as_array);
        let table = |one: &Value| self.resolve(one).1.get("properties").is_some();
        if schema.get("properties").is_some() {
            Shape::Table
        } else if options.is_some_and(|all| all.iter().all(table)) {
            Shape::Kinds
        } else if let Some(value) = schema.get("additionalProperties").filter(|v| !v.is_boolean()) {
            Shape::Named(value.clone())
        } else if let Some(items) = schema.get("items").filter(|items| items.is_object()) {
            Shape::List(items.clone())
        } else {
            Shape::Value
        }
    }

    /// Schema and path of the tables in a key's value, if there are any.
    fn inner(&self, schema: &Value, path: &[String]) -> Option<(Value, Vec<String>)> {
        let (_, whole) = self.resolve(schema);
        let at = |last: &str| [path, &[last.to_owned()]].concat();
        match self.shape(&whole) {
            Shape::Table | Shape::Kinds => Some((schema.clone(), path.to_vec())),
            Shape::Named(value) => self.inner(&value, &at("NAME")),
            Shape::List(items) => self.inner(&items, &at("0")),
            // Either an amount or a table.
            Shape::Value => {
                let options = whole.get("anyOf").and_then(Value::as_array)?;
                let table = |one: &&Value| self.resolve(one).1.get("properties").is_some();
                options.iter().find(table).map(|one| (one.clone(), path.to_vec()))
            }
        }
    }

    fn visit(&mut self, schema: &Value, path: &[String]) {
        let (definition, whole) = self.resolve(schema);
        if let Some(name) = &definition {
            let places = self.places.entry(name.clone()).or_default();
            if !places.iter().any(|place| place == path) {
                places.push(path.to_vec());
            }
            if places.first().is_some_and(|first| first != path) {
                return;
            }
        }
        let title = self.title(schema, path);
        let within = definition.and_then(|name| self.places.get(&name)).filter(|all| all.len() > 1);
        let within = within.into_iter().flatten().map(|at| dotted(at)).collect();
        let about = one_line(whole.get("description"));
        let (path, keys) = (path.to_vec(), Vec::new());
        let section = Section { title, path, kind: None, within, about, keys };
        match self.shape(&whole) {
            Shape::Kinds => self.kinds(&whole, section),
            _ => self.table(&whole, section),
        }
    }

    /// Adds a section for every kind, after one for the common keys.
    fn kinds(&mut self, schema: &Value, section: Section) {
        let key = section.path.last().cloned().unwrap_or_default();
        let kinds = schema.get("oneOf").and_then(Value::as_array).cloned().unwrap_or_default();
        let path = section.path.clone();
        self.sections.push(section);
        for one in &kinds {
            let kind = one.pointer("/properties/kind/const").and_then(Value::as_str);
            let kind = kind.unwrap_or_default().to_owned();
            let title = format!("{key} = {{ kind = \"{kind}\" }}");
            let about = one_line(one.get("description"));
            let (path, kind) = (path.clone(), Some(kind));
            let section =
                Section { title, path, kind, within: Vec::new(), about, keys: Vec::new() };
            let mut whole = one.clone();
            whole["x-absent"] = schema.get("x-absent").cloned().unwrap_or_default();
            self.table(&whole, section);
        }
    }

    /// Adds the section of a table, and those of the tables in it.
    fn table(&mut self, schema: &Value, mut section: Section) {
        let required = schema.get("required").and_then(Value::as_array);
        let mut below = Vec::new();
        for name in declared(&section.path, section.kind.as_deref()) {
            let Some(property) = schema["properties"].get(name) else { continue };
            let must = required.is_some_and(|all| all.iter().any(|one| one == name));
            let absent = schema.get("x-absent").and_then(Value::as_str);
            let mut key = self.key(name, property, must, absent);
            let path = [&section.path[..], &[name.to_owned()]].concat();
            if let Some((inner, at)) = self.inner(property, &path) {
                key.section = Some(self.title(&inner, &at));
                below.push((inner, at));
            }
            section.keys.push(key);
        }
        self.sections.push(section);
        for (inner, at) in below {
            self.visit(&inner, &at);
        }
    }

    /// The title of a table's section: its header, or its key if it has several paths.
    fn title(&self, schema: &Value, path: &[String]) -> String {
        let places = self.resolve(schema).0.and_then(|name| self.places.get(&name));
        match places {
            Some(places) if places.len() > 1 => places[0].last().cloned().unwrap_or_default(),
            _ => header(path),
        }
    }

    fn key(&self, name: &str, property: &Value, must: bool, absent: Option<&str>) -> Key {
        let (_, whole) = self.resolve(property);
        let about = one_line(property.get("description"));
        let (meaning, described) = match about.split_once("; absent: ") {
            Some((meaning, default)) => {
                (format!("{meaning}."), default.strip_suffix('.').or(Some(default)))
            }
            None => (about.clone(), None),
        };
        let default = match (must, described, property.get("default")) {
            (true, ..) => "required".to_owned(),
            (_, Some(described), _) => described.to_owned(),
            (.., Some(Value::Object(_))) => "as there".to_owned(),
            (.., Some(value)) => format!("`{value}`"),
            _ => absent.unwrap_or("none").to_owned(),
        };
        let meaning =
            words(&whole).into_iter().fold(meaning, |meaning, (word, about)| match about {
                Some(about) => format!("{meaning} `{word}`: {about}"),
                None => meaning,
            });
        Key { name: name.to_owned(), value: self.value(property), default, meaning, section: None }
    }

    /// A type in words.
    fn value(&self, property: &Value) -> String {
        let (_, whole) = self.resolve(property);
        let text = |key: &str| whole.get(key).and_then(Value::as_str);
        let range = |key: &str| property.get(key).and_then(Value::as_str);
        match self.shape(&whole) {
            Shape::Table | Shape::Kinds => return "table".to_owned(),
            Shape::Named(value) if self.inner(&value, &[]).is_some() => {
                return "tables by name".to_owned();
            }
            Shape::Named(value) => return format!("table: name = {}", self.value(&value)),
            Shape::List(items) if self.inner(&items, &[]).is_some() => {
                return "list of tables".to_owned();
            }
            Shape::List(items) if whole.get("minItems").is_some() => {
                return format!("list of two: {}", self.value(&items));
            }
            Shape::List(items) => return format!("list of {}", plural(&self.value(&items))),
            Shape::Value => {}
        }
        let options = whole.get("anyOf").and_then(Value::as_array);
        let named = text("title").map(str::to_owned);
        let mut what: Vec<String> =
            words(&whole).iter().map(|(word, _)| format!("`\"{word}\"`")).collect();
        match (named, options) {
            (Some(title), _) => what.push(title),
            (None, Some(options)) => {
                let without_const = options.iter().filter(|one| one.get("const").is_none());
                what.extend(without_const.map(|one| self.value(one)));
            }
            _ if what.is_empty() => what.push(self.plain(property, &whole)),
            _ => {}
        }
        let range = match (range("x-from"), range("x-to")) {
            (Some(from), Some(to)) => format!(", {from} to {to}"),
            (Some(from), None) => format!(", {from} or more"),
            (None, Some(to)) => format!(", up to {to}"),
            (None, None) => String::new(),
        };
        what.join(", ") + &range
    }

    /// Describes a type that has neither a name nor words.
    fn plain(&self, property: &Value, whole: &Value) -> String {
        let bound = |key: &str| property.get(key).or(whole.get(key)).and_then(Value::as_u64);
        match whole.get("type").and_then(Value::as_str) {
            Some("integer") => match (bound("minimum"), bound("maximum")) {
                (Some(from), Some(to)) => format!("whole number, {from} to {to}"),
                _ => "whole number".to_owned(),
            },
            Some("number") => "number".to_owned(),
            Some("object") => "table".to_owned(),
            Some("boolean") => "`true`, `false`".to_owned(),
            Some("string") => "text".to_owned(),
            _ => "anything".to_owned(),
        }
    }
}

fn plural(what: &str) -> String {
    match what {
        "name" | "level" => format!("{what}s"),
        "anything" => "values".to_owned(),
        _ => what.to_owned(),
    }
}

/// The values of an enum with their descriptions.
fn words(schema: &Value) -> Vec<(&str, Option<String>)> {
    let options = schema.get("oneOf").or(schema.get("anyOf")).and_then(Value::as_array);
    options
        .into_iter()
        .flatten()
        .filter_map(|one| {
            let word = one.get("const")?.as_str()?;
            let about = one.get("description").map(|text| one_line(Some(text)));
            Some((word, about))
        })
        .collect()
}

fn one_line(text: Option<&Value>) -> String {
    let text = text.and_then(Value::as_str).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A path without the numbers of lists.
fn dotted(path: &[String]) -> String {
    let kept: Vec<&str> = path.iter().map(String::as_str).filter(|key| *key != "0").collect();
    kept.join(".")
}

/// The header of a table.
fn header(path: &[String]) -> String {
    match path.split_last() {
        None => "The experiment".to_owned(),
        Some((last, parents)) if last == "0" => format!("[[{}]]", parents.join(".")),
        _ => format!("[{}]", dotted(path)),
    }
}

/// The keys of a table in the order of their declaration: serde lists them in its error about an unknown key.
fn declared(path: &[String], kind: Option<&str>) -> Vec<&'static str> {
    let mut innermost = Table::new();
    innermost.extend(kind.map(|kind| ("kind".to_owned(), kind.into())));
    innermost.insert("?".to_owned(), 0.into());
    let whole =
        path.iter().rev().fold(toml::Value::Table(innermost), |inner, key| match key.as_str() {
            "0" => toml::Value::Array(vec![inner]),
            key => toml::Value::Table(Table::from_iter([(key.to_owned(), inner)])),
        });
    keys_at(&whole).to_vec()
}

/// The reference as a chapter of the manual.
pub fn markdown() -> String {
    let mut text = HEAD.to_owned();
    for section in &sections() {
        let title = match section.path.is_empty() {
            true => section.title.clone(),
            false => format!("`{}`", section.title),
        };
        let level = if section.kind.is_some() { "###" } else { "##" };
        let _ = write!(text, "\n{level} {title}\n\n{}\n", section.about);
        if !section.within.is_empty() {
            let within: Vec<String> = section.within.iter().map(|at| format!("`{at}`")).collect();
            let _ = write!(text, "\nIn {}.\n", within.join(", "));
        }
        if section.keys.is_empty() {
            continue;
        }
        text += "\n| key | type | default | meaning |\n| --- | --- | --- | --- |\n";
        for key in &section.keys {
            let value = match &key.section {
                Some(title) => format!("[{}](#{})", key.value, anchor(title)),
                None => key.value.clone(),
            };
            let _ =
                writeln!(text, "| `{}` | {value} | {} | {} |", key.name, key.default, key.meaning);
        }
    }
    text
}

const HEAD: &str = "\
# Plan reference

Every key of a plan with its type, default and meaning, in the order of the types that parse plans. Concepts, units and
examples: [plan.md](plan.md). This page is generated from those types by `ccbench plan reference --markdown`; a test compares both.

Types: a rate, size, time or share is text with its [unit](plan.md#units), `\"100mbit\"`; a name is 1 to 32 letters, digits, `-` and `_`.
";

/// The anchor that a heading gets.
fn anchor(title: &str) -> String {
    let kept = title.to_lowercase();
    kept.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Queue;

    #[test]
    fn reference_lists_every_key() {
        let schema = schema();
        let definitions = schema["definitions"].as_object().unwrap();
        let tables = definitions.values().chain([&schema]);
        let kinds = tables.clone().filter_map(|one| one.get("oneOf")?.as_array()).flatten();
        let keys = |one: &Value| Some(one.get("properties")?.as_object()?.len());
        let known: usize = tables.chain(kinds).filter_map(keys).sum();
        let sections = sections();
        // `kind` of a queue is in its title.
        let shown = |section: &Section| section.keys.len() + usize::from(section.kind.is_some());
        assert_eq!(sections.iter().map(shown).sum::<usize>(), known);
        assert!(known > 150 && sections.len() > 30, "{known} keys, {} sections", sections.len());
        for section in &sections {
            assert!(!section.about.is_empty(), "{} has no description", section.title);
            for key in &section.keys {
                assert!(
                    !key.meaning.is_empty(),
                    "{}: {} has no description",
                    section.title,
                    key.name
                );
            }
        }
    }

    #[test]
    fn a_table_is_found_by_its_header_path_or_name() {
        let sections = sections();
        let titles = |wanted: &str| -> Vec<String> {
            find(&sections, wanted).iter().map(|section| section.title.clone()).collect()
        };
        assert_eq!(titles("links"), ["[links.NAME]"]);
        assert_eq!(titles("[links.NAME]"), ["[links.NAME]"]);
        assert_eq!(titles("[[phases]]"), ["[[phases]]"]);
        assert_eq!(titles("trace"), ["[links.NAME.trace]"]);
        assert_eq!(titles("links.trace"), ["[links.NAME.trace]"]);
        assert_eq!(titles("links.classes.match"), ["[links.NAME.classes.NAME.match]"]);
        // The section of the common keys and one per kind.
        let queues = 1 + Queue::kinds().len();
        assert_eq!(titles("queue").len(), queues);
        assert_eq!(titles("links.queue").len(), queues);
        assert_eq!(titles("pie"), ["queue = { kind = \"pie\" }"]);
        assert_eq!(titles("minus"), ["over"]);
        assert!(titles("lincs").is_empty());
    }

    #[test]
    fn key_shows_type_and_choices() {
        let sections = sections();
        let key = |wanted: &str, name: &str| {
            let section = find(&sections, wanted)[0];
            section.keys.iter().find(|key| key.name == name).unwrap().clone()
        };
        let rate = key("links", "rate");
        assert_eq!((rate.value.as_str(), rate.default.as_str()), ("rate, up to 1tbit", "unshaped"));
        let shaper = key("links", "shaper");
        assert_eq!(shaper.value, "`\"htb\"`, `\"tbf\"`");
        assert!(shaper.meaning.contains("`tbf`: Token bucket filter."), "{}", shaper.meaning);
        assert_eq!(key("flows", "from").default, "required");
        assert_eq!(key("phases", "measure").default, "`true`");
        assert_eq!(key("pie", "alpha").default, "the kernel's");
        assert_eq!(key("links", "queue").section.as_deref(), Some("queue"));
    }
}
