//! What passes an interface, as pcapng files: a packet socket read by a thread of its own.
//!
//! The files have no names, so the file system frees them when a process dies. Stopping the capture returns them.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::ShaperError;
use crate::sys::{self, RxBatch};
use crate::{clock, netlink};

pub mod pcapng;

/// Packets of one system call.
const BATCH: usize = 64;
/// The socket's buffer. What it cannot hold is lost and counted.
const SOCKET_BYTES: i32 = 32 << 20;
/// Written to the file at once.
const PIECE_BYTES: usize = 256 << 10;
/// The thread notices within this that it is to stop.
const SLICE_MS: u16 = 50;
/// VLAN tag, put back where the kernel took it out.
const TAG_BYTES: usize = 4;
/// The addresses in front of it.
const ADDRESSES_BYTES: usize = 12;

/// What to capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureSpec {
    /// Goes into the files.
    pub comment: String,
    /// The interface.
    pub dev: String,
    /// How much of each packet is kept.
    pub snap_bytes: u32,
    /// Length of a file.
    pub file_bytes: u64,
    /// Files: when the last is full the first is overwritten; with one, the rest is only counted.
    pub files: u32,
}

/// A capture that runs. Dropped, it ends and leaves nothing.
#[derive(Debug)]
pub struct Capture {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Captured>>,
}

/// What a capture left.
#[derive(Debug, Default)]
pub struct Captured {
    /// Oldest first, each ready to be read from its beginning.
    pub files: Vec<File>,
    /// Packets in all files, overwritten ones too.
    pub packets: u64,
    /// Packets that the socket had no room for.
    pub dropped: u64,
    /// Packets that came when the last file was full.
    pub left_out: u64,
    /// Files that were overwritten.
    pub overwritten: u64,
    /// What ended it before its time.
    pub error: Option<String>,
}

impl Capture {
    /// Starts; what passes the interface from now on is in it.
    ///
    /// # Errors
    /// There is no such interface, no right to listen (CAP_NET_RAW), or no place for a file under `folder`.
    pub fn start(spec: &CaptureSpec, folder: &Path) -> Result<Self, ShaperError> {
        let system = |op| move |source| ShaperError::System { op, source };
        let ifindex = netlink::ifindex(&spec.dev)?;
        let socket =
            sys::packet_socket().map_err(system("open a packet socket (needs CAP_NET_RAW)"))?;
        let fd = socket.as_fd();
        // Beyond the system's limit only root of the whole machine may go.
        if sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, SOCKET_BYTES).is_err() {
            sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, SOCKET_BYTES)
                .map_err(system("size a packet socket's buffer"))?;
        }
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
            .map_err(system("ask for packets' times"))?;
        sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)
            .map_err(system("ask for packets' lengths"))?;
        let mut files = Files::open(spec.clone(), folder)?;
        sys::bind_packet(fd, ifindex, libc::ETH_P_ALL as u16)
            .map_err(system("bind a packet socket"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name(format!("capture-{}", spec.dev))
            .spawn(move || {
                let error = work(&socket, &mut files, &stopped).err();
                files.finish(&socket, error)
            })
            .map_err(system("start a capture's thread"))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Has it end within a twentieth of a second, without waiting for that.
    pub fn ask_to_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Ends it, with what it left.
    pub fn stop(mut self) -> Captured {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<Captured> {
        self.ask_to_stop();
        let died = || Captured { error: Some("its thread died".to_owned()), ..Captured::default() };
        self.thread.take().map(|thread| thread.join().unwrap_or_else(|_| died()))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        drop(self.end());
    }
}

/// Reads packets until it is stopped, and then those that arrived before.
fn work(socket: &OwnedFd, files: &mut Files, stop: &AtomicBool) -> io::Result<()> {
    let mut batch = RxBatch::new(BATCH, 0, files.spec.snap_bytes as usize);
    let mut frame = Vec::with_capacity(files.spec.snap_bytes as usize + TAG_BYTES);
    let mut until_ns = None;
    loop {
        if until_ns.is_none() && stop.load(Ordering::Relaxed) {
            until_ns = Some(clock::realtime_ns());
        }
        let last = until_ns.is_some();
        match batch.receive(socket.as_fd(), BATCH) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if last {
                    return Ok(());
                }
                // The next read reports an error of the wait.
                let _ = poll(
                    &mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)],
                    PollTimeout::from(SLICE_MS),
                );
                continue;
            }
            // The interface went down; it may come back.
            Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) && !last => continue,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(during(format!("read packets of {}", files.spec.dev))(error)),
        }
        for packet in batch.packets() {
            let at_ns = packet.real_ns.unwrap_or_else(clock::realtime_ns);
            if until_ns.is_some_and(|until_ns| at_ns > until_ns) {
                return Ok(());
            }
            let length = packet.length.unwrap_or(packet.bytes.len() as u32);
            match packet.vlan {
                Some(tag) if packet.bytes.len() >= ADDRESSES_BYTES => {
                    frame.clear();
                    frame.extend_from_slice(&packet.bytes[..ADDRESSES_BYTES]);
                    frame.extend_from_slice(&tag);
                    frame.extend_from_slice(&packet.bytes[ADDRESSES_BYTES..]);
                    files.put(at_ns, &frame, length + TAG_BYTES as u32)?;
                }
                _ => files.put(at_ns, packet.bytes, length)?,
            }
        }
    }
}

/// Says during what an error came.
fn during(what: String) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// The files of a capture.
struct Files {
    spec: CaptureSpec,
    /// Where they are.
    folder: PathBuf,
    files: Vec<File>,
    /// Which is written to.
    current: usize,
    /// In the current one, with what waits to be written.
    length: u64,
    waiting: Vec<u8>,
    /// In the current one without that.
    written: u64,
    captured: Captured,
}

impl Files {
    fn open(spec: CaptureSpec, folder: &Path) -> Result<Self, ShaperError> {
        let open = |_| nameless(folder);
        let files = (0..spec.files.max(1)).map(open).collect::<io::Result<Vec<_>>>();
        let files = files.map_err(|source| ShaperError::System {
            op: "make a capture's file",
            source: in_folder(folder)(source),
        })?;
        let mut this = Self {
            files,
            folder: folder.to_path_buf(),
            written: 0,
            current: 0,
            length: 0,
            waiting: Vec::with_capacity(PIECE_BYTES + 70_000),
            captured: Captured::default(),
            spec,
        };
        this.begin();
        Ok(this)
    }

    fn begin(&mut self) {
        let CaptureSpec { dev, comment, snap_bytes, .. } = &self.spec;
        pcapng::begin(&mut self.waiting, dev, comment, *snap_bytes);
        self.length = self.waiting.len() as u64;
        self.written = 0;
    }

    fn put(&mut self, at_ns: u64, bytes: &[u8], length: u32) -> io::Result<()> {
        if self.length + pcapng::packet_bytes(bytes.len()) > self.spec.file_bytes {
            if self.spec.files <= 1 {
                self.captured.left_out += 1;
                return Ok(());
            }
            self.next()?;
        }
        pcapng::packet(&mut self.waiting, at_ns, bytes, length);
        self.length += pcapng::packet_bytes(bytes.len());
        self.captured.packets += 1;
        if self.waiting.len() >= PIECE_BYTES { self.flush() } else { Ok(()) }
    }

    /// Goes on in the next file; the one after the last is the first again.
    fn next(&mut self) -> io::Result<()> {
        self.flush()?;
        self.current = (self.current + 1) % self.files.len();
        let file = &mut self.files[self.current];
        if file.metadata()?.len() > 0 {
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            self.captured.overwritten += 1;
        }
        self.begin();
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let file = &mut self.files[self.current];
        let done = file.write_all(&self.waiting);
        match done {
            Ok(()) => self.written += self.waiting.len() as u64,
            // Half a packet would keep what follows from being read.
            Err(_) => {
                let _ = file.set_len(self.written);
                let _ = file.seek(SeekFrom::Start(self.written));
            }
        }
        self.waiting.clear();
        done.map_err(in_folder(&self.folder)).map_err(during("write a capture's file".to_owned()))
    }

    fn finish(mut self, socket: &OwnedFd, error: Option<io::Error>) -> Captured {
        let dropped = sys::take_packet_drops(socket.as_fd());
        let seen = self.captured.packets + self.captured.left_out;
        let drops = *dropped.as_ref().unwrap_or(&0);
        pcapng::end(&mut self.waiting, clock::realtime_ns(), seen + drops, drops);
        let flushed = self.flush();
        self.captured.dropped = drops;
        let failed = error.or(dropped.err()).or(flushed.err());
        self.captured.error = failed.map(|error| error.to_string());
        let oldest = (self.current + 1) % self.files.len().max(1);
        self.files.rotate_left(oldest);
        for mut file in self.files {
            let held = file.metadata().is_ok_and(|meta| meta.len() > 0);
            if held && file.seek(SeekFrom::Start(0)).is_ok() {
                self.captured.files.push(file);
            }
        }
        self.captured
    }
}

/// Says where, and how to have it elsewhere.
fn in_folder(folder: &Path) -> impl FnOnce(io::Error) -> io::Error {
    let folder = folder.display().to_string();
    move |error| {
        let text = format!("{error} (in {folder}; TMPDIR names another folder)");
        io::Error::new(error.kind(), text)
    }
}

/// A file that is gone when it is closed.
fn nameless(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let made = options.clone().custom_flags(libc::O_TMPFILE).mode(0o600).open(folder);
    made.or_else(|_| {
        // A file system without the flag.
        let unique = format!(".ccbench-capture-{}-{}", std::process::id(), clock::realtime_ns());
        let path = folder.join(unique);
        let file = options.create_new(true).mode(0o600).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    })
}
