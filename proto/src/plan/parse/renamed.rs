//! Keys with a deprecated name. They are read under their current name, with a warning.

use toml::{Table, Value};

use super::set::{current_name, join_key, split_assignment, split_written_key};
use super::{Moved, error};
use crate::plan::problem::{PlanProblem, Severity};
use crate::plan::queue::DUALPI2_RENAMED;

/// Gives keys of queues in a plan's table their current names. Returns each key, and the place where it is written.
pub(super) fn rename_tables(plan: &mut Table) -> Vec<Moved> {
    let mut renamed = Vec::new();
    for (section, value) in plan.iter_mut() {
        rename_inside(&[section], value, &[section], &mut renamed);
    }
    for (factor, levels) in tables(plan.get_mut("matrix")) {
        match levels {
            Value::Array(values) => {
                for (index, value) in values.iter_mut().enumerate() {
                    let index = index.to_string();
                    rename_dotted(factor, value, &["matrix", factor, &index], &mut renamed);
                }
            }
            levels => {
                for (level, keys) in tables(Some(levels)) {
                    for (key, value) in tables(Some(keys)) {
                        rename_dotted(key, value, &["matrix", factor, level, key], &mut renamed);
                    }
                }
            }
        }
    }
    renamed
}

/// The entries of a table; none of any other value.
fn tables(value: Option<&mut Value>) -> impl Iterator<Item = (&String, &mut Value)> {
    value.and_then(Value::as_table_mut).into_iter().flatten()
}

/// As [`rename_inside`], for the value of a dotted key.
fn rename_dotted(dotted: &str, value: &mut Value, place: &[&str], renamed: &mut Vec<Moved>) {
    let Ok(key) = split_written_key(dotted) else { return };
    let key: Vec<&str> = key.iter().map(String::as_str).collect();
    rename_inside(&key, value, place, renamed);
}

/// Renames the keys of every queue in the value of this key, which is a queue, or a table around queues. `place` is where the value is
/// written.
fn rename_inside(key: &[&str], value: &mut Value, place: &[&str], renamed: &mut Vec<Moved>) {
    let ["links" | "path", inside @ ..] = key else { return };
    match inside {
        [_, "queue"] | [_, "classes", _, "queue"] => rename(value, place, renamed),
        [] | [_] | [_, "classes"] | [_, "classes", _] => {
            for (name, inner) in tables(Some(value)) {
                let name: &[&str] = &[name.as_str()];
                rename_inside(&[key, name].concat(), inner, &[place, name].concat(), renamed);
            }
        }
        _ => {}
    }
}

fn rename(queue: &mut Value, place: &[&str], renamed: &mut Vec<Moved>) {
    let Some(queue) = queue.as_table_mut() else { return };
    // A factor may set the kind.
    if queue.get("kind").and_then(Value::as_str).is_some_and(|kind| kind != "dualpi2") {
        return;
    }
    let at = |key: &str| -> Vec<String> {
        place.iter().copied().chain([key]).map(str::to_owned).collect()
    };
    for (old, new) in DUALPI2_RENAMED {
        // If both are written, the deprecated one is unknown.
        if !queue.contains_key(*new)
            && let Some(value) = queue.remove(*old)
        {
            queue.insert((*new).to_owned(), value);
            renamed.push((at(new), at(old)));
        }
    }
}

/// The warnings about keys of tables that were renamed.
pub(super) fn warnings_of_tables(renamed: &[Moved]) -> impl Iterator<Item = PlanProblem> {
    renamed
        .iter()
        .filter_map(|(current, written)| Some(warning(written, written.last()?, current.last()?)))
}

/// The warnings about dotted keys: those of the matrix and of `[quick]`, which are keys of a plan's table.
pub(super) fn warnings_of_dotted_keys(plan: &Table) -> Vec<PlanProblem> {
    let mut found = Vec::new();
    let mut add = |place: &[&str], dotted: &str| {
        let Ok(key) = split_written_key(dotted) else { return };
        if let (Some(new), Some(old)) = (current_name(&key), key.last()) {
            let place: Vec<String> = place.iter().map(|&segment| segment.to_owned()).collect();
            found.push(warning(&place, old, new));
        }
    };
    for (factor, levels) in plan.get("matrix").and_then(Value::as_table).into_iter().flatten() {
        add(&["matrix", factor], factor);
        for (level, keys) in levels.as_table().into_iter().flatten() {
            for key in keys.as_table().into_iter().flat_map(Table::keys) {
                add(&["matrix", factor, level, key], key);
            }
        }
    }
    for key in plan.get("quick").and_then(Value::as_table).into_iter().flat_map(Table::keys) {
        add(&["quick", key], key);
    }
    found
}

/// The warning about the key of an override.
pub(super) fn warning_of_set(assignment: &str) -> Option<PlanProblem> {
    let (dotted, _) = split_assignment(assignment)?;
    let key = split_written_key(dotted).ok()?;
    let warning = warning(&[], key.last()?, current_name(&key)?);
    Some(PlanProblem { path: format!("--set {}", dotted.trim()), ..warning })
}

fn warning(place: &[String], old: &str, new: &str) -> PlanProblem {
    PlanProblem {
        path: join_key(place),
        severity: Severity::Warning,
        ..error(place, format!("`{old}` is deprecated; use `{new}`"))
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::Queue;
    use crate::plan::check::{self, CheckedPlan, PlanProblem};
    use crate::units::Micros;

    /// A plan whose DualPI2 queue and matrix have these lines.
    fn read(
        queue: &str,
        matrix: &str,
        sets: &[&str],
    ) -> Result<(CheckedPlan, Vec<PlanProblem>), Vec<PlanProblem>> {
        let text = format!(
            "name = 't'\n[nodes]\nsrc = {{}}\ndst = {{}}\n[wires]\nw = ['src', 'dst']\n\
             [flows.f]\nfrom = 'src'\nto = 'dst'\n\
             [[phases]]\nname = 'p'\nlength = '5s'\nflows = ['f']\n\
             [links.l]\nnode = 'src'\ntoward = 'dst'\nrate = '100mbit'\ndelay = '5ms'\n\
             [links.l.queue]\nkind = 'dualpi2'\n{queue}\n{matrix}\n"
        );
        let sets: Vec<String> = sets.iter().map(|&set| set.to_owned()).collect();
        check::read(&text, &sets)
    }

    /// The line and text of each warning about a deprecated key.
    fn deprecated(problems: &[PlanProblem]) -> Vec<(Option<u32>, String)> {
        let found = problems.iter().filter(|problem| problem.reason.contains("deprecated"));
        found.map(|problem| (problem.line, problem.to_string())).collect()
    }

    fn thresholds(plan: &CheckedPlan) -> Vec<(Option<Micros>, Option<u32>)> {
        let of = |queue: &Option<Queue>| match queue {
            Some(Queue::Dualpi2(queue)) => (queue.step_thresh, queue.coupling_factor),
            other => panic!("{other:?}"),
        };
        plan.points().iter().map(|point| of(&point.plan.plan().links["l"].queue)).collect()
    }

    #[test]
    fn deprecated_keys_are_read_with_a_warning() {
        let (plan, warnings) = read("step = '2ms'\ncoupling = 3", "", &[]).unwrap();
        assert_eq!(thresholds(&plan), [(Some(Micros::from_millis(2)), Some(3))]);
        let step = "links.l.queue.step: `step` is deprecated; use `step_thresh`";
        let coupling = "links.l.queue.coupling: `coupling` is deprecated; use `coupling_factor`";
        let expected = [(Some(21), step.to_owned()), (Some(22), coupling.to_owned())];
        assert_eq!(deprecated(&warnings), expected);
        let (current, none) = read("step_thresh = '2ms'\ncoupling_factor = 3", "", &[]).unwrap();
        assert_eq!(current.plan(), plan.plan());
        assert_eq!(deprecated(&none), []);
    }

    #[test]
    fn problems_with_a_deprecated_key_have_its_line() {
        let problems = read("coupling = 300", "", &[]).unwrap_err();
        let wrong =
            problems.iter().find(|problem| problem.reason.contains("from 1 to 255")).unwrap();
        assert_eq!((wrong.line, wrong.path.as_str()), (Some(21), "links.l.queue.coupling_factor"));
        let both = read("step = '1ms'\nstep_thresh = '2ms'", "", &[]).unwrap_err();
        assert!(both.iter().any(|problem| problem.path == "links.l.queue.step"), "{both:?}");
    }

    #[test]
    fn deprecated_keys_of_the_matrix_replace_current_ones() {
        let named = "[matrix.step]\na = { 'links.l.queue.step' = '1ms' }\n\
                     b = { 'links.l.queue' = { kind = 'dualpi2', coupling = 4 } }";
        let (plan, warnings) = read("step_thresh = '5ms'", named, &[]).unwrap();
        let expected = [(Some(Micros::from_millis(1)), None), (None, Some(4))];
        assert_eq!(thresholds(&plan), expected);
        let found: Vec<Option<u32>> =
            deprecated(&warnings).into_iter().map(|(line, _)| line).collect();
        assert_eq!(found, [Some(23), Some(24)], "{warnings:?}");
        let listed = "[matrix]\n'links.l.queue.step' = ['1ms', '2ms']";
        let (plan, warnings) = read("step = '5ms'", listed, &[]).unwrap();
        let expected = [1, 2].map(|ms| (Some(Micros::from_millis(ms)), None));
        assert_eq!(thresholds(&plan), expected);
        assert_eq!(plan.points()[0].factors[0].0, "links.l.queue.step", "as it is written");
        assert_eq!(deprecated(&warnings).len(), 2, "{warnings:?}");
    }

    #[test]
    fn deprecated_keys_in_whole_links_of_the_matrix_are_renamed() {
        let link = |queue: &str| {
            format!(
                "{{ node = 'src', toward = 'dst', rate = '100mbit', delay = '5ms', \
                 queue = {{ kind = 'dualpi2', {queue} }} }}"
            )
        };
        let [one, two] = ["step = '1ms'", "coupling = 4"].map(link);
        let named =
            format!("[matrix.link]\na = {{ 'links.l' = {one} }}\nb = {{ 'links.l' = {two} }}");
        let listed = format!("[matrix]\n'links.l' = [\n{one},\n{two},\n]");
        for (matrix, lines) in [(named, [23, 24]), (listed, [24, 25])] {
            let (plan, warnings) = read("", &matrix, &[]).unwrap();
            assert_eq!(thresholds(&plan), [(Some(Micros::from_millis(1)), None), (None, Some(4))]);
            let found: Vec<Option<u32>> =
                deprecated(&warnings).into_iter().map(|(line, _)| line).collect();
            assert_eq!(found, lines.map(Some), "{warnings:?}");
        }
    }

    #[test]
    fn overrides_may_have_deprecated_keys() {
        let sets = ["links.l.queue.step=3ms"];
        let (plan, warnings) = read("step_thresh = '5ms'", "", &sets).unwrap();
        assert_eq!(thresholds(&plan), [(Some(Micros::from_millis(3)), None)]);
        let warning = "--set links.l.queue.step: `step` is deprecated; use `step_thresh`";
        assert_eq!(deprecated(&warnings), [(None, warning.to_owned())]);
        let whole = ["links.l.queue={ kind = 'dualpi2', coupling = 7 }"];
        let (plan, warnings) = read("step_thresh = '5ms'", "", &whole).unwrap();
        assert_eq!(thresholds(&plan), [(None, Some(7))]);
        assert_eq!(deprecated(&warnings).len(), 1, "{warnings:?}");
    }

    #[test]
    fn other_queues_have_no_deprecated_keys() {
        let fq = ["links.l.queue={ kind = 'fq', step = '1ms' }"];
        let problems = read("", "", &fq).unwrap_err();
        let step = problems.iter().find(|problem| problem.path == "links.l.queue.step").unwrap();
        assert!(step.reason.starts_with("is not a key of this kind of queue"), "{step}");
        assert_eq!(deprecated(&problems), []);
    }
}
