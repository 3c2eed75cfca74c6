//! Refuses flags that have no effect.

use super::args::{Args, Down, RateOrNone, Up};
use super::error::LinkError;

/// Refuses flags of the up direction with `--dev`, and queues in which no packet waits. `down` and `up`: the options of both directions.
///
/// # Errors
/// A flag has no effect; the error names it.
pub(crate) fn refuse(args: &Args, down: &Down, up: &Down) -> Result<(), LinkError> {
    if args.dev.is_some()
        && let Some(flag) = first_of_up(&args.up)
    {
        let reason = "has no effect with --dev, which has only one direction; leave it out";
        return Err(LinkError::Flag { flag: flag.to_owned(), reason: reason.to_owned() });
    }
    for (key, in_down, in_up) in [
        ("queue", args.down.queue.is_some(), args.up.queue.is_some()),
        ("aqm", args.down.aqm.is_some(), args.up.aqm.is_some()),
    ] {
        let inherited = is_shaped(up) && !in_up;
        if in_down && !is_shaped(down) && !inherited {
            return Err(unused("--", key));
        }
        if in_up && !is_shaped(up) {
            return Err(unused("--up-", key));
        }
    }
    Ok(())
}

fn is_shaped(one: &Down) -> bool {
    matches!(one.rate, Some(RateOrNone::Rate(_))) || one.trace.is_some()
}

fn unused(prefix: &str, key: &str) -> LinkError {
    let reason =
        format!("has no effect without a rate; add {prefix}rate or {prefix}trace, or leave it out");
    LinkError::Flag { flag: format!("{prefix}{key}"), reason }
}

/// Returns the first flag of the up direction that is set.
fn first_of_up(up: &Up) -> Option<&'static str> {
    let Up {
        rate,
        delay,
        queue,
        aqm,
        trace,
        on_end,
        floor,
        loss,
        burst_loss,
        jitter,
        duplicate,
        reorder,
        corrupt,
        ecn_rewrite,
        policer,
        ack_filter,
        ack_aggregation,
        slot,
        tbf,
    } = up;
    let flags = [
        ("--up-rate", rate.is_some()),
        ("--up-delay", delay.is_some()),
        ("--up-queue", queue.is_some()),
        ("--up-aqm", aqm.is_some()),
        ("--up-trace", trace.is_some()),
        ("--up-on-end", on_end.is_some()),
        ("--up-floor", floor.is_some()),
        ("--up-loss", loss.is_some()),
        ("--up-burst-loss", burst_loss.is_some()),
        ("--up-jitter", jitter.is_some()),
        ("--up-duplicate", duplicate.is_some()),
        ("--up-reorder", reorder.is_some()),
        ("--up-corrupt", corrupt.is_some()),
        ("--up-ecn-rewrite", ecn_rewrite.is_some()),
        ("--up-policer", policer.is_some()),
        ("--up-ack-filter", ack_filter.is_some()),
        ("--up-ack-aggregation", ack_aggregation.is_some()),
        ("--up-slot", slot.is_some()),
        ("--up-tbf", tbf.is_some()),
    ];
    flags.into_iter().find(|(_, is_set)| *is_set).map(|(flag, _)| flag)
}
