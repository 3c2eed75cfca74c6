//! Chooses the Parquet encoding of each column: dictionary or delta binary packed. Counters and timestamps take a fraction of a byte per
//! value as deltas, but eight bytes in a dictionary. Columns that alternate between few values are the opposite. zstd compresses both.

use polars::datatypes::{InitHashMaps, PlHashSet};
use polars::prelude::*;
use polars_parquet::write::Encoding;

/// Number of values that Polars packs together. The widest of their differences determines the bits of each.
const BLOCK: usize = 256;
/// Maximum cost of a change of the value in a dictionary's run-length encoded indices.
const RUN_BYTES: usize = 3;

/// Returns the encoding of every column of a row group, in order.
pub(crate) fn encodings(frame: &DataFrame) -> PolarsResult<Vec<Vec<Encoding>>> {
    frame.columns().iter().map(|column| Ok(vec![encoding(column)?])).collect()
}

fn encoding(column: &Column) -> PolarsResult<Encoding> {
    // As Parquet stores them: unsigned values as signed ones of the same size.
    Ok(match column.dtype() {
        DataType::UInt32 => {
            cheaper(column.u32()?.iter().flatten().map(|v| i64::from(v.cast_signed())), 4)
        }
        DataType::UInt64 => cheaper(column.u64()?.iter().flatten().map(u64::cast_signed), 8),
        DataType::Int64 => cheaper(column.i64()?.iter().flatten(), 8),
        DataType::Boolean => Encoding::Plain,
        _ => Encoding::RleDictionary,
    })
}

/// Returns the encoding that is smaller before compression, for values of `value_bytes` each.
fn cheaper(values: impl Iterator<Item = i64>, value_bytes: usize) -> Encoding {
    let values: Vec<i64> = values.collect();
    let changes = values.windows(2).filter(|two| two[0] != two[1]).count();
    if changes == 0 {
        return Encoding::RleDictionary;
    }
    let Some(differences) = differences_bytes(&values, value_bytes) else {
        return Encoding::RleDictionary;
    };
    let mut distinct = PlHashSet::new();
    for &value in &values {
        if distinct.insert(value) && distinct.len() * value_bytes >= differences {
            return Encoding::DeltaBinaryPacked;
        }
    }
    let bits = (distinct.len() - 1).checked_ilog2().map_or(0, |log| log as usize + 1);
    let indices = (values.len() * bits / 8).min(changes * RUN_BYTES);
    if distinct.len() * value_bytes + indices < differences {
        Encoding::RleDictionary
    } else {
        Encoding::DeltaBinaryPacked
    }
}

/// Returns the bytes that the differences take; `None` if one has more bits than readers allow for a value of that size.
fn differences_bytes(values: &[i64], value_bytes: usize) -> Option<usize> {
    // The first value is in the page's header, and the blocks follow.
    let (&first, rest) = values.split_first()?;
    let (mut before, mut bytes) = (first, 0);
    for block in rest.chunks(BLOCK) {
        let (mut least, mut most) = (i64::MAX, i64::MIN);
        for &value in block {
            let difference = value.wrapping_sub(before);
            (least, most) = (least.min(difference), most.max(difference));
            before = value;
        }
        let bits = (u64::BITS - most.abs_diff(least).leading_zeros()) as usize;
        if bits > 8 * value_bytes || !fits(least, value_bytes) {
            return None;
        }
        bytes += 10 + bits * BLOCK / 8;
    }
    Some(bytes)
}

fn fits(difference: i64, value_bytes: usize) -> bool {
    value_bytes == 8 || i32::try_from(difference).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_u32(values: impl IntoIterator<Item = u32>) -> Encoding {
        cheaper(values.into_iter().map(|v| i64::from(v.cast_signed())), 4)
    }

    #[test]
    fn counters_use_deltas_and_states_a_dictionary() {
        assert_eq!(of_u32((0..5000).map(|i| i * 3)), Encoding::DeltaBinaryPacked);
        assert_eq!(of_u32((0..5000).map(|_| 7)), Encoding::RleDictionary);
        assert_eq!(of_u32((0..5000).map(|i| i / 1000)), Encoding::RleDictionary);
        // Two distant values that alternate.
        assert_eq!(of_u32((0..5000).map(|i| i % 2 * 1_000_000)), Encoding::RleDictionary);
        assert_eq!(of_u32([]), Encoding::RleDictionary);
    }

    #[test]
    fn shared_timestamps_use_a_dictionary() {
        let at = |row: i64| (row % 100) * 100_000_000 + (row % 100) * 7919 % 1000;
        assert_eq!(cheaper((0..5000).map(at), 8), Encoding::RleDictionary);
        let alone = |row: i64| row * 10_000 + row * 7919 % 1000;
        assert_eq!(cheaper((0..5000).map(alone), 8), Encoding::DeltaBinaryPacked);
    }

    #[test]
    fn rejects_deltas_wider_than_the_value() {
        // As signed numbers, this goes from the largest to the smallest: a difference of 33 bits, which readers refuse.
        let values = (0..5000)
            .map(|i: u32| if i.is_multiple_of(2) { 0x7fff_0000 + i } else { 0x8000_0000 + i });
        assert_eq!(of_u32(values), Encoding::RleDictionary);
    }

    #[test]
    fn delta_width_is_computed_per_block() {
        // Each of the two differences around the 255th value is narrow enough, but they share a block.
        let value = |i: usize| match i {
            ..255 => -2_147_000_000 + i as i64,
            255 => 2_147_000_000,
            _ => 100_000_000 + i as i64,
        };
        let values: Vec<i64> = (0..2000).map(value).collect();
        assert_eq!(differences_bytes(&values, 4), None);
        assert_eq!(cheaper(values.into_iter(), 4), Encoding::RleDictionary);
    }
}
