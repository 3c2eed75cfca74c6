//! A server with the S3 interface, in memory (moto), for tests of object stores. `scripts/setup.sh --test` installs it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::port::ReservedPort;
use crate::skip::skip;
use crate::{SETUP_TIMEOUT, python_program, wait_for};

/// A server. Dropping it ends it.
pub struct S3Server {
    child: Child,
    port: ReservedPort,
}

impl S3Server {
    /// Starts a server without buckets. If none is installed, returns `None` and reports the test as skipped.
    ///
    /// # Panics
    /// Panics if it cannot be started or does not answer.
    pub fn start() -> Option<Self> {
        let installed = python_program("moto_server");
        let program = installed.unwrap_or_else(|| PathBuf::from("moto_server"));
        let port = ReservedPort::new(Ipv4Addr::LOCALHOST);
        let started = Command::new(program)
            .args(["-H", "127.0.0.1", "-p", &port.address().port().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = match started {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                skip("no S3 server: scripts/setup.sh --test installs moto");
                return None;
            }
            Err(error) => panic!("cannot start the S3 server: {error}"),
        };
        let server = Self { child, port };
        let answers = || TcpStream::connect(server.port.address()).is_ok();
        wait_for("the S3 server", SETUP_TIMEOUT, answers);
        Some(server)
    }

    /// Returns the URL of the server.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.port.address())
    }

    /// Returns the environment of a client, which uses no proxy.
    pub fn environment(&self) -> [(&'static str, String); 5] {
        [
            ("NO_PROXY", "127.0.0.1".to_owned()),
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("AWS_ACCESS_KEY_ID", "test".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "testsecret".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
    }

    /// Creates a bucket.
    ///
    /// # Panics
    /// Panics if the server refuses.
    pub fn create_bucket(&self, name: &str) {
        self.request("PUT", name, "200");
    }

    /// Removes an object: `BUCKET/KEY`.
    ///
    /// # Panics
    /// Panics if the server refuses.
    pub fn remove_object(&self, path: &str) {
        self.request("DELETE", path, "204");
    }

    #[expect(clippy::unwrap_used, reason = "a test may panic")]
    fn request(&self, method: &str, path: &str, status: &str) {
        let mut stream = TcpStream::connect(self.port.address()).unwrap();
        let host = format!("Host: {}", self.port.address());
        // Without this, moto permits nobody to remove an object. It does not verify it.
        let key =
            "Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request";
        let request = format!(
            "{method} /{path} HTTP/1.1\r\n{host}\r\n{key}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let line = answer.lines().next().unwrap_or_default();
        assert!(line.contains(&format!(" {status} ")), "{answer}");
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
