//! ccbench's kernel modules for the kernel `own`: built once for each engine and cached beside the kernel. They are the third
//! host of ccbench's congestion controls, after the simulator and BPF.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use ccbench_proto::cc;
use ccbench_proto::plan::{Plan, Series, Via};
use tracing::info;

use super::error::LabError;
use super::kernel::{self, Kernel};

/// A source of the modules: its name below `kmod/`, and contents.
macro_rules! source {
    ($name:literal) => {
        (concat!("kmod/", $name), include_str!(concat!("../../../../kmod/", $name)))
    };
}

/// The sources of the modules. Their contents are part of the modules' cache key.
const SOURCES: [(&str, &str); 30] = [
    source!("adapter/hooks.h"),
    source!("adapter/socket.h"),
    source!("core/bbr2.h"),
    source!("core/bbr3.h"),
    source!("core/bbr_common.h"),
    source!("core/bbr_fast_path.h"),
    source!("core/bbr_model.h"),
    source!("core/bbr_probe_bw.h"),
    source!("core/cc.h"),
    source!("core/cx.h"),
    source!("core/dctcp.h"),
    source!("core/echo.h"),
    source!("core/platform.h"),
    source!("core/prague.h"),
    source!("core/round.h"),
    source!("core/schemes.h"),
    source!("core/ta.h"),
    source!("core/vegas.h"),
    source!("module/Kbuild"),
    source!("module/adapter.h"),
    source!("module/ccb_bbr2.c"),
    source!("module/ccb_bbr3.c"),
    source!("module/ccb_cx.c"),
    source!("module/ccb_dctcp.c"),
    source!("module/ccb_prague.c"),
    source!("module/ccb_ta.c"),
    source!("module/ccb_vegas.c"),
    source!("module/compat.h"),
    source!("module/instances.h"),
    source!("module/rows.h"),
];

/// Returns whether a plan loads one of ccbench's modules.
pub fn are_used(plan: &Plan) -> bool {
    plan.cc.values().any(|cc| cc.via == Via::Module && cc::is_own(cc))
}

/// Returns the folder of the modules for a kernel in the lab's folder of a cache. Modules fit a single source version of the
/// kernel.
fn folder(cache: &Path, kernel: &Kernel) -> PathBuf {
    let Kernel { engine, series, version, recipe_sha256, .. } = kernel;
    let mut parts: Vec<(&str, &str)> = kernel::modules_recipe().chain(SOURCES).collect();
    parts.extend([("recipe", recipe_sha256.as_str()), ("source", version.as_str())]);
    let key = &kernel::sha256_of(parts.into_iter())[..12];
    cache.join(format!("modules-{series}-{engine}-{key}"))
}

/// Finds the modules for a kernel, the guest's `/lib/modules/RELEASE`, if they are built.
fn find(kernel: &Kernel) -> Option<PathBuf> {
    let modules = folder(&kernel::lab_cache_dir(), kernel).join("modules");
    // The script moves it there last.
    modules.exists().then_some(modules)
}

/// Returns the folder of the modules for a kernel.
///
/// # Errors
/// The modules are not built (the error names the command that builds them), or the kernel is a stock one.
pub fn open(kernel: &Kernel) -> Result<PathBuf, LabError> {
    let Kernel { engine, series, .. } = kernel;
    if *series != Series::Own {
        return Err(LabError::NoModules { kernel: *series });
    }
    find(kernel).ok_or_else(|| LabError::Missing {
        what: format!("ccbench's modules for its kernel {series} and the engine {engine}"),
        hint: format!("run `ccbench lab build --engine {engine} --modules` (about five minutes)"),
    })
}

/// Builds the modules for a kernel unless the cache has them. If another command does the same, waits for it.
///
/// # Errors
/// The kernel is a stock one, a tool is missing, or the build failed.
pub fn build(kernel: &Kernel) -> Result<PathBuf, LabError> {
    let Kernel { engine, series, image, .. } = kernel;
    if *series != Series::Own {
        return Err(LabError::NoModules { kernel: *series });
    }
    let to = folder(&kernel::lab_cache_dir(), kernel);
    let _lock = kernel::lock(&to)?;
    if let Some(modules) = find(kernel) {
        return Ok(modules);
    }
    info!(%engine, folder = %to.display(), "build ccbench's modules");
    let files = kernel::own_recipe().chain(kernel::modules_recipe()).chain(SOURCES);
    let of_kernel = image.parent().unwrap_or(Path::new("."));
    let arguments = [to.as_os_str(), OsStr::new(engine.name()), of_kernel.as_os_str()];
    kernel::run_script(files, "modules.sh", &arguments)?;
    open(kernel)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ccbench_proto::plan::Engine;

    use super::*;

    /// A file outside the sources would be missing from the build and from the key.
    #[test]
    fn sources_are_all_files_of_the_modules() {
        let kmod = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kmod");
        let mut found = BTreeSet::new();
        for folder in ["adapter", "core", "module"] {
            for entry in std::fs::read_dir(kmod.join(folder)).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                found.insert(format!("kmod/{folder}/{name}"));
            }
        }
        assert_eq!(found, SOURCES.map(|(name, _)| name.to_owned()).into());
    }

    fn kernel(engine: Engine, version: &str) -> Kernel {
        Kernel {
            engine,
            series: Series::Own,
            image: "/nowhere/vmlinux".into(),
            modules: None,
            release: "7.3.4".to_owned(),
            version: version.to_owned(),
            recipe_sha256: kernel::recipe_sha256(engine, Series::Own),
        }
    }

    #[test]
    fn modules_fit_one_kernel() {
        let at = |engine, version| folder(Path::new("lab"), &kernel(engine, version));
        assert_ne!(at(Engine::Qemu, "7.3.4"), at(Engine::Uml, "7.3.4"));
        assert_ne!(at(Engine::Uml, "7.3.4"), at(Engine::Uml, "7.3.5"));
        assert_eq!(at(Engine::Uml, "7.3.4"), at(Engine::Uml, "7.3.4"));
    }

    #[test]
    fn stock_kernels_have_none() {
        let stock = *Series::ALL.iter().find(|series| **series != Series::Own).unwrap();
        let kernel = Kernel { series: stock, ..kernel(Engine::Qemu, "6.1") };
        let why = open(&kernel).unwrap_err().to_string();
        assert!(why.contains("none of ccbench's modules; use the kernel `own`"), "{why}");
        assert!(matches!(build(&kernel), Err(LabError::NoModules { .. })));
    }
}
