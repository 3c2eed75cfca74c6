//! Writes Parquet files: rows are buffered and written as row groups, so that a trial of any length needs the memory of
//! one row group per table.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use polars::prelude::*;
use polars_parquet::write::{
    CompressionOptions, FileWriter, KeyValue, Version, WriteOptions, row_group_iter,
    schema_to_metadata_key,
};

use super::columns::{Columns, Origin};
use super::csv::quoted;
use super::encoding::encodings;
use crate::error::{Result, io_error, polars_error};

/// Rows of a row group: what a table holds in memory, and loses if ccbench is killed.
pub(crate) const ROW_GROUP_ROWS: usize = 32 * 1024;
/// Of every column.
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

/// Row groups of a file: what a writer keeps of each until the file's end grows with them. 8 million rows.
const FILE_ROW_GROUPS: usize = 256;

/// The files of one table of one trial. There is none until there is a row, and seldom more than one.
pub(crate) struct Part<C> {
    dir: PathBuf,
    columns: C,
    waiting: usize,
    written: u64,
    /// Files that are complete.
    files: usize,
    writer: Option<Writer>,
    limit: usize,
}

/// A file that is being written.
struct Writer {
    file: FileWriter<File>,
    /// Key-value pairs.
    footer: Vec<KeyValue>,
    row_groups: usize,
}

/// A finished [`Part`].
pub(crate) struct Finished {
    /// The table.
    pub(crate) table: &'static str,
    /// Rows in its files.
    pub(crate) rows: u64,
    /// How many files it has.
    pub(crate) files: usize,
}

/// The path of a table's file in the table's folder; they are numbered from 0.
pub(crate) fn file(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("part-{number}.parquet"))
}

impl<C: Columns> Part<C> {
    /// The files will be `dir/TABLE/part-N.parquet`; a row group has at most `limit` rows.
    pub(crate) fn new(dir: &Path, limit: usize) -> Self {
        Self {
            dir: dir.join(C::TABLE),
            columns: C::new(),
            waiting: 0,
            written: 0,
            files: 0,
            writer: None,
            limit,
        }
    }

    /// Takes a row, or a batch of them; writes a row group when enough have gathered.
    pub(crate) fn put(&mut self, origin: &Origin<'_>, row: C::Row, meta: &Metadata) -> Result<()> {
        self.waiting += self.columns.put(origin, row);
        if self.waiting >= self.limit { self.flush(meta) } else { Ok(()) }
    }

    /// Writes what is left and the footer, and makes the files durable.
    pub(crate) fn finish(mut self, meta: &Metadata) -> Result<Option<Finished>> {
        if self.waiting > 0 {
            self.flush(meta)?;
        }
        self.close()?;
        if self.files == 0 {
            return Ok(None);
        }
        sync(&self.dir)?;
        Ok(Some(Finished { table: C::TABLE, rows: self.written, files: self.files }))
    }

    fn flush(&mut self, meta: &Metadata) -> Result<()> {
        let path = file(&self.dir, self.files);
        let refused = |op| polars_error(op, &path);
        let taken = self.columns.take().map_err(refused("gather the rows of"))?;
        let mut frame = sorted(&taken, C::SORT).map_err(refused("sort the rows of"))?;
        frame.rechunk_mut();
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => self.writer.insert(Writer::begin(&path, meta, &frame)?),
        };
        write(&mut writer.file, &frame).map_err(refused("write"))?;
        writer.row_groups += 1;
        let full = writer.row_groups >= FILE_ROW_GROUPS;
        self.written += self.waiting as u64;
        self.waiting = 0;
        if full { self.close() } else { Ok(()) }
    }

    fn close(&mut self) -> Result<()> {
        let Some(mut writer) = self.writer.take() else { return Ok(()) };
        let path = file(&self.dir, self.files);
        writer.file.end(Some(writer.footer)).map_err(polars_error("finish", &path))?;
        self.files += 1;
        sync(&path)
    }
}

impl Writer {
    fn begin(path: &Path, meta: &Metadata, frame: &DataFrame) -> Result<Self> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(io_error("create", dir))?;
        }
        let file = File::create_new(path).map_err(io_error("create", path))?;
        let schema = frame.schema().to_arrow(CompatLevel::newest());
        let file =
            FileWriter::try_new(file, schema, OPTIONS).map_err(polars_error("begin", path))?;
        Ok(Self { file, footer: footer(meta, frame), row_groups: 0 })
    }
}

/// Adds a row group of one frame, whose columns are in one piece each.
fn write(writer: &mut FileWriter<impl Write>, frame: &DataFrame) -> PolarsResult<()> {
    let fields = writer.parquet_schema().fields().to_vec();
    if let Some(rows) = frame.iter_chunks(CompatLevel::newest(), false).next() {
        let columns = row_group_iter(rows, encodings(frame)?.into(), fields, OPTIONS);
        writer.write(frame.height() as u64, columns)?;
    }
    Ok(())
}

/// The rows in this order, equal ones as they came. Polars' own sort of several columns takes as long as writing them
/// does where dependencies are built without optimisation.
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
        let orders = keys.iter().map(|key| match key {
            Key::Text(values) => values[a].cmp(&values[b]),
            Key::Number(values) => values[a].cmp(&values[b]),
        });
        orders.fold(Ordering::Equal, Ordering::then)
    };
    let mut order: Vec<IdxSize> = (0..frame.height() as IdxSize).collect();
    if order.is_sorted_by(|a, b| compare(a, b).is_le()) {
        return Ok(frame.clone());
    }
    order.sort_by(compare);
    frame.take(&IdxCa::from_vec(PlSmallStr::EMPTY, order))
}

/// The footer's key-value pairs. Polars would describe text columns as Arrow's `string_view`, which readers before
/// 2024 refuse and pandas cannot put in lists; the plain string type says the same of the same bytes.
fn footer(meta: &Metadata, frame: &DataFrame) -> Vec<KeyValue> {
    let schema = frame.schema().to_arrow(CompatLevel::oldest());
    let pairs = meta.0.iter().cloned().map(|(key, value)| KeyValue { key, value: Some(value) });
    pairs.chain([schema_to_metadata_key(&schema)]).collect()
}

/// Key-value pairs of every file's footer.
pub(crate) struct Metadata(pub(crate) Vec<(String, String)>);

/// Makes a file or directory durable.
pub(crate) fn sync(path: &Path) -> Result<()> {
    let file = File::open(path).map_err(io_error("open", path))?;
    file.sync_all().map_err(io_error("make durable", path))
}

/// A table of fewer rows is written by one thread.
const FEW_ROWS: usize = 32 * 1024;
/// Rows of a row group of a table that is there as a whole.
const WHOLE_ROW_GROUP_ROWS: usize = 256 * 1024;

/// Puts a whole table into one Parquet file, in place of an older one.
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

/// Puts a whole table into one CSV file, in place of an older one.
pub(crate) fn write_csv(frame: &DataFrame, path: &Path) -> Result<()> {
    write_new(path, |file| {
        // Polars' own header begins with 8 MB of zeros in memory, which take longer than a small table.
        let names = frame.columns().iter().map(|column| quoted(column.name()));
        writeln!(file, "{}", names.collect::<Vec<_>>().join(","))?;
        let writer = CsvWriter::new(file).include_header(false);
        // Threads that first have to be started cost more than such a table does.
        let mut writer = if frame.height() < FEW_ROWS { writer.n_threads(1) } else { writer };
        writer.finish(&mut frame.clone())
    })
}

/// Puts a text into a file, in place of an older one.
pub(crate) fn write_text(text: &str, path: &Path) -> Result<()> {
    write_new(path, |file| Ok(file.write_all(text.as_bytes())?))
}

/// What is written may come in pieces of a few bytes. It is not made durable: it can be worked out again.
fn write_new(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> PolarsResult<()>,
) -> Result<()> {
    let staged = staged(path);
    let written = File::create(&staged).map_err(io_error("create", &staged)).and_then(|file| {
        let mut file = BufWriter::new(file);
        write(&mut file).map_err(polars_error("write", path))?;
        file.flush().map_err(io_error("write", path))?;
        take_place(&staged, path).map_err(io_error("replace", path))
    });
    unstage(&staged, written)
}

/// Renames, so that a reader finds the old file or the new one. They are exchanged where the file system can: a rename in place
/// of a file makes ext4 write the new one out first, for 2 ms.
fn take_place(staged: &Path, path: &Path) -> std::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let there = std::fs::symlink_metadata(path).is_ok_and(|old| old.is_file());
    if there && renameat_with(CWD, staged, CWD, path, RenameFlags::EXCHANGE).is_ok() {
        std::fs::remove_file(staged)
    } else {
        std::fs::rename(staged, path)
    }
}

/// Where a file's new content is written before it takes the old one's place.
pub(crate) fn staged(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.new"))
}

/// Leaves no half-written file behind.
pub(crate) fn unstage(staged: &Path, written: Result<()>) -> Result<()> {
    if written.is_err() {
        // What could not be written may not be there to remove; the first error is the one to tell.
        let _ = std::fs::remove_file(staged);
    }
    written
}
