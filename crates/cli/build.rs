//! Links `ccbench` without PIE: relocating a program of this size at start-up (some 600 000 relocations, most of them from
//! Polars) takes longer than summarising a small run. The agent, which listens on a network, keeps the default.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-no-pie");
}
