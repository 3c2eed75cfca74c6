//! The keys of a generated link: its place, rate or trace, delay, backend and classes. `schema_keys` has its queue and all other keys.

use super::choices::Choices;
use super::plan::Generator;
use super::schema_keys;

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
    let is_userspace = backend(plan, kind);
    let has_loss = plan.choices.chance(64);
    if has_loss {
        let loss = plan.choices.pick(&["0.1%", "1%", "10%", "30%"]);
        plan.line(&format!("loss = \"{loss}\""));
    }
    if plan.logs_packets {
        plan.line("packet_log = \"4MiB\"");
    }
    let has_classes = kind == Kind::Rated && plan.choices.chance(48);
    if !has_classes && kind == Kind::Rated && plan.choices.chance(16) {
        plan.line("shaper = \"tbf\"");
    }
    let table = format!("links.{name}");
    if matches!(kind, Kind::Rated | Kind::Traced) && plan.choices.chance(230) {
        schema_keys::queue(plan, &table);
    }
    schema_keys::link(plan, &table);
    let least_bps = if has_classes { classes(plan, name, rate_bps) } else { 0 };
    (kind, least_bps, is_userspace || has_loss || delay_us > 0)
}

/// Writes the backend of a link. Returns whether it is the userspace.
fn backend(plan: &mut Generator<'_>, kind: Kind) -> bool {
    if plan.choices.chance(140) {
        plan.line("backend = \"userspace\"");
        return true;
    }
    let is_simple = matches!(kind, Kind::Rated | Kind::Preset) && !plan.logs_packets;
    if is_simple && plan.choices.chance(64) {
        plan.line("backend = \"kernel\"");
    }
    false
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
            schema_keys::queue(plan, &format!("links.{link}.classes.c{number}"));
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
