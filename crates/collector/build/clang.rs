//! Compiling C for BPF: shared by the build scripts of the crates that carry such programs.

use std::path::Path;
use std::process::Command;

/// The oldest that compiles them.
const CLANG: u32 = 16;
/// In the order in which they are tried, after `$CLANG`.
const NAMES: &[&str] =
    &["clang", "clang-21", "clang-20", "clang-19", "clang-18", "clang-17", "clang-16"];

/// What a build script does: nothing without the feature `ebpf`, and `build` with it.
pub fn run(build: impl FnOnce() -> Result<(), String>) {
    println!("cargo:rerun-if-env-changed=CLANG");
    if std::env::var_os("CARGO_FEATURE_EBPF").is_none() {
        return;
    }
    if let Err(why) = build() {
        eprintln!("{why}");
        std::process::exit(1);
    }
}

/// A variable that Cargo sets.
pub fn env(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|e| format!("{name}: {e}"))
}

/// Compiles one source file to an object.
pub fn compile(clang: &str, source: &Path, object: &Path) -> Result<(), String> {
    let flags = ["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-fno-strict-aliasing", "-c"];
    let ran = Command::new(clang).args(flags).arg("-o").arg(object).arg(source).output();
    let ran = ran.map_err(|e| format!("run {clang}: {e}"))?;
    if ran.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ran.stderr);
    Err(format!("{clang} cannot compile {} for BPF:\n{said}", source.display()))
}

/// A clang that is new enough and knows BPF.
pub fn clang() -> Result<String, String> {
    let wanted = std::env::var("CLANG").ok();
    let names: Vec<&str> = match &wanted {
        Some(name) => vec![name],
        None => NAMES.to_vec(),
    };
    let mut found = Vec::new();
    for name in names {
        match version(name) {
            Some(version) if version >= CLANG => return Ok(name.to_owned()),
            Some(version) => found.push(format!("{name} is version {version}")),
            None => {}
        }
    }
    let seen = if found.is_empty() { String::new() } else { format!(" ({})", found.join(", ")) };
    Err(format!(
        "ccbench-agent carries BPF programs, and compiling them needs clang {CLANG} or newer{seen}.\n\
         Run scripts/setup.sh, or `apt-get install clang libelf-dev zlib1g-dev`, or name one with CLANG=/path/to/clang;\n\
         or build without them: cargo build --no-default-features -p ccbench-agent"
    ))
}

fn version(clang: &str) -> Option<u32> {
    let ran = Command::new(clang).arg("--version").output().ok()?;
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    said.split("version ").nth(1)?.split('.').next()?.trim().parse().ok()
}
