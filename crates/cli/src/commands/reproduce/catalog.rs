//! The published experiments.

use crate::plan_source::PlanSource;
use crate::trace_files::Embedded;

/// A published document.
pub(super) struct Document {
    /// Name on the command line that selects all of its experiments.
    pub(super) name: Option<&'static str>,
    /// Title and setup.
    pub(super) title: &'static str,
    /// Its experiments.
    pub(super) entries: &'static [Entry],
}

/// An experiment.
pub(super) struct Entry {
    /// Name on the command line.
    pub(super) name: &'static str,
    /// Description in one line.
    pub(super) about: &'static str,
    /// The plan's path in the repository.
    pub(super) path: &'static str,
    /// The plan.
    pub(super) text: &'static str,
    /// The plan's trace files, by the name in the plan.
    pub(super) files: Embedded,
}

impl Entry {
    pub(super) fn source(&self) -> PlanSource {
        PlanSource::embedded(self.path, self.text, self.files)
    }
}

/// Makes an entry for a plan under `plans/`.
macro_rules! entry {
    ($name:literal, $about:literal, $path:literal $(, $folder:literal: $($file:literal)+)?) => {
        Entry {
            name: $name,
            about: $about,
            path: concat!("plans/", $path),
            text: include_str!(concat!("../../../../../plans/", $path)),
            files: &[$($(($file, include_bytes!(concat!("../../../../../plans/", $folder, $file)))),+)?],
        }
    };
}

/// All documents, in the order of the list.
pub(super) const CATALOG: &[Document] = &[
    Document {
        name: None,
        title: "Coexistence of delay-based and loss-based TCP (study with seven schemes, 100 Mbit/s)",
        entries: &[entry!(
            "coexistence",
            "seven delay-based schemes before, during and after competition with CUBIC",
            "coexistence/all.toml"
        )],
    },
    Document {
        name: None,
        title: "Low-latency congestion control over mmWave links (study with four schemes, 3 Gbit/s)",
        entries: &[
            entry!("mmwave", "ten flows, four links, at a tenth of the rate: 300 Mbit/s", "mmwave.toml", "":
                "traces/mmwave/sl-tenth.csv" "traces/mmwave/sb-tenth.csv" "traces/mmwave/lb-tenth.csv"
                "traces/mmwave/mobb-tenth.csv"),
            entry!("mmwave_3gbit", "the same at the full rate; needs a machine that can forward it", "mmwave-3gbit.toml", "":
                "traces/mmwave/sl.csv" "traces/mmwave/sb.csv" "traces/mmwave/lb.csv" "traces/mmwave/mobb.csv"),
        ],
    },
    Document {
        name: None,
        title: "Bufferbloat at an access link (laboratory report, 1.5 Mbit/s)",
        entries: &[entry!(
            "bufferbloat",
            "ping and a web page beside a long flow, with three queues",
            "bufferbloat.toml"
        )],
    },
    Document {
        name: None,
        title: "L4S and slices (notes on Prague and CUBIC behind DualPI2, 25 Mbit/s)",
        entries: &[
            entry!(
                "l4s",
                "Prague and CUBIC share DualPI2, marking step 1 ms and 5 ms",
                "l4s/receivers.toml"
            ),
            entry!(
                "slices",
                "two slices of a link, saturated and below their rates",
                "l4s/two-slices.toml"
            ),
            entry!(
                "l4s_sweep",
                "AQM × buffer × ECN × receivers, ten trials each",
                "l4s/sweep.toml"
            ),
        ],
    },
    Document {
        name: None,
        title: "Vegas-friendliness on a static dumbbell (ccperf, experiment #95 and its suite, ns-3)",
        entries: &[
            entry!(
                "vegas_friendliness",
                "NewReno meets Vegas at 32 Mbit/s, 40 packets, 15 ms",
                "dumbbell/vegas.toml"
            ),
            entry!(
                "friendliness",
                "each of Reno, Vegas, CUBIC and BBR against each",
                "dumbbell/friendliness.toml"
            ),
            entry!("steady_state", "one flow over named paths", "dumbbell/steady-state.toml"),
            entry!(
                "fairness",
                "four flows of a kind, together and one after the other",
                "dumbbell/fairness.toml"
            ),
            entry!(
                "rtt_fairness",
                "two flows of a kind, 15 and 60 ms",
                "dumbbell/rtt-fairness.toml"
            ),
            entry!(
                "responsiveness",
                "one flow, and a step of rate, delay or loss",
                "dumbbell/responsiveness.toml"
            ),
            entry!(
                "repeated_steps",
                "one flow, and a step every 10 s",
                "dumbbell/repeated-steps.toml"
            ),
            entry!("poisson_paths", "one flow over the named paths with Poisson packet opportunities", "dumbbell/poisson-paths.toml",
                "dumbbell/": "traces/poisson-nepal.trace" "traces/poisson-mexico.trace" "traces/poisson-brazil.trace"),
            entry!("replay", "one flow over a cellular trace and a random walk", "dumbbell/replay.toml", "dumbbell/":
                "traces/lte-30s.trace" "traces/random-walk.csv"),
            entry!("walks", "one flow over a path with a random walk of rate, delay or loss", "dumbbell/walks.toml", "dumbbell/":
                "traces/random-walk.csv" "traces/walk-delay.csv" "traces/walk-loss.csv"),
        ],
    },
    Document {
        name: Some("conformance"),
        title: "BBR example test cases (draft-ietf-ccwg-bbr, appendix; BBRv3, BBRv2 and BBRv1)",
        entries: &[
            entry!(
                "conformance_01",
                "Exiting STARTUP on Bandwidth Plateau",
                "conformance/01-startup-plateau.toml"
            ),
            entry!(
                "conformance_02",
                "Exiting STARTUP on Loss When Application-Limited",
                "conformance/02-startup-loss.toml"
            ),
            entry!(
                "conformance_03",
                "Exiting DRAIN Based on Inflight",
                "conformance/03-drain-inflight.toml"
            ),
            entry!(
                "conformance_04",
                "Exiting DRAIN Based on Time",
                "conformance/04-drain-time.toml"
            ),
            entry!(
                "conformance_05",
                "Exiting PROBE_UP on Bandwidth Plateau",
                "conformance/05-up-plateau.toml"
            ),
            entry!(
                "conformance_06",
                "Exiting PROBE_UP on Loss When Application-Limited",
                "conformance/06-up-loss.toml"
            ),
            entry!(
                "conformance_07",
                "Never Exiting PROBE_UP (or STARTUP) When Application-Limited With No Loss",
                "conformance/07-app-limited.toml"
            ),
            entry!(
                "conformance_08",
                "Exiting PROBE_DOWN on Inflight",
                "conformance/08-down-inflight.toml"
            ),
            entry!(
                "conformance_09",
                "Exiting PROBE_DOWN After Max Time",
                "conformance/09-down-time.toml"
            ),
            entry!(
                "conformance_10",
                "Entering and Exiting PROBE_RTT",
                "conformance/10-probe-rtt.toml"
            ),
            entry!(
                "conformance_11",
                "Skipping PROBE_RTT Due to Application-Limited Sending",
                "conformance/11-probe-rtt-idle.toml"
            ),
            entry!(
                "conformance_12",
                "Achieving Expected STARTUP Bandwidth on a Link With Aggregation",
                "conformance/12-startup-aggregation.toml"
            ),
            entry!(
                "conformance_13",
                "Achieving Expected Cruise Bandwidth on a Link With Aggregation",
                "conformance/13-cruise-aggregation.toml"
            ),
            entry!(
                "conformance_14",
                "Correctly Managing Sub-Packet BDPs",
                "conformance/14-sub-packet-bdp.toml"
            ),
            entry!(
                "conformance_15",
                "Increasing Bandwidth 10x and Ensuring Full Bandwidth is Reached",
                "conformance/15-bandwidth-up.toml"
            ),
            entry!(
                "conformance_16",
                "Decreasing Bandwidth 10x and Ensuring Max Bandwidth Adapts Down",
                "conformance/16-bandwidth-down.toml"
            ),
            entry!(
                "conformance_17",
                "Handling Token Bucket Policers",
                "conformance/17-policer.toml"
            ),
            entry!(
                "conformance_18",
                "Handling Spurious Fast Recovery",
                "conformance/18-spurious-recovery.toml"
            ),
            entry!(
                "conformance_19",
                "Handling Spurious RTO Recovery",
                "conformance/19-spurious-rto.toml"
            ),
            entry!(
                "conformance_20",
                "Entering and Exiting PROBE_RTT During STARTUP",
                "conformance/20-probe-rtt-startup.toml"
            ),
            entry!(
                "conformance_21",
                "Handling Loss During PROBE_UP After inflight_longterm is Set",
                "conformance/21-up-loss-longterm.toml"
            ),
            entry!(
                "conformance_22",
                "Handling Application-Limited Sending During PROBE_REFILL",
                "conformance/22-refill-app-limited.toml"
            ),
        ],
    },
];
