//! Supplied congestion controls in a real kernel. The example of `plans/cc` carries flows under the plan's name, with
//! the plan's parameters, and is gone afterwards. An agent on TCP loads only what its command line allows. Needs root,
//! iperf3 and a kernel with struct_ops.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::plan::digest_bytes;
use ccbench_proto::wire::agent_client::AgentClient;
use ccbench_proto::wire::{self, Role};
use ccbench_tests::port::ReservedPort;
use support::pair::Pair;
use support::{AGENT, LOOPBACK_PLAN, wait_for, wait_for_setup};
use tokio::sync::RwLock;
use tonic::transport::Channel;

/// `plans/cc/aimd.bpf.c`, as the build compiles it.
const AIMD: &str = concat!(env!("OUT_DIR"), "/aimd.bpf.o");

/// A starting agent undoes what dead agents have left on this machine.
static DEAD_AGENTS: RwLock<()> = RwLock::const_new(());

fn available() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    text.unwrap().split_whitespace().map(str::to_owned).collect()
}

/// Returns a plan as a controller resolves it.
fn plan(params: &str) -> String {
    let digest = digest_bytes(&std::fs::read(AIMD).unwrap());
    let own = format!(
        "[cc.mine]\nalgorithm = \"aimd\"\nfile = \"aimd.bpf.o\"\nsha256 = \"{digest}\"\nparams = {{ {params} }}\n[probes.rtt]"
    );
    LOOPBACK_PLAN.replace("cc = \"reno\"", "cc = \"mine\"").replace("[probes.rtt]", &own)
}

fn prepare(plan: &str, node: &str, epoch: u64) -> wire::PrepareRequest {
    // Unique per process: kernel names are global to the machine, and these tests may run twice at a time.
    let run_id = format!("user-cc-{}", std::process::id());
    let mut request = wire::PrepareRequest { run_id, ..support::prepare(plan, node, epoch) };
    request.files.insert("aimd.bpf.o".to_owned(), std::fs::read(AIMD).unwrap());
    request
}

#[tokio::test]
async fn an_object_of_the_user_carries_flows_and_is_unloaded() {
    let _beside = DEAD_AGENTS.read().await;
    let mut pair = Pair::start().await;
    let plan = plan("decrease_pct = 30");
    let reply = pair.clients[0].prepare(prepare(&plan, "one", 1)).await.unwrap().into_inner();
    let other = pair.clients[1].prepare(prepare(&plan, "two", 1)).await.unwrap().into_inner();
    assert!(other.congestion_controls.is_empty(), "it only receives: {other:?}");
    let [loaded] = &reply.congestion_controls[..] else { panic!("{reply:?}") };
    assert_eq!((loaded.name.as_str(), loaded.algorithm.as_str()), ("mine", "aimd"));
    assert_eq!(loaded.via().as_text(), "bpf");
    assert_eq!(loaded.sha256, digest_bytes(&std::fs::read(AIMD).unwrap()));
    // Read back from the kernel.
    assert_eq!(loaded.params["decrease_pct"], "30");
    assert_eq!(loaded.params["increase_milli"], "1000");
    let kernel_name = loaded.kernel_name.clone();
    assert!(kernel_name.starts_with("aimd.") && available().contains(&kernel_name), "{loaded:?}");
    let ([client, server], _) = pair.trial(1).await;
    for rows in [&client, &server] {
        assert!(rows.events.iter().all(|e| !e.name().ends_with("error")), "{:?}", rows.events);
    }
    let data: Vec<_> = client.flows.iter().filter(|flow| flow.role() == Role::Data).collect();
    assert!(!data.is_empty());
    for flow in data {
        assert_eq!((flow.cc_requested.as_str(), flow.cc_actual.as_str()), ("mine", "mine"));
    }
    assert!(client.samples.iter().any(|row| row.role() == Role::Data && row.cc == "mine"));
    assert!(client.states.is_empty(), "it has no rows of internal state");
    pair.reset().await;
    assert!(!available().contains(&kernel_name), "{:?}", available());
    assert!(pair.is_as_found());
}

#[tokio::test]
async fn a_killed_agent_leaves_no_object_registered() {
    let _beside = DEAD_AGENTS.read().await;
    let mut pair = Pair::start().await;
    // No other test uses this epoch, from which the kernel name follows.
    let request = prepare(&plan("decrease_pct = 30"), "one", 5);
    let reply = pair.clients[0].prepare(request).await.unwrap().into_inner();
    let name = reply.congestion_controls[0].kernel_name.clone();
    assert!(available().contains(&name), "{name}");
    pair.one.kill();
    wait_for("the kernel forgets it", || !available().contains(&name)).await;
}

#[tokio::test]
async fn other_files_and_parameters_are_refused_and_nothing_stays() {
    let _beside = DEAD_AGENTS.read().await;
    let mut pair = Pair::start().await;
    let right = plan("decrease_pct = 30");
    let without_file = {
        let mut request = prepare(&right, "one", 3);
        request.files.clear();
        request
    };
    let other_file = {
        let mut request = prepare(&right, "one", 3);
        request.files.get_mut("aimd.bpf.o").unwrap().push(0);
        request
    };
    for (request, why) in [
        (without_file, "`aimd.bpf.o` is missing from the request"),
        (other_file, "`aimd.bpf.o` has changed: its sha256 is now "),
        (prepare(&plan("decrease = 30"), "one", 3), "did you mean `decrease_pct`?"),
        (
            prepare(&plan("decrease_pct = -1"), "one", 3),
            "write a number from 0 to 4294967295 (u32)",
        ),
    ] {
        let refused = pair.clients[0].prepare(request).await.unwrap_err();
        assert!(refused.message().starts_with("cc.mine: aimd cannot be loaded: "), "{refused:?}");
        assert!(refused.message().contains(why), "{refused:?}");
    }
    assert!(pair.is_as_found());
}

/// An agent on loopback without TLS that allows these digests.
struct TcpAgent {
    _dir: tempfile::TempDir,
    _reserved: ReservedPort,
    child: Child,
    port: u16,
}

impl TcpAgent {
    async fn start(digests: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let reserved = ReservedPort::new(Ipv4Addr::LOCALHOST);
        let port = reserved.address().port();
        let mut command = Command::new(AGENT);
        command.args(["serve", "--listen", &format!("tcp:127.0.0.1:{port}"), "--state-dir"]);
        command.arg(dir.path().join("state"));
        for digest in digests {
            command.args(["--allow-cc-digest", digest]);
        }
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        let agent = Self { _dir: dir, _reserved: reserved, child, port };
        let connects = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        wait_for_setup("the agent's port", connects).await;
        agent
    }

    async fn connect(&self) -> AgentClient<Channel> {
        AgentClient::connect(format!("http://127.0.0.1:{}", self.port)).await.unwrap()
    }
}

impl Drop for TcpAgent {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Prepares with a file sent in parts, as over any network; the request names its digest.
async fn prepare_in_parts(
    client: &mut AgentClient<Channel>,
    epoch: u64,
) -> Result<wire::PrepareReply, tonic::Status> {
    // A node in this namespace must not change the machine's settings.
    let plan = plan("decrease_pct = 30").replace("sysctl = ", "# ");
    let mut request = prepare(&plan, "one", epoch);
    for (name, content) in std::mem::take(&mut request.files) {
        let chunks: Vec<_> = content
            .chunks(wire::FILE_CHUNK_BYTES)
            .map(|data| wire::FileChunk { data: data.to_vec() })
            .collect();
        let sent = client.put_file(tokio_stream::iter(chunks)).await?.into_inner();
        request.file_digests.insert(name, sent.sha256);
    }
    Ok(client.prepare(request).await?.into_inner())
}

#[tokio::test]
async fn an_agent_on_tcp_loads_only_allowed_digests() {
    let _beside = DEAD_AGENTS.read().await;
    let digest = digest_bytes(&std::fs::read(AIMD).unwrap());
    let strict = TcpAgent::start(&[&"0".repeat(64)]).await;
    let refused = prepare_in_parts(&mut strict.connect().await, 1).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{refused:?}");
    assert!(refused.message().contains(&format!("--allow-cc-digest {digest}")), "{refused:?}");
    let open = TcpAgent::start(&[&"0".repeat(64), &digest]).await;
    let mut client = open.connect().await;
    let reply = prepare_in_parts(&mut client, 2).await.unwrap();
    let [loaded] = &reply.congestion_controls[..] else { panic!("{reply:?}") };
    assert_eq!(loaded.sha256, digest);
    let undone = client.reset(wire::ResetRequest::default()).await.unwrap().into_inner();
    assert!(undone.failed.is_empty(), "{undone:?}");
    assert!(!available().contains(&loaded.kernel_name));
}

#[tokio::test]
async fn an_object_is_loaded_by_hand_until_its_command_ends() {
    let name = format!("u{}", std::process::id());
    let cc = |words: &[&str]| {
        let mut command = Command::new(AGENT);
        command.arg("cc").args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut held = cc(&["load", AIMD, "--as", &name, "decrease_pct=30"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(held.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("decrease_pct=30") && available().contains(&name), "{line:?}");
    held.kill().unwrap();
    held.wait().unwrap();
    wait_for("it is gone", || !available().contains(&name)).await;
    let refused = cc(&["load", AIMD, "--as", &name, "decrease=30"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(stderr.contains("did you mean `decrease_pct`?"), "{stderr}");
}
