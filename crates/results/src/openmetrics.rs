//! The OpenMetrics text format (version 1.0.0), which Prometheus reads.

use std::fmt::Write as _;
use std::io::{self, Write};

/// The media type of the format.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The last line of an exposition.
pub const END: &str = "# EOF";

/// A metric family. Its name ends with its unit.
pub struct Family {
    /// The name, without a counter's suffix `_total`.
    pub name: &'static str,
    /// `gauge`, `counter` or `stateset`.
    pub kind: &'static str,
    /// The unit; empty if there is none.
    pub unit: &'static str,
    /// The description for people.
    pub help: &'static str,
}

/// A family for runs in progress and for runs that have ended.
pub const BUSIEST_CPU: Family =
    Family::gauge("ccbench_node_busiest_cpu_ratio", "ratio", "Utilisation of the busiest CPU.");
/// As [`BUSIEST_CPU`].
pub const AGENT_CPU: Family =
    Family::gauge("ccbench_agent_cpu_ratio", "ratio", "Share of one CPU that the agent uses.");
/// As [`BUSIEST_CPU`].
pub const DROPPED_PACKETS: Family = Family {
    name: "ccbench_node_dropped_packets",
    kind: "counter",
    unit: "packets",
    help: "Packets that the machine dropped before a queue of the plan, in this trial.",
};

impl Family {
    /// Returns a family of values that go up and down.
    pub const fn gauge(name: &'static str, unit: &'static str, help: &'static str) -> Self {
        Self { name, kind: "gauge", unit, help }
    }

    /// Returns whether the samples are running totals.
    pub fn is_counter(&self) -> bool {
        self.kind == "counter"
    }

    /// Returns the name of the samples.
    pub fn sample_name(&self) -> String {
        format!("{}{}", self.name, if self.is_counter() { "_total" } else { "" })
    }

    /// Writes the lines that describe the family.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub fn head(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { name, kind, unit, help } = self;
        writeln!(out, "# TYPE {name} {kind}")?;
        if !unit.is_empty() {
            writeln!(out, "# UNIT {name} {unit}")?;
        }
        writeln!(out, "# HELP {name} {help}")
    }
}

/// Writes a sample: `name{labels} value time`, with the time in seconds since 1970. A label without a name is left out.
///
/// # Errors
/// `out` cannot be written.
pub fn sample(
    out: &mut impl Write,
    name: &str,
    labels: &[(&str, &str)],
    value: f64,
    time_s: Option<f64>,
) -> io::Result<()> {
    let mut text = String::new();
    for (nth, (label, of)) in labels.iter().filter(|(label, _)| !label.is_empty()).enumerate() {
        let comma = if nth == 0 { "" } else { "," };
        let of = of.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        // Writing to a String cannot fail.
        let _ = write!(text, "{comma}{label}=\"{of}\"");
    }
    match time_s {
        Some(time_s) => writeln!(out, "{name}{{{text}}} {value} {time_s:.6}"),
        None => writeln!(out, "{name}{{{text}}} {value}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    /// Returns every violation of the format: order and names of descriptions, samples that are not grouped by metric, times that go back,
    /// the end.
    pub(crate) fn violations(text: &str) -> Vec<String> {
        let mut found = vec![];
        let mut family: Option<(&str, &str)> = None;
        let mut families = BTreeSet::new();
        let (mut metric, mut metrics, mut last) = (String::new(), BTreeSet::new(), f64::MIN);
        let body = text.strip_suffix("# EOF\n").unwrap_or_else(|| {
            found.push("no end".to_owned());
            text
        });
        for line in body.lines() {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            match (words[..].get(..3), family) {
                (Some(["#", "TYPE", name]), _) => {
                    if !families.insert(*name) {
                        found.push(format!("twice: {name}"));
                    }
                    family = Some((*name, words[3]));
                }
                (Some(["#", "UNIT", name]), Some((own, _))) => {
                    if *name != own || !name.ends_with(&format!("_{}", words[3])) {
                        found.push(format!("unit: {line}"));
                    }
                }
                (Some(["#", "HELP", name]), Some((own, _))) if *name == own => {}
                (_, Some((own, kind))) if !line.starts_with('#') => {
                    let (labelled, numbers) = line.rsplit_once("} ").unwrap();
                    let (name, labels) = labelled.split_once('{').unwrap();
                    let suffix = if kind == "counter" { "_total" } else { "" };
                    if name != format!("{own}{suffix}") {
                        found.push(format!("another family: {line}"));
                    }
                    if kind == "stateset" && !labels.contains(&format!("{own}=\"")) {
                        found.push(format!("no state: {line}"));
                    }
                    let (value, time_s) = numbers.split_once(' ').unwrap();
                    let (_, time_s): (f64, f64) = (value.parse().unwrap(), time_s.parse().unwrap());
                    if metric != labelled {
                        labelled.clone_into(&mut metric);
                        if !metrics.insert(metric.clone()) {
                            found.push(format!("torn apart: {line}"));
                        }
                    } else if time_s < last {
                        found.push(format!("back in time: {line}"));
                    }
                    last = time_s;
                }
                _ => found.push(format!("unexpected: {line}")),
            }
        }
        found
    }

    #[test]
    fn the_check_finds_violations() {
        let text = "# TYPE a_bytes gauge\n# UNIT a_bytes seconds\na_bytes{n=\"1\"} 1 5\na_bytes{n=\"2\"} 1 5\n\
            a_bytes{n=\"1\"} 1 6\na_bytes{n=\"1\"} 1 4\nb{n=\"1\"} 1 7\n";
        let expected = ["no end", "unit", "torn apart", "back in time", "another family"];
        let found = violations(text);
        let kinds: Vec<&str> = found.iter().filter_map(|one| one.split(':').next()).collect();
        assert_eq!(kinds, expected, "{found:?}");
    }
}
