//! Compares the tables' columns with docs/results.md: names, types, and whether they can be null.

use std::collections::BTreeMap;

use super::*;

/// Returns names and types of the columns in a section of the manual.
fn documented<'m>(manual: &'m str, section: &str) -> BTreeMap<&'m str, &'m str> {
    let begin = format!("\n## {section}\n");
    let body = manual.split(&begin).nth(1).unwrap_or_else(|| panic!("no section {section}"));
    let body = body.split("\n## ").next().unwrap_or_default();
    let rows = body.lines().filter_map(|line| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        Some((cells.next()?, cells.next()?))
    });
    rows.filter(|(name, _)| *name != "column" && !name.starts_with('-')).collect()
}

/// Returns the type as the manual writes it.
fn type_of(column: &Column) -> String {
    let name = match column.dtype() {
        DataType::UInt8 => "u8",
        DataType::UInt16 => "u16",
        DataType::UInt32 => "u32",
        DataType::UInt64 => "u64",
        DataType::Int32 => "i32",
        DataType::Int64 => "i64",
        DataType::Float64 => "f64",
        DataType::Boolean => "bool",
        DataType::String => "str",
        DataType::Binary => "binary",
        other => panic!("{}: {other}", column.name()),
    };
    let null = if column.null_count() > 0 { "?" } else { "" };
    format!("{name}{null}")
}

/// Returns the columns of a table with their types. In `row` no field is set, so columns that can be null are null.
fn columns_of<C: Columns>(row: C::Row) -> BTreeMap<String, String> {
    let axis = TimeAxis { t0_ns: 1_000, realtime_offset_ns: 0, drift_ppb: 0, phases: vec![] };
    let mut columns = C::new();
    columns.put(&Origin { point_id: 0, trial: 1, node: "a", axis: &axis }, row);
    let frame = columns.take().unwrap();
    let columns = frame.columns().iter();
    columns.map(|column| (column.name().to_string(), type_of(column))).collect()
}

fn tables() -> Vec<(&'static str, BTreeMap<String, String>)> {
    let always_sent = |at_ns| wire::Acks {
        at_ns: vec![at_ns],
        segments: vec![1],
        lost_rows: vec![0],
        ..wire::Acks::default()
    };
    let clock = ClockRow {
        at_ns: 0,
        monotonic_t0_ns: 0,
        offset_ns: 0,
        drift_ppb: 0,
        error_bound_ns: 0,
        error_bound_after_ns: None,
        rtt_ns: 0,
        source: String::new(),
    };
    macro_rules! columns_of {
        ($($columns:ident: $row:expr,)+) => {
            vec![$(($columns::TABLE, columns_of::<$columns>($row)),)+]
        };
    }
    columns_of! {
        FlowColumns: wire::Flow::default(),
        FlowSampleColumns: wire::FlowSample::default(),
        IntervalColumns: wire::Interval::default(),
        ProbeColumns: wire::Probe::default(),
        QdiscSampleColumns: wire::QdiscSample::default(),
        LinkChangeColumns: wire::LinkChange::default(),
        LinkTimingColumns: wire::LinkTiming::default(),
        LinkPacketColumns: wire::LinkPacket::default(),
        CcStateColumns: wire::CcState::default(),
        AckColumns: always_sent(0),
        TcpEventColumns: wire::TcpEvent::default(),
        AckCountColumns: wire::AckCount::default(),
        HostSampleColumns: wire::HostSample::default(),
        EventColumns: wire::Event::default().into(),
        ClockColumns: clock,
    }
}

#[test]
fn every_column_is_in_the_manual() {
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let common = documented(&manual, "Common columns");
    let tables = tables();
    let names: Vec<&str> = tables.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, TABLES);
    let mut wrong = Vec::new();
    for (table, mut columns) in tables {
        for key in KEYS {
            let own = columns.remove(key).unwrap();
            if common.get(key) != Some(&own.as_str()) {
                wrong.push(format!("Common columns: {key} is {own}, not {:?}", common.get(key)));
            }
        }
        let mut documented = documented(&manual, table);
        for (name, own) in columns {
            match documented.remove(name.as_str()) {
                Some(found) if found == own => {}
                found => wrong.push(format!("{table}: {name} is {own}, not {found:?}")),
            }
        }
        wrong.extend(documented.keys().map(|name| format!("{table}: there is no column {name}")));
    }
    assert!(wrong.is_empty(), "docs/results.md:\n{}", wrong.join("\n"));
}
