//! Checks `[cc.NAME]` and the names in `flows.NAME.cc` and `probes.NAME.cc` against the embedded table. This needs no kernel.

use crate::cc::{self, Instance};
use crate::plan::parse::suggest;
use crate::plan::{Cc, Plan, ProbeKind};

use super::names;
use super::problems::Problems;
use super::supplied;

pub(super) fn check(plan: &Plan, problems: &mut Problems) {
    for (name, cc) in &plan.cc {
        names::name(&["cc", name], name, problems);
        shadows(name, cc, problems);
        for param in cc::deprecated_params(cc) {
            let path = ["cc", name, "params", param.name];
            problems.warning_from(&path, &[&["cc", name]], param.to_string());
        }
        let wrong = cc::resolve(cc).err().unwrap_or_default();
        if wrong.is_empty() {
            supplied::check(name, cc, problems);
        }
        for wrong in wrong {
            let path: Vec<&str> =
                ["cc", name].into_iter().chain(wrong.key.iter().map(String::as_str)).collect();
            problems.error_from(&path, &[&["cc", name]], wrong.reason);
        }
    }
    one_set_of_parameters(plan, problems);
    supplied::one_module(plan, problems);
    without_instance(plan, problems);
}

/// Warns about ccbench's own congestion controls in flows and web servers without an instance: ccbench loads them only for instances.
fn without_instance(plan: &Plan, problems: &mut Problems) {
    let of_flows = plan.flows.iter().map(|(name, flow)| (["flows", name, "cc"], &flow.cc));
    // A `cc` of another kind of probe is an error.
    let servers = plan.probes.iter().filter(|(_, probe)| probe.kind == ProbeKind::Http);
    let of_servers = servers.map(|(name, probe)| (["probes", name, "cc"], &probe.cc));
    for (path, cc) in of_flows.chain(of_servers) {
        let Some(cc) = cc else { continue };
        if plan.cc.contains_key(cc) || cc::BUILTINS.contains(&cc.as_str()) {
            continue;
        }
        if cc::scheme(cc).is_none() {
            if cc::refuse_kernel_name(cc).is_some() {
                continue;
            }
            unknown(plan, path, cc, problems);
        } else {
            problems.warning_from(
                &path,
                &[&["cc"], &[path[0], path[1], "kind"]],
                format!(
                    "`{cc}` is one of ccbench's own, but no `[cc.{cc}]` loads it, so the kernel must have it; to load \
                     it, write `[cc.{cc}]` with `algorithm = \"{cc}\"`"
                ),
            );
        }
    }
}

/// Warns about a congestion control that no mainline kernel has. A kernel may have further ones, so this is not an error.
fn unknown(plan: &Plan, path: [&str; 3], cc: &str, problems: &mut Problems) {
    let own = cc::table().schemes.iter().map(|scheme| scheme.name.as_str());
    let instances = plan.cc.keys().map(String::as_str);
    let known: Vec<&str> = cc::BUILTINS.iter().copied().chain(instances).chain(own).collect();
    let near = suggest::near(cc, &known);
    let kernels = match path[0] {
        "flows" => "kernels of both nodes",
        _ => "kernel of the web server's node",
    };
    problems.warning_from(
        &path,
        &[&["cc"], &[path[0], path[1], "kind"]],
        format!(
            "`{cc}` is in no mainline kernel, is not one of ccbench's own, and has no table in this plan; the {kernels} \
             must have it, or a `[cc.NAME]` must name its `file` or `module`{near}"
        ),
    );
}

/// Rejects an instance with the name of a kernel's congestion control: a flow's `cc` must not mean two things.
fn shadows(name: &str, cc: &Cc, problems: &mut Problems) {
    let same = cc::is_kernel_algorithm(cc) && cc.algorithm == name;
    if cc::BUILTINS.contains(&name) && !same {
        problems.error_from(
            &["cc", name],
            &[],
            format!(
                "`{name}` is a congestion control of the kernel, so a flow's `cc = \"{name}\"` would be ambiguous; \
                 choose another name, like `my_{name}`"
            ),
        );
    }
}

/// Rejects several sets of parameters for a kernel's congestion control, which has one set for the whole machine.
fn one_set_of_parameters(plan: &Plan, problems: &mut Problems) {
    let of_flows = plan.flows.values().map(|flow| &flow.cc);
    let all: Vec<&Option<String>> =
        of_flows.chain(plan.probes.values().map(|probe| &probe.cc)).collect();
    let used = |name: &str| all.iter().any(|cc| cc.as_deref() == Some(name));
    let kernels: Vec<(&String, &Cc, Instance)> = plan
        .cc
        .iter()
        .filter(|(name, cc)| cc::is_kernel_algorithm(cc) && used(name))
        .filter_map(|(name, cc)| Some((name, cc, cc::resolve(cc).ok()?)))
        .collect();
    for (index, (name, cc, instance)) in kernels.iter().enumerate() {
        let other =
            kernels[..index].iter().find(|(_, c, i)| c.algorithm == cc.algorithm && i != instance);
        if let Some((other, ..)) = other {
            problems.error_from(
                &["cc", name, "params"],
                &[&["cc", other], &["cc", name], &["flows", "*", "cc"], &["probes", "*", "cc"]],
                format!(
                    "`cc.{other}` sets other parameters of the kernel's `{}`, but a machine has only one set of them; \
                     compare the two at separate points of the matrix",
                    cc.algorithm
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::check::read;

    #[test]
    fn warns_of_unknown_and_unloaded_ones_in_flows_and_web_servers() {
        let warned = |flow: &str, page: &str| -> Vec<String> {
            let text = format!(
                "name = \"t\"\n[nodes]\na = {{}}\nb = {{}}\n[wires]\nw = [\"a\", \"b\"]\n[flows.f]\nfrom = \"a\"\n\
                 to = \"b\"\ncc = \"{flow}\"\n[probes.page]\nkind = \"http\"\nbytes = \"1kB\"\nfrom = \"a\"\nto = \"b\"\n\
                 cc = \"{page}\"\n[cc.mine]\nalgorithm = \"vegas\"\n\
                 [[phases]]\nname = \"p\"\nlength = \"5s\"\nflows = [\"f\"]\n"
            );
            let (_, warnings) = read(&text, &[]).unwrap();
            let of_cc = warnings.iter().filter(|warning| warning.path.ends_with(".cc"));
            of_cc.map(|warning| format!("{}: {}", warning.path, warning.reason)).collect()
        };
        for (cc, why) in
            [("bbrr", "; did you mean `bbr`?"), ("ta_per", "with `algorithm = \"ta_per\"`")]
        {
            for (found, path) in
                [(warned(cc, "mine"), "flows.f.cc: "), (warned("cubic", cc), "probes.page.cc: ")]
            {
                let [warning] = &found[..] else { panic!("one warning: {found:?}") };
                assert!(warning.starts_with(path) && warning.ends_with(why), "{warning}");
            }
        }
        assert!(
            warned("cubic", "bbrr")[0].contains("the kernel of the web server's node must have it")
        );
        assert_eq!(warned("mine", "mine"), [""; 0]);
        assert_eq!(warned("reno", "bbr"), [""; 0]);
    }

    #[test]
    fn web_servers_share_the_parameters_of_a_kernel_algorithm() {
        let errors = |params: &str| -> Vec<String> {
            let text = format!(
                "name = \"t\"\n[nodes]\na = {{}}\nb = {{}}\n[wires]\nw = [\"a\", \"b\"]\n[flows.f]\nfrom = \"a\"\n\
                 to = \"b\"\ncc = \"one\"\n[probes.page]\nkind = \"http\"\nbytes = \"1kB\"\nfrom = \"a\"\nto = \"b\"\n\
                 cc = \"two\"\n[cc.one]\nalgorithm = \"cubic\"\n[cc.two]\nalgorithm = \"cubic\"\nparams = {{ {params} }}\n\
                 [[phases]]\nname = \"p\"\nlength = \"5s\"\nflows = [\"f\"]\n"
            );
            let problems = read(&text, &[]).err().unwrap_or_default();
            let about = problems.iter().filter(|problem| problem.path.starts_with("cc."));
            about.map(ToString::to_string).collect()
        };
        assert_eq!(errors(""), [""; 0]);
        let found = errors("x = 1");
        assert!(found.len() == 1 && found[0].contains("only one set of them"), "{found:?}");
    }
}
