//! What other programs send to an agent.

use ccbench_agent::fuzzing::{echo_reply_of, plan_length};
use ccbench_agent::probe::http::{Answer, RequestParser};

/// A request and an answer in HTTP, in one piece and byte by byte.
pub fn http(data: &[u8]) {
    let whole = RequestParser::default().push(data);
    assert!(whole.is_none_or(|status| [200, 400, 405].contains(&status)));
    let (mut requests, mut answer) = (RequestParser::default(), Answer::default());
    let mut status = None;
    // Each byte parses the head again.
    for byte in data.iter().take(2048) {
        status = status.or_else(|| requests.push(&[*byte]));
        match answer.push(&[*byte]) {
            Ok(_) => assert!(answer.bytes <= data.len() as u64),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                break;
            }
        }
    }
    let _ = answer.close();
    let mut whole = Answer::default();
    if whole.push(data).is_ok() {
        assert!(whole.bytes <= data.len() as u64);
        let _ = whole.close();
    }
}

/// The reply to an echo.
pub fn echo_reply(data: &[u8]) {
    let mark =
        data.get(8..16).and_then(|bytes| bytes.try_into().ok()).map_or(7, u64::from_be_bytes);
    assert_eq!(echo_reply_of(data, mark).len(), 4);
}

/// The controller's input to the agent of a testbed.
pub fn control_input(data: &[u8]) {
    if let Some(length) = plan_length(data) {
        assert!(data[length..].starts_with(b"---END---"));
        assert!(length == 0 || data[length - 1] == b'\n');
        assert_eq!(plan_length(&data[..length]), None);
    }
}
