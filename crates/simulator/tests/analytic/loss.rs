//! Tests the window reduction after a loss or mark: Reno (RFC 5681), CUBIC (RFC 9438), DCTCP (RFC 8257).

use super::{AckRow, CWR, RECOVERY, points, sender_rows};

const PLAN: &str = include_str!("../../../../plans/conformance/analytic/loss-response.toml");

/// CUBIC's beta in the kernel: 0.7 in units of 1/1024, rounded up.
const CUBIC_BETA: f64 = 717.0 / 1024.0;
/// DCTCP's estimation gain (RFC 8257, section 4).
const G: f64 = 1.0 / 16.0;
/// Minimum slow start threshold, packets.
const LEAST_PKTS: f64 = 2.0;

/// A reduction of the window.
#[derive(Debug)]
struct Reduction {
    /// Index of the row after which it happened.
    row: usize,
    by_mark: bool,
    cwnd_pkts: f64,
    ssthresh_pkts: f64,
}

/// Returns all reductions. One may follow another in the acknowledgement that ends it, at which the window has become the threshold.
fn reductions(rows: &[AckRow]) -> Vec<Reduction> {
    let mut found = Vec::new();
    for row in 1..rows.len() {
        let (before, after) = (&rows[row - 1], &rows[row]);
        if !matches!(after.ca_state, CWR | RECOVERY) {
            continue;
        }
        let begins = before.ca_state < CWR;
        let follows =
            before.ca_state == after.ca_state && before.ssthresh_pkts != after.ssthresh_pkts;
        if begins || follows {
            let cwnd_pkts = if begins { before.cwnd_pkts } else { before.ssthresh_pkts };
            found.push(Reduction {
                row,
                by_mark: after.ca_state == CWR,
                cwnd_pkts: f64::from(cwnd_pkts),
                ssthresh_pkts: f64::from(after.ssthresh_pkts),
            });
        }
    }
    found
}

/// Returns DCTCP's alpha after each row, computed only from the counters: once per window of data, alpha = (1 - g) alpha + g F, where F is
/// the share of marked packets (RFC 8257, section 3.3). It begins at 1.
fn alphas(rows: &[AckRow]) -> Vec<f64> {
    let (mut alpha, mut window) = (1.0, rows[0]);
    let after = |row: &AckRow| {
        if row.acked_bytes > window.next_bytes {
            let marked = row.delivered_ce_pkts - window.delivered_ce_pkts;
            let acked = row.delivered_pkts - window.delivered_pkts;
            let share = (f64::from(marked) / f64::from(acked)).min(1.0);
            alpha = (1.0 - G) * alpha + G * share;
            window = *row;
        }
        alpha
    };
    rows.iter().map(after).collect()
}

/// Returns the minimum and maximum share of the window that remains: the threshold is rounded down.
fn left(sender: &str, by_mark: bool, alpha: f64) -> (f64, f64) {
    match (sender, by_mark) {
        ("cubic", _) => (0.7, CUBIC_BETA),
        ("dctcp", true) => (1.0 - alpha / 2.0, 1.0 - alpha / 2.0),
        _ => (0.5, 0.5),
    }
}

#[test]
fn losses_and_marks_leave_the_share_of_the_window_that_the_rfcs_say() {
    for (levels, point) in points(PLAN) {
        let [sender, signal] = &levels[..] else { panic!("{levels:?}") };
        let rows = sender_rows(&point, 1);
        let (found, alphas) = (reductions(&rows), alphas(&rows));
        assert!(found.len() >= 10, "{levels:?}: {} reductions", found.len());
        let (mut least_alpha, mut most_alpha) = (1.0_f64, 0.0_f64);
        for reduction in &found {
            assert_eq!(reduction.by_mark, signal == "mark", "{levels:?}: {reduction:?}");
            let alpha = alphas[reduction.row];
            (least_alpha, most_alpha) = (least_alpha.min(alpha), most_alpha.max(alpha));
            let (least, most) = left(sender, reduction.by_mark, alpha);
            let Reduction { cwnd_pkts, ssthresh_pkts, .. } = *reduction;
            // DCTCP rounds the reduction down and thus its threshold up. Its alpha has 24 bits.
            let (under, over) = if sender == "dctcp" { (0.51, 1.01) } else { (1.0, 0.0) };
            let low = (least * cwnd_pkts - under).max(LEAST_PKTS);
            let high = (most * cwnd_pkts + over).max(LEAST_PKTS);
            assert!((low..=high).contains(&ssthresh_pkts), "{levels:?}: {alpha} {reduction:?}");
        }
        if sender == "dctcp" && signal == "mark" {
            assert!(most_alpha - least_alpha > 0.05, "alpha stays: {least_alpha} to {most_alpha}");
        }
    }
}

/// When the reduction ends, the window is the threshold. The acknowledgement that ends it may let it grow by one packet.
#[test]
fn a_reduction_ends_at_the_threshold() {
    for (levels, point) in points(PLAN).into_iter().filter(|(levels, _)| levels[0] != "dctcp") {
        let rows = sender_rows(&point, 1);
        let mut ended = 0;
        for two in rows.windows(2) {
            let (before, after) = (&two[0], &two[1]);
            if matches!(before.ca_state, CWR | RECOVERY) && after.ca_state < CWR {
                let grown_pkts = after.cwnd_pkts.checked_sub(after.ssthresh_pkts);
                assert!(grown_pkts.is_some_and(|pkts| pkts <= 1), "{levels:?}: {after:?}");
                ended += 1;
            }
        }
        assert!(ended >= 10, "{levels:?}: {ended}");
    }
}
