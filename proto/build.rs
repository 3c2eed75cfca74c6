//! Compiles `agent.proto` without an installed `protoc`, and keeps the descriptor set for the test that
//! compares row messages with result columns. Parses `kmod/schemes.json`, so that the crate can embed it without checks.

use std::path::PathBuf;

use prost::Message as _;

#[allow(dead_code, reason = "only that it can be read matters here")]
#[path = "src/cc/table.rs"]
mod table;

const SCHEMES: &str = "../kmod/schemes.json";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let descriptors = protox::compile(["ccbench/v1/agent.proto"], ["."])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("agent.descriptors.bin"), descriptors.encode_to_vec())?;
    // With an ordered map, equal messages have equal bytes, which the lab's repeatability needs.
    tonic_prost_build::configure().btree_map(".").compile_fds(descriptors)?;
    serde_json::from_slice::<table::Table>(&std::fs::read(SCHEMES)?)
        .map_err(|error| format!("{SCHEMES}: {error}; `make -C kmod table` writes it"))?;
    for input in ["ccbench", "src/cc/table.rs", SCHEMES] {
        println!("cargo:rerun-if-changed={input}");
    }
    Ok(())
}
