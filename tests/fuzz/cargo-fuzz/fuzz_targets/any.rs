//! The fuzz target: the one of `ccbench_fuzz::TARGETS` that the variable CCBENCH_FUZZ_TARGET names.
#![no_main]

use std::sync::OnceLock;

use ccbench_fuzz::{TARGETS, Target};

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fn target() -> &'static Target {
    // The hook of libfuzzer-sys aborts, even if ccbench catches the panic (of Polars, with a damaged file).
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    let name = std::env::var("CCBENCH_FUZZ_TARGET").unwrap_or_default();
    ccbench_fuzz::find(&name).unwrap_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        panic!("CCBENCH_FUZZ_TARGET={name} is no target; there are: {}", names.join(", "))
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| (TARGET.get_or_init(target).run)(data));
