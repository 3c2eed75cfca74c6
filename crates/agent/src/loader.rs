//! `ccbench-agent loader`: loads and unloads the kernel modules that its command line permits, for the worker on this machine,
//! and does nothing else. It holds CAP_SYS_MODULE so that the worker does not need it. See [`module_loader`] for the protocol.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use ccbench_proto::cc::supplied::{self, KernelModule, MAX_BYTES, SuppliedError, SuppliedFile};
use ccbench_proto::plan::digest_bytes;
use nix::sys::socket::{getsockopt, sockopt};
use rustix::io::Errno;
use socket2::SockRef;

use crate::args::{LoaderArgs, LocalListen};
use crate::error::{AgentError, with_causes};
use crate::local_socket;
use crate::notify;
use crate::sockets::allowed::AllowedModules;
use crate::sockets::error::SocketError;
use crate::sockets::module_loader::{self, Answer, MAX_LINE_BYTES, Request};
use crate::sockets::sysfs;

/// A socket-activated loader ends when it has had no request for this long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for a request to arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// `MODULE_NAME_LEN` of 64-bit kernels, without the NUL.
const MAX_NAME_BYTES: usize = 55;

/// Serves until it is killed or, on a systemd socket, until it is idle.
///
/// # Errors
/// The address cannot be listened on, or the folder cannot be created.
pub fn main(args: &LoaderArgs) -> Result<(), AgentError> {
    let policy = Policy::from_args(args);
    let folder = &policy.loaded;
    let made = fs::create_dir_all(folder);
    made.map_err(AgentError::system(format!("make {}", folder.display())))?;
    let listener = match &args.listen {
        LocalListen::Unix(path) => local_socket::listen(path, None)?,
        LocalListen::Stdin => {
            let listener = local_socket::inherited()?;
            // The socket's creator may have made it non-blocking.
            let waits = listener.set_nonblocking(false);
            let limited =
                waits.and_then(|()| SockRef::from(&listener).set_read_timeout(Some(IDLE_TIMEOUT)));
            limited.map_err(AgentError::system("limit the wait for requests"))?;
            listener
        }
    };
    notify::ready();
    policy.serve(&listener)
}

/// The modules that may be loaded and unloaded.
struct Policy {
    /// The permitted installed modules.
    modules: AllowedModules,
    /// The permitted files of users, by SHA-256.
    digests: BTreeSet<String>,
    /// A folder with an empty file for each supplied module that was loaded here.
    loaded: PathBuf,
}

impl Policy {
    fn from_args(args: &LoaderArgs) -> Self {
        Self {
            modules: args.allow.modules(),
            digests: args.allow.digests(),
            loaded: args.state_dir.clone(),
        }
    }

    fn serve(&self, listener: &UnixListener) -> Result<(), AgentError> {
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    if let Err(error) = self.serve_one(&stream) {
                        tracing::warn!(%error, "answer a request");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(AgentError::System { op: "accept a request".to_owned(), source });
                }
            }
        }
    }

    fn serve_one(&self, mut stream: &UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
        stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
        let uid = getsockopt(stream, sockopt::PeerCredentials)?.uid();
        let own = rustix::process::geteuid().as_raw();
        let received = match uid == 0 || uid == own {
            true => receive(stream).map_err(Refusal::Unreadable),
            false => Err(Refusal::User(uid)),
        };
        let answered = received.and_then(|(request, file)| {
            tracing::info!(?request, "a request");
            self.answer(&request, &file)
        });
        let answer = answered.unwrap_or_else(|why| {
            tracing::warn!(%why, "refused a request");
            Answer::Refused(why.to_string())
        });
        let mut line = serde_json::to_string(&answer)?;
        line.push('\n');
        stream.write_all(line.as_bytes())
    }

    fn answer(&self, request: &Request, file: &[u8]) -> Result<Answer, Refusal> {
        self.check(request, file)?;
        Ok(match request {
            Request::Find { module } => Answer::Found(module_loader::find_here(module)),
            Request::Modprobe { module } => of_tool(sysfs::modprobe(module)),
            Request::InitModule { module, params, .. } => {
                of_kernel(self.init(module, || module_loader::init_module_here(params, file))?)
            }
            Request::DeleteModule { module } => {
                let deleted = module_loader::delete_module_here(module);
                if matches!(deleted, Ok(()) | Err(Errno::NOENT)) {
                    // A leftover note would permit unloading a module that somebody else loads later. Installed modules have no note.
                    let _ = fs::remove_file(self.loaded.join(module));
                }
                of_kernel(deleted)
            }
        })
    }

    /// Loads a supplied module, and notes that this loader may unload it.
    fn init(
        &self,
        module: &str,
        load: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<Result<(), Errno>, Refusal> {
        let failed = |source| Refusal::Note { module: module.to_owned(), source };
        let note = self.loaded.join(module);
        let is_noted = note.exists();
        // Noted before the load, so that the module can be unloaded after a crash.
        fs::write(&note, "").map_err(failed)?;
        let loaded = load();
        if loaded.is_err() && !is_noted {
            // Somebody else's module may already have this name (EEXIST).
            fs::remove_file(&note).map_err(failed)?;
        }
        Ok(loaded)
    }

    fn check(&self, request: &Request, file: &[u8]) -> Result<(), Refusal> {
        let module = request.module();
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if module.is_empty() || module.len() > MAX_NAME_BYTES || !module.bytes().all(is_of_name) {
            return Err(Refusal::Name(module.to_owned()));
        }
        match request {
            Request::DeleteModule { .. } if self.loaded.join(module).exists() => Ok(()),
            Request::Find { .. } | Request::Modprobe { .. } | Request::DeleteModule { .. } => {
                if self.modules.permit(module) {
                    return Ok(());
                }
                let (module, allowed) = (module.to_owned(), self.modules.to_string());
                Err(Refusal::Module { module, allowed })
            }
            Request::InitModule { .. } => {
                let sha256 = digest_bytes(file);
                // The digest is checked before anything parses the contents.
                if !self.digests.contains(&sha256) {
                    return Err(Refusal::Digest(sha256));
                }
                match supplied::facts(file)?.file {
                    SuppliedFile::Module(found) if found.name == module => Ok(()),
                    SuppliedFile::Module(KernelModule { name, .. }) => {
                        Err(Refusal::OtherModule { name, module: module.to_owned() })
                    }
                    SuppliedFile::Bpf(_) => Err(Refusal::Bpf),
                }
            }
        }
    }
}

/// Why the loader refuses a request.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    /// The client is another user.
    #[error("user {0} may not load modules")]
    User(u32),
    /// The request cannot be parsed.
    #[error("the request cannot be read: {0}")]
    Unreadable(#[source] io::Error),
    /// The name could be an option or a path.
    #[error("`{0}` is not the name of a kernel module")]
    Name(String),
    /// The command line does not permit the module.
    #[error(
        "it may load only {allowed}, not {module}; start `ccbench-agent loader` with an additional `--allow-module {module}`"
    )]
    Module {
        /// The module.
        module: String,
        /// The permitted modules.
        allowed: String,
    },
    /// The command line does not permit the file.
    #[error(
        "the file with sha256 {0} is not allowed; if you trust it, start `ccbench-agent loader` with `--allow-cc-digest {0}`"
    )]
    Digest(String),
    /// The file cannot be read.
    #[error("the file: {0}")]
    File(#[from] SuppliedError),
    /// The file is a module other than the requested one.
    #[error("the file is module {name}, not {module}")]
    OtherModule {
        /// The file's module.
        name: String,
        /// The requested module.
        module: String,
    },
    /// The file is a BPF object, not a module.
    #[error("the file is a BPF object")]
    Bpf,
    /// The note about a loaded module cannot be written.
    #[error("note whether {module} was loaded here: {source}")]
    Note {
        /// The module.
        module: String,
        /// The system's answer.
        source: io::Error,
    },
}

/// Reads a request and the file that follows it.
pub(crate) fn receive(stream: impl io::Read) -> io::Result<(Request, Vec<u8>)> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.by_ref().take(MAX_LINE_BYTES).read_line(&mut line)?;
    let request: Request = serde_json::from_str(&line)?;
    let mut file = Vec::new();
    if let Request::InitModule { bytes, .. } = &request {
        if *bytes > MAX_BYTES {
            let why = format!("the file has {bytes} bytes; {MAX_BYTES} is the limit");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        reader.take(*bytes).read_to_end(&mut file)?;
        if file.len() as u64 != *bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok((request, file))
}

fn of_tool(ran: Result<(), SocketError>) -> Answer {
    match ran {
        Ok(()) => Answer::Done,
        Err(SocketError::ToolFailed { stderr, .. }) => Answer::Tool(stderr),
        Err(error) => Answer::Refused(with_causes(&error)),
    }
}

fn of_kernel(done: Result<(), Errno>) -> Answer {
    done.map_or_else(|errno| Answer::Errno(errno.raw_os_error()), |()| Answer::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(digests: &[&str]) -> (tempfile::TempDir, Policy) {
        let dir = tempfile::tempdir().unwrap();
        let modules = AllowedModules::new(&["ccb_*".parse().unwrap()]);
        let digests = digests.iter().map(|digest| (*digest).to_owned()).collect();
        let loaded = dir.path().to_owned();
        (dir, Policy { modules, digests, loaded })
    }

    fn refused(policy: &Policy, request: &Request, file: &[u8]) -> String {
        policy.answer(request, file).unwrap_err().to_string()
    }

    #[test]
    fn only_permitted_names_reach_modprobe() {
        let (_dir, policy) = policy(&[]);
        let module = |name: &str| name.to_owned();
        for name in ["tcp_bbr", "nf_conntrack"] {
            let why = refused(&policy, &Request::Modprobe { module: module(name) }, &[]);
            assert!(why.contains("it may load only ccb_*"), "{why}");
        }
        let long = "ccb_".repeat(20);
        for name in ["", "-r", "ccb_x --force", "../ccb_x", "ccb_x\0", long.as_str()] {
            for request in [
                Request::Find { module: module(name) },
                Request::Modprobe { module: module(name) },
                Request::DeleteModule { module: module(name) },
            ] {
                let why = refused(&policy, &request, &[]);
                assert!(why.contains("is not the name of a kernel module"), "{why}");
            }
        }
        let find = Request::Find { module: module("ccb_no_such_module") };
        assert!(matches!(policy.answer(&find, &[]), Ok(Answer::Found(None | Some(false)))));
    }

    #[test]
    fn a_file_needs_its_digest_and_its_name() {
        let init =
            || Request::InitModule { module: "tcp_x".into(), params: String::new(), bytes: 3 };
        let (_dir, none) = policy(&[]);
        let why = refused(&none, &init(), b"ELF");
        assert!(why.contains(&digest_bytes(b"ELF")) && why.contains("--allow-cc-digest"), "{why}");
        // With the digest permitted, the contents are parsed.
        let (_dir, allowed) = policy(&[&digest_bytes(b"ELF")]);
        let why = refused(&allowed, &init(), b"ELF");
        assert!(why.starts_with("the file: "), "{why}");
        assert_eq!(fs::read_dir(&allowed.loaded).unwrap().count(), 0, "nothing is noted");
    }

    #[test]
    fn what_was_loaded_here_or_may_be_is_deleted() {
        let (dir, policy) = policy(&[]);
        let delete = |module: &str| Request::DeleteModule { module: module.to_owned() };
        let why = refused(&policy, &delete("tcp_never_loaded"), &[]);
        assert!(why.contains("it may load only ccb_*"), "{why}");
        fs::write(dir.path().join("tcp_never_loaded"), "").unwrap();
        // Either the privilege or the module is missing.
        for module in ["tcp_never_loaded", "ccb_never_loaded"] {
            assert!(matches!(policy.answer(&delete(module), &[]), Ok(Answer::Errno(_))));
        }
    }

    #[test]
    fn what_the_kernel_has_refused_was_not_loaded_here() {
        let (dir, policy) = policy(&[]);
        let is_noted = || dir.path().join("tcp_x").exists();
        let refuse = || Err(Errno::EXIST);
        assert_eq!(policy.init("tcp_x", refuse).unwrap(), Err(Errno::EXIST));
        assert!(!is_noted(), "it is somebody else's");
        let load = || {
            assert!(is_noted(), "before the module");
            Ok(())
        };
        assert_eq!(policy.init("tcp_x", load).unwrap(), Ok(()));
        assert_eq!(policy.init("tcp_x", refuse).unwrap(), Err(Errno::EXIST));
        assert!(is_noted(), "it is loaded already");
    }

    #[test]
    fn a_request_is_limited() {
        let received = |text: &[u8]| {
            let (mut client, server) = UnixStream::pair().unwrap();
            client.write_all(text).unwrap();
            drop(client);
            receive(&server)
        };
        let init = |bytes: u64| {
            let request = Request::InitModule { module: "m".into(), params: String::new(), bytes };
            serde_json::to_string(&request).unwrap() + "\nELF"
        };
        let (_, file) = received(init(3).as_bytes()).unwrap();
        assert_eq!(file, b"ELF");
        assert!(received(init(4).as_bytes()).is_err(), "it is not complete");
        let long = received(init(MAX_BYTES + 1).as_bytes()).unwrap_err().to_string();
        assert!(long.contains("is the limit"), "{long}");
        for bad in
            ["", "{}", "{\"run\":{\"module\":\"m\"}}", "{\"find\":{\"module\":\"m\",\"x\":1}}"]
        {
            assert!(received(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
