//! Impairments of links: combinations that are impossible or have no effect.

use crate::plan::{Backend, BurstLoss, Distribution, Jitter, Link};
use crate::units::{Bytes, Ppm};

use super::limits::MAX_DELAY;
use super::problems::Problems;

/// Most bytes of link-layer overhead per IP packet.
const MAX_OVERHEAD: Bytes = Bytes::new(1000);
/// Most bytes of rows about packets.
const MAX_PACKET_LOG: Bytes = Bytes::new(1 << 32);
/// Bytes per packet that kernel qdiscs count in addition to the IP packet.
const KERNEL_OVERHEAD: Bytes = crate::resolve::ETHERNET_BYTES;
/// Everything.
const WHOLE_PPM: u32 = 1_000_000;

/// Rules about one link. `written` is the link as its author wrote it, `link` with its preset.
pub(super) fn check(name: &str, written: &Link, link: &Link, problems: &mut Problems) {
    let delay: &[&[&str]] = &[&["links", name, "delay"], &["links", name, "path"], &["path"]];
    if let Some(jitter) = &link.jitter {
        self::jitter(name, jitter, link, delay, problems);
    }
    if let Some(burst) = &link.burst_loss {
        burst_loss(name, burst, problems);
    }
    for (key, share) in [("duplicate", link.duplicate), ("corrupt", link.corrupt)] {
        whole(&["links", name, key], share, problems);
    }
    let delayed = link.delay.is_some_and(|delay| delay.get() > 0) || link.jitter.is_some();
    if let Some(reorder) = &link.reorder {
        whole(&["links", name, "reorder", "share"], Some(reorder.share), problems);
        if !delayed {
            let why = "has nothing to overtake: the link has no `delay` that a packet could skip; add one";
            problems.error_from(&["links", name, "reorder"], delay, why);
        }
    }
    if link.overhead.is_some_and(|bytes| bytes > MAX_OVERHEAD) {
        let why = format!("must be {MAX_OVERHEAD} or less");
        problems.error(&["links", name, "overhead"], why);
    }
    if link.packet_log.is_some_and(|log| log.get() == 0 || log > MAX_PACKET_LOG) {
        let why = "must be from 1B to 4GiB; leave it out to write nothing down";
        problems.error(&["links", name, "packet_log"], why);
    }
    if written.backend == Backend::Kernel {
        let backend: &[&[&str]] = &[&["links", name, "backend"]];
        if link.packet_log.is_some() {
            let why = "the kernel back end sees no packets; leave `backend` out, or this";
            problems.error_from(&["links", name, "packet_log"], backend, why);
        }
        if link.gso.is_some() {
            let why = "belongs to userspace links (kernel links have the node's `offloads`); leave `backend` out, or this";
            problems.error_from(&["links", name, "gso"], backend, why);
        }
        if link.overhead.is_some_and(|bytes| bytes != KERNEL_OVERHEAD) {
            let why = format!(
                "the kernel's qdiscs count {KERNEL_OVERHEAD} here; leave `backend` out, or this"
            );
            problems.error_from(&["links", name, "overhead"], backend, why);
        }
    }
}

fn whole(path: &[&str], share: Option<Ppm>, problems: &mut Problems) {
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
                "{} is more than the link's delay of {delay}: packets would have to leave before they came; \
                 raise `delay`, or take `distribution = \"pareto\"`, which only adds",
                jitter.spread
            ),
        );
    }
    whole(&at("correlation"), jitter.correlation, problems);
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
