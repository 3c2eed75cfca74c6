//! The rows of a design: the level of each factor at each point. The same plan and seed give the same rows on every machine.
//!
//! **Latin hypercube** (McKay, Beckman and Conover, Technometrics 1979), over levels: the column of each factor is a random
//! permutation of its levels, each repeated equally often. The remaining points are a stratified sample: their levels are drawn at
//! random, one from each of as many equal parts of the list of levels. Equal rows exchange levels with others until all rows
//! differ.
//!
//! **Fractional factorial** (Box, Hunter and Hunter, Statistics for Experimenters, chapter 6): a full design of some basic factors,
//! and further factors, each of whose levels is a product of basic ones (a generator). The resolution is the length of the shortest
//! word of the defining relation. Generators for resolution 3 are products of two or more basic factors; for 4, of three, five ...;
//! for 5, those of Sanchez and Sanchez (ACM Transactions on Modeling and Computer Simulation 15(4), 2005). A single generator is
//! the product of all basic factors. The seed chooses one fraction of the family.

use std::collections::BTreeMap;

use crate::plan::{Design, DesignKind, Plan};
use crate::schedule::random::{derive, draw, generator, shuffle};

use super::super::problems::Problems;
use super::MAX_POINTS;

/// Most basic factors: more of them would give more points than a plan may have.
const MAX_BASIC: usize = 13;
/// Most passes over the points to make equal ones differ.
const MAX_PASSES: usize = 1000;

/// Indices of the factors' levels.
type Row = Vec<usize>;

/// The rows of the plan's design; `None` without one, or if the matrix does not fit it.
pub(super) fn rows(plan: &Plan, sizes: &[usize]) -> Option<Vec<Row>> {
    let design = plan.design?;
    match design.kind {
        DesignKind::LatinHypercube => {
            let points = design.points? as usize;
            let fits = (1..=MAX_POINTS).contains(&points) && points <= combinations(sizes) / 2;
            fits.then(|| latin_hypercube(sizes, points, plan.seed))
        }
        DesignKind::FractionalFactorial => {
            let two_levels = sizes.iter().all(|levels| *levels == 2);
            two_levels.then(|| fraction(sizes.len(), design.resolution?, plan.seed)).flatten()
        }
    }
}

/// The number of all combinations.
fn combinations(sizes: &[usize]) -> usize {
    sizes.iter().fold(1, |n: usize, levels| n.saturating_mul(*levels))
}

fn latin_hypercube(sizes: &[usize], points: usize, seed: u64) -> Vec<Row> {
    let mut rows = vec![Row::with_capacity(sizes.len()); points];
    for (factor, levels) in sizes.iter().enumerate() {
        let mut random = generator(derive(seed, "levels", &[factor as u64]));
        let extra = points % levels;
        let mut column: Vec<usize> = (0..points - extra).map(|point| point % levels).collect();
        for part in 0..extra {
            let (from, to) = (part * levels / extra, (part + 1) * levels / extra);
            column.push(from + draw(&mut random, (to - from) as u64) as usize);
        }
        shuffle(&mut column, derive(seed, "latin hypercube", &[factor as u64]));
        rows.iter_mut().zip(column).for_each(|(row, level)| row.push(level));
    }
    make_distinct(&mut rows, sizes.len(), seed);
    rows
}

/// Exchanges levels of equal rows with those of other rows. This does not change how often each level occurs.
fn make_distinct(rows: &mut Vec<Row>, factors: usize, seed: u64) {
    let mut random = generator(derive(seed, "distinct points", &[]));
    let mut times: BTreeMap<Row, usize> = BTreeMap::new();
    for row in rows.iter() {
        *times.entry(row.clone()).or_default() += 1;
    }
    let points = rows.len();
    for _ in 0..MAX_PASSES {
        let is_repeated = |point: &usize| times.get(&rows[*point]).is_some_and(|n| *n > 1);
        let repeated: Vec<usize> = (0..points).filter(is_repeated).collect();
        if repeated.is_empty() {
            return;
        }
        for one in repeated.into_iter().filter(|_| factors > 0) {
            let other = draw(&mut random, points as u64) as usize;
            let factor = draw(&mut random, factors as u64) as usize;
            let (mut a, mut b) = (rows[one].clone(), rows[other].clone());
            std::mem::swap(&mut a[factor], &mut b[factor]);
            let is_new = |row: &Row| !times.contains_key(row);
            if one == other || a == b || !is_new(&a) || !is_new(&b) {
                continue;
            }
            for old in [&rows[one], &rows[other]] {
                match times.get(old).copied() {
                    Some(n) if n > 1 => times.insert(old.clone(), n - 1),
                    _ => times.remove(old),
                };
            }
            for new in [&a, &b] {
                *times.entry(new.clone()).or_default() += 1;
            }
            (rows[one], rows[other]) = (a, b);
        }
    }
    // Equal points are left only in a matrix with hardly more combinations than points. Points must differ.
    rows.sort_unstable();
    rows.dedup();
}

/// A fraction with this resolution of a design of `factors` factors with two levels; `None` if it would be the full design, or too
/// large. It is the smallest regular fraction, except at resolution 5 with more than 17 factors: a code with distance 5 is a
/// fraction, and 8 to 10 check bits are known to allow 17, 23 and 33 factors (codetables.de), of which the sequence reaches 17, 21
/// and 29.
fn fraction(factors: usize, resolution: u32, seed: u64) -> Option<Vec<Row>> {
    let (basic, generators) = generators(factors, resolution as usize)?;
    let sign = |nth: u64| usize::from(derive(seed, "fraction", &[nth])[0] % 2);
    let signs: Vec<usize> = (0..generators.len() as u64).map(sign).collect();
    let row = |run: u32| -> Row {
        let levels = (0..basic).map(|factor| ((run >> factor) & 1) as usize);
        let parity = |word: &u32| (run & word).count_ones() as usize % 2;
        let others = generators.iter().zip(&signs).map(|(word, sign)| parity(word) ^ sign);
        levels.chain(others).collect()
    };
    let runs = 1_u32 << basic;
    Some((0..runs).map(row).collect())
}

/// The number of basic factors, and the generators of the others, as sets of basic factors.
fn generators(factors: usize, resolution: usize) -> Option<(usize, Vec<u32>)> {
    if resolution >= 5 {
        return generators_of_5(factors);
    }
    let mut basic = resolution.saturating_sub(1).max(2)..factors.min(MAX_BASIC + 1);
    basic.find_map(|basic| Some((basic, generators_of(basic, factors - basic, resolution)?)))
}

/// The wanted number of generators, with which the design has resolution 3 or 4; `None` if there are not as many.
fn generators_of(basic: usize, wanted: usize, resolution: usize) -> Option<Vec<u32>> {
    let all = (1_u32 << basic) - 1;
    if wanted == 1 {
        return (basic + 1 >= resolution).then(|| vec![all]);
    }
    let mut candidates: Vec<u32> = (1..=all)
        .filter(|word| word.count_ones() as usize + 1 >= resolution)
        .filter(|word| resolution != 4 || word.count_ones() % 2 == 1)
        .collect();
    // Short words come first, then the order of the factors decides: ABC, ABD, ACD, BCD.
    candidates.sort_by_key(|word| (word.count_ones(), *word));
    (candidates.len() >= wanted).then(|| candidates[..wanted].to_vec())
}

/// As [`generators`], for resolution 5. A factor is the set of basic factors whose product it is, as a number. The sequence of
/// Sanchez and Sanchez always continues with the smallest number that is not a combination of three or fewer earlier ones, so no
/// word has four factors or fewer. Powers of two are the basic factors.
fn generators_of_5(factors: usize) -> Option<(usize, Vec<u32>)> {
    let mut sets: Vec<u32> = Vec::new();
    // The combinations of two or fewer sets, and whether three or fewer give a number.
    let (mut of_two, mut is_made) = (vec![0], vec![false; 1 << MAX_BASIC]);
    for set in 1..1_u32 << MAX_BASIC {
        if sets.len() == factors {
            break;
        }
        if is_made[set as usize] {
            continue;
        }
        for made in &of_two {
            is_made[(made ^ set) as usize] = true;
        }
        of_two.extend(sets.iter().map(|other| other ^ set).chain([set]));
        sets.push(set);
    }
    if sets.len() < factors {
        return None;
    }
    let (basics, others): (Vec<u32>, Vec<u32>) =
        sets.into_iter().partition(|set| set.is_power_of_two());
    match others.len() {
        0 => None,
        1 => Some((basics.len(), vec![(1 << basics.len()) - 1])),
        _ => Some((basics.len(), others)),
    }
}

/// Checks the design.
pub(super) fn check(plan: &Plan, sizes: &[usize], problems: &mut Problems) {
    // Another rule reports a factor without levels.
    let Some(design) = plan.design.filter(|_| !sizes.contains(&0)) else { return };
    let Design { kind, points, resolution } = design;
    for (key, value, range) in
        [("points", points, 1..=MAX_POINTS as u32), ("resolution", resolution, 3..=5)]
    {
        if value.is_some_and(|value| !range.contains(&value)) {
            let why = format!("must be from {} to {}", range.start(), range.end());
            problems.error(&["design", key], why);
            return;
        }
    }
    let why = match (kind, points, resolution) {
        (DesignKind::LatinHypercube, None, _) => {
            "needs the number of points: `points = 200`".to_owned()
        }
        (DesignKind::LatinHypercube, Some(_), Some(_)) => {
            "`resolution` belongs to a fractional factorial; leave it out".to_owned()
        }
        (DesignKind::FractionalFactorial, _, None) => {
            "needs a resolution: `resolution = 4`".to_owned()
        }
        (DesignKind::FractionalFactorial, Some(_), _) => {
            "`points` belongs to a Latin hypercube, and `resolution` decides the number of points here; leave `points` out"
                .to_owned()
        }
        (DesignKind::LatinHypercube, Some(points), None) => {
            let all = combinations(sizes);
            if points as usize <= all / 2 {
                return;
            }
            format!("{points} points of {all} combinations: a Latin hypercube has at most half of them; leave \
                     `design` out to run all combinations")
        }
        (DesignKind::FractionalFactorial, None, Some(resolution)) => {
            if let Some(levels) = sizes.iter().find(|levels| **levels != 2) {
                format!("a fractional factorial needs two levels of each factor, but one has {levels}; leave `design` \
                         out to run all combinations")
            } else if rows(plan, sizes).is_none() {
                format!(
                    "{} factors have no fraction of resolution {resolution} with at most {MAX_POINTS} points; leave \
                     `design` out to run all combinations, or choose a lower resolution",
                    sizes.len()
                )
            } else {
                return;
            }
        }
    };
    problems.error_from(&["design"], &[&["design"], &["matrix"]], why);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The length of the shortest word of the defining relation: of a set of factors whose levels have the same parity in all rows.
    fn resolution(rows: &[Row]) -> usize {
        let bits: Vec<u32> = rows
            .iter()
            .map(|row| row.iter().rev().fold(0_u32, |bits, level| bits * 2 + *level as u32))
            .collect();
        let is_word = |word: &u32| {
            let parity = |row: &u32| (row & word).count_ones() % 2;
            bits.iter().all(|row| parity(row) == parity(&bits[0]))
        };
        let factors = rows[0].len();
        let words = (1..1_u32 << factors).filter(is_word);
        words.map(|word| word.count_ones() as usize).min().unwrap_or(usize::MAX)
    }

    #[test]
    fn fractions_have_the_sizes_and_resolutions_of_the_textbook() {
        // Box, Hunter and Hunter, table 6.22: factors, resolution asked for, runs, resolution of the design.
        let designs = [
            (3, 3, 4, 3),
            (5, 3, 8, 3),
            (7, 3, 8, 3),
            (11, 3, 16, 3),
            (15, 3, 16, 3),
            (4, 4, 8, 4),
            (6, 4, 16, 4),
            (8, 4, 16, 4),
            (9, 4, 32, 4),
            (5, 5, 16, 5),
            (6, 5, 32, 6),
            (7, 5, 64, 7),
            (8, 5, 64, 5),
        ];
        for (factors, asked, runs, has) in designs {
            for seed in [1, 2] {
                let rows = fraction(factors, asked, seed).unwrap();
                let found = (rows.len(), resolution(&rows));
                assert_eq!(found, (runs, has), "{factors} factors, {asked}");
            }
        }
        let words = |factors, resolution| generators(factors, resolution).unwrap().1;
        assert_eq!(words(6, 3), [0b011, 0b101, 0b110], "AB, AC, BC");
        assert_eq!(words(8, 4), [0b0111, 0b1011, 0b1101, 0b1110], "ABC, ABD, ACD, BCD");
        assert_eq!(words(8, 5), [0b00_1111, 0b11_0011], "ABCD, ABEF");
        assert!([(2, 3), (3, 4), (4, 5)].iter().all(|(k, r)| generators(*k, *r).is_none()));
        let one = fraction(6, 4, 1).unwrap();
        assert!((2..20).any(|seed| fraction(6, 4, seed).unwrap() != one), "a seed has no effect");
    }

    /// The length of the shortest word of the defining relation that generators have: of the products of any of them.
    fn resolution_of_words(basic: usize, generators: &[u32]) -> u32 {
        let own = |nth: usize| u64::from(generators[nth]) | 1 << (basic + nth);
        let mut word = 0;
        // The Gray code of a number differs from that of the next one by one generator.
        let words = (1..1_u64 << generators.len()).map(|count| {
            word ^= own(count.trailing_zeros() as usize);
            word.count_ones()
        });
        words.min().unwrap_or(u32::MAX)
    }

    /// Whether no word has four factors or fewer: whether single factors and products of two all differ, and none is 1.
    fn has_resolution_5(basic: usize, generators: &[u32]) -> bool {
        let factors: Vec<u32> =
            (0..basic).map(|factor| 1 << factor).chain(generators.iter().copied()).collect();
        let pairs = (0..factors.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        let products = pairs.map(|(a, b)| factors[a] ^ factors[b]);
        let mut seen = std::collections::BTreeSet::from([0]);
        factors.iter().copied().chain(products).all(|product| seen.insert(product))
    }

    #[test]
    fn fractions_of_every_size_have_the_resolution() {
        // Factors of the largest fraction of 2^4, 2^5 ... runs; up to 11 factors and 128 runs as in the NIST/SEMATECH e-Handbook of
        // Statistical Methods, table 5.3.3.4.7.
        let most = [
            (4, 5),
            (5, 6),
            (6, 8),
            (7, 11),
            (8, 17),
            (9, 21),
            (10, 29),
            (11, 38),
            (12, 52),
            (13, 69),
        ];
        let known = [
            15, 51, 85, 106, 150, 171, 219, 237, 247, 279, 297, 455, 537, 557, 594, 643, 803, 863,
            998,
        ];
        assert_eq!(generators(29, 5).unwrap().1, known, "Sanchez and Sanchez");
        for factors in 5..=69 {
            let (basic, words) = generators(factors, 5).unwrap();
            let (smallest, _) = most.into_iter().find(|(_, most)| *most >= factors).unwrap();
            assert_eq!((basic, basic + words.len()), (smallest, factors));
            assert!(has_resolution_5(basic, &words), "{factors} factors: {words:?}");
            // Beyond that, there are too many words.
            if words.len() < 20 {
                assert!(resolution_of_words(basic, &words) >= 5, "{factors} factors: {words:?}");
            }
        }
        assert!(generators(4, 5).is_none() && generators(70, 5).is_none());
        for (resolution, factors) in (4..=25).flat_map(|factors| [(3, factors), (4, factors)]) {
            let (basic, words) = generators(factors, resolution).unwrap();
            let found = resolution_of_words(basic, &words);
            assert!(found >= resolution as u32, "{factors} factors: {found}, {words:?}");
        }
        // The checks find a word that is too short: ABCD and ABCE have the product DE.
        assert_eq!(resolution_of_words(5, &[0b0_1111, 0b1_0111]), 4);
        assert!(!has_resolution_5(5, &[0b0_1111, 0b1_0111]));
    }

    #[test]
    fn columns_of_a_fraction_are_balanced_and_orthogonal() {
        for (factors, resolution) in [(7, 3), (8, 4), (8, 5)] {
            let rows = fraction(factors, resolution, 3).unwrap();
            for a in 0..factors {
                assert_eq!(rows.iter().filter(|row| row[a] == 1).count(), rows.len() / 2);
                for b in 0..a {
                    let both = rows.iter().filter(|row| row[a] == 1 && row[b] == 1).count();
                    assert_eq!(both, rows.len() / 4, "{factors} factors: {a} and {b}");
                }
            }
        }
    }

    #[test]
    fn hypercube_with_fewer_points_than_levels_samples_every_level_of_each_part() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..300 {
            let rows = latin_hypercube(&[40, 3], 4, seed);
            let mut column: Vec<usize> = rows.iter().map(|row| row[0]).collect();
            column.sort_unstable();
            let parts: Vec<usize> = column.iter().map(|level| level / 10).collect();
            assert_eq!(parts, [0, 1, 2, 3], "{column:?}");
            seen.extend(column);
        }
        assert_eq!(seen.len(), 40, "{seen:?}");
    }

    #[test]
    fn points_beyond_whole_repetitions_of_the_levels_have_any_level() {
        let repeated = |seed: u64| {
            let rows = latin_hypercube(&[3, 8], 4, seed);
            let times = |level: usize| rows.iter().filter(|row| row[0] == level).count();
            (0..3).find(|level| times(*level) == 2)
        };
        let levels: std::collections::BTreeSet<usize> = (0..100).filter_map(repeated).collect();
        assert_eq!(levels.len(), 3, "{levels:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

        #[test]
        fn hypercube_has_each_level_equally_often_and_distinct_points(
            sizes in proptest::collection::vec(1_usize..9, 1..6),
            share in 1_usize..100,
            seed in 0_u64..1000,
        ) {
            let all = combinations(&sizes);
            let points = (all / 2 * share / 100).clamp(1, 500);
            prop_assume!(points <= all / 2);
            let rows = latin_hypercube(&sizes, points, seed);
            prop_assert_eq!(&rows, &latin_hypercube(&sizes, points, seed));
            prop_assert_eq!(rows.len(), points);
            let distinct: std::collections::BTreeSet<&Row> = rows.iter().collect();
            prop_assert_eq!(distinct.len(), points);
            for (factor, levels) in sizes.iter().enumerate() {
                for level in 0..*levels {
                    let times = rows.iter().filter(|row| row[factor] == level).count();
                    prop_assert!([points / levels, points.div_ceil(*levels)].contains(&times));
                }
            }
        }
    }
}
