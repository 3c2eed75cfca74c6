//! Fuzzes supplied congestion controls: BPF objects and kernel modules.

use ccbench_proto::cc::refuse_kernel_name;
use ccbench_proto::cc::supplied::{SuppliedFile, facts};
use ccbench_proto::plan::Cc;

/// A file that `[cc.NAME]` names.
pub fn object(data: &[u8]) {
    let facts = match facts(data) {
        Ok(facts) => facts,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    match &facts.file {
        SuppliedFile::Bpf(object) => {
            assert!(!object.ops.is_empty());
            for ops in &object.ops {
                assert_eq!(refuse_kernel_name(&ops.name), None);
                let flags_end = ops.flags_at.map_or(0, |at| at + 4);
                assert!(ops.name_at + 16 <= data.len() && flags_end <= data.len());
            }
            for param in &object.params {
                let kind = &param.parameter.kind;
                assert!(param.at + kind.bytes().expect("a number") <= data.len());
                if let Some(bytes) = kind.encode(&param.default.to_string()) {
                    assert_eq!(kind.decode(&bytes), Some(param.default));
                }
            }
        }
        SuppliedFile::Module(module) => {
            assert!(!module.name.is_empty() && !module.name.contains(['/', '.', ' ', '\0']));
        }
    }
    let mut cc = Cc::new("");
    match facts.file {
        SuppliedFile::Bpf(_) => cc.file = Some("x".to_owned()),
        SuppliedFile::Module(_) => cc.module = Some("x".to_owned()),
    }
    facts.fill(&mut cc);
    let one_name = facts.file.names().len() == 1;
    assert_eq!(facts.check(&cc).is_empty(), one_name, "what is filled in is right");
}
