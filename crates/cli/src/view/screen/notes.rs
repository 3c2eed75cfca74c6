//! The lines below the tables: probes, machines, the verdict and messages. Lists that do not fit are cut and can be scrolled.

use ratatui::text::{Line, Span};

use super::{clean, faint, status_style};
use crate::live::update::{HostView, ProbeView, RunView, TrialView};

/// Maximum number of messages, and of lines that a list gets before all other lists have as many.
const LISTED: usize = 4;
/// Steal below this is not shown.
const MIN_STEAL_PCT: f32 = 0.5;

/// Divides lines among lists of these lengths: at first at most [`LISTED`] for each in turn, then what is left for the first list that needs
/// more, and so on.
pub(super) fn divide<const LISTS: usize>(
    mut lines: usize,
    lengths: [usize; LISTS],
) -> [usize; LISTS] {
    let mut shares = [0; LISTS];
    for most in (1..=LISTED).chain([usize::MAX]) {
        for (share, length) in shares.iter_mut().zip(lengths) {
            let more = length.min(most).saturating_sub(*share).min(lines);
            *share += more;
            lines -= more;
        }
    }
    shares
}

/// The lines, before they are cut to the height of the terminal.
#[derive(Default)]
pub(super) struct Notes {
    probes: Vec<Line<'static>>,
    machines: Vec<Line<'static>>,
    verdict: Option<Line<'static>>,
    reasons: Vec<Line<'static>>,
    /// Rows that no view shows.
    unseen: Vec<Line<'static>>,
    messages: Vec<Line<'static>>,
}

impl Notes {
    pub(super) fn new(run: &RunView, trial: Option<&TrialView>) -> Self {
        let newest = run.messages.len().saturating_sub(LISTED);
        let messages = run.messages.iter().skip(newest);
        let messages = messages.map(|message| Line::styled(clean(message), faint())).collect();
        let Some(trial) = trial else { return Self { messages, ..Self::default() } };
        let what = if trial.has_ended { "verdict: " } else { "verdict so far: " };
        let status = Span::styled(clean(&trial.status), status_style(&trial.status));
        Self {
            probes: trial.probes.iter().map(|(name, probe)| probe_line(name, probe)).collect(),
            machines: trial.hosts.iter().map(|(node, host)| machine_line(node, host)).collect(),
            verdict: Some(Line::from(vec![Span::raw(what), status])),
            reasons: trial.reasons.iter().map(|reason| Line::from(clean(reason))).collect(),
            unseen: unseen(trial),
            messages,
        }
    }

    /// Returns the number of lines that are always shown. One is blank.
    pub(super) fn fixed(&self) -> usize {
        1 + usize::from(self.verdict.is_some()) + self.unseen.len()
    }

    /// Returns the lengths of the machines, probes, reasons and messages.
    pub(super) fn lengths(&self) -> [usize; 4] {
        [&self.machines, &self.probes, &self.reasons, &self.messages].map(Vec::len)
    }

    /// Returns how far the lists can be scrolled if they have these numbers of lines.
    pub(super) fn last_offset(&self, shares: [usize; 4]) -> usize {
        let [machines, probes, reasons, _] = self.lengths();
        let hidden = [machines, probes, reasons].into_iter().zip(shares);
        hidden.map(|(length, share)| length - shown(length, share)).max().unwrap_or(0)
    }

    /// Returns the lines from this offset on, with this number of lines for each list.
    pub(super) fn lines(
        self,
        [machines, probes, reasons, messages]: [usize; 4],
        offset: usize,
    ) -> Vec<Line<'static>> {
        let mut lines = vec![Line::default()];
        lines.extend(part(self.probes, "probes", probes, offset));
        lines.extend(part(self.machines, "machines", machines, offset));
        lines.extend(self.verdict);
        lines.extend(part(self.reasons, "reasons", reasons, offset));
        lines.extend(self.unseen);
        // The newest messages.
        let hidden = self.messages.len().saturating_sub(messages);
        lines.extend(self.messages.into_iter().skip(hidden));
        lines
    }
}

/// Returns how many entries of a list are shown in this number of lines. The last line of a list that does not fit has their numbers.
fn shown(length: usize, lines: usize) -> usize {
    if lines < length { lines.saturating_sub(1) } else { length }
}

/// Returns the entries of a list from this offset on, or the last ones.
fn part(
    list: Vec<Line<'static>>,
    what: &str,
    lines: usize,
    offset: usize,
) -> impl Iterator<Item = Line<'static>> {
    let (length, shown) = (list.len(), shown(list.len(), lines));
    let first = offset.min(length - shown);
    let which = match shown {
        0 => format!("{length} {what}"),
        _ => format!("{}-{} of {length} {what}", first + 1, first + shown),
    };
    let which = (1..length).contains(&lines).then(|| Line::styled(which, faint()));
    list.into_iter().skip(first).take(shown).chain(which)
}

fn probe_line(name: &str, probe: &ProbeView) -> Line<'static> {
    let rtt = probe.rtt_us.now.map_or("-".to_owned(), |us| format!("{:.1} ms", us / 1e3));
    let text = format!("probe {name}: {rtt}, {} of {} lost", probe.lost, probe.sent);
    Line::from(clean(&text))
}

fn machine_line(node: &str, host: &HostView) -> Line<'static> {
    let HostView { busy_pct, max_busy_pct, peak_busy_pct, steal_pct, agent_pct, .. } = host;
    let steal = if *steal_pct >= MIN_STEAL_PCT {
        format!(", steal {steal_pct:.0} %")
    } else {
        String::new()
    };
    Line::from(clean(&format!(
        "{node}: CPU {busy_pct:.0} %, busiest {max_busy_pct:.0} % (peak {peak_busy_pct:.0} %){steal}, agent {agent_pct:.1} %, softnet drops {}",
        host.softnet_dropped
    )))
}

/// Returns a line for each kind of rows that no view shows.
fn unseen(trial: &TrialView) -> Vec<Line<'static>> {
    let unseen = [
        (trial.rows_left_out, "of further flows"),
        (trial.rows_outside, "from before the trial's start, or of nodes whose clock is not known"),
    ];
    let unseen = unseen.into_iter().filter(|(rows, _)| *rows > 0);
    let line =
        |(rows, which)| Line::styled(format!("only in the results: {rows} rows {which}"), faint());
    unseen.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_divided_evenly_at_first() {
        assert_eq!(divide(10, [2, 5, 6, 1, 1]), [2, 3, 3, 1, 1]);
        assert_eq!(divide(10, [100, 30]), [6, 4]);
        assert_eq!(divide(100, [9, 5, 0]), [9, 5, 0]);
        assert_eq!(divide(0, [1, 1]), [0, 0]);
    }

    #[test]
    fn a_cut_list_tells_what_it_shows() {
        let texts = |lines, offset| -> Vec<String> {
            let list = (1..=5).map(|nth| Line::from(nth.to_string())).collect();
            part(list, "machines", lines, offset).map(|line| line.to_string()).collect()
        };
        assert_eq!(texts(5, 3), ["1", "2", "3", "4", "5"]);
        assert_eq!(texts(3, 1), ["2", "3", "2-3 of 5 machines"]);
        assert_eq!(texts(3, 9), ["4", "5", "4-5 of 5 machines"]);
        assert_eq!(texts(1, 0), ["5 machines"]);
        assert_eq!(texts(0, 0), [""; 0]);
    }
}
