//! The matrix: every combination of its factors' levels, or those that a design selects, is a separate plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use toml::{Table, Value};

use crate::plan::expect;
use crate::plan::parse::{from_table, set};
use crate::plan::problem::{PlanProblem, Severity};
use crate::plan::{Factor, Plan, digest};

use super::names;
use super::problems::Problems;

mod design;
mod expand;
mod running;

use expand::{UncheckedPoint, base, sizes};
pub(super) use expand::{combinations, count, expand, lengths, with_factors_about};
use running::running_groups;

/// Columns of result tables, whose names a factor must not have.
const COLUMNS: &[&str] = &[
    "point_id", "trial", "node", "t_ns", "t_s", "phase", "scope", "subject", "metric", "unit",
    "stat", "value", "n", "n_trials", "ci_low", "ci_high", "method", "status", "reasons", "seed",
    "group",
];
/// Maximum number of shown problems of one key that differ from point to point.
const MAX_ALIKE: usize = 3;

/// Most points in one plan.
pub(super) const MAX_POINTS: usize = 10_000;

/// A level of a factor: its name and the keys it sets.
pub(super) struct Level {
    pub(super) name: String,
    pub(super) keys: Vec<Setting>,
    /// Whether a key was left out of `keys` because it is not a valid dotted key.
    pub(super) incomplete: bool,
}

/// A key that a level sets, and the place where it is written.
pub(super) struct Setting {
    pub(super) key: Vec<String>,
    pub(super) value: Value,
    pub(super) place: Vec<String>,
}

/// The keys that factors set.
pub(super) fn varied_keys(plan: &Plan) -> Vec<Vec<String>> {
    let all = plan.matrix.iter().flat_map(|(name, factor)| levels(name, factor));
    all.flat_map(|level| level.keys.into_iter().map(|setting| setting.key)).collect()
}

/// The levels of a factor; keys that are not dotted keys are left out (they are reported elsewhere).
pub(super) fn levels(name: &str, factor: &Factor) -> Vec<Level> {
    let place = |rest: &[&str]| {
        ["matrix", name].iter().chain(rest).map(|segment| (*segment).to_owned()).collect()
    };
    match factor {
        Factor::Values(values) => {
            let key = set::split_key(name).ok();
            let level = |(index, value): (usize, &Value)| {
                let key = key.clone().into_iter();
                let place: Vec<String> = place(&[&index.to_string()]);
                let setting = |key| Setting { key, value: value.clone(), place: place.clone() };
                Level {
                    name: expect::level(value),
                    keys: key.map(setting).collect(),
                    incomplete: false,
                }
            };
            values.iter().enumerate().map(level).collect()
        }
        Factor::Levels(levels) => {
            let level = |(level, keys): (&String, &BTreeMap<String, Value>)| {
                let setting = |(key, value): (&String, &Value)| {
                    let place = place(&[level, key]);
                    Some(Setting { key: set::split_key(key).ok()?, value: value.clone(), place })
                };
                let settings: Vec<Setting> = keys.iter().filter_map(setting).collect();
                let incomplete = settings.len() < keys.len();
                Level { name: level.clone(), keys: settings, incomplete }
            };
            levels.iter().map(level).collect()
        }
    }
}

/// Checks factors and levels, independently of the points.
pub(super) fn check(plan: &Plan, problems: &mut Problems) {
    let points = count(plan);
    if points > MAX_POINTS {
        problems.error(
            &["matrix"],
            format!(
                "has {points} points, but at most {MAX_POINTS} are allowed; use fewer levels, or several plans"
            ),
        );
    }
    design::check(plan, &sizes(plan), problems);
    let base = base(plan);
    let mut set_by: Vec<(Vec<String>, &str)> = Vec::new();
    for (name, factor) in &plan.matrix {
        factor_name(name, factor, problems);
        let levels = levels(name, factor);
        if levels.is_empty() {
            problems.error(&["matrix", name], "has no levels: no point would be left");
        }
        same_levels(&base, name, (factor, &levels), problems);
        let mut keys: Vec<Vec<String>> = Vec::new();
        let mut names = BTreeSet::new();
        for (index, level) in levels.iter().enumerate() {
            // Only a list can repeat one.
            if !names.insert(level.name.as_str()) {
                let why = format!(
                    "`{}` is in the list already; use `repeat` for more trials",
                    level.name
                );
                problems.error(&["matrix", name, &index.to_string()], why);
            }
            repeated_keys(level, problems);
            for setting in level.keys.iter().filter(|setting| setting.key.len() > 1) {
                level_key(&base, setting, &level.keys, problems);
                if !keys.contains(&setting.key) {
                    keys.push(setting.key.clone());
                }
            }
        }
        for key in &keys {
            if let Some((_, other)) = set_by.iter().find(|(earlier, _)| set::overlap(earlier, key))
            {
                problems.error_from(
                    &["matrix", name],
                    &[],
                    format!(
                        "sets `{}`, as the factor `{other}` does; let only one of them set it",
                        set::join_key(key)
                    ),
                );
            }
        }
        set_by.extend(keys.into_iter().map(|key| (key, name.as_str())));
    }
}

fn factor_name(name: &str, factor: &Factor, problems: &mut Problems) {
    let path = ["matrix", name];
    match factor {
        Factor::Values(_) => match set::split_key(name) {
            Err(why) => problems.error(&path, why.to_string()),
            Ok(key) if key.len() < 2 => problems.error(
                &path,
                "a factor that is a list of values is named after the key it sets, like `\"links.bottleneck.rate\"`; \
                 a name of your own needs levels: `few = { \"flows.a.count\" = 1 }`",
            ),
            Ok(_) => {}
        },
        Factor::Levels(levels) => {
            names::name(&path, name, problems);
            for (level, keys) in levels {
                level_name(name, level, problems);
                for (key, value) in keys {
                    match set::split_key(key) {
                        Err(why) => {
                            problems.error(&["matrix", name, level, key], why.to_string());
                        }
                        Ok(path) if path.len() < 2 => problems.error(
                            &["matrix", name, level, key],
                            undotted_key([name, level, key], value),
                        ),
                        Ok(_) => {}
                    }
                }
            }
        }
    }
    if COLUMNS.contains(&name) {
        problems.error(
            &path,
            format!("`{name}` is a column of every result table; choose another name"),
        );
    }
}

/// The problem of a key without a dot. TOML reads `flows.a.cc = [...]` as the key `cc` of the level `a` of a factor `flows`.
fn undotted_key(place: [&str; 3], value: &Value) -> String {
    let (dotted, _) = set::unquoted_key(&place, value);
    let fix = match set::split_key(&dotted) {
        Ok(key) if may_vary(&key) => format!("the dotted key in quotes, `\"{dotted}\" = [...]`"),
        _ => "it like `links.bottleneck.rate`".to_owned(),
    };
    let [_, _, key] = place;
    format!("`{key}` is not a key that the matrix can vary; write {fix}")
}

fn level_name(factor: &str, name: &str, problems: &mut Problems) {
    let good = |c: char| c.is_ascii_graphic() || c == ' ';
    if name.is_empty() || name.len() > 64 || !name.chars().all(good) {
        problems.error(
            &["matrix", factor, name],
            "a level's name is 1 to 64 printable ASCII characters",
        );
    }
}

/// Reports keys of a level that replace the value of another one: the same key written differently, or a table around it.
fn repeated_keys(level: &Level, problems: &mut Problems) {
    for (index, Setting { key, place, .. }) in level.keys.iter().enumerate() {
        let mut earlier = level.keys[..index].iter();
        let Some(replaced) = earlier.find(|other| other.key.starts_with(key)) else { continue };
        let path: Vec<&str> = place.iter().map(String::as_str).collect();
        let other = replaced.place.last().map_or("", String::as_str);
        let why = format!(
            "replaces the value of `{other}`, which this level sets too; leave one of them out"
        );
        problems.error_from(&path, &[], why);
    }
}

/// Warns about levels of a factor that set the same values, perhaps written differently: their points are equal.
fn same_levels(
    base: &Table,
    name: &str,
    (factor, levels): (&Factor, &[Level]),
    problems: &mut Problems,
) {
    let mut first: BTreeMap<String, &str> = BTreeMap::new();
    for (index, level) in levels.iter().enumerate() {
        let Some(plan) = digest_at(base, level) else { continue };
        let other = *first.entry(plan).or_insert(&level.name);
        // It is the first level itself, or has the same text, which is an error in a list.
        if other == level.name {
            continue;
        }
        let number = index.to_string();
        let place = match factor {
            Factor::Values(_) => number.as_str(),
            Factor::Levels(_) => level.name.as_str(),
        };
        let why = format!(
            "sets the same as the level `{other}`, so their points are equal; use `repeat` for more trials"
        );
        problems.warning_from(&["matrix", name, place], &[&["matrix", name]], why);
    }
}

/// The digest of the plan with this level alone; `None` if it cannot be read.
fn digest_at(base: &Table, level: &Level) -> Option<String> {
    if level.incomplete || level.keys.iter().any(|setting| !may_vary(&setting.key)) {
        return None;
    }
    let mut table = base.clone();
    for setting in &level.keys {
        set::set_key(&mut table, &setting.key, setting.value.clone()).ok()?;
    }
    let plan = Table::try_from(from_table(table).ok()?).ok()?;
    Some(digest(&plan.to_string()))
}

/// Checks that a key of a level exists and may vary, and that its value is valid together with the level's other keys.
fn level_key(base: &Table, setting: &Setting, level: &[Setting], problems: &mut Problems) {
    let Setting { key, value, place } = setting;
    let dotted = set::join_key(key);
    let path: Vec<&str> = place.iter().map(String::as_str).collect();
    if !may_vary(key) {
        problems.error_from(
            &path,
            &[],
            format!(
                "`{dotted}` is the same for the whole experiment; the matrix may vary links, flows, phases, probes, changes, \
                 path, sample, cc, lab, and `sysctl`, `offloads`, `kernel` and `kernel_release` of a node"
            ),
        );
        return;
    }
    let mut table = base.clone();
    if let Err(why) = set::set_key(&mut table, key, value.clone()) {
        let reads: Vec<&str> = key.iter().map(String::as_str).collect();
        problems.error_from(&path, &[&reads], why.to_string());
        return;
    }
    for other in level.iter().filter(|other| other.key != *key && may_vary(&other.key)) {
        // A key that cannot be set is reported by itself.
        let _ = set::set_key(&mut table, &other.key, other.value.clone());
    }
    for problem in from_table(table).err().unwrap_or_default() {
        // Another factor may set keys that are missing around this one; the check of the points covers them.
        if !set::overlap(&problem.place, key) {
            continue;
        }
        let why = if problem.place == *key {
            problem.reason
        } else {
            format!("`{}` {}", problem.path, problem.reason)
        };
        problems.error(&path, why);
    }
}

/// Whether a point may have its own value of this key.
fn may_vary(key: &[String]) -> bool {
    let segments: Vec<&str> = key.iter().map(String::as_str).collect();
    match segments[..] {
        ["nodes", _, inner, ..] => {
            ["sysctl", "offloads", "kernel", "kernel_release"].contains(&inner)
        }
        [first, ..] => {
            ["links", "flows", "phases", "probes", "changes", "path", "sample", "cc", "lab"]
                .contains(&first)
        }
        [] => false,
    }
}

/// Checks every point that can be read. A problem of all points is reported once, as if there were no matrix. A problem of some
/// points names the first of them.
pub(super) fn check_points(
    plan: &Plan,
    problems: &mut Problems,
    at_point: impl Fn(&Plan, &[(String, String)], &mut Problems),
) {
    let is_of_level = |problem: &PlanProblem| {
        problem.severity == Severity::Error
            && problem.place.first().is_some_and(|first| first == "matrix")
    };
    let levels_are_right = !problems.found.iter().any(is_of_level);
    let too_many = count(plan) > MAX_POINTS;
    let some = without_empty_factors(plan, problems);
    if problems.unread_keys.any_key() {
        return;
    }
    let mut found = Found::default();
    let running = running_groups(&some).map(Arc::new);
    let mut points = expand(&some);
    while let Some(mut point) = points.next() {
        let unset = point.unread_levels(&problems.unread_keys);
        let whole = point.unread_keys.is_empty() && unset.is_empty();
        let (unread_keys, files) = (problems.unread_keys.clone(), Arc::clone(&problems.files));
        let target = problems.target;
        let running = running.clone();
        let mut here = Problems { found: Vec::new(), unread_keys, files, target, running };
        here.unread_keys.join(unset);
        if levels_are_right {
            let news = point.problems.iter().filter(|p| !here.unread_keys.covers(&p.place));
            here.found = news.cloned().collect();
        }
        here.unread_keys.join(point.unread_keys.clone());
        let plan = point.plan.take();
        if let Some(plan) = &plan {
            at_point(plan, &point.factors, &mut here);
        }
        found.add(point, whole, here.found);
        points.reuse(plan);
        // The number of points is the problem.
        if too_many {
            break;
        }
    }
    problems.found.extend(found.problems());
}

/// The plan without factors that have no levels. The keys that they would set become uncertain.
fn without_empty_factors(plan: &Plan, problems: &mut Problems) -> Plan {
    let mut some = plan.clone();
    some.matrix.retain(|name, factor| {
        let empty = levels(name, factor).is_empty();
        if empty {
            problems.unread_keys.factor(name, None);
        }
        !empty
    });
    some
}

/// The problems of all points.
#[derive(Default)]
struct Found {
    /// The points that were read whole.
    whole: Vec<Factors>,
    /// The points that were not: a problem that is missing there may still be one of all points.
    parts: Vec<Factors>,
    problems: Vec<Repeated>,
    index: BTreeMap<(String, String), usize>,
}

/// A point: its factors' levels.
type Factors = Vec<(String, String)>;

/// A problem, the number of its points, the first of them, and the levels that they share.
struct Repeated {
    problem: PlanProblem,
    whole: usize,
    parts: usize,
    first: Factors,
    shared: Factors,
}

impl Found {
    fn add(&mut self, point: UncheckedPoint, whole: bool, problems: Vec<PlanProblem>) {
        for mut problem in problems {
            let key = (problem.path.clone(), problem.reason.clone());
            let at = *self.index.entry(key).or_insert_with(|| {
                problem.place = point.written(&problem.place);
                let (first, shared) = (point.factors.clone(), point.factors.clone());
                self.problems.push(Repeated { problem, whole: 0, parts: 0, first, shared });
                self.problems.len() - 1
            });
            let repeated = &mut self.problems[at];
            *(if whole { &mut repeated.whole } else { &mut repeated.parts }) += 1;
            repeated.shared.retain(|level| point.factors.contains(level));
        }
        (if whole { &mut self.whole } else { &mut self.parts }).push(point.factors);
    }

    fn problems(mut self) -> Vec<PlanProblem> {
        let mut like_it: BTreeMap<(String, Severity), usize> = BTreeMap::new();
        let mut all = Vec::new();
        for mut found in std::mem::take(&mut self.problems) {
            let problem = &found.problem;
            let alike = like_it.entry((problem.path.clone(), problem.severity)).or_default();
            *alike += 1;
            if !self.is_everywhere(&found) {
                // A problem may differ at each of many points, and finding the place looks at all points.
                if *alike > MAX_ALIKE {
                    continue;
                }
                let at = self.place_of(&found);
                found.problem.reason = format!("{} (at {at})", found.problem.reason);
            }
            all.push(found.problem);
        }
        all
    }

    /// The points that count for a problem, and the number of them that have it.
    fn points_of(&self, found: &Repeated) -> (&[Factors], usize) {
        if found.whole > 0 || found.parts == 0 {
            (&self.whole, found.whole)
        } else {
            (&self.parts, found.parts)
        }
    }

    /// Whether all points have a problem.
    fn is_everywhere(&self, found: &Repeated) -> bool {
        let (points, times) = self.points_of(found);
        times == points.len() && (found.whole > 0 || self.whole.is_empty())
    }

    /// Describes the points that have a problem which not all points have.
    fn place_of(&self, found: &Repeated) -> String {
        let (points, times) = self.points_of(found);
        let with_shared = |point: &&Factors| found.shared.iter().all(|level| point.contains(level));
        if !found.shared.is_empty() && points.iter().filter(with_shared).count() == times {
            return levels_of(&found.shared);
        }
        let more = match found.whole + found.parts - 1 {
            1 => "one more point".to_owned(),
            more => format!("{more} more points"),
        };
        format!("{}, and {more}", levels_of(&found.first))
    }
}

/// `rate=10mbit, scheme=bbr`.
fn levels_of(point: &Factors) -> String {
    let levels: Vec<String> = point.iter().map(|(f, level)| format!("{f}={level}")).collect();
    levels.join(", ")
}

#[cfg(test)]
mod tests {
    use crate::plan::check::{Severity, read};

    const PLAN: &str = "name = \"t\"\nrepeat = 2\n[nodes]\na = {}\nr = {}\nb = {}\n[wires]\nw = [\"a\", \"r\", \"b\"]\n\
         [[phases]]\nname = \"p\"\nlength = \"9s\"\nflows = [\"f\"]\n[flows.f]\nfrom = \"a\"\nto = \"b\"\n\
         [links.l]\nnode = \"r\"\ntoward = \"b\"\nrate = \"10mbit\"\ndelay = \"10ms\"\n";

    /// The warnings about the matrix with these lines.
    fn warnings(matrix: &str) -> Vec<String> {
        let text = format!("{PLAN}{matrix}");
        let (_, found) = read(&text, &[]).unwrap_or_else(|problems| panic!("{problems:?}"));
        let about = found.iter().filter(|problem| problem.path.starts_with("matrix"));
        about.map(ToString::to_string).collect()
    }

    #[test]
    fn levels_that_set_the_same_are_reported() {
        let found = warnings(
            "[matrix]\n\"links.l.rate\" = [\"10mbit\", \"20mbit\", \"10000kbit\", \"0.01gbit\"]\n",
        );
        let why = "sets the same as the level `10mbit`, so their points are equal; use `repeat` for more trials";
        let place = |index: u32| format!("matrix.\"links.l.rate\".{index}: {why}");
        assert_eq!(found, [place(2), place(3)]);
        let found = warnings(
            "[matrix.queue]\none = { \"links.l.queue\" = { kind = \"pfifo\", limit = \"50p\" } }\n\
             other = { \"links.l.queue\" = { limit = \"50p\", kind = \"pfifo\" } }\n\
             third = { \"links.l.queue\" = { kind = \"bfifo\", limit = \"50p\" } }\n",
        );
        let why = "sets the same as the level `one`, so their points are equal; use `repeat` for more trials";
        assert_eq!(found, [format!("matrix.queue.other: {why}")]);
    }

    #[test]
    fn a_dotted_key_without_quotes_is_reported_with_them() {
        for (matrix, place, key) in [
            ("flows.f.cc = [\"bbr\"]\n", "matrix.flows.f.cc", "flows.f.cc"),
            ("links.l.queue.limit = [\"1bdp\"]\n", "matrix.links.l.queue", "links.l.queue.limit"),
        ] {
            let problems = read(&format!("{PLAN}[matrix]\n{matrix}"), &[]).unwrap_err();
            let found = problems.iter().find(|problem| problem.path == place);
            let fix = format!("write the dotted key in quotes, `\"{key}\" = [...]`");
            assert!(found.is_some_and(|found| found.reason.ends_with(&fix)), "{problems:?}");
        }
    }

    #[test]
    fn a_level_sets_a_key_only_once() {
        for (first, second) in [
            ("links.l.queue.step", "links.l.queue.step_thresh"),
            ("links.\\\"l\\\".queue.step_thresh", "links.l.queue.step_thresh"),
        ] {
            let text = format!(
                "{PLAN}[links.l.queue]\nkind = \"dualpi2\"\n[matrix.step]\n\
                 twice = {{ \"{first}\" = \"1ms\", \"{second}\" = \"2ms\" }}\n"
            );
            let problems = read(&text, &[]).unwrap_err();
            let wrong: Vec<String> = problems
                .iter()
                .filter(|problem| problem.severity == Severity::Error)
                .map(ToString::to_string)
                .collect();
            let place = "matrix.step.twice.\"links.l.queue.step_thresh\": replaces the value of";
            assert!(wrong.len() == 1 && wrong[0].starts_with(place), "{wrong:?}");
        }
        // A key inside a table that the same level sets is set afterwards.
        let inside = "[matrix.queue]\na = { \"links.l.queue\" = { kind = \"codel\" }, \"links.l.queue.limit\" = \"9p\" }\n";
        assert_eq!(warnings(inside), [""; 0]);
    }

    #[test]
    fn every_repetition_of_a_level_is_an_error() {
        let rates = "[matrix]\n\"links.l.rate\" = [\"1mbit\", \"2mbit\", \"1mbit\", \"3mbit\", \"2mbit\", \"1mbit\"]\n";
        let problems = read(&format!("{PLAN}{rates}"), &[]).unwrap_err();
        let repeated =
            problems.iter().filter(|problem| problem.reason.contains("in the list already"));
        let mut places: Vec<&str> =
            repeated.filter_map(|problem| problem.path.rsplit('.').next()).collect();
        places.sort_unstable();
        assert_eq!(places, ["2", "4", "5"]);
    }

    #[test]
    fn other_levels_have_no_warning() {
        let rates = "[matrix]\n\"links.l.rate\" = [\"10mbit\", \"10001kbit\"]\n";
        assert_eq!(warnings(rates), [""; 0]);
        let some = "[matrix.load]\nlight = {}\nheavy = { \"flows.f.count\" = 8 }\n";
        assert_eq!(warnings(some), [""; 0]);
    }
}
