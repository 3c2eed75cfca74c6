//! Compares rows of acknowledgements of real flows between two namespaces with other sources: inet_diag, a packet
//! socket, and the link that drops and marks. Needs root, iperf3 and a kernel that accepts BPF tracing programs.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod acks_support;
mod support;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use acks_support::{Row, not_in_backlog, rows_of, segments_without_row};
use ccbench_collector::FlowPorts;
use ccbench_collector::acks::{self, AckSource, Watch};
use ccbench_proto::plan::Acks;
use ccbench_proto::wire::agent_client::AgentClient;
use ccbench_proto::wire::{self, AckHook, Role, Side, TcpEventKind, run_event::Payload};
use ccbench_tests::cpu::CpuWatch;
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use socket2::{SockFilter, SockRef};
use support::pair::Rows;
use support::{Agent, Namespace, Turn, now_ns, prepare, wait_for, wired_namespaces};
use tonic::transport::Channel;

/// Two phases of one flow over a link with a short queue.
const PLAN: &str = r#"
name = "acks"
[sample]
tcp = "10ms"
acks = "MODE"
[nodes.one]
address = "10.9.0.1"
agent = "10.9.0.1:7700"
sysctl = { "net.ipv4.tcp_ecn" = 1 }
[nodes.two]
address = "10.9.0.2"
agent = "10.9.0.2:7700"
sysctl = { "net.ipv4.tcp_ecn" = 1 }
[links.bottleneck]
node = "one"
toward = "two"
rate = "20mbit"
delay = "5ms"
backend = "userspace"
queue = QUEUE
[flows.bulk]
from = "one"
to = "two"
cc = "cubic"
[[phases]]
name = "only"
length = "3s"
flows = ["bulk"]
"#;

const CAPTURE: &str = r#"
[capture.wire]
node = "one"
toward = "two"
snap = "96B"
"#;

const DROPS: &str = r#"{ kind = "bfifo", limit = "20000B" }"#;
const MARKS: &str = r#"{ kind = "fq", limit = "1000p", buckets = 1, ce_threshold = "1ms" }"#;

struct Nodes {
    namespaces: [Namespace; 2],
    agents: [Agent; 2],
    clients: [AgentClient<Channel>; 2],
}

impl Nodes {
    async fn start() -> Self {
        let namespaces = wired_namespaces();
        let agents = [Agent::inside(&namespaces[0]), Agent::inside(&namespaces[1])];
        let clients = [agents[0].connect().await, agents[1].connect().await];
        Self { namespaces, agents, clients }
    }

    async fn prepare(&mut self, mode: &str, queue: &str) -> Vec<wire::Event> {
        self.prepare_plan(&PLAN.replace("MODE", mode).replace("QUEUE", queue)).await
    }

    async fn prepare_plan(&mut self, plan: &str) -> Vec<wire::Event> {
        let mut events = Vec::new();
        for (client, node) in self.clients.iter_mut().zip(["one", "two"]) {
            let mut request = prepare(plan, node, 1);
            request.addresses.insert("one".into(), "10.9.0.1".into());
            request.addresses.insert("two".into(), "10.9.0.2".into());
            events.extend(client.prepare(request).await.unwrap().into_inner().events);
        }
        events
    }

    async fn run(&mut self) -> [Rows; 2] {
        let run = wire::RunRequest { start_at_ns: now_ns() + 300_000_000, epoch: 1 };
        let [one, two] = &mut self.clients;
        let (one, two) = (one.run(run).await.unwrap(), two.run(run).await.unwrap());
        let (one, two) = tokio::join!(Rows::all(one.into_inner()), Rows::all(two.into_inner()));
        [one, two]
    }

    async fn reset(&mut self) {
        for client in &mut self.clients {
            client.reset(wire::ResetRequest::default()).await.unwrap();
        }
        for agent in &self.agents {
            assert_eq!(bpf_ids(agent.child.id()), BTreeSet::new(), "something is held");
        }
    }
}

/// Returns the kernel's BPF objects that a process holds: ("prog_id", 12) and so on.
fn bpf_ids(pid: u32) -> BTreeSet<(String, u32)> {
    let mut found = BTreeSet::new();
    for file in std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten() {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
            if ["prog_id", "map_id", "link_id"].contains(&key) {
                found.insert((key.to_owned(), value.trim().parse().unwrap()));
            }
        }
    }
    found
}

/// Returns all BPF objects of this kernel.
fn all_bpf_ids() -> BTreeSet<(String, u32)> {
    use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter};
    let programs = ProgInfoIter::default().map(|info| ("prog_id".to_owned(), info.id));
    let maps = MapInfoIter::default().map(|info| ("map_id".to_owned(), info.id));
    let links = LinkInfoIter::default().map(|info| ("link_id".to_owned(), info.id));
    programs.chain(maps).chain(links).collect()
}

/// Returns the count of the data connection.
fn count_of(rows: &Rows) -> &wire::AckCount {
    let mut data = rows.ack_counts.iter().filter(|count| count.role() == Role::Data);
    let count = data.next().unwrap();
    assert!(data.next().is_none(), "one data connection: {:?}", rows.ack_counts);
    assert_eq!((count.lost_rows, count.refused_rows, count.lost_events), (0, 0, 0), "{count:?}");
    count
}

/// Records the destination ports of TCP segments that arrive in a namespace from the other node, with a packet socket.
fn count_segments(namespace: &Namespace, stop: Arc<AtomicBool>) -> thread::JoinHandle<Vec<u16>> {
    let net = File::open(format!("/proc/{}/ns/net", namespace.pid())).unwrap();
    thread::spawn(move || {
        setns(&net, CloneFlags::CLONE_NEWNET).unwrap();
        let tap = socket(
            AddressFamily::Packet,
            SockType::Datagram,
            SockFlag::empty(),
            SockProtocol::EthAll,
        )
        .unwrap();
        setsockopt(&tap, sockopt::ReceiveTimeout, &TimeVal::new(0, 50_000)).unwrap();
        setsockopt(&tap, sockopt::RcvBufForce, &(32 << 20)).unwrap();
        let (mut to, mut packet) = (Vec::new(), [0; 128]);
        // Drain the buffer at the end, too: a busy machine may be late to read it.
        loop {
            let length = match recv(tap.as_raw_fd(), &mut packet, MsgFlags::MSG_TRUNC) {
                Ok(length) => length,
                // Interrupted by a signal, for example from another test's child.
                Err(Errno::EINTR) => continue,
                Err(_) if stop.load(Ordering::Relaxed) => break,
                Err(_) => continue,
            };
            let head = usize::from(packet[0] & 15) * 4;
            // Sent by the other node, so it arrived here.
            if length >= 40 && packet[9] == 6 && packet[12..16] == [10, 9, 0, 2] {
                to.push(u16::from_be_bytes([packet[head + 2], packet[head + 3]]));
            }
        }
        to
    })
}

#[tokio::test]
async fn every_acknowledgement_has_a_row_that_agrees_with_polls_and_with_the_wire() {
    let _alone = Turn::alone().await;
    let mut nodes = Nodes::start().await;
    let plan = PLAN.replace("MODE", "every-ack").replace("QUEUE", DROPS) + CAPTURE;
    let reported = nodes.prepare_plan(&plan).await;
    let reported: Vec<_> =
        reported.iter().filter(|event| event.name().starts_with("acks")).collect();
    assert!(reported.len() == 2 && reported[0].name() == "acks", "{reported:?}");
    let stop = Arc::new(AtomicBool::new(false));
    let tap = count_segments(&nodes.namespaces[0], Arc::clone(&stop));
    let coalesced_before = tcp_ext(&nodes.namespaces[0], "TCPBacklogCoalesce");
    let discarded_before = tcp_ext(&nodes.namespaces[0], "PAWSEstab");
    let [sender, receiver] = nodes.run().await;
    let coalesced = tcp_ext(&nodes.namespaces[0], "TCPBacklogCoalesce") - coalesced_before;
    let discarded = tcp_ext(&nodes.namespaces[0], "PAWSEstab") - discarded_before;
    stop.store(true, Ordering::Relaxed);
    let on_wire = tap.join().unwrap();

    let rows = rows_of(&sender.acks);
    let count = count_of(&sender);
    assert_eq!((rows.len() as u64, count.rows), (count.segments, count.segments), "{count:?}");
    assert!(rows.iter().enumerate().all(|(index, row)| row.segments == index as u64 + 1));
    let data = sender.flows.iter().find(|flow| flow.role() == Role::Data).unwrap();
    let on_wire = on_wire.iter().filter(|&&port| u32::from(port) == data.sport).count() as u64;
    println!("{count:?}");
    let without_row = count.missed_segments + count.coalesced_segments;
    // Neither the SYN-ACK nor segments that arrive after this end has closed, a window at most, have a row.
    let rest = on_wire.checked_sub(count.segments + without_row).unwrap();
    assert!(rows.len() > 1000 && (1..=64).contains(&rest), "{on_wire} on the wire, {count:?}");
    // segs_in also counts the SYN-ACK, and segments in the backlog of a socket in use.
    let ahead = rows.iter().map(|row| row.segs_in.checked_sub(row.segments).unwrap());
    assert_eq!(ahead.min(), Some(1));
    // Exactly the segments without a row are counted, except those that PAWS discards: tcp_ack() is not called for them.
    let discarded = if count.hook() == AckHook::FexitTcpAck { discarded } else { 0 };
    assert_eq!(not_in_backlog(&rows).last(), Some(&(without_row + discarded)), "{count:?}");
    assert!(count.coalesced_segments <= coalesced, "{coalesced} coalesced, {count:?}");

    agrees_with_polls(&rows, &sender.samples);
    agrees_with_the_capture(&rows, count, data.sport, &sender);
    events_explain_the_rows(&rows, &sender.tcp_events, count.missed_events);
    let received = receiver.acks.iter().filter(|batch| batch.role() == Role::Data);
    let received: Vec<_> =
        received.inspect(|batch| assert_eq!(batch.side(), Side::Receiver)).collect();
    let bytes: BTreeSet<u64> =
        received.iter().flat_map(|batch| &batch.bytes_received).copied().collect();
    assert!(bytes.len() > 1, "{received:?}");
    nodes.reset().await;
}

/// Returns a counter of the group `TcpExt` of a namespace.
fn tcp_ext(namespace: &Namespace, counter: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/net/netstat", namespace.pid())).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let [names, values] = [lines.next().unwrap(), lines.next().unwrap()];
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    pairs.find(|(name, _)| *name == counter).unwrap().1.parse().unwrap()
}

/// Checks that the segments in tcpdump's capture explain the rows, and that segments without a row are counted.
fn agrees_with_the_capture(rows: &[Row], count: &wire::AckCount, port: u32, sender: &Rows) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &sender.raw["capture-wire.pcapng"]).unwrap();
    let dump = |filter: &str| {
        let mut tcpdump = Command::new("tcpdump");
        let done = tcpdump.args(["-nnSr", file.path().to_str().unwrap(), filter]).output();
        let done = done.expect("tcpdump is installed");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let reported: serde_json::Value =
        serde_json::from_str(&sender.events_of("capture")[0].data_json()).unwrap();
    assert_eq!(reported["dropped"], 0);
    assert_eq!(reported["packets"], dump("").len());
    let lines = dump(&format!("src host 10.9.0.2 and tcp dst port {port}"));
    let number = |line: &String| -> Option<u32> {
        let Some((_, rest)) = line.split_once(" ack ") else {
            // The peer resets a connection that it has already closed. Such a segment acknowledges nothing.
            assert!(line.contains("Flags [R]"), "{line}");
            return None;
        };
        Some(rest.split([',', ' ']).next().unwrap().parse().unwrap())
    };
    let (handshake, lines) = lines.split_first().unwrap();
    assert!(handshake.contains("Flags [S"), "{handshake}");
    let first = number(handshake).unwrap();
    let mut most = 0;
    let acked: Vec<u64> = lines
        .iter()
        .map(|line| {
            most = most.max(number(line).map_or(0, |ack| ack.wrapping_sub(first).into()));
            // The kernel also counts the handshake's byte.
            most + 1
        })
        .collect();
    // A row of tcp_probe has the state before its segment.
    let before = usize::from(count.hook() != AckHook::FexitTcpAck);
    let (without_row, swapped) = segments_without_row(rows, &acked, before).unwrap();
    println!("{swapped} pairs of segments in another order than on the wire");
    assert!(swapped * 100 <= rows.len(), "{swapped} swapped pairs in {} rows", rows.len());
    let counted = *not_in_backlog(rows).last().unwrap();
    assert!(without_row <= counted, "{without_row} segments without a row, {counted} counted");
}

/// Checks that the state from inet_diag equals that of the row with as many delivered packets. Times are not compared:
/// the poller may have waited for the CPU after it read its clock.
fn agrees_with_polls(rows: &[Row], samples: &[wire::FlowSample]) {
    let last = rows.len() - 1;
    let delivered = |poll: &wire::FlowSample| poll.delivered_pkts.unwrap();
    let polls = samples.iter().filter(|s| s.role() == Role::Data);
    let polls =
        polls.filter(|s| rows[0].delivered < delivered(s) && delivered(s) < rows[last].delivered);
    let (mut exact, mut all) = (0, 0);
    for poll in polls {
        all += 1;
        let retrans = poll.total_retrans_pkts.unwrap();
        let from = rows.partition_point(|row| row.delivered < delivered(poll));
        let to = rows.partition_point(|row| row.delivered <= delivered(poll));
        let around = &rows[from - 1..=to];
        assert!(around[0].retrans <= retrans, "{poll:?} {around:?}");
        assert!(retrans <= rows[to].retrans, "{poll:?} {around:?}");
        let same = |row: &Row| {
            row.delivered == delivered(poll)
                && Some(row.cwnd) == poll.snd_cwnd_pkts
                && Some(row.rtt_us) == poll.rtt_us
                && Some(row.rttvar_us) == poll.rttvar_us
        };
        exact += usize::from(around.iter().any(same));
    }
    assert!(all > 100 && exact * 100 >= all * 95, "{exact} of {all} polls are among the rows");
}

/// Checks that the retransmission and state events add up to the counters in the rows.
fn events_explain_the_rows(rows: &[Row], events: &[wire::TcpEvent], missed: u64) {
    let of = |kind: TcpEventKind| {
        events.iter().filter(move |e| e.role() == Role::Data && e.kind() == kind)
    };
    let last = &rows[rows.len() - 1];
    let before_last = of(TcpEventKind::Retransmit).filter(|event| event.at_ns < last.at_ns);
    let reported: u32 = before_last.map(|event| event.count).sum();
    assert!(reported > 0, "the queue is short");
    let states = states_of(events);
    assert!(states.iter().any(|&(_, after)| after == 3), "recovery: {states:?}");
    assert_eq!(states[0].0, 0, "it begins open");
    // A change starts in the state in which the previous one ended, unless an event is missing.
    let breaks = states.windows(2).filter(|pair| pair[0].1 != pair[1].0).count();
    let without_event = u64::from(last.retrans.checked_sub(reported).unwrap()) + breaks as u64;
    assert_eq!(without_event, missed, "packets sent again, and changes of state: {states:?}");
    assert_eq!(of(TcpEventKind::Cc).map(|event| &*event.cc).collect::<Vec<_>>(), ["cubic"]);
}

/// Returns the congestion state changes of the data connection: before and after.
fn states_of(events: &[wire::TcpEvent]) -> Vec<(u32, u32)> {
    let changes = events
        .iter()
        .filter(|event| event.role() == Role::Data && event.kind() == TcpEventKind::CaState);
    changes.map(|event| (event.ca_state_before.unwrap(), event.ca_state)).collect()
}

#[test]
fn two_timeouts_with_an_ack_between_are_two_events() {
    let _beside = Turn::beside_blocking();
    let test = thread::spawn(|| {
        let (mut sender, mut receiver, mut source) = watched_connection();
        let mut timeouts = move || -> Vec<u32> {
            let mut ready = Vec::new();
            source.drain(now_ns(), true, &mut ready);
            let events = ready.into_iter().flat_map(|payload| match payload {
                Payload::TcpEvents(all) => all.events,
                _ => Vec::new(),
            });
            events
                .filter(|event| event.kind() == TcpEventKind::Rto)
                .map(|event| event.count)
                .collect()
        };
        // A socket filter that passes nothing: segments are dropped and not acknowledged.
        let nothing = [SockFilter::new(6, 0, 0, 0)];
        for round in 0..2 {
            SockRef::from(&receiver).attach_filter(&nothing).unwrap();
            sender.write_all(&[1]).unwrap();
            let end_ns = now_ns() + 20_000_000_000;
            let mut reported = Vec::new();
            while reported.is_empty() {
                assert!(now_ns() < end_ns, "no timeout in round {round}");
                thread::sleep(std::time::Duration::from_millis(10));
                reported = timeouts();
            }
            SockRef::from(&receiver).detach_filter().unwrap();
            assert_eq!(reported[0], 1, "round {round}: {reported:?}");
            receiver.read_exact(&mut [0]).unwrap();
            receiver.write_all(&[1]).unwrap();
            sender.read_exact(&mut [0]).unwrap();
            let more = timeouts();
            assert!(more.iter().all(|&count| count > 1), "round {round}: {more:?}");
        }
    });
    test.join().unwrap();
}

#[test]
fn the_time_of_a_recovery_in_progress_counts() {
    let _beside = Turn::beside_blocking();
    let test = thread::spawn(|| {
        let (mut sender, mut receiver, mut source) = watched_connection();
        // A socket filter that passes nothing: segments are dropped and not acknowledged.
        let nothing = [SockFilter::new(6, 0, 0, 0)];
        SockRef::from(&receiver).attach_filter(&nothing).unwrap();
        let began_ns = now_ns();
        sender.write_all(&[1]).unwrap();
        let is_timeout = |payload: &Payload| match payload {
            Payload::TcpEvents(all) => all.events.iter().any(|e| e.kind() == TcpEventKind::Rto),
            _ => false,
        };
        let mut ready: Vec<Payload> = Vec::new();
        while !ready.iter().any(is_timeout) {
            assert!(now_ns() < began_ns + 20_000_000_000, "no timeout");
            thread::sleep(std::time::Duration::from_millis(10));
            source.drain(now_ns(), true, &mut ready);
        }
        thread::sleep(std::time::Duration::from_millis(50));
        // This segment acknowledges nothing new, so the recovery continues.
        receiver.write_all(&[1]).unwrap();
        sender.read_exact(&mut [0]).unwrap();
        let most_ms = (now_ns() - began_ns) / 1_000_000 + 1;
        ready.clear();
        source.drain(now_ns(), true, &mut ready);
        let last_rows = ready.iter().filter_map(|payload| match payload {
            Payload::Acks(batch) if batch.ca_state.last() == Some(&4) => Some(batch),
            _ => None,
        });
        let times: Vec<_> = last_rows.map(|rows| rows.total_rto_time_ms.last().copied()).collect();
        assert!(!times.is_empty(), "no row in the state Loss: {ready:?}");
        // Kernels before 6.7 do not have this time.
        for time_ms in times.into_iter().flatten() {
            assert!((50..=most_ms).contains(&u64::from(time_ms)), "{time_ms} of {most_ms} ms");
        }
    });
    test.join().unwrap();
}

#[tokio::test]
async fn marks_are_reported_as_they_arrive() {
    let _alone = Turn::alone().await;
    let mut nodes = Nodes::start().await;
    nodes.prepare("10ms", MARKS).await;
    let watch = CpuWatch::start();
    let [sender, receiver] = nodes.run().await;
    let cpu = watch.report();
    let made = sender.queue.iter().filter_map(|row| row.ce_mark_pkts).max().unwrap();
    let arrived: u64 = receiver
        .tcp_events
        .iter()
        .filter(|e| e.kind() == TcpEventKind::Ce)
        .map(|e| u64::from(e.count))
        .sum();
    assert!(made > 20, "the link marks");
    // The last sample of the queue is up to 100 ms old, and nothing is seen after the connection's end.
    cpu.check(std::time::Duration::from_millis(100), || {
        assert!(arrived.abs_diff(made) <= made / 20 + 3, "{made} made, {arrived} arrived");
    });
    let counted = sender
        .tcp_events
        .iter()
        .filter(|e| e.kind() == TcpEventKind::Ce && e.side() == Side::Sender);
    assert!(counted.count() > 0, "the sender hears of them");

    let rows = rows_of(&sender.acks);
    let count = count_of(&sender);
    let gaps: Vec<u64> = rows.windows(2).map(|pair| pair[1].at_ns - pair[0].at_ns).collect();
    assert!(gaps.iter().all(|&gap| gap >= 10_000_000), "{:?}", gaps.iter().min());
    assert!(rows.len() > 100 && rows.len() as u64 == count.rows && count.rows < count.segments / 2);
    nodes.reset().await;
}

#[tokio::test]
async fn a_row_on_change_differs_from_the_one_before() {
    let _alone = Turn::alone().await;
    let mut nodes = Nodes::start().await;
    nodes.prepare("on-change", DROPS).await;
    let [sender, _] = nodes.run().await;
    let (rows, count) = (rows_of(&sender.acks), count_of(&sender));
    assert!(
        rows.len() > 20 && (rows.len() as u64) < count.segments,
        "{} rows, {count:?}",
        rows.len()
    );
    // A change in another column may also have made a row, but rarely.
    let same = |pair: &[Row]| {
        (pair[0].cwnd, pair[0].retrans, pair[0].lost)
            == (pair[1].cwnd, pair[1].retrans, pair[1].lost)
    };
    let same = rows.windows(2).filter(|pair| same(pair)).count();
    assert!(same * 4 < rows.len(), "{same} of {} rows have no new information", rows.len());
    nodes.reset().await;
}

#[tokio::test]
async fn a_killed_agent_leaves_no_program_map_or_link() {
    let _beside = Turn::beside().await;
    let mut nodes = Nodes::start().await;
    nodes.prepare("every-ack", DROPS).await;
    let held = bpf_ids(nodes.agents[0].child.id());
    assert!(held.iter().any(|(kind, _)| kind == "prog_id"), "{held:?}");
    assert!(held.iter().any(|(kind, _)| kind == "map_id"), "{held:?}");
    nodes.agents[0].kill();
    wait_for("the end of all of them", || all_bpf_ids().is_disjoint(&held)).await;
    nodes.clients[1].reset(wire::ResetRequest::default()).await.unwrap();
}

/// Returns both ends of a connection in a new namespace of this thread, and the source of its acknowledgements.
fn watched_connection() -> (TcpStream, TcpStream, Box<dyn AckSource>) {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
    let listener = TcpListener::bind(("127.0.0.1", 5201)).unwrap();
    let sender = TcpStream::connect(("127.0.0.1", 5201)).unwrap();
    let flow = FlowPorts {
        group: "bulk".to_owned(),
        server_port: 5201,
        client_port: sender.local_addr().unwrap().port(),
        count: 1,
        listens: false,
        reverse: false,
    };
    let netns_cookie = ccbench_shaper::bpf::netns_cookie().unwrap();
    let watch = Watch { flows: &[flow], acks: Acks::Every, netns_cookie };
    (sender, listener.accept().unwrap().0, acks::open(&watch).unwrap())
}

/// Sends a byte in each direction, so many times; each is one segment.
fn exchange(mut one: TcpStream, mut two: TcpStream, times: usize) {
    one.set_nodelay(true).unwrap();
    two.set_nodelay(true).unwrap();
    for _ in 0..times {
        one.write_all(&[1]).unwrap();
        two.read_exact(&mut [0]).unwrap();
        two.write_all(&[1]).unwrap();
        one.read_exact(&mut [0]).unwrap();
    }
}

#[test]
fn a_ring_that_nobody_empties_is_a_counted_loss() {
    let _beside = Turn::beside_blocking();
    let test = thread::spawn(|| {
        let (sender, receiver, mut source) = watched_connection();
        let is_burst = |source: &dyn AckSource| {
            let burst = source.burst().unwrap();
            poll(&mut [PollFd::new(&burst, PollFlags::IN)], Some(&Timespec::default())) == Ok(1)
        };
        let mut ready = Vec::new();
        source.drain(now_ns(), true, &mut ready);
        assert!(!is_burst(&*source), "few rows wait for the next drain");
        exchange(sender, receiver, 30_000);
        assert!(is_burst(&*source));
        source.drain(now_ns(), true, &mut ready);
        assert!(!is_burst(&*source));
        let batches = ready.iter().filter_map(|payload| match payload {
            Payload::Acks(batch) => Some(batch),
            _ => None,
        });
        let rows: usize = batches.map(|batch| batch.at_ns.len()).sum();
        let counts = source.counts(now_ns());
        let count = counts.iter().find(|count| count.flow_id == "bulk/0").unwrap();
        assert_eq!(count.rows, rows as u64);
        assert!(count.rows > 10_000 && count.lost_rows > 0, "{count:?}");
        assert_eq!(count.rows + count.lost_rows, count.segments, "{count:?}");
    });
    test.join().unwrap();
}
