//! The controller lies at a fixed address: to relocate a program of this size (some 600 000 places, most of them Polars') takes
//! longer than to summarise a small run, and it would happen at every start. The agent, which listens on a network, is linked
//! as usual.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-no-pie");
}
