//! How a node gets its first certificate: `ccbench pki token` makes a token, `ccbench pki serve` issues the certificate, and
//! `ccbench-agent join` asks for it. The node connects with TLS 1.3 to [`SERVER_NAME`], whose certificate must be of the token's
//! authority, sends a line with a [`JoinRequest`] and receives a line with a [`JoinReply`], both JSON.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::plan::digest_bytes;

/// The name in the certificate of `ccbench pki serve`. No node has it, so that the key of a node is of no use there.
pub const SERVER_NAME: &str = "join.ccbench.invalid";
/// Most bytes of the line of a request.
pub const MAX_REQUEST_BYTES: u64 = 64 << 10;
/// Most bytes of the line of a reply, whose list of revoked certificates may be long.
pub const MAX_REPLY_BYTES: u64 = 4 << 20;

/// Beginning of every token, with the version of the exchange.
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

/// A text is not a token.
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

    /// What proves the permission.
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

/// What a node asks for.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// Of the token.
    pub secret: String,
    /// A certificate signing request (PEM). Only its public key counts: the names are those of the token.
    pub csr: String,
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

/// The files of a node but for its key, as PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedNode {
    /// The node's certificate.
    pub certificate: String,
    /// The authority's.
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
