//! From flags to what the two directions of the link are to do. Everything is said in the plan's words and
//! judged by the plan's own rules: the flags become the links of a plan of two nodes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ccbench_proto::plan::check::{self, PlanProblem, Severity, TraceFacts, TraceFiles};
use ccbench_proto::plan::{Backend, OnEnd, Queue};
use ccbench_proto::resolve::{LinkConfig, resolve_queue};
use ccbench_proto::schedule::{self, TrialContext};
use ccbench_proto::trace::Trace;
use ccbench_proto::units::{Limit, Micros, Packets, Rate};
use serde_json::{Map, Value, json};

use super::args::{Args, Down, RateOrNone, Start};
use super::error::LinkError;
use super::text;

/// Where there is no delay or no steady rate to reckon a queue from: what an interface of Linux has.
const QUEUE: Limit = Limit::Packets(Packets::new(1000));
/// Longer than any trace and within what a plan allows.
const LENGTH: &str = "1h";

/// What the two directions are to do, and what misleads about them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Spec {
    /// From left to right.
    pub(crate) down: LinkConfig,
    /// From right to left.
    pub(crate) up: LinkConfig,
    /// For people.
    pub(crate) warnings: Vec<String>,
}

/// A direction's name, which is its link's.
pub(crate) const DOWN: &str = "down";
/// The other one's.
pub(crate) const UP: &str = "up";

/// What `args` ask for. `read` reads a trace file, or says why not.
///
/// # Errors
/// The flag that is wrong.
pub(crate) fn build(
    args: &Args,
    read: impl Fn(&Path) -> Result<(String, Trace), String>,
) -> Result<Spec, LinkError> {
    let (down, up) = directions(args);
    let mut traces = Traces { files: TraceFiles::new(), read: &read };
    let rtt = down.delay.unwrap_or_default() + up.delay.unwrap_or_default();
    let links = json!({
        DOWN: link(&down, "--", ("left", "right"), rtt, args, &mut traces)?,
        UP: link(&up, "--up-", ("right", "left"), rtt, args, &mut traces)?,
    });
    let plan = json!({
        "name": "link",
        "seed": args.seed.min(i64::MAX as u64),
        "nodes": {"left": {}, "right": {}},
        "wires": {"link": ["left", "right"]},
        "links": links,
        "flows": {"all": {"from": "left", "to": "right"}},
        "phases": [{"name": "all", "length": LENGTH, "flows": ["all"]}],
    });
    let text = toml::to_string(&plan).map_err(|e| LinkError::Usage(e.to_string()))?;
    let files = traces.files;
    let (checked, warnings) =
        check::read_with(&text, &[], files.clone()).map_err(|found| refused(&found))?;
    let context = TrialContext {
        seed: args.seed,
        traces: files
            .into_iter()
            .filter_map(|(file, facts)| Some((file, facts.ok()?.trace)))
            .collect::<BTreeMap<_, _>>(),
        ..TrialContext::default()
    };
    let points = checked.points();
    let checked = points.first().map_or(&checked, |point| &point.plan);
    let config = |node: &str| {
        let task = schedule::task_for(checked, node, &context);
        task.links.into_iter().next().map(|link| link.config)
    };
    let missing = || LinkError::Usage("the link is not in its own plan".to_owned());
    Ok(Spec {
        down: config("left").ok_or_else(missing)?,
        up: config("right").ok_or_else(missing)?,
        warnings: warnings.iter().filter(|w| is_of_queue(w, args)).map(worded).collect(),
    })
}

/// Both directions with what the way back takes over from the way there.
fn directions(args: &Args) -> (Down, Down) {
    let (down, up) = (args.down.clone(), Down::from(args.up.clone()));
    // A rate and a trace are two ways to say the same.
    let traced = up.trace.is_some();
    let rated = up.rate.is_some();
    let back = Down {
        rate: up.rate.or(down.rate.filter(|_| !traced)),
        trace: up.trace.or_else(|| down.trace.clone().filter(|_| !rated)),
        on_end: up.on_end.or(down.on_end.filter(|_| !rated)),
        floor: up.floor.or(down.floor.filter(|_| !rated)),
        delay: up.delay.or(down.delay),
        queue: up.queue.or(down.queue),
        aqm: up.aqm.or_else(|| down.aqm.clone()),
        loss: up.loss.or(down.loss),
        burst_loss: up.burst_loss.or(down.burst_loss),
        jitter: up.jitter.or(down.jitter),
        duplicate: up.duplicate.or(down.duplicate),
        reorder: up.reorder.or(down.reorder),
        corrupt: up.corrupt.or(down.corrupt),
    };
    (down, back)
}

/// The trace files that have been read.
struct Traces<'a, R> {
    files: TraceFiles,
    read: &'a R,
}

impl<R: Fn(&Path) -> Result<(String, Trace), String>> Traces<'_, R> {
    fn get(&mut self, flag: &str, path: &Path) -> Result<(String, Arc<Trace>), LinkError> {
        let name = path.to_string_lossy().into_owned();
        if !self.files.contains_key(&name) {
            let facts = (self.read)(path)
                .map(|(sha256, trace)| TraceFacts { sha256, trace: Arc::new(trace) });
            self.files.insert(name.clone(), facts);
        }
        match &self.files[&name] {
            Ok(facts) => Ok((name, Arc::clone(&facts.trace))),
            Err(why) => Err(LinkError::Flag { flag: format!("{flag}trace"), why: why.clone() }),
        }
    }
}

/// One direction as a link of a plan.
fn link<R: Fn(&Path) -> Result<(String, Trace), String>>(
    one: &Down,
    flag: &str,
    (node, toward): (&str, &str),
    rtt: Micros,
    args: &Args,
    traces: &mut Traces<'_, R>,
) -> Result<Value, LinkError> {
    let mut link = Map::new();
    let mut put = |key: &str, value: Value| link.insert(key.to_owned(), value);
    put("node", json!(node));
    put("toward", json!(toward));
    let backend =
        if args.dev.is_some() { args.backend.unwrap_or_default() } else { Backend::Userspace };
    put("backend", json!(backend));
    let rate = match one.rate {
        Some(RateOrNone::Rate(rate)) => Some(rate),
        Some(RateOrNone::None) | None => None,
    };
    if let Some(rate) = rate {
        put("rate", json!(rate));
    }
    if let Some(path) = &one.trace {
        let (file, trace) = traces.get(flag, path)?;
        let opportunities = matches!(*trace, Trace::Opportunities(_));
        let on_end = one.on_end.unwrap_or(if opportunities { OnEnd::Loop } else { OnEnd::Hold });
        let start = if args.start == Start::FirstPacket { "first-packet" } else { "trial" };
        let mut used = json!({"file": file, "on_end": on_end, "start": start});
        if let Some(floor) = one.floor {
            used["floor"] = json!(floor);
        }
        put("trace", used);
    } else if one.on_end.is_some() || one.floor.is_some() {
        let key = if one.on_end.is_some() { "on-end" } else { "floor" };
        let why = format!(
            "there is no trace that it could be about; add {flag}trace FILE, or leave it out"
        );
        return Err(LinkError::Flag { flag: format!("{flag}{key}"), why });
    }
    if rate.is_some() || one.trace.is_some() {
        put("queue", queue(one, flag, rtt)?);
    }
    for (key, value) in [
        ("delay", one.delay.map(|v| json!(v))),
        ("loss", one.loss.map(|v| json!(v))),
        ("burst_loss", one.burst_loss.map(|v| json!(v))),
        ("jitter", one.jitter.map(|v| json!(v))),
        ("duplicate", one.duplicate.filter(|v| v.get() > 0).map(|v| json!(v))),
        ("reorder", one.reorder.filter(|v| v.get() > 0).map(|share| json!({"share": share}))),
        ("corrupt", one.corrupt.filter(|v| v.get() > 0).map(|v| json!(v))),
        ("overhead", Some(json!(args.overhead))),
        ("gso", args.no_gso.then_some(json!(false))),
        ("packet_log", args.packet_log.is_some().then(|| json!(args.packet_log_limit))),
    ] {
        if let Some(value) = value {
            put(key, value);
        }
    }
    Ok(Value::Object(link))
}

/// The queue of a plan's link, from `--aqm` and `--queue`.
fn queue(one: &Down, flag: &str, rtt: Micros) -> Result<Value, LinkError> {
    let wrong = |key: &str, why: String| LinkError::Flag { flag: format!("{flag}{key}"), why };
    let steady = one.trace.is_none() && rtt.get() > 0;
    let usual = if steady { Limit::MilliBdp(1500) } else { QUEUE };
    let Some(aqm) = &one.aqm else {
        let limit = one.queue.unwrap_or(usual);
        let kind = if matches!(limit, Limit::Packets(_)) { "pfifo" } else { "bfifo" };
        return Ok(json!({"kind": kind, "limit": limit}));
    };
    let mut fields = text::fields("kind", aqm).map_err(|why| wrong("aqm", why))?;
    let has_limit = fields.iter().any(|(key, _)| key == "limit");
    let kind = fields.iter().find(|(key, _)| key == "kind").and_then(|(_, kind)| kind.clone());
    let kind = kind.unwrap_or_default();
    let fifo = kind.contains("fifo");
    let limit = match one.queue {
        Some(_) if has_limit => {
            let why = "`limit` is given by --queue too; leave one of them out".to_owned();
            return Err(wrong("aqm", why));
        }
        Some(limit) if fifo => Some(limit),
        Some(limit) => Some(absolute(limit, kind == "red", one, rtt).ok_or_else(|| {
            let why = format!("with a trace, write the limit of {kind} in packets or bytes");
            wrong("queue", why)
        })?),
        None if fifo && !has_limit => Some(usual),
        None => None,
    };
    if let Some(limit) = limit {
        fields.push(("limit".to_owned(), Some(limit.to_string())));
    }
    let queue: Queue = text::build(&fields).map_err(|why| wrong("aqm", why))?;
    Ok(json!(queue))
}

/// A limit in what a queue's kind counts: packets, or bytes.
fn absolute(limit: Limit, in_bytes: bool, one: &Down, rtt: Micros) -> Option<Limit> {
    let rate = match (one.rate, limit) {
        (Some(RateOrNone::Rate(rate)), _) => rate,
        // Neither depends on the rate.
        (_, Limit::Bytes(_) | Limit::Packets(_)) => Rate::from_bits_per_sec(1),
        _ => return None,
    };
    let asked = if in_bytes { Queue::Bfifo { limit } } else { Queue::Pfifo { limit } };
    match resolve_queue(Some(&asked), Some(rate), rtt) {
        Queue::Bfifo { limit } | Queue::Pfifo { limit } => Some(limit),
        _ => None,
    }
}

/// Whether it is about a queue that was asked for.
fn is_of_queue(problem: &PlanProblem, args: &Args) -> bool {
    let asked = args.down.queue.is_some() || args.up.queue.is_some();
    asked && problem.path.starts_with("links.") && problem.path.contains(".queue")
}

fn refused(found: &[PlanProblem]) -> LinkError {
    let errors = found.iter().filter(|problem| problem.severity == Severity::Error);
    let mut lines: Vec<String> = errors.map(worded).collect();
    lines.dedup();
    LinkError::Usage(lines.join("\n"))
}

/// A problem of the plan in the words of the command line: `links.up.delay` is `--up-delay`.
fn worded(problem: &PlanProblem) -> String {
    let path = problem.path.replace(['"', '\''], "");
    let mut parts = path.split('.').skip(1);
    let flag = match parts.next() {
        Some(DOWN) => "--",
        Some(UP) => "--up-",
        _ => return problem.to_string(),
    };
    let (name, rest) = match parts.next() {
        Some("queue") => ("aqm", parts.next().filter(|key| *key != "limit")),
        Some("trace") => match parts.next() {
            Some("on_end") => ("on-end", None),
            Some("floor") => ("floor", None),
            _ => ("trace", None),
        },
        Some("burst_loss") => ("burst-loss", parts.next()),
        Some("packet_log") => ("packet-log-limit", None),
        Some("gso") => ("no-gso", None),
        Some(key @ ("reorder" | "jitter")) => (key, parts.next().filter(|key| *key != "share")),
        Some(key) => (key, None),
        None => ("rate", None),
    };
    let name = if name == "aqm" && rest.is_none() { "queue" } else { name };
    let flag = if matches!(name, "overhead" | "packet-log-limit" | "no-gso" | "backend") {
        "--"
    } else {
        flag
    };
    let rest = rest.map_or(String::new(), |key| format!(" {key}"));
    format!("{flag}{name}:{rest} {}", problem.why)
}

#[cfg(test)]
mod tests {
    use ccbench_proto::trace::{Opportunities, Step, Steps};
    use clap::Parser;
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Typed {
        #[command(flatten)]
        args: Args,
    }

    fn read(path: &Path) -> Result<(String, Trace), String> {
        let trace = match path.to_str() {
            Some("mahimahi") => Trace::Opportunities(Opportunities {
                at_ns: (1..=1000).map(|ms| ms * 1_000_000).collect(),
                bytes: 1504,
                length_ns: 1_000_000_000,
            }),
            Some("steps") => {
                let rate = Some(Rate::from_bits_per_sec(8_000_000));
                let step = Step { at_ns: 0, rate, delay_ns: None, loss: None, line: 1 };
                Trace::Steps(Steps { steps: vec![step], length_ns: 60_000_000_000 })
            }
            _ => return Err("no such file".to_owned()),
        };
        Ok(("0".repeat(64), trace))
    }

    fn spec_of(typed: &str) -> Result<Spec, String> {
        let words = std::iter::once("link").chain(typed.split_whitespace());
        let typed = Typed::try_parse_from(words).map_err(|e| e.to_string())?;
        build(&typed.args, read).map_err(|e| e.to_string())
    }

    fn bytes(queue: &Queue) -> u64 {
        match queue {
            Queue::Bfifo { limit: Limit::Bytes(bytes) } => bytes.get(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn both_directions_are_alike_unless_said_otherwise() {
        let spec = spec_of("--rate 100mbit --delay 10ms --queue 187500B --loss 1%").unwrap();
        let seed = spec.down.seed;
        assert_ne!(spec.up.seed, seed);
        let alike = LinkConfig { name: DOWN.to_owned(), seed, ..spec.up.clone() };
        assert_eq!(alike, spec.down);
        assert_eq!(bytes(&spec.down.queue), 187_500);
        assert_eq!(spec.down.backend, Backend::Userspace);

        let spec = spec_of("--rate 8mbit --delay 10ms --up-rate none --up-loss 0% --up-delay 1ms")
            .unwrap();
        assert_eq!((spec.up.rate, spec.up.loss.get(), spec.up.delay.get()), (None, 0, 1000));
        assert_eq!(bytes(&spec.down.queue), 16_500, "1.5 bandwidth-delay products of both delays");
    }

    #[test]
    fn a_trace_takes_the_place_of_a_rate_and_the_other_way_round() {
        let spec = spec_of("--trace mahimahi --up-trace steps --delay 20ms").unwrap();
        let (down, up) = (spec.down.trace.unwrap(), spec.up.trace.unwrap());
        assert_eq!((down.on_end, up.on_end), (OnEnd::Loop, OnEnd::Hold));
        assert_eq!(spec.up.queue, Queue::Pfifo { limit: QUEUE }, "a trace's rate is not steady");
        let spec = spec_of("--trace steps --delay 20ms --queue 1.5bdp").unwrap();
        assert_eq!(bytes(&spec.down.queue), 60_000, "of the trace's mean rate");
        let spec = spec_of("--trace mahimahi --on-end stop --up-rate 5mbit").unwrap();
        assert_eq!(spec.down.trace.unwrap().on_end, OnEnd::Stop);
        assert!(spec.up.trace.is_none() && spec.up.rate.is_some());
        assert_eq!(spec.up.queue, Queue::Pfifo { limit: QUEUE });
        let spec = spec_of("--rate 5mbit --up-trace steps").unwrap();
        assert!(spec.up.rate.is_none() && spec.down.trace.is_none());
    }

    #[test]
    fn a_queue_counts_what_its_kind_counts() {
        let queue = |typed: &str| {
            spec_of(&format!("--rate 100mbit --delay 5ms {typed}")).unwrap().down.queue
        };
        let wanted = |fields: &str| serde_json::from_str::<Queue>(fields).unwrap();
        assert_eq!(queue("--queue 40p"), wanted(r#"{"kind":"pfifo","limit":"40p"}"#));
        assert_eq!(queue("--queue 15ms"), wanted(r#"{"kind":"bfifo","limit":"187500B"}"#));
        assert_eq!(
            queue("--queue 187500B --aqm codel"),
            wanted(r#"{"kind":"codel","limit":"124p"}"#)
        );
        assert_eq!(
            queue("--aqm pfifo_head_drop"),
            wanted(r#"{"kind":"pfifo_head_drop","limit":"124p"}"#)
        );
        assert_eq!(
            queue("--queue 15ms --aqm red,min=30kB,max=90kB,ecn"),
            wanted(r#"{"kind":"red","limit":"187500B","min":"30kB","max":"90kB","ecn":true}"#)
        );
    }

    #[test]
    fn the_flag_and_the_way_out_are_named() {
        for (typed, wanted) in [
            ("--rate 100", "invalid value '100' for '--rate <RATE>'"),
            ("--rate 1mbit --aqm codell", "--aqm: unknown variant `codell`"),
            (
                "--rate 1mbit --aqm codel --up-aqm codel,target=5",
                "--up-aqm: `5` is not a length of time",
            ),
            ("--rate 1mbit --aqm codel,limit=0p", "--queue: is zero"),
            (
                "--rate 1mbit --aqm codel,limit=9p --queue 9p",
                "--aqm: `limit` is given by --queue too",
            ),
            ("--rate 1mbit --on-end loop", "--on-end: there is no trace"),
            ("--rate 1mbit --trace steps", "--trace:"),
            ("--trace nowhere", "--trace: no such file"),
            ("--up-trace nowhere", "--up-trace: no such file"),
            ("--delay 10ms --jitter 20ms", "--jitter"),
            ("--loss 200%", "'--loss <SHARE>'"),
            ("--reorder 1%", "--reorder: has nothing to overtake"),
            ("--left a", "--right"),
            ("--left a --right b --dev c", "cannot be used with"),
        ] {
            let said = spec_of(typed).unwrap_err();
            assert!(said.contains(wanted), "{typed}: {said}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_command_line_panics(
            flags in proptest::collection::vec(
                ("(--|--up-)(rate|delay|queue|aqm|loss|jitter|burst-loss|reorder|corrupt|duplicate|trace|on-end|floor)",
                 "([0-9]{1,12}(mbit|ms|B|p|%|bdp|)|none|steps|mahimahi|loop|codel|red,min=[1-9]kB,max=9kB|fq,buckets=[0-9]|2ms,reorder|1%,leave=[0-9]%)"),
                0..6,
            ),
        ) {
            let typed: Vec<String> = flags.into_iter().map(|(flag, value)| format!("{flag}={value}")).collect();
            let _ = spec_of(&typed.join(" "));
        }

        #[test]
        fn what_is_asked_is_what_is_done(rate_kbit in 1_u64..10_000_000, delay_us in 0_u64..1_000_000) {
            let spec = spec_of(&format!("--rate {rate_kbit}kbit --delay {delay_us}us --queue 99p")).unwrap();
            prop_assert_eq!(spec.down.rate, Some(Rate::from_bits_per_sec(rate_kbit * 1000)));
            prop_assert_eq!(spec.up.delay, Micros::new(delay_us));
            prop_assert_eq!(spec.up.queue, Queue::Pfifo { limit: Limit::Packets(Packets::new(99)) });
        }
    }
}
