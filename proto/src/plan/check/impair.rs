//! Impairments of links: combinations that are impossible or have no effect.

use crate::plan::{
    AckAggregation, Backend, BurstLoss, Distribution, Ecn, EcnRewrite, Jitter, Link, Policer, Slot,
    Tbf,
};
use crate::units::{Bytes, FRAME_BYTES, Micros, Packets, Ppm, Rate};

use super::limits::{MAX_DELAY, MAX_RATE};
use super::problems::Problems;

/// Most bytes of link-layer overhead per IP packet.
const MAX_OVERHEAD: Bytes = Bytes::new(1000);
/// Maximum size of a packet log, in bytes of rows.
const MAX_PACKET_LOG: Bytes = Bytes::new(1 << 32);
/// Bytes per packet that the kernel's qdiscs count in addition to the IP packet.
const KERNEL_OVERHEAD: Bytes = crate::resolve::ETHERNET_BYTES;
/// Smallest and largest token bucket: a packet larger than the bucket would never pass.
const MIN_BURST: Bytes = Bytes::new(FRAME_BYTES);
pub(super) const MAX_BURST: Bytes = Bytes::new(1 << 30);
/// Shortest time from one slot to the next.
const MIN_SLOT: Micros = Micros::new(10);
/// Fewest acknowledgements in an aggregate.
const MIN_AGGREGATE: Packets = Packets::new(2);
/// A share of 100 %.
const WHOLE_PPM: u32 = 1_000_000;

/// Checks one link. `written` is the link as its author wrote it, `link` includes its preset.
pub(super) fn check(name: &str, written: &Link, link: &Link, problems: &mut Problems) {
    let delay: &[&[&str]] = &[&["links", name, "delay"], &["links", name, "path"], &["path"]];
    if let Some(jitter) = &link.jitter {
        self::jitter(name, jitter, link, delay, problems);
    }
    if let Some(burst) = &link.burst_loss {
        burst_loss(name, burst, problems);
    }
    for (key, share) in [("duplicate", link.duplicate), ("corrupt", link.corrupt)] {
        check_share(&["links", name, key], share, problems);
    }
    let delayed = link.delay.is_some_and(|delay| delay.get() > 0) || link.jitter.is_some();
    if let Some(reorder) = &link.reorder {
        check_share(&["links", name, "reorder", "share"], Some(reorder.share), problems);
        if reorder.late.is_some_and(|late| late.get() == 0 || late > MAX_DELAY) {
            let why = format!("must be more than zero, and {MAX_DELAY} or less");
            problems.error(&["links", name, "reorder", "late"], why);
        }
        if !delayed && reorder.late.is_none() {
            let why = "has nothing to overtake: the link has no `delay` that a packet could skip; add one";
            problems.error_from(&["links", name, "reorder"], delay, why);
        }
    }
    elements(name, link, problems);
    if link.overhead.is_some_and(|bytes| bytes > MAX_OVERHEAD) {
        let why = format!("must be {MAX_OVERHEAD} or less");
        problems.error(&["links", name, "overhead"], why);
    }
    if link.packet_log.is_some_and(|log| log.get() == 0 || log > MAX_PACKET_LOG) {
        let why = "must be from 1B to 4GiB; leave it out to record no packets";
        problems.error(&["links", name, "packet_log"], why);
    }
    if written.backend == Backend::Kernel {
        kernel_backend(name, link, problems);
    }
}

/// Checks the elements of a link, each by itself.
fn elements(name: &str, link: &Link, problems: &mut Problems) {
    if let Some(rewrite) = &link.ecn_rewrite {
        ecn_rewrite(name, rewrite, problems);
    }
    if let Some(policer) = &link.policer {
        self::policer(name, policer, link.overhead, problems);
    }
    if let Some(aggregation) = &link.ack_aggregation {
        ack_aggregation(name, aggregation, problems);
    }
    if let Some(slot) = &link.slot {
        self::slot(name, slot, problems);
    }
    if let Some(tbf) = &link.tbf {
        self::tbf(name, tbf, link.rate, problems);
    }
    at_the_line(name, link, problems);
}

/// Reports the keys that `backend = "kernel"` excludes.
fn kernel_backend(name: &str, link: &Link, problems: &mut Problems) {
    let backend: &[&[&str]] = &[&["links", name, "backend"]];
    let keys = ["backend", "rate", "jitter", "queue", "shaper", "tbf", "path"];
    let keys = keys.map(|key| ["links", name, key]);
    let mut reads: Vec<&[&str]> = keys.iter().map(<[&str; 3]>::as_slice).collect();
    reads.push(&["path"]);
    for feature in link.unsupported_by_qdiscs(link.queue.as_ref(), !link.classes.is_empty()) {
        let why = format!(
            "the kernel's qdiscs cannot do {}; leave out `backend` or this key",
            feature.description
        );
        problems.error_from(&[&["links", name][..], feature.key].concat(), &reads, why);
    }
    if link.packet_log.is_some() {
        let why = "the kernel backend sees no packets; leave out `backend` or this key";
        problems.error_from(&["links", name, "packet_log"], backend, why);
    }
    if link.gso.is_some() {
        let why = "belongs to userspace links (kernel links have the node's `offloads`); leave out `backend` or this key";
        problems.error_from(&["links", name, "gso"], backend, why);
    }
    if link.overhead.is_some_and(|bytes| bytes != KERNEL_OVERHEAD) {
        let why = format!(
            "the kernel's qdiscs always count an overhead of {KERNEL_OVERHEAD}; leave out `backend` or this key"
        );
        problems.error_from(&["links", name, "overhead"], backend, why);
    }
}

fn check_share(path: &[&str], share: Option<Ppm>, problems: &mut Problems) {
    if share.is_some_and(|share| share.get() == WHOLE_PPM) {
        problems.error(path, "is 100%: every packet; write less, like \"1%\"");
    }
}

fn jitter(
    name: &str,
    jitter: &Jitter,
    link: &Link,
    delay_reads: &[&[&str]],
    problems: &mut Problems,
) {
    let path = ["links", name, "jitter"];
    let spread = ["links", name, "jitter", "spread"];
    let at = |key| ["links", name, "jitter", key];
    let delay = link.delay.unwrap_or_default();
    if jitter.spread.get() == 0 || jitter.spread > MAX_DELAY {
        problems.error(&spread, format!("must be more than zero, and {MAX_DELAY} or less"));
    } else if jitter.distribution != Distribution::Pareto && jitter.spread > delay {
        let reads: Vec<&[&str]> =
            delay_reads.iter().copied().chain([path.as_slice(), &spread]).collect();
        problems.error_from(
            &spread,
            &reads,
            format!(
                "{} is more than the link's delay of {delay}: packets would have to leave before they arrive; raise \
                 `delay`, or use `distribution = \"pareto\"`, which only adds delay",
                jitter.spread
            ),
        );
    }
    check_share(&at("correlation"), jitter.correlation, problems);
    if jitter.hold.is_some_and(|hold| hold.get() == 0 || hold > MAX_DELAY) {
        problems.error(&at("hold"), format!("must be more than zero, and {MAX_DELAY} or less"));
    }
    let keeps_order = !jitter.reorder && jitter.hold.is_none();
    let is_possible = jitter.distribution == Distribution::Pareto || jitter.spread <= delay;
    let is_partial = jitter.correlation.is_none_or(|share| share.get() < WHOLE_PPM);
    if keeps_order && is_possible && is_partial && jitter.spread.get() > 0 {
        let why = "packets that follow each other within `spread` keep their order, so each waits for the latest before it: \
                   under load the mean delay is longer than `delay` and varies less than `spread`; write `hold = \
                   \"10ms\"`, so that all packets within that time share a draw, or `reorder = true`";
        problems.warning_from(&path, &[&path, &at("reorder"), &at("hold")], why);
    }
}

fn burst_loss(name: &str, burst: &BurstLoss, problems: &mut Problems) {
    let at = |key| ["links", name, "burst_loss", key];
    if burst.leave.get() == 0 {
        let why = "is zero: the first burst would never end; its inverse is the mean burst in packets, like \"25%\"";
        problems.error(&at("leave"), why);
    }
    if burst.enter.get() == 0 {
        let why =
            "is zero: there would be no burst; write more, like \"1%\", or leave `burst_loss` out";
        problems.error(&at("enter"), why);
    }
    if burst.good.is_some_and(|good| good.get() == WHOLE_PPM) {
        problems.error(&at("good"), "is 100%: no packet would ever get through; write less");
    }
}

fn ecn_rewrite(name: &str, rewrite: &EcnRewrite, problems: &mut Problems) {
    let at = |key| ["links", name, "ecn_rewrite", key];
    let fields = [("ect1", Ecn::Ect1), ("ect0", Ecn::Ect0), ("ce", Ecn::Ce)];
    if fields.iter().all(|(_, ecn)| rewrite.of(*ecn).is_none()) {
        let why = "rewrites nothing; write what a field becomes, like { ect1 = \"ect0\" } or { ect0 = \"not-ect\" }";
        problems.error(&["links", name, "ecn_rewrite"], why);
    }
    for (key, ecn) in fields {
        match rewrite.of(ecn) {
            Some(new) if new == ecn => problems.error(&at(key), "changes nothing; leave it out"),
            Some(Ecn::Ce) => {
                let why = "would create marks that no queue made; to mark every packet, use a queue with `ce_threshold = \"0us\"`";
                problems.error(&at(key), why);
            }
            Some(_) | None => {}
        }
    }
    if rewrite.share.is_some_and(|share| share.get() == 0) {
        let why = "is zero: no packet would be rewritten; write more, or leave `ecn_rewrite` out";
        problems.error(&at("share"), why);
    }
}

fn policer(name: &str, policer: &Policer, overhead: Option<Bytes>, problems: &mut Problems) {
    let at = |key| ["links", name, "policer", key];
    if policer.rate.bits_per_sec() == 0 || policer.rate > MAX_RATE {
        problems.error(&at("rate"), format!("must be more than zero, and {MAX_RATE} or less"));
    }
    bucket(&at("burst"), policer.burst, problems);
    let overhead = overhead.unwrap_or(KERNEL_OVERHEAD).get();
    let frame = Bytes::new((FRAME_BYTES - KERNEL_OVERHEAD.get()).saturating_add(overhead));
    if (MIN_BURST..frame).contains(&policer.burst) {
        let why = format!(
            "is less than {frame}, a full frame with the link's `overhead`, so none would pass"
        );
        let reads: [&[&str]; 2] = [&at("burst"), &["links", name, "overhead"]];
        problems.error_from(&at("burst"), &reads, why);
    }
}

/// Checks the size of a token bucket.
fn bucket(path: &[&str], bytes: Bytes, problems: &mut Problems) {
    if bytes < MIN_BURST || bytes > MAX_BURST {
        let why = format!("must be from {MIN_BURST}, a full frame, to {MAX_BURST}");
        problems.error(path, why);
    }
}

fn ack_aggregation(name: &str, aggregation: &AckAggregation, problems: &mut Problems) {
    let at = |key| ["links", name, "ack_aggregation", key];
    if aggregation.hold.get() == 0 || aggregation.hold > MAX_DELAY {
        problems.error(&at("hold"), format!("must be more than zero, and {MAX_DELAY} or less"));
    }
    if aggregation.packets.is_some_and(|packets| packets < MIN_AGGREGATE) {
        let why = format!("must be {MIN_AGGREGATE} or more: fewer are never held");
        problems.error(&at("packets"), why);
    }
}

fn slot(name: &str, slot: &Slot, problems: &mut Problems) {
    let at = |key| ["links", name, "slot", key];
    if slot.every < MIN_SLOT || slot.every > MAX_DELAY {
        problems.error(&at("every"), format!("must be from {MIN_SLOT} to {MAX_DELAY}"));
    }
    if slot.max.is_some_and(|max| max < slot.every || max > MAX_DELAY) {
        let why = format!("must be from `every`, {}, to {MAX_DELAY}", slot.every);
        problems.error_from(&at("max"), &[&at("max"), &at("every")], why);
    }
    if slot.packets.is_some_and(|packets| packets.get() == 0) {
        problems.error(&at("packets"), "is zero: no packet would leave; write more");
    }
    if slot.bytes.is_some_and(|bytes| bytes.get() == 0) {
        problems.error(&at("bytes"), "is zero: no packet would leave; write more");
    }
}

fn tbf(name: &str, tbf: &Tbf, rate: Option<Rate>, problems: &mut Problems) {
    let at = |key| ["links", name, "tbf", key];
    bucket(&at("burst"), tbf.burst, problems);
    if let (Some(peak), Some(rate)) = (tbf.peakrate, rate)
        && (peak <= rate || peak > MAX_RATE)
    {
        let why = format!("must be more than the link's rate of {rate}, and {MAX_RATE} or less");
        let reads: &[&[&str]] = &[&at("peakrate"), &["links", name, "rate"]];
        problems.error_from(&at("peakrate"), reads, why);
    }
    if let Some(mtu) = tbf.mtu {
        bucket(&at("mtu"), mtu, problems);
        if tbf.peakrate.is_none() {
            let why = "sets the bucket of `peakrate`, which is missing; add `peakrate`, or leave this out";
            problems.error_from(&at("mtu"), &[&at("mtu"), &at("peakrate")], why);
        }
    }
}

/// Checks the requirements of keys about the line and the queue in front of it.
fn at_the_line(name: &str, link: &Link, problems: &mut Problems) {
    let rates: &[&[&str]] =
        &[&["links", name, "rate"], &["links", name, "trace"], &["links", name, "path"], &["path"]];
    let classes: &[&[&str]] = &[&["links", name, "classes"]];
    let is_limited = link.rate.is_some() || link.trace.is_some();
    if link.slot.is_some() && !is_limited {
        let why = "has no effect on a link without a rate; give the link a `rate` or a `trace`";
        problems.error_from(&["links", name, "slot"], rates, why);
    }
    if link.ack_filter && !is_limited && link.ack_aggregation.is_none() {
        let why = "has no effect: packets wait only on a link with a `rate`, a `trace` or an `ack_aggregation`; add one of them";
        let aggregation: &[&str] = &["links", name, "ack_aggregation"];
        problems.error_from(&["links", name, "ack_filter"], &[rates, &[aggregation]].concat(), why);
    }
    if link.tbf.is_some() && (link.rate.is_none() || link.trace.is_some()) {
        let why = "needs a constant `rate`, at which its bucket fills; write a `rate` instead of a `trace`";
        problems.error_from(&["links", name, "tbf"], rates, why);
    }
    let keys = [
        ("slot", link.slot.is_some()),
        ("tbf", link.tbf.is_some()),
        ("ack_filter", link.ack_filter),
    ];
    for (key, _) in keys.into_iter().filter(|(_, is_set)| *is_set && !link.classes.is_empty()) {
        let why = "cannot be combined with `classes`; leave one of them out";
        problems.error_from(&["links", name, key], classes, why);
    }
}
