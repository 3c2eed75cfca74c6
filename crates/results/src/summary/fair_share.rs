//! The max-min fair allocation (Bertsekas and Gallager, Data Networks, section 6.5.2): no flow can get more without taking from a flow that
//! has no more. If the application limits a flow to less than its share, the flow gets its limit. No I/O.

/// Equal flows: they pass the same links, and their applications have the same limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlowClass<'a> {
    /// Number of flows.
    pub(super) flows: f64,
    /// The most that one flow uses; infinite without a limit.
    pub(super) limit: f64,
    /// Indices of the links that the flows pass.
    pub(super) links: &'a [usize],
}

/// Shares this close count as equal, because sums over a link's flows have rounding errors.
const ROUNDING: f64 = 1e-12;

/// Returns the share of one flow of each class, by progressive filling; infinite if nothing limits the class. `capacities` of links may be
/// infinite.
pub(super) fn max_min(capacities: &[f64], classes: &[FlowClass<'_>]) -> Vec<f64> {
    let mut shares: Vec<Option<f64>> = vec![None; classes.len()];
    let mut left = capacities.to_vec();
    loop {
        let mut open = vec![0.0; left.len()];
        for (class, _) in classes.iter().zip(&shares).filter(|(_, share)| share.is_none()) {
            class.links.iter().for_each(|link| open[*link] += class.flows);
        }
        // The share of each link's open flows if they fill the link.
        let fills: Vec<f64> = left.iter().zip(&open).map(|(left, open)| left / open).collect();
        let of_class = |class: &FlowClass<'_>| {
            class.links.iter().map(|link| fills[*link]).fold(class.limit, f64::min)
        };
        let unfrozen = || classes.iter().zip(&shares).filter(|(_, share)| share.is_none());
        let level = unfrozen().map(|(class, _)| of_class(class)).min_by(f64::total_cmp);
        let Some(level) = level else {
            return shares.into_iter().map(|share| share.unwrap_or(f64::INFINITY)).collect();
        };
        let frozen: Vec<usize> = (0..classes.len())
            .filter(|nth| shares[*nth].is_none())
            .filter(|nth| of_class(&classes[*nth]) <= level * (1.0 + ROUNDING))
            .collect();
        for nth in frozen {
            shares[nth] = Some(level);
            for link in classes[nth].links {
                left[*link] = (left[*link] - classes[nth].flows * level).max(0.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn class(flows: f64, limit: f64, links: &[usize]) -> FlowClass<'_> {
        FlowClass { flows, limit, links }
    }

    #[test]
    fn known_allocations() {
        let inf = f64::INFINITY;
        // Two equal shares of one link, and what a limited flow leaves of it.
        let two = |limit| [class(2.0, inf, &[0]), class(1.0, limit, &[0])];
        assert_eq!(max_min(&[90.0], &two(inf)), [30.0, 30.0]);
        assert_eq!(max_min(&[90.0], &two(10.0)), [40.0, 10.0]);
        // A parking lot: the second link limits the long flow, and the first link's flow takes the rest.
        let lot = [class(1.0, inf, &[0, 1]), class(1.0, inf, &[0]), class(3.0, inf, &[1])];
        assert_eq!(max_min(&[100.0, 40.0], &lot), [10.0, 90.0, 10.0]);
        // Nothing limits a flow without a link; a link without capacity carries nothing.
        assert_eq!(max_min(&[0.0], &[class(1.0, inf, &[]), class(1.0, inf, &[0])]), [inf, 0.0]);
        assert_eq!(max_min(&[inf], &[class(1.0, inf, &[0]), class(1.0, 5.0, &[0])]), [inf, 5.0]);
        assert_eq!(max_min(&[], &[]), Vec::<f64>::new());
    }

    proptest! {
        #[test]
        fn no_flow_can_get_more_without_taking_from_a_smaller_one(
            capacities in prop::collection::vec(1.0..1000.0_f64, 1..5),
            drawn in prop::collection::vec(
                (
                    1_u32..5,
                    prop::option::of(0.1..200.0_f64),
                    prop::collection::btree_set(0_usize..4, 1..4),
                ),
                1..6,
            ),
        ) {
            let links: Vec<Vec<usize>> = drawn
                .iter()
                .map(|(_, _, links)| {
                    let mut links: Vec<usize> =
                        links.iter().map(|link| link % capacities.len()).collect();
                    links.sort_unstable();
                    links.dedup();
                    links
                })
                .collect();
            let classes: Vec<FlowClass<'_>> = drawn
                .iter()
                .zip(&links)
                .map(|((flows, limit, _), links)| {
                    class(f64::from(*flows), limit.unwrap_or(f64::INFINITY), links)
                })
                .collect();
            let shares = max_min(&capacities, &classes);
            let used: Vec<f64> = (0..capacities.len())
                .map(|link| {
                    let here = classes.iter().zip(&shares);
                    let here = here.filter(|(class, _)| class.links.contains(&link));
                    here.map(|(class, share)| class.flows * share).sum()
                })
                .collect();
            for (used, capacity) in used.iter().zip(&capacities) {
                prop_assert!(*used <= capacity * (1.0 + 1e-9), "{used} of {capacity}");
            }
            for (class, share) in classes.iter().zip(&shares) {
                prop_assert!(*share <= class.limit);
                let is_limited = *share >= class.limit * (1.0 - 1e-9);
                // A full link on which no flow has more.
                let stuck = class.links.iter().any(|link| {
                    let full = used[*link] >= capacities[*link] * (1.0 - 1e-9);
                    let mut others =
                        classes.iter().zip(&shares).filter(|(other, _)| other.links.contains(link));
                    full && others.all(|(_, other)| *other <= share * (1.0 + 1e-9))
                });
                prop_assert!(is_limited || stuck, "{classes:?} {shares:?} {capacities:?}");
            }
        }
    }
}
