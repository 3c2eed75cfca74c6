//! Captures the packets of an interface to pcapng files, with a packet socket and a thread.
//!
//! The files are unnamed (`O_TMPFILE`), so the file system frees them when the process dies. Stopping the capture returns them.

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

/// Packets per system call.
const BATCH: usize = 64;
/// Size of the socket buffer. Packets that do not fit are counted as dropped.
const SOCKET_BYTES: i32 = 32 << 20;
/// Maximum bytes of one write to the file.
const PIECE_BYTES: usize = 256 << 10;
/// How often the thread checks the stop flag.
const SLICE_MS: u16 = 50;
/// Size of a VLAN tag, which the kernel removes from the frame and the capture inserts again.
const TAG_BYTES: usize = 4;
/// Size of the Ethernet addresses before the VLAN tag.
const ADDRESSES_BYTES: usize = 12;

/// Settings of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureSpec {
    /// Comment in the section header of the files.
    pub comment: String,
    /// The interface.
    pub dev: String,
    /// Maximum bytes captured per packet.
    pub snap_bytes: u32,
    /// Maximum size of a file.
    pub file_bytes: u64,
    /// Number of files. If there are several, the oldest is overwritten when the last is full. With one, later packets are only counted.
    pub files: u32,
}

/// A running capture. Dropping it discards the files.
#[derive(Debug)]
pub struct Capture {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Captured>>,
}

/// Result of a capture.
#[derive(Debug, Default)]
pub struct Captured {
    /// The files, oldest first, each positioned at its beginning.
    pub files: Vec<File>,
    /// Packets written, including those in overwritten files.
    pub packets: u64,
    /// Packets dropped by the full socket buffer.
    pub dropped: u64,
    /// Packets that arrived when the last file was full.
    pub left_out: u64,
    /// Files that were overwritten.
    pub overwritten: u64,
    /// The error that ended the capture early.
    pub error: Option<String>,
}

impl Capture {
    /// Starts a capture. The files are created in `dir`.
    ///
    /// # Errors
    /// The interface does not exist, CAP_NET_RAW is missing, or a file cannot be created in `dir`.
    pub fn start(spec: &CaptureSpec, dir: &Path) -> Result<Self, ShaperError> {
        let system = |op| move |source| ShaperError::System { op, source };
        let ifindex = netlink::ifindex(&spec.dev)?;
        let socket =
            sys::packet_socket().map_err(system("open a packet socket (needs CAP_NET_RAW)"))?;
        let fd = socket.as_fd();
        // SO_RCVBUFFORCE needs CAP_NET_ADMIN in the initial user namespace.
        if sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, SOCKET_BYTES).is_err() {
            sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, SOCKET_BYTES)
                .map_err(system("set the buffer size of a packet socket"))?;
        }
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
            .map_err(system("enable packet timestamps"))?;
        sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)
            .map_err(system("enable PACKET_AUXDATA"))?;
        let mut files = Files::open(spec.clone(), dir)?;
        sys::bind_packet(fd, ifindex, libc::ETH_P_ALL as u16)
            .map_err(system("bind a packet socket"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name(format!("capture-{}", spec.dev))
            .spawn(move || {
                let error = run(&socket, &mut files, &stopped).err();
                files.finish(sys::take_packet_drops(socket.as_fd()), error)
            })
            .map_err(system("start the capture thread"))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Asks the capture to stop, without waiting. It ends within 50 ms.
    pub fn request_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Stops the capture and returns its result.
    pub fn stop(mut self) -> Captured {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<Captured> {
        self.request_stop();
        let died = || Captured {
            error: Some("the capture thread panicked".to_owned()),
            ..Captured::default()
        };
        self.thread.take().map(|thread| thread.join().unwrap_or_else(|_| died()))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        drop(self.end());
    }
}

/// Captures packets until the capture is stopped, including packets that arrived before that.
fn run(socket: &OwnedFd, files: &mut Files, stop: &AtomicBool) -> io::Result<()> {
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
                // The next receive reports errors of `poll`.
                let _ = poll(
                    &mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)],
                    PollTimeout::from(SLICE_MS),
                );
                continue;
            }
            Err(error) if is_transient(&error) => continue,
            Err(error) => {
                return Err(with_context(format!("read packets of {}", files.spec.dev))(error));
            }
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

/// Whether to receive again after this error. A socket reports once that its interface went down, which is no reason to stop: it may come
/// up again, and the socket still holds packets.
fn is_transient(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted || error.raw_os_error() == Some(libc::ENETDOWN)
}

/// Adds the failed operation to an error.
fn with_context(what: String) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// The files of a capture.
struct Files {
    spec: CaptureSpec,
    /// The directory in which they are created.
    dir: PathBuf,
    files: Vec<File>,
    /// Index of the current file.
    current: usize,
    /// Bytes of the current file, including `waiting`.
    length: u64,
    waiting: Vec<u8>,
    /// Packets in `waiting`.
    waiting_packets: u64,
    /// Packets that could not be written.
    unwritten: u64,
    /// Bytes of the current file, excluding `waiting`.
    written: u64,
    captured: Captured,
}

impl Files {
    fn open(spec: CaptureSpec, dir: &Path) -> Result<Self, ShaperError> {
        let open = |_| open_tmpfile(dir);
        let files = (0..spec.files.max(1)).map(open).collect::<io::Result<Vec<_>>>();
        let files = files.map_err(|source| ShaperError::System {
            op: "create a capture file",
            source: in_dir(dir)(source),
        })?;
        let mut this = Self {
            files,
            dir: dir.to_path_buf(),
            written: 0,
            current: 0,
            length: 0,
            waiting: Vec::with_capacity(PIECE_BYTES + 70_000),
            waiting_packets: 0,
            unwritten: 0,
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
        self.waiting_packets += 1;
        if self.waiting.len() >= PIECE_BYTES { self.flush() } else { Ok(()) }
    }

    /// Switches to the next file, cyclically.
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
            Ok(()) => {
                self.written += self.waiting.len() as u64;
                self.captured.packets += self.waiting_packets;
            }
            // Remove what was written of it: a partial packet would make the rest of the file unreadable.
            Err(_) => {
                self.unwritten += self.waiting_packets;
                let _ = file.set_len(self.written);
                let _ = file.seek(SeekFrom::Start(self.written));
            }
        }
        self.waiting.clear();
        self.waiting_packets = 0;
        done.map_err(in_dir(&self.dir)).map_err(with_context("write a capture file".to_owned()))
    }

    /// Ends the files. `dropped`: the packets that the socket has dropped.
    fn finish(mut self, dropped: io::Result<u64>, error: Option<io::Error>) -> Captured {
        let held = self.captured.packets + self.waiting_packets;
        let seen = held + self.unwritten + self.captured.left_out;
        let drops = *dropped.as_ref().unwrap_or(&0);
        pcapng::end(&mut self.waiting, clock::realtime_ns(), seen + drops, drops);
        let flushed = self.flush();
        self.captured.dropped = drops;
        let failed = error.or(dropped.err()).or(flushed.err());
        self.captured.error = failed.map(|error| match self.unwritten {
            0 => error.to_string(),
            unwritten => format!("{error}; {unwritten} received packets are missing"),
        });
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

/// Adds the directory and a hint to an error.
fn in_dir(dir: &Path) -> impl FnOnce(io::Error) -> io::Error {
    let dir = dir.display().to_string();
    move |error| {
        let text = format!("{error} (in {dir}; set TMPDIR to use another directory)");
        io::Error::new(error.kind(), text)
    }
}

/// Creates a file that is deleted when it is closed.
fn open_tmpfile(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let made = options.clone().custom_flags(libc::O_TMPFILE).mode(0o600).open(dir);
    made.or_else(|_| {
        // The file system does not support O_TMPFILE.
        let unique = format!(".ccbench-capture-{}-{}", std::process::id(), clock::realtime_ns());
        let path = dir.join(unique);
        let file = options.create_new(true).mode(0o600).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(file_bytes: u64) -> Files {
        let spec = CaptureSpec {
            comment: String::new(),
            dev: "eth0".to_owned(),
            snap_bytes: 100,
            file_bytes,
            files: 1,
        };
        Files::open(spec, &std::env::temp_dir()).unwrap()
    }

    #[test]
    fn packets_that_are_not_written_are_not_captured() {
        let mut files = files(1 << 20);
        files.put(1, &[0; 60], 60).unwrap();
        files.flush().unwrap();
        // A file that is open only for reading takes no packets.
        files.files = vec![File::open("/dev/null").unwrap()];
        files.put(2, &[0; 60], 60).unwrap();
        files.put(3, &[0; 60], 60).unwrap();
        let error = files.flush().unwrap_err();
        let captured = files.finish(Ok(0), Some(error));
        assert_eq!(captured.packets, 1);
        let error = captured.error.unwrap();
        assert!(error.starts_with("write a capture file: "), "{error}");
        assert!(error.ends_with("; 2 received packets are missing"), "{error}");
    }

    #[test]
    fn every_written_packet_is_captured() {
        let mut files = files(1 << 20);
        for at_ns in 0..3 {
            files.put(at_ns, &[0; 60], 60).unwrap();
        }
        let captured = files.finish(Ok(5), None);
        assert_eq!((captured.packets, captured.dropped, captured.error), (3, 5, None));
        assert_eq!(captured.files.len(), 1);
    }

    #[test]
    fn an_interface_that_goes_down_does_not_end_a_capture() {
        assert!(is_transient(&io::Error::from_raw_os_error(libc::ENETDOWN)));
        assert!(!is_transient(&io::Error::from_raw_os_error(libc::ENXIO)));
    }
}
