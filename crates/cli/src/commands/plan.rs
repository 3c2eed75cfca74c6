//! `ccbench plan`: the reference of plan keys and the JSON schema.

use ccbench_proto::plan::parse::suggest::near;
use ccbench_proto::plan::reference::{self, Section};
use ccbench_proto::plan::schema::schema;
use comfy_table::{ContentArrangement, Table};

use crate::args::PlanCommand;
use crate::console::{print, print_json, terminal_width};
use crate::error::CliError;
use crate::exit::ExitCode;

/// Runs one of the sub-commands.
///
/// # Errors
/// There is no such table.
pub fn run(command: &PlanCommand) -> Result<ExitCode, CliError> {
    match command {
        PlanCommand::Schema => print_json(&format_args!("{:#}", schema())),
        PlanCommand::Reference { markdown: true, .. } => print(&reference::markdown()),
        PlanCommand::Reference { table, .. } => {
            let all = reference::sections();
            let selected = match table {
                None => all.iter().collect(),
                Some(table) => reference::find(&all, table),
            };
            if selected.is_empty() {
                let table = table.as_deref().unwrap_or_default();
                return Err(CliError::Usage(unknown(table, &all)));
            }
            let texts: Vec<String> =
                selected.into_iter().map(|section| text(section, terminal_width())).collect();
            print(&texts.join("\n"));
        }
    }
    Ok(ExitCode::Success)
}

fn unknown(table: &str, all: &[Section]) -> String {
    let titles: Vec<&str> =
        all.iter().filter(|s| s.kind.is_none()).map(|s| s.title.as_str()).collect();
    let bare: Vec<String> =
        titles.iter().map(|title| title.replace(['[', ']'], "").replace(".NAME", "")).collect();
    let near = near(table, &bare.iter().map(String::as_str).collect::<Vec<_>>());
    format!("a plan has no table `{table}`{near} (it has {})", titles.join(", "))
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
