//! The lab's virtual machine: one boot runs one trial, or opens a shell.

use std::io::{self, BufWriter, Read, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ccbench_proto::plan::{self, Engine, Series};
use ccbench_proto::wire;
use prost::Message as _;
use tokio::process::Child;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{debug, info};

use super::error::LabError;
use super::jobs::GuestResources;
use super::kernel::{self, Kernel};
use super::qemu::{self, MachineType, QEMU, VmConfig};
use super::uml::{self, UmlConfig};
use super::userland::{self, Programs};
use super::{MEMORY_MIB, cpio, cpu, modules};
use crate::clock;
use crate::paths::agent_binary;

/// A kernel and an initramfs, ready to boot.
#[derive(Debug, Clone)]
pub struct VmImage {
    kernel: Kernel,
    /// The program that runs the kernel: QEMU with its version, or User-Mode Linux.
    pub emulator: String,
    programs: Programs,
    userland: Vec<u8>,
    /// SHA-256 of the userland, in hexadecimal.
    pub userland_sha256: String,
}

impl VmImage {
    /// Packs the userland with these programs of the host for a kernel, which must already be built. A stock kernel also gets modprobe.
    ///
    /// # Errors
    /// A program or the kernel is missing, or the engine cannot run the kernel.
    pub fn open(engine: Engine, series: Series, programs: Programs) -> Result<Self, LabError> {
        if !engine.runs(series) {
            return Err(LabError::NotItsKernel { engine, kernel: series });
        }
        let emulator = match engine {
            Engine::Qemu => qemu::version()?,
            Engine::Uml => uml::EMULATOR.to_owned(),
        };
        let kernel = kernel::find(engine, series).ok_or_else(|| LabError::Missing {
            what: format!("kernel {series} for the engine {engine}"),
            hint: kernel::hint(engine, series),
        })?;
        Self::pack(kernel, emulator, programs)
    }

    /// Adds ccbench's modules, which must already be built, to the userland.
    ///
    /// # Errors
    /// The modules are not built, or the kernel is a stock one.
    pub fn with_modules(self) -> Result<Self, LabError> {
        let modules = Some(modules::open(&self.kernel)?);
        Self::pack(Kernel { modules, ..self.kernel }, self.emulator, self.programs)
    }

    fn pack(kernel: Kernel, emulator: String, programs: Programs) -> Result<Self, LabError> {
        let mut userland = Vec::new();
        let agent =
            userland::find(&agent_binary().display().to_string()).unwrap_or_else(agent_binary);
        let modules = kernel.modules.as_deref().map(|folder| (folder, kernel.release.as_str()));
        userland::archive(&agent, programs, modules)?
            .write(&mut userland)
            .map_err(LabError::io("pack", &agent))?;
        let userland_sha256 = plan::digest_bytes(&userland);
        Ok(Self { kernel, emulator, programs, userland, userland_sha256 })
    }

    /// Returns the kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Returns a command that opens a shell in the virtual machine, with its console on this terminal.
    ///
    /// # Errors
    /// A file cannot be written.
    #[expect(clippy::disallowed_methods, reason = "starts QEMU")]
    pub fn shell(&self, dilation: u32) -> Result<std::process::Command, LabError> {
        let folder = kernel::lab_cache_dir().join("shell");
        std::fs::create_dir_all(&folder).map_err(LabError::io("make", &folder))?;
        let files = BootFiles::in_folder(&folder);
        std::fs::write(&files.initramfs, &self.userland)
            .map_err(LabError::io("write", &files.initramfs))?;
        let mut command = std::process::Command::new(QEMU);
        command.args(self.qemu(&files, 1, dilation).interactive_arguments());
        Ok(command)
    }

    fn qemu(&self, files: &BootFiles, seed: u64, dilation: u32) -> VmConfig {
        VmConfig {
            kernel: self.kernel.image.clone(),
            initramfs: files.initramfs.clone(),
            console: files.console.clone(),
            messages: files.messages.clone(),
            memory_mib: MEMORY_MIB,
            machine_type: if self.kernel.series == Series::Own {
                MachineType::Microvm
            } else {
                MachineType::Pc
            },
            seed,
            dilation,
        }
    }

    /// Boots the virtual machine for one trial with these resources. Its files go to `folder`, which must outlive it.
    ///
    /// # Errors
    /// A file cannot be written, or the engine cannot be started.
    pub fn boot(
        &self,
        folder: &Path,
        task: &wire::LabTask,
        seed: u64,
        dilation: Option<u32>,
        resources: &GuestResources,
    ) -> Result<Vm, LabError> {
        let engine = self.kernel.engine;
        info!(kernel = self.kernel.release, %engine, seed, dilation, cpu = resources.cpu, "boot the lab");
        let files = BootFiles::in_folder(folder);
        let mut archive = cpio::Archive::default();
        archive.file("lab/task.pb", 0o644, task.encode_to_vec());
        self.write_initramfs(&archive, &files.initramfs)
            .map_err(LabError::io("write", &files.initramfs))?;
        std::fs::write(&files.messages, []).map_err(LabError::io("write", &files.messages))?;
        let child = match engine {
            Engine::Qemu => {
                let errors = std::fs::File::create(&files.errors)
                    .map_err(LabError::io("write", &files.errors))?;
                self.qemu(&files, seed, dilation.unwrap_or(1)).start(resources.cpu, errors)?
            }
            Engine::Uml => {
                let console = std::fs::File::create(&files.console)
                    .map_err(LabError::io("write", &files.console))?;
                let config = UmlConfig {
                    kernel: self.kernel.image.clone(),
                    folder: folder.to_owned(),
                    memory_folder: match &resources.memory_folder {
                        Some(folder) => folder.clone(),
                        None => uml::memory_folder(MEMORY_MIB)?,
                    },
                    memory_mib: MEMORY_MIB,
                    seed,
                    controller: std::process::id(),
                };
                let least_busy = || cpu::least_busy_first().first().copied().unwrap_or(0);
                config.start(resources.cpu.unwrap_or_else(least_busy), &console)?
            }
        };
        Ok(Vm { engine, files, child })
    }

    /// Writes the userland and another archive, one after the other, which the kernel unpacks in this order.
    fn write_initramfs(&self, more: &cpio::Archive, path: &Path) -> io::Result<()> {
        let mut out = BufWriter::new(std::fs::File::create(path)?);
        out.write_all(&self.userland)?;
        more.write(&mut out)?;
        out.flush()
    }
}

/// The files of one boot.
#[derive(Debug)]
struct BootFiles {
    initramfs: PathBuf,
    /// The console's output.
    console: PathBuf,
    /// QEMU's own messages. Those of User-Mode Linux are on the console.
    errors: PathBuf,
    /// The guest's messages.
    messages: PathBuf,
}

impl BootFiles {
    fn in_folder(folder: &Path) -> Self {
        Self {
            initramfs: folder.join("initramfs"),
            console: folder.join("console"),
            errors: folder.join("errors"),
            messages: folder.join("messages"),
        }
    }

    /// Returns the console's output, followed by the engine's own messages.
    fn output(&self) -> String {
        let text = |path: &Path| {
            String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
        };
        let (mut output, errors) = (text(&self.console), text(&self.errors));
        if !output.is_empty() && !output.ends_with('\n') && !errors.is_empty() {
            output.push('\n');
        }
        output + &errors
    }
}

/// Returns the last lines that guest processes wrote to the console, with an introduction; empty if there are none. `folder` has
/// the files of the boot.
pub fn console_tail(folder: &Path) -> String {
    let console = std::fs::read(BootFiles::in_folder(folder).console).unwrap_or_default();
    let console = String::from_utf8_lossy(&console);
    // The kernel prints this line when it powers off.
    let lines: Vec<&str> = console.lines().filter(|line| !line.starts_with("reboot: ")).collect();
    match last_lines(lines.join("\n").trim_end(), CONSOLE_LINES) {
        tail if tail.trim().is_empty() => String::new(),
        tail => format!("; the guest's console ends with:\n{tail}"),
    }
}

/// Number of console lines that an error shows.
const CONSOLE_LINES: usize = 40;

/// A running virtual machine.
pub struct Vm {
    engine: Engine,
    files: BootFiles,
    child: Child,
}

/// Reads the messages of a running virtual machine. Dropping it ends the machine.
pub struct VmReader(JoinSet<Result<(), LabError>>);

impl VmReader {
    /// Waits until the machine has ended.
    ///
    /// # Errors
    /// The machine ended before [`wire::LabDone`]. The error has the last lines of its console.
    pub async fn ended(mut self) -> Result<(), LabError> {
        match self.0.join_next().await {
            Some(ended) => ended?,
            None => Ok(()),
        }
    }

    /// Ends the machine. Its files are not in use afterwards.
    pub async fn kill(mut self) {
        self.0.shutdown().await;
    }
}

/// Maximum number of bytes that are read at once from the file of the guest's messages. While the recorder is slow, the rest stays
/// in the file.
const READ_BYTES: u64 = 1 << 20;

/// Reads the next part of the guest's messages. Returns its length; [`READ_BYTES`] means that there may be more.
fn read_part(messages: &mut impl Read, buffer: &mut Vec<u8>) -> io::Result<u64> {
    Ok(messages.take(READ_BYTES).read_to_end(buffer)? as u64)
}

/// How often new messages of the guest are read from their file.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// A guest that sends no message for this long hangs, or one of its processes spins. Even a slow guest sends samples many times a
/// minute.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(300);

/// Returns [`MESSAGE_TIMEOUT`], or `CCBENCH_LAB_SILENCE_S` seconds, for very slow hosts and for tests.
fn message_timeout() -> Duration {
    let seconds = std::env::var("CCBENCH_LAB_SILENCE_S").ok();
    seconds.and_then(|s| s.parse().ok()).map_or(MESSAGE_TIMEOUT, Duration::from_secs)
}

impl Vm {
    /// Starts to read the guest's messages.
    pub fn read(self, send: mpsc::Sender<wire::LabMessage>) -> VmReader {
        let mut tasks = JoinSet::new();
        tasks.spawn(self.follow(send));
        VmReader(tasks)
    }

    /// Forwards the guest's messages until the virtual machine ends.
    ///
    /// # Errors
    /// The virtual machine ended before [`wire::LabDone`]. The error has the last lines of its console.
    async fn follow(mut self, send: mpsc::Sender<wire::LabMessage>) -> Result<(), LabError> {
        let path = self.files.messages.clone();
        let io = LabError::io("read", &path);
        let mut messages = std::fs::File::open(&path).map_err(&io)?;
        let (mut buffer, mut done) = (Vec::new(), false);
        let limit = message_timeout();
        let mut last_message = clock::now();
        loop {
            // Check this before reading the file, so that everything that the guest wrote before its end is read.
            let ended = self.child.try_wait().map_err(&io)?;
            let part_bytes = read_part(&mut messages, &mut buffer).map_err(&io)?;
            let mut rest = buffer.as_slice();
            while let Some(message) = wire::next_lab_message(&mut rest) {
                let message =
                    message.map_err(|e| self.error(format!("sent an unreadable message ({e})")))?;
                debug!(kind = kind(&message), "message of the guest");
                done |= matches!(message.payload, Some(wire::lab_message::Payload::Done(_)));
                if send.send(message).await.is_err() {
                    return Ok(());
                }
            }
            let read = buffer.len() - rest.len();
            buffer.drain(..read);
            if part_bytes > 0 {
                // A slow recorder may have taken long for these messages, in which the guest is not silent.
                last_message = clock::now();
            }
            match ended {
                _ if part_bytes == READ_BYTES => {}
                Some(_) if done => return Ok(()),
                Some(status) => return Err(self.error(format!("ended with {status}"))),
                None if clock::since(last_message) > limit => {
                    let seconds = limit.as_secs();
                    let mut reason = format!("has sent no message for {seconds} s and was stopped");
                    if let Some(process) = self.running_process().await {
                        reason = format!("{reason}; {process} of the guest was running");
                    }
                    // Dropping `self` kills the machine (`kill_on_drop`).
                    return Err(self.error(reason));
                }
                None => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Returns the guest process that is running, if the engine can tell. With User-Mode Linux, a process that spins without a
    /// system call stops the clock.
    async fn running_process(&self) -> Option<String> {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.child.id()?).ok()?)?;
        if self.engine != Engine::Uml {
            return None;
        }
        rustix::process::kill_process(pid, rustix::process::Signal::USR2).ok()?;
        for _ in 0..20 {
            tokio::time::sleep(POLL_INTERVAL).await;
            if let Some(process) = uml::running_process(&self.files.output()) {
                return Some(process.to_owned());
            }
        }
        None
    }

    fn error(&self, reason: String) -> LabError {
        let console = self.files.output();
        if self.engine == Engine::Uml
            && let Some(advice) = uml::advice(&console)
        {
            return LabError::Vm {
                reason: advice.to_owned(),
                console: last_lines(&console, CONSOLE_LINES),
            };
        }
        // A kernel that panics reboots, which ends QEMU without an error.
        let panicked = console.contains("Kernel panic");
        let reason = if panicked { "panicked".to_owned() } else { reason };
        LabError::Vm { reason, console: last_lines(&console, CONSOLE_LINES) }
    }
}

/// Returns the kind of a guest's message, for the debug log.
fn kind(message: &wire::LabMessage) -> &'static str {
    use wire::lab_message::Payload;
    match &message.payload {
        Some(Payload::Node(_)) => "node",
        Some(Payload::Prepared(_)) => "prepared",
        Some(Payload::Start(_)) => "start",
        Some(Payload::Row(_)) => "row",
        Some(Payload::End(_)) => "end",
        Some(Payload::Undone(_)) => "undone",
        Some(Payload::Done(_)) => "done",
        Some(Payload::Failed(_)) => "failed",
        None => "unknown",
    }
}

fn last_lines(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backlog_of_messages_is_read_in_parts() {
        let mut backlog = io::repeat(7).take(2 * READ_BYTES + 5);
        let (mut parts, mut buffer) = (vec![], vec![]);
        loop {
            let part_bytes = read_part(&mut backlog, &mut buffer).unwrap();
            assert_eq!(buffer.len() as u64, part_bytes);
            parts.push(part_bytes);
            buffer.clear();
            if part_bytes < READ_BYTES {
                break;
            }
        }
        assert_eq!(parts, [READ_BYTES, READ_BYTES, 5]);
    }

    #[test]
    fn why_qemu_does_not_start_is_part_of_the_output() {
        let dir = tempfile::tempdir().unwrap();
        let files = BootFiles::in_folder(dir.path());
        assert_eq!(files.output(), "");
        std::fs::write(&files.errors, "qemu: no memory\n").unwrap();
        assert_eq!(files.output(), "qemu: no memory\n");
        std::fs::write(&files.console, "booting").unwrap();
        assert_eq!(files.output(), "booting\nqemu: no memory\n");
    }

    #[test]
    fn last_lines_of_a_console() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a", 2), "a");
    }
}
