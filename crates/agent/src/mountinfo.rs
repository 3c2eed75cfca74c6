//! The mounts of a process, from the text of /proc/PID/mountinfo (proc_pid_mountinfo(5)).

use std::path::PathBuf;

/// A mount.
#[derive(Debug)]
pub(crate) struct Mount<'a> {
    /// `MAJOR:MINOR` of the file system's device.
    pub(crate) device: &'a str,
    /// The part of the file system that is mounted.
    pub(crate) root: String,
    /// The mount point.
    pub(crate) point: PathBuf,
    /// The type of the file system.
    pub(crate) file_system: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(2);
        let (device, root, point) = (fields.next()?, fields.next()?, fields.next()?);
        let file_system = after.split(' ').next()?;
        Some(Self { device, root: unescaped(root), point: unescaped(point).into(), file_system })
    }
}

/// Returns the mounts of a mountinfo, in its order: a later one hides an earlier one at the same place.
pub(crate) fn mounts(mountinfo: &str) -> impl Iterator<Item = Mount<'_>> {
    mountinfo.lines().filter_map(Mount::parse)
}

/// Decodes a path, in which the kernel writes blanks, tabs, line feeds and backslashes as octal escapes.
fn unescaped(text: &str) -> String {
    let text = text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n");
    text.replace("\\134", "\\")
}
