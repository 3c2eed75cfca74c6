//! Tests what the screen shows, with a terminal in memory.

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::live::update::{EndedTrial, FlowView, HostView, PhaseView, ProbeView, RunningTrial};

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
                agent_pct: 1.5,
                softnet_dropped: 4,
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
fn lines(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
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
        "src: CPU 25 %, busiest 99 % (peak 100 %), agent 1.5 %, softnet drops 4",
        "verdict so far: degraded",
        "src: the busiest CPU was at 95 %",
        "note: first",
        "q quits",
    ];
    assert_eq!(lines(&mut screen, 106, 15), expected);
}

#[test]
fn states_the_rows_that_it_does_not_show() {
    let (mut screen, mut update) = (Screen::default(), update());
    let trial = update.trial.as_mut().unwrap();
    (trial.rows_left_out, trial.rows_outside) = (4, 2);
    screen.apply(update);
    let lines = lines(&mut screen, 98, 17);
    let expected = [
        "src: the busiest CPU was at 95 %",
        "only in the results: 4 rows of further flows",
        "only in the results: 2 rows from before the trial's start, or of nodes whose clock is not known",
    ];
    assert_eq!(lines[12..15], expected);
}

#[test]
fn a_terminal_of_80_columns_shows_the_flows_and_their_numbers() {
    let (mut screen, mut update) = (Screen::default(), update());
    let trial = update.trial.as_mut().unwrap();
    trial.flows = [("background/0".to_owned(), flow("cubic", &[0.0, 5e6, 10e6]))].into();
    let mut row = |update: &Update, width| {
        screen.apply(update.clone());
        let lines = lines(&mut screen, width, 24);
        lines[4].split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let all = ["background/0", "cubic", "10.00", "21.5", "50", "-", "7", "12"];
    assert_eq!(row(&update, 80), all);
    assert_eq!(row(&update, 60), ["background/0", "cubic", "10.00", "21.5", "50"]);
    assert_eq!(row(&update, 40), ["background/0", "10.00", "21.5", "50"]);
    // Without marks there is room for a sparkline.
    let trial = update.trial.as_mut().unwrap();
    trial.flows.get_mut("background/0").unwrap().marks_pkts = None;
    let all = ["background/0", "cubic", "10.00", "▁▅█", "21.5", "50", "-", "7"];
    assert_eq!(row(&update, 80), all);
}

#[test]
fn a_terminal_of_24_lines_shows_the_machines_of_two_pairs() {
    let (mut screen, mut update) = (Screen::default(), update());
    let nodes = ["src1", "src2", "left", "right", "dst1", "dst2"];
    let trial = update.trial.as_mut().unwrap();
    trial.hosts = nodes.map(|node| (node.to_owned(), HostView::default())).into();
    screen.apply(update);
    let lines = lines(&mut screen, 80, 24);
    for node in nodes {
        let expected =
            format!("{node}: CPU 0 %, busiest 0 % (peak 0 %), agent 0.0 %, softnet drops 0");
        assert!(lines.contains(&expected), "{node}: {lines:#?}");
    }
}

#[test]
fn lists_that_do_not_fit_can_be_scrolled() {
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
    // The lines between the links and the verdict.
    let mut listed = |scroll, height| {
        screen.scroll(scroll);
        let lines = lines(&mut screen, 98, height);
        assert!(lines[4].starts_with("f/0") && lines[5].starts_with("f/1"), "{lines:#?}");
        let lines = lines.into_iter().skip_while(|line| !line.starts_with("probe "));
        lines.take_while(|line| !line.starts_with("verdict")).collect::<Vec<_>>()
    };
    let probe = |name: &str| match name {
        "b" => "probe b: -, 12 of 12 lost".to_owned(),
        _ => format!("probe {name}: 20.7 ms, 1 of 12 lost"),
    };
    let machine = |node: &str| {
        format!("{node}: CPU 0 %, busiest 0 % (peak 0 %), agent 0.0 %, softnet drops 0")
    };
    let expected = |probes: [&str; 2], of_probes: &str, nodes: [&str; 2], of_machines: &str| {
        let probes = probes.map(probe).into_iter().chain([format!("{of_probes} of 6 probes")]);
        let of_machines = format!("{of_machines} of 5 machines");
        probes.chain(nodes.map(machine)).chain([of_machines]).collect::<Vec<_>>()
    };
    assert_eq!(listed(0, 20), expected(["a", "b"], "1-2", ["1", "2"], "1-2"));
    assert_eq!(listed(2, 20), expected(["c", "d"], "3-4", ["3", "4"], "3-4"));
    // The end of the longest list is the limit.
    assert_eq!(listed(100, 20), expected(["e", "f"], "5-6", ["4", "5"], "4-5"));
    assert_eq!(listed(-1, 20), expected(["d", "e"], "4-5", ["4", "5"], "4-5"));
    let all: Vec<String> = ["a", "b", "c", "d", "e", "f"].map(probe).into();
    let machines = ["1", "2", "3", "4", "5"].map(machine);
    assert_eq!(listed(0, 30), [&all[..], &machines[..]].concat(), "a higher terminal has room");
}

#[test]
fn many_links_leave_room_for_flows() {
    let (mut screen, mut update) = (Screen::default(), update());
    let trial = update.trial.as_mut().unwrap();
    let link = |nth| (format!("link{nth:02}"), LinkView::default());
    trial.links = (1..=20).map(link).collect();
    screen.apply(update);
    let mut shown = |scroll| {
        screen.scroll(scroll);
        let lines = lines(&mut screen, 80, 24);
        assert!(lines.iter().any(|line| line.starts_with("f/")), "{lines:#?}");
        assert_eq!(lines[23], "q quits");
        let links = lines.iter().filter(|line| line.starts_with("link")).map(|line| &line[..6]);
        let links: Vec<String> = links.map(str::to_owned).collect();
        let title = lines.iter().find(|line| line.starts_with("LINK")).unwrap();
        (title.split("  ").next().unwrap().to_owned(), links)
    };
    let expected = |which: &str, first: u32| {
        let links = (first..first + 13).map(|nth| format!("link{nth:02}")).collect::<Vec<_>>();
        (format!("LINK ({which} of 20)"), links)
    };
    assert_eq!(shown(0), expected("1-13", 1));
    assert_eq!(shown(100), expected("8-20", 8));
    assert_eq!(shown(-100), expected("1-13", 1));
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
    assert!(
        lines(&mut screen, 98, 15)[4].contains("20.00 ▁▃▅ █"),
        "{:?}",
        lines(&mut screen, 98, 15)
    );
    next.trial.as_mut().unwrap().number = 3;
    screen.apply(next);
    assert!(lines(&mut screen, 98, 15)[4].contains("20.00     █"));
    let mut again = update();
    again.trial.as_mut().unwrap().number = 3;
    again.trial.as_mut().unwrap().attempt = 2;
    again.trial.as_mut().unwrap().flows.insert("f/0".to_owned(), flow("cubic", &[5e6]));
    screen.apply(again);
    assert!(lines(&mut screen, 98, 15)[4].contains(" 5.00 █ "), "a repeated trial starts anew");
    let run = RunView { waits_for_nodes: true, ..RunView::default() };
    screen.apply(Update { run, trial: None });
    assert_eq!(lines(&mut screen, 98, 15)[1], "waiting until every node answers");
}

#[test]
fn scrolls_within_the_flows() {
    let mut screen = Screen::default();
    screen.scroll(5);
    assert_eq!(lines(&mut screen, 98, 15)[1], "waiting for the first trial");
    let mut update = update();
    let flows = (1..=9).map(|nth| (format!("f/{nth}"), flow("cubic", &[0.0])));
    update.trial.as_mut().unwrap().flows = flows.collect();
    screen.apply(update);
    let mut shown = |scroll| {
        screen.scroll(scroll);
        let lines = lines(&mut screen, 98, 15);
        [4, 5].map(|nth: usize| lines[nth].split(' ').next().unwrap().to_owned())
    };
    assert_eq!(shown(0), ["f/1", "f/2"], "there was nothing to scroll before");
    assert_eq!(shown(1), ["f/2", "f/3"]);
    assert_eq!(shown(100), ["f/8", "f/9"], "the last flows stay");
    assert_eq!(shown(-1), ["f/7", "f/8"]);
    assert_eq!(shown(-100), ["f/1", "f/2"]);
    // A small window is not an error.
    assert_eq!(lines(&mut screen, 10, 4).len(), 4);
}

#[test]
fn sparklines_begin_at_zero_and_keep_gaps() {
    assert_eq!(sparkline(&[Some(0.0), None, Some(7.0), Some(3.5)], 12), "▁ █▅");
    assert_eq!(sparkline(&[Some(0.0)], 12), "▁");
    assert_eq!(sparkline(&[Some(1.0); 40], 12).chars().count(), 12);
    assert_eq!(sparkline(&[Some(0.0), Some(7.0), Some(3.5)], 2), "█▅", "the newest bins");
    assert_eq!(sparkline(&[], 12), "");
}
