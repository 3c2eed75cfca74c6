//! `ccbench-agent renew`: gets a later certificate for the node's key from `ccbench pki serve`. The node authenticates itself with the
//! certificate that it has. See [`ccbench_proto::join`].
//!
//! A running agent reads the new files within a second ([`crate::tls`]). The key stays, because the services have a copy of it, which systemd
//! makes when they start.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ccbench_io::certificate::{Certificate, CertificateError, is_signed_by, signed_list_number};
use ccbench_io::{console, input};
use ccbench_proto::join::{JoinedNode, RenewRequest};
use rcgen::{CertificateParams, KeyPair};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer,
};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, version};

use crate::clock;
use crate::exchange::{ExchangeError, exchange};
use crate::join::{AUTHORITY, CERTIFICATE, KEY, REVOCATIONS, publish};

const DAY_S: i64 = 86_400;
/// A certificate is due when less than its lifetime divided by this is left.
const DUE_DIVISOR: i64 = 3;

/// `ccbench-agent renew`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Where `ccbench pki serve` listens
    #[arg(long, value_name = "HOST:PORT", env = "CCBENCH_AUTHORITY")]
    pub controller: String,
    /// Where node.key, node.pem, ca.pem and crl.pem are; node.pem and crl.pem are replaced
    #[arg(long, value_name = "DIR", default_value = "/etc/ccbench")]
    pub dir: PathBuf,
    /// Do nothing while a third of the certificate's lifetime or more is left
    #[arg(long)]
    pub if_due: bool,
}

/// Why a node's certificate was not renewed. The earlier one stays.
#[derive(Debug, thiserror::Error)]
pub enum RenewError {
    /// A file operation failed.
    #[error("{op} {}: {source}", path.display())]
    File {
        /// "write" ...
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file holds no certificate.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: CertificateError,
    },
    /// The authority's file holds no certificates, or damaged ones.
    #[error("{}: it holds no certificate of an authority in PEM; restore it from a copy", .0.display())]
    NoAuthority(PathBuf),
    /// The key is damaged, or is not that of the certificate.
    #[error("{} is not the key of {CERTIFICATE} beside it; restore it from a copy", .0.display())]
    OtherKey(PathBuf),
    /// The certificate is not valid any more.
    #[error(
        "{}: it has expired, so the authority does not renew it. If this machine's clock is right: on the authority's machine (`pki` is its \
         directory), revoke it with `ccbench pki revoke pki pki/{name}.pem`, remove pki/{name}.pem, and make a token (`ccbench pki token`); \
         here, remove {KEY}, {CERTIFICATE}, {AUTHORITY} and {REVOCATIONS}, and join again", path.display()
    )]
    Expired {
        /// The file.
        path: PathBuf,
        /// The node's name, as the authority has it.
        name: String,
    },
    /// The certificate signing request could not be made.
    #[error("make a certificate signing request: {0}")]
    Request(#[from] rcgen::Error),
    /// The TLS library does not accept the node's files.
    #[error("set TLS up: {0}")]
    Tls(#[from] rustls::Error),
    /// The authority does not renew the certificate.
    #[error("{0}; the earlier certificate stays in use")]
    Exchange(#[from] ExchangeError),
    /// The service does not belong to the node's authority. No request was sent to it.
    #[error(
        "{controller} does not belong to the authority of {}; give the address of that authority's `ccbench pki serve`",
        authority.display()
    )]
    OtherAuthority {
        /// The service.
        controller: String,
        /// The authority's file.
        authority: PathBuf,
    },
    /// The answer does not fit the certificate.
    #[error("the answer of {controller}: {source}; the earlier certificate stays in use")]
    Answer {
        /// The service.
        controller: String,
        /// What is wrong.
        source: AnswerError,
    },
}

/// What is wrong with an answer.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// Its certificates are malformed.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// It contains another authority.
    #[error("it names an authority other than the node's")]
    Authority,
    /// The authority did not sign the certificate.
    #[error("the authority did not sign its certificate")]
    Unsigned,
    /// The certificate is not the requested one.
    #[error("its certificate has another key, name or usage than the present one")]
    Different,
    /// The certificate expires before the present one.
    #[error("its certificate expires before the present one")]
    Earlier,
    /// The list of revoked certificates cannot be used.
    #[error("its list of revoked certificates cannot be used: {0}")]
    Revocations(Box<dyn Error + Send + Sync>),
}

/// The files of a node.
struct Node {
    own: Certificate,
    own_text: String,
    key: KeyPair,
    key_text: String,
    authorities: Vec<CertificateDer<'static>>,
}

/// Renews the node's certificate, if it is due or `--if-due` is not given.
///
/// # Errors
/// The node's files cannot be read, or the authority does not renew the certificate. The earlier certificate stays then.
pub fn main(args: &Args) -> Result<(), RenewError> {
    let Args { controller, dir, if_due } = args;
    let node = read(dir)?;
    let path = dir.join(CERTIFICATE);
    let (_, realtime_ns) = clock::now_both_ns();
    let now_s = realtime_ns / 1_000_000_000;
    let left_s = node.own.not_after_s - now_s;
    if left_s <= 0 {
        return Err(RenewError::Expired { path, name: node.own.name });
    }
    if *if_due && !is_due(&node.own, left_s) {
        console::print(&format!(
            "{}: {} of {} days are left; it is not due for renewal\n",
            path.display(),
            left_s / DAY_S,
            (node.own.not_after_s - node.own.not_before_s) / DAY_S
        ));
        return Ok(());
    }
    let renewed = ask(controller, dir, &node)?;
    let later = check(&renewed, &node).map_err(|source| {
        let controller = controller.clone();
        RenewError::Answer { controller, source }
    })?;
    let list_path = dir.join(REVOCATIONS);
    if has_newer_list(&list_path, &renewed) {
        let kept = list_path.display();
        console::print(&format!("{kept}: kept, because the list of {controller} is older\n"));
    } else if !renewed.revocations.is_empty() {
        publish(&list_path, &renewed.revocations).map_err(failed("write", &list_path))?;
    }
    // Writes the certificate last: a new certificate means that the list is written, too.
    publish(&path, &renewed.certificate).map_err(failed("write", &path))?;
    let days = (later.not_after_s - now_s) / DAY_S;
    console::print(&format!("{}: renewed; it is valid for {days} days\n", path.display()));
    Ok(())
}

fn failed(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RenewError {
    let path = path.to_owned();
    move |source| RenewError::File { op, path, source }
}

fn is_due(own: &Certificate, left_s: i64) -> bool {
    left_s.saturating_mul(DUE_DIVISOR) < own.not_after_s - own.not_before_s
}

fn read(dir: &Path) -> Result<Node, RenewError> {
    let text = |name: &str| {
        let path = dir.join(name);
        input::read_to_string(&path, &input::CERTIFICATE).map_err(failed("read", &path))
    };
    let own_text = text(CERTIFICATE)?;
    let own = Certificate::from_pem(own_text.as_bytes())
        .map_err(|source| RenewError::Unreadable { path: dir.join(CERTIFICATE), source })?;
    let key_text = text(KEY)?;
    let key = KeyPair::from_pem(&key_text).ok();
    let key = key.filter(|key| key.public_key_raw() == own.public_key);
    let key = key.ok_or_else(|| RenewError::OtherKey(dir.join(KEY)))?;
    let authorities = text(AUTHORITY)?;
    let authorities = CertificateDer::pem_slice_iter(authorities.as_bytes());
    let authorities = authorities.collect::<Result<Vec<_>, _>>().unwrap_or_default();
    if authorities.is_empty() {
        return Err(RenewError::NoAuthority(dir.join(AUTHORITY)));
    }
    Ok(Node { own, own_text, key, key_text, authorities })
}

impl Node {
    fn roots(&self) -> Result<Arc<RootCertStore>, rustls::Error> {
        let mut roots = RootCertStore::empty();
        for authority in &self.authorities {
            roots.add(authority.clone())?;
        }
        Ok(Arc::new(roots))
    }

    /// Accepts only a service of the authority, and shows the node's certificate.
    fn connector(&self) -> Result<TlsConnector, rustls::Error> {
        let unusable =
            |error: rustls::pki_types::pem::Error| rustls::Error::General(error.to_string());
        let chain = CertificateDer::pem_slice_iter(self.own_text.as_bytes());
        let chain = chain.collect::<Result<Vec<_>, _>>().map_err(unusable)?;
        let key = PrivateKeyDer::from_pem_slice(self.key_text.as_bytes()).map_err(unusable)?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13])?
            .with_root_certificates(self.roots()?)
            .with_client_auth_cert(chain, key)?;
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

/// Requests a certificate.
fn ask(controller: &str, dir: &Path, node: &Node) -> Result<JoinedNode, RenewError> {
    let csr = CertificateParams::new(Vec::<String>::new())?.serialize_request(&node.key)?.pem()?;
    let request = RenewRequest { csr };
    exchange(controller, node.connector()?, &request).map_err(|error| match error {
        ExchangeError::Connection { controller, source } if is_other_authority(&source) => {
            RenewError::OtherAuthority { controller, authority: dir.join(AUTHORITY) }
        }
        error => error.into(),
    })
}

/// Whether this node's authority did not sign the certificate of the service. All authorities have the same name, so mostly only the
/// signature differs.
fn is_other_authority(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(error)) = inner else { return false };
    matches!(
        error,
        rustls::CertificateError::UnknownIssuer | rustls::CertificateError::BadSignature
    )
}

/// Checks that an answer is from the node's authority, and that the agent can use all of it. Returns the certificate.
fn check(renewed: &JoinedNode, node: &Node) -> Result<Certificate, AnswerError> {
    let JoinedNode { certificate, authority, revocations } = renewed;
    let authority_der = CertificateDer::from_pem_slice(authority.as_bytes());
    if !authority_der.is_ok_and(|shown| node.authorities.contains(&shown)) {
        return Err(AnswerError::Authority);
    }
    let later = Certificate::from_pem(certificate.as_bytes())?;
    if !is_signed_by(certificate.as_bytes(), authority.as_bytes())? {
        return Err(AnswerError::Unsigned);
    }
    let own = &node.own;
    let Certificate { serial, not_before_s, not_after_s, .. } = later.clone();
    if (Certificate { serial, not_before_s, not_after_s, ..own.clone() }) != later {
        return Err(AnswerError::Different);
    }
    if later.not_after_s < own.not_after_s {
        return Err(AnswerError::Earlier);
    }
    // An agent does not start with a list that it cannot use.
    if !revocations.is_empty() {
        check_revocations(revocations, authority, node).map_err(AnswerError::Revocations)?;
    }
    Ok(later)
}

/// Reads lists of revoked certificates as an agent does, which does not verify their signatures before it needs them: with an unsigned one,
/// it would refuse every controller.
fn check_revocations(
    text: &str,
    authority: &str,
    node: &Node,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let lists = CertificateRevocationListDer::pem_slice_iter(text.as_bytes());
    let lists = lists.collect::<Result<Vec<_>, _>>()?;
    if lists.is_empty() {
        return Err("it holds no list (PEM)".into());
    }
    for list in &lists {
        signed_list_number(list, authority.as_bytes())?;
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(node.roots()?, provider);
    verifier.with_crls(lists).build()?;
    Ok(())
}

/// Whether the node's list of revoked certificates is newer than that of an answer, for example because the service reads an old copy of the
/// authority's directory. With the older one, the agent would accept controllers that were revoked since. A list that is missing, damaged or
/// another authority's is not newer, because the agent cannot use it.
fn has_newer_list(present: &Path, renewed: &JoinedNode) -> bool {
    let present = input::read_to_string(present, &input::CERTIFICATE).unwrap_or_default();
    let authority = renewed.authority.as_bytes();
    let latest = |text: &str| {
        let lists = CertificateRevocationListDer::pem_slice_iter(text.as_bytes());
        let lists = lists.collect::<Result<Vec<_>, _>>().unwrap_or_default();
        lists.iter().filter_map(|list| signed_list_number(list, authority).ok().flatten()).max()
    };
    !renewed.revocations.is_empty() && latest(&present) > latest(&renewed.revocations)
}

#[cfg(test)]
mod tests;
