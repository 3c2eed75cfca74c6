//! Rows of acknowledgements, and the segments on the wire that cause them.

use ccbench_proto::wire::{self, Role};

/// One row of the data connection, with the columns that are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub at_ns: u64,
    pub bytes_acked: u64,
    pub segments: u64,
    pub segs_in: u64,
    pub cwnd: u32,
    pub rtt_us: u32,
    pub rttvar_us: u32,
    pub delivered: u32,
    pub retrans: u32,
    pub lost: u32,
}

fn at<T: Copy>(column: &[T], row: usize) -> T {
    *column.get(row).unwrap_or(&column[0])
}

pub fn rows_of(batches: &[wire::Acks]) -> Vec<Row> {
    let of = |batch: &wire::Acks, row: usize| Row {
        at_ns: batch.at_ns[row],
        bytes_acked: at(&batch.bytes_acked, row),
        segments: at(&batch.segments, row),
        segs_in: at(&batch.segs_in_pkts, row).into(),
        cwnd: at(&batch.snd_cwnd_pkts, row),
        rtt_us: at(&batch.rtt_us, row),
        rttvar_us: at(&batch.rttvar_us, row),
        delivered: at(&batch.delivered_pkts, row),
        retrans: at(&batch.total_retrans_pkts, row),
        lost: at(&batch.lost_pkts, row),
    };
    let data = batches.iter().filter(|batch| batch.role() == Role::Data);
    let mut rows: Vec<Row> =
        data.flat_map(|batch| (0..batch.at_ns.len()).map(|row| of(batch, row))).collect();
    rows.sort_by_key(|row| row.at_ns);
    rows
}

/// Returns, for each row, how many segments without a row the kernel had counted. Excludes the SYN-ACK, and segments
/// that were in the socket's backlog and have a later row.
pub fn not_in_backlog(rows: &[Row]) -> Vec<u64> {
    let mut ahead: Vec<u64> = rows.iter().map(|row| row.segs_in - row.segments - 1).collect();
    for nth in (1..ahead.len()).rev() {
        ahead[nth - 1] = ahead[nth - 1].min(ahead[nth]);
    }
    ahead
}

/// Assigns a segment on the wire to each row, in order. `acked` holds the bytes acknowledged after each segment. A
/// segment is left out only if the kernel had counted it by the time of the row. Returns how many were left out, and
/// how many pairs arrived in another order. An error names the row that no segment explains.
///
/// If two CPUs process two segments at the same time, these may pass the capture in one order and reach TCP in the
/// other. TCP then finds that the older one acknowledges nothing new.
pub fn segments_without_row(
    rows: &[Row],
    acked: &[u64],
    before: usize,
) -> Result<(u64, usize), String> {
    let (mut left_out, mut swapped) = (0, 0);
    for (nth, (row, counted)) in rows.iter().zip(not_in_backlog(rows)).enumerate() {
        let explains = |left_out: u64| match (nth + left_out as usize).checked_sub(before) {
            Some(segment) => acked.get(segment) == Some(&row.bytes_acked),
            None => true,
        };
        let is_swapped = || {
            let segment = (nth + left_out as usize).checked_sub(before)?;
            let (older, newer) = (acked.get(segment)?, acked.get(segment + 1)?);
            let both = rows.get(nth..nth + 2)?.iter().all(|row| row.bytes_acked == *newer);
            (both && older < newer).then_some(())
        };
        match (left_out..=counted).find(|&left_out| explains(left_out)) {
            Some(more) => left_out = more,
            None if is_swapped().is_some() => swapped += 1,
            None => {
                let near = |len: usize| nth.saturating_sub(4)..len.min(nth + 5);
                let of_rows: Vec<_> =
                    rows[near(rows.len())].iter().map(|r| r.bytes_acked).collect();
                return Err(format!(
                    "row {nth}, {left_out} left out of {counted}: {row:?}; acknowledged bytes around it: rows {of_rows:?}, \
                     wire {:?}",
                    &acked[near(acked.len())]
                ));
            }
        }
    }
    Ok((left_out, swapped))
}

#[test]
fn leaves_out_only_segments_that_the_kernel_counted() {
    let row = |segments, segs_in, bytes_acked| Row {
        at_ns: segments,
        bytes_acked,
        segments,
        segs_in,
        cwnd: 0,
        rtt_us: 0,
        rttvar_us: 0,
        delivered: 0,
        retrans: 0,
        lost: 0,
    };
    let one_missed = [row(1, 2, 1), row(2, 3, 2), row(3, 5, 2), row(4, 6, 3)];
    assert_eq!(segments_without_row(&one_missed, &[1, 2, 2, 2, 3], 0), Ok((1, 0)));
    assert_eq!(segments_without_row(&one_missed, &[1, 2, 2, 3], 0), Ok((0, 0)));
    assert!(segments_without_row(&one_missed, &[1, 2, 2, 2, 2, 3], 0).is_err());
    assert!(segments_without_row(&one_missed, &[1, 2, 3, 3, 3], 0).is_err());
    let late = [row(1, 2, 1), row(2, 3, 3), row(3, 5, 4)];
    assert!(segments_without_row(&late, &[1, 2, 3, 4], 0).is_err(), "counted too late");
    // A segment that was in the backlog has a later row.
    let waited = [row(1, 2, 1), row(2, 4, 2), row(3, 4, 2), row(4, 5, 3)];
    assert!(segments_without_row(&waited, &[1, 2, 2, 2, 3], 0).is_err());
    assert_eq!(segments_without_row(&waited, &[1, 2, 2, 3], 0), Ok((0, 0)));
    // The second and the third arrived in the other order, so the second no longer acknowledged anything.
    let swapped = [row(1, 2, 1), row(2, 3, 3), row(3, 4, 3), row(4, 5, 4)];
    assert_eq!(segments_without_row(&swapped, &[1, 2, 3, 4], 0), Ok((0, 1)));
    assert!(segments_without_row(&swapped, &[1, 2, 4, 4], 0).is_err());
    let ahead = [row(1, 2, 1), row(2, 3, 3), row(3, 4, 4), row(4, 5, 4)];
    assert!(segments_without_row(&ahead, &[1, 2, 3, 4], 0).is_err(), "a missed segment is no swap");
    // A missed segment acknowledged new data; these rows show the state before their segment.
    let missed = [row(1, 2, 1), row(2, 4, 3), row(3, 5, 4)];
    assert_eq!(segments_without_row(&missed, &[2, 3, 4, 5], 1), Ok((1, 0)));
    assert!(segments_without_row(&missed, &[2, 4, 4, 5], 1).is_err());
}
