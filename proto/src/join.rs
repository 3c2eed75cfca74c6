//! How a node gets its first certificate: `ccbench pki token` makes a token, `ccbench pki serve` issues the certificate, and
//! `ccbench-agent join` asks for it. The node connects with TLS 1.3 to [`SERVER_NAME`], whose certificate must come from the
//! token's authority. It sends a line with a [`JoinRequest`] and receives a line with a [`JoinReply`], both in JSON.
//!
//! `ccbench-agent renew` connects in the same way, but shows the node's certificate in the handshake, and sends a [`RenewRequest`].

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::plan::digest_bytes;

/// The name in the certificate of `ccbench pki serve`. No node has this name, so nobody can impersonate the server with a node's
/// key.
pub const SERVER_NAME: &str = "join.ccbench.invalid";
/// Maximum length of a request's line, in bytes.
pub const MAX_REQUEST_BYTES: u64 = 64 << 10;
/// Maximum length of a reply's line, in bytes. Its list of revoked certificates may be long.
pub const MAX_REPLY_BYTES: u64 = 4 << 20;

/// Prefix of every token, with the version of the protocol.
const PREFIX: &str = "ccbench-join-1";
/// Digits of a SHA-256 and of a secret.
const DIGEST_DIGITS: usize = 64;
const SECRET_DIGITS: usize = 32;

/// A one-time permission to get a node's certificate. As text: `ccbench-join-1:SHA256:SECRET`, the SHA-256 of the authority's
/// certificate (DER) and the secret in hexadecimal digits. `Debug` leaves the secret out.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    authority_sha256: String,
    secret: String,
}

/// The text is not a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is not a join token; copy all of the line that `ccbench pki token` prints ({PREFIX}:…)"
)]
pub struct NotAToken;

impl JoinToken {
    /// A token for the authority with this certificate (DER).
    pub fn new(authority: &[u8], secret: [u8; SECRET_DIGITS / 2]) -> Self {
        let secret = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { authority_sha256: digest_bytes(authority), secret }
    }

    /// Whether it is for the authority with this certificate (DER).
    pub fn is_of(&self, authority: &[u8]) -> bool {
        self.authority_sha256 == digest_bytes(authority)
    }

    /// The secret, which proves the permission.
    pub fn secret(&self) -> &str {
        &self.secret
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}:{}:{}", self.authority_sha256, self.secret)
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}:{}:…", self.authority_sha256)
    }
}

impl FromStr for JoinToken {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<Self, NotAToken> {
        let rest = text.trim().strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix(':'));
        let (authority, secret) = rest.and_then(|rest| rest.split_once(':')).ok_or(NotAToken)?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let are_digits = |text: &str, count| text.len() == count && text.bytes().all(is_digit);
        if !are_digits(authority, DIGEST_DIGITS) || !are_digits(secret, SECRET_DIGITS) {
            return Err(NotAToken);
        }
        Ok(Self { authority_sha256: authority.to_owned(), secret: secret.to_owned() })
    }
}

/// A node's request.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// The token's secret.
    pub secret: String,
    /// A certificate signing request (PEM). Only its public key counts: the names are those of the token.
    pub csr: String,
}

/// A request to renew the certificate with which the node has authenticated itself (mutual TLS).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    /// A certificate signing request (PEM) for the key of that certificate. Names are those of the certificate.
    pub csr: String,
}

/// What a node may send. A [`JoinRequest`] has a secret, a [`RenewRequest`] has none.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub enum NodeRequest {
    /// For the first certificate.
    Join(JoinRequest),
    /// For a later one.
    Renew(RenewRequest),
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JoinReply {
    /// The node has a certificate.
    Issued(JoinedNode),
    /// Why it has none.
    Refused(String),
}

/// A node's files except its key, in PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedNode {
    /// The node's certificate.
    pub certificate: String,
    /// The authority's certificate.
    pub authority: String,
    /// The list of revoked certificates; empty if the authority has none.
    pub revocations: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_token_is_read_back_and_is_of_one_authority() {
        let token = JoinToken::new(b"authority", [0xab; 16]);
        let text = token.to_string();
        assert_eq!(format!(" {text}\n").parse(), Ok(token.clone()));
        assert!(token.is_of(b"authority") && !token.is_of(b"another"));
        assert_eq!(token.secret(), "ab".repeat(16));
        assert!(!format!("{token:?}").contains("abab"), "{token:?}");
        for cut in 0..text.len() {
            assert_eq!(text[..cut].parse::<JoinToken>(), Err(NotAToken), "{cut}");
        }
        assert!(text.to_uppercase().parse::<JoinToken>().is_err());
        assert!(text.replace("join-1", "join-2").parse::<JoinToken>().is_err());
    }

    #[test]
    fn a_request_has_no_other_members() {
        let request = r#"{"secret":"a","csr":"b"}"#;
        assert!(serde_json::from_str::<JoinRequest>(request).is_ok());
        let scoped = r#"{"secret":"a","csr":"b","names":["other"]}"#;
        assert!(serde_json::from_str::<JoinRequest>(scoped).is_err());
        let read = |text: &str| serde_json::from_str::<NodeRequest>(text).ok();
        assert!(matches!(read(request), Some(NodeRequest::Join(_))));
        let renewal = read(r#"{"csr":"b"}"#);
        assert!(matches!(renewal, Some(NodeRequest::Renew(RenewRequest { csr })) if csr == "b"));
        for other in [scoped, r#"{"csr":"b","names":["other"]}"#, r#"{"secret":"a"}"#, "{}"] {
            assert!(read(other).is_none(), "{other}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_token_that_prints_itself_or_none(text in "(ccbench-join-1:)?[0-9a-f:]{0,98}") {
            if let Ok(token) = text.parse::<JoinToken>() {
                prop_assert_eq!(token.to_string(), text);
            }
        }
    }
}
