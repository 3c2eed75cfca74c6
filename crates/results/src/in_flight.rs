//! Packets in flight: `pipe` of RFC 6675, computed like `tcp_packets_in_flight` in include/net/tcp.h.
//!
//! In the kernel they are never negative: `tcp_verify_left_out` warns if more packets have left the network than were sent. Counters that
//! add up to less than none are not those of one instant, so they say nothing about packets in flight.

use polars::prelude::*;

use crate::summary::query::number;

/// The columns of the counters.
pub(crate) const COLUMNS: [&str; 4] = ["unacked_pkts", "sacked_pkts", "lost_pkts", "retrans_pkts"];

/// Returns the packets in flight of a sample with these counters: unacked, sacked, lost and retransmitted packets. `None` if one of them is
/// unknown, or if they add up to less than none.
pub fn packets_in_flight(counters: [Option<f64>; 4]) -> Option<f64> {
    let [unacked, sacked, lost, retrans] = counters;
    Some(unacked? - sacked? - lost? + retrans?).filter(|pkts| *pkts >= 0.0)
}

/// As [`packets_in_flight`], for a query.
pub(crate) fn in_flight() -> Expr {
    let [unacked, sacked, lost, retrans] = COLUMNS.map(number);
    let pkts = unacked - sacked - lost + retrans;
    when(pkts.clone().gt_eq(lit(0.0))).then(pkts).otherwise(lit(NULL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_and_rows_have_the_same_packets_in_flight() {
        let counters: [[Option<u32>; 4]; 4] = [
            [Some(9), Some(3), Some(2), Some(1)],
            [Some(5), Some(3), Some(2), Some(0)],
            [Some(5), Some(4), Some(2), Some(0)],
            [Some(9), None, Some(0), Some(0)],
        ];
        let column = |nth: usize| counters.map(|row| row[nth]);
        let rows = df!(
            "unacked_pkts" => column(0),
            "sacked_pkts" => column(1),
            "lost_pkts" => column(2),
            "retrans_pkts" => column(3),
        );
        let made = rows.unwrap().lazy().select([in_flight().alias("pkts")]).collect().unwrap();
        let found: Vec<Option<f64>> = made.column("pkts").unwrap().f64().unwrap().iter().collect();
        assert_eq!(found, [Some(5.0), Some(0.0), None, None]);
        let of_rows = counters.map(|row| packets_in_flight(row.map(|pkts| pkts.map(f64::from))));
        assert_eq!(found, of_rows);
    }
}
