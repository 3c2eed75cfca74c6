//! Finds the flows of a plan that share a queue of a discipline that hashes flows into queues ([`FlowIsolation::Hash`]).
//!
//! The userspace datapath and the simulator hash addresses, protocol and ports without a seed, so a flow's queue is known before its first
//! packet. The kernel's hash is keyed with a secret of the machine.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ccbench_proto::event::{FlowQueueShared, Kind, NoData};
use ccbench_proto::plan::FlowIsolation;
use ccbench_proto::resolve::LinkConfig;
use ccbench_proto::schedule::LinkFlow;
use ccbench_proto::wire::{self, Backend};

use crate::datapath::LinkSpec;
use crate::datapath::classes::Matcher;
use crate::datapath::header;
use crate::user_link::spec;

/// Number of a class (from 1; 0 is the link's own queue) and of a queue in it.
type QueueNumber = (u8, u32);

/// Returns an event for each queue of the link that flows of the plan share, or one event if that is not known; events have no time yet.
/// Returns none for a link whose queues do not separate flows. `flows`: the data connections that pass the link, if known.
pub fn events(
    config: &LinkConfig,
    flows: Option<&[LinkFlow]>,
    backend: Backend,
) -> Vec<wire::Event> {
    let event = |kind, message| wire::Event {
        at_ns: 0,
        subject: config.name.clone(),
        message,
        kind: Some(kind),
    };
    if !separates_flows(config) || flows.is_some_and(|flows| flows.len() < 2) {
        return Vec::new();
    }
    match shared(config, flows, backend) {
        Ok(shared) => shared
            .into_iter()
            .map(|shared| {
                let message = message(&shared);
                event(Kind::FlowQueueShared(shared), message)
            })
            .collect(),
        Err(why) => {
            let message = format!("cannot tell whether flows share a queue: {why}");
            vec![event(Kind::FlowQueuesUnknown(NoData {}), message)]
        }
    }
}

fn message(FlowQueueShared { class, flows }: &FlowQueueShared) -> String {
    let of_class = class.as_ref().map_or(String::new(), |class| format!(" of class {class}"));
    let (names, count) = (flows.join(", "), flows.len());
    format!(
        "{names} share a queue{of_class}, so together they get the rate of one flow, not of {count}, and delay each \
         other; increase the number of queues, or exclude the trial"
    )
}

/// Returns whether any of the link's queues hashes flows into more than one queue.
fn separates_flows(config: &LinkConfig) -> bool {
    let class_queues = config.classes.iter().map(|class| &class.queue);
    let mut queues = std::iter::once(&config.queue).chain(class_queues);
    queues.any(|queue| queue.flow_isolation() == FlowIsolation::Hash)
}

/// Returns the queues in which several flows run at the same time.
///
/// # Errors
/// Returns the reason why they are not known.
fn shared(
    config: &LinkConfig,
    flows: Option<&[LinkFlow]>,
    backend: Backend,
) -> Result<Vec<FlowQueueShared>, &'static str> {
    if backend != Backend::Userspace {
        return Err("the kernel's flow hash depends on a secret");
    }
    let Some(flows) = flows else { return Err("ccbench does not know which flows pass the link") };
    let mut matches = config.classes.iter().flat_map(|class| &class.matches);
    if matches.any(|wanted| wanted.ecn.is_some() || wanted.dscp.is_some()) {
        return Err(
            "a class matches the ECN field or the DSCP, which may differ between packets of a flow",
        );
    }
    let spec = spec::spec_of(config).map_err(|_| "the configuration has no userspace queue")?;
    let matcher = Matcher::new(&spec.classes);
    let mut queues: BTreeMap<QueueNumber, Vec<&LinkFlow>> = BTreeMap::new();
    for flow in flows {
        if let Some(number) = queue_number(&spec, &matcher, flow) {
            queues.entry(number).or_default().push(flow);
        }
    }
    let named = |((class, _), flows): (QueueNumber, Vec<&LinkFlow>)| {
        let flows = concurrent_flows(&flows);
        let class = class.checked_sub(1).and_then(|index| config.classes.get(usize::from(index)));
        (!flows.is_empty())
            .then(|| FlowQueueShared { class: class.map(|class| class.name.clone()), flows })
    };
    Ok(queues.into_iter().filter_map(named).collect())
}

/// Returns the queue that a flow's packets enter, or `None` if its discipline does not separate flows.
fn queue_number(spec: &LinkSpec, matcher: &Matcher, flow: &LinkFlow) -> Option<QueueNumber> {
    let frame = frame(flow);
    let class = matcher.class_of(&frame);
    let queue = match class.checked_sub(1) {
        Some(index) => &spec.classes.get(usize::from(index))?.queue,
        None => &spec.queue,
    };
    Some((class, queue.flow_queue(header::flow(&frame))?))
}

/// Returns the names of those flows that run at the same time as another flow.
fn concurrent_flows(flows: &[&LinkFlow]) -> Vec<String> {
    let meets_another = |index: usize| {
        let flow = flows[index];
        let overlaps = |other: &LinkFlow| flow.start < other.stop && other.start < flow.stop;
        (0..flows.len()).any(|other| other != index && overlaps(flows[other]))
    };
    (0..flows.len())
        .filter(|index| meets_another(*index))
        .map(|index| flows[index].flow_id.clone())
        .collect()
}

/// Returns an Ethernet frame with the headers of a flow's data, up to the ports.
fn frame(flow: &LinkFlow) -> Vec<u8> {
    let mut frame = vec![0; 12];
    match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            frame.extend([0x08, 0x00]);
            frame.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, header::TCP, 0, 0]);
            frame.extend(src.octets());
            frame.extend(dst.octets());
        }
        (src, dst) => {
            let octets = |address: IpAddr| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            frame.extend([0x86, 0xdd]);
            frame.extend([0x60, 0, 0, 0, 0, 20, header::TCP, 64]);
            frame.extend(octets(src));
            frame.extend(octets(dst));
        }
    }
    frame.extend(flow.sport.to_be_bytes());
    frame.extend(flow.dport.to_be_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::{Cake, Class, Fq, FqCodel, Link, Queue};
    use ccbench_proto::resolve::{ClassConfig, PacketMatch};
    use ccbench_proto::units::{Bytes, Limit, Micros, Rate};

    use super::*;

    const MBIT: Rate = Rate::from_bits_per_sec(1_000_000);

    fn flow(number: u16, (start_s, stop_s): (u64, u64)) -> LinkFlow {
        LinkFlow {
            flow_id: format!("bulk/{number}"),
            src: IpAddr::from([10, 77, 1, 1]),
            dst: IpAddr::from([10, 77, 2, 2]),
            sport: 10_000 + number,
            dport: 5201,
            start: Micros::from_secs(start_s),
            stop: Micros::from_secs(stop_s),
        }
    }

    fn fq_codel(flows: u32) -> Queue {
        Queue::FqCodel(FqCodel { flows: Some(flows), ..FqCodel::default() })
    }

    fn link(queue: Queue) -> LinkConfig {
        LinkConfig::new("bottleneck", Link { rate: Some(MBIT), ..Link::default() }, queue)
    }

    /// Returns a queue of each kind that requires no keys, with the kernel's defaults.
    fn kinds_without_keys() -> impl Iterator<Item = Queue> {
        let queue = |kind: &&str| serde_json::from_value(serde_json::json!({ "kind": kind })).ok();
        Queue::kinds().iter().filter_map(queue)
    }

    fn found(config: &LinkConfig, flows: &[LinkFlow]) -> Vec<FlowQueueShared> {
        shared(config, Some(flows), Backend::Userspace).unwrap()
    }

    #[test]
    fn flows_of_one_queue_are_those_with_the_same_index() {
        let flows: Vec<LinkFlow> = (0..40).map(|number| flow(number, (0, 9))).collect();
        let found = found(&link(fq_codel(16)), &flows);
        // The index that the datapath computes from the same headers.
        let index = |flow: &LinkFlow| header::flow(&frame(flow)) % 16;
        for group in &found {
            let of_group = flows.iter().filter(|flow| group.flows.contains(&flow.flow_id));
            let indices: std::collections::BTreeSet<u32> = of_group.map(index).collect();
            assert_eq!((indices.len(), group.class.as_ref()), (1, None), "{group:?}");
        }
        // 40 flows in 16 queues: flows that are not listed have a queue of their own.
        let listed: usize = found.iter().map(|group| group.flows.len()).sum();
        assert!(listed > 40 - 16, "{found:?}");
        let alone = flows
            .iter()
            .filter(|flow| flows.iter().filter(|other| index(other) == index(flow)).count() == 1);
        assert_eq!(listed + alone.count(), 40);
    }

    #[test]
    fn one_queue_for_all_flows_is_the_plans_intention() {
        let flows: Vec<LinkFlow> = (0..4).map(|number| flow(number, (0, 9))).collect();
        for queue in [fq_codel(1), Queue::bfifo(Limit::Bytes(Bytes::new(100_000)))] {
            assert!(events(&link(queue), Some(&flows), Backend::Userspace).is_empty());
        }
    }

    /// The keys of a plan and the userspace queue agree on whether there are several queues.
    #[test]
    fn hashed_queues_are_those_of_the_datapath() {
        let fq = |buckets, orphan_mask| Queue::Fq(Fq { buckets, orphan_mask, ..Fq::default() });
        let fqs = [fq(None, None), fq(Some(1), None), fq(Some(16), Some(3)), fq(None, Some(0))];
        let others = [fq_codel(1), fq_codel(2)].into_iter().chain(kinds_without_keys());
        for queue in fqs.into_iter().chain(others) {
            let hashes = separates_flows(&link(queue.clone()));
            match crate::discipline::params(&queue, Some(MBIT)) {
                Ok(params) => assert_eq!(hashes, params.flow_queue(0).is_some(), "{queue:?}"),
                Err(_) => assert!(queue.needs_kernel(), "{queue:?}"),
            }
        }
        assert!(separates_flows(&link(Queue::Cake(Cake::default()))));
    }

    #[test]
    fn flows_share_a_queue_only_while_both_run() {
        let config = link(fq_codel(2));
        // Two of the three flows share one of the two queues.
        let same_time: Vec<LinkFlow> = (0..3).map(|number| flow(number, (0, 9))).collect();
        assert!(!found(&config, &same_time).is_empty());
        let in_turn = [flow(0, (0, 3)), flow(1, (3, 6)), flow(2, (6, 9))];
        assert!(found(&config, &in_turn).is_empty());
    }

    #[test]
    fn classes_have_queues_of_their_own() {
        let mut config = link(fq_codel(2));
        let to_port = |port| PacketMatch { dport: Some(port), ..PacketMatch::default() };
        let class = |matches: PacketMatch| ClassConfig {
            name: "bulk".to_owned(),
            plan: Class::new(Rate::from_bits_per_sec(500_000)),
            matches: vec![matches],
            queue: fq_codel(2),
        };
        config.classes = vec![class(to_port(5201))];
        let flows: Vec<LinkFlow> = (0..3).map(|number| flow(number, (0, 9))).collect();
        assert!(found(&config, &flows).iter().all(|group| group.class.as_deref() == Some("bulk")));
        config.classes = vec![class(PacketMatch { ecn: Some(1), ..PacketMatch::default() })];
        let names: Vec<_> = events(&config, Some(&flows), Backend::Userspace)
            .iter()
            .map(wire::Event::name)
            .collect();
        assert_eq!(names, ["flow_queues_unknown"]);
    }

    #[test]
    fn the_kernels_hash_and_other_cabling_are_unknown() {
        let flows = [flow(0, (0, 9)), flow(1, (0, 9))];
        let names = |flows, backend| {
            let events = events(&link(fq_codel(1024)), flows, backend);
            events.iter().map(wire::Event::name).collect::<Vec<_>>()
        };
        assert_eq!(names(Some(&flows[..]), Backend::Kernel), ["flow_queues_unknown"]);
        assert_eq!(names(None, Backend::Userspace), ["flow_queues_unknown"]);
        assert_eq!(names(Some(&flows[..1]), Backend::Kernel), [""; 0]);
    }
}
