//! The client that a front acts for. The front passes it to its worker with each request.

use std::net::IpAddr;

use ccbench_proto::scope::{Scope, Scopes};
use ccbench_proto::wire::Caller;
use prost::Message as _;
use tonic::codegen::http::HeaderMap;
use tonic::metadata::{MetadataMap, MetadataValue};

use crate::accept::ConnectionHandle;
use crate::control_interface::Peer;
use crate::identity::Identity;

/// The metadata key of a request.
pub const KEY: &str = "ccbench-caller-bin";

/// Why a worker cannot identify the client of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallerError {
    /// The request does not come from a front.
    #[error(
        "the request does not name its caller; this is a worker's socket, which accepts only requests from `ccbench-agent front`"
    )]
    Missing,
    /// The metadata is not base64.
    #[error("the caller of the request is not base64")]
    Encoding,
    /// The metadata is some other message.
    #[error("decode the caller of the request: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// An address is invalid.
    #[error("the caller's address `{0}` is not an IP address")]
    Address(String),
}

/// Adds the client of `connection` to the metadata of a request to the worker.
pub fn insert(connection: &ConnectionHandle, metadata: &mut MetadataMap) {
    let Identity { name, serial, scopes, is_unscoped, .. } = connection.identity().clone();
    let peer = connection.peer();
    let text = |ip: Option<IpAddr>| ip.map_or_else(String::new, |ip| ip.to_string());
    let caller = Caller {
        name,
        serial,
        scopes: scopes.iter().map(|scope| scope.name().to_owned()).collect(),
        is_unscoped,
        peer_ip: text(peer.map(|peer| peer.ip)),
        local_ip: text(peer.and_then(|peer| peer.local)),
        interface_index: peer.map_or(0, |peer| peer.scope_id),
    };
    metadata.insert_bin(KEY, MetadataValue::from_bytes(&caller.encode_to_vec()));
}

/// Returns the client that a front named in a request, with its address and with scopes limited to `limit`.
///
/// # Errors
/// The request names no client, or it cannot be parsed.
pub fn of_request(
    headers: &HeaderMap,
    limit: Scopes,
) -> Result<(Identity, Option<Peer>), CallerError> {
    let metadata = MetadataMap::from_headers(headers.clone());
    let encoded = metadata.get_bin(KEY).ok_or(CallerError::Missing)?;
    let caller = Caller::decode(encoded.to_bytes().map_err(|_| CallerError::Encoding)?)?;
    let address = |text: &str| match text {
        "" => Ok(None),
        text => text.parse::<IpAddr>().map(Some).map_err(|_| CallerError::Address(text.to_owned())),
    };
    let (ip, local) = (address(&caller.peer_ip)?, address(&caller.local_ip)?);
    let peer = ip.map(|ip| Peer { ip, local, scope_id: caller.interface_index });
    // A scope unknown to this version grants nothing.
    let granted: Scopes =
        caller.scopes.iter().filter_map(|name| name.parse::<Scope>().ok()).collect();
    let mut scopes: Scopes = granted.iter().filter(|scope| limit.has(*scope)).collect();
    // `run` includes `read`, but the limit may not permit `run`.
    if granted.has(Scope::Read) && limit.has(Scope::Read) && !scopes.has(Scope::Read) {
        scopes = scopes.with(Scope::Read);
    }
    let withheld = granted.iter().filter(|scope| !limit.has(*scope)).collect();
    let Caller { name, serial, is_unscoped, .. } = caller;
    Ok((Identity { name, serial, scopes, is_unscoped, withheld }, peer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::tests::alice;

    fn passed_on(client: &Identity, peer: Option<Peer>) -> HeaderMap {
        let (_end, connection) = ConnectionHandle::example();
        let mut metadata = MetadataMap::new();
        insert(&connection.on_behalf_of(client.clone(), peer), &mut metadata);
        metadata.into_headers()
    }

    #[test]
    fn a_caller_is_read_back() {
        let client = alice(&[Scope::Run, Scope::Bpf]);
        let of_network = Peer {
            ip: "fe80::1".parse().unwrap(),
            local: Some("fe80::2".parse().unwrap()),
            scope_id: 7,
        };
        for peer in [None, Some(Peer::at([192, 0, 2, 1].into())), Some(of_network)] {
            let found = of_request(&passed_on(&client, peer), Scopes::all());
            assert_eq!(found, Ok((client.clone(), peer)));
        }
    }

    #[test]
    fn a_worker_limits_the_scopes_of_all_callers() {
        let limit = [Scope::Run, Scope::HostNet].into_iter().collect();
        let identity_of =
            |client: &Identity| of_request(&passed_on(client, None), limit).unwrap().0;
        let scopes_of = |client: &Identity| identity_of(client).scopes;
        let all = Identity::local("everything");
        assert_eq!(scopes_of(&all).to_string(), "read,run,host-net");
        assert_eq!(identity_of(&all).withheld.to_string(), "module,bpf,reboot");
        assert_eq!(scopes_of(&alice(&[Scope::HostNet, Scope::Bpf])).to_string(), "host-net");
        assert_eq!(scopes_of(&alice(&[Scope::Read])).to_string(), "read");
        let read = of_request(
            &passed_on(&alice(&[Scope::Run]), None),
            Scopes::default().with(Scope::Read),
        );
        assert_eq!(read.unwrap().0.scopes.to_string(), "read");
    }

    #[test]
    fn a_request_without_a_readable_caller_has_no_client() {
        let read = |headers: &HeaderMap| of_request(headers, Scopes::all()).unwrap_err();
        assert_eq!(read(&HeaderMap::new()), CallerError::Missing);
        let with = |value: &[u8]| {
            let mut metadata = MetadataMap::new();
            metadata.insert_bin(KEY, MetadataValue::from_bytes(value));
            metadata.into_headers()
        };
        assert!(matches!(read(&with(&[0xff])), CallerError::Malformed(_)));
        let elsewhere = Caller { peer_ip: "nowhere".into(), ..Caller::default() };
        let error = read(&with(&elsewhere.encode_to_vec()));
        assert_eq!(error, CallerError::Address("nowhere".into()));
        let mut headers = HeaderMap::new();
        headers.insert(KEY, "no base64!".parse().unwrap());
        assert_eq!(read(&headers), CallerError::Encoding);
    }
}
