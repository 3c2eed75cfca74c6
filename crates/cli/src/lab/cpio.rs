//! An initramfs: a cpio archive in the "newc" format. Its bytes depend only on names, modes and contents.

use std::collections::BTreeMap;
use std::io::{self, Write};

/// The entries of an archive, by path without a leading slash.
#[derive(Debug, Default)]
pub struct Archive {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
enum Entry {
    Folder,
    File { mode: u32, data: Vec<u8> },
    Link { to: String },
    Device { mode: u32, major: u32, minor: u32 },
}

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_777;
const CHARACTER_DEVICE: u32 = 0o020_000;

impl Archive {
    /// Adds a file with these permissions, and missing parent directories.
    pub fn file(&mut self, path: &str, permissions: u32, data: Vec<u8>) {
        self.put(path, Entry::File { mode: FILE | permissions, data });
    }

    /// Adds an empty directory.
    pub fn folder(&mut self, path: &str) {
        self.put(path, Entry::Folder);
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, to: &str) {
        self.put(path, Entry::Link { to: to.to_owned() });
    }

    /// Adds a character device.
    pub fn device(&mut self, path: &str, permissions: u32, (major, minor): (u32, u32)) {
        self.put(path, Entry::Device { mode: CHARACTER_DEVICE | permissions, major, minor });
    }

    fn put(&mut self, path: &str, entry: Entry) {
        let path = path.trim_start_matches('/');
        let mut end = 0;
        while let Some(slash) = path[end..].find('/') {
            self.entries.entry(path[..end + slash].to_owned()).or_insert(Entry::Folder);
            end += slash + 1;
        }
        self.entries.insert(path.to_owned(), entry);
    }

    /// Writes the archive.
    ///
    /// # Errors
    /// The writer failed, or a file has 4 GiB or more.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        for ((path, entry), inode) in self.entries.iter().zip(1..) {
            match entry {
                Entry::Folder => member(out, inode, FOLDER, (0, 0), path, &[])?,
                Entry::File { mode, data } => member(out, inode, *mode, (0, 0), path, data)?,
                Entry::Link { to } => member(out, inode, LINK, (0, 0), path, to.as_bytes())?,
                Entry::Device { mode, major, minor } => {
                    member(out, inode, *mode, (*major, *minor), path, &[])?;
                }
            }
        }
        member(out, 0, 0, (0, 0), "TRAILER!!!", &[])
    }
}

fn member(
    out: &mut impl Write,
    inode: u32,
    mode: u32,
    (major, minor): (u32, u32),
    path: &str,
    data: &[u8],
) -> io::Result<()> {
    let size = u32::try_from(data.len())
        .map_err(|_| io::Error::other(format!("{path} is too large for an initramfs")))?;
    let links = if mode & FOLDER == FOLDER & 0o170_000 { 2 } else { 1 };
    // Fields: inode, mode, uid, gid, links, mtime, size, device major and minor, rdev major and minor, length of the name with
    // its NUL byte, checksum.
    let name = path.len() as u32 + 1;
    let fields = [inode, mode, 0, 0, links, 0, size, 0, 0, major, minor, name, 0];
    let mut head = String::from("070701");
    for field in fields {
        head.push_str(&format!("{field:08X}"));
    }
    out.write_all(head.as_bytes())?;
    out.write_all(path.as_bytes())?;
    out.write_all(&[0; 4][..1 + padding(head.len() + path.len() + 1)])?;
    out.write_all(data)?;
    out.write_all(&[0; 4][..padding(data.len())])
}

/// Returns the number of bytes to the next multiple of four.
fn padding(length: usize) -> usize {
    length.next_multiple_of(4) - length
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(archive: &Archive) -> Vec<u8> {
        let mut out = Vec::new();
        archive.write(&mut out).unwrap();
        out
    }

    #[test]
    fn adds_parent_folders_and_sorts_entries() {
        let (mut one, mut two) = (Archive::default(), Archive::default());
        one.file("/lib/x86/a.so", 0o755, b"abc".to_vec());
        one.link("/bin/sh", "dash");
        two.link("bin/sh", "dash");
        two.file("lib/x86/a.so", 0o755, b"abc".to_vec());
        assert_eq!(bytes(&one), bytes(&two));
        let paths: Vec<&str> = one.entries.keys().map(String::as_str).collect();
        assert_eq!(paths, ["bin", "bin/sh", "lib", "lib/x86", "lib/x86/a.so"]);
    }

    #[test]
    fn members_are_aligned_and_the_trailer_is_last() {
        let mut archive = Archive::default();
        archive.file("a", 0o644, vec![7; 5]);
        archive.device("dev/console", 0o600, (5, 1));
        let all = bytes(&archive);
        assert_eq!(all.len() % 4, 0);
        assert_eq!(&all[..6], b"070701");
        assert_eq!(&all[14..22], b"000081A4", "mode");
        assert_eq!(&all[54..62], b"00000005", "size");
        // The header (110 bytes) and "a\0" make 112. Five bytes of data are padded to eight.
        assert_eq!(&all[112..117], &[7; 5]);
        assert_eq!(&all[120..126], b"070701");
        assert!(all.ends_with(b"TRAILER!!!\0\0\0\0"));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test starts cpio")]
    fn cpio_of_the_system_reads_it() {
        let mut archive = Archive::default();
        archive.file("etc/a file", 0o640, b"hello\n".to_vec());
        archive.link("etc/b", "a file");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.cpio");
        std::fs::write(&path, bytes(&archive)).unwrap();
        let shell = format!("cd {} && cpio -idm --quiet < x.cpio", dir.path().display());
        match std::process::Command::new("sh").arg("-c").arg(shell).status() {
            Ok(status) if status.code() == Some(127) => ccbench_tests::skip::skip("no cpio here"),
            status => {
                assert!(status.unwrap().success());
                let read = std::fs::read_to_string(dir.path().join("etc/b")).unwrap();
                assert_eq!(read, "hello\n");
            }
        }
    }
}
