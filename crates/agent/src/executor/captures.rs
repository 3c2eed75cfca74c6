//! The captures of a trial: begun with it, and sent to the controller when its timeline is over.

use std::io::Read as _;

use ccbench_proto::schedule::NodeTask;
use ccbench_proto::wire::{self, run_event::Of};
use ccbench_shaper::capture::{Capture, CaptureSpec, Captured};

use super::outbox::{Outbox, event};
use super::samples::TimedLink;
use crate::error::AgentError;
use crate::kernel::Kernel;

/// Read at once from a file.
const PIECE_BYTES: usize = 512 << 10;

/// Captures that run. Dropped, they end and leave nothing.
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
    /// Starts those of this node.
    ///
    /// # Errors
    /// There is no such interface, or no right to listen.
    pub fn start(task: &NodeTask, kernel: &dyn Kernel) -> Result<Self, AgentError> {
        let mut all = vec![];
        for capture in &task.captures {
            let name = capture.name.clone();
            let failed = |source| AgentError::Capture { capture: name.clone(), source };
            let dev = kernel.device(&capture.egress).map_err(failed)?;
            let spec = CaptureSpec {
                comment: format!("capture {name} of ccbench"),
                dev: dev.clone(),
                snap_bytes: capture.snap_bytes,
                file_bytes: capture.file_bytes,
                files: capture.files,
            };
            let running = Capture::start(&spec, &std::env::temp_dir()).map_err(failed)?;
            all.push(Running { name: name.clone(), dev, files: capture.files, capture: running });
        }
        Ok(Self(all))
    }

    /// What a reader of the files must know: a link in user space sends past what a capture hears.
    pub fn caveats(&self, links: &[TimedLink]) -> Vec<wire::Event> {
        let blind = |running: &&Running| {
            let on = |link: &&TimedLink| {
                link.dev == running.dev && link.link.state().backend == "userspace"
            };
            links.iter().any(|link| on(&link))
        };
        let told = |running: &Running| {
            let message = format!(
                "{} has a link in user space, whose packets are not heard where they leave: only what arrives is in the \
                 files; capture at the next node for the rest",
                running.dev
            );
            event("capture_caveat", &running.name, message)
        };
        self.0.iter().filter(blind).map(told).collect()
    }

    /// Ends all, and sends what they left.
    pub async fn finish(self, out: &Outbox) {
        for running in self.0 {
            let Running { name, files, capture, .. } = running;
            // It ends within a twentieth of a second, and all it has then is in the files.
            let captured = capture.stop();
            tell(&name, &captured, out).await;
            for (number, mut file) in (captured.overwritten..).zip(captured.files) {
                let file_name = match files {
                    1 => format!("capture-{name}.pcapng"),
                    _ => format!("capture-{name}-{number:03}.pcapng"),
                };
                let mut piece = vec![0; PIECE_BYTES];
                loop {
                    match file.read(&mut piece) {
                        Ok(0) => break,
                        Ok(read) => {
                            if !out.raw_whole(&file_name, &piece[..read]).await {
                                let why = "the controller did not take the file in time; its end is missing";
                                out.event("capture_error", &name, why).await;
                                break;
                            }
                        }
                        Err(error) => {
                            out.event("capture_error", &name, error.to_string()).await;
                            break;
                        }
                    }
                }
            }
        }
    }
}

async fn tell(name: &str, captured: &Captured, out: &Outbox) {
    let Captured { packets, dropped, left_out, overwritten, .. } = captured;
    let message =
        format!("{packets} packets, {dropped} dropped, {left_out} after the file was full");
    let data_json = format!(
        r#"{{"packets":{packets},"dropped":{dropped},"left_out":{left_out},"files_overwritten":{overwritten}}}"#
    );
    out.send(Of::Event(wire::Event { data_json, ..event("capture", name, message) })).await;
    if let Some(error) = &captured.error {
        out.event("capture_error", name, error.clone()).await;
    }
}
