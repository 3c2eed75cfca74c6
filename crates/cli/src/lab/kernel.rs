//! Kernels of the lab: built or fetched once, kept in the cache.

use std::path::PathBuf;

use ccbench_proto::plan::Series;
use sha2::{Digest as _, Sha256};
use tracing::info;

use super::error::LabError;

/// Files that build or fetch kernels. Their contents are part of a kernel's key in the cache.
const RECIPE: [(&str, &str); 6] = [
    ("apt.sh", include_str!("../../../../lab/apt.sh")),
    ("kernel.sh", include_str!("../../../../lab/kernel.sh")),
    ("kernel.config", include_str!("../../../../lab/kernel.config")),
    ("patches/0001-idle-nops.patch", include_str!("../../../../lab/patches/0001-idle-nops.patch")),
    (
        "patches/0002-lapic-timer-mhz.patch",
        include_str!("../../../../lab/patches/0002-lapic-timer-mhz.patch"),
    ),
    ("debian.sh", include_str!("../../../../lab/debian.sh")),
];

/// Where a kernel is kept.
fn kernel_folder(series: Series) -> PathBuf {
    let parts = RECIPE.iter().filter(|(name, _)| match series {
        Series::Own => *name != "debian.sh",
        _ => matches!(*name, "apt.sh" | "debian.sh"),
    });
    let mut hash = Sha256::new();
    for (name, text) in parts {
        hash.update(name);
        hash.update([0]);
        hash.update(text);
        hash.update([0]);
    }
    let key: String = hash.finalize().iter().take(6).map(|b| format!("{b:02x}")).collect();
    cache().join(format!("kernel-{series}-{key}"))
}

/// File name of the kernel image in that folder.
fn image_name(series: Series) -> &'static str {
    if series == Series::Own { "vmlinux" } else { "vmlinuz" }
}

/// How to get a kernel.
pub fn hint(series: Series) -> String {
    match series {
        Series::Own => "run `ccbench lab build` (about 15 minutes, once)".to_owned(),
        stock => format!("run `ccbench lab build --kernel {stock}` (about a minute, once)"),
    }
}

/// A kernel that the lab can boot.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// Its series.
    pub series: Series,
    /// The image.
    pub image: PathBuf,
    /// Its modules, if it has any.
    pub modules: Option<PathBuf>,
    /// `uname -r`.
    pub release: String,
    /// Source package and version.
    pub version: String,
}

impl Kernel {
    /// Whether it can run with a dilation: a stock kernel calibrates its timers against the processor.
    pub fn can_dilate(&self) -> bool {
        self.series == Series::Own
    }
}

/// The lab's folder in the user's cache.
pub fn cache() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    base.unwrap_or_else(std::env::temp_dir).join("ccbench/lab")
}

/// A kernel, if it is built or fetched.
pub fn find(series: Series) -> Option<Kernel> {
    let folder = kernel_folder(series);
    let text = |name: &str| {
        std::fs::read_to_string(folder.join(name)).ok().map(|text| text.trim().to_owned())
    };
    let image = folder.join(image_name(series));
    // The scripts move the image there last.
    image.exists().then_some(())?;
    let modules = (series != Series::Own).then(|| folder.join("modules"));
    Some(Kernel { series, image, modules, release: text("release")?, version: text("version")? })
}

/// Builds or fetches a kernel unless the cache has it.
///
/// # Errors
/// A tool is missing, or the build failed.
pub fn build(series: Series) -> Result<Kernel, LabError> {
    if let Some(kernel) = find(series) {
        return Ok(kernel);
    }
    let folder = kernel_folder(series);
    info!(%series, folder = %folder.display(), "build the lab's kernel");
    let recipe =
        tempfile::tempdir().map_err(LabError::io("make a folder in", &std::env::temp_dir()))?;
    for (name, text) in RECIPE {
        let path = recipe.path().join(name);
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::write(&path, text)).map_err(LabError::io("write", &path))?;
    }
    let script = if series == Series::Own { "kernel.sh" } else { "debian.sh" };
    let mut command = std::process::Command::new("bash");
    command.arg(recipe.path().join(script)).arg(recipe.path()).arg(&folder);
    if series != Series::Own {
        command.arg(series.name());
    }
    let status = command.status().map_err(LabError::io("start bash for", recipe.path()))?;
    if !status.success() {
        return Err(LabError::Build { status });
    }
    find(series).ok_or_else(|| LabError::Missing {
        what: format!("{}", folder.join(image_name(series)).display()),
        hint: "remove that folder and run `ccbench lab build` again".to_owned(),
    })
}
