//! Compiles the congestion controls of `kmod/bpf` for BPF and embeds them in the agent, so that this program's own
//! feature `ebpf` needs clang only at build time.

use std::fmt::Write as _;
use std::path::PathBuf;

use clang::{BuildError, clang, compile, env, run};

#[path = "../collector/build/clang.rs"]
mod clang;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../collector/build");
    run(build);
}

fn build() -> Result<(), BuildError> {
    let root = PathBuf::from(env("CARGO_MANIFEST_DIR")?).join("../../kmod");
    let out = PathBuf::from(env("OUT_DIR")?);
    for folder in ["adapter", "bpf", "core"] {
        println!("cargo:rerun-if-changed={}", root.join(folder).display());
    }
    let clang = clang()?;
    let mut sources: Vec<PathBuf> = std::fs::read_dir(root.join("bpf"))
        .map_err(|source| BuildError::Io { op: "read", path: root.join("bpf"), source })?
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
        // Keeps only what is needed at run time; writing to a string cannot fail.
        let _ =
            writeln!(table, "    ({name:?}, include_bytes!({:?})),", object.display().to_string());
    }
    table.push_str("];\n");
    // Tests load it as a supplied congestion control; the agent does not embed it.
    let example = root.join("../plans/cc/aimd.bpf.c");
    println!("cargo:rerun-if-changed={}", example.display());
    compile(&clang, &example, &out.join("aimd.bpf.o"))?;
    let file = out.join("objects.rs");
    std::fs::write(&file, table).map_err(|source| BuildError::Io {
        op: "write",
        path: file,
        source,
    })
}
