//! systemd-boot: entries of the Boot Loader Specification, selected for one boot with `bootctl set-oneshot`. Source: UAPI group,
//! "Boot Loader Specification", types 1 (`loader/entries/*.conf`) and 2 (`EFI/Linux/*.efi`), and its boot counting.

use std::io;
use std::path::{Path, PathBuf};

use super::{BootError, BootLoader, entry_of, run};

/// Mount points of the EFI system partition and the extended boot partition.
const MOUNTS: [&str; 3] = ["/boot", "/efi", "/boot/efi"];

/// systemd-boot and its partitions.
pub(super) struct SystemdBoot {
    mounts: Vec<PathBuf>,
    /// The identifier of this system; empty if unknown.
    machine_id: String,
}

impl SystemdBoot {
    pub(super) fn of_machine() -> Self {
        let machine_id = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let machine_id = machine_id.trim().to_owned();
        Self { mounts: MOUNTS.map(PathBuf::from).to_vec(), machine_id }
    }
}

impl BootLoader for SystemdBoot {
    fn name(&self) -> &'static str {
        "systemd-boot"
    }

    fn entry(&self, release: &str) -> Result<String, BootError> {
        let mut entries = Vec::new();
        for mount in &self.mounts {
            for (name, path) in files(&mount.join("loader/entries"), ".conf")? {
                let text = std::fs::read_to_string(&path);
                let text = text.map_err(|source| BootError::File { op: "read", path, source })?;
                // The entry of another system on the same disk, which has no agent.
                let is_own = |id: &str| self.machine_id.is_empty() || id == self.machine_id;
                if !keys(&text).all(|(key, value)| key != "machine-id" || is_own(value)) {
                    continue;
                }
                let id = without_counter(&name, ".conf");
                entries.extend(releases(&text).into_iter().map(|release| (release, id.clone())));
            }
            for (name, _) in files(&mount.join("EFI/Linux"), ".efi")? {
                let id = without_counter(&name, ".efi");
                entries.extend(release_of_image(&id).map(|release| (release, id.clone())));
            }
        }
        entry_of(entries, release, self.name())
    }

    fn select_once(&self, entry: Option<&str>) -> Result<(), BootError> {
        // An empty name removes the variable.
        run("bootctl", &["set-oneshot", entry.unwrap_or("")])
    }
}

/// Returns the files of a folder with this ending, sorted; none if the folder does not exist.
fn files(folder: &Path, ending: &str) -> Result<Vec<(String, PathBuf)>, BootError> {
    let failed = |source| BootError::File { op: "read", path: folder.to_owned(), source };
    let listed = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.map_err(failed)?,
    };
    let mut found = Vec::new();
    for entry in listed {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if let Some(name) = name.filter(|name| name.ends_with(ending)) {
            found.push((name.to_owned(), path.clone()));
        }
    }
    found.sort();
    Ok(found)
}

/// Returns an entry's identifier: its file name without the boot counters (`debian-6.12+2-1.conf`).
pub fn without_counter(name: &str, ending: &str) -> String {
    let stem = name.strip_suffix(ending).unwrap_or(name);
    let is_counter = |text: &str| {
        let numbers = || text.split('-');
        numbers().count() <= 2
            && numbers().all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    match stem.rsplit_once('+') {
        Some((id, counter)) if is_counter(counter) => format!("{id}{ending}"),
        _ => name.to_owned(),
    }
}

/// Returns the keys of a type 1 entry with their values.
fn keys(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().filter_map(|line| line.trim().split_once(char::is_whitespace));
    lines.map(|(key, value)| (key, value.trim()))
}

/// Returns the releases that a type 1 entry may boot: its `version`, and the one in its kernel's path.
pub fn releases(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (key, value) in keys(text) {
        match key {
            "version" => found.push(value.to_owned()),
            // kernel-install: /MACHINE_ID/RELEASE/linux.
            "linux" => found.extend(value.rsplit('/').flat_map(|part| {
                let of_file = part.strip_prefix("vmlinuz-").filter(|release| !release.is_empty());
                let of_folder = part.starts_with(|c: char| c.is_ascii_digit()).then_some(part);
                of_file.or_else(|| of_folder.filter(|part| part.contains('.'))).map(str::to_owned)
            })),
            _ => {}
        }
    }
    found.sort();
    found.dedup();
    found
}

/// Returns the release in the name of kernel-install's unified kernel image: `MACHINE_ID-RELEASE.efi`.
pub fn release_of_image(id: &str) -> Option<String> {
    let (_, release) = id.strip_suffix(".efi")?.split_once('-')?;
    release.starts_with(|c: char| c.is_ascii_digit()).then(|| release.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_no_part_of_an_entry() {
        for (name, id) in [
            ("3f-6.12.94+deb13-amd64.conf", "3f-6.12.94+deb13-amd64.conf"),
            ("3f-6.12.94+deb13-amd64+3.conf", "3f-6.12.94+deb13-amd64.conf"),
            ("3f-6.1.0-50-amd64+2-1.conf", "3f-6.1.0-50-amd64.conf"),
            ("own.conf", "own.conf"),
        ] {
            assert_eq!(without_counter(name, ".conf"), id);
        }
    }

    #[test]
    fn kernel_without_a_release_is_not_listed() {
        assert_eq!(releases("linux /vmlinuz-\nlinux /vmlinuz\nversion \n"), [""; 0]);
        assert_eq!(releases("linux /vmlinuz-7.0.1\n"), ["7.0.1"]);
    }

    #[test]
    fn entries_of_both_types_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let (entries, images) = (dir.path().join("loader/entries"), dir.path().join("EFI/Linux"));
        std::fs::create_dir_all(&entries).unwrap();
        std::fs::create_dir_all(&images).unwrap();
        let of_kernel_install = "# comment\ntitle Debian\nversion 6.12.94+deb13-amd64\nlinux /3f/6.12.94+deb13-amd64/linux\n";
        std::fs::write(entries.join("3f-6.12.94+deb13-amd64+3-1.conf"), of_kernel_install).unwrap();
        std::fs::write(entries.join("own.conf"), "title Own\nlinux /vmlinuz-7.0.1\n").unwrap();
        let of_another = "machine-id 7c\nversion 6.99.0\nlinux /7c/6.99.0/linux\n";
        std::fs::write(entries.join("7c-6.99.0.conf"), of_another).unwrap();
        let own = "machine-id 3f\nversion 6.1.9\nlinux /3f/6.1.9/linux\n";
        std::fs::write(entries.join("3f-6.1.9.conf"), own).unwrap();
        std::fs::write(images.join("3f-6.1.0-50-amd64.efi"), "").unwrap();
        let none = dir.path().join("none");
        let mounts = vec![none, dir.path().to_owned()];
        let loader = SystemdBoot { mounts, machine_id: "3f".to_owned() };
        for (release, id) in [
            ("6.12.94+deb13-amd64", "3f-6.12.94+deb13-amd64.conf"),
            ("7.0.1", "own.conf"),
            ("6.1.9", "3f-6.1.9.conf"),
            ("6.1.0-50-amd64", "3f-6.1.0-50-amd64.efi"),
        ] {
            assert_eq!(loader.entry(release).unwrap(), id);
        }
        let error = loader.entry("5.10").unwrap_err().to_string();
        assert!(
            error.contains(
                "systemd-boot has entries for 6.1.0-50-amd64, 6.1.9, 6.12.94+deb13-amd64, 7.0.1"
            ),
            "{error}"
        );
    }
}
