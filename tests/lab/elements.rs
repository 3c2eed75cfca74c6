//! Compares elements of ccbench's links with the kernel's, as `judge.rs` compares queues. The queues show that the engines agree;
//! here, one engine has more seeds.

use crate::judge::{
    ALL, Comparison, LOST_ONE, LOST_TWO, Measure, PACKET_US, SRTT_ONE, SRTT_TWO, SUM, UML,
    assert_all, compare,
};

/// Time of an acknowledgement with a timestamp on the line of 150 kbit/s.
const ACK_US: f64 = 66.0 * 8.0 / 0.15;

fn alike(line_us: f64, levels: &[&str], measures: &[Measure]) {
    let elements = Comparison {
        plan: "elements.toml",
        factor: "element",
        seeds: 10,
        line_us,
        standard_errors: 3.92,
    };
    assert_all(&compare(&elements, &[UML], levels, measures));
}

/// Returns the measure with this share of the kernel's mean as tolerance.
fn within(share: f64, (scope, subject, metric, stat, _, own): Measure) -> Measure {
    (scope, subject, metric, stat, share, own)
}

/// In userspace, too, packets leave when there are tokens for them.
#[test]
fn token_buckets_and_slots_are_the_kernels() {
    alike(0.0, &["tbf", "slot"], &ALL);
}

/// Chance determines which packets find an empty bucket, and the losses determine how long the link stays idle.
#[test]
fn policer_is_the_kernels() {
    let measures = [within(0.04, SUM), SRTT_ONE, SRTT_TWO, LOST_ONE, LOST_TWO];
    alike(PACKET_US / 10.0, &["policer"], &measures);
}

#[test]
fn filter_of_acknowledgements_is_cakes() {
    alike(PACKET_US + ACK_US, &["ack_filter"], &ALL);
}

#[test]
fn late_packets_and_other_paths_are_netems() {
    alike(PACKET_US, &["reorder_late", "path_switch"], &ALL);
}

#[test]
fn keys_of_queues_are_the_kernels() {
    let levels = [
        "codel_limit",
        "pie_ecn",
        "red_nodrop",
        "fq_quantum",
        "fq_codel_selector",
        "dualpi2_packets",
    ];
    alike(PACKET_US, &levels, &ALL);
}
