//! Compiles the programs of `bpf/`, if they are wanted (feature `ebpf`).

use std::path::PathBuf;

use clang::{clang, compile, env, run};

#[path = "build/clang.rs"]
mod clang;

fn main() {
    for path in ["build.rs", "build", "bpf", "../../kmod/bpf/kernel.bpf.h"] {
        println!("cargo:rerun-if-changed={path}");
    }
    run(build);
}

fn build() -> Result<(), String> {
    let source = PathBuf::from(env("CARGO_MANIFEST_DIR")?).join("bpf/acks.bpf.c");
    let object = PathBuf::from(env("OUT_DIR")?).join("acks.bpf.o");
    compile(&clang()?, &source, &object)
}
