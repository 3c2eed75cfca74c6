//! Sends files of a trial to the nodes.

use std::collections::BTreeMap;
use std::future::Future;

use ccbench_proto::wire;
use ccbench_proto::wire::agent_client::AgentClient;
use futures_util::future::join_all;
use tokio::sync::watch;
use tonic::transport::Channel;
use tracing::info;

use super::{Address, Agent, AgentError, Agents, CALL_TIMEOUT, call_until};

/// The SHA-256 of the files that the nodes on TCP have received, by node and by the file's name.
pub type SentFiles = BTreeMap<String, BTreeMap<String, String>>;

impl Agents {
    /// Sends its files to every node on TCP, where message sizes are limited. Nodes on this machine have no entry in the result. Takes as
    /// long as the links need.
    ///
    /// # Errors
    /// The first node that refuses a file, or takes no part of it for [`CALL_TIMEOUT`].
    pub async fn send_files(
        &self,
        files: impl Fn(&str) -> BTreeMap<String, Vec<u8>>,
    ) -> Result<SentFiles, AgentError> {
        let is_remote = |agent: &Agent| matches!(agent.address, Address::Tcp(_));
        let remote = self.by_node.iter().filter(|(_, agent)| is_remote(agent));
        let calls = remote.map(|(node, agent)| {
            let (mut client, files) = (agent.client.clone(), files(node));
            async move {
                let mut digests = BTreeMap::new();
                for (name, content) in files {
                    info!(node, name, bytes = content.len(), "send a file");
                    digests.insert(name, send_file(node, &mut client, content).await?);
                }
                Ok((node.clone(), digests))
            }
        });
        join_all(calls).await.into_iter().collect()
    }
}

/// Sends a file in parts. Returns the SHA-256 that the node computed.
async fn send_file(
    node: &str,
    client: &mut AgentClient<Channel>,
    content: Vec<u8>,
) -> Result<String, AgentError> {
    let (sent, progress) = watch::channel(());
    // A part is taken when the node has room for it.
    let chunks = file_chunks(content).inspect(move |_| {
        sent.send_replace(());
    });
    let late = stalled(progress, || tokio::time::sleep(CALL_TIMEOUT));
    let put = client.put_file(tokio_stream::iter(chunks));
    Ok(call_until(node, "send a file", put, late).await?.sha256)
}

/// Ends when there was no progress during a whole `wait`. After the last part, its sender is gone, and the answer has one more `wait`.
async fn stalled<W: Future<Output = ()>>(mut progress: watch::Receiver<()>, wait: impl Fn() -> W) {
    loop {
        tokio::select! {
            biased;
            changed = progress.changed() => if changed.is_err() {
                return wait().await;
            },
            () = wait() => return,
        }
    }
}

/// Returns the parts of a file. Copies each one only when it is sent, so that the file is not twice in memory for each node.
fn file_chunks(content: Vec<u8>) -> impl Iterator<Item = wire::FileChunk> + Send + 'static {
    (0..content.len()).step_by(wire::FILE_CHUNK_BYTES).map(move |begin| {
        let end = content.len().min(begin + wire::FILE_CHUNK_BYTES);
        wire::FileChunk { data: content.get(begin..end).unwrap_or_default().to_vec() }
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, poll_fn, ready};
    use std::pin::{Pin, pin};
    use std::task::Poll;

    use super::*;

    #[test]
    fn the_parts_of_a_file_are_the_file() {
        for bytes in [0, 1, wire::FILE_CHUNK_BYTES, 2 * wire::FILE_CHUNK_BYTES + 1] {
            let content: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
            let parts: Vec<Vec<u8>> = file_chunks(content.clone()).map(|part| part.data).collect();
            assert_eq!(parts.len(), bytes.div_ceil(wire::FILE_CHUNK_BYTES));
            assert!(parts.iter().all(|part| part.len() <= wire::FILE_CHUNK_BYTES));
            assert!(parts.concat() == content, "{bytes} bytes");
        }
    }

    async fn is_pending<F: Future>(mut future: Pin<&mut F>) -> bool {
        poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
    }

    #[tokio::test]
    async fn every_part_of_a_file_starts_the_time_limit_anew() {
        let (sent, progress) = watch::channel(());
        let waits = Cell::new(0);
        let wait = || {
            waits.set(waits.get() + 1);
            pending::<()>()
        };
        let mut late = pin!(stalled(progress, wait));
        for parts in 1..=3 {
            assert!(is_pending(late.as_mut()).await);
            assert_eq!(waits.get(), parts);
            sent.send_replace(());
        }
        assert!(is_pending(late.as_mut()).await);
        let during_parts = waits.get();
        drop(sent);
        assert!(is_pending(late.as_mut()).await, "the answer has its own time");
        assert!(waits.get() > during_parts);
    }

    #[tokio::test]
    async fn a_file_without_progress_is_late() {
        let (_sent, progress) = watch::channel(());
        stalled(progress, || ready(())).await;
    }
}
