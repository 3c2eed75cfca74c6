//! Compiles `agent.proto` without an installed `protoc`, and keeps the descriptor set for the test that
//! compares row messages with result columns.

use std::path::PathBuf;

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let descriptors = protox::compile(["ccbench/v1/agent.proto"], ["."])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("agent.descriptors.bin"), descriptors.encode_to_vec())?;
    // A map with an order: equal messages have equal bytes, which the lab's repeatability needs.
    tonic_prost_build::configure().btree_map(".").compile_fds(descriptors)?;
    println!("cargo:rerun-if-changed=ccbench");
    Ok(())
}
