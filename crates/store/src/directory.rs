//! A shard store in a directory that all machines share.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ccbench_io::input;
use futures_util::FutureExt as _;
use tempfile::NamedTempFile;
use tokio::task::spawn_blocking;

use super::error::file_error;
use super::{Creation, MAX_RECORD_BYTES, ObjectError, Pending, ShardStore};

/// Prefix of the names of files that are being written.
const STAGING: &str = ".tmp-";

/// Objects as files.
#[derive(Clone)]
pub(crate) struct Directory {
    root: PathBuf,
    location: String,
}

impl Directory {
    /// Opens a directory; creates it if it does not exist.
    pub(crate) fn open(location: &str) -> Result<Self, ObjectError> {
        let root = PathBuf::from(location);
        std::fs::create_dir_all(&root).map_err(file_error("create", &root))?;
        Ok(Self { root, location: location.to_owned() })
    }

    /// Creates a temporary file in the folder of this path, and the folder. The name is random, so it differs between machines.
    fn staged(&self, path: &Path) -> Result<NamedTempFile, ObjectError> {
        let folder = self.folder(path);
        std::fs::create_dir_all(folder).map_err(file_error("create", folder))?;
        // The umask decides who may read the file, as for other files.
        let permissions = Permissions::from_mode(0o666);
        let mut builder = tempfile::Builder::new();
        let file = builder.prefix(STAGING).permissions(permissions).tempfile_in(folder);
        file.map_err(file_error("create a file in", folder))
    }

    /// Runs an operation on a thread that may block. The runtime has one thread: if it copied a large file to a network file system or
    /// waited for a sync, the agents would take the controller for lost. Cancelled operations run to their end.
    fn blocking<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&Self) -> Result<T, ObjectError> + Send + 'static,
    ) -> Pending<'static, T> {
        let directory = self.clone();
        async move {
            let ended = spawn_blocking(move || operation(&directory)).await;
            // Continues a panic.
            ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
        }
        .boxed_local()
    }

    fn folder<'a>(&'a self, path: &'a Path) -> &'a Path {
        path.parent().unwrap_or(&self.root)
    }

    /// Syncs the folder of a new file and the folders above it.
    fn sync_folders(&self, path: &Path) -> Result<(), ObjectError> {
        for folder in path.ancestors().skip(1).take_while(|dir| dir.starts_with(&self.root)) {
            let synced = File::open(folder).and_then(|folder| folder.sync_all());
            synced.map_err(file_error("make durable", folder))?;
        }
        Ok(())
    }

    fn write_file(&self, key: &str, from: &Path) -> Result<(), ObjectError> {
        let path = self.root.join(key);
        let mut staged = self.staged(&path)?;
        let copied =
            File::open(from).and_then(|mut file| io::copy(&mut file, staged.as_file_mut()));
        copied.map_err(file_error("copy", from))?;
        staged.as_file().sync_all().map_err(file_error("make durable", staged.path()))?;
        staged.persist(&path).map_err(|error| file_error("rename to", &path)(error.error))?;
        self.sync_folders(&path)
    }

    fn create_file(&self, key: &str, content: &[u8]) -> Result<Creation, ObjectError> {
        let path = self.root.join(key);
        let mut staged = self.staged(&path)?;
        let written = staged.write_all(content).and_then(|()| staged.as_file().sync_all());
        written.map_err(file_error("write", staged.path()))?;
        // Uses renameat2 with RENAME_NOREPLACE, or a hard link on file systems without this flag, such as NFS.
        match staged.persist_noclobber(&path) {
            Ok(_) => {
                self.sync_folders(&path)?;
                Ok(Creation::New)
            }
            Err(error) if error.error.kind() == ErrorKind::AlreadyExists => Ok(Creation::Exists),
            Err(error) => Err(file_error("rename to", &path)(error.error)),
        }
    }

    fn read_file(&self, key: &str) -> Result<Option<Vec<u8>>, ObjectError> {
        const RECORD: input::Limit = input::Limit {
            max_bytes: MAX_RECORD_BYTES,
            fix: "ccbench writes no file this large: remove it, or give another directory",
        };
        let path = self.root.join(key);
        match input::read(&path, &RECORD) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(file_error("read", &path)(error)),
        }
    }

    fn has_file(&self, key: &str) -> Result<bool, ObjectError> {
        let path = self.root.join(key);
        match std::fs::metadata(&path) {
            Ok(metadata) => Ok(metadata.is_file()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(file_error("examine", &path)(error)),
        }
    }

    fn copy_file(&self, key: &str, to: &Path) -> Result<(), ObjectError> {
        let path = self.root.join(key);
        let source = input::open_regular(&path);
        let copied = source.and_then(|mut source| {
            io::copy(&mut source, &mut File::create_new(to)?)?;
            Ok(())
        });
        copied.map_err(file_error("copy", &path))
    }

    fn remove_file(&self, key: &str) -> Result<(), ObjectError> {
        let path = self.root.join(key);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(file_error("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }

    fn keys(&self, folder: &str) -> Result<Vec<String>, ObjectError> {
        let mut found = Vec::new();
        walk(&self.root, &self.root.join(folder), &mut found)?;
        found.sort();
        Ok(found)
    }
}

/// Adds the keys of all files below a folder, except files that are being written.
fn walk(root: &Path, folder: &Path, found: &mut Vec<String>) -> Result<(), ObjectError> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(file_error("list", folder))?,
    };
    for entry in entries {
        let entry = entry.map_err(file_error("list", folder))?;
        let (path, kind) = (entry.path(), entry.file_type());
        let is_staged =
            path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(STAGING));
        if kind.map_err(file_error("examine", &path))?.is_dir() {
            walk(root, &path, found)?;
        } else if !is_staged {
            let key = path.strip_prefix(root).unwrap_or(&path);
            found.push(key.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

impl ShardStore for Directory {
    fn location(&self) -> &str {
        &self.location
    }

    fn upload<'a>(&'a self, key: &'a str, file: &'a Path) -> Pending<'a, ()> {
        let (key, file) = (key.to_owned(), file.to_path_buf());
        self.blocking(move |directory| directory.write_file(&key, &file))
    }

    fn create<'a>(&'a self, key: &'a str, content: Vec<u8>) -> Pending<'a, Creation> {
        let key = key.to_owned();
        self.blocking(move |directory| directory.create_file(&key, &content))
    }

    fn list<'a>(&'a self, folder: &'a str) -> Pending<'a, Vec<String>> {
        let folder = folder.to_owned();
        self.blocking(move |directory| directory.keys(&folder))
    }

    fn exists<'a>(&'a self, key: &'a str) -> Pending<'a, bool> {
        let key = key.to_owned();
        self.blocking(move |directory| directory.has_file(&key))
    }

    fn read<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Vec<u8>>> {
        let key = key.to_owned();
        self.blocking(move |directory| directory.read_file(&key))
    }

    fn download<'a>(&'a self, key: &'a str, file: &'a Path) -> Pending<'a, ()> {
        let (key, file) = (key.to_owned(), file.to_path_buf());
        self.blocking(move |directory| directory.copy_file(&key, &file))
    }

    fn remove<'a>(&'a self, key: &'a str) -> Pending<'a, ()> {
        let key = key.to_owned();
        self.blocking(move |directory| directory.remove_file(&key))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    /// The pipe has content only once the runtime's thread writes it, so an operation that held this thread would never end.
    #[test]
    fn other_tasks_run_during_an_operation() {
        let dir = tempfile::tempdir().unwrap();
        let store = Directory::open(dir.path().to_str().unwrap()).unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let source = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (uploaded, ()) = runtime.block_on(async {
            tokio::join!(store.upload("files/a", &source), async move {
                writer.write_all(b"content").unwrap();
            })
        });
        uploaded.unwrap();
        assert_eq!(store.read_file("files/a").unwrap().unwrap(), b"content");
    }

    #[test]
    fn one_of_many_writers_creates_an_object() {
        let dir = tempfile::tempdir().unwrap();
        let store = Directory::open(dir.path().to_str().unwrap()).unwrap();
        let writers = 16_u8;
        let results: Vec<Creation> = std::thread::scope(|scope| {
            let write = |writer| {
                scope.spawn({
                    let store = &store;
                    move || store.create_file("commits/a.json", &[writer; 5000]).unwrap()
                })
            };
            let threads: Vec<_> = (0..writers).map(write).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(results.iter().filter(|result| **result == Creation::New).count(), 1);
        let winner = results.iter().position(|result| *result == Creation::New).unwrap() as u8;
        let content = store.read_file("commits/a.json").unwrap().unwrap();
        assert_eq!(content, [winner; 5000], "the winner's content, as a whole");
        let left = std::fs::read_dir(dir.path().join("commits")).unwrap().count();
        assert_eq!(left, 1, "no temporary file is left");
    }
}
