//! Translates flags into the configuration of both directions. The flags become the links of a plan with two nodes, so
//! the plan's checks and defaults apply to them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ccbench_proto::plan::check::{self, TraceFacts, TraceFiles, UnreadableTrace};
use ccbench_proto::plan::{
    Backend, Flow, Link, Node, OnEnd, Phase, Plan, Queue, Reorder, TraceStart, TraceUse,
};
use ccbench_proto::resolve::LinkConfig;
use ccbench_proto::schedule::{self, TrialContext};
use ccbench_proto::trace::Trace;
use ccbench_proto::units::{Limit, Micros, Packets, Ppm};

use super::args::{Args, DOWN, Down, RateOrNone, Start, UP};
use super::error::LinkError;
use super::flag_message::{flag_message, is_of_queue, refused};
use super::trace_file::TraceFileError;
use super::{no_effect, text};

/// Default queue limit without a delay or a constant rate: Linux's default `txqueuelen`.
const QUEUE: Limit = Limit::Packets(Packets::new(1000));
/// Duration of the plan's phase: longer than any trace, and within a plan's limit.
const LENGTH: Micros = Micros::from_millis(3_600_000);
/// The nodes of the plan.
const LEFT: &str = "left";
const RIGHT: &str = "right";

/// The configuration of both directions, and warnings about misleading settings.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Spec {
    /// From left to right.
    pub(crate) down: LinkConfig,
    /// From right to left.
    pub(crate) up: LinkConfig,
    /// Warnings, each naming its flag.
    pub(crate) warnings: Vec<String>,
}

/// Reads a trace file. Returns its contents and their SHA-256 in hexadecimal.
pub(crate) trait ReadTrace: Fn(&Path) -> Result<(String, Trace), TraceFileError> {}
impl<F: Fn(&Path) -> Result<(String, Trace), TraceFileError>> ReadTrace for F {}

/// Builds the plan of the link from the flags, checks it and resolves both directions.
///
/// # Errors
/// A flag is wrong; the error names it.
pub(crate) fn build(args: &Args, read: impl ReadTrace) -> Result<Spec, LinkError> {
    let (down, up) = directions(args);
    no_effect::refuse(args, &down, &up)?;
    let mut traces = Traces { files: TraceFiles::new(), read: &read };
    let rtt = down.delay.unwrap_or_default() + up.delay.unwrap_or_default();
    let links = [
        (DOWN.to_owned(), link(&down, "--", (LEFT, RIGHT), rtt, args, &mut traces)?),
        (UP.to_owned(), link(&up, "--up-", (RIGHT, LEFT), rtt, args, &mut traces)?),
    ];
    let files = traces.files;
    let (checked, warnings) = check::check_with(plan(links.into(), args.seed), files.clone())
        .map_err(|problems| refused(&problems, args))?;
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
    let config = |node: &str, link: &'static str| {
        let task = schedule::task_for(checked, node, &context);
        let found = task.links.into_iter().next().map(|link| link.config);
        found.ok_or(LinkError::NotInPlan { link })
    };
    Ok(Spec {
        down: config(LEFT, DOWN)?,
        up: config(RIGHT, UP)?,
        warnings: deprecated_keys(args)
            .into_iter()
            .chain(
                warnings
                    .iter()
                    .filter(|warning| is_of_queue(warning, args))
                    .map(|warning| flag_message(warning, args)),
            )
            .collect(),
    })
}

/// Returns warnings about deprecated keys of `--aqm`.
fn deprecated_keys(args: &Args) -> Vec<String> {
    let up = Down::from(args.up.clone());
    let mut found = Vec::new();
    for (flag, aqm) in [("--aqm", &args.down.aqm), ("--up-aqm", &up.aqm)] {
        // A value that cannot be parsed is reported as an error elsewhere.
        let fields = aqm.as_ref().and_then(|aqm| text::fields("kind", aqm).ok());
        let fields = fields.unwrap_or_default();
        let kind = kind_of(&fields);
        let replaced = |(key, _): &(String, Option<String>)| {
            let new = Queue::replacement(&kind, key)?;
            Some(format!("{flag}: `{key}` is deprecated; use `{new}`"))
        };
        found.extend(fields.iter().filter_map(replaced));
    }
    found
}

/// Returns the kind of queue that the fields of `--aqm` name; empty if none.
fn kind_of(fields: &[(String, Option<String>)]) -> String {
    let kind = fields.iter().find(|(key, _)| key == "kind").and_then(|(_, kind)| kind.clone());
    kind.unwrap_or_default()
}

/// Returns a plan with two nodes, one wire, both links and one flow.
fn plan(links: BTreeMap<String, Link>, seed: u64) -> Plan {
    let phase = Phase { flows: vec!["all".to_owned()], ..Phase::new("all", LENGTH) };
    Plan {
        seed,
        nodes: [LEFT, RIGHT].map(|node| (node.to_owned(), Node::default())).into(),
        wires: [("link".to_owned(), vec![LEFT.to_owned(), RIGHT.to_owned()])].into(),
        links,
        flows: [("all".to_owned(), Flow::new(LEFT, RIGHT))].into(),
        phases: vec![phase],
        ..Plan::new("link")
    }
}

/// Returns the options of both directions. Options that up does not set come from down. One interface has only down.
fn directions(args: &Args) -> (Down, Down) {
    if args.dev.is_some() {
        return (args.down.clone(), Down::default());
    }
    let (down, up) = (args.down.clone(), Down::from(args.up.clone()));
    // A rate and a trace exclude each other.
    let traced = up.trace.is_some();
    let rated = up.rate.is_some();
    // An unshaped up direction does not inherit options that need a rate.
    let unshaped = up.rate == Some(RateOrNone::None) && !traced;
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
        ecn_rewrite: up.ecn_rewrite.or(down.ecn_rewrite),
        policer: up.policer.or(down.policer),
        ack_filter: up.ack_filter.or(down.ack_filter.filter(|_| !unshaped)),
        ack_aggregation: up.ack_aggregation.or(down.ack_aggregation),
        slot: up.slot.or(down.slot.filter(|_| !unshaped)),
        tbf: up.tbf.or(down.tbf.filter(|_| !unshaped && !traced)),
    };
    (down, back)
}

/// The trace files read so far.
struct Traces<'a, R> {
    files: TraceFiles,
    read: &'a R,
}

impl<R: ReadTrace> Traces<'_, R> {
    fn get(&mut self, flag: &str, path: &Path) -> Result<(String, Arc<Trace>), LinkError> {
        let name = path.to_string_lossy().into_owned();
        if !self.files.contains_key(&name) {
            let facts = (self.read)(path)
                .map(|(sha256, trace)| TraceFacts { sha256, trace: Arc::new(trace) })
                .map_err(|error| UnreadableTrace { reason: error.to_string() });
            self.files.insert(name.clone(), facts);
        }
        match &self.files[&name] {
            Ok(facts) => Ok((name, Arc::clone(&facts.trace))),
            Err(error) => {
                Err(LinkError::Flag { flag: format!("{flag}trace"), reason: error.to_string() })
            }
        }
    }
}

/// Translates one direction into a link of the plan.
fn link<R: ReadTrace>(
    one: &Down,
    flag: &str,
    (node, toward): (&str, &str),
    rtt: Micros,
    args: &Args,
    traces: &mut Traces<'_, R>,
) -> Result<Link, LinkError> {
    let rate = match one.rate {
        Some(RateOrNone::Rate(rate)) => Some(rate),
        Some(RateOrNone::None) | None => None,
    };
    let trace = trace_use(one, flag, args, traces)?;
    let has_rate = rate.is_some() || trace.is_some();
    let nonzero = |share: Option<Ppm>| share.filter(|share| share.get() > 0);
    Ok(Link {
        node: node.to_owned(),
        toward: Some(toward.to_owned()),
        rate,
        delay: one.delay,
        loss: one.loss,
        jitter: one.jitter,
        burst_loss: one.burst_loss,
        duplicate: nonzero(one.duplicate),
        reorder: nonzero(one.reorder).map(Reorder::new),
        corrupt: nonzero(one.corrupt),
        ecn_rewrite: one.ecn_rewrite,
        policer: one.policer,
        ack_filter: one.ack_filter.unwrap_or(false),
        ack_aggregation: one.ack_aggregation,
        slot: one.slot,
        tbf: one.tbf,
        trace,
        overhead: Some(args.overhead),
        packet_log: args.packet_log.is_some().then_some(args.packet_log_limit),
        gso: args.no_gso.then_some(false),
        queue: if has_rate { Some(queue(one, flag, rtt)?) } else { None },
        backend: match args.dev {
            Some(_) => args.backend.unwrap_or_default(),
            None => Backend::Userspace,
        },
        ..Link::default()
    })
}

/// Returns the trace of a direction, from `--trace`, `--on-end`, `--floor` and `--start`.
fn trace_use<R: ReadTrace>(
    one: &Down,
    flag: &str,
    args: &Args,
    traces: &mut Traces<'_, R>,
) -> Result<Option<TraceUse>, LinkError> {
    let Some(path) = &one.trace else {
        let key = match (one.on_end, one.floor) {
            (Some(_), _) => "on-end",
            (None, Some(_)) => "floor",
            (None, None) => return Ok(None),
        };
        let reason =
            format!("this flag needs a trace; add {flag}trace FILE, or leave out this flag");
        return Err(LinkError::Flag { flag: format!("{flag}{key}"), reason });
    };
    let (file, trace) = traces.get(flag, path)?;
    let opportunities = matches!(*trace, Trace::Opportunities(_));
    Ok(Some(TraceUse {
        on_end: one.on_end.unwrap_or(if opportunities { OnEnd::Loop } else { OnEnd::Hold }),
        start: match args.start {
            Start::FirstPacket => TraceStart::FirstPacket,
            Start::Now | Start::At(_) => TraceStart::Trial,
        },
        floor: one.floor,
        ..TraceUse::new(file)
    }))
}

/// Returns the queue of a plan's link, from `--aqm` and `--queue`.
fn queue(one: &Down, flag: &str, rtt: Micros) -> Result<Queue, LinkError> {
    let wrong =
        |key: &str, reason: String| LinkError::Flag { flag: format!("{flag}{key}"), reason };
    let constant = one.trace.is_none() && rtt.get() > 0;
    let default = if constant { Limit::MilliBdp(1500) } else { QUEUE };
    let Some(aqm) = &one.aqm else {
        let limit = one.queue.unwrap_or(default);
        return Ok(match limit {
            Limit::Packets(_) => Queue::pfifo(limit),
            _ => Queue::bfifo(limit),
        });
    };
    let mut fields = text::fields("kind", aqm).map_err(|error| wrong("aqm", error.to_string()))?;
    let has_limit = fields.iter().any(|(key, _)| key == "limit");
    let kind = kind_of(&fields);
    for (key, _) in &mut fields {
        if let Some(new) = Queue::replacement(&kind, key) {
            new.clone_into(key);
        }
    }
    let fifo = kind.contains("fifo");
    let limit = match one.queue {
        Some(_) if has_limit => {
            let reason = "--queue also sets `limit`; leave out one of them".to_owned();
            return Err(wrong("aqm", reason));
        }
        Some(limit) => Some(limit),
        None if fifo && !has_limit => Some(default),
        None => None,
    };
    if let Some(limit) = limit {
        fields.push(("limit".to_owned(), Some(limit.to_string())));
    }
    text::build(&fields).map_err(|error| wrong("aqm", error.to_string()))
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::{Ecn, FifoUnit};
    use ccbench_proto::trace::{Opportunities, Step, Steps};
    use ccbench_proto::units::Rate;
    use clap::Parser;
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Typed {
        #[command(flatten)]
        args: Args,
    }

    fn read(path: &Path) -> Result<(String, Trace), TraceFileError> {
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
            _ => {
                let source = std::io::Error::other("no such file");
                return Err(TraceFileError::Read { path: path.display().to_string(), source });
            }
        };
        Ok(("0".repeat(64), trace))
    }

    fn spec_of(typed: &str) -> Result<Spec, Box<dyn std::error::Error>> {
        let words = std::iter::once("link").chain(typed.split_whitespace());
        let typed = Typed::try_parse_from(words)?;
        Ok(build(&typed.args, read)?)
    }

    fn bytes(queue: &Queue) -> u64 {
        match queue.fifo_limit() {
            Some((Limit::Bytes(bytes), FifoUnit::Bytes)) => bytes.get(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn up_inherits_from_down_unless_overridden() {
        let spec = spec_of("--rate 100mbit --delay 10ms --queue 187500B --loss 1%").unwrap();
        let seed = spec.down.seed;
        assert_ne!(spec.up.seed, seed);
        let Link { node, toward, .. } = spec.down.plan.clone();
        let plan = Link { node, toward, ..spec.up.plan.clone() };
        let alike = LinkConfig { name: DOWN.to_owned(), plan, seed, ..spec.up.clone() };
        assert_eq!(alike, spec.down);
        assert_eq!(bytes(&spec.down.queue), 187_500);
        assert_eq!(spec.down.plan.backend, Backend::Userspace);

        let spec = spec_of("--rate 8mbit --delay 10ms --up-rate none --up-loss 0% --up-delay 1ms")
            .unwrap();
        let Link { rate, loss, delay, .. } = spec.up.plan;
        assert_eq!((rate, loss, delay), (None, Some(Ppm::default()), Some(Micros::new(1000))));
        assert_eq!(bytes(&spec.down.queue), 16_500, "1.5 bandwidth-delay products of both delays");
        let spec = spec_of("--up-rate 8mbit --queue 40p").unwrap();
        assert_eq!(spec.up.queue, Queue::pfifo(Limit::Packets(Packets::new(40))));
        let spec = spec_of("--dev a --rate 80mbit --delay 10ms").unwrap();
        assert_eq!(bytes(&spec.down.queue), 150_000, "of one delay");
    }

    #[test]
    fn deprecated_keys_of_a_queue_are_read_with_a_warning() {
        let spec = spec_of("--rate 10mbit --delay 5ms --aqm dualpi2,step=2ms,coupling=3").unwrap();
        let Queue::Dualpi2(queue) = &spec.up.queue else { panic!("{:?}", spec.up.queue) };
        let step_thresh = Some(Micros::from_millis(2));
        assert_eq!((queue.step_thresh, queue.coupling_factor), (step_thresh, Some(3)));
        let step = "--aqm: `step` is deprecated; use `step_thresh`";
        let coupling = "--aqm: `coupling` is deprecated; use `coupling_factor`";
        assert_eq!(spec.warnings, [step, coupling]);
    }

    #[test]
    fn a_trace_replaces_a_rate_and_a_rate_replaces_a_trace() {
        let spec = spec_of("--trace mahimahi --up-trace steps --delay 20ms").unwrap();
        let (down, up) = (spec.down.trace.unwrap(), spec.up.trace.unwrap());
        assert_eq!((down.plan.on_end, up.plan.on_end), (OnEnd::Loop, OnEnd::Hold));
        assert_eq!(spec.up.queue, Queue::pfifo(QUEUE), "a trace's rate is not steady");
        let spec = spec_of("--trace steps --delay 20ms --queue 1.5bdp").unwrap();
        assert_eq!(bytes(&spec.down.queue), 60_000, "of the trace's mean rate");
        let spec = spec_of("--trace mahimahi --on-end stop --up-rate 5mbit").unwrap();
        assert_eq!(spec.down.trace.unwrap().plan.on_end, OnEnd::Stop);
        assert!(spec.up.trace.is_none() && spec.up.plan.rate.is_some());
        assert_eq!(spec.up.queue, Queue::pfifo(QUEUE));
        let spec = spec_of("--rate 5mbit --up-trace steps").unwrap();
        assert!(spec.up.plan.rate.is_none() && spec.down.trace.is_none());
    }

    #[test]
    fn keys_with_several_values_are_those_of_a_plan() {
        let typed = "--rate 10mbit --tbf 100kB,peakrate=20mbit --policer 5mbit,burst=30kB --ack-filter \
                     --up-slot 5ms,bytes=60kB --up-ack-filter=false --up-ack-aggregation 2ms,packets=16p \
                     --ecn-rewrite ect1=ect0,ce=not-ect,share=50%";
        let spec = spec_of(typed).unwrap();
        let (down, up) = (spec.down.plan, spec.up.plan);
        assert_eq!(down.tbf.unwrap().peakrate, Some(Rate::from_bits_per_sec(20_000_000)));
        assert_eq!(
            (down.tbf, down.policer, down.ecn_rewrite),
            (up.tbf, up.policer, up.ecn_rewrite)
        );
        assert_eq!((down.ack_filter, up.ack_filter), (true, false));
        assert_eq!(down.slot.map(|slot| slot.every), None);
        assert_eq!(up.slot.map(|slot| slot.every), Some(Micros::from_millis(5)));
        assert_eq!(up.ack_aggregation.and_then(|all| all.packets), Some(Packets::new(16)));
        let rewrite = down.ecn_rewrite.unwrap();
        assert_eq!((rewrite.ect1, rewrite.ect0), (Some(Ecn::Ect0), None));
        assert_eq!((rewrite.ce, rewrite.share), (Some(Ecn::NotEct), Ppm::new(500_000)));

        // An unshaped direction has neither slots nor a token bucket.
        let spec = spec_of("--rate 10mbit --tbf 100kB --slot 5ms --up-rate none").unwrap();
        assert!(spec.down.plan.tbf.is_some() && spec.down.plan.slot.is_some());
        assert_eq!((spec.up.plan.tbf, spec.up.plan.slot), (None, None));
    }

    #[test]
    fn queue_limit_is_converted_to_the_unit_of_its_kind() {
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
        // Of the trace's mean rate.
        let traced = spec_of("--trace steps --queue 15ms --aqm codel").unwrap().down.queue;
        assert_eq!(traced, wanted(r#"{"kind":"codel","limit":"10p"}"#));
    }

    #[test]
    fn errors_name_the_flag_and_the_fix() {
        for (typed, wanted) in [
            ("--rate 100", "invalid value '100' for '--rate <RATE>'"),
            ("--rate 1mbit --aqm codell", "--aqm: unknown variant `codell`"),
            (
                "--rate 1mbit --aqm codel --up-aqm codel,target=5",
                "--up-aqm: `5` is not a length of time",
            ),
            ("--rate 1mbit --aqm codel,limit=0p", "--queue: is zero"),
            (
                "--rate 1mbit --aqm cake",
                "--aqm: only the kernel's qdisc has it: use --dev, or use another queue, for example `fq_codel`",
            ),
            (
                "--dev a --backend userspace --rate 1mbit --aqm fq,maxrate=1mbit",
                "--aqm: maxrate only the kernel's qdisc has it: write --backend kernel, or",
            ),
            ("--rate 1mbit --aqm red", "--aqm: `limit` is missing; add `,limit=100kB`"),
            ("--burst-loss 1%", "`leave` is missing; add `,leave=20%`"),
            ("--rate 1mbit --aqm codel,limit=9p --queue 9p", "--aqm: --queue also sets `limit`"),
            ("--delay 1ms --queue 9p", "--queue: has no effect without a rate; add --rate or"),
            ("--rate none --aqm codell", "--aqm: has no effect without a rate"),
            ("--rate 1mbit --up-rate none --up-queue 9p", "--up-queue: has no effect"),
            ("--dev a --rate 1mbit --up-delay 1ms", "--up-delay: has no effect with --dev"),
            ("--rate 1mbit --on-end loop", "--on-end: this flag needs a trace"),
            ("--rate 1mbit --trace steps", "--trace:"),
            ("--trace nowhere", "--trace: read nowhere: no such file"),
            ("--up-trace nowhere", "--up-trace: read nowhere: no such file"),
            ("--delay 10ms --jitter 20ms", "--jitter"),
            ("--policer 1mbit,burst=1kB", "--policer: burst must be from 1514B"),
            ("--rate 1mbit --up-slot 0ms", "--up-slot: every must be from 10us"),
            ("--rate 1mbit --tbf 2kB,peakrate=1mbit", "--tbf: peakrate must be more"),
            ("--up-ack-filter", "--up-ack-filter: has no effect"),
            ("--ack-aggregation 1ms,packets=1p", "--ack-aggregation: packets must be 2p"),
            ("--ecn-rewrite ect1=ce", "--ecn-rewrite: ect1 would create marks"),
            ("--loss 200%", "'--loss <SHARE>'"),
            ("--reorder 1%", "--reorder: has nothing to overtake"),
            ("--dev a --backend kernel --rate 1mbit --no-gso", "leave out --backend or this flag"),
            ("--rate -5mbit", "invalid value '-5mbit' for '--rate <RATE>'"),
            ("--delay -5ms", "invalid value '-5ms' for '--delay <TIME>'"),
            ("--seed -1", "invalid value '-1' for '--seed <NUMBER>': write a whole number"),
            ("--seed abc", "write a whole number"),
            ("--delay 10ms --jitter 2ms,hold", "`hold` needs a value: write `hold=…`"),
            ("--left a", "--right"),
            ("--left a --right b --dev c", "cannot be used with"),
        ] {
            let error = spec_of(typed).unwrap_err().to_string();
            assert!(error.contains(wanted), "{typed}: {error}");
        }
    }

    #[test]
    fn default_queues_are_not_reported() {
        let error = spec_of("--rate 10mbit --delay 10h").unwrap_err().to_string();
        assert!(error.contains("--delay:") && !error.contains("--queue"), "{error}");
        let spec = spec_of("--trace steps --delay 20ms --up-queue 40p").unwrap();
        assert!(
            !spec.warnings.iter().any(|text| text.starts_with("--queue")),
            "{:?}",
            spec.warnings
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_command_line_panics(
            flags in proptest::collection::vec(
                ("(--|--up-)(rate|delay|queue|aqm|loss|jitter|burst-loss|reorder|corrupt|duplicate|trace|on-end|floor|ecn-rewrite|policer|ack-filter|slot|tbf)",
                 "([0-9]{1,12}(mbit|ms|B|p|%|bdp|)|none|steps|mahimahi|loop|codel|red,min=[1-9]kB,max=9kB|fq,buckets=[0-9]|2ms,reorder|1%,leave=[0-9]%|ect0|[1-9]mbit,burst=[1-9]kB|true|[1-9]kB,peakrate=9mbit)"),
                0..6,
            ),
        ) {
            let typed: Vec<String> = flags.into_iter().map(|(flag, value)| format!("{flag}={value}")).collect();
            let _ = spec_of(&typed.join(" "));
        }

        #[test]
        fn rate_delay_and_queue_reach_the_configuration(rate_kbit in 1_u64..10_000_000, delay_us in 0_u64..1_000_000) {
            let spec = spec_of(&format!("--rate {rate_kbit}kbit --delay {delay_us}us --queue 99p")).unwrap();
            prop_assert_eq!(spec.down.plan.rate, Some(Rate::from_bits_per_sec(rate_kbit * 1000)));
            prop_assert_eq!(spec.up.plan.delay, Some(Micros::new(delay_us)));
            prop_assert_eq!(spec.up.queue, Queue::pfifo(Limit::Packets(Packets::new(99))));
        }
    }
}
