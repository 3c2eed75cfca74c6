//! Code that loads a run's data, as the report prints it; a test runs it on a real run.
//!
//! Each prints the srtt of the summary: the mean over trials of the mean over a trial's samples, of the groups that run
//! in a measured phase (a socket may be seen for a moment after its group's end).

use serde::Serialize;

use super::{Scope, Summary};

/// For one language and library.
#[derive(Debug, Serialize)]
pub(super) struct Snippet {
    /// What it is for.
    name: &'static str,
    code: String,
}

const POLARS: &str = r#"import polars as pl
run = "@run"
trials = pl.read_parquet(f"{run}/trials.parquet").filter(pl.col("status").is_in(["ok", "degraded"]))
points = pl.read_parquet(f"{run}/points.parquet")
runs = pl.DataFrame({"phase": [@phases], "group": [@groups]})
samples = pl.read_parquet(f"{run}/tables/flow_samples").filter(role="data", side="snd")
data = samples.join(trials, on=["point_id", "trial"]).join(runs, on=["phase", "group"])
per_trial = data.group_by("point_id", "trial", "phase", "group").agg(pl.col("rtt_us").mean())
srtt_us = per_trial.join(points, on="point_id").group_by(@by).agg(pl.col("rtt_us").mean()).sort(@by)
print(srtt_us)"#;

const PANDAS: &str = r#"import pandas as pd
run = "@run"
trials = pd.read_parquet(f"{run}/trials.parquet")
trials = trials[trials.status.isin(["ok", "degraded"])]
points = pd.read_parquet(f"{run}/points.parquet")
runs = pd.DataFrame({"phase": [@phases], "group": [@groups]})
samples = pd.read_parquet(f"{run}/tables/flow_samples")
data = samples[(samples.role == "data") & (samples.side == "snd")]
data = data.merge(trials, on=["point_id", "trial"]).merge(runs, on=["phase", "group"])
per_trial = data.groupby(["point_id", "trial", "phase", "group"], as_index=False).rtt_us.mean()
srtt_us = per_trial.merge(points, on="point_id").groupby([@by], dropna=False).rtt_us.mean()
print(srtt_us)"#;

const DUCKDB: &str = r#"WITH per_trial AS (
  SELECT point_id, trial, phase, "group", avg(rtt_us) AS rtt_us
  FROM '@run/tables/flow_samples/**/*.parquet' JOIN '@run/trials.parquet' USING (point_id, trial)
  WHERE role = 'data' AND side = 'snd' AND status IN ('ok', 'degraded')
    AND (phase, "group") IN (@pairs)
  GROUP BY ALL)
SELECT @by, avg(rtt_us) AS srtt_us
FROM per_trial JOIN '@run/points.parquet' USING (point_id) GROUP BY ALL ORDER BY ALL;"#;

const R: &str = r#"library(arrow)
library(dplyr)
trials <- read_parquet("@run/trials.parquet") |> filter(status %in% c("ok", "degraded"))
points <- read_parquet("@run/points.parquet")
runs <- data.frame(phase = c(@phases), group = c(@groups))
open_dataset("@run/tables/flow_samples") |>
  filter(role == "data", side == "snd") |>
  group_by(point_id, trial, phase, group) |>
  summarise(rtt_us = mean(rtt_us, na.rm = TRUE)) |>
  collect() |>
  inner_join(select(trials, point_id, trial), by = c("point_id", "trial")) |>
  inner_join(points, by = "point_id") |>
  inner_join(runs, by = c("phase", "group")) |>
  group_by(@by) |>
  summarise(srtt_us = mean(rtt_us), .groups = "drop")"#;

/// For a run in this directory.
pub(super) fn of(directory: &str, summary: &Summary) -> Vec<Snippet> {
    let (mut phases, mut groups) = (vec![], vec![]);
    for row in &summary.point_rows {
        let known = || phases.iter().zip(&groups).any(|pair| pair == (&row.phase, &row.subject));
        if row.scope == Scope::Group && (row.metric, row.stat) == ("srtt", "mean") && !known() {
            phases.push(row.phase.clone());
            groups.push(row.subject.clone());
        }
    }
    let pairs: Vec<String> = phases
        .iter()
        .zip(&groups)
        .map(|(phase, group)| format!("('{phase}', '{group}')"))
        .collect();
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
        code: code
            .replace("@run", directory)
            .replace("@by", &quoted(mark, &by))
            .replace("@pairs", &pairs.join(", "))
            .replace("@phases", &quoted('"', &phases))
            .replace("@groups", &quoted('"', &groups)),
    })
    .into()
}
