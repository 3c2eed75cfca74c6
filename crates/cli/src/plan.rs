//! `ccbench plan`: what a plan may hold, at the terminal.

use ccbench_proto::plan::parse::suggest::near;
use ccbench_proto::plan::reference::{self, Section};
use ccbench_proto::plan::schema::schema;
use comfy_table::{ContentArrangement, Table};

use crate::args::PlanCommand;
use crate::error::CliError;
use ccbench_results as results;

use crate::{print, terminal_width};

pub(crate) fn run(command: &PlanCommand) -> Result<i32, CliError> {
    match command {
        PlanCommand::Schema => print(&format!("{:#}\n", schema())),
        PlanCommand::Reference { markdown: true, .. } => print(&reference::markdown()),
        PlanCommand::Reference { table, .. } => {
            let all = reference::sections();
            let wanted = match table {
                None => all.iter().collect(),
                Some(table) => reference::find(&all, table),
            };
            if wanted.is_empty() {
                let table = table.as_deref().unwrap_or_default();
                return Err(CliError::Usage(unknown(table, &all)));
            }
            let shown: Vec<String> =
                wanted.into_iter().map(|one| text(one, terminal_width())).collect();
            print(&shown.join("\n"))
        }
    }
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
    table.load_style(results::display::TABLE_STYLE).set_width(width);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["key", "type", "default", "meaning"]);
    for key in &section.keys {
        // Backticks are for the manual.
        let cells =
            [&key.name, &key.value, &key.default, &key.meaning].map(|text| text.replace('`', ""));
        table.add_row(cells);
    }
    format!("{head}{table}\n")
}
