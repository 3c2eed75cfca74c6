//! Reads Parquet files that other programs may have written, or that have not been compared with a digest.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use polars::prelude::*;
use polars_io::mmap::MmapBytesReader;
use polars_io::parquet::metadata::FileMetadataRef;
use polars_parquet_format::thrift::protocol::TCompactInputProtocol;
use polars_parquet_format::{ColumnMetaData, FileMetaData, PageHeader};

use crate::error::{Result, io_error, polars_error};
use crate::layout::TableRows;

/// A reader of an open file.
type Reader = ParquetReader<Box<dyn MmapBytesReader>>;

/// Files up to this size are read with one call.
const SMALL_FILE_BYTES: u64 = 1 << 20;
/// Length of the metadata (4 bytes) and "PAR1".
const TRAILER_BYTES: u64 = 8;
/// Limit of a page's header, which may contain the smallest and the largest value.
const MAX_PAGE_HEADER_BYTES: usize = 1 << 20;
/// Limit of a decompressed page: Polars clears that much memory before it decompresses the page. A column of the longest trace takes 32 MB.
const MAX_PAGE_BYTES: i32 = 256 << 20;
/// Limit of the rows of a file: Polars numbers rows with 32 bits.
const MAX_FILE_ROWS: i64 = u32::MAX as i64;

/// Reads those of the given columns that a file has, or all columns if none are given.
///
/// # Errors
/// The file is damaged, or has more than `max_rows` rows.
pub(crate) fn read(
    bytes: Vec<u8>,
    columns: Option<&[&str]>,
    max_rows: usize,
) -> PolarsResult<DataFrame> {
    unless_damaged(|| {
        let mut bytes = Cursor::new(bytes);
        let metadata = read_metadata(&mut bytes)?;
        let rows = metadata.num_rows;
        polars_ensure!(rows as usize <= max_rows, ComputeError: "it has {rows} rows; {max_rows} are allowed");
        check_columns(&mut bytes, &metadata)?;
        bytes.set_position(0);
        let mut reader = ParquetReader::new(bytes);
        let wanted =
            columns.map(|columns| reader.schema().map(|schema| columns_in(&schema, columns)));
        reader
            .with_columns(wanted.transpose()?)
            // In this thread, which catches panics.
            .read_parallel(ParallelStrategy::None)
            .finish()
    })
}

/// Returns the result of a function that reads with Polars. Some damage makes Polars panic, which is an error here.
pub(crate) fn unless_damaged<T>(read: impl FnOnce() -> PolarsResult<T>) -> PolarsResult<T> {
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(polars_err!(ComputeError: "the Parquet file is damaged")))
}

/// Opens a file. Checks its metadata and the headers of its pages unless the metadata is known. Reads a small file with one call: mmap and
/// munmap interrupt the other threads.
pub(crate) fn open(path: &Path, metadata: Option<&FileMetadataRef>) -> Result<Reader> {
    let mut file = File::open(path).map_err(io_error("open", path))?;
    let length = file.metadata().map_err(io_error("read", path))?.len();
    let bytes: Box<dyn MmapBytesReader> = if length > SMALL_FILE_BYTES {
        if metadata.is_none() {
            check(&mut BufReader::new(&file)).map_err(polars_error("read", path))?;
            file.rewind().map_err(io_error("read", path))?;
        }
        Box::new(file)
    } else {
        let mut bytes = Vec::with_capacity(length as usize + 1);
        file.read_to_end(&mut bytes).map_err(io_error("read", path))?;
        let mut bytes = Cursor::new(bytes);
        if metadata.is_none() {
            check(&mut bytes).map_err(polars_error("read", path))?;
            bytes.set_position(0);
        }
        Box::new(bytes)
    };
    let mut reader = ParquetReader::new(bytes);
    match metadata {
        Some(metadata) => reader.set_metadata(metadata.clone()),
        // The reader keeps the schema and the metadata.
        None => {
            unless_damaged(|| reader.schema()).map_err(polars_error("read", path))?;
        }
    }
    Ok(reader)
}

/// Returns these columns of a frame with this number of rows; those that it lacks, as in a file of an older version, are null.
pub(crate) fn with_columns(
    frame: &DataFrame,
    rows: usize,
    columns: &Schema,
) -> PolarsResult<DataFrame> {
    let column = |(name, dtype): (&PlSmallStr, &DataType)| match frame.column(name) {
        Ok(column) => column.clone(),
        Err(_) => Column::full_null(name.clone(), rows, dtype),
    };
    DataFrame::new(rows, columns.iter().map(column).collect())
}

/// Passes all rows of a file to `take`, in order and in frames of limited size.
pub(crate) fn each_frame(
    path: &Path,
    rows: usize,
    take: impl FnMut(DataFrame) -> Result<()>,
) -> Result<()> {
    let mut first = open(path, None)?;
    let metadata = first.get_metadata().map_err(polars_error("read", path))?.clone();
    let range = 0..metadata.num_rows;
    each_frame_within(path, (first, &metadata), None, (range, rows), take)
}

/// As [`each_frame`], but for a range of rows of an open file, and only for these columns if given.
pub(crate) fn each_frame_within(
    path: &Path,
    (first, metadata): (Reader, &FileMetadataRef),
    columns: Option<&[String]>,
    (range, rows): (Range<usize>, usize),
    mut take: impl FnMut(DataFrame) -> Result<()>,
) -> Result<()> {
    let mut first = Some(first);
    let end = range.end;
    for from in range.step_by(rows) {
        let reader = match first.take() {
            Some(first) => first,
            None => open(path, Some(metadata))?,
        };
        let frame = unless_damaged(|| {
            reader
                .with_columns(columns.map(<[String]>::to_vec))
                .with_slice(Some((from, rows.min(end - from))))
                .read_parallel(ParallelStrategy::None)
                .finish()
        });
        take(frame.map_err(polars_error("read", path))?)?;
    }
    Ok(())
}

/// The metadata of shared files: reading it takes longer than reading the rows of one trial.
#[derive(Debug, Default)]
pub(crate) struct SharedMetadata(Mutex<HashMap<PathBuf, FileMetadataRef>>);

impl SharedMetadata {
    /// Opens the file with these rows. Also returns its metadata (which is read once for a shared file) and the range of row numbers.
    pub(crate) fn open(&self, rows: &TableRows) -> Result<(Reader, FileMetadataRef, Range<usize>)> {
        let TableRows { path, range } = rows;
        let known = range.and_then(|_| self.files().get(path).cloned());
        let mut reader = open(path, known.as_ref())?;
        let metadata = reader.get_metadata().map_err(polars_error("read", path))?.clone();
        if range.is_some() && known.is_none() {
            self.files().insert(path.clone(), metadata.clone());
        }
        let (begin, count) = range.unwrap_or((0, metadata.num_rows));
        let end = begin.saturating_add(count).min(metadata.num_rows);
        Ok((reader, metadata, begin..end))
    }

    fn files(&self) -> MutexGuard<'_, HashMap<PathBuf, FileMetadataRef>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks the lengths and counts in a file's metadata and in the headers of its pages.
///
/// # Errors
/// The file is damaged.
fn check(file: &mut (impl Read + Seek)) -> PolarsResult<()> {
    let metadata = read_metadata(file)?;
    check_columns(file, &metadata)
}

fn damaged(what: &str) -> PolarsError {
    polars_err!(ComputeError: "the Parquet file is damaged: {what}")
}

/// Reads the metadata. Polars reserves memory for the lengths and counts in it, and the process aborts if there is not enough memory.
fn read_metadata(file: &mut (impl Read + Seek)) -> PolarsResult<FileMetaData> {
    let end = file.seek(SeekFrom::End(0))?;
    let trailer_at = end.checked_sub(TRAILER_BYTES).ok_or_else(|| damaged("it is too short"))?;
    let mut trailer = [0; TRAILER_BYTES as usize];
    file.seek(SeekFrom::Start(trailer_at))?;
    file.read_exact(&mut trailer)?;
    let [a, b, c, d, magic @ ..] = trailer;
    polars_ensure!(magic == *b"PAR1", ComputeError: "it is not a complete Parquet file");
    let length = u32::from_le_bytes([a, b, c, d]);
    let metadata_at = trailer_at.checked_sub(length.into());
    file.seek(SeekFrom::Start(
        metadata_at.ok_or_else(|| damaged("its metadata has a wrong length"))?,
    ))?;
    let mut bytes = vec![0; length as usize];
    file.read_exact(&mut bytes)?;
    // The limit counts 8 bytes for each list element; an element has at least one.
    let mut protocol = TCompactInputProtocol::new(&bytes[..], bytes.len().saturating_mul(9));
    let metadata = FileMetaData::read_from_in_protocol(&mut protocol);
    let metadata =
        metadata.map_err(|error| damaged(&format!("its metadata cannot be read: {error}")))?;
    let in_groups = metadata.row_groups.iter().try_fold(0_i64, |sum, group| {
        sum.checked_add(group.num_rows).filter(|_| group.num_rows >= 0)
    });
    match in_groups == Some(metadata.num_rows) && metadata.num_rows <= MAX_FILE_ROWS {
        true => Ok(metadata),
        false => Err(damaged("its number of rows is wrong")),
    }
}

fn check_columns(file: &mut (impl Read + Seek), metadata: &FileMetaData) -> PolarsResult<()> {
    let chunks = metadata.row_groups.iter().flat_map(|group| &group.columns);
    for chunk in chunks.filter_map(|chunk| chunk.meta_data.as_ref()) {
        check_pages(file, chunk)?;
    }
    Ok(())
}

/// Checks that no page claims more values than its column has, or too many bytes.
fn check_pages(file: &mut (impl Read + Seek), column: &ColumnMetaData) -> PolarsResult<()> {
    let data_at = column.data_page_offset;
    let begin = column.dictionary_page_offset.filter(|at| (1..data_at).contains(at));
    let begin = begin.unwrap_or(data_at);
    let end = begin.checked_add(column.total_compressed_size);
    let (Ok(begin), Some(Ok(end))) = (u64::try_from(begin), end.map(u64::try_from)) else {
        return Err(damaged("a column has a wrong position"));
    };
    let mut at = file.seek(SeekFrom::Start(begin))?;
    while at < end {
        let mut protocol = TCompactInputProtocol::new(&mut *file, MAX_PAGE_HEADER_BYTES);
        let header = PageHeader::read_from_in_protocol(&mut protocol);
        let header =
            header.map_err(|error| damaged(&format!("a page's header cannot be read: {error}")))?;
        let values = header.data_page_header.map(|page| page.num_values);
        let values = values.or(header.data_page_header_v2.map(|page| page.num_values));
        let values = values.or(header.dictionary_page_header.map(|page| page.num_values));
        if !values.is_none_or(|values| (0..=column.num_values).contains(&values.into())) {
            return Err(damaged("a page has a wrong number of values"));
        }
        if header.uncompressed_page_size > MAX_PAGE_BYTES {
            return Err(damaged("a page is too large"));
        }
        if header.compressed_page_size < 0 {
            return Err(damaged("a page has a wrong length"));
        }
        file.seek_relative(header.compressed_page_size.into())?;
        at = file.stream_position()?;
    }
    Ok(())
}

/// Returns those of the columns that a file with this schema has.
fn columns_in(schema: &ArrowSchema, columns: &[&str]) -> Vec<String> {
    let there = columns.iter().filter(|name| schema.contains(name));
    there.map(|name| (*name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use polars_parquet_format::thrift::protocol::TCompactOutputProtocol;

    use super::*;

    /// Returns a file of three rows after a change of its first page's header, and one of its metadata.
    fn changed_file(
        change_page: impl FnOnce(&mut PageHeader),
        change_metadata: impl FnOnce(&mut FileMetaData),
    ) -> Vec<u8> {
        let mut frame = df!("rate_bps" => [1_u64, 2, 3]).unwrap();
        let mut bytes = Vec::new();
        ParquetWriter::new(&mut bytes).finish(&mut frame).unwrap();
        let mut metadata = read_metadata(&mut Cursor::new(&bytes)).unwrap();
        let column = metadata.row_groups[0].columns[0].meta_data.as_mut().unwrap();
        let end = 4 + column.total_compressed_size as usize;
        let mut rest = &bytes[4..];
        let mut protocol = TCompactInputProtocol::new(&mut rest, MAX_PAGE_HEADER_BYTES);
        let mut header = PageHeader::read_from_in_protocol(&mut protocol).unwrap();
        let begin = bytes.len() - rest.len();
        change_page(&mut header);
        let mut page = Vec::new();
        header.write_to_out_protocol(&mut TCompactOutputProtocol::new(&mut page)).unwrap();
        let growth = page.len() as i64 - (begin as i64 - 4);
        column.total_compressed_size += growth;
        if column.dictionary_page_offset.is_some() {
            column.data_page_offset += growth;
        }
        change_metadata(&mut metadata);
        let mut end_of_file = Vec::new();
        let mut protocol = TCompactOutputProtocol::new(&mut end_of_file);
        metadata.write_to_out_protocol(&mut protocol).unwrap();
        let length = (end_of_file.len() as u32).to_le_bytes();
        let parts: [&[u8]; 6] =
            [b"PAR1", &page, &bytes[begin..end], &end_of_file, &length, b"PAR1"];
        parts.concat()
    }

    fn claim_values(header: &mut PageHeader) {
        if let Some(page) = &mut header.dictionary_page_header {
            page.num_values = i32::MAX;
        }
        if let Some(page) = &mut header.data_page_header {
            page.num_values = i32::MAX;
        }
    }

    #[test]
    fn what_would_need_too_much_memory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("part-0.parquet");
        let whole = changed_file(|_| (), |_| ());
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(open(&path, None).unwrap().finish().unwrap().height(), 3);
        assert_eq!(read(whole, None, 3).unwrap().height(), 3);
        let claim_bytes = |header: &mut PageHeader| header.uncompressed_page_size = i32::MAX;
        let claim_rows = |metadata: &mut FileMetaData| {
            metadata.num_rows = 1 << 40;
            metadata.row_groups[0].num_rows = 1 << 40;
        };
        for (bytes, what) in [
            (changed_file(claim_bytes, |_| ()), "a page is too large"),
            (changed_file(claim_values, |_| ()), "a page has a wrong number of values"),
            (changed_file(|_| (), claim_rows), "its number of rows is wrong"),
        ] {
            std::fs::write(&path, &bytes).unwrap();
            let opened = open(&path, None).map(drop).unwrap_err().to_string();
            assert!(opened.contains(what), "{opened}");
            let found = read(bytes, None, usize::MAX).unwrap_err().to_string();
            assert!(found.contains(what), "{found}");
        }
    }

    #[test]
    fn a_panic_while_a_file_is_read_is_an_error() {
        let damaged = || -> PolarsResult<()> { panic!("index out of bounds") };
        let error = unless_damaged(damaged).unwrap_err().to_string();
        assert_eq!(error, "the Parquet file is damaged");
    }
}
