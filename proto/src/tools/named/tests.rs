use super::*;
use crate::wire;

#[test]
fn names_have_no_directories_and_no_spaces() {
    assert_eq!(plain("Ping (ms) ICMP"), "Ping-ms-ICMP");
    assert_eq!(plain("../a b::1"), "..-a-b-1");
    assert_eq!(plain("()"), "unnamed");
}

#[test]
fn values_of_another_type_are_missing_and_long_lists_are_cut() {
    #[derive(serde::Deserialize)]
    struct Row {
        #[serde(default)]
        a: Number,
        #[serde(default)]
        b: Number,
    }
    let rows: BoundedList<Row> = serde_json::from_str("[{\"a\": 1, \"b\": {\"c\": []}}]").unwrap();
    assert_eq!((rows.items[0].a.value(), rows.items[0].b.value()), (Some(1.0), None));
    let many = format!("[{}0]", "0,".repeat(MAX_ROWS + 4));
    let many: BoundedList<Number> = serde_json::from_str(&many).unwrap();
    assert_eq!((many.items.len(), many.more), (MAX_ROWS, 5));
}

#[test]
fn rows_beyond_the_limit_are_counted() {
    let mut reading = Reading::new("flent");
    reading.put(Payload::Probe(wire::Probe::default()));
    reading.leave_out(3);
    let found = reading.finish(7);
    assert_eq!((found.named.rows.len(), found.lines, found.unread_count()), (1, 7, 3));
    assert!(found.unread[0].reason.starts_with("3 rows beyond"), "{:?}", found.unread);
}

#[test]
fn instants_are_exact_to_a_nanosecond() {
    assert_eq!(nanos_of_ms(1_725_876_010_150.5), Some(1_725_876_010_150_500_000));
    assert_eq!(nanos(1_725_876_010.5), Some(1_725_876_010_500_000_000));
    assert_eq!([nanos(-1.0), nanos(f64::NAN), nanos(LATEST_S as f64), nanos(1e300)], [None; 4]);
}
