//! `ccbench`: see [`ccbench::run`].
#![forbid(unsafe_code)]

fn main() {
    std::process::exit(ccbench::run(std::env::args_os()));
}
