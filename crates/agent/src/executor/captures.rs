//! The captures of a trial. They start with the trial; their files are sent to the controller after its timeline.

use std::fs::File;
use std::io::Read as _;

use ccbench_proto::event::{self, Kind, NoData};
use ccbench_proto::schedule::NodeTask;
use ccbench_proto::wire;
use ccbench_shaper::capture::{Capture, CaptureSpec, Captured};

use super::outbox::Outbox;
use super::timed_link::TimedLink;
use crate::audit::Audit;
use crate::error::AgentError;
use crate::event::event;
use crate::interfaces::Interfaces;

/// Size of a piece of a file in one message.
const PIECE_BYTES: usize = 512 << 10;

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
    /// Sends counts and files, until the controller accepts no more.
    pub async fn send(self, out: &Outbox) {
        let mut taking = true;
        for (name, ring, captured) in self.0 {
            emit_counts(&name, &captured, out).await;
            for (number, file) in (captured.overwritten..).zip(captured.files) {
                let file_name = match ring {
                    1 => format!("capture-{name}.pcapng"),
                    _ => format!("capture-{name}-{number:03}.pcapng"),
                };
                if let Err(why) = send_file(file, &file_name, &mut taking, out).await {
                    out.event(Kind::CaptureError(NoData {}), &name, format!("{file_name}: {why}"))
                        .await;
                }
            }
        }
    }
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

/// Sends a file while `taking` is true: the controller accepts pieces.
async fn send_file(
    mut file: File,
    name: &str,
    taking: &mut bool,
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
        *taking = out.raw_whole(name, &piece[..read]).await;
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
