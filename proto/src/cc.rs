//! ccbench's own congestion controls: their algorithms, parameters, rules and inner state, as `kmod` generated them
//! from the C cores (`kmod/schemes.json`), and how a plan's `[cc.NAME]` is resolved.

use std::borrow::Cow;
use std::sync::LazyLock;

use crate::plan::parse::suggest;
use crate::plan::{Cc, SysctlValue, Via};

mod deprecated;
pub mod supplied;
pub mod table;

use deprecated::current_name;
pub use deprecated::{DeprecatedParam, deprecated_params, rename_deprecated_params};
pub use table::{Core, Operand, Param, Rule, Scheme, Stat, Table};

/// Congestion controls of mainline kernels, in the image or as modules.
pub const BUILTINS: &[&str] = &[
    "reno",
    "cubic",
    "bbr",
    "bic",
    "cdg",
    "dctcp",
    "highspeed",
    "htcp",
    "hybla",
    "illinois",
    "lp",
    "nv",
    "scalable",
    "vegas",
    "veno",
    "westwood",
    "yeah",
];

/// Kernel congestion controls that the simulator models, by their kernel names.
pub const SIMULATED_BUILTINS: [&str; 3] = ["cubic", "reno", "bbr"];

/// Longest name that the kernel accepts.
pub const MAX_KERNEL_NAME: usize = 15;

/// The build script parses the file with the same types and fails if it cannot, so the default is never used.
static TABLE: LazyLock<Table> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../kmod/schemes.json")).unwrap_or_default()
});

/// All of ccbench's own congestion controls.
pub fn table() -> &'static Table {
    &TABLE
}

/// Looks up one of ccbench's own by its name in plans. Returns the scheme and its core.
pub fn scheme(name: &str) -> Option<(&'static Scheme, &'static Core)> {
    let scheme = TABLE.schemes.iter().find(|scheme| scheme.name == name)?;
    let core = TABLE.cores.iter().find(|core| core.name == scheme.core)?;
    Some((scheme, core))
}

/// A state of a congestion control, as a value of a variable of `cc_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedState {
    /// The variable.
    pub variable: &'static str,
    /// Its value in this state.
    pub number: u32,
    /// The state's name.
    pub name: &'static str,
}

/// The numbers and names of states in the unit of their variable, `0 STARTUP 1 DRAIN`; empty for other units.
pub fn states_in(unit: &str) -> Vec<(u32, &str)> {
    let words: Vec<&str> = unit.split_whitespace().collect();
    let states = words.chunks(2).map(|pair| match pair {
        [number, name] => Some((number.parse().ok()?, *name)),
        _ => None,
    });
    states.collect::<Option<Vec<_>>>().unwrap_or_default()
}

/// The states of an instance. A core names them in the unit of their variable: `0 STARTUP 1 DRAIN`. The kernel's have none.
pub fn states(cc: &Cc) -> Vec<NamedState> {
    let of = |stat: &'static Stat| {
        let named = states_in(&stat.unit).into_iter();
        named.map(|(number, name)| NamedState { variable: &stat.name, number, name })
    };
    match scheme(&cc.algorithm) {
        Some((_, core)) if is_own(cc) => core.stats.iter().flat_map(of).collect(),
        _ => Vec::new(),
    }
}

/// A problem of an instance, with its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceProblem {
    /// `["algorithm"]`, or `["params", NAME]`; empty: the whole instance.
    pub key: Vec<String>,
    /// The problem and the remedy.
    pub reason: String,
}

/// An instance of a congestion control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Instance {
    /// One of ccbench's own.
    Own {
        /// The core's name.
        core: &'static str,
        /// Every parameter in force, in the order of [`Core::params`].
        params: Vec<(String, u32)>,
    },
    /// The kernel's: parameters of its module, unchecked.
    Kernel {
        /// As the plan writes them.
        params: Vec<(String, String)>,
    },
    /// A supplied one, from a file: [`supplied::CcFacts::check`] checks the rest.
    Supplied,
}

/// Whether an instance is a kernel's congestion control: `via = "builtin"`, or ccbench has none of that name.
pub fn is_kernel_algorithm(cc: &Cc) -> bool {
    cc.supplied().is_none()
        && (cc.via == Via::Builtin || cc.via == Via::Auto && scheme(&cc.algorithm).is_none())
}

/// Whether ccbench loads one of its own for the instance.
pub fn is_own(cc: &Cc) -> bool {
    cc.supplied().is_none() && !is_kernel_algorithm(cc)
}

/// Whether the instance has the same name in every kernel. The kernel's own do, and so does a supplied module, which registers
/// itself. Other instances get unique names.
pub fn has_fixed_name(cc: &Cc) -> bool {
    is_kernel_algorithm(cc) || matches!(cc.supplied(), Some((_, Via::Module)))
}

/// Whether the algorithm counts ECN marks, so that both ends negotiate ECN.
pub fn counts_marks(cc: &Cc) -> bool {
    if cc.supplied().is_some() {
        return false;
    }
    match scheme(&cc.algorithm).filter(|_| !is_kernel_algorithm(cc)) {
        Some((scheme, core)) => {
            core.wants_ecn || core.may_want_ecn && enables_ecn(cc, scheme, core)
        }
        None => matches!(cc.algorithm.as_str(), "dctcp" | "prague"),
    }
}

fn enables_ecn(cc: &Cc, scheme: &Scheme, core: &Core) -> bool {
    let name = "ecn_enable";
    let written = cc.params.get(name).and_then(|v| core.value(scheme, name, v).ok());
    written.is_some_and(|value| value != 0)
}

/// Resolves `[cc.NAME]`.
///
/// # Errors
/// Every problem that can be found without the kernel.
pub fn resolve(cc: &Cc) -> Result<Instance, Vec<InstanceProblem>> {
    if cc.supplied().is_some() {
        let wrong = supplied::check(cc);
        return if wrong.is_empty() { Ok(Instance::Supplied) } else { Err(wrong) };
    }
    if let Some(problem) = without_file(cc) {
        return Err(vec![problem]);
    }
    if let Some(reason) = refuse_kernel_name(&cc.algorithm) {
        return Err(vec![InstanceProblem { key: vec!["algorithm".into()], reason }]);
    }
    if cc.ect1.is_some() && !counts_marks(cc) {
        let may = scheme(&cc.algorithm).is_some_and(|(_, core)| core.may_want_ecn);
        let fix = match may && !is_kernel_algorithm(cc) {
            true => "set its parameter `ecn_enable` to 1",
            false => "use `dctcp` or `prague`",
        };
        let reason = format!(
            "`{}` does not count ECN marks, so it does not choose between ECT(0) and ECT(1); leave `ect1` out, or {fix}",
            cc.algorithm
        );
        return Err(vec![InstanceProblem { key: vec!["ect1".into()], reason }]);
    }
    if is_kernel_algorithm(cc)
        && (cc.via == Via::Builtin || BUILTINS.contains(&cc.algorithm.as_str()))
    {
        let params = cc.params.iter().map(|(name, value)| (name.clone(), value.to_string()));
        return Ok(Instance::Kernel { params: params.collect() });
    }
    let Some((scheme, core)) = scheme(&cc.algorithm) else {
        return Err(vec![InstanceProblem { key: vec!["algorithm".into()], reason: unknown(cc) }]);
    };
    let mut current = Cow::Borrowed(cc);
    let deprecated: Vec<DeprecatedParam> = deprecated_params(cc).collect();
    if !deprecated.is_empty() {
        rename_deprecated_params(current.to_mut());
    }
    let mut wrong = Vec::new();
    for (name, value) in &cc.params {
        let renamed = deprecated.iter().find(|param| param.name == name);
        let known = renamed.map_or(name.as_str(), |param| param.current);
        let checked = match current_name(&core.name, name) {
            Some(current) if renamed.is_none() => {
                Err(ParamError::BothNames { name: name.clone(), current })
            }
            _ => core.value(scheme, known, value),
        };
        if let Err(reason) = checked {
            let reason = reason.to_string();
            wrong.push(InstanceProblem { key: vec!["params".into(), name.clone()], reason });
        }
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let params: Vec<(String, u32)> = core
        .params
        .iter()
        .map(|param| {
            let name = &param.name;
            let written = current.params.get(name).and_then(|v| core.value(scheme, name, v).ok());
            (name.clone(), written.unwrap_or_else(|| param.default_of(scheme)))
        })
        .collect();
    let wrong: Vec<InstanceProblem> =
        core.rules.iter().filter_map(|rule| rule.broken_by(&current, &params)).collect();
    if wrong.is_empty() { Ok(Instance::Own { core: &core.name, params }) } else { Err(wrong) }
}

/// Checks the keys of an instance without a file.
fn without_file(cc: &Cc) -> Option<InstanceProblem> {
    if cc.algorithm.is_empty() {
        let reason = "name a congestion control with `algorithm`, or a file of your own with `file` (BPF) or `module`";
        return Some(InstanceProblem { key: Vec::new(), reason: reason.to_owned() });
    }
    cc.sha256.as_ref()?;
    let reason =
        "is the digest of `file` or `module`, but neither is given; leave it out".to_owned();
    Some(InstanceProblem { key: vec!["sha256".to_owned()], reason })
}

fn unknown(cc: &Cc) -> String {
    let own: Vec<&str> = TABLE.schemes.iter().map(|scheme| scheme.name.as_str()).collect();
    let hint = suggest::hint(&cc.algorithm, &own, "ccbench's own");
    if cc.via == Via::Auto {
        let known: Vec<&str> = own.iter().chain(BUILTINS).copied().collect();
        let near = suggest::near(&cc.algorithm, &known);
        return format!(
            "`{}` is neither one of ccbench's congestion controls nor one of Linux's{near} (ccbench's own: {}); if \
             only your kernel has it, write `via = \"builtin\"`",
            cc.algorithm,
            suggest::list(&own)
        );
    }
    format!(
        "ccbench has no module or BPF program for the congestion control `{}`{hint}",
        cc.algorithm
    )
}

/// Why a file of C source is no congestion control; `None` if the name is not that of such a file.
pub fn refuse_source(file: &str) -> Option<String> {
    let reason = "is a source file; compile it first (docs/congestion-controls.md#your-own-congestion-control)";
    file.ends_with(".c").then(|| format!("`{}` {reason}", file.escape_debug()))
}

/// Why the kernel would refuse this name of a congestion control; `None` if it accepts it.
pub fn refuse_kernel_name(cc: &str) -> Option<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let fits = !cc.is_empty() && cc.len() <= MAX_KERNEL_NAME;
    if fits && cc.chars().all(good) && !cc.starts_with(['-', '.']) {
        return None;
    }
    Some(format!(
        "`{}` is not a congestion control's name: 1 to {MAX_KERNEL_NAME} letters, digits, `_` and `-`, like \
         \"cubic\"",
        cc.escape_debug()
    ))
}

/// Why a congestion control refuses a parameter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParamError {
    /// It has no such parameter.
    #[error("`{core}` has no parameter `{name}`{hint}")]
    Unknown {
        /// The congestion control.
        core: String,
        /// The parameter.
        name: String,
        /// Its parameters.
        hint: String,
    },
    /// The parameter is also set under its current name.
    #[error("`{name}` is the deprecated name of `{current}`, which is also set; remove it")]
    BothNames {
        /// The deprecated name.
        name: String,
        /// The current name.
        current: &'static str,
    },
    /// The value is not a whole number.
    #[error("`{}` is not a number; write one {range}", text.escape_debug())]
    NotANumber {
        /// The value.
        text: String,
        /// The allowed range.
        range: String,
    },
    /// The value is not a text that a module accepts.
    #[error("`{}` cannot be passed to a module; write {range}", text.escape_debug())]
    NotText {
        /// The value.
        text: String,
        /// The allowed texts.
        range: String,
    },
    /// The value is out of range.
    #[error("{number} is out of range; write a number {range}")]
    OutOfRange {
        /// The value.
        number: i128,
        /// The allowed range.
        range: String,
    },
}

impl Core {
    /// The parameter's value, if it has that parameter and the value is within its range.
    ///
    /// # Errors
    /// What is wrong, with the range, its unit and the scheme's default. Nothing is clamped.
    pub fn value(
        &self,
        scheme: &Scheme,
        name: &str,
        value: &SysctlValue,
    ) -> Result<u32, ParamError> {
        let Some(param) = self.params.iter().find(|param| param.name == name) else {
            let known: Vec<&str> = self.params.iter().map(|p| p.name.as_str()).collect();
            let hint = suggest::hint(name, &known, "its parameters");
            return Err(ParamError::Unknown {
                core: self.name.clone(),
                name: name.to_owned(),
                hint,
            });
        };
        let range = || param.range(scheme);
        let number = match value {
            SysctlValue::Number(number) => *number,
            SysctlValue::Text(text) => text
                .trim()
                .parse()
                .map_err(|_| ParamError::NotANumber { text: text.clone(), range: range() })?,
        };
        let fits = u32::try_from(number).ok().filter(|n| (param.min..=param.max).contains(n));
        fits.ok_or_else(|| ParamError::OutOfRange { number: number.into(), range: range() })
    }
}

impl Param {
    /// The value that the scheme has if the plan does not write it.
    fn default_of(&self, scheme: &Scheme) -> u32 {
        scheme.params.get(&self.name).copied().unwrap_or(self.default)
    }

    /// "from 100 to 1000000 (us), 2000 by default: initial threshold".
    pub fn range(&self, scheme: &Scheme) -> String {
        let Self { min, max, unit, doc, .. } = self;
        let default = self.default_of(scheme);
        format!("from {min} to {max} ({unit}), {default} by default: {doc}")
    }
}

impl Rule {
    fn broken_by(&self, cc: &Cc, params: &[(String, u32)]) -> Option<InstanceProblem> {
        let of = |name: &str| params.iter().find(|(n, _)| n == name).map_or(0, |(_, v)| *v);
        let side = |operand: &Operand| match operand {
            Operand::Number(number) => *number,
            Operand::Param(name) => of(name),
        };
        if self.when.as_deref().is_some_and(|when| of(when) == 0) {
            return None;
        }
        let (left, right) = (side(&self.left), side(&self.right));
        let holds = match self.relation.as_str() {
            "<" => left < right,
            "<=" => left <= right,
            ">" => left > right,
            ">=" => left >= right,
            "==" => left == right,
            _ => left != right,
        };
        if holds {
            return None;
        }
        let value = |operand: &Operand| match operand {
            Operand::Number(_) => None,
            Operand::Param(name) if *name == self.param => None,
            Operand::Param(name) => Some(format!("{name} = {}", of(name))),
        };
        let others: Vec<String> =
            [value(&self.left), value(&self.right)].into_iter().flatten().collect();
        let with = if others.is_empty() {
            String::new()
        } else {
            format!(" (with {})", others.join(", "))
        };
        // A parameter that the plan does not write has no line.
        let key = if cc.params.contains_key(&self.param) {
            vec!["params".into(), self.param.clone()]
        } else {
            vec!["params".into()]
        };
        Some(InstanceProblem {
            key,
            reason: format!("{} = {}: {}{with}", self.param, of(&self.param), self.message),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cc(algorithm: &str, params: &[(&str, i64)]) -> Cc {
        let params =
            params.iter().map(|(k, v)| ((*k).to_owned(), SysctlValue::Number(*v))).collect();
        Cc { params, ..Cc::new(algorithm) }
    }
    fn why(cc: &Cc) -> String {
        resolve(cc)
            .unwrap_err()
            .into_iter()
            .map(|w| format!("{}: {}", w.key.join("."), w.reason))
            .collect()
    }
    fn value(cc: &Cc, name: &str) -> u32 {
        let Ok(Instance::Own { params, .. }) = resolve(cc) else { panic!("{:?}", resolve(cc)) };
        params.iter().find(|(n, _)| n == name).unwrap().1
    }

    #[test]
    fn every_scheme_is_a_core_with_parameters_that_it_allows() {
        assert!(table().cores.len() >= 7);
        for name in
            "vegas ta ta_grad ta_per cx cx_rttvar cx_shadow dctcp prague bbr2 bbr3".split(' ')
        {
            assert!(scheme(name).is_some(), "{name}");
        }
        for scheme in &table().schemes {
            assert!(
                matches!(resolve(&cc(&scheme.name, &[])), Ok(Instance::Own { .. })),
                "{scheme:?}"
            );
        }
    }

    #[test]
    fn scheme_overrides_core_and_plan_overrides_scheme() {
        assert_eq!(value(&cc("ta", &[]), "comeback"), 0);
        assert_eq!(value(&cc("ta_grad", &[]), "comeback"), 1);
        assert_eq!(value(&cc("ta_per", &[]), "P1"), 200);
        assert_eq!(value(&cc("ta_per", &[("P1", 100)]), "P1"), 100);
        assert_eq!(value(&cc("ta", &[]), "betao"), 2000);
    }

    #[test]
    fn states_are_named_in_the_unit_of_their_variable() {
        let bbr = states(&cc("bbr3", &[]));
        let drain = NamedState { variable: "mode", number: 1, name: "DRAIN" };
        assert_eq!((bbr.len(), bbr[1]), (7, drain));
        assert!(states(&cc("ta", &[])).is_empty());
        assert!(states(&Cc { via: Via::Builtin, ..cc("bbr3", &[]) }).is_empty());
    }

    #[test]
    fn wrong_parameters_are_refused_with_range_and_unit() {
        let out = why(&cc("ta", &[("betao", 5)]));
        assert_eq!(
            out,
            "params.betao: 5 is out of range; write a number from 100 to 1000000 (us), 2000 by default: initial and lowest \
             threshold above the base RTT"
        );
        assert!(why(&cc("ta", &[("betao", -1)])).contains("-1 is out of range"));
        assert!(why(&cc("ta", &[("betao", 1 << 33)])).contains("out of range"));
        assert!(why(&cc("ta", &[("comback", 1)])).contains("did you mean `comeback`?"));
    }

    #[test]
    fn the_default_of_a_refused_parameter_is_the_schemes() {
        for (scheme, name, default) in [
            ("cx", "del_max", "150000 by default"),
            ("cx15", "del_max", "15000 by default"),
            ("ta", "comeback", "0 by default"),
            ("ta_per", "P1", "200 by default"),
        ] {
            let out = why(&cc(scheme, &[(name, -1)]));
            assert!(out.contains(&format!(", {default}: ")), "{scheme}: {out}");
        }
    }

    #[test]
    fn rules_between_parameters_name_both() {
        let out = why(&cc("ta", &[("P1", 20), ("comeback", 0)]));
        assert_eq!(
            out,
            "params.P1: P1 = 20: periodic backoff needs comeback = 1 (with comeback = 0)"
        );
        let out = why(&cc("ta", &[("inc_thresh", 2)]));
        assert_eq!(out, "params: starve_rst = 5: must not exceed inc_thresh (with inc_thresh = 2)");
    }

    #[test]
    fn unknown_algorithm_has_hint_and_builtin_is_not_checked() {
        assert!(why(&cc("ta_gard", &[])).contains("did you mean `ta_grad`?"));
        assert!(why(&cc("cubik", &[])).contains("did you mean `cubic`?"));
        assert!(
            why(&Cc { via: Via::Bpf, ..cc("cubic", &[]) }).contains("no module or BPF program")
        );
        assert!(why(&cc("much_too_long_name", &[])).contains("1 to 15"));
        let own = Cc { via: Via::Builtin, ..cc("home_made", &[("x", 1)]) };
        assert_eq!(resolve(&own), Ok(Instance::Kernel { params: vec![("x".into(), "1".into())] }));
    }

    #[test]
    fn ect1_is_for_those_that_count_marks() {
        let ect1 = |algorithm, via| Cc { ect1: Some(true), via, ..cc(algorithm, &[]) };
        for (algorithm, via) in
            [("dctcp", Via::Auto), ("dctcp", Via::Builtin), ("prague", Via::Builtin)]
        {
            assert!(resolve(&ect1(algorithm, via)).is_ok(), "{algorithm}");
        }
        for (algorithm, fix) in
            [("cubic", "use `dctcp`"), ("vegas", "use `dctcp`"), ("bbr3", "`ecn_enable` to 1")]
        {
            let why = why(&ect1(algorithm, Via::Auto));
            assert!(why.starts_with(&format!("ect1: `{algorithm}` does not count")), "{why}");
            assert!(why.contains(fix), "{why}");
        }
    }
}
