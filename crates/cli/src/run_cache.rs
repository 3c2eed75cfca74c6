//! The run cache: copies of runs in buckets and shard stores, for the commands that read them.
//!
//! ```text
//! ~/.cache/ccbench/runs/<digest of the location>/<digest of the run>/<results directory>
//! ```
//!
//! Each process that reads or makes a run's folder holds a shared lock on it. When the cache needs room, the least recently used
//! folder is removed first, under an exclusive lock.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ccbench_results::digest::FileDigest;
use ccbench_results::journal::FILE_NAME as JOURNAL;

use crate::clock;
use crate::exit::ExitCode;
use crate::file::FileError;
use crate::paths::cache_dir;

/// Default limit for the size of all copies, in GiB.
const DEFAULT_GIB: u64 = 16;
/// Prefix of the name of a folder in which a copy is made.
const BUILDING: &str = "building-";
/// Number of digits of a digest in a folder name.
const DIGITS: usize = 32;

/// A run cannot be kept in the cache.
#[derive(Debug, thiserror::Error)]
pub enum RunCacheError {
    /// A folder cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The environment variable with the limit is not a number.
    #[error(
        "CCBENCH_RUN_CACHE_GIB=`{0}` is not a number of GiB; give one, like CCBENCH_RUN_CACHE_GIB=16"
    )]
    Limit(String),
    /// The run is larger than the cache.
    #[error(
        "the run has {bytes} bytes, but the run cache {} holds {limit} at most; raise CCBENCH_RUN_CACHE_GIB, or make a results directory \
         on this machine: `ccbench merge` does so from shards",
        root.display()
    )]
    TooLarge {
        /// The size of the run.
        bytes: u64,
        /// The size limit of the cache.
        limit: u64,
        /// The directory of the cache.
        root: PathBuf,
    },
    /// The copies in the cache are in use.
    #[error(
        "the run cache {} has no room for {bytes} bytes while other commands read its runs; wait for them to end, or raise \
         CCBENCH_RUN_CACHE_GIB",
        root.display()
    )]
    InUse {
        /// The space that is needed.
        bytes: u64,
        /// The directory of the cache.
        root: PathBuf,
    },
}

impl RunCacheError {
    /// Returns the process's exit code.
    pub const fn exit_code(&self) -> ExitCode {
        match self {
            Self::Limit(_) => ExitCode::Usage,
            Self::File(_) | Self::TooLarge { .. } | Self::InUse { .. } => ExitCode::Failure,
        }
    }
}

type Result<T, E = RunCacheError> = std::result::Result<T, E>;

/// The copies of the run at one location.
pub struct RunCache {
    root: PathBuf,
    folder: PathBuf,
    max_bytes: u64,
}

/// A locked folder of a copy. Other processes do not remove it while this value exists.
#[derive(Debug)]
pub struct CacheEntry {
    folder: PathBuf,
    lock: File,
}

impl RunCache {
    /// Opens the user's cache for the copies of the run at this location.
    ///
    /// # Errors
    /// The limit in the environment is not a number, or the current directory is unknown.
    pub fn open(location: &str) -> Result<Self> {
        let max_gib = match std::env::var("CCBENCH_RUN_CACHE_GIB") {
            Ok(text) => text.parse::<u32>().map(u64::from).map_err(|_| RunCacheError::Limit(text)),
            Err(_) => Ok(DEFAULT_GIB),
        };
        let location = if ccbench_store::is_url(location) {
            location.to_owned()
        } else {
            let path = Path::new(location);
            let absolute = std::path::absolute(path).map_err(FileError::io("find", path))?;
            absolute.to_string_lossy().into_owned()
        };
        Ok(Self::within(cache_dir().join("runs"), &location, max_gib? << 30))
    }

    fn within(root: PathBuf, location: &str, max_bytes: u64) -> Self {
        let folder = root.join(shortened(&FileDigest::of(location.as_bytes()).sha256));
        Self { root, folder, max_bytes }
    }

    /// Locks the folder of the run with this digest. Creates it if needed.
    ///
    /// # Errors
    /// The folder cannot be created or locked.
    pub fn entry(&self, sha256: &str) -> Result<CacheEntry> {
        self.locked(shortened(sha256))
    }

    /// Locks a folder in which this process makes a copy.
    ///
    /// # Errors
    /// The folder cannot be created or locked.
    pub fn building(&self) -> Result<CacheEntry> {
        self.locked(&building_name())
    }

    fn locked(&self, name: &str) -> Result<CacheEntry> {
        let folder = self.folder.join(name);
        let failed = FileError::io("lock", &folder);
        loop {
            std::fs::create_dir_all(&folder).map_err(FileError::io("create", &folder))?;
            let lock = match File::open(&folder) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                opened => opened.map_err(&failed)?,
            };
            lock.lock_shared().map_err(&failed)?;
            // Another process may have removed the folder before it was locked.
            if is_at(&lock, &folder) {
                return Ok(CacheEntry { folder, lock });
            }
        }
    }

    /// Returns the newest complete copy of this location.
    pub fn latest(&self) -> Option<PathBuf> {
        let mut entries = entries_of(&self.folder);
        entries.sort_by_key(|entry| entry.used);
        entries.iter().rev().find_map(|entry| run_in(&entry.folder))
    }

    /// Removes copies until `bytes` fit, which include what this process is building.
    ///
    /// # Errors
    /// `bytes` exceed the limit, or copies in use leave no room.
    pub fn make_room(&self, bytes: u64) -> Result<()> {
        let (limit, root) = (self.max_bytes, self.root.clone());
        if bytes > limit {
            return Err(RunCacheError::TooLarge { bytes, limit, root });
        }
        let own = self.folder.join(building_name());
        let entries = folders_in(&self.root).into_iter().flat_map(|path| entries_of(&path));
        let mut entries: Vec<Used> = entries.filter(|entry| entry.folder != own).collect();
        entries.sort_by_key(|entry| entry.used);
        let mut total: u64 = entries.iter().map(|entry| entry.bytes).sum();
        for entry in entries {
            if total.saturating_add(bytes) <= limit {
                return Ok(());
            }
            if remove_unused(&entry.folder) {
                total = total.saturating_sub(entry.bytes);
            }
        }
        let fits = total.saturating_add(bytes) <= limit;
        if fits { Ok(()) } else { Err(RunCacheError::InUse { bytes, root }) }
    }

    /// Removes all other copies of this location, which are outdated.
    pub fn remove_others(&self, kept: &CacheEntry) {
        for folder in folders_in(&self.folder).iter().filter(|folder| **folder != kept.folder) {
            remove_unused(folder);
        }
    }
}

impl CacheEntry {
    /// Returns the folder, for example to make a copy in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the copy if it is complete, and marks it as used.
    pub fn run(&self) -> Option<PathBuf> {
        let run = run_in(&self.folder)?;
        // Copies are removed in the order of this time. If it cannot be set, the age of the copy counts.
        let _ = self.lock.set_modified(SystemTime::from(clock::utc()));
        Some(run)
    }

    /// Moves a complete copy here that was made elsewhere, unless another process has put one here.
    ///
    /// # Errors
    /// The copy cannot be moved.
    pub fn take(&self, made: &Path) -> Result<PathBuf> {
        let path = self.folder.join(made.file_name().unwrap_or_default());
        let moved = std::fs::rename(made, &path);
        match run_in(&self.folder) {
            Some(run) => Ok(run),
            None => Ok(moved.map(|()| path.clone()).map_err(FileError::io("rename to", &path))?),
        }
    }
}

impl Drop for CacheEntry {
    fn drop(&mut self) {
        // Unlocks explicitly: a child process may hold a copy of the descriptor until its exec, so closing it is not enough.
        let is_unlocked = self.lock.unlock().is_ok();
        // Nobody builds in this folder any more, unless a process of another machine or container has the same process ID. That
        // process holds a lock on it.
        if is_unlocked && self.folder.ends_with(building_name()) {
            remove_unused(&self.folder);
        }
    }
}

/// A folder of a copy.
struct Used {
    folder: PathBuf,
    used: SystemTime,
    bytes: u64,
}

/// Returns the name of the folder in which this process makes a copy.
fn building_name() -> String {
    format!("{BUILDING}{}", std::process::id())
}

fn shortened(sha256: &str) -> &str {
    sha256.get(..DIGITS).unwrap_or(sha256)
}

/// Returns whether an open folder is still the one at a path.
fn is_at(open: &File, path: &Path) -> bool {
    let (Ok(own), Ok(there)) = (open.metadata(), path.metadata()) else { return false };
    (own.dev(), own.ino()) == (there.dev(), there.ino())
}

/// Returns the folders in a folder; none if it cannot be read.
fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Returns the results directory in a folder of the cache.
fn run_in(folder: &Path) -> Option<PathBuf> {
    folders_in(folder).into_iter().find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_hidden = name.starts_with('.');
        !is_hidden && path.join(JOURNAL).is_file()
    })
}

fn entries_of(location: &Path) -> Vec<Used> {
    let entry = |folder: PathBuf| {
        let used = folder.metadata().and_then(|found| found.modified());
        let used = used.unwrap_or(SystemTime::UNIX_EPOCH);
        Used { bytes: size_of(&folder), used, folder }
    };
    folders_in(location).into_iter().map(entry).collect()
}

/// Returns the size of all files below a folder. Files that several copies share count for each of them.
fn size_of(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => size_of(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

/// Removes a folder unless a process uses it. Returns whether it was removed.
fn remove_unused(folder: &Path) -> bool {
    let Ok(lock) = File::open(folder) else { return false };
    // The lock is held until the folder is gone.
    lock.try_lock().is_ok() && std::fs::remove_dir_all(folder).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1000;

    /// Makes a cache in a temporary directory.
    fn cache() -> (tempfile::TempDir, RunCache) {
        let root = tempfile::tempdir().unwrap();
        let cache = RunCache::within(root.path().to_owned(), "s3://a", LIMIT);
        (root, cache)
    }

    /// Makes a copy with this content.
    fn make(building: &CacheEntry, content: &[u8]) -> PathBuf {
        let made = building.folder().join("run");
        std::fs::create_dir(&made).unwrap();
        std::fs::write(made.join("journal.ndjson"), content).unwrap();
        made
    }

    /// Puts a copy of `bytes` bytes into the cache. `used_s` is the time of its last use.
    fn put(cache: &RunCache, sha256: &str, bytes: usize, used_s: u64) -> PathBuf {
        let building = cache.building().unwrap();
        let made = make(&building, &vec![b'x'; bytes]);
        let entry = cache.entry(sha256).unwrap();
        assert_eq!(entry.run(), None);
        let run = entry.take(&made).unwrap();
        let used = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(used_s);
        entry.lock.set_modified(used).unwrap();
        run
    }

    #[test]
    fn the_copy_that_was_used_the_longest_time_ago_makes_room() {
        let root = tempfile::tempdir().unwrap();
        let at = |location| RunCache::within(root.path().join("runs"), location, LIMIT);
        let (one, other) = (at("s3://a"), at("s3://b"));
        let old = put(&one, "old", 400, 1);
        let new = put(&other, "new", 400, 2);
        one.make_room(200).unwrap();
        assert!(old.is_dir() && new.is_dir(), "there is room");
        one.make_room(300).unwrap();
        assert!(!old.exists() && new.is_dir());
        assert_eq!(other.entry("new").unwrap().run().as_ref(), Some(&new));
        assert_eq!((other.latest().as_ref(), one.latest()), (Some(&new), None));
        let error = one.make_room(LIMIT + 1).unwrap_err().to_string();
        assert!(error.contains("holds 1000 at most; raise CCBENCH_RUN_CACHE_GIB"), "{error}");
    }

    #[test]
    fn files_of_the_last_copy_are_counted_once() {
        let (_root, cache) = cache();
        let last = put(&cache, "one", 600, 1);
        let building = cache.building().unwrap();
        let linked = building.folder().join("journal.ndjson");
        std::fs::hard_link(last.join("journal.ndjson"), &linked).unwrap();
        cache.make_room(700).unwrap();
        assert!(!last.exists() && linked.is_file());
    }

    #[test]
    fn a_copy_that_is_read_stays() {
        let (_root, cache) = cache();
        let path = put(&cache, "one", 900, 1);
        let read = cache.entry("one").unwrap();
        assert!(matches!(cache.make_room(500), Err(RunCacheError::InUse { bytes: 500, .. })));
        let kept = cache.entry("two").unwrap();
        cache.remove_others(&kept);
        assert!(path.is_dir());
        drop(read);
        cache.remove_others(&kept);
        assert!(!path.exists());
        assert!(kept.folder().is_dir());
    }

    #[test]
    fn of_two_copies_the_first_one_is_used() {
        let (_root, cache) = cache();
        let first = put(&cache, "one", 10, 1);
        let building = cache.building().unwrap();
        let made = make(&building, b"other");
        assert_eq!(cache.entry("one").unwrap().take(&made).unwrap(), first);
        assert_eq!(std::fs::read(first.join("journal.ndjson")).unwrap(), [b'x'; 10]);
    }
}
