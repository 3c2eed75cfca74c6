//! Compiles the programs in `bpf/` if the feature `ebpf` is enabled.

use std::path::PathBuf;

use clang::{BuildError, clang, compile, env, run};

#[path = "build/clang.rs"]
mod clang;

fn main() {
    for path in ["build.rs", "build", "bpf", "../../kmod/bpf/kernel.bpf.h"] {
        println!("cargo:rerun-if-changed={path}");
    }
    run(build);
}

fn build() -> Result<(), BuildError> {
    let source = PathBuf::from(env("CARGO_MANIFEST_DIR")?).join("bpf/acks.bpf.c");
    let object = PathBuf::from(env("OUT_DIR")?).join("acks.bpf.o");
    compile(&clang()?, &source, &object)
}
