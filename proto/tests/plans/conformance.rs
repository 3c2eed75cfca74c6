//! The test cases of the BBR draft run in network namespaces, in the simulator, and on both engines of the lab.

use ccbench_proto::plan::check::{Target, TraceFiles, read_for};

use super::*;

#[test]
fn conformance_plans_run_everywhere() {
    let files = tomls("plans/conformance");
    assert!(files.len() >= 22, "only {} plans", files.len());
    let targets = [
        (Target::Kernel, None),
        (Target::Simulator, None),
        (Target::Kernel, Some("lab.engine=qemu")),
        (Target::Kernel, Some("lab.engine=uml")),
    ];
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for quick in [Vec::new(), quick_sets(&text, &[]).unwrap_or_default()] {
            for (target, engine) in targets {
                let engine = engine.map(str::to_owned);
                let sets: Vec<String> = quick.iter().cloned().chain(engine).collect();
                let (plan, _) = read_for(target, &text, &sets, TraceFiles::new())
                    .unwrap_or_else(|e| panic!("{} {sets:?}: {}", file.display(), print(&e)));
                round_trips(&file, &plan);
                let claims = &plan.plan().expect;
                assert!(claims.iter().any(|claim| claim.skip.is_none()), "{}", file.display());
                assert!(claims.iter().all(|claim| claim.source.is_some()), "{}", file.display());
            }
        }
    }
}
