//! A package of the lab's kernels: one file, packed where they were built and installed on other machines.
//!
//! ```text
//! kernels.json  README  recipe/<files>  <engine>/config  release  version  vmlinux
//! ```
//!
//! A package is a gzip-compressed tar archive. It contains the digest of each file, and the digest of each kernel's recipe: a
//! kernel built from another recipe is a different machine.

use std::collections::BTreeSet;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, BufReader, Read, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use ccbench_io::input;
use ccbench_io::replace::replace;
use ccbench_proto::plan::{Engine, Series};
use ccbench_results::artifact::tar::{self, Archive, Entry};
use ccbench_results::artifact::{Limits, TarError};
use ccbench_results::digest::{Digests, FileDigest};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use self::error::{FORMAT_VERSION, MANIFEST, PackageError, UnfitPackage};
use super::error::LabError;
use super::kernel::{self, find_in, kernel_folder, lock, own_recipe, recipe_sha256};

pub mod error;

const README: &str = "README";
/// The folder with the files that build the kernels.
const RECIPE: &str = "recipe";
/// The files of a kernel. The image is last: where it exists, the others exist too.
const FILES: [&str; 4] = ["config", "release", "version", IMAGE];
const IMAGE: &str = "vmlinux";
/// Generous: both images together have about 60 MB.
const LIMITS: Limits = Limits { max_files: 200, max_bytes: 1 << 30 };
const MAX_MANIFEST_BYTES: u64 = 1 << 20;

/// The contents of [`MANIFEST`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Manifest {
    format_version: u32,
    ccbench_version: String,
    /// `x86_64`, `aarch64`
    architecture: String,
    kernels: Vec<PackedKernel>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PackedKernel {
    engine: Engine,
    /// `uname -r`
    release: String,
    /// Source package and version.
    version: String,
    recipe_sha256: String,
    /// Digests by path in the package.
    files: Digests,
}

impl Manifest {
    fn digest_of(&self, name: &str) -> Option<&FileDigest> {
        self.kernels.iter().find_map(|kernel| kernel.files.get(name))
    }

    /// Rejects a package that this ccbench cannot install.
    fn check(&self) -> Result<(), UnfitPackage> {
        let Self { format_version, architecture, kernels, .. } = self;
        if *format_version != FORMAT_VERSION {
            return Err(UnfitPackage::Format { found: *format_version });
        }
        if architecture != std::env::consts::ARCH {
            return Err(UnfitPackage::Architecture { found: architecture.clone() });
        }
        let engines: BTreeSet<Engine> = kernels.iter().map(|kernel| kernel.engine).collect();
        if kernels.is_empty() || engines.len() != kernels.len() {
            return Err(UnfitPackage::Kernels);
        }
        let is_complete = |kernel: &PackedKernel| {
            kernel.files.keys().eq(&FILES.map(|name| path_of(kernel.engine, name)))
        };
        match kernels.iter().find(|kernel| !is_complete(kernel)) {
            Some(kernel) => Err(UnfitPackage::Files { engine: kernel.engine }),
            None => Ok(()),
        }
    }
}

/// Returns the path of a kernel's file in a package.
fn path_of(engine: Engine, name: &str) -> String {
    format!("{engine}/{name}")
}

/// Packs the kernels `own` in the lab's folder of a cache, and replaces an existing file. Returns their engines and releases. The
/// package depends only on the kernels and the version of ccbench.
///
/// # Errors
/// No kernel is built, or a file cannot be read or written.
pub fn pack(cache: &Path, output: &Path) -> Result<Vec<(Engine, String)>, LabError> {
    let found = |engine: &Engine| find_in(cache, *engine, Series::Own);
    let kernels: Vec<kernel::Kernel> = Engine::ALL.iter().filter_map(found).collect();
    if kernels.is_empty() {
        return Err(PackageError::NoKernel.into());
    }
    let mut files = Vec::new();
    let mut packed = Vec::new();
    for kernel in &kernels {
        let folder = kernel_folder(cache, kernel.engine, Series::Own);
        let mut digests = Digests::new();
        for name in FILES {
            let path = folder.join(name);
            let content = std::fs::read(&path).map_err(LabError::io("read", &path))?;
            digests.insert(path_of(kernel.engine, name), FileDigest::of(&content));
            files.push((path_of(kernel.engine, name), content));
        }
        packed.push(PackedKernel {
            engine: kernel.engine,
            release: kernel.release.clone(),
            version: kernel.version.clone(),
            recipe_sha256: kernel.recipe_sha256.clone(),
            files: digests,
        });
    }
    let manifest = Manifest {
        format_version: FORMAT_VERSION,
        ccbench_version: env!("CARGO_PKG_VERSION").to_owned(),
        architecture: std::env::consts::ARCH.to_owned(),
        kernels: packed,
    };
    let recipe = own_recipe()
        .map(|(name, text)| (format!("{RECIPE}/{name}"), text.as_bytes().to_vec()))
        .chain([(README.to_owned(), readme(&manifest).into_bytes())]);
    files.extend(recipe);
    let unwritable = |source| PackageError::Write { path: output.to_path_buf(), source };
    let bytes = archive(&manifest, &files).map_err(unwritable)?;
    replace(output, &bytes).map_err(LabError::io("write", output))?;
    Ok(kernels.into_iter().map(|kernel| (kernel.engine, kernel.release)).collect())
}

fn archive(manifest: &Manifest, files: &[(String, Vec<u8>)]) -> Result<Vec<u8>, TarError> {
    let mut out = GzEncoder::new(Vec::new(), Compression::default());
    let manifest = serde_json::to_vec_pretty(manifest).map_err(io::Error::from)?;
    tar::append(&mut out, MANIFEST, manifest.len() as u64, &mut manifest.as_slice())?;
    for (name, content) in files {
        tar::append(&mut out, name, content.len() as u64, &mut content.as_slice())?;
    }
    tar::finish(&mut out)?;
    out.flush()?;
    Ok(out.finish()?)
}

fn readme(manifest: &Manifest) -> String {
    let mut text = format!(
        "Linux kernels of the lab of ccbench {}, licensed under the GPL, version 2. `ccbench lab install FILE` installs them.\n\n",
        manifest.ccbench_version
    );
    for PackedKernel { engine, release, version, recipe_sha256, .. } in &manifest.kernels {
        text += &format!(
            "{engine}: {release}, from Debian's source package {version}; recipe {recipe_sha256}\n"
        );
    }
    text + "\nThe complete source is these packages, with the patches, configuration and scripts in recipe/:\n\
            bash recipe/kernel.sh recipe OUT ENGINE\n"
}

/// An installed kernel of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// The engine that runs it.
    pub engine: Engine,
    /// `uname -r`
    pub release: String,
    /// Whether the cache did not have it before.
    pub is_new: bool,
}

/// Installs the kernels of a package into the lab's folder of a cache, after comparing all files with their digests. Kernels that
/// the cache already has stay unchanged.
///
/// # Errors
/// The package is damaged, has another recipe, format or architecture, or a file cannot be written.
pub fn install(cache: &Path, file: &Path) -> Result<Vec<Installed>, LabError> {
    let opened = input::open_regular(file).map_err(LabError::io("read", file))?;
    let mut entries = Archive::new(GzDecoder::new(BufReader::new(opened)), LIMITS);
    let manifest = read_manifest(file, &mut entries)?;
    std::fs::create_dir_all(cache).map_err(LabError::io("make", cache))?;
    let staging = tempfile::Builder::new().prefix(".installing-").tempdir_in(cache);
    let staging = staging.map_err(LabError::io("make a directory in", cache))?;
    unpack(file, &manifest, &mut entries, staging.path())?;
    let mut installed = Vec::new();
    for PackedKernel { engine, release, .. } in manifest.kernels {
        let is_new = publish(cache, &staging.path().join(engine.name()), engine)?;
        installed.push(Installed { engine, release, is_new });
    }
    Ok(installed)
}

fn read_manifest(file: &Path, entries: &mut Archive<impl Read>) -> Result<Manifest, PackageError> {
    let unreadable = |source| PackageError::Unpack { path: file.to_path_buf(), source };
    let unfit = |source| PackageError::Unfit { path: file.to_path_buf(), source };
    let is_manifest = |entry: &Entry| entry.name == MANIFEST && entry.bytes <= MAX_MANIFEST_BYTES;
    let first = entries.next_entry().map_err(unreadable)?.filter(is_manifest);
    let entry = first.ok_or_else(|| unfit(UnfitPackage::NoManifest))?;
    let mut text = Vec::new();
    entries.copy(&entry, &mut text).map_err(unreadable)?;
    let parsed = serde_json::from_slice(&text).map_err(UnfitPackage::Json);
    let manifest: Manifest = parsed.map_err(unfit)?;
    manifest.check().map_err(unfit)?;
    for kernel in &manifest.kernels {
        if kernel.recipe_sha256 != recipe_sha256(kernel.engine, Series::Own) {
            return Err(PackageError::Recipe {
                path: file.to_path_buf(),
                engine: kernel.engine,
                packed_by: manifest.ccbench_version.clone(),
            });
        }
    }
    Ok(manifest)
}

/// Unpacks the files of the kernels into a directory and compares each with its digest.
fn unpack(
    file: &Path,
    manifest: &Manifest,
    entries: &mut Archive<impl Read>,
    to: &Path,
) -> Result<(), LabError> {
    let unreadable = |source| PackageError::Unpack { path: file.to_path_buf(), source };
    let damaged = |name, what| PackageError::Damaged { path: file.to_path_buf(), name, what };
    while let Some(entry) = entries.next_entry().map_err(unreadable)? {
        let Some(expected) = manifest.digest_of(&entry.name) else {
            // The rest is for human readers.
            entries.copy(&entry, &mut io::sink()).map_err(unreadable)?;
            continue;
        };
        let path = to.join(&entry.name);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(LabError::io("make", folder))?;
        }
        let new = OpenOptions::new().write(true).create_new(true).open(&path);
        let mut out = new.map_err(LabError::io("create", &path))?;
        entries.copy(&entry, &mut out).map_err(unreadable)?;
        let found = FileDigest::of_file(&path).map_err(LabError::io("read", &path))?;
        if found != *expected {
            return Err(damaged(entry.name, "damaged").into());
        }
    }
    let mut names = manifest.kernels.iter().flat_map(|kernel| kernel.files.keys());
    match names.find(|name| !to.join(name).exists()) {
        Some(name) => Err(damaged(name.clone(), "missing").into()),
        None => Ok(()),
    }
}

/// Moves a kernel's files from a directory to its folder in the cache, unless it already has the kernel. Waits for a command that
/// builds it.
fn publish(cache: &Path, from: &Path, engine: Engine) -> Result<bool, LabError> {
    let folder = kernel_folder(cache, engine, Series::Own);
    let _lock = lock(&folder)?;
    if find_in(cache, engine, Series::Own).is_some() {
        return Ok(false);
    }
    // The image of User-Mode Linux is a program, so it must be executable.
    let image = from.join(IMAGE);
    std::fs::set_permissions(&image, Permissions::from_mode(0o755))
        .map_err(LabError::io("make executable", &image))?;
    for name in FILES {
        let path = folder.join(name);
        std::fs::rename(from.join(name), &path).map_err(LabError::io("rename to", &path))?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::ExitCode;

    /// Makes a cache with these files for a kernel of each engine.
    fn cache(engines: &[Engine]) -> tempfile::TempDir {
        let cache = tempfile::tempdir().unwrap();
        for engine in engines {
            let folder = kernel_folder(cache.path(), *engine, Series::Own);
            std::fs::create_dir_all(&folder).unwrap();
            for name in FILES {
                std::fs::write(folder.join(name), format!("{name} of {engine}\n")).unwrap();
            }
        }
        cache
    }

    /// Returns the files of a package, and its manifest.
    fn contents(engines: &[Engine]) -> (Manifest, Vec<(String, Vec<u8>)>) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kernels.tar.gz");
        pack(cache(engines).path(), &file).unwrap();
        let input = GzDecoder::new(std::fs::File::open(&file).unwrap());
        let mut entries = Archive::new(input, LIMITS);
        let manifest = read_manifest(&file, &mut entries).unwrap();
        let mut files = Vec::new();
        while let Some(entry) = entries.next_entry().unwrap() {
            let mut content = Vec::new();
            entries.copy(&entry, &mut content).unwrap();
            files.push((entry.name, content));
        }
        (manifest, files)
    }

    /// Returns why a package is refused. A refused package leaves nothing in the cache.
    fn refused(manifest: &Manifest, files: &[(String, Vec<u8>)]) -> LabError {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kernels.tar.gz");
        std::fs::write(&file, archive(manifest, files).unwrap()).unwrap();
        let target = dir.path().join("cache");
        let error = install(&target, &file).unwrap_err();
        let left = std::fs::read_dir(&target).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{error}");
        error
    }

    #[test]
    fn installed_kernels_are_those_that_were_packed() {
        let source = cache(Engine::ALL);
        let dir = tempfile::tempdir().unwrap();
        let (file, target) = (dir.path().join("kernels.tar.gz"), dir.path().join("other/lab"));
        let packed = pack(source.path(), &file).unwrap();
        assert_eq!(packed.len(), Engine::ALL.len());
        let bytes = std::fs::read(&file).unwrap();
        pack(source.path(), &file).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), bytes, "a package depends only on the kernels");
        let installed = install(&target, &file).unwrap();
        assert!(installed.iter().all(|kernel| kernel.is_new), "{installed:?}");
        for engine in Engine::ALL {
            let kernel = find_in(&target, *engine, Series::Own).unwrap();
            assert_eq!(kernel.release, format!("release of {engine}"));
            let mode = std::fs::metadata(&kernel.image).unwrap().permissions().mode();
            assert_eq!(mode & 0o111, 0o111, "{engine}");
            for name in FILES {
                let read = |cache: &Path| {
                    std::fs::read(kernel_folder(cache, *engine, Series::Own).join(name))
                };
                assert_eq!(read(&target).unwrap(), read(source.path()).unwrap());
            }
        }
        // An existing kernel stays.
        let image = find_in(&target, Engine::Uml, Series::Own).unwrap().image;
        std::fs::write(&image, "built here").unwrap();
        let again = install(&target, &file).unwrap();
        assert!(again.iter().all(|kernel| !kernel.is_new), "{again:?}");
        assert_eq!(std::fs::read(&image).unwrap(), b"built here");
        assert_eq!(std::fs::read_dir(&target).unwrap().count(), Engine::ALL.len());
    }

    #[test]
    fn a_package_has_what_builds_its_kernels() {
        let (_, files) = contents(&[Engine::Uml]);
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        for name in ["README", "recipe/kernel.sh", "recipe/apt.sh", "recipe/uml/kernel.config"] {
            assert!(names.contains(&name), "no {name}: {names:?}");
        }
        assert!(!names.contains(&"recipe/debian.sh"), "{names:?}");
        let error = pack(cache(&[]).path(), Path::new("unwritten")).unwrap_err();
        assert!(matches!(error, LabError::Package(PackageError::NoKernel)), "{error}");
    }

    #[test]
    fn kernels_of_another_recipe_are_refused() {
        let (mut manifest, files) = contents(Engine::ALL);
        manifest.kernels[1].recipe_sha256 = "0".repeat(64);
        manifest.ccbench_version = "0.0.9".to_owned();
        let error = refused(&manifest, &files);
        assert_eq!(error.exit_code(), ExitCode::Usage);
        let text = error.to_string();
        assert!(text.contains("was built by ccbench 0.0.9 with another recipe"), "{text}");
    }

    #[test]
    fn damaged_and_missing_files_are_refused() {
        let (manifest, files) = contents(&[Engine::Uml]);
        let image = path_of(Engine::Uml, IMAGE);
        let mut changed = files.clone();
        changed.iter_mut().find(|(name, _)| *name == image).unwrap().1[0] ^= 1;
        let error = refused(&manifest, &changed);
        assert_eq!(error.exit_code(), ExitCode::Failure);
        assert!(error.to_string().contains("uml/vmlinux is damaged"), "{error}");
        let mut fewer = files.clone();
        fewer.retain(|(name, _)| *name != image);
        let error = refused(&manifest, &fewer);
        assert!(error.to_string().contains("uml/vmlinux is missing"), "{error}");
        // The same file twice: the second copy would replace the first.
        let twice = [files.clone(), files].concat();
        assert!(refused(&manifest, &twice).to_string().contains("cannot create"));
    }

    #[test]
    fn other_archives_formats_and_machines_are_refused() {
        let (good, files) = contents(&[Engine::Uml]);
        let with = |change: fn(&mut Manifest)| {
            let (mut manifest, _) = contents(&[Engine::Uml]);
            change(&mut manifest);
            refused(&manifest, &files).to_string()
        };
        assert!(with(|m| m.format_version = 2).contains("format 2, but this ccbench reads"));
        assert!(with(|m| m.architecture = "vax".to_owned()).contains("for vax, but this machine"));
        assert!(with(|m| m.kernels.clear()).contains("has no kernel"));
        let foreign = |m: &mut Manifest| {
            m.kernels[0].files.insert("../x".to_owned(), FileDigest::of(b""));
        };
        assert!(with(foreign).contains("it has missing or unexpected files for the engine uml"));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("other.tar.gz");
        let mut out = GzEncoder::new(Vec::new(), Compression::default());
        tar::append(&mut out, "run/a", 1, &mut &b"a"[..]).unwrap();
        tar::finish(&mut out).unwrap();
        std::fs::write(&file, out.finish().unwrap()).unwrap();
        let error = install(dir.path(), &file).unwrap_err().to_string();
        assert!(error.contains("its first file is not kernels.json"), "{error}");
        let bytes = archive(&good, &files).unwrap();
        std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
        let error = install(dir.path(), &file).unwrap_err();
        assert_eq!(error.exit_code(), ExitCode::Failure, "{error}");
    }
}
