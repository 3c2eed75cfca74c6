//! The captures of a trial. They start with the trial; their files are sent to the controller after its timeline.

use std::fs::File;
use std::io::Read as _;
use std::time::Duration;

use ccbench_proto::event::{self, Kind, NoData};
use ccbench_proto::schedule::NodeTask;
use ccbench_proto::wire;
use ccbench_shaper::capture::{Capture, CaptureSpec, Captured};

use super::outbox::Outbox;
use super::timed_link::TimedLink;
use crate::audit::Audit;
use crate::clock;
use crate::error::AgentError;
use crate::event::event;
use crate::interfaces::Interfaces;

/// Size of a piece of a file in one message.
const PIECE_BYTES: usize = 512 << 10;

/// Limit of the time to send the files of a trial: this, and the time that they take at [`MIN_BYTES_PER_S`]. A controller that takes each
/// piece just in time would otherwise hold the node for hours.
const SEND_TIME: Duration = Duration::from_secs(30);
const MIN_BYTES_PER_S: u64 = 1 << 20;

/// Running captures. Dropping stops them and removes their files.
#[derive(Debug, Default)]
pub struct Captures(Vec<Running>);

#[derive(Debug)]
struct Running {
    name: String,
    dev: String,
    files: u32,
    capture: Capture,
}

impl Captures {
    /// Starts the captures of this node, and records them.
    ///
    /// # Errors
    /// The interface does not exist, or the agent may not capture.
    pub fn start(
        task: &NodeTask,
        interfaces: &dyn Interfaces,
        audit: &Audit,
    ) -> Result<Self, AgentError> {
        let mut all = vec![];
        for capture in &task.captures {
            let name = capture.name.clone();
            let failed = |source| AgentError::Capture { capture: name.clone(), source };
            let dev = interfaces.device(&capture.egress).map_err(failed)?;
            let spec = CaptureSpec {
                comment: format!("capture {name} of ccbench"),
                dev: dev.clone(),
                snap_bytes: u32::try_from(capture.plan.snap.get()).unwrap_or(u32::MAX),
                file_bytes: capture.plan.size.get(),
                files: capture.plan.files,
            };
            audit.change(format_args!("capture {name} on {dev}"));
            let running = Capture::start(&spec, &std::env::temp_dir()).map_err(failed)?;
            all.push(Running {
                name: name.clone(),
                dev,
                files: capture.plan.files,
                capture: running,
            });
        }
        Ok(Self(all))
    }

    /// Returns warnings about captures on a userspace link, which sends below the point of capture.
    pub fn warnings(&self, links: &[TimedLink]) -> Vec<wire::Event> {
        let blind = |running: &&Running| {
            let on = |link: &&TimedLink| {
                link.dev == running.dev && link.link.state().backend() == wire::Backend::Userspace
            };
            links.iter().any(|link| on(&link))
        };
        let caveat = |running: &Running| {
            let message = format!(
                "{} has a userspace link, so packets that it sends are not captured and the files contain only received \
                 packets; to capture the sent ones, capture at the next node",
                running.dev
            );
            event(Kind::CaptureCaveat(NoData {}), &running.name, message)
        };
        self.0.iter().filter(blind).map(caveat).collect()
    }

    /// Stops all captures at once, so that none records another's transfer.
    pub fn stop(self) -> Stopped {
        self.0.iter().for_each(|running| running.capture.request_stop());
        let stop = |running: Running| (running.name, running.files, running.capture.stop());
        Stopped(self.0.into_iter().map(stop).collect())
    }
}

/// Stopped captures: name, number of files of the ring, and the result.
#[derive(Debug)]
pub struct Stopped(Vec<(String, u32, Captured)>);

impl Stopped {
    /// Sends counts and files, until the controller accepts no more, or takes longer than [`time_limit`].
    pub async fn send(self, out: &Outbox) {
        let files = self.0.iter().flat_map(|(_, _, captured)| &captured.files);
        let bytes: u64 = files.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
        self.send_within(time_limit(bytes), out).await;
    }

    async fn send_within(self, limit: Duration, out: &Outbox) {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let end_ns = clock::now_ns().saturating_add(limit_ns);
        let mut taking = true;
        for (name, ring, captured) in self.0 {
            emit_counts(&name, &captured, out).await;
            for (number, file) in (captured.overwritten..).zip(captured.files) {
                let file_name = match ring {
                    1 => format!("capture-{name}.pcapng"),
                    _ => format!("capture-{name}-{number:03}.pcapng"),
                };
                if let Err(why) = send_file(file, &file_name, &mut taking, end_ns, out).await {
                    out.event(Kind::CaptureError(NoData {}), &name, format!("{file_name}: {why}"))
                        .await;
                }
            }
        }
    }
}

/// Returns the time in which a controller must take files of this size.
fn time_limit(bytes: u64) -> Duration {
    SEND_TIME + Duration::from_secs(bytes.div_ceil(MIN_BYTES_PER_S))
}

/// Why a capture file did not reach the controller.
#[derive(Debug, thiserror::Error)]
enum SendError {
    /// An earlier file timed out.
    #[error("missing: the controller accepted no more data")]
    Skipped,
    /// The file cannot be read.
    #[error("truncated: the file cannot be read: {0}")]
    Read(std::io::Error),
    /// The controller is too slow.
    #[error("truncated: the controller did not accept it in time")]
    Timeout,
}

/// Sends a file until `end_ns`, while `taking` is true: the controller accepts pieces.
async fn send_file(
    mut file: File,
    name: &str,
    taking: &mut bool,
    end_ns: u64,
    out: &Outbox,
) -> Result<(), SendError> {
    if !*taking {
        return Err(SendError::Skipped);
    }
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = file.read(&mut piece).map_err(SendError::Read)?;
        if read == 0 {
            return Ok(());
        }
        *taking = out.raw_whole(name, &piece[..read], clock::until(end_ns)).await;
        if !*taking {
            return Err(SendError::Timeout);
        }
    }
}

async fn emit_counts(name: &str, captured: &Captured, out: &Outbox) {
    let Captured { packets, dropped, left_out, overwritten, .. } = captured;
    let message = format!(
        "{packets} packets captured, {dropped} dropped, {left_out} left out because the file was full"
    );
    let data = event::Capture {
        packets: *packets,
        dropped: Some(*dropped),
        left_out: Some(*left_out),
        files_overwritten: *overwritten,
    };
    out.event(Kind::Capture(data), name, message).await;
    if let Some(error) = &captured.error {
        out.event(Kind::CaptureError(NoData {}), name, error.clone()).await;
    }
}

#[cfg(test)]
impl Stopped {
    /// Returns a capture with one file of this many zeros.
    pub(super) fn example(bytes: u64) -> Self {
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        let (packets, dropped, left_out, overwritten) = (1, 0, 0, 0);
        let files = vec![file];
        let captured = Captured { files, packets, dropped, left_out, overwritten, error: None };
        Self(vec![("c".to_owned(), 1, captured)])
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::wire::run_event::Payload;

    use super::*;
    use crate::sockets::names::Names;

    #[test]
    fn the_time_limit_grows_with_the_files() {
        assert_eq!(time_limit(0), Duration::from_secs(30));
        assert_eq!(time_limit(1 << 30), Duration::from_secs(30 + 1024));
    }

    /// It takes each piece long before the limit of a piece.
    #[tokio::test]
    async fn a_slow_reader_exhausts_the_time_limit_of_all_files() {
        let (out, mut rows) = Outbox::new(Names::default());
        let reader = tokio::spawn(async move {
            let mut found = Vec::new();
            while let Some(outgoing) = rows.recv().await {
                found.extend(outgoing.event.payload);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            found
        });
        let pieces = 64;
        let stopped = Stopped::example(pieces * PIECE_BYTES as u64);
        stopped.send_within(Duration::from_millis(100), &out).await;
        out.done(0, 0);
        drop(out);
        let found = reader.await.unwrap();
        let errors = found.iter().filter_map(|of| match of {
            Payload::Event(event) if event.name() == "capture_error" => {
                Some(event.message.as_str())
            }
            _ => None,
        });
        let errors: Vec<&str> = errors.collect();
        assert!(matches!(errors[..], [error] if error.contains("truncated")), "{errors:?}");
        let last = found.last();
        assert!(matches!(last, Some(Payload::Done(done)) if done.rows_dropped == 1), "{last:?}");
    }
}
