//! Draws the screen on a terminal and reads keys.

use std::io::{self, BufRead as _, BufReader};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;

use super::ViewError;
use super::screen::Screen;
use crate::live::update::Update;

/// Time between two frames, unless a key is pressed.
const FRAME: Duration = Duration::from_millis(200);
/// Updates queued between the socket and the screen. If the terminal is slow, the run sends fewer and larger ones.
const MAX_QUEUED_UPDATES: usize = 2;
/// Number of lines that a page key scrolls.
const PAGE_LINES: isize = 10;
/// Shown instead of the keys after the user has stopped the run.
const STOPPING: &str =
    "stopping: running trials are discarded, others kept · Ctrl-C again stops at once";

/// Whether a screen of this process covers the terminal.
static IS_OPEN: AtomicBool = AtomicBool::new(false);

/// The effect of Ctrl-C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CtrlC {
    /// Closes the screen.
    Closes,
    /// Stops the run of this process.
    StopsRun,
}

impl CtrlC {
    const fn keys(self) -> &'static str {
        match self {
            Self::Closes => "q closes · ↑ ↓ PgUp PgDn scroll",
            Self::StopsRun => {
                "q closes the view, the run goes on · Ctrl-C stops the run · ↑ ↓ PgUp PgDn scroll"
            }
        }
    }
}

/// The effect of a key.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    Close,
    Stop,
    Scroll(isize),
    Nothing,
}

/// Shows the updates of a run until it has ended, its process is gone, or the user closes the screen.
///
/// # Errors
/// The terminal cannot be used.
pub fn show(stream: UnixStream, ctrl_c: CtrlC) -> Result<(), ViewError> {
    let (send, updates) = sync_channel(MAX_QUEUED_UPDATES);
    // The thread ends with the stream, or with the first update after the screen is closed.
    std::thread::Builder::new()
        .name("updates".to_owned())
        .spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                let Ok(update) = serde_json::from_str::<Update>(&line) else { return };
                if send.send(update).is_err() {
                    return;
                }
            }
        })
        .map_err(ViewError::io("start the thread that reads updates"))?;
    IS_OPEN.store(true, Ordering::Relaxed);
    let shown =
        ratatui::try_init().and_then(|mut terminal| follow(&mut terminal, &updates, ctrl_c));
    close();
    shown.map_err(ViewError::io("use the terminal"))
}

/// Returns whether a screen is open, which a message would damage.
pub fn is_open() -> bool {
    IS_OPEN.load(Ordering::Relaxed)
}

/// Restores the terminal if a screen is open. Also called before the process exits without [`show`] returning.
pub fn close() {
    if IS_OPEN.swap(false, Ordering::Relaxed) {
        ratatui::restore();
        // Shows the cursor again, which frames hide. If the terminal is gone, nothing needs to be restored.
        let _ = execute!(io::stdout(), Show);
    }
}

fn follow(
    terminal: &mut DefaultTerminal,
    updates: &Receiver<Update>,
    ctrl_c: CtrlC,
) -> io::Result<()> {
    let mut screen = Screen::default();
    let mut keys = ctrl_c.keys();
    loop {
        let connected = loop {
            match updates.try_recv() {
                Ok(update) => screen.apply(update),
                Err(TryRecvError::Empty) => break true,
                Err(TryRecvError::Disconnected) => break false,
            }
        };
        terminal.draw(|frame| screen.draw(frame, keys))?;
        if screen.has_ended() || !connected {
            return Ok(());
        }
        let mut wait = FRAME;
        while event::poll(wait)? {
            wait = Duration::ZERO;
            match action(&event::read()?, ctrl_c) {
                Action::Close => return Ok(()),
                Action::Stop => {
                    keys = STOPPING;
                    interrupt()?;
                }
                Action::Scroll(lines) => screen.scroll(lines),
                Action::Nothing => {}
            }
        }
    }
}

fn action(event: &Event, ctrl_c: CtrlC) -> Action {
    let Event::Key(key) = event else { return Action::Nothing };
    if key.kind == KeyEventKind::Release {
        return Action::Nothing;
    }
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => match ctrl_c {
            CtrlC::Closes => Action::Close,
            CtrlC::StopsRun => Action::Stop,
        },
        KeyCode::Char('q') | KeyCode::Esc => Action::Close,
        KeyCode::Up | KeyCode::Char('k') => Action::Scroll(-1),
        KeyCode::Down | KeyCode::Char('j') => Action::Scroll(1),
        KeyCode::PageUp => Action::Scroll(-PAGE_LINES),
        KeyCode::PageDown => Action::Scroll(PAGE_LINES),
        _ => Action::Nothing,
    }
}

/// Sends the signal for Ctrl-C, which the terminal does not do in raw mode.
fn interrupt() -> io::Result<()> {
    let own = rustix::process::getpid();
    Ok(rustix::process::kill_process(own, rustix::process::Signal::INT)?)
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::KeyEvent;

    use super::*;

    #[test]
    fn the_last_line_fits_into_80_columns() {
        for text in [CtrlC::Closes.keys(), CtrlC::StopsRun.keys(), STOPPING] {
            assert!(text.chars().count() <= 80, "{text}");
        }
    }

    #[test]
    fn keys_close_scroll_and_stop() {
        let press =
            |code, modifiers, ctrl_c| action(&Event::Key(KeyEvent::new(code, modifiers)), ctrl_c);
        let plain = |code| press(code, KeyModifiers::NONE, CtrlC::StopsRun);
        assert_eq!(plain(KeyCode::Char('q')), Action::Close);
        assert_eq!(plain(KeyCode::Char('c')), Action::Nothing);
        assert_eq!(plain(KeyCode::Down), Action::Scroll(1));
        assert_eq!(plain(KeyCode::PageUp), Action::Scroll(-10));
        let control_c = |ctrl_c| press(KeyCode::Char('c'), KeyModifiers::CONTROL, ctrl_c);
        assert_eq!(control_c(CtrlC::StopsRun), Action::Stop);
        assert_eq!(control_c(CtrlC::Closes), Action::Close);
        assert_eq!(action(&Event::FocusLost, CtrlC::Closes), Action::Nothing);
    }
}
