//! Fuzzes files of boot loaders.

use ccbench_agent::fuzzing::{grub_entries, grub_with_variable};

use crate::text;

/// The menu: at most one kernel per line, and none without a release.
pub fn grub_config(data: &[u8]) {
    let Some(config) = text(data) else { return };
    let found = grub_entries(config);
    assert!(found.len() <= config.lines().count());
    assert!(found.iter().all(|(release, _)| !release.is_empty() && !release.contains('/')));
}

/// The environment block: setting and removing a variable changes neither the others nor the size.
pub fn grub_environment(data: &[u8]) {
    const NAME: &str = "next_entry";
    let removed = grub_with_variable(data, NAME, None);
    let Some(set) = grub_with_variable(data, NAME, Some("a>b")) else { return };
    assert_eq!(set.len(), data.len());
    let lines = set.split(|byte| *byte == b'\n');
    assert_eq!(lines.filter(|line| line.starts_with(b"next_entry=")).count(), 1);
    assert_eq!(grub_with_variable(&set, NAME, None), removed);
}
