//! `ccbench-agent join`: generates a key, and gets the node's first certificate for it from `ccbench pki serve`. The
//! key never leaves the node. See [`ccbench_proto::join`].

use std::fmt;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ccbench_io::certificate::{Certificate, CertificateError, is_signed_by};
use ccbench_io::console;
use ccbench_io::replace::{create, staged};
use ccbench_proto::join::{JoinRequest, JoinToken, JoinedNode, NotAToken};
use rcgen::{CertificateParams, KeyPair};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme, version,
};

use crate::exchange::{ExchangeError, exchange};

pub(crate) const KEY: &str = "node.key";
pub(crate) const CERTIFICATE: &str = "node.pem";
pub(crate) const AUTHORITY: &str = "ca.pem";
pub(crate) const REVOCATIONS: &str = "crl.pem";

/// `ccbench-agent join`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Where `ccbench pki serve` listens
    #[arg(long, value_name = "HOST:PORT")]
    pub controller: String,
    /// The token that `ccbench pki token` has printed
    #[arg(long, value_name = "TOKEN", env = "CCBENCH_JOIN_TOKEN", hide_env_values = true)]
    pub token: TokenText,
    /// Where node.key, node.pem, ca.pem and crl.pem are written
    #[arg(long, value_name = "DIR", default_value = "/etc/ccbench")]
    pub dir: PathBuf,
    /// The user of `ccbench-agent front`, who alone can read node.key [default: this one; the systemd unit needs root]
    #[arg(long, value_name = "USER", value_parser = crate::user::uid)]
    pub user: Option<u32>,
}

/// What is given as a token. It is parsed later, because clap prints a value that cannot be parsed. `Debug` leaves it out, too.
#[derive(Clone)]
pub struct TokenText(String);

impl From<String> for TokenText {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenText(…)")
    }
}

/// Why a node has not joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The token is not one. Its text may contain the secret of one, so it is not named.
    #[error("--token or CCBENCH_JOIN_TOKEN: {0}")]
    Token(#[from] NotAToken),
    /// The node already has a key or a certificate.
    #[error(
        "{} already exists; to give the node another certificate, remove node.key, node.pem, ca.pem and crl.pem there, or choose another \
         --dir", .0.display()
    )]
    Exists(PathBuf),
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
    /// The key or the request could not be made.
    #[error("make a key: {0}")]
    Key(#[from] rcgen::Error),
    /// The TLS library could not be set up.
    #[error("set TLS up: {0}")]
    Tls(#[from] rustls::Error),
    /// The authority issues no certificate.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The service does not belong to the token's authority. The token was not sent to it.
    #[error(
        "{0} does not belong to the authority that made this token; give the address of that authority's `ccbench pki serve`, or a \
         token of this authority"
    )]
    OtherAuthority(String),
    /// The certificate was issued but cannot be written.
    #[error(
        "{source}; the authority has already issued a certificate to {name}. On the authority's machine (`pki` is its directory), revoke \
         it with `ccbench pki revoke pki pki/{name}.pem`, remove pki/{name}.pem, and make another token"
    )]
    Unwritten {
        /// The node's name, as the authority has it.
        name: String,
        /// The error, which names the file.
        source: Box<JoinError>,
    },
    /// The answer does not fit the request.
    #[error("the answer of {controller}: {source}")]
    Answer {
        /// The service.
        controller: String,
        /// What is wrong.
        source: AnswerError,
    },
}

impl JoinError {
    /// Returns the exit code of this program: 2 for a wrong command line, otherwise 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Token(_) => 2,
            Self::Exists(_)
            | Self::File { .. }
            | Self::Key(_)
            | Self::Tls(_)
            | Self::Exchange(_)
            | Self::OtherAuthority(_)
            | Self::Unwritten { .. }
            | Self::Answer { .. } => 1,
        }
    }
}

/// What is wrong with an answer.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// Its certificates are malformed.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Its authority is not the token's.
    #[error("it names an authority other than the token's")]
    Authority,
    /// The certificate is not for the node's key, or not for servers.
    #[error("its certificate is not a server certificate for this node's key")]
    Key,
    /// The authority did not sign the certificate.
    #[error("the authority did not sign its certificate")]
    Unsigned,
}

/// Gets a certificate, and writes it with its key.
///
/// # Errors
/// The node already has files of a certificate, or gets none. No file is left then.
pub fn main(args: &Args) -> Result<(), JoinError> {
    let Args { controller, token, dir, user } = args;
    let token: JoinToken = token.0.parse()?;
    let files = [KEY, CERTIFICATE, AUTHORITY, REVOCATIONS].map(|name| dir.join(name));
    if let Some(exists) = files.iter().find(|file| file.exists()) {
        return Err(JoinError::Exists(exists.clone()));
    }
    let is_new = !dir.exists();
    std::fs::create_dir_all(dir).map_err(failed("make", dir))?;
    let key = KeyPair::generate()?;
    let [key_file, ..] = &files;
    // Written before the token is used: a certificate without its key is useless.
    write_key(key_file, &key.serialize_pem(), *user)?;
    let joined = ask(controller, &token, &key).and_then(|joined| {
        check(&joined, &token, &key).map_err(|source| {
            let controller = controller.clone();
            JoinError::Answer { controller, source }
        })?;
        write(dir, &joined).map_err(|source| {
            let own = Certificate::from_pem(joined.certificate.as_bytes());
            let name = own.map_or_else(|_| "NAME".to_owned(), |own| own.name);
            JoinError::Unwritten { name, source: Box::new(source) }
        })?;
        Ok(joined)
    });
    match joined {
        Ok(joined) => {
            let names = Certificate::from_pem(joined.certificate.as_bytes());
            let names = names.map_or_else(|_| String::new(), |own| own.hosts.join(", "));
            console::print(&format!("{}: the certificate of {names}\n", files[1].display()));
            Ok(())
        }
        Err(error) => {
            for file in &files {
                // Files that were not written do not exist.
                let _ = std::fs::remove_file(file);
            }
            if is_new {
                // The first error is the one to report.
                let _ = std::fs::remove_dir(dir);
            }
            Err(error)
        }
    }
}

fn failed(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JoinError {
    let path = path.to_owned();
    move |source| JoinError::File { op, path, source }
}

fn write_key(path: &Path, text: &str, owner: Option<u32>) -> Result<(), JoinError> {
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        let written = written.and_then(|()| match owner {
            Some(owner) => fchown(&file, Some(owner), None),
            None => Ok(()),
        });
        // Otherwise a partial key would block the next attempt.
        written.inspect_err(|_| drop(std::fs::remove_file(path)))
    };
    write().map_err(failed("write", path))
}

/// Writes the files, the certificate last: with it, the agent can start.
fn write(dir: &Path, joined: &JoinedNode) -> Result<(), JoinError> {
    let JoinedNode { certificate, authority, revocations } = joined;
    let files = [(AUTHORITY, authority), (REVOCATIONS, revocations), (CERTIFICATE, certificate)];
    for (name, text) in files.into_iter().filter(|(_, text)| !text.is_empty()) {
        let path = dir.join(name);
        publish(&path, text).map_err(failed("write", &path))?;
    }
    Ok(())
}

/// Replaces a file atomically with one that everybody may read: the front, which runs as another user, does. It can read it from the
/// beginning, because it tries only once after each change.
///
/// # Errors
/// Those of writing, syncing and renaming a file in the same directory. The earlier file stays.
pub(crate) fn publish(path: &Path, text: &str) -> io::Result<()> {
    let staged = staged(path);
    let mut file = create(&staged)?;
    let mut write = || {
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&staged, path)
    };
    write().inspect_err(|_| {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&staged);
    })
}

/// Checks that an answer is from the token's authority and for this key.
fn check(joined: &JoinedNode, token: &JoinToken, key: &KeyPair) -> Result<(), AnswerError> {
    let (text, authority) = (joined.certificate.as_bytes(), joined.authority.as_bytes());
    if !CertificateDer::from_pem_slice(authority).is_ok_and(|shown| token.is_of(&shown)) {
        return Err(AnswerError::Authority);
    }
    let own = Certificate::from_pem(text)?;
    if own.public_key != key.public_key_raw() || !own.for_servers {
        return Err(AnswerError::Key);
    }
    if is_signed_by(text, authority)? { Ok(()) } else { Err(AnswerError::Unsigned) }
}

/// Requests a certificate.
fn ask(controller: &str, token: &JoinToken, key: &KeyPair) -> Result<JoinedNode, JoinError> {
    let csr = CertificateParams::new(Vec::<String>::new())?.serialize_request(key)?.pem()?;
    let request = JoinRequest { secret: token.secret().to_owned(), csr };
    let provider = Arc::new(ring::default_provider());
    let other_authority = Arc::new(AtomicBool::new(false));
    let verifier = TokenVerifier {
        token: token.clone(),
        provider: Arc::clone(&provider),
        other_authority: Arc::clone(&other_authority),
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    exchange(controller, connector, &request).map_err(|error| match error {
        ExchangeError::Connection { controller, .. } if other_authority.load(Ordering::Relaxed) => {
            JoinError::OtherAuthority(controller)
        }
        error => error.into(),
    })
}

/// Accepts a service that shows the token's authority and a certificate from it.
#[derive(Debug)]
struct TokenVerifier {
    token: JoinToken,
    provider: Arc<CryptoProvider>,
    /// Set if the service showed another authority or none.
    other_authority: Arc<AtomicBool>,
}

impl ServerCertVerifier for TokenVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(authority) = intermediates.iter().find(|shown| self.token.is_of(shown)) else {
            self.other_authority.store(true, Ordering::Relaxed);
            return Err(rustls::CertificateError::UnknownIssuer.into());
        };
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let provider = Arc::clone(&self.provider);
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, &[], server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let supported = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, supported)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let supported = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, supported)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use ccbench_proto::join::SERVER_NAME;
    use rcgen::{BasicConstraints, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa};

    use super::*;

    type Ca = CertifiedIssuer<'static, KeyPair>;

    fn authority() -> Ca {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn certificate(ca: &Ca, key: &KeyPair, name: &str) -> rcgen::Certificate {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.signed_by(key, ca).unwrap()
    }

    #[test]
    fn only_an_answer_for_this_key_of_the_tokens_authority_is_accepted() {
        let (ca, other) = (authority(), authority());
        let (key, other_key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let token = JoinToken::new(ca.der(), [1; 16]);
        let answer = |ca: &Ca, signer: &Ca, key: &KeyPair| JoinedNode {
            certificate: certificate(signer, key, "n1").pem(),
            authority: ca.pem(),
            revocations: String::new(),
        };
        assert!(check(&answer(&ca, &ca, &key), &token, &key).is_ok());
        for (wrong, why) in [
            (answer(&other, &other, &key), "an authority other than the token's"),
            (answer(&ca, &other, &key), "did not sign"),
            (answer(&ca, &ca, &other_key), "not a server certificate for this node's key"),
        ] {
            let error = check(&wrong, &token, &key).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_node_without_an_answer_keeps_no_directory_that_it_made() {
        let root = tempfile::tempdir().unwrap();
        let join = |dir: PathBuf| {
            let token = JoinToken::new(authority().der(), [1; 16]).to_string().into();
            // Nothing listens there.
            let controller = "127.0.0.1:1".to_owned();
            main(&Args { controller, token, dir, user: None }).unwrap_err().to_string()
        };
        let error = join(root.path().join("new"));
        assert!(error.contains("ends when no token is left"), "{error}");
        join(root.path().to_owned());
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_almost_a_token_is_not_printed() {
        use clap::Parser as _;
        let root = tempfile::tempdir().unwrap();
        let text = JoinToken::new(authority().der(), [0xab; 16]).to_string();
        // The last digit is missing.
        let cut = &text[..text.len() - 1];
        let dir = root.path().join("new");
        let line =
            ["ccbench-agent", "join", "--controller", "127.0.0.1:1", "--token", cut, "--dir"];
        let line = line.iter().map(OsStr::new).chain([dir.as_os_str()]);
        let cli = crate::args::Cli::try_parse_from(line).unwrap();
        let crate::args::Command::Join(args) = cli.command else { panic!("another command") };
        let error = main(&args).unwrap_err();
        assert!(matches!(error, JoinError::Token(_)), "{error}");
        let printed = format!("{error} {error:?} {args:?}");
        assert!(printed.contains("`ccbench pki token` prints"), "{printed}");
        assert!(!printed.contains("abab"), "{printed}");
        assert!(!dir.exists());
    }

    #[test]
    fn only_the_service_of_the_tokens_authority_is_trusted() {
        let (ca, other) = (authority(), authority());
        let key = KeyPair::generate().unwrap();
        let verify = |name: &str, signer: &Ca, shown: &Ca| {
            let other_authority = Arc::new(AtomicBool::new(false));
            let verifier = TokenVerifier {
                token: JoinToken::new(ca.der(), [1; 16]),
                provider: Arc::new(ring::default_provider()),
                other_authority: Arc::clone(&other_authority),
            };
            let service = certificate(signer, &key, name);
            let (shown, now) = ([shown.der().clone()], UnixTime::now());
            let server_name = ServerName::try_from(SERVER_NAME).unwrap();
            let verified =
                verifier.verify_server_cert(service.der(), &shown, &server_name, &[], now);
            (verified.is_ok(), other_authority.load(Ordering::Relaxed))
        };
        assert_eq!(verify(SERVER_NAME, &ca, &ca), (true, false));
        assert_eq!(verify(SERVER_NAME, &other, &other), (false, true));
        assert_eq!(verify(SERVER_NAME, &other, &ca), (false, false), "it only shows the authority");
        assert_eq!(verify("n1.example", &ca, &ca), (false, false), "a node's certificate");
    }
}
