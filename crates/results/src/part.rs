//! Writes Parquet files. Rows are buffered and written as row groups, so a trial of any length needs memory for only one row group per
//! table.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use ccbench_io::replace::{create, staged};
use polars::prelude::*;
use polars_parquet::write::{
    CompressionOptions, FileWriter, KeyValue, Version, WriteOptions, row_group_iter,
    schema_to_metadata_key,
};

use super::columns::{Columns, Origin};
use super::csv::quoted;
use super::digest::{DigestedFile, FileDigest};
use super::encoding::encodings;
use crate::error::{FileError, Result, io_error, polars_error};

/// Rows of a row group. A table buffers this many rows, and loses them if ccbench is killed.
pub(crate) const ROW_GROUP_ROWS: usize = 32 * 1024;
/// Parquet options of all columns.
const OPTIONS: WriteOptions = WriteOptions {
    statistics: StatisticsOptions {
        min_value: true,
        max_value: true,
        distinct_count: false,
        null_count: true,
        binary_statistics_truncate_length: None,
    },
    version: Version::V1,
    compression: CompressionOptions::Zstd(None),
    data_page_size: None,
};

/// Row groups of a file (8 million rows): the writer keeps their metadata in memory until it finishes the file.
pub(crate) const FILE_ROW_GROUPS: usize = 256;

/// The files of one table of one trial. The first row creates the first file. There is rarely more than one.
pub(crate) struct Part<C> {
    dir: PathBuf,
    columns: C,
    buffered_rows: usize,
    written_rows: u64,
    /// The files that are complete.
    files: Vec<FileDigest>,
    writer: Option<Writer>,
    limit: usize,
}

/// A file that is being written.
pub(crate) struct Writer {
    path: PathBuf,
    file: FileWriter<DigestedFile>,
    /// Key-value metadata of the footer.
    footer: Vec<KeyValue>,
    row_groups: usize,
}

/// A finished [`Part`].
pub(crate) struct Finished {
    /// The table.
    pub(crate) table: &'static str,
    /// Number of rows in all files.
    pub(crate) rows: u64,
    /// The files, in the order of their numbers.
    pub(crate) files: Vec<FileDigest>,
}

/// Returns the path of a table's file. Files are numbered from 0.
pub(crate) fn file(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("part-{number}.parquet"))
}

impl<C: Columns> Part<C> {
    /// Creates a writer of `dir/TABLE/part-N.parquet` with row groups of about `limit` rows.
    pub(crate) fn new(dir: &Path, limit: usize) -> Self {
        Self {
            dir: dir.join(C::TABLE),
            columns: C::new(),
            buffered_rows: 0,
            written_rows: 0,
            files: vec![],
            writer: None,
            limit,
        }
    }

    /// Buffers a row or a batch of rows; writes a row group when the limit is reached.
    pub(crate) fn put(&mut self, origin: &Origin<'_>, row: C::Row, meta: &Metadata) -> Result<()> {
        self.buffered_rows += self.columns.put(origin, row);
        if self.buffered_rows >= self.limit { self.flush(meta) } else { Ok(()) }
    }

    /// Writes the buffered rows and the footer, and syncs the files to disk.
    pub(crate) fn finish(mut self, meta: &Metadata) -> Result<Option<Finished>> {
        if self.buffered_rows > 0 {
            self.flush(meta)?;
        }
        self.close()?;
        if self.files.is_empty() {
            return Ok(None);
        }
        sync(&self.dir)?;
        Ok(Some(Finished { table: C::TABLE, rows: self.written_rows, files: self.files }))
    }

    fn flush(&mut self, meta: &Metadata) -> Result<()> {
        let path = file(&self.dir, self.files.len());
        let error = |op| polars_error(op, &path);
        let taken = self.columns.take().map_err(error("gather the rows of"))?;
        let mut frame = sorted(&taken, C::SORT).map_err(error("sort the rows of"))?;
        frame.rechunk_mut();
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => self.writer.insert(Writer::begin(&path, meta, &frame)?),
        };
        writer.put(&frame)?;
        let full = writer.row_groups() >= FILE_ROW_GROUPS;
        self.written_rows += self.buffered_rows as u64;
        self.buffered_rows = 0;
        if full { self.close() } else { Ok(()) }
    }

    fn close(&mut self) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            self.files.push(writer.finish()?);
        }
        Ok(())
    }
}

impl Writer {
    /// Creates a file with the columns of this frame. The parent of its directory must exist.
    pub(crate) fn begin(path: &Path, meta: &Metadata, frame: &DataFrame) -> Result<Self> {
        if let Some(dir) = path.parent() {
            make_dir(dir)?;
        }
        let file = File::create_new(path).map_err(io_error("create", path))?;
        let file = DigestedFile::new(file);
        let schema = frame.schema().to_arrow(CompatLevel::newest());
        let file =
            FileWriter::try_new(file, schema, OPTIONS).map_err(polars_error("begin", path))?;
        Ok(Self { path: path.to_path_buf(), file, footer: footer(meta, frame), row_groups: 0 })
    }

    /// Writes a frame as a row group; each of its columns has one chunk.
    pub(crate) fn put(&mut self, frame: &DataFrame) -> Result<()> {
        write(&mut self.file, frame).map_err(polars_error("write", &self.path))?;
        self.row_groups += 1;
        Ok(())
    }

    /// Returns the number of row groups so far, whose metadata is in memory.
    pub(crate) fn row_groups(&self) -> usize {
        self.row_groups
    }

    /// Writes the footer, and syncs the file to disk.
    pub(crate) fn finish(self) -> Result<FileDigest> {
        let Self { path, mut file, footer, .. } = self;
        file.end(Some(footer)).map_err(polars_error("finish", &path))?;
        file.into_inner().finish().map_err(io_error("make durable", &path))
    }
}

/// Writes one frame as a row group; each of its columns has one chunk.
fn write(writer: &mut FileWriter<impl Write>, frame: &DataFrame) -> PolarsResult<()> {
    let fields = writer.parquet_schema().fields().to_vec();
    if let Some(rows) = frame.iter_chunks(CompatLevel::newest(), false).next() {
        let columns = row_group_iter(rows, encodings(frame)?.into(), fields, OPTIONS);
        writer.write(frame.height() as u64, columns)?;
    }
    Ok(())
}

/// Sorts the rows; the sort is stable. Without optimised dependencies, Polars' sort by several columns takes as long as writing the rows.
fn sorted(frame: &DataFrame, by: &[&str]) -> PolarsResult<DataFrame> {
    enum Key<'a> {
        Text(Vec<Option<&'a str>>),
        Number(Vec<Option<i64>>),
    }
    let key = |name: &&str| {
        let column = frame.column(name)?;
        Ok(match column.str() {
            Ok(texts) => Key::Text(texts.iter().collect()),
            Err(_) => Key::Number(column.i64()?.iter().collect()),
        })
    };
    let keys = by.iter().map(key).collect::<PolarsResult<Vec<_>>>()?;
    let compare = |a: &IdxSize, b: &IdxSize| {
        let (a, b) = (*a as usize, *b as usize);
        let mut orders = keys.iter().map(|key| match key {
            Key::Text(values) => values[a].cmp(&values[b]),
            Key::Number(values) => values[a].cmp(&values[b]),
        });
        // Later keys matter only if the earlier ones are equal.
        orders.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    };
    let mut order: Vec<IdxSize> = (0..frame.height() as IdxSize).collect();
    if order.is_sorted_by(|a, b| compare(a, b).is_le()) {
        return Ok(frame.clone());
    }
    order.sort_by(compare);
    frame.take(&IdxCa::from_vec(PlSmallStr::EMPTY, order))
}

/// Returns the key-value metadata of the footer. Polars writes text columns with Arrow's type `string_view`, which readers from before 2024
/// reject and pandas does not support in lists. The type `string` describes the same bytes.
fn footer(meta: &Metadata, frame: &DataFrame) -> Vec<KeyValue> {
    let schema = frame.schema().to_arrow(CompatLevel::oldest());
    let pairs = meta.0.iter().cloned().map(|(key, value)| KeyValue { key, value: Some(value) });
    pairs.chain([schema_to_metadata_key(&schema)]).collect()
}

/// Key-value pairs of every file's footer.
pub(crate) struct Metadata(pub(crate) Vec<(String, String)>);

/// Creates a directory if it does not exist. Its parent must exist, so that a removed results directory is not created again.
pub(crate) fn make_dir(dir: &Path) -> Result<()> {
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(io_error("create", dir)),
    }
}

/// Syncs a file or directory to disk.
pub(crate) fn sync(path: &Path) -> Result<()> {
    let file = File::open(path).map_err(io_error("open", path))?;
    file.sync_all().map_err(io_error("make durable", path))
}

/// Tables with fewer rows are written by one thread.
const MIN_PARALLEL_ROWS: usize = 32 * 1024;
/// Rows of a row group of a table that is completely in memory.
const WHOLE_ROW_GROUP_ROWS: usize = 256 * 1024;

/// Writes a whole table to one Parquet file and replaces an existing one.
pub(crate) fn write_parquet(frame: &DataFrame, path: &Path) -> Result<()> {
    write_new(path, |file| {
        let mut frame = frame.clone();
        frame.rechunk_mut();
        let schema = frame.schema().to_arrow(CompatLevel::newest());
        let mut writer = FileWriter::try_new(file, schema, OPTIONS)?;
        for from in (0..frame.height()).step_by(WHOLE_ROW_GROUP_ROWS) {
            write(&mut writer, &frame.slice(from as i64, WHOLE_ROW_GROUP_ROWS))?;
        }
        writer.end(Some(footer(&Metadata(vec![]), &frame))).map(drop)
    })
}

/// Writes a whole table to one CSV file and replaces an existing one.
pub(crate) fn write_csv(frame: &DataFrame, path: &Path) -> Result<()> {
    write_new(path, |file| {
        // To write a header, Polars clears an 8 MB buffer, which takes longer than writing a small table.
        let names = frame.columns().iter().map(|column| quoted(column.name()));
        writeln!(file, "{}", names.collect::<Vec<_>>().join(","))?;
        let writer = CsvWriter::new(file).include_header(false);
        // Starting threads takes longer than writing a small table.
        let mut writer =
            if frame.height() < MIN_PARALLEL_ROWS { writer.n_threads(1) } else { writer };
        writer.finish(&mut frame.clone())
    })
}

/// Writes text to a file and replaces an existing one.
pub(crate) fn write_text(text: &str, path: &Path) -> Result<()> {
    write_bytes(text.as_bytes(), path)
}

/// Writes a file that a user names, and replaces an existing one atomically: a command that is killed leaves either the old or the new
/// file. Writes directly to a device or a FIFO, and appends to the file of a descriptor (`/dev/stdout`).
///
/// # Errors
/// The file cannot be written or replaced.
pub fn write_bytes(bytes: &[u8], path: &Path) -> Result<()> {
    write_file(path, |file| file.write_all(bytes).map_err(io_error("write", path)))
}

/// As [`write_file`], for Polars.
fn write_new(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> PolarsResult<()>,
) -> Result<()> {
    write_file(path, |file| write(file).map_err(polars_error("write", path)))
}

/// Writes through a buffer to a temporary file and renames it. An error, such as a full disk, leaves the old file or none. Does not sync:
/// the content can be computed again. Writes directly to a device, a FIFO or a descriptor of this process.
pub(crate) fn write_file<E: From<FileError>>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<(), E>,
) -> Result<(), E> {
    // Keep a symbolic link.
    let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let is_descriptor = is_descriptor(path);
    let is_special =
        is_descriptor || real.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
    let to = if is_special { real.clone() } else { staged(&real) };
    let written = || -> Result<(), E> {
        // Keep what the descriptor's file has already: `/dev/stdout >> log`.
        let file = if is_descriptor {
            File::options().append(true).open(&to).map_err(io_error("open", path))
        } else if is_special {
            File::create(&to).map_err(io_error("create", path))
        } else {
            create(&to).map_err(io_error("create", path))
        };
        let mut file = BufWriter::new(file?);
        write(&mut file)?;
        file.flush().map_err(io_error("write", path))?;
        if !is_special {
            replace_file(&to, &real).map_err(io_error("replace", path))?;
        }
        Ok(())
    };
    written().inspect_err(|_| {
        if !is_special {
            // The file may not exist. Report the write error.
            let _ = std::fs::remove_file(&to);
        }
    })
}

/// Returns whether a path names a descriptor of a process, rather than a file that is reached through /proc.
fn is_descriptor(path: &Path) -> bool {
    let folder = path.parent().unwrap_or(path);
    let is_standard = ["/dev/stdout", "/dev/stderr"].map(Path::new).contains(&path);
    is_standard
        || folder == Path::new("/dev/fd")
        || folder.starts_with("/proc") && folder.ends_with("fd")
}

/// Replaces the file atomically. Uses RENAME_EXCHANGE if the file system supports it: if a rename replaces a file, ext4 first flushes the
/// new file to disk, which takes about 2 ms.
fn replace_file(staged: &Path, path: &Path) -> std::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let there = std::fs::symlink_metadata(path).is_ok_and(|old| old.is_file());
    if there && renameat_with(CWD, staged, CWD, path, RenameFlags::EXCHANGE).is_ok() {
        std::fs::remove_file(staged)
    } else {
        std::fs::rename(staged, path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn an_error_leaves_the_old_file_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| dir.path().join(name));
        std::os::unix::fs::symlink("file", &link).unwrap();
        let broken = || {
            let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
            write_file(&link, |out| {
                out.write_all(b"new").and_then(|()| Err(full())).map_err(io_error("write", &link))
            })
        };
        let names = || std::fs::read_dir(dir.path()).unwrap().count();
        broken().unwrap_err();
        assert_eq!(names(), 1, "the link");
        std::fs::write(&file, "old").unwrap();
        let error = broken().unwrap_err().to_string();
        assert!(error.contains("link") && error.contains("and repeat the command"), "{error}");
        assert_eq!((std::fs::read_to_string(&file).unwrap(), names()), ("old".to_owned(), 2));
        write_text("new", &link).unwrap();
        assert_eq!((std::fs::read_to_string(&file).unwrap(), names()), ("new".to_owned(), 2));
        assert!(link.is_symlink());
    }

    #[test]
    fn writing_to_a_device_does_not_replace_it() {
        let full = Path::new("/dev/full");
        let error = write_text("text", full).unwrap_err().to_string();
        assert!(error.starts_with("cannot write /dev/full: "), "{error}");
        assert!(!full.is_file() && full.exists() && !staged(full).exists());
        write_text("text", Path::new("/dev/null")).unwrap();
        // As with `> FILE` in a shell: the process writes to the same file later.
        let dir = tempfile::tempdir().unwrap();
        let opened = File::create(dir.path().join("file")).unwrap();
        let descriptor = format!("/proc/self/fd/{}", opened.as_raw_fd());
        write_text("text", Path::new(&descriptor)).unwrap();
        assert_eq!(opened.metadata().unwrap().len(), 4);
        write_text("more", Path::new(&descriptor)).unwrap();
        let content = std::fs::read_to_string(dir.path().join("file")).unwrap();
        assert_eq!(content, "textmore", "as `>> FILE`");
        // Another path to the same file, like one into a container.
        let by_proc = format!("/proc/self/root{}", dir.path().join("file").display());
        write_text("new", Path::new(&by_proc)).unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("file")).unwrap(), "new");
    }
}
