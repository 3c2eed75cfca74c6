//! Makes valid plans from bytes, which the simulator can run with few packets.

use std::collections::BTreeMap;

use ccbench_proto::cc;
use ccbench_proto::plan::{Cc, SysctlValue};

use super::choices::Choices;
use super::lines::{self, Line, OptionalKey};
use super::link_keys::{self, Kind};

/// The text of a plan, and its trace files by name.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) plan: String,
    pub(super) files: BTreeMap<String, String>,
}

const NODES: [&str; 5] = ["a", "b", "c", "d", "e"];
const BUILTINS: [&str; 3] = cc::SIMULATED_BUILTINS;

/// A link of the plan.
pub(super) struct Link {
    pub(super) name: String,
    node: usize,
    pub(super) kind: Kind,
    /// Minimum rate that its classes permit, bit/s.
    pub(super) least_bps: u64,
    /// Whether delay and loss may change.
    can_delay: bool,
}

/// The state of the generator.
pub(super) struct Generator<'a> {
    pub(super) choices: Choices<'a>,
    lines: Vec<Line>,
    pub(super) files: BTreeMap<String, String>,
    node_count: usize,
    /// Wires, as pairs of node numbers.
    wires: Vec<(usize, usize)>,
    /// Whether there is a cycle: the route to a neighbour's address may then take another way.
    pub(super) has_cycle: bool,
    /// Whether links log packets.
    pub(super) logs_packets: bool,
    phases_ms: Vec<u64>,
    /// The flows of each phase.
    phase_flows: Vec<Vec<String>>,
    pub(super) flow_count: u64,
    controls: Vec<String>,
    /// Congestion controls that have states, and the flows that use them.
    probing: Vec<String>,
    probing_flows: Vec<u64>,
    links: Vec<Link>,
}

/// Returns the plan that these bytes make.
pub(super) fn generate(data: &[u8]) -> Input {
    let mut plan = Generator::new(Choices::new(data));
    plan.top_level();
    plan.nodes();
    plan.congestion_controls();
    plan.links();
    (0..plan.flow_count).for_each(|number| plan.flow(number));
    plan.probes();
    plan.phases();
    plan.changes();
    plan.matrix();
    // Comes last, so that earlier seeds and inputs still make the same plans, except for this.
    plan.stream();
    let files = plan.files;
    let plan = lines::valid_text(plan.lines, |text| super::read(text, &files).map(drop));
    Input { plan, files }
}

impl<'a> Generator<'a> {
    fn new(choices: Choices<'a>) -> Self {
        Self {
            choices,
            lines: Vec::new(),
            files: BTreeMap::new(),
            node_count: 0,
            wires: Vec::new(),
            has_cycle: false,
            logs_packets: true,
            phases_ms: Vec::new(),
            phase_flows: Vec::new(),
            flow_count: 1,
            controls: BUILTINS.map(str::to_owned).into(),
            probing: Vec::new(),
            probing_flows: Vec::new(),
            links: Vec::new(),
        }
    }

    /// Adds a line to the plan.
    pub(super) fn line(&mut self, line: &str) {
        self.lines.push(Line { text: line.to_owned(), optional: None });
    }

    /// Adds a key of the table `table`, whose header is the latest. The plan may lack the key. Without one that is required, it also lacks
    /// the table that contains it.
    pub(super) fn optional(&mut self, table: &str, key: &str, value: &str, is_required: bool) {
        let optional = Some(OptionalKey { path: format!("{table}.{key}"), is_required });
        self.lines.push(Line { text: format!("{key} = {value}"), optional });
    }

    /// Adds each of these lines with this probability.
    fn some_lines(&mut self, of_256: u8, lines: &[&str]) {
        for line in lines {
            if self.choices.chance(of_256) {
                self.line(line);
            }
        }
    }

    fn top_level(&mut self) {
        let seed = self.choices.between(1, 1 << 40);
        self.line(&format!("name = \"fuzz\"\nseed = {seed}"));
        let without_effect = ["about = \"generated\"", "gap = \"1s\"", "keep_awake = true"];
        self.some_lines(24, &without_effect);
        self.some_lines(24, &["repeat = 3", "order = \"as-written\""]);
        self.line("\n[sample]");
        let tcp = self.choices.pick(&["10ms", "1ms", "100ms", "7ms"]);
        let qdisc = self.choices.pick(&["100ms", "10ms", "33ms", "1s"]);
        let acks = self.choices.pick(&["every-ack", "auto", "off", "on-change", "3ms"]);
        self.line(&format!("tcp = \"{tcp}\"\nqdisc = \"{qdisc}\"\nacks = \"{acks}\""));
        self.some_lines(24, &["host = \"100ms\"", "timescale = \"200ms\""]);
        self.logs_packets = !self.choices.chance(50);
        self.flow_count = 1 + self.choices.below(3);
        for _ in 0..=self.choices.below(3) {
            let length_ms = self.choices.between(100, 500);
            self.phases_ms.push(length_ms);
            self.phase_flows.push(Vec::new());
        }
    }

    fn length_ms(&self) -> u64 {
        self.phases_ms.iter().sum()
    }

    /// Makes a chain, perhaps with a branch or a shortcut.
    fn nodes(&mut self) {
        let chain = 2 + self.choices.below(3) as usize;
        let has_branch = self.choices.chance(64);
        self.has_cycle = chain > 2 && self.choices.chance(48);
        self.node_count = chain + usize::from(has_branch);
        self.wires = (1..chain).map(|node| (node - 1, node)).collect();
        for node in &NODES[..self.node_count] {
            self.line(&format!("\n[nodes.{node}]"));
            if self.choices.chance(100) {
                self.sysctls();
            }
            self.some_lines(16, &["offloads = true"]);
        }
        self.line("\n[wires]");
        let names: Vec<String> = NODES[..chain].iter().map(|node| format!("\"{node}\"")).collect();
        self.line(&format!("chain = [{}]", names.join(", ")));
        if has_branch {
            self.wires.push((chain / 2, chain));
            self.line(&format!("branch = [\"{}\", \"{}\"]", NODES[chain / 2], NODES[chain]));
        }
        if self.has_cycle {
            self.wires.push((0, chain - 1));
            self.line(&format!("cycle = [\"{}\", \"{}\"]", NODES[0], NODES[chain - 1]));
        }
    }

    fn sysctls(&mut self) {
        let choices = &mut self.choices;
        let mut sysctls = vec![
            format!("\"net.ipv4.tcp_ecn\" = {}", choices.pick(&[1, 0, 2, 3, 4, 5])),
            format!("\"net.ipv4.tcp_slow_start_after_idle\" = {}", choices.pick(&[0, 1])),
            "\"net.core.default_qdisc\" = \"fq\"".to_owned(),
        ];
        let always_one = ["tcp_sack", "tcp_timestamps", "tcp_recovery", "tcp_no_metrics_save"];
        // The last one has no effect.
        for name in always_one.into_iter().chain(["tcp_fastopen"]) {
            sysctls.push(format!("\"net.ipv4.{name}\" = 1"));
        }
        for name in ["rmem_max", "wmem_max"] {
            sysctls.push(format!("\"net.core.{name}\" = 65536"));
        }
        for name in ["tcp_rmem", "tcp_wmem"] {
            let most =
                choices.pick(&[65_536_u64, 4096, 16_384, 262_144, 6_291_456, 2_147_483_647, 1]);
            let (least, default) = (most.min(4096), most.min(16_384));
            sysctls.push(format!("\"net.ipv4.{name}\" = \"{least} {default} {most}\""));
        }
        sysctls.retain(|_| choices.chance(110));
        self.line(&format!("sysctl = {{ {} }}", sysctls.join(", ")));
    }

    /// Makes instances of ccbench's and the kernel's congestion controls.
    fn congestion_controls(&mut self) {
        let schemes: Vec<&str> = cc::table().schemes.iter().map(|s| s.name.as_str()).collect();
        for number in 0..self.choices.below(4) {
            let algorithm = match self.choices.chance(40) {
                true => self.choices.pick(&BUILTINS),
                false => self.choices.pick(&schemes),
            };
            let mut instance = Cc::new(algorithm);
            if let Some((_, core)) = cc::scheme(algorithm)
                && !core.params.is_empty()
                && self.choices.chance(100)
            {
                let param = &core.params[self.choices.below(core.params.len() as u64) as usize];
                let value = self.choices.pick(&[param.min, param.default, param.max]);
                let value = SysctlValue::Number(value.into());
                instance.params.insert(param.name.clone(), value);
                // Some parameters have rules between them.
                if cc::resolve(&instance).is_err() {
                    instance.params.clear();
                }
            }
            let name = format!("own{number}");
            self.line(&format!("\n[cc.{name}]\nalgorithm = \"{algorithm}\""));
            for (param, value) in &instance.params {
                self.line(&format!("params.{param} = {value}"));
            }
            if cc::counts_marks(&instance) && self.choices.chance(80) {
                let ect1 = self.choices.chance(128);
                self.line(&format!("ect1 = {ect1}"));
            }
            if !cc::is_kernel_algorithm(&instance) {
                self.some_lines(16, &["via = \"bpf\""]);
            }
            if !cc::states(&instance).is_empty() {
                self.probing.push(name.clone());
            }
            self.controls.push(name);
        }
    }

    /// Makes links at most ends of wires.
    fn links(&mut self) {
        self.line("\n[path.preset]\nrate = \"3mbit\"\ndelay = \"4ms\"\nloss = \"0.1%\"");
        self.line("queue = { kind = \"pfifo\", limit = \"40p\" }");
        let ends = self.wires.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]);
        for (number, (node, peer)) in ends.collect::<Vec<_>>().into_iter().enumerate() {
            // The first link is always there, so that even an empty input makes a plan with a bottleneck.
            if number > 0 && self.choices.chance(70) {
                continue;
            }
            let name = format!("l{number}");
            let (kind, least_bps, can_delay) =
                link_keys::write(self, &name, (NODES[node], NODES[peer]));
            self.links.push(Link { name, node, kind, least_bps, can_delay });
        }
    }

    /// Returns whether every link to which a node sends has a rate.
    fn is_limited(&self, node: usize) -> bool {
        let ends = self.wires.iter().filter(|(a, b)| *a == node || *b == node).count();
        let has_rate = |link: &&Link| link.node == node && link.kind != Kind::Unlimited;
        self.links.iter().filter(has_rate).count() == ends
    }

    /// Returns two different nodes.
    fn ends(&mut self) -> (usize, usize) {
        let from = self.choices.below(self.node_count as u64) as usize;
        let distance = 1 + self.choices.below(self.node_count as u64 - 1) as usize;
        (from, (from + distance) % self.node_count)
    }

    /// Returns a node's name, for the match of a class.
    pub(super) fn any_node(&mut self) -> &'static str {
        NODES[self.choices.below(self.node_count as u64) as usize]
    }

    fn flow(&mut self, number: u64) {
        let (from, to) = self.ends();
        let name = format!("f{number}");
        self.line(&format!("\n[flows.{name}]\nfrom = \"{}\"\nto = \"{}\"", NODES[from], NODES[to]));
        if !self.choices.chance(16) {
            let cc = self.choices.below(self.controls.len() as u64) as usize;
            self.line(&format!("cc = \"{}\"", self.controls[cc]));
            if self.probing.contains(&self.controls[cc]) {
                self.probing_flows.push(number);
            }
        }
        let count = self.choices.pick(&[1, 1, 2, 3]);
        self.line(&format!("count = {count}"));
        let is_reverse = self.choices.chance(64);
        if is_reverse {
            self.line("reverse = true");
        }
        let sender = if is_reverse { to } else { from };
        if !self.is_limited(sender) || self.choices.chance(80) {
            let rate_bps = self.choices.between(20_000, 6_000_000);
            self.line(&format!("rate = \"{rate_bps}bit\""));
        }
        if self.choices.chance(64) {
            let jitter = self.choices.pick(&["0us", "1ms", "9ms"]);
            self.line(&format!("start_jitter = \"{jitter}\""));
        }
        if self.choices.chance(64) {
            let interval = self.choices.pick(&["150ms", "1s"]);
            self.line(&format!("interval = \"{interval}\""));
        }
        if self.choices.chance(32) {
            let tool = self.choices.pick(&["ccbench", "iperf3"]);
            self.line(&format!("tool = \"{tool}\""));
        }
        self.times(&name);
    }

    /// Sets when a flow runs, for 10 ms or longer.
    fn times(&mut self, name: &str) {
        if self.choices.chance(24) {
            // The flow runs from the beginning.
            let stop_ms = 20 + self.choices.below(self.length_ms() - 20 + 1);
            return self.line(&format!("stop = \"{stop_ms}ms\""));
        }
        if self.choices.chance(70) {
            let start_ms = self.choices.below(self.length_ms() - 20);
            self.line(&format!("start = \"{start_ms}ms\""));
            if self.choices.chance(150) {
                let longest_ms = self.length_ms() - start_ms - 10;
                let stop_ms = start_ms + 10 + self.choices.below(longest_ms + 1);
                self.line(&format!("stop = \"{stop_ms}ms\""));
            }
            return;
        }
        let first = self.choices.below(self.phases_ms.len() as u64) as usize;
        let phases = 1 + self.choices.below((self.phases_ms.len() - first) as u64) as usize;
        for flows in &mut self.phase_flows[first..first + phases] {
            flows.push(format!("\"{name}\""));
        }
    }

    fn stream(&mut self) {
        if !self.choices.chance(40) {
            return;
        }
        let (from, to) = self.ends();
        let (from, to) = (NODES[from], NODES[to]);
        let rate_kbit = self.choices.between(100, 20_000);
        let every_ms = self.choices.between(10, 200);
        let start_ms = self.choices.below(self.length_ms());
        self.line(&format!(
            "\n[probes.stream]\nkind = \"udp_stream\"\nfrom = \"{from}\"\nto = \"{to}\"\nrate = \"{rate_kbit}kbit\"\n\
             every = \"{every_ms}ms\"\nstart = \"{start_ms}ms\""
        ));
    }

    fn probes(&mut self) {
        for number in 0..self.choices.below(4) {
            let (from, to) = self.ends();
            let kind = self.choices.pick(&["udp", "ping", "tcp_connect", "http"]);
            let (from, to) = (NODES[from], NODES[to]);
            self.line(&format!(
                "\n[probes.p{number}]\nkind = \"{kind}\"\nfrom = \"{from}\"\nto = \"{to}\""
            ));
            let every_ms = self.choices.between(10, 200);
            self.line(&format!("every = \"{every_ms}ms\""));
            if self.choices.chance(80) {
                let start_ms = self.choices.below(self.length_ms());
                self.line(&format!("start = \"{start_ms}ms\""));
            }
            let repeats: &[&str] = match kind {
                "udp" | "ping" => &["interval", "once"],
                _ => &["interval", "back-to-back", "once"],
            };
            let mut repeat = "interval";
            if self.choices.chance(100) {
                repeat = self.choices.pick(repeats);
                self.line(&format!("repeat = \"{repeat}\""));
            }
            if self.choices.chance(80) {
                let timeout_ms = self.choices.between(10, 1000);
                self.line(&format!("timeout = \"{timeout_ms}ms\""));
            }
            let tos = self.choices.pick(&[0, 1, 2, 184, 3]);
            self.line(&format!("tos = {tos}"));
            if kind == "http" {
                self.file(repeat == "back-to-back");
            }
        }
    }

    /// Sets the file of a web server, and its congestion control.
    fn file(&mut self, is_back_to_back: bool) {
        // Over a path without delay, a thousand fetches begin per second.
        let lengths: &[u64] =
            if is_back_to_back { &[5000, 1, 20_000, 0] } else { &[20_000, 1, 200_000, 0] };
        let bytes = self.choices.pick(lengths);
        self.line(&format!("bytes = \"{bytes}B\""));
        if self.choices.chance(160) {
            let cc = self.choices.below(self.controls.len() as u64) as usize;
            self.line(&format!("cc = \"{}\"", self.controls[cc]));
        }
    }

    fn phases(&mut self) {
        let flows = self.phase_flows.iter().map(|flows| flows.join(", "));
        let phases: Vec<(u64, String)> = self.phases_ms.iter().copied().zip(flows).collect();
        for (number, (length_ms, flows)) in phases.into_iter().enumerate() {
            self.line(&format!(
                "\n[[phases]]\nname = \"phase{number}\"\nlength = \"{length_ms}ms\""
            ));
            self.line(&format!("flows = [{flows}]"));
            if self.choices.chance(40) {
                self.line("measure = false");
            }
        }
    }

    /// Makes changes of rate, delay and loss.
    fn changes(&mut self) {
        for number in 0..self.choices.below(5) {
            let at_ms = (number + 1) * self.length_ms() / 6;
            let link = &self.links[self.choices.below(self.links.len() as u64) as usize];
            let mut values = Vec::new();
            if matches!(link.kind, Kind::Rated | Kind::Preset) {
                let rate_bps = self.choices.between(200_000, 32_000_000).max(link.least_bps);
                values.push(("rate", format!("{rate_bps}bit")));
            }
            if link.can_delay {
                values.push(("delay", format!("{}us", self.choices.between(1, 40_000))));
                values.push(("loss", self.choices.pick(&["0%", "1%", "20%"]).to_owned()));
            }
            values.retain(|_| !self.choices.chance(100));
            let set = |(key, value): &(&str, String)| {
                format!("\"links.{}.{key}\" = \"{value}\"", link.name)
            };
            let sets: Vec<String> = values.iter().map(set).collect();
            if !sets.is_empty() {
                let sets = sets.join(", ");
                let when = self.when(at_ms);
                self.line(&format!("\n[[changes]]\n{when}\nset = {{ {sets} }}"));
            }
        }
    }

    /// Makes factors. The last of their points is simulated.
    fn matrix(&mut self) {
        if !self.choices.chance(40) {
            return;
        }
        self.line("\n[matrix]\n\"flows.f0.count\" = [1, 2]");
        let levels = [
            "[matrix.a]\na1 = { \"sample.tcp\" = \"20ms\" }\na2 = { \"sample.tcp\" = \"5ms\" }",
            "[matrix.b]\nb1 = { \"sample.qdisc\" = \"1s\" }\n\
             b2 = { \"flows.f0.interval\" = \"200ms\", \"sample.qdisc\" = \"50ms\" }",
        ];
        self.some_lines(128, &levels);
    }

    /// Sets when a change is made: at this time or, if a flow's congestion control has states, in one of them.
    fn when(&mut self, at_ms: u64) -> String {
        if self.probing_flows.is_empty() || !self.choices.chance(80) {
            return format!("at = \"{at_ms}ms\"");
        }
        let flow = self.probing_flows[self.choices.below(self.probing_flows.len() as u64) as usize];
        let state = self.choices.pick(&["DRAIN", "STARTUP", "DOWN", "CRUISE", "PROBE_RTT"]);
        let rest = self.choices.pick(&["", ", after = \"10ms\"", ", for = \"50ms\", once = false"]);
        format!("when = {{ flow = \"f{flow}\", cc_state = \"{state}\"{rest} }}")
    }
}
