//! Where the shards of a run put their results: a directory that all machines share, or a bucket of an object store.
//!
//! A [`ShardStore`] has keys with slashes, like paths. [`ShardStore::create`] decides races: of several writers of a key, exactly
//! one succeeds, and its object is visible as a whole or not at all. [`ShardStore::upload`] also makes objects visible as a
//! whole, but each writer must use keys of its own.
#![forbid(unsafe_code)]

use std::path::Path;

use ccbench_io::input;
use futures_util::future::LocalBoxFuture;

mod bucket;
mod directory;
mod error;

pub use error::{Cause, ObjectError};

/// The future of an operation on a store.
pub type Pending<'a, T> = LocalBoxFuture<'a, Result<T, ObjectError>>;

/// Maximum size of an object that is read as a whole, in bytes: that of `run.json` and the journal of a results directory.
pub const MAX_RECORD_BYTES: u64 = input::RECORD.max_bytes;

/// Whether an object was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Creation {
    /// The object is new.
    New,
    /// There is already an object with this key. It may be the writer's own, if the answer to an earlier request was lost.
    Exists,
}

/// A store of objects by key. Its operations need a tokio runtime, whose thread they do not block for long.
pub trait ShardStore {
    /// Returns the directory or the URL of the store.
    fn location(&self) -> &str;

    /// Writes an object from a file, in parts. Replaces an existing object.
    fn upload<'a>(&'a self, key: &'a str, file: &'a Path) -> Pending<'a, ()>;

    /// Writes a small object unless the key exists.
    fn create<'a>(&'a self, key: &'a str, content: Vec<u8>) -> Pending<'a, Creation>;

    /// Returns the sorted keys in a folder and its subfolders. Empty if the folder does not exist.
    fn list<'a>(&'a self, folder: &'a str) -> Pending<'a, Vec<String>>;

    /// Returns whether an object exists.
    fn exists<'a>(&'a self, key: &'a str) -> Pending<'a, bool>;

    /// Reads an object of at most [`MAX_RECORD_BYTES`]. Returns `None` if it does not exist.
    fn read<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Vec<u8>>>;

    /// Writes an object to a new file, in parts.
    fn download<'a>(&'a self, key: &'a str, file: &'a Path) -> Pending<'a, ()>;

    /// Removes an object. A missing object is not an error.
    fn remove<'a>(&'a self, key: &'a str) -> Pending<'a, ()>;
}

/// Returns whether this is the URL of a bucket rather than a directory.
pub fn is_url(location: &str) -> bool {
    location.contains("://")
}

/// Opens `s3://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or `gs://BUCKET/PREFIX`, or a directory, which it creates. Takes a
/// bucket's credentials and endpoint from the environment (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`,
/// `AWS_ENDPOINT_URL`, or those of Azure and Google Cloud).
///
/// # Errors
/// The URL is invalid or has another scheme, or the directory cannot be created.
pub fn open(location: &str) -> Result<Box<dyn ShardStore>, ObjectError> {
    if is_url(location) {
        Ok(Box::new(bucket::Bucket::open(location)?))
    } else {
        Ok(Box::new(directory::Directory::open(location)?))
    }
}

/// Checks that the store refuses to create an object twice. `key` must be new. Some object stores ignore the condition.
///
/// # Errors
/// The store does not refuse, or the object cannot be written.
pub async fn check_creation(store: &dyn ShardStore, key: &str) -> Result<(), ObjectError> {
    store.create(key, b"first".to_vec()).await?;
    let second = store.create(key, b"second".to_vec()).await?;
    store.remove(key).await?;
    match second {
        Creation::Exists => Ok(()),
        Creation::New => Err(ObjectError::Unconditional { location: store.location().to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use directory::Directory;

    /// A store that ignores the condition of a create.
    struct Careless(Directory);

    impl ShardStore for Careless {
        fn location(&self) -> &str {
            self.0.location()
        }
        fn upload<'a>(&'a self, key: &'a str, file: &'a Path) -> Pending<'a, ()> {
            self.0.upload(key, file)
        }
        fn create<'a>(&'a self, _: &'a str, _: Vec<u8>) -> Pending<'a, Creation> {
            async { Ok(Creation::New) }.boxed_local()
        }
        fn list<'a>(&'a self, folder: &'a str) -> Pending<'a, Vec<String>> {
            self.0.list(folder)
        }
        fn exists<'a>(&'a self, key: &'a str) -> Pending<'a, bool> {
            self.0.exists(key)
        }
        fn read<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Vec<u8>>> {
            self.0.read(key)
        }
        fn download<'a>(&'a self, key: &'a str, file: &'a Path) -> Pending<'a, ()> {
            self.0.download(key, file)
        }
        fn remove<'a>(&'a self, key: &'a str) -> Pending<'a, ()> {
            self.0.remove(key)
        }
    }

    /// Runs an operation to its end.
    fn now<T>(pending: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(pending)
    }

    #[test]
    fn objects_are_written_listed_read_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let store = Directory::open(at("store").to_str().unwrap()).unwrap();
        std::fs::write(at("file"), "content").unwrap();
        now(store.upload("files/a/b.parquet", &at("file"))).unwrap();
        assert_eq!(now(store.create("files/c.json", b"1".to_vec())).unwrap(), Creation::New);
        assert_eq!(now(store.create("files/c.json", b"2".to_vec())).unwrap(), Creation::Exists);
        // An unfinished object of another writer.
        std::fs::write(at("store/files/.tmp-x"), "").unwrap();
        assert_eq!(now(store.list("files")).unwrap(), ["files/a/b.parquet", "files/c.json"]);
        assert_eq!(now(store.list("none")).unwrap(), [""; 0]);
        assert_eq!(now(store.read("files/c.json")).unwrap().unwrap(), b"1");
        assert_eq!(now(store.read("files/d.json")).unwrap(), None);
        for (key, exists) in [("files/c.json", true), ("files/d.json", false), ("files", false)] {
            assert_eq!(now(store.exists(key)).unwrap(), exists, "{key}");
        }
        now(store.download("files/a/b.parquet", &at("copy"))).unwrap();
        assert_eq!(std::fs::read(at("copy")).unwrap(), b"content");
        let taken = now(store.download("files/a/b.parquet", &at("copy"))).unwrap_err();
        let absent = now(store.download("files/a/c.parquet", &at("other"))).unwrap_err();
        assert!(!taken.is_absent() && absent.is_absent(), "{taken} {absent}");
        for _ in 0..2 {
            now(store.remove("files/c.json")).unwrap();
        }
        assert_eq!(now(store.list("files")).unwrap(), ["files/a/b.parquet"]);
    }

    /// `run.json` and the journal of a run with 100 000 trials.
    #[test]
    fn objects_may_be_as_large_as_the_files_of_a_results_directory() {
        let dir = tempfile::tempdir().unwrap();
        let store = Directory::open(dir.path().to_str().unwrap()).unwrap();
        let large = (64 << 20) + 1;
        let file = std::fs::File::create(dir.path().join("run.json")).unwrap();
        file.set_len(large).unwrap();
        assert_eq!(now(store.read("run.json")).unwrap().unwrap().len() as u64, large);
        file.set_len(MAX_RECORD_BYTES + 1).unwrap();
        let refused = now(store.read("run.json")).unwrap_err().to_string();
        assert!(refused.contains("it is too large: the limit is 1024 MiB"), "{refused}");
    }

    #[test]
    fn a_store_that_ignores_conditions_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let directory = || Directory::open(dir.path().to_str().unwrap()).unwrap();
        now(check_creation(&directory(), "probe")).unwrap();
        let refused = now(check_creation(&Careless(directory()), "probe")).unwrap_err();
        assert_eq!(refused.cause(), Cause::Command);
        assert!(refused.to_string().contains("replaces objects"), "{refused}");
    }
}
