//! From a plan's link to what the data path is to do, or why it cannot.

use ccbench_proto::plan::Queue;
use ccbench_proto::resolve::{ClassConfig, LinkConfig};
use ccbench_proto::units::{Bytes, Limit, Micros, Packets, Ppm, Rate};

use crate::ShaperError;
use crate::datapath::classes::ClassSpec;
use crate::datapath::queue::codel::{CodelSpec, LawSpec};
use crate::datapath::queue::dualpi2::Dualpi2Spec;
use crate::datapath::queue::fq::FqSpec;
use crate::datapath::queue::fq_codel::FqCodelSpec;
use crate::datapath::queue::pie::PieSpec;
use crate::datapath::queue::red::RedSpec;
use crate::datapath::{FifoLimit, LinkSpec, QueueSpec};
use crate::qdisc::{self, BadQueue};
use crate::replay::with_rate;

/// What the data path is to do for `config`.
pub(super) fn spec_of(config: &LinkConfig) -> Result<LinkSpec, ShaperError> {
    let config = &*with_rate(config);
    let refuse = |bad: BadQueue| ShaperError::Unsupported {
        link: config.name.clone(),
        backend: "userspace",
        what: bad.what,
        way_out: bad.way_out,
    };
    if !config.classes.is_empty() && config.rate.is_none() {
        return Err(refuse(bad("classes without a rate", "give the link a rate")));
    }
    let classes = config.classes.iter().map(class_of).collect::<Result<_, _>>().map_err(refuse)?;
    Ok(LinkSpec {
        rate_bps: config.rate.map(Rate::bits_per_sec),
        delay_ns: config.delay.nanos(),
        loss_ppm: config.loss.get(),
        seed: config.seed,
        queue: queue_of(&config.queue, config.rate).map_err(refuse)?,
        classes,
        impairments: config.impairments,
        overhead_bytes: u32::try_from(config.overhead.get()).unwrap_or(u32::MAX),
        gso: config.gso,
        trace: config.trace.clone(),
    })
}

fn class_of(class: &ClassConfig) -> Result<ClassSpec, BadQueue> {
    Ok(ClassSpec {
        name: class.name.clone(),
        rate_bps: class.rate.bits_per_sec(),
        ceil_bps: class.ceil.bits_per_sec(),
        priority: class.priority,
        queue: queue_of(&class.queue, Some(class.rate))?,
        matches: class.matches.clone(),
    })
}

fn bad(what: &str, way_out: &str) -> BadQueue {
    BadQueue { what: what.to_owned(), way_out: way_out.to_owned() }
}

/// `rate`: what the queue is drained at.
fn queue_of(queue: &Queue, rate: Option<Rate>) -> Result<QueueSpec, BadQueue> {
    match queue {
        Queue::Bfifo { limit } | Queue::Pfifo { limit } => Ok(QueueSpec::Fifo(fifo_limit(*limit)?)),
        Queue::BfifoHeadDrop { limit } | Queue::PfifoHeadDrop { limit } => {
            Ok(QueueSpec::HeadDrop(fifo_limit(*limit)?))
        }
        Queue::Pie { .. } => Ok(pie(queue)),
        Queue::Red { .. } => red(queue, rate),
        Queue::Codel { .. } => Ok(codel(queue)),
        Queue::FqCodel { .. } => fq_codel(queue),
        Queue::Fq { .. } => fq(queue),
        Queue::Dualpi2 { .. } => dualpi2(queue),
        Queue::Cake { .. } => Err(bad(
            "queue cake",
            "use backend = \"kernel\" on a kernel that has it, or a queue of kind fq_codel",
        )),
    }
}

fn fifo_limit(limit: Limit) -> Result<FifoLimit, BadQueue> {
    match limit {
        Limit::Bytes(bytes) => Ok(FifoLimit::Bytes(bytes.get())),
        Limit::Packets(packets) => Ok(FifoLimit::Packets(u64::from(packets.get()))),
        Limit::MilliBdp(_) | Limit::Time(_) => Err(bad(
            "a queue limit that is neither bytes (bfifo) nor packets (pfifo)",
            "write it like \"187500B\" or \"40p\"",
        )),
    }
}

fn pie(queue: &Queue) -> QueueSpec {
    let mut spec = PieSpec::default();
    if let Queue::Pie { limit, target, tupdate, alpha, beta, ecn, bytemode } = queue {
        spec.limit = limit.map_or(spec.limit, Packets::get);
        spec.target_ns = target.map_or(spec.target_ns, Micros::nanos);
        spec.update_ns = tupdate.map_or(spec.update_ns, Micros::nanos);
        spec.alpha = alpha.unwrap_or(spec.alpha);
        spec.beta = beta.unwrap_or(spec.beta);
        spec.ecn = ecn.unwrap_or(spec.ecn);
        spec.bytemode = bytemode.unwrap_or(spec.bytemode);
    }
    QueueSpec::Pie(spec)
}

fn red(queue: &Queue, rate: Option<Rate>) -> Result<QueueSpec, BadQueue> {
    let params = qdisc::red::params(queue)?;
    let per_second = rate.map_or(u64::MAX, Rate::bits_per_sec).max(1);
    let idle_packet_ns = u128::from(params.avpkt) * 8_000_000_000 / u128::from(per_second);
    Ok(QueueSpec::Red(RedSpec {
        limit: u64::from(params.limit),
        min: u64::from(params.min),
        max: u64::from(params.max),
        probability_ppm: params.probability.get(),
        weight_log: params.weight_log,
        idle_packet_ns: u64::try_from(idle_packet_ns).unwrap_or(u64::MAX),
        ecn: params.ecn,
        harddrop: params.harddrop,
        adaptive: params.adaptive,
    }))
}

fn law(
    default: LawSpec,
    target: Option<Micros>,
    interval: Option<Micros>,
    ecn: Option<bool>,
    ce_threshold: Option<Micros>,
) -> LawSpec {
    LawSpec {
        target_ns: target.map_or(default.target_ns, Micros::nanos),
        interval_ns: interval.map_or(default.interval_ns, Micros::nanos),
        ecn: ecn.unwrap_or(default.ecn),
        ce_threshold_ns: ce_threshold.map(Micros::nanos),
    }
}

fn codel(queue: &Queue) -> QueueSpec {
    let mut spec = CodelSpec::default();
    if let Queue::Codel { limit, target, interval, ecn, ce_threshold } = queue {
        spec.limit = limit.map_or(spec.limit, Packets::get);
        spec.law = law(spec.law, *target, *interval, *ecn, *ce_threshold);
    }
    QueueSpec::Codel(spec)
}

fn fq_codel(queue: &Queue) -> Result<QueueSpec, BadQueue> {
    let mut spec = FqCodelSpec::default();
    if let Queue::FqCodel {
        limit,
        flows,
        target,
        interval,
        quantum,
        ecn,
        ce_threshold,
        memory_limit,
    } = queue
    {
        spec.limit = limit.map_or(spec.limit, Packets::get);
        spec.flows = flows.unwrap_or(spec.flows);
        spec.quantum = quantum.map(qdisc::size);
        spec.memory_limit = memory_limit.map_or(spec.memory_limit, Bytes::get);
        spec.law = law(spec.law, *target, *interval, *ecn, *ce_threshold);
    }
    if !(1..=65_536).contains(&spec.flows) {
        let what = format!("fq_codel with flows = {}", spec.flows);
        return Err(bad(&what, "write 1 to 65536"));
    }
    Ok(QueueSpec::FqCodel(spec))
}

fn fq(queue: &Queue) -> Result<QueueSpec, BadQueue> {
    let mut spec = FqSpec::default();
    if let Queue::Fq { limit, flow_limit, buckets, ce_threshold, orphan_mask } = queue {
        spec.limit = limit.map_or(spec.limit, Packets::get);
        spec.flow_limit = flow_limit.map_or(spec.flow_limit, Packets::get);
        spec.mask = orphan_mask.unwrap_or(spec.mask);
        spec.ce_threshold_ns = ce_threshold.map(Micros::nanos);
        if let Some(buckets) = buckets {
            // The kernel's buckets are trees that flows lie in and do not make two flows one; but the plan
            // promises a single queue for one.
            if qdisc::fq::buckets_log(*buckets)? == 0 {
                spec.mask = 0;
            }
        }
    }
    Ok(QueueSpec::Fq(spec))
}

fn dualpi2(queue: &Queue) -> Result<QueueSpec, BadQueue> {
    let mut spec = Dualpi2Spec::default();
    if let Queue::Dualpi2 {
        limit,
        target,
        tupdate,
        alpha,
        beta,
        step,
        coupling,
        drop_on_overload,
        drop_dequeue,
        split_gso,
        classic_protection,
    } = queue
    {
        if *split_gso == Some(false) {
            return Err(bad(
                "dualpi2 with split_gso = false (it queues frames, never super-packets)",
                "leave split_gso out",
            ));
        }
        let gain = |name, text: &Option<String>, default| {
            text.as_deref().map_or(Ok(default), |text| qdisc::dualpi2::gain(name, text))
        };
        spec.limit = limit.map_or(spec.limit, Packets::get);
        spec.target_ns = target.map_or(spec.target_ns, Micros::nanos);
        spec.update_ns = tupdate.map_or(spec.update_ns, Micros::nanos);
        spec.alpha = gain("alpha", alpha, spec.alpha)?;
        spec.beta = gain("beta", beta, spec.beta)?;
        spec.step_ns = step.map_or(spec.step_ns, Micros::nanos);
        spec.coupling = coupling.map_or(Ok(spec.coupling), qdisc::dualpi2::factor)?;
        spec.drop_on_overload = drop_on_overload.unwrap_or(spec.drop_on_overload);
        spec.at_dequeue = drop_dequeue.unwrap_or(spec.at_dequeue);
        spec.classic_percent = classic_protection
            .map_or(spec.classic_percent, |share| (share.get() / 10_000).min(100) as u8);
    }
    if spec.update_ns == 0 {
        return Err(bad("dualpi2 with tupdate = 0", "write a time like \"16ms\""));
    }
    Ok(QueueSpec::Dualpi2(spec))
}

/// The queue as people read it.
pub(super) fn text(queue: &QueueSpec) -> String {
    let us = |ns: u64| format!("{}us", ns / 1000);
    let threshold =
        |ns: Option<u64>| ns.map_or(String::new(), |ns| format!(" ce_threshold {}", us(ns)));
    let law = |law: &LawSpec| {
        format!(
            "target {} interval {}{}{}",
            us(law.target_ns),
            us(law.interval_ns),
            if law.ecn { " ecn" } else { "" },
            threshold(law.ce_threshold_ns)
        )
    };
    match queue {
        QueueSpec::Fifo(FifoLimit::Bytes(bytes)) => format!("bfifo limit {bytes}B"),
        QueueSpec::Fifo(FifoLimit::Packets(packets)) => format!("pfifo limit {packets}p"),
        QueueSpec::HeadDrop(FifoLimit::Bytes(bytes)) => format!("bfifo_head_drop limit {bytes}B"),
        QueueSpec::HeadDrop(FifoLimit::Packets(packets)) => {
            format!("pfifo_head_drop limit {packets}p")
        }
        QueueSpec::Pie(spec) => format!(
            "pie limit {}p target {} tupdate {} alpha {} beta {}{}{}",
            spec.limit,
            us(spec.target_ns),
            us(spec.update_ns),
            spec.alpha,
            spec.beta,
            if spec.ecn { " ecn" } else { "" },
            if spec.bytemode { " bytemode" } else { "" },
        ),
        QueueSpec::Red(spec) => format!(
            "red limit {}B min {}B max {}B probability {} ewma 1/2^{}{}{}{}",
            spec.limit,
            spec.min,
            spec.max,
            Ppm::new(spec.probability_ppm).unwrap_or_default(),
            spec.weight_log,
            if spec.ecn { " ecn" } else { "" },
            if spec.harddrop { " harddrop" } else { "" },
            if spec.adaptive { " adaptive" } else { "" },
        ),
        QueueSpec::Codel(spec) => format!("codel limit {}p {}", spec.limit, law(&spec.law)),
        QueueSpec::FqCodel(spec) => format!(
            "fq_codel limit {}p flows {} quantum {} {} memory_limit {}B",
            spec.limit,
            spec.flows,
            spec.quantum.map_or("1 frame".to_owned(), |bytes| format!("{bytes}B")),
            law(&spec.law),
            spec.memory_limit,
        ),
        QueueSpec::Fq(spec) => format!(
            "fq limit {}p flow_limit {}p orphan_mask {}{}",
            spec.limit,
            spec.flow_limit,
            spec.mask,
            threshold(spec.ce_threshold_ns)
        ),
        QueueSpec::Dualpi2(spec) => format!(
            "dualpi2 limit {}p target {} tupdate {} alpha {}/256 beta {}/256 step {} coupling {} {} {} \
             classic_protection {}%",
            spec.limit,
            us(spec.target_ns),
            us(spec.update_ns),
            spec.alpha,
            spec.beta,
            us(spec.step_ns),
            spec.coupling,
            if spec.drop_on_overload { "drop_on_overload" } else { "overflow" },
            if spec.at_dequeue { "drop_dequeue" } else { "drop_enqueue" },
            spec.classic_percent,
        ),
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::{Backend, Shaper};
    use ccbench_proto::units::Ppm;

    use super::*;

    fn config(queue: Queue) -> LinkConfig {
        LinkConfig {
            name: "bottleneck".to_owned(),
            rate: Some(Rate::from_bits_per_sec(1_000_000)),
            delay: Micros::from_millis(10),
            loss: Ppm::default(),
            queue,
            shaper: Shaper::Htb,
            backend: Backend::Userspace,
            classes: Vec::new(),
            impairments: ccbench_proto::resolve::Impairments::default(),
            trace: None,
            overhead: ccbench_proto::resolve::ETHERNET_BYTES,
            packet_log: None,
            gso: true,
            seed: 3,
        }
    }

    /// A plan's queue from its inline table.
    fn queue(fields: &str) -> Queue {
        let json = serde_json::from_str::<serde_json::Value>(fields).unwrap();
        serde_json::from_value(json).unwrap()
    }

    fn parsed(fields: &str) -> QueueSpec {
        spec_of(&config(queue(fields))).unwrap().queue
    }

    #[test]
    fn what_it_cannot_do_is_refused_with_a_way_out() {
        let cake = config(queue(r#"{"kind": "cake"}"#));
        assert_eq!(
            spec_of(&cake).unwrap_err().to_string(),
            "link bottleneck: the userspace back end cannot do queue cake; use backend = \"kernel\" on a \
             kernel that has it, or a queue of kind fq_codel"
        );
        for refused in [
            r#"{"kind": "pfifo", "limit": "1.5bdp"}"#,
            r#"{"kind": "fq", "buckets": 3}"#,
            r#"{"kind": "fq_codel", "flows": 0}"#,
            r#"{"kind": "dualpi2", "alpha": "fast"}"#,
            r#"{"kind": "dualpi2", "coupling": 0}"#,
            r#"{"kind": "dualpi2", "split_gso": false}"#,
        ] {
            let result = spec_of(&config(queue(refused)));
            assert!(matches!(result, Err(ShaperError::Unsupported { .. })), "{refused}");
        }
    }

    #[test]
    fn a_fifo_is_taken_over() {
        let spec =
            spec_of(&config(Queue::Pfifo { limit: Limit::Packets(Packets::new(40)) })).unwrap();
        assert_eq!(spec.queue, QueueSpec::Fifo(FifoLimit::Packets(40)));
        assert_eq!(spec.delay_ns, 10_000_000);
        assert_eq!(spec.rate_bps, Some(1_000_000));
    }

    #[test]
    fn what_is_left_out_is_the_kernels_default() {
        let texts = [
            (
                r#"{"kind": "codel", "ecn": true, "ce_threshold": "1ms"}"#,
                "codel limit 1000p target 5000us interval 100000us ecn ce_threshold 1000us",
            ),
            (
                r#"{"kind": "fq_codel", "quantum": "300B"}"#,
                "fq_codel limit 10240p flows 1024 quantum 300B target 5000us interval 100000us ecn \
                 memory_limit 33554432B",
            ),
            (
                r#"{"kind": "fq", "limit": "5000p", "flow_limit": "5000p", "buckets": 1, "ce_threshold": "5ms"}"#,
                "fq limit 5000p flow_limit 5000p orphan_mask 0 ce_threshold 5000us",
            ),
            (r#"{"kind": "fq"}"#, "fq limit 10000p flow_limit 100p orphan_mask 1023"),
            (
                r#"{"kind": "dualpi2", "target": "1ms", "alpha": "0.15625", "beta": "3.195312", "step": "5ms"}"#,
                "dualpi2 limit 10000p target 1000us tupdate 16000us alpha 40/256 beta 818/256 step 5000us \
                 coupling 2 drop_on_overload drop_dequeue classic_protection 10%",
            ),
        ];
        for (fields, wanted) in texts {
            assert_eq!(text(&parsed(fields)), wanted, "{fields}");
        }
    }
}
