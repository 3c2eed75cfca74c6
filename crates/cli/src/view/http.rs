//! The page of a run, on 127.0.0.1 at a random port and under a random token. It loads nothing from other sites and runs only its
//! own script.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ccbench_results::openmetrics::CONTENT_TYPE as METRICS_TYPE;
use ccbench_results::report;
use http_body_util::{Either, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST};
use hyper::header::{REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tracing::warn;

use super::report::Reports;
use super::socket::{self, ACCEPT_PAUSE, STALL_TIMEOUT};
use super::{ViewError, absolute};
use crate::console::message;
use crate::live::openmetrics;
use crate::runtime::blocking;

/// A connection without a complete request for this long is closed.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long open pages may take to ask for the report after the run, and again when it is made. A page that is paused or asleep does not
/// ask.
const REPORT_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long sending the report may take after that.
const REPORT_TIMEOUT: Duration = Duration::from_secs(60);
/// A report that is made within this time is sent without the page that waits for it.
const PROMPT_REPORT: Duration = Duration::from_millis(300);
/// The page that waits for the report. Its last element, which reloads it, is sent when the report is made.
const WAITING_PAGE: &str = include_str!("http/waiting.html");
/// The policy of that page, which has no script and no style.
const WAITING_POLICY: &str = "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Maximum number of concurrent connections; others are closed. A browser opens at most six.
const MAX_CONNECTIONS: usize = 64;

/// A part of a body that is sent while it is made.
type Part = Result<Frame<Bytes>, Infallible>;
type Body = Either<Full<Bytes>, StreamBody<ReceiverStream<Part>>>;
type Answer = Response<Body>;

/// The web server of one run.
pub struct Site {
    listener: TcpListener,
    shared: Arc<Shared>,
}

struct Shared {
    dir: PathBuf,
    address: SocketAddr,
    /// Secret part of every path, unknown to other users of the machine and other pages in the browser.
    token: String,
    /// Nonce of the live page's style and script.
    nonce: String,
    reports: Arc<Reports>,
    counts: watch::Sender<Counts>,
}

/// Numbers of open pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    /// Event streams.
    following: usize,
    /// Pages that know about the end of the run but have not asked for its report.
    awaiting: usize,
    /// Pages that have asked for the report while it is being made.
    waiting: usize,
    /// Pages that have waited for the report and know that it is made, but have not asked for it again.
    reloading: usize,
    /// Pages to which the report is being sent.
    loading: usize,
}

/// A page that has asked for the report and waits while it is being made. It is counted until it is dropped.
struct WaitingPage(Arc<Shared>);

/// State of a connection.
#[derive(Default)]
struct Connection {
    /// Notified when the client does not read what is sent.
    stalled: Notify,
    sends_report: AtomicBool,
}

/// Why an event stream ended.
enum CloseReason {
    /// The run has ended, or its controller is gone.
    Run,
    /// The page was closed.
    Page,
    /// The page does not read.
    Stalled,
}

impl Site {
    /// Listens on a free port for the run in this directory.
    ///
    /// # Errors
    /// No port or no random numbers are available.
    pub fn bind(dir: &Path) -> Result<Self, ViewError> {
        let dir = absolute(dir);
        let reports = Reports::new(&dir);
        Self::with(dir, reports)
    }

    fn with(dir: PathBuf, reports: Arc<Reports>) -> Result<Self, ViewError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .map_err(ViewError::io("listen on 127.0.0.1"))?;
        let address = listener.local_addr().map_err(ViewError::io("read the port of the page"))?;
        let prepared = listener.set_nonblocking(true);
        prepared.map_err(ViewError::io("prepare the socket of the page"))?;
        let (counts, _) = watch::channel(Counts::default());
        let (token, nonce) = (random_hex()?, random_hex()?);
        let shared = Shared { dir, address, token, nonce, reports, counts };
        Ok(Self { listener, shared: Arc::new(shared) })
    }

    /// Returns the address of the page.
    pub fn url(&self) -> String {
        let Shared { address, token, .. } = &*self.shared;
        format!("http://{address}/{token}/")
    }

    /// Serves pages until `stop`, and then until open pages have the report or the user interrupts again. Returns at once if no
    /// page is open.
    pub async fn serve_run(self, mut stop: watch::Receiver<bool>) {
        let shared = Arc::clone(&self.shared);
        let ended = async {
            // An error means that the other end is gone, which also stops the server.
            let _ = stop.wait_for(|stop| *stop).await;
            let open = *shared.counts.borrow() != Counts::default();
            if open {
                message(
                    "waiting for the open page to load the report (press Ctrl-C to end at once)",
                );
                let reported = shared.reported(REPORT_TIMEOUT);
                tokio::select! { () = reported => {}, () = interrupted() => {} }
            }
        };
        tokio::select! { () = self.serve() => {}, () = ended => {} }
    }

    /// Serves pages forever.
    pub async fn serve(self) {
        let Self { listener, shared } = self;
        let listener = match net::TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => {
                warn!("live view: cannot listen on {}: {error}", shared.address);
                return;
            }
        };
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
            };
            match accepted {
                Ok((stream, _)) if connections.len() < MAX_CONNECTIONS => {
                    connections.spawn(connection(stream, Arc::clone(&shared)));
                }
                Ok(_) => {}
                Err(error) => {
                    warn!("live view: cannot accept a connection to the page: {error}");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Waits for SIGINT or SIGTERM, which the run caught until now.
async fn interrupted() {
    let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    let (Ok(mut sigint), Ok(mut sigterm)) = signals else { return };
    tokio::select! { _ = sigint.recv() => {}, _ = sigterm.recv() => {} }
}

/// Returns 128 random bits in hexadecimal digits.
fn random_hex() -> Result<String, ViewError> {
    let mut bytes = [0; 16];
    getrandom(&mut bytes[..], GetRandomFlags::empty())
        .map_err(|error| ViewError::io("get random numbers")(error.into()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

async fn connection(stream: net::TcpStream, shared: Arc<Shared>) {
    let state = Arc::new(Connection::default());
    let service = service_fn(|request| {
        let (shared, state) = (Arc::clone(&shared), Arc::clone(&state));
        async move { Ok::<_, Infallible>(shared.answer(request, &state).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // Errors are the browser's: it closed the connection or does not speak HTTP.
        _ = served => {}
        () = state.stalled.notified() => {}
    }
    if state.sends_report.load(Ordering::Relaxed) {
        shared.counts.send_modify(|counts| counts.loading = counts.loading.saturating_sub(1));
    }
}

impl Shared {
    /// Waits until every open page has the report or has not asked for it in time. Making the report may take any time, sending it at most
    /// `send_limit`.
    async fn reported(&self, send_limit: Duration) {
        let mut counts = self.counts.subscribe();
        let asked = counts.wait_for(|counts| counts.following + counts.awaiting == 0);
        // A page that does not ask gets no report.
        let _ = timeout(REPORT_REQUEST_TIMEOUT, asked).await;
        let _ = counts.wait_for(|counts| counts.waiting == 0).await;
        let asked = counts.wait_for(|counts| counts.reloading + counts.waiting == 0);
        let _ = timeout(REPORT_REQUEST_TIMEOUT, asked).await;
        let _ = timeout(send_limit, counts.wait_for(|counts| counts.loading == 0)).await;
    }

    async fn answer(
        self: &Arc<Self>,
        request: Request<Incoming>,
        state: &Arc<Connection>,
    ) -> Answer {
        if !self.is_own_host(&request) {
            return text(StatusCode::FORBIDDEN, "the Host header does not name this server\n");
        }
        let path = request.uri().path();
        let rest = path.strip_prefix('/').and_then(|path| path.split_once('/'));
        let Some((_, page)) = rest.filter(|(token, _)| is_same(token, &self.token)) else {
            return text(StatusCode::FORBIDDEN, "use the complete URL that ccbench has printed\n");
        };
        if request.method() != Method::GET {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is allowed\n");
        }
        let page = page.to_owned();
        let ticket = request.uri().query().and_then(|query| query.parse().ok());
        let is_running = page.is_empty() && connect(&self.dir).await.is_ok();
        match page.as_str() {
            "" if is_running => self.live_page(),
            "" | "report" => self.report(state, ticket).await,
            "events" => self.events(state),
            "metrics" => self.metrics().await,
            _ => text(StatusCode::NOT_FOUND, "no such page\n"),
        }
    }

    /// Returns whether the request names this server. Others come from a foreign name that resolves to 127.0.0.1 (DNS rebinding).
    fn is_own_host(&self, request: &Request<Incoming>) -> bool {
        let port = self.address.port();
        let own = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        host.is_some_and(|host| own.iter().any(|own| own == host))
    }

    fn live_page(&self) -> Answer {
        let nonce = &self.nonce;
        let policy = format!(
            "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'"
        );
        html(Either::Left(Full::from(report::live_page(nonce))), &policy)
    }

    /// Returns the report, or while it is being made a page that waits for it. That page then asks again with its ticket.
    async fn report(self: &Arc<Self>, state: &Connection, ticket: Option<u64>) -> Answer {
        let (waiting, had_ticket) = WaitingPage::new(self, ticket);
        let number = self.reports.request(had_ticket);
        let report = timeout(PROMPT_REPORT, self.reports.made(number)).await;
        let mut answer = match report {
            Ok(report) => {
                // The connection ends after the response. Only then does the page have the report.
                if !state.sends_report.swap(true, Ordering::Relaxed) {
                    self.counts.send_modify(|counts| counts.loading += 1);
                }
                match report {
                    Ok(page) => html(Either::Left(Full::new(page)), report::POLICY),
                    Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")),
                }
            }
            Err(_) => waiting.answer(number),
        };
        answer.headers_mut().insert(CONNECTION, header("close"));
        answer
    }

    /// Answers a scrape of Prometheus while the run is in progress.
    async fn metrics(&self) -> Answer {
        let name = socket::name(&self.dir);
        // Must not block this thread, which may serve the other end of the socket.
        let update = spawn_blocking(move || {
            let stream = socket::connect(&name).ok()?;
            stream.set_read_timeout(Some(STALL_TIMEOUT)).ok()?;
            socket::first_update(stream)
        });
        match update.await {
            Ok(Some(update)) => {
                let body = Either::Left(Full::from(openmetrics::text(&update)));
                with_headers(StatusCode::OK, body, METRICS_TYPE)
            }
            _ => text(
                StatusCode::SERVICE_UNAVAILABLE,
                "the run has ended; `ccbench export openmetrics` writes its metrics\n",
            ),
        }
    }

    fn events(self: &Arc<Self>, state: &Arc<Connection>) -> Answer {
        // One event is in flight and one waits. The next update is made when there is room.
        let (send, receive) = mpsc::channel(1);
        tokio::spawn(relay(Arc::clone(self), Arc::clone(state), send));
        let body = Either::Right(StreamBody::new(ReceiverStream::new(receive)));
        with_headers(StatusCode::OK, body, "text/event-stream")
    }
}

impl WaitingPage {
    /// Counts a page that asks for the report, for the first time or with a ticket, which it uses up. Returns also whether the ticket was
    /// valid.
    fn new(shared: &Arc<Shared>, ticket: Option<u64>) -> (Self, bool) {
        let had_ticket = ticket.is_some_and(|ticket| shared.reports.take_ticket(ticket));
        shared.counts.send_modify(|counts| {
            match ticket {
                None => counts.awaiting = counts.awaiting.saturating_sub(1),
                Some(_) if had_ticket => counts.reloading = counts.reloading.saturating_sub(1),
                // The user has reloaded the report, or the ticket has expired: the page is no longer counted.
                Some(_) => {}
            }
            counts.waiting += 1;
        });
        (Self(Arc::clone(shared)), had_ticket)
    }

    /// Returns the page, which is complete when the report with this number is made.
    fn answer(self, number: u64) -> Answer {
        let (send, receive) = mpsc::channel(1);
        tokio::spawn(self.send(number, send, REPORT_REQUEST_TIMEOUT));
        let body = StreamBody::new(ReceiverStream::new(receive));
        html(Either::Right(body), WAITING_POLICY)
    }

    /// Sends the page. Its ticket is valid for `expiry` after that: not every client follows the reload.
    async fn send(self, number: u64, send: mpsc::Sender<Part>, expiry: Duration) {
        let shared = Arc::clone(&self.0);
        if send_text(&send, WAITING_PAGE.to_owned()).await.is_err() {
            return;
        }
        tokio::select! {
            _ = shared.reports.made(number) => {}
            () = send.closed() => return,
        }
        // Counted before the end of the page is sent, because it may ask at once.
        shared.counts.send_modify(|counts| counts.reloading += 1);
        let ticket = shared.reports.ticket();
        let reload = format!("<meta http-equiv=\"refresh\" content=\"0; url=report?{ticket}\">\n");
        let sent = send_text(&send, reload).await;
        // The page is complete and no longer waits.
        drop(send);
        drop(self);
        if sent.is_ok() {
            sleep(expiry).await;
        }
        if shared.reports.take_ticket(ticket) {
            shared.counts.send_modify(|counts| {
                counts.reloading = counts.reloading.saturating_sub(1);
            });
        }
    }
}

impl Drop for WaitingPage {
    fn drop(&mut self) {
        self.0.counts.send_modify(|counts| counts.waiting = counts.waiting.saturating_sub(1));
    }
}

const fn header(value: &'static str) -> hyper::header::HeaderValue {
    hyper::header::HeaderValue::from_static(value)
}

/// Connects to the run's socket. Waits in another thread for a place in its queue, because this thread may be the one that accepts
/// what is in the queue.
async fn connect(dir: &Path) -> io::Result<UnixStream> {
    let name = socket::name(dir);
    blocking(move || socket::connect(&name)).await
}

/// Sends the run's updates as events, and the event `end` at its end.
async fn relay(shared: Arc<Shared>, state: Arc<Connection>, send: mpsc::Sender<Part>) {
    shared.counts.send_modify(|counts| counts.following += 1);
    let mut reason = forward(&shared.dir, &send).await;
    if matches!(reason, CloseReason::Run) {
        // Counted before the event is sent, because the page may answer at once.
        shared.counts.send_modify(|counts| counts.awaiting += 1);
        if let Err(error) = send_text(&send, "event: end\ndata: {}\n\n".into()).await {
            shared.counts.send_modify(|counts| counts.awaiting = counts.awaiting.saturating_sub(1));
            reason = error;
        }
    }
    if matches!(reason, CloseReason::Stalled) {
        state.stalled.notify_one();
    }
    shared.counts.send_modify(|counts| counts.following = counts.following.saturating_sub(1));
}

async fn forward(dir: &Path, send: &mpsc::Sender<Part>) -> CloseReason {
    let connected = connect(dir).await.and_then(|stream| {
        stream.set_nonblocking(true)?;
        net::UnixStream::from_std(stream)
    });
    let Ok(stream) = connected else { return CloseReason::Run };
    let mut lines = BufReader::new(stream).lines();
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line,
            () = send.closed() => return CloseReason::Page,
        };
        let Ok(Some(line)) = line else { return CloseReason::Run };
        if let Err(reason) = send_text(send, format!("data: {line}\n\n")).await {
            return reason;
        }
    }
}

/// Sends the next part of a body.
async fn send_text(send: &mpsc::Sender<Part>, text: String) -> Result<(), CloseReason> {
    let frame = Ok(Frame::data(Bytes::from(text)));
    send.send_timeout(frame, STALL_TIMEOUT).await.map_err(|error| match error {
        SendTimeoutError::Timeout(_) => CloseReason::Stalled,
        SendTimeoutError::Closed(_) => CloseReason::Page,
    })
}

/// Compares a secret in constant time, wherever the texts differ.
fn is_same(given: &str, secret: &str) -> bool {
    let differences = given.bytes().zip(secret.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    given.len() == secret.len() && differences == 0
}

fn text(status: StatusCode, text: &str) -> Answer {
    let body = Either::Left(Full::from(text.to_owned()));
    with_headers(status, body, "text/plain; charset=utf-8")
}

fn html(body: Body, policy: &str) -> Answer {
    let mut answer = with_headers(StatusCode::OK, body, "text/html; charset=utf-8");
    if let Ok(policy) = policy.parse() {
        answer.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    }
    answer
}

fn with_headers(status: StatusCode, body: Body, content_type: &'static str) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let headers = [
        (CONTENT_TYPE, content_type),
        (CACHE_CONTROL, "no-store"),
        // The token must not leave this machine in a Referer header.
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    for (name, value) in headers {
        answer.headers_mut().insert(name, header(value));
    }
    answer
}

#[cfg(test)]
mod tests;
