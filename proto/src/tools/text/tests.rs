use super::*;
use proptest::prelude::*;

const UE1: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tools/ue1-ss.txt"));
const UE2: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tools/ue2-ss.txt"));
const JSON: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/iperf3/3.12-client-p5.json"));
const LINES: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/iperf3/3.17-json-stream.jsonl"));

fn whole(bytes: &[u8]) -> Found {
    read(bytes, BaseDate::default())
}

fn lines_of(found: &Found) -> Vec<u64> {
    found.unread.iter().map(|unread| unread.line).collect()
}

#[test]
fn the_studys_excerpts_are_read_line_by_line() {
    let ue1 = whole(UE1);
    assert_eq!((ue1.lines, ue1.sockets.len()), (6, 3));
    assert!(ue1.unread.is_empty(), "{:?}", ue1.unread);
    assert_eq!(ue1.sockets[1].at_ns, Some(1_725_877_589_825_149_000), "of the first line");
    let ue2 = whole(UE2);
    let srtt: Vec<_> = ue2
        .sockets
        .iter()
        .map(|row| (row.socket.as_ref().map(|s| s.local.port), row.info.sample.rtt_us))
        .collect();
    // The first line of the excerpt lacks the line before it: its counters identify the socket.
    let expected = [(35_788, 4_104), (35_782, 5_524), (35_788, 5_620), (35_782, 5_524)];
    assert_eq!(srtt, expected.map(|(port, us)| (Some(port), Some(us))));
    assert_eq!(lines_of(&ue2), [8], "the excerpt ends between two lines of a socket");
}

#[test]
fn splits_merged_lines() {
    let text = String::from_utf8(UE1.to_vec()).unwrap().replace("<->\n", "");
    let found = whole(text.as_bytes());
    assert_eq!(found.sockets.len(), 3);
    assert!(found.sockets.iter().all(|row| row.socket.is_some()), "{:?}", found.sockets);
}

#[test]
fn torn_line_loses_only_the_torn_fields() {
    let text = String::from_utf8(UE1.to_vec()).unwrap();
    let torn = format!("{}{text}", &text[..60]);
    let found = whole(torn.as_bytes());
    assert_eq!(found.sockets.len(), 3);
    assert_eq!(lines_of(&found), [1]);
}

#[test]
fn documents_and_the_text_around_them() {
    let mut text = b"warning: Warning:  UDP block size\nhello\n".to_vec();
    text.extend_from_slice(JSON);
    text.extend_from_slice(b"\nhow odd\n");
    text.extend_from_slice(JSON);
    let found = whole(&text);
    let intervals: Vec<usize> = found.tests.iter().map(|t| t.report.intervals.len()).collect();
    assert_eq!(intervals, [10, 10], "2 intervals of 5 streams, twice");
    assert_eq!(found.tests[0].report.began_s, Some(1_795_198_388.0));
    let json_lines = JSON.iter().filter(|&&b| b == b'\n').count() as u64;
    assert_eq!(lines_of(&found), [2, 4 + json_lines]);
}

#[test]
fn aborted_document_keeps_intervals_and_reports_its_last_line() {
    let cut = &JSON[..JSON.len() / 2];
    let found = whole(cut);
    let lines = cut.iter().filter(|&&b| b == b'\n').count() as u64;
    assert!(!found.tests[0].report.intervals.is_empty());
    assert_eq!(lines_of(&found), [lines + 1]);
}

#[test]
fn truncated_document_does_not_affect_the_next() {
    let mut text = JSON[..JSON.len() / 2].to_vec();
    text.push(b'\n');
    text.extend_from_slice(JSON);
    let found = whole(&text);
    let complete: Vec<bool> = found.tests.iter().map(|t| t.report.complete).collect();
    assert_eq!(complete, [false, true]);
    assert_eq!(found.unread.len(), 1);
}

#[test]
fn line_that_begins_with_a_brace_is_unread() {
    let mut text = UE1.to_vec();
    text[0] = b'{';
    let found = whole(&text);
    assert_eq!(found.sockets.len(), 3, "its numbers are on the second line");
    assert!(lines_of(&found).contains(&1));
}

#[test]
fn a_stream_of_events_with_stamps() {
    let text = String::from_utf8(LINES.to_vec()).unwrap();
    let stamped: Vec<String> =
        text.lines().enumerate().map(|(at, line)| format!("1795198386.{at}00000 {line}")).collect();
    let mut text = stamped.join("\n");
    text.push_str("\n1795198387.000000 {\"event\":\"interval\",\"data\":{\"streams\":[{\"so");
    let found = whole(text.as_bytes());
    assert_eq!(found.tests.len(), 1);
    assert_eq!(found.tests[0].report.intervals.len(), 2);
    assert_eq!(lines_of(&found), [5]);
    assert!(found.tests[0].report.error.as_deref().unwrap().starts_with("interrupt"));
}

#[test]
fn an_event_that_cannot_be_read_is_counted() {
    let mut text = LINES.to_vec();
    text.extend_from_slice(b"{\"event\":\"interval\",\"data\":{\"streams\":7}}\n{\"event\":7}\n");
    let found = whole(&text);
    assert_eq!(found.tests[0].report.intervals.len(), 2);
    let lines = LINES.iter().filter(|&&b| b == b'\n').count() as u64;
    assert_eq!(lines_of(&found), [lines + 1, lines + 2]);
}

#[test]
fn other_documents_are_left_to_other_readers() {
    for text in
        ["", "{", "{\"start\":{}}", "\u{1e}", "[\"qlog_version\"]", "a \"x_values\" \"results\""]
    {
        assert_eq!(read_document(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn what_is_cut_off_is_counted() {
    let whole =
        "{\"x_values\":[0],\"results\":{\"TCP upload\":[1]},\"raw_values\":{},\"metadata\":{}}";
    for length in 0..whole.len() {
        if let Some(found) = read_document(&whole.as_bytes()[..length]) {
            assert!(found.unread_count() > 0 && found.named.rows.is_empty(), "{length}");
        }
    }
    let found = read_document(whole.as_bytes()).unwrap();
    let reason = &found.unread[0].reason;
    assert!(reason.contains("TCP upload") && reason.contains("T0"), "{reason}");
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = whole(&bytes);
    }

    /// Rubbish between whole lines costs none of them.
    #[test]
    fn no_readable_line_is_lost(
        rubbish in prop::collection::vec("[a-z!?#;*]{1,20}( [a-z!?#;*]{1,9}){0,5}", 7),
        gaps in prop::collection::vec(any::<bool>(), 7),
    ) {
        let mut text = String::new();
        let mut added = 0;
        // Only between pairs of lines: anything between the two lines of a socket separates them.
        for (at, line) in String::from_utf8(UE1.to_vec()).unwrap().lines().enumerate() {
            if at % 2 == 0 && gaps[at] {
                text.push_str(&rubbish[at]);
                text.push('\n');
                added += 1;
            }
            text.push_str(line);
            text.push('\n');
        }
        let found = whole(text.as_bytes());
        prop_assert_eq!(found.sockets.len(), 3);
        prop_assert!(found.sockets.iter().all(|row| row.socket.is_some()));
        prop_assert_eq!(found.unread.len(), added);
    }

    /// A corrupt byte does not affect the lines of other sockets.
    #[test]
    fn damage_costs_one_line_at_most(at in 0usize..4000, byte in any::<u8>()) {
        let mut bytes = UE1.to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        let found = whole(&bytes);
        let pings = found.pings.iter().map(|p| p.replies.len()).sum::<usize>();
        prop_assert!(found.sockets.len() >= 2, "{:?}", found.sockets);
        prop_assert_eq!(pings, 0);
    }

    #[test]
    fn damaged_documents_do_no_harm(at in 0usize..9000, byte in any::<u8>(), cut in 0usize..9000) {
        let mut bytes = JSON.to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.truncate(cut.max(1));
        let _ = whole(&bytes);
    }
}
