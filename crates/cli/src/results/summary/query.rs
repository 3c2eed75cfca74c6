//! Lazy Polars queries over the files of committed trials: rows become one line per trial, phase and flow (or group,
//! probe, link).

use std::collections::BTreeSet;
use std::path::PathBuf;

use ccbench_proto::metric::SAMPLED;
use polars::io::HiveOptions;
use polars::prelude::*;

use super::rows::{Texts, each_piece};
use crate::results::journal::TrialEnd;
use crate::results::store::RunDir;
use crate::results::{Result, frame_error};

/// Trials whose files one query reads, and samples in them; bounds the memory of a summary whatever the size of the run.
pub(super) const BATCH: usize = 64;
const BATCH_ROWS: u64 = 4_000_000;

/// Trials that are read together, in order.
pub(in crate::results) fn batches<'t, 'a>(trials: &'t [&'a TrialEnd]) -> Vec<&'t [&'a TrialEnd]> {
    let (mut batches, mut from, mut rows) = (Vec::new(), 0, 0);
    for (at, end) in trials.iter().enumerate() {
        let more: u64 = end.rows.values().sum();
        if at > from && (rows + more > BATCH_ROWS || at - from == BATCH) {
            batches.push(&trials[from..at]);
            (from, rows) = (at, 0);
        }
        rows += more;
    }
    batches.extend((from < trials.len()).then(|| &trials[from..]));
    batches
}

/// A collected query.
pub(in crate::results) struct Lines(DataFrame);

impl Lines {
    pub(in crate::results) fn len(&self) -> usize {
        self.0.height()
    }

    /// Text of a line; empty if null.
    pub(in crate::results) fn text(&self, name: &str, line: usize) -> String {
        let column = self.0.column(name).and_then(|c| c.str());
        column.ok().and_then(|c| c.get(line)).unwrap_or_default().to_owned()
    }

    /// A number of a line; `None` if null or not finite.
    pub(in crate::results) fn number(&self, name: &str, line: usize) -> Option<f64> {
        let column = self.0.column(name).and_then(|c| c.f64());
        column.ok().and_then(|c| c.get(line)).filter(|v| v.is_finite())
    }

    /// A count of a line; 0 if null.
    pub(in crate::results) fn count(&self, name: &str, line: usize) -> u32 {
        self.number(name, line).unwrap_or(0.0) as u32
    }

    /// The trial of a line.
    pub(in crate::results) fn trial(&self, line: usize) -> (u32, u16) {
        (self.count("point_id", line), self.count("trial", line) as u16)
    }

    /// All statistics of `stem` of a line.
    pub(super) fn stats(&self, stem: &str, line: usize) -> Vec<(&'static str, f64)> {
        let value =
            |stat: &'static str| Some((stat, self.number(&format!("{stem}.{stat}"), line)?));
        SAMPLED.into_iter().filter_map(value).collect()
    }
}

/// Groups the rows of one table by trial, phase and `keys`.
pub(super) fn group(
    run: &RunDir,
    table: &str,
    trials: &[&TrialEnd],
    filter: Expr,
    keys: &[&str],
    aggregates: Vec<Expr>,
) -> Result<Option<Lines>> {
    let Some(scan) = scan(run, table, trials)? else { return Ok(None) };
    let rows = scan.filter(col("phase").is_not_null().and(filter));
    lines(run, table, rows, keys, aggregates).map(Some)
}

/// Names of a table's columns; runs of an older version have fewer.
pub(super) fn columns(run: &RunDir, table: &str, trials: &[&TrialEnd]) -> Result<Vec<String>> {
    let Some(mut scan) = scan(run, table, trials)? else { return Ok(vec![]) };
    let schema = scan.collect_schema().map_err(frame_error("read", &dir(run, table)))?;
    Ok(schema.iter_names().map(ToString::to_string).collect())
}

/// Subject and `data_json` of every event of a kind, each pair once.
pub(super) fn events(
    run: &RunDir,
    trials: &[TrialEnd],
    kind: &str,
) -> Result<BTreeSet<(String, String)>> {
    let mut found = BTreeSet::new();
    for end in trials {
        each_piece(run, "events", end, &["kind", "subject", "data_json"], |piece| {
            let [kinds, subjects, data] =
                ["kind", "subject", "data_json"].map(|name| piece.texts(name));
            for row in (0..piece.len()).filter(|row| kinds.get(*row) == Some(kind)) {
                let text = |texts: &Texts<'_>| texts.get(row).unwrap_or_default().to_owned();
                found.insert((text(&subjects), text(&data)));
            }
        })?;
    }
    Ok(found)
}

/// How punctual a link was in one trial.
pub(super) struct TimingRow {
    pub(super) link: String,
    pub(super) what: String,
    pub(super) count: u64,
    /// Lateness in microseconds: median, p90, p99, most.
    pub(super) us: [f64; 4],
}

/// How punctual the links of a trial were, in the order of their names.
pub(super) fn timing(run: &RunDir, end: &TrialEnd) -> Result<Vec<TimingRow>> {
    const US: [&str; 4] = ["p50_us", "p90_us", "p99_us", "max_us"];
    let mut found = Vec::new();
    let columns = [&["link", "what", "count"][..], &US].concat();
    each_piece(run, "link_timing", end, &columns, |piece| {
        let [link, what] = ["link", "what"].map(|name| piece.texts(name));
        let (count, us) = (piece.numbers("count"), US.map(|name| piece.numbers(name)));
        found.extend((0..piece.len()).map(|row| TimingRow {
            link: link.get(row).unwrap_or_default().to_owned(),
            what: what.get(row).unwrap_or_default().to_owned(),
            count: count.get(row).unwrap_or(0.0) as u64,
            us: us.each_ref().map(|us| us.get(row).unwrap_or(0.0)),
        }));
    })?;
    found.sort_by(|a, b| (&a.link, &a.what).cmp(&(&b.link, &b.what)));
    Ok(found)
}

const LINK_TABLE: &str = "qdisc_samples";

/// What each link as a whole sent, dropped and held, grouped by trial, phase and link.
pub(super) fn links(
    run: &RunDir,
    trials: &[&TrialEnd],
    aggregates: Vec<Expr>,
) -> Result<Option<Lines>> {
    let Some(rows) = link_instants(run, trials)? else { return Ok(None) };
    let rows = rows.filter(col("phase").is_not_null());
    lines(run, LINK_TABLE, rows, &["link"], aggregates).map(Some)
}

/// What each link as a whole had sent, dropped, marked and held at every instant: `sent_bytes`, `drops_pkts`, `marks_pkts`
/// (null where no queue counts marks), `backlog_bytes`, `rate_bps` and how long that backlog takes at that rate,
/// `queue_delay_us`, beside `point_id`, `trial`, `phase`, `link`, `t_ns` and `t_s`. Of the qdiscs and classes of a link,
/// the root qdisc has sent everything; its drops and backlog need not hold those of the queues below it, and above a netem
/// they hold packets that wait for their delay, not for the link.
pub(in crate::results) fn link_instants(
    run: &RunDir,
    trials: &[&TrialEnd],
) -> Result<Option<LazyFrame>> {
    let Some(scan) = scan(run, LINK_TABLE, trials)? else { return Ok(None) };
    let is = |kind: &str| col("kind").eq(lit(kind));
    let class = || is("htb class");
    let root = || class().not().and(col("parent").eq(lit("root")));
    let queue = || class().or(root()).or(is("netem")).not();
    let of = |name: &str, which: Expr| col(name).cast(DataType::Float64).filter(which);
    let whole = |name: &str| {
        let below = larger(of(name, queue()).sum(), of(name, is("netem")).sum());
        larger(of(name, root()).max().fill_null(lit(0.0)), below)
    };
    let all_sent = col("sent_bytes").cast(DataType::Float64).max();
    let waiting = when(is("netem").any(true))
        .then(of("backlog_bytes", queue()).sum())
        .otherwise(whole("backlog_bytes"));
    // By the control law and by the threshold; a step's are among the law's.
    let marked = || ["ecn_mark_pkts", "ce_mark_pkts"].map(|name| col(name).cast(DataType::Float64));
    let counted = marked().map(|marks| marks.is_not_null().any(true));
    let [law, threshold] = marked().map(Expr::sum);
    let [by_law, by_threshold] = counted;
    let marks = when(by_law.or(by_threshold)).then(law + threshold).otherwise(lit(NULL));
    let instant: Vec<Expr> =
        ["point_id", "trial", "phase", "link", "t_ns"].into_iter().map(col).collect();
    let rows = scan.group_by(&instant).agg([
        col("t_s").first(),
        of("sent_bytes", root()).max().fill_null(all_sent).alias("sent_bytes"),
        whole("drops_pkts").alias("drops_pkts"),
        marks.alias("marks_pkts"),
        waiting.alias("backlog_bytes"),
        // Of a class that is a slice it is the slice's.
        col("rate_bps").cast(DataType::Float64).max().alias("rate_bps"),
    ]);
    let delay = col("backlog_bytes") * lit(8e6) / col("rate_bps");
    let delay = when(col("rate_bps").gt(lit(0.0))).then(delay).otherwise(lit(NULL));
    Ok(Some(rows.with_column(delay.cast(DataType::Float64).alias("queue_delay_us"))))
}

fn larger(one: Expr, other: Expr) -> Expr {
    when(one.clone().gt(other.clone())).then(one).otherwise(other)
}

fn dir(run: &RunDir, table: &str) -> PathBuf {
    run.path().join("tables").join(table)
}

/// The files of one table of these trials; `None` if no trial has one.
pub(in crate::results) fn scan(
    run: &RunDir,
    table: &str,
    trials: &[&TrialEnd],
) -> Result<Option<LazyFrame>> {
    let having = trials.iter().filter(|end| end.rows.contains_key(table));
    let paths: Vec<_> = having.flat_map(|end| run.files(end, table)).collect();
    if paths.is_empty() {
        return Ok(None);
    }
    let dir = dir(run, table);
    let failed = || frame_error("read", &dir);
    let paths =
        paths.into_iter().map(PlRefPath::try_from_pathbuf).collect::<PolarsResult<Vec<_>>>();
    let options = ScanArgsParquet {
        hive_options: HiveOptions { enabled: Some(false), ..HiveOptions::default() },
        glob: false,
        allow_missing_columns: true,
        ..ScanArgsParquet::default()
    };
    LazyFrame::scan_parquet_files(paths.map_err(failed())?.into(), options)
        .map(Some)
        .map_err(failed())
}

/// Reads what a query over one table gives.
pub(in crate::results) fn collect(run: &RunDir, table: &str, rows: LazyFrame) -> Result<Lines> {
    rows.collect().map(Lines).map_err(frame_error("read", &dir(run, table)))
}

/// Groups rows by trial, phase and `keys`.
fn lines(
    run: &RunDir,
    table: &str,
    rows: LazyFrame,
    keys: &[&str],
    aggregates: Vec<Expr>,
) -> Result<Lines> {
    let keys: Vec<Expr> =
        ["point_id", "trial", "phase"].iter().chain(keys).map(|name| col(*name)).collect();
    let numbers = [number("point_id"), number("trial")];
    let rows = rows
        .group_by(&keys)
        .agg(aggregates)
        .sort_by_exprs(&keys, SortMultipleOptions::default())
        .with_columns(numbers);
    collect(run, table, rows)
}

/// The data sockets at the sending side.
pub(in crate::results) fn sender() -> Expr {
    col("role").eq(lit("data")).and(col("side").eq(lit("snd")))
}

/// A column as floats.
pub(in crate::results) fn number(name: &str) -> Expr {
    col(name).cast(DataType::Float64)
}

/// Packets of a socket on their way: RFC 6675's pipe, as tcp_packets_in_flight has it.
pub(in crate::results) fn in_flight() -> Expr {
    number("unacked_pkts") - number("sacked_pkts") - number("lost_pkts") + number("retrans_pkts")
}

/// What receivers reported, without iperf3's last interval where it is a splinter of a few milliseconds: its rate says
/// nothing.
pub(in crate::results) fn whole_intervals() -> Expr {
    let received = col("side").eq(lit("rcv")).and(col("omitted").not());
    received.and(col("seconds").gt_eq(col("seconds").median() * lit(0.5)))
}

/// A sum as a float, named as its column.
pub(super) fn sum(name: &str) -> Expr {
    col(name).cast(DataType::Float64).sum().alias(name)
}

/// The largest value as a float, named `<column>.last`: of a counter, that of the last sample.
pub(super) fn last(name: &str) -> Expr {
    col(name).cast(DataType::Float64).max().alias(format!("{name}.last"))
}

/// The smallest value as a float, named `<column>.first`.
pub(super) fn first(name: &str) -> Expr {
    col(name).cast(DataType::Float64).min().alias(format!("{name}.first"))
}

/// The mean as a float, named `<column>.mean`.
pub(super) fn mean(name: &str) -> Expr {
    col(name).cast(DataType::Float64).mean().alias(format!("{name}.mean"))
}

/// How many values are not null, named `<column>.n`.
pub(super) fn count(name: &str) -> Expr {
    col(name).count().cast(DataType::Float64).alias(format!("{name}.n"))
}

/// All statistics of a column, named `<column>.<statistic>`, and its count.
pub(super) fn stats(name: &str) -> Vec<Expr> {
    let values = || col(name).cast(DataType::Float64);
    let quantile = |q: f64| values().quantile(lit(q), QuantileMethod::Linear);
    let mut all: Vec<Expr> = SAMPLED
        .into_iter()
        .map(|stat| {
            let expr = match stat {
                "mean" => values().mean(),
                "median" => values().median(),
                "p5" => quantile(0.05),
                "p95" => quantile(0.95),
                "p99" => quantile(0.99),
                "std" => values().std(1),
                "min" => values().min(),
                _ => values().max(),
            };
            expr.alias(format!("{name}.{stat}"))
        })
        .collect();
    all.push(count(name));
    all
}
