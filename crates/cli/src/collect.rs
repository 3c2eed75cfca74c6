//! Reads a shard store into a staging directory: the plan, the records, and the files of the trials.

use std::path::{Path, PathBuf};

use ccbench_results::digest::FileDigest;
use ccbench_results::merge::{Merge, MergeError, Staging};
use ccbench_results::shard::{
    BACKEND_KEY, COMMITS, Commit, DUPLICATES, RUN_FOLDER, SESSIONS, Session,
};
use ccbench_store::{ObjectError, ShardStore};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use crate::exit::{ExitCode, from_results, of_results, of_store};
use crate::file::FileError;

/// Number of objects that are read at the same time.
const MAX_CONCURRENT_REQUESTS: usize = 16;

/// A shard store cannot be read, or what was read is not what its shards have written.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] ObjectError),
    /// A record or a file is damaged or does not belong to the run, or the staging directory cannot be written.
    #[error(transparent)]
    Results(#[from] ccbench_results::Error),
    /// A copied file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
}

from_results!(CollectError: MergeError, ShardError);

impl CollectError {
    /// Returns the process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Store(error) => of_store(error),
            Self::Results(error) => of_results(error),
            Self::File(_) => ExitCode::Failure,
        }
    }
}

/// The contents of a store, except the files of the trials.
pub struct Collected {
    /// The trials to merge.
    pub merge: Merge,
    /// SHA-256 of everything that was read. It also covers the files of the trials, because the records contain their digests.
    pub sha256: String,
}

/// Reads the plan and all records of the store.
///
/// # Errors
/// The store cannot be read, or a record is damaged or belongs to another plan.
pub async fn collect(store: &dyn ShardStore, staging: Staging) -> Result<Collected, CollectError> {
    let prefix = format!("{RUN_FOLDER}/");
    let mut read = String::new();
    let mut add = |key: &str, digest: FileDigest| read += &format!("{}  {key}\n", digest.sha256);
    for key in store.list(RUN_FOLDER).await? {
        // Only shards need it: the sessions have the backends of the trials.
        if key == BACKEND_KEY {
            continue;
        }
        let path = staging.file(key.strip_prefix(&prefix).unwrap_or(&key))?;
        store.download(&key, &path).await?;
        add(&key, digest_of(&path)?);
    }
    let (mut sessions, mut commits, mut duplicates) = (vec![], vec![], vec![]);
    // Shards may run meanwhile. They write a session, then a commit, then the duplicates of this commit, so the reverse order finds
    // the session of every commit.
    for (folder, found) in [(DUPLICATES, &mut duplicates), (COMMITS, &mut commits)] {
        for (key, content) in records(store, folder).await? {
            add(&key, FileDigest::of(&content));
            let commit = Commit::decode(&key, &content)?;
            // A copy under another name would count as a trial that nobody ran.
            if key != commit.key() && key != commit.duplicate_key() {
                return Err(MergeError::Damaged { key }.into());
            }
            found.push(commit);
        }
    }
    for (key, content) in records(store, SESSIONS).await? {
        add(&key, FileDigest::of(&content));
        sessions.push(Session::decode(&key, &content)?);
    }
    let merge = Merge::new(staging, sessions, commits, &duplicates)?;
    Ok(Collected { merge, sha256: FileDigest::of(read.as_bytes()).sha256 })
}

/// Returns the digest of a file.
///
/// # Errors
/// The file cannot be read.
pub fn digest_of(path: &Path) -> Result<FileDigest, FileError> {
    FileDigest::of_file(path).map_err(FileError::io("read", path))
}

/// Reads the records in a folder. Skips hidden files, which programs such as file managers leave there.
async fn records(
    store: &dyn ShardStore,
    folder: &str,
) -> Result<Vec<(String, Vec<u8>)>, ObjectError> {
    let is_hidden = |key: &String| key.rsplit('/').next().is_some_and(|name| name.starts_with('.'));
    let mut keys = store.list(folder).await?;
    keys.retain(|key| !is_hidden(key));
    read_all(store, keys).await
}

/// Reads these objects. Leaves out those that do not exist.
///
/// # Errors
/// The store cannot be read.
pub async fn read_all(
    store: &dyn ShardStore,
    keys: Vec<String>,
) -> Result<Vec<(String, Vec<u8>)>, ObjectError> {
    let read = |key: String| async move {
        let content = store.read(&key).await?;
        Ok::<_, ObjectError>((key, content))
    };
    let found: Vec<(String, Option<Vec<u8>>)> =
        stream::iter(keys).map(read).buffered(MAX_CONCURRENT_REQUESTS).try_collect().await?;
    // All of them were listed, so one is absent only if somebody removed it meanwhile.
    Ok(found.into_iter().filter_map(|(key, content)| Some((key, content?))).collect())
}

/// Copies the files of a trial that are missing, and compares all files with the commit.
///
/// # Errors
/// The store cannot be read, or a file is not the one that was committed.
pub async fn copy_files(
    store: &dyn ShardStore,
    merge: &Merge,
    commit: &Commit,
) -> Result<(), CollectError> {
    let missing: Vec<(String, PathBuf)> =
        merge.files(commit)?.into_iter().filter(|(_, path)| !path.exists()).collect();
    let download = |(key, path): (String, PathBuf)| async move {
        match store.download(&key, &path).await {
            Err(error) if error.is_absent() => {
                let (what, shard) = ("missing".to_owned(), commit.attempt.shard_text());
                let commit = commit.key();
                Err(MergeError::DamagedFile { key, what, commit, shard }.into())
            }
            downloaded => downloaded.map_err(CollectError::from),
        }
    };
    stream::iter(missing)
        .map(download)
        .buffer_unordered(MAX_CONCURRENT_REQUESTS)
        .try_collect::<()>()
        .await?;
    Ok(merge.check(commit)?)
}

/// Downloads these objects to these paths, several at a time.
///
/// # Errors
/// The store cannot be read, or a file cannot be written.
pub async fn download_all(
    store: &dyn ShardStore,
    files: Vec<(String, PathBuf)>,
) -> Result<(), ObjectError> {
    let download =
        |(key, path): (String, PathBuf)| async move { store.download(&key, &path).await };
    stream::iter(files).map(download).buffer_unordered(MAX_CONCURRENT_REQUESTS).try_collect().await
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use ccbench_store::{Creation, Pending};

    use super::*;

    /// A store that notes which folders are listed.
    struct Listed {
        store: Box<dyn ShardStore>,
        folders: RefCell<Vec<String>>,
    }

    impl ShardStore for Listed {
        fn location(&self) -> &str {
            self.store.location()
        }
        fn upload<'a>(&'a self, key: &'a str, file: &'a Path) -> Pending<'a, ()> {
            self.store.upload(key, file)
        }
        fn create<'a>(&'a self, key: &'a str, content: Vec<u8>) -> Pending<'a, Creation> {
            self.store.create(key, content)
        }
        fn list<'a>(&'a self, folder: &'a str) -> Pending<'a, Vec<String>> {
            self.folders.borrow_mut().push(folder.to_owned());
            self.store.list(folder)
        }
        fn exists<'a>(&'a self, key: &'a str) -> Pending<'a, bool> {
            self.store.exists(key)
        }
        fn read<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Vec<u8>>> {
            self.store.read(key)
        }
        fn download<'a>(&'a self, key: &'a str, file: &'a Path) -> Pending<'a, ()> {
            self.store.download(key, file)
        }
        fn remove<'a>(&'a self, key: &'a str) -> Pending<'a, ()> {
            self.store.remove(key)
        }
    }

    /// An attempt may start and commit a trial between two of these listings.
    #[test]
    fn sessions_are_listed_after_the_commits_that_need_them() {
        let dir = tempfile::tempdir().unwrap();
        let store = ccbench_store::open(&dir.path().join("shards").to_string_lossy()).unwrap();
        let listed = Listed { store, folders: RefCell::default() };
        let staging = Staging::new(dir.path()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        // There is no plan, which is noticed after all records are read.
        runtime.block_on(collect(&listed, staging)).err().unwrap();
        assert_eq!(*listed.folders.borrow(), [RUN_FOLDER, DUPLICATES, COMMITS, SESSIONS]);
    }
}
