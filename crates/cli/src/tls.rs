//! The controller's TLS setup: the certificate that it presents to agents, and the agent certificates that it accepts. The files
//! are read once, before the first connection.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ccbench_io::input;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use tokio_rustls::rustls::{self, CertRevocationListError, CertificateError, RootCertStore};
use tonic::transport::{ClientTlsConfig, Endpoint, Identity};

use crate::args::TlsArgs;
use crate::file::{FileError, exists};

/// A certificate file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The contents of the file are invalid.
    #[error("cannot use the {what} {}: {source}", path.display())]
    Unusable {
        /// What the file is for, such as "authority".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// The certificates in use.
pub struct Tls {
    identity: Identity,
    verifier: Arc<WebPkiServerVerifier>,
    /// The list of revoked certificates.
    crl: Option<PathBuf>,
}

impl Tls {
    /// Reads the certificates; `None` without `--pki`.
    ///
    /// # Errors
    /// A file cannot be read or used.
    pub fn open(args: &TlsArgs) -> Result<Option<Self>, TlsError> {
        let Some(dir) = &args.pki else { return Ok(None) };
        let own = |name: &str| read("read the certificate", &dir.join(name));
        let identity = Identity::from_pem(own("controller.pem")?, own("controller.key")?);
        let authority = authority(&dir.join("ca.pem"))?;
        let of_dir = dir.join("crl.pem");
        let crl = match &args.crl {
            Some(list) => Some(list.clone()),
            // Authorities of earlier versions have no list.
            None => exists(&of_dir)?.then_some(of_dir),
        };
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(authority), provider);
        let verifier = match &crl {
            Some(path) => {
                let verifier = verifier.with_crls(revocations(path)?);
                verifier.build().map_err(unusable(LIST, path))?
            }
            None => verifier.build().map_err(unusable("authority", dir))?,
        };
        Ok(Some(Self { identity, verifier, crl }))
    }

    /// Makes an endpoint present and verify certificates.
    ///
    /// # Errors
    /// The controller's own certificate or key cannot be used.
    pub fn apply(&self, endpoint: Endpoint) -> Result<Endpoint, tonic::transport::Error> {
        let config = ClientTlsConfig::new().identity(self.identity.clone());
        let verifier = Arc::clone(&self.verifier);
        endpoint.tls_config_with_verifier(config, verifier)
    }

    /// Returns why TLS refused a connection, with the fix, if the reason is the agent's certificate or the list of revoked
    /// certificates.
    pub fn refusal(&self, error: &(dyn Error + 'static)) -> Option<String> {
        use rustls::Error::{InvalidCertRevocationList, InvalidCertificate};
        let error = rustls_error(error)?;
        if is_of_other_authority(error) {
            return Some(format!(
                "the agent's certificate was not issued by the authority of --pki ({error}); give the directory of its authority, or give \
                 the node a certificate of this one (`ccbench pki node DIR HOST`)"
            ));
        }
        let list = self.crl.as_ref()?.display();
        match error {
            InvalidCertificate(CertificateError::Revoked) => Some(format!(
                "the agent's certificate is revoked ({list}); give the node another one (`ccbench pki node DIR HOST`)"
            )),
            // The certificate is of an authority with another name, or with the same name and another key.
            InvalidCertificate(CertificateError::UnknownRevocationStatus)
            | InvalidCertRevocationList(CertRevocationListError::BadSignature) => Some(format!(
                "{list} is not the list of the authority that issued the agent's certificate; `ccbench pki revoke DIR` writes it, where DIR \
                 is that authority's directory (of `ccbench pki init`)"
            )),
            _ => None,
        }
    }
}

/// Returns whether another authority issued the certificate. Authorities of the same name have different keys, so its signature
/// is invalid.
fn is_of_other_authority(error: &rustls::Error) -> bool {
    use CertificateError::{BadSignature, UnknownIssuer};
    matches!(error, rustls::Error::InvalidCertificate(BadSignature | UnknownIssuer))
}

/// Finds the TLS library's error among the causes of an error. Checks wrapped errors too, because `source()` of an [`io::Error`]
/// skips the error that it wraps.
fn rustls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(found) = error.downcast_ref() {
        return Some(found);
    }
    let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let of_wrapped = wrapped.and_then(|wrapped| rustls_error(wrapped));
    of_wrapped.or_else(|| rustls_error(error.source()?))
}

const LIST: &str = "list of revoked certificates";

fn authority(path: &Path) -> Result<RootCertStore, TlsError> {
    const WHAT: &str = "authority";
    let text = read("read the certificate", path)?;
    let mut authority = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(unusable(WHAT, path))?;
        authority.add(certificate).map_err(unusable(WHAT, path))?;
    }
    if authority.is_empty() {
        return Err(unusable(WHAT, path)("it holds no certificate (PEM)"));
    }
    Ok(authority)
}

fn revocations(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let text = read("read the list of revoked certificates", path)?;
    let all = CertificateRevocationListDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(unusable(LIST, path))?;
    if all.is_empty() {
        return Err(unusable(LIST, path)(
            "it holds no list (PEM); `ccbench pki revoke DIR` writes one, where DIR is the authority's directory (of `ccbench pki init`)",
        ));
    }
    Ok(all)
}

fn read(op: &'static str, path: &Path) -> Result<Vec<u8>, FileError> {
    input::read(path, &input::CERTIFICATE).map_err(FileError::io(op, path))
}

fn unusable<E: Into<Box<dyn Error + Send + Sync>>>(
    what: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> TlsError {
    let path = path.to_owned();
    move |error| TlsError::Unusable { what, path, source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_found_however_it_is_wrapped() {
        let revoked = || rustls::Error::InvalidCertificate(CertificateError::Revoked);
        let once = io::Error::new(io::ErrorKind::InvalidData, revoked());
        let twice = tonic::ConnectError(Box::new(io::Error::other(once)));
        assert_eq!(rustls_error(&twice), Some(&revoked()));
        assert_eq!(rustls_error(&revoked()), Some(&revoked()));
        assert_eq!(rustls_error(&io::Error::other("no route")), None);
    }

    #[test]
    fn a_certificate_of_another_authority_is_told_apart() {
        for error in [CertificateError::BadSignature, CertificateError::UnknownIssuer] {
            assert!(is_of_other_authority(&rustls::Error::InvalidCertificate(error)));
        }
        let expired = rustls::Error::InvalidCertificate(CertificateError::Expired);
        assert!(!is_of_other_authority(&expired));
    }

    #[test]
    fn a_file_without_a_list_is_no_list() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("crl.pem");
        std::fs::write(&path, "no list").unwrap();
        let error = revocations(&path).unwrap_err().to_string();
        assert!(
            error.contains("crl.pem: it holds no list (PEM); `ccbench pki revoke DIR`"),
            "{error}"
        );
        assert!(
            error.contains("DIR is the authority's directory (of `ccbench pki init`)"),
            "{error}"
        );
    }
}
