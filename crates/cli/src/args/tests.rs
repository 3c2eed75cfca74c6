use clap::{CommandFactory as _, Parser as _};

use ccbench_tests::snippets;

use super::Cli;
use crate::experiment::{AWAIT_NODES, AWAIT_REBOOT};

/// Commands that the documents show for other machines, root or the lab are not run, but they exist as shown. Those of `ccbench
/// link` and `ccbench cc` are the agent's, whose tests parse them.
#[test]
fn commands_in_the_documents_parse() {
    let mut parsed = 0;
    for snippet in snippets::all().iter().filter(|snippet| snippet.language == "sh") {
        for words in snippets::commands(&snippet.text) {
            if words.first().is_none_or(|program| program != "ccbench") {
                continue;
            }
            if let Err(error) = Cli::try_parse_from(&words) {
                assert!(!error.use_stderr(), "{}: {error}", snippet.place());
            }
            parsed += 1;
        }
    }
    assert!(parsed >= 100, "only {parsed} commands");
}

#[test]
fn default_times_are_shown_as_users_write_them() {
    let ccbench = Cli::command();
    let run = ccbench.find_subcommand("run").unwrap();
    for (id, time) in [("await_nodes", AWAIT_NODES), ("await_reboot", AWAIT_REBOOT)] {
        let argument = run.get_arguments().find(|argument| argument.get_id().as_str() == id);
        let help = argument.unwrap().get_help().unwrap().to_string();
        assert!(help.contains(&format!("[default: {}]", time.in_largest_unit())), "{help}");
    }
}
