//! Text to [`super::Plan`]: every problem at once, each with its place. The plan's own types say what is
//! right; this only collects what they refuse: it reads the plan, notes the first misfit, mends it (drops
//! an unknown key or a wrong value, fills in a missing one) and reads again.

use serde::Deserialize;
use toml::{Table, Value};

use super::Plan;
use super::check::{PlanProblem, Severity};
use place::{At, Fault, Misfit};

mod place;
pub(crate) mod set;
pub(crate) mod suggest;

/// Most problems that are collected before giving up.
const MAX_PROBLEMS: usize = 100;
/// Largest plan that is read, in bytes.
const MAX_TEXT: usize = 4 << 20;

/// A plan from its TOML text.
///
/// # Errors
/// One problem with line and column where the text is not TOML, otherwise every problem there is.
pub fn parse(text: &str) -> Result<Plan, Vec<PlanProblem>> {
    parse_with(text, &[])
}

/// As [`parse`], with overrides (`links.bottleneck.rate=50mbit`) applied first.
///
/// # Errors
/// As [`parse`]; the path of a problem with an override begins with `--set`.
pub fn parse_with(text: &str, sets: &[String]) -> Result<Plan, Vec<PlanProblem>> {
    if text.len() > MAX_TEXT {
        return Err(vec![error("the plan", "is longer than 4 MiB; is this the right file?")]);
    }
    let mut table: Table = toml::from_str(text).map_err(|e| vec![not_toml(text, &e)])?;
    let problems: Vec<PlanProblem> = sets
        .iter()
        .filter_map(|assignment| set::apply(&mut table, assignment).err())
        .map(|(path, why)| error(&path, &why))
        .collect();
    if problems.is_empty() { from_table(table) } else { Err(problems) }
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
    error(&format!("line {line}, column {column}"), &format!("this is not TOML: {what}{place}"))
}

/// A plan from its table.
pub(crate) fn from_table(table: Table) -> Result<Plan, Vec<PlanProblem>> {
    let mut value = Value::Table(table);
    let mut problems: Vec<PlanProblem> = Vec::new();
    let mut filled: Vec<Vec<String>> = Vec::new();
    for _ in 0..10 * MAX_PROBLEMS {
        let misfit = match read(&value) {
            Ok(plan) if problems.is_empty() => return Ok(plan),
            Ok(_) => return Err(problems),
            Err(misfit) => narrow(&value, misfit),
        };
        let place = problem_place(&misfit);
        if !filled.contains(&place) {
            problems
                .push(error(&set::join_key(&place), &words(&misfit, &place, find(&value, &place))));
            filled.push(place);
        }
        if problems.len() >= MAX_PROBLEMS || !mend(&mut value, &misfit) {
            break;
        }
    }
    Err(problems)
}

fn error(path: &str, why: &str) -> PlanProblem {
    PlanProblem { path: path.to_owned(), why: why.to_owned(), severity: Severity::Error }
}

fn read(value: &Value) -> Result<Plan, Misfit> {
    Plan::deserialize(At { value, path: Vec::new() })
}

/// Queues and factors are read through a buffer that forgets places. Finds the key whose removal makes the
/// misfit go away.
fn narrow(value: &Value, mut misfit: Misfit) -> Misfit {
    let path = misfit.path.clone().unwrap_or_default();
    let table = find(value, &path).and_then(Value::as_table);
    match (&misfit.fault, table) {
        (Fault::Word(..), Some(_)) => {
            misfit.path = Some([&path[..], &["kind".to_owned()]].concat());
        }
        (Fault::Other(_), Some(table)) => {
            let culprit = table.keys().filter(|k| *k != "kind").find(|key| {
                let mut without = value.clone();
                let inner = find_mut(&mut without, &path).and_then(Value::as_table_mut);
                let removed = inner.and_then(|t| t.remove(*key)).is_some();
                removed && read(&without).err().as_ref() != Some(&misfit)
            });
            if let Some(key) = culprit {
                misfit.path = Some([&path[..], std::slice::from_ref(key)].concat());
            }
        }
        _ => {}
    }
    misfit
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

/// The dotted key that a user has to look at.
fn problem_place(misfit: &Misfit) -> Vec<String> {
    let mut place = misfit.path.clone().unwrap_or_default();
    match &misfit.fault {
        Fault::Unknown(key, _) => place.push(key.clone()),
        Fault::Missing(key) => place.push((*key).to_owned()),
        Fault::Word(..) | Fault::Other(_) => {}
    }
    place
}

/// What is wrong and how to mend it.
fn words(misfit: &Misfit, place: &[String], value: Option<&Value>) -> String {
    match &misfit.fault {
        Fault::Unknown(key, known) => {
            format!("is not a key of a plan{}", suggest::hint(key, known, "known here"))
        }
        Fault::Missing(key) => format!("is missing; write it like `{}`", example(key, place)),
        Fault::Word(word, known) => {
            format!("`{word}` is unknown{}", suggest::hint(word, known, "known"))
        }
        Fault::Other(text) if text.contains("untagged enum Factor") => {
            "a factor is a list of values of the key it is named after (`\"links.x.rate\" = [\"10mbit\", \"50mbit\"]`) \
             or a table of named levels, each a table of the keys it sets (`few = { \"flows.a.count\" = 1 }`)"
                .to_owned()
        }
        Fault::Other(text) if text.contains("untagged enum SysctlValue") => {
            "must be a whole number or text in quotes".to_owned()
        }
        Fault::Other(text) if text.contains("IP address") => {

            let written = value.map(Value::to_string).unwrap_or_default();
            format!("{written} is not an IP address; write it like \"10.0.0.1\"")
        }
        Fault::Other(text) => text.clone(),
    }
}

/// How a key that must be there is written.
fn example(key: &str, place: &[String]) -> String {
    let table = place.len().checked_sub(2).and_then(|i| place.get(i)).map(String::as_str);
    let text = match (key, table) {
        ("name", None) => "name = \"my-experiment\"",
        ("nodes", _) => "[nodes]` and below it a line for each node, `src = {}",
        ("phases", _) => "[[phases]]` with `name`, `length` and `flows",
        ("name", _) => "name = \"alone\"",
        ("length", _) => "length = \"60s\"",
        ("node", _) => "node = \"router\"",
        ("from", _) => "from = \"src\"",
        ("to", _) => "to = \"dst\"",
        ("kind", Some("queue")) => "kind = \"bfifo\"",
        ("kind", _) => "kind = \"ping\"",
        ("limit", _) => "limit = \"187500B\"",
        ("rate", _) => "rate = \"10mbit\"",
        ("match", _) => "match = { to = \"dst\" }",
        ("at", _) => "at = \"30s\"",
        ("set", _) => "set = { \"links.bottleneck.rate\" = \"20mbit\" }",
        _ => return format!("{key} = ..."),
    };
    text.to_owned()
}

/// Makes the misfit go away so that the next one shows; `false` when it cannot.
fn mend(value: &mut Value, misfit: &Misfit) -> bool {
    let place = problem_place(misfit);
    let Some((last, parent)) = place.split_last() else { return false };
    if last == "kind" && parent.last().is_some_and(|p| p == "queue") {
        return remove(value, parent);
    }
    match misfit.fault {
        Fault::Missing(_) => fill(value, misfit, &place),
        _ => remove(value, &place) || fill(value, misfit, &place),
    }
}

/// Drops a key of a table; elements of lists stay, so that the places of later ones keep their numbers.
fn remove(value: &mut Value, place: &[String]) -> bool {
    let Some((last, parent)) = place.split_last() else { return false };
    let table = find_mut(value, parent).and_then(Value::as_table_mut);
    table.and_then(|t| t.remove(last)).is_some()
}

/// Puts something there that is of the right type, whatever that is.
fn fill(value: &mut Value, misfit: &Misfit, place: &[String]) -> bool {
    let text = |t: &str| Value::String(t.to_owned());
    let candidates = [
        text("x"),
        text("1s"),
        text("1mbit"),
        text("1p"),
        text("ping"),
        Value::Integer(1),
        Value::Array(Vec::new()),
        Value::Table(Table::new()),
    ];
    let Some((last, parent)) = place.split_last() else { return false };
    for candidate in candidates {
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
            Err(next) => next != *misfit && problem_place(&narrow(&tried, next.clone())) != place,
        };
        if gone {
            *value = tried;
            return true;
        }
    }
    false
}
