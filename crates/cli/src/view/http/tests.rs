//! Tests the page over real sockets. The tests of the report and of the page in a browser are in crates/cli/tests/live.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use ccbench_tests::wait_for;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::{Counts, Shared, WaitingPage};
use crate::live::Live;
use crate::live::trial::TrialFacts;
use crate::live::update::Update;
use crate::view::http::Site;
use crate::view::report::Reports;
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
        send(&self.host, method, path, host)
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

fn send(address: &str, method: &str, path: &str, host: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
        .unwrap();
    stream
}

fn response(mut stream: TcpStream) -> (u16, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    (text.split(' ').nth(1).unwrap().parse().unwrap(), text)
}

/// Returns the response to a request for the report: the report, or an error. Reloads a page that waits for it, as a browser does.
fn report(host: &str, path: &str) -> (u16, String) {
    let mut page = format!("{path}report");
    loop {
        let (status, text) = response(send(host, "GET", &page, host));
        let Some(next) = reload(&text) else { return (status, text) };
        page = format!("{path}{next}");
    }
}

/// Returns the address that a page loads next.
fn reload(page: &str) -> Option<&str> {
    let (_, rest) = page.split_once("http-equiv=\"refresh\" content=\"0; url=")?;
    rest.split('"').next()
}

/// The page of a run whose reports are made when the test permits it.
struct Reported {
    site: Site,
    permits: mpsc::Sender<()>,
    /// Number of reports that were begun.
    begun: Arc<AtomicU64>,
    host: String,
    path: String,
    _dir: tempfile::TempDir,
}

impl Reported {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (permits, permitted) = mpsc::channel::<()>();
        let begun = Arc::new(AtomicU64::new(0));
        let (counter, permitted) = (Arc::clone(&begun), Mutex::new(permitted));
        let make = move |_: &Path| {
            let nth = counter.fetch_add(1, Ordering::Relaxed) + 1;
            // Fails at the end of a test that does not permit it.
            let _ = permitted.lock().unwrap().recv();
            Ok(format!("report {nth}"))
        };
        let reports = Reports::made_by(dir.path(), Box::new(make));
        let site = Site::with(dir.path().to_owned(), reports).unwrap();
        let url = site.url();
        let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
        let (host, path) = (host.to_owned(), format!("/{path}"));
        Self { site, permits, begun, host, path, _dir: dir }
    }

    /// Asks for the report and reads the page that waits for it, except for its end.
    fn wait(host: &str, path: &str) -> BufReader<TcpStream> {
        let mut stream = BufReader::new(send(host, "GET", &format!("{path}report"), host));
        assert!(line_with(&mut stream, "HTTP/1.1 ").contains(" 200 "));
        line_with(&mut stream, "<h1>The report is being made</h1>");
        stream
    }
}

/// Waits in the runtime until the numbers of pages are these.
async fn counted(shared: &Shared, expected: Counts) {
    let mut counts = shared.counts.subscribe();
    counts.wait_for(|counts| *counts == expected).await.unwrap();
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
        let (status, text) = report(&served.host, &served.path);
        assert!(status == 500 && text.contains("connection: close"), "{text}");
    }
    let Served { server, host, .. } = served;
    server.finish();
    // A child process of another test holds a copy of the descriptor until its exec.
    let is_gone = || TcpStream::connect(&host).is_err();
    wait_for("the end of listening", Duration::from_secs(10), is_gone);
}

#[test]
fn pages_wait_for_one_report_and_reload_themselves() {
    let Reported { site, permits, begun, host, path, _dir } = Reported::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    std::thread::spawn(move || runtime.block_on(site.serve()));
    let pages = [Reported::wait(&host, &path), Reported::wait(&host, &path)];
    permits.send(()).unwrap();
    for mut page in pages {
        let mut rest = String::new();
        page.read_to_string(&mut rest).unwrap();
        let next = reload(&rest).unwrap();
        let (status, text) = response(send(&host, "GET", &format!("{path}{next}"), &host));
        assert!(status == 200 && text.ends_with("\r\n\r\nreport 1"), "{text}");
    }
    assert!(report(&host, &path).1.ends_with("report 1"));
    assert_eq!(begun.load(Ordering::Relaxed), 1, "all pages have the same report");
}

#[test]
fn the_server_waits_for_the_report_and_for_no_closed_page() {
    let Reported { site, permits, host, path, _dir, .. } = Reported::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let shared = Arc::clone(&site.shared);
    runtime.block_on(async {
        tokio::spawn(site.serve());
        let (own_host, own_path) = (host.clone(), path.clone());
        let pages = move || [(); 2].map(|()| Reported::wait(&own_host, &own_path));
        let [closed, mut page] = spawn_blocking(pages).await.unwrap();
        counted(&shared, Counts { waiting: 2, ..Counts::default() }).await;
        // Sending may take no time here, but making the report is not sending it.
        let waiting = Arc::clone(&shared);
        let reported = tokio::spawn(async move { waiting.reported(Duration::ZERO).await });
        drop(closed);
        counted(&shared, Counts { waiting: 1, ..Counts::default() }).await;
        // Lets the time limit pass, which is zero.
        for _ in 0..20 {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(!reported.is_finished(), "a page waits for the report");
        permits.send(()).unwrap();
        let load = move || {
            let mut rest = String::new();
            page.read_to_string(&mut rest).unwrap();
            let next = reload(&rest).unwrap();
            response(send(&host, "GET", &format!("{path}{next}"), &host)).1
        };
        assert!(spawn_blocking(load).await.unwrap().ends_with("report 1"));
        reported.await.unwrap();
        counted(&shared, Counts::default()).await;
    });
}

#[test]
fn a_client_that_does_not_reload_is_not_counted_for_long() {
    let Reported { site, permits, _dir, .. } = Reported::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let shared = Arc::clone(&site.shared);
    runtime.block_on(async {
        let number = shared.reports.request(false);
        permits.send(()).unwrap();
        let hour = Duration::from_secs(3600);
        let page = |expiry| {
            let (waiting, had_ticket) = WaitingPage::new(&shared, None);
            assert!(!had_ticket);
            let (send, receive) = tokio::sync::mpsc::channel(2);
            (tokio::spawn(waiting.send(number, send, expiry)), receive)
        };
        let (patient, mut body) = page(hour);
        while body.recv().await.is_some() {}
        let reloading = Counts { reloading: 1, ..Counts::default() };
        counted(&shared, reloading).await;
        assert!(!patient.is_finished(), "the body ends before the ticket expires");
        let (expired, mut body) = page(Duration::ZERO);
        while body.recv().await.is_some() {}
        expired.await.unwrap();
        assert_eq!(*shared.counts.borrow(), reloading, "that of the other page");
        assert!(shared.reports.take_ticket(1) && !shared.reports.take_ticket(2));
        patient.abort();
    });
}

#[test]
fn a_report_that_the_user_reloads_is_no_other_page() {
    let Reported { site, permits, host, path, _dir, .. } = Reported::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let shared = Arc::clone(&site.shared);
    runtime.block_on(async {
        tokio::spawn(site.serve());
        let number = shared.reports.request(false);
        permits.send(()).unwrap();
        shared.reports.made(number).await.unwrap();
        let pages = Counts { awaiting: 1, reloading: 2, ..Counts::default() };
        shared.counts.send_replace(pages);
        let page = format!("{path}report?{}", shared.reports.ticket());
        for _ in 0..2 {
            let (host, page) = (host.clone(), page.clone());
            let load = move || response(send(&host, "GET", &page, &host)).1;
            assert!(spawn_blocking(load).await.unwrap().ends_with("report 1"));
            let mut counts = shared.counts.subscribe();
            let loaded = counts.wait_for(|counts| counts.waiting + counts.loading == 0);
            assert_eq!(*loaded.await.unwrap(), Counts { reloading: 1, ..pages });
        }
    });
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
