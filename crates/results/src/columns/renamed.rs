//! Columns that had other names in earlier versions. Readers of tables accept the former names.

use polars::prelude::*;

/// Tables, former names and current names. `python/ccbench/_renamed.py` and docs/results.md have the same list.
const RENAMED: [(&str, &str, &str); 7] = [
    ("expectations", "least", "lower_bound"),
    ("expectations", "most", "upper_bound"),
    ("expectations", "why", "reason"),
    ("link_changes", "asked_t_ns", "requested_t_ns"),
    ("link_timing", "what", "kind"),
    ("scorecard", "most", "upper_bound"),
    ("scorecard", "why", "reason"),
];

/// The columns of a file that have former names: the former and the current name of each.
#[derive(Debug)]
pub(crate) struct RenamedColumns(Vec<(&'static str, &'static str)>);

impl RenamedColumns {
    /// Returns those of a file of this table. `has` says whether the file has a column.
    pub(crate) fn new(table: &str, has: impl Fn(&str) -> bool) -> Self {
        let of_table = RENAMED.iter().filter(|(of, ..)| *of == table);
        let columns = of_table.map(|(_, former, current)| (*former, *current));
        Self(columns.filter(|(former, current)| has(former) && !has(current)).collect())
    }

    /// Returns the name in the file of a column.
    pub(crate) fn in_file<'a>(&self, column: &'a str) -> &'a str {
        self.0.iter().find(|(_, current)| *current == column).map_or(column, |(former, _)| *former)
    }

    /// Gives the columns of rows of the file their current names.
    pub(crate) fn rename(&self, rows: &mut DataFrame) -> PolarsResult<()> {
        for (former, current) in &self.0 {
            if rows.get_column_index(former).is_some() {
                rows.rename(former, (*current).into())?;
            }
        }
        Ok(())
    }

    /// Gives the columns of the file's schema their current names.
    pub(crate) fn rename_in(&self, schema: &mut Schema) {
        for (former, current) in &self.0 {
            schema.rename(former, (*current).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ccbench_proto::event::{InitialCc, Kind};
    use ccbench_proto::wire::Event;

    use super::*;
    use crate::reason::ReasonCode;

    fn text(path: &str) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        std::fs::read_to_string(root.join(path)).unwrap()
    }

    #[test]
    fn python_reader_and_manual_have_the_same_names() {
        let python = text("python/ccbench/_renamed.py");
        let python = python.split_once("RENAMED = ").unwrap().1.trim().replace(",\n}", "\n}");
        let python: serde_json::Value = serde_json::from_str(&python).unwrap();
        let manual = text("docs/results.md");
        let manual = manual.split_once("\n### Renamed columns\n").unwrap().1;
        let manual = manual.split("\n#").next().unwrap();
        for (table, former, current) in RENAMED {
            assert_eq!(python[table][former], current, "{table}");
            let row = format!("| {table} | {former} | {current} |\n");
            assert!(manual.contains(&row), "{row}");
        }
        let in_python = python.as_object().unwrap().values();
        let in_python: usize = in_python.map(|names| names.as_object().unwrap().len()).sum();
        let in_manual = manual.lines().filter(|line| line.starts_with("| ")).count() - 1;
        assert_eq!((in_python, in_manual), (RENAMED.len(), RENAMED.len()));
    }

    #[test]
    fn former_values_have_current_ones_in_python_reader_and_manual() {
        let python = text("python/ccbench/_renamed.py");
        let python = python.split_once("RENAMED_VALUES = ").unwrap().1;
        let python = python.split("\n\n").next().unwrap().replace(",\n}", "\n}");
        let python: serde_json::Value = serde_json::from_str(&python).unwrap();
        let event = Event { kind: Some(Kind::InitialCc(InitialCc::default())), ..Event::default() };
        let code = ReasonCode::from("cc_not_in_force");
        let values = [
            ("events", "kind", "cc_in_force", event.name()),
            ("trials", "reasons", "cc_not_in_force", code.as_str()),
        ];
        let manual = text("docs/results.md");
        let manual = manual.split_once("\n### Renamed values\n").unwrap().1;
        let manual = manual.split("\n#").next().unwrap();
        for (table, column, former, current) in values {
            assert_eq!(python[table][column][former], current, "{table}");
            let row = format!("| {table} | {column} | {former} | {current} |\n");
            assert!(manual.contains(&row), "{row}");
        }
        let tables = python.as_object().unwrap().values();
        let columns = tables.flat_map(|columns| columns.as_object().unwrap().values());
        let in_python: usize = columns.map(|names| names.as_object().unwrap().len()).sum();
        let in_manual = manual.lines().filter(|line| line.starts_with("| ")).count() - 1;
        assert_eq!((in_python, in_manual), (values.len(), values.len()));
    }

    #[test]
    fn only_former_names_are_replaced() {
        let names = |rows: &DataFrame| -> Vec<String> {
            rows.get_column_names().into_iter().map(ToString::to_string).collect()
        };
        let new = |has: &[&str]| RenamedColumns::new("link_changes", |name| has.contains(&name));
        let old = new(&["asked_t_ns", "rc"]);
        assert_eq!((old.in_file("requested_t_ns"), old.in_file("rc")), ("asked_t_ns", "rc"));
        assert_eq!(new(&["requested_t_ns"]).in_file("requested_t_ns"), "requested_t_ns");
        let other = RenamedColumns::new("events", |_| true);
        assert_eq!(other.in_file("requested_t_ns"), "requested_t_ns");
        let mut rows = df!("asked_t_ns" => [1_i64], "rc" => [0_i32]).unwrap();
        old.rename(&mut rows).unwrap();
        assert_eq!(names(&rows), ["requested_t_ns", "rc"]);
        // A reader does not need all columns.
        let mut rows = df!("rc" => [0_i32]).unwrap();
        old.rename(&mut rows).unwrap();
        assert_eq!(names(&rows), ["rc"]);
    }
}
