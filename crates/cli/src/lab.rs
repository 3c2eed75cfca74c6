//! The lab: a small Linux under QEMU whose clock counts instructions, so that a trial in it depends on the plan and
//! the seed and on nothing of this machine. One boot is one trial.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use ccbench_proto::plan::Series;
use ccbench_proto::wire;
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use crate::local::agent_binary;
use qemu::{Board, Machine, QEMU};

pub mod boots;
pub mod cpio;
pub mod qemu;
pub mod trial;
mod userland;

/// What builds or fetches kernels; the parts that a kernel needs decide on its place in the cache.
const RECIPE: [(&str, &str); 6] = [
    ("apt.sh", include_str!("../../../lab/apt.sh")),
    ("kernel.sh", include_str!("../../../lab/kernel.sh")),
    ("kernel.config", include_str!("../../../lab/kernel.config")),
    ("patches/0001-idle-nops.patch", include_str!("../../../lab/patches/0001-idle-nops.patch")),
    (
        "patches/0002-lapic-timer-mhz.patch",
        include_str!("../../../lab/patches/0002-lapic-timer-mhz.patch"),
    ),
    ("debian.sh", include_str!("../../../lab/debian.sh")),
];

/// Where a kernel is kept.
fn kernel_folder(series: Series) -> PathBuf {
    let parts = RECIPE.iter().filter(|(name, _)| match series {
        Series::Own => *name != "debian.sh",
        _ => matches!(*name, "apt.sh" | "debian.sh"),
    });
    let mut hash = Sha256::new();
    for (name, text) in parts {
        hash.update(name);
        hash.update([0]);
        hash.update(text);
        hash.update([0]);
    }
    let key: String = hash.finalize().iter().take(6).map(|b| format!("{b:02x}")).collect();
    cache().join(format!("kernel-{series}-{key}"))
}

/// Its image's name in there.
fn image_name(series: Series) -> &'static str {
    if series == Series::Own { "vmlinux" } else { "vmlinuz" }
}

/// The command that brings a kernel.
fn way_out(series: Series) -> String {
    match series {
        Series::Own => "run `ccbench lab build` (about 15 minutes, once)".to_owned(),
        other => format!("run `ccbench lab build --kernel {other}` (about a minute, once)"),
    }
}

/// What can go wrong in the lab.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Something must be installed or built first.
    #[error("the lab needs {what}; {way_out}")]
    Missing {
        /// What.
        what: String,
        /// A command.
        way_out: String,
    },
    /// A file of the lab.
    #[error("{op} {}: {source}", path.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The kernel's recipe failed; it has said why.
    #[error("the lab's kernel could not be built ({status})")]
    Build {
        /// How the recipe ended.
        status: std::process::ExitStatus,
    },
    /// The machine ended without having said everything.
    #[error("the lab's machine {how}; its console ends with:\n{tail}")]
    Machine {
        /// "ended with exit code 1", "panicked" ...
        how: String,
        /// Last lines of the console.
        tail: String,
    },
}

/// A kernel that the lab can boot.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// Which.
    pub series: Series,
    /// The image.
    pub image: PathBuf,
    /// Its modules, if it has any.
    modules: Option<PathBuf>,
    /// `uname -r`.
    pub release: String,
    /// Source package and version.
    pub version: String,
}

impl Kernel {
    /// Whether its processor's speed can be told apart from its clock's: a stock kernel measures its timers itself.
    pub fn dilates(&self) -> bool {
        self.series == Series::Own
    }
}

/// Where the lab keeps what it builds.
pub fn cache() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    base.unwrap_or_else(std::env::temp_dir).join("ccbench/lab")
}

/// A kernel, if it is built or fetched.
pub fn kernel(series: Series) -> Option<Kernel> {
    let folder = kernel_folder(series);
    let text = |name: &str| {
        std::fs::read_to_string(folder.join(name)).ok().map(|text| text.trim().to_owned())
    };
    let image = folder.join(image_name(series));
    // Moved there last.
    image.exists().then_some(())?;
    let modules = (series != Series::Own).then(|| folder.join("modules"));
    Some(Kernel { series, image, modules, release: text("release")?, version: text("version")? })
}

/// Builds the kernel if it is not there.
///
/// # Errors
/// What is missing, with the command that brings it.
pub fn build(series: Series) -> Result<Kernel, LabError> {
    if let Some(kernel) = kernel(series) {
        return Ok(kernel);
    }
    let folder = kernel_folder(series);
    let io = |op, path: &Path| {
        let path = path.to_owned();
        move |source| LabError::Io { op, path, source }
    };
    let recipe = tempfile::tempdir().map_err(io("make a folder in", &std::env::temp_dir()))?;
    for (name, text) in RECIPE {
        let path = recipe.path().join(name);
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::write(&path, text)).map_err(io("write", &path))?;
    }
    let script = if series == Series::Own { "kernel.sh" } else { "debian.sh" };
    let mut command = std::process::Command::new("bash");
    command.arg(recipe.path().join(script)).arg(recipe.path()).arg(&folder);
    if series != Series::Own {
        command.arg(series.name());
    }
    let status = command.status().map_err(io("start bash for", recipe.path()))?;
    if !status.success() {
        return Err(LabError::Build { status });
    }
    kernel(series).ok_or_else(|| LabError::Missing {
        what: format!("{}", folder.join(image_name(series)).display()),
        way_out: "remove that folder and run `ccbench lab build` again".to_owned(),
    })
}

/// Everything a trial in the lab needs but the trial.
#[derive(Debug, Clone)]
pub struct Lab {
    kernel: Kernel,
    /// Name and version of the emulator, as it says.
    pub emulator: String,
    userland: Vec<u8>,
    /// sha256 of the userland, hexadecimal.
    pub userland_sha256: String,
}

impl Lab {
    /// Opens the lab: its kernel must be built.
    ///
    /// # Errors
    /// What is missing, with the command that brings it.
    pub fn open(series: Series) -> Result<Self, LabError> {
        let told = std::process::Command::new(QEMU).arg("--version").output();
        let told = told.map_err(|_| LabError::Missing {
            what: QEMU.to_owned(),
            way_out: "run `apt-get install qemu-system-x86` as root".to_owned(),
        })?;
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        let emulator = told.lines().next().unwrap_or("QEMU, unknown version").to_owned();
        let kernel = kernel(series).ok_or_else(|| LabError::Missing {
            what: format!("kernel {series}"),
            way_out: way_out(series),
        })?;
        let mut userland = Vec::new();
        let agent =
            userland::find(&agent_binary().display().to_string()).unwrap_or_else(agent_binary);
        let modules = kernel.modules.as_deref().map(|folder| (folder, kernel.release.as_str()));
        userland::archive(&agent, modules)?
            .write(&mut userland)
            .map_err(|source| LabError::Io { op: "pack", path: agent, source })?;
        let userland_sha256 =
            Sha256::digest(&userland).iter().map(|b| format!("{b:02x}")).collect();
        Ok(Self { kernel, emulator, userland, userland_sha256 })
    }

    /// The kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// A command that opens a prompt in the machine; its console is this terminal.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn shell(&self, dilation: u32) -> Result<std::process::Command, LabError> {
        let folder = cache().join("shell");
        let io = |op, path: &Path| {
            let path = path.to_owned();
            move |source| LabError::Io { op, path, source }
        };
        std::fs::create_dir_all(&folder).map_err(io("make", &folder))?;
        let initramfs = folder.join("initramfs");
        std::fs::write(&initramfs, &self.userland).map_err(io("write", &initramfs))?;
        let machine = self.machine(&folder, initramfs, 1, dilation);
        let mut command = std::process::Command::new(QEMU);
        command.args(machine.arguments_for_people());
        Ok(command)
    }

    fn machine(&self, folder: &Path, initramfs: PathBuf, seed: u64, dilation: u32) -> Machine {
        Machine {
            kernel: self.kernel.image.clone(),
            initramfs,
            console: folder.join("console"),
            said: folder.join("said"),
            memory_mib: 768,
            board: if self.kernel.series == Series::Own { Board::Micro } else { Board::Pc },
            seed,
            dilation,
        }
    }

    /// Boots the machine for one trial. `folder` gets its files and must outlive the boot.
    ///
    /// # Errors
    /// A file cannot be written, or QEMU cannot be started.
    pub fn boot(
        &self,
        folder: &Path,
        task: &wire::LabTask,
        seed: u64,
        dilation: u32,
    ) -> Result<Boot, LabError> {
        let mut archive = cpio::Archive::default();
        archive.file("lab/task.pb", 0o644, task.encode_to_vec());
        let initramfs = folder.join("initramfs");
        let io = |op, path: &Path| {
            let path = path.to_owned();
            move |source| LabError::Io { op, path, source }
        };
        let mut bytes = self.userland.clone();
        archive.write(&mut bytes).map_err(io("pack", &initramfs))?;
        std::fs::write(&initramfs, bytes).map_err(io("write", &initramfs))?;
        let machine = self.machine(folder, initramfs, seed, dilation);
        std::fs::write(&machine.said, []).map_err(io("write", &machine.said))?;
        let child = Command::new(QEMU)
            .args(machine.arguments())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(io("start", Path::new(QEMU)))?;
        Ok(Boot { machine, child })
    }
}

/// A running machine.
pub struct Boot {
    machine: Machine,
    child: Child,
}

/// How often the guest's words are looked for: they pile up in a file meanwhile.
const LOOK: Duration = Duration::from_millis(50);
/// A machine that says nothing for so long hangs: even a slow one has a sample to tell many times a minute.
const SILENCE: Duration = Duration::from_secs(300);

/// [`SILENCE`], or what `CCBENCH_LAB_SILENCE_S` says: for a machine much slower than the usual, and for tests.
fn silence() -> Duration {
    let told = std::env::var("CCBENCH_LAB_SILENCE_S").ok();
    told.and_then(|s| s.parse().ok()).map_or(SILENCE, Duration::from_secs)
}

impl Boot {
    /// Passes on what the guest says until the machine ends.
    ///
    /// # Errors
    /// It ended before [`wire::LabDone`]; with the console's tail.
    pub async fn follow(mut self, send: mpsc::Sender<wire::LabSaid>) -> Result<(), LabError> {
        let path = self.machine.said.clone();
        let io = |source| LabError::Io { op: "read", path: path.clone(), source };
        let mut said = std::fs::File::open(&path).map_err(io)?;
        let (mut buffer, mut done) = (Vec::new(), false);
        let silence = silence();
        let mut heard = tokio::time::Instant::now();
        loop {
            // Before the file is read: what was written until then is read after it.
            let ended = self.child.try_wait().map_err(io)?;
            if said.read_to_end(&mut buffer).map_err(io)? > 0 {
                heard = tokio::time::Instant::now();
            }
            let mut rest = buffer.as_slice();
            while let Some(message) = next(&mut rest) {
                let message = message.map_err(|e| self.broken(format!("said nonsense ({e})")))?;
                done |= matches!(message.of, Some(wire::lab_said::Of::Done(_)));
                if send.send(message).await.is_err() {
                    return Ok(());
                }
            }
            let read = buffer.len() - rest.len();
            buffer.drain(..read);
            match ended {
                Some(_) if done => return Ok(()),
                Some(status) => return Err(self.broken(format!("ended with {status}"))),
                None if heard.elapsed() > silence => {
                    let seconds = silence.as_secs();
                    return Err(
                        self.broken(format!("has said nothing for {seconds} s and was stopped"))
                    );
                }
                None => tokio::time::sleep(LOOK).await,
            }
        }
    }

    fn broken(&self, how: String) -> LabError {
        let console = std::fs::read(&self.machine.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        // QEMU ends in order when a kernel that has panicked reboots.
        let how = if console.contains("Kernel panic") { "panicked".to_owned() } else { how };
        LabError::Machine { how, tail: tail(&console, 40) }
    }
}

/// Takes a whole message off the front, if there is one.
fn next(bytes: &mut &[u8]) -> Option<Result<wire::LabSaid, prost::DecodeError>> {
    let mut peek = *bytes;
    let length = prost::decode_length_delimiter(&mut peek).ok()?;
    let message = peek.get(..length)?;
    *bytes = &peek[length..];
    Some(wire::LabSaid::decode(message))
}

/// The last lines of a text.
fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_whole() {
        let one =
            wire::LabSaid { of: Some(wire::lab_said::Of::Done(wire::LabDone { busy_pct: 12.5 })) };
        let mut bytes = Vec::new();
        one.encode_length_delimited(&mut bytes).unwrap();
        one.encode_length_delimited(&mut bytes).unwrap();
        let cut = bytes.len() - 1;
        let mut rest = &bytes[..cut];
        assert_eq!(next(&mut rest).unwrap().unwrap(), one);
        assert!(next(&mut rest).is_none(), "the second is not whole yet");
        assert_eq!(rest.len(), cut - bytes.len() / 2);
        assert!(next(&mut [].as_slice()).is_none());
    }

    #[test]
    fn a_tail_is_the_last_lines() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
    }
}
