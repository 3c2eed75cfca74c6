//! The copy of the undo stack on disk: one line per step, with the version of its format. [`sealed_line`] adds and
//! verifies the CRC-32 of each line.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use ccbench_io::replace::replace;
use ccbench_proto::sealed_line::{self, seal};
use serde::{Deserialize, Serialize};

use super::Step;
use super::error::{JournalError, failed};
use super::namespace::Namespace;
use crate::testbed::identity::boot_id;

/// The journal's name in the state directory.
pub(super) const FILE: &str = "undo.ndjson";
/// The version of the lines' format. An agent of another version may not know how to undo a step.
const VERSION: u32 = 2;
/// The version of lines without a network namespace.
const VERSION_WITHOUT_NETNS: u32 = 1;

/// A line of the journal.
#[derive(Debug, Serialize, Deserialize)]
struct Line<'a> {
    version: u32,
    /// The boot of the step. Steps of an earlier boot are not undone: their changes ended with that boot.
    boot_id: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    netns: Option<Cow<'a, Namespace>>,
    #[serde(flatten)]
    step: Cow<'a, Step>,
}

/// The common fields of lines of any version.
#[derive(Debug, Deserialize)]
struct AnyLine {
    boot_id: String,
}

/// A damaged line, or one with an unknown step: it cannot be undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnreadableLine {
    bytes: Vec<u8>,
    /// Its number, counted from 1.
    number: usize,
    /// Whether its checksum is right: then another version of the agent wrote it.
    intact: bool,
}

impl UnreadableLine {
    /// Describes what is wrong and what to do.
    pub(super) fn describe(&self, path: &Path) -> String {
        let dir = path.parent().unwrap_or(path).display();
        let (path, number) = (path.display(), self.number);
        if self.intact {
            return format!(
                "{path}: line {number} was written by another version of ccbench-agent: run `ccbench-agent undo --state-dir \
                 {dir}` of that version"
            );
        }
        format!(
            "{path}: line {number} is damaged, so what it would undo is unknown: restore this node by hand, then run \
             `ccbench-agent undo --state-dir {dir} --discard-damaged`"
        )
    }
}

/// A step and the namespace that it belongs to.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Recorded {
    /// `None` for a step that belongs to no network namespace, and for lines of a version that did not record it.
    pub(super) netns: Option<Namespace>,
    pub(super) step: Step,
}

/// The contents of a journal.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Found {
    /// The steps to undo, oldest first.
    pub(super) steps: Vec<Recorded>,
    /// The unreadable lines, which are kept.
    pub(super) unreadable: Vec<UnreadableLine>,
}

/// The journal of this process.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    boot_id: String,
}

impl Journal {
    /// Opens or creates the journal in `state_dir`, and reads it. Skips steps of an earlier boot.
    pub(super) fn open(state_dir: &Path) -> Result<(Self, Found), JournalError> {
        Self::open_in(boot_id(), state_dir)
    }

    /// Opens the journal during the boot with this id. Without the id, every step would count as one of an earlier boot.
    fn open_in(
        boot_id: io::Result<String>,
        state_dir: &Path,
    ) -> Result<(Self, Found), JournalError> {
        let path = state_dir.join(FILE);
        let no_boot_id = |e: io::Error| {
            io::Error::new(e.kind(), format!("cannot read the kernel's boot ID: {e}"))
        };
        let boot_id = boot_id.map_err(no_boot_id).map_err(failed("open", &path))?;
        let open = || {
            std::fs::create_dir_all(state_dir)?;
            let file = OpenOptions::new().create(true).append(true).open(&path)?;
            // The directory entry must be on disk, too, or a power failure loses the file.
            File::open(state_dir)?.sync_all()?;
            Ok(file)
        };
        let file = open().map_err(failed("open", &path))?;
        let bytes = std::fs::read(&path).map_err(failed("read", &path))?;
        let found = read(&bytes, &boot_id);
        Ok((Self { path, file, boot_id }, found))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn append(&mut self, step: &Recorded) -> Result<(), JournalError> {
        line(step, &self.boot_id)
            .and_then(|line| append_line(&mut self.file, |file| file.write_all(line.as_bytes())))
            .map_err(failed("write", &self.path))
    }

    /// Replaces the journal atomically: a crash leaves the old one or the new one.
    pub(super) fn rewrite(
        &mut self,
        steps: &[Recorded],
        unreadable: &[UnreadableLine],
    ) -> Result<(), JournalError> {
        let path = self.path.clone();
        self.replace(steps, unreadable).map_err(failed("rewrite", &path))
    }

    fn replace(&mut self, steps: &[Recorded], unreadable: &[UnreadableLine]) -> io::Result<()> {
        if steps.is_empty() && unreadable.is_empty() {
            self.file.set_len(0)?;
            return self.file.sync_data();
        }
        let content = to_bytes(steps, unreadable, &self.boot_id)?;
        self.file = replace(&self.path, &content)?;
        Ok(())
    }
}

/// Appends to a journal and syncs it to disk. On an error, removes what was written: the next line would otherwise continue a
/// partial one, and be unreadable.
pub(crate) fn append_line(
    file: &mut File,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let before = file.metadata()?.len();
    write(file).and_then(|()| file.sync_data()).inspect_err(|_| {
        // The first error is the one to report. A partial line at the end counts as never written.
        let _ = file.set_len(before);
    })
}

/// Formats a journal with these lines.
fn to_bytes(
    steps: &[Recorded],
    unreadable: &[UnreadableLine],
    boot_id: &str,
) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for line in unreadable {
        bytes.extend_from_slice(&line.bytes);
        bytes.push(b'\n');
    }
    for step in steps {
        bytes.extend_from_slice(line(step, boot_id)?.as_bytes());
    }
    Ok(bytes)
}

fn line(recorded: &Recorded, boot_id: &str) -> io::Result<String> {
    let line = Line {
        version: VERSION,
        boot_id: Cow::Borrowed(boot_id),
        netns: recorded.netns.as_ref().map(Cow::Borrowed),
        step: Cow::Borrowed(&recorded.step),
    };
    Ok(seal(&serde_json::to_string(&line)?))
}

/// For fuzzing: returns the steps in a journal of boot `boot_id`, the number of unreadable lines, and the journal
/// written for both.
#[doc(hidden)]
pub fn read_journal(bytes: &[u8], boot_id: &str) -> io::Result<(Vec<Step>, usize, Vec<u8>)> {
    let Found { steps, unreadable } = read(bytes, boot_id);
    let again = to_bytes(&steps, &unreadable, boot_id)?;
    Ok((steps.into_iter().map(|one| one.step).collect(), unreadable.len(), again))
}

/// Reads a journal. Skips steps of an earlier boot, whose changes are gone. A torn last line belongs to a change that was never made.
fn read(bytes: &[u8], boot_id: &str) -> Found {
    let mut found = Found::default();
    let mut earlier = 0;
    for sealed_line::Line { number, bytes, object } in sealed_line::lines(bytes) {
        let object = object.unwrap_or_default();
        match serde_json::from_slice::<Line<'_>>(&object) {
            Ok(line) if line.boot_id != boot_id => earlier += 1,
            Ok(line) if [VERSION, VERSION_WITHOUT_NETNS].contains(&line.version) => {
                found.steps.push(Recorded {
                    netns: line.netns.map(Cow::into_owned),
                    step: line.step.into_owned(),
                });
            }
            _ => match serde_json::from_slice::<AnyLine>(&object) {
                Ok(line) if line.boot_id != boot_id => earlier += 1,
                other => found.unreadable.push(UnreadableLine {
                    bytes: bytes.to_vec(),
                    number,
                    intact: other.is_ok(),
                }),
            },
        }
    }
    if earlier > 0 {
        tracing::info!(earlier, "ignored the steps of an earlier boot");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::namespace::tests::fake;
    use super::*;

    #[test]
    fn every_flipped_bit_is_noticed() {
        let proc = tempfile::tempdir().unwrap();
        let namespaces = fake(1, 10, proc.path());
        let recorded = |folder: &str| Recorded {
            netns: namespaces.own().cloned(),
            step: Step::TrafficGroup { folder: folder.into() },
        };
        let steps = [recorded("/a"), recorded("/b"), Recorded { netns: None, ..recorded("/c") }];
        let lines = steps.iter().map(|step| line(step, "now").unwrap());
        let whole = lines.collect::<String>().into_bytes();
        assert_eq!(read(&whole, "now"), Found { steps: steps.to_vec(), unreadable: vec![] });
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let found = read(&bytes, "now");
            assert!(!found.unreadable.is_empty(), "bit {bit}");
            assert!(found.steps.iter().all(|step| steps.contains(step)), "bit {bit}");
        }
    }

    #[test]
    fn steps_stay_while_the_boot_id_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let step = Recorded { netns: None, step: Step::TrafficGroup { folder: "/a".into() } };
        let (mut journal, _) = Journal::open(dir.path()).unwrap();
        journal.append(&step).unwrap();
        let unknown = Err(io::ErrorKind::PermissionDenied.into());
        let error = Journal::open_in(unknown, dir.path()).unwrap_err().to_string();
        assert!(error.contains("cannot read the kernel's boot ID: "), "{error}");
        assert_eq!(Journal::open(dir.path()).unwrap().1.steps, [step]);
    }

    #[test]
    fn a_line_after_one_that_could_not_be_written_is_readable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let mut file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        let lines = [r#"{"a":1}"#, r#"{"c":3}"#];
        let mut append =
            |write: &dyn Fn(&mut File) -> io::Result<()>| append_line(&mut file, write);
        append(&|file| file.write_all(seal(lines[0]).as_bytes())).unwrap();
        let full = append(&|file| {
            file.write_all(b"{\"b\":")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
        append(&|file| file.write_all(seal(lines[1]).as_bytes())).unwrap();
        let journal = std::fs::read(&path).unwrap();
        let found = sealed_line::lines(&journal).into_iter().map(|line| line.object);
        assert_eq!(found.collect::<Vec<_>>(), lines.map(|line| Some(line.as_bytes().to_vec())));
    }
}
