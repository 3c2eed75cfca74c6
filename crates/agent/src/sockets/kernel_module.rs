//! ccbench's congestion controls as kernel modules, and the kernel's own: both have their parameters in sysfs.
//! `kmod/module/instances.h` is the contract of the former.

use ccbench_proto::cc::Core;

use super::journal::{Journal, Step};
use super::sysfs;

/// Whether the core's module can be had here, and if not why.
///
/// # Errors
/// In words for people.
pub fn possible(core: &Core) -> Result<(), String> {
    let module = format!("ccb_{}", core.name);
    let release = sysfs::release();
    if sysfs::is_loaded(&module) {
        return Ok(());
    }
    match sysfs::on_disk(std::path::Path::new("/lib/modules"), &release, &module) {
        Some(true) => Ok(()),
        Some(false) => Err(format!(
            "module {module} is not installed for this kernel {release}: make -C kmod module-install"
        )),
        None => Err(format!("this kernel {release} has no modules")),
    }
}

/// Registers an instance of a core's module, which is loaded if it is not. The parameters as the kernel has them.
///
/// # Errors
/// What was refused, and what to do.
pub fn register(
    core: &Core,
    kernel_name: &str,
    params: &[(String, u32)],
    journal: &mut Journal,
) -> Result<Vec<(String, String)>, String> {
    let module = format!("ccb_{}", core.name);
    if !sysfs::is_loaded(&module) {
        journal.push(Step::Module { module: module.clone() })?;
        sysfs::modprobe(&module)?;
    }
    if sysfs::available().iter().any(|name| name == kernel_name) {
        return Err(format!("the name `{kernel_name}` is taken in this kernel: choose another"));
    }
    journal.push(Step::Instance { module: module.clone(), name: kernel_name.to_owned() })?;
    let mut text = kernel_name.to_owned();
    for (name, value) in params {
        text.push_str(&format!(" {name}={value}"));
    }
    sysfs::write(&sysfs::parameter(&module, "add"), &text).map_err(|why| {
        format!("{why}; the kernel's log (dmesg) names the parameter that {module} refused")
    })?;
    let instances =
        std::fs::read_to_string(sysfs::parameter(&module, "instances")).unwrap_or_default();
    in_force(&instances, kernel_name)
        .ok_or_else(|| format!("{module} took {kernel_name} and does not list it"))
}

/// An instance's line of the module's list.
fn in_force(instances: &str, kernel_name: &str) -> Option<Vec<(String, String)>> {
    instances.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        if words.next() != Some(kernel_name) {
            return None;
        }
        let pairs = words.filter_map(|word| word.split_once('='));
        Some(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    })
}

/// Gives the kernel's own its parameters, for the whole machine. All of them, as the kernel has them.
///
/// # Errors
/// It has no such parameter, or refuses the value.
pub fn tune(
    algorithm: &str,
    params: &[(String, String)],
    journal: &mut Journal,
) -> Result<Vec<(String, String)>, String> {
    let module = format!("tcp_{algorithm}");
    let before = sysfs::parameters(&module);
    for (name, value) in params {
        let Some(now) = before.get(name) else {
            let known: Vec<&str> = before.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(format!(
                "the kernel's `{algorithm}` has no parameter `{name}` (it has: {known})"
            ));
        };
        // Another agent of this machine may have set it: then it is that one's to put back.
        if same(now, value) {
            continue;
        }
        journal.push(Step::Parameter {
            module: module.clone(),
            name: name.clone(),
            before: now.clone(),
        })?;
        sysfs::write(&sysfs::parameter(&module, name), value)?;
    }
    let after = sysfs::parameters(&module);
    for (name, value) in params {
        let now = after.get(name).map_or("", String::as_str);
        if !same(now, value) {
            return Err(format!("the kernel made {module}.{name} = {now} of {value}"));
        }
    }
    Ok(after.into_iter().collect())
}

/// The kernel writes truth values as letters.
fn same(now: &str, wanted: &str) -> bool {
    let truth = |text: &str| match text {
        "Y" | "y" => "1".to_owned(),
        "N" | "n" => "0".to_owned(),
        other => other.to_owned(),
    };
    truth(now) == truth(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_instances_is_read_by_name() {
        let text = "ccb_ta compete=1 betao=2000\nta.0a1b2 compete=0 betao=5000\n";
        let found = in_force(text, "ta.0a1b2").unwrap();
        assert_eq!(found[1], ("betao".to_owned(), "5000".to_owned()));
        assert_eq!(in_force(text, "ta"), None);
    }

    #[test]
    fn truth_is_a_number_or_a_letter() {
        assert!(same("Y", "1") && same("N", "0") && same("41", "41"));
        assert!(!same("Y", "0"));
    }

    #[test]
    fn a_parameter_that_the_kernel_does_not_have_is_named_with_those_it_has() {
        let mut journal = Journal::default();
        let error = tune("reno", &[("x".into(), "1".into())], &mut journal).unwrap_err();
        assert_eq!(error, "the kernel's `reno` has no parameter `x` (it has: none)");
    }
}
