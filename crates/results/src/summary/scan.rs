//! The files of a table as the source of a Polars query. Polars' own scan of Parquet files uses its streaming engine which, with the
//! required code for object stores, is a large part of a program. This scan reads a slice of a file at a time, and only the columns that
//! the query uses. It keeps only the rows that the query selects.

use std::any::Any;
use std::mem::take;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use polars::prelude::*;
use polars_io::parquet::metadata::FileMetadataRef;

use super::rows::SLICE_ROWS;
use crate::columns::RenamedColumns;
use crate::error::{Result, polars_error};
use crate::layout::TableRows;
use crate::parquet_file::{SharedMetadata, open, unless_damaged, with_columns};

/// A file whose metadata has been checked, with the range of rows to read.
pub(super) struct TableFile {
    path: PathBuf,
    metadata: FileMetadataRef,
    /// The columns with their current names.
    schema: Schema,
    renamed: RenamedColumns,
    rows: Range<usize>,
}

impl TableFile {
    /// Reads the metadata of a file of this table, only once for a file that trials share.
    pub(super) fn open(table: &str, rows: &TableRows, shared: &SharedMetadata) -> Result<Self> {
        let (mut reader, metadata, range) = shared.open(rows)?;
        let path = rows.path.clone();
        let schema = reader.schema().map_err(polars_error("read", &path))?;
        let mut schema = Schema::from_arrow_schema(&schema);
        let renamed = RenamedColumns::new(table, |name| schema.contains(name));
        renamed.rename_in(&mut schema);
        Ok(Self { path, metadata, schema, renamed, rows: range })
    }

    /// Returns some rows of these columns. Columns that the file lacks are null.
    fn read(&self, from: usize, rows: usize, columns: &Schema) -> PolarsResult<DataFrame> {
        let names = columns.iter_names().filter(|name| self.schema.contains(name));
        let names: Vec<String> = names.map(|name| self.renamed.in_file(name).to_owned()).collect();
        let reader = open(&self.path, Some(&self.metadata));
        let reader = reader.map_err(|error| polars_err!(ComputeError: "{error}"))?;
        let frame = unless_damaged(|| {
            reader.with_columns(Some(names)).with_slice(Some((from, rows))).finish()
        });
        let in_file = |text: &str| format!("{}: {text}", self.path.display());
        let mut frame = frame.map_err(|error| error.wrap_msg(in_file))?;
        self.renamed.rename(&mut frame).map_err(|error| error.wrap_msg(in_file))?;
        with_columns(&frame, rows, columns).map_err(|error| error.wrap_msg(in_file))
    }
}

/// All rows of these files of a table, in order.
struct TableScan {
    files: Vec<TableFile>,
    /// The columns of all files: trials of an older version have fewer.
    schema: SchemaRef,
    slice_rows: usize,
}

/// Returns a query over the rows of these files.
pub(super) fn lazy_rows(files: Vec<TableFile>) -> PolarsResult<LazyFrame> {
    rows_in_slices(files, SLICE_ROWS)
}

fn rows_in_slices(files: Vec<TableFile>, slice_rows: usize) -> PolarsResult<LazyFrame> {
    let mut schema = Schema::default();
    for (name, dtype) in files.iter().flat_map(|file| file.schema.iter()) {
        if !schema.contains(name) {
            schema.with_column(name.clone(), dtype.clone());
        }
    }
    let schema = Arc::new(schema);
    let scan = TableScan { files, schema: schema.clone(), slice_rows };
    let args = ScanArgsAnonymous { schema: Some(schema), name: "TABLE", ..Default::default() };
    LazyFrame::anonymous_scan(Arc::new(scan), args)
}

impl AnonymousScan for TableScan {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn allows_projection_pushdown(&self) -> bool {
        true
    }

    /// Polars pushes down only predicates that look at one row, which excludes comparisons with a median, for example.
    fn allows_predicate_pushdown(&self) -> bool {
        true
    }

    fn scan(&self, wanted: AnonymousScanArgs) -> PolarsResult<DataFrame> {
        let columns = match &wanted.with_columns {
            Some(names) => self.schema.try_project(names.iter())?,
            None => Schema::clone(&self.schema),
        };
        let predicate = wanted.predicate.and_then(without_hints);
        let filter = |rows: DataFrame| match &predicate {
            Some(predicate) => rows.lazy().filter(predicate.clone()).collect(),
            None => Ok(rows),
        };
        let mut found = DataFrame::empty_with_schema(&columns);
        // Many files are small, and a query for each would take longer than reading the file.
        let mut unfiltered = DataFrame::default();
        for file in &self.files {
            for from in file.rows.clone().step_by(self.slice_rows) {
                let slice = file.read(from, self.slice_rows.min(file.rows.end - from), &columns)?;
                unfiltered.vstack_mut(&slice)?;
                if unfiltered.height() >= self.slice_rows {
                    found.vstack_mut(&filter(take(&mut unfiltered))?)?;
                }
            }
        }
        if unfiltered.height() > 0 {
            found.vstack_mut(&filter(unfiltered)?)?;
        }
        Ok(match wanted.n_rows {
            Some(rows) => found.head(Some(rows)),
            None => found,
        })
    }
}

/// Returns the predicate without the hint that Polars adds for a sort with a limit to read fewer rows. The hint has no expression, and does
/// not change a result.
fn without_hints(predicate: Expr) -> Option<Expr> {
    match predicate {
        Expr::BinaryExpr { left, op: op @ (Operator::And | Operator::LogicalAnd), right } => {
            match [left, right].map(|side| without_hints(Arc::unwrap_or_clone(side))) {
                [Some(left), Some(right)] => {
                    Some(Expr::BinaryExpr { left: Arc::new(left), op, right: Arc::new(right) })
                }
                [side, None] | [None, side] => side,
            }
        }
        predicate => {
            let is_hint = |part: &Expr| matches!(part, Expr::Display { .. });
            let has_hint = predicate.into_iter().any(is_hint);
            (!has_hint).then_some(predicate)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::part::write_parquet;

    /// Returns files of 7, 1 and 4 rows. The first one is of an older version, and the second one has no `old`.
    fn frames() -> [DataFrame; 3] {
        let flow = |rows: usize| ["a", "b"].into_iter().cycle().take(rows).collect::<Vec<_>>();
        let made = [
            df!("flow" => flow(7), "t" => (0..7).collect::<Vec<i64>>(), "old" => [1_u32; 7]),
            df!("flow" => flow(1), "t" => [7_i64], "new" => [0.5]),
            df!("flow" => flow(4), "t" => (8..12).collect::<Vec<i64>>(), "old" => [3_u32; 4], "new" => [Some(1.5), None, Some(2.5), None]),
        ];
        made.map(Result::unwrap)
    }

    fn opened(path: PathBuf, range: Option<(usize, usize)>) -> TableFile {
        TableFile::open("link_changes", &TableRows { path, range }, &SharedMetadata::default())
            .unwrap()
    }

    fn written(dir: &Path) -> Vec<TableFile> {
        let file = |(nth, frame): (usize, &DataFrame)| {
            let path = dir.join(format!("{nth}.parquet"));
            write_parquet(frame, &path).unwrap();
            opened(path, None)
        };
        frames().iter().enumerate().map(file).collect()
    }

    /// Returns the rows as an in-memory frame of Polars.
    fn in_memory() -> LazyFrame {
        let [first, second, third] = frames();
        let null = |name, dtype: DataType| lit(NULL).cast(dtype).alias(name);
        let columns = ["flow", "t", "old", "new"].map(col);
        let first = first.lazy().with_column(null("new", DataType::Float64));
        let second = second.lazy().with_column(null("old", DataType::UInt32));
        let mut all = first.select(columns.clone()).collect().unwrap();
        for next in [second, third.lazy()] {
            all.vstack_mut(&next.select(columns.clone()).collect().unwrap()).unwrap();
        }
        all.lazy()
    }

    fn latest_first() -> SortMultipleOptions {
        SortMultipleOptions::default().with_order_descending(true)
    }

    #[test]
    fn queries_give_the_same_for_slices_of_any_length() {
        let dir = tempfile::tempdir().unwrap();
        let of_flow = || col("flow").eq(lit("b"));
        let late = || col("t").gt_eq(col("t").median());
        let queries: [fn(LazyFrame, Expr, Expr) -> LazyFrame; 9] = [
            |rows, _, _| rows,
            |rows, of_flow, _| rows.filter(of_flow).select([col("t")]),
            |rows, of_flow, late| rows.filter(of_flow.and(late)),
            |rows, _, late| rows.filter(late).select([col("new"), col("flow")]),
            |rows, _, _| rows.select([col("old")]).filter(col("old").is_null()),
            |rows, of_flow, _| rows.filter(of_flow).limit(2),
            |rows, of_flow, _| {
                let sums = [col("t").sum(), col("new").max(), col("old").last()];
                rows.filter(of_flow.not()).group_by([col("flow")]).agg(sums)
            },
            |rows, of_flow, _| rows.filter(of_flow).sort(["t"], latest_first()).limit(2),
            |rows, _, _| rows.sort(["t"], latest_first()).limit(3).select([col("old")]),
        ];
        for (nth, query) in queries.into_iter().enumerate() {
            let expected = query(in_memory(), of_flow(), late()).collect().unwrap();
            assert!(expected.height() > 0, "query {nth} has rows");
            for slice_rows in [1, 2, 3, 100] {
                let rows = rows_in_slices(written(dir.path()), slice_rows).unwrap();
                let found = query(rows, of_flow(), late()).collect().unwrap();
                assert!(found.equals_missing(&expected), "query {nth}: {found:?} {expected:?}");
            }
        }
    }

    #[test]
    fn only_the_rows_of_a_range_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shared.parquet");
        let [first, ..] = frames();
        write_parquet(&first, &path).unwrap();
        for (range, expected) in [((2, 3), 2..5), ((5, 9), 5..7), ((7, 1), 7..7)] {
            for slice_rows in [1, 2, 100] {
                let files = vec![opened(path.clone(), Some(range))];
                let rows = rows_in_slices(files, slice_rows).unwrap().select([col("t")]);
                let found = rows.collect().unwrap();
                let found: Vec<i64> =
                    found.column("t").unwrap().i64().unwrap().into_no_null_iter().collect();
                assert_eq!(found, expected.clone().collect::<Vec<i64>>(), "{range:?}");
            }
        }
    }

    #[test]
    fn columns_of_earlier_versions_have_their_current_names() {
        let dir = tempfile::tempdir().unwrap();
        let made = [
            df!("link" => ["a", "b"], "asked_t_ns" => [1_i64, 2]),
            df!("link" => ["a"], "requested_t_ns" => [3_i64]),
        ];
        let files = made.into_iter().enumerate().map(|(nth, frame)| {
            let path = dir.path().join(format!("{nth}.parquet"));
            write_parquet(&frame.unwrap(), &path).unwrap();
            opened(path, None)
        });
        let late = col("requested_t_ns").gt(lit(1));
        let rows = lazy_rows(files.collect()).unwrap().filter(late).collect().unwrap();
        let expected = df!("link" => ["b", "a"], "requested_t_ns" => [2_i64, 3]).unwrap();
        assert!(rows.equals(&expected), "{rows:?}");
    }

    #[test]
    fn files_with_other_types_are_refused_where_the_column_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = written(dir.path());
        let other = df!("flow" => ["a"], "t" => ["noon"]).unwrap();
        let path = dir.path().join("other.parquet");
        write_parquet(&other, &path).unwrap();
        files.push(opened(path, None));
        let rows = lazy_rows(files).unwrap();
        assert_eq!(rows.clone().select([col("flow")]).collect().unwrap().height(), 13);
        assert!(rows.select([col("t")]).collect().is_err());
    }
}
