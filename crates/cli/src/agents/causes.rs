//! Errors of connections and calls as text, with their causes.

use std::error::Error;
use std::io;

use super::AgentError;

/// How the TLS library prints the alert of the other end. HTTP/2 keeps only this text of the error.
const ALERT: &str = "received fatal alert: ";

/// Formats an error with its causes, because tonic prints only the outermost error.
pub(super) fn chain(error: &dyn Error) -> String {
    with_causes(error.to_string(), error.source())
}

/// Returns an agent's answer, or why there is none.
pub fn status_text(status: &tonic::Status) -> String {
    with_causes(status.message().to_owned(), status.source())
}

fn with_causes(mut text: String, mut cause: Option<&(dyn Error + 'static)>) -> String {
    while let Some(error) = cause {
        // A status prints its causes as Rust values.
        let message = error.downcast_ref::<tonic::Status>().map(tonic::Status::message);
        let cause_text = message.map_or_else(|| error.to_string(), str::to_owned);
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        cause = error.source();
    }
    text
}

/// Returns whether the connection was refused. Checks wrapped errors too, because `source()` of an [`io::Error`] skips the error
/// that it wraps.
pub(super) fn is_refused(error: &(dyn Error + 'static)) -> bool {
    let of_io = error.downcast_ref::<io::Error>().is_some_and(|error| {
        error.kind() == io::ErrorKind::ConnectionRefused
            || error.get_ref().is_some_and(|wrapped| is_refused(wrapped))
    });
    of_io || error.source().is_some_and(is_refused)
}

impl AgentError {
    /// Adds the node of another error if that is the same refusal. Returns whether it is.
    pub(super) fn takes(&mut self, other: &Self) -> bool {
        let (
            Self::Refused { node, step, reason },
            Self::Refused { node: added, step: of, reason: why },
        ) = (self, other)
        else {
            return false;
        };
        let is_same = (*step, reason.as_str()) == (*of, why.as_str());
        if is_same {
            *node += &format!(", {added}");
        }
        is_same
    }
}

/// Why a node refused the certificate of this client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum CertificateRefusal {
    #[error("the node refused this certificate: revoked")]
    Revoked,
    /// After a reboot, a node's clock may not be set yet.
    #[error("the node refused this certificate: expired, or not valid yet by the node's clock")]
    Expired,
    #[error(
        "the node refused this certificate: not issued by the node's authority, or the node's list of revoked certificates is of \
         another one"
    )]
    UnknownAuthority,
    #[error("the node refused this certificate: not issued by the node's authority")]
    BadSignature,
}

/// Returns why a node refused the certificate of this client, if the text of an error has the alert.
pub(super) fn refused_certificate(text: &str) -> Option<CertificateRefusal> {
    let (_, alert) = text.split_once(ALERT)?;
    let reasons = [
        ("CertificateRevoked", CertificateRefusal::Revoked),
        ("CertificateExpired", CertificateRefusal::Expired),
        ("UnknownCA", CertificateRefusal::UnknownAuthority),
        ("DecryptError", CertificateRefusal::BadSignature),
    ];
    reasons.into_iter().find(|(name, _)| alert.starts_with(name)).map(|(_, why)| why)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Address, refused};
    use super::*;

    #[test]
    fn only_a_refused_connection_asks_for_the_agent() {
        use std::io::{Error, ErrorKind};
        let refused = || Error::from(ErrorKind::ConnectionRefused);
        assert!(is_refused(&refused()) && is_refused(&Error::other(refused())));
        assert!(is_refused(&tonic::ConnectError(Box::new(refused()))));
        assert!(!is_refused(&Error::other("failed to lookup address information")));
        assert!(!is_refused(&Error::from(ErrorKind::TimedOut)));
    }

    #[test]
    fn the_causes_of_a_status_are_text() {
        let cause = io::Error::other("received fatal alert: CertificateRevoked");
        let mut status = tonic::Status::internal("h2 protocol error");
        status.set_source(Arc::new(cause));
        let text = status_text(&status);
        assert_eq!(text, "h2 protocol error: received fatal alert: CertificateRevoked");
        let outer = with_causes("stream failed".to_owned(), Some(&status));
        assert_eq!(outer, format!("stream failed: {text}"));
        let why = refused_certificate(&text).unwrap();
        assert_eq!(why.to_string(), "the node refused this certificate: revoked");
        assert_eq!(refused_certificate("received fatal alert: DecodeError"), None);
        assert_eq!(refused_certificate("transport error"), None);
    }

    #[test]
    fn a_call_without_an_answer_names_the_address_and_the_cause() {
        let refused_io = io::Error::from(io::ErrorKind::ConnectionRefused);
        let mut status = tonic::Status::unavailable("tcp connect error");
        status.set_source(Arc::new(refused_io));
        let error = refused("n1", "describe", &status).at(&Address::Tcp("192.0.2.1:77".to_owned()));
        let expected = "node n1: describe: 192.0.2.1:77: tcp connect error: connection refused; \
                        does ccbench-agent run there?";
        assert_eq!(error.to_string(), expected);
        let alert = io::Error::other("received fatal alert: CertificateRevoked");
        let error = refused("n1", "describe", &tonic::Status::from_error(Box::new(alert)));
        assert!(matches!(error, AgentError::Refused { .. }), "{error}");
        let expected = "node n1: describe: the node refused this certificate: revoked";
        assert_eq!(error.to_string(), expected);
        // It is asked again: its clock may not be set yet.
        let alert = io::Error::other("received fatal alert: CertificateExpired");
        let error = refused("n1", "describe", &tonic::Status::from_error(Box::new(alert)));
        assert!(matches!(error, AgentError::Call { .. }), "{error}");
    }
}
