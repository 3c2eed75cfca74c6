//! Tests how a node gets its first certificate: `pki token`, `pki serve` and `ccbench-agent join`, over real sockets.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use ccbench_tests::{Bench, binary, text};

use crate::{err, out};

/// `ccbench pki serve pki` on a free loopback port. It is killed on drop.
pub struct Service {
    child: Child,
    printed: BufReader<ChildStdout>,
    address: String,
}

impl Service {
    fn start(bench: &Bench) -> Self {
        Self::start_with(bench, &[])
    }

    pub fn start_with(bench: &Bench, more: &[&str]) -> Self {
        let mut command = bench.command(&["pki", "serve", "pki", "--listen", "127.0.0.1:0"]);
        let mut child =
            command.args(more).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut printed = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        printed.read_line(&mut line).unwrap();
        let address = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:"));
        let address = address.unwrap_or_else(|| panic!("no address: {line}")).to_owned();
        Self { child, printed, address }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Waits for its end. Returns its output.
    fn end(mut self) -> String {
        let mut rest = String::new();
        self.printed.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
        rest
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn token(bench: &Bench, pki: &str, name: &str) -> String {
    let made = bench.run(&["pki", "token", pki, name]);
    assert_eq!(made.status.code(), Some(0), "{}", text(&made));
    assert!(err(&made).contains(" within 1h on the node"), "{}", text(&made));
    out(&made).trim().to_owned()
}

pub fn join(bench: &Bench, service: &Service, token: &str, dir: &str) -> Output {
    join_with(bench, service, token, dir, &[])
}

fn join_with(bench: &Bench, service: &Service, token: &str, dir: &str, more: &[&str]) -> Output {
    let mut command = Command::new(binary("ccbench-agent"));
    command.args(["join", "--controller", &service.address, "--token", token, "--dir"]);
    command.arg(bench.path(dir)).args(more).output().unwrap()
}

/// Checks that the node gets no certificate and leaves nothing behind.
fn is_refused(bench: &Bench, service: &Service, token: &str, reason: &str) {
    let refused = join(bench, service, token, "refused");
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(err(&refused).contains(reason), "no `{reason}`: {}", text(&refused));
    assert!(!text(&refused).contains(token), "the token is printed");
    assert!(!bench.path("refused").exists(), "{}", text(&refused));
}

#[test]
fn a_token_gives_one_certificate() {
    let bench = Bench::new();
    for pki in ["pki", "other"] {
        assert_eq!(bench.run(&["pki", "init", pki]).status.code(), Some(0));
    }
    let [first, late, kept] = ["127.0.0.1", "late", "kept"].map(|name| token(&bench, "pki", name));
    let service = Service::start(&bench);

    let joined = join(&bench, &service, &first, "node");
    assert_eq!(joined.status.code(), Some(0), "{}", text(&joined));
    let read = |name: &str| std::fs::read_to_string(bench.path(name)).unwrap();
    assert_eq!(read("node/node.pem"), read("pki/127.0.0.1.pem"), "the authority can revoke it");
    assert_eq!(read("node/ca.pem"), read("pki/ca.pem"));
    assert_eq!(read("node/crl.pem"), read("pki/crl.pem"));
    assert!(!bench.path("pki/127.0.0.1.key").exists(), "the key does not leave the node");
    // The front is a different user: it reads the public files, and gets the key from systemd.
    for (name, expected) in [("node.key", 0o600), ("node.pem", 0o644), ("ca.pem", 0o644)] {
        let metadata = std::fs::metadata(bench.path("node").join(name)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, expected, "{name}");
    }
    let again = join(&bench, &service, &kept, "node");
    assert!(err(&again).contains("node/node.key already exists"), "{}", text(&again));

    is_refused(&bench, &service, &first, "unknown or was used already");
    let digit = if kept.ends_with('0') { "1" } else { "0" };
    let wrong = kept[..kept.len() - 1].to_owned() + digit;
    is_refused(&bench, &service, &wrong, "unknown or was used already");
    let expired = |line: &str| match line.strip_suffix(" late") {
        Some(rest) => format!("{} 1 late\n", rest.split(' ').next().unwrap()),
        None => format!("{line}\n"),
    };
    let record: String = read("pki/tokens").lines().map(expired).collect();
    // The service may read the record at any time. So the record is replaced, as the authority does, and never seen empty.
    std::fs::write(bench.path("pki/tokens.new"), record).unwrap();
    std::fs::rename(bench.path("pki/tokens.new"), bench.path("pki/tokens")).unwrap();
    is_refused(&bench, &service, &late, "the token has expired");
    // A token of another authority is not sent.
    let others = token(&bench, "other", "node5");
    is_refused(&bench, &service, &others, "does not belong to the authority that made this token");
    let cut = &kept[..kept.len() - 1];
    let malformed = join(&bench, &service, cut, "refused");
    assert_eq!(malformed.status.code(), Some(2), "{}", text(&malformed));
    assert!(err(&malformed).contains("this is not a join token"), "{}", text(&malformed));
    let secret = kept.rsplit(':').next().unwrap();
    let printed = text(&malformed);
    assert!(!printed.contains(&secret[..secret.len() - 1]), "{printed}");
    // A space in a copied token.
    let (before, after) = kept.split_at(kept.len() - 16);
    let parted = join_with(&bench, &service, before, "refused", &[after]);
    assert_eq!(parted.status.code(), Some(2), "{}", text(&parted));
    let printed = text(&parted);
    assert!(!printed.contains(after), "{printed}");

    // Only root can give the key to another user.
    let uid = match std::fs::metadata(bench.path("")).unwrap().uid() {
        0 => 12_345,
        own => own,
    };
    let joined = join_with(&bench, &service, &kept, "node2", &["--user", &uid.to_string()]);
    assert_eq!(joined.status.code(), Some(0), "{}", text(&joined));
    let key = std::fs::metadata(bench.path("node2/node.key")).unwrap();
    assert_eq!((key.uid(), key.permissions().mode() & 0o777), (uid, 0o600));
    let printed = service.end();
    assert!(printed.ends_with("no token is left\n"), "{printed}");
    let issued: Vec<&str> = printed.lines().filter(|line| line.contains("issued")).collect();
    assert_eq!(issued.len(), 2, "{printed}");
}

#[test]
fn a_certificate_that_cannot_be_written_can_be_revoked() {
    let bench = Bench::new();
    assert_eq!(bench.run(&["pki", "init", "pki"]).status.code(), Some(0));
    let secret = token(&bench, "pki", "127.0.0.1");
    let service = Service::start(&bench);
    // Like a full disk: the file that replaces node.pem cannot be written.
    std::fs::create_dir_all(bench.path("node/.node.pem.new")).unwrap();
    let failed = join(&bench, &service, &secret, "node");
    assert_eq!(failed.status.code(), Some(1), "{}", text(&failed));
    let message = err(&failed);
    assert!(message.contains("node.pem: "), "{message}");
    assert!(message.contains("has already issued a certificate to 127.0.0.1"), "{message}");
    assert!(message.contains("`ccbench pki revoke pki pki/127.0.0.1.pem`"), "{message}");
    let left = std::fs::read_dir(bench.path("node")).unwrap().count();
    assert_eq!(left, 1, "neither a key nor a certificate is left");
    let printed = service.end();
    assert!(printed.contains("127.0.0.1: issued a certificate"), "{printed}");
    let revoked = bench.run(&["pki", "revoke", "pki", "pki/127.0.0.1.pem"]);
    assert_eq!(revoked.status.code(), Some(0), "{}", text(&revoked));
}
