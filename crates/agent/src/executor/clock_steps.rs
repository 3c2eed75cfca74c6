//! Notices when a clock of the node jumps during a trial. Rows have times of CLOCK_MONOTONIC, which cannot be set, but
//! captures and pings have the kernel's timestamps of CLOCK_REALTIME, and a suspended machine measures nothing.

use std::time::Duration;

use ccbench_proto::event::{ClockStep, Kind};

use super::traffic::Stage;
use crate::clock::{self, Lead, Leads};

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// The kernel rounds each clock to nanoseconds by itself.
const ROUNDING_NS: u64 = 1_000;

/// Looks until the trial's end, at `end_at_ns`, and once more then.
pub async fn watch(stage: &Stage, end_at_ns: u64) {
    let mut last = clock::leads();
    loop {
        let until_ns = end_at_ns.min(clock::now_ns() + INTERVAL.as_nanos() as u64);
        tokio::select! {
            () = clock::sleep_until(until_ns) => {}
            () = stage.cancelled() => return,
        }
        let now = clock::leads();
        for (name, step_ns) in steps(last, now) {
            let message = format!("{name} was set {:+.6} s", step_ns as f64 / 1e9);
            stage.out.event(Kind::ClockStep(ClockStep { step_ns }), name, message).await;
        }
        last = now;
        if until_ns == end_at_ns {
            return;
        }
    }
}

/// Which clocks jumped between two looks, and by how much. Slewing changes all clocks alike.
fn steps(before: Leads, after: Leads) -> impl Iterator<Item = (&'static str, i64)> {
    let step = |before: Lead, after: Lead| {
        let step_ns = after.ns - before.ns;
        let noise_ns = before.uncertainty_ns + after.uncertainty_ns + ROUNDING_NS;
        (step_ns.unsigned_abs() > noise_ns).then_some(step_ns)
    };
    let realtime = step(before.realtime, after.realtime);
    let boottime = step(before.boottime, after.boottime);
    let named = |name| move |step_ns| (name, step_ns);
    realtime.map(named("CLOCK_REALTIME")).into_iter().chain(boottime.map(named("CLOCK_BOOTTIME")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leads(realtime_ns: i64, boottime_ns: i64, uncertainty_ns: u64) -> Leads {
        let lead = |ns| Lead { ns, uncertainty_ns };
        Leads { realtime: lead(realtime_ns), boottime: lead(boottime_ns) }
    }

    #[test]
    fn a_step_is_told_from_the_time_between_two_reads() {
        let before = leads(1_000_000_000, 0, 100);
        let found = |after| steps(before, after).collect::<Vec<_>>();
        assert_eq!(found(leads(1_000_000_900, 200, 50)), []);
        assert_eq!(found(leads(1_000_040_000, 0, 40_000)), [], "interrupted between the reads");
        assert_eq!(found(leads(1_000_040_000, 0, 50)), [("CLOCK_REALTIME", 40_000)]);
        assert_eq!(found(leads(0, 0, 50)), [("CLOCK_REALTIME", -1_000_000_000)]);
        assert_eq!(found(leads(1_000_000_000, 5_000_000, 50)), [("CLOCK_BOOTTIME", 5_000_000)]);
    }

    #[test]
    fn the_clocks_of_this_machine_keep_their_distance() {
        assert_eq!(steps(clock::leads(), clock::leads()).collect::<Vec<_>>(), []);
    }
}
