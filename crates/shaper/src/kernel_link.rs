//! A [`Link`] that uses the kernel's qdiscs: sets them up, changes rates, reads counters, and restores the former root qdisc.

use std::ops::Range;

use ccbench_proto::plan::{self, Queue};
use ccbench_proto::resolve::LinkConfig;
use ccbench_proto::trace::{Cursor, Replay};
use ccbench_proto::units::{Micros, Ppm, Rate};
use ccbench_proto::wire;

use crate::discipline;
use crate::netlink::{self, NetlinkError, Socket};
use crate::qdisc::{BadQueue, ROOT, fifo_limit, handle_text, police};
use crate::saved::{self, SavedRoot};
use crate::{Link, ShaperError, probe, replay, unsupported_change};

mod traced;
mod tree;

use traced::{Messages, TraceReplay};
use tree::{PlacedNetem, RateControl, Request, Tree};

/// A message that changes the queue, and the limit that it sets if the queue is a FIFO.
type QueueChange = (Vec<u8>, Option<u32>);

/// One direction of one interface, shaped by qdiscs. Dropping it removes them.
#[derive(Debug)]
pub struct KernelLink {
    link: String,
    dev: String,
    ifindex: u32,
    socket: Socket,
    saved: SavedRoot,
    control: RateControl,
    frame_bytes: u32,
    /// Concatenated messages of a rate change, and the range of each.
    change: Vec<u8>,
    parts: Vec<Range<usize>>,
    reason: wire::BackendReason,
    /// The qdiscs as read back after the setup.
    qdiscs: Vec<String>,
    traced: Option<TraceReplay>,
    /// One message for each of the configuration's `changed_queues`.
    queue_changes: Vec<QueueChange>,
    netems: Vec<PlacedNetem>,
    is_policed: bool,
    removed: bool,
}

impl KernelLink {
    /// Applies `config` to the egress of `dev` in the calling thread's network namespace. The link's state reports `reason`. A failed setup
    /// is undone.
    ///
    /// # Errors
    /// [`ShaperError::Missing`] for a qdisc that this kernel lacks, [`ShaperError::Occupied`] for one that
    /// cannot be restored, [`ShaperError::Netlink`] otherwise.
    pub fn open(
        config: &LinkConfig,
        dev: &str,
        reason: wire::BackendReason,
    ) -> Result<Self, ShaperError> {
        traced::check_supported(config)?;
        let config = &*replay::with_mean_rate(config);
        let ifindex = netlink::ifindex(dev)?;
        let mut socket = Socket::open()?;
        let frame_bytes = netlink::frame_bytes(&mut socket, ifindex, dev)?;
        let refuse = |bad: BadQueue| ShaperError::Unsupported {
            link: config.name.clone(),
            backend: "kernel",
            what: bad.problem,
            hint: bad.hint,
        };
        let tree = tree::plan(config, ifindex, frame_bytes).map_err(refuse)?;
        let queue_changes = queue_changes(config, ifindex, tree.queue).map_err(refuse)?;
        let Tree { requests, control, frame_bytes, netems, .. } = tree;
        let saved = saved::snapshot_of(&mut socket, ifindex, dev)?;
        let (change, parts) = change_messages(&control, config.plan.rate, ifindex, frame_bytes);
        let mut link = Self {
            link: config.name.clone(),
            dev: dev.to_owned(),
            ifindex,
            socket,
            saved,
            control,
            frame_bytes,
            change,
            parts,
            reason,
            qdiscs: Vec::new(),
            traced: None,
            queue_changes,
            netems,
            is_policed: config.plan.policer.is_some(),
            removed: false,
        };
        // From here on, dropping `link` restores the previous qdisc.
        if link.saved != SavedRoot::Default {
            netlink::delete_root(&mut link.socket, ifindex, dev)?;
        }
        for request in &requests {
            link.apply(request, config)?;
        }
        link.qdiscs = link.read_back()?;
        if let Some(replay) = &config.trace {
            link.load(replay)?;
        }
        Ok(link)
    }

    /// Checks whether a kernel with these qdiscs (from [`probe::supported_qdiscs`]) supports this link.
    ///
    /// # Errors
    /// [`ShaperError::Missing`] for the first qdisc that is not among them.
    pub fn supports(config: &LinkConfig, probed: &[String]) -> Result<(), ShaperError> {
        traced::check_supported(config)?;
        match Self::needs(config).into_iter().find(|kind| !probed.iter().any(|have| have == kind)) {
            Some(kind) => Err(missing("qdisc", kind, config)),
            None => Ok(()),
        }
    }

    /// Returns the kinds of qdisc that this link needs.
    pub fn needs(config: &LinkConfig) -> Vec<&'static str> {
        tree::kinds(&replay::with_mean_rate(config))
    }

    /// Returns the previous root qdisc, so that another process can restore it with [`saved::restore`].
    pub fn saved(&self) -> &SavedRoot {
        &self.saved
    }

    fn apply(&mut self, request: &Request, config: &LinkConfig) -> Result<(), ShaperError> {
        self.socket.request(&request.op, &self.dev, &request.bytes).map_err(|error| {
            let what = match request.kind {
                "u32" => "filter",
                "police" => "action",
                _ => "qdisc",
            };
            if error.is_errno(libc::ENOENT) { missing(what, request.kind, config) } else { error }
        })
    }

    /// Returns the interface's current qdiscs, except the default one.
    fn read_back(&mut self) -> Result<Vec<String>, ShaperError> {
        let mut found = Vec::new();
        netlink::qdiscs(&mut self.socket, self.ifindex, |listed| {
            if listed.handle != 0 && !is_hook(listed.parent) {
                let text = format!("{} {}", listed.kind(), handle_text(listed.handle));
                found.push((listed.handle, text));
            }
        })?;
        found.sort();
        Ok(found.into_iter().map(|(_, text)| text).collect())
    }

    /// Changes the rate.
    fn change(&mut self, rate: Rate) -> Result<(), ShaperError> {
        tree::patch(&self.control, rate, self.frame_bytes, &mut self.change, &self.parts);
        let sent = self.socket.request_all(&mut self.change, &self.parts);
        sent.map_err(|error: NetlinkError| error.on("change rate", &self.dev))
    }

    /// Changes the link's netem qdiscs.
    fn change_netems(
        &mut self,
        what: &str,
        change: impl Fn(&mut plan::Link),
    ) -> Result<(), ShaperError> {
        if self.netems.is_empty() {
            return Err(unsupported_change(&self.state(), what));
        }
        let (socket, dev, op) = (&mut self.socket, &self.dev, format!("change {what}"));
        change_each(&mut self.netems, self.ifindex, change, |message| {
            socket.request(&op, dev, message)
        })
    }

    /// Returns the number of packets that the policer has dropped; `None`: the link has no policer.
    fn policed_pkts(&mut self) -> Result<Option<u64>, ShaperError> {
        let mut dropped = None;
        if self.is_policed {
            netlink::filters(&mut self.socket, self.ifindex, tree::ROOT_HANDLE, |filter| {
                dropped = dropped.or(police::dropped_pkts(filter));
            })?;
        }
        Ok(dropped)
    }

    /// Applies the first row of the trace and prepares the replay.
    fn load(&mut self, replay: &Replay) -> Result<(), ShaperError> {
        let cursor = Cursor::new(replay, u64::MAX);
        if let Some(rate) = cursor.and_then(|cursor| cursor.span().rate) {
            self.change(rate)?;
        }
        let messages = Messages {
            socket: Socket::open()?,
            control: self.control.clone(),
            frame_bytes: self.frame_bytes,
            bytes: self.change.clone(),
            parts: self.parts.clone(),
        };
        self.traced = TraceReplay::start(replay, messages)?;
        Ok(())
    }
}

/// Changes netem qdiscs one after the other. If the kernel refuses a message, that qdisc and the later ones keep their parameters.
fn change_each(
    netems: &mut [PlacedNetem],
    ifindex: u32,
    change: impl Fn(&mut plan::Link),
    mut send: impl FnMut(&[u8]) -> Result<(), ShaperError>,
) -> Result<(), ShaperError> {
    for PlacedNetem { handle, parent, netem } in netems {
        let mut changed = netem.clone();
        send(&changed.changed(&change).change(ifindex, *handle, *parent))?;
        *netem = changed;
    }
    Ok(())
}

/// Returns the error for a kind that this kernel lacks, with its kernel option and a hint.
fn missing(what: &str, kind: &str, config: &LinkConfig) -> ShaperError {
    let option = probe::missing_config(kind);
    let hint = if userspace_can(config) {
        format!("write `backend = \"userspace\"` for link {}", config.name)
    } else {
        format!("use another kernel, e.g. with CONFIG_{option}=m")
    };
    ShaperError::Missing { what: format!("{what} {kind}"), config: option, hint }
}

/// Returns whether the userspace backend supports the queues of a link.
pub(crate) fn userspace_can(config: &LinkConfig) -> bool {
    let mut queues = config.classes.iter().map(|class| &class.queue).chain([&config.queue]);
    !queues.any(Queue::needs_kernel)
}

/// Returns whether this is the parent of `ingress` and `clsact`, which have no queue.
fn is_hook(parent: u32) -> bool {
    parent == 0xffff_fff1
}

/// Returns the messages that change the parameters of the link's own queue. `queue`: its handle and parent.
fn queue_changes(
    config: &LinkConfig,
    ifindex: u32,
    queue: Option<(u32, u32)>,
) -> Result<Vec<QueueChange>, BadQueue> {
    let Some((handle, parent)) = queue else { return Ok(Vec::new()) };
    let message = |queue: &Queue| -> Result<QueueChange, BadQueue> {
        let qdisc = discipline::changed_qdisc(queue, config.plan.rate)?;
        Ok((qdisc.change(ifindex, handle, parent), fifo_limit(queue)))
    };
    config.changed_queues.iter().map(message).collect()
}

/// Returns templates of the messages of a rate change. Only the last one requests an acknowledgement.
fn change_messages(
    control: &RateControl,
    rate: Option<Rate>,
    ifindex: u32,
    frame_bytes: u32,
) -> (Vec<u8>, Vec<Range<usize>>) {
    let messages = match (control, rate) {
        (RateControl::Unlimited, _) | (_, None) => Vec::new(),
        (RateControl::Tbf { limit, overhead, buckets }, Some(rate)) => {
            let tbf = tree::tbf_qdisc(rate, frame_bytes, (*limit, *overhead), *buckets);
            vec![tbf.encode_rate64().change(ifindex, tree::ROOT_HANDLE, ROOT)]
        }
        (RateControl::Htb { base, classes }, Some(rate)) => classes
            .iter()
            .map(|slot| {
                let class = slot.at(*base, rate, frame_bytes);
                class.change(ifindex, slot.class, slot.parent)
            })
            .collect(),
    };
    let (mut all, mut parts) = (Vec::new(), Vec::new());
    let last = messages.len().saturating_sub(1);
    for (index, mut message) in messages.into_iter().enumerate() {
        if index < last {
            let flags = libc::NLM_F_REQUEST as u16;
            message[6..8].copy_from_slice(&flags.to_ne_bytes());
        }
        parts.push(all.len()..all.len() + message.len());
        all.extend(message);
    }
    (all, parts)
}

impl Link for KernelLink {
    fn state(&self) -> wire::LinkState {
        wire::LinkState {
            link: self.link.clone(),
            dev: self.dev.clone(),
            backend: wire::Backend::Kernel.into(),
            reason: Some(self.reason.clone()),
            qdiscs: self.qdiscs.clone(),
        }
    }

    fn set_rate(&mut self, rate: Rate) -> Result<(), ShaperError> {
        if self.change.is_empty() {
            return Err(ShaperError::Unsupported {
                link: self.link.clone(),
                backend: "kernel",
                what: "a change of rate on a link that began without one".to_owned(),
                hint: "give the link a rate in the plan".to_owned(),
            });
        }
        if self.traced.is_some() {
            return Err(replay::rate_change_with_trace(&self.link, "kernel"));
        }
        self.change(rate)
    }

    fn set_delay(&mut self, delay: Micros) -> Result<(), ShaperError> {
        self.change_netems("delay", |link| link.delay = Some(delay))
    }

    fn set_loss(&mut self, loss: Ppm) -> Result<(), ShaperError> {
        self.change_netems("loss", |link| link.loss = Some(loss))
    }

    fn set_queue(&mut self, number: usize) -> Result<(), ShaperError> {
        let Some((message, fifo_limit)) = self.queue_changes.get(number) else { return Ok(()) };
        self.socket.request("change queue", &self.dev, message)?;
        // With each change of the token bucket, the kernel sets the FIFO's limit again.
        if let (RateControl::Tbf { limit, .. }, Some(new)) = (&mut self.control, *fifo_limit) {
            *limit = new;
        }
        Ok(())
    }

    fn begin(&mut self, at_ns: u64) -> Result<(), ShaperError> {
        if let Some(traced) = &self.traced {
            traced.begin(at_ns);
        }
        Ok(())
    }

    fn changes(&mut self, into: &mut Vec<wire::LinkChange>) {
        if let Some(traced) = &mut self.traced {
            traced.changes((&self.link, &self.dev), into);
        }
    }

    fn timing(&mut self, into: &mut Vec<wire::LinkTiming>) {
        if let Some(traced) = &mut self.traced {
            into.extend(traced.timing((&self.link, &self.dev)));
        }
    }

    fn counters(
        &mut self,
        at_ns: u64,
        into: &mut Vec<wire::QdiscSample>,
    ) -> Result<(), ShaperError> {
        let policed_pkts = self.policed_pkts()?;
        let row = || wire::QdiscSample {
            at_ns,
            link: self.link.clone(),
            iface: self.dev.clone(),
            ..wire::QdiscSample::default()
        };
        netlink::qdiscs(&mut self.socket, self.ifindex, |listed| {
            if listed.handle != 0 && !is_hook(listed.parent) {
                let mut row = row();
                discipline::fill_row(listed, false, &mut row);
                if listed.is_root() {
                    row.drop_policed_pkts = policed_pkts;
                }
                into.push(row);
            }
        })?;
        if matches!(self.control, RateControl::Htb { .. }) {
            netlink::classes(&mut self.socket, self.ifindex, |listed| {
                let mut row = row();
                discipline::fill_row(listed, true, &mut row);
                into.push(row);
            })?;
        }
        Ok(())
    }

    fn remove(&mut self) -> Result<(), ShaperError> {
        if let Some(traced) = &mut self.traced {
            traced.stop();
        }
        if self.removed {
            return Ok(());
        }
        let done = saved::restore_of(&mut self.socket, self.ifindex, &self.dev, &self.saved);
        match done {
            // The interface is gone, and its qdiscs with it.
            Err(error) if error.is_errno(libc::ENODEV) => {}
            other => other?,
        }
        self.removed = true;
        Ok(())
    }
}

impl Drop for KernelLink {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(link = self.link, dev = self.dev, %error, "could not undo a link");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qdisc::netem::Netem;

    #[test]
    fn changes_of_a_queue_keep_its_packets() {
        let changes = |json: &str| {
            let queue: Queue = serde_json::from_str(json).unwrap();
            let mut config = LinkConfig::new("l", plan::Link::default(), queue.clone());
            config.changed_queues = vec![queue];
            queue_changes(&config, 1, Some((16 << 16, ROOT)))
        };
        // The kernel refuses to change the number of queues.
        let with_flows = changes(r#"{"kind": "fq_codel", "limit": "500p", "flows": 64}"#);
        assert_eq!(with_flows, changes(r#"{"kind": "fq_codel", "limit": "500p"}"#));
        assert!(with_flows.is_ok_and(|changes| changes.len() == 1));
        let red = r#"{"kind": "red", "limit": "60000B", "min": "5000B", "max": "20000B"}"#;
        assert!(changes(red).unwrap_err().problem.contains("each drops all queued packets"));
    }

    #[test]
    fn next_change_begins_with_what_the_kernel_has() {
        let ms = Micros::from_millis;
        let plan = plan::Link { delay: Some(ms(10)), ..plan::Link::default() };
        let netem = Netem { plan, limit_pkts: 1000, seed: 5 };
        let before = PlacedNetem { handle: 100 << 16, parent: ROOT, netem };
        let mut netems = [before.clone(), before.clone()];
        let refusal = ShaperError::Unsupported {
            link: "l".to_owned(),
            backend: "kernel",
            what: "it".to_owned(),
            hint: "none".to_owned(),
        };
        let mut answers = [Ok(()), Err(refusal)].into_iter();
        let refused = change_each(
            &mut netems,
            1,
            |link| link.delay = Some(ms(50)),
            |_| answers.next().unwrap(),
        );
        assert!(refused.is_err());
        assert_eq!(netems[0].netem.plan.delay, Some(ms(50)));
        assert_eq!(netems[1], before);
        let lose = |link: &mut plan::Link| link.loss = Ppm::new(1000);
        let mut sent = Vec::new();
        let done = change_each(&mut netems, 1, lose, |message| {
            sent.push(message.to_vec());
            Ok(())
        });
        done.unwrap();
        let expected = before.netem.clone().changed(lose).change(1, before.handle, before.parent);
        assert_eq!(sent[1], expected);
        assert_ne!(sent[0], expected, "this one has the other delay");
    }
}
