//! `[quick]`: the overrides of `--quick`, applied like `--set`.

use toml::{Table, Value};

use super::renamed::rename_tables;
use super::set::{apply, join_key, overlap, split_assignment, split_key};
use super::{Moved, error, nesting, read_lenient};
use crate::plan::problem::PlanProblem;

/// The assignments of `[quick]` in the form of `--set`, each with its key there. No key of a plan is a date, so dates are reported
/// as values of `[quick]` itself.
pub(super) fn assignments(table: &Table) -> Vec<(String, String)> {
    let quick = table.get("quick").and_then(Value::as_table);
    let pairs = quick.into_iter().flatten().filter(|(_, value)| !has_date(value));
    pairs.map(|(key, value)| (key.clone(), format!("{key}={value}"))).collect()
}

fn has_date(value: &Value) -> bool {
    match value {
        Value::Datetime(_) => true,
        Value::Array(items) => items.iter().any(has_date),
        Value::Table(table) => table.values().any(has_date),
        _ => false,
    }
}

/// The overrides of `--quick`: those of the plan's `[quick]`, and `sets`, which take precedence. `None` without `[quick]`.
pub fn quick_sets(text: &str, sets: &[String]) -> Option<Vec<String>> {
    // Invalid TOML is reported when the plan is read.
    let Some(table) = nesting::parse(text) else { return Some(sets.to_vec()) };
    table.get("quick")?;
    let key = |assignment: &str| split_key(split_assignment(assignment)?.0).ok();
    let given: Vec<Vec<String>> = sets.iter().filter_map(|set| key(set)).collect();
    let of_plan = assignments(&table).into_iter().map(|(_, set)| set);
    // A key inside the value of an override is set afterwards, except for levels, among which only one override may choose.
    let replaces = |given: &[String], key: &[String]| {
        if key[0] == "matrix" { overlap(given, key) } else { key.starts_with(given) }
    };
    let overridden =
        |set: &String| key(set).is_some_and(|key| given.iter().any(|given| replaces(given, &key)));
    Some(of_plan.filter(|set| !overridden(set)).chain(sets.iter().cloned()).collect())
}

/// The place of a key of `[quick]`.
pub(super) fn place(written: &str) -> Vec<String> {
    vec!["quick".to_owned(), written.to_owned()]
}

/// The key to which an applied override of `[quick]` gave its value, and the place where it is written.
pub(super) fn moved(mut key: Vec<String>, written: &str) -> Moved {
    // The override leaves one value of a factor.
    if key[0] == "matrix" && split_key(written).as_ref() != Ok(&key) {
        key.push("0".to_owned());
    }
    (key, place(written))
}

/// The place in `[quick]` of the value at this place of the plan, if it is one of `moved`.
pub(super) fn written(moved: &[Moved], place: &[String]) -> Option<Vec<String>> {
    let (key, written) = moved.iter().rev().find(|(key, _)| place.starts_with(key))?;
    Some([&written[..], &place[key.len()..]].concat())
}

/// The problems of a plan's `[quick]`: overrides that cannot be applied, and values that cannot be read. If `sets` apply them, the
/// latter are found with the rest of the plan.
pub(super) fn check(table: &Table, sets: &[String]) -> Vec<PlanProblem> {
    let mut quick = table.clone();
    quick.remove("quick");
    let all = assignments(table);
    let (mut wrong, mut applied) = (repeated(&all), Vec::new());
    for (key, assignment) in &all {
        match apply(&mut quick, assignment) {
            Ok(set) => applied.extend(set.map(|set| moved(set, key))),
            Err((_, why)) => wrong.push(error(&place(key), why.to_string())),
        }
    }
    if applied.is_empty() || all.iter().any(|(_, assignment)| sets.contains(assignment)) {
        return wrong;
    }
    rename_tables(&mut quick);
    wrong.extend(read_lenient(quick).problems.into_iter().filter_map(|problem| {
        let place = written(&applied, &problem.place)?;
        Some(PlanProblem { path: join_key(&place), place, ..problem })
    }));
    wrong
}

/// The problems of overrides that replace the value of an earlier one: the same key written differently, or a table around it.
fn repeated(all: &[(String, String)]) -> Vec<PlanProblem> {
    let keys: Vec<(&String, Vec<String>)> =
        all.iter().filter_map(|(written, _)| Some((written, split_key(written).ok()?))).collect();
    let replaced = |(index, (written, key)): (usize, &(&String, Vec<String>))| {
        let (other, _) = keys[..index].iter().find(|(_, earlier)| earlier.starts_with(key))?;
        let why = format!("replaces the value of `{other}`, which is set here, too; leave one out");
        Some(error(&place(written), why))
    };
    keys.iter().enumerate().filter_map(replaced).collect()
}

#[cfg(test)]
mod tests {
    use super::quick_sets;
    use crate::plan::check::{Severity, read};

    const PLAN: &str = r#"name = "t"
repeat = 2
[nodes]
a = {}
b = {}
[wires]
w = ["a", "b"]
[links.l]
node = "a"
toward = "b"
rate = "10mbit"
delay = "10ms"
[flows.f]
from = "a"
to = "b"
start = "0s"
stop = "4s"
[[phases]]
name = "p"
length = "5s"
[matrix]
"links.l.delay" = ["5ms", "10ms"]
[quick]
"#;

    /// The errors of the plan with these lines below `[quick]`, without and with its overrides, each after its line there.
    fn errors(lines: &str) -> [Vec<String>; 2] {
        let text = format!("{PLAN}{lines}");
        let before = PLAN.lines().count() as i64;
        [Vec::new(), quick_sets(&text, &[]).unwrap()].map(|sets| {
            let mut found = read(&text, &sets).err().unwrap_or_default();
            found.retain(|problem| problem.severity == Severity::Error);
            found.iter().map(|p| format!("{} {p}", i64::from(p.line.unwrap()) - before)).collect()
        })
    }

    /// Asserts that both name the same lines and begin so.
    fn assert_errors(lines: &str, expected: &[&str]) {
        for found in errors(lines) {
            assert_eq!(found.len(), expected.len(), "{lines}: {found:?}");
            for (found, expected) in found.iter().zip(expected) {
                assert!(found.starts_with(expected), "{lines}: {found}");
                assert!(!found.contains("--set"), "{lines}: {found}");
            }
        }
    }

    #[test]
    fn errors_name_the_line_in_quick() {
        assert_errors("repeat = 1\n\"links.l.rate\" = \"1mbit\"\n", &[]);
        assert_errors(
            "repeat = \"x\"\n\"links.l.rate\" = \"zzz\"\n",
            &[
                "1 quick.repeat: must be a whole number",
                "2 quick.\"links.l.rate\": `zzz` is not a rate",
            ],
        );
        assert_errors(
            "\"links.nope.rate\" = \"1mbit\"\n",
            &["1 quick.\"links.nope.rate\": there is no link `nope`"],
        );
        assert_errors(
            "\"links.l.rate\" = 1979-05-27\n",
            &["1 quick.\"links.l.rate\": must be any valid TOML value, not a date"],
        );
        // Of one value: they are rules, which the plan passes without `[quick]`.
        assert_errors("\"links.l.rate\" = \"0bit\"\n", &["1 quick.\"links.l.rate\": is zero"]);
        let varied = &["1 quick.\"links.l.delay\": `long` is not a length of time"];
        assert_errors("\"links.l.delay\" = \"long\"\n", varied);
    }

    #[test]
    fn a_key_is_set_only_once() {
        assert_errors(
            "\"links.l.rate\" = \"1mbit\"\n\"links.'l'.rate\" = \"2mbit\"\n",
            &["2 quick.\"links.\\'l\\'.rate\": replaces the value of `links.l.rate`"],
        );
    }

    #[test]
    fn an_override_inside_the_value_of_another_one_replaces_only_its_key() {
        let text = format!("{PLAN}\"links.l.queue\" = {{ kind = \"codel\", limit = \"9p\" }}\n");
        let limit = |set: &str| -> (String, usize) {
            let sets = quick_sets(&text, &[set.to_owned()]).unwrap();
            let (plan, _) = read(&text, &sets).unwrap_or_else(|problems| panic!("{problems:?}"));
            (format!("{:?}", plan.plan().links["l"].queue), sets.len())
        };
        let (queue, sets) = limit("links.l.queue.limit=7p");
        assert!(queue.contains("Codel") && queue.contains('7') && sets == 2, "{queue}");
        let (queue, sets) = limit("links.l.queue={ kind = 'pfifo', limit = '5p' }");
        assert!(queue.contains("Pfifo") && queue.contains('5') && sets == 1, "{queue}");
    }

    #[test]
    fn overrides_must_fit_the_rest_of_the_plan() {
        let lines = "\"phases.0.length\" = \"2s\"\n";
        let [plain, quick] = errors(lines);
        assert!(plain.is_empty() && quick.len() == 1, "{plain:?} {quick:?}");
        assert!(quick[0].contains("flows.f.stop: 4s is after the trial's end at 2s"), "{quick:?}");
        let (_, found) = read(&format!("{PLAN}{lines}"), &[]).unwrap();
        let warnings = found.iter().filter(|problem| problem.severity == Severity::Warning);
        let warnings: Vec<String> = warnings.map(ToString::to_string).collect();
        let expected = "flows.f.stop: 4s is after the trial's end at 2s";
        let is_it = |w: &String| w.contains(expected) && w.ends_with("(with `--quick`)");
        assert_eq!(warnings.iter().filter(|w| is_it(w)).count(), 1, "{warnings:?}");
    }
}
