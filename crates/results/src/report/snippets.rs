//! Code snippets in the report that load a run's data. A test executes them on a real run.
//!
//! Each snippet computes the summary's sRTT: the mean over trials of the mean over a trial's samples, for the trials and groups in the
//! summary. (A socket may be sampled briefly after its group has ended, and before it has measured an RTT.)

use serde::Serialize;

use crate::summary::Summary;

/// Code for one language and library.
#[derive(Debug, Serialize)]
pub(super) struct Snippet {
    /// Language and library.
    name: &'static str,
    code: String,
}

const POLARS: &str = r#"import polars as pl
run = "@run"
points = pl.read_parquet(f"{run}/points.parquet")
summary = pl.read_parquet(f"{run}/summary_phase.parquet").filter(metric="srtt", stat="mean", scope="group")
counted = summary.select("point_id", "trial", "phase", group="subject")
samples = pl.read_parquet(f"{run}/tables/flow_samples").filter(pl.col("rtt_us") > 0, role="data", side="snd")
per_trial = samples.join(counted, on=counted.columns).group_by(counted.columns).agg(pl.col("rtt_us").mean())
srtt_us = per_trial.join(points, on="point_id").group_by(@by).agg(pl.col("rtt_us").mean()).sort(@by)
print(srtt_us)"#;

const PANDAS: &str = r#"import pandas as pd
run = "@run"
points = pd.read_parquet(f"{run}/points.parquet")
summary = pd.read_parquet(f"{run}/summary_phase.parquet").rename(columns={"subject": "group"})
counted = summary[(summary.metric == "srtt") & (summary.stat == "mean") & (summary.scope == "group")]
counted = counted[["point_id", "trial", "phase", "group"]]
samples = pd.read_parquet(f"{run}/tables/flow_samples")
data = samples[(samples.role == "data") & (samples.side == "snd") & (samples.rtt_us > 0)].merge(counted)
per_trial = data.groupby(list(counted), as_index=False).rtt_us.mean()
srtt_us = per_trial.merge(points, on="point_id").groupby([@by], dropna=False).rtt_us.mean()
print(srtt_us)"#;

const DUCKDB: &str = r#"WITH counted AS (
  SELECT point_id, trial, phase, subject AS "group" FROM '@run/summary_phase.parquet'
  WHERE metric = 'srtt' AND stat = 'mean' AND scope = 'group'),
per_trial AS (
  SELECT point_id, trial, phase, "group", avg(rtt_us) AS rtt_us
  FROM '@run/tables/flow_samples/**/*.parquet' JOIN counted USING (point_id, trial, phase, "group")
  WHERE role = 'data' AND side = 'snd' AND rtt_us > 0
  GROUP BY ALL)
SELECT @by, avg(rtt_us) AS srtt_us
FROM per_trial JOIN '@run/points.parquet' USING (point_id) GROUP BY ALL ORDER BY ALL;"#;

const R: &str = r#"library(arrow)
library(dplyr)
points <- read_parquet("@run/points.parquet")
counted <- read_parquet("@run/summary_phase.parquet") |>
  filter(metric == "srtt", stat == "mean", scope == "group") |>
  select(point_id, trial, phase, group = subject)
open_dataset("@run/tables/flow_samples") |>
  filter(role == "data", side == "snd", rtt_us > 0) |>
  group_by(point_id, trial, phase, group) |>
  summarise(rtt_us = mean(rtt_us, na.rm = TRUE)) |>
  collect() |>
  inner_join(counted, by = c("point_id", "trial", "phase", "group")) |>
  inner_join(points, by = "point_id") |>
  group_by(@by) |>
  summarise(srtt_us = mean(rtt_us), .groups = "drop")"#;

/// Returns the snippets for a run in this directory.
pub(super) fn of(directory: &str, summary: &Summary) -> Vec<Snippet> {
    let by = [&summary.factors[..], &["phase".to_owned(), "group".to_owned()]].concat();
    let quoted = |mark: char, names: &[String]| {
        names.iter().map(|name| format!("{mark}{name}{mark}")).collect::<Vec<_>>().join(", ")
    };
    let all = [
        ("Python, polars", POLARS, '"'),
        ("Python, pandas", PANDAS, '"'),
        ("DuckDB", DUCKDB, '"'),
        ("R", R, '`'),
    ];
    all.map(|(name, code, mark)| Snippet {
        name,
        code: code.replace("@run", directory).replace("@by", &quoted(mark, &by)),
    })
    .into()
}
