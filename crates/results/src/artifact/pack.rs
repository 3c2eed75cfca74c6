//! Packs a run into an archive.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, IntoInnerError, Write};
use std::path::{Path, PathBuf};

use ccbench_io::replace::{create, staged};
use flate2::{Compression, GzBuilder};

use super::manifest::manifest;
use super::readme::{Facts, readme};
use super::tar::{TarError, append, finish};
use super::{ArtifactError, MANIFEST, RUN, Result, digests_of, open_intact};
use crate::digest::{Digests, FileDigest};
use crate::error::io_error;
use crate::layout::list;
use crate::model::TrialFilter;
use crate::record::RunRecord;
use crate::summarize::RunSummary;

/// The contents of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    /// Number of files.
    pub files: usize,
    /// Size of the files.
    pub bytes: u64,
    /// Number of claims.
    pub claims: usize,
}

/// Contents of an archive, by their paths in the artifact's directory.
type Contents = BTreeMap<String, (Content, FileDigest)>;

enum Content {
    Bytes(Vec<u8>),
    File(PathBuf),
}

/// Packs a complete run with intact files into an archive, which depends only on the run. Replaces an existing archive.
///
/// # Errors
/// The run is incomplete, damaged or imported; or the archive cannot be written or would be inside the run.
pub fn pack(run: &Path, output: &Path) -> Result<Packed> {
    refuse_inside(run, output)?;
    let (dir, known) = open_intact(run)?;
    let (record, _) = RunRecord::read(run)?;
    let claims = RunSummary::from_run(&dir, TrialFilter::default())?.expectations;
    let name = name_of(run)?;
    let mut contents = run_files(run, &known)?;
    let facts = Facts { name: &name, record: &record, plan: dir.plan(), claims: &claims };
    put(&mut contents, "README.md", readme(&facts));
    let digests: Digests =
        contents.iter().map(|(name, (_, digest))| (name.clone(), digest.clone())).collect();
    put(&mut contents, MANIFEST, format!("{:#}\n", manifest(&record, &digests, &claims)));
    let sums = contents.iter().map(|(name, (_, digest))| format!("{}  {name}\n", digest.sha256));
    let sums: String = sums.collect();
    put(&mut contents, "SHA256SUMS", sums);
    write(&contents, &name, output)?;
    let bytes = contents.values().map(|(_, digest)| digest.bytes).sum();
    Ok(Packed { files: contents.len(), bytes, claims: claims.len() })
}

/// Refuses an archive inside the run: the run's next archive would contain it.
fn refuse_inside(run: &Path, output: &Path) -> Result<()> {
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).canonicalize();
    // Whatever does not exist is reported when it is read or written.
    let (Ok(folder), Ok(real)) = (folder, run.canonicalize()) else { return Ok(()) };
    if folder.starts_with(&real) {
        let (path, run) = (output.to_path_buf(), run.to_path_buf());
        return Err(ArtifactError::OutputInRun { path, run });
    }
    Ok(())
}

/// Returns the name of the directory in the archive, which is that of the results directory.
fn name_of(run: &Path) -> Result<String> {
    let path = run.canonicalize().map_err(io_error("read", run))?;
    let name = path.file_name().and_then(|name| name.to_str());
    let unfit = || ArtifactError::Unfit {
        path: run.to_path_buf(),
        reason: "its name is not UTF-8; rename it",
    };
    Ok(name.ok_or_else(unfit)?.to_owned())
}

fn put(contents: &mut Contents, name: &str, text: String) {
    let digest = FileDigest::of(text.as_bytes());
    contents.insert(name.to_owned(), (Content::Bytes(text.into_bytes()), digest));
}

/// Returns every file of the results directory, by its path in the archive.
fn run_files(run: &Path, known: &Digests) -> Result<Contents> {
    let mut files = Vec::new();
    walk(run, &mut files)?;
    let digests = digests_of(run, &files, known)?;
    let with_digests = files.into_iter().zip(digests);
    let in_archive = |(file, (name, digest)): (PathBuf, (String, FileDigest))| {
        (format!("{RUN}/{name}"), (Content::File(file), digest))
    };
    Ok(with_digests.map(in_archive).collect())
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for path in list(dir)? {
        let kind = path.symlink_metadata().map_err(io_error("read", &path))?.file_type();
        if kind.is_dir() {
            walk(&path, files)?;
        } else if kind.is_file() {
            files.push(path);
        } else {
            return Err(ArtifactError::NotRegular { path });
        }
    }
    Ok(())
}

/// Writes the archive beside its destination, then moves it there.
fn write(contents: &Contents, name: &str, output: &Path) -> Result<()> {
    let new = staged(output);
    let write = || -> Result<(), TarError> {
        // The defaults, so that the archive has no trace of this machine or the time.
        let gzip = GzBuilder::new().mtime(0).operating_system(255);
        let mut out = gzip.write(BufWriter::new(create(&new)?), Compression::default());
        for (file, (content, digest)) in contents {
            let file = format!("{name}/{file}");
            match content {
                Content::Bytes(bytes) => {
                    append(&mut out, &file, digest.bytes, &mut bytes.as_slice())?;
                }
                Content::File(path) => {
                    append(&mut out, &file, digest.bytes, &mut File::open(path)?)?;
                }
            }
        }
        finish(&mut out)?;
        let mut buffer = out.finish()?;
        buffer.flush()?;
        buffer.into_inner().map_err(IntoInnerError::into_error)?.sync_all()?;
        Ok(std::fs::rename(&new, output)?)
    };
    write().map_err(|source| {
        // The file may not exist. Report the first error.
        let _ = std::fs::remove_file(&new);
        ArtifactError::Write { path: output.to_path_buf(), source }
    })
}
