//! Expands the matrix to points, each with its levels and its plan.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use toml::Table;

use crate::plan::parse::unread_keys::UnreadKeys;
use crate::plan::parse::{Reading, read_lenient, set};
use crate::plan::problem::PlanProblem;
use crate::plan::{Factor, Plan, Repetitions, timeline};
use crate::units::Micros;

use super::{Level, MAX_POINTS, Setting, design, levels, may_vary};

/// One combination of levels, and its plan.
pub(in crate::plan::check) struct UncheckedPoint {
    pub(in crate::plan::check) id: u32,
    pub(in crate::plan::check) factors: Vec<(String, String)>,
    pub(in crate::plan::check) plan: Option<Plan>,
    /// Why there is no plan, or only a part of it.
    pub(super) problems: Vec<PlanProblem>,
    pub(super) unread_keys: UnreadKeys,
    /// The keys that each of its levels sets.
    set_at: Vec<SetAt>,
}

/// The keys that a level sets, each with the place where it is written. All points with the level share them.
type SetAt = Arc<[(Vec<String>, Vec<String>)]>;

impl UncheckedPoint {
    /// The keys to which its levels assign a value that cannot be read.
    pub(super) fn unread_levels(&self, unread_keys: &UnreadKeys) -> UnreadKeys {
        let mut unset = UnreadKeys::default();
        if unread_keys.is_empty() {
            return unset;
        }
        for (key, _) in self.set_at().filter(|(_, place)| unread_keys.covers(place)) {
            unset.mark_uncertain(key.clone());
        }
        for (factor, level) in &self.factors {
            unread_keys
                .of_level(factor, level)
                .into_iter()
                .for_each(|key| unset.mark_uncertain(key));
        }
        unset
    }

    /// Where the value at a place is written.
    pub(super) fn written(&self, place: &[String]) -> Vec<String> {
        let level = self.set_at().find(|(key, _)| place.starts_with(key));
        level.map_or_else(|| place.to_vec(), |(key, at)| [at, &place[key.len()..]].concat())
    }

    fn set_at(&self) -> impl Iterator<Item = &(Vec<String>, Vec<String>)> {
        self.set_at.iter().flat_map(|level| level.iter())
    }
}

/// The plan as a table without its matrix, in which keys can be set.
pub(super) fn base(plan: &Plan) -> Table {
    Table::try_from(bare(plan)).unwrap_or_default()
}

/// The plan without the keys that concern all its points together.
fn bare(plan: &Plan) -> Plan {
    let (matrix, quick) = (BTreeMap::new(), BTreeMap::new());
    // The rules name factors of the matrix.
    let repeat = Repetitions::Times(plan.repeat.at_most());
    let (expect, compare, design) = (Vec::new(), Vec::new(), None);
    Plan { matrix, quick, repeat, expect, compare, design, ..plan.clone() }
}

/// Number of points: all combinations, or those of the design; 1 without a matrix, 0 if a factor has no levels.
pub(in crate::plan::check) fn count(plan: &Plan) -> usize {
    Rows::new(plan).count()
}

/// The number of levels of each factor.
pub(super) fn sizes(plan: &Plan) -> Vec<usize> {
    let size = |factor: &Factor| match factor {
        Factor::Values(values) => values.len(),
        Factor::Levels(levels) => levels.len(),
    };
    plan.matrix.values().map(size).collect()
}

/// The points, as the index of each factor's level.
enum Rows {
    /// Every combination of these numbers of levels; the last factor changes fastest.
    All(Vec<usize>),
    /// The points of a design.
    Selected(Vec<Vec<usize>>),
}

impl Rows {
    fn new(plan: &Plan) -> Self {
        let sizes = sizes(plan);
        match design::rows(plan, &sizes) {
            Some(rows) => Self::Selected(rows),
            None => Self::All(sizes),
        }
    }

    fn count(&self) -> usize {
        match self {
            Self::All(sizes) => sizes.iter().fold(1, |n: usize, size| n.saturating_mul(*size)),
            Self::Selected(rows) => rows.len(),
        }
    }

    fn row(&self, id: usize) -> Vec<usize> {
        let sizes = match self {
            Self::All(sizes) => sizes,
            Self::Selected(rows) => return rows[id].clone(),
        };
        let mut left = id;
        let mut indices: Vec<usize> = Vec::with_capacity(sizes.len());
        for size in sizes.iter().rev() {
            indices.push(left % size);
            left /= size;
        }
        indices.reverse();
        indices
    }
}

/// A factor's name and its levels.
type NamedLevels<'p> = (&'p String, Vec<Level>);

fn factors(plan: &Plan) -> Vec<NamedLevels<'_>> {
    plan.matrix.iter().map(|(name, factor)| (name, levels(name, factor))).collect()
}

/// The name of each factor and of its level.
fn names(factors: &[NamedLevels<'_>], indices: &[usize]) -> Vec<(String, String)> {
    let name = |((factor, levels), index): (&NamedLevels<'_>, &usize)| {
        ((*factor).clone(), levels[*index].name.clone())
    };
    factors.iter().zip(indices).map(name).collect()
}

/// The factors and levels of all points, in the order of [`expand`].
pub(in crate::plan::check) fn combinations(plan: &Plan) -> Vec<Vec<(String, String)>> {
    let (factors, rows) = (factors(plan), Rows::new(plan));
    let ids = 0..rows.count().min(MAX_POINTS);
    ids.map(|id| names(&factors, &rows.row(id))).collect()
}

/// All points; without a matrix the one point of the plan itself. At most [`MAX_POINTS`].
pub(in crate::plan::check) fn expand(plan: &Plan) -> Points<'_> {
    let reader = PointReader::new(plan);
    Points { ids: 0..reader.rows.count().min(MAX_POINTS), reader }
}

/// The points of a plan, one after the other.
pub(in crate::plan::check) struct Points<'p> {
    ids: Range<usize>,
    reader: PointReader<'p>,
}

impl Iterator for Points<'_> {
    type Item = UncheckedPoint;

    fn next(&mut self) -> Option<UncheckedPoint> {
        let id = self.ids.next()?;
        Some(self.reader.point(id))
    }
}

impl Points<'_> {
    /// Takes back the unmodified plan of the last point, so that only the parts in which the next point differs are copied.
    pub(super) fn reuse(&mut self, plan: Option<Plan>) {
        self.reader.spare = plan.filter(|_| self.reader.is_assembled);
    }
}

/// The plan with all combinations of only those factors that set a key with this property. If these are more than [`MAX_POINTS`],
/// where [`expand`] stops, the plan itself: a design has fewer points.
pub(in crate::plan::check) fn with_factors_about(
    plan: &Plan,
    is_about: impl Fn(&[String]) -> bool,
) -> Plan {
    let mut fewer = Plan { design: None, ..plan.clone() };
    fewer.matrix.retain(|name, factor| {
        levels(name, factor).iter().flat_map(|level| &level.keys).any(|set| is_about(&set.key))
    });
    if count(&fewer) > MAX_POINTS { plan.clone() } else { fewer }
}

/// The length of a trial of every point, in the order of their ids. Only factors that set phases matter.
pub(in crate::plan::check) fn lengths(plan: &Plan) -> Vec<Micros> {
    let fewer = with_factors_about(plan, |key| key.first().is_some_and(|first| first == "phases"));
    if fewer.matrix.is_empty() {
        return vec![timeline::length(plan); count(plan).min(MAX_POINTS)];
    }
    let length = |point: UncheckedPoint| Some((point.factors, timeline::length(&point.plan?)));
    let lengths: BTreeMap<Vec<(String, String)>, Micros> =
        expand(&fewer).filter_map(length).collect();
    let of_point = |mut factors: Vec<(String, String)>| {
        factors.retain(|(factor, _)| fewer.matrix.contains_key(factor));
        lengths.get(&factors).copied().unwrap_or_default()
    };
    combinations(plan).into_iter().map(of_point).collect()
}

/// A part of the plan in which levels set keys: `links.bottleneck`, or `phases` as a whole. It is read once for each combination of
/// these levels, because reading is most of the work, and most factors concern few parts.
struct Part {
    path: Vec<String>,
    /// The factors that set a key in it, by index.
    factors: Vec<usize>,
    /// A plan with only this part, by the indices of the levels; `None` if it has a problem.
    read: BTreeMap<Vec<usize>, Option<Plan>>,
    /// The levels of this part in the last assembled plan.
    last: Vec<usize>,
}

/// Reads the plans of points.
struct PointReader<'p> {
    factors: Vec<NamedLevels<'p>>,
    rows: Rows,
    bare: Plan,
    base: Table,
    /// `None`: points are read as a whole.
    parts: Option<Vec<Part>>,
    /// Of each level of each factor.
    set_at: Vec<Vec<SetAt>>,
    /// Whether the plan of the last point was assembled from its parts.
    is_assembled: bool,
    /// The plan of the last point, if nobody needs it any more.
    spare: Option<Plan>,
}

impl<'p> PointReader<'p> {
    fn new(plan: &'p Plan) -> Self {
        let (factors, bare) = (factors(plan), bare(plan));
        let base = if factors.is_empty() { Table::new() } else { base(plan) };
        let rows = Rows::new(plan);
        let parts = parts(&factors, rows.count().min(MAX_POINTS));
        let of_level = |level: &Level| -> SetAt {
            level.keys.iter().map(|set| (set.key.clone(), set.place.clone())).collect()
        };
        let set_at =
            factors.iter().map(|(_, levels)| levels.iter().map(of_level).collect()).collect();
        Self { factors, rows, bare, base, parts, set_at, is_assembled: false, spare: None }
    }

    fn point(&mut self, id: usize) -> UncheckedPoint {
        let indices = self.rows.row(id);
        let (factors, base, bare) = (&self.factors, &self.base, &self.bare);
        let (parts, spare) = (self.parts.as_mut(), self.spare.take());
        let assembled =
            parts.and_then(|parts| assemble(parts, factors, (base, bare, spare), &indices));
        self.is_assembled = assembled.is_some();
        let chosen = || factors.iter().zip(&indices).map(|((_, levels), index)| &levels[*index]);
        let settings = || chosen().flat_map(|level| &level.keys);
        let mut reading = match assembled {
            Some(plan) => Reading { plan: Some(plan), ..Reading::default() },
            None => with(base, settings()),
        };
        if chosen().any(|level| level.incomplete) {
            reading.unread_keys.mark_uncertain(Vec::new());
        }
        let levels = self.set_at.iter().zip(&indices);
        let set_at = levels.map(|(levels, index)| Arc::clone(&levels[*index])).collect();
        let factors = names(factors, &indices);
        let (plan, problems, unread_keys) = (reading.plan, reading.problems, reading.unread_keys);
        UncheckedPoint { id: id as u32, factors, plan, problems, unread_keys, set_at }
    }
}

/// The parts in which factors set keys; `None` if reading parts saves nothing, or if a key may not vary.
fn parts(factors: &[NamedLevels<'_>], points: usize) -> Option<Vec<Part>> {
    let mut found: BTreeMap<&[String], BTreeSet<usize>> = BTreeMap::new();
    for (index, (_, levels)) in factors.iter().enumerate() {
        for level in levels {
            if level.incomplete {
                return None;
            }
            for setting in &level.keys {
                found.entry(part_of(&setting.key)?).or_default().insert(index);
            }
        }
    }
    let readings = |of: &BTreeSet<usize>| {
        of.iter().fold(1, |n: usize, factor| n.saturating_mul(factors[*factor].1.len()))
    };
    let saves = found.values().all(|of| readings(of) <= points / 2);
    let part = |(path, of): (&[String], BTreeSet<usize>)| Part {
        path: path.to_vec(),
        factors: of.into_iter().collect(),
        read: BTreeMap::new(),
        last: Vec::new(),
    };
    saves.then(|| found.into_iter().map(part).collect())
}

/// The path of the part with a key; `None` for a key that may not vary.
fn part_of(key: &[String]) -> Option<&[String]> {
    if key.len() < 2 || !may_vary(key) {
        return None;
    }
    match key.first()?.as_str() {
        "links" | "flows" | "probes" | "path" | "cc" | "nodes" => key.get(..2),
        "phases" | "changes" | "sample" | "lab" => key.get(..1),
        _ => None,
    }
}

/// Assembles the plan of a point from its parts; `None` if one of them has a problem. `spare` is the last assembled plan.
fn assemble(
    parts: &mut [Part],
    factors: &[NamedLevels<'_>],
    (base, bare, spare): (&Table, &Plan, Option<Plan>),
    indices: &[usize],
) -> Option<Plan> {
    let is_reused = spare.is_some();
    let mut plan = spare.unwrap_or_else(|| bare.clone());
    for part in parts {
        let (path, of) = (part.path.as_slice(), part.factors.as_slice());
        let key: Vec<usize> = of.iter().map(|factor| indices[*factor]).collect();
        if is_reused && part.last == key {
            continue;
        }
        part.last.clone_from(&key);
        let part = part.read.entry(key).or_insert_with_key(|key| {
            let levels = of.iter().zip(key).map(|(factor, level)| &factors[*factor].1[*level]);
            let inside = |set: &&Setting| set.key.starts_with(path);
            let reading = with(base, levels.flat_map(|level| &level.keys).filter(inside));
            let is_whole = reading.problems.is_empty() && reading.unread_keys.is_empty();
            let mut part = Plan::new(String::new());
            let put = put(path, &reading.plan.filter(|_| is_whole)?, &mut part);
            put.then_some(part)
        });
        if !put(path, part.as_ref()?, &mut plan) {
            return None;
        }
    }
    Some(plan)
}

/// Replaces a part of a plan; `false` if there is no such part.
fn put(path: &[String], from: &Plan, into: &mut Plan) -> bool {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    match path[..] {
        ["links", name] => put_entry(name, &from.links, &mut into.links),
        ["flows", name] => put_entry(name, &from.flows, &mut into.flows),
        ["probes", name] => put_entry(name, &from.probes, &mut into.probes),
        ["path", name] => put_entry(name, &from.path, &mut into.path),
        ["cc", name] => put_entry(name, &from.cc, &mut into.cc),
        ["nodes", name] => put_entry(name, &from.nodes, &mut into.nodes),
        ["phases"] => into.phases.clone_from(&from.phases),
        ["changes"] => into.changes.clone_from(&from.changes),
        ["sample"] => into.sample.clone_from(&from.sample),
        ["lab"] => into.lab = from.lab,
        _ => return false,
    }
    true
}

fn put_entry<T: Clone>(name: &str, from: &BTreeMap<String, T>, into: &mut BTreeMap<String, T>) {
    match from.get(name) {
        Some(entry) => into.insert(name.to_owned(), entry.clone()),
        None => into.remove(name),
    };
}

/// Returns the plan with these keys set. A key that cannot or must not be set is reported with its factor.
fn with<'k>(base: &Table, settings: impl Iterator<Item = &'k Setting>) -> Reading {
    let mut table = base.clone();
    let mut unset = UnreadKeys::default();
    for Setting { key, value, .. } in settings {
        if !may_vary(key) || set::set_key(&mut table, key, value.clone()).is_err() {
            unset.mark_uncertain(key.clone());
        }
    }
    let mut reading = read_lenient(table);
    reading.unread_keys.join(unset);
    reading
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::parse::parse;
    use crate::plan::{Design, DesignKind};

    fn plan(matrix: &str) -> Plan {
        let text = format!(
            r#"
            name = "t"
            [nodes]
            a = {{}}
            r = {{}}
            b = {{}}
            [wires]
            w = ["a", "r", "b"]
            [links.l]
            node = "r"
            toward = "b"
            rate = "10mbit"
            queue = {{ kind = "pfifo", limit = "20p" }}
            [flows.f]
            from = "a"
            to = "b"
            [[phases]]
            name = "p"
            length = "9s"
            flows = ["f"]
            [matrix]
            {matrix}
            "#
        );
        parse(&text).unwrap_or_else(|problems| panic!("{problems:?}"))
    }

    const SEVERAL: &str = r#"
        "links.l.rate" = ["1mbit", "2mbit", "3mbit", "4mbit"]
        "links.l.queue.limit" = ["10p", "20p", "30p"]
        "flows.f.count" = [1, 2, 3, 4, 5]
        "phases.0.length" = ["1s", "2s"]
        [matrix.back]
        none = {}
        slow = { "links.back" = { node = "r", toward = "a", delay = "9ms" }, "nodes.b.sysctl" = { "net.ipv4.tcp_ecn" = 1 } }
        "#;

    #[test]
    fn points_read_in_parts_are_those_read_as_a_whole() {
        let plan = plan(SEVERAL);
        let mut reader = PointReader::new(&plan);
        for id in 0..count(&plan) {
            let point = reader.point(id);
            let settings = reader.rows.row(id);
            let levels = reader.factors.iter().zip(&settings);
            let keys = levels.flat_map(|((_, levels), index)| &levels[*index].keys);
            let whole = with(&reader.base, keys);
            assert!(whole.problems.is_empty(), "{:?}", whole.problems);
            assert_eq!(point.plan, whole.plan, "{:?}", point.factors);
        }
        // 4 rates × 3 limits, 5 counts, 2 lengths, and the levels of `back` twice: of 240 points.
        let parts = reader.parts.unwrap();
        let readings: usize = parts.iter().map(|part| part.read.len()).sum();
        assert_eq!((readings, count(&plan)), (12 + 5 + 2 + 2 + 2, 240));
    }

    #[test]
    fn points_made_of_the_point_before_are_the_same() {
        // All points are assembled; some are read as a whole, after which nothing can be reused.
        for text in [SEVERAL.to_owned(), SEVERAL.replace("\"3mbit\"", "\"fast\"")] {
            let plan = plan(&text);
            let copied: Vec<Option<Plan>> = expand(&plan).map(|point| point.plan).collect();
            let mut points = expand(&plan);
            let mut reused = Vec::new();
            while let Some(point) = points.next() {
                reused.push(point.plan.clone());
                points.reuse(point.plan);
                assert_eq!(points.reader.spare.is_some(), point.problems.is_empty());
            }
            assert_eq!((reused.len(), reused == copied), (240, true));
        }
    }

    #[test]
    fn part_with_a_problem_is_read_as_a_whole() {
        let plan = plan(&SEVERAL.replace("\"3mbit\"", "\"fast\""));
        let points: Vec<UncheckedPoint> = expand(&plan).collect();
        let wrong = |point: &&UncheckedPoint| point.factors[3].1 == "fast";
        assert_eq!(points.iter().filter(wrong).count(), 60);
        assert!(points.iter().all(|point| point.problems.is_empty() != wrong(&point)));
    }

    #[test]
    fn design_selects_points() {
        let mut plan = plan(SEVERAL);
        let all = combinations(&plan);
        let (kind, points) = (DesignKind::LatinHypercube, Some(20));
        plan.design = Some(Design { kind, points, resolution: None });
        let some = combinations(&plan);
        assert_eq!((count(&plan), some.len()), (20, 20));
        assert!(some.iter().all(|levels| all.contains(levels)));
        let rate = |rate: &str| some.iter().filter(|levels| levels[3].1 == rate).count();
        assert_eq!(["1mbit", "2mbit", "3mbit", "4mbit"].map(rate), [5; 4]);
        let points: Vec<_> = expand(&plan).map(|point| point.factors).collect();
        assert_eq!(points, some);
        assert!(expand(&plan).all(|point| point.plan.unwrap().design.is_none()));
        // Three factors have more than two levels.
        let (kind, resolution) = (DesignKind::FractionalFactorial, Some(4));
        plan.design = Some(Design { kind, points: None, resolution });
        assert_eq!(count(&plan), 240);
        plan.matrix
            .retain(|_, factor| !matches!(factor, Factor::Values(values) if values.len() > 2));
        assert_eq!(combinations(&plan).len(), 4, "two factors have no fraction");
    }

    #[test]
    fn lengths_are_those_of_the_points() {
        let plan = plan(SEVERAL);
        let whole: Vec<Micros> =
            expand(&plan).map(|point| timeline::length(&point.plan.unwrap())).collect();
        assert_eq!(lengths(&plan), whole);
    }

    #[test]
    fn points_of_a_design_have_lengths_where_all_combinations_are_too_many() {
        let lengths_s: Vec<String> = (1..=101).map(|length| format!("\"{length}s\"")).collect();
        let names: Vec<String> = (0..100).map(|nth| format!("\"p{nth}\"")).collect();
        let (lengths_s, names) = (lengths_s.join(", "), names.join(", "));
        let mut plan =
            plan(&format!("\"phases.0.length\" = [{lengths_s}]\n\"phases.0.name\" = [{names}]"));
        assert!(count(&plan) > MAX_POINTS);
        let (kind, points) = (DesignKind::LatinHypercube, Some(101));
        plan.design = Some(Design { kind, points, resolution: None });
        let mut found = lengths(&plan);
        found.sort_unstable();
        let wanted: Vec<Micros> =
            (1..=101).map(|length| Micros::from_millis(length * 1000)).collect();
        assert_eq!(found, wanted);
    }
}
