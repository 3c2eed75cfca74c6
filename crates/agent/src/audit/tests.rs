use serde_json::Value;

use super::*;

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn alice() -> Identity {
    Identity { serial: "4a".into(), ..Identity::local("alice") }
}

fn call(audit: &Audit, rpc: Rpc) -> PendingCall {
    let peer = Peer::at([192, 0, 2, 1].into());
    PendingCall::new(audit.clone(), rpc, &alice(), Some(peer), RunId::default())
}

#[test]
fn calls_changes_and_refusals_are_lines() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let audit = Audit::open(&path, 1 << 20).unwrap();
    let prepare = call(&audit, Rpc::Prepare);
    let mut request = Request::new(());
    request.extensions_mut().insert(prepare.run_id.clone());
    note_run(&request, "run-1");
    audit.set_trial("run-1", Some(&alice()));
    audit.change("link l on eth0");
    prepare.finish(None);
    call(&audit, Rpc::Run).finish(Some(&Status::permission_denied("it lacks a scope")));
    drop(call(&audit, Rpc::Reset));
    audit.undone(&Outcome { undone: vec!["link l on eth0".into()], ..Outcome::default() });
    audit.undone(&Outcome::default());
    audit.refused("192.0.2.9:1", "TLS handshake");
    audit.flush();
    let lines = lines(&path);
    let of = |key: &str| -> Vec<&str> {
        lines.iter().map(|line| line[key].as_str().unwrap_or("-")).collect()
    };
    let events = ["start", "change", "rpc", "rpc", "rpc", "undo", "connection"];
    assert_eq!(of("event"), events);
    assert_eq!(of("rpc"), ["-", "-", "Prepare", "Run", "Reset", "-", "-"]);
    assert_eq!(of("result"), ["-", "-", "Ok", "PermissionDenied", "Cancelled", "-", "refused"]);
    assert_eq!(of("run_id"), ["-", "run-1", "run-1", "-", "-", "run-1", "-"]);
    assert_eq!(of("serial"), ["-", "4a", "4a", "4a", "4a", "4a", "-"]);
    let peer = "192.0.2.1";
    assert_eq!(of("peer"), ["-", "-", peer, peer, peer, "-", "192.0.2.9:1"]);
    assert_eq!(lines[3]["message"], "it lacks a scope");
    assert_eq!(lines[3]["scope"], "run");
    assert!(of("time").iter().all(|time| time.ends_with('Z')), "{lines:?}");
    let of = Calls { identity: String::new(), serial: String::new(), accepted: None };
    let unlogged = Unlogged { of, calls: 1 };
    let entry = Entry::from_unlogged(unlogged, 1_500_000_000_120_000_000);
    assert!(entry.line(1, 0).contains("\"2017-07-14T02:40:00.120000000Z\""), "nine digits");
    assert!(lines.iter().all(|line| line.get("lost").is_none()), "{lines:?}");
}

#[test]
fn repeated_reads_of_the_clock_are_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let audit = Audit::open(&path, 1 << 20).unwrap();
    (0..64).for_each(|_| call(&audit, Rpc::Clock).finish(None));
    (0..2).for_each(|_| call(&audit, Rpc::Describe).finish(None));
    audit.flush();
    let lines = lines(&path);
    // While a thread waits for its turn, the writer may write what it has.
    let calls = |line: &Value| line.get("calls").map_or(1, |calls| calls.as_u64().unwrap());
    let of = |rpc| lines.iter().filter(move |line| line["rpc"] == rpc);
    assert_eq!(of("Clock").map(calls).sum::<u64>(), 64);
    assert_eq!(of("Describe").count(), 2, "only reads of the clock are merged");
}

#[test]
fn a_full_file_is_renamed_and_only_some_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let mut file = LogFile::open(&path, 100).unwrap();
    let line = |number: u32| format!("{number:049}\n");
    // Each file holds two lines.
    (0..20).for_each(|number| file.append(&line(number)).unwrap());
    let entries = std::fs::read_dir(dir.path()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let numbered = (1..=KEPT_FILES).map(|number| file.numbered(number));
    let expected: Vec<_> = std::iter::once(path.clone()).chain(numbered).collect();
    assert_eq!(names, expected);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), line(18) + &line(19));
    let oldest = std::fs::read_to_string(file.numbered(KEPT_FILES)).unwrap();
    assert_eq!(oldest, line(10) + &line(11));
    // The next process appends.
    LogFile::open(&path, 200).unwrap().append(&line(20)).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), line(18) + &line(19) + &line(20));
}

#[test]
fn only_the_agents_user_may_read_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let _audit = Audit::open(&path, 1 << 20).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn entries_that_do_not_fit_are_counted() {
    let (inbox, entries) = sync_channel(1);
    let lost = Arc::new(AtomicU64::new(0));
    let shared = Shared { inbox, lost: Arc::clone(&lost), trial: Mutex::default() };
    let audit = Audit(Some(Arc::new(shared)));
    (0..3).for_each(|number| audit.refused_more(number));
    assert_eq!(lost.load(Ordering::Relaxed), 2);
    drop(audit);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let file = LogFile::open(&path, 1 << 20).unwrap();
    Writer::new(file, lost).run(&entries);
    let lines = lines(&path);
    assert_eq!((lines.len(), lines[0]["lost"].as_u64()), (1, Some(2)));
}

/// Returns an entry of a call by alice.
fn entry(rpc: Rpc, result: &str, realtime_ns: i64) -> Entry {
    let dir = tempfile::tempdir().unwrap();
    let audit = Audit::open(&dir.path().join(FILE), 1 << 20).unwrap();
    let mut pending = PendingCall::new(audit, rpc, &alice(), None, RunId::default());
    let call = pending.call.take().unwrap();
    Entry { realtime_ns, event: AuditEvent::Rpc(Call { result: result.to_owned(), ..call }) }
}

#[test]
fn reads_of_the_clock_that_go_on_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let mut writer = Writer::new(LogFile::open(&path, 1 << 20).unwrap(), Arc::default());
    let hold_ns = HOLD_NS.cast_signed();
    let read = |realtime_ns| entry(Rpc::Clock, "Ok", realtime_ns);
    for realtime_ns in [7, 8, hold_ns + 6, hold_ns + 7] {
        writer.take(read(realtime_ns));
    }
    let calls: Vec<_> = lines(&path).iter().map(|line| line["calls"].as_u64()).collect();
    assert_eq!(calls, [Some(3)], "the fourth is not within a second of the first");
}

#[test]
fn refused_calls_do_not_fill_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let mut writer = Writer::new(LogFile::open(&path, 1 << 20).unwrap(), Arc::default());
    let refused = entry(Rpc::Run, "PermissionDenied", 0);
    for _ in 0..limits::MAX_LINES + 5 {
        writer.take(refused.clone());
    }
    writer.take(entry(Rpc::Describe, "Ok", 1));
    let of = |event: &str| {
        lines(&path).into_iter().filter(|line| line["event"] == event).collect::<Vec<Value>>()
    };
    let expected = usize::try_from(limits::MAX_LINES).unwrap() + 1;
    assert_eq!((of("rpc").len(), of("calls").len()), (expected, 0));
    writer.write_all();
    let counted = of("calls");
    assert_eq!(counted.len(), 1);
    assert_eq!(counted[0]["identity"], "alice");
    assert_eq!(counted[0]["calls"], 5);
}

#[test]
fn accepted_calls_do_not_fill_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let mut writer = Writer::new(LogFile::open(&path, 1 << 20).unwrap(), Arc::default());
    let change =
        || AuditEvent::Change { trial: Trial::default(), change: "link l on eth0".to_owned() };
    let [describe, clock] = [Rpc::Describe, Rpc::Clock].map(|rpc| entry(rpc, ACCEPTED, 0));
    for _ in 0..limits::MAX_LINES + 5 {
        writer.take(describe.clone());
        // Between two others, it is not merged.
        writer.take(clock.clone());
        writer.take(Entry { realtime_ns: 0, event: change() });
    }
    writer.write_all();
    let of = |event: &str| {
        lines(&path).into_iter().filter(|line| line["event"] == event).collect::<Vec<Value>>()
    };
    let max_lines = usize::try_from(limits::MAX_LINES).unwrap();
    assert_eq!((of("rpc").len(), of("change").len()), (2 * max_lines, max_lines + 5));
    let counted = of("calls").into_iter().map(|line| {
        assert_eq!(line["identity"], "alice");
        assert_eq!(line["result"], "Ok");
        (line["rpc"].as_str().unwrap().to_owned(), line["calls"].as_u64().unwrap())
    });
    let expected = ["Clock", "Describe"].map(|rpc| (rpc.to_owned(), 5));
    assert_eq!(counted.collect::<Vec<_>>(), expected);
}

#[test]
fn a_flush_waits_for_room_in_the_queue() {
    let (inbox, entries) = sync_channel(1);
    let shared = Shared { inbox, lost: Arc::default(), trial: Mutex::default() };
    let audit = Audit(Some(Arc::new(shared)));
    audit.refused_more(1);
    audit.flush_with(0, || {});
    let (paused, pauses) = sync_channel(1);
    let flushing = std::thread::spawn(move || {
        audit.flush_with(10_000, || {
            // Only the first one is awaited.
            let _ = paused.try_send(());
            std::thread::sleep(FLUSH_RETRY);
        });
    });
    // The first attempt has found no room.
    pauses.recv().unwrap();
    assert!(matches!(entries.recv().unwrap(), Message::Entry(_)));
    let Message::Flush(done) = entries.recv().unwrap() else { panic!("it gave up") };
    done.send(()).unwrap();
    flushing.join().unwrap();
}

#[test]
fn the_partial_line_of_a_dead_agent_gets_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    std::fs::write(&path, "{\"time\":").unwrap();
    let mut file = LogFile::open(&path, 1 << 20).unwrap();
    file.append("{}\n").unwrap();
    drop(file);
    LogFile::open(&path, 1 << 20).unwrap().append("{}\n").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"time\":\n{}\n{}\n");
}

#[test]
fn long_texts_of_clients_are_cut() {
    assert_eq!(short("run-1"), "run-1");
    let long = "é".repeat(MAX_TEXT_BYTES);
    let cut = short(&long);
    assert!(cut.len() <= MAX_TEXT_BYTES + "…".len() && cut.ends_with('…'), "{}", cut.len());
}

#[test]
fn without_a_file_nothing_is_recorded() {
    let audit = Audit::default();
    audit.change("link l on eth0");
    audit.set_trial("run-1", None);
    call(&audit, Rpc::Run).finish(None);
    audit.flush();
    assert!(!audit.is_open());
}
