//! `ccbench`: see [`ccbench::run`].

fn main() {
    std::process::exit(ccbench::run(std::env::args_os()));
}
