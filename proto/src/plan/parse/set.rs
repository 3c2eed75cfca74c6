//! Sets dotted keys in a plan's table: those of `--set links.bottleneck.rate=50mbit` and of the matrix.

use toml::{Table, Value};

use super::nesting;
use super::suggest::hint;
use super::{find, unrun};
use crate::plan::Queue;
use crate::plan::expect::level;

/// Tables whose entries the author names. An override never creates an entry, which would be half-filled.
const NAMED_TABLES: &[(&str, &str)] = &[
    ("nodes", "node"),
    ("wires", "wire"),
    ("links", "link"),
    ("flows", "flow group"),
    ("probes", "probe"),
    ("capture", "capture"),
    ("classes", "class"),
];

/// Most segments of a key, because nested tables are read, cloned and dropped recursively.
const MAX_SEGMENTS: usize = 32;

/// Why a key cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SetError {
    #[error("write it as KEY=VALUE, like `links.bottleneck.rate=50mbit`")]
    NotAnAssignment,
    #[error("`{0}` has a quote that is not closed")]
    OpenQuote(String),
    #[error(
        "`{0}` is not a dotted key like `links.bottleneck.rate` (quote a segment that holds a dot)"
    )]
    NotAKey(String),
    #[error("`{0}`: a dot is missing after a quoted segment")]
    NoDot(String),
    #[error("the key is empty")]
    EmptyKey,
    #[error("the key has more than {MAX_SEGMENTS} segments; no key of a plan has so many")]
    TooManySegments,
    #[error("there is no `{0}`")]
    Absent(String),
    /// `kind` is the type of the value, with its article.
    #[error("`{key}` is {kind} and has no keys")]
    NoKeys { key: String, kind: String },
    /// `hint` names what exists.
    #[error("there is no {what} `{name}`{hint}")]
    UnknownName { what: &'static str, name: String, hint: String },
    #[error("`{list}` is a list: name an element by its number, `{list}.0`")]
    NotAnIndex { list: String },
    #[error("`{list}` has no element `{index}`: it has {len}, counted from 0")]
    NoElement { list: String, len: usize, index: usize },
    #[error(
        "the factor `{factor}` of the matrix sets this key at every point; choose a level with `--set matrix.{factor}=NAME` (levels: {levels})"
    )]
    Varied { factor: String, levels: String },
    #[error(
        "the factor `{factor}` of the matrix sets this at every point; set the factor instead: `--set 'matrix.\"{factor}\"=[...]'`"
    )]
    VariedByList { factor: String },
    /// `instead` is an override that has the intended effect.
    #[error("a factor's name is one segment; write `--set {instead}`")]
    UnquotedFactor { instead: String },
    #[error("`matrix` is not a table")]
    MatrixNotATable,
    #[error("the factor has no level `{name}`{hint}")]
    UnknownLevel { name: String, hint: String },
}

/// The dotted key that TOML has read as nested tables because it is not in quotes, and its value. `first` are its first segments,
/// and `inner` what is below them.
pub(crate) fn unquoted_key<'v>(first: &[&str], mut inner: &'v Value) -> (String, &'v Value) {
    let mut key = first.to_vec();
    while let Some((segment, value)) = inner.as_table().and_then(|table| table.iter().next()) {
        key.push(segment);
        inner = value;
    }
    (join_key(&key), inner)
}

/// Splits a dotted key into segments, which may be quoted (`sysctl."net.ipv4.tcp_ecn"`). A deprecated key is replaced by its
/// current name.
pub(crate) fn split_key(text: &str) -> Result<Vec<String>, SetError> {
    let mut key = split_written_key(text)?;
    if let (Some(new), Some(last)) = (current_name(&key), key.last_mut()) {
        new.clone_into(last);
    }
    Ok(key)
}

/// The current name of the last segment of a dotted key; `None` if the segment is not deprecated.
pub(super) fn current_name(key: &[String]) -> Option<&'static str> {
    let [first, _, .., table, key] = key else { return None };
    let is_of_queue = ["links", "path"].contains(&first.as_str()) && table == "queue";
    // The key does not name the kind of the queue, and no other kind has keys of these names.
    is_of_queue.then(|| Queue::replacement("dualpi2", key)).flatten()
}

/// Splits a dotted key into segments as they are written.
pub(super) fn split_written_key(text: &str) -> Result<Vec<String>, SetError> {
    let mut segments = Vec::new();
    let mut rest = text.trim();
    loop {
        let first = rest.chars().next();
        let (segment, after) = if let Some(quote @ ('"' | '\'')) = first {
            rest[1..].split_once(quote).ok_or_else(|| SetError::OpenQuote(text.to_owned()))?
        } else {
            rest.split_at(rest.find('.').unwrap_or(rest.len()))
        };
        let bare_ok = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if segment.is_empty()
            || (!matches!(first, Some('"' | '\'')) && !segment.chars().all(bare_ok))
        {
            return Err(SetError::NotAKey(text.to_owned()));
        }
        if segments.len() >= MAX_SEGMENTS {
            return Err(SetError::TooManySegments);
        }
        segments.push(segment.to_owned());
        match after.strip_prefix('.') {
            Some(next) => rest = next,
            None if after.is_empty() => return Ok(join_sysctl(segments)),
            None => return Err(SetError::NoDot(text.to_owned())),
        }
    }
}

/// Joins the segments of a sysctl's name, which contains dots: `nodes.src.sysctl.net.ipv4.tcp_ecn` needs no quotes.
fn join_sysctl(mut segments: Vec<String>) -> Vec<String> {
    if segments.len() > 4 && segments[0] == "nodes" && segments[2] == "sysctl" {
        let name = segments.split_off(3).join(".");
        segments.push(name);
    }
    segments
}

/// Joins segments as a user would write them, with quotes where necessary.
pub(crate) fn join_key<S: AsRef<str>>(segments: &[S]) -> String {
    let bare = |s: &str| {
        !s.is_empty() && s.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
    };
    let quoted: Vec<String> = segments
        .iter()
        .map(AsRef::as_ref)
        .map(|s| if bare(s) { s.to_owned() } else { format!("\"{}\"", s.escape_debug()) })
        .collect();
    quoted.join(".")
}

/// Sets one key. Missing parent tables are created, but no new node, link, flow group, probe or class: a
/// misspelt name must not become one. Array elements are named by their index from 0.
pub(crate) fn set_key(table: &mut Table, key: &[String], value: Value) -> Result<(), SetError> {
    let Some((last, parents)) = key.split_last() else {
        return Err(SetError::EmptyKey);
    };
    let mut at = Place::Table(table);
    for (depth, segment) in parents.iter().enumerate() {
        at = at.step(&key[..depth], segment)?;
    }
    match at {
        Place::Table(table) => {
            table.insert(last.clone(), value);
            Ok(())
        }
        Place::Array(array) => {
            *element(array, parents, last)? = value;
            Ok(())
        }
    }
}

/// The current position on the path of a key.
enum Place<'t> {
    Table(&'t mut Table),
    Array(&'t mut Vec<Value>),
}

impl<'t> Place<'t> {
    fn step(self, parents: &[String], segment: &str) -> Result<Self, SetError> {
        let next = match self {
            Self::Array(array) => element(array, parents, segment)?,
            Self::Table(table) => {
                if !table.contains_key(segment) {
                    refuse_new_name(table, parents, segment)?;
                    table.insert(segment.to_owned(), Value::Table(Table::new()));
                }
                table.get_mut(segment).ok_or_else(|| SetError::Absent(segment.to_owned()))?
            }
        };
        match next {
            Value::Table(table) => Ok(Self::Table(table)),
            Value::Array(array) => Ok(Self::Array(array)),
            other => Err(SetError::NoKeys {
                key: join_key(&[parents, &[segment.to_owned()]].concat()),
                kind: with_article(other.type_str()),
            }),
        }
    }
}

fn with_article(kind: &str) -> String {
    let article = if kind.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {kind}")
}

fn refuse_new_name(table: &Table, parents: &[String], segment: &str) -> Result<(), SetError> {
    let Some(parent) = parents.last().filter(|_| parents.len() != 2) else { return Ok(()) };
    let Some((_, what)) = NAMED_TABLES.iter().find(|(name, _)| name == parent) else {
        return Ok(());
    };
    let names: Vec<&str> = table.keys().map(String::as_str).collect();
    let (name, hint) = (segment.to_owned(), hint(segment, &names, "known"));
    Err(SetError::UnknownName { what, name, hint })
}

fn element<'t>(
    array: &'t mut [Value],
    parents: &[String],
    segment: &str,
) -> Result<&'t mut Value, SetError> {
    let (len, name) = (array.len(), join_key(parents));
    let index: Option<usize> = segment.parse().ok();
    // An element has one name: `00` would differ from `0` where keys are compared.
    let index = index.filter(|index| index.to_string() == segment);
    let index = index.ok_or_else(|| SetError::NotAnIndex { list: name.clone() })?;
    array.get_mut(index).ok_or(SetError::NoElement { list: name, len, index })
}

/// Parses a value as TOML, or as plain text if it is not TOML (`50mbit`, `cubic`).
pub(crate) fn parse_value(text: &str) -> Value {
    let text = text.trim();
    let parsed = nesting::parse(&format!("v = {text}"));
    let value = parsed.filter(|t| t.len() == 1).and_then(|mut t| t.remove("v"));
    value.filter(|v| !v.is_datetime()).unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Splits `key=value` at the first `=` outside of quotes.
pub(crate) fn split_assignment(text: &str) -> Option<(&str, &str)> {
    let mut open: Option<char> = None;
    for (i, c) in text.char_indices() {
        match (open, c) {
            (None, '=') => return Some((&text[..i], &text[i + 1..])),
            (None, '"' | '\'') => open = Some(c),
            (Some(quote), c) if c == quote => open = None,
            _ => {}
        }
    }
    None
}

/// Applies one `key=value` of `--set`. For a factor of the matrix, it chooses among its levels (`matrix.scheme=bbr`); for a key
/// that a factor of plain values varies, it leaves this one value. Returns the key that has a new value; `None` if levels were
/// chosen, which are written elsewhere.
pub(crate) fn apply(
    table: &mut Table,
    assignment: &str,
) -> Result<Option<Vec<String>>, (String, SetError)> {
    let Some((key, value)) = split_assignment(assignment) else {
        return Err((format!("--set {assignment}"), SetError::NotAnAssignment));
    };
    let place = || format!("--set {}", key.trim());
    let fail = |why: SetError| (place(), why);
    let segments = split_key(key).map_err(fail)?;
    if let [matrix, factor] = &segments[..]
        && matrix == "matrix"
    {
        let before = table.get("matrix").and_then(|matrix| matrix.get(factor));
        let before = before.map(unrun::names).unwrap_or_default();
        let only_chose = choose_levels(table, factor, value.trim()).map_err(fail)?;
        unrun::mark(table, factor, &before);
        return Ok((!only_chose).then_some(segments));
    }
    if let Some(instead) = unquoted_factor(table, &segments, value.trim()) {
        return Err(fail(SetError::UnquotedFactor { instead }));
    }
    let value = parse_value(value);
    if let Some(matrix) = table.get_mut("matrix").and_then(Value::as_table_mut) {
        for (factor, levels) in matrix.iter_mut() {
            match levels {
                Value::Array(_) if split_key(factor).as_ref() == Ok(&segments) => {
                    let (factor, before) = (factor.clone(), unrun::names(levels));
                    *levels = Value::Array(vec![value]);
                    unrun::mark(table, &factor, &before);
                    return Ok(Some(vec!["matrix".to_owned(), factor]));
                }
                Value::Array(_) if replaces(factor, &segments, &value) => {
                    return Err(fail(SetError::VariedByList { factor: factor.clone() }));
                }
                Value::Table(levels)
                    if set_by(levels).any(|varied| replaces(varied, &segments, &value)) =>
                {
                    let levels: Vec<&str> = levels.keys().map(String::as_str).collect();
                    let levels = super::suggest::list(&levels);
                    return Err(fail(SetError::Varied { factor: factor.clone(), levels }));
                }
                _ => {}
            }
        }
    }
    set_key(table, &segments, value).map(|()| Some(segments)).map_err(fail)
}

/// What to write instead of `matrix.flows.a.cc=bbr`, where `flows.a.cc` is a key of the plan and `flows` is not a factor.
fn unquoted_factor(table: &Table, segments: &[String], value: &str) -> Option<String> {
    let [matrix, first, .., last] = segments else { return None };
    let is_factor = table.get("matrix").is_some_and(|matrix| matrix.get(first).is_some());
    // A level may be set by its name: `matrix.load.heavy={...}`, `matrix.load.heavy."flows.a.count"=2`.
    let is_of_level = value.starts_with('{') || last.contains('.');
    if matrix != "matrix" || !table.contains_key(first) || is_factor || is_of_level {
        return None;
    }
    let key = join_key(&segments[1..]);
    if value.starts_with('[') {
        return Some(format!("'matrix.\"{key}\"={value}'"));
    }
    Some(format!("{key}={value}"))
}

/// Whether a factor that sets `varied` replaces the value that the key gets, a part of it, or a table around the key.
fn replaces(varied: &str, key: &[String], value: &Value) -> bool {
    let Ok(varied) = split_key(varied) else { return false };
    match varied.strip_prefix(key) {
        Some(inside) => find(value, inside).is_some(),
        None => key.starts_with(&varied),
    }
}

/// The keys that the levels of a factor set.
fn set_by(levels: &Table) -> impl Iterator<Item = &String> {
    levels.values().filter_map(Value::as_table).flat_map(Table::keys)
}

/// Whether one key is the other or lies inside it.
pub(crate) fn overlap(a: &[String], b: &[String]) -> bool {
    a.iter().zip(b).all(|(x, y)| x == y)
}

/// Chooses among the levels of a factor, or gives it this value. Returns whether it chose among named levels.
fn choose_levels(table: &mut Table, factor: &str, text: &str) -> Result<bool, SetError> {
    let matrix = table.entry("matrix").or_insert_with(|| Value::Table(Table::new()));
    let Some(matrix) = matrix.as_table_mut() else {
        return Err(SetError::MatrixNotATable);
    };
    let value = parse_value(text);
    let levels = matrix.get(factor).and_then(Value::as_table);
    let name = |value: &Value| (!value.is_table() && !value.is_array()).then(|| level(value));
    let names: Option<Vec<String>> = match &value {
        // A level may have a name that TOML reads as another value, such as `true` or `1e3`.
        _ if levels.is_some_and(|levels| levels.contains_key(text)) => Some(vec![text.to_owned()]),
        Value::Array(values) => values.iter().map(name).collect(),
        one => name(one).map(|name| vec![name]),
    };
    match (matrix.get_mut(factor), names) {
        (Some(Value::Table(levels)), Some(names)) => {
            for name in &names {
                if !levels.contains_key(name) {
                    let known: Vec<&str> = levels.keys().map(String::as_str).collect();
                    let parts: Vec<&str> = name.split(',').map(str::trim).collect();
                    let hint = match parts.len() > 1 && parts.iter().all(|p| known.contains(p)) {
                        true => {
                            let list = parts.join("\", \"");
                            format!("; several are a list: `--set 'matrix.{factor}=[\"{list}\"]'`")
                        }
                        false => hint(name, &known, "levels"),
                    };
                    return Err(SetError::UnknownLevel { name: name.clone(), hint });
                }
            }
            levels.retain(|level, _| names.iter().any(|n| n == level));
            return Ok(true);
        }
        (Some(Value::Array(values)), _) => {
            *values = if let Value::Array(new) = value { new } else { vec![value] };
        }
        (None, Some(_)) if !factor.contains('.') => {
            let known: Vec<&str> = matrix.keys().map(String::as_str).collect();
            let (name, hint) = (factor.to_owned(), hint(factor, &known, "factors"));
            return Err(SetError::UnknownName { what: "factor", name, hint });
        }
        _ => {
            matrix.insert(factor.to_owned(), value);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of this text with an override, or the error.
    fn with(text: &str, assignment: &str) -> Result<Table, SetError> {
        let mut table: Table = toml::from_str(text).unwrap();
        apply(&mut table, assignment).map(|_| table).map_err(|(_, why)| why)
    }

    #[test]
    fn an_override_that_a_factor_of_values_would_replace_is_refused() {
        let text = "[links.l]\nrate = '1mbit'\nqueue = { kind = 'codel', limit = '9p' }\n[matrix]\n\
                    'links.l.queue' = [{ kind = 'codel' }, { kind = 'bfifo', limit = '1bdp' }]\n\
                    'links.l.delay' = ['1ms', '2ms']\n";
        let around = Err(SetError::VariedByList { factor: "links.l.queue".to_owned() });
        assert_eq!(with(text, "links.l.queue.limit=5p"), around);
        let inside = Err(SetError::VariedByList { factor: "links.l.delay".to_owned() });
        assert_eq!(with(text, "links.l={ rate = '2mbit', delay = '9ms' }"), inside);
        with(text, "links.l={ rate = '2mbit' }").unwrap();
        with(text, "links.l.rate=2mbit").unwrap();
    }

    #[test]
    fn an_override_that_named_levels_would_replace_is_refused() {
        let text = "[links.l]\nrate = '1mbit'\nqueue = { kind = 'codel', limit = '9p' }\n[matrix.path]\n\
                    short = { 'links.l.delay' = '1ms' }\n\
                    long = { 'links.l.queue' = { kind = 'codel' }, 'links.l.delay' = '9ms' }\n";
        let varied = |set: &str| matches!(with(text, set), Err(SetError::Varied { .. }));
        assert!(varied("links.l.delay=3ms"), "the same key");
        assert!(varied("links.l.queue.limit=5p"), "a key inside a value of a level");
        assert!(varied("links.l={ rate = '2mbit', delay = '9ms' }"), "a table with such a key");
        with(text, "links.l={ rate = '2mbit' }").unwrap();
        with(text, "links.l.rate=2mbit").unwrap();
    }

    #[test]
    fn a_key_of_the_plan_is_not_set_as_a_level_of_a_factor() {
        let text =
            "[flows.f]\ncc = 'cubic'\n[links.l]\nrate = '1mbit'\n[matrix.links]\nslow = {}\n";
        let refused = |set: &str, instead: &str| {
            let expected = SetError::UnquotedFactor { instead: instead.to_owned() };
            assert_eq!(with(text, set), Err(expected));
        };
        refused("matrix.flows.f.cc=bbr", "flows.f.cc=bbr");
        let many = "'matrix.\"flows.f.cc\"=[\"bbr\", \"cubic\"]'";
        refused("matrix.flows.f.cc=[\"bbr\", \"cubic\"]", many);
        with(text, "flows.f.cc=bbr").unwrap();
        // Levels: of a factor that has the name of a table, and of a new one.
        with(text, "matrix.links.slow.\"links.l.rate\"=2mbit").unwrap();
        with(text, "matrix.flows.two={ 'flows.f.count' = 2 }").unwrap();
        with(text, "matrix.load.heavy.\"flows.f.count\"=2").unwrap();
    }

    #[test]
    fn several_levels_are_a_list() {
        let text = "[matrix.s]\na = {}\nb = {}\nc = {}\n";
        let refused = with(text, "matrix.s=a,b").unwrap_err().to_string();
        assert!(refused.ends_with("`--set 'matrix.s=[\"a\", \"b\"]'`"), "{refused}");
        assert_eq!(
            with(text, "matrix.s=[\"a\", \"b\"]").unwrap()["matrix"]["s"].as_table().unwrap().len(),
            2
        );
    }

    #[test]
    fn levels_may_have_names_that_toml_reads_as_other_values() {
        let text = "[matrix.ecn]\ntrue = {}\nfalse = {}\n1 = {}\n5 = {}\n1e3 = {}\n";
        let left = |set: &str| -> Vec<String> {
            let table = with(text, &format!("matrix.ecn={set}")).unwrap();
            table["matrix"]["ecn"].as_table().unwrap().keys().cloned().collect()
        };
        assert_eq!([left("true"), left("1e3"), left("5")], [["true"], ["1e3"], ["5"]]);
        assert_eq!([left("[1, 5]"), left("[5, false]")], [["1", "5"], ["false", "5"]]);
        let unknown = with(text, "matrix.ecn=7").unwrap_err();
        assert!(matches!(unknown, SetError::UnknownLevel { .. }), "{unknown}");
    }

    #[test]
    fn a_problem_of_a_level_that_is_left_has_its_line() {
        let text = "name = 't'\n[nodes]\na = {}\nb = {}\n[wires]\nw = ['a', 'b']\n[flows.f]\nfrom = 'a'\nto = 'b'\n\
                    [[phases]]\nname = 'p'\nlength = '5s'\nflows = ['f']\n[matrix.load]\nlight = {}\n\
                    heavy = { 'flows.f.count' = 'many' }\n";
        for sets in [vec![], vec!["matrix.load=heavy".to_owned()]] {
            let problems = crate::plan::check::read(text, &sets).unwrap_err();
            let wrong: Vec<_> = problems
                .iter()
                .filter(|found| found.path.starts_with("matrix.load.heavy"))
                .collect();
            assert!(wrong.len() == 1 && !wrong[0].reason.contains("--set"), "{problems:?}");
            assert_eq!(wrong[0].line, Some(16));
        }
    }

    #[test]
    fn a_problem_of_levels_that_an_override_writes_names_it() {
        let text = "name = 't'\n[nodes]\na = {}\nb = {}\n[wires]\nw = ['a', 'b']\n[flows.f]\nfrom = 'a'\nto = 'b'\n\
                    [[phases]]\nname = 'p'\nlength = '5s'\nflows = ['f']\n[matrix.load]\nlight = {}\n";
        let levels = "matrix.load={ heavy = { 'flows.f.count' = 'many' } }".to_owned();
        let problems = crate::plan::check::read(text, &[levels]).unwrap_err();
        let found = problems.iter().find(|found| found.path.starts_with("matrix.load.heavy"));
        assert!(
            found.is_some_and(|found| found.reason.ends_with("(from `--set matrix.load`)")),
            "{problems:?}"
        );
    }

    #[test]
    fn an_element_of_a_list_has_one_name() {
        let text = "[[phases]]\nlength = '1s'\n[matrix]\n'phases.0.length' = ['1s', '2s']\n";
        let list = "phases".to_owned();
        assert_eq!(with(text, "phases.00.length=3s"), Err(SetError::NotAnIndex { list }));
        let table = with(text, "phases.0.length=3s").unwrap();
        assert_eq!(table["matrix"]["phases.0.length"].as_array().map(Vec::len), Some(1));
    }
}
