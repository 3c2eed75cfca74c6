//! `points.parquet`: the levels of each point, as numbers where possible.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use ccbench_proto::units::{Bytes, Micros, Rate};
use polars::prelude::*;

use super::model::level_of;
use super::part::write_parquet;
use super::record::{Point, RunRecord};
use crate::error::{Result, polars_error};

/// Writes the table: one column per factor, as numbers if all its levels are numbers and differ as numbers. If all levels are rates, times
/// or sizes with units, another column has their numbers: `<factor>_bps`, `_us` or `_bytes`.
pub(crate) fn write(path: &Path, record: &RunRecord) -> Result<()> {
    let file = path.join("points.parquet");
    let frame = frame(record).map_err(polars_error("build", &file))?;
    write_parquet(&frame, &file)
}

fn frame(record: &RunRecord) -> PolarsResult<DataFrame> {
    let ids: Vec<u32> = record.points.iter().map(|p| p.point_id).collect();
    let mut columns = vec![Column::new("point_id".into(), ids)];
    for factor in &record.factors {
        let level = |point: &Point| level_of(&point.levels, factor).map(str::to_owned);
        let values: Vec<Option<String>> = record.points.iter().map(level).collect();
        let name = match factor.as_str() {
            "point_id" => "factor.point_id",
            other => other,
        };
        columns.push(typed_column(name, &values));
        let taken = |twin: &str| record.factors.iter().any(|factor| factor == twin);
        if let Some((suffix, numbers)) = quantities(&values) {
            let twin = format!("{name}_{suffix}");
            if !taken(&twin) {
                columns.push(Column::new(twin.into(), numbers));
            }
        }
    }
    DataFrame::new_infer_height(columns)
}

/// Parses every level; `None` if one cannot be parsed.
fn all<T: FromStr>(values: &[Option<String>]) -> Option<Vec<Option<T>>> {
    values
        .iter()
        .map(|v| v.as_ref().map(|v| v.parse().ok()).map_or(Some(None), |v| v.map(Some)))
        .collect()
}

fn typed_column(name: &str, values: &[Option<String>]) -> Column {
    if let Some(numbers) = all::<i64>(values)
        && are_distinct(values, numbers.iter().flatten().map(|number| number.cast_unsigned()))
    {
        return Column::new(name.into(), numbers);
    }
    // The sum of -0 and 0 is 0.
    if let Some(numbers) = all::<f64>(values)
        && are_distinct(values, numbers.iter().flatten().map(|number| (number + 0.0).to_bits()))
    {
        return Column::new(name.into(), numbers);
    }
    Column::new(name.into(), values)
}

/// Returns whether different levels have different numbers. The levels `1` and `1.0`, or the versions `6.1` and `6.10`, do not.
fn are_distinct(values: &[Option<String>], numbers: impl Iterator<Item = u64>) -> bool {
    let mut known: BTreeMap<u64, &str> = BTreeMap::new();
    let mut levels = values.iter().flatten().zip(numbers);
    levels.all(|(level, number)| *known.entry(number).or_insert(level) == level)
}

/// Returns the unit as the suffix of a column's name, and the numbers, if all levels are quantities of one kind.
fn quantities(values: &[Option<String>]) -> Option<(&'static str, Vec<Option<i64>>)> {
    fn numbers<T: FromStr>(
        values: &[Option<String>],
        number: impl Fn(T) -> u64,
    ) -> Option<Vec<Option<i64>>> {
        let parsed = all::<T>(values)?;
        let fits = |value: Option<T>| value.map(|v| i64::try_from(number(v)).unwrap_or(i64::MAX));
        parsed.iter().any(Option::is_some).then(|| parsed.into_iter().map(fits).collect())
    }
    let found = |suffix| move |numbers| (suffix, numbers);
    numbers(values, Rate::bits_per_sec)
        .map(found("bps"))
        .or_else(|| numbers(values, Micros::get).map(found("us")))
        .or_else(|| numbers(values, Bytes::get).map(found("bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(levels: &[&str]) -> Option<(&'static str, Vec<Option<i64>>)> {
        let values: Vec<Option<String>> =
            levels.iter().map(|l| (!l.is_empty()).then(|| (*l).to_owned())).collect();
        quantities(&values)
    }

    #[test]
    fn different_levels_stay_different() {
        let column = |levels: &[&str]| {
            let values: Vec<Option<String>> =
                levels.iter().map(|l| (!l.is_empty()).then(|| (*l).to_owned())).collect();
            typed_column("factor", &values)
        };
        assert_eq!(column(&["1", "", "2", "1"]).dtype(), &DataType::Int64);
        assert_eq!(column(&["1", "", "2.5", "1"]).dtype(), &DataType::Float64);
        for levels in
            [["1", "1.0", ""], ["6.1", "6.10", "6.1"], ["7", "07", "8"], ["-0", "0.0", "1"]]
        {
            let found = column(&levels);
            let found = found.str().unwrap().iter().map(Option::unwrap_or_default);
            assert_eq!(found.collect::<Vec<_>>(), levels);
        }
    }

    #[test]
    fn levels_with_units_have_a_numeric_column() {
        assert_eq!(
            of(&["10mbit", "1.5gbit"]),
            Some(("bps", vec![Some(10_000_000), Some(1_500_000_000)]))
        );
        assert_eq!(
            of(&["15ms", "", "1s"]),
            Some(("us", vec![Some(15_000), None, Some(1_000_000)]))
        );
        assert_eq!(of(&["187500B", "256KiB"]), Some(("bytes", vec![Some(187_500), Some(262_144)])));
        assert_eq!(of(&["10mbit", "15ms"]), None, "not of one kind");
        assert_eq!(of(&["cubic", "reno"]), None);
        assert_eq!(of(&["20", "40"]), None, "a number is one already");
        assert_eq!(of(&["1.5bdp", "15ms"]), None);
        assert_eq!(of(&["", ""]), None);
    }
}
