//! Column builders, which convert the fields of row messages to Polars values, including nulls and times.

use std::marker::PhantomData;

use ccbench_proto::column_text::ColumnText;
use ccbench_proto::schedule::PhaseSpan;
use polars::prelude::*;

/// Converts one node's clock to the time axis of the results.
#[derive(Debug, Clone)]
pub(crate) struct TimeAxis {
    /// CLOCK_MONOTONIC of this node at the start of the trial.
    pub(crate) t0_ns: u64,
    /// UTC minus CLOCK_MONOTONIC in nanoseconds, at `t0_ns`.
    pub(crate) realtime_offset_ns: i64,
    /// How much faster this node's clock runs than the controller's, in parts per billion.
    pub(crate) drift_ppb: i64,
    /// The phases of the trial.
    pub(crate) phases: Vec<PhaseSpan>,
}

impl TimeAxis {
    /// Returns nanoseconds since 1970, saturating.
    pub(crate) fn utc_ns(&self, at_ns: u64) -> i64 {
        let since_t0_ns = i128::from(at_ns) - i128::from(self.t0_ns);
        let drift_ppb = i128::from(self.drift_ppb);
        // The drift is relative to the controller's clock, but this time is from the node's.
        let drift_ns = since_t0_ns * drift_ppb / (1_000_000_000 + drift_ppb).max(1);
        let utc = i128::from(at_ns) + i128::from(self.realtime_offset_ns) - drift_ns;
        i64::try_from(utc).unwrap_or(if utc < 0 { i64::MIN } else { i64::MAX })
    }

    /// Returns seconds since the start of the trial; negative before it.
    pub(crate) fn seconds(&self, at_ns: u64) -> f64 {
        (i128::from(at_ns) - i128::from(self.t0_ns)) as f64 / 1e9
    }

    /// Returns the name of the phase at this time; `None` before the first phase and after the last.
    pub(crate) fn phase(&self, at_ns: u64) -> Option<&str> {
        let since = at_ns.checked_sub(self.t0_ns)?;
        self.phases
            .iter()
            .find(|p| p.start.nanos() <= since && since < p.end.nanos())
            .map(|p| p.name.as_str())
    }

    /// Returns the node's clock this many seconds after the start of the trial.
    pub(crate) fn at(&self, seconds: f64) -> u64 {
        // Rounded: 4.1 * 1e9 is less than 4 100 000 000.
        self.t0_ns.saturating_add_signed((seconds * 1e9).round() as i64)
    }
}

/// One column under construction.
pub(crate) trait Cells {
    /// The field's type in the row message.
    type In;
    /// Creates an empty column.
    fn new(name: &'static str) -> Self;
    /// Appends the value of one row.
    fn put(&mut self, value: Self::In, axis: &TimeAxis);
    /// Returns the column and starts an empty one.
    fn take(&mut self) -> Column;
}

/// Initial capacity of a builder in rows: most tables of most trials are small.
const INITIAL_ROWS: usize = 256;

/// Numbers, never null.
pub(crate) struct Num<T: PolarsNumericType>(&'static str, PrimitiveChunkedBuilder<T>);
/// Numbers; null if the kernel or the tool does not report one.
pub(crate) struct Opt<T: PolarsNumericType>(&'static str, PrimitiveChunkedBuilder<T>);
/// Numbers with 32 bits in protobuf and fewer in the table; null if a number is too large.
pub(crate) struct Narrow<T: PolarsNumericType>(&'static str, PrimitiveChunkedBuilder<T>);
/// A time of the node's clock in nanoseconds since 1970; null for 0, protobuf's default.
pub(crate) struct UtcNs(&'static str, PrimitiveChunkedBuilder<Int64Type>);
/// Booleans, never null.
pub(crate) struct Bool(&'static str, BooleanChunkedBuilder);
/// Booleans or null.
pub(crate) struct OptBool(&'static str, BooleanChunkedBuilder);
/// Text, never null; written with a dictionary.
pub(crate) struct Text(&'static str, StringChunkedBuilder);
/// The text of an enum; written with a dictionary.
pub(crate) struct Enum<T>(&'static str, StringChunkedBuilder, PhantomData<T>);
/// Text or null; written with a dictionary.
pub(crate) struct OptText(&'static str, StringChunkedBuilder);
/// Text; null if empty; written with a dictionary.
pub(crate) struct NonEmptyText(&'static str, StringChunkedBuilder);
/// Bytes; null if empty.
pub(crate) struct Blob(&'static str, BinaryChunkedBuilder);

impl Text {
    /// Appends the same text `rows` times.
    pub(crate) fn repeat(&mut self, text: &str, rows: usize) {
        (0..rows).for_each(|_| self.1.append_value(text));
    }
}

impl<T: ColumnText> Enum<T> {
    /// Appends the same value `rows` times.
    pub(crate) fn repeat(&mut self, field: i32, rows: usize) {
        (0..rows).for_each(|_| self.1.append_value(T::text_of(field)));
    }
}

impl OptText {
    /// Appends one row without allocating a `String`.
    pub(crate) fn put_str(&mut self, text: Option<&str>) {
        self.1.append_option(text);
    }
}

/// Finishes a builder and replaces it with an empty one.
macro_rules! take {
    ($self:ident, $builder:ty) => {{
        let fresh = <$builder>::new($self.0.into(), INITIAL_ROWS);
        std::mem::replace(&mut $self.1, fresh).finish().into_column()
    }};
}

impl<T: ColumnText> Cells for Enum<T> {
    type In = i32;
    fn new(name: &'static str) -> Self {
        Self(name, StringChunkedBuilder::new(name.into(), INITIAL_ROWS), PhantomData)
    }
    fn put(&mut self, field: i32, _: &TimeAxis) {
        self.1.append_value(T::text_of(field));
    }
    fn take(&mut self) -> Column {
        take!(self, StringChunkedBuilder)
    }
}

impl<T: PolarsNumericType> Cells for Num<T>
where
    ChunkedArray<T>: IntoColumn,
{
    type In = T::Native;
    fn new(name: &'static str) -> Self {
        Self(name, PrimitiveChunkedBuilder::new(name.into(), INITIAL_ROWS))
    }
    fn put(&mut self, value: T::Native, _: &TimeAxis) {
        self.1.append_value(value);
    }
    fn take(&mut self) -> Column {
        take!(self, PrimitiveChunkedBuilder<T>)
    }
}

impl<T: PolarsNumericType> Cells for Opt<T>
where
    ChunkedArray<T>: IntoColumn,
{
    type In = Option<T::Native>;
    fn new(name: &'static str) -> Self {
        Self(name, PrimitiveChunkedBuilder::new(name.into(), INITIAL_ROWS))
    }
    fn put(&mut self, value: Option<T::Native>, _: &TimeAxis) {
        self.1.append_option(value);
    }
    fn take(&mut self) -> Column {
        take!(self, PrimitiveChunkedBuilder<T>)
    }
}

impl<T: PolarsNumericType> Cells for Narrow<T>
where
    T::Native: TryFrom<u32>,
    ChunkedArray<T>: IntoColumn,
{
    type In = u32;
    fn new(name: &'static str) -> Self {
        Self(name, PrimitiveChunkedBuilder::new(name.into(), INITIAL_ROWS))
    }
    fn put(&mut self, value: u32, _: &TimeAxis) {
        self.1.append_option(T::Native::try_from(value).ok());
    }
    fn take(&mut self) -> Column {
        take!(self, PrimitiveChunkedBuilder<T>)
    }
}

impl Cells for UtcNs {
    type In = u64;
    fn new(name: &'static str) -> Self {
        Self(name, PrimitiveChunkedBuilder::new(name.into(), INITIAL_ROWS))
    }
    fn put(&mut self, value: u64, axis: &TimeAxis) {
        self.1.append_option((value > 0).then(|| axis.utc_ns(value)));
    }
    fn take(&mut self) -> Column {
        take!(self, PrimitiveChunkedBuilder<Int64Type>)
    }
}

impl Cells for Bool {
    type In = bool;
    fn new(name: &'static str) -> Self {
        Self(name, BooleanChunkedBuilder::new(name.into(), INITIAL_ROWS))
    }
    fn put(&mut self, value: bool, _: &TimeAxis) {
        self.1.append_value(value);
    }
    fn take(&mut self) -> Column {
        take!(self, BooleanChunkedBuilder)
    }
}

impl Cells for OptBool {
    type In = Option<bool>;
    fn new(name: &'static str) -> Self {
        Self(name, BooleanChunkedBuilder::new(name.into(), INITIAL_ROWS))
    }
    fn put(&mut self, value: Option<bool>, _: &TimeAxis) {
        self.1.append_option(value);
    }
    fn take(&mut self) -> Column {
        take!(self, BooleanChunkedBuilder)
    }
}

impl Cells for Text {
    type In = String;
    fn new(name: &'static str) -> Self {
        Self(name, StringChunkedBuilder::new(name.into(), INITIAL_ROWS))
    }
    fn put(&mut self, value: String, _: &TimeAxis) {
        self.1.append_value(value);
    }
    fn take(&mut self) -> Column {
        take!(self, StringChunkedBuilder)
    }
}

impl Cells for OptText {
    type In = Option<String>;
    fn new(name: &'static str) -> Self {
        Self(name, StringChunkedBuilder::new(name.into(), INITIAL_ROWS))
    }
    fn put(&mut self, value: Option<String>, _: &TimeAxis) {
        self.1.append_option(value);
    }
    fn take(&mut self) -> Column {
        take!(self, StringChunkedBuilder)
    }
}

impl Cells for NonEmptyText {
    type In = String;
    fn new(name: &'static str) -> Self {
        Self(name, StringChunkedBuilder::new(name.into(), INITIAL_ROWS))
    }
    fn put(&mut self, value: String, _: &TimeAxis) {
        self.1.append_option((!value.is_empty()).then_some(value));
    }
    fn take(&mut self) -> Column {
        take!(self, StringChunkedBuilder)
    }
}

impl Cells for Blob {
    type In = Vec<u8>;
    fn new(name: &'static str) -> Self {
        Self(name, BinaryChunkedBuilder::new(name.into(), INITIAL_ROWS))
    }
    fn put(&mut self, value: Vec<u8>, _: &TimeAxis) {
        self.1.append_option((!value.is_empty()).then_some(value));
    }
    fn take(&mut self) -> Column {
        take!(self, BinaryChunkedBuilder)
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::units::Micros;

    use super::*;

    #[test]
    fn start_at_a_boundary_belongs_to_the_phase_that_begins() {
        let span = |name, from_ms, to_ms| {
            PhaseSpan::new(name, Micros::from_millis(from_ms), Micros::from_millis(to_ms))
        };
        let phases = vec![span("before", 0, 4100), span("after", 4100, 8200)];
        let axis = TimeAxis { t0_ns: 1000, realtime_offset_ns: 0, drift_ppb: 0, phases };
        let at_ns = axis.at(4.1);
        assert_eq!((at_ns, axis.seconds(at_ns)), (4_100_001_000, 4.1));
        assert_eq!(axis.phase(at_ns), Some("after"));
        assert_eq!(axis.at(-0.5), 0, "saturates");
    }
}
