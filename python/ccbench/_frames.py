"""Parquet files as frames of one of three libraries. Each keeps what it can of the units: pyarrow in the metadata of fields, pandas in
`attrs`; polars has no place for them, so ask the run."""

import importlib
import itertools

LIBRARIES = ("polars", "pandas", "pyarrow")


def installed():
    """The first library that is installed, or None."""
    for name in LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        return name
    return None


def read(library, files, units_of, renamed, renamed_values):
    """Files of a table as one frame, and the former values in it, as pairs of column and value. `units_of` gives the units for names of
    columns. `renamed` has the current names of renamed columns by their former names, `renamed_values` those of values by column."""
    read_files = {"polars": _polars, "pandas": _pandas, "pyarrow": _pyarrow}[library]
    return read_files(files, units_of, renamed, renamed_values)


def former_names(library, files, renamed):
    """Those of the former names that columns of these files have."""
    return {name for file in files for name in column_names(library, file) if name in renamed} if renamed else set()


def keep_counted(library, frame, trials):
    """Rows of the points and trials that are in `trials`, a frame of the same library."""
    keys = ["point_id", "trial"]
    if library == "polars":
        return frame.join(trials.select(keys), on=keys, how="semi", maintain_order="left")
    if library == "pandas":
        kept = frame.merge(trials[keys], on=keys, how="inner")
        kept.attrs = frame.attrs
        return kept
    # A join of pyarrow neither keeps the order nor takes every type of column.
    wanted = set(zip(*(trials[key].to_pylist() for key in keys)))
    pairs = zip(*(frame[key].to_pylist() for key in keys))
    return frame.filter([pair in wanted for pair in pairs])


def counted_trials(library, trials):
    """Trials that summaries use."""
    statuses = ["ok", "degraded"]
    if library == "polars":
        polars = importlib.import_module("polars")
        return trials.filter(polars.col("status").cast(polars.String).is_in(statuses))
    if library == "pandas":
        return trials[trials["status"].astype(str).isin(statuses)]
    return trials.filter([str(status) in statuses for status in trials["status"].to_pylist()])


def column_names(library, file):
    """Names of the columns of a file."""
    if library == "polars":
        return list(importlib.import_module("polars").read_parquet_schema(file))
    return importlib.import_module("pyarrow.parquet").ParquetFile(file).schema_arrow.names


def _current(value, renamed, found):
    """The value, or list of values, with current codes. A value is a code, or a code and a message. Adds former codes to `found`."""
    if isinstance(value, list):
        return [_current(one, renamed, found) for one in value]
    code, colon, message = (value or "").partition(": ")
    if code not in renamed:
        return value
    found.add(code)
    return renamed[code] + colon + message


def _current_values(columns, renamed_values):
    """Columns with former values, as lists with the current ones, and the pairs of column and former value. `columns` has functions that
    return the list of a column."""
    replaced, former = {}, []
    for column, renamed in renamed_values.items():
        found = set()
        values = [_current(value, renamed, found) for value in columns[column]()] if column in columns else []
        if found:
            replaced[column] = values
            former += [(column, value) for value in sorted(found)]
    return replaced, former


def _polars(files, _units_of, renamed, renamed_values):
    polars = importlib.import_module("polars")
    frame = _polars_frame(polars, files, renamed)
    replaced, former = _current_values({name: frame[name].to_list for name in frame.columns}, renamed_values)
    columns = [polars.Series(column, values, dtype=frame.schema[column]) for column, values in replaced.items()]
    return frame.with_columns(columns), former


def _polars_frame(polars, files, renamed):
    if not former_names("polars", files, renamed):
        return polars.read_parquet(files, hive_partitioning=False)
    # Files of a call have the same columns. The order of the files stays.
    groups = itertools.groupby(files, key=lambda file: former_names("polars", [file], renamed))
    frames = [
        polars.read_parquet(list(group), hive_partitioning=False).rename({name: renamed[name] for name in names})
        for names, group in groups
    ]
    return polars.concat(frames)


def _pyarrow(files, units_of, renamed, renamed_values):
    pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    # Each file alone: dictionaries of categories differ between them.
    tables = [parquet.ParquetFile(file).read() for file in files]
    tables = [table.cast(_plain(pyarrow, table.schema)) for table in tables]
    tables = [table.rename_columns([renamed.get(name, name) for name in table.column_names]) for table in tables]
    table = pyarrow.concat_tables(tables, promote_options="default")
    replaced, former = _current_values({name: table[name].to_pylist for name in table.column_names}, renamed_values)
    for column, values in replaced.items():
        index = table.column_names.index(column)
        table = table.set_column(index, column, pyarrow.array(values, table.schema.field(index).type))
    units = units_of(table.column_names)
    fields = [
        field.with_metadata({"unit": units[field.name]}) if field.name in units else field for field in table.schema
    ]
    return table.cast(pyarrow.schema(fields)), former


def _plain(pyarrow, schema):
    """The schema with text instead of categories."""
    is_category = pyarrow.types.is_dictionary
    return pyarrow.schema(
        [field.with_type(field.type.value_type) if is_category(field.type) else field for field in schema]
    )


def _pandas(files, units_of, renamed, renamed_values):
    table, former = _pyarrow(files, lambda names: {}, renamed, renamed_values)
    frame = table.to_pandas()
    frame.attrs["units"] = units_of(list(frame.columns))
    return frame, former
