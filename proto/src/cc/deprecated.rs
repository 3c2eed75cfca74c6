//! Parameters of ccbench's own congestion controls with a deprecated name. They are read under their current name, with a warning.

use std::fmt;

use super::{is_own, scheme};
use crate::plan::Cc;

/// A core, and the deprecated and the current name of one of its parameters.
const DEPRECATED: &[(&str, &str, &str)] = &[("ta", "dip_least", "dip_min_rtt")];

/// A parameter that an instance sets under a deprecated name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeprecatedParam {
    /// The deprecated name.
    pub name: &'static str,
    /// The current name.
    pub current: &'static str,
}

impl fmt::Display for DeprecatedParam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is deprecated; use `{}`", self.name, self.current)
    }
}

/// The current name of a parameter of a core, if this is a deprecated one.
pub(super) fn current_name(core: &str, name: &str) -> Option<&'static str> {
    let found = DEPRECATED.iter().find(|(of, deprecated, _)| (*of, *deprecated) == (core, name));
    found.map(|(.., current)| *current)
}

/// The parameters that an instance sets under a deprecated name only. Setting the current name too is an error.
pub fn deprecated_params(cc: &Cc) -> impl Iterator<Item = DeprecatedParam> {
    let core = scheme(&cc.algorithm).filter(|_| is_own(cc)).map(|(_, core)| core.name.as_str());
    let is_set = move |(of, name, current): &&(&str, &str, &str)| {
        core == Some(*of) && cc.params.contains_key(*name) && !cc.params.contains_key(*current)
    };
    DEPRECATED.iter().filter(is_set).map(|&(_, name, current)| DeprecatedParam { name, current })
}

/// Gives deprecated parameters of an instance their current names.
pub fn rename_deprecated_params(cc: &mut Cc) {
    let found: Vec<DeprecatedParam> = deprecated_params(cc).collect();
    for param in found {
        if let Some(value) = cc.params.remove(param.name) {
            cc.params.insert(param.current.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::{Instance, resolve};
    use crate::plan::SysctlValue;
    use crate::plan::check::{CheckedPlan, PlanProblem, Point, read};
    use crate::resolve::{as_normalized, normalize};

    /// A plan with this instance.
    fn plan(cc: &str) -> String {
        format!(
            "name = 't'\n[nodes]\na = {{}}\nb = {{}}\n[wires]\nw = ['a', 'b']\n\
             [links.l]\nnode = 'a'\ntoward = 'b'\nrate = '10mbit'\ndelay = '10ms'\n\
             queue = {{ kind = 'pfifo', limit = '20p' }}\n\
             [flows.f]\nfrom = 'a'\nto = 'b'\ncc = 'x'\n\
             [[phases]]\nname = 'p'\nlength = '5s'\nflows = ['f']\n[cc.x]\n{cc}\n"
        )
    }

    fn checked(
        cc: &str,
        sets: &[&str],
    ) -> Result<(CheckedPlan, Vec<PlanProblem>), Vec<PlanProblem>> {
        let sets: Vec<String> = sets.iter().map(|&set| set.to_owned()).collect();
        read(&plan(cc), &sets)
    }

    /// The line and text of each warning about a deprecated name.
    fn warnings(problems: &[PlanProblem]) -> Vec<(Option<u32>, String)> {
        let found = problems.iter().filter(|problem| problem.reason.contains("deprecated"));
        found.map(|problem| (problem.line, problem.to_string())).collect()
    }

    /// The parameters of the instance at every point.
    fn params(plan: &CheckedPlan) -> Vec<Vec<(String, SysctlValue)>> {
        let of = |point: &Point| -> Vec<(String, SysctlValue)> {
            point.plan.plan().cc["x"].params.clone().into_iter().collect()
        };
        plan.points().iter().map(of).collect()
    }

    fn set_to(value: i64) -> Vec<(String, SysctlValue)> {
        vec![("dip_min_rtt".to_owned(), SysctlValue::Number(value))]
    }

    #[test]
    fn deprecated_parameters_are_read_with_a_warning() {
        let cc = "algorithm = 'ta_per'\nparams = { dip_least = 0 }";
        let (plan, found) = checked(cc, &[]).unwrap();
        assert_eq!(params(&plan), [set_to(0)]);
        assert_eq!(*as_normalized(plan.plan()), normalize(plan.plan()));
        let text = "cc.x.params.dip_least: `dip_least` is deprecated; use `dip_min_rtt`";
        assert_eq!(warnings(&found), [(Some(23), text.to_owned())]);
        let Ok(Instance::Own { params: resolved, .. }) = resolve(&plan.plan().cc["x"]) else {
            panic!("{plan:?}")
        };
        assert!(resolved.contains(&("dip_min_rtt".to_owned(), 0)), "{resolved:?}");
        let (plan, found) = checked(&cc.replace("dip_least", "dip_min_rtt"), &[]).unwrap();
        assert_eq!((params(&plan), warnings(&found)), (vec![set_to(0)], Vec::new()));
    }

    #[test]
    fn factors_and_overrides_may_set_deprecated_parameters() {
        let matrix = "algorithm = 'ta'\n[matrix]\n'cc.x.params.dip_least' = [0, 1]";
        let (plan, found) = checked(matrix, &[]).unwrap();
        assert_eq!(params(&plan), [set_to(0), set_to(1)]);
        assert_eq!(warnings(&found).len(), 1, "{found:?}");
        let (plan, found) = checked("algorithm = 'ta'", &["cc.x.params.dip_least=0"]).unwrap();
        assert_eq!(params(&plan), [set_to(0)]);
        assert_eq!(warnings(&found).len(), 1, "{found:?}");
    }

    #[test]
    fn the_range_of_a_deprecated_parameter_is_that_of_the_current_one() {
        let problems = checked("algorithm = 'ta'\nparams = { dip_least = 7 }", &[]).unwrap_err();
        let of_range = |problem: &&PlanProblem| problem.reason.starts_with("7 is out of range");
        let wrong = problems.iter().find(of_range).unwrap_or_else(|| panic!("{problems:?}"));
        assert_eq!((wrong.path.as_str(), wrong.line), ("cc.x.params.dip_least", Some(23)));
    }

    #[test]
    fn a_parameter_is_not_set_under_both_names() {
        let both = "algorithm = 'ta'\nparams = { dip_least = 0, dip_min_rtt = 1 }";
        let problems = checked(both, &[]).unwrap_err();
        let of_name = problems.iter().filter(|problem| problem.path == "cc.x.params.dip_least");
        let reasons: Vec<&str> = of_name.map(|problem| problem.reason.as_str()).collect();
        let expected =
            "`dip_least` is the deprecated name of `dip_min_rtt`, which is also set; remove it";
        assert_eq!(reasons, [expected], "{problems:?}");
    }

    #[test]
    fn other_congestion_controls_keep_their_parameters() {
        let own = Cc {
            params: [("dip_least".to_owned(), SysctlValue::Number(0))].into(),
            ..Cc::new("ta")
        };
        assert_eq!(deprecated_params(&own).count(), 1);
        let supplied = Cc { file: Some("mine.bpf.o".to_owned()), ..own.clone() };
        let other = Cc { algorithm: "cx".to_owned(), ..own };
        for mut cc in [supplied, other] {
            let before = cc.clone();
            rename_deprecated_params(&mut cc);
            assert_eq!((deprecated_params(&cc).count(), cc), (0, before));
        }
    }
}
