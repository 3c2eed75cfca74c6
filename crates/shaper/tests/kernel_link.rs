//! Kernel links in a network namespace of their own. Needs root; without it every test here fails.
use ccbench_shaper::netlink::{self, Socket};

/// Runs `body` on a thread with its own network namespace, which dies with it.
fn in_netns<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
            .expect("these tests need root (CAP_SYS_ADMIN) to make a network namespace");
        body()
    })
    .join()
    .unwrap()
}

#[test]
fn a_veth_pair_carries_a_redirect() {
    in_netns(|| {
        let mut socket = Socket::open().unwrap();
        netlink::add_veth(&mut socket, "a0", "a1").unwrap();
        netlink::add_veth(&mut socket, "b0", "b1").unwrap();
        let (a, b) = (netlink::ifindex("a0").unwrap(), netlink::ifindex("b0").unwrap());
        netlink::set_up(&mut socket, a).unwrap();
        netlink::add_clsact(&mut socket, a).unwrap();
        netlink::add_redirect(&mut socket, a, 0x0800, 1, b).unwrap();
        netlink::add_redirect(&mut socket, a, 0x86dd, 2, b).unwrap();
        let shown = std::process::Command::new("tc")
            .args(["filter", "show", "dev", "a0", "egress"])
            .output()
            .unwrap();
        eprintln!("{}", String::from_utf8_lossy(&shown.stdout));
        netlink::del_redirect(&mut socket, a, 0x0800, 1).unwrap();
        let error = netlink::del_redirect(&mut socket, a, 0x0800, 1).unwrap_err();
        eprintln!("{error}");
        netlink::del_clsact(&mut socket, a).unwrap();
        netlink::delete_link(&mut socket, "a1").unwrap();
        assert!(netlink::ifindex("a0").is_err());
    });
}
