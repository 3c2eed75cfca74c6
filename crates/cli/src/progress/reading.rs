//! Progress of a command that reads all trials of a run.

use ccbench_proto::printable;
use ccbench_results::observer::{Observer, Step};
use indicatif::ProgressBar;

use super::{has_bars, new_bar};

/// A bar on a terminal, removed on drop; nothing elsewhere.
pub struct ReadingProgress {
    bar: Option<ProgressBar>,
}

impl ReadingProgress {
    /// Makes a bar that appears when the first trial has been read.
    pub fn begin() -> Self {
        Self { bar: has_bars().then(|| new_bar(1)) }
    }

    /// Returns an observer that shows the progress of reading the run with this name.
    pub fn observer(&self, name: String) -> Observer {
        let Some(bar) = self.bar.clone() else { return Observer::default() };
        Observer::new(move |step| show(&bar, &name, step))
    }
}

impl Drop for ReadingProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn show(bar: &ProgressBar, name: &str, Step { activity, done, trials }: Step) {
    bar.set_length(trials as u64);
    bar.set_position(done as u64);
    let text = format!("{done}/{trials} trials · {activity} · {name}");
    bar.set_message(printable::line(&text).into_owned());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_the_step_with_its_trials_and_is_removed() {
        let bar = ProgressBar::hidden();
        let progress = ReadingProgress { bar: Some(bar.clone()) };
        show(&bar, "results/\u{1b}sweep", Step { activity: "measuring", done: 45, trials: 90 });
        assert_eq!((bar.position(), bar.length()), (45, Some(90)));
        let shown = bar.message();
        assert!(shown.starts_with("45/90 trials · measuring · results/"), "{shown}");
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
        drop(progress);
        assert!(bar.is_finished());
    }
}
