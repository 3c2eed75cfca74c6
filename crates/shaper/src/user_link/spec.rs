//! Converts a link's configuration to parameters of the datapath.

use ccbench_proto::resolve::{ClassConfig, LinkConfig};

use crate::ShaperError;
use crate::datapath::LinkSpec;
use crate::datapath::classes::ClassSpec;
use crate::discipline;
use crate::qdisc::BadQueue;
use crate::replay::with_mean_rate;

/// Returns the datapath's parameters for `config`.
pub(crate) fn spec_of(config: &LinkConfig) -> Result<LinkSpec, ShaperError> {
    let config = &*with_mean_rate(config);
    let refuse = |bad: BadQueue| ShaperError::Unsupported {
        link: config.name.clone(),
        backend: "userspace",
        what: bad.problem,
        hint: bad.hint,
    };
    if !config.classes.is_empty() && config.plan.rate.is_none() {
        return Err(refuse(BadQueue::new("classes without a rate", "give the link a rate")));
    }
    let classes = config.classes.iter().map(class_of).collect::<Result<_, _>>().map_err(refuse)?;
    Ok(LinkSpec {
        plan: config.plan.clone(),
        seed: config.seed,
        queue: discipline::params(&config.queue, config.plan.rate).map_err(refuse)?,
        classes,
        trace: config.trace.clone(),
        changed_queues: config
            .changed_queues
            .iter()
            .map(|queue| discipline::params(queue, config.plan.rate))
            .collect::<Result<_, _>>()
            .map_err(refuse)?,
        own_traffic: config.own_traffic.clone(),
    })
}

fn class_of(class: &ClassConfig) -> Result<ClassSpec, BadQueue> {
    Ok(ClassSpec {
        plan: class.plan.clone(),
        queue: discipline::params(&class.queue, Some(class.plan.rate))?,
        matches: class.matches.clone(),
    })
}

#[cfg(test)]
mod tests {
    use ccbench_proto::plan::{Link, Queue};
    use ccbench_proto::units::{Limit, Micros, Packets, Rate};

    use super::*;
    use crate::discipline::{FifoLimit, QueueParams};

    fn config(queue: Queue) -> LinkConfig {
        let plan = Link {
            rate: Some(Rate::from_bits_per_sec(1_000_000)),
            delay: Some(Micros::from_millis(10)),
            ..Link::default()
        };
        let (name, classes) = ("bottleneck".to_owned(), Vec::new());
        LinkConfig { classes, seed: 3, ..LinkConfig::new(name, plan, queue) }
    }

    /// Parses a queue of a plan.
    fn queue(fields: &str) -> Queue {
        let json = serde_json::from_str::<serde_json::Value>(fields).unwrap();
        serde_json::from_value(json).unwrap()
    }

    fn parsed(fields: &str) -> QueueParams {
        spec_of(&config(queue(fields))).unwrap().queue
    }

    #[test]
    fn rejects_unsupported_queues_with_a_hint() {
        let cake = config(queue(r#"{"kind": "cake"}"#));
        assert_eq!(
            spec_of(&cake).unwrap_err().to_string(),
            "link bottleneck: the userspace backend cannot do queue cake; use backend = \"kernel\" on a \
             kernel that has it, or a queue of kind fq_codel"
        );
        for refused in [
            r#"{"kind": "pfifo", "limit": "1.5bdp"}"#,
            r#"{"kind": "fq", "buckets": 3}"#,
            r#"{"kind": "fq_codel", "flows": 0}"#,
            r#"{"kind": "dualpi2", "alpha": "fast"}"#,
            r#"{"kind": "dualpi2", "coupling_factor": 0}"#,
            r#"{"kind": "dualpi2", "split_gso": false}"#,
        ] {
            let result = spec_of(&config(queue(refused)));
            assert!(matches!(result, Err(ShaperError::Unsupported { .. })), "{refused}");
        }
    }

    #[test]
    fn maps_a_fifo() {
        let spec = spec_of(&config(Queue::pfifo(Limit::Packets(Packets::new(40))))).unwrap();
        assert_eq!(spec.queue, QueueParams::TailDrop(FifoLimit::Packets(40)));
        assert_eq!(spec.delay_ns(), 10_000_000);
        assert_eq!(spec.rate_bps(), Some(1_000_000));
    }

    #[test]
    fn omitted_keys_have_kernel_defaults() {
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
                r#"{"kind": "dualpi2", "target": "1ms", "alpha": "0.15625", "beta": "3.195312", "step_thresh": "5ms"}"#,
                "dualpi2 limit 10000p target 1000us tupdate 16000us alpha 40/256 beta 818/256 step 5000us \
                 coupling 2 drop_on_overload drop_dequeue classic_protection 10%",
            ),
        ];
        for (fields, wanted) in texts {
            assert_eq!(parsed(fields).describe(), wanted, "{fields}");
        }
    }
}
