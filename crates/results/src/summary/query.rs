//! Lazy Polars queries over the files of committed trials. They aggregate rows to one line per trial, phase and flow (or group, probe,
//! link).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;

use ccbench_proto::column_text::ColumnText as _;
use ccbench_proto::wire::TimingKind;
use polars::prelude::*;

use super::rows::{Texts, each_slice};
use super::scan::{TableFile, lazy_rows};
use crate::curve::{CapacityCurve, line_bytes};
use crate::error::{Result, polars_error};
use crate::journal::TrialEnd;
use crate::layout::{TableRows, table_rows};
use crate::parallel::in_parallel;
use crate::store::RunDir;

/// Maximum number of trials, and of samples in them, that one query reads. This bounds the memory of a summary.
pub(super) const BATCH: usize = 64;
const BATCH_ROWS: u64 = 4_000_000;

/// Splits the trials into batches, in order. One query reads a batch.
pub(crate) fn batches<'t, 'a>(trials: &'t [&'a TrialEnd]) -> Vec<&'t [&'a TrialEnd]> {
    let (mut batches, mut from, mut rows) = (Vec::new(), 0, 0_u64);
    for (at, end) in trials.iter().enumerate() {
        let more = end.rows.values().fold(0, |sum: u64, rows| sum.saturating_add(*rows));
        if at > from && (rows.saturating_add(more) > BATCH_ROWS || at - from == BATCH) {
            batches.push(&trials[from..at]);
            (from, rows) = (at, 0);
        }
        rows = rows.saturating_add(more);
    }
    batches.extend((from < trials.len()).then(|| &trials[from..]));
    batches
}

/// The result of a query.
pub(crate) struct Lines(DataFrame);

impl Lines {
    #[cfg(test)]
    pub(crate) fn new(frame: DataFrame) -> Self {
        Self(frame)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.height()
    }

    /// Returns the text in a line; empty if null.
    pub(crate) fn text(&self, name: &str, line: usize) -> String {
        let column = self.0.column(name).and_then(|c| c.str());
        column.ok().and_then(|c| c.get(line)).unwrap_or_default().to_owned()
    }

    /// Returns the lines of each text in this column. The lines are sorted by this column.
    pub(crate) fn ranges(&self, name: &str) -> BTreeMap<String, Range<usize>> {
        let mut ranges: BTreeMap<String, Range<usize>> = BTreeMap::new();
        for line in 0..self.len() {
            ranges.entry(self.text(name, line)).or_insert(line..line).end = line + 1;
        }
        ranges
    }

    /// Returns the number in a line; `None` if null or not finite.
    pub(crate) fn number(&self, name: &str, line: usize) -> Option<f64> {
        let column = self.0.column(name).and_then(|c| c.f64());
        column.ok().and_then(|c| c.get(line)).filter(|v| v.is_finite())
    }

    /// Returns the count in a line; 0 if null.
    pub(crate) fn count(&self, name: &str, line: usize) -> u32 {
        self.number(name, line).unwrap_or(0.0) as u32
    }

    /// Returns the trial of a line.
    pub(crate) fn trial(&self, line: usize) -> (u32, u16) {
        (self.count("point_id", line), self.count("trial", line) as u16)
    }

    /// Returns the values of [`samples`] in a line that are neither null nor infinite, ascending.
    pub(super) fn samples(&self, name: &str, line: usize) -> Vec<f64> {
        let lists = self.0.column(&format!("{name}.samples")).and_then(|c| c.list());
        let values = lists.ok().and_then(|lists| lists.get_as_series(line));
        let values = values.as_ref().and_then(|values| values.f64().ok());
        let values = values.into_iter().flat_map(Float64Chunked::iter).flatten();
        let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        values.sort_unstable_by(f64::total_cmp);
        values
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

/// Returns the names of a table's columns. Runs of an older version have fewer.
pub(super) fn columns(run: &RunDir, table: &str, trials: &[&TrialEnd]) -> Result<Vec<String>> {
    let Some(mut scan) = scan(run, table, trials)? else { return Ok(vec![]) };
    let schema = scan.collect_schema().map_err(polars_error("read", &dir(run, table)))?;
    Ok(schema.iter_names().map(ToString::to_string).collect())
}

/// Returns the distinct pairs of subject and `data_json` of all events of a kind.
pub(super) fn events(
    run: &RunDir,
    trials: &[TrialEnd],
    kind: &str,
) -> Result<BTreeSet<(String, String)>> {
    let mut found = BTreeSet::new();
    for of_trial in in_parallel(trials, |end| events_of(run, end, kind)) {
        found.extend(of_trial?);
    }
    Ok(found)
}

/// As [`events`], for one trial.
fn events_of(run: &RunDir, end: &TrialEnd, kind: &str) -> Result<BTreeSet<(String, String)>> {
    let mut found = BTreeSet::new();
    each_slice(run, "events", end, &["kind", "subject", "data_json"], |slice| {
        let [kinds, subjects, data] =
            ["kind", "subject", "data_json"].map(|name| slice.texts(name));
        for row in (0..slice.len()).filter(|row| kinds.get(*row) == Some(kind)) {
            let text = |texts: &Texts<'_>| texts.get(row).unwrap_or_default().to_owned();
            found.insert((text(&subjects), text(&data)));
        }
    })?;
    Ok(found)
}

/// Returns the distinct values of a text column in these tables, without iperf3's control connections.
pub(crate) fn values(
    run: &RunDir,
    trials: &[TrialEnd],
    tables: &[&str],
    column: &str,
) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for (end, table) in trials.iter().flat_map(|end| tables.iter().map(move |table| (end, table))) {
        each_slice(run, table, end, &[column, "role"], |slice| {
            let [values, roles] = [column, "role"].map(|name| slice.texts(name));
            for row in (0..slice.len()).filter(|row| roles.get(*row) != Some("control")) {
                if let Some(value) = values.get(row).filter(|value| !found.contains(*value)) {
                    found.insert(value.to_owned());
                }
            }
        })?;
    }
    Ok(found)
}

/// Scheduling error of a link in one trial.
pub(super) struct TimingRow {
    pub(super) link: String,
    /// What the error is of; `None` for a kind of a later version.
    pub(super) kind: Option<TimingKind>,
    pub(super) count: u64,
    /// Number of steps that were skipped, or of packets without space in the log.
    pub(super) missed: u64,
    /// Median, p90, p99 and maximum in microseconds.
    pub(super) us: [f64; 4],
}

/// Returns the scheduling errors of a trial's links, sorted by link name.
pub(super) fn timing(run: &RunDir, end: &TrialEnd) -> Result<Vec<TimingRow>> {
    const US: [&str; 4] = ["p50_us", "p90_us", "p99_us", "max_us"];
    let mut found = Vec::new();
    let columns = [&["link", "kind", "count", "missed"][..], &US].concat();
    each_slice(run, "link_timing", end, &columns, |slice| {
        let [link, kind] = ["link", "kind"].map(|name| slice.texts(name));
        let [count, missed] = ["count", "missed"].map(|name| slice.numbers(name));
        let us = US.map(|name| slice.numbers(name));
        found.extend((0..slice.len()).map(|row| TimingRow {
            link: link.get(row).unwrap_or_default().to_owned(),
            kind: kind.get(row).and_then(TimingKind::from_text),
            count: count.get(row).unwrap_or(0.0) as u64,
            missed: missed.get(row).unwrap_or(0.0) as u64,
            us: us.each_ref().map(|us| us.get(row).unwrap_or(0.0)),
        }));
    })?;
    let key = |row: &TimingRow| (row.link.clone(), row.kind.map(TimingKind::as_text));
    found.sort_by_cached_key(key);
    Ok(found)
}

const LINK_TABLE: &str = "qdisc_samples";

/// Bytes per packet that count against a link's rate but not in its counters, by point and link; `None` if no link has any.
pub(crate) type ExtraBytes<'a> = Option<&'a dyn Fn(u32, &str) -> f64>;

/// Returns counters and backlog of each link as a whole, grouped by trial, phase and link. Lines without a phase are from the time after
/// the last phase.
pub(super) fn links(
    run: &RunDir,
    trials: &[&TrialEnd],
    extra_bytes: ExtraBytes<'_>,
    aggregates: Vec<Expr>,
) -> Result<Option<Lines>> {
    let Some(rows) = link_instants(run, trials, extra_bytes)? else { return Ok(None) };
    let rows = rows.filter(col("phase").is_not_null().or(col("t_s").gt_eq(lit(0.0))));
    lines(run, LINK_TABLE, rows, &["link"], aggregates).map(Some)
}

/// Returns counters and backlog of each link as a whole at every sample time. Columns: `point_id`, `trial`, `phase`, `link`, `t_ns`, `t_s`,
/// `sent_bytes`, `sent_pkts`, `drops_pkts`, `marks_pkts` (null if no queue counts marks), `backlog_bytes`, `qlen_pkts`, `rate_bps`,
/// `queue_delay_us` (time to send the backlog), `line_bytes` (bytes sent that count against the rate) and `offered_bytes` (bytes that the
/// trace offered since the start of the trial; null without a trace).
///
/// All bytes of a link pass the root qdisc. Its drops and backlog do not always include those of the queues below it. The backlog above a
/// netem contains packets that wait for their delay, not for the link.
pub(crate) fn link_instants(
    run: &RunDir,
    trials: &[&TrialEnd],
    extra_bytes: ExtraBytes<'_>,
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
    let sent = |name: &str| {
        let all = col(name).cast(DataType::Float64).max();
        of(name, root()).max().fill_null(all).alias(name)
    };
    let waiting = |name: &str| {
        let waiting = when(is("netem").any(true)).then(of(name, queue()).sum());
        waiting.otherwise(whole(name)).alias(name)
    };
    // Marks of the control law and of the CE threshold. Those of a step AQM count as marks of the control law.
    let marked = || ["ecn_mark_pkts", "ce_mark_pkts"].map(|name| col(name).cast(DataType::Float64));
    let counted = marked().map(|marks| marks.is_not_null().any(true));
    let [law, threshold] = marked().map(Expr::sum);
    let [by_law, by_threshold] = counted;
    let marks = when(by_law.or(by_threshold)).then(law + threshold).otherwise(lit(NULL));
    let instant: Vec<Expr> =
        ["point_id", "trial", "phase", "link", "t_ns"].into_iter().map(col).collect();
    let rows = scan.group_by(&instant).agg([
        col("t_s").first(),
        sent("sent_bytes"),
        sent("sent_pkts"),
        whole("drops_pkts").alias("drops_pkts"),
        marks.alias("marks_pkts"),
        waiting("backlog_bytes"),
        waiting("qlen_pkts"),
        // For a slice's class, the rate is that of the slice.
        col("rate_bps").cast(DataType::Float64).max().alias("rate_bps"),
    ]);
    let delay = col("backlog_bytes") * lit(8e6) / col("rate_bps");
    let delay = when(col("rate_bps").gt(lit(0.0))).then(delay).otherwise(lit(NULL));
    let rows = rows.with_columns([
        delay.cast(DataType::Float64).alias("queue_delay_us"),
        col("sent_bytes").alias("line_bytes"),
        lit(NULL).cast(DataType::Float64).alias("offered_bytes"),
    ]);
    if run.trace_capacities().is_empty() && extra_bytes.is_none() {
        return Ok(Some(rows));
    }
    let curve = |point_id, link: &str| run.trace_capacities().curve(point_id, link);
    let rows = rows.collect().and_then(|rows| with_line(rows, curve, extra_bytes));
    rows.map(|rows| Some(rows.lazy())).map_err(polars_error("read", &dir(run, LINK_TABLE)))
}

/// For traces of delivery opportunities, the rate is the mean over this time before and after a sample.
const RATE_WINDOW_NS: u64 = 50_000_000;

/// Replaces rate and queue delay of links with a trace by values from the trace, adds the offered bytes, and includes the bytes per packet
/// that count against the rate in what takes time to send.
fn with_line<'a>(
    mut rows: DataFrame,
    curve: impl Fn(u32, &str) -> Option<&'a CapacityCurve>,
    extra_bytes: ExtraBytes<'_>,
) -> PolarsResult<DataFrame> {
    let point = rows.column("point_id")?.cast(&DataType::UInt32)?;
    let (point, link) = (point.u32()?, rows.column("link")?.str()?);
    let numbers = |name: &str| rows.column(name)?.f64();
    let (at_s, rate, delay) = (numbers("t_s")?, numbers("rate_bps")?, numbers("queue_delay_us")?);
    let backlog = [numbers("backlog_bytes")?, numbers("qlen_pkts")?];
    let sent = [numbers("sent_bytes")?, numbers("sent_pkts")?];
    let mut made: [Vec<Option<f64>>; 4] = Default::default();
    for row in 0..rows.height() {
        let place = point.get(row).zip(link.get(row));
        let extra = extra_bytes.zip(place).map_or(0.0, |(of, (point, link))| of(point, link));
        let on_line = |[bytes, packets]: [&Float64Chunked; 2]| {
            Some(line_bytes(bytes.get(row)?, packets.get(row).unwrap_or(0.0), extra))
        };
        let waiting = on_line(backlog);
        let curve = place.and_then(|(point, link)| curve(point, link));
        let [rates, delays, offers] = match curve.zip(at_s.get(row)) {
            Some((curve, at_s)) => {
                let at_ns = (at_s.max(0.0) * 1e9).round() as u64;
                let from_ns = at_ns.saturating_sub(RATE_WINDOW_NS);
                let around = curve.bytes(from_ns, at_ns + RATE_WINDOW_NS) * 8e9
                    / (at_ns + RATE_WINDOW_NS - from_ns) as f64;
                let rate = if curve.is_discrete() { Some(around) } else { rate.get(row) };
                let drain_ns = waiting.and_then(|bytes| curve.drain_time_ns(at_ns, bytes));
                [rate, drain_ns.map(|ns| ns as f64 / 1e3), Some(curve.bytes(0, at_ns))]
            }
            None if extra == 0.0 => [rate.get(row), delay.get(row), None],
            None => {
                let rate = rate.get(row);
                let drained = waiting.zip(rate.filter(|rate| *rate > 0.0));
                [rate, drained.map(|(bytes, rate)| bytes * 8e6 / rate), None]
            }
        };
        made[0].push(rates);
        made[1].push(delays);
        made[2].push(offers);
        made[3].push(on_line(sent));
    }
    let names = ["rate_bps", "queue_delay_us", "offered_bytes", "line_bytes"];
    for (name, values) in names.into_iter().zip(made) {
        rows.with_column(Column::new(name.into(), values))?;
    }
    Ok(rows)
}

fn larger(one: Expr, other: Expr) -> Expr {
    when(one.clone().gt(other.clone())).then(one).otherwise(other)
}

fn dir(run: &RunDir, table: &str) -> PathBuf {
    run.path().join("tables").join(table)
}

/// Returns the rows of one table of these trials; `None` if no trial has one.
pub(crate) fn scan(run: &RunDir, table: &str, trials: &[&TrialEnd]) -> Result<Option<LazyFrame>> {
    let having = trials.iter().filter(|end| end.rows.contains_key(table));
    let parts: Vec<TableRows> = having.flat_map(|end| table_rows(run.path(), end, table)).collect();
    let files = joined(&parts).into_iter().map(|rows| TableFile::open(table, &rows, &run.metadata));
    let files = files.collect::<Result<Vec<_>>>()?;
    if files.is_empty() {
        return Ok(None);
    }
    lazy_rows(files).map(Some).map_err(polars_error("read", &dir(run, table)))
}

/// Merges consecutive parts of a file.
fn joined(parts: &[TableRows]) -> Vec<TableRows> {
    let mut found: Vec<TableRows> = Vec::new();
    for part in parts {
        if let (Some(last), Some((first, count))) = (found.last_mut(), part.range)
            && last.path == part.path
            && let Some((begin, rows)) = &mut last.range
            && begin.saturating_add(*rows) == first
        {
            *rows = rows.saturating_add(count);
            continue;
        }
        found.push(part.clone());
    }
    found
}

/// Runs a query over one table.
pub(crate) fn collect(run: &RunDir, table: &str, rows: LazyFrame) -> Result<Lines> {
    rows.collect().map(Lines).map_err(polars_error("read", &dir(run, table)))
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

/// Selects the data sockets of senders.
pub(crate) fn sender() -> Expr {
    col("role").eq(lit("data")).and(col("side").eq(lit("snd")))
}

/// Returns a column as floats.
pub(crate) fn number(name: &str) -> Expr {
    col(name).cast(DataType::Float64)
}

/// Returns the smoothed RTT of a socket in milliseconds; null before the first measurement, when the kernel has 0.
pub(crate) fn srtt_ms() -> Expr {
    let us = number("rtt_us");
    when(us.clone().gt(lit(0.0))).then(us / lit(1e3)).otherwise(lit(NULL))
}

/// Selects receiver intervals. Excludes iperf3's last interval if it is shorter than half the median of its flow: the rate of a few
/// milliseconds is meaningless. Imported flows may have intervals of different lengths.
pub(crate) fn whole_intervals() -> Expr {
    whole_intervals_of("rcv")
}

/// As [`whole_intervals`], for the end with this `side`.
pub(crate) fn whole_intervals_of(side: &'static str) -> Expr {
    let reported = col("side").eq(lit(side)).and(col("omitted").not());
    let median = col("seconds").median();
    // `over` only fails without a column.
    let of_flow = median.clone().over([col("flow_id"), col("side")]).unwrap_or(median);
    reported.and(col("seconds").gt_eq(of_flow * lit(0.5)))
}

/// Returns a sum of integers as a float, with the name of its column.
pub(super) fn sum(name: &str) -> Expr {
    col(name).cast(DataType::Float64).sum().alias(name)
}

/// Returns the maximum as a float, named `<column>.last`: counters are largest in the last sample.
pub(super) fn last(name: &str) -> Expr {
    col(name).cast(DataType::Float64).max().alias(format!("{name}.last"))
}

/// Returns the minimum as a float, named `<column>.first`.
pub(super) fn first(name: &str) -> Expr {
    col(name).cast(DataType::Float64).min().alias(format!("{name}.first"))
}

/// Returns all values of a group, for [`Lines::samples`]. Sums of floats depend on their order, which Polars' threads determine. So means
/// and deviations are computed from sorted values instead.
pub(super) fn samples(values: Expr, name: &str) -> Expr {
    values.cast(DataType::Float64).alias(format!("{name}.samples"))
}

/// Returns the number of values that are not null, named `<column>.n`.
pub(super) fn count(name: &str) -> Expr {
    col(name).count().cast(DataType::Float64).alias(format!("{name}.n"))
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::{OnEnd, TraceUse};
    use ccbench_proto::trace::{Opportunities, Trace};

    use super::*;

    #[test]
    fn delay_of_a_link_follows_its_trace_and_its_overhead() {
        let ms = 1_000_000;
        let used = TraceUse { on_end: OnEnd::Stop, ..TraceUse::new("a") };
        // From the first second on, an opportunity of 1514 bytes every 10 ms.
        let at_ns = (100..200).map(|nth| nth * 10 * ms).collect();
        let all = Opportunities { at_ns, bytes: 1500, length_ns: 2000 * ms };
        let curve = CapacityCurve::new(&Trace::Opportunities(all), &used, (None, 14.0)).unwrap();
        let of_a = |point, link: &str| (point == 3 && link == "a").then_some(&curve);
        let rows = df!(
            "point_id" => [3_u32, 3, 3, 4],
            "link" => ["a", "a", "b", "a"],
            "t_s" => [0.5, 1.495, 1.495, 1.495],
            "sent_bytes" => [1514.0, 3028.0, 4542.0, 6056.0],
            "sent_pkts" => [1.0, 2.0, 3.0, 4.0],
            "backlog_bytes" => [1514.0, 3028.0, 3028.0, 3028.0],
            "qlen_pkts" => [1.0, 2.0, 2.0, 2.0],
            "rate_bps" => [7e5, 7e5, 7e5, 7e5],
            "queue_delay_us" => [1.0, 1.0, 1.0, 1.0],
        );
        let rows = rows.unwrap();
        let made = with_line(rows.clone(), of_a, None).unwrap();
        let column = |name: &str| numbers(&made, name);
        let full = 10.0 * 1514.0 * 8.0 / 0.1;
        assert_eq!(column("rate_bps"), [Some(0.0), Some(full), Some(7e5), Some(7e5)]);
        let delays = [Some(5e5), Some(15e3), Some(1.0), Some(1.0)];
        assert_eq!(column("queue_delay_us"), delays);
        assert_eq!(column("offered_bytes"), [Some(0.0), Some(50.0 * 1514.0), None, None]);
        assert_eq!(column("line_bytes"), [1514.0, 3028.0, 4542.0, 6056.0].map(Some));
        // Two packets, each with an overhead of half a packet more, need three opportunities, or 1.5 times the time.
        let extra = |_: u32, link: &str| if link == "a" { 757.0 } else { 0.0 };
        let made = with_line(rows, of_a, Some(&extra)).unwrap();
        let delays = [Some(51e4), Some(25e3), Some(1.0), Some(4542.0 * 8e6 / 7e5)];
        assert_eq!(numbers(&made, "queue_delay_us"), delays);
        assert_eq!(numbers(&made, "line_bytes"), [2271.0, 4542.0, 4542.0, 9084.0].map(Some));
    }

    #[test]
    fn srtt_is_null_before_it_is_measured() {
        let rows = df!("rtt_us" => [Some(0_u32), None, Some(14_000)]).unwrap();
        let made = rows.lazy().select([srtt_ms().alias("ms")]).collect().unwrap();
        assert_eq!(numbers(&made, "ms"), [None, None, Some(14.0)]);
    }

    #[test]
    fn only_the_short_interval_of_each_flow_is_left_out() {
        // A flow with three intervals of 1 s, and one with two of 0.1 s and a remainder.
        let rows = df!(
            "flow_id" => ["slow", "slow", "slow", "fast", "fast", "fast", "slow"],
            "side" => ["rcv", "rcv", "rcv", "rcv", "rcv", "rcv", "snd"],
            "omitted" => [false; 7],
            "seconds" => [1.0, 1.0, 1.0, 0.1, 0.1, 0.004, 1.0],
        );
        let whole = rows.unwrap().lazy().filter(whole_intervals()).collect().unwrap();
        let seconds: Vec<f64> = numbers(&whole, "seconds").into_iter().flatten().collect();
        assert_eq!(seconds, [1.0, 1.0, 1.0, 0.1, 0.1]);
    }

    fn numbers(rows: &DataFrame, name: &str) -> Vec<Option<f64>> {
        rows.column(name).unwrap().f64().unwrap().iter().collect()
    }
}
