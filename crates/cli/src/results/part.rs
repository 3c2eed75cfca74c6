//! One Parquet file being written: rows gather in builders and leave them as row groups, so that a trial of any
//! length needs the memory of one row group per table.

use std::cmp::Ordering;
use std::fs::File;
use std::path::{Path, PathBuf};

use polars::io::parquet::write::BatchedWriter;
use polars::prelude::*;
use polars_parquet::write::schema_to_metadata_key;

use super::columns::{Columns, Origin};
use super::{Result, frame_error, io_error};

/// Rows of a row group.
pub(crate) const ROW_GROUP_ROWS: usize = 128 * 1024;

/// The file of one table of one trial. There is no file until there is a row.
pub(crate) struct Part<C> {
    path: PathBuf,
    columns: C,
    waiting: usize,
    written: u64,
    writer: Option<BatchedWriter<File>>,
    limit: usize,
}

/// What becomes of a [`Part`].
pub(crate) struct Finished {
    /// The table.
    pub(crate) table: &'static str,
    /// Rows in the file.
    pub(crate) rows: u64,
}

impl<C: Columns> Part<C> {
    /// The file will be `dir/TABLE/part-0.parquet`; a row group has at most `limit` rows.
    pub(crate) fn new(dir: &Path, limit: usize) -> Self {
        Self {
            path: dir.join(C::TABLE).join("part-0.parquet"),
            columns: C::new(),
            waiting: 0,
            written: 0,
            writer: None,
            limit,
        }
    }

    /// Takes a row, or a batch of them; writes a row group when enough have gathered.
    pub(crate) fn put(&mut self, origin: &Origin<'_>, row: C::Row, meta: &Metadata) -> Result<()> {
        self.waiting += self.columns.put(origin, row);
        if self.waiting >= self.limit { self.flush(meta) } else { Ok(()) }
    }

    /// Writes what is left and the footer, and makes the file durable.
    pub(crate) fn finish(mut self, meta: &Metadata) -> Result<Option<Finished>> {
        if self.waiting > 0 {
            self.flush(meta)?;
        }
        let Some(writer) = self.writer else {
            return Ok(None);
        };
        writer.finish().map_err(frame_error("finish", &self.path))?;
        drop(writer);
        sync(&self.path)?;
        if let Some(dir) = self.path.parent() {
            sync(dir)?;
        }
        Ok(Some(Finished { table: C::TABLE, rows: self.written }))
    }

    fn flush(&mut self, meta: &Metadata) -> Result<()> {
        let refused = |op| frame_error(op, &self.path);
        let taken = self.columns.take().map_err(refused("gather the rows of"))?;
        let mut frame = sorted(&taken, C::SORT).map_err(refused("sort the rows of"))?;
        frame.rechunk_mut();
        if self.writer.is_none() {
            if let Some(dir) = self.path.parent() {
                std::fs::create_dir_all(dir).map_err(io_error("create", dir))?;
            }
            let file = File::create_new(&self.path).map_err(io_error("create", &self.path))?;
            let writer = ParquetWriter::new(file)
                .with_compression(ParquetCompression::Zstd(None))
                .with_key_value_metadata(Some(footer(meta, &frame)))
                .batched(frame.schema())
                .map_err(refused("begin"))?;
            self.writer = Some(writer);
        }
        if let Some(writer) = &mut self.writer {
            writer.write_batch(&frame).map_err(refused("write"))?;
        }
        self.written += self.waiting as u64;
        self.waiting = 0;
        Ok(())
    }
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
    order.sort_by(compare);
    frame.take(&IdxCa::from_vec(PlSmallStr::EMPTY, order))
}

/// The footer's key-value pairs. Polars would describe text columns as Arrow's `string_view`, which readers before
/// 2024 refuse and pandas cannot put in lists; the plain string type says the same of the same bytes.
fn footer(meta: &Metadata, frame: &DataFrame) -> KeyValueMetadata {
    let schema = frame.schema().to_arrow(CompatLevel::oldest());
    let arrow = schema_to_metadata_key(&schema);
    let pairs = meta.0.iter().cloned();
    let described = arrow.value.map(|value| (arrow.key, value));
    KeyValueMetadata::from_static(pairs.chain(described).collect())
}

/// Key-value pairs of every file's footer.
pub(crate) struct Metadata(pub(crate) Vec<(String, String)>);

/// Makes a file or directory durable.
pub(crate) fn sync(path: &Path) -> Result<()> {
    let file = File::open(path).map_err(io_error("open", path))?;
    file.sync_all().map_err(io_error("make durable", path))
}

/// Puts a whole table into one Parquet file, in place of an older one.
pub(crate) fn write_parquet(frame: &mut DataFrame, path: &Path) -> Result<()> {
    write_new(path, |file| {
        let writer = ParquetWriter::new(file)
            .with_compression(ParquetCompression::Zstd(None))
            .with_key_value_metadata(Some(footer(&Metadata(vec![]), frame)));
        writer.finish(frame).map(drop)
    })
}

/// Puts a whole table into one CSV file, in place of an older one.
pub(crate) fn write_csv(frame: &mut DataFrame, path: &Path) -> Result<()> {
    write_new(path, |file| CsvWriter::new(file).finish(frame))
}

fn write_new(path: &Path, write: impl FnOnce(&File) -> PolarsResult<()>) -> Result<()> {
    let staged = staged(path);
    let written = File::create(&staged)
        .map_err(io_error("create", &staged))
        .and_then(|file| write(&file).map_err(frame_error("write", path)))
        .and_then(|()| std::fs::rename(&staged, path).map_err(io_error("replace", path)));
    unstage(&staged, written)
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
