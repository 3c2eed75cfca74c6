//! Tests kernel links in network namespaces. These tests need root, iproute2, and a kernel with htb, tbf, u32 and veth; without them they
//! fail.

#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use ccbench_proto::plan::{self, Backend, Queue, Shaper};
use ccbench_proto::resolve::{ClassConfig, LinkConfig, PacketMatch};
use ccbench_proto::units::{Bytes, Limit, Micros, Packets, Ppm, Rate};
use ccbench_proto::wire::{self, BackendReason};
use ccbench_shaper::kernel_link::KernelLink;
use ccbench_shaper::netlink::{self, Socket};
use ccbench_shaper::saved::{self, SavedRoot};
use ccbench_shaper::{Link, ShaperError, probe};
use ccbench_tests::skip::skip;

/// Runs `body` on a thread with its own network namespace, which has a veth pair `a0`, `a1` and ends with the thread.
fn in_netns<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
            .expect("these tests need root (CAP_SYS_ADMIN) to make a network namespace");
        let mut socket = Socket::open().unwrap();
        netlink::add_veth(&mut socket, "a0", "a1").unwrap();
        for dev in ["a0", "a1"] {
            netlink::set_up(&mut socket, netlink::ifindex(dev).unwrap()).unwrap();
        }
        body()
    });
    match thread.join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn tc(arguments: &str) -> String {
    let output = Command::new("tc").args(arguments.split_whitespace()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tc {arguments}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn mbit(rate: u64) -> Rate {
    Rate::from_bits_per_sec(rate * 1_000_000)
}

fn bfifo(bytes: u64) -> Queue {
    Queue::bfifo(Limit::Bytes(Bytes::new(bytes)))
}

fn link(rate: Option<Rate>, queue: Queue) -> LinkConfig {
    let plan = plan::Link { rate, backend: Backend::Kernel, ..plan::Link::default() };
    LinkConfig { seed: 1, ..LinkConfig::new("down", plan, queue) }
}

/// Sends frames of 1000 bytes from `a0`: UDP to an unused address with a static neighbour entry.
fn send_datagrams(count: usize, port: u16) {
    let ip = |arguments: &str| {
        assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success());
    };
    ip("addr replace 10.9.0.1/24 dev a0");
    ip("neigh replace 10.9.0.2 lladdr 02:00:00:00:00:09 dev a0");
    let socket = std::net::UdpSocket::bind("10.9.0.1:0").unwrap();
    for _ in 0..count {
        socket.send_to(&[0; 958], ("10.9.0.2", port)).unwrap();
    }
}

#[test]
fn redirects_into_a_veth_pair() {
    in_netns(|| {
        let mut socket = Socket::open().unwrap();
        netlink::add_veth(&mut socket, "b0", "b1").unwrap();
        let (a, b) = (netlink::ifindex("a0").unwrap(), netlink::ifindex("b0").unwrap());
        netlink::add_clsact(&mut socket, a).unwrap();
        netlink::add_redirect(&mut socket, a, 0x0800, 1, b).unwrap();
        netlink::add_redirect(&mut socket, a, 0x86dd, 2, b).unwrap();
        let shown = tc("filter show dev a0 egress");
        assert_eq!(shown.matches("match 00000000/00000000 at 0").count(), 2, "{shown}");
        assert_eq!(shown.matches("mirred (Egress Redirect to device b0) stolen").count(), 2);
        netlink::del_redirect(&mut socket, a, 0x0800, 1).unwrap();
        let error = netlink::del_redirect(&mut socket, a, 0x0800, 1).unwrap_err();
        assert!(error.is_errno(libc::ENOENT), "{error}");
        netlink::del_clsact(&mut socket, a).unwrap();
        netlink::delete_link(&mut socket, "a1").unwrap();
        assert!(netlink::ifindex("a0").is_err());
    });
}

#[test]
fn applies_changes_counts_and_removes_htb_with_bfifo() {
    in_netns(|| {
        let before = tc("qdisc show dev a0");
        let config = link(Some(mbit(100)), bfifo(187_500));
        let mut link = KernelLink::open(&config, "a0", BackendReason::configured()).unwrap();
        let state = link.state();
        assert_eq!(state.backend(), wire::Backend::Kernel);
        assert_eq!(state.reason_text(), "backend = \"kernel\" in the plan");
        assert_eq!(state.qdiscs, ["htb 1:", "bfifo 10:"]);
        assert_eq!(link.saved(), &SavedRoot::Default);
        let shown = tc("qdisc show dev a0");
        assert!(shown.contains("qdisc bfifo 10: parent 1:1 limit 187500b"), "{shown}");
        let class = || tc("class show dev a0");
        assert!(class().contains("rate 100Mbit ceil 100Mbit burst 3112b"), "{}", class());

        link.set_rate(mbit(20)).unwrap();
        assert!(class().contains("rate 20Mbit ceil 20Mbit burst 1517b"), "{}", class());
        link.set_rate(mbit(80_000)).unwrap();
        assert!(class().contains("rate 80Gbit ceil 80Gbit"), "{}", class());
        link.set_rate(mbit(0)).unwrap();
        assert!(class().contains("rate 8Kbit ceil 8Kbit"), "{}", class());
        link.set_rate(mbit(100)).unwrap();

        send_datagrams(10, 9);
        counters_when_idle(&mut link);
        let mut rows = Vec::new();
        link.counters(42, &mut rows).unwrap();
        let ids: Vec<_> =
            rows.iter().map(|r| (r.kind.as_str(), r.handle.as_str(), r.parent.as_str())).collect();
        assert_eq!(
            ids,
            [("htb", "1:", "root"), ("bfifo", "10:", "1:1"), ("htb class", "1:1", "root")]
        );
        for row in &rows {
            assert_eq!((row.at_ns, row.link.as_str(), row.iface.as_str()), (42, "down", "a0"));
            let seen = row.sent_pkts + row.qlen_pkts;
            assert!((10..20).contains(&seen), "{row:?}");
        }
        assert_eq!(rows[2].rate_bps, Some(100_000_000));
        assert!(rows[2].tokens.is_some());

        link.remove().unwrap();
        link.remove().unwrap();
        assert_eq!(tc("qdisc show dev a0"), before);
    });
}

#[test]
fn applies_a_thousand_rate_changes() {
    in_netns(|| {
        let mut link =
            KernelLink::open(&link(Some(mbit(1)), bfifo(9000)), "a0", BackendReason::configured())
                .unwrap();
        for rate in 1..=1000 {
            link.set_rate(mbit(rate)).unwrap();
        }
        assert!(tc("class show dev a0").contains("rate 1Gbit"));
    });
}

#[test]
fn htb_over_pfifo_and_tbf_read_back() {
    in_netns(|| {
        let pfifo = Queue::pfifo(Limit::Packets(Packets::new(40)));
        let mut config = link(Some(mbit(10)), pfifo);
        let link = KernelLink::open(&config, "a0", BackendReason::configured()).unwrap();
        assert!(tc("qdisc show dev a0").contains("qdisc pfifo 10: parent 1:1 limit 40p"));
        drop(link);

        config.plan.shaper = Shaper::Tbf;
        let mut link = KernelLink::open(&config, "a0", BackendReason::configured()).unwrap();
        assert_eq!(link.state().qdiscs, ["tbf 1:", "pfifo 10:"]);
        link.set_rate(mbit(50)).unwrap();
        let shown = tc("qdisc show dev a0");
        assert!(shown.contains("tbf 1: root refcnt") && shown.contains("rate 50Mbit"), "{shown}");
        // A change of the token bucket must not change the queue's limit.
        assert!(shown.contains("qdisc pfifo 10: parent 1:1 limit 40p"), "{shown}");
        let mut rows = Vec::new();
        link.counters(1, &mut rows).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].rate_bps, Some(50_000_000));

        drop(link);
        config.queue = bfifo(60_000);
        let mut link = KernelLink::open(&config, "a0", BackendReason::configured()).unwrap();
        link.set_rate(mbit(200)).unwrap();
        let shown = tc("qdisc show dev a0");
        assert!(shown.contains("qdisc bfifo 10: parent 1:1 limit 60000b"), "{shown}");
    });
}

/// Returns the counters once the queues are empty. While a packet leaves, its qdisc may count it twice or not at all.
fn counters_when_idle(link: &mut KernelLink) -> Vec<wire::QdiscSample> {
    for _ in 0..4000 {
        let mut rows = Vec::new();
        link.counters(1, &mut rows).unwrap();
        if rows.iter().all(|row| row.qlen_pkts == 0) {
            return rows;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("packets stay in the queues");
}

#[test]
fn classes_get_matching_packets() {
    in_netns(|| {
        let matches = vec![
            PacketMatch { dport: Some(5201), ..PacketMatch::default() },
            PacketMatch { dst: "fd00::1".parse().ok(), ..PacketMatch::default() },
            PacketMatch { dscp: Some(46), ..PacketMatch::default() },
        ];
        let class = ClassConfig {
            name: "slice".to_owned(),
            plan: plan::Class { ceil: Some(mbit(100)), ..plan::Class::new(mbit(20)) },
            matches,
            queue: Queue::pfifo(Limit::Packets(Packets::new(7))),
        };
        let config = LinkConfig { classes: vec![class], ..link(Some(mbit(100)), bfifo(90_000)) };
        let mut link = KernelLink::open(&config, "a0", BackendReason::configured()).unwrap();
        assert_eq!(link.state().qdiscs, ["htb 1:", "bfifo 10:", "pfifo 11:"]);
        send_datagrams(5, 5201);
        send_datagrams(3, 5202);
        let rows = counters_when_idle(&mut link);
        let sent = |handle: &str, kind: &str| {
            rows.iter().find(|r| r.handle == handle && r.kind == kind).unwrap().sent_pkts
        };
        assert_eq!(sent("11:", "pfifo"), 5);
        assert_eq!(sent("1:11", "htb class"), 5);
        assert!(sent("10:", "bfifo") >= 3);

        link.set_rate(mbit(50)).unwrap();
        let shown = tc("class show dev a0");
        assert!(shown.contains("htb 1:1 root rate 50Mbit ceil 50Mbit"), "{shown}");
        assert!(shown.contains("rate 10Mbit ceil 50Mbit"), "{shown}");
        assert!(shown.contains("rate 40Mbit ceil 50Mbit"), "{shown}");
    });
}

#[test]
fn restores_user_qdiscs_also_from_another_process() {
    in_netns(|| {
        tc("qdisc add dev a0 root handle 8001: tbf rate 5mbit burst 4k limit 30000");
        tc("qdisc add dev a1 root handle 7: pfifo limit 33");
        let before = (tc("qdisc show dev a0"), tc("qdisc show dev a1"));
        let config = link(Some(mbit(100)), bfifo(90_000));
        for dev in ["a0", "a1"] {
            let record = serde_json::to_string(&saved::snapshot(dev).unwrap()).unwrap();
            let link = KernelLink::open(&config, dev, BackendReason::configured()).unwrap();
            assert_eq!(serde_json::to_string(link.saved()).unwrap(), record);
            // As after SIGKILL: no destructor runs, and another process reads the record.
            std::mem::forget(link);
            let saved: SavedRoot = serde_json::from_str(&record).unwrap();
            saved::restore(dev, &saved).unwrap();
            saved::restore(dev, &saved).unwrap();
        }
        assert_eq!((tc("qdisc show dev a0"), tc("qdisc show dev a1")), before);
    });
}

#[test]
fn rejects_a_root_qdisc_that_cannot_be_restored() {
    in_netns(|| {
        tc("qdisc add dev a0 root handle 1: htb default 7");
        let config = link(Some(mbit(100)), bfifo(90_000));
        let error = KernelLink::open(&config, "a0", BackendReason::configured()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a0 already has root qdisc htb 1:; remove it first: tc qdisc del dev a0 root"
        );
        let shown = tc("qdisc show dev a0");
        assert!(shown.contains("htb 1: root") && shown.contains("default 0x7"), "{shown}");
    });
}

#[test]
fn missing_qdisc_error_names_option_and_hint() {
    in_netns(|| {
        let before = tc("qdisc show dev a0");
        let probed = probe::supported_qdiscs();
        let codel = Queue::FqCodel(plan::FqCodel::default());
        let mut delayed = link(Some(mbit(100)), bfifo(90_000));
        delayed.plan.delay = Some(Micros::from_millis(10));
        let cases = [
            (
                delayed,
                "netem",
                "this kernel has no qdisc netem (CONFIG_NET_SCH_NETEM); \
                 write `backend = \"userspace\"` for link down",
            ),
            (
                link(Some(mbit(100)), codel),
                "fq_codel",
                "this kernel has no qdisc fq_codel (CONFIG_NET_SCH_FQ_CODEL); \
                 write `backend = \"userspace\"` for link down",
            ),
            (
                link(Some(mbit(100)), Queue::Cake(plan::Cake::default())),
                "cake",
                "this kernel has no qdisc cake (CONFIG_NET_SCH_CAKE); \
                 use another kernel, e.g. with CONFIG_NET_SCH_CAKE=m",
            ),
        ];
        for (config, kind, text) in cases {
            let others: Vec<String> = probed.iter().filter(|have| *have != kind).cloned().collect();
            assert_eq!(KernelLink::supports(&config, &others).unwrap_err().to_string(), text);
            if probed.iter().any(|have| have == kind) {
                KernelLink::supports(&config, &probed).unwrap();
                KernelLink::open(&config, "a0", BackendReason::configured()).unwrap();
                continue;
            }
            let error = KernelLink::open(&config, "a0", BackendReason::configured()).unwrap_err();
            assert!(matches!(error, ShaperError::Missing { .. }));
            assert_eq!(error.to_string(), text);
        }
        assert_eq!(tc("qdisc show dev a0"), before);
    });
}

#[test]
fn probe_finds_the_qdiscs_of_these_tests() {
    let found = probe::supported_qdiscs();
    for kind in ["htb", "tbf", "pfifo", "bfifo"] {
        assert!(found.iter().any(|have| have == kind), "{found:?}");
    }
}

#[test]
fn auto_prefers_the_kernel_and_reports_the_reason() {
    in_netns(|| {
        let mut config = link(Some(mbit(100)), bfifo(90_000));
        config.plan.backend = Backend::Auto;
        let mut kernel = ccbench_shaper::open(&config, "a0").unwrap();
        assert_eq!(kernel.state().backend(), wire::Backend::Kernel);
        assert_eq!(kernel.state().reason_text(), "auto: this kernel has htb, bfifo");
        kernel.remove().unwrap();

        config.plan.delay = Some(Micros::from_millis(5));
        let mut delayed = ccbench_shaper::open(&config, "a0").unwrap();
        let state = delayed.state();
        if probe::supported_qdiscs().iter().any(|kind| kind == "netem") {
            assert_eq!(state.reason_text(), "auto: this kernel has htb, netem, bfifo");
        } else {
            assert_eq!(state.backend(), wire::Backend::Userspace);
            assert_eq!(
                state.reason_text(),
                "auto: this kernel has no qdisc netem (CONFIG_NET_SCH_NETEM)"
            );
        }
        delayed.remove().unwrap();
    });
}

#[test]
fn policer_drops_what_exceeds_its_bucket_or_is_missing() {
    let has_police = in_netns(|| {
        let mut config = link(Some(mbit(100)), bfifo(90_000));
        // One packet of 1000 bytes per ten seconds, and a bucket of ten packets.
        let rate = Rate::from_bits_per_sec(800);
        config.plan.policer = Some(plan::Policer { rate, burst: Bytes::new(10_000) });
        let mut link = match KernelLink::open(&config, "a0", BackendReason::configured()) {
            Ok(link) => link,
            Err(error) => {
                let text = "this kernel has no action police (CONFIG_NET_ACT_POLICE); \
                            write `backend = \"userspace\"` for link down";
                assert_eq!(error.to_string(), text);
                return false;
            }
        };
        send_datagrams(30, 9);
        let rows = counters_when_idle(&mut link);
        let policed: Vec<_> = rows.iter().map(|row| row.drop_policed_pkts).collect();
        assert_eq!(policed[1..], [None, None], "{rows:?}");
        let policed = policed[0].unwrap();
        assert!(policed >= 15 && policed == rows[0].drops_pkts, "{rows:?}");
        link.remove().unwrap();
        true
    });
    if !has_police {
        skip("this kernel has no action police: only the error was tested");
    }
}

/// Returns one queue of each kind, with every parameter that a plan can set.
fn queues() -> Vec<Queue> {
    let (ms, bytes) = (Micros::from_millis, Bytes::new);
    let packets = |packets| Limit::Packets(Packets::new(packets));
    vec![
        Queue::pfifo(packets(100)),
        bfifo(100_000),
        Queue::Fq(plan::Fq {
            limit: Some(packets(1000)),
            flow_limit: Some(packets(200)),
            buckets: Some(1024),
            ce_threshold: Some(ms(1)),
            orphan_mask: Some(1023),
            quantum: Some(bytes(3028)),
            initial_quantum: Some(bytes(15_140)),
            maxrate: Some(Rate::from_bits_per_sec(1_000_000_000)),
        }),
        Queue::Codel(plan::Codel {
            limit: Some(packets(500)),
            target: Some(ms(5)),
            interval: Some(ms(100)),
            ecn: Some(true),
            ce_threshold: Some(ms(1)),
        }),
        Queue::FqCodel(plan::FqCodel {
            limit: Some(packets(500)),
            flows: Some(64),
            target: Some(ms(5)),
            interval: Some(ms(100)),
            quantum: Some(bytes(1514)),
            ecn: Some(true),
            ce_threshold: Some(ms(1)),
            memory_limit: Some(Limit::Bytes(bytes(4 << 20))),
            ce_threshold_selector: Some(1),
            ce_threshold_mask: Some(3),
            drop_batch: Some(32),
        }),
        Queue::Cake(plan::Cake {
            rtt: Some(ms(50)),
            memory_limit: Some(Limit::Bytes(bytes(4 << 20))),
        }),
        Queue::Dualpi2(plan::Dualpi2 {
            limit: Some(packets(10_000)),
            target: Some(ms(15)),
            tupdate: Some(ms(16)),
            alpha: Some("0.16".to_owned()),
            beta: Some("3.2".to_owned()),
            step_thresh: None,
            coupling_factor: Some(2),
            drop_on_overload: Some(true),
            drop_dequeue: Some(true),
            split_gso: Some(true),
            classic_protection: Ppm::new(100_000),
            step_thresh_pkts: Some(Packets::new(5)),
            min_qlen_step: Some(Packets::new(1)),
            memory_limit: Some(Limit::Bytes(bytes(4 << 20))),
            any_ect: Some(true),
        }),
    ]
}

/// Applies `config`, sends packets, changes the rate, and removes the link.
fn works(config: &LinkConfig) {
    let mut link = KernelLink::open(config, "a0", BackendReason::configured()).unwrap();
    let state = link.state();
    let needs = KernelLink::needs(config);
    let kinds: Vec<_> = state.qdiscs.iter().map(|q| q.split(' ').next().unwrap()).collect();
    assert!(needs.iter().all(|kind| kinds.contains(kind)), "{state:?} for {needs:?}");
    send_datagrams(5, 9);
    if config.plan.rate.is_some() {
        link.set_rate(mbit(30)).unwrap();
    }
    for number in 0..config.changed_queues.len() {
        link.set_queue(number).unwrap();
    }
    // While a packet leaves, its qdisc may not count it.
    ccbench_tests::wait_for("the count of every packet", Duration::from_secs(10), || {
        let mut rows = Vec::new();
        link.counters(1, &mut rows).unwrap();
        let qdiscs: Vec<_> = rows.iter().filter(|row| !row.kind.ends_with("class")).collect();
        assert_eq!(qdiscs.len(), needs.len());
        let root = qdiscs.iter().find(|row| row.parent == "root").unwrap();
        // Loss is random, so packets dropped by netem count, too.
        root.sent_pkts + root.qlen_pkts + root.drops_pkts >= 5
    });
    link.remove().unwrap();
    assert!(tc("qdisc show dev a0").starts_with("qdisc noqueue 0: root"));
}

#[test]
fn every_supported_queue_works_under_every_shaper() {
    in_netns(|| {
        let probed = probe::supported_qdiscs();
        let mut worked = BTreeSet::new();
        for queue in queues() {
            for (shaper, rate) in
                [(Shaper::Htb, Some(mbit(20))), (Shaper::Tbf, Some(mbit(20))), (Shaper::Htb, None)]
            {
                for (delay_us, loss_ppm) in [(0, 0), (10_001, 0), (0, 1000), (5_000, 1000)] {
                    let mut config = link(rate, queue.clone());
                    config.plan.shaper = shaper;
                    config.plan.delay = Some(Micros::new(delay_us));
                    config.plan.loss = Ppm::new(loss_ppm);
                    let changes = rate.iter().filter(|_| !matches!(queue, Queue::Red(_)));
                    config.changed_queues = changes.map(|_| queue.clone()).collect();
                    if KernelLink::supports(&config, &probed).is_ok() {
                        works(&config);
                        worked.insert(KernelLink::needs(&config));
                    }
                }
            }
        }
        // Every kernel in which these tests run has these.
        for kinds in [["htb", "pfifo"], ["htb", "bfifo"], ["tbf", "pfifo"], ["tbf", "bfifo"]] {
            assert!(worked.contains(&kinds[..]), "no link of {kinds:?} among {worked:?}");
        }
    });
}

#[test]
fn restores_user_qdiscs_of_every_kind() {
    in_netns(|| {
        let probed = probe::supported_qdiscs();
        let asked = [
            ("fq", "limit 500 flow_limit 50"),
            ("codel", "limit 500 target 3ms ecn"),
            ("fq_codel", "limit 500 flows 16 target 3ms"),
            ("cake", "bandwidth 30mbit rtt 30ms"),
            ("netem", "delay 7ms 1ms loss 2% limit 500"),
            ("bfifo", "limit 9000"),
        ];
        for (kind, options) in asked.iter().filter(|a| probed.iter().any(|have| have == a.0)) {
            tc(&format!("qdisc add dev a0 root handle 5: {kind} {options}"));
            let before = tc("qdisc show dev a0");
            drop(
                KernelLink::open(
                    &link(Some(mbit(100)), bfifo(90_000)),
                    "a0",
                    BackendReason::configured(),
                )
                .unwrap(),
            );
            assert_eq!(tc("qdisc show dev a0"), before);
            tc("qdisc del dev a0 root");
        }
    });
}
