"""Measures how long other libraries take just to read the tables that `ccbench summarize` reads: the same columns of the same
files, in a warm process.

    python3 pipeline_floor.py RUN
"""

import pathlib
import statistics
import sys
import time

import duckdb
import polars
import pyarrow.parquet

# As crates/results/src/summary reads them.
SAMPLED = ["rtt_us", "snd_cwnd_pkts", "total_retrans_pkts", "data_segs_out_pkts", "bytes_acked"]
COLUMNS = {
    "intervals": ["phase", "group", "flow_id", "side", "omitted", "t_s", "seconds", "bytes"],
    "flow_samples": ["phase", "group", "flow_id", "role", "side", "t_s", *SAMPLED],
    "flows": ["group", "role", "side", "cc_actual"],
    "events": ["kind", "subject", "data_json"],
}
run = pathlib.Path(sys.argv[1])
files = [(str(file), columns) for table, columns in COLUMNS.items() for file in sorted((run / "tables" / table).rglob("*.parquet"))]


def by_pyarrow():
    for file, columns in files:
        pyarrow.parquet.ParquetFile(file).read(columns=columns, use_threads=False)


def by_polars():
    for file, columns in files:
        polars.read_parquet(file, columns=columns, hive_partitioning=False)


connection = duckdb.connect()


def by_duckdb():
    for table, columns in COLUMNS.items():
        names = ", ".join(f'"{column}"' for column in columns)
        connection.sql(f"SELECT {names} FROM '{run}/tables/{table}/**/*.parquet'").fetchnumpy()


for read in [by_pyarrow, by_polars, by_duckdb]:
    times = []
    for _ in range(21):
        begin = time.perf_counter()
        read()
        times.append(time.perf_counter() - begin)
    print(f"reading alone, {read.__name__[3:]}: {statistics.median(times):.4f} s for all (least {min(times):.4f})")
