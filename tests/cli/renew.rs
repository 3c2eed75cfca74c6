//! Tests how a node that has joined renews its certificate: `pki serve --until-stopped` and `ccbench-agent renew`, over real sockets.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

use ccbench_tests::{Bench, binary, text};

use crate::join::{Service, join, token};
use crate::{err, out};

fn renew(bench: &Bench, address: &str, dir: &str, more: &[&str]) -> Output {
    let mut command = Command::new(binary("ccbench-agent"));
    command.args(["renew", "--controller", address, "--dir"]);
    command.arg(bench.path(dir)).args(more).output().unwrap()
}

/// A directory of a node, with these files in place of its own.
fn node_with(bench: &Bench, dir: &str, certificate: &str, key: &str, authority: &str) {
    std::fs::create_dir(bench.path(dir)).unwrap();
    for (from, to) in [(certificate, "node.pem"), (key, "node.key"), (authority, "ca.pem")] {
        std::fs::copy(bench.path(from), bench.path(dir).join(to)).unwrap();
    }
}

fn succeeds(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", text(output));
}

/// Checks that the service does not renew the certificate in `dir`, which stays.
fn is_refused(bench: &Bench, service: &Service, dir: &str, reason: &str) {
    let read = || std::fs::read(bench.path(dir).join("node.pem")).unwrap();
    let before = read();
    let refused = renew(bench, service.address(), dir, &[]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(err(&refused).contains(reason), "no `{reason}`: {}", text(&refused));
    assert_eq!(read(), before, "{reason}");
}

#[test]
fn a_node_that_has_joined_renews_its_certificate() {
    let bench = Bench::new();
    succeeds(&bench.run(&["pki", "init", "pki"]));
    let secret = token(&bench, "pki", "127.0.0.1");
    let service = Service::start_with(&bench, &["--until-stopped"]);
    succeeds(&join(&bench, &service, &secret, "node"));
    let read = |name: &str| std::fs::read_to_string(bench.path(name)).unwrap();
    let (first, key) = (read("node/node.pem"), read("node/node.key"));
    node_with(&bench, "earlier", "node/node.pem", "node/node.key", "pki/ca.pem");

    // Nothing listens at this address.
    let kept = renew(&bench, "127.0.0.1:1", "node", &["--if-due"]);
    succeeds(&kept);
    assert!(out(&kept).contains("it is not due for renewal"), "{}", text(&kept));
    assert_eq!(read("node/node.pem"), first);

    // No token is left, and the service continues. The second renewal uses the certificate of the first one.
    let mut earlier = first;
    for number in 1..=2 {
        succeeds(&renew(&bench, service.address(), "node", &[]));
        let renewed = read("node/node.pem");
        assert_ne!(renewed, earlier);
        assert_eq!(renewed, read("pki/127.0.0.1.pem"), "the authority keeps the renewed one");
        assert_eq!(read("pki/renewed").lines().count(), number);
        earlier = renewed;
    }
    assert_eq!(read("node/node.key"), key);
    for (name, expected) in [("node.key", 0o600), ("node.pem", 0o644), ("crl.pem", 0o644)] {
        let metadata = std::fs::metadata(bench.path("node").join(name)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, expected, "{name}");
    }
    let by_hand = bench.run(&["pki", "renew", "pki", "pki/127.0.0.1.pem"]);
    assert_eq!(by_hand.status.code(), Some(3), "{}", text(&by_hand));
    assert!(err(&by_hand).contains("`ccbench-agent renew --controller"), "{}", text(&by_hand));

    // Revoking the first certificate revokes the last one.
    succeeds(&bench.run(&["pki", "revoke", "pki", "earlier/node.pem"]));
    for dir in ["node", "earlier"] {
        is_refused(
            &bench,
            &service,
            dir,
            "the certificate of 127.0.0.1 or one that is connected with it",
        );
    }
    assert_eq!(read("pki/renewed").lines().count(), 2, "nothing else was renewed");
}

#[test]
fn only_a_node_of_the_authority_renews_its_certificate() {
    let bench = Bench::new();
    for pki in ["pki", "other"] {
        succeeds(&bench.run(&["pki", "init", pki]));
        succeeds(&bench.run(&["pki", "node", pki, "n1"]));
    }
    let service = Service::start_with(&bench, &["--until-stopped"]);
    node_with(&bench, "foreign", "other/n1.pem", "other/n1.key", "pki/ca.pem");
    is_refused(&bench, &service, "foreign", "this authority did not sign the node's certificate");
    node_with(&bench, "elsewhere", "other/n1.pem", "other/n1.key", "other/ca.pem");
    is_refused(&bench, &service, "elsewhere", "does not belong to the authority of ");
    node_with(&bench, "controller", "pki/controller.pem", "pki/controller.key", "pki/ca.pem");
    is_refused(&bench, &service, "controller", "the certificate of controller is not a node's");
    node_with(&bench, "stolen", "pki/n1.pem", "other/n1.key", "pki/ca.pem");
    is_refused(&bench, &service, "stolen", "node.key is not the key of node.pem");
    assert!(!bench.path("pki/renewed").exists());
    // Its key was made by the authority.
    node_with(&bench, "node", "pki/n1.pem", "pki/n1.key", "pki/ca.pem");
    succeeds(&renew(&bench, service.address(), "node", &[]));
}
