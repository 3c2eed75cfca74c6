//! Blocking work beside the single-threaded runtime, which answers requests and keepalives meanwhile.

use std::panic::resume_unwind;
use std::sync::mpsc::{SendError, channel};

use tokio::sync::oneshot;

use crate::clock;

/// Runs `work` on a thread of its own, which is in the namespaces of the calling thread, and waits for its end. Without a thread, for example
/// because their number is limited, `work` runs on the calling one: what undoes changes must not fail for that. Continues a panic of `work`.
/// If the returned future is dropped, `work` still runs to its end. In a simulation, `work` runs on the calling thread, because simulated time
/// does not wait for another one.
pub async fn run<T, W>(work: W) -> T
where
    T: Send + 'static,
    W: FnOnce() -> T + Send + 'static,
{
    if clock::is_simulated() {
        return work();
    }
    let (give, take) = channel::<W>();
    let (running, ended) = oneshot::channel::<()>();
    let thread = std::thread::Builder::new().name("blocking".to_owned()).spawn(move || {
        // Dropped at the end, also by a panic.
        let _running = running;
        take.recv().map(|work| work())
    });
    let thread = match thread {
        Ok(thread) => thread,
        Err(error) => {
            tracing::warn!(%error, "no thread for blocking work; requests wait for its end");
            return work();
        }
    };
    if let Err(SendError(work)) = give.send(work) {
        return work();
    }
    let _ = ended.await;
    match thread.join() {
        Ok(Ok(value)) => value,
        Ok(Err(_)) => unreachable!("the thread has received the work"),
        Err(panic) => resume_unwind(panic),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn the_runtime_runs_other_tasks_meanwhile() {
        let (send, receive) = mpsc::channel();
        let other = tokio::spawn(async move { send.send(5) });
        let received = run(move || receive.recv_timeout(Duration::from_secs(60))).await;
        assert_eq!(received, Ok(5));
        other.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_panic_continues_in_the_caller() {
        let failing = tokio::spawn(run(|| -> u32 { panic!("as the test wants") }));
        assert!(failing.await.unwrap_err().is_panic());
    }
}
