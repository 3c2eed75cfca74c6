//! The keys of a generated link: its place, rate or trace, impairments, queue and classes.

use super::choices::Choices;
use super::plan::Generator;

/// What determines a link's rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Its key `rate`.
    Rated,
    /// A trace.
    Traced,
    /// A preset.
    Preset,
    /// Nothing.
    Unlimited,
}

/// The key `backend` of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backend {
    Auto,
    Userspace,
    Kernel,
}

/// Keys of a queue with their values. Of each key, no value or one is written.
type Options = [(&'static str, &'static [&'static str])];

const BOOL: &[&str] = &["true", "false"];
/// Limits. Those that need a rate come last.
const PACKETS: &[&str] =
    &["\"30p\"", "\"1p\"", "\"4p\"", "\"1000p\"", "\"20000B\"", "\"100ms\"", "\"2bdp\""];
const MEMORY: &[&str] =
    &["\"20000B\"", "\"1514B\"", "\"1000000B\"", "\"20p\"", "\"100ms\"", "\"0.5bdp\""];
const QUANTA: &[&str] = &["\"1514B\"", "\"100B\"", "\"20000B\""];
const TARGETS: &[&str] = &["\"15ms\"", "\"1us\"", "\"100us\"", "\"5ms\""];
const INTERVALS: &[&str] = &["\"20ms\"", "\"1ms\"", "\"100ms\""];
const THRESHOLDS: &[&str] = &["\"1ms\"", "\"0us\"", "\"10ms\""];
/// Limits of FIFOs. Those that need a rate come last.
const FIFO_PACKETS: &[&str] = &["40p", "1p", "3p", "200p", "100ms", "1.5bdp"];
const FIFO_BYTES: &[&str] = &["40000B", "1514B", "6000B", "300000B", "100ms", "1.5bdp"];

const PIE: &Options = &[
    ("limit", PACKETS),
    ("target", TARGETS),
    ("tupdate", INTERVALS),
    ("alpha", &["2", "0", "32"]),
    ("beta", &["20", "0", "32"]),
    ("ecn", BOOL),
    ("bytemode", BOOL),
];
const RED: &Options = &[
    ("probability", &["\"10%\"", "\"100%\"", "\"0.1%\""]),
    ("ecn", BOOL),
    ("harddrop", BOOL),
    ("adaptive", BOOL),
];
/// Keys of RED that require marks.
const RED_ECN: &Options = &[("nodrop", BOOL), ("harddrop", BOOL), ("adaptive", BOOL)];
const FQ: &Options = &[
    ("limit", PACKETS),
    ("flow_limit", PACKETS),
    ("buckets", &["1", "16", "1024"]),
    ("ce_threshold", THRESHOLDS),
    ("quantum", QUANTA),
    ("initial_quantum", QUANTA),
];
const CODEL: &Options = &[
    ("limit", PACKETS),
    ("target", TARGETS),
    ("interval", INTERVALS),
    ("ecn", BOOL),
    ("ce_threshold", THRESHOLDS),
];
const FQ_CODEL: &Options = &[
    ("limit", PACKETS),
    ("target", TARGETS),
    ("interval", INTERVALS),
    ("ecn", BOOL),
    ("ce_threshold", THRESHOLDS),
    ("flows", &["1", "3", "1024"]),
    ("quantum", &["\"1514B\"", "\"256B\"", "\"20000B\""]),
    ("memory_limit", MEMORY),
    ("drop_batch", &["64", "1", "3"]),
];
/// Keys of FQ-CoDel that require the selector.
const FQ_CODEL_SELECTOR: &Options = &[("limit", PACKETS), ("ecn", BOOL), ("flows", &["1", "3"])];
const DUALPI2: &Options = &[
    ("limit", PACKETS),
    ("target", TARGETS),
    ("tupdate", INTERVALS),
    ("step_thresh", THRESHOLDS),
    ("min_qlen_step", &["\"0p\"", "\"1p\"", "\"10p\""]),
    ("memory_limit", MEMORY),
    ("any_ect", BOOL),
    ("alpha", &["\"0.16\"", "\"2\""]),
    ("beta", &["\"3.2\"", "\"20\""]),
    ("coupling_factor", &["2", "1", "255"]),
    ("drop_on_overload", BOOL),
    ("drop_dequeue", BOOL),
    ("split_gso", &["true"]),
    ("classic_protection", &["\"10%\"", "\"0%\"", "\"50%\""]),
];

/// Writes `[links.NAME]`. Returns what determines its rate, the sum of its classes' rates in bit/s, and whether its delay and loss may
/// change.
pub(super) fn write(
    plan: &mut Generator<'_>,
    name: &str,
    (node, peer): (&str, &str),
) -> (Kind, u64, bool) {
    plan.line(&format!("\n[links.{name}]\nnode = \"{node}\""));
    if plan.has_cycle || plan.choices.chance(40) {
        plan.line(&format!("dev = \"to-{peer}\""));
    } else {
        plan.line(&format!("toward = \"{peer}\""));
    }
    let kind = plan.choices.pick(&[
        Kind::Rated,
        Kind::Rated,
        Kind::Rated,
        Kind::Rated,
        Kind::Traced,
        Kind::Unlimited,
        Kind::Preset,
    ]);
    let rate_bps = plan.choices.between(200_000, 32_000_000);
    let mut delay_us = 0;
    match kind {
        Kind::Rated => plan.line(&format!("rate = \"{rate_bps}bit\"")),
        Kind::Traced => trace(plan, name, true),
        Kind::Preset => {
            plan.line("path = \"preset\"");
            delay_us = 4000;
        }
        Kind::Unlimited if plan.choices.chance(80) => trace(plan, name, false),
        Kind::Unlimited => {}
    }
    if kind != Kind::Preset && !plan.choices.chance(70) {
        delay_us = plan.choices.between(100, 40_000);
        plan.line(&format!("delay = \"{delay_us}us\""));
    }
    let backend = backend(plan, kind);
    let has_loss = impairments(plan, delay_us, backend);
    if backend != Backend::Kernel {
        arrivals(plan);
    }
    if plan.logs_packets {
        plan.line("packet_log = \"4MiB\"");
    }
    if matches!(kind, Kind::Rated | Kind::Traced) && plan.choices.chance(230) {
        let queue = queue(&mut plan.choices, kind == Kind::Rated);
        plan.line(&format!("queue = {queue}"));
    }
    let has_classes = kind == Kind::Rated && plan.choices.chance(48);
    if !has_classes && backend != Backend::Kernel && matches!(kind, Kind::Rated | Kind::Traced) {
        at_the_line(plan, (kind == Kind::Rated).then_some(rate_bps));
    }
    let mut least_bps = 0;
    if has_classes {
        least_bps = classes(plan, name, rate_bps);
    } else if kind == Kind::Rated && plan.choices.chance(16) {
        plan.line("shaper = \"tbf\"");
    }
    (kind, least_bps, backend == Backend::Userspace || has_loss || delay_us > 0)
}

/// Writes the backend of a link, and keys that only some backends have.
fn backend(plan: &mut Generator<'_>, kind: Kind) -> Backend {
    if plan.choices.chance(140) {
        plan.line("backend = \"userspace\"");
        if plan.choices.chance(32) {
            plan.line("gso = false");
        }
        overhead(plan);
        return Backend::Userspace;
    }
    let is_simple = matches!(kind, Kind::Rated | Kind::Preset) && !plan.logs_packets;
    if is_simple && plan.choices.chance(64) {
        plan.line("backend = \"kernel\"");
        return Backend::Kernel;
    }
    overhead(plan);
    Backend::Auto
}

fn overhead(plan: &mut Generator<'_>) {
    if plan.choices.chance(48) {
        let overhead = plan.choices.pick(&["0B", "24B", "38B", "1000B"]);
        plan.line(&format!("overhead = \"{overhead}\""));
    }
}

/// Writes loss, jitter, duplication, corruption and reordering of a link with this delay. Returns whether it has the key `loss`.
fn impairments(plan: &mut Generator<'_>, delay_us: u64, backend: Backend) -> bool {
    let is_kernel = backend == Backend::Kernel;
    let has_loss = plan.choices.chance(64);
    if has_loss {
        let loss = plan.choices.pick(&["0.1%", "1%", "10%", "30%"]);
        plan.line(&format!("loss = \"{loss}\""));
    }
    let has_jitter = plan.choices.chance(64);
    if has_jitter {
        let choices = &mut plan.choices;
        let mut shape = choices.pick(&["pareto", "normal", "uniform"]);
        let spread_us = match delay_us {
            0 => choices.between(1, 5000),
            delay_us => choices.between(1, delay_us),
        };
        if delay_us == 0 {
            shape = "pareto";
        }
        let correlation = match choices.chance(100) {
            true => format!(", correlation = \"{}\"", choices.pick(&["25%", "90%"])),
            false => String::new(),
        };
        let reorder = if choices.chance(64) { ", reorder = true" } else { "" };
        let hold = if !is_kernel && choices.chance(64) { ", hold = \"10ms\"" } else { "" };
        plan.line(&format!(
            "jitter = {{ spread = \"{spread_us}us\", distribution = \"{shape}\"{correlation}{reorder}{hold} }}"
        ));
    }
    if plan.choices.chance(40) {
        let enter = plan.choices.pick(&["0.5%", "5%"]);
        let leave = plan.choices.pick(&["25%", "5%", "100%"]);
        let states = plan.choices.pick(&["", ", bad = \"50%\"", ", bad = \"90%\", good = \"1%\""]);
        plan.line(&format!("burst_loss = {{ enter = \"{enter}\", leave = \"{leave}\"{states} }}"));
    }
    for (key, shares) in [("duplicate", ["0.5%", "10%"]), ("corrupt", ["0.5%", "5%"])] {
        if plan.choices.chance(40) {
            let share = plan.choices.pick(&shares);
            plan.line(&format!("{key} = \"{share}\""));
        }
    }
    if (delay_us > 0 || has_jitter) && plan.choices.chance(40) {
        let share = plan.choices.pick(&["1%", "20%"]);
        let late = if is_kernel { "" } else { plan.choices.pick(&["", ", late = \"3ms\""]) };
        plan.line(&format!("reorder = {{ share = \"{share}\"{late} }}"));
    }
    if !is_kernel && plan.choices.chance(24) {
        plan.line("path_switch = true");
    }
    has_loss
}

/// Writes the policer, held acknowledgements, and the rewriting of the ECN field.
fn arrivals(plan: &mut Generator<'_>) {
    if plan.choices.chance(32) {
        let rate_bps = plan.choices.between(300_000, 20_000_000);
        let burst = plan.choices.pick(&["2500B", "30kB", "1MB"]);
        plan.line(&format!("policer = {{ rate = \"{rate_bps}bit\", burst = \"{burst}\" }}"));
    }
    if plan.choices.chance(32) {
        let hold = plan.choices.pick(&["1us", "2ms", "50ms"]);
        let packets = plan.choices.pick(&["", ", packets = \"2p\"", ", packets = \"16p\""]);
        plan.line(&format!("ack_aggregation = {{ hold = \"{hold}\"{packets} }}"));
    }
    if plan.choices.chance(32) {
        let fields = plan.choices.pick(&[
            "ect1 = \"ect0\"",
            "ect0 = \"not-ect\", ect1 = \"not-ect\", ce = \"not-ect\"",
            "ect0 = \"ect1\", share = \"50%\"",
        ]);
        plan.line(&format!("ecn_rewrite = {{ {fields} }}"));
    }
}

/// Writes slots, the ACK filter, and the token bucket of a link with a constant rate.
fn at_the_line(plan: &mut Generator<'_>, rate_bps: Option<u64>) {
    if plan.choices.chance(40) {
        let every = plan.choices.pick(&["1ms", "100us", "20ms"]);
        let max = plan.choices.pick(&["", ", max = \"20ms\""]);
        let packets = plan.choices.pick(&["", ", packets = \"1p\"", ", packets = \"32p\""]);
        let bytes = plan.choices.pick(&["", ", bytes = \"1B\"", ", bytes = \"60kB\""]);
        plan.line(&format!("slot = {{ every = \"{every}\"{max}{packets}{bytes} }}"));
    }
    if plan.choices.chance(40) {
        plan.line("ack_filter = true");
    }
    if rate_bps.is_some() && plan.choices.chance(40) {
        let burst = plan.choices.pick(&["1514B", "20kB", "1MB"]);
        let peak = match plan.choices.chance(100) {
            true => ", peakrate = \"64mbit\"".to_owned(),
            false => String::new(),
        };
        plan.line(&format!("tbf = {{ burst = \"{burst}\"{peak} }}"));
    }
}

/// Returns a queue. `has_rate`: its limit may be a time or a multiple of the BDP.
fn queue(choices: &mut Choices<'_>, has_rate: bool) -> String {
    let mut limit = |limits: &[&'static str]| {
        choices.pick(&limits[..if has_rate { limits.len() } else { limits.len() - 2 }])
    };
    let (packets, bytes) = (limit(FIFO_PACKETS), limit(FIFO_BYTES));
    let red = choices.pick(&[
        "min = \"3000B\", max = \"15000B\", limit = \"60000B\"",
        "min = \"20000B\", max = \"60000B\", limit = \"60000B\"",
    ]);
    let (kind, options): (String, &Options) = match choices.below(13) {
        0 => (format!("\"bfifo\", limit = \"{bytes}\""), &[]),
        1 => (format!("\"pfifo\", limit = \"{packets}\""), &[]),
        2 => (format!("\"bfifo_head_drop\", limit = \"{bytes}\""), &[]),
        3 => (format!("\"pfifo_head_drop\", limit = \"{packets}\""), &[]),
        4 => ("\"pie\"".to_owned(), PIE),
        5 => (format!("\"red\", {red}"), RED),
        6 => ("\"fq\"".to_owned(), FQ),
        7 => ("\"codel\"".to_owned(), CODEL),
        8 => ("\"fq_codel\"".to_owned(), FQ_CODEL),
        9 => {
            let selector =
                choices.pick(&["ce_threshold_selector = 1, ", "", "ce_threshold_selector = 2, "]);
            let keys = format!("ce_threshold = \"1ms\", {selector}ce_threshold_mask = 3");
            (format!("\"fq_codel\", {keys}"), FQ_CODEL_SELECTOR)
        }
        10 => (format!("\"red\", {red}, ecn = true"), RED_ECN),
        11 => ("\"dualpi2\", step_thresh_pkts = \"3p\"".to_owned(), &[("limit", PACKETS)]),
        _ => ("\"dualpi2\"".to_owned(), DUALPI2),
    };
    let mut text = format!("{{ kind = {kind}");
    for (key, values) in options {
        if choices.chance(80) {
            let needs_rate = values.iter().filter(|value| value.contains("bdp")).count();
            let known = values.len() - if has_rate { 0 } else { 2 * needs_rate };
            text += &format!(", {key} = {}", choices.pick(&values[..known]));
        }
    }
    text + " }"
}

/// Writes up to three classes. Returns the sum of their rates, bit/s.
fn classes(plan: &mut Generator<'_>, link: &str, rate_bps: u64) -> u64 {
    let mut sum_bps = 0;
    for number in 0..=plan.choices.below(3) {
        plan.line(&format!("\n[links.{link}.classes.c{number}]"));
        let class_bps = plan.choices.between(rate_bps / 64, rate_bps / 4);
        sum_bps += class_bps;
        plan.line(&format!("rate = \"{class_bps}bit\""));
        if plan.choices.chance(128) {
            let ceil_bps = plan.choices.between(class_bps, rate_bps);
            plan.line(&format!("ceil = \"{ceil_bps}bit\""));
        }
        if plan.choices.chance(100) {
            let priority = plan.choices.below(8);
            plan.line(&format!("priority = {priority}"));
        }
        let node = plan.any_node();
        let flow = plan.choices.below(plan.flow_count);
        let ecn = plan.choices.pick(&["ect1", "ect0", "not-ect", "ce"]);
        let matches = match plan.choices.below(7) {
            0 => format!("flow = \"f{flow}\""),
            1 => format!("ecn = \"{ecn}\""),
            2 => format!("to = \"{node}\""),
            3 => format!("from = \"{node}\", ecn = \"{ecn}\""),
            4 => "dscp = 46".to_owned(),
            5 => "port = 5201".to_owned(),
            // The port of the first probe that a listener answers.
            _ => "port = 6400".to_owned(),
        };
        plan.line(&format!("match = {{ {matches} }}"));
        if plan.choices.chance(128) {
            let queue = queue(&mut plan.choices, false);
            plan.line(&format!("queue = {queue}"));
        }
    }
    sum_bps
}

/// Writes a trace to a file of its own, with or without rates.
fn trace(plan: &mut Generator<'_>, link: &str, has_rates: bool) {
    let choices = &mut plan.choices;
    let (file, content) = match has_rates && choices.chance(80) {
        true => (format!("{link}.txt"), opportunities(choices)),
        false => (format!("{link}.csv"), steps(choices, has_rates)),
    };
    let on_end = choices.pick(&["loop", "hold", "stop"]);
    let start = choices.pick(&["trial", "first-packet"]);
    let floor = if choices.chance(64) { ", floor = \"400kbit\"" } else { "" };
    plan.line(&format!(
        "trace = {{ file = \"{file}\", on_end = \"{on_end}\", start = \"{start}\"{floor} }}"
    ));
    plan.files.insert(file, content);
}

/// Returns rows of rate, delay and loss.
fn steps(choices: &mut Choices<'_>, has_rates: bool) -> String {
    let mut text = "t_us,rate_bps,delay_us,loss_ppm\n".to_owned();
    let mut at_us = 0;
    for number in 0..=choices.below(6) {
        // The mean must not be zero.
        let rate_bps = match number > 0 && choices.chance(48) {
            true => 0,
            false => choices.between(300_000, 20_000_000),
        };
        let rate = if has_rates { rate_bps.to_string() } else { String::new() };
        text += &format!("{at_us},{rate},");
        // A row without any value ends a trace.
        if !has_rates || choices.chance(64) {
            text += &choices.between(1, 20_000).to_string();
        }
        text.push(',');
        if choices.chance(48) {
            text += choices.pick(&["10000", "0", "300000"]);
        }
        text.push('\n');
        at_us += choices.between(1000, 200_000);
    }
    text + &format!("{at_us},,,\n")
}

/// Returns delivery opportunities, in ms.
fn opportunities(choices: &mut Choices<'_>) -> String {
    let mut at_ms = 1;
    let mut text = String::new();
    for _ in 0..=choices.below(16) {
        at_ms += choices.pick(&[1, 0, 2, 11]);
        text += &format!("{at_ms}\n");
    }
    text
}
