use super::*;
use proptest::prelude::*;

fn read(text: &str) -> Vec<Test> {
    let mut tests = Tests::default();
    for (at, line) in text.lines().enumerate() {
        let taken = tests.take(at as u64 + 1, None, line);
        assert!(taken || line.trim().is_empty(), "{line}");
    }
    let (tests, endless) = tests.finish();
    assert!(endless.is_empty(), "{endless:?}");
    tests
}

/// iperf3 3.9 in the low-latency study, prague and then cubic: their last lines.
const STUDY: &str = "\
- - - - - - - - - - - - - - - - - - - - - - - - -
[ ID] Interval           Transfer     Bitrate         Retr
[  5]   0.00-20.00  sec  9.38 MBytes  3.94 Mbits/sec   17             sender
[  5]   0.00-20.00  sec  9.26 MBytes  3.88 Mbits/sec                  receiver

iperf Done.
- - - - - - - - - - - - - - - - - - - - - - - - -
[ ID] Interval           Transfer     Bitrate         Retr
[  5]   0.00-20.00  sec  47.8 MBytes  20.0 Mbits/sec  736             sender
[  5]   0.00-20.00  sec  47.6 MBytes  20.0 Mbits/sec                  receiver

iperf Done.
- - - - - - - - - - - - - - - - - - - - - - - - -
[ ID] Interval           Transfer     Bandwidth
[  5]   0.00-20.00  sec  0.00 Bytes  0.00 bits/sec
  sender
[  5]   0.00-20.00  sec  33.2 MBytes  13.9 Mbits/sec
    receiver
";

#[test]
fn the_last_lines_of_the_study_give_its_rates() {
    let tests = read(STUDY);
    let mbit = |test: &Test| {
        test.totals
            .iter()
            .map(|(_, sender, v)| (*sender, (v.bytes * 8.0 / v.seconds / 1e4).round() / 100.0))
            .collect::<Vec<_>>()
    };
    assert_eq!(tests.len(), 3);
    assert_eq!(mbit(&tests[0]), [(true, 3.93), (false, 3.88)], "of 9.38 MBytes in 20 s");
    assert_eq!(mbit(&tests[1]), [(true, 20.05), (false, 19.96)]);
    assert_eq!(mbit(&tests[2]), [(true, 0.0), (false, 13.93)], "wrapped lines");
    assert!(tests.iter().all(|test| test.report.complete && test.report.intervals.is_empty()));
}

const WHOLE: &str = "\
Connecting to host 10.0.3.1, port 5202
Reverse mode, remote host 10.0.3.1 is sending
[  5] local 10.0.5.1 port 55042 connected to 10.0.3.1 port 5202
[  7] local 10.0.5.1 port 55044 connected to 10.0.3.1 port 5202
[ ID] Interval           Transfer     Bitrate         Retr  Cwnd
[  5]   0.00-0.10   sec  1.25 MBytes   104 Mbits/sec    0    212 KBytes       (omitted)
[  7]   0.00-0.10   sec  0.00 Bytes  0.00 bits/sec    3   1.41 KBytes
[SUM]   0.00-0.10   sec  1.25 MBytes   104 Mbits/sec    3
- - - - - - - - - - - - - - - - - - - - - - - - -
[  5]   0.10-0.20   sec  1.00 GBytes  1.04 Gbits/sec    7    212 KBytes
iperf3: interrupt - the client has terminated
";

#[test]
fn intervals_have_their_numbers() {
    let tests = read(&WHOLE.replace("- - - - - - - - - - - - - - - - - - - - - - - - -\n", ""));
    let [test] = &tests[..] else { panic!("{tests:?}") };
    assert_eq!(test.server_port(), Some(5202));
    assert_eq!(test.report.reverse, Some(true));
    assert_eq!(test.report.error.as_deref(), Some("the client has terminated"));
    assert_eq!(test.report.streams[&1].local_port, 55044);
    let [a, b, c] = &test.report.intervals[..] else { panic!("{:?}", test.report.intervals) };
    assert_eq!((a.stream, a.values.bytes, a.values.omitted), (0, 1_310_720.0, true));
    assert_eq!(
        (b.stream, b.values.retransmits, b.values.snd_cwnd),
        (1, Some(3.0), Some(1.41 * 1024.0))
    );
    assert_eq!((c.stream, c.values.bytes, c.values.end), (0, 1_073_741_824.0, 0.2));
}

#[test]
fn several_streams_intervals_are_separated_and_no_summary() {
    let tests = read(WHOLE);
    assert_eq!(tests[0].report.intervals.len(), 3);
}

#[test]
fn reports_total_without_its_second_line() {
    let heading = "[ ID] Interval           Transfer     Bandwidth";
    let total = "[  5]   0.00-20.00  sec  33.2 MBytes  13.9 Mbits/sec";
    let mut tests = Tests::default();
    for (number, line) in (1..).zip(["- - - - -", heading, total, "iperf Done.", total]) {
        tests.take(number, None, line);
    }
    let (tests, endless) = tests.finish();
    assert!(tests[0].report.intervals.is_empty() && tests[0].totals.is_empty());
    assert_eq!(endless, [3, 5]);
}

#[test]
fn a_server_reports_one_test_after_the_other() {
    let test = |port: u16| {
        format!(
            "Accepted connection from 10.0.5.1, port {port}\n\
             [  5] local 10.0.3.1 port 5201 connected to 10.0.5.1 port {}\n\
             [ ID] Interval           Transfer     Bitrate\n\
             [  5]   0.00-1.00   sec  1.00 MBytes  8.39 Mbits/sec  0.011 ms  3/91 (3.3%)\n\
             - - - - - - - - - - - - - - - - - - - - - - - - -\n\
             [  5]   0.00-1.00   sec  1.00 MBytes  8.39 Mbits/sec  0.011 ms  3/91 (3.3%)  receiver\n\
             -----------------------------------------------------------\n\
             Server listening on 5201 (test #2)\n\
             -----------------------------------------------------------\n",
            port + 1
        )
    };
    let text = format!("Server listening on 5201\n{}{}", test(40_000), test(50_000));
    let tests = read(&text);
    let ports: Vec<u16> = tests.iter().map(|t| t.report.streams[&0].remote_port).collect();
    assert_eq!(ports, [40_001, 50_001]);
    let values = &tests[0].report.intervals[0].values;
    assert_eq!(
        (values.jitter_ms, values.lost_packets, values.packets),
        (Some(0.011), Some(3.0), Some(91.0))
    );
    assert!(tests.iter().all(|test| test.listens() && test.server_port() == Some(5201)));
}

#[test]
fn time_zero_is_the_earliest_that_stamps_allow() {
    let mut tests = Tests::default();
    let line = |end: &str| {
        format!("[  5]   0.00-{end}   sec  1.00 MBytes  8.39 Mbits/sec    0    212 KBytes")
    };
    tests.take(1, Some(20_000_000_000), &line("0.10"));
    tests.take(2, Some(20_000_000_000), &line("5.00"));
    tests.take(3, Some(30_000_000_000), &line("9.00"));
    assert_eq!(tests.finish().0[0].zero_s(), Some(15.0), "the first line was kept back for 4.9 s");
}

#[test]
fn distinguishes_both_directions() {
    let tests = read(
        "[  5][TX-C]   0.00-1.00   sec  1.00 MBytes  8.39 Mbits/sec    0    212 KBytes\n\
         [  7][RX-C]   0.00-1.00   sec  2.00 MBytes  16.8 Mbits/sec",
    );
    let senders: Vec<_> = tests[0].report.intervals.iter().map(|i| i.values.sender).collect();
    assert_eq!(senders, [Some(true), Some(false)]);
}

proptest! {
    #[test]
    fn no_line_makes_it_panic(
        lines in prop::collection::vec(
            "(\\[ {1,2}5\\]|Connecting to host |Accepted connection from |iperf3: error - |- - - -|sender)?[0-9a-zA-Z. /\\-,:()]{0,50}",
            0..12,
        )
    ) {
        let mut tests = Tests::default();
        for line in lines {
            tests.take(1, Some(1), &line);
        }
        for test in tests.finish().0 {
            let _ = (test.zero_s(), test.server_port());
        }
    }
}
