//! Detects clock steps during a trial. Rows carry CLOCK_MONOTONIC, which cannot be set. Captures and pings carry kernel
//! timestamps of CLOCK_REALTIME, and a suspended machine measures nothing.

use std::time::Duration;

use ccbench_proto::event::{ClockStep, Kind};

use super::traffic::RunContext;
use crate::clock::{self, Offset, Offsets};

/// Time between two checks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Smaller steps do not matter: no capture timestamp is more precise.
const RESOLUTION_NS: u64 = 1_000;

/// Checks every second until the trial ends at `end_at_ns`, and once more at the end.
pub async fn watch(context: &RunContext, end_at_ns: u64) {
    let mut last = clock::offsets();
    loop {
        let until_ns = end_at_ns.min(clock::now_ns() + INTERVAL.as_nanos() as u64);
        tokio::select! {
            () = clock::sleep_until(until_ns) => {}
            () = context.cancelled() => return,
        }
        let now = clock::offsets();
        let Steps { set_ns, suspended_ns } = steps(last, now);
        let set = set_ns.map(|ns| {
            (ns, "CLOCK_REALTIME", format!("CLOCK_REALTIME was set {:+.6} s", ns as f64 / 1e9))
        });
        let suspended = suspended_ns.map(|ns| {
            let message = format!("the machine was suspended for {:.6} s", ns as f64 / 1e9);
            (ns, "CLOCK_BOOTTIME", message)
        });
        for (step_ns, clock, message) in set.into_iter().chain(suspended) {
            context.out.event(Kind::ClockStep(ClockStep { step_ns }), clock, message).await;
        }
        last = now;
        if until_ns == end_at_ns {
            return;
        }
    }
}

/// The clock steps between two checks.
#[derive(Debug, Default, PartialEq, Eq)]
struct Steps {
    /// By how much CLOCK_REALTIME was stepped.
    set_ns: Option<i64>,
    /// How long the machine was suspended, by CLOCK_BOOTTIME. CLOCK_REALTIME continues meanwhile.
    suspended_ns: Option<i64>,
}

/// Returns the steps between two readings. Slewing changes all clocks alike, so it does not count.
fn steps(before: Offsets, after: Offsets) -> Steps {
    let suspended_ns = after.boottime.ns - before.boottime.ns;
    let set_ns = after.realtime.ns - before.realtime.ns - suspended_ns;
    let noise_of = |of: fn(&Offsets) -> Offset| {
        of(&before).uncertainty_ns + of(&after).uncertainty_ns + RESOLUTION_NS
    };
    let boottime_noise_ns = noise_of(|offsets| offsets.boottime);
    let realtime_noise_ns = noise_of(|offsets| offsets.realtime) + boottime_noise_ns;
    let above = |step_ns: i64, noise_ns| (step_ns.unsigned_abs() > noise_ns).then_some(step_ns);
    Steps {
        set_ns: above(set_ns, realtime_noise_ns),
        suspended_ns: above(suspended_ns, boottime_noise_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(realtime_ns: i64, boottime_ns: i64, uncertainty_ns: u64) -> Offsets {
        let offset = |ns| Offset { ns, uncertainty_ns };
        Offsets { realtime: offset(realtime_ns), boottime: offset(boottime_ns) }
    }

    #[test]
    fn an_interruption_between_two_reads_is_not_a_step() {
        let before = offsets(1_000_000_000, 0, 100);
        let found = |after| steps(before, after);
        assert_eq!(found(offsets(1_000_000_900, 200, 50)), Steps::default());
        assert_eq!(found(offsets(1_000_040_000, 0, 40_000)), Steps::default());
        let set = |step_ns| Steps { set_ns: Some(step_ns), suspended_ns: None };
        assert_eq!(found(offsets(1_000_040_000, 0, 50)), set(40_000));
        assert_eq!(found(offsets(0, 0, 50)), set(-1_000_000_000));
    }

    #[test]
    fn a_suspended_machine_has_not_been_set() {
        let found = |after| steps(offsets(1_000_000_000, 7, 100), after);
        let slept = Some(5_000_000);
        let suspended = Steps { set_ns: None, suspended_ns: slept };
        assert_eq!(found(offsets(1_005_000_000, 5_000_007, 50)), suspended);
        let both = Steps { set_ns: Some(-5_000_000), suspended_ns: slept };
        assert_eq!(found(offsets(1_000_000_000, 5_000_007, 50)), both);
    }
}
