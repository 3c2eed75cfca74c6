//! Tests the page over real sockets. The tests of the report and of the page in a browser are in crates/cli/tests/live.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use ccbench_tests::wait_for;

use crate::live::Live;
use crate::live::trial::TrialFacts;
use crate::live::update::Update;
use crate::view::http::Site;
use crate::view::server::Server;
use crate::view::socket;

/// A run without results, and its page.
struct Served {
    live: Live,
    server: Server,
    host: String,
    path: String,
    _dir: tempfile::TempDir,
}

fn serve(label: &str) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let live = Live::default();
    let facts = TrialFacts { number: 1, label: label.to_owned(), ..TrialFacts::default() };
    live.state().start_trial(facts, None);
    let server = Server::start(&live, dir.path(), true).unwrap();
    let url = server.url().unwrap().strip_prefix("http://").unwrap();
    let (host, path) = url.split_once('/').unwrap();
    Served { live, host: host.to_owned(), path: format!("/{path}"), server, _dir: dir }
}

impl Served {
    fn send(&self, method: &str, path: &str, host: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
            .unwrap();
        stream
    }

    /// Returns the status and the whole response.
    fn get(&self, path: &str) -> (u16, String) {
        response(self.send("GET", path, &self.host))
    }

    /// Returns the first update and the rest of the event stream.
    fn follow(&self) -> (Update, BufReader<TcpStream>) {
        let mut stream =
            BufReader::new(self.send("GET", &format!("{}events", self.path), &self.host));
        let line = line_with(&mut stream, "data: {");
        (serde_json::from_str(line.strip_prefix("data: ").unwrap()).unwrap(), stream)
    }
}

fn response(mut stream: TcpStream) -> (u16, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    (text.split(' ').nth(1).unwrap().parse().unwrap(), text)
}

/// Returns the next line with this prefix.
fn line_with(stream: &mut BufReader<TcpStream>, begin: &str) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0, "the stream ended before {begin}");
        if line.starts_with(begin) {
            return line;
        }
    }
}

#[test]
fn only_the_whole_address_opens_the_page() {
    let served = serve("first");
    let (status, page) = served.get(&served.path);
    assert_eq!(status, 200, "{page}");
    let policy = page.lines().find(|line| line.starts_with("content-security-policy: ")).unwrap();
    let nonce = policy.split("script-src 'nonce-").nth(1).unwrap().split('\'').next().unwrap();
    assert!(page.contains(&format!("<script nonce=\"{nonce}\">")), "{policy}");
    assert_eq!(nonce.len(), 32);
    assert!(
        page.contains("referrer-policy: no-referrer") && page.contains("cache-control: no-store")
    );
    let token = served.path.trim_matches('/').to_owned();
    assert!(token.len() == 32 && !page.contains(&token), "the page does not repeat its token");
    for wrong in ["/", "/events", "//events", "/0/events", &format!("/{}0/", &token[..31])] {
        // The last one may be right by chance, if the token's last digit is 0.
        if wrong.trim_matches('/') != token {
            assert_eq!(served.get(wrong).0, 403, "{wrong}");
        }
    }
    assert_eq!(served.get(&format!("{}other", served.path)).0, 404);
    assert_eq!(response(served.send("POST", &served.path, &served.host)).0, 405);
    // A name that resolves to this address, and the address of another server.
    for host in ["example.com", "example.com:80", "127.0.0.1", "127.0.0.1:1"] {
        assert_eq!(response(served.send("GET", &served.path, host)).0, 403, "{host}");
    }
    let port = served.host.rsplit(':').next().unwrap();
    let localhost = format!("localhost:{port}");
    assert_eq!(response(served.send("GET", &served.path, &localhost)).0, 200);
}

#[test]
fn metrics_are_those_of_the_run_in_progress() {
    let served = serve("first");
    let (status, answer) = served.get(&format!("{}metrics", served.path));
    assert!(
        status == 200 && answer.contains("content-type: application/openmetrics-text"),
        "{answer}"
    );
    let expected = "ccbench_run_trial_status{run=\"\",ccbench_run_trial_status=\"ok\"} 1\n";
    assert!(answer.contains(expected) && answer.contains("# EOF\n"), "{answer}");
    assert_eq!(served.get("/metrics").0, 403, "without the token");
}

#[test]
fn every_page_follows_the_run_to_its_report() {
    let served = serve("first");
    let mut pages = [served.follow(), served.follow()];
    assert!(pages.iter().all(|(update, _)| update.run.running[0].label == "first"));
    served.live.state().end_trial(1, "ok", vec![]);
    served.live.state().end("complete");
    for (_, stream) in &mut pages {
        line_with(stream, "event: end");
    }
    // Asking for the report is enough; a directory without results has none.
    for _ in 0..2 {
        let (status, text) = served.get(&format!("{}report", served.path));
        assert!(status == 500 && text.contains("connection: close"), "{text}");
    }
    let Served { server, host, .. } = served;
    server.finish();
    // A child process of another test holds a copy of the descriptor until its exec.
    let is_gone = || TcpStream::connect(&host).is_err();
    wait_for("the end of listening", Duration::from_secs(10), is_gone);
}

#[test]
fn a_page_that_does_not_read_delays_no_other() {
    // The update is larger than the buffers of all sockets on its way.
    let served = serve(&"x".repeat(4_000_000));
    let silent = served.send("GET", &format!("{}events", served.path), &served.host);
    assert_eq!(served.follow().0.run.running.len(), 1);
    drop(silent);
}

#[test]
fn a_full_queue_of_the_runs_socket_delays_no_other_request() {
    let dir = tempfile::tempdir().unwrap();
    let run = socket::bind(dir.path()).unwrap();
    // The queue has room for one connection.
    rustix::net::listen(&run, 0).unwrap();
    let _queued = socket::connect(&socket::name(dir.path())).unwrap();
    let site = Site::bind(dir.path()).unwrap();
    let url = site.url();
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(site.serve());
    });
    let send = |path: &str| {
        let mut stream = TcpStream::connect(host).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
            .unwrap();
        stream
    };
    let waiting = send(path);
    for _ in 0..2 {
        assert_eq!(response(send("")).0, 403, "without the token");
    }
    let _accepted = run.accept().unwrap();
    assert_eq!(response(waiting).0, 200, "the live page");
}
