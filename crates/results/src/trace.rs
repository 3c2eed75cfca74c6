//! Capacity traces in results directories: copies of trace files, Parquet files, and plots.
//! [`ccbench_proto::trace`] reads and writes the text formats.

pub mod parquet;
pub mod plot;
pub mod recorded;
pub mod stored;
