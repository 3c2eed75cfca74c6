//! Capacity traces as results keep and show them: copies in a results directory, Parquet files, and pictures.
//! [`ccbench_proto::trace`] reads and writes the text formats.

pub mod parquet;
pub mod plot;
pub mod stored;
