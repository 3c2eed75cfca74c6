use std::net::Ipv4Addr;

use ccbench_proto::plan::{self, EcnRewrite, Jitter, Link, Policer, Reorder, Slot};
use ccbench_proto::resolve::{ClassConfig, PacketMatch};
use ccbench_proto::units::{Bytes, Limit, Micros, Packets, Ppm};

use super::*;

const TEN_MS: Micros = Micros::from_millis(10);

fn mbit(rate: u64) -> Rate {
    Rate::from_bits_per_sec(rate * 1_000_000)
}

fn bfifo(bytes: u64) -> Queue {
    Queue::bfifo(Limit::Bytes(Bytes::new(bytes)))
}

fn link(rate: Option<Rate>) -> LinkConfig {
    with(Link { rate, ..Link::default() })
}

fn with(plan: Link) -> LinkConfig {
    LinkConfig { seed: 1, ..LinkConfig::new("down", plan, bfifo(187_500)) }
}

fn ops(config: &LinkConfig) -> Vec<String> {
    let tree = plan(config, 3, 1518).unwrap();
    // `tcm_parent` of struct tcmsg.
    let parent = |bytes: &[u8]| u32::from_ne_bytes(bytes[28..32].try_into().unwrap());
    tree.requests
        .iter()
        .map(|r| format!("{} at {}", &r.op[4..], handle_text(parent(&r.bytes))))
        .collect()
}

#[test]
fn rate_is_one_class_above_the_queue() {
    assert_eq!(
        ops(&link(Some(mbit(100)))),
        ["qdisc htb 1: at root", "class htb 1:1 at 1:", "qdisc bfifo 10: at 1:1"]
    );
    assert_eq!(kinds(&link(Some(mbit(100)))), ["htb", "bfifo"]);
}

#[test]
fn netem_is_between_class_and_queue() {
    let plan = Link { rate: Some(mbit(100)), delay: Some(TEN_MS), ..Link::default() };
    let config = with(plan.clone());
    assert_eq!(ops(&config)[2..], ["qdisc netem 100: at 1:1", "qdisc bfifo 10: at 100:1"]);
    let config = with(Link { shaper: Shaper::Tbf, ..plan });
    assert_eq!(
        ops(&config),
        ["qdisc tbf 1: at root", "qdisc netem 100: at 1:1", "qdisc bfifo 10: at 100:1"]
    );
    assert_eq!(kinds(&config), ["tbf", "netem", "bfifo"]);
}

#[test]
fn omits_the_fifo_without_a_rate() {
    let config = with(Link { delay: Some(TEN_MS), ..Link::default() });
    assert_eq!(ops(&config), ["qdisc netem 1: at root"]);
    let codel = Queue::Codel(plan::Codel::default());
    let config = LinkConfig { queue: codel, ..config };
    assert_eq!(ops(&config), ["qdisc netem 1: at root", "qdisc codel 10: at 1:1"]);
    assert_eq!(ops(&link(None)), ["qdisc bfifo 1: at root"]);
}

fn with_classes() -> LinkConfig {
    let class = |rate, ceil| ClassConfig {
        name: "slice".to_owned(),
        plan: Class { ceil: Some(mbit(ceil)), ..Class::new(mbit(rate)) },
        matches: vec![PacketMatch {
            dst: Some(Ipv4Addr::new(10, 0, 0, 1).into()),
            dport: Some(5201),
            ..PacketMatch::default()
        }],
        queue: bfifo(30_000),
    };
    LinkConfig { classes: vec![class(20, 100), class(30, 30)], ..link(Some(mbit(100))) }
}

#[test]
fn default_class_gets_the_remaining_rate() {
    let found = ops(&with_classes());
    assert_eq!(
        found[..8],
        [
            "qdisc htb 1: at root",
            "class htb 1:1 at 1:",
            "class htb 1:10 at 1:1",
            "class htb 1:11 at 1:1",
            "class htb 1:12 at 1:1",
            "qdisc bfifo 10: at 1:10",
            "qdisc bfifo 11: at 1:11",
            "qdisc bfifo 12: at 1:12",
        ]
    );
    assert_eq!(found[8], "filter u32 to class 1:11 at 1:");
    assert_eq!(found.len(), 12);
    let RateControl::Htb { base, classes } = plan(&with_classes(), 3, 1518).unwrap().control else {
        panic!("not htb")
    };
    let rates: Vec<_> = classes.iter().map(|c| (c.rate, c.ceil, c.quantum_bytes)).collect();
    assert_eq!(
        rates,
        [
            (mbit(100), mbit(100), 1518),
            (mbit(50), mbit(100), 3795),
            (mbit(20), mbit(100), 1518),
            (mbit(30), mbit(30), 2277),
        ]
    );
    let half = classes[2].at(base, mbit(50), 1518);
    assert_eq!((half.rate, half.ceil), (mbit(10), mbit(50)));
}

#[test]
fn every_class_has_priority_and_overhead() {
    let mut config = with_classes();
    config.plan.overhead = Some(Bytes::new(38));
    config.classes[1].plan.priority = Some(5);
    let RateControl::Htb { base, classes } = plan(&config, 3, 1518).unwrap().control else {
        panic!("not htb")
    };
    let found: Vec<_> = classes.iter().map(|c| c.at(base, mbit(70), 1518)).collect();
    assert_eq!(found.iter().map(|c| c.priority).collect::<Vec<_>>(), [0, 0, 0, 5]);
    assert!(found.iter().all(|c| c.overhead_bytes == 24));
    config.plan.overhead = Some(Bytes::new(0));
    assert!(plan(&config, 3, 1518).unwrap_err().problem.contains("overhead = \"0B\""));
    let unshaped = Link { overhead: Some(Bytes::new(0)), ..Link::default() };
    assert!(plan(&with(unshaped), 3, 1518).is_ok());
}

#[test]
fn impairments_use_netem_and_rejects_unsupported_ones() {
    let share = Ppm::new(10_000).unwrap();
    let rate = Some(mbit(100));
    let config = with(Link { rate, corrupt: Some(share), ..Link::default() });
    assert_eq!(kinds(&config), ["htb", "netem", "bfifo"]);
    assert_eq!(ops(&config)[2..], ["qdisc netem 100: at 1:1", "qdisc bfifo 10: at 100:1"]);
    let twice = Link { rate, duplicate: Some(share), ..Link::default() };
    assert!(plan(&with(twice.clone()), 3, 1518).is_ok());
    assert!(plan(&LinkConfig { plan: twice, ..with_classes() }, 3, 1518).is_err());
    let logged = Link { rate, packet_log: Some(Bytes::new(1)), ..Link::default() };
    assert!(plan(&with(logged), 3, 1518).is_err());
}

#[test]
fn tbf_of_a_plan_has_its_burst_and_peak_rate() {
    let buckets = Tbf { burst: Bytes::new(100_000), peakrate: Some(mbit(200)), mtu: None };
    let config = with(Link { rate: Some(mbit(100)), tbf: Some(buckets), ..Link::default() });
    assert_eq!(kinds(&config), ["tbf", "bfifo"]);
    assert_eq!(ops(&config)[0], "qdisc tbf 1: at root");
    let made = tbf_qdisc(mbit(100), 1518, (9, 0), Some(buckets));
    let peak = tbf::Peak { rate: mbit(200), mtu_bytes: 1518 };
    assert_eq!((made.burst_bytes, made.peak), (100_000, Some(peak)));
    let wide = Tbf { mtu: Some(Bytes::new(9_000)), ..buckets };
    let made = tbf_qdisc(mbit(100), 1518, (9, 0), Some(wide));
    assert_eq!(made.peak, Some(tbf::Peak { mtu_bytes: 9_000, ..peak }));
}

#[test]
fn key_without_a_qdisc_needs_userspace() {
    let unknown = |keys: &[&str]| {
        let keys: Vec<String> = keys.iter().map(|&key| key.to_owned()).collect();
        first_unknown(&keys, &[&KEYS, &netem::KEYS])
    };
    assert_eq!(unknown(&["rate", "jitter", "gso"]), None);
    assert_eq!(unknown(&["delay", "later", "rate"]).as_deref(), Some("later"));
    let filtered = with(Link { rate: Some(mbit(10)), ack_filter: true, ..Link::default() });
    assert!(plan(&filtered, 3, 1518).unwrap_err().problem.contains("`ack_filter`"));
    let rewritten =
        Link { rate: Some(mbit(10)), ecn_rewrite: Some(EcnRewrite::default()), ..Link::default() };
    assert!(plan(&with(rewritten), 3, 1518).unwrap_err().problem.contains("`ecn_rewrite`"));
    let allowed = Link { rate: Some(mbit(10)), allow_control_interface: true, ..Link::default() };
    assert!(plan(&with(allowed), 3, 1518).is_ok(), "it changes no packet");
}

#[test]
fn red_that_the_kernel_refuses_needs_userspace() {
    let bytes = |bytes| Limit::Bytes(Bytes::new(bytes));
    let red = |max| {
        Queue::Red(plan::Red {
            limit: bytes(4_000_000),
            min: bytes(1_000_000),
            max: bytes(max),
            probability: None,
            avpkt: None,
            burst: None,
            ecn: None,
            harddrop: None,
            adaptive: None,
            nodrop: None,
        })
    };
    let own = |queue| LinkConfig { queue, ..link(Some(mbit(100))) };
    assert!(plan(&own(red(2_000_000)), 3, 1518).is_ok());
    assert!(plan(&own(red(3_000_000)), 3, 1518).unwrap_err().problem.contains("`red`"));
    let mut config = with_classes();
    config.classes[1].queue = red(3_000_000);
    assert!(plan(&config, 3, 1518).unwrap_err().problem.contains("`red`"));
}

#[test]
fn cake_filters_acknowledgements() {
    let filtered = with(Link { rate: Some(mbit(10)), ack_filter: true, ..Link::default() });
    let filtered = LinkConfig { queue: Queue::Cake(plan::Cake::default()), ..filtered };
    let tree = plan(&filtered, 3, 1518).unwrap();
    // The last attribute: length 8, kind 16; aggressive.
    let attribute = [8_u16, 16, 2, 0].map(u16::to_ne_bytes).concat();
    assert_eq!(tree.requests.last().unwrap().kind, "cake");
    assert!(tree.requests.last().unwrap().bytes.ends_with(&attribute));
}

#[test]
fn policer_is_a_filter_in_front_of_the_class() {
    let policer = Some(Policer { rate: mbit(10), burst: Bytes::new(30_000) });
    let policed = Link { rate: Some(mbit(100)), delay: Some(TEN_MS), policer, ..Link::default() };
    let tree = plan(&with(policed.clone()), 3, 1518).unwrap();
    let last = tree.requests.last().unwrap();
    assert_eq!((last.op.as_str(), last.kind), ("add filter police to class 1:1", "police"));
    assert_eq!(kinds(&with(policed.clone())), ["htb", "netem", "bfifo"]);
    let by_tbf = Link { shaper: Shaper::Tbf, ..policed.clone() };
    assert!(plan(&with(by_tbf), 3, 1518).unwrap_err().problem.contains("`policer`"));
    let divided = LinkConfig { plan: policed, ..with_classes() };
    assert!(plan(&divided, 3, 1518).unwrap_err().problem.contains("classes"));
}

#[test]
fn netem_with_slots_is_the_queue() {
    let slot = Slot { every: TEN_MS, bytes: Some(Bytes::new(12_500)), ..Slot::default() };
    let tbf = Tbf { burst: Bytes::new(30_000), ..Tbf::default() };
    let rate = Some(mbit(40));
    let backend = Backend::Kernel;
    let link = Link { rate, slot: Some(slot), tbf: Some(tbf), backend, ..Link::default() };
    let queue = Queue::pfifo(Limit::Packets(Packets::new(40)));
    let config = LinkConfig { queue, ..with(link.clone()) };
    assert_eq!(ops(&config), ["qdisc tbf 1: at root", "qdisc netem 100: at 1:1"]);
    assert_eq!(kinds(&config), ["tbf", "netem"]);
    let tree = plan(&config, 3, 1518).unwrap();
    assert_eq!((tree.netems[0].netem.limit_pkts, tree.queue), (40, None));
    let bytes = LinkConfig { queue: bfifo(60_000), ..config.clone() };
    assert!(plan(&bytes, 3, 1518).unwrap_err().problem.contains("`pfifo`"));
    // Only on request, because the slots of a userspace link are at regular times.
    let auto = LinkConfig { plan: Link { backend: Backend::Auto, ..link }, ..config };
    assert!(plan(&auto, 3, 1518).unwrap_err().problem.contains("regular times"));
}

#[test]
fn bounded_reordering_and_path_switches_are_netems() {
    let reorder = Reorder { late: Some(TEN_MS), ..Reorder::new(Ppm::new(10_000).unwrap()) };
    let link = Link { reorder: Some(reorder), path_switch: true, ..Link::default() };
    let tree = plan(&with(link.clone()), 3, 1518).unwrap();
    let placed = &tree.netems[..];
    assert_eq!(placed.iter().map(|p| (p.handle, p.parent)).collect::<Vec<_>>(), [(0x1_0000, ROOT)]);
    let jitter = Some(Jitter::default());
    let late = Link { jitter, ..link.clone() };
    assert!(plan(&with(late), 3, 1518).unwrap_err().problem.contains("`late`"));
    let switched = Link { jitter, reorder: None, ..link };
    assert!(plan(&with(switched), 3, 1518).unwrap_err().problem.contains("`path_switch`"));
}

#[test]
fn default_class_has_at_least_one_percent() {
    let mut config = with_classes();
    config.classes[0].plan.rate = mbit(70);
    let slots = class_slots(&config, mbit(100), 1518, 0);
    assert_eq!(slots[1].rate, mbit(1));
    assert!(slots.iter().all(|s| s.quantum_bytes <= 200_000));
}

#[test]
fn rate_zero_becomes_the_minimum_rate() {
    let RateControl::Htb { base, classes } = plan(&with_classes(), 3, 1518).unwrap().control else {
        panic!("not htb")
    };
    assert_eq!(classes[0].at(base, Rate::from_bits_per_sec(0), 1518).rate, MIN_RATE);
    assert_eq!(tbf_qdisc(Rate::from_bits_per_sec(0), 1518, (1, 0), None).rate, MIN_RATE);
}
