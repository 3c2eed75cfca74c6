//! Runs every target on its corpus and on mutations of it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use ccbench_fuzz::mutate::{Random, mutate};
use ccbench_fuzz::{TARGETS, Target};

mod parsers;
mod seeds;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// Returns the names of all corpora.
fn folders() -> BTreeSet<String> {
    let folders = std::fs::read_dir(corpus()).unwrap();
    folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Returns the inputs of a target with their names, in order.
fn inputs(target: &Target) -> Vec<(String, Vec<u8>)> {
    let folder = corpus().join(target.name);
    let entries = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}: each target has a corpus", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), std::fs::read(path).unwrap())).collect()
}

/// With CCBENCH_FUZZ_INPUT, handles only this file, with the target CCBENCH_FUZZ_TARGET.
#[test]
fn every_input_of_the_corpora_is_handled() {
    if let Some(path) = std::env::var_os("CCBENCH_FUZZ_INPUT") {
        let name =
            std::env::var("CCBENCH_FUZZ_TARGET").expect("CCBENCH_FUZZ_TARGET names a target");
        let target = ccbench_fuzz::find(&name).unwrap_or_else(|| panic!("{name} is no target"));
        return (target.run)(&std::fs::read(path).unwrap());
    }
    for target in TARGETS {
        let inputs = inputs(target);
        assert!(!inputs.is_empty(), "{} has no inputs", target.name);
        (target.run)(b"");
        for (name, input) in inputs {
            let run = catch_unwind(AssertUnwindSafe(|| (target.run)(&input)));
            assert!(run.is_ok(), "input corpus/{}/{name}", target.name);
        }
    }
}

#[test]
#[cfg(feature = "results")]
fn every_corpus_belongs_to_a_target() {
    assert_eq!(folders(), TARGETS.iter().map(|target| target.name.to_owned()).collect());
}

/// A target whose inputs take long. The others are tried at the same time.
const SLOW: &str = "simulation";

#[test]
fn mutations_of_the_corpora_are_handled() {
    try_mutations(|target| target.name != SLOW);
}

#[test]
fn mutations_of_simulated_plans_are_handled() {
    try_mutations(|target| target.name == SLOW);
}

/// CCBENCH_FUZZ_FACTOR multiplies the number of mutations and seeds their generator.
fn try_mutations(is_chosen: impl Fn(&Target) -> bool) {
    let factor = std::env::var("CCBENCH_FUZZ_FACTOR").map_or(1, |text| text.parse().unwrap());
    let only = std::env::var("CCBENCH_FUZZ_TARGET").ok();
    let is_named = |target: &Target| only.as_deref().is_none_or(|only| only == target.name);
    for target in TARGETS.iter().filter(|target| is_chosen(target) && is_named(target)) {
        let inputs = inputs(target);
        let mut random = Random::new(0x5eed * u64::from(factor));
        for number in 0..target.mutations * factor {
            let input = &inputs[random.below(inputs.len())].1;
            let other = &inputs[random.below(inputs.len())].1;
            let input = mutate(input, other, &mut random);
            let run = catch_unwind(AssertUnwindSafe(|| (target.run)(&input)));
            if run.is_err() {
                let path = std::env::temp_dir().join(format!("{}-{number}", target.name));
                std::fs::write(&path, &input).unwrap();
                let (name, path) = (target.name, path.display());
                panic!(
                    "{name}: mutation {number}, kept in {path}: add it to corpus/{name}. To repeat it: CCBENCH_FUZZ_TARGET={name} \
                     CCBENCH_FUZZ_INPUT={path} cargo test --workspace --features netns,browser --test corpus every_input"
                );
            }
        }
    }
}
