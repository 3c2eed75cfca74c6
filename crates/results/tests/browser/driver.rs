//! A minimal WebDriver (W3C) client: chromedriver speaks plain HTTP on loopback.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ccbench_tests::skip::skip;
use serde_json::{Value, json};

/// Key of an element id in WebDriver.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// The first start of a browser reads hundreds of MB.
const TIMEOUT: Duration = Duration::from_secs(300);
/// All rules of axe take several seconds for a page with thousands of cells on a busy machine.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(120);

/// A headless browser with one window; closed on drop.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

impl Browser {
    /// Starts a browser. Without chromedriver, returns `None`, so that the test is skipped; with the feature `browser`, fails instead.
    pub fn start() -> Option<Self> {
        const MISSING: &str = "there is no chromedriver: scripts/setup.sh --test";
        let browser = Self::start_driver();
        if browser.is_none() {
            if cfg!(feature = "browser") {
                panic!("{MISSING}");
            }
            skip(MISSING);
        }
        browser
    }

    fn start_driver() -> Option<Self> {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.map_while(Result::ok).find_map(|line| {
            line.strip_suffix('.')?.split_once("successfully on port ")?.1.parse().ok()
        });
        let mut browser = Self { driver, port: port.unwrap(), session: String::new() };
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1280,1000",
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "timeouts": { "script": SCRIPT_TIMEOUT.as_millis() as u64 },
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        }}});
        let session = browser.http("POST", "/session", &wanted);
        browser.session = session["sessionId"].as_str().unwrap().to_owned();
        Some(browser)
    }

    fn http(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.send(method, path, body).unwrap();
        assert!(answer["error"].is_null(), "{method} {path}: {answer}");
        answer
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> std::io::Result<Value> {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes())?;
        let mut answer = BufReader::new(stream);
        let mut length = 0;
        for line in answer.by_ref().lines() {
            let line = line?.to_ascii_lowercase();
            if let Some(bytes) = line.strip_prefix("content-length:") {
                length = bytes.trim().parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        answer.read_exact(&mut body)?;
        let mut answer: Value = serde_json::from_slice(&body)?;
        Ok(answer["value"].take())
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.http("POST", &format!("/session/{}{path}", self.session), body)
    }

    /// Opens a file.
    pub fn open(&self, file: &Path) {
        self.open_url(&format!("file://{}", file.display()));
    }

    /// Opens an address.
    pub fn open_url(&self, url: &str) {
        self.post("/url", &json!({ "url": url }));
    }

    /// Runs a function body in the page and returns its value.
    pub fn eval(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    fn element(&self, css: &str) -> String {
        let found = self.post("/element", &json!({ "using": "css selector", "value": css }));
        found[ELEMENT].as_str().unwrap().to_owned()
    }

    /// Clicks like a mouse: covered or hidden elements cannot be clicked.
    pub fn click(&self, css: &str) {
        self.post(&format!("/element/{}/click", self.element(css)), &json!({}));
    }

    /// Types into an element.
    pub fn keys(&self, css: &str, text: &str) {
        self.post(&format!("/element/{}/value", self.element(css)), &json!({ "text": text }));
    }

    /// Presses keys one after the other, wherever the focus is.
    pub fn press(&self, keys: &str) {
        let of = |key: char| {
            ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key.to_string() }))
        };
        let actions: Vec<Value> = keys.chars().flat_map(of).collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": actions });
        self.post("/actions", &json!({ "actions": [keyboard] }));
    }

    /// Returns the visible text of an element.
    pub fn text(&self, css: &str) -> String {
        let path = format!("/session/{}/element/{}/text", self.session, self.element(css));
        self.http("GET", &path, &Value::Null).as_str().unwrap().to_owned()
    }

    /// Returns the violations that axe-core, given as a script, finds in the page: each rule with an element that breaks it.
    pub fn violations(&self, axe_core: &str) -> Vec<String> {
        if self.eval("return typeof axe") == "undefined" {
            self.eval(axe_core);
        }
        let found = self.eval(
            "return axe.run({ resultTypes: ['violations'] }).then(({ violations }) => violations.flatMap(({ id, nodes }) =>
               nodes.map(({ html, failureSummary }) => `${id}: ${html.slice(0, 300)}: ${failureSummary}`)))",
        );
        serde_json::from_value(found).unwrap()
    }

    /// Resizes the window.
    pub fn resize(&self, width: u32, height: u32) {
        self.post("/window/rect", &json!({ "width": width, "height": height }));
    }

    /// Returns what the window shows, as PNG.
    pub fn screenshot(&self) -> Vec<u8> {
        let path = format!("/session/{}/screenshot", self.session);
        let image = self.http("GET", &path, &Value::Null);
        decode_base64(image.as_str().unwrap())
    }

    /// Returns the messages in the console.
    pub fn console(&self) -> Vec<Value> {
        let lines = self.post("/se/log", &json!({ "type": "browser" }));
        lines.as_array().unwrap().clone()
    }
}

/// Decodes the base64 encoding of RFC 4648.
fn decode_base64(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for digit in text.trim_end_matches('=').bytes() {
        let value = ALPHABET.iter().position(|known| *known == digit).unwrap();
        bits = (bits << 6) | value as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser, which chromedriver alone would leave running.
        let _ = self.send("DELETE", &format!("/session/{}", self.session), &Value::Null);
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
