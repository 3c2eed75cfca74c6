use super::*;

fn begin(point_id: u32, trial: u16, epoch: u64) -> Entry {
    Entry::TrialBegin { point_id, trial, seed: 7, epoch }
}

fn end(point_id: u32, trial: u16, epoch: u64) -> Entry {
    let key = TrialKey { point_id, trial, seed: 7, epoch };
    Entry::TrialEnd(TrialEnd::new(key, TrialStatus::Ok))
}

#[test]
fn loading_of_a_later_version_is_unspecified() {
    let read = |via: &str| -> CcRecord {
        let line = format!(
            r#"{{"node":"a","name":"c","algorithm":"ta","kernel_name":"ta.1","via":"{via}","why":"","params":{{}}}}"#
        );
        serde_json::from_str(&line).unwrap()
    };
    assert_eq!((read("bpf").via, read("moon").via), (Via::Bpf, Via::Unspecified));
    assert_eq!(serde_json::to_value(read("module")).unwrap()["via"], "module");
}

#[test]
fn the_former_key_of_a_reason_is_read() {
    let read = |key: &str| -> CcRecord {
        let line = format!(
            r#"{{"node":"a","name":"c","algorithm":"ta","kernel_name":"ta.1","via":"bpf","{key}":"so","params":{{}}}}"#
        );
        serde_json::from_str(&line).unwrap()
    };
    assert_eq!(read("why"), read("reason"));
    assert_eq!(serde_json::to_value(read("why")).unwrap()["reason"], "so");
}

fn text(entries: &[Entry]) -> String {
    entries.iter().map(|e| line(e).unwrap()).collect()
}

#[test]
fn line_round_trips() {
    let line = line(&end(1, 2, 3)).unwrap();
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(value["event"], "trial_end");
    assert_eq!(parse(line.trim_end().as_bytes()), Some(end(1, 2, 3)));
}

#[test]
fn a_writer_waits_for_a_reader_of_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE_NAME);
    let writer = File::create(&path).unwrap();
    let reader = File::open(&path).unwrap();
    reader.lock_shared().unwrap();
    let mut pauses = 0;
    let unlock = || {
        pauses += 1;
        reader.unlock().unwrap();
    };
    lock_with(&writer, dir.path(), unlock).unwrap();
    assert_eq!(pauses, 1);
    assert!(is_written(dir.path()));
}

#[test]
fn journal_cut_at_any_byte_keeps_complete_lines() {
    let entries = [begin(0, 1, 1), end(0, 1, 1), begin(1, 1, 2), end(1, 1, 2)];
    let text = text(&entries);
    let ends: Vec<usize> = text.match_indices('\n').map(|(i, _)| i + 1).collect();
    for cut in 0..=text.len() {
        let state = read(&text.as_bytes()[..cut], Path::new("j")).unwrap();
        let whole = ends.iter().filter(|e| **e <= cut).count();
        assert_eq!(state.committed.len(), whole / 2, "cut at {cut}");
        assert_eq!(state.good_bytes + state.torn_bytes, cut as u64);
        assert_eq!(state.good_bytes, whole.checked_sub(1).map_or(0, |w| ends[w]) as u64);
    }
}

#[test]
fn lines_follow_only_complete_lines() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::create(dir.path()).unwrap();
    journal.append(begin(0, 1, 1)).unwrap();
    let path = dir.path().join(FILE_NAME);
    // As after an append on a full disk, if the file could not be truncated either.
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"{\"event\":\"trial_e").unwrap();
    journal.append(end(0, 1, 1)).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let state = read(&bytes, &path).unwrap();
    assert_eq!((state.committed.len(), state.torn_bytes), (1, 0));
    assert_eq!(state.good_bytes, journal.state().good_bytes);
}

#[test]
fn flipped_bit_in_last_line_is_a_torn_tail() {
    let mut bytes = text(&[begin(0, 1, 1), end(0, 1, 1)]).into_bytes();
    let last = bytes.len() - 30;
    bytes[last] ^= 1;
    let state = read(&bytes, Path::new("j")).unwrap();
    assert!(state.committed.is_empty());
    assert!(state.torn_bytes > 0);
}

#[test]
fn rejects_damage_before_valid_lines() {
    let mut bytes = text(&[begin(0, 1, 1), end(0, 1, 1)]).into_bytes();
    bytes[5] ^= 1;
    let error = read(&bytes, Path::new("j")).unwrap_err();
    assert!(matches!(error, JournalError::Damaged { line: 1, .. }), "{error}");
}

#[test]
fn a_phase_ends_within_the_longest_trial() {
    let with = |end_us| {
        let key = TrialKey { point_id: 3, trial: 2, seed: 7, epoch: 1 };
        let phase = PhaseRecord { name: "late".to_owned(), start_us: 0, end_us, measure: true };
        let end = TrialEnd { phases: vec![phase], ..TrialEnd::new(key, TrialStatus::Ok) };
        read(text(&[begin(3, 2, 1), Entry::TrialEnd(end)]).as_bytes(), Path::new("j"))
    };
    assert_eq!(with(MAX_TRIAL.get()).unwrap().committed.len(), 1);
    for end_us in [MAX_TRIAL.get() + 1, 10_u64.pow(15), 1 << 63] {
        let error = with(end_us).unwrap_err().to_string();
        let place = "line 2: `phases` of trial 2 of point 3: `late` ends ";
        assert!(error.contains(place) && error.contains("604800s"), "{error}");
    }
}

#[test]
fn restarted_trial_is_not_committed_until_it_ends() {
    let bytes = text(&[begin(0, 1, 1), end(0, 1, 1), begin(0, 1, 5)]);
    let state = read(bytes.as_bytes(), Path::new("j")).unwrap();
    assert!(state.committed.is_empty());
    assert_eq!(state.last_epoch, 5);
}

#[test]
fn skips_entry_of_later_version() {
    let body = r#"{"event":"moon_phase","value":3}"#;
    let bytes = seal(body) + &text(&[begin(0, 1, 1), end(0, 1, 1)]);
    let state = read(bytes.as_bytes(), Path::new("j")).unwrap();
    assert_eq!(state.committed.len(), 1);
}
