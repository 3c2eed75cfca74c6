//! The event loop.

use std::collections::{BTreeMap, VecDeque};

use ccbench_proto::event::{Kind, NoData};
use ccbench_proto::plan::Ecn;
use ccbench_proto::plan::check::CheckedPlan;
use ccbench_proto::resolve::TimedChange;
use ccbench_proto::schedule::{CONNECT_TIMEOUT_S, NodeTask};
use ccbench_proto::topology::Topology;
use ccbench_proto::wire;
use ccbench_proto::wire::run_event::Payload;

use crate::T0_NS;
use crate::acks::AckRows;
use crate::connection::{Connection, State};
use crate::error::SimulatorError;
use crate::event_queue::EventQueue;
use crate::half_connection::SocketTimer;
use crate::network::{Forwarded, Network};
use crate::packet::{Body, Packet};
use crate::probes::SimulatedProbe;
use crate::rows::{FlowRows, Rows};
use crate::tcp::wheel_ns;
use crate::tcp_probes::{MeasurementEvent, TcpProbe};

mod triggers;

/// Events of a simulation.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// A link has work to do.
    Link(usize),
    /// An application connects, or the handshake's timer expires.
    Connect(usize),
    /// An application stops waiting for its connect().
    ConnectTimeout(usize),
    /// An application with a rate writes.
    Write(usize),
    StopFlow(usize),
    Timer(usize, SocketTimer),
    /// The plan changes a link.
    LinkChange(usize, usize),
    /// A change of a link that a flow's state has triggered.
    Trigger(usize),
    Probe(usize),
    ProbeTimeout(usize, u32),
    TcpProbe(usize, MeasurementEvent),
    SampleFlows,
    SampleLinks,
    IntervalEnd(usize),
    Phase(usize),
}

/// A trial to simulate.
pub struct Simulation {
    nodes: BTreeMap<String, NodeTask>,
    infos: BTreeMap<String, wire::NodeInfo>,
    network: Network,
    connections: Vec<Connection>,
    probes: Vec<SimulatedProbe>,
    tcp_probes: Vec<TcpProbe>,
    events: EventQueue<Event>,
    end_ns: u64,
    /// Whether a flow's state changes a link.
    has_triggers: bool,
    /// A rule that a congestion control violated.
    violation: Option<SimulatorError>,
    flow_rows: Vec<FlowRows>,
    ack_rows: Vec<AckRows>,
    /// Packets of this instant that are waiting for their next link.
    in_transit: VecDeque<Packet>,
}

impl Simulation {
    /// Creates a trial of a point of a plan. Flow groups get the defaults of trials on virtual time ([`CheckedPlan::with_lab_defaults`]).
    /// `seed` is the trial's.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn of_trial(point: &CheckedPlan, seed: u64) -> Result<Self, SimulatorError> {
        let (nodes, topology) = crate::prepare::trial(point, seed);
        Self::new(nodes, &topology, seed)
    }

    /// Creates a trial. `nodes`: what each node does, from [`ccbench_proto::schedule::task_for`]; `topology`: of the normalized plan.
    ///
    /// `seed` is the trial's.
    ///
    /// # Errors
    /// The trial cannot be simulated: [`SimulatorError::Link`], [`SimulatorError::NoInterface`], [`SimulatorError::NoPath`],
    /// [`SimulatorError::CongestionControl`], [`SimulatorError::Parameter`].
    pub fn new(
        nodes: BTreeMap<String, NodeTask>,
        topology: &Topology,
        seed: u64,
    ) -> Result<Self, SimulatorError> {
        let mut network = Network::new(&nodes, topology, 0, T0_NS)?;
        let connections = crate::prepare::connections(&nodes, topology, &mut network, seed)?;
        let probes = crate::prepare::probes(&nodes, topology, &mut network)?;
        let length_ns = nodes.values().map(|task| task.length.nanos()).max().unwrap_or(0);
        let end_ns = T0_NS + length_ns;
        let tcp_probes =
            crate::prepare::tcp_probes(&nodes, topology, &mut network, (seed, end_ns))?;
        Ok(Self {
            infos: crate::prepare::infos(&nodes, topology),
            flow_rows: connections.iter().map(FlowRows::new).collect(),
            ack_rows: connections.iter().map(|flow| AckRows::new(flow, &nodes)).collect(),
            has_triggers: network.links.iter().any(|link| link.triggered.has_triggers()),
            network,
            connections,
            probes,
            tcp_probes,
            events: EventQueue::new(),
            end_ns,
            violation: None,
            in_transit: VecDeque::new(),
            nodes,
        })
    }

    /// Returns the nodes' replies to Describe, by node.
    pub fn infos(&self) -> BTreeMap<String, wire::NodeInfo> {
        self.infos.clone()
    }

    /// Returns the nodes' replies to Prepare, by node.
    pub fn replies(&self) -> BTreeMap<String, wire::PrepareReply> {
        crate::prepare::replies(&self.nodes, &self.network, &self.connections)
    }

    /// Runs to the end, or until `should_continue` returns false (checked every 4096 events). `emit` receives each row with its node.
    ///
    /// # Errors
    /// [`SimulatorError::Stopped`], or [`SimulatorError::Violation`] for a congestion control.
    pub fn run(
        mut self,
        emit: &mut dyn FnMut(&str, wire::RunEvent),
        should_continue: &dyn Fn() -> bool,
    ) -> Result<(), SimulatorError> {
        const EVENTS_PER_STOP_CHECK: u64 = 4096;
        let (mut rows, mut count) = (Rows::new(emit), 0_u64);
        self.schedule();
        self.report_initial_link_changes(&mut rows);
        while let Some((now_ns, event)) = self.events.pop() {
            if now_ns > self.end_ns {
                break;
            }
            self.handle_event(now_ns, event, &mut rows);
            self.move_packets(now_ns, &mut rows);
            if let Some(error) = self.violation.take() {
                return Err(error);
            }
            count += 1;
            if count.is_multiple_of(EVENTS_PER_STOP_CHECK) && !should_continue() {
                return Err(SimulatorError::Stopped);
            }
        }
        self.finish(&mut rows);
        Ok(())
    }

    /// Queues the events that are known from the beginning.
    fn schedule(&mut self) {
        for (index, connection) in self.connections.iter().enumerate() {
            let task = &connection.task;
            if connection.stream == 0 {
                self.events.add(T0_NS + task.start.nanos(), Event::Connect(index));
            }
            self.events.add(T0_NS + task.stop.nanos(), Event::StopFlow(index));
        }
        for (index, link) in self.network.links.iter().enumerate() {
            for (number, change) in link.changes.iter().enumerate() {
                self.events.add(T0_NS + change.at.nanos(), Event::LinkChange(index, number));
            }
        }
        for (index, probe) in self.probes.iter().enumerate() {
            self.events.add(T0_NS + probe.start_ns(), Event::Probe(index));
        }
        for (index, probe) in self.tcp_probes.iter().enumerate() {
            let begin = Event::TcpProbe(index, MeasurementEvent::Begin);
            self.events.add(probe.start_ns(), begin);
        }
        if let Some(task) = self.nodes.values().next() {
            for (number, phase) in task.phases.iter().enumerate() {
                self.events.add(T0_NS + phase.start.nanos(), Event::Phase(number));
            }
        }
        self.events.add(T0_NS, Event::SampleFlows);
        self.events.add(T0_NS, Event::SampleLinks);
    }

    fn handle_event(&mut self, now_ns: u64, event: Event, rows: &mut Rows<'_>) {
        match event {
            Event::Link(index) => {
                let link = &mut self.network.links[index];
                // Stale: the timer was queued again for another time.
                if link.queued_ns == now_ns {
                    link.queued_ns = u64::MAX;
                    self.serve_link(now_ns, index);
                }
            }
            Event::Connect(index) => self.open(now_ns, index, rows),
            Event::ConnectTimeout(index) => self.on_connect_timeout(now_ns, index, rows),
            Event::Write(index) => self.write(now_ns, index, rows),
            Event::StopFlow(index) => self.stop(now_ns, index, rows),
            Event::Timer(index, timer) => self.timer(now_ns, index, timer, rows),
            Event::LinkChange(index, number) => {
                let link = &mut self.network.links[index];
                let change = link.triggered.make_lasting(link.changes[number].clone());
                self.change_link(now_ns, index, &change, rows);
            }
            Event::Trigger(index) => self.make_triggered_changes(now_ns, index, rows),
            Event::Probe(index) => self.send_probe(now_ns, index),
            Event::ProbeTimeout(index, seq) => self.end_probe(now_ns, index, seq, true, rows),
            Event::TcpProbe(index, event) => {
                self.tcp_probes[index].on_event(now_ns, event, &mut self.network);
                self.after_tcp_probe(index, rows);
            }
            Event::SampleFlows => self.sample_flows(now_ns, rows),
            Event::SampleLinks => self.sample_links(now_ns, rows),
            Event::IntervalEnd(index) => {
                let connection = &mut self.connections[index];
                if let Some(next_ns) = self.flow_rows[index].interval(now_ns, connection, rows) {
                    self.events.add(next_ns, Event::IntervalEnd(index));
                }
            }
            Event::Phase(number) => {
                for (node, task) in &self.nodes {
                    if let Some(phase) = task.phases.get(number) {
                        rows.event(now_ns, node, Kind::PhaseStart(NoData {}), &phase.name, "");
                    }
                }
            }
        }
    }

    /// Moves all packets of this instant until each is in a link or at the end of its route.
    fn move_packets(&mut self, now_ns: u64, rows: &mut Rows<'_>) {
        while let Some(packet) = self.in_transit.pop_front() {
            match self.network.forward(now_ns, packet) {
                Forwarded::ToLink(index) => self.serve_link(now_ns, index),
                Forwarded::Arrived(packet) => self.arrive(now_ns, packet, rows),
            }
        }
    }

    /// Lets a link do what is due, and queues its next event.
    fn serve_link(&mut self, now_ns: u64, index: usize) {
        self.network.links[index].link.advance(now_ns);
        while let Some(departure) = self.network.links[index].link.pop() {
            let mut packet = departure.payload;
            packet.hop += 1;
            if departure.marked {
                packet.ecn = Ecn::Ce;
            }
            self.in_transit.push_back(packet);
        }
        let link = &mut self.network.links[index];
        let next_ns = link.link.next_event_ns().max(now_ns);
        if next_ns < link.queued_ns {
            link.queued_ns = next_ns;
            self.events.add(next_ns, Event::Link(index));
        }
    }

    /// Processes a packet that is at the end of its route.
    fn arrive(&mut self, now_ns: u64, packet: Packet, rows: &mut Rows<'_>) {
        if packet.is_corrupt {
            return;
        }
        if let Body::Echo(echo) = packet.body {
            let index = echo.probe as usize;
            if echo.is_reply {
                return self.end_probe(now_ns, index, echo.seq, false, rows);
            }
            let answer = self.probes[index].answer(echo);
            return self.in_transit.push_back(answer);
        }
        // The routes of connections come first, two for each connection.
        let index = packet.route as usize / 2;
        let Some(connection) = self.connections.get_mut(index) else {
            return self.arrive_at_tcp_probe(now_ns, &packet, rows);
        };
        match packet.body {
            Body::Segment(segment) => {
                self.ack_rows[index].on_segment(now_ns, connection, packet.ecn, rows);
                let reply = connection.on_segment(now_ns, &segment, packet.ecn);
                self.queue_timer(now_ns, index, SocketTimer::DelayedAck);
                self.in_transit.extend(reply);
            }
            Body::Ack(ack) => {
                let Some(sender) = connection.sender() else { return };
                sender.on_ack(now_ns, &ack);
                self.ack_rows[index].on_ack(now_ns, connection, rows);
                if let Some(sender) = connection.sender() {
                    sender.data_snd_check(now_ns);
                }
                self.after_sender(now_ns, index, rows);
            }
            body => {
                let was_open = connection.established_ns.is_some();
                let answer = connection.on_handshake(now_ns, &body);
                let is_open = connection.established_ns.is_some();
                self.in_transit.extend(answer);
                if is_open && !was_open {
                    self.established(now_ns, index, rows);
                }
                if matches!(body, Body::SynAck(_)) {
                    self.open_next(now_ns, index, rows);
                }
            }
        }
    }

    fn open(&mut self, now_ns: u64, index: usize, rows: &mut Rows<'_>) {
        let connection = &mut self.connections[index];
        if matches!(connection.state, State::Closed) {
            if connection.stream == 0 {
                rows.flow_start(now_ns, connection);
            }
            let timeout_ns = wheel_ns(now_ns, CONNECT_TIMEOUT_S * 1_000_000_000);
            self.events.add(timeout_ns, Event::ConnectTimeout(index));
        }
        if let Some((syn, retry_ns)) = connection.open(now_ns) {
            self.events.add(retry_ns, Event::Connect(index));
            self.in_transit.push_back(syn);
        }
    }

    /// Opens the application's next connection once the last one is established, as ccbench's generator and iperf3 do.
    fn open_next(&mut self, now_ns: u64, index: usize, rows: &mut Rows<'_>) {
        let stream = self.connections[index].stream;
        let next = self.connections.get(index + 1);
        if next.is_some_and(|next| next.stream > stream && matches!(next.state, State::Closed)) {
            self.open(now_ns, index + 1, rows);
        }
    }

    /// Reports that connect() has failed. The application then ends, which resets the connections that it has.
    fn on_connect_timeout(&mut self, now_ns: u64, index: usize, rows: &mut Rows<'_>) {
        let connection = &self.connections[index];
        if connection.is_connected || !matches!(connection.state, State::SynSent) {
            return;
        }
        let first = index - connection.stream as usize;
        for index in first..first + connection.task.plan.count as usize {
            self.end(now_ns, index, State::Failed, rows);
        }
        rows.connect_error(now_ns, &self.connections[index]);
    }

    /// Ends the application at its time, which resets its connection.
    fn stop(&mut self, now_ns: u64, index: usize, rows: &mut Rows<'_>) {
        let connection = &self.connections[index];
        if connection.stopped_ns.is_some() {
            if connection.stream == 0 {
                rows.no_report(now_ns, connection);
            }
            return;
        }
        self.end(now_ns, index, State::Ended, rows);
        rows.flow_end(now_ns, &self.connections[index]);
    }

    fn end(&mut self, now_ns: u64, index: usize, state: State, rows: &mut Rows<'_>) {
        let connection = &mut self.connections[index];
        connection.stopped_ns = Some(now_ns);
        self.flow_rows[index].finish(now_ns, connection, rows);
        connection.state = state;
    }

    /// Records that a connection has been established. The application starts once all connections of its group are.
    fn established(&mut self, now_ns: u64, index: usize, rows: &mut Rows<'_>) {
        let connection = &mut self.connections[index];
        self.ack_rows[index].established(now_ns, connection, rows);
        let first = index - connection.stream as usize;
        let group = first..first + connection.task.plan.count as usize;
        if self.connections[group.clone()].iter().any(|other| other.established_ns.is_none()) {
            return self.after_sender(now_ns, index, rows);
        }
        let earlier = self.in_transit.len();
        for index in group {
            self.connections[index].started_ns = Some(now_ns);
            let first_ns = self.flow_rows[index].begin(now_ns);
            self.events.add(first_ns, Event::IntervalEnd(index));
            self.write(now_ns, index, rows);
        }
        self.interleave(earlier);
    }

    /// Interleaves the packets behind the first `earlier` ones, one of each connection in turn: ccbench's generator writes to each
    /// connection in a separate thread.
    fn interleave(&mut self, earlier: usize) {
        let mut counts = BTreeMap::new();
        let number = |packet: Packet| {
            let count = counts.entry(packet.route).or_insert(0_u32);
            *count += 1;
            (*count, packet)
        };
        let mut packets: Vec<(u32, Packet)> =
            self.in_transit.drain(earlier..).map(number).collect();
        packets.sort_by_key(|(number, _)| *number);
        self.in_transit.extend(packets.into_iter().map(|(_, packet)| packet));
    }

    fn write(&mut self, now_ns: u64, index: usize, rows: &mut Rows<'_>) {
        if let Some(next_ns) = self.connections[index].write(now_ns) {
            self.events.add(next_ns, Event::Write(index));
        }
        self.after_sender(now_ns, index, rows);
    }

    fn timer(&mut self, now_ns: u64, index: usize, timer: SocketTimer, rows: &mut Rows<'_>) {
        let Some(half) = self.connections[index].half() else { return };
        if !half.take_event(now_ns, timer) {
            return;
        }
        let reply = half.on_timer(now_ns, timer);
        if timer == SocketTimer::DelayedAck {
            self.queue_timer(now_ns, index, timer);
            self.in_transit.extend(reply);
            return;
        }
        self.after_sender(now_ns, index, rows);
    }

    /// Transmits the sender's output and queues its timers.
    fn after_sender(&mut self, now_ns: u64, index: usize, rows: &mut Rows<'_>) {
        let connection = &mut self.connections[index];
        AckRows::sender_events(connection, rows);
        let has_state_rows = connection.instance.is_some();
        let Some(half) = connection.half() else { return };
        self.in_transit.extend(half.sent());
        if let Some(violation) = half.sender.violation() {
            let subject = format!("flow {}", connection.task.group);
            self.violation = Some(SimulatorError::Violation { subject, violation });
            return;
        }
        if has_state_rows && let Some((round, stats)) = half.sender.take_state(now_ns) {
            rows.cc_state(now_ns, &self.connections[index], round, &stats);
        }
        if self.has_triggers {
            self.observe_state(now_ns, index);
        }
        self.queue_timer(now_ns, index, SocketTimer::Retransmission);
        self.queue_timer(now_ns, index, SocketTimer::Pacing);
    }

    fn queue_timer(&mut self, now_ns: u64, index: usize, timer: SocketTimer) {
        let half = self.connections[index].half();
        if let Some(at_ns) = half.and_then(|half| half.queue_event(now_ns, timer)) {
            self.events.add(at_ns, Event::Timer(index, timer));
        }
    }

    fn send_probe(&mut self, now_ns: u64, index: usize) {
        let sent = self.probes[index].send(now_ns);
        if let (Body::Echo(echo), Some(timeout_ns)) = (sent.packet.body, sent.timeout_ns) {
            self.events.add(timeout_ns, Event::ProbeTimeout(index, echo.seq));
        }
        if let Some(next_ns) = sent.next_ns {
            self.events.add(next_ns, Event::Probe(index));
        }
        self.in_transit.push_back(sent.packet);
    }

    fn end_probe(
        &mut self,
        now_ns: u64,
        index: usize,
        seq: u32,
        is_lost: bool,
        rows: &mut Rows<'_>,
    ) {
        let probe = &mut self.probes[index];
        let Some(row) = probe.finish(now_ns, seq, is_lost) else { return };
        rows.push(&probe.node, Payload::Probe(row));
        if let Some(next_ns) = probe.next_interval_ns(now_ns) {
            self.events.add(next_ns, Event::ProbeTimeout(index, seq + 1));
        }
        if probe.is_back_to_back() {
            self.events.add(now_ns, Event::Probe(index));
        }
    }

    /// Processes a packet of a measurement's connection at the end of its route. Packets of earlier connections are ignored.
    fn arrive_at_tcp_probe(&mut self, now_ns: u64, packet: &Packet, rows: &mut Rows<'_>) {
        let index = self.tcp_probes.iter().position(|probe| probe.has_route(packet.route));
        if let Some(index) = index {
            self.tcp_probes[index].on_packet(now_ns, packet);
            self.after_tcp_probe(index, rows);
        }
    }

    /// Transmits, queues and reports a probe's output.
    fn after_tcp_probe(&mut self, index: usize, rows: &mut Rows<'_>) {
        let probe = &mut self.tcp_probes[index];
        self.in_transit.extend(probe.outbox.drain(..));
        for (at_ns, event) in probe.events.drain(..) {
            self.events.add(at_ns, Event::TcpProbe(index, event));
        }
        if let Some(violation) = probe.violation() {
            let subject = format!("probe {}", probe.id());
            self.violation = Some(SimulatorError::Violation { subject, violation });
        }
        if let Some(row) = probe.ended.take() {
            rows.push(&probe.node, Payload::Probe(row));
        }
    }

    fn change_link(
        &mut self,
        now_ns: u64,
        index: usize,
        change: &TimedChange,
        rows: &mut Rows<'_>,
    ) {
        let link = &mut self.network.links[index];
        let mut failed = false;
        if let Some(rate) = change.rate {
            failed = link.link.set_rate(now_ns, rate).is_err();
        }
        if let Some(delay) = change.delay {
            link.link.set_delay(now_ns, delay);
        }
        if let Some(loss) = change.loss {
            link.link.set_loss(loss);
        }
        if let Some(number) = change.queue {
            link.link.set_queue(now_ns, number);
        }
        rows.link_change(now_ns, link, change, failed);
        self.serve_link(now_ns, index);
    }

    /// Reports the initial configuration of every link.
    fn report_initial_link_changes(&mut self, rows: &mut Rows<'_>) {
        for link in &self.network.links {
            rows.initial_link_change(link, &self.nodes);
        }
    }

    fn sample_flows(&mut self, now_ns: u64, rows: &mut Rows<'_>) {
        for (connection, flow) in self.connections.iter_mut().zip(&mut self.flow_rows) {
            flow.sample(now_ns, connection, rows);
        }
        let intervals = self.nodes.values().map(|task| task.sample.tcp.nanos());
        let next_ns = now_ns + intervals.min().unwrap_or(u64::MAX / 4).max(1);
        self.events.add(next_ns, Event::SampleFlows);
    }

    fn sample_links(&mut self, now_ns: u64, rows: &mut Rows<'_>) {
        for index in 0..self.network.links.len() {
            self.serve_link(now_ns, index);
            rows.sample_link(now_ns, &mut self.network.links[index]);
        }
        let intervals = self.nodes.values().map(|task| task.sample.qdisc.nanos());
        let next_ns = now_ns + intervals.min().unwrap_or(u64::MAX / 4).max(1);
        self.events.add(next_ns, Event::SampleLinks);
    }

    /// Emits the last rows.
    fn finish(mut self, rows: &mut Rows<'_>) {
        for (connection, flow) in self.connections.iter_mut().zip(&mut self.flow_rows) {
            flow.finish(self.end_ns, connection, rows);
        }
        for (connection, acks) in self.connections.iter_mut().zip(&mut self.ack_rows) {
            acks.finish(connection, rows);
        }
        for link in &mut self.network.links {
            rows.finish_link(self.end_ns, link);
        }
        self.report_missing_changes(rows);
        for probe in self.tcp_probes.iter().filter(|probe| probe.is_measuring()) {
            rows.probe_unfinished(self.end_ns, &probe.node, probe.id());
        }
        for node in self.nodes.keys() {
            rows.finish_node(self.end_ns, node);
        }
    }
}
