//! A cache for the results of the boot before the first trial. A deterministic kernel finds the same results for the same inputs,
//! so the inputs are the key.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ccbench_proto::plan::{Series, digest_chunks};
use ccbench_proto::wire;
use ccbench_proto::wire::lab_message::Payload;
use prost::Message as _;
use tracing::info;

use super::kernel::{self, Kernel};
use super::vm::VmImage;

/// Maximum number of kept results; each has a few kilobytes.
const MAX_FILES: usize = 500;

/// Results of the boot before the first trial.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Preflight {
    /// Descriptions of the nodes, by name.
    pub nodes: BTreeMap<String, wire::NodeInfo>,
    /// How busy the guest's CPU was while flows ran, in percent.
    pub busy_pct: f64,
}

/// The file that keeps the result of one boot.
pub struct PreflightCache {
    file: PathBuf,
}

impl PreflightCache {
    /// Returns the place for a boot with this task, or `None` if a repetition may give another result.
    pub fn new(image: &VmImage, task: &wire::LabTask, dilation: Option<u32>) -> Option<Self> {
        let Kernel { engine, series, image: file, release, version, recipe_sha256, .. } =
            image.kernel();
        if *series != Series::Own {
            return None;
        }
        // Size and time of the image distinguish a rebuilt kernel.
        let built = std::fs::metadata(file).ok()?;
        let since = built.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
        let inputs: [&[u8]; 11] = [
            env!("CARGO_PKG_VERSION").as_bytes(),
            engine.name().as_bytes(),
            image.emulator.as_bytes(),
            release.as_bytes(),
            version.as_bytes(),
            recipe_sha256.as_bytes(),
            &built.len().to_le_bytes(),
            &since.as_nanos().to_le_bytes(),
            image.userland_sha256.as_bytes(),
            &dilation.unwrap_or(0).to_le_bytes(),
            &task.encode_to_vec(),
        ];
        Some(Self { file: kernel::lab_cache_dir().join("described").join(digest(&inputs)) })
    }

    /// Reads the result if it exists and is complete.
    pub fn read(&self) -> Option<Preflight> {
        let bytes = std::fs::read(&self.file).ok()?;
        let result = decode(&bytes)?;
        info!(file = %self.file.display(), "the nodes have been described before");
        Some(result)
    }

    /// Keeps a result. If writing fails, the next command boots again.
    pub fn write(&self, result: &Preflight) {
        if let Err(error) = self.try_write(result) {
            info!("cannot keep {}: {error}", self.file.display());
        }
    }

    fn try_write(&self, result: &Preflight) -> std::io::Result<()> {
        let Some(folder) = self.file.parent() else { return Ok(()) };
        std::fs::create_dir_all(folder)?;
        make_room(folder, MAX_FILES)?;
        let new = tempfile::NamedTempFile::new_in(folder)?;
        std::fs::write(new.path(), encode(result))?;
        new.persist(&self.file)?;
        Ok(())
    }
}

/// Removes all files if there are too many.
fn make_room(folder: &Path, most: usize) -> std::io::Result<()> {
    let files: Vec<_> = std::fs::read_dir(folder)?.flatten().collect();
    if files.len() >= most {
        files.iter().try_for_each(|entry| std::fs::remove_file(entry.path()))?;
    }
    Ok(())
}

/// Returns the SHA-256 of all inputs, each preceded by its length.
fn digest(inputs: &[&[u8]]) -> String {
    let lengths: Vec<[u8; 8]> =
        inputs.iter().map(|input| (input.len() as u64).to_le_bytes()).collect();
    digest_chunks(
        lengths.iter().zip(inputs).flat_map(|(length, input)| [length.as_slice(), *input]),
    )
}

/// Encodes the result as the guest's messages from which it was made.
fn encode(result: &Preflight) -> Vec<u8> {
    let node = |(node, info): (&String, &wire::NodeInfo)| {
        Payload::Node(wire::LabNode { node: node.clone(), info: Some(info.clone()) })
    };
    let done = Payload::Done(wire::LabDone { busy_pct: result.busy_pct });
    let messages = result.nodes.iter().map(node).chain([done]);
    messages
        .flat_map(|payload| {
            wire::LabMessage { payload: Some(payload) }.encode_length_delimited_to_vec()
        })
        .collect()
}

fn decode(mut bytes: &[u8]) -> Option<Preflight> {
    let mut result = Preflight::default();
    loop {
        match wire::next_lab_message(&mut bytes)?.ok()?.payload? {
            Payload::Node(node) => result.nodes.insert(node.node, node.info?),
            Payload::Done(done) => {
                result.busy_pct = done.busy_pct;
                return bytes.is_empty().then_some(result);
            }
            _ => return None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result() -> Preflight {
        let info = |cpus| wire::NodeInfo { cpus, hostname: "lab".to_owned(), ..Default::default() };
        let nodes = [("a".to_owned(), info(1)), ("b".to_owned(), info(2))];
        Preflight { nodes: nodes.into(), busy_pct: 12.5 }
    }

    #[test]
    fn only_a_complete_result_is_read_again() {
        let bytes = encode(&result());
        assert_eq!(decode(&bytes), Some(result()));
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None, "cut at {cut}");
        }
        assert_eq!(decode(&[bytes.as_slice(), b"x"].concat()), None);
    }

    #[test]
    fn every_input_is_part_of_the_key() {
        assert_ne!(digest(&[b"ab", b"c"]), digest(&[b"a", b"bc"]));
        assert_ne!(digest(&[b"a", b"1"]), digest(&[b"a", b"2"]));
    }

    #[test]
    fn keeps_a_result_and_limits_their_number() {
        let dir = tempfile::tempdir().unwrap();
        let cache = PreflightCache { file: dir.path().join("cache/key") };
        assert_eq!(cache.read(), None);
        cache.write(&result());
        assert_eq!(cache.read(), Some(result()));
        make_room(&dir.path().join("cache"), 2).unwrap();
        assert_eq!(cache.read(), Some(result()), "there is room");
        make_room(&dir.path().join("cache"), 1).unwrap();
        assert_eq!(cache.read(), None);
    }
}
