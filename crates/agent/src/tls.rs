//! Certificates for listening beyond loopback: a client without one of our authority's certificates is
//! refused before it can send an order.

use std::path::Path;

use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use crate::args::ServeArgs;
use crate::error::AgentError;
use crate::input;

/// The server's TLS settings: client certificate required; `None` if no certificate was given.
///
/// # Errors
/// A file that cannot be read.
pub fn server_config(args: &ServeArgs) -> Result<Option<ServerTlsConfig>, AgentError> {
    let (Some(cert), Some(key), Some(ca)) = (&args.tls_cert, &args.tls_key, &args.tls_ca) else {
        return Ok(None);
    };
    let identity = Identity::from_pem(read("certificate", cert)?, read("key", key)?);
    let authority = Certificate::from_pem(read("authority", ca)?);
    Ok(Some(
        ServerTlsConfig::new()
            .identity(identity)
            .client_ca_root(authority)
            .client_auth_optional(false),
    ))
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, AgentError> {
    input::read(path, &input::CERTIFICATE).map_err(|source| AgentError::Tls {
        what,
        path: path.to_owned(),
        source,
    })
}
