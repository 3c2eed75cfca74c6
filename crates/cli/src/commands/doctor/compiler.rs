//! Looks for a clang that compiles congestion controls in BPF.

use std::process::Command;

use super::Check;

/// The oldest clang that compiles ccbench's own, as in `crates/collector/build/clang.rs`.
const OLDEST: u32 = 16;
/// Command names, in the order of that file.
const NAMES: [&str; 7] =
    ["clang", "clang-21", "clang-20", "clang-19", "clang-18", "clang-17", "clang-16"];

/// Checks for a compiler.
pub(super) fn check() -> Check {
    check_of(NAMES.into_iter().filter_map(|name| Some((name, version(name)?))))
}

/// Checks the compilers that were found: their names and versions.
fn check_of(mut found: impl Iterator<Item = (&'static str, u32)>) -> Check {
    let mut old = String::new();
    let new = found.find_map(|(name, version)| match version >= OLDEST {
        true => Some(name.to_owned()),
        false => {
            old = format!("{name} is version {version}");
            None
        }
    });
    let is_there = new.is_some();
    let remedy = "install clang 16 or newer, for example `apt-get install clang-19`, to compile congestion controls of your own";
    Check::new("clang", is_there, new.unwrap_or(old), remedy).optional()
}

/// Returns the major version; `None` without such a command.
#[expect(clippy::disallowed_methods, reason = "starts clang")]
fn version(name: &str) -> Option<u32> {
    let output = Command::new(name).arg("--version").output().ok()?;
    major(&String::from_utf8_lossy(&output.stdout))
}

fn major(text: &str) -> Option<u32> {
    text.split("version ").nth(1)?.split('.').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_enough_clang_is_found_under_any_name() {
        assert_eq!(major("Debian clang version 19.1.7 (3+b1)\nTarget: x\n"), Some(19));
        let newer = check_of([("clang", 14), ("clang-19", 19)].into_iter());
        assert!(newer.is_ok() && newer.found == "clang-19", "{newer:?}");
        let old = check_of([("clang", 14)].into_iter());
        assert!(!old.is_ok() && old.found == "clang is version 14", "{old:?}");
        assert!(check_of(std::iter::empty()).remedy.contains("apt-get install clang-19"));
    }
}
