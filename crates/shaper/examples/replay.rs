//! Measures the scheduling errors of trace replay on the kernel backend. `replay SECONDS STEP_US` runs in its own network namespace and
//! prints one line of JSON. Needs root. `tests/bench/replay.sh` compares it with a shell loop.
#![allow(clippy::unwrap_used, reason = "a measurement may panic")]

use std::sync::Arc;
use std::time::Duration;

use ccbench_proto::plan::{Backend, Link, Queue, TraceUse};
use ccbench_proto::resolve::LinkConfig;
use ccbench_proto::trace::{Replay, Step, Steps, Trace};
use ccbench_proto::units::{Bytes, Limit, Rate};
use ccbench_proto::wire::TimingKind;
use ccbench_shaper::clock::monotonic_ns;
use ccbench_shaper::netlink::{self, Socket};

/// Returns a trace of rates from 10 to 100 Mbit/s, repeated.
fn trace(steps: u64, step_ns: u64) -> Trace {
    let rate = |nth: u64| Some(Rate::from_bits_per_sec((10 + nth % 90) * 1_000_000));
    let step =
        |nth| Step { at_ns: nth * step_ns, rate: rate(nth), delay_ns: None, loss: None, line: 0 };
    Trace::Steps(Steps { steps: (0..steps).map(step).collect(), length_ns: steps * step_ns })
}

fn config(trace: Trace) -> LinkConfig {
    let plan = Link { backend: Backend::Kernel, ..Link::default() };
    let queue = Queue::bfifo(Limit::Bytes(Bytes::new(187_500)));
    LinkConfig {
        trace: Some(Replay { trace: Arc::new(trace), plan: TraceUse::new("bench") }),
        seed: 1,
        ..LinkConfig::new("bench", plan, queue)
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().unwrap());
    let (seconds, step_us) = (arguments.next().unwrap_or(10), arguments.next().unwrap_or(10_000));
    let (step_ns, steps) = (step_us * 1000, seconds * 1_000_000 / step_us);
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("this needs root");
    let mut socket = Socket::open().unwrap();
    netlink::add_veth(&mut socket, "b0", "b1").unwrap();
    for dev in ["b0", "b1"] {
        netlink::set_up(&mut socket, netlink::ifindex(dev).unwrap()).unwrap();
    }
    let mut link = ccbench_shaper::open(&config(trace(steps, step_ns)), "b0").unwrap();
    let begin_ns = monotonic_ns() + 100_000_000;
    link.begin(begin_ns).unwrap();
    let (mut changes, mut timing) = (Vec::new(), Vec::new());
    while monotonic_ns() < begin_ns + (steps - 1) * step_ns + 50_000_000 {
        std::thread::sleep(Duration::from_millis(500));
        link.changes(&mut changes);
    }
    link.changes(&mut changes);
    link.timing(&mut timing);
    let all = timing.iter().find(|row| row.kind() == TimingKind::Steps).unwrap();
    let last = changes.last().unwrap();
    let wrong = changes.iter().filter(|row| row.rc != 0).count();
    println!(
        "{{\"tool\":\"ccbench\",\"step_us\":{step_us},\"steps\":{},\"missed\":{},\"refused\":{wrong},\"late_us\":{{\"p50\":{:.1},\"p90\":{:.1},\"p99\":{:.1},\"max\":{:.1}}},\"last_step_late_us\":{:.1}}}",
        all.count,
        all.missed,
        all.p50_us,
        all.p90_us,
        all.p99_us,
        all.max_us,
        (last.applied_at_ns - last.requested_at_ns) as f64 / 1000.0,
    );
}
