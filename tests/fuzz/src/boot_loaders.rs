//! Fuzzes files of boot loaders.

use ccbench_agent::fuzzing::{
    grub_entries, grub_with_variable, systemd_boot_release_of_image, systemd_boot_releases,
    systemd_boot_without_counter,
};

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

/// An entry of systemd-boot: the name of its file without the ending, and on the following lines its text.
pub fn systemd_boot(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let (name, entry) = text.split_once('\n').unwrap_or((text, ""));
    for ending in [".conf", ".efi"] {
        let id = systemd_boot_without_counter(&format!("{name}{ending}"), ending);
        let stem = id.strip_suffix(ending).expect("the ending stays");
        assert!(name.starts_with(stem));
        let release = systemd_boot_release_of_image(&id);
        assert!(release.is_none_or(|release| !release.is_empty() && stem.ends_with(&release)));
    }
    let found = systemd_boot_releases(entry);
    assert!(found.is_sorted_by(|a, b| a < b));
    assert!(found.iter().all(|release| !release.is_empty() && entry.contains(release)));
}
