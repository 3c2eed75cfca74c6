//! Fuzzes the journals of an agent.

use ccbench_agent::fuzzing::{cc_journal, undo_journal};
use ccbench_agent::undo::Step;
use ccbench_proto::sealed_line::{lines, seal, unseal};
use ccbench_shaper::fuzzing::{from_hex, to_hex};
use ccbench_shaper::saved::SavedRoot;

use crate::text;

/// Lines with checksums.
pub fn sealed_line(data: &[u8]) {
    let found = lines(data);
    assert!(found.iter().map(|line| line.number).eq(1..=found.len()));
    let bytes: usize = found.iter().map(|line| line.bytes.len() + 1).sum();
    assert!(bytes <= data.len() + 1);
    for line in &found {
        let Some(object) = &line.object else { continue };
        assert_eq!(unseal(line.bytes).as_ref(), Some(object));
        if let Some(object) = text(object) {
            assert_eq!(seal(object).trim_end_matches('\n').as_bytes(), line.bytes);
        }
    }
    if let Some(object) = text(data).filter(|text| text.ends_with('}')) {
        let line = seal(object);
        assert_eq!(unseal(line.trim_end_matches('\n').as_bytes()).as_deref(), Some(data));
    }
}

/// Returns the input's lines, each with its checksum, so that what comes after the check is reached.
pub(crate) fn sealed(data: &[u8]) -> Vec<u8> {
    let lines = text(data).into_iter().flat_map(str::lines);
    lines.filter(|line| line.ends_with('}')).map(seal).collect::<String>().into_bytes()
}

/// The undo journal: a line is a step, is unreadable and is kept, or is of an earlier boot.
pub fn undo(data: &[u8]) {
    for bytes in [data, &sealed(data)] {
        let (steps, unreadable, again) = undo_journal(bytes, "now").unwrap_or_default();
        assert!(steps.len() + unreadable <= lines(bytes).len());
        let (same, still, _) = undo_journal(&again, "now").unwrap_or_default();
        assert_eq!((&same, still), (&steps, unreadable), "writing it again loses nothing");
        for step in &steps {
            assert!(!step.to_string().is_empty());
            if let Step::Link { before, .. } = step
                && let Ok(SavedRoot::Qdisc { options, .. }) = serde_json::from_value(before.clone())
            {
                let bytes = from_hex(&options);
                assert_eq!(
                    bytes.as_deref().map(to_hex),
                    bytes.is_some().then(|| options.to_lowercase())
                );
            }
        }
    }
}

/// The journal of congestion controls.
pub fn cc(data: &[u8]) {
    for bytes in [data, &sealed(data)] {
        let steps = cc_journal(bytes);
        assert_eq!(steps.len(), lines(bytes).len());
        for step in steps.into_iter().filter_map(|(_, step)| step.ok()) {
            assert!(!step.to_string().is_empty());
        }
    }
}
