//! Checks supplied congestion controls, `[cc.NAME]` with a file, once the files have been read.

use std::collections::BTreeSet;

use crate::cc::supplied::CcFiles;
use crate::plan::parse::set;
use crate::plan::{Cc, Plan, Via};

use super::matrix;
use super::problems::Problems;

/// Keys of `[cc.NAME]` that determine the file, or follow from it.
const KEYS: [&str; 4] = ["file", "module", "algorithm", "sha256"];

/// Every file that some point of the plan names.
pub(super) fn files(plan: &Plan) -> BTreeSet<String> {
    let is_about_files = |key: &[String]| {
        key.first().is_some_and(|first| first == "cc")
            && key.get(2).is_none_or(|it| KEYS.contains(&it.as_str()))
    };
    let fewer = matrix::with_factors_about(plan, is_about_files);
    let points = matrix::expand(&fewer).filter_map(|point| point.plan);
    let ccs = points.flat_map(|point| point.cc.into_values());
    ccs.filter_map(|cc| Some(cc.supplied()?.0.to_owned())).collect()
}

/// Fills in the keys that follow from the files: name and sha256.
pub(super) fn fill(plan: &mut Plan, files: &CcFiles) {
    plan.cc.values_mut().for_each(|cc| fill_instance(cc, files));
}

/// As [`fill`], for instances whose file is the same at all points.
pub(super) fn fill_unvaried(plan: &mut Plan, files: &CcFiles) {
    let varied = matrix::varied_keys(plan);
    for (name, cc) in &mut plan.cc {
        let places = KEYS.map(|key| ["cc", name, key].map(str::to_owned));
        if !varied.iter().any(|key| places.iter().any(|place| set::overlap(key, place))) {
            fill_instance(cc, files);
        }
    }
}

fn fill_instance(cc: &mut Cc, files: &CcFiles) {
    if let Some(Ok(facts)) = cc.supplied().and_then(|(file, _)| files.get(file)) {
        facts.fill(cc);
    }
}

/// Checks one instance whose other keys are valid.
pub(super) fn check(name: &str, cc: &Cc, problems: &mut Problems) {
    let Some((file, via)) = cc.supplied() else { return };
    match problems.files.ccs.get(file).cloned() {
        None => {}
        Some(Err(why)) => {
            let key = if via == Via::Module { "module" } else { "file" };
            problems.error(&["cc", name, key], format!("`{}`: {why}", file.escape_debug()));
        }
        Some(Ok(facts)) => {
            for wrong in facts.check(cc) {
                let path: Vec<&str> =
                    ["cc", name].into_iter().chain(wrong.key.iter().map(String::as_str)).collect();
                problems.error_from(&path, &[&["cc", name]], wrong.reason);
            }
        }
    }
}

/// Rejects several files or sets of parameters for one module, which has one of each for the whole machine.
pub(super) fn one_module(plan: &Plan, problems: &mut Problems) {
    let modules: Vec<(&String, &Cc)> =
        plan.cc.iter().filter(|(_, cc)| cc.module.is_some()).collect();
    for (index, (name, cc)) in modules.iter().enumerate() {
        let same_module = |other: &Cc| {
            other.module == cc.module || !cc.algorithm.is_empty() && other.algorithm == cc.algorithm
        };
        let differs = |other: &Cc| {
            (&other.module, &other.algorithm, &other.params)
                != (&cc.module, &cc.algorithm, &cc.params)
        };
        let other = modules[..index].iter().find(|(_, c)| same_module(c) && differs(c));
        if let Some((other, _)) = other {
            let why = format!(
                "`cc.{other}` loads the same module with other parameters or from another file, but a machine can \
                 load it only once; compare the two at separate points of the matrix"
            );
            problems.error_from(&["cc", name], &[&["cc", other], &["cc", name]], why);
        }
    }
}
