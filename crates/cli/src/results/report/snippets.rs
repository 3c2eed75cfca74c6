//! Code that loads a run's data, as the report prints it; a test runs it on a real run.

use serde::Serialize;

/// For one language and library.
#[derive(Debug, Serialize)]
pub(super) struct Snippet {
    /// What it is for.
    name: &'static str,
    code: String,
}

const POLARS: &str = r#"import polars as pl
run = "RUN"
samples = pl.read_parquet(f"{run}/tables/flow_samples")
points = pl.read_parquet(f"{run}/points.parquet")
data = samples.filter((pl.col("role") == "data") & (pl.col("side") == "snd"))
print(data.join(points, on="point_id").group_by("phase", "group").agg(pl.col("rtt_us").mean()))"#;

const PANDAS: &str = r#"import pandas as pd
run = "RUN"
samples = pd.read_parquet(f"{run}/tables/flow_samples")
data = samples[(samples.role == "data") & (samples.side == "snd")]
print(data.groupby(["phase", "group"]).rtt_us.mean())"#;

const DUCKDB: &str = r#"SELECT phase, "group", avg(rtt_us)
FROM 'RUN/tables/flow_samples/**/*.parquet'
WHERE role = 'data' AND side = 'snd' GROUP BY ALL;"#;

const R: &str = r#"library(arrow)
library(dplyr)
open_dataset("RUN/tables/flow_samples") |>
  filter(role == "data", side == "snd") |>
  group_by(phase, group) |>
  summarise(rtt_us = mean(rtt_us)) |>
  collect()"#;

/// For a run in this directory.
pub(super) fn of(directory: &str) -> Vec<Snippet> {
    let all =
        [("Python, polars", POLARS), ("Python, pandas", PANDAS), ("DuckDB", DUCKDB), ("R", R)];
    all.map(|(name, code)| Snippet { name, code: code.replace("RUN", directory) }).into()
}
