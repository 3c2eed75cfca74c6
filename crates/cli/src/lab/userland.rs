//! The guest's file system: the agent, the host's programs that its trials use, and their libraries; for `ccbench lab shell` the
//! host's usual command-line tools.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use ccbench_proto::plan::{Plan, Tool};

use super::cpio::Archive;
use super::error::LabError;

/// Directories in which to look for programs after the PATH.
const FOLDERS: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
/// Tools for `ccbench lab shell`. Only those that the host has are packed.
const SHELL_TOOLS: [&str; 17] = [
    "sh", "busybox", "iperf3", "ip", "tc", "ss", "ping", "tcpdump", "ethtool", "bpftool", "ls",
    "cat", "ps", "sysctl", "dmesg", "mkdir", "sleep",
];

/// Programs of the host in the guest, besides modprobe. The digest of the userland is in every trial's tables, so programs that
/// no trial needs would make equal trials of two hosts differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Programs {
    /// None: the agent generates all traffic.
    None,
    /// iperf3. If it is a script, also the tools that it may start.
    Iperf3,
    /// The tools of a shell.
    Shell,
}

/// Paths of libraries on the host, by their path in the guest.
type Libraries = BTreeMap<PathBuf, PathBuf>;

/// Makes the guest's files, without a task. `modules` is the directory of a kernel's modules, and the kernel's release.
///
/// # Errors
/// A program is missing or cannot be read.
pub fn archive(
    agent: &Path,
    programs: Programs,
    modules: Option<(&Path, &str)>,
) -> Result<Archive, LabError> {
    let mut archive = Archive::default();
    for folder in ["proc", "sys", "dev", "run", "tmp", "root", "lab", "etc"] {
        archive.folder(folder);
    }
    archive.device("dev/console", 0o600, (5, 1));
    archive.device("dev/null", 0o666, (1, 3));
    archive.file("etc/passwd", 0o644, b"root:x:0:0::/root:/bin/sh\n".to_vec());
    archive.file("etc/hosts", 0o644, b"127.0.0.1 localhost lab\n".to_vec());
    let mut libraries = Libraries::new();
    add(&mut archive, &mut libraries, agent, "bin/ccbench-agent")?;
    archive.link("init", "bin/ccbench-agent");
    let names: &[&str] = match programs {
        Programs::None => &[],
        Programs::Iperf3 => {
            let iperf3 = find("iperf3").ok_or_else(|| LabError::Missing {
                what: "iperf3".to_owned(),
                hint:
                    "run `apt-get install iperf3` as root, or set `flows.NAME.tool = \"ccbench\"`"
                        .to_owned(),
            })?;
            if is_script(&read(&iperf3)?) { &SHELL_TOOLS } else { &["iperf3"] }
        }
        Programs::Shell => &SHELL_TOOLS,
    };
    for name in names {
        if let Some(path) = find(name) {
            add(&mut archive, &mut libraries, &path, &format!("bin/{name}"))?;
        }
    }
    if let Some((folder, release)) = modules {
        let modprobe = find("modprobe").ok_or_else(|| LabError::Missing {
            what: "modprobe".to_owned(),
            hint: "run `apt-get install kmod` as root".to_owned(),
        })?;
        // The kernel runs it from there. Without a PATH, agents look for it beside other programs.
        add(&mut archive, &mut libraries, &modprobe, "sbin/modprobe")?;
        archive.link("bin/modprobe", "/sbin/modprobe");
        add_folder(&mut archive, folder, &format!("lib/modules/{release}"))?;
    }
    for (place, library) in libraries {
        archive.file(&place.display().to_string(), 0o755, read(&library)?);
    }
    Ok(archive)
}

/// Whether a flow of a plan uses iperf3 in the lab, where it is not the default.
pub fn needs_iperf3(plan: &Plan) -> bool {
    plan.flows.values().any(|flow| flow.tool == Some(Tool::Iperf3))
}

/// Finds a program on the host.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(FOLDERS.map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Whether a program with this content is started by an interpreter.
fn is_script(content: &[u8]) -> bool {
    content.starts_with(b"#!")
}

/// Adds a program as `name`, and its shared libraries to `libraries`.
fn add(
    archive: &mut Archive,
    libraries: &mut Libraries,
    program: &Path,
    name: &str,
) -> Result<(), LabError> {
    archive.file(name, 0o755, stripped(program)?);
    // Like the loader, resolve libraries relative to the file itself, not to a link to it.
    let program = program.canonicalize().map_err(LabError::io("read", program))?;
    for (place, library) in places(&program, linked(&program)) {
        libraries.entry(place).or_insert(library);
    }
    Ok(())
}

/// Returns where a program's libraries are in the guest: at the same path as on the host. Libraries that the program finds
/// relative to its own folder (`$ORIGIN`), as in the wheel, go beside the C library, because the guest's loader does not know
/// that folder before /proc is mounted.
fn places(program: &Path, libraries: Vec<PathBuf>) -> Vec<(PathBuf, PathBuf)> {
    let is_c_library = |library: &&PathBuf| library.file_name() == Some(OsStr::new("libc.so.6"));
    let system = libraries.iter().find(is_c_library).and_then(|library| library.parent());
    let system = system.map(Path::to_owned);
    let place = |library: &PathBuf| {
        let own = program.parent().is_some_and(|origin| library.starts_with(origin));
        let beside = system.as_ref().zip(library.file_name()).filter(|_| own);
        beside.map_or_else(|| library.clone(), |(system, name)| system.join(name))
    };
    libraries.into_iter().map(|library| (place(&library), library)).collect()
}

/// Adds all files below a folder.
fn add_folder(archive: &mut Archive, folder: &Path, name: &str) -> Result<(), LabError> {
    let io = LabError::io("read", folder);
    for entry in std::fs::read_dir(folder).map_err(&io)? {
        let entry = entry.map_err(&io)?;
        let to = format!("{name}/{}", entry.file_name().to_string_lossy());
        if entry.file_type().map_err(&io)?.is_dir() {
            add_folder(archive, &entry.path(), &to)?;
        } else {
            archive.file(&to, 0o644, read(&entry.path())?);
        }
    }
    Ok(())
}

/// Returns the program without symbols if the host has `strip`. A debug build is ten times as large.
#[expect(clippy::disallowed_methods, reason = "starts strip")]
fn stripped(program: &Path) -> Result<Vec<u8>, LabError> {
    let out = tempfile::NamedTempFile::new()
        .map_err(LabError::io("make a temporary file for", program))?;
    let strip = Command::new("strip").arg("-s").arg("-o").arg(out.path()).arg(program).output();
    match strip {
        Ok(done) if done.status.success() => read(out.path()),
        // `strip` is missing, or the program is a script.
        _ => read(program),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, LabError> {
    std::fs::read(path).map_err(LabError::io("read", path))
}

/// Returns the shared libraries and the loader as the host resolves them; empty for a static program.
#[expect(clippy::disallowed_methods, reason = "starts ldd")]
fn linked(program: &Path) -> Vec<PathBuf> {
    let Ok(ldd) = Command::new("ldd").arg(program).output() else { return Vec::new() };
    paths(&String::from_utf8_lossy(&ldd.stdout))
}

/// Returns the absolute paths in the output of `ldd`: `libc.so.6 => /lib/libc.so.6 (0x…)` and `/lib64/ld.so (0x…)`.
fn paths(output: &str) -> Vec<PathBuf> {
    let word = |line: &str| {
        let after = line.split_once("=>").map_or(line, |(_, after)| after);
        let path = after.split_whitespace().next()?;
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    output.lines().filter_map(word).collect()
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::check;

    use super::*;

    #[test]
    fn only_flows_that_name_iperf3_need_it() {
        let needed = |tool: &str| {
            let text = format!(
                r#"
                name = "lab"
                nodes = {{ src = {{}}, dst = {{}} }}
                wires = {{ path = ["src", "dst"] }}
                flows.one = {{ from = "src", to = "dst"{tool} }}
                phases = [{{ name = "only", length = "9s", flows = ["one"] }}]
                "#
            );
            let (plan, _) = check::read(&text, &[]).unwrap();
            needs_iperf3(plan.plan())
        };
        assert!(!needed("") && !needed(", tool = \"ccbench\""));
        assert!(needed(", tool = \"iperf3\""));
    }

    #[test]
    fn parses_the_output_of_ldd() {
        let output = "\tlinux-vdso.so.1 (0x00007ffe)\n\tlibelf.so.1 => /lib/x86_64-linux-gnu/libelf.so.1 (0x00)\n\
                    \tlibgone.so => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x00)\n";
        let expected = ["/lib/x86_64-linux-gnu/libelf.so.1", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(paths(output), expected.map(PathBuf::from));
        assert!(paths("\tnot a dynamic executable\n").is_empty());
    }

    /// The userland with these programs, as text.
    fn packed(programs: Programs) -> String {
        let mut bytes = Vec::new();
        let agent = find("sh").unwrap();
        archive(&agent, programs, None).unwrap().write(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn only_a_shell_has_the_tools_of_the_host() {
        // A name follows the checksum, which is zero.
        let has = |packed: &str, name: &str| packed.contains(&format!("00000000bin/{name}\0"));
        let (trials, shell) = (packed(Programs::None), packed(Programs::Shell));
        assert!(has(&trials, "ccbench-agent") && has(&shell, "ccbench-agent"));
        for name in SHELL_TOOLS {
            assert!(!has(&trials, name), "{name}");
            assert_eq!(has(&shell, name), find(name).is_some(), "{name}");
        }
    }

    #[test]
    fn a_script_needs_an_interpreter() {
        assert!(is_script(b"#!/bin/sh\nexec /bin/tcpdump\n"));
        assert!(!is_script(b"\x7fELF") && !is_script(b""));
    }

    #[test]
    fn libraries_that_a_program_finds_by_its_folder_are_beside_the_c_library() {
        let libraries = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let found = libraries(&["/venv/bin/../lib/ccbench/libelf.so.1", "/lib/x86/libc.so.6"]);
        let places_of = |program: &str| -> Vec<PathBuf> {
            let places = places(Path::new(program), found.clone());
            places.into_iter().map(|(place, _)| place).collect()
        };
        let expected = libraries(&["/lib/x86/libelf.so.1", "/lib/x86/libc.so.6"]);
        assert_eq!(places_of("/venv/bin/ccbench-agent"), expected);
        assert_eq!(places_of("/usr/bin/ccbench-agent"), found);
    }
}
