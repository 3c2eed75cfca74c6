//! Tests of the live views of simulated runs: `ccbench run --view`, `top` and `view`, and the page in a browser.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use ccbench_tests::axe_core;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use driver::Browser;

#[allow(dead_code, reason = "the report's tests use the rest")]
#[path = "../../../results/tests/browser/driver.rs"]
mod driver;

/// Has more trials than any test waits for.
const PLAN: &str = r#"
name = "watched"
repeat = 5000
[nodes]
src = {}
router = {}
dst = {}
[wires]
path = ["src", "router", "dst"]
[links.bottleneck]
node = "router"
toward = "dst"
rate = "20mbit"
delay = "10ms"
queue = { kind = "bfifo", limit = "75000B" }
[flows.f]
from = "src"
to = "dst"
cc = "cubic"
count = 2
[probes.rtt]
kind = "ping"
from = "src"
to = "dst"
every = "200ms"
[[phases]]
name = "only"
length = "100s"
flows = ["f"]
"#;

/// A run in progress, killed on drop.
struct Run {
    child: Child,
    messages: BufReader<ChildStderr>,
    dir: tempfile::TempDir,
}

impl Run {
    fn start(arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("plan.toml"), PLAN).unwrap();
        let mut run =
            command(&dir, &[&["run", "plan.toml", "--sim", "--jobs=1"], arguments].concat());
        let mut child = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let messages = BufReader::new(child.stderr.take().unwrap());
        Self { child, messages, dir }
    }

    /// Returns the rest of the next message with this prefix.
    fn message(&mut self, begin: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.messages.read_line(&mut line).unwrap(), 0, "ended before `{begin}`");
            if let Some(rest) = line.strip_prefix(begin) {
                return rest.trim_end().to_owned();
            }
        }
    }

    fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }

    /// Returns the exit code and the remaining messages.
    fn end(&mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.messages.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // The process has already ended unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns `ccbench ARGUMENTS` in this directory, with its own state directory.
fn command(dir: &tempfile::TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccbench"));
    command.args(arguments).current_dir(dir.path()).stdin(Stdio::null());
    command.env("CCBENCH_STATE", dir.path().join("state"));
    command
}

/// Returns the first line of a program's standard output, which is then closed, and the running program.
fn first_line(command: &mut Command) -> (String, Child) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (line, child)
}

fn get(url: &str) -> String {
    let (host, path) = url.trim().strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Returns the report at the address of a run that has ended. Reloads a page that waits for it, as a browser does.
fn report(url: &str) -> String {
    let mut address = url.trim().to_owned();
    loop {
        let page = get(&address);
        let Some((_, next)) = page.split_once("content=\"0; url=") else { return page };
        let next = next.split('"').next().unwrap();
        address = format!("{}/{next}", url.trim().trim_end_matches('/'));
    }
}

/// Waits until the script returns true.
fn wait_for(browser: &Browser, script: &str) {
    const POLL_INTERVAL: Duration = Duration::from_millis(50);
    for _ in 0..1200 {
        if browser.eval(script) == Value::Bool(true) {
            return;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let text = browser.eval("return document.body.innerText");
    panic!("waited for: {script}\nconsole: {:?}\n{text}", browser.console());
}

#[test]
fn other_processes_show_a_run_in_progress() {
    let mut run = Run::start(&[]);
    let results = PathBuf::from(run.message("results: "));
    let results = results.to_str().unwrap();
    // The results directory selects the run. A single run needs no selection.
    for arguments in [&["top", "--json", results][..], &["top", "--json"]] {
        let (line, mut top) = first_line(&mut command(&run.dir, arguments));
        let update: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(update["run"]["name"], "watched");
        assert_eq!(update["run"]["trials"], 5000);
        top.kill().unwrap();
        top.wait().unwrap();
    }
    let refused = command(&run.dir, &["top"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--json"), "{refused:?}");
    // The simulated nodes are not network namespaces.
    let refused = command(&run.dir, &["exec", "src", "--", "true"]).output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && text.contains("exec enters only"), "{text}");
    let (url, mut view) = first_line(&mut command(&run.dir, &["view", results]));
    assert!(get(&url).contains("new EventSource(\"events\")"), "the live page");
    run.message("trial 1/5000 repeat 1/5000: ");
    run.message("trial 2/5000 repeat 2/5000: ");
    run.interrupt();
    let (code, rest) = run.end();
    assert_eq!(code, Some(130), "{rest}");
    // The same address now serves the report.
    let page = report(&url);
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("id=\"run\""), "the report");
    kill_process(Pid::from_child(&view), Signal::INT).unwrap();
    assert_eq!(view.wait().unwrap().code(), Some(0));
    let gone = command(&run.dir, &["top", "--json", results]).output().unwrap();
    let text = String::from_utf8_lossy(&gone.stderr);
    assert!(gone.status.code() == Some(2) && text.contains("no run is in progress"), "{text}");
}

#[test]
fn a_screen_needs_a_terminal() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("plan.toml"), PLAN).unwrap();
    let run = ["run", "plan.toml", "--sim", "--view=terminal"];
    let refused = command(&dir, &run).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(!dir.path().join("results").exists(), "nothing has run");
}

#[test]
fn the_page_is_accessible() {
    let Some(axe_core) = axe_core() else { return };
    let Some(browser) = Browser::start() else { return };
    let mut run = Run::start(&["--view"]);
    browser.open_url(&run.message("view: "));
    wait_for(&browser, "return document.querySelectorAll('#panels canvas').length === 6");
    wait_for(&browser, "return document.querySelector('#tally').textContent.includes('Trials')");
    // axe must not see changes while it reads the page. This also tests pausing with the keyboard.
    browser.keys("#pause", " ");
    assert_eq!(browser.eval("return document.querySelector('#pause').ariaPressed"), "true");
    for _ in ["light", "dark"] {
        for width in [500, 900, 1280] {
            browser.resize(width, 900);
            assert_eq!(browser.violations(&axe_core), [""; 0], "{width} pixels wide");
        }
        browser.click("#theme");
    }
}

/// Counts the updates that the page gets, also while it is paused.
const COUNT_UPDATES: &str = "const parse = JSON.parse;
     window.arrived = 0;
     JSON.parse = (text) => {
         const value = parse(text);
         if (value?.run) window.arrived += 1;
         return value;
     };
     return 0";

#[test]
fn the_page_shows_the_numbers_and_becomes_the_report() {
    let Some(browser) = Browser::start() else { return };
    let mut run = Run::start(&["--view"]);
    let url = run.message("view: ");
    browser.open_url(&url);
    wait_for(&browser, "return document.querySelectorAll('#flows tbody tr').length === 2");
    wait_for(&browser, "return document.querySelector('#tally').textContent.includes('Trials')");
    let sum = "let sum = 0; for (const row of document.querySelectorAll('#flows tbody tr')) sum += Number(row.cells[2].textContent);";
    wait_for(&browser, &format!("{sum} return sum > 10 && sum < 25"));
    wait_for(
        &browser,
        "return Number(document.querySelector('#links tbody tr')?.cells[2].textContent) <= 75",
    );
    wait_for(
        &browser,
        "return Number(document.querySelector('#probes tbody tr')?.cells[1].textContent) >= 10",
    );
    assert!(browser.text("#now").starts_with("Trial "), "{}", browser.text("#now"));
    assert_eq!(browser.text("#name"), "watched");
    let drawn = "return document.querySelectorAll('#panels canvas').length === 6";
    wait_for(&browser, drawn);
    // While paused, nothing changes, and the button says so.
    browser.click("#pause");
    let state = "return document.querySelector('#pause').ariaPressed";
    assert_eq!(browser.eval(state), "true");
    let before = browser.eval("return document.documentElement.dataset.updates");
    browser.eval(COUNT_UPDATES);
    wait_for(&browser, "return window.arrived >= 3");
    assert_eq!(browser.eval("return document.documentElement.dataset.updates"), before);
    browser.click("#pause");
    for width in [500, 900, 1280] {
        browser.resize(width, 900);
        wait_for(&browser, "return document.documentElement.scrollWidth <= innerWidth");
    }
    let refused = |entry: &Value| {
        entry["message"].as_str().is_some_and(|text| text.contains("Content Security Policy"))
    };
    let console = browser.console();
    assert!(!console.iter().any(refused), "{console:?}");
    run.interrupt();
    // The run ends once the page has the report.
    let (code, rest) = run.end();
    assert_eq!(code, Some(130), "{rest}");
    wait_for(&browser, "return document.documentElement.dataset.ready === 'yes'");
    assert_eq!(browser.eval("return document.title"), "watched · ccbench");
    assert!(browser.text("#what").contains("interrupted"), "{}", browser.text("#what"));
}
