//! Certificates for listening beyond loopback. A client without a certificate of our authority is refused before it can
//! send a request. The files are read again when they change or on SIGHUP, so revocations and renewals need no restart.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime,
};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{ResolvesServerCert, WebPkiClientVerifier};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig, version};

use crate::clock;
use crate::error::AgentError;
use ccbench_io::input;

/// How often the files are checked for changes.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// How often a connection's certificate is verified again, to detect its expiry.
const RECHECK_NS: u64 = 10_000_000_000;

/// The certificates of a process that listens on TCP.
#[derive(Debug, Clone, clap::Args)]
pub struct TlsArgs {
    /// This node's certificate (PEM); together with the next two options, it enables mutual TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    pub tls_key: Option<PathBuf>,
    /// The authority whose clients may command this node (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_ca: Option<PathBuf>,
    /// Certificates that the authority has revoked (a CRL in PEM, `ccbench pki revoke`)
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    pub tls_crl: Option<PathBuf>,
}

/// The certificates in force and their files. Clones share both.
#[derive(Clone)]
pub struct Trust(Arc<Inner>);

struct Inner {
    files: Files,
    current: RwLock<Loaded>,
    /// Notifies open connections of each reload.
    loads: watch::Sender<()>,
}

#[derive(Debug, Clone)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
    ca: PathBuf,
    crl: Option<PathBuf>,
}

/// The contents of the files.
#[derive(Clone)]
struct Loaded {
    acceptor: TlsAcceptor,
    verifier: Arc<dyn ClientCertVerifier>,
    /// The node's own certificate and key.
    own: Arc<dyn ResolvesServerCert>,
    /// Counts loads.
    version: u64,
    file_versions: Vec<Option<FileVersion>>,
}

/// Identifies a version of a file: inode, length, and mtime in seconds and nanoseconds.
type FileVersion = (u64, u64, i64, i64);

/// The certificate of a connection, and when it was last verified.
#[derive(Debug)]
pub struct PeerCertificate {
    chain: Vec<CertificateDer<'static>>,
    checked: Mutex<Option<Check>>,
}

#[derive(Debug, Clone, Copy)]
struct Check {
    version: u64,
    at_ns: u64,
}

impl PeerCertificate {
    /// Wraps a certificate with the intermediates up to the authority.
    pub fn new(chain: Vec<CertificateDer<'static>>) -> Self {
        Self { chain, checked: Mutex::new(None) }
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Trust").field(&self.0.files).finish()
    }
}

impl Trust {
    /// Reads the certificates; returns `None` if the arguments name none.
    ///
    /// # Errors
    /// A file cannot be read or used.
    pub fn open(args: &TlsArgs) -> Result<Option<Self>, AgentError> {
        let (Some(cert), Some(key), Some(ca)) = (&args.tls_cert, &args.tls_key, &args.tls_ca)
        else {
            return Ok(None);
        };
        let (cert, key, ca) = (cert.clone(), key.clone(), ca.clone());
        if args.tls_crl.is_none() {
            tracing::warn!(
                "revocations are not checked; --tls-crl names the list of revoked certificates"
            );
        }
        let files = Files { cert, key, ca, crl: args.tls_crl.clone() };
        let file_versions = files.file_versions();
        let current = RwLock::new(files.load(files.own()?, 1, file_versions)?);
        let loads = watch::Sender::new(());
        Ok(Some(Self(Arc::new(Inner { files, current, loads }))))
    }

    /// Returns an acceptor of TLS 1.3 for clients with an unrevoked certificate of the authority.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.current().acceptor
    }

    fn current(&self) -> Loaded {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Verifies the certificate of an open connection again, if the files have changed or some time has passed.
    ///
    /// # Errors
    /// The certificate has expired or was revoked, or the authority has changed.
    pub fn check(&self, certificate: &PeerCertificate) -> Result<(), rustls::Error> {
        let Loaded { verifier, version, .. } = self.current();
        let mut checked = certificate.checked.lock().unwrap_or_else(PoisonError::into_inner);
        let at_ns = clock::boottime_ns();
        let is_recent = |last: &Check| last.version == version && at_ns - last.at_ns < RECHECK_NS;
        if checked.as_ref().is_some_and(is_recent) {
            return Ok(());
        }
        let Some((leaf, between)) = certificate.chain.split_first() else {
            return Err(rustls::Error::NoCertificatesPresented);
        };
        verifier.verify_client_cert(leaf, between, now())?;
        *checked = Some(Check { version, at_ns });
        Ok(())
    }

    /// Resolves when the certificate of an open connection is no longer accepted. This verifies it, expiry included,
    /// only after each reload of the files.
    pub async fn rejection(&self, certificate: &PeerCertificate) -> rustls::Error {
        // Subscribe before the first check, so that no reload is missed.
        let mut loads = self.0.loads.subscribe();
        loop {
            if let Err(error) = self.check(certificate) {
                return error;
            }
            // This fails only without a sender, and `self` has one.
            let _ = loads.changed().await;
        }
    }

    /// Reads the files again. If the authority or its revocation list cannot be used, all previous certificates stay in force.
    /// If only the node's own certificate or key cannot be used, just that one stays, so that a revocation still takes effect.
    pub fn reload(&self) {
        let previous = self.current();
        // Taken before the files are read, so that a change during the reads is noticed later.
        let file_versions = self.0.files.file_versions();
        let (own, kept) = match self.0.files.own() {
            Ok(own) => (own, None),
            Err(error) => (previous.own, Some(error)),
        };
        match self.0.files.load(own, previous.version + 1, file_versions.clone()) {
            Ok(loaded) => {
                *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = loaded;
                self.0.loads.send_replace(());
                match kept {
                    None => {
                        let Files { ca, cert, .. } = &self.0.files;
                        let (ca, cert) = (ca.display(), cert.display());
                        tracing::info!(%ca, %cert, "read the certificates again");
                    }
                    Some(error) => tracing::error!(
                        %error,
                        "this node's previous certificate stays in force; authority and revocations are the new ones"
                    ),
                }
            }
            Err(error) => {
                tracing::error!(%error, "the previous certificates stay in force");
                // Do not retry until the files change again.
                let mut current = self.0.current.write().unwrap_or_else(PoisonError::into_inner);
                current.file_versions = file_versions;
            }
        }
    }

    /// Reads the files again on each SIGHUP and after each change.
    pub async fn watch(self, mut hangup: Signal) {
        loop {
            tokio::select! {
                Some(()) = hangup.recv() => self.reload(),
                () = tokio::time::sleep(WATCH_INTERVAL) => {
                    if self.current().file_versions != self.0.files.file_versions() {
                        self.reload();
                    }
                }
            }
        }
    }
}

/// Returns the stream of SIGHUP, on which an agent reads its certificates again.
///
/// # Errors
/// The system refused the handler.
pub fn hangup() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}

fn now() -> UnixTime {
    let (_, realtime_ns) = clock::now_both_ns();
    UnixTime::since_unix_epoch(Duration::from_nanos(u64::try_from(realtime_ns).unwrap_or(0)))
}

impl Files {
    fn load(
        &self,
        own: Arc<dyn ResolvesServerCert>,
        version: u64,
        file_versions: Vec<Option<FileVersion>>,
    ) -> Result<Loaded, AgentError> {
        let mut authority = RootCertStore::empty();
        for certificate in certificates("authority", &self.ca)? {
            authority.add(certificate).map_err(unusable("authority", &self.ca))?;
        }
        let mut verifier = WebPkiClientVerifier::builder(Arc::new(authority));
        if let Some(crl) = &self.crl {
            verifier = verifier.with_crls(revocations(crl)?);
        }
        let verifier = verifier.build().map_err(unusable("authority", &self.ca))?;
        let mut config = ServerConfig::builder_with_protocol_versions(&[&version::TLS13])
            .with_client_cert_verifier(Arc::clone(&verifier))
            .with_cert_resolver(Arc::clone(&own));
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Ok(Loaded { acceptor, verifier, own, version, file_versions })
    }

    /// Returns the node's own certificate with its key.
    fn own(&self) -> Result<Arc<dyn ResolvesServerCert>, AgentError> {
        let key = PrivateKeyDer::from_pem_slice(&read("key", &self.key)?)
            .map_err(unusable("key", &self.key))?;
        let chain = certificates("certificate", &self.cert)?;
        let own = CertifiedKey::from_der(chain, key, &ring::default_provider())
            .map_err(unusable("certificate", &self.cert))?;
        Ok(Arc::new(SingleCertAndKey::from(own)))
    }

    fn file_versions(&self) -> Vec<Option<FileVersion>> {
        let files = [Some(&self.cert), Some(&self.key), Some(&self.ca), self.crl.as_ref()];
        files.into_iter().flatten().map(|file| file_version(file)).collect()
    }
}

fn file_version(file: &Path) -> Option<FileVersion> {
    let file = std::fs::metadata(file).ok()?;
    Some((file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
}

/// Reads the certificate revocation lists. Each authority needs one: a certificate of an authority without a list is refused.
fn revocations(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, AgentError> {
    const WHAT: &str = "list of revoked certificates";
    let text = read(WHAT, path)?;
    let all = CertificateRevocationListDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(unusable(WHAT, path))?;
    if all.is_empty() {
        return Err(unusable(WHAT, path)(
            "it holds no list (PEM); `ccbench pki revoke DIR` writes one, where DIR is the authority's directory (of `ccbench pki init`)",
        ));
    }
    Ok(all)
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
