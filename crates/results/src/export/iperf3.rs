//! Exports the JSON output of iperf3 during the trials.

use std::path::{Path, PathBuf};

use super::error::Result;
use super::trials::{named_trials, not_empty};
use crate::error::io_error;
use crate::layout::{folders, list};
use crate::part::write_text;
use crate::store::RunDir;
use ccbench_io::input;

/// Copies iperf3's output into a folder. The names consist of point, trial, node, flow group and end
/// (`point-0-trial-01-src-bulk-client.json`). Merges a JSON event stream (iperf3 3.17 and newer) into the single object that `iperf3 -J`
/// prints. Returns the paths written.
///
/// # Errors
/// The run has no such files, or a file cannot be written.
pub fn iperf3(run_dir: &Path, output: &Path) -> Result<Vec<PathBuf>> {
    let run = RunDir::open(run_dir)?;
    let mut written = Vec::new();
    for (end, trial) in named_trials(&run) {
        let raw = run.raw(end.point_id, end.trial);
        for node in folders(&raw)? {
            for file in list(&node)? {
                let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let Some(rest) = name
                    .strip_prefix("iperf3-")
                    .or(name.strip_prefix("ccbench-"))
                    .filter(|name| name.ends_with(".json"))
                else {
                    continue;
                };
                let node = node.file_name().unwrap_or_default().to_string_lossy();
                std::fs::create_dir_all(output).map_err(io_error("make the directory", output))?;
                let to = output.join(format!("{trial}-{node}-{rest}"));
                run.check_file(&end, &file)?;
                let text = input::read_to_string(&file, &input::RECORD)
                    .map_err(io_error("read", &file))?;
                write_text(&merge_event_stream(&text), &to)?;
                written.push(to);
            }
        }
    }
    not_empty(written, run_dir, "no trial has iperf3 output under raw/")
}

/// Merges an event stream into one JSON object. Returns any other text unchanged.
fn merge_event_stream(text: &str) -> String {
    let events = || -> Option<serde_json::Value> {
        let mut all = serde_json::json!({ "intervals": [] });
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let mut event: serde_json::Value = serde_json::from_str(line).ok()?;
            let (name, data) = (event.get("event")?.as_str()?.to_owned(), event["data"].take());
            match name.as_str() {
                "interval" => all["intervals"].as_array_mut()?.push(data),
                _ => all[name] = data,
            }
        }
        Some(all)
    };
    events().map_or_else(|| text.to_owned(), |all| format!("{all:#}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_event_streams() {
        let text = "{\"event\":\"start\",\"data\":{\"version\":\"3.17\"}}\n\
            {\"event\":\"interval\",\"data\":{\"sum\":{\"bytes\":1}}}\n\
            {\"event\":\"interval\",\"data\":{\"sum\":{\"bytes\":2}}}\n\
            {\"event\":\"end\",\"data\":{\"sum_sent\":{\"bytes\":3}}}\n";
        let all: serde_json::Value = serde_json::from_str(&merge_event_stream(text)).unwrap();
        assert_eq!(all["start"]["version"], "3.17");
        assert_eq!(all["intervals"][1]["sum"]["bytes"], 2);
        assert_eq!(all["end"]["sum_sent"]["bytes"], 3);
        let object = "{\"start\": {}, \"intervals\": []}\n";
        assert_eq!(merge_event_stream(object), object);
        assert_eq!(merge_event_stream("cut off {"), "cut off {");
    }
}
