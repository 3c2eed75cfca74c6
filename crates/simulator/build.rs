//! Compiles the C cores of the congestion controls and their host.

fn main() {
    let (core, sim) = ("../../kmod/core", "../../kmod/sim");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={core}");
    println!("cargo:rerun-if-changed={sim}");
    // Parameters are structs of u32 that the host reads as an array.
    cc::Build::new()
        .files([format!("{sim}/host.c"), format!("{sim}/ffi.c")])
        .std("gnu11")
        .opt_level(2)
        .warnings(true)
        .extra_warnings(false)
        .flag("-fno-strict-aliasing")
        .compile("ccbench_cores");
}
