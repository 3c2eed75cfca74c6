//! The matrix: every combination of its factors' levels, each a plan of its own.

use std::collections::BTreeMap;

use toml::{Table, Value};

use crate::plan::parse::{from_table, set};
use crate::plan::{Factor, Plan};

use super::{PlanProblem, Problems, Severity, names};

/// Columns of result tables that a factor's column must not hide.
const COLUMNS: &[&str] = &[
    "point_id", "trial", "node", "t_ns", "t_s", "phase", "scope", "subject", "metric", "unit",
    "stat", "value", "n", "n_trials", "ci_low", "ci_high", "method", "status", "reasons", "seed",
    "group",
];
/// Problems of one key that differ from point to point are shown this many times.
const MAX_ALIKE: usize = 3;

/// Most points in one plan.
pub(super) const MAX_POINTS: usize = 10_000;

/// A level of a factor: its name and the keys it sets.
pub(super) struct Level {
    pub(super) name: String,
    pub(super) keys: Vec<(Vec<String>, Value)>,
}

/// One combination of levels, and the plan it makes.
pub(super) struct Cell {
    pub(super) id: u32,
    pub(super) factors: Vec<(String, String)>,
    pub(super) plan: Result<Plan, Vec<PlanProblem>>,
}

/// A value as it appears in a result column: text without its quotes.
pub(super) fn label(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The levels of a factor; keys that are not dotted keys are left out (they are reported elsewhere).
pub(super) fn levels(name: &str, factor: &Factor) -> Vec<Level> {
    match factor {
        Factor::Values(values) => values
            .iter()
            .map(|value| Level {
                name: label(value),
                keys: set::split_key(name)
                    .ok()
                    .map(|key| (key, value.clone()))
                    .into_iter()
                    .collect(),
            })
            .collect(),
        Factor::Levels(levels) => levels
            .iter()
            .map(|(name, keys)| Level {
                name: name.clone(),
                keys: keys
                    .iter()
                    .filter_map(|(key, value)| Some((set::split_key(key).ok()?, value.clone())))
                    .collect(),
            })
            .collect(),
    }
}

/// The plan as a table without its matrix, for keys to be set in.
pub(super) fn base(plan: &Plan) -> Table {
    let bare = Plan { matrix: BTreeMap::new(), ..plan.clone() };
    Table::try_from(&bare).unwrap_or_default()
}

/// How many combinations there are; 1 without a matrix, 0 when a factor has no levels.
pub(super) fn count(plan: &Plan) -> usize {
    let levels = |factor: &Factor| match factor {
        Factor::Values(values) => values.len(),
        Factor::Levels(levels) => levels.len(),
    };
    plan.matrix.values().fold(1, |n, factor| n.saturating_mul(levels(factor)))
}

/// All combinations; without a matrix the one point of the plan itself. At most [`MAX_POINTS`].
pub(super) fn expand(plan: &Plan) -> impl Iterator<Item = Cell> {
    let factors: Vec<(&String, Vec<Level>)> =
        plan.matrix.iter().map(|(name, factor)| (name, levels(name, factor))).collect();
    let base = (!plan.matrix.is_empty()).then(|| base(plan));
    let unvaried = plan.matrix.is_empty().then(|| plan.clone());
    (0..count(plan).min(MAX_POINTS)).map(move |id| {
        let mut left = id;
        let mut chosen: Vec<(&String, &Level)> = Vec::new();
        for (name, levels) in factors.iter().rev() {
            chosen.push((name, &levels[left % levels.len()]));
            left /= levels.len();
        }
        chosen.reverse();
        let names = chosen.iter().map(|(n, l)| ((*n).clone(), l.name.clone())).collect();
        let plan = match (&base, &unvaried) {
            (Some(base), _) => from_table(with(base, chosen.iter().flat_map(|(_, l)| &l.keys))),
            (None, Some(plan)) => Ok(plan.clone()),
            (None, None) => Err(Vec::new()),
        };
        Cell { id: id as u32, factors: names, plan }
    })
}

/// The table with these keys set. A key that cannot, or must not, be set is reported with its factor.
fn with<'k>(base: &Table, keys: impl Iterator<Item = &'k (Vec<String>, Value)>) -> Table {
    let mut table = base.clone();
    for (key, value) in keys.filter(|(key, _)| may_vary(key)) {
        let _ = set::set_key(&mut table, key, value.clone());
    }
    table
}

/// Rules about factors and levels, whatever the points turn out to be.
pub(super) fn check(plan: &Plan, problems: &mut Problems) {
    let points = count(plan);
    if points > MAX_POINTS {
        problems.error(
            &["matrix"],
            format!(
                "has {points} points; {MAX_POINTS} are allowed: fewer levels, or several plans"
            ),
        );
    }
    let base = base(plan);
    let mut set_by: Vec<(Vec<String>, &str)> = Vec::new();
    for (name, factor) in &plan.matrix {
        factor_name(name, factor, problems);
        let levels = levels(name, factor);
        if levels.is_empty() {
            problems.error(&["matrix", name], "has no levels: no point would be left");
        }
        let mut keys: Vec<Vec<String>> = Vec::new();
        for (index, level) in levels.iter().enumerate() {
            level_name(name, factor, &levels, index, problems);
            for (key, value) in level.keys.iter().filter(|(key, _)| key.len() > 1) {
                level_key(&base, name, factor, level, index, (key, value), problems);
                if !keys.contains(key) {
                    keys.push(key.clone());
                }
            }
        }
        for key in &keys {
            if let Some((_, other)) = set_by.iter().find(|(earlier, _)| set::overlap(earlier, key))
            {
                problems.error(
                    &["matrix", name],
                    format!(
                        "sets `{}`, as the factor `{other}` does; only one of them would be heard",
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
            Err(why) => problems.error(&path, why),
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
                for key in keys.keys() {
                    match set::split_key(key) {
                        Err(why) => problems.error(&["matrix", name, level, key], why),
                        Ok(path) if path.len() < 2 => problems.error(
                            &["matrix", name, level, key],
                            format!("`{key}` is not a key that the matrix can vary; write it like `links.bottleneck.rate`"),
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

fn level_name(
    factor_name: &str,
    factor: &Factor,
    levels: &[Level],
    index: usize,
    problems: &mut Problems,
) {
    let name = levels[index].name.as_str();
    match factor {
        Factor::Values(_) => {
            if levels[..index].iter().any(|earlier| earlier.name == name) {
                problems.error(
                    &["matrix", factor_name, &index.to_string()],
                    format!("`{name}` is in the list already; use `repeat` for more trials"),
                );
            }
        }
        Factor::Levels(_) => {
            let good = |c: char| c.is_ascii_graphic() || c == ' ';
            if name.is_empty() || name.len() > 64 || !name.chars().all(good) {
                problems.error(
                    &["matrix", factor_name, name],
                    "a level's name is 1 to 64 printable ASCII characters",
                );
            }
        }
    }
}

/// One key of a level: it may vary, it exists, and the value fits.
fn level_key(
    base: &Table,
    factor_name: &str,
    factor: &Factor,
    level: &Level,
    index: usize,
    (key, value): (&[String], &Value),
    problems: &mut Problems,
) {
    let dotted = set::join_key(key);
    let number = index.to_string();
    let path: Vec<&str> = match factor {
        Factor::Values(_) => vec!["matrix", factor_name, &number],
        Factor::Levels(_) => vec!["matrix", factor_name, &level.name, &dotted],
    };
    if !may_vary(key) {
        problems.error(
            &path,
            format!(
                "`{dotted}` is the same for the whole experiment; the matrix may vary links, flows, phases, probes, changes, \
                 path, sample, and `sysctl` and `offloads` of a node"
            ),
        );
        return;
    }
    let mut table = base.clone();
    if let Err(why) = set::set_key(&mut table, key, value.clone()) {
        problems.error(&path, why);
        return;
    }
    for problem in from_table(table).err().unwrap_or_default() {
        // What is missing around the key may be set by another factor; the points tell.
        if !set::split_key(&problem.path).is_ok_and(|place| set::overlap(&place, key)) {
            continue;
        }
        let why = if problem.path == dotted {
            problem.why
        } else {
            format!("`{}` {}", problem.path, problem.why)
        };
        problems.error(&path, why);
    }
}

/// Whether a point may have its own value of this key.
fn may_vary(key: &[String]) -> bool {
    let segments: Vec<&str> = key.iter().map(String::as_str).collect();
    match segments[..] {
        ["nodes", _, inner, ..] => inner == "sysctl" || inner == "offloads",
        [first, ..] => {
            ["links", "flows", "phases", "probes", "changes", "path", "sample"].contains(&first)
        }
        [] => false,
    }
}

/// Checks every point that can be read. What is wrong at all points is reported once, as if there were no
/// matrix; what is wrong at some names the first of them.
pub(super) fn check_points(
    plan: &Plan,
    problems: &mut Problems,
    at_point: impl Fn(&Plan, &mut Problems),
) {
    let levels_are_right = !problems.0.iter().any(|p| p.path.starts_with("matrix"));
    let too_many = count(plan) > MAX_POINTS;
    let mut checked = 0_usize;
    let mut found: Vec<(PlanProblem, usize, String)> = Vec::new();
    let mut index: BTreeMap<(String, String), usize> = BTreeMap::new();
    for cell in expand(plan).take(if too_many { 1 } else { MAX_POINTS }) {
        let mut here = Problems::default();
        match cell.plan {
            Ok(plan) => at_point(&plan, &mut here),
            Err(unread) if levels_are_right => here.0 = unread,
            Err(_) => continue,
        }
        checked += 1;
        for problem in here.0 {
            let at =
                *index.entry((problem.path.clone(), problem.why.clone())).or_insert_with(|| {
                    let name: Vec<String> = cell
                        .factors
                        .iter()
                        .map(|(factor, level)| format!("{factor}={level}"))
                        .collect();
                    found.push((problem, 0, name.join(", ")));
                    found.len() - 1
                });
            found[at].1 += 1;
        }
    }
    let mut like_it: BTreeMap<(String, Severity), usize> = BTreeMap::new();
    for (mut problem, times, first) in found {
        let alike = like_it.entry((problem.path.clone(), problem.severity)).or_default();
        *alike += 1;
        if times < checked {
            if *alike > MAX_ALIKE {
                continue;
            }
            let of = if times == 1 {
                String::new()
            } else {
                format!("{times} of {checked} points, first ")
            };
            problem.why = format!("{} (at {of}{first})", problem.why);
        }
        problems.0.push(problem);
    }
}
