//! The subset of HTTP/1.1 (RFC 9112) that a fetch needs, on top of `httparse`. Pure.

pub use ccbench_proto::http::{request, response};
use httparse::{EMPTY_HEADER, Request, Status};

/// Limits of the head of a request or response: bytes, and number of fields.
const MAX_HEAD: usize = 16 << 10;
const MAX_FIELDS: usize = 128;

/// An incremental parser of requests.
#[derive(Debug, Default)]
pub struct RequestParser {
    head: Vec<u8>,
}

impl RequestParser {
    /// Adds received bytes. Returns the status of the response once the request is complete.
    pub fn push(&mut self, bytes: &[u8]) -> Option<u16> {
        self.head.extend_from_slice(bytes);
        let mut fields = [EMPTY_HEADER; MAX_FIELDS];
        let mut request = Request::new(&mut fields);
        match request.parse(&self.head) {
            Ok(Status::Complete(_)) if request.method == Some("GET") => Some(200),
            Ok(Status::Complete(_)) => Some(405),
            Ok(Status::Partial) if self.head.len() <= MAX_HEAD => None,
            _ => Some(400),
        }
    }
}

/// An incremental parser of responses.
#[derive(Debug, Default)]
pub struct Response {
    head: Vec<u8>,
    /// Status code, once it is known.
    pub status: Option<u16>,
    /// `Content-Length`, if present.
    length: Option<u64>,
    /// Bytes of the body so far.
    pub bytes: u64,
}

/// Why a response is not complete HTTP/1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// The head does not end within the limit.
    #[error("the head of the response does not end")]
    EndlessHead,
    /// The response is not HTTP.
    #[error("the response begins with `{0}`")]
    NotHttp(String),
    /// The connection closed before a response.
    #[error("the server closed the connection without a response")]
    NoResponse,
    /// The connection closed within the body.
    #[error("the server closed the connection after {received} of {length} bytes")]
    Truncated {
        /// Bytes of the body that arrived.
        received: u64,
        /// Bytes that the head announced.
        length: u64,
    },
}

impl Response {
    /// Adds received bytes. Returns whether the response is complete.
    ///
    /// # Errors
    /// This is not an HTTP/1 response.
    pub fn push(&mut self, bytes: &[u8]) -> Result<bool, ResponseError> {
        if self.status.is_some() {
            self.bytes += bytes.len() as u64;
            return Ok(self.whole());
        }
        self.head.extend_from_slice(bytes);
        let mut fields = [EMPTY_HEADER; MAX_FIELDS];
        let mut response = httparse::Response::new(&mut fields);
        match response.parse(&self.head) {
            Ok(Status::Complete(end)) => {
                let length =
                    response.headers.iter().find(|f| f.name.eq_ignore_ascii_case("content-length"));
                let number = |value: &[u8]| std::str::from_utf8(value).ok()?.trim().parse().ok();
                self.length = length.and_then(|field| number(field.value));
                (self.status, self.bytes) = (response.code, (self.head.len() - end) as u64);
            }
            Ok(Status::Partial) if self.head.len() > MAX_HEAD => {
                return Err(ResponseError::EndlessHead);
            }
            Ok(Status::Partial) => return Ok(false),
            Err(_) => {
                let text = String::from_utf8_lossy(&self.head);
                let first = text.lines().next().unwrap_or_default();
                let begin: String = first.chars().take(40).collect();
                return Err(ResponseError::NotHttp(begin));
            }
        }
        self.head = vec![];
        Ok(self.whole())
    }

    fn whole(&self) -> bool {
        self.length.is_some_and(|length| self.bytes >= length)
    }

    /// Checks that the response is complete, once the server has closed the connection.
    ///
    /// # Errors
    /// The response is incomplete.
    pub fn close(&self) -> Result<(), ResponseError> {
        match (self.status, self.length) {
            (None, _) => Err(ResponseError::NoResponse),
            (_, Some(length)) if self.bytes < length => {
                Err(ResponseError::Truncated { received: self.bytes, length })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_an_exchange_in_any_pieces() {
        for piece in [1, 3, 50, 1000] {
            let mut parser = RequestParser::default();
            let statuses: Vec<u16> =
                request("10.0.0.1").chunks(piece).filter_map(|bytes| parser.push(bytes)).collect();
            assert_eq!(statuses, [200]);
            let mut text = response(200, 300);
            text.extend([b'x'; 300]);
            let mut response = Response::default();
            let ends: Vec<bool> =
                text.chunks(piece).map(|bytes| response.push(bytes).unwrap()).collect();
            assert_eq!(ends.iter().filter(|end| **end).count(), 1, "at its last piece");
            assert_eq!((response.status, response.bytes), (Some(200), 300));
            response.close().unwrap();
        }
    }

    #[test]
    fn rejects_truncated_and_foreign_responses() {
        let mut cut = Response::default();
        assert_eq!(cut.close(), Err(ResponseError::NoResponse));
        cut.push(&response(200, 5)).unwrap();
        cut.push(b"abc").unwrap();
        assert_eq!(
            cut.close().unwrap_err().to_string(),
            "the server closed the connection after 3 of 5 bytes"
        );
        let wrong = Response::default().push(b"SSH-2.0-OpenSSH\r\n\r\n");
        assert_eq!(wrong, Err(ResponseError::NotHttp("SSH-2.0-OpenSSH".to_owned())));
        assert!(Response::default().push(&[b'x'; MAX_HEAD + 1]).is_err());
    }

    #[test]
    fn a_response_without_a_length_ends_with_the_connection() {
        let mut response = Response::default();
        assert_eq!(response.push(b"HTTP/1.0 404 Not Found\r\nServer: x\r\n\r\nabc"), Ok(false));
        assert_eq!((response.status, response.bytes), (Some(404), 3));
        response.close().unwrap();
    }

    #[test]
    fn only_get_is_served() {
        assert_eq!(RequestParser::default().push(b"POST / HTTP/1.1\r\n\r\n"), Some(405));
        assert_eq!(RequestParser::default().push(&[b'x'; MAX_HEAD + 1]), Some(400));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8)) {
            let (mut parser, mut response) = (RequestParser::default(), Response::default());
            for piece in pieces {
                let _ = (parser.push(&piece), response.push(&piece));
            }
            let _ = response.close();
        }
    }
}
