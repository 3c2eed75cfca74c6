//! Frees nodes that another controller may hold.

use std::collections::BTreeMap;

use ccbench_proto::wire;
use futures_util::future::join_all;

use super::{Address, Agent, AgentError, call, check_loopback};
use crate::tls::Tls;

/// Ends the trial that holds each node, also that of another client, and undoes its changes. Returns by node what was undone and what could not be, or
/// why the node was not reset. The other nodes are reset nevertheless.
///
/// # Errors
/// A node's agent is not on loopback, and there are no certificates.
pub async fn free(
    addresses: BTreeMap<String, Address>,
    tls: Option<&Tls>,
) -> Result<BTreeMap<String, Result<wire::ResetReply, AgentError>>, AgentError> {
    if tls.is_none() {
        check_loopback(&addresses)?;
    }
    let resets = addresses.into_iter().map(|(node, address)| async move {
        let reply = free_one(&node, address, tls).await;
        (node, reply)
    });
    Ok(join_all(resets).await.into_iter().collect())
}

async fn free_one(
    node: &str,
    address: Address,
    tls: Option<&Tls>,
) -> Result<wire::ResetReply, AgentError> {
    let mut agent = Agent::connect(node, address, tls).await?;
    // Without a run, a Reset is permitted for a node that any client holds.
    call(node, "reset", agent.client.reset(wire::ResetRequest::default())).await
}
