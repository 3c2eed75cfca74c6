//! Fuzzes what other programs send to an agent and to `ccbench pki serve`.

use ccbench_agent::fuzzing::{echo_reply_of, plan_length};
use ccbench_agent::probe::http::{RequestParser, Response};
use ccbench_io::certificate::{Certificate, is_signed_by};
use ccbench_proto::join::{JoinReply, JoinRequest, JoinToken, NodeRequest, RenewRequest};

/// An HTTP request and an HTTP response, in one piece and byte by byte.
pub fn http(data: &[u8]) {
    let whole = RequestParser::default().push(data);
    assert!(whole.is_none_or(|status| [200, 400, 405].contains(&status)));
    let (mut requests, mut response) = (RequestParser::default(), Response::default());
    let mut status = None;
    // The parser reads the head again for each byte.
    for byte in data.iter().take(2048) {
        status = status.or_else(|| requests.push(&[*byte]));
        match response.push(&[*byte]) {
            Ok(_) => assert!(response.bytes <= data.len() as u64),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                break;
            }
        }
    }
    let _ = response.close();
    let mut whole = Response::default();
    if whole.push(data).is_ok() {
        assert!(whole.bytes <= data.len() as u64);
        let _ = whole.close();
    }
}

/// The reply to an echo request.
pub fn echo_reply(data: &[u8]) {
    let mark =
        data.get(8..16).and_then(|bytes| bytes.try_into().ok()).map_or(7, u64::from_be_bytes);
    assert_eq!(echo_reply_of(data, mark).len(), 4);
}

/// The controller's input to a testbed's agent.
pub fn control_input(data: &[u8]) {
    if let Some(length) = plan_length(data) {
        assert!(data[length..].starts_with(b"---END---"));
        assert!(length == 0 || data[length - 1] == b'\n');
        assert_eq!(plan_length(&data[..length]), None);
    }
}

/// Tokens, requests and replies of nodes that join or renew their certificates, one per line.
pub fn join(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for line in text.lines() {
        if let Ok(token) = line.parse::<JoinToken>() {
            assert_eq!(token.to_string(), line.trim());
            assert!(!format!("{token:?}").contains(token.secret()));
        }
        if let Ok(request) = serde_json::from_str::<JoinRequest>(line) {
            let again = serde_json::to_string(&request).ok();
            let again = again.and_then(|text| serde_json::from_str::<JoinRequest>(&text).ok());
            let same = |again: &JoinRequest| {
                (&again.secret, &again.csr) == (&request.secret, &request.csr)
            };
            assert!(again.as_ref().is_some_and(same));
        }
        if let Ok(request) = serde_json::from_str::<RenewRequest>(line) {
            let again = serde_json::to_string(&request).ok();
            assert_eq!(again.and_then(|text| serde_json::from_str(&text).ok()), Some(request));
        }
        if let Ok(request) = serde_json::from_str::<NodeRequest>(line) {
            let is_join = matches!(request, NodeRequest::Join(_));
            assert_eq!(is_join, serde_json::from_str::<JoinRequest>(line).is_ok());
        }
        if let Ok(reply) = serde_json::from_str::<JoinReply>(line) {
            let again = serde_json::to_string(&reply).ok();
            assert_eq!(again.and_then(|text| serde_json::from_str(&text).ok()), Some(reply));
        }
    }
}

/// A certificate in DER or PEM, from a client or from a file.
pub fn certificate(data: &[u8]) {
    for read in [Certificate::from_der(data), Certificate::from_pem(data)] {
        match read {
            Ok(certificate) => {
                assert_eq!(certificate.serial_hex().len(), 2 * certificate.serial.len());
                let names = certificate.uris.len() + certificate.hosts.len();
                assert!(names <= data.len() && certificate.public_key.len() <= data.len());
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    let _ = is_signed_by(data, data);
}
