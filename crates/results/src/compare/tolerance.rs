//! Tolerances: how much a metric may differ between two runs that agree, and which points of a matrix agree.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use super::Compared;
use crate::model::name_and_stat;

/// How much the second mean of a metric may differ from the first.
#[derive(Debug, Clone, PartialEq)]
pub struct Tolerance {
    /// `NAME` (its mean or sum) or `NAME:STAT`.
    pub metric: String,
    /// The tolerance as a share of the first mean.
    pub relative: f64,
}

/// The default tolerances, in percent, if two runs with several points are compared. They come from the comparison of the simulator with
/// the lab (docs/simulator.md).
pub const DEFAULT_TOLERANCES: [(&str, f64); 3] =
    [("throughput_sum", 2.0), ("srtt", 6.0), ("retransmission_share", 25.0)];

/// Differences up to this one are always within the tolerance of a share of retransmissions: one packet in a thousand.
pub const RETRANSMISSION_SHARE_FLOOR: f64 = 0.001;

/// A tolerance cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("write METRIC=PERCENT, as in srtt=6 or throughput_sum:mean=2.5")]
pub struct InvalidTolerance;

impl FromStr for Tolerance {
    type Err = InvalidTolerance;
    fn from_str(text: &str) -> Result<Self, InvalidTolerance> {
        let (metric, percent) = text.split_once('=').ok_or(InvalidTolerance)?;
        let percent = percent.strip_suffix('%').unwrap_or(percent).trim();
        let percent: f64 = percent.parse().map_err(|_| InvalidTolerance)?;
        if metric.is_empty() || !percent.is_finite() || percent < 0.0 {
            return Err(InvalidTolerance);
        }
        Ok(Self { metric: metric.to_owned(), relative: percent / 100.0 })
    }
}

impl Tolerance {
    /// Returns the given tolerances, and the default ones of other metrics.
    pub(super) fn with_defaults(given: &[Self]) -> Vec<Self> {
        let name = |metric: &str| name_and_stat(metric).0.to_owned();
        let others = DEFAULT_TOLERANCES
            .iter()
            .filter(|(metric, _)| given.iter().all(|one| name(&one.metric) != *metric))
            .map(|(metric, percent)| Self {
                metric: (*metric).to_owned(),
                relative: percent / 100.0,
            });
        given.iter().cloned().chain(others).collect()
    }

    /// Returns whether two means differ by no more than the tolerance.
    pub(super) fn permits(&self, (a, b): (f64, f64)) -> bool {
        let is_share = name_and_stat(&self.metric).0 == "retransmission_share";
        let floor = if is_share { RETRANSMISSION_SHARE_FLOOR } else { 0.0 };
        // Permit the limit itself despite the rounding of decimal fractions.
        (b - a).abs() <= (self.relative * a.abs()).max(floor) * (1.0 + 1e-9)
    }
}

/// Returns whether a metric as given on the command line means this metric and statistic. A name alone means the mean or the sum.
pub(super) fn is_metric(given: &str, (name, stat): (&str, &str)) -> bool {
    match name_and_stat(given) {
        (metric, Some(which)) => (metric, which) == (name, stat),
        (metric, None) => metric == name && ["mean", "sum"].contains(&stat),
    }
}

/// A matched point with a metric that has a tolerance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgedPoint {
    /// Levels of the shared factors.
    pub point: String,
    /// Metrics that exceed their tolerance; empty if the point agrees.
    pub exceeded: Vec<String>,
}

/// Returns every point with a judged row. A point agrees if all its judged rows do and both sides have them. `unmatched` has the points and
/// names of rows that only one side has.
pub(super) fn judged_points(
    rows: &[Compared],
    unmatched: &BTreeSet<(usize, String)>,
    order: &[String],
) -> Vec<JudgedPoint> {
    let mut judged: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (row, agrees) in rows.iter().filter_map(|row| Some((row, row.agrees?))) {
        let exceeded = judged.entry(&row.point).or_default();
        if !agrees {
            exceeded.push(format!("{} of {} in {}", row.metric, row.subject, row.phase));
        }
    }
    for (point, name) in unmatched {
        judged.entry(&order[*point]).or_default().push(format!("{name}, which only one run has"));
    }
    let mut points: Vec<JudgedPoint> = Vec::with_capacity(judged.len());
    for point in order {
        if let Some(exceeded) = judged.remove(point.as_str()) {
            points.push(JudgedPoint { point: point.clone(), exceeded });
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Tolerance {
        text.parse().unwrap()
    }

    #[test]
    fn tolerances_are_percentages_of_the_first_mean() {
        let two = of("throughput_sum=2");
        assert!(two.permits((100.0, 98.0)) && two.permits((100.0, 102.0)));
        assert!(!two.permits((100.0, 97.9)) && !two.permits((100.0, 102.1)));
        assert!(of("drops=0").permits((0.0, 0.0)) && !of("drops=50").permits((0.0, 1.0)));
        assert_eq!(of("srtt:p95=2.5%").relative, 0.025);
        for wrong in ["srtt", "=2", "srtt=", "srtt=-1", "srtt=x", "srtt=nan", "srtt=inf"] {
            assert!(wrong.parse::<Tolerance>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn small_shares_of_retransmissions_agree() {
        let quarter = of("retransmission_share=25");
        assert!(quarter.permits((0.0, 0.001)) && !quarter.permits((0.0, 0.0011)));
        assert!(quarter.permits((0.04, 0.05)) && !quarter.permits((0.034, 0.048)));
    }

    #[test]
    fn given_tolerances_replace_defaults() {
        let all = Tolerance::with_defaults(&[of("srtt=1"), of("drops=10")]);
        let names: Vec<&str> = all.iter().map(|one| one.metric.as_str()).collect();
        assert_eq!(names, ["srtt", "drops", "throughput_sum", "retransmission_share"]);
        assert_eq!(all[0].relative, 0.01);
        assert!(is_metric("srtt", ("srtt", "mean")) && !is_metric("srtt", ("srtt", "p95")));
        assert!(is_metric("srtt:p95", ("srtt", "p95")) && is_metric("drops", ("drops", "sum")));
    }
}
