//! The contents of the terminal screen: a table of flows with sparklines, the links, the machines and the verdict so far. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use ccbench_proto::printable;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use crate::live::update::{Bin, FlowView, LinkView, Quantity, RunView, TrialView, Update};
use crate::progress::clock_text;

/// Number of bins in a sparkline, the newest ones.
const SPARK_BINS: usize = 12;
/// Eighths of a cell's height.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// A flow without a sample for longer than this has ended or is no longer sampled.
const IDLE_S: f64 = 2.0;
/// Maximum number of probes, machines, reasons and messages that are listed, each.
const LISTED: usize = 4;

/// The numbers of a run as the terminal shows them.
#[derive(Debug, Default)]
pub struct Screen {
    update: Update,
    /// Mean throughput and RTT of each flow, by bin.
    history: BTreeMap<String, [Vec<Option<f32>>; 2]>,
    /// Index of the first listed flow.
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

    /// Scrolls the list of flows.
    pub fn scroll(&mut self, lines: isize) {
        let flows = self.update.trial.as_ref().map_or(0, |trial| trial.flows.len());
        self.offset = self.offset.saturating_add_signed(lines).min(flows.saturating_sub(1));
    }

    /// Draws the screen. `keys` explains the keys.
    pub fn draw(&self, frame: &mut Frame<'_>, keys: &str) {
        let Update { run, trial } = &self.update;
        let notes = notes(run, trial.as_ref());
        let links = trial.as_ref().map_or(0, |trial| trial.links.len());
        let height = |lines: usize| Constraint::Length(u16::try_from(lines).unwrap_or(u16::MAX));
        let [head, flows, queues, foot, last] = Layout::vertical([
            Constraint::Length(3),
            Constraint::Min(3),
            height(if links == 0 { 0 } else { links + 2 }),
            height(notes.len()),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(header(run, trial.as_ref())), head);
        if let Some(trial) = trial {
            frame.render_widget(self.flow_table(trial, flows), flows);
            frame.render_widget(link_table(trial), queues);
        }
        frame.render_widget(Paragraph::new(notes), foot);
        frame.render_widget(Paragraph::new(keys).style(faint()), last);
    }

    fn flow_table(&self, trial: &TrialView, area: Rect) -> Table<'static> {
        let first = self.offset.min(trial.flows.len().saturating_sub(1));
        // One line of the area is for the titles.
        let rows = usize::from(area.height.saturating_sub(1));
        let rows = trial.flows.iter().skip(first).take(rows);
        // Shows the column only if needed: a terminal is narrow, and most flows have no marks.
        let has_marks = trial.flows.values().any(|flow| flow.marks_pkts.is_some_and(|n| n > 0));
        let rows = rows.map(|(id, flow)| self.flow_row(id, flow, has_marks));
        let mut widths = vec![
            Constraint::Fill(1),
            Constraint::Length(10),
            Constraint::Length(9),
            Constraint::Length(SPARK_BINS as u16),
            Constraint::Length(9),
            Constraint::Length(SPARK_BINS as u16),
            Constraint::Length(7),
            Constraint::Length(9),
            Constraint::Length(8),
        ];
        let of = trial.flows.len();
        let mut titles = vec![
            Cell::from(if of > 1 { format!("FLOW ({of})") } else { "FLOW".to_owned() }),
            text("CC"),
            right("Mbit/s"),
            text(""),
            right("SRTT ms"),
            text(""),
            right("CWND"),
            right("IN FLIGHT"),
            right("RETRANS"),
        ];
        if has_marks {
            widths.push(Constraint::Length(7));
            titles.push(right("MARKS"));
        }
        Table::new(rows, widths).header(Row::new(titles).style(bold()))
    }

    fn flow_row(&self, id: &str, flow: &FlowView, has_marks: bool) -> Row<'static> {
        let spark = |nth: usize| {
            let series = self.history.get(id).and_then(|all| all.get(nth));
            Cell::from(sparkline(series.map_or(&[][..], Vec::as_slice)))
        };
        let marks = has_marks.then(|| right(count(flow.marks_pkts)));
        let numbers = [
            text(id),
            text(&flow.cc),
            number(&flow.rate_bps, 1e6, 2),
            spark(0),
            number(&flow.rtt_us, 1e3, 1),
            spark(1),
            number(&flow.cwnd_pkts, 1.0, 0),
            number(&flow.in_flight_pkts, 1.0, 0),
            right(flow.retrans_pkts.to_string()),
        ];
        let row = Row::new(numbers.into_iter().chain(marks));
        if flow.idle_s > IDLE_S { row.style(faint()) } else { row }
    }
}

fn link_table(trial: &TrialView) -> Table<'static> {
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
    let titles = [text("LINK")].into_iter().chain(titles);
    let header = Row::new(titles).style(bold()).top_margin(1);
    Table::new(trial.links.iter().map(row), widths).header(header)
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

/// Returns the probes, the machines, the verdict and the last messages.
fn notes(run: &RunView, trial: Option<&TrialView>) -> Vec<Line<'static>> {
    let mut lines = vec![Line::default()];
    if let Some(trial) = trial {
        for (name, probe) in trial.probes.iter().take(LISTED) {
            let rtt = probe.rtt_us.now.map_or("-".to_owned(), |us| format!("{:.1} ms", us / 1e3));
            let text = format!("probe {name}: {rtt}, {} of {} lost", probe.lost, probe.sent);
            lines.push(Line::from(clean(&text)));
        }
        lines.extend(more(trial.probes.len(), "probes"));
        for (node, host) in trial.hosts.iter().take(LISTED) {
            let steal = if host.steal_pct >= 0.5 {
                format!(", steal {:.0} %", host.steal_pct)
            } else {
                String::new()
            };
            lines.push(Line::from(clean(&format!(
                "{node}: CPU {:.0} %, busiest {:.0} % (peak {:.0} %){steal}",
                host.busy_pct, host.max_busy_pct, host.peak_busy_pct
            ))));
        }
        lines.extend(more(trial.hosts.len(), "machines"));
        let what = if trial.has_ended { "verdict: " } else { "verdict so far: " };
        let status = Span::styled(clean(&trial.status), status_style(&trial.status));
        lines.push(Line::from(vec![Span::raw(what), status]));
        lines.extend(trial.reasons.iter().take(LISTED).map(|reason| Line::from(clean(reason))));
        lines.extend(more(trial.reasons.len(), "reasons"));
        let unseen = [
            (trial.rows_left_out, "of further flows"),
            (
                trial.rows_outside,
                "from before the trial's start, or of nodes whose clock is not known",
            ),
        ];
        for (rows, which) in unseen.into_iter().filter(|(rows, _)| *rows > 0) {
            lines.push(Line::styled(format!("only in the results: {rows} rows {which}"), faint()));
        }
    }
    let last = run.messages.iter().rev().take(LISTED).rev();
    lines.extend(last.map(|message| Line::styled(clean(message), faint())));
    lines
}

/// Returns a line with the number of those that are not listed; `None` if all are.
fn more(count: usize, what: &str) -> Option<Line<'static>> {
    let more = count.saturating_sub(LISTED);
    (more > 0).then(|| Line::styled(format!("and {more} more {what}"), faint()))
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

/// Draws the newest bins, scaled from zero to their largest value.
fn sparkline(series: &[Option<f32>]) -> String {
    let newest = series.get(series.len().saturating_sub(SPARK_BINS)..).unwrap_or_default();
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
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::live::update::{EndedTrial, HostView, PhaseView, ProbeView, RunningTrial};

    fn quantity(now: f32, means: &[f32]) -> Quantity {
        let bins = (0..).zip(means).map(|(index, mean)| Bin(index, 0.0, *mean, 2.0 * mean));
        Quantity { now: Some(now), bins: bins.collect() }
    }

    fn flow(cc: &str, rates: &[f32]) -> FlowView {
        FlowView {
            group: "f".to_owned(),
            cc: cc.to_owned(),
            idle_s: 0.0,
            rate_bps: quantity(rates.last().copied().unwrap_or(0.0), rates),
            rtt_us: quantity(21_500.0, &[20_000.0, 40_000.0]),
            cwnd_pkts: quantity(50.4, &[50.4]),
            in_flight_pkts: Quantity::default(),
            retrans_pkts: 7,
            marks_pkts: Some(12),
        }
    }

    fn update() -> Update {
        let link = LinkView {
            rate_bps: Some(20_000_000),
            backlog_bytes: quantity(12_345.0, &[12_345.0]),
            drops_pkts: 3,
            marks_pkts: None,
        };
        let trial = TrialView {
            number: 2,
            label: "cc=bbr repeat 1/1".to_owned(),
            elapsed_s: 1.6,
            length_s: 3.0,
            phase: Some("only".to_owned()),
            phases: vec![PhaseView::default()],
            bin_s: 0.1,
            status: "degraded".to_owned(),
            reasons: vec!["src: the busiest CPU was at 95 %".to_owned()],
            flows: [("f/0", flow("cubic", &[0.0, 5e6, 10e6])), ("f/1", flow("bbr\x1b[2J", &[0.0]))]
                .map(|(id, flow)| (id.to_owned(), flow))
                .into(),
            links: [("bottleneck".to_owned(), link)].into(),
            hosts: [(
                "src".to_owned(),
                HostView {
                    busy_pct: 25.0,
                    max_busy_pct: 99.0,
                    peak_busy_pct: 100.0,
                    ..HostView::default()
                },
            )]
            .into(),
            ..TrialView::default()
        };
        let run = RunView {
            name: "simulated".to_owned(),
            directory: "/r/1".to_owned(),
            trials: 4,
            ended: [("ok".to_owned(), 1)].into(),
            last: vec![EndedTrial::default()],
            running: vec![RunningTrial::default(), RunningTrial::default()],
            next: Some("cc=cubic repeat 2/2".to_owned()),
            left_s: Some(65),
            messages: vec!["note: first".to_owned()],
            ..RunView::default()
        };
        Update { run, trial: Some(trial) }
    }

    /// Returns the lines of the screen, without trailing spaces.
    fn lines(screen: &Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame, "q quits")).unwrap();
        let buffer = terminal.backend().buffer();
        let cells: Vec<&str> = buffer.content().iter().map(ratatui::buffer::Cell::symbol).collect();
        cells.chunks(usize::from(width)).map(|line| line.concat().trim_end().to_owned()).collect()
    }

    #[test]
    fn shows_the_numbers_of_a_trial() {
        let mut screen = Screen::default();
        screen.apply(update());
        let expected = [
            "simulated · /r/1 · 1 ok",
            "trial 2/4 cc=bbr repeat 1/1 · only · 2 of 3 s",
            "1:05 left · 1 more at the same time · next: cc=cubic repeat 2/2",
            "FLOW (2)       CC            Mbit/s                SRTT ms                 CWND IN FLIGHT  RETRANS   MARKS",
            "f/0            cubic          10.00 ▁▅█               21.5 ▅█                50         -        7      12",
            "f/1            bbr\\u{1b}[      0.00 ▁                 21.5 ▅█                50         -        7      12",
            "",
            "LINK                                                                  Mbit/s  QUEUE kB     DROPS     MARKS",
            "bottleneck                                                             20.00      12.3         3         -",
            "",
            "src: CPU 25 %, busiest 99 % (peak 100 %)",
            "verdict so far: degraded",
            "src: the busiest CPU was at 95 %",
            "note: first",
            "q quits",
        ];
        assert_eq!(lines(&screen, 106, 15), expected);
    }

    #[test]
    fn states_the_rows_that_it_does_not_show() {
        let (mut screen, mut update) = (Screen::default(), update());
        let trial = update.trial.as_mut().unwrap();
        (trial.rows_left_out, trial.rows_outside) = (4, 2);
        screen.apply(update);
        let lines = lines(&screen, 98, 17);
        let expected = [
            "src: the busiest CPU was at 95 %",
            "only in the results: 4 rows of further flows",
            "only in the results: 2 rows from before the trial's start, or of nodes whose clock is not known",
        ];
        assert_eq!(lines[12..15], expected);
    }

    #[test]
    fn lists_probes_and_machines_and_counts_the_others() {
        let (mut screen, mut update) = (Screen::default(), update());
        let trial = update.trial.as_mut().unwrap();
        let probe = |rtt_us, lost| ProbeView { rtt_us, sent: 12, lost };
        let probes = ["a", "b", "c", "d", "e", "f"]
            .map(|name| (name.to_owned(), probe(quantity(20_700.0, &[]), 1)));
        trial.probes = probes.into();
        trial.probes.insert("b".to_owned(), probe(Quantity::default(), 12));
        trial.hosts =
            ["1", "2", "3", "4", "5"].map(|node| (node.to_owned(), HostView::default())).into();
        screen.apply(update);
        let lines = lines(&screen, 98, 30);
        let first = lines.iter().position(|line| line.starts_with("probe ")).unwrap();
        let expected = [
            "probe a: 20.7 ms, 1 of 12 lost",
            "probe b: -, 12 of 12 lost",
            "probe c: 20.7 ms, 1 of 12 lost",
            "probe d: 20.7 ms, 1 of 12 lost",
            "and 2 more probes",
            "1: CPU 0 %, busiest 0 % (peak 0 %)",
        ];
        assert_eq!(lines[first..first + 6], expected);
        assert_eq!(
            lines[first + 9..first + 11],
            ["and 1 more machines", "verdict so far: degraded"]
        );
    }

    #[test]
    fn follows_updates_and_forgets_earlier_trials() {
        let mut screen = Screen::default();
        screen.apply(update());
        let mut next = update();
        let trial = next.trial.as_mut().unwrap();
        trial.flows.insert("f/0".to_owned(), flow("cubic", &[]));
        let rate = Quantity { now: Some(20e6), bins: vec![Bin(4, 0.0, 20e6, 0.0)] };
        trial.flows.get_mut("f/0").unwrap().rate_bps = rate;
        screen.apply(next.clone());
        // The bin without a sample is blank.
        assert!(lines(&screen, 98, 15)[4].contains("20.00 ▁▃▅ █"), "{:?}", lines(&screen, 98, 15));
        next.trial.as_mut().unwrap().number = 3;
        screen.apply(next);
        assert!(lines(&screen, 98, 15)[4].contains("20.00     █"));
        let mut again = update();
        again.trial.as_mut().unwrap().number = 3;
        again.trial.as_mut().unwrap().attempt = 2;
        again.trial.as_mut().unwrap().flows.insert("f/0".to_owned(), flow("cubic", &[5e6]));
        screen.apply(again);
        assert!(lines(&screen, 98, 15)[4].contains(" 5.00 █ "), "a repeated trial starts anew");
        let run = RunView { waits_for_nodes: true, ..RunView::default() };
        screen.apply(Update { run, trial: None });
        assert_eq!(lines(&screen, 98, 15)[1], "waiting until every node answers");
    }

    #[test]
    fn scrolls_within_the_flows() {
        let mut screen = Screen::default();
        screen.scroll(5);
        screen.apply(update());
        screen.scroll(1);
        assert!(lines(&screen, 98, 15)[4].starts_with("f/1"));
        screen.scroll(100);
        assert!(lines(&screen, 98, 15)[4].starts_with("f/1"), "the last flow stays");
        screen.scroll(-100);
        assert!(lines(&screen, 98, 15)[4].starts_with("f/0"));
        // A small window is not an error.
        assert_eq!(lines(&screen, 10, 4).len(), 4);
    }

    #[test]
    fn sparklines_begin_at_zero_and_keep_gaps() {
        assert_eq!(sparkline(&[Some(0.0), None, Some(7.0), Some(3.5)]), "▁ █▅");
        assert_eq!(sparkline(&[Some(0.0)]), "▁");
        assert_eq!(sparkline(&[Some(1.0); 40]).chars().count(), 12);
        assert_eq!(sparkline(&[]), "");
    }
}
