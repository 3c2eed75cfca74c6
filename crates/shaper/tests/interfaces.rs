//! Tests offloads and routes in network namespaces. These tests need root, iproute2 and ethtool; without them they fail.

#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

use ccbench_shaper::netlink::{self, Socket};
use ccbench_shaper::offload::{self, Offloads};
use ccbench_shaper::{ShaperError, route, stack};
use ccbench_tests::skip::skip;

fn run(line: &str) -> String {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `body` on a thread with its own network namespace, which has a veth pair `a0`, `a1` and ends with the thread.
fn in_netns<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
            .expect("these tests need root (CAP_SYS_ADMIN) to make a network namespace");
        netlink::add_veth(&mut Socket::open().unwrap(), "a0", "a1").unwrap();
        body()
    });
    match thread.join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Adds an interface with `ip link add ARGUMENTS`. Returns false if the kernel has no interfaces of this kind.
fn added(arguments: &str) -> bool {
    let mut add = Command::new("ip");
    let output = add.args(["link", "add"]).args(arguments.split(' ')).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    let is_missing = ["Unknown device type", "not supported"].iter().any(|why| error.contains(why));
    assert!(output.status.success() || is_missing, "ip link add {arguments}: {error}");
    output.status.success()
}

/// Returns the names of the interfaces beneath one in this kernel.
fn lower_devices(dev: &str) -> Vec<String> {
    stack::lower_devices(dev, &stack::interfaces().unwrap()).into_iter().collect()
}

#[test]
fn interfaces_beneath_others_are_found() {
    let missing = in_netns(|| {
        assert_eq!(lower_devices("a0"), ["a0"], "the other end of a pair is not beneath");
        assert!(!stack::interfaces().unwrap().iter().any(stack::StackedInterface::is_physical));
        let mut missing = Vec::new();
        for kind in ["vlan id 7", "macvlan", "ipvlan"] {
            if added(&format!("link a0 name s0 type {kind}")) {
                assert_eq!(lower_devices("s0"), ["a0", "s0"], "{kind}");
                assert_eq!(lower_devices("a0"), ["a0"], "{kind}");
                run("ip link del s0");
            } else {
                missing.push(kind);
            }
        }
        if added("b0 type bridge") {
            run("ip link set a0 master b0");
            run("ip link set a1 master b0");
            assert_eq!(lower_devices("b0"), ["a0", "a1", "b0"]);
        } else {
            missing.push("bridge");
        }
        missing
    });
    if !missing.is_empty() {
        skip(&format!("this kernel has no {}", missing.join(", ")));
    }
}

/// Returns the state of a feature in `ethtool -k`.
fn feature(dev: &str, name: &str) -> String {
    let all = run(&format!("ethtool -k {dev}"));
    let line = all.lines().find(|line| line.trim().starts_with(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("no {name} in {all}")).split_once(": ").unwrap().1.to_owned()
}

fn seen(dev: &str) -> [String; 4] {
    [
        "tcp-segmentation-offload",
        "generic-segmentation-offload",
        "generic-receive-offload",
        "tx-udp-segmentation",
    ]
    .map(|name| feature(dev, name))
}

#[test]
fn sets_and_restores_offloads() {
    in_netns(|| {
        run("ethtool -K a0 gro on");
        let all = || (run("ethtool -k a0"), run("ip -d link show a0"));
        let before = all();
        let on = Offloads { tso: true, gso: true, gro: true };
        assert_eq!(offload::get("a0").unwrap(), on);
        let saved = offload::snapshot("a0").unwrap();

        assert_eq!(offload::set("a0", Offloads::OFF).unwrap(), on);
        assert_eq!(seen("a0"), ["off", "off", "off", "off"]);
        assert_eq!(offload::get("a0").unwrap(), Offloads::OFF);
        assert!(run("ip -d link show a0").contains("gso_max_segs 1 "));

        assert_eq!(offload::set("a0", on).unwrap(), Offloads::OFF);
        assert_eq!(seen("a0"), ["on", "on", "on", "on"]);

        offload::set("a0", Offloads::OFF).unwrap();
        let record = serde_json::to_string(&saved).unwrap();
        offload::restore("a0", &serde_json::from_str(&record).unwrap()).unwrap();
        assert_eq!(all(), before);
    });
}

#[test]
fn unknown_interface_is_named_in_the_error() {
    in_netns(|| {
        let error = offload::get("nosuch0").unwrap_err();
        assert!(matches!(error, ShaperError::NotFound { .. }), "{error}");
        assert_eq!(error.to_string(), "no interface named nosuch0");
    });
}

#[test]
fn finds_the_interface_of_a_route() {
    in_netns(|| {
        run("ip addr add 10.9.0.1/24 dev a0");
        run("ip link set a0 up");
        run("ip link set a1 up");
        run("ip route add 10.8.0.0/16 via 10.9.0.2");
        let dev = |address: &str| route::egress_dev(address.parse().unwrap());
        assert_eq!(dev("10.9.0.7").unwrap(), "a0");
        assert_eq!(dev("10.8.1.1").unwrap(), "a0");
        let error = dev("192.0.2.1").unwrap_err();
        assert_eq!(error.to_string(), "no route to an address named 192.0.2.1");

        let all = route::interfaces().unwrap();
        let a0 = all.iter().find(|i| i.name == "a0").unwrap();
        assert_eq!((a0.driver.as_str(), a0.mtu_bytes, a0.up), ("veth", 1500, true));
        assert_eq!(a0.addresses[0], "10.9.0.1/24");
        assert_eq!((a0.tso, a0.gso, a0.root_qdisc.as_str()), (true, true, "noqueue"));
    });
}
