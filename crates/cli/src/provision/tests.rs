use ccbench_proto::manifest::{Access, ReservedNode};
use ccbench_proto::plan::check;

use super::*;

const PLAN: &str = r#"# A comment.
name = "t"
[nodes]
a = {}                # the sender
r = { offloads = true }
b = {}
c = {}
[nodes.b_2]
[wires]
one = ["a", "r", "b"]
two = ["r", "c"]
three = ["r", "b_2"]
[links.there]
node = "r"
dev = "to-b"          # by its name
rate = "2gbit"
[links.back]
node = "b"
toward = "a"
delay = "5ms"
[flows.f]
from = "a"
to = "b"
[[phases]]
name = "p"
length = "9s"
flows = ["f"]
[quick]
"phases.0.length" = "2s"
"#;

fn checked(text: &str) -> CheckedPlan {
    check::read(text, &[]).unwrap_or_else(|problems| panic!("{problems:?}")).0
}

fn refused(text: &str) -> String {
    Layout::from_plan(&checked(text)).unwrap_err().to_string()
}

fn node(name: &str, control: &str) -> ReservedNode {
    let access = Access::Container(format!("clab-t-{name}"));
    ReservedNode { name: name.to_owned(), control: control.parse().unwrap(), access }
}

#[test]
fn addresses_and_routes_are_those_of_the_namespaces() {
    let plan = checked(PLAN);
    let layout = Layout::from_plan(&plan).unwrap();
    assert_eq!(layout.title(), "t: 5 nodes, 4 wires");
    assert_eq!(layout.host("b_2"), "b-2");
    let network = |node: &str| layout.network(node, &layout.topology.nodes[node]);
    // Chains in the order of their names: one, three, two.
    assert_eq!(
        network("a"),
        "10.77.1.1 10.77.2.0/24=10.77.1.2 10.77.3.0/24=10.77.1.2 10.77.4.0/24=10.77.1.2"
    );
    assert_eq!(network("r"), "--offloads 10.77.1.2 10.77.2.1 10.77.3.1 10.77.4.1");
    let ends: Vec<_> = layout.segments().collect();
    assert_eq!(ends[2], (3, [("r", "10.77.3.1".to_owned()), ("b_2", "10.77.3.2".to_owned())]));
}

#[test]
fn ports_are_not_slower_than_the_fastest_link() {
    let speed = |rate: &str, changed: &str| {
        let mut text = PLAN.replace("2gbit", rate);
        if !changed.is_empty() {
            text += &format!(
                "[[changes]]\nat = \"1s\"\nset = {{ \"links.there.rate\" = \"{changed}\" }}\n"
            );
        }
        let plan = checked(&text);
        let profile = cloudlab::profile(&Layout::from_plan(&plan).unwrap());
        let after = profile.split("ParameterType.INTEGER,\n").nth(1).unwrap();
        after.trim_start().split(',').next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(speed("1gbit", ""), 0, "every port has it");
    assert_eq!(speed("2gbit", ""), 10_000_000);
    assert_eq!(speed("10gbit", ""), 10_000_000);
    assert_eq!(speed("100mbit", "20gbit"), 25_000_000);
}

#[test]
fn plans_that_no_testbed_can_run_are_refused() {
    let agents = PLAN
        .replace("a = {}", "a = { agent = \"a:1\", address = \"10.0.0.1\" }")
        .replace("r = { offloads = true }", "r = { agent = \"r:1\" }")
        .replace("b = {}", "b = { agent = \"b:1\", address = \"10.0.0.2\" }")
        .replace("c = {}", "c = { agent = \"c:1\" }")
        .replace("[nodes.b_2]", "[nodes.b_2]\nagent = \"d:1\"");
    assert!(refused(&agents).contains("node `a` has an `agent`"), "{}", refused(&agents));
    let lab = PLAN.replace("name = \"t\"", "name = \"t\"\nlab.engine = \"qemu\"");
    assert!(refused(&lab).contains("lab.engine"), "{}", refused(&lab));
    let varied = format!("{PLAN}[matrix]\n\"links.there.dev\" = [\"to-b\", \"to-c\"]\n");
    assert!(refused(&varied).contains("point 1 of the matrix"), "{}", refused(&varied));
    let twice = PLAN.replace("c = {}", "B-2 = {}").replace("\"c\"", "\"B-2\"");
    assert!(refused(&twice).contains("`B-2` and `b_2`"), "{}", refused(&twice));
}

#[test]
fn the_controllers_machine_has_a_name_of_its_own() {
    let plan =
        checked(&PLAN.replace("c = {}", "Controller = {}").replace("\"c\"", "\"Controller\""));
    assert_eq!(Layout::from_plan(&plan).unwrap().controller, "controller-0");
}

#[test]
fn the_plan_for_a_testbed_keeps_the_authors_text() {
    let plan = checked(PLAN);
    let layout = Layout::from_plan(&plan).unwrap();
    let (a, b) = (node("a", "192.0.2.1"), node("b", "2001:db8::2"));
    let assigned = BTreeMap::from([("a".to_owned(), &a), ("b".to_owned(), &b)]);
    let text = adapted::plan(&layout, PLAN, &assigned).unwrap();
    for kept in ["# A comment.", "# the sender", "\"phases.0.length\" = \"2s\"", "offloads = true"]
    {
        assert!(text.contains(kept), "{kept}: {text}");
    }
    let found = checked(&text);
    let nodes = &found.plan().nodes;
    let agent = |name: &str| nodes[name].agent.as_deref().unwrap();
    assert_eq!((agent("a"), agent("b")), ("192.0.2.1:7700", "[2001:db8::2]:7700"));
    assert_eq!((agent("r"), agent("b_2")), ("r.invalid:7700", "b-2.invalid:7700"));
    for (name, address) in layout.topology.addresses() {
        assert_eq!(nodes[&name].address, Some(address), "{name}");
    }
    let there = &found.plan().links["there"];
    assert_eq!((there.dev.as_deref(), there.toward.as_deref()), (None, Some("b")));
    assert_eq!(found.plan().links["back"], plan.plan().links["back"]);
}

/// If there are two wires between the same nodes, routes use the first one.
#[test]
fn a_device_that_no_node_is_reached_by_is_refused() {
    let text = PLAN
        .replace("two = [\"r\", \"c\"]", "two = [\"r\", \"c\"]\nzwei = [\"r\", \"c\"]")
        .replace("dev = \"to-b\"", "dev = \"to-c-2\"");
    let plan = checked(&text);
    let layout = Layout::from_plan(&plan).unwrap();
    let error = adapted::plan(&layout, &text, &BTreeMap::new()).unwrap_err().to_string();
    assert!(error.starts_with("`links.there` is at `to-c-2` of `r`"), "{error}");
}

#[test]
fn nodes_of_a_manifest_are_found_by_their_host_names() {
    let plan = checked(PLAN);
    let layout = Layout::from_plan(&plan).unwrap();
    let mut reserved: Vec<ReservedNode> =
        ["a", "b", "b-2", "c", "controller"].map(|name| node(name, "192.0.2.1")).into();
    let error = adapted::assigned(&layout, &reserved).unwrap_err().to_string();
    assert!(error.contains("no node `r`"), "{error}");
    reserved.push(node("r", "192.0.2.9"));
    let assigned = adapted::assigned(&layout, &reserved).unwrap();
    assert_eq!(assigned.len(), 5, "without the controller");
    assert_eq!(assigned["b_2"].name, "b-2");
}

#[test]
fn texts_of_the_author_cannot_leave_their_place() {
    let about = r#"about = '"""; import os # @NODES@ \'"#;
    let plan = checked(&PLAN.replace("name = \"t\"", &format!("name = \"t\"\n{about}")));
    let layout = Layout::from_plan(&plan).unwrap();
    let profile = cloudlab::profile(&layout);
    assert!(
        profile.starts_with(r#""""t: 5 nodes, 4 wires. \"\"\"; import os # @NODES@ \\"#),
        "{profile}"
    );
    assert_eq!(profile.matches("\"host\": ").count(), 5, "{profile}");
}
