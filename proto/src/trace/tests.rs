//! Formats: hand-written expectations, errors with their lines, and arbitrary bytes.

use proptest::prelude::*;

use super::*;

fn read(text: &str) -> Result<Trace, TraceError> {
    parse("t.csv", text.as_bytes())
}

/// `(at_ns, bit/s)` of every row, and the length.
fn rows(text: &str) -> (Vec<(u64, u64)>, u64) {
    match read(text).unwrap_or_else(|e| panic!("{text:?}: {e}")) {
        Trace::Steps(steps) => (
            steps.steps.iter().map(|s| (s.at_ns, s.rate.unwrap().bits_per_sec())).collect(),
            steps.length_ns,
        ),
        Trace::Opportunities(_) => panic!("{text:?} was read as opportunities"),
    }
}

fn why(text: &str) -> String {
    read(text).expect_err(text).to_string()
}

const MS: u64 = 1_000_000;
const MBIT: u64 = 1_000_000;

#[test]
fn dwell_format_accepts_any_line_ending() {
    let wanted = (vec![(0, 2310 * MBIT), (310 * MS, 0), (610 * MS, 500_000)], 630 * MS);
    for text in [
        "2310,0.31\n0,0.30\n0.5,0.02\n",
        "2310,0.31\r\n0,0.30\r\n0.5,0.02\r\n",
        "2310,0.31\n0,0.30\n0.5,0.02",
        "\u{feff}# a comment\nrate_mbit,dwell_s\n 2310 , 0.31 \n\n0,0.30\n5e-1,0.02\n",
        "2310;0.31\n0;0.30\n0.5;0.02",
    ] {
        assert_eq!(rows(text), wanted, "{text:?}");
    }
}

#[test]
fn times_and_rates_with_blanks_or_a_comma() {
    let wanted = (vec![(0, 10 * MBIT), (500 * MS, 0), (2000 * MS, MBIT)], 3500 * MS);
    for text in [
        "0 10\n0.5 0\n2 1\n",
        "0\t10\r\n0.5  0\r\n2 1",
        "t_s,rate_mbit\n0,10\n0.5,0\n2,1\n",
        "time rate\n0 10\n0.5 0\n2 1\n",
        "time_s,rate (Mbit/s)\n0,10\n0.5,0\n2,1\n",
        "timestamp,downlink_cell_a [Mbps]\n0,10\n0.5,0\n2,1\n",
        "0,10\n0.5,0\n2,1\n",
    ] {
        assert_eq!(rows(text), wanted, "{text:?}");
    }
    assert_eq!(rows("0 7\n"), (vec![(0, 7 * MBIT)], 1000 * MS));
}

#[test]
fn two_columns_that_may_be_either_are_refused() {
    assert!(why("0,1\n10,1\n20,1\n").contains("write a first line"));
    assert_eq!(rows("rate_mbit,dwell_s\n0,1\n10,1\n").1, 2000 * MS);
    assert_eq!(rows("t_s,rate_mbit\n0,1\n10,1\n").1, 20_000 * MS);
}

#[test]
fn mahimahi_is_opportunities() {
    let Ok(Trace::Opportunities(all)) = read("0\n0\n3\r\n7") else { panic!("no opportunities") };
    assert_eq!(all.at_ns, [0, 0, 3 * MS, 7 * MS]);
    assert_eq!((all.bytes, all.length_ns), (1500, 7 * MS));
    let mean = Trace::Opportunities(all).mean_rate();
    assert_eq!(mean, Some(Rate::from_bits_per_sec(4 * 12_000 * 1000 / 7)));
    assert!(why("0\n0\n").contains("length is zero"));
    assert!(why("5\n4\n").starts_with("line 2: time goes back to 4 ms"));
    assert!(why("1.5\n").starts_with("line 1: `1.5` is not a whole number of milliseconds"));
    assert!(why("1\n-2\n").starts_with("line 2: "));
}

#[test]
fn theaterq_simple_and_extended() {
    let text =
        "# keep,latency,rate,loss,limit\n1000,20000000,10000000,42949673,1000\n500,0,0,0,1000\n";
    let Ok(Trace::Steps(steps)) = read(text) else { panic!("no steps") };
    let first = Step {
        at_ns: 0,
        rate: Some(Rate::from_bits_per_sec(10_000_000)),
        delay_ns: Some(20 * MS),
        loss: Ppm::new(10_000),
        line: 2,
    };
    let second = Step { at_ns: MS, rate: None, delay_ns: Some(0), loss: Ppm::new(0), line: 3 };
    assert_eq!(steps, Steps { steps: vec![first, second], length_ns: 1_500_000 });
    for extended in ["7,1,0,8000,0,9,0,0", "7,1,0,8000,0,9,0,0,2", "7,1,0,8000,0,9,0,0,2,x"] {
        assert_eq!(rows(extended), (vec![(0, 8000)], 7000));
    }
    assert!(why("7,1,5,8000,0,9,0,0,2").contains("the jitter `5` cannot change in time"));
    assert!(why("7,1,0,8000,0,9,3,0,2").contains("the duplication `3`"));
    assert!(why("0,1,8000,0,9").contains("length is zero"));
    assert!(why("1,1,8000,4294967296,9").contains("is more than 4294967295"));
}

#[test]
fn ccbench_columns_may_be_empty_and_an_empty_row_ends_the_trace() {
    let text = "t_us,rate_bps,delay_us,loss_ppm\n0,1000000,,\n1.5,,20000,1000000\n3,,,\n";
    let Ok(Trace::Steps(steps)) = read(text) else { panic!("no steps") };
    assert_eq!(steps.length_ns, 3000);
    assert_eq!(steps.steps[1].at_ns, 1500);
    assert_eq!(steps.steps[1].rate, None);
    assert_eq!(steps.steps[1].delay_ns, Some(20 * MS));
    assert_eq!(steps.steps[1].loss, Ppm::new(1_000_000));
    assert_eq!(rows("t_us,rate_bps\n0,8\n250,9\n"), (vec![(0, 8), (250_000, 9)], 500_000));
    assert!(why("t_us,rate_bps\n0,8\n3,\n4,9\n").contains("line 4: it follows line 3"));
    assert!(why("t_us,speed\n0,8\n").contains("the column `speed` is unknown"));
    assert!(why("t_us,rate_bps,rate_bps\n0,8,8\n").contains("a column is repeated"));
    assert!(why("t_us\n0\n").contains("one more column"));
    assert!(why("t_us,rate_bps,loss_ppm\n0,8,1000001\n").contains("more than 100%"));
    assert!(why("t_us,rate_bps,delay_us\n0,8,60000001\n").contains("beyond 60 s"));
}

#[test]
fn netem_trace_models_machine_and_human() {
    let wanted = (vec![(0, 12 * MBIT), (1000 * MS, 24 * MBIT)], 2000 * MS);
    for text in [
        r#"{"RepeatedBwPatternConfig":{"pattern":[{"StaticBwConfig":{"bw":{"gbps":0,"bps":12000000},"duration":{"secs":1,"nanos":0}}},{"StaticBwConfig":{"bw":{"gbps":0,"bps":24000000},"duration":{"secs":1,"nanos":0}}}],"count":1}}"#,
        r#"{"RepeatedBwPatternConfig":{"pattern":[{"StaticBwConfig":{}},{"StaticBwConfig":{"bw":"24Mbps","duration":"500ms 500000us"}}],"count":0}}"#,
        r#"{"TraceBwConfig":{"pattern":[["1s",["12Mbps","0.024Gbps"]]]}}"#,
    ] {
        assert_eq!(rows(text), wanted, "{text}");
    }
    let twice = r#"{"RepeatedBwPatternConfig":{"pattern":[{"StaticBwConfig":{}}],"count":2}}"#;
    assert_eq!(rows(twice), (vec![(0, 12 * MBIT), (1000 * MS, 12 * MBIT)], 2000 * MS));
    let sawtooth = r#"{"SawtoothBwConfig":{"bottom":"12Mbps","top":"16Mbps","duration":"1s","step":"100ms","interval":"500ms","duty_ratio":0.8}}"#;
    let mbits: Vec<_> = rows(sawtooth).0.iter().map(|row| row.1 / MBIT).collect();
    assert_eq!(mbits, [12, 13, 14, 15, 16, 12, 13, 14, 15, 16]);
    let normal = r#"{"NormalizedBwConfig":{"mean":"12Mbps","std_dev":"1Mbps","duration":"10s","step":"1ms","seed":42,"upper_bound":"13Mbps","lower_bound":"11Mbps"}}"#;
    let trace = read(normal).unwrap();
    let Summary { rows, mean_rate, min_rate, max_rate, .. } = trace.summary();
    let mbit = |rate: Option<Rate>| rate.unwrap().bits_per_sec() as f64 / 1e6;
    assert_eq!((rows, mbit(min_rate), mbit(max_rate)), (10_000, 11.0, 13.0));
    assert!((mbit(mean_rate) - 12.0).abs() < 0.05);
}

#[test]
fn rejects_invalid_model_with_its_place() {
    for (text, wanted) in [
        ("{\n\n\"a\": }", "line 3: it is not JSON"),
        ("{}", "it is not a model"),
        (r#"{"StaticDelayConfig":{}}"#, "unknown or not a bandwidth model"),
        (r#"{"StaticBwConfig":{"bw":"fast"}}"#, "StaticBwConfig.bw: it is not a bandwidth"),
        (r#"{"StaticBwConfig":{"bw":"2Tbps"}}"#, "beyond"),
        (r#"{"StaticBwConfig":{"bw":"-2bps"}}"#, "it is not a bandwidth"),
        (r#"{"StaticBwConfig":{"duration":"1 fortnight"}}"#, "it is not a duration"),
        (r#"{"NormalizedBwConfig":{"step":"0s"}}"#, "the step is zero"),
        (r#"{"NormalizedBwConfig":{"step":"1us","duration":"1h"}}"#, "more than 4000000 rows"),
        (r#"{"StaticBwConfig":{"duration":"1ns"}}"#, "less than a microsecond"),
        (r#"{"SawtoothBwConfig":{"bottom":"2bps","top":"1bps"}}"#, "bottom is above top"),
        (r#"{"SawtoothBwConfig":{"interval":"0s"}}"#, "the interval is zero"),
        (r#"{"SawtoothBwConfig":{"duty_ratio":2}}"#, "between 0 and 1"),
        (
            r#"{"RepeatedBwPatternConfig":{"pattern":[{"RepeatedBwPatternConfig":{"pattern":[{"StaticBwConfig":{}}]}}],"count":2}}"#,
            "RepeatedBwPatternConfig.pattern[0].RepeatedBwPatternConfig: it repeats forever",
        ),
        (r#"{"RepeatedBwPatternConfig":{"pattern":[],"count":18446744073709551615}}"#, "no rows"),
    ] {
        assert!(why(text).contains(wanted), "{text}: {}", why(text));
    }
}

#[test]
fn every_bad_line_is_named_up_to_twenty() {
    let error = read("10,1\n-1,1\n10,0\nNaN,1\n2000000,1\n10\n10,inf\n").unwrap_err();
    let lines: Vec<u32> = error.problems.iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [2, 3, 4, 5, 6, 7]);
    assert_eq!(
        error.to_string(),
        "line 2: `-1` is negative; line 3: its length is zero (`0`); line 4: `NaN` is not a number; line 5: the rate `2000000` is beyond 1000gbit; line 6: `10` has 1 column(s); line 7: `inf` is not a number (read as dwell: `rate_mbit,dwell_s` per line)"
    );
    let many = read(&"1,x\n".repeat(100)).unwrap_err();
    assert_eq!((many.problems.len(), many.more), (20, 80));
}

#[test]
fn files_that_are_no_traces_are_refused() {
    assert!(why("").contains("it is empty"));
    assert!(why("\n# nothing\n").contains("it is empty"));
    assert!(why("a,b,c\n").contains("header `a,b,c` is unknown"));
    for header in [
        "rate_kbit,dwell_s",
        "rate_mbit,dwell_ms",
        "time_s,Rate (bps)",
        "t,rate_gbit/s",
        "t_s,rate_mbyte",
        "rate_bytes,dwell_s",
        "t_s,rate_kb",
        "rate_mbit,dwell_ns",
        "t,MB/s",
    ] {
        assert!(why(&format!("{header}\n0,1\n1,1\n")).contains("is unknown"), "{header}");
    }
    assert!(why("1,2,3\n").contains("has 3 columns"));
    assert!(why("PAR1\n").contains("trace convert"));
    assert!(why("0 1\n0 2\n").contains("line 2: time stands still"));
    assert!(why("0 1\n2 2\n1 2\n").contains("line 3: time goes back"));
    assert!(why("1 1\n2 2\n").contains("must be at time zero"));
    assert!(why("10,1\n10,0.0000009\n").contains("line 2: a row lasts less than a microsecond"));
    assert!(why("t_us,rate_bps\n0,1\n0.9,2\n").contains("line 3: a row lasts less"));
    assert!(why("1,9999999\n").contains("beyond 31 days"));
    assert!(why("0\n86400001\n").contains("beyond a day"));
    assert!(why("rate_mbit,dwell_s\n").contains("no rows"));
    assert!(
        why(&format!("\n{}", ",".repeat(1 << 20)))
            .contains("line 2: the line is longer than 64 kB")
    );
    let error = parse("t", b"1,1\n\xff\xfe").unwrap_err();
    assert_eq!((error.problems[0].line, error.name.as_str()), (2, "t"));
    let huge = vec![b'1'; MAX_FILE_BYTES + 1];
    assert!(parse("t", &huge).unwrap_err().to_string().contains("MiB"));
}

#[test]
fn figures_are_weighted_by_time() {
    let summary = read("10,1\n0,3\n40,1\n").unwrap().summary();
    let rate = |mbit: f64| Some(Rate::from_bits_per_sec((mbit * 1e6) as u64));
    assert_eq!(summary.length, Micros::from_secs(5));
    assert_eq!((summary.rows, summary.zero_ppm), (3, 600_000));
    assert_eq!(
        (summary.mean_rate, summary.min_rate, summary.max_rate),
        (rate(10.0), rate(0.0), rate(40.0))
    );
}

use crate::units::Micros;

fn steps_of(trace: &Trace) -> &Steps {
    match trace {
        Trace::Steps(steps) => steps,
        Trace::Opportunities(_) => panic!("opportunities"),
    }
}

/// When the rate of a trace changes, and to what.
fn changes(trace: &Trace) -> Vec<(u64, Option<Rate>)> {
    let mut all: Vec<_> = steps_of(trace).steps.iter().map(|s| (s.at_ns, s.rate)).collect();
    all.dedup_by_key(|(_, rate)| *rate);
    all
}

#[test]
fn last_row_of_times_and_rates_keeps_its_length() {
    for (text, wanted) in [
        ("10,2\n20,1\n30,5\n", "0 10\n2 20\n3 30\n5.5 30\n"),
        ("10,0.005\n", "0 10\n0.0025 10\n"),
        // An odd number of nanoseconds.
        ("10,1\n20,0.000003001\n", "0 10\n1 20\n1.000001001 20\n1.000002001 20\n"),
        ("10,1\n", "0 10\n"),
        ("10,2\n20,2\n", "0 10\n2 20\n"),
    ] {
        let trace = read(text).unwrap();
        let written = write(&trace, Format::Timed).unwrap();
        assert_eq!(written, wanted);
        let again = parse_as("w", written.as_bytes(), Format::Timed).unwrap();
        assert_eq!(changes(&again), changes(&trace), "{text}");
        assert_eq!(again.length_ns(), trace.length_ns(), "{text}");
    }
    let short = read("10,1\n20,0.0000015\n").unwrap();
    let error = write(&short, Format::Timed).unwrap_err();
    assert_eq!(error, WriteError::LastRow);
    assert!(error.to_string().contains("use `ccbench` or `dwell`"), "{error}");
}

#[test]
fn time_without_a_packet_at_the_end_is_refused_by_mahimahi() {
    let mahimahi = |text: &str| write(&read(text).unwrap(), Format::Mahimahi);
    for (text, left_ns) in [("12,1\n0,1\n", 1000 * MS), ("12,1\n0.001,5\n", 5000 * MS)] {
        assert_eq!(mahimahi(text), Err(WriteError::NoPacketAtEnd { left_ns }), "{text}");
    }
    let error = mahimahi("12,1\n0,1.5\n").unwrap_err().to_string();
    assert!(error.contains("its last 1.5 s") && error.contains("use `ccbench`"), "{error}");
    // A packet of 1 Mbit/s takes 12 ms, and the last one is not complete.
    assert_eq!(mahimahi("1,1\n").unwrap().lines().last(), Some("996"));
    assert!(mahimahi("rate_mbit,dwell_s\n0,1\n12,1\n").is_ok());
    assert!(mahimahi("12,1\n0,0.0009\n").is_ok(), "less than a millisecond");
}

#[test]
fn no_more_opportunities_are_written_than_can_be_read() {
    // 1000 packets in a millisecond, so 1000 more than the limit.
    let trace = read("rate_mbit,dwell_s\n12000,4.001\n").unwrap();
    let error = write(&trace, Format::Mahimahi).unwrap_err();
    assert_eq!(error, WriteError::TooManyLines);
    assert!(error.to_string().contains(&format!("more than {MAX_ROWS} lines")), "{error}");
}

#[test]
fn written_traces_parse_back() {
    let text = "2310,0.31\n0,0.3\n0.5,0.02\n";
    let trace = read(text).unwrap();
    assert_eq!(write(&trace, Format::Dwell).unwrap(), text);
    for format in [Format::Ccbench, Format::Netem, Format::Timed] {
        let again = parse_as("w", write(&trace, format).unwrap().as_bytes(), format).unwrap();
        assert_eq!(changes(&again), changes(&trace), "{format}");
        assert_eq!(again.length_ns(), trace.length_ns(), "{format}");
    }
    let mahimahi = write(&read("12,1\n0,1\n24,0.01\n").unwrap(), Format::Mahimahi).unwrap();
    let lines: Vec<&str> = mahimahi.lines().collect();
    assert_eq!((lines.len(), lines[0], lines[999], lines[1000]), (1020, "1", "1000", "2001"));
    let theaterq = write(&trace, Format::TheaterQ).unwrap();
    assert_eq!(theaterq, "310000,0,2310000000,0,1000\n300000,0,1,0,1000\n20000,0,500000,0,1000\n");
    let opportunities = read("0\n50\n150\n").unwrap();
    assert_eq!(write(&opportunities, Format::Mahimahi).unwrap(), "0\n50\n150\n");
    assert_eq!(write(&opportunities, Format::Timed).unwrap(), "0 0.24\n0.1 0.24\n0.125 0.24\n");
    let delays = read("t_us,delay_us\n0,5\n").unwrap();
    assert!(write(&delays, Format::Dwell).unwrap_err().to_string().contains("ccbench"));
}

/// Invariants of every trace that was accepted.
fn holds(trace: &Trace) {
    assert!(trace.length_ns() > 0 && trace.rows() > 0 && trace.rows() <= MAX_ROWS);
    match trace {
        Trace::Steps(Steps { steps, length_ns }) => {
            assert_eq!(steps[0].at_ns, 0);
            assert!(steps.windows(2).all(|pair| pair[0].at_ns < pair[1].at_ns));
            assert!(steps.last().unwrap().at_ns < *length_ns);
            assert!(steps.iter().filter_map(|step| step.rate).all(|rate| rate <= MAX_RATE));
            assert!(steps.iter().filter_map(|step| step.delay_ns).all(|ns| ns <= MAX_DELAY_NS));
        }
        Trace::Opportunities(all) => {
            assert!(all.at_ns.is_sorted() && all.at_ns.last() == Some(&all.length_ns));
        }
    }
    let _ = (trace.summary(), trace.mean_rate());
    for format in Format::ALL {
        if let Ok(text) = write(trace, format) {
            let _ = parse_as("again", text.as_bytes(), format);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(trace) = parse("any", &bytes) {
            holds(&trace);
        }
        for format in Format::ALL {
            if let Ok(trace) = parse_as("any", &bytes, format) {
                holds(&trace);
            }
        }
    }

    #[test]
    fn what_looks_like_a_trace_is_read_or_refused(
        text in "(t_us,rate_bps(,delay_us)?(,loss_ppm)?\n|t_s rate\n)?([-+]?[0-9]{0,12}(\\.[0-9]{0,10})?(e[-+]?[0-9]{1,3})?[,; \t\r\n#]{1,2}){0,40}",
    ) {
        if let Ok(trace) = parse("any", text.as_bytes()) {
            holds(&trace);
        }
        for format in Format::ALL {
            if let Ok(trace) = parse_as("any", text.as_bytes(), format) {
                holds(&trace);
            }
        }
    }

    #[test]
    fn a_cut_or_changed_model_is_read_or_refused(
        seed in any::<u64>(), cut in 0_usize..400, at in 0_usize..400, byte in any::<u8>(),
    ) {
        let mut text = format!(
            r#"{{"RepeatedBwPatternConfig":{{"pattern":[{{"SawtoothBwConfig":{{"top":"16Mbps","duration":"1s","step":"100ms","interval":"500ms","seed":{seed}}}}},{{"NormalizedBwConfig":{{"mean":"12Mbps","std_dev":"9Mbps"}}}},{{"StaticBwConfig":{{"bw":{{"gbps":0,"bps":12}},"duration":{{"secs":1,"nanos":5}}}}}}],"count":3}}}}"#
        ).into_bytes();
        if let Some(place) = text.get_mut(at) {
            *place = byte;
        }
        text.truncate(text.len() - cut.min(text.len()) / 8);
        if let Ok(trace) = parse_as("any", &text, Format::Netem) {
            holds(&trace);
        }
    }
}

/// Real traces, which may not be part of the project: CCBENCH_TRACES names a directory with them.
#[test]
fn real_traces_are_read_whole() {
    let Some(folder) = std::env::var_os("CCBENCH_TRACES") else {
        return ccbench_tests::skip::skip("CCBENCH_TRACES names no folder of real traces");
    };
    let folder = std::path::Path::new(&folder);
    for (file, rows, length_ms, zeros) in [
        ("mmwave/sl-tput.csv", 417, 126_640, 0),
        ("mmwave/sb-tput.csv", 442, 133_080, 0),
        ("mmwave/lb-tput.csv", 397, 120_480, 1),
        ("mmwave/mobb-tput.csv", 436, 110_620, 2),
        ("mmwave/sl-twice-crlf.csv", 834, 253_280, 0),
        ("mahimahi/Verizon-LTE-short.down", 58_655, 140_000, 0),
        ("mahimahi/ATT-LTE-driving-2016.up", 19_101, 120_002, 0),
    ] {
        let bytes = std::fs::read(folder.join(file)).unwrap();
        let trace = parse(file, &bytes).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert_eq!(trace.rows(), rows, "{file}");
        assert_eq!(trace.length_ns() / 1_000_000, length_ms, "{file}");
        if let Trace::Steps(steps) = &trace {
            let zero = steps.steps.iter().filter(|s| s.rate.unwrap().bits_per_sec() == 0);
            assert_eq!(zero.count(), zeros, "{file}");
        }
        holds(&trace);
    }
}
