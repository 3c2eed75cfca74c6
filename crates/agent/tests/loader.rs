//! The loader of kernel modules as a separate process, on sockets. Needs no root: it loads nothing here.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ccbench_tests::skip::skip;
use support::{AGENT, wait_for_setup};

/// Ends the loader when the test ends.
struct Loader(Child);

impl Drop for Loader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn loader(dir: &Path, listen: &str, stdin: Stdio) -> Loader {
    let mut command = Command::new(AGENT);
    command.args(["loader", "--listen", listen, "--allow-module", "ccb_none", "--state-dir"]);
    Loader(command.arg(dir.join("state")).stdin(stdin).spawn().unwrap())
}

fn answer(socket: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    writeln!(stream, "{request}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Returns what `cc show` prints about a module through this loader.
fn shown(loader: &Path) -> String {
    let mut command = Command::new(AGENT);
    let output = command.args(["cc", "show", "ta"]).env("CCBENCH_LOADER", loader).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find(|line| line.starts_with("as a module: ")).unwrap().to_owned()
}

#[tokio::test]
async fn a_loader_answers_what_its_command_line_permits() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("loader.sock");
    let _loader = loader(dir.path(), &format!("unix:{}", socket.display()), Stdio::null());
    wait_for_setup("the loader's socket", || UnixStream::connect(&socket).is_ok()).await;
    let found = answer(&socket, "{\"find\":{\"module\":\"ccb_none\"}}");
    assert!(["{\"found\":null}\n", "{\"found\":false}\n"].contains(&found.as_str()), "{found}");
    let refused = answer(&socket, "{\"modprobe\":{\"module\":\"tcp_bbr\"}}");
    assert!(
        refused.starts_with("{\"refused\":") && refused.contains("may load only ccb_none"),
        "{refused}"
    );
    let unknown = answer(&socket, "{\"reboot\":{}}");
    assert!(unknown.contains("the request cannot be read"), "{unknown}");
}

#[tokio::test]
async fn a_loader_takes_a_listening_socket_over() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("loader.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    let _loader = loader(dir.path(), "stdin", Stdio::from(OwnedFd::from(listener)));
    let refused = answer(&socket, "{\"delete_module\":{\"module\":\"tcp_bbr\"}}");
    assert!(refused.contains("may load only ccb_none"), "{refused}");
}

#[tokio::test]
async fn a_process_with_a_loader_asks_it() {
    if Path::new("/sys/module/ccb_ta").exists() {
        return skip("the module ccb_ta is loaded: nobody is asked for it");
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("loader.sock");
    let line = shown(&socket);
    let beginning = format!("as a module: no: the module loader at {}: ", socket.display());
    assert!(line.starts_with(&beginning) && line.contains("ccbench-agent-loader.socket"), "{line}");
    let _loader = loader(dir.path(), &format!("unix:{}", socket.display()), Stdio::null());
    wait_for_setup("the loader's socket", || UnixStream::connect(&socket).is_ok()).await;
    let line = shown(&socket);
    assert!(line.ends_with("it may load only ccb_none, not ccb_ta; start `ccbench-agent loader` with an additional `--allow-module ccb_ta`"), "{line}");
}
