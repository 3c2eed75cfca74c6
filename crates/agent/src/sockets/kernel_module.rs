//! ccbench's congestion controls as kernel modules (interface: `kmod/module/instances.h`), and parameters of the
//! kernel's congestion controls. Both are controlled through sysfs.

use ccbench_proto::cc::Core;

use super::error::SocketError;
use super::journal::{Journal, Step, is_loaded_by_agent, lock_modules};
use super::{module_loader, sysfs};

/// Checks that the core's module is loaded or installed.
///
/// # Errors
/// The reason why it is not, and how to install it.
pub fn check_available(core: &Core) -> Result<(), SocketError> {
    let module = format!("ccb_{}", core.name);
    let release = sysfs::release();
    if sysfs::is_loaded(&module) {
        return Ok(());
    }
    match module_loader::find(&module)? {
        Some(true) => Ok(()),
        Some(false) => Err(SocketError::ModuleNotInstalled { module, release }),
        None => Err(SocketError::NoModules { release }),
    }
}

/// Registers an instance of a core's module, and loads the module if needed. If an agent loaded the module, the last
/// agent with an instance unloads it. Returns the kernel's parameters.
///
/// # Errors
/// The kernel refused.
pub fn register(
    core: &Core,
    kernel_name: &str,
    params: &[(String, u32)],
    journal: &mut Journal,
) -> Result<Vec<(String, String)>, SocketError> {
    let module = format!("ccb_{}", core.name);
    // Keeps other agents from unloading the module before the instance is registered.
    let _lock = lock_modules()?;
    let is_loaded = sysfs::is_loaded(&module);
    let unload = Step::Module { module: module.clone() };
    if !journal.has(&unload) && (!is_loaded || is_loaded_by_agent(&module)?) {
        journal.push(unload)?;
    }
    if !is_loaded {
        module_loader::modprobe(&module)?;
    }
    if sysfs::available().iter().any(|name| name == kernel_name) {
        let hint = "choose another".to_owned();
        return Err(SocketError::NameTaken { name: kernel_name.to_owned(), hint });
    }
    journal.push(Step::Instance { module: module.clone(), name: kernel_name.to_owned() })?;
    let mut text = kernel_name.to_owned();
    for (name, value) in params {
        text.push_str(&format!(" {name}={value}"));
    }
    sysfs::write(&sysfs::parameter(&module, "add"), &text).map_err(|error| {
        SocketError::ModuleRefused { module: module.clone(), source: Box::new(error) }
    })?;
    let instances =
        std::fs::read_to_string(sysfs::parameter(&module, "instances")).unwrap_or_default();
    instance_params(&instances, kernel_name)
        .ok_or_else(|| SocketError::NotListed { module, name: kernel_name.to_owned() })
}

/// Returns the parameters of an instance from the module's `instances` file.
fn instance_params(instances: &str, kernel_name: &str) -> Option<Vec<(String, String)>> {
    instances.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        if words.next() != Some(kernel_name) {
            return None;
        }
        let pairs = words.filter_map(|word| word.split_once('='));
        Some(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    })
}

/// Sets parameters of a built-in congestion control, for the whole machine. Returns all its parameters in the kernel.
///
/// # Errors
/// The kernel has no such parameter, or refused the value.
pub fn set_parameters(
    algorithm: &str,
    params: &[(String, String)],
    journal: &mut Journal,
) -> Result<Vec<(String, String)>, SocketError> {
    let module = format!("tcp_{algorithm}");
    let before = sysfs::parameters(&module);
    for (name, value) in params {
        let Some(now) = before.get(name) else {
            let known: Vec<&str> = before.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(SocketError::UnknownParameter {
                algorithm: algorithm.to_owned(),
                name: name.clone(),
                known,
            });
        };
        // If another agent of this machine has set it, that agent restores it.
        if is_same_value(now, value) {
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
        if !is_same_value(now, value) {
            return Err(SocketError::ParameterChanged {
                module,
                name: name.clone(),
                actual: now.to_owned(),
                wanted: value.clone(),
            });
        }
    }
    Ok(after.into_iter().collect())
}

/// Whether two values are equal. The kernel prints booleans as letters, and numbers of type `hexint` in hexadecimal.
pub(super) fn is_same_value(now: &str, wanted: &str) -> bool {
    let decimal = |text: &str| match text {
        "Y" | "y" => "1".to_owned(),
        "N" | "n" => "0".to_owned(),
        other => {
            let number = other.strip_prefix("0x");
            let number = number.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            number.map_or_else(|| other.to_owned(), |number| number.to_string())
        }
    };
    decimal(now) == decimal(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_parameters_of_an_instance() {
        let text = "ccb_ta compete=1 betao=2000\nta.0a1b2 compete=0 betao=5000\n";
        let found = instance_params(text, "ta.0a1b2").unwrap();
        assert_eq!(found[1], ("betao".to_owned(), "5000".to_owned()));
        assert_eq!(instance_params(text, "ta"), None);
    }

    #[test]
    fn booleans_are_numbers_or_letters() {
        assert!(is_same_value("Y", "1") && is_same_value("N", "0") && is_same_value("41", "41"));
        assert!(!is_same_value("Y", "0"));
    }

    #[test]
    fn numbers_may_be_hexadecimal() {
        assert!(
            is_same_value("0x00002a", "42")
                && is_same_value("0x000000", "0")
                && is_same_value("42", "0x2a")
        );
        assert!(
            !is_same_value("0x00002a", "2a")
                && !is_same_value("0x000010", "10")
                && !is_same_value("0x", "0")
        );
    }

    #[test]
    fn rejects_unknown_parameter_and_lists_known_ones() {
        let mut journal = Journal::default();
        let error = set_parameters("reno", &[("x".into(), "1".into())], &mut journal).unwrap_err();
        assert_eq!(error.to_string(), "the kernel's `reno` has no parameter `x` (it has: none)");
    }
}
