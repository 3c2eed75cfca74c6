//! Extreme and mutated inputs of every tool: nothing overflows, and values out of range are counted.

use proptest::prelude::*;

use super::gather::{MergedFiles, Names, Source, gather};
use super::stamp::BaseDate;
use super::text::{self, MAX_LINE_BYTES, MAX_ROWS, MAX_UNREAD};
use super::{LATEST_S, LONGEST_S};
use crate::wire::run_event::Payload;

const SAMPLES: [&[u8]; 7] = [
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tools/ue1-ss.txt")),
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/iperf3/3.12-client-p5.json")),
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/iperf3/3.17-json-stream.jsonl")),
    b"1725877590.500000 [  5] local 10.0.5.1 port 55042 connected to 10.201.1.1 port 5201\n\
      1725877591.500000 [  5]   0.00-1.00   sec  1.25 MBytes   104 Mbits/sec    0    212 KBytes\n\
      [  5]   0.00-1.00   sec  1.25 MBytes   104 Mbits/sec    0             sender\n\
      Time: Mon, 09 Sep 2024 10:26:29 GMT\n",
    b"PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data.\n\
      [1725877590.100000] 64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=100 ms\n\
      64 bytes from 10.0.0.2: icmp_seq=3 ttl=64 time=50 ms\n\
      3 packets transmitted, 2 received, 33% packet loss, time 2000ms\n",
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tools/rrul.flent")),
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tools/quic.sqlog")),
];

/// Numbers that no test has.
const EXTREMES: [&str; 16] = [
    "-1",
    "1e308",
    "-1e308",
    "1e999",
    "NaN",
    "inf",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999",
    "-9223372036854775808",
    "0.000000000000000000001",
    "9999999999.999999",
    "2999-12-31",
];

fn read(bytes: &[u8]) -> (text::Found, MergedFiles) {
    let found = text::read(bytes, BaseDate::default());
    let source = Source { stem: "x".into(), node: "n".into(), found: found.clone() };
    (found, gather(&[source], &Names::new()))
}

/// Every time is within the range that the results can hold.
fn check(gathered: &MergedFiles) {
    let latest_ns = (LATEST_S as f64 + LONGEST_S) as u64 * 1_000_000_000 + 1_000_000_000;
    assert!(gathered.begin_ns <= latest_ns && gathered.end_ns <= latest_ns);
    for (_, row) in &gathered.rows {
        let finite = match row {
            Payload::Interval(row) => {
                assert!(row.at_ns <= latest_ns);
                [row.start_s, row.end_s, row.seconds, row.bits_per_second].map(f64::is_finite)
            }
            Payload::Flow(row) => {
                [row.start_s, row.stop_s, None, None].map(|s| s.is_none_or(f64::is_finite))
            }
            Payload::Probe(row) => {
                assert!(row.at_ns <= latest_ns);
                [row.rtt_us.is_none_or(|us| us.is_finite() && us >= 0.0); 4]
            }
            Payload::FlowSample(row) => [row.at_ns <= latest_ns; 4],
            Payload::TcpEvents(rows) => [rows.events.iter().all(|row| row.at_ns <= latest_ns); 4],
            _ => [true; 4],
        };
        assert_eq!(finite, [true; 4], "{row:?}");
    }
}

/// Replaces the number that begins at or after `at`.
fn replaced(text: &[u8], at: usize, with: &str) -> Vec<u8> {
    let at = at % text.len();
    let digit = |b: &u8| b.is_ascii_digit() || *b == b'.';
    let begin = at + text[at..].iter().position(digit).unwrap_or(text.len() - at);
    let end = begin + text[begin..].iter().position(|b| !digit(b)).unwrap_or(text.len() - begin);
    [&text[..begin], with.as_bytes(), &text[end..]].concat()
}

#[test]
fn every_number_of_every_tool_may_be_extreme() {
    for sample in SAMPLES {
        // Every number of a short file, some of a long one.
        let (mut at, stride) = (0, sample.len() / 40);
        while at < sample.len() {
            for extreme in EXTREMES {
                check(&read(&replaced(sample, at, extreme)).1);
            }
            at = sample.len().min(at + if sample.len() > 2000 { stride } else { 0 });
            let digit = |b: &u8| b.is_ascii_digit() || *b == b'.';
            let begin = at + sample[at..].iter().position(digit).unwrap_or(sample.len() - at);
            let rest = &sample[begin..];
            at = begin + rest.iter().position(|b| !digit(b)).unwrap_or(rest.len()).max(1);
        }
    }
}

#[test]
fn values_out_of_range_are_counted_with_their_lines() {
    let interval = |values: &str| {
        format!(
            "{{\"start\":{{}},\n\"intervals\":[{{\"streams\":[{{\"start\":0,\"end\":1,\"seconds\":1,\"bytes\":8}}]}},\n \
             {{\"streams\":[{{{values}}}]}}],\n\"end\":{{}}}}"
        )
    };
    for (text, line) in [
        (interval("\"start\":1,\"end\":1e308,\"seconds\":1,\"bytes\":1"), 3),
        (interval("\"start\":1,\"end\":2,\"seconds\":-1,\"bytes\":1"), 3),
        (interval("\"start\":1,\"end\":2,\"seconds\":1,\"bytes\":1e300"), 3),
        (interval("\"start\":1,\"end\":2,\"seconds\":1,\"bytes\":1,\"rtt\":-5"), 3),
        (interval("\"start\":1,\"end\":1e999"), 3),
        (interval("\"start\":1,\"end\":2,\"seconds\":1"), 3),
        (interval("\"start\":1,\"end\":2,\"bytes\":1"), 3),
        (interval("\"start\":1,\"seconds\":1,\"bytes\":1"), 3),
        ("{\"start\":{},\n\"intervals\":[\n {\"sum\":{\"bytes\":1}}],\"end\":{}}".into(), 3),
        ("{\"start\":{},\n\"end\":{\"streams\":[{\"receiver\":{\"end\":1}}]}}".into(), 2),
        (
            "{\"start\":{\"timestamp\":{\"timesecs\":1e300}},\n\"intervals\":[],\"end\":{}}".into(),
            1,
        ),
        ("{\"start\":{},\n\"end\":{\"streams\":[{\"sender\":{\"end\":-1e308}}]}}".into(), 2),
        ("[  5]   0.00-1e9   sec  1 Bytes   1 bits/sec".into(), 1),
        (format!("[  5]   0.00-1.00   sec  {} Bytes   1 bits/sec", "9".repeat(400)), 1),
        ("\t cubic rto:204 cwnd:10 delivery_rate 1e308Tbps minrtt:1".into(), 1),
        ("\t cubic rto:204 cwnd:10 bytes_sent:18446744073709551615 minrtt:1".into(), 1),
        ("64 bytes from 10.0.0.2: icmp_seq=4294967295 ttl=64 time=1 ms".into(), 1),
        ("4294967295 packets transmitted, 1 received, time 1ms".into(), 1),
    ] {
        let (found, gathered) = read(text.as_bytes());
        check(&gathered);
        let lines: Vec<u64> = found.unread.iter().map(|unread| unread.line).collect();
        assert!(lines.contains(&line), "{text}: {:?}", found.unread);
    }
    // The interval next to the one out of range is kept.
    let found = read(interval("\"start\":1,\"end\":1e308").as_bytes()).0;
    assert_eq!(found.tests[0].report.intervals.len(), 1);
}

#[test]
fn long_run_of_ping_that_cannot_be_is_counted() {
    let text = "64 bytes from 10.0.0.2: icmp_seq=60000000 ttl=64 time=1 ms\n\
        2 packets transmitted, 1 received, time 999999999ms\n";
    let (found, gathered) = read(text.as_bytes());
    check(&gathered);
    assert_eq!(found.unread.iter().map(|unread| unread.line).collect::<Vec<_>>(), [1]);
}

#[test]
fn wrapped_sequence_numbers_end() {
    let text: String = (0..2000)
        .flat_map(|_| [0, 20_000, 40_000])
        .map(|seq| format!("64 bytes from 10.0.0.2: icmp_seq={seq} ttl=64 time=1 ms\n"))
        .collect();
    let (found, gathered) = read(text.as_bytes());
    check(&gathered);
    assert!(!found.unread.is_empty());
}

#[test]
fn a_file_cannot_make_its_reader_hold_much_more_than_itself() {
    // Lines that are longer than any tool's.
    let long = [vec![b'9'; MAX_LINE_BYTES + 1], b"\n{\"event\":\"".to_vec()].concat();
    let long = [long, vec![b'x'; MAX_LINE_BYTES]].concat();
    let found = read(&long).0;
    assert_eq!((found.lines, found.unread_count()), (2, 2));
    // Short lines.
    let short = "x\n".repeat(MAX_UNREAD + 7);
    let found = read(short.as_bytes()).0;
    assert_eq!((found.unread.len(), found.more_unread), (MAX_UNREAD, 7));
    // Rows.
    let rows = "[ 5] 0-1 sec 1 Bytes 1 bits/sec\n".repeat(MAX_ROWS + 3);
    assert_eq!(text::read(rows.as_bytes(), BaseDate::default()).unread_count(), 3);
    // Streams, in one interval and in one test.
    let row = "{\"start\":0,\"end\":1,\"seconds\":1,\"bytes\":1}";
    let streams = format!(
        "{{\"intervals\":[{{\"streams\":[{}{row}]}}],\"end\":{{}}}}",
        format!("{row},").repeat(5000)
    );
    let (found, _) = read(streams.as_bytes());
    assert_eq!((found.tests[0].report.intervals.len(), found.unread_count()), (1024, 1));
    let streams: String =
        (0..2000).map(|id| format!("[{id}] 0-1 sec 1 Bytes 1 bits/sec\n")).collect();
    assert_eq!(read(streams.as_bytes()).0.unread_count(), 2000 - 1024);
    // Requests without an answer.
    let lost = "PING a\n64 bytes from a: icmp_seq=1 ttl=1 time=1 ms\n\
        60000000 packets transmitted, 1 received, time 60000000ms\n";
    let (_, gathered) = read(lost.repeat(3).as_bytes());
    assert!(gathered.rows.len() < (1 << 17) + 10, "{}", gathered.rows.len());
    assert_eq!(gathered.notes.iter().filter(|note| note.contains("unanswered")).count(), 3);
}

#[test]
fn lines_that_need_many_steps_are_read_in_one_pass() {
    // Each would take hours if it cost the square of its length.
    let indented = " {\n".repeat(1 << 18);
    assert_eq!(read(indented.as_bytes()).0.lines, 1 << 18);
    let stamps = "1725877589.814789 ".repeat(MAX_LINE_BYTES / 18);
    read(stamps.as_bytes());
    let torn = "1725877589.814789 x ".repeat(MAX_LINE_BYTES / 20);
    assert!(read(torn.as_bytes()).0.unread_count() > 50_000, "and not by recursion");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn mutated_files_do_no_harm(
        sample in 0..SAMPLES.len(),
        numbers in prop::collection::vec((any::<usize>(), 0..EXTREMES.len()), 0..6),
        bytes in prop::collection::vec((any::<usize>(), any::<u8>()), 0..4),
        (from, to) in (any::<usize>(), any::<usize>()),
        repeat in 1..4usize,
    ) {
        let mut text = SAMPLES[sample].repeat(repeat);
        for (at, extreme) in numbers {
            text = replaced(&text, at, EXTREMES[extreme]);
        }
        for (at, byte) in bytes {
            let at = at % text.len();
            text[at] = byte;
        }
        // A part occurs twice, or not at all.
        let (from, to) = (from % text.len(), to % text.len());
        let text = [&text[..from], &text[to..]].concat();
        let (found, gathered) = read(&text);
        check(&gathered);
        prop_assert!(found.unread.len() <= MAX_UNREAD);
    }

    #[test]
    fn any_numbers_in_any_place_do_no_harm(
        numbers in prop::collection::vec("-?[0-9]{1,30}(\\.[0-9]{1,12})?(e-?[0-9]{1,4})?", 8),
    ) {
        let [a, b, c, d, e, f, g, h] = &numbers[..] else { unreachable!() };
        let text = format!(
            "{a} [ {b}] {c}-{d} sec {e} MBytes {f} Mbits/sec {g} {h} KBytes\n\
             {a} tcp ESTAB {b} {c} 10.0.0.1:{d} 10.0.0.2:{e}\n\
             \t cubic wscale:{a},{b} rto:{c} rtt:{d}/{e} cwnd:{f} bytes_acked:{g} busy:{h}ms send {a}bps \
             pacing_rate {b}Tbps/{c}Gbps delivery_rate {d}bps retrans:{e}/{f} minrtt:{g}\n\
             [{a}] 64 bytes from x: icmp_seq={b} ttl=1 time={c} ms\n\
             {d} packets transmitted, {e} received, time {f}ms\n\
             rtt min/avg/max/mdev = {a}/{b}/{c}/{d} ms\n\
             {{\"event\":\"start\",\"data\":{{\"timestamp\":{{\"timesecs\":{a}}},\"monotonic_ns\":{b}}}}}\n\
             {{\"event\":\"interval\",\"data\":{{\"streams\":[{{\"start\":{a},\"end\":{b},\"seconds\":{c},\"bytes\":{d},\
             \"socket\":{e},\"rtt\":{f},\"retransmits\":{g},\"lost_packets\":{h}}}]}}}}\n\
             {{\"event\":\"end\",\"data\":{{\"streams\":[{{\"sender\":{{\"end\":{a},\"bytes\":{b}}}}}]}}}}\n\
             {{\"start\":{{}},\"intervals\":[{{\"streams\":[{{\"start\":{e},\"end\":{f},\"seconds\":{g},\"bytes\":{h}}}]}}],\
             \"end\":{{\"streams\":[{{\"receiver\":{{\"end\":{c},\"bytes\":{d}}}}}]}}}}\n"
        );
        check(&read(text.as_bytes()).1);
    }
}
