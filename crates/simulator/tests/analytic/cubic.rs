//! Compares CUBIC's window between two losses (RFC 9438, section 4) with the formulas at each acknowledgement.

use super::{AckRow, CWR, LOSS, OPEN, points, sender_rows};

const PLAN: &str = include_str!("../../../../plans/conformance/analytic/cubic-window.toml");

/// From RFC 9438, sections 5 and 4.6.
const C: f64 = 0.4;
const BETA: f64 = 0.7;
/// Growth of W_est per window of acknowledgements, packets (section 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// The target is computed again after at most 32 ms (HZ/32 jiffies, `bictcp_update()`), at the next acknowledgement. There is one per 1.3
/// ms.
const UPDATE_S: f64 = 0.034;
/// The target is rounded to a packet and the window is a whole number. The granularity of times (jiffies of 1 ms, 1/1024 s), that of C
/// (410/1024) and the second-order term of the lag, 3 C K tau^2, together make less than one packet.
const CUBIC_SLACK_PKTS: f64 = 3.0;
/// W_est is a whole number in the kernel. Half a packet is for an acknowledgement of two packets at each end of an increment.
const RENO_SLACK_PKTS: f64 = 1.5;

/// The rows between two losses.
struct Epoch<'a> {
    /// The window at the plateau, and the window at the beginning.
    w_max: f64,
    w_0: f64,
    /// Whether W_max is below the last window because of fast convergence (section 4.7).
    has_converged: bool,
    rows: &'a [AckRow],
}

/// Returns all complete epochs after the first loss.
fn epochs(rows: &[AckRow]) -> Vec<Epoch<'_>> {
    let (mut found, mut w_max, mut at) = (Vec::new(), 0.0, 0);
    let next = |from: usize, is_reduced: bool| {
        let found = rows[from..].iter().position(|row| (row.ca_state >= CWR) == is_reduced);
        found.map(|distance| from + distance)
    };
    while let Some(loss) = next(at, true) {
        let Some(open) = next(loss, false) else { break };
        let Some(end) = next(open, true) else { break };
        at = end;
        if rows[loss..open].iter().any(|row| row.ca_state == LOSS) {
            // A timeout clears W_max (`bictcp_reset()`).
            w_max = 0.0;
            continue;
        }
        let before = f64::from(rows[loss - 1].cwnd_pkts);
        let has_converged = before < w_max;
        w_max = if has_converged { before * (1.0 + BETA) / 2.0 } else { before };
        let w_0 = f64::from(rows[loss].ssthresh_pkts);
        found.push(Epoch { w_max, w_0, has_converged, rows: &rows[open..end] });
    }
    found
}

/// Numbers of rows of an epoch: in the state Open, with CUBIC's window above Reno's, and out of bounds.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Compared {
    rows: u32,
    cubic: u32,
    outside: u32,
}

/// Compares each row of an epoch with the formulas. `c` may differ from C.
///
/// The kernel aims at W(t + R), where R is the lowest RTT, and gets there within a round trip of tau. So the window lags behind the target
/// by tau, and by the time until the target is computed. It never exceeds the target, which does not fall within an epoch.
fn compare(epoch: &Epoch<'_>, c: f64) -> Compared {
    let Epoch { w_max, w_0, rows, .. } = *epoch;
    let k_s = ((w_max - w_0) / c).cbrt();
    let cubic = |t_s: f64| c * (t_s - k_s).powi(3) + w_max;
    let least_s = f64::from(rows[0].min_rtt_us) / 1e6;
    let lag_s = rows.iter().map(|row| f64::from(row.srtt_us) / 1e6).fold(0.0, f64::max) + UPDATE_S;
    // The kernel's growth per packet is 8/15 of 1/cwnd, with a quotient that is rounded down: up to this much faster.
    let faster = (w_0 / ALPHA) / (w_0 * 1.875 - 0.875);
    // (t, W_est) of each row.
    let mut reno: Vec<(f64, f64)> = Vec::with_capacity(rows.len());
    let (mut compared, mut earlier) = (Compared::default(), 0);
    for (at, row) in rows.iter().enumerate() {
        let t_s = row.at_s - rows[0].at_s;
        let w_est = match at.checked_sub(1) {
            None => w_0,
            Some(before) => {
                let newly_pkts = row.delivered_pkts - rows[before].delivered_pkts;
                reno[before].1 + ALPHA * f64::from(newly_pkts) / f64::from(rows[before].cwnd_pkts)
            }
        };
        reno.push((t_s, w_est));
        while reno[earlier + 1..].first().is_some_and(|(at_s, _)| *at_s <= t_s - lag_s) {
            earlier += 1;
        }
        if row.ca_state != OPEN {
            continue;
        }
        let low = (cubic(t_s + least_s - lag_s) - CUBIC_SLACK_PKTS)
            .max(reno[earlier].1 - RENO_SLACK_PKTS);
        let high = (cubic(t_s + least_s) + CUBIC_SLACK_PKTS)
            .max(w_0 + faster * (w_est - w_0) + RENO_SLACK_PKTS);
        compared.rows += 1;
        compared.cubic += u32::from(cubic(t_s) > w_est);
        compared.outside += u32::from(!(low..=high).contains(&f64::from(row.cwnd_pkts)));
    }
    compared
}

/// Returns the sum over all epochs.
fn compare_all(epochs: &[Epoch<'_>], c: f64) -> Compared {
    epochs.iter().map(|epoch| compare(epoch, c)).fold(Compared::default(), |sum, one| Compared {
        rows: sum.rows + one.rows,
        cubic: sum.cubic + one.cubic,
        outside: sum.outside + one.outside,
    })
}

#[test]
fn the_window_follows_the_formulas_between_losses() {
    for (levels, point) in points(PLAN) {
        let rows = sender_rows(&point, 1);
        let epochs = epochs(&rows);
        let found = compare_all(&epochs, C);
        assert_eq!(found.outside, 0, "{levels:?}: {found:?}");
        let cubic_share = f64::from(found.cubic) / f64::from(found.rows);
        match levels[0].as_str() {
            "cubic" => {
                assert!(cubic_share > 0.9, "{found:?}");
                // A loss above the plateau, where the window grows fast, is followed by a loss below the plateau.
                let converged = epochs.iter().filter(|epoch| epoch.has_converged).count();
                let plain = epochs.len() - converged;
                assert!(converged >= 2 && plain >= 2, "{converged} and {plain} epochs");
                // The bounds are narrow enough to reject a different C.
                for other in [0.3, 0.5] {
                    assert!(compare_all(&epochs, other).outside > 1000, "C = {other}");
                }
            }
            "reno_friendly" => {
                assert!(cubic_share < 0.1 && epochs.len() >= 20, "{} {found:?}", epochs.len());
            }
            other => panic!("{other}"),
        }
    }
}
