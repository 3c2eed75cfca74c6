//! Boots this machine into another installed kernel, once. Selects the kernel's boot loader entry for the next boot
//! only, and reboots. After a crash or a power cycle, the machine boots its usual kernel again.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use clap::ValueEnum;

pub(crate) mod grub;
pub(crate) mod systemd_boot;
mod volume;

use grub::Grub;
use systemd_boot::SystemdBoot;

/// The boot loader of this machine, as its administrator names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BootLoaderKind {
    /// GRUB 2 with the configuration of grub-mkconfig
    Grub,
    /// systemd-boot
    SystemdBoot,
}

/// Why this machine cannot be booted into a kernel.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The agent's command line does not permit reboots.
    #[error(
        "kernel {release}: this agent may not reboot its machine; start it with `--allow-reboot grub` or `--allow-reboot \
         systemd-boot`, or boot the kernel by hand"
    )]
    NotAllowed {
        /// The requested kernel.
        release: String,
    },
    /// The boot loader has no entry for the kernel.
    #[error(
        "kernel {release} is not installed on this node: {loader} has entries for {}; install it, or name one of these",
        list(.installed)
    )]
    NotInstalled {
        /// The requested kernel.
        release: String,
        /// The boot loader.
        loader: &'static str,
        /// The kernels that it can boot.
        installed: Vec<String>,
    },
    /// A file of the boot loader is not as expected.
    #[error("{}: {reason}", .path.display())]
    Config {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong, and how to fix it.
        reason: &'static str,
    },
    /// The boot loader cannot clear the selection when it boots the kernel.
    #[error(
        "{}: GRUB cannot write to {volume}, so the kernel would stay selected after one boot; move /boot to a partition of its own with \
         ext4, without LVM and RAID, or boot the kernel by hand",
        .path.display()
    )]
    NotWritable {
        /// The file of the selection.
        path: PathBuf,
        /// What it is on: LVM, RAID, Btrfs or ZFS.
        volume: &'static str,
    },
    /// A file cannot be read or written.
    #[error("{op} {}: {source}{}", .path.display(), hint(.source))]
    File {
        /// "read", "write".
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A program cannot be run.
    #[error("run {program}: {source}")]
    Run {
        /// The program.
        program: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A program failed.
    #[error("{program}: {stderr}")]
    Failed {
        /// The program.
        program: &'static str,
        /// Its message.
        stderr: String,
    },
}

fn list(installed: &[String]) -> String {
    if installed.is_empty() { "no kernel".to_owned() } else { installed.join(", ") }
}

fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::ReadOnlyFilesystem => {
            "; add a drop-in with ReadWritePaths= for this folder to the service (see the agent's unit)"
        }
        _ => "",
    }
}

/// A boot loader that can select an entry for one boot.
pub trait BootLoader: Send + Sync {
    /// Returns its name, as on the command line.
    fn name(&self) -> &'static str;

    /// Returns the entry of a kernel release.
    ///
    /// # Errors
    /// There is no such entry, or the configuration cannot be read.
    fn entry(&self, release: &str) -> Result<String, BootError>;

    /// Selects an entry for the next boot only; `None` restores the usual one.
    ///
    /// # Errors
    /// The selection cannot be written.
    fn select_once(&self, entry: Option<&str>) -> Result<(), BootError>;
}

/// Reboots this machine into other kernels; tests use a fake.
pub struct Boot {
    /// Selects the kernel for the next boot.
    pub loader: Box<dyn BootLoader>,
    /// Starts the reboot, and returns.
    pub reboot: Box<dyn Fn() -> Result<(), BootError> + Send + Sync>,
    /// The entry of a reboot that has begun; the machine stays up for a while.
    pub begun: Mutex<Option<String>>,
}

/// The selection for the next boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selected {
    /// The boot loader.
    pub loader: &'static str,
    /// Its entry.
    pub entry: String,
}

impl Boot {
    /// Returns the boot loader and the reboot of this machine.
    pub fn new(kind: BootLoaderKind) -> Self {
        let loader: Box<dyn BootLoader> = match kind {
            BootLoaderKind::Grub => Box::new(Grub::of_machine()),
            BootLoaderKind::SystemdBoot => Box::new(SystemdBoot::of_machine()),
        };
        Self { loader, reboot: Box::new(reboot), begun: Mutex::default() }
    }

    /// Selects a kernel for the next boot, and starts the reboot. On an error, the next boot uses the usual kernel, or
    /// that of a reboot already begun.
    ///
    /// # Errors
    /// The reason why the machine stays up.
    pub fn reboot_into(&self, release: &str) -> Result<Selected, BootError> {
        let entry = self.loader.entry(release)?;
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        // A controller that got no reply asks again; logind refuses a second reboot while one is under way.
        let is_begun = begun.as_ref() == Some(&entry);
        if !is_begun {
            self.loader.select_once(Some(&entry))?;
        }
        match (self.reboot)() {
            Ok(()) => *begun = Some(entry.clone()),
            Err(error) if is_begun => tracing::info!(%error, entry, "the reboot has already begun"),
            Err(error) => {
                if let Err(left) = self.loader.select_once(begun.as_deref()) {
                    tracing::error!(%left, entry, "could not undo the selection: the next boot still uses the selected kernel");
                }
                return Err(error);
            }
        }
        Ok(Selected { loader: self.loader.name(), entry })
    }
}

/// Reboots through systemd, which stops all services. This agent then undoes its changes.
fn reboot() -> Result<(), BootError> {
    run("systemctl", &["reboot", "--no-wall"])
}

#[expect(clippy::disallowed_methods, reason = "starts systemctl and bootctl")]
fn run(program: &'static str, arguments: &[&str]) -> Result<(), BootError> {
    let ran = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| BootError::Run { program, source })?;
    if ran.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&ran.stderr).trim().to_owned();
    Err(BootError::Failed { program, stderr })
}

/// Returns the entry of a release among those of a boot loader.
fn entry_of(
    entries: Vec<(String, String)>,
    release: &str,
    loader: &'static str,
) -> Result<String, BootError> {
    let found = entries.iter().find(|(known, _)| known == release);
    if let Some((_, entry)) = found {
        return Ok(entry.clone());
    }
    let mut installed: Vec<String> = entries.into_iter().map(|(release, _)| release).collect();
    installed.sort();
    installed.dedup();
    Err(BootError::NotInstalled { release: release.to_owned(), loader, installed })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[derive(Default)]
    struct Fake(Arc<Mutex<Vec<Option<String>>>>);

    impl BootLoader for Fake {
        fn name(&self) -> &'static str {
            "grub"
        }
        fn entry(&self, release: &str) -> Result<String, BootError> {
            entry_of(
                vec![("6.12".into(), "new".into()), ("6.1".into(), "old".into())],
                release,
                "grub",
            )
        }
        fn select_once(&self, entry: Option<&str>) -> Result<(), BootError> {
            self.0.lock().unwrap().push(entry.map(str::to_owned));
            Ok(())
        }
    }

    fn boot(reboot: impl Fn() -> Result<(), BootError> + Send + Sync + 'static) -> (Boot, Fake) {
        let selected = Fake::default();
        let loader = Box::new(Fake(Arc::clone(&selected.0)));
        (Boot { loader, reboot: Box::new(reboot), begun: Mutex::default() }, selected)
    }

    #[test]
    fn a_kernel_is_selected_before_the_reboot() {
        let (boot, selected) = boot(|| Ok(()));
        let expected = Selected { loader: "grub", entry: "old".into() };
        assert_eq!(boot.reboot_into("6.1").unwrap(), expected);
        assert_eq!(*selected.0.lock().unwrap(), [Some("old".to_owned())]);
    }

    #[test]
    fn a_second_request_leaves_the_kernel_of_the_reboot_that_has_begun() {
        let requests = Mutex::new(0);
        let (boot, selected) = boot(move || {
            let mut requests = requests.lock().unwrap();
            *requests += 1;
            match *requests {
                1 => Ok(()),
                _ => Err(BootError::Failed { program: "systemctl", stderr: "in progress".into() }),
            }
        });
        let expected = Selected { loader: "grub", entry: "old".into() };
        assert_eq!(boot.reboot_into("6.1").unwrap(), expected);
        assert_eq!(boot.reboot_into("6.1").unwrap(), expected, "the reply was lost");
        assert_eq!(*selected.0.lock().unwrap(), [Some("old".to_owned())]);
        assert_eq!(boot.reboot_into("6.12").unwrap_err().to_string(), "systemctl: in progress");
        let entries = ["old", "new", "old"].map(|entry| Some(entry.to_owned()));
        assert_eq!(*selected.0.lock().unwrap(), entries);
    }

    #[test]
    fn a_kernel_that_is_not_installed_is_refused_with_those_that_are() {
        let (boot, selected) = boot(|| panic!("it reboots"));
        let error = boot.reboot_into("5.10").unwrap_err().to_string();
        assert!(
            error.contains("kernel 5.10 is not installed") && error.contains("6.1, 6.12"),
            "{error}"
        );
        assert!(selected.0.lock().unwrap().is_empty());
    }

    #[test]
    fn a_reboot_that_fails_leaves_the_usual_kernel_selected() {
        let failed = || Err(BootError::Failed { program: "systemctl", stderr: "no bus".into() });
        let (boot, selected) = boot(failed);
        assert_eq!(boot.reboot_into("6.12").unwrap_err().to_string(), "systemctl: no bus");
        assert_eq!(*selected.0.lock().unwrap(), [Some("new".to_owned()), None]);
    }

    #[test]
    fn a_read_only_boot_folder_is_explained() {
        let source = io::Error::from_raw_os_error(libc::EROFS);
        let path = PathBuf::from("/boot/grub/grubenv");
        let text = BootError::File { op: "write", path, source }.to_string();
        assert!(
            text.starts_with("write /boot/grub/grubenv: ") && text.contains("ReadWritePaths="),
            "{text}"
        );
    }
}
