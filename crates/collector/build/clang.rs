//! Compiles C for BPF. Shared by the build scripts of the crates that embed BPF programs.

use std::env::VarError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest supported clang.
const OLDEST_CLANG: u32 = 16;
/// Command names to try, in this order, if `$CLANG` is not set.
const NAMES: &[&str] =
    &["clang", "clang-21", "clang-20", "clang-19", "clang-18", "clang-17", "clang-16"];

/// An error of a build script. Written by hand because a build script should not have to compile thiserror.
#[derive(Debug)]
pub enum BuildError {
    /// Cargo did not set a variable.
    Env { name: &'static str, source: VarError },
    /// A file cannot be read or written, or a program cannot be started.
    Io { op: &'static str, path: PathBuf, source: io::Error },
    /// clang reported errors.
    Compile { clang: String, source_file: PathBuf, stderr: String },
    /// No clang is new enough. `found` lists those that are too old.
    NoClang { found: Vec<String> },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env { name, source } => write!(f, "{name}: {source}"),
            Self::Io { op, path, source } => write!(f, "cannot {op} {}: {source}", path.display()),
            Self::Compile { clang, source_file, stderr } => {
                write!(f, "{clang} cannot compile {} for BPF:\n{stderr}", source_file.display())
            }
            Self::NoClang { found } => {
                let found = if found.is_empty() {
                    String::new()
                } else {
                    format!(" ({})", found.join(", "))
                };
                write!(
                    f,
                    "ccbench-agent embeds BPF programs, which need clang {OLDEST_CLANG} or newer{found}.\n\
                     Run scripts/setup.sh, or `apt-get install clang libelf-dev zlib1g-dev`, or set CLANG=/path/to/clang;\n\
                     or build without them: cargo build --no-default-features -p ccbench-agent"
                )
            }
        }
    }
}

impl std::error::Error for BuildError {}

/// Runs `build` if the feature `ebpf` is enabled. On error, prints it and exits with status 1.
pub fn run(build: impl FnOnce() -> Result<(), BuildError>) {
    println!("cargo:rerun-if-env-changed=CLANG");
    if std::env::var_os("CARGO_FEATURE_EBPF").is_none() {
        return;
    }
    if let Err(error) = build() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

/// Returns the value of a variable that Cargo sets.
pub fn env(name: &'static str) -> Result<String, BuildError> {
    std::env::var(name).map_err(|source| BuildError::Env { name, source })
}

/// Compiles one source file to an object.
#[expect(clippy::disallowed_methods, reason = "starts clang")]
pub fn compile(clang: &str, source_file: &Path, object: &Path) -> Result<(), BuildError> {
    let flags = ["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-fno-strict-aliasing", "-c"];
    let output = Command::new(clang).args(flags).arg("-o").arg(object).arg(source_file).output();
    let output =
        output.map_err(|source| BuildError::Io { op: "run", path: clang.into(), source })?;
    if output.status.success() {
        return Ok(());
    }
    Err(BuildError::Compile {
        clang: clang.to_owned(),
        source_file: source_file.to_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Returns the command name of a clang that is new enough.
pub fn clang() -> Result<String, BuildError> {
    let wanted = std::env::var("CLANG").ok();
    let names: Vec<&str> = match &wanted {
        Some(name) => vec![name],
        None => NAMES.to_vec(),
    };
    let mut found = Vec::new();
    for name in names {
        match version(name) {
            Some(version) if version >= OLDEST_CLANG => return Ok(name.to_owned()),
            Some(version) => found.push(format!("{name} is version {version}")),
            None => {}
        }
    }
    Err(BuildError::NoClang { found })
}

/// Returns the major version.
#[expect(clippy::disallowed_methods, reason = "starts clang")]
fn version(clang: &str) -> Option<u32> {
    let output = Command::new(clang).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split("version ").nth(1)?.split('.').next()?.trim().parse().ok()
}
