//! Parses text to a [`super::Plan`] and reports every problem at once, each with its place. The plan's types define what is valid.
//! This module collects what they refuse: it reads the plan, records the first error, repairs its key (drops an unknown key or a wrong
//! value, fills in a missing one) and reads again.

use serde::Deserialize;
use toml::{Table, Value};

use super::Plan;
use super::problem::{PlanProblem, Severity};
use lines::Lines;
use place::{At, KeyError, KeyErrorKind};
use read_budget::ReadBudget;
use unread_keys::UnreadKeys;

pub(crate) mod lines;
mod nesting;
mod place;
pub(crate) mod quick;
mod read_budget;
mod renamed;
pub(crate) mod set;
pub mod suggest;
pub(crate) mod unread_keys;
mod unrun;

/// Maximum number of problems collected before giving up.
const MAX_PROBLEMS: usize = 100;
/// Keys above the first table; often written below a table's header by mistake.
const TOP_LEVEL_KEYS: &[&str] = &["about", "gap", "keep_awake", "order", "repeat", "seed"];
/// Lists of tables.
const LISTS: &[&str] = &["phases", "changes", "expect", "compare"];
/// Largest plan that is read, in bytes.
const MAX_TEXT_BYTES: usize = 4 << 20;

/// Parses a plan from its TOML text.
///
/// # Errors
/// One problem if the text is not TOML, otherwise one for everything that cannot be read.
pub fn parse(text: &str) -> Result<Plan, Vec<PlanProblem>> {
    parse_with(text, &[])
}

/// As [`parse`], with overrides (`links.bottleneck.rate=50mbit`) applied first.
///
/// # Errors
/// As [`parse`]; the path of a problem with an override begins with `--set`.
pub fn parse_with(text: &str, sets: &[String]) -> Result<Plan, Vec<PlanProblem>> {
    let (mut reading, lines) = read_text(text, sets).map_err(|problem| vec![problem])?;
    match reading.plan {
        Some(plan) if reading.problems.is_empty() => Ok(plan),
        _ => {
            lines.number(&mut reading.problems);
            Err(reading.problems)
        }
    }
}

/// A plan as far as it could be read.
#[derive(Default)]
pub(crate) struct Reading {
    /// The plan without the unread keys; `None` if too many are.
    pub(crate) plan: Option<Plan>,
    /// The parts that could not be read, with the reasons.
    pub(crate) problems: Vec<PlanProblem>,
    /// The keys that the plan lacks because of the problems.
    pub(crate) unread_keys: UnreadKeys,
    /// Keys that were read at another place than the one where they are written.
    pub(crate) moved: Vec<Moved>,
    /// Deprecated keys.
    pub(crate) warnings: Vec<PlanProblem>,
}

/// A key, and the different place where it is written.
pub(crate) type Moved = (Vec<String>, Vec<String>);

/// Reads a text with its overrides as far as possible. Fails if the text is not TOML.
pub(crate) fn read_text<'t>(
    text: &'t str,
    sets: &[String],
) -> Result<(Reading, Lines<'t>), PlanProblem> {
    if text.len() > MAX_TEXT_BYTES {
        let reason = "is longer than 4 MiB; is this the right file?".to_owned();
        return Err(PlanProblem { path: "the plan".to_owned(), ..error(&[], reason) });
    }
    if let Some(at) = nesting::too_deep(text) {
        let line = u32::try_from(text[..at].matches('\n').count() + 1).ok();
        let reason =
            "nests tables or lists more deeply than any plan; is this the right file?".to_owned();
        return Err(PlanProblem { path: "the plan".to_owned(), line, ..error(&[], reason) });
    }
    let mut table: Table = toml::from_str(text).map_err(|e| not_toml(text, &e))?;
    let quick = quick::assignments(&table);
    let mut moved = renamed::rename_tables(&mut table);
    let mut warnings = renamed::warnings_of_dotted_keys(&table);
    let mut overrides = Overrides { refused: quick::check(&table, sets), ..Overrides::default() };
    for assignment in sets {
        let of_quick = quick.iter().find(|(_, of_quick)| of_quick == assignment);
        let written = of_quick.map(|(key, _)| key.as_str());
        // The warnings about the table include those about `[quick]`.
        warnings.extend(renamed::warning_of_set(assignment).filter(|_| written.is_none()));
        overrides.apply(&mut table, assignment, written);
    }
    moved.extend(renamed::rename_tables(&mut table));
    warnings.extend(renamed::warnings_of_tables(&moved));
    let mut reading = Reading { warnings, ..read_lenient(table) };
    reading.unread_keys.join(overrides.unread_keys);
    reading.problems.splice(0..0, overrides.refused);
    moved.append(&mut reading.moved);
    Ok((reading, Lines::new(text, (overrides.set, overrides.quick), moved)))
}

/// The effects of overrides on a plan's table.
#[derive(Default)]
struct Overrides {
    /// Keys that `--set` changed.
    set: Vec<Vec<String>>,
    /// Keys that `[quick]` changed.
    quick: Vec<Moved>,
    /// The problems of overrides that were not applied.
    refused: Vec<PlanProblem>,
    unread_keys: UnreadKeys,
}

impl Overrides {
    /// Applies an override. `written` is its key in `[quick]`; `None` for `--set`.
    fn apply(&mut self, table: &mut Table, assignment: &str, written: Option<&str>) {
        match (set::apply(table, assignment), written) {
            // The levels that are left are written in the text.
            (Ok(None), _) => {}
            (Ok(Some(key)), None) => self.set.push(key),
            (Ok(Some(key)), Some(written)) => self.quick.push(quick::moved(key, written)),
            (Err((path, reason)), written) => {
                let place = written.map(quick::place).unwrap_or_default();
                let path = if written.is_some() { set::join_key(&place) } else { path };
                let problem = PlanProblem { path, ..error(&place, reason.to_string()) };
                if !self.refused.contains(&problem) {
                    self.refused.push(problem);
                }
                self.unread_keys.join(unset(assignment));
            }
        }
    }
}

/// The keys that a refused override may have meant.
fn unset(assignment: &str) -> UnreadKeys {
    let mut unread_keys = UnreadKeys::default();
    let key = set::split_assignment(assignment).and_then(|(key, _)| set::split_key(key).ok());
    match key {
        Some(mut key) if key[0] != "matrix" => {
            if let Some(name) = key.get_mut(1) {
                "*".clone_into(name);
            }
            unread_keys.mark_uncertain(key);
        }
        _ => unread_keys.mark_uncertain(Vec::new()),
    }
    unread_keys
}

/// The one problem of a text that is not TOML.
fn not_toml(text: &str, e: &toml::de::Error) -> PlanProblem {
    let start = e.span().map_or(text.len(), |span| span.start).min(text.len());
    let before = text.get(..start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    let what = e.message().trim().replace('\n', "; ");
    let there = text.lines().nth(line - 1).unwrap_or_default().trim();
    let shown: String = there.chars().filter(|c| !c.is_control()).take(60).collect();
    let place =
        if shown.is_empty() { String::new() } else { format!(" (the line reads `{shown}`)") };
    PlanProblem {
        path: format!("not TOML at column {column}"),
        line: u32::try_from(line).ok(),
        ..error(&[], format!("{what}{place}"))
    }
}

/// Reads a plan from its table.
pub(crate) fn from_table(table: Table) -> Result<Plan, Vec<PlanProblem>> {
    let reading = read_lenient(table);
    match reading.plan {
        Some(plan) if reading.problems.is_empty() => Ok(plan),
        _ => Err(reading.problems),
    }
}

/// Reads a plan's table as far as possible.
pub(crate) fn read_lenient(table: Table) -> Reading {
    read_lenient_within(table, read_budget::MAX_VALUES)
}

/// As [`read_lenient`], with this number instead of [`read_budget::MAX_VALUES`].
fn read_lenient_within(table: Table, max_values: usize) -> Reading {
    let mut value = Value::Table(table);
    let mut problems: Vec<PlanProblem> = Vec::new();
    let mut unread_keys = UnreadKeys::default();
    let (mut moved, warnings) = (Vec::new(), Vec::new());
    let mut budget = None;
    for _ in 0..10 * MAX_PROBLEMS {
        let key_error = match read(&value) {
            Ok(plan) => {
                return Reading { plan: Some(plan), problems, unread_keys, moved, warnings };
            }
            Err(key_error) => key_error,
        };
        let budget = budget.get_or_insert_with(|| ReadBudget::new(&value, max_values));
        let key_error = locate_key(&value, key_error, budget);
        let place = problem_place(&key_error);
        if !unread_keys.dropped(&place) {
            problems.push(error(&place, describe(&key_error, &place, find(&value, &place))));
        }
        if let Some(from_to) = correct_header(&mut value, &key_error, &place) {
            moved.push(from_to);
            continue;
        }
        if problems.len() < MAX_PROBLEMS
            && budget.take()
            && repair(&mut value, &key_error, &mut unread_keys, budget)
        {
            continue;
        }
        if problems.len() >= MAX_PROBLEMS || budget.is_spent() {
            let reason = "may have more problems; correct these and check it again".to_owned();
            problems.push(PlanProblem { path: "the plan".to_owned(), ..error(&[], reason) });
        }
        break;
    }
    Reading { plan: None, problems, unread_keys, moved, warnings }
}

fn error(place: &[String], reason: String) -> PlanProblem {
    PlanProblem {
        path: set::join_key(place),
        reason,
        severity: Severity::Error,
        line: None,
        place: place.to_vec(),
    }
}

fn read(value: &Value) -> Result<Plan, KeyError> {
    Plan::deserialize(At { value, path: Vec::new() })
}

/// The keys of the type of this value's innermost table, in the order of declaration. The value holds only the path to that table,
/// and in it a key that no type has.
pub(crate) fn keys_at(value: &Value) -> &'static [&'static str] {
    match read(value) {
        Err(KeyError { kind: KeyErrorKind::Unknown(_, known), .. }) => known,
        _ => &[],
    }
}

/// Finds the key whose removal changes the error, because serde reads queues and factors through a buffer, without places.
fn locate_key(value: &Value, mut key_error: KeyError, budget: &mut ReadBudget) -> KeyError {
    let path = key_error.path.clone().unwrap_or_default();
    let table = find(value, &path).and_then(Value::as_table);
    match (&key_error.kind, table) {
        (KeyErrorKind::Word(..), Some(_)) => {
            key_error.path = Some([&path[..], &["kind".to_owned()]].concat());
        }
        (KeyErrorKind::Other(_), Some(table)) => {
            let mut keys = table.keys().filter(|k| *k != "kind").take_while(|_| budget.take());
            let culprit = keys.find(|key| {
                let mut without = value.clone();
                let inner = find_mut(&mut without, &path).and_then(Value::as_table_mut);
                let removed = inner.and_then(|t| t.remove(*key)).is_some();
                removed && read(&without).err().as_ref() != Some(&key_error)
            });
            if let Some(key) = culprit {
                key_error.path = Some([&path[..], std::slice::from_ref(key)].concat());
            }
        }
        _ => {}
    }
    key_error
}

fn find<'v>(value: &'v Value, path: &[String]) -> Option<&'v Value> {
    path.iter().try_fold(value, |at, segment| match at {
        Value::Table(table) => table.get(segment),
        Value::Array(items) => items.get(segment.parse::<usize>().ok()?),
        _ => None,
    })
}

fn find_mut<'v>(value: &'v mut Value, path: &[String]) -> Option<&'v mut Value> {
    path.iter().try_fold(value, |at, segment| match at {
        Value::Table(table) => table.get_mut(segment),
        Value::Array(items) => items.get_mut(segment.parse::<usize>().ok()?),
        _ => None,
    })
}

/// The dotted key of the problem.
fn problem_place(key_error: &KeyError) -> Vec<String> {
    let mut place = key_error.path.clone().unwrap_or_default();
    match &key_error.kind {
        KeyErrorKind::Unknown(key, _) => place.push(key.clone()),
        KeyErrorKind::Missing(key) => place.push((*key).to_owned()),
        KeyErrorKind::Word(..) | KeyErrorKind::Other(_) => {}
    }
    place
}

/// The problem and its fix.
fn describe(key_error: &KeyError, place: &[String], value: Option<&Value>) -> String {
    match &key_error.kind {
        KeyErrorKind::Unknown(key, known) if place.len() > 1 && TOP_LEVEL_KEYS.contains(&key.as_str()) => format!(
            "is not a key of {}; `{key}` belongs to the plan itself: write it above the first `[table]` ({known})",
            owner(place),
            known = suggest::list_of(known, "known here")
        ),
        KeyErrorKind::Unknown(key, known) => {
            format!("is not a key of {}{}", owner(place), suggest::hint(key, known, "known here"))
        }
        KeyErrorKind::Missing(key) => format!("is missing; write it like `{}`", example(key, place)),
        KeyErrorKind::Word(word, known) => {
            format!("`{word}` is unknown{}", suggest::hint(word, known, "known"))
        }
        KeyErrorKind::Other(text) if text.contains("untagged enum Factor") => {
            "a factor is a list of values of the key it is named after (`\"links.x.rate\" = [\"10mbit\", \"50mbit\"]`) \
             or a table of named levels, each a table of the keys it sets (`few = { \"flows.a.count\" = 1 }`)"
                .to_owned()
        }
        KeyErrorKind::Other(text) if text.contains("untagged enum SysctlValue") => {
            "must be a whole number or text in quotes".to_owned()
        }
        KeyErrorKind::Other(text) if text.contains("IP address") => {
            let written = value.map(Value::to_string).unwrap_or_default();
            format!("{written} is not an IP address; write it like \"10.0.0.1\"")
        }
        KeyErrorKind::Other(text) => refine(text, place, value),
    }
}

/// Rewrites a type's error in terms of its key.
fn refine(text: &str, place: &[String], value: Option<&Value>) -> String {
    let range = match place.last().map_or("", String::as_str) {
        "count" => "from 1 to 128",
        "port" => "from 1 to 65535",
        "dscp" => "from 0 to 63",
        "priority" => "from 0 to 7",
        _ => "",
    };
    let number = ["from 0 to 4294967295", "from 0 to 65535", "from 0 to 255"];
    if let Some(any) = number.iter().find(|any| !range.is_empty() && text.contains(*any)) {
        return text.replace(any, range);
    }
    let example = match (place, value) {
        ([list], Some(Value::Table(_))) if LISTS.contains(&list.as_str()) => {
            format!("; write its header in two brackets, `[[{list}]]`")
        }
        ([tables], Some(Value::Array(_))) if tables == "nodes" => {
            "; write `[nodes]` and below it a line for each node, `src = {}`".to_owned()
        }
        ([tables], Some(Value::Array(_)))
            if ["path", "links", "flows", "probes", "cc", "capture"].contains(&tables.as_str()) =>
        {
            format!("; write a header for each, like `[{tables}.a]`")
        }
        ([changes, _, set_key, key], Some(table))
            if changes == "changes" && set_key == "set" && table.is_table() =>
        {
            let (key, value) = set::unquoted_key(&[key], table);
            format!("; write the dotted key in quotes, `\"{key}\" = {value}`")
        }
        (_, Some(Value::Datetime(_))) if text.starts_with("must be any value") => {
            return "must not be a date: no key of a plan takes one".to_owned();
        }
        (_, Some(Value::String(word))) if text.starts_with("must be a list") => {
            format!("; write it like `[\"{}\"]`", word.escape_debug())
        }
        _ => String::new(),
    };
    format!("{text}{example}")
}

/// The table of the key at this place, for messages.
fn owner(place: &[String]) -> &'static str {
    let segments: Vec<&str> = place.iter().map(String::as_str).collect();
    match segments[..] {
        [_] => "a plan",
        ["sample", _] => "`sample`",
        ["lab", _] => "`lab`",
        [.., "queue", _] => "this kind of queue",
        [.., "match", _] => "`match`",
        ["links", _, "trace", _] => "`trace`",
        ["links", _, "jitter", _] => "`jitter`",
        ["links", _, "burst_loss", _] => "`burst_loss`",
        ["links", _, "reorder", _] => "`reorder`",
        ["links", _, "ecn_rewrite", _] => "`ecn_rewrite`",
        ["links", _, "policer", _] => "`policer`",
        ["links", _, "ack_aggregation", _] => "`ack_aggregation`",
        ["links", _, "slot", _] => "`slot`",
        ["links", _, "tbf", _] => "`tbf`",
        ["cc", _, _] => "a congestion control",
        ["links", _, "classes", _, _] => "a class",
        ["links", _, _] => "a link",
        ["flows", _, _] => "a flow group",
        ["nodes", _, _] => "a node",
        ["path", _, _] => "a path",
        ["probes", _, _] => "a probe",
        ["capture", _, _] => "a capture",
        ["phases", _, _] => "a phase",
        ["changes", _, _] => "a change",
        ["changes", _, "when", _] => "`when`",
        ["design", _] => "`design`",
        ["repeat", _] => "`repeat`",
        ["repeat", "until", _, _] => "a rule of `until`",
        ["compare", _, _] => "a comparison",
        ["expect", _, _] => "a claim",
        ["expect", _, "over", _] => "`over`",
        ["expect", _, "minus", _] => "`minus`",
        _ => "this table",
    }
}

/// An example of a required key.
fn example(key: &str, place: &[String]) -> String {
    let table = place.len().checked_sub(2).and_then(|i| place.get(i)).map(String::as_str);
    let text = match (key, table) {
        ("name", None) => "name = \"my-experiment\"",
        ("nodes", _) => "[nodes]` and below it a line for each node, `src = {}",
        ("phases", _) => "[[phases]]` with `name`, `length` and `flows",
        ("name", _) => "name = \"alone\"",
        ("claim", _) => "claim = \"Vegas is starved by CUBIC\"",
        ("at_most", _) => "at_most = 40",
        ("metric", _) => "metric = \"throughput\"",
        ("within", _) => "within = \"2%\"",
        ("margin", _) => "margin = \"5%\"",
        ("better", _) => "better = \"higher\"",
        ("a" | "b", Some(_)) => "a = { \"flows.one.cc\" = \"cubic\" }",
        ("length", _) => "length = \"60s\"",
        ("node", _) => "node = \"router\"",
        ("from", _) => "from = \"src\"",
        ("to", _) => "to = \"dst\"",
        ("kind", Some("queue")) => "kind = \"bfifo\"",
        ("kind", Some("design")) => "kind = \"latin-hypercube\"",
        ("kind", _) => "kind = \"ping\"",
        ("limit", _) => "limit = \"187500B\"",
        ("rate", _) => "rate = \"10mbit\"",
        ("match", _) => "match = { to = \"dst\" }",
        ("file", _) => "file = \"traces/lte.csv\"",
        ("spread", _) => "spread = \"2ms\"",
        ("enter", _) => "enter = \"1%\"",
        ("leave", _) => "leave = \"25%\"",
        ("share", _) => "share = \"1%\"",
        ("burst", _) => "burst = \"100kB\"",
        ("hold", _) => "hold = \"2ms\"",
        ("every", Some("slot")) => "every = \"5ms\"",
        ("algorithm", _) => "algorithm = \"vegas\"",
        ("at", _) => "at = \"30s\"",
        ("set", _) => "set = { \"links.bottleneck.rate\" = \"20mbit\" }",
        _ => return format!("{key} = ..."),
    };
    text.to_owned()
}

/// Reads `[link.x]` as `[links.x]` and `[phases]` as `[[phases]]`, so that their keys are checked too. The result is the
/// corrected key and the written one.
fn correct_header(
    value: &mut Value,
    key_error: &KeyError,
    place: &[String],
) -> Option<(Vec<String>, Vec<String>)> {
    let ([written], Some(plan)) = (place, value.as_table_mut()) else { return None };
    match &key_error.kind {
        KeyErrorKind::Unknown(_, known) => {
            let meant = format!("{written}s");
            if !known.contains(&meant.as_str()) || plan.contains_key(&meant) {
                return None;
            }
            let inner = plan.remove(written)?;
            plan.insert(meant.clone(), inner);
            Some((vec![meant], vec![written.clone()]))
        }
        KeyErrorKind::Other(_) if LISTS.contains(&written.as_str()) => {
            let one = plan.get_mut(written).filter(|inner| inner.is_table())?;
            let only = std::mem::replace(one, Value::Array(Vec::new()));
            *one = Value::Array(vec![only]);
            Some((vec![written.clone(), "0".to_owned()], vec![written.clone()]))
        }
        _ => None,
    }
}

/// Repairs the key, so that reading again finds the next error, and records the keys that are unread; `false` if it cannot.
fn repair(
    value: &mut Value,
    key_error: &KeyError,
    unread_keys: &mut UnreadKeys,
    budget: &mut ReadBudget,
) -> bool {
    let mut place = problem_place(key_error);
    if let [.., parent, last] = &place[..]
        && last == "kind"
        && parent == "queue"
    {
        place.pop();
    }
    if let [matrix, rest @ ..] = &place[..]
        && matrix == "matrix"
        && rest.len() < 2
    {
        let name = rest.first().map_or("", String::as_str);
        unread_keys.factor(name, find(value, &place));
    }
    if let KeyErrorKind::Unknown(key, known) = &key_error.kind
        && let Some((_, parent)) = place.split_last()
        && let Some(table) = find(value, parent).and_then(Value::as_table)
    {
        if TOP_LEVEL_KEYS.contains(&key.as_str()) {
            unread_keys.mark_unread(vec![key.clone()]);
        } else {
            unread_keys.mark_misspelt(&place, table, suggest::closest(key, known), known);
        }
    }
    let repaired = match key_error.kind {
        KeyErrorKind::Missing(_) if place.last().is_some_and(|last| last == "queue") => {
            remove(value, &place)
        }
        KeyErrorKind::Missing(_) => fill(value, key_error, &place, budget),
        _ => remove(value, &place) || fill(value, key_error, &place, budget),
    };
    unread_keys.mark_unread(place);
    repaired
}

/// Drops a key of a table. Elements of lists stay, so that later ones keep their numbers.
fn remove(value: &mut Value, place: &[String]) -> bool {
    let Some((last, parent)) = place.split_last() else { return false };
    let table = find_mut(value, parent).and_then(Value::as_table_mut);
    table.and_then(|t| t.remove(last)).is_some()
}

/// Replaces the value with one of the right type.
fn fill(
    value: &mut Value,
    key_error: &KeyError,
    place: &[String],
    budget: &mut ReadBudget,
) -> bool {
    let text = |t: &str| Value::String(t.to_owned());
    let candidates = [
        text("x"),
        text("1s"),
        text("1mbit"),
        text("1p"),
        text("1B"),
        text("ping"),
        text("higher"),
        text("latin-hypercube"),
        Value::Integer(1),
        Value::Array(Vec::new()),
        Value::Table(Table::new()),
    ];
    let Some((last, parent)) = place.split_last() else { return false };
    for candidate in candidates {
        if !budget.take() {
            return false;
        }
        let mut tried = value.clone();
        match find_mut(&mut tried, parent) {
            Some(Value::Table(table)) => {
                table.insert(last.clone(), candidate);
            }
            Some(Value::Array(items)) => {
                let Some(item) = last.parse().ok().and_then(|i: usize| items.get_mut(i)) else {
                    return false;
                };
                *item = candidate;
            }
            _ => return false,
        }
        let gone = match read(&tried) {
            Ok(_) => true,
            Err(next) => {
                next != *key_error && problem_place(&locate_key(&tried, next, budget)) != place
            }
        };
        if gone {
            *value = tried;
            return true;
        }
    }
    false
}
