//! Journals of dead agents, which the next start undoes.

use ccbench_proto::sealed_line::{seal, unseal};

use super::namespace::tests::{fake, proc_of};
use super::*;
use crate::interfaces::fake::FakeInterfaces;

fn offloads(dev: &str) -> Step {
    Step::Offloads { dev: dev.into(), before: serde_json::json!({"tso": true}) }
}
fn link(dev: &str) -> Step {
    Step::Link { link: "l".into(), dev: dev.into(), before: serde_json::Value::Null }
}

/// Returns a state directory in which a dead agent left these steps.
fn left(steps: &[Step]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (mut undo, _) = Undo::open(dir.path()).unwrap();
    steps.iter().for_each(|step| undo.push(step.clone()).unwrap());
    dir
}

/// Returns the calls and the outcome of the next start.
fn next_start(dir: &tempfile::TempDir) -> (Vec<String>, Outcome) {
    next_start_in(dir, Namespaces::of_thread(None))
}

/// Like [`next_start`], from this network namespace.
fn next_start_in(dir: &tempfile::TempDir, here: Namespaces) -> (Vec<String>, Outcome) {
    let interfaces = FakeInterfaces::default();
    let (_, outcome) = Undo::open_with(dir.path(), &interfaces, here).unwrap();
    (interfaces.calls(), outcome)
}

fn text(dir: &tempfile::TempDir) -> String {
    std::fs::read_to_string(dir.path().join(journal::FILE)).unwrap()
}

/// Returns the object that a journal line seals.
fn object(line: &str) -> String {
    String::from_utf8(unseal(line.as_bytes()).unwrap()).unwrap()
}

fn set_text(dir: &tempfile::TempDir, text: &str) {
    std::fs::write(dir.path().join(journal::FILE), text).unwrap();
}

#[test]
fn undoes_in_reverse_order() {
    let interfaces = FakeInterfaces::default();
    let mut undo = Undo::in_memory();
    undo.push(offloads("a")).unwrap();
    undo.push(link("a")).unwrap();
    let outcome = undo.undo_all(&interfaces);
    assert_eq!(outcome.undone, ["link l on a", "offloads of a"]);
    assert_eq!(interfaces.calls(), ["restore_root a", "restore_offloads a"]);
    assert_eq!(undo.undo_all(&interfaces), Outcome::default(), "nothing is undone twice");
}

#[test]
fn the_next_start_undoes_the_steps_of_a_dead_agent() {
    let dir = left(&[offloads("a"), link("b")]);
    assert_eq!(next_start(&dir).0, ["restore_root b", "restore_offloads a"]);
    assert_eq!(next_start(&dir), (vec![], Outcome::default()));
    assert_eq!(text(&dir), "");
}

#[test]
fn what_fails_stays_and_is_tried_again() {
    let dir = left(&[offloads("a"), offloads("b")]);
    let interfaces = FakeInterfaces::failing("restore_offloads a");
    let (mut undo, outcome) =
        Undo::open_with(dir.path(), &interfaces, Namespaces::of_thread(None)).unwrap();
    assert_eq!((outcome.undone.len(), outcome.failed.len()), (1, 1));
    assert!(outcome.failed[0].starts_with("offloads of a: "), "{outcome:?}");
    // Undoing this agent's steps keeps what the dead one left.
    undo.push(offloads("c")).unwrap();
    assert_eq!(undo.undo_all(&interfaces).failed.len(), 1);
    assert!(!undo.is_empty());
    drop(undo);
    assert_eq!(next_start(&dir).0, ["restore_offloads a"]);
}

#[test]
fn a_torn_line_is_of_a_change_that_was_not_made() {
    let dir = left(&[offloads("a"), link("b")]);
    let whole = text(&dir);
    for cut in 1..whole.lines().next_back().unwrap().len() {
        set_text(&dir, &whole[..whole.len() - 1 - cut]);
        let (calls, outcome) = next_start(&dir);
        assert_eq!((calls, outcome.failed), (vec!["restore_offloads a".to_owned()], vec![]));
    }
    // Only the line feed is missing, so the change may have been made.
    set_text(&dir, &whole[..whole.len() - 1]);
    assert_eq!(next_start(&dir).0.len(), 2);
}

#[test]
fn a_damaged_line_stays_and_the_others_are_undone() {
    let dir = left(&[offloads("a"), link("b"), offloads("c")]);
    set_text(&dir, &text(&dir).replacen("\"b\"", "\"d\"", 1));
    let (calls, outcome) = next_start(&dir);
    assert_eq!(calls, ["restore_offloads c", "restore_offloads a"]);
    let [failed] = &outcome.failed[..] else { panic!("{outcome:?}") };
    for part in ["line 2 is damaged", "undo.ndjson", "--discard-damaged"] {
        assert!(failed.contains(part), "no `{part}`: {outcome:?}");
    }
    let (calls, again) = next_start(&dir);
    assert_eq!((calls.len(), again.failed.len()), (0, 1), "{again:?}");
    let unreachable = Discard { unreachable: true, ..Discard::default() };
    let kept = roll_back(dir.path(), None, unreachable).unwrap();
    assert_eq!(kept.failed.len(), 1, "{kept:?}");
    let damaged = Discard { damaged: true, ..Discard::default() };
    let outcome = roll_back(dir.path(), None, damaged).unwrap();
    assert_eq!((outcome, text(&dir)), (Outcome::default(), String::new()));
}

#[test]
fn steps_of_another_version_stay() {
    let dir = left(&[offloads("a")]);
    let known = object(text(&dir).trim_end());
    let later = [
        known.replace("\"version\":2", "\"version\":3"),
        known.replace("\"offloads\"", "\"moon_phase\""),
    ];
    for object in later {
        set_text(&dir, &seal(&object));
        let (calls, outcome) = next_start(&dir);
        assert_eq!(calls, Vec::<String>::new(), "{object}");
        assert!(outcome.failed[0].contains("line 1 was written by another version"), "{outcome:?}");
        assert_eq!(text(&dir), seal(&object));
    }
}

#[test]
fn discards_steps_of_an_earlier_boot() {
    let group = Step::TrafficGroup { folder: "/x".into() };
    let saved = Saved { name: "net.x".into(), before: "1".into() };
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let earlier = |line: &str| seal(&object(line).replace(boot_id.trim(), "an-earlier-boot"));
    let of_earlier = text(&left(&[offloads("a"), group, Step::Sysctl(saved)]));
    let of_earlier: String = of_earlier.lines().map(earlier).collect();
    let dir = left(&[offloads("b")]);
    set_text(&dir, &(of_earlier + &text(&dir)));
    assert_eq!(next_start(&dir).0, ["restore_offloads b"]);
    assert_eq!(text(&dir), "");
}

/// Returns the journal of an agent in the network namespace with this inode and cookie.
fn left_in(inode: u64, cookie: u64) -> tempfile::TempDir {
    let (dir, proc) = (tempfile::tempdir().unwrap(), proc_of(&[]));
    let interfaces = FakeInterfaces::default();
    let here = fake(inode, cookie, proc.path());
    let (mut undo, _) = Undo::open_with(dir.path(), &interfaces, here).unwrap();
    undo.push(offloads("a")).unwrap();
    undo.push(Step::TrafficGroup { folder: dir.path().join("ccbench-traffic-none") }).unwrap();
    undo.push(link("a")).unwrap();
    dir
}

#[test]
fn steps_of_another_namespace_are_not_undone_here_and_stay() {
    let dir = left_in(2, 20);
    let journal = text(&dir);
    // A process is still in that namespace, but it cannot be entered: its file leads nowhere.
    let proc = proc_of(&[1, 2]);
    let (calls, outcome) = next_start_in(&dir, fake(1, 10, proc.path()));
    assert_eq!(calls, Vec::<String>::new());
    // A control group belongs to the machine, whichever namespace its agent was in.
    assert_eq!(outcome.undone.len(), 1, "{outcome:?}");
    let [of_link, of_offloads] = &outcome.failed[..] else { panic!("{outcome:?}") };
    assert!(of_link.starts_with("link l on a: ") && of_offloads.starts_with("offloads of a: "));
    assert!(of_link.contains("/run/netns/exp (inode 2)"), "{outcome:?}");
    let kept: Vec<_> =
        journal.lines().filter(|line| !line.contains("ccbench-traffic-none")).collect();
    assert_eq!(text(&dir).lines().collect::<Vec<_>>(), kept);
    // Now from within the namespace itself.
    let (calls, outcome) = next_start_in(&dir, fake(2, 20, proc.path()));
    assert_eq!(calls, ["restore_root a", "restore_offloads a"]);
    assert_eq!((outcome.failed, outcome.dropped), (vec![], vec![]));
}

#[test]
fn steps_of_a_namespace_that_is_gone_are_dropped() {
    // No process is in it; or a later namespace has its inode.
    for (inodes, own) in [(&[1][..], (1, 10)), (&[2][..], (2, 21))] {
        let (dir, proc) = (left_in(2, 20), proc_of(inodes));
        let (calls, outcome) = next_start_in(&dir, fake(own.0, own.1, proc.path()));
        assert_eq!(calls, Vec::<String>::new());
        assert_eq!((outcome.undone.len(), outcome.failed.len()), (1, 0), "{outcome:?}");
        let expected = "the network namespace /run/netns/exp (inode 2) no longer exists";
        let of = |step: &str| format!("{step}: {expected}");
        assert_eq!(outcome.dropped, [of("link l on a"), of("offloads of a")]);
        assert_eq!(text(&dir), "");
    }
}

#[test]
fn steps_of_namespaces_that_cannot_be_entered_are_dropped_on_demand() {
    let unreachable = |proc: &tempfile::TempDir, discard| {
        let (dir, interfaces) = (left_in(2, 20), FakeInterfaces::default());
        let here = fake(1, 10, proc.path());
        let outcome = roll_back_with(dir.path(), &interfaces, here, discard).unwrap();
        assert_eq!((interfaces.calls(), outcome.undone.len()), (vec![], 1), "{outcome:?}");
        (outcome, text(&dir))
    };
    // One process hides its namespace; one is found, but its file leads nowhere.
    let hides = proc_of(&[1]);
    std::fs::create_dir_all(hides.path().join("7/ns")).unwrap();
    std::fs::write(hides.path().join("7/ns/net"), "").unwrap();
    for (proc, why) in [(hides, "is not found (read "), (proc_of(&[1, 2]), "cannot be entered")] {
        let damaged = Discard { damaged: true, ..Discard::default() };
        let (kept, journal) = unreachable(&proc, damaged);
        assert_eq!((kept.failed.len(), kept.dropped.len()), (2, 0), "{kept:?}");
        assert!(kept.failed[0].contains("--discard-unreachable"), "{kept:?}");
        assert_eq!(journal.lines().count(), 2);
        let (outcome, journal) =
            unreachable(&proc, Discard { unreachable: true, ..Discard::default() });
        let [of_link, of_offloads] = &outcome.dropped[..] else { panic!("{outcome:?}") };
        assert!(of_link.starts_with("link l on a: the network namespace /run/netns/exp "));
        assert!(of_offloads.starts_with("offloads of a: ") && of_link.contains(why));
        assert_eq!((outcome.failed, journal), (vec![], String::new()));
    }
}

#[test]
fn steps_without_a_namespace_are_undone_here() {
    let dir = left(&[offloads("a")]);
    let of_first_version = |line: &str| {
        let mut object: serde_json::Value = serde_json::from_str(&object(line)).unwrap();
        object["version"] = 1.into();
        assert!(object.as_object_mut().unwrap().remove("netns").is_some());
        seal(&object.to_string())
    };
    set_text(&dir, &of_first_version(text(&dir).trim_end()));
    let proc = proc_of(&[1]);
    let (calls, outcome) = next_start_in(&dir, fake(1, 10, proc.path()));
    assert_eq!((calls, outcome.failed), (vec!["restore_offloads a".to_owned()], vec![]));
}

#[test]
fn nothing_is_made_where_there_is_no_journal() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    assert_eq!(roll_back(&missing, None, Discard::default()).unwrap(), Outcome::default());
    assert!(!missing.exists());
}
