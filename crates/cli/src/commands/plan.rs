//! `ccbench plan`: the reference of plan keys and the JSON schema.

use ccbench_proto::plan::parse::suggest::near;
use ccbench_proto::plan::reference::{self, Key, Section};
use ccbench_proto::plan::schema::schema;
use comfy_table::{ContentArrangement, Table};

use crate::args::PlanCommand;
use crate::console::{print, print_json, terminal_width};
use crate::exit::ExitCode;

/// The manual, which explains the tables whose keys the author chooses.
const MANUAL: &str = include_str!("../../../../docs/plan.md");

/// A plan has no such table.
#[derive(Debug, thiserror::Error)]
#[error("a plan has no table `{table}`{hint} (it has {})", titles.join(", "))]
pub struct UnknownTable {
    table: String,
    /// "; did you mean `NAME`?", or empty.
    hint: String,
    titles: Vec<String>,
}

/// Runs one of the sub-commands.
///
/// # Errors
/// There is no such table.
pub fn run(command: &PlanCommand) -> Result<ExitCode, UnknownTable> {
    match command {
        PlanCommand::Schema => print_json(&format_args!("{:#}", schema())),
        PlanCommand::Reference { markdown: true, .. } => print(&reference::markdown()),
        PlanCommand::Reference { table, .. } => {
            let all = reference::sections();
            let texts = texts(&all, table.as_deref(), terminal_width());
            if texts.is_empty() {
                let table = table.as_deref().unwrap_or_default();
                return Err(unknown(table, &all));
            }
            print(&texts.join("\n"));
        }
    }
    Ok(ExitCode::Success)
}

/// Returns the reference's text about a table, or about everything; empty if there is no such table.
fn texts(all: &[Section], table: Option<&str>, width: u16) -> Vec<String> {
    let Some(table) = table else {
        return all.iter().map(|section| text(section, width)).collect();
    };
    let found = reference::find(all, table);
    if found.is_empty() {
        return top_level(all, table, width).into_iter().collect();
    }
    found.into_iter().map(|section| text(section, width)).collect()
}

/// Returns the keys whose values have no predefined keys: in tables such as `matrix`, the plan's author chooses the keys.
fn keys_without_section(all: &[Section]) -> impl Iterator<Item = (&Section, &Key)> {
    let whole = all.iter().filter(|section| section.path.is_empty());
    whole
        .flat_map(|section| section.keys.iter().map(move |key| (section, key)))
        .filter(|(_, key)| key.section.is_none())
}

/// Returns the text about such a key, and the manual's section about it.
fn top_level(all: &[Section], table: &str, width: u16) -> Option<String> {
    let wanted = table.trim_matches(['[', ']']).split('.').next()?;
    let (section, key) = keys_without_section(all).find(|(_, key)| key.name == wanted)?;
    let line = text(&Section { keys: vec![key.clone()], ..section.clone() }, width);
    let manual = manual(wanted).map(|text| format!("\n{text}\n")).unwrap_or_default();
    Some(line + &manual)
}

/// Returns the manual's section about a table.
fn manual(table: &str) -> Option<&'static str> {
    let at = MANUAL.find(&format!("\n## `[{table}]`\n"))? + 1;
    let section = &MANUAL[at..];
    Some(section.find("\n## ").map_or(section, |end| &section[..end]).trim_end())
}

fn unknown(table: &str, all: &[Section]) -> UnknownTable {
    let free = keys_without_section(all).filter(|(_, key)| key.value.starts_with("table"));
    let free = free.map(|(_, key)| format!("[{}]", key.name));
    let titles = all.iter().filter(|s| s.kind.is_none()).map(|s| s.title.clone());
    let titles: Vec<String> = titles.chain(free).collect();
    let bare: Vec<String> =
        titles.iter().map(|title| title.replace(['[', ']'], "").replace(".NAME", "")).collect();
    let hint = near(table, &bare.iter().map(String::as_str).collect::<Vec<_>>());
    UnknownTable { table: table.to_owned(), hint, titles }
}

fn text(section: &Section, width: u16) -> String {
    let within = match &section.within[..] {
        [] => String::new(),
        places => format!(" In {}.", places.join(", ")),
    };
    let head = format!("{}: {}{within}\n", section.title, section.about);
    if section.keys.is_empty() {
        return head;
    }
    let mut table = Table::new();
    table.load_style(ccbench_results::display::TABLE_STYLE).set_width(width);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["key", "type", "default", "meaning"]);
    for key in &section.keys {
        // Backticks are Markdown.
        let cells =
            [&key.name, &key.value, &key.default, &key.meaning].map(|text| text.replace('`', ""));
        table.add_row(cells);
    }
    format!("{head}{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_a_plan_is_explained() {
        let all = reference::sections();
        let whole = all.iter().find(|section| section.path.is_empty()).unwrap();
        assert!(whole.keys.len() > 20, "{whole:?}");
        for key in &whole.keys {
            let found = texts(&all, Some(&key.name), 120);
            assert!(!found.is_empty(), "{} is not explained", key.name);
            if key.section.is_none() && key.value.starts_with("table") {
                let heading = format!("## `[{}]`\n", key.name);
                assert!(found[0].contains(&heading), "no section about {}: {found:?}", key.name);
            }
        }
        for matrix in ["matrix", "[matrix]", "matrix.load"] {
            let found = texts(&all, Some(matrix), 120);
            assert!(found[0].contains("Every combination of all factors' levels"), "{found:?}");
            assert!(found[0].contains("[matrix.load]"), "{found:?}");
            assert!(!found[0].contains("## `[design]`"), "only its section");
        }
        assert!(texts(&all, Some("matrx"), 120).is_empty());
        let why = unknown("matrx", &all).to_string();
        assert!(why.contains("did you mean `matrix`") && why.contains("[wires]"), "{why}");
    }
}
