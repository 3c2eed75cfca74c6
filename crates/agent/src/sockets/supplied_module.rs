//! Supplied kernel modules. They are loaded with the plan's parameters, and unloaded when the last process that uses
//! them here has undone its use. A kernel has a module and its parameters only once.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use ccbench_proto::cc::supplied::{KernelModule, ParameterKind};
use rustix::io::Errno;

use super::error::SocketError;
use super::journal::{Journal, ModuleUse, Step, lock_modules, other_uses};
use super::module_loader::{self, ModuleError};
use super::{kernel_module, sysfs};
use crate::clock;

/// A module to load.
#[derive(Debug, Clone, Copy)]
pub struct ModuleSpec<'a> {
    /// The file.
    pub bytes: &'a [u8],
    /// What it contains.
    pub module: &'a KernelModule,
    /// The file's SHA-256, in hexadecimal.
    pub sha256: &'a str,
    /// The congestion control that it registers.
    pub algorithm: &'a str,
    /// Parameters, as [`ccbench_proto::cc::supplied::SuppliedFile::values`] returns them.
    pub params: &'a [(String, String)],
}

/// Loads a module, or uses the one that another process has loaded from the same file with the same parameters. Returns
/// the kernel's parameters.
///
/// # Errors
/// The module is for another kernel, the name is taken, or the kernel refused.
pub fn load(
    wanted: &ModuleSpec<'_>,
    journal: &mut Journal,
) -> Result<Vec<(String, String)>, SocketError> {
    let (module, release) = (&wanted.module.name, sysfs::release());
    if !Path::new("/proc/modules").exists() {
        return Err(SocketError::NoModules { release });
    }
    check_kernel(wanted.module, release)?;
    let _lock = lock_modules()?;
    let mut used = module_use(wanted);
    let others = other_uses(module, &used.id)?;
    let differs =
        |other: &&ModuleUse| (&other.sha256, &other.params) != (&used.sha256, &used.params);
    if let Some(other) = others.iter().find(differs) {
        let (module, sha256, params) = (module.clone(), other.sha256.clone(), other.params.clone());
        return Err(SocketError::ModuleInUse { module, sha256, params });
    }
    let is_loaded = sysfs::is_loaded(module);
    let before = match others.first() {
        Some(other) if is_loaded => other.before.clone(),
        None if is_loaded => return Err(SocketError::ModuleLoaded { module: module.clone() }),
        _ => sysfs::available(),
    };
    check_free(wanted, &before)?;
    used.before.clone_from(&before);
    let params = used.params.clone();
    journal.push(Step::SuppliedModule(used))?;
    if !is_loaded {
        module_loader::init_module(module, &params, wanted.bytes).map_err(|e| match e {
            ModuleError::Kernel(errno) => refused(module, errno),
            ModuleError::Loader(error) => error,
        })?;
    }
    check_registered(wanted, &before)?;
    effective_params(wanted)
}

/// Refuses a taken name: with a wrong `algorithm`, the trial would measure another congestion control than the module's.
fn check_free(wanted: &ModuleSpec<'_>, before: &[String]) -> Result<(), SocketError> {
    if before.iter().all(|name| name != wanted.algorithm) {
        return Ok(());
    }
    let (name, module) = (wanted.algorithm.to_owned(), &wanted.module.name);
    let hint = format!(
        "the kernel had it before module {module}; set `algorithm` to the name that the module registers, or register another one"
    );
    Err(SocketError::NameTaken { name, hint })
}

fn module_use(wanted: &ModuleSpec<'_>) -> ModuleUse {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let params: Vec<String> =
        wanted.params.iter().map(|(name, value)| format!("{name}={value}")).collect();
    ModuleUse {
        module: wanted.module.name.clone(),
        sha256: wanted.sha256.to_owned(),
        params: params.join(" "),
        before: Vec::new(),
        // Process numbers are reused, and another namespace may have the same one.
        id: format!(
            "{}-{}-{}",
            std::process::id(),
            clock::now_ns(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        ),
    }
}

/// Compares the releases. The kernel compares more of `vermagic`, but reports less.
fn check_kernel(module: &KernelModule, release: String) -> Result<(), SocketError> {
    let built_for = module.vermagic.split_whitespace().next().unwrap_or_default();
    if built_for == release {
        return Ok(());
    }
    let (module, built_for) = (module.name.clone(), built_for.to_owned());
    Err(SocketError::OtherKernel { module, built_for, release })
}

fn refused(module: &str, errno: Errno) -> SocketError {
    let hint = match errno {
        Errno::PERM => {
            "; loading modules needs root (CAP_SYS_MODULE), outside of any user namespace"
        }
        Errno::NOEXEC => {
            "; the kernel's log (dmesg) has the reason: the module was built with another configuration or for another machine"
        }
        Errno::NOSYS => "; this kernel was built without modules",
        Errno::KEYREJECTED | Errno::NOKEY => {
            "; this kernel only takes signed modules: sign this one, switch off Secure Boot, or write it in BPF (`file`)"
        }
        Errno::NOENT => {
            "; the kernel's log (dmesg) names a symbol or a parameter that this kernel does not know"
        }
        _ => "; the kernel's log (dmesg) may have the reason",
    };
    SocketError::LoadModule { module: module.to_owned(), source: errno.into(), hint }
}

/// Checks that the module has registered the expected name, which for most modules follows the naming convention.
fn check_registered(wanted: &ModuleSpec<'_>, before: &[String]) -> Result<(), SocketError> {
    let now = sysfs::available();
    if now.iter().any(|name| name == wanted.algorithm) {
        return Ok(());
    }
    let new: Vec<String> =
        now.iter().filter(|name| !before.contains(name)).map(|name| format!("`{name}`")).collect();
    Err(SocketError::OtherAlgorithm {
        module: wanted.module.name.clone(),
        algorithm: wanted.algorithm.to_owned(),
        hint: if new.is_empty() { String::new() } else { format!(", but {}", new.join(", ")) },
    })
}

/// Returns the parameters that sysfs shows, and the requested values of the others.
fn effective_params(wanted: &ModuleSpec<'_>) -> Result<Vec<(String, String)>, SocketError> {
    let mut shown = sysfs::parameters(&wanted.module.name);
    for (name, value) in wanted.params {
        let params = &wanted.module.params;
        let is_text = params
            .iter()
            .any(|param| param.name == *name && matches!(param.kind, ParameterKind::Text(_)));
        let actual = shown.entry(name.clone()).or_insert_with(|| value.clone());
        if !is_text && !kernel_module::is_same_value(actual, value) {
            return Err(SocketError::ParameterChanged {
                module: wanted.module.name.clone(),
                name: name.clone(),
                actual: actual.clone(),
                wanted: value.clone(),
            });
        }
    }
    Ok(shown.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(vermagic: &str) -> KernelModule {
        KernelModule { name: "tcp_mine".into(), vermagic: vermagic.into(), params: Vec::new() }
    }

    #[test]
    fn a_module_for_another_kernel_is_refused() {
        let check = |vermagic: &str| check_kernel(&module(vermagic), "6.18.5".to_owned());
        check("6.18.5 SMP preempt mod_unload ").unwrap();
        let why = check("6.1.0-40-amd64 SMP mod_unload ").unwrap_err().to_string();
        assert_eq!(
            why,
            "module tcp_mine was built for kernel 6.1.0-40-amd64, but this is 6.18.5; rebuild it for this kernel"
        );
    }

    #[test]
    fn a_name_that_the_kernel_has_already_is_not_the_modules() {
        let module = module("6.18.5");
        let check = |algorithm| {
            let wanted =
                ModuleSpec { bytes: b"", module: &module, sha256: "0", algorithm, params: &[] };
            check_free(&wanted, &["reno".to_owned(), "cubic".to_owned()])
        };
        assert!(check("mine").is_ok());
        let why = check("cubic").unwrap_err().to_string();
        assert!(why.starts_with("the name `cubic` is taken") && why.contains("tcp_mine"), "{why}");
    }

    #[test]
    fn uses_are_told_apart() {
        let module = module("6.18.5");
        let params = [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "x".to_owned())];
        let wanted = ModuleSpec {
            bytes: b"",
            module: &module,
            sha256: "0",
            algorithm: "mine",
            params: &params,
        };
        let (one, other) = (module_use(&wanted), module_use(&wanted));
        assert_eq!((one.params.as_str(), &one.params), ("a=1 b=x", &other.params));
        assert_ne!(one.id, other.id);
    }

    #[test]
    fn refusals_have_a_hint() {
        let why = refused("tcp_mine", Errno::PERM).to_string();
        assert!(why.starts_with("load the module tcp_mine: ") && why.contains("root"), "{why}");
        assert!(refused("tcp_mine", Errno::KEYREJECTED).to_string().contains("signed modules"));
    }
}
