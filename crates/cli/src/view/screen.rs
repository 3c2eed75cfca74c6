//! The contents of the terminal screen: a table of flows with sparklines, the links, the machines and the verdict so far. Pure.

use std::time::Duration;

use ccbench_proto::printable;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use crate::live::update::{Bin, LinkView, Quantity, RunView, TrialView, Update};
use crate::progress::clock_text;
use flows::History;
use notes::{Notes, divide};

mod flows;
mod notes;

/// Eighths of a cell's height.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Lines above the table of flows: the run, the trial, and what comes next.
const HEADER_LINES: usize = 3;
/// Lines of the titles of the table of flows.
const FLOW_TITLE_LINES: usize = 1;
/// Lines above the links: a blank one and the titles.
const LINK_TITLE_LINES: usize = 2;
/// Lines at the bottom, which explain the keys.
const KEY_LINES: usize = 1;

/// The numbers of a run as the terminal shows them.
#[derive(Debug, Default)]
pub struct Screen {
    update: Update,
    history: History,
    /// Number of entries by which every list is scrolled that does not fit.
    offset: usize,
}

impl Screen {
    /// Applies the next update of the run.
    pub fn apply(&mut self, update: Update) {
        let shown =
            |update: &Update| update.trial.as_ref().map(|trial| (trial.number, trial.attempt));
        if shown(&update) != shown(&self.update) {
            self.history.clear();
        }
        for (id, flow) in update.trial.iter().flat_map(|trial| &trial.flows) {
            let series = self.history.entry(id.clone()).or_default();
            for (series, quantity) in series.iter_mut().zip([&flow.rate_bps, &flow.rtt_us]) {
                add_bins(series, quantity);
            }
        }
        self.update = update;
    }

    /// Returns whether the run has ended.
    pub fn has_ended(&self) -> bool {
        self.update.run.status.is_some()
    }

    /// Scrolls the lists that do not fit: flows, links, probes, machines and reasons. The next frame limits this to their ends.
    pub fn scroll(&mut self, lines: isize) {
        self.offset = self.offset.saturating_add_signed(lines);
    }

    /// Draws the screen. `keys` explains the keys.
    pub fn draw(&mut self, frame: &mut Frame<'_>, keys: &str) {
        let Update { run, trial } = &self.update;
        let notes = Notes::new(run, trial.as_ref());
        let flow_count = trial.as_ref().map_or(0, |trial| trial.flows.len());
        let link_count = trial.as_ref().map_or(0, |trial| trial.links.len());
        let links = if link_count == 0 { 0 } else { link_count + LINK_TITLE_LINES };
        let [machines, probes, reasons, messages] = notes.lengths();
        let fixed = HEADER_LINES + FLOW_TITLE_LINES + notes.fixed() + KEY_LINES;
        let free = usize::from(frame.area().height).saturating_sub(fixed);
        // Many links leave room for flows.
        let links = links.min(free.saturating_sub(flow_count.min(2)));
        let link_rows = links.saturating_sub(LINK_TITLE_LINES);
        let lists = free - links;
        let lengths = [flow_count, machines, probes, reasons, messages];
        let [rows, shares @ ..] = divide(lists, lengths);
        let last_flow = flow_count - rows;
        let last_link = link_count - link_rows;
        let last_offset = notes.last_offset(shares).max(last_flow).max(last_link);
        let offset = self.offset.min(last_offset);
        self.offset = offset;
        let below = notes.lines(shares, offset);
        let height = |lines: usize| Constraint::Length(u16::try_from(lines).unwrap_or(u16::MAX));
        let [head, table, queues, foot, last] = Layout::vertical([
            height(HEADER_LINES),
            Constraint::Min(u16::try_from(FLOW_TITLE_LINES + rows).unwrap_or(u16::MAX)),
            height(links),
            height(below.len()),
            height(KEY_LINES),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(header(run, trial.as_ref())), head);
        if let Some(trial) = trial {
            let window = (offset.min(last_flow), rows);
            frame.render_widget(flows::table(trial, &self.history, window, table.width), table);
            let window = (offset.min(last_link), link_rows);
            frame.render_widget(link_table(trial, window), queues);
        }
        frame.render_widget(Paragraph::new(below), foot);
        frame.render_widget(Paragraph::new(keys).style(faint()), last);
    }
}

/// Returns the table of this number of links from the link at index `first` on.
fn link_table(trial: &TrialView, (first, rows): (usize, usize)) -> Table<'static> {
    let row = |(name, link): (&String, &LinkView)| {
        let rate = link.rate_bps.map_or("-".to_owned(), |bps| format!("{:.2}", bps as f64 / 1e6));
        Row::new([
            text(name),
            right(rate),
            number(&link.backlog_bytes, 1e3, 1),
            right(link.drops_pkts.to_string()),
            right(count(link.marks_pkts)),
        ])
    };
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
    ];
    let titles = ["Mbit/s", "QUEUE kB", "DROPS", "MARKS"].map(right);
    let name = match trial.links.len() {
        length if length <= rows => "LINK".to_owned(),
        length if rows == 0 => format!("LINK ({length})"),
        length => format!("LINK ({}-{} of {length})", first + 1, first + rows),
    };
    let titles = [text(&name)].into_iter().chain(titles);
    let header = Row::new(titles).style(bold()).top_margin(1);
    let rows = trial.links.iter().skip(first).take(rows);
    Table::new(rows.map(row), widths).header(header)
}

/// Returns three lines: the run, the trial, and what comes next.
fn header(run: &RunView, trial: Option<&TrialView>) -> Vec<Line<'static>> {
    let ended: Vec<String> =
        run.ended.iter().map(|(status, count)| format!("{count} {status}")).collect();
    let ended = if ended.is_empty() { String::new() } else { format!(" · {}", ended.join(", ")) };
    let left = run.left_s.map(|s| format!("{} left", clock_text(Duration::from_secs(s))));
    let next = run.next.as_ref().map(|next| format!("next: {next}"));
    let beside = run.running.len().saturating_sub(1);
    let beside = (beside > 0).then(|| format!("{beside} more at the same time"));
    let coming = [left, beside, next].into_iter().flatten().collect::<Vec<_>>().join(" · ");
    let now = match trial {
        None if run.waits_for_nodes => "waiting until every node answers".to_owned(),
        None => "waiting for the first trial".to_owned(),
        Some(trial) => {
            let without = if trial.has_ended { "ended" } else { "between phases" };
            let then =
                trial.next_phase.as_ref().map_or(String::new(), |name| format!(", then {name}"));
            format!(
                "trial {}/{} {} · {}{then} · {:.0} of {:.0} s",
                trial.number,
                run.trials,
                trial.label,
                trial.phase.as_deref().unwrap_or(without),
                trial.elapsed_s,
                trial.length_s
            )
        }
    };
    let name = Span::styled(clean(&run.name), bold());
    let first = vec![name, Span::raw(clean(&format!(" · {}{ended}", run.directory)))];
    vec![Line::from(first), Line::from(clean(&now)), Line::styled(clean(&coming), faint())]
}

/// Adds the bins of an update.
fn add_bins(series: &mut Vec<Option<f32>>, quantity: &Quantity) {
    for Bin(index, _, mean, _) in &quantity.bins {
        let index = *index as usize;
        if series.len() <= index {
            series.resize(index + 1, None);
        }
        if let Some(value) = series.get_mut(index) {
            *value = Some(*mean);
        }
    }
}

/// Draws the newest bins, at most `width` ones, scaled from zero to their largest value.
fn sparkline(series: &[Option<f32>], width: usize) -> String {
    let newest = series.get(series.len().saturating_sub(width)..).unwrap_or_default();
    let most = newest.iter().flatten().fold(0.0, |most: f32, value| most.max(*value));
    let level = |value: &Option<f32>| match value {
        None => ' ',
        Some(value) if most > 0.0 => {
            let level = (value / most * 7.0).round().clamp(0.0, 7.0) as usize;
            LEVELS.get(level).copied().unwrap_or(' ')
        }
        Some(_) => '▁',
    };
    newest.iter().map(level).collect()
}

fn number(quantity: &Quantity, scale: f32, digits: usize) -> Cell<'static> {
    right(quantity.now.map_or("-".to_owned(), |now| format!("{:.digits$}", now / scale)))
}

/// Formats a counter; `-` if there is none.
fn count(pkts: Option<u64>) -> String {
    pkts.map_or("-".to_owned(), |pkts| pkts.to_string())
}

fn right(text: impl Into<String>) -> Cell<'static> {
    let text: String = text.into();
    Cell::from(Line::from(text).right_aligned())
}

fn text(text: &str) -> Cell<'static> {
    Cell::from(clean(text))
}

/// Escapes control sequences in untrusted text.
fn clean(text: &str) -> String {
    printable::line(text).into_owned()
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn faint() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn status_style(status: &str) -> Style {
    let colour = match status {
        "ok" => Color::Green,
        "degraded" => Color::Yellow,
        _ => Color::Red,
    };
    bold().fg(colour)
}

#[cfg(test)]
mod tests;
