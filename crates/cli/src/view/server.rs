//! The thread of a run that serves its live views. It is separate because the run's own thread reads the nodes' streams: encoding
//! updates there would delay the nodes.

use std::path::Path;
use std::thread::JoinHandle;

use tokio::net;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use super::http::Site;
use super::{ViewError, socket};
use crate::live::Live;

/// Serves the live views of a run until it is dropped.
pub struct Server {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    url: Option<String>,
}

impl Server {
    /// Serves the run in this directory on its socket and, with `page`, in the browser.
    ///
    /// # Errors
    /// A socket or the thread cannot be created.
    pub fn start(live: &Live, dir: &Path, page: bool) -> Result<Self, ViewError> {
        let listener =
            socket::bind(dir).map_err(ViewError::io("create the socket of live views"))?;
        let site = page.then(|| Site::bind(dir)).transpose()?;
        let url = site.as_ref().map(Site::url);
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ViewError::io("start the runtime of live views"))?;
        let listener = {
            let _guard = runtime.enter();
            net::UnixListener::from_std(listener)
        };
        let mut runtime = UnusedRuntime(Some(runtime));
        let listener = listener.map_err(ViewError::io("listen on the socket of live views"))?;
        let (stop, stopped) = watch::channel(false);
        let live = live.clone();
        let thread = std::thread::Builder::new()
            .name("live views".to_owned())
            .spawn(move || {
                if let Some(runtime) = runtime.0.take() {
                    serve(runtime, listener, live, site, stopped);
                }
            })
            .map_err(ViewError::io("start the thread of live views"))?;
        Ok(Self { stop, thread: Some(thread), url })
    }

    /// Returns the address of the page.
    pub fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }

    /// Waits after the end of the run until subscribers have the last update, and open pages the report.
    pub fn finish(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // Fails only if the thread has ended.
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            // A panic has already been printed to standard error, and the results do not depend on this thread.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// A runtime without a thread. Dropping a runtime in asynchronous code panics, and that is where a server is started.
struct UnusedRuntime(Option<Runtime>);

impl Drop for UnusedRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

fn serve(
    runtime: Runtime,
    listener: net::UnixListener,
    live: Live,
    site: Option<Site>,
    stopped: watch::Receiver<bool>,
) {
    let run_ended = stopped.clone();
    runtime.block_on(async {
        let pages = async {
            if let Some(site) = site {
                site.serve_run(run_ended).await;
            }
        };
        tokio::join!(socket::serve(listener, live, stopped), pages);
    });
    // A thread may still wait for a place in the queue of the run's socket.
    runtime.shutdown_background();
}
