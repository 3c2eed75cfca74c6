//! Requests that are refused before they cost much time or memory.

use super::*;

fn refused(result: Result<(), AgentError>) -> String {
    result.unwrap_err().to_string()
}

#[tokio::test]
async fn a_busy_node_refuses_before_it_reads_a_plan() {
    let rig = Rig::new(Script::Good, FakeInterfaces::default());
    rig.prepare().await.unwrap();
    let file_digests = [("a.csv".to_owned(), "00".to_owned())].into();
    let wrong =
        wire::PrepareRequest { plan_toml: "name = 3".into(), file_digests, ..rig.request() };
    let error = refused(rig.handle.check(wrong.clone(), None).await);
    assert!(error.contains("this node is busy"), "{error}");
    let error = refused(rig.handle.prepare(wrong.clone(), None).await.map(drop));
    assert!(error.contains("this node is busy"), "{error}");
    rig.handle.reset(wire::ResetRequest::default()).await.unwrap();
    let error = refused(rig.handle.check(wrong.clone(), None).await);
    assert!(error.contains("the plan is wrong"), "{error}");
    let error = refused(rig.handle.prepare(wrong, None).await.map(drop));
    assert!(error.contains("`a.csv` (sha256 00) was not sent"), "{error}");
}

#[tokio::test]
async fn a_plan_with_a_matrix_is_refused() {
    let rig = Rig::new(Script::Good, FakeInterfaces::default());
    let plan_toml = format!("{PLAN}[matrix]\n\"links.l.delay\" = [\"1ms\", \"2ms\"]\n");
    let request = wire::PrepareRequest { plan_toml, ..rig.request() };
    let expected = "plan_toml: the plan has a matrix; send the resolved plan of one point";
    assert_eq!(refused(rig.handle.check(request.clone(), None).await), expected);
    assert_eq!(refused(rig.handle.prepare(request, None).await.map(drop)), expected);
    assert_eq!(rig.handle.status().generation, 0, "no Prepare");
}

#[test]
fn a_trace_with_many_names_is_parsed_once() {
    let link = |name: &str| {
        format!(
            "[links.{name}]\nnode = \"one\"\ndev = \"{name}\"\nbackend = \"userspace\"\n\
             queue = {{ kind = \"pfifo\", limit = \"40p\" }}\ntrace = {{ file = \"{name}.csv\" }}\n"
        )
    };
    let changes = PLAN.find("[[changes]]").unwrap();
    let plan_toml = format!("{}{}{}", &PLAN[..changes], link("m"), link("n"));
    let request = wire::PrepareRequest { node: "one".into(), plan_toml, ..Default::default() };
    let content = Arc::new(crate::files::Content::from(b"10,1\n5,1\n".to_vec()));
    let names = ["m.csv", "n.csv"];
    let files: crate::files::Contents =
        names.map(|name| (name.to_owned(), Arc::clone(&content))).into();
    let task = read::task_with(&request, &files).unwrap();
    let traces: Vec<_> =
        task.links.iter().filter_map(|link| Some(&link.config.trace.as_ref()?.trace)).collect();
    let [first, second] = traces[..] else { panic!("{traces:?}") };
    assert!(Arc::ptr_eq(first, second));
}

#[tokio::test]
async fn a_trace_must_be_present_and_match_its_digest() {
    let plan = PLAN.replace("rate = \"10mbit\"", "trace = { file = \"a.csv\" }");
    let plan = plan.replace("\"links.l.rate\" = \"5mbit\", ", "");
    let request = |plan: &str, files: &[(&str, &str)]| wire::PrepareRequest {
        run_id: "r".into(),
        node: "one".into(),
        plan_toml: plan.into(),
        epoch: 1,
        files: files.iter().map(|(name, text)| ((*name).into(), (*text).into())).collect(),
        ..Default::default()
    };
    let refused = |plan: &str, files: &[(&str, &str)]| {
        read::task_of(&request(plan, files)).unwrap_err().to_string()
    };
    assert!(refused(&plan, &[]).contains("files: the trace `a.csv` is missing"));
    let error = refused(&plan, &[("a.csv", "5,fast\n")]);
    assert!(error.contains("files: the trace `a.csv`: line 1"), "{error}");
    let file = [("a.csv", "10,1\n5,1\n")];
    let other = plan.replace("a.csv\"", &format!("a.csv\", sha256 = \"{}\"", "0".repeat(64)));
    assert!(refused(&other, &file).contains("the plan expects 0000"));
    let task = read::task_of(&request(&plan, &file)).unwrap();
    let replay = task.links[0].config.trace.as_ref().unwrap();
    assert_eq!((replay.plan.file.as_str(), replay.trace.rows()), ("a.csv", 2));
}
