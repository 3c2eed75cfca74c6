//! Kernels of the lab: built or fetched once and kept in the cache. `lab/kernel.sh` builds the kernel `own`, and `lab/debian.sh`
//! fetches stock kernels.
//!
//! The cache key is `recipe_sha256`: the digest of the bytes of the scripts, configurations and patches. Even a change to a
//! comment in them makes everyone rebuild that kernel.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};

use ccbench_proto::plan::{Engine, Series, digest_chunks};
use tracing::info;

use super::error::LabError;
use crate::paths::{cache_dir, shared_dir};

/// Which kernels a file of the recipe is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecipeTarget {
    /// All kernels.
    AllKernels,
    /// The kernel `own`, for both engines.
    OwnKernel,
    /// The kernel `own` for one engine.
    OwnKernelFor(Engine),
    /// Stock kernels.
    StockKernels,
    /// The modules for the kernel `own`. No kernel depends on them.
    Modules,
}

/// A file of the recipe: its name below `lab/`, contents, and target.
macro_rules! recipe_file {
    ($name:literal, $target:expr) => {
        ($name, include_str!(concat!("../../../../lab/", $name)), $target)
    };
}

/// Files that build or fetch kernels and modules. Their contents are part of the cache key.
const RECIPE: [(&str, &str, RecipeTarget); 17] = [
    recipe_file!("apt.sh", RecipeTarget::AllKernels),
    recipe_file!("kernel.sh", RecipeTarget::OwnKernel),
    recipe_file!("kernel.config", RecipeTarget::OwnKernelFor(Engine::Qemu)),
    recipe_file!("patches/0001-idle-nops.patch", RecipeTarget::OwnKernelFor(Engine::Qemu)),
    recipe_file!("patches/0002-lapic-timer-mhz.patch", RecipeTarget::OwnKernelFor(Engine::Qemu)),
    recipe_file!("uml/kernel.config", RecipeTarget::OwnKernelFor(Engine::Uml)),
    recipe_file!(
        "uml/patches/0001-um-hz-and-events.patch",
        RecipeTarget::OwnKernelFor(Engine::Uml)
    ),
    recipe_file!("uml/patches/0002-um-clock.patch", RecipeTarget::OwnKernelFor(Engine::Uml)),
    recipe_file!("uml/patches/0003-um-host-inputs.patch", RecipeTarget::OwnKernelFor(Engine::Uml)),
    recipe_file!("uml/patches/0004-um-labport.patch", RecipeTarget::OwnKernelFor(Engine::Uml)),
    recipe_file!("uml/patches/0005-um-bpf-jit.patch", RecipeTarget::OwnKernelFor(Engine::Uml)),
    recipe_file!("uml/patches/0006-um-controller.patch", RecipeTarget::OwnKernelFor(Engine::Uml)),
    recipe_file!(
        "uml/patches/0007-um-aligned-struct-page.patch",
        RecipeTarget::OwnKernelFor(Engine::Uml)
    ),
    recipe_file!(
        "uml/patches/0008-um-jit-placement.patch",
        RecipeTarget::OwnKernelFor(Engine::Uml)
    ),
    recipe_file!(
        "uml/patches/0009-um-hosts-without-xsave.patch",
        RecipeTarget::OwnKernelFor(Engine::Uml)
    ),
    recipe_file!("debian.sh", RecipeTarget::StockKernels),
    recipe_file!("modules.sh", RecipeTarget::Modules),
];

/// Returns the SHA-256 of everything that determines a kernel besides its source: scripts, configuration and patches.
pub(super) fn recipe_sha256(engine: Engine, series: Series) -> String {
    let parts = RECIPE.iter().filter(|(_, _, target)| match (target, series) {
        (RecipeTarget::AllKernels, _) => true,
        (RecipeTarget::OwnKernel, series) => series == Series::Own,
        (RecipeTarget::OwnKernelFor(of), Series::Own) => *of == engine,
        (RecipeTarget::OwnKernelFor(_) | RecipeTarget::Modules, _) => false,
        (RecipeTarget::StockKernels, series) => series != Series::Own,
    });
    sha256_of(parts.map(|(name, text, _)| (*name, *text)))
}

/// Returns the SHA-256 of names and texts, in hexadecimal.
pub(super) fn sha256_of<'a>(parts: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    digest_chunks(parts.flat_map(|(name, text)| [name.as_bytes(), b"\0", text.as_bytes(), b"\0"]))
}

/// Returns name and contents of the recipe's files with a wanted target.
fn recipe_of(
    wanted: impl Fn(RecipeTarget) -> bool,
) -> impl Iterator<Item = (&'static str, &'static str)> {
    let recipe: &'static [(&str, &str, RecipeTarget)] = &RECIPE;
    recipe
        .iter()
        .filter(move |(_, _, target)| wanted(*target))
        .map(|(name, text, _)| (*name, *text))
}

/// Returns name and contents of the files that build the kernels `own`.
pub(super) fn own_recipe() -> impl Iterator<Item = (&'static str, &'static str)> {
    recipe_of(|target| !matches!(target, RecipeTarget::StockKernels | RecipeTarget::Modules))
}

/// Returns name and contents of the files on which only the modules depend.
pub(super) fn modules_recipe() -> impl Iterator<Item = (&'static str, &'static str)> {
    recipe_of(|target| target == RecipeTarget::Modules)
}

/// Returns the folder of a kernel in the lab's folder of a cache.
pub(super) fn kernel_folder(cache: &Path, engine: Engine, series: Series) -> PathBuf {
    let key = &recipe_sha256(engine, series)[..12];
    let engine_suffix = if engine == Engine::Qemu { "" } else { "-uml" };
    cache.join(format!("kernel-{series}{engine_suffix}-{key}"))
}

/// Returns the file name of the kernel image in that folder.
fn image_name(series: Series) -> &'static str {
    if series == Series::Own { "vmlinux" } else { "vmlinuz" }
}

/// Returns how to get a kernel.
pub fn hint(engine: Engine, series: Series) -> String {
    match series {
        Series::Own => {
            format!(
                "run `ccbench lab build --engine {engine}` (about 15 minutes, once), or `ccbench lab install` with a package of a release"
            )
        }
        stock => format!("run `ccbench lab build --kernel {stock}` (about a minute, once)"),
    }
}

/// A kernel that the lab can boot.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// The engine that runs it.
    pub engine: Engine,
    /// Its series.
    pub series: Series,
    /// The image.
    pub image: PathBuf,
    /// The directory of its modules, if it has any.
    pub modules: Option<PathBuf>,
    /// `uname -r`.
    pub release: String,
    /// Source package and version.
    pub version: String,
    /// SHA-256 of scripts, configuration and patches, in hexadecimal.
    pub recipe_sha256: String,
}

impl Kernel {
    /// Returns whether it can run with a dilation. A stock kernel cannot, because it calibrates its timers against the CPU;
    /// neither can User-Mode Linux, whose CPU is infinitely fast.
    pub fn can_dilate(&self) -> bool {
        self.series == Series::Own && self.engine.has_cpu_time()
    }
}

/// Returns the lab's folder in the user's cache.
pub fn lab_cache_dir() -> PathBuf {
    cache_dir().join("lab")
}

/// Finds a kernel that is built, fetched or installed: in the user's cache, or for all users, as in the container image.
pub fn find(engine: Engine, series: Series) -> Option<Kernel> {
    let shared = shared_dir().map(|shared| shared.join("lab"));
    first_in([lab_cache_dir()].into_iter().chain(shared), engine, series)
}

/// Returns the kernel of the first folder that has one.
fn first_in(
    folders: impl IntoIterator<Item = PathBuf>,
    engine: Engine,
    series: Series,
) -> Option<Kernel> {
    folders.into_iter().find_map(|folder| find_in(&folder, engine, series))
}

/// Finds a kernel in the lab's folder of another cache.
pub(super) fn find_in(cache: &Path, engine: Engine, series: Series) -> Option<Kernel> {
    let folder = kernel_folder(cache, engine, series);
    let read_trimmed = |name: &str| {
        std::fs::read_to_string(folder.join(name)).ok().map(|text| text.trim().to_owned())
    };
    let image = folder.join(image_name(series));
    // The scripts move the image there last.
    image.exists().then_some(())?;
    let modules = (series != Series::Own).then(|| folder.join("modules"));
    let (release, version) = (read_trimmed("release")?, read_trimmed("version")?);
    let recipe_sha256 = recipe_sha256(engine, series);
    Some(Kernel { engine, series, image, modules, release, version, recipe_sha256 })
}

/// Builds or fetches a kernel unless the cache has it. If another command does the same, waits for it.
///
/// # Errors
/// A tool is missing, or the build failed.
pub fn build(engine: Engine, series: Series) -> Result<Kernel, LabError> {
    if let Some(kernel) = find(engine, series) {
        return Ok(kernel);
    }
    let folder = kernel_folder(&lab_cache_dir(), engine, series);
    let _lock = lock(&folder)?;
    if let Some(kernel) = find(engine, series) {
        return Ok(kernel);
    }
    info!(%series, %engine, folder = %folder.display(), "build the lab's kernel");
    let script = if series == Series::Own { "kernel.sh" } else { "debian.sh" };
    let which = if series == Series::Own { engine.name() } else { series.name() };
    let recipe = RECIPE.iter().map(|(name, text, _)| (*name, *text));
    run_script(recipe, script, &[folder.as_os_str(), OsStr::new(which)])?;
    find(engine, series).ok_or_else(|| LabError::Missing {
        what: format!("{}", folder.join(image_name(series)).display()),
        hint: "remove that directory and run `ccbench lab build` again".to_owned(),
    })
}

/// Writes these files to a directory and runs a script of them, with that directory as its first argument.
///
/// # Errors
/// The files cannot be written, or the script failed.
#[expect(clippy::disallowed_methods, reason = "starts the build of a kernel or of modules")]
pub(super) fn run_script(
    files: impl Iterator<Item = (&'static str, &'static str)>,
    script: &str,
    arguments: &[&OsStr],
) -> Result<(), LabError> {
    let dir =
        tempfile::tempdir().map_err(LabError::io("make a directory in", &std::env::temp_dir()))?;
    for (name, text) in files {
        let path = dir.path().join(name);
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::write(&path, text)).map_err(LabError::io("write", &path))?;
    }
    let mut command = std::process::Command::new("bash");
    command.arg(dir.path().join(script)).arg(dir.path()).args(arguments);
    let status = command.status().map_err(LabError::io("start bash for", dir.path()))?;
    if status.success() { Ok(()) } else { Err(LabError::Build { status }) }
}

/// Creates a kernel's folder and locks it, because the scripts replace files in it. Waits while another command holds the lock.
pub(super) fn lock(folder: &Path) -> Result<File, LabError> {
    std::fs::create_dir_all(folder).map_err(LabError::io("make", folder))?;
    let locked = File::open(folder).and_then(|file| file.lock().map(|()| file));
    locked.map_err(LabError::io("lock", folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_command_at_a_time_builds_a_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("cache/kernel");
        let held = lock(&folder).unwrap();
        let other = File::open(&folder).unwrap();
        assert!(other.try_lock().is_err());
        // A child process of another test may hold a copy of the descriptor until its exec, so closing it is not enough.
        held.unlock().unwrap();
        assert!(other.try_lock().is_ok());
    }

    /// A patch outside the recipe would be missing from the build and from the key.
    #[test]
    fn recipe_has_every_file_of_the_folder() {
        let lab = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab");
        let mut found = 0;
        for folder in ["", "patches", "uml", "uml/patches"] {
            for entry in std::fs::read_dir(lab.join(folder)).unwrap() {
                let path = entry.unwrap().path();
                if path.is_file() {
                    let name = path.strip_prefix(&lab).unwrap().display().to_string();
                    assert!(RECIPE.iter().any(|(known, _, _)| *known == name), "{name}");
                    found += 1;
                }
            }
        }
        assert_eq!(found, RECIPE.len());
    }

    /// A change to a module must not make anyone rebuild a kernel.
    #[test]
    fn no_kernel_depends_on_the_modules() {
        let of_modules: Vec<&str> = modules_recipe().map(|(name, _)| name).collect();
        assert_eq!(of_modules, ["modules.sh"]);
        assert!(own_recipe().all(|(name, _)| !of_modules.contains(&name)));
    }

    #[test]
    fn the_users_kernel_comes_before_that_of_all_users() {
        let dir = tempfile::tempdir().unwrap();
        let places = ["cache", "shared"].map(|name| dir.path().join(name));
        let found = || first_in(places.clone(), Engine::Uml, Series::Own).map(|it| it.image);
        assert_eq!(found(), None);
        for place in places.iter().rev() {
            let folder = kernel_folder(place, Engine::Uml, Series::Own);
            std::fs::create_dir_all(&folder).unwrap();
            for name in ["release", "version", "vmlinux"] {
                std::fs::write(folder.join(name), name).unwrap();
            }
            assert_eq!(found(), Some(folder.join("vmlinux")));
        }
    }

    #[test]
    fn engines_do_not_share_a_kernel() {
        let folder = |engine| kernel_folder(Path::new("lab"), engine, Series::Own);
        assert_ne!(folder(Engine::Qemu), folder(Engine::Uml));
        assert_eq!(recipe_sha256(Engine::Uml, Series::Own).len(), 64);
    }
}
