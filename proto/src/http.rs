//! The messages of `http` probes (RFC 9112). Agents send them; the simulator needs their lengths.

/// The request for a web server's file; `host` is the value of the field Host.
pub fn request(host: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\nUser-Agent: ccbench\r\nAccept: */*\r\nConnection: close\r\n\r\n")
        .into_bytes()
}

/// The head of the response, with the status code and the body's length in bytes.
pub fn response(status: u16, bytes: u64) -> Vec<u8> {
    let reason = match status {
        200 => "OK",
        405 => "Method Not Allowed",
        _ => "Bad Request",
    };
    format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: application/octet-stream\r\nContent-Length: {bytes}\r\n\
         Connection: close\r\n\r\n"
    )
    .into_bytes()
}
