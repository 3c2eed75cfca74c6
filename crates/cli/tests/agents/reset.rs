//! Tests of `ccbench reset`, which frees nodes whose controller is gone.

use std::path::Path;
use std::process::Command;

use crate::fake::{self, UNDONE, serve, serve_held, serve_leaving, serve_undoing_nothing};
use crate::version::plan_of;

/// Returns the exit code, standard output and standard error.
fn ccbench(dir: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccbench"));
    let done = command.args(arguments).current_dir(dir).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.code(), text(&done.stdout), text(&done.stderr))
}

#[test]
fn a_node_that_another_run_holds_is_freed() {
    let dir = tempfile::tempdir().unwrap();
    let (held, other) = (serve_held(), serve(vec![fake::done()]));
    std::fs::write(dir.path().join("plan.toml"), plan_of(held, other)).unwrap();
    let (code, _, printed) = ccbench(dir.path(), &["run", "plan.toml"]);
    assert_eq!(code, Some(3), "{printed}");
    assert!(printed.contains("this node is held by another run"), "{printed}");
    let address = held.to_string();
    let (code, printed, errors) = ccbench(dir.path(), &["reset", &address]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert_eq!(printed, format!("{address}: undone:\n  {UNDONE}\n"));
    // All nodes of the plan, by their names in it.
    let (code, printed, errors) = ccbench(dir.path(), &["reset", "plan.toml"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert_eq!(printed, format!("one: undone:\n  {UNDONE}\ntwo: undone:\n  {UNDONE}\n"));
}

#[test]
fn nodes_that_are_not_free_are_named_and_the_others_are_reset() {
    let dir = tempfile::tempdir().unwrap();
    // Nobody listens there.
    let gone = "127.0.0.1:1";
    let left = serve_leaving((1, "link up on eth1: busy"), None, vec![]).to_string();
    let free = serve(vec![fake::done()]).to_string();
    let (code, printed, errors) = ccbench(dir.path(), &["reset", gone, &left, &free]);
    assert_eq!(code, Some(3), "{errors}");
    for node in [&left, &free] {
        assert!(printed.contains(&format!("{node}: undone:\n")), "{printed}");
    }
    for part in [
        format!("node {left}: reset: could not be undone: link up on eth1: busy"),
        format!("node {gone}: connect: {gone}: "),
    ] {
        assert!(errors.contains(&part), "no `{part}`: {errors}");
    }
    assert!(!errors.contains(&format!("node {free}")), "{errors}");
}

#[test]
fn only_a_node_without_changes_is_called_free() {
    let dir = tempfile::tempdir().unwrap();
    let free = serve_undoing_nothing(None).to_string();
    let left = serve_undoing_nothing(Some("link up on eth1: busy")).to_string();
    let (code, printed, errors) = ccbench(dir.path(), &["reset", &free]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert_eq!(printed, format!("{free}: is free; there was nothing to undo\n"));
    let (code, printed, errors) = ccbench(dir.path(), &["reset", &left]);
    assert_eq!(code, Some(3), "{errors}");
    assert_eq!(printed, format!("{left}: nothing was undone\n"));
    let expected = format!("node {left}: reset: could not be undone: link up on eth1: busy");
    assert!(errors.contains(&expected), "{errors}");
}

#[test]
fn what_cannot_be_reset_is_refused_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let plan = "name = \"local\"\nnodes = { a = {}, b = {} }\n[wires]\nab = [\"a\", \"b\"]\n[flows.f]\nfrom = \"a\"\nto = \"b\"\n\
                [[phases]]\nname = \"p\"\nlength = \"10s\"\nflows = [\"f\"]\n";
    std::fs::write(dir.path().join("local.toml"), plan).unwrap();
    for (given, code, expected) in [
        ("local.toml", 2, "local.toml names no agents"),
        ("missing.toml", 2, "missing.toml"),
        ("192.0.2.11", 3, "node 192.0.2.11 (192.0.2.11:7700): a connection"),
    ] {
        let (found, _, errors) = ccbench(dir.path(), &["reset", given]);
        assert_eq!(found, Some(code), "{given}: {errors}");
        assert!(errors.contains(expected), "{given}: {errors}");
    }
}
