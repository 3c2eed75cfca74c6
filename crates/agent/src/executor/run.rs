//! The timeline of one trial, from Run to its last row.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ccbench_collector::FlowPorts;
use ccbench_proto::event::{BaseRtt, Kind, NoData};
use ccbench_proto::schedule::{FlowTask, NodeTask, ProbeTask};
use ccbench_proto::wire::run_event::Payload;
use futures_util::future::join_all;
use tokio::sync::watch;

use super::Dependencies;
use super::clock_steps;
use super::outbox::Outbox;
use super::samples::SamplerThread;
use super::traffic::{self, RunContext};
use crate::clock;
use crate::flow::Traffic;
use crate::probe::ping;
use crate::probe::process::{self, ProcessError};

/// Pings before the start, and the gap between two.
const BASE_PINGS: u16 = 5;
const BASE_GAP: Duration = Duration::from_millis(20);

/// Returns the sockets that the sampler looks for.
pub fn flow_ports(task: &NodeTask) -> Vec<FlowPorts> {
    let ports = |flow: &FlowTask, listens| FlowPorts {
        group: flow.group.clone(),
        server_port: flow.server_port,
        client_port: flow.client_port,
        count: flow.plan.count,
        listens,
        reverse: flow.plan.reverse,
    };
    let clients = task.clients.iter().map(|flow| ports(flow, false));
    clients.chain(task.servers.iter().map(|flow| ports(flow, true))).collect()
}

/// Runs everything except the samples, which run already. Returns when all of it has ended.
pub async fn timeline(
    task: &NodeTask,
    servers: Vec<(FlowTask, Box<dyn Traffic>)>,
    context: RunContext,
) {
    let parts: Vec<crate::flow::BoxFuture<'_, ()>> = vec![
        Box::pin(base_rtts(&task.peers, context.start_at_ns, &context.out)),
        Box::pin(phases(task, &context)),
        Box::pin(probes(task, &context)),
        Box::pin(clock_steps::watch(&context, context.start_at_ns + task.length.nanos())),
    ];
    let clients = task.clients.iter().map(|flow| {
        let run: crate::flow::BoxFuture<'_, ()> =
            Box::pin(traffic::client(context.clone(), flow.clone()));
        run
    });
    let servers = servers.into_iter().map(|(flow, listening)| {
        let run: crate::flow::BoxFuture<'_, ()> =
            Box::pin(traffic::server(context.clone(), flow, listening));
        run
    });
    join_all(parts.into_iter().chain(clients).chain(servers)).await;
}

async fn base_rtts(peers: &BTreeMap<String, IpAddr>, start_at_ns: u64, out: &Outbox) {
    // The echoes would cross this machine's network, not the simulated one.
    if clock::is_simulated() {
        return;
    }
    let measured = peers.iter().map(|(peer, &ip)| async move {
        let measuring = ping::base_rtt(ip, BASE_PINGS, BASE_GAP, start_at_ns);
        let (message, rtt) = match measuring.await {
            Ok((min_us @ Some(_), n)) => (String::new(), BaseRtt { min_us, n }),
            Ok((None, _)) => ("no reply".to_owned(), BaseRtt::default()),
            Err(error) => (format!("ping {ip}: {error}"), BaseRtt::default()),
        };
        out.event(Kind::BaseRtt(rtt), peer, message).await;
    });
    join_all(measured).await;
}

async fn phases(task: &NodeTask, context: &RunContext) {
    for phase in &task.phases {
        tokio::select! {
            () = clock::sleep_until(context.start_at_ns + phase.start.nanos()) => {}
            () = context.cancelled() => return,
        }
        context.out.event(Kind::PhaseStart(NoData {}), &phase.name, "").await;
    }
    tokio::select! {
        () = clock::sleep_until(context.start_at_ns + task.length.nanos()) => {}
        () = context.cancelled() => return,
    }
    context.out.event(Kind::TrialEnd(NoData {}), "", "").await;
}

async fn probes(task: &NodeTask, context: &RunContext) {
    let end_at_ns = context.start_at_ns + task.length.nanos();
    let run = task.probes.iter().map(|probe| async move {
        if let Err(error) = measure(probe, context, end_at_ns).await {
            context.out.event(Kind::ProbeError(NoData {}), &probe.id, error.to_string()).await;
        }
    });
    join_all(run).await;
}

async fn measure(
    probe: &ProbeTask,
    context: &RunContext,
    end_at_ns: u64,
) -> Result<(), ProcessError> {
    let out = context.out.clone();
    let mut emit = move |row| out.offer(Payload::Probe(row));
    let group = context.traffic_group.as_deref();
    let span_ns = (context.start_at_ns, end_at_ns);
    let measured = process::measure(probe, group, span_ns, context.cancelled(), &mut emit).await?;
    if let Some(late_ns) = measured.late_ns(probe, context.start_at_ns) {
        let message = format!(
            "began {:.3} ms late: the node lacked CPU time; measurements before that are missing",
            late_ns as f64 / 1e6
        );
        context.out.event(Kind::ProbeError(NoData {}), &probe.id, message).await;
    }
    let left = measured.unfinished;
    if left > 0 {
        let message = format!(
            "unfinished measurements at the end of the trial: {left}; they have no row and count neither as measured nor as lost"
        );
        context.out.event(Kind::ProbeUnfinished(NoData {}), &probe.id, message).await;
    }
    Ok(())
}

/// Returns the context of a trial whose samples run already.
pub fn context(
    dependencies: &Dependencies,
    start_at_ns: u64,
    out: &Outbox,
    sampler: &SamplerThread,
    cancel: watch::Receiver<bool>,
) -> RunContext {
    RunContext {
        source: Arc::clone(&dependencies.source),
        traffic_group: dependencies.traffic_group.clone(),
        start_at_ns,
        out: out.clone(),
        seen: sampler.seen(),
        cancel,
    }
}
