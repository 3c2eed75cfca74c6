//! GRUB 2: reads the menu entries in grub.cfg, and sets `next_entry` in the environment block, which grub-mkconfig's configuration
//! boots once and clears. Does what grub-reboot does, without a shell. Source: GRUB manual, "The GRUB environment block";
//! `grub-core/lib/envblk.c`.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::{BootError, BootLoader, entry_of, volume};

/// The first line of the environment block.
const SIGNATURE: &str = "# GRUB Environment Block\n";
/// The variable that names the next boot's entry.
const NEXT_ENTRY: &str = "next_entry";
/// Prefixes of the release in a kernel's file name.
const IMAGES: [&str; 3] = ["vmlinuz-", "vmlinux-", "kernel-"];
/// Prefix of the identifiers of entries that grub-mkconfig generates for other systems (`30_os-prober`).
const OTHER_SYSTEMS: &str = "osprober-";

/// GRUB's folder.
pub(super) struct Grub {
    folder: PathBuf,
    /// `/proc/self/mountinfo`.
    mountinfo: PathBuf,
    /// `/sys`.
    sys: PathBuf,
}

impl Grub {
    pub(super) fn of_machine() -> Self {
        let folders = ["/boot/grub", "/boot/grub2"].map(PathBuf::from);
        let [usual, other] = folders;
        let folder = if other.join("grub.cfg").exists() { other } else { usual };
        Self { folder, mountinfo: "/proc/self/mountinfo".into(), sys: "/sys".into() }
    }

    fn environment_block(&self) -> PathBuf {
        self.folder.join("grubenv")
    }

    /// Checks that GRUB can clear the selection in the environment block. It would boot the kernel at every later boot, too.
    fn check_writable(&self) -> Result<(), BootError> {
        let path = self.environment_block();
        // On some machines it is a symbolic link to the EFI system partition.
        let target = path.canonicalize().map_err(file("read", &path))?;
        let mountinfo = std::fs::read(&self.mountinfo);
        let mountinfo = mountinfo.map_err(file("read", &self.mountinfo))?;
        let mountinfo = String::from_utf8_lossy(&mountinfo);
        match volume::not_writable(&target, &mountinfo, &self.sys) {
            Some(volume) => Err(BootError::NotWritable { path, volume }),
            None => Ok(()),
        }
    }
}

impl BootLoader for Grub {
    fn name(&self) -> &'static str {
        "grub"
    }

    fn entry(&self, release: &str) -> Result<String, BootError> {
        let path = self.folder.join("grub.cfg");
        let config = std::fs::read_to_string(&path);
        let config = config.map_err(file("read", &path))?;
        if !config.contains(NEXT_ENTRY) {
            let reason = "it does not read `next_entry`, so GRUB cannot boot another entry once; regenerate it with `update-grub` \
                          (grub-mkconfig)";
            return Err(BootError::Config { path, reason });
        }
        let found = entries(&config);
        if found.is_empty() && config.contains("blscfg") {
            let reason = "its entries are Boot Loader Specification files (`blscfg`), which ccbench does not read; set \
                          `GRUB_ENABLE_BLSCFG=false` in /etc/default/grub, and regenerate it with `grub2-mkconfig`";
            return Err(BootError::Config { path, reason });
        }
        let entry = entry_of(found, release, self.name())?;
        self.check_writable()?;
        Ok(entry)
    }

    fn select_once(&self, entry: Option<&str>) -> Result<(), BootError> {
        let path = self.environment_block();
        let block = std::fs::read(&path).map_err(file("read", &path))?;
        let Some(changed) = with_variable(&block, NEXT_ENTRY, entry) else {
            let reason = "it is not a GRUB environment block, or the block is full; create a new one with `grub-editenv - create`";
            return Err(BootError::Config { path, reason });
        };
        // Written in place: GRUB rewrites the file's disk blocks when it clears the variable.
        let mut open = OpenOptions::new();
        let written = open.write(true).open(&path).and_then(|mut file| {
            file.write_all(&changed)?;
            file.sync_all()
        });
        written.map_err(file("write", &path))
    }
}

fn file(op: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> BootError {
    move |source| BootError::File { op, path: path.to_owned(), source }
}

/// A block `{ … }` of grub.cfg.
enum Block {
    /// A submenu, by its identifier.
    Submenu(String),
    /// An entry, by its identifier.
    Entry(String),
    Other,
}

/// Returns the kernel releases in a grub.cfg in menu order, each with the identifier of the entry that boots it
/// (`SUBMENU>ENTRY`). Skips recovery entries and those of other installed systems (os-prober), which have no agent.
pub fn entries(config: &str) -> Vec<(String, String)> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut found = Vec::new();
    for line in config.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        let words = words(line);
        let first = words.first().map_or("", String::as_str);
        let opens = words.last().is_some_and(|word| word == "{");
        match first {
            "submenu" if opens => blocks.push(Block::Submenu(identifier(&words))),
            "menuentry" if opens => blocks.push(Block::Entry(identifier(&words))),
            "}" => drop(blocks.pop()),
            "linux" | "linux16" | "linuxefi" => found.extend(kernel(&words, &blocks)),
            _ if opens => blocks.push(Block::Other),
            _ => {}
        }
    }
    found
}

/// Returns the release and the entry of a command `linux IMAGE ARGUMENT…`.
fn kernel(words: &[String], blocks: &[Block]) -> Option<(String, String)> {
    let image = words.get(1)?.rsplit('/').next()?;
    let release = IMAGES.iter().find_map(|name| image.strip_prefix(name));
    let release = release.filter(|release| !release.is_empty())?;
    let is_recovery = |word: &String| {
        ["single", "recovery", "rescue", "emergency"].contains(&word.as_str())
            || word.starts_with("systemd.unit=rescue")
    };
    let is_foreign = |block: &Block| match block {
        Block::Submenu(id) | Block::Entry(id) => id.starts_with(OTHER_SYSTEMS),
        Block::Other => false,
    };
    let has_entry = blocks.iter().any(|block| matches!(block, Block::Entry(_)));
    if !has_entry || words.iter().any(is_recovery) || blocks.iter().any(is_foreign) {
        return None;
    }
    let path: Vec<String> = blocks
        .iter()
        .filter_map(|block| match block {
            Block::Submenu(id) | Block::Entry(id) => Some(id.replace('>', ">>")),
            Block::Other => None,
        })
        .collect();
    Some((release.to_owned(), path.join(">")))
}

/// Returns what `next_entry` calls a menu entry: its identifier, or its title if it has none.
fn identifier(words: &[String]) -> String {
    let option = |word: &String| word == "--id" || word == "$menuentry_id_option";
    let id = words.iter().position(option).and_then(|at| words.get(at + 1));
    id.or_else(|| words.get(1)).cloned().unwrap_or_default()
}

/// Splits a line into words, without quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => word.get_or_insert_default().extend(characters.next()),
            (None, _) if c.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Returns an environment block of the same size with a variable set or removed; `None` if the input is not a block, or is full.
pub fn with_variable(block: &[u8], name: &str, value: Option<&str>) -> Option<Vec<u8>> {
    let rest = block.strip_prefix(SIGNATURE.as_bytes())?;
    // `#` pads the block after the last line; comments are lines, too.
    let end = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let (lines, padding) = rest.split_at(end);
    if padding.iter().any(|byte| *byte != b'#') {
        return None;
    }
    let mut changed = SIGNATURE.as_bytes().to_vec();
    let beginning = format!("{name}=");
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        if !line.starts_with(beginning.as_bytes()) {
            changed.extend_from_slice(line);
        }
    }
    if let Some(value) = value {
        let escaped = value.replace('\\', "\\\\").replace('\n', "\\\n");
        changed.extend_from_slice(format!("{beginning}{escaped}\n").as_bytes());
    }
    if changed.len() > block.len() {
        return None;
    }
    changed.resize(block.len(), b'#');
    Some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shortened configuration from Debian 12's grub-mkconfig.
    const CONFIG: &str = r#"
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="0"
fi
function gfxmode {
	set gfxpayload="${1}"
}
menuentry 'Debian GNU/Linux' --class debian --class os $menuentry_id_option 'gnulinux-simple-3f' {
	load_video
	if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
	linux	/boot/vmlinuz-6.12.94+deb12-amd64 root=UUID=3f ro  quiet
	initrd	/boot/initrd.img-6.12.94+deb12-amd64
}
submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option 'gnulinux-advanced-3f' {
	menuentry 'Debian GNU/Linux, with Linux 6.12.94+deb12-amd64 (recovery mode)' --class os $menuentry_id_option 'gnulinux-6.12.94+deb12-amd64-recovery-3f' {
		linux	/boot/vmlinuz-6.12.94+deb12-amd64 root=UUID=3f ro single
	}
	menuentry 'Debian GNU/Linux, with Linux 6.1.0-50-amd64 (recovery mode)' --class os $menuentry_id_option 'gnulinux-6.1.0-50-amd64-recovery-3f' {
		linux	/boot/vmlinuz-6.1.0-50-amd64 root=UUID=3f ro single
	}
	menuentry 'Debian GNU/Linux, with Linux 6.1.0-50-amd64' --class os $menuentry_id_option 'gnulinux-6.1.0-50-amd64-advanced-3f' {
		linux	/boot/vmlinuz-6.1.0-50-amd64 root=UUID=3f ro  quiet
		initrd	/boot/initrd.img-6.1.0-50-amd64
	}
}
menuentry "It's mine > \"yours\"" {
	linux16 /vmlinuz-5.15.0 root=/dev/vda1
}
menuentry 'Debian GNU/Linux 11 (on /dev/sdb1)' --class os $menuentry_id_option 'osprober-gnulinux-simple-7c' {
	linux /boot/vmlinuz-5.10.0-30-amd64 root=/dev/sdb1
}
# linux /boot/vmlinuz-4.0
linux /boot/vmlinuz-outside
"#;

    #[test]
    fn entries_are_named_by_their_path_in_the_menu() {
        let found = entries(CONFIG);
        let found: Vec<(&str, &str)> =
            found.iter().map(|(r, e)| (r.as_str(), e.as_str())).collect();
        let expected = [
            ("6.12.94+deb12-amd64", "gnulinux-simple-3f"),
            ("6.1.0-50-amd64", "gnulinux-advanced-3f>gnulinux-6.1.0-50-amd64-advanced-3f"),
            ("5.15.0", "It's mine >> \"yours\""),
        ];
        assert_eq!(found, expected);
    }

    fn block(lines: &str) -> Vec<u8> {
        let mut block = format!("{SIGNATURE}{lines}").into_bytes();
        block.resize(1024, b'#');
        block
    }

    #[test]
    fn a_variable_is_set_and_removed_and_the_others_stay() {
        let warning = "# WARNING: Do not edit this file by tools other than grub-editenv!!!\n";
        let before = block(&format!("{warning}saved_entry=0\nnext_entry=old\n"));
        let set = with_variable(&before, NEXT_ENTRY, Some("a>b")).unwrap();
        assert_eq!(set, block(&format!("{warning}saved_entry=0\nnext_entry=a>b\n")));
        let removed = with_variable(&set, NEXT_ENTRY, None).unwrap();
        assert_eq!(removed, block(&format!("{warning}saved_entry=0\n")));
        assert_eq!(with_variable(&block(""), "x", Some("\\")).unwrap(), block("x=\\\\\n"));
    }

    #[test]
    fn what_is_no_environment_block_or_full_stays_as_it_is() {
        assert_eq!(with_variable(b"", NEXT_ENTRY, Some("a")), None);
        assert_eq!(with_variable(&[0; 1024], NEXT_ENTRY, Some("a")), None);
        let full = block(&format!("x={}\n", "y".repeat(1024 - SIGNATURE.len() - 3)));
        assert_eq!(full.len(), 1024);
        assert_eq!(with_variable(&full, NEXT_ENTRY, Some("a")), None);
        let torn = [block("").as_slice(), b"x"].concat();
        assert_eq!(with_variable(&torn, NEXT_ENTRY, Some("a")), None);
    }

    /// Returns GRUB in `dir`, which is on a file system of this kind.
    fn grub_on(file_system: &str, dir: &Path) -> Grub {
        let mountinfo = dir.join("mountinfo");
        let line = format!("36 35 8:1 / / rw,noatime shared:1 - {file_system} /dev/sda1 rw\n");
        std::fs::write(&mountinfo, line).unwrap();
        Grub { folder: dir.to_owned(), mountinfo, sys: dir.join("sys") }
    }

    #[test]
    fn no_kernel_is_selected_where_grub_cannot_clear_the_selection() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("grub.cfg"), CONFIG).unwrap();
        std::fs::write(dir.path().join("grubenv"), block("")).unwrap();
        let error = grub_on("btrfs", dir.path()).entry("6.1.0-50-amd64").unwrap_err();
        assert!(matches!(error, BootError::NotWritable { .. }), "{error}");
        let error = error.to_string();
        assert!(
            error.contains("grubenv: GRUB cannot write to Btrfs") && error.contains("move /boot"),
            "{error}"
        );
        grub_on("ext4", dir.path()).entry("6.1.0-50-amd64").unwrap();
    }

    #[test]
    fn the_selection_is_written_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let grub = grub_on("ext4", dir.path());
        let missing = grub.select_once(Some("a")).unwrap_err().to_string();
        assert!(missing.contains("grubenv"), "{missing}");
        std::fs::write(dir.path().join("grub.cfg"), CONFIG).unwrap();
        std::fs::write(dir.path().join("grubenv"), block("")).unwrap();
        let entry = grub.entry("6.1.0-50-amd64").unwrap();
        grub.select_once(Some(&entry)).unwrap();
        let written = std::fs::read(dir.path().join("grubenv")).unwrap();
        assert_eq!(written, block(&format!("next_entry={entry}\n")));
        grub.select_once(None).unwrap();
        assert_eq!(std::fs::read(dir.path().join("grubenv")).unwrap(), block(""));
        std::fs::write(dir.path().join("grub.cfg"), "menuentry a {\nlinux /vmlinuz-6.1\n}\n")
            .unwrap();
        let error = grub.entry("6.1").unwrap_err().to_string();
        assert!(error.contains("update-grub"), "{error}");
        let of_fedora = "set default=\"${next_entry}\"\ninsmod blscfg\nblscfg\n";
        std::fs::write(dir.path().join("grub.cfg"), of_fedora).unwrap();
        let error = grub.entry("6.1").unwrap_err().to_string();
        assert!(error.contains("GRUB_ENABLE_BLSCFG=false"), "{error}");
    }
}
