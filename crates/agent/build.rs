//! Compiles the congestion controls of `kmod/bpf` for BPF, so that the agent carries them, and this program's own
//! feature `ebpf` needs clang only here.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest that compiles them.
const CLANG: u32 = 16;
/// In the order in which they are tried, after `$CLANG`.
const NAMES: &[&str] =
    &["clang", "clang-21", "clang-20", "clang-19", "clang-18", "clang-17", "clang-16"];

fn main() {
    println!("cargo:rerun-if-env-changed=CLANG");
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_EBPF").is_none() {
        return;
    }
    if let Err(why) = build() {
        eprintln!("{why}");
        std::process::exit(1);
    }
}

fn build() -> Result<(), String> {
    let root = PathBuf::from(env("CARGO_MANIFEST_DIR")?).join("../../kmod");
    let out = PathBuf::from(env("OUT_DIR")?);
    for folder in ["adapter", "bpf", "core"] {
        println!("cargo:rerun-if-changed={}", root.join(folder).display());
    }
    let clang = clang()?;
    let mut sources: Vec<PathBuf> = std::fs::read_dir(root.join("bpf"))
        .map_err(|e| format!("read {}: {e}", root.join("bpf").display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.to_string_lossy().ends_with(".bpf.c"))
        .collect();
    sources.sort();
    let mut table =
        "/// Name (`ccb_ta`) and object, an ELF file.\npub const OBJECTS: &[(&str, &[u8])] = &[\n"
            .to_owned();
    for source in sources {
        let name = source.file_name().unwrap_or_default().to_string_lossy().replace(".bpf.c", "");
        let object = out.join(format!("{name}.bpf.o"));
        compile(&clang, &source, &object)?;
        // Only what is needed of it at run time: writing to a string cannot fail.
        let _ =
            writeln!(table, "    ({name:?}, include_bytes!({:?})),", object.display().to_string());
    }
    table.push_str("];\n");
    let file = out.join("objects.rs");
    std::fs::write(&file, table).map_err(|e| format!("write {}: {e}", file.display()))
}

fn env(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|e| format!("{name}: {e}"))
}

fn compile(clang: &str, source: &Path, object: &Path) -> Result<(), String> {
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
fn clang() -> Result<String, String> {
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
        "ccbench-agent carries its congestion controls as BPF programs, and compiling them needs clang {CLANG} or newer{seen}.\n\
         Run scripts/setup.sh, or `apt-get install clang libelf-dev zlib1g-dev`, or name one with CLANG=/path/to/clang;\n\
         or build without them: cargo build --no-default-features -p ccbench-agent"
    ))
}

fn version(clang: &str) -> Option<u32> {
    let ran = Command::new(clang).arg("--version").output().ok()?;
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    said.split("version ").nth(1)?.split('.').next()?.trim().parse().ok()
}
