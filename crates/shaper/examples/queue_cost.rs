//! Prints the CPU time per packet of each queue.

fn main() {
    for cost in ccbench_shaper::queue_costs() {
        println!(
            "{:12} {:5} standing {:5} flows: {:6.1} ns",
            cost.queue, cost.standing_packets, cost.flows, cost.packet_ns
        );
    }
}
