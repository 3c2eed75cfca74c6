//! Certificates for listening beyond loopback: a client without one of our authority's certificates is refused before it can
//! send an order.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, version};

use crate::args::ServeArgs;
use crate::error::AgentError;
use ccbench_io::input;

/// Accepts TLS 1.3 from clients with a certificate of the authority; `None` if no certificate was given.
///
/// # Errors
/// A file that cannot be read or used.
pub fn acceptor(args: &ServeArgs) -> Result<Option<TlsAcceptor>, AgentError> {
    let (Some(cert), Some(key), Some(ca)) = (&args.tls_cert, &args.tls_key, &args.tls_ca) else {
        return Ok(None);
    };
    let mut authority = RootCertStore::empty();
    for certificate in certificates("authority", ca)? {
        authority.add(certificate).map_err(unusable("authority", ca))?;
    }
    let verifier = WebPkiClientVerifier::builder(Arc::new(authority)).build();
    let verifier = verifier.map_err(unusable("authority", ca))?;
    let private_key =
        PrivateKeyDer::from_pem_slice(&read("key", key)?).map_err(unusable("key", key))?;
    let mut config = ServerConfig::builder_with_protocol_versions(&[&version::TLS13])
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates("certificate", cert)?, private_key)
        .map_err(unusable("certificate", cert))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

fn certificates(
    what: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, AgentError> {
    let text = read(what, path)?;
    let all = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(unusable(what, path))?;
    if all.is_empty() {
        return Err(unusable(what, path)("it holds no certificate (PEM)"));
    }
    Ok(all)
}

fn unusable<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    what: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> AgentError {
    let path = path.to_owned();
    move |error| AgentError::Tls { what, path, source: io::Error::other(error) }
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, AgentError> {
    input::read(path, &input::CERTIFICATE).map_err(|source| AgentError::Tls {
        what,
        path: path.to_owned(),
        source,
    })
}
