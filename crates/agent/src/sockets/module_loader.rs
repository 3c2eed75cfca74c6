//! Loads and unloads kernel modules, in this process or through the loader (`ccbench-agent loader`) whose socket the
//! environment names, so that a worker needs no CAP_SYS_MODULE. A connection carries one request, a line of JSON
//! followed by the module's file if there is one. The answer is a line of JSON.

use std::ffi::CString;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::error::SocketError;
use super::sysfs;

/// The environment variable that names the loader's socket.
pub const ENVIRONMENT: &str = "CCBENCH_LOADER";
/// Folder of the kernel's modules.
const MODULES: &str = "/lib/modules";
/// Limit of a request's or an answer's line.
pub const MAX_LINE_BYTES: u64 = 64 << 10;
/// Sockets of an ended trial may use a module for a moment longer.
const UNLOAD_TIMEOUT: Duration = Duration::from_secs(2);
const UNLOAD_PAUSE: Duration = Duration::from_millis(20);
/// How long a loader may take, including a module's initialisation. The trial then fails: after an error of the loader, nothing more
/// is loaded. The loader is asked beside the runtime. The watchdog (`WatchdogSec=`) permits an agent to work on a request for a minute.
const REPLY_TIMEOUT: Duration = Duration::from_secs(7);

/// A request to a loader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Whether this kernel's `modules.dep` lists a module.
    Find {
        /// The module.
        module: String,
    },
    /// Load an installed module and its dependencies.
    Modprobe {
        /// The module.
        module: String,
    },
    /// Load a supplied module, whose file follows (`init_module(2)`).
    InitModule {
        /// The module.
        module: String,
        /// Its parameters, as the kernel accepts them: `a=1 b=2`.
        params: String,
        /// Length of the file in bytes.
        bytes: u64,
    },
    /// Unload a module (`delete_module(2)`, without waiting).
    DeleteModule {
        /// The module.
        module: String,
    },
}

impl Request {
    /// Returns the module.
    pub fn module(&self) -> &str {
        match self {
            Self::Find { module }
            | Self::Modprobe { module }
            | Self::InitModule { module, .. }
            | Self::DeleteModule { module } => module,
        }
    }
}

/// A loader's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// The request succeeded.
    Done,
    /// Whether the module exists; `None` if this kernel has no modules.
    Found(Option<bool>),
    /// The kernel refused, with this error number.
    Errno(i32),
    /// `modprobe` failed, with this message.
    Tool(String),
    /// The request was refused or could not be parsed.
    Refused(String),
}

/// The error of a refusal by the kernel or the loader.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] Errno),
    /// The loader refused.
    #[error(transparent)]
    Loader(SocketError),
}

/// Returns the path of the loader's socket, if one is set.
fn loader() -> Option<PathBuf> {
    std::env::var_os(ENVIRONMENT).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Whether this kernel's `modules.dep` lists a module; `None` if it has no modules.
///
/// # Errors
/// The loader does not answer, or may not load the module.
pub fn find(module: &str) -> Result<Option<bool>, SocketError> {
    let Some(loader) = loader() else { return Ok(find_here(module)) };
    let request = Request::Find { module: module.to_owned() };
    match ask(&loader, &request, &[])? {
        Answer::Found(found) => Ok(found),
        other => Err(unexpected(&loader, other)),
    }
}

/// Like [`find`], without a loader.
pub fn find_here(module: &str) -> Option<bool> {
    sysfs::is_installed(Path::new(MODULES), &sysfs::release(), module)
}

/// Loads an installed module.
///
/// # Errors
/// `modprobe` failed; the error has its message and a hint.
pub fn modprobe(module: &str) -> Result<(), SocketError> {
    let Some(loader) = loader() else { return sysfs::modprobe(module) };
    match ask(&loader, &Request::Modprobe { module: module.to_owned() }, &[])? {
        Answer::Done => Ok(()),
        Answer::Tool(stderr) => {
            Err(SocketError::ToolFailed { hint: sysfs::hint(module, &stderr), stderr })
        }
        other => Err(unexpected(&loader, other)),
    }
}

/// Loads a supplied module.
///
/// # Errors
/// The kernel or the loader refused.
pub fn init_module(module: &str, params: &str, file: &[u8]) -> Result<(), ModuleError> {
    let Some(loader) = loader() else { return Ok(init_module_here(params, file)?) };
    let (module, params) = (module.to_owned(), params.to_owned());
    let request = Request::InitModule { module, params, bytes: file.len() as u64 };
    of_kernel(&loader, ask(&loader, &request, file))
}

/// Like [`init_module`], without a loader.
///
/// # Errors
/// The kernel refused.
pub fn init_module_here(params: &str, file: &[u8]) -> Result<(), Errno> {
    let params = CString::new(params).map_err(|_| Errno::INVAL)?;
    rustix::system::init_module(file, &params)
}

/// Unloads a module once nothing uses it any more. It is no error if the module is not loaded.
///
/// # Errors
/// The module is still in use after 2 s, or the kernel or the loader refused.
pub fn unload(module: &str) -> Result<(), SocketError> {
    let failed =
        |source: io::Error| SocketError::UnloadModule { module: module.to_owned(), source };
    let mut waited = Duration::ZERO;
    loop {
        match delete_module(module) {
            Ok(()) | Err(ModuleError::Kernel(Errno::NOENT)) => return Ok(()),
            Err(ModuleError::Kernel(Errno::AGAIN)) if waited < UNLOAD_TIMEOUT => {
                std::thread::sleep(UNLOAD_PAUSE);
                waited += UNLOAD_PAUSE;
            }
            Err(ModuleError::Kernel(errno)) => return Err(failed(errno.into())),
            Err(ModuleError::Loader(error)) => return Err(error),
        }
    }
}

/// Unloads a module; EAGAIN while it is in use.
fn delete_module(module: &str) -> Result<(), ModuleError> {
    let Some(loader) = loader() else { return Ok(delete_module_here(module)?) };
    let request = Request::DeleteModule { module: module.to_owned() };
    of_kernel(&loader, ask(&loader, &request, &[]))
}

/// Like `delete_module`, without a loader.
///
/// # Errors
/// The kernel refused.
pub fn delete_module_here(module: &str) -> Result<(), Errno> {
    let name = CString::new(module).map_err(|_| Errno::INVAL)?;
    rustix::system::delete_module(&name, libc::O_NONBLOCK)
}

fn of_kernel(loader: &Path, answer: Result<Answer, SocketError>) -> Result<(), ModuleError> {
    match answer.map_err(ModuleError::Loader)? {
        Answer::Done => Ok(()),
        Answer::Errno(errno) => Err(Errno::from_raw_os_error(errno).into()),
        other => Err(ModuleError::Loader(unexpected(loader, other))),
    }
}

fn unexpected(loader: &Path, answer: Answer) -> SocketError {
    let reason = match answer {
        Answer::Refused(reason) => reason,
        other => {
            format!("unexpected answer {other:?}; use the same version of the loader and the agent")
        }
    };
    SocketError::Loader { socket: loader.to_owned(), reason }
}

/// Sends a request with a module's file, and returns the answer.
fn ask(loader: &Path, request: &Request, file: &[u8]) -> Result<Answer, SocketError> {
    let exchange = || -> io::Result<Answer> {
        let mut stream = UnixStream::connect(loader)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        // A loader that refuses the request does not read the file.
        let sent = stream.write_all(line.as_bytes()).and_then(|()| stream.write_all(file));
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = String::new();
        BufReader::new(stream.take(MAX_LINE_BYTES)).read_line(&mut answer)?;
        match serde_json::from_str(&answer) {
            Ok(answer) => Ok(answer),
            Err(error) => sent.and(Err(error.into())),
        }
    };
    exchange().map_err(|error| SocketError::Loader {
        socket: loader.to_owned(),
        reason: format!(
            "{error}; is `ccbench-agent loader` running (ccbench-agent-loader.socket)?"
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Returns the outcome of a request that a loader answers with this text.
    fn answered(text: &'static str) -> Result<Answer, SocketError> {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("loader.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            String::from_utf8(received).unwrap()
        });
        let request =
            Request::InitModule { module: "tcp_x".into(), params: "a=1".into(), bytes: 3 };
        let answer = ask(&socket, &request, b"ELF");
        let received = server.join().unwrap();
        let (line, file) = received.split_once('\n').unwrap();
        assert_eq!((serde_json::from_str::<Request>(line).unwrap(), file), (request, "ELF"));
        answer
    }

    #[test]
    fn a_request_has_a_line_and_the_file() {
        assert_eq!(answered("\"done\"\n").unwrap(), Answer::Done);
        assert_eq!(answered("{\"errno\":11}\n").unwrap(), Answer::Errno(11));
        let silent = answered("").unwrap_err().to_string();
        assert!(silent.contains("ccbench-agent-loader.socket"), "{silent}");
    }

    #[test]
    fn the_kernels_errors_pass_through_a_loader() {
        let socket = Path::new("/x");
        let again = of_kernel(socket, Ok(Answer::Errno(libc::EAGAIN)));
        assert!(matches!(again, Err(ModuleError::Kernel(Errno::AGAIN))), "{again:?}");
        let refused = of_kernel(socket, Ok(Answer::Refused("it is not allowed".into())));
        let refused = refused.unwrap_err().to_string();
        assert_eq!(refused, "the module loader at /x: it is not allowed");
    }

    #[test]
    fn a_loader_that_is_not_there_is_named() {
        let request = Request::DeleteModule { module: "ccb_ta".into() };
        let error = ask(Path::new("/nonexistent/loader.sock"), &request, &[]).unwrap_err();
        assert!(error.to_string().starts_with("the module loader at /nonexistent/"), "{error}");
    }
}
