//! Files that controllers send before a trial: traces and supplied congestion controls. They are kept while the
//! connection that sent them is open. Their total size, incomplete files included, is limited.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ccbench_proto::plan::digest_chunks;
use ccbench_proto::wire;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;

use crate::accept::ConnectionHandle;

/// The semaphore counts in KiB.
const KIB: usize = 1024;

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
    chunks: Vec<Vec<u8>>,
    _room: Vec<OwnedSemaphorePermit>,
}

impl Default for Files {
    fn default() -> Self {
        let room = Arc::new(Semaphore::new(wire::MAX_FILES_BYTES / KIB));
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
        let file =
            File { connection: connection.id(), sha256: sha256.clone(), chunks, _room: room };
        if self.hold(file) {
            self.drop_at_end(connection);
        }
        Ok(sha256)
    }

    /// Returns the content of a received file.
    pub fn content(&self, sha256: &str) -> Option<Vec<u8>> {
        let held = self.lock();
        Some(held.iter().find(|file| file.sha256 == sha256)?.chunks.concat())
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

/// Adds the content of received files to a request that names them by digest.
///
/// # Errors
/// A file was not sent on an open connection.
pub fn resolve(files: &Files, request: &mut wire::PrepareRequest) -> Result<(), Status> {
    for (name, sha256) in std::mem::take(&mut request.file_digests) {
        let content = files.content(&sha256).ok_or_else(|| {
            // No refusal: the controller sends it again.
            Status::not_found(format!(
                "the file `{name}` (sha256 {sha256}) was not sent, or its connection has ended"
            ))
        })?;
        request.files.insert(name, content);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

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
        assert_eq!(files.content(&sha256), Some(vec![7; 3000]));
        files.receive(chunks(3, 1000), connection).await.unwrap();
        assert_eq!(files.lock().len(), 1, "the same file is held once");
        let request = || wire::PrepareRequest {
            file_digests: BTreeMap::from([("a.trace".to_owned(), sha256.clone())]),
            ..Default::default()
        };
        let mut with = request();
        resolve(&files, &mut with).unwrap();
        assert_eq!(with.files["a.trace"], vec![7; 3000]);
        drop(end);
        while files.content(&sha256).is_some() {
            tokio::task::yield_now().await;
        }
        let lost = resolve(&files, &mut request()).unwrap_err();
        assert_eq!(lost.code(), tonic::Code::NotFound);
        assert!(lost.message().contains("a.trace"), "{lost}");
        assert_eq!(files.room.available_permits(), wire::MAX_FILES_BYTES / KIB);
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
