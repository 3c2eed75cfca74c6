//! Files that controllers send before a trial: traces and supplied congestion controls. They are kept while the
//! connection that sent them is open. Their total size, incomplete files included, is limited.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ccbench_proto::plan::digest_chunks;
use ccbench_proto::wire;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;

use crate::accept::ConnectionHandle;
use crate::error::AgentError;

/// The semaphore counts in KiB.
const KIB: usize = 1024;
/// Most files of a request: as many as a node can hold, because each takes at least a KiB.
const MAX_FILES: usize = wire::MAX_FILES_BYTES / KIB;

/// The content of a file. All that use it share it, because a request may name it many times. A received file's room is free
/// again when the last of them has dropped it.
#[derive(Debug)]
pub struct Content {
    bytes: Vec<u8>,
    _room: Vec<OwnedSemaphorePermit>,
}

impl Content {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<Vec<u8>> for Content {
    /// The limit of messages covers a file that is in a request.
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, _room: Vec::new() }
    }
}

/// The files of a request, by their names in the plan.
pub type Contents = BTreeMap<String, Arc<Content>>;

/// The files received so far.
#[derive(Debug, Clone)]
pub struct Files {
    held: Arc<Mutex<Vec<File>>>,
    room: Arc<Semaphore>,
}

#[derive(Debug)]
struct File {
    connection: u64,
    sha256: String,
    content: Arc<Content>,
}

impl Default for Files {
    fn default() -> Self {
        let room = Arc::new(Semaphore::new(MAX_FILES));
        Self { held: Arc::default(), room }
    }
}

impl Files {
    /// Receives a file and returns its SHA-256.
    ///
    /// # Errors
    /// The files held would exceed [`wire::MAX_FILES_BYTES`] bytes, or the stream broke.
    pub async fn receive(
        &self,
        mut stream: impl Stream<Item = Result<wire::FileChunk, Status>> + Unpin,
        connection: ConnectionHandle,
    ) -> Result<String, Status> {
        let (mut chunks, mut room) = (Vec::new(), Vec::new());
        while let Some(chunk) = stream.next().await {
            let data = chunk?.data;
            // Empty chunks take memory, too.
            let kib = u32::try_from(data.len().div_ceil(KIB).max(1)).unwrap_or(u32::MAX);
            let permit = Arc::clone(&self.room).try_acquire_many_owned(kib).map_err(|_| {
                let limit_mib = wire::MAX_FILES_BYTES >> 20;
                Status::resource_exhausted(format!(
                    "this node holds at most {limit_mib} MiB of files for all controllers together; use shorter traces"
                ))
            })?;
            room.push(permit);
            chunks.push(data);
        }
        let sha256 = digest_chunks(chunks.iter().map(Vec::as_slice));
        let mut bytes = Vec::with_capacity(chunks.iter().map(Vec::len).sum());
        // Each part is freed once it is copied.
        chunks.into_iter().for_each(|chunk| bytes.extend(chunk));
        let content = Arc::new(Content { bytes, _room: room });
        let file = File { connection: connection.id(), sha256: sha256.clone(), content };
        if self.hold(file) {
            self.drop_at_end(connection);
        }
        Ok(sha256)
    }

    /// Keeps a file, and replaces the same file of the same connection. Returns whether the connection had no file.
    fn hold(&self, new: File) -> bool {
        let mut held = self.lock();
        let is_first = held.iter().all(|file| file.connection != new.connection);
        held.retain(|file| (file.connection, &file.sha256) != (new.connection, &new.sha256));
        held.push(new);
        is_first
    }

    fn drop_at_end(&self, mut connection: ConnectionHandle) {
        let files = self.clone();
        tokio::spawn(async move {
            connection.wait().await;
            files.lock().retain(|file| file.connection != connection.id());
        });
    }

    fn lock(&self) -> MutexGuard<'_, Vec<File>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the files out of a request, and adds the received ones that it names by digest. Copies no content.
///
/// # Errors
/// A file was not sent on an open connection, or there are more files than a node holds.
pub fn resolve(files: &Files, request: &mut wire::PrepareRequest) -> Result<Contents, AgentError> {
    let sent = std::mem::take(&mut request.files).into_iter();
    let mut contents: Contents =
        sent.map(|(name, bytes)| (name, Arc::new(Content::from(bytes)))).collect();
    let digests = std::mem::take(&mut request.file_digests);
    if digests.is_empty() {
        return Ok(contents);
    }
    let wrong = |reason: String| AgentError::Request { field: "file_digests", reason };
    let count = contents.len() + digests.len();
    if count > MAX_FILES {
        let reason = format!("the request names {count} files; at most {MAX_FILES} are allowed");
        return Err(wrong(reason));
    }
    let held = files.lock();
    let held: BTreeMap<&str, &Arc<Content>> =
        held.iter().map(|file| (file.sha256.as_str(), &file.content)).collect();
    let mut bytes: usize = contents.values().map(|content| content.bytes.len()).sum();
    let mut counted = BTreeSet::new();
    for (name, sha256) in digests {
        let Some(&content) = held.get(sha256.as_str()) else {
            return Err(AgentError::FileNotSent { name, sha256 });
        };
        if counted.insert(sha256) {
            bytes += content.bytes.len();
        }
        contents.insert(name, Arc::clone(content));
    }
    if bytes > wire::MAX_FILES_BYTES {
        let limit_mib = wire::MAX_FILES_BYTES >> 20;
        return Err(wrong(format!(
            "the request's files have {bytes} bytes together; at most {limit_mib} MiB are allowed: use shorter traces"
        )));
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a request that names received files by digest.
    fn naming<'a>(digests: impl IntoIterator<Item = (String, &'a String)>) -> wire::PrepareRequest {
        let digests = digests.into_iter();
        let file_digests = digests.map(|(name, sha256)| (name, sha256.clone())).collect();
        wire::PrepareRequest { file_digests, ..Default::default() }
    }

    fn chunks(
        count: usize,
        bytes: usize,
    ) -> impl Stream<Item = Result<wire::FileChunk, Status>> + Unpin {
        tokio_stream::iter((0..count).map(move |_| Ok(wire::FileChunk { data: vec![7; bytes] })))
    }

    #[tokio::test]
    async fn a_file_is_held_until_its_connection_ends() {
        let files = Files::default();
        let (end, connection) = ConnectionHandle::example();
        let sha256 = files.receive(chunks(3, 1000), connection.clone()).await.unwrap();
        files.receive(chunks(3, 1000), connection).await.unwrap();
        assert_eq!(files.lock().len(), 1, "the same file is held once");
        let request = || naming([("a.trace".to_owned(), &sha256)]);
        let contents = resolve(&files, &mut request()).unwrap();
        assert_eq!(contents["a.trace"].bytes(), [7; 3000]);
        drop(end);
        while !files.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        let lost = resolve(&files, &mut request()).unwrap_err();
        assert!(matches!(lost, AgentError::FileNotSent { .. }), "{lost}");
        assert!(lost.to_string().contains("a.trace"), "{lost}");
        assert_eq!(files.room.available_permits(), MAX_FILES - 3, "a request still has it");
        drop(contents);
        assert_eq!(files.room.available_permits(), MAX_FILES);
    }

    #[tokio::test]
    async fn a_file_with_many_names_is_held_once() {
        let files = Files::default();
        let (_end, connection) = ConnectionHandle::example();
        let sha256 = files.receive(chunks(2, 256 * KIB), connection).await.unwrap();
        let sha256 = &sha256;
        let name = |number| (format!("{number}.trace"), sha256);
        let names = |count: usize| (0..count).map(name);
        let contents = resolve(&files, &mut naming(names(14_000))).unwrap();
        let first = &contents["0.trace"];
        assert_eq!((contents.len(), first.bytes().len()), (14_000, 512 * KIB));
        assert!(contents.values().all(|content| Arc::ptr_eq(content, first)));
        let error = resolve(&files, &mut naming(names(MAX_FILES + 1))).unwrap_err().to_string();
        assert!(error.contains("57345 files; at most 57344"), "{error}");
    }

    #[tokio::test]
    async fn the_files_of_a_request_are_bounded_together() {
        let files = Files::default();
        let (_end, connection) = ConnectionHandle::example();
        let half = wire::MAX_FILES_BYTES / 2;
        let parts = half / (256 * KIB);
        let sha256 = files.receive(chunks(parts, 256 * KIB), connection).await.unwrap();
        let with = |bytes: usize| {
            // Two names of one file count once.
            let mut request = naming(["a.trace", "b.trace"].map(|name| (name.to_owned(), &sha256)));
            request.files.insert("c.trace".to_owned(), vec![7; bytes]);
            resolve(&files, &mut request).map(|contents| contents.len())
        };
        assert_eq!(with(half).unwrap(), 3);
        let error = with(half + 1).unwrap_err().to_string();
        assert!(error.contains("at most 56 MiB"), "{error}");
    }

    #[tokio::test]
    async fn all_files_together_are_bounded() {
        let files = Files::default();
        let (_end, connection) = ConnectionHandle::example();
        let half = wire::MAX_FILES_BYTES / 2 / (256 * KIB);
        files.receive(chunks(half, 256 * KIB), connection.clone()).await.unwrap();
        // A second, unfinished file.
        let unfinished = chunks(half, 256 * KIB).chain(tokio_stream::pending());
        let other = files.clone();
        let stuck = tokio::spawn({
            let connection = connection.clone();
            async move { other.receive(Box::pin(unfinished), connection).await }
        });
        while files.room.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let refused = files.receive(chunks(1, 1), connection.clone()).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        stuck.abort();
        let _ = stuck.await;
        files.receive(chunks(1, 1), connection).await.unwrap();
    }

    #[tokio::test]
    async fn empty_chunks_are_bounded() {
        let files = Files::default();
        let (end, connection) = ConnectionHandle::example();
        let most = wire::MAX_FILES_BYTES / KIB;
        let refused = files.receive(chunks(most + 1, 0), connection.clone()).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        files.receive(chunks(1, 0), connection.clone()).await.unwrap();
        files.receive(chunks(2, 1), connection).await.unwrap();
        assert_eq!(files.room.available_permits(), most - 3);
        drop(end);
        while files.room.available_permits() < most {
            tokio::task::yield_now().await;
        }
    }
}
