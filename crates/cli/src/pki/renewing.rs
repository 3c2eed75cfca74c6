//! Renews the certificate of a node that has its key itself, and shows the certificate when it connects to [`super::serve`].

use std::path::Path;
use std::sync::Arc;

use ccbench_io::certificate::{Certificate, CertificateError, is_der_signed_by};
use ccbench_io::replace::replace;
use ccbench_proto::join::{JoinedNode, RenewRequest};
use ccbench_proto::scope::Scopes;
use rcgen::{CertificateSigningRequestParams, ExtendedKeyUsagePurpose, PublicKeyData as _};
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{
    CryptoProvider, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{self, DigitallySignedStruct, DistinguishedName, SignatureScheme};

use super::records::text_of;
use super::{
    AUTHORITY, Order, PkiError, check_hosts, check_name, issuer, read, renewals, revocations, sign,
    tokens, unreadable,
};
use crate::clock;
use crate::file::FileError;

/// Maximum number of renewals for a key in a day. The record of renewals has a line for each, and must stay readable.
const MAX_RENEWALS_PER_DAY: usize = 8;
const DAY_S: i64 = 86_400;

/// Why a node's certificate is not renewed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RenewError {
    /// The client has shown no certificate.
    #[error("the node has shown no certificate")]
    NoCertificate,
    /// The certificate cannot be read.
    #[error("the node's certificate: {0}")]
    Unreadable(#[from] CertificateError),
    /// Another authority has signed it.
    #[error(
        "this authority did not sign the node's certificate; give the address of the authority that did"
    )]
    Foreign,
    /// It belongs to a controller, or to a service of the authority.
    #[error(
        "the certificate of {0} is not a node's; renew those of controllers with `ccbench pki renew` on the authority's machine"
    )]
    NotANode(String),
    /// It is not valid at this time.
    #[error(
        "the certificate of {0} has expired or is not valid yet; if the clocks are right, revoke it, remove {0}.pem, make a token \
         (`ccbench pki token`), and join again"
    )]
    Expired(String),
    /// It or a related one is revoked.
    #[error(
        "the certificate of {0} or one that is connected with it by renewals is revoked; make a token (`ccbench pki token`), and join again"
    )]
    Revoked(String),
    /// The authority's file is missing, or contains a certificate that is not connected with the node's.
    #[error(
        "the authority has removed {0}.pem, or has issued another one since; make a token (`ccbench pki token`), and join again"
    )]
    Replaced(String),
    /// The request is malformed.
    #[error("the certificate signing request is invalid: {0}")]
    Request(#[source] rcgen::Error),
    /// The request is for another key.
    #[error("the certificate signing request is not for the key of the node's certificate")]
    OtherKey,
    /// It was renewed too often.
    #[error(
        "the certificate of {0} was renewed {MAX_RENEWALS_PER_DAY} times today; repeat this tomorrow"
    )]
    TooOften(String),
    /// The authority cannot issue certificates.
    #[error(transparent)]
    Authority(#[from] PkiError),
}

impl From<FileError> for RenewError {
    fn from(error: FileError) -> Self {
        Self::Authority(error.into())
    }
}

/// Renews the certificate (DER) of a node: the same names, key and length of validity. TLS has proved that the node has the key. Replaces
/// `NAME.pem`, and records the renewal. Also returns the node's name.
///
/// # Errors
/// Why the certificate is not renewed.
pub(super) fn renew(
    dir: &Path,
    shown: Option<&[u8]>,
    request: &RenewRequest,
    now_s: i64,
) -> Result<(String, JoinedNode), RenewError> {
    // A revocation at the same time would not find the renewed certificate.
    let _lock = tokens::lock(dir)?;
    let authority = read(&dir.join("ca.pem"), AUTHORITY)?;
    let earlier = check(dir, shown.ok_or(RenewError::NoCertificate)?, &authority, now_s)?;
    let csr =
        CertificateSigningRequestParams::from_pem(&request.csr).map_err(RenewError::Request)?;
    if csr.public_key.der_bytes() != earlier.public_key {
        return Err(RenewError::OtherKey);
    }
    let order = Order {
        name: &earlier.name,
        hosts: &earlier.hosts,
        scopes: Scopes::default(),
        usage: ExtendedKeyUsagePurpose::ServerAuth,
        days: Some(days(&earlier)),
    };
    let certificate = sign(&order, &csr.public_key, &issuer(dir)?)?;
    let path = dir.join(format!("{}.pem", earlier.name));
    let later = Certificate::from_pem(certificate.as_bytes()).map_err(unreadable(&path))?;
    // Before the earlier one is replaced: otherwise no record might have its serial number.
    renewals::add(dir, &earlier.serial, &later.serial)?;
    replace(&path, certificate.as_bytes()).map(drop).map_err(FileError::io("replace", &path))?;
    let revocations = revocations::list(dir)?;
    Ok((earlier.name, JoinedNode { certificate, authority, revocations }))
}

/// Returns the certificate if it may be renewed.
fn check(dir: &Path, shown: &[u8], authority: &str, now_s: i64) -> Result<Certificate, RenewError> {
    let earlier = Certificate::from_der(shown)?;
    let signed = is_der_signed_by(shown, authority.as_bytes());
    if !signed.map_err(unreadable(&dir.join("ca.pem")))? {
        return Err(RenewError::Foreign);
    }
    let name = || earlier.name.clone();
    let is_node = earlier.for_servers && !earlier.for_clients && earlier.uris.is_empty();
    // The service of the authority has a server's certificate, too.
    if !is_node || check_name(&earlier.name).is_err() || check_hosts(&earlier.hosts).is_err() {
        return Err(RenewError::NotANode(name()));
    }
    if !(earlier.not_before_s..earlier.not_after_s).contains(&now_s) {
        return Err(RenewError::Expired(name()));
    }
    let renewals = renewals::read(dir)?;
    let related = renewals::related(&renewals, &earlier.serial);
    if revocations::read(dir)?.iter().any(|revoked| related.contains(&revoked.serial)) {
        return Err(RenewError::Revoked(name()));
    }
    // Otherwise an unrevoked certificate, of an earlier key or of an earlier token, would replace the node's present one, which could not be
    // revoked then.
    let kept = text_of(&dir.join(format!("{}.pem", earlier.name)))?;
    let kept = kept.and_then(|text| Certificate::from_pem(text.as_bytes()).ok());
    let is_other = |kept: Certificate| {
        kept.public_key != earlier.public_key || !related.contains(&kept.serial)
    };
    if kept.is_none_or(is_other) {
        return Err(RenewError::Replaced(name()));
    }
    if renewals::count(&renewals, &related, clock::today()) >= MAX_RENEWALS_PER_DAY {
        return Err(RenewError::TooOften(name()));
    }
    Ok(earlier)
}

/// Returns the days for which a certificate was issued. It is valid since the day before.
fn days(certificate: &Certificate) -> u32 {
    let whole = (certificate.not_after_s - certificate.not_before_s) / DAY_S;
    u32::try_from(whole - 1).unwrap_or(0).max(1)
}

/// Requests a certificate of each client, because nodes that renew their certificate show it. Accepts any certificate, and clients without
/// one: the handshake proves only that the client has the key of its certificate. [`renew`] decides whether it may be renewed, so a refused
/// node is told the reason.
#[derive(Debug)]
pub(super) struct AnyCertificate(pub(super) Arc<CryptoProvider>);

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use ccbench_proto::join::{JoinRequest, SERVER_NAME};
    use ccbench_proto::units::Micros;
    use rcgen::{CertificateParams, KeyPair};

    use super::super::{controller, init, node, now_s, revoke, token};
    use super::*;

    fn authority() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let pki = dir.path().join("pki");
        init(&pki).unwrap();
        (dir, pki)
    }

    fn key(path: &Path) -> KeyPair {
        KeyPair::from_pem(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    fn der(path: &Path) -> Vec<u8> {
        use tokio_rustls::rustls::pki_types::pem::PemObject as _;
        CertificateDer::from_pem_file(path).unwrap().to_vec()
    }

    /// Makes a request as a node does, but for another name.
    fn request(key: &KeyPair) -> RenewRequest {
        let params = CertificateParams::new(vec!["other.example".to_owned()]).unwrap();
        RenewRequest { csr: params.serialize_request(key).unwrap().pem().unwrap() }
    }

    /// Renews the certificate of a file, whose key is beside it.
    fn renewed(pki: &Path, path: &Path) -> Result<(String, JoinedNode), RenewError> {
        renew(pki, Some(&der(path)), &request(&key(&path.with_extension("key"))), now_s())
    }

    #[test]
    fn a_renewed_certificate_differs_in_serial_and_validity_only() {
        let (dir, pki) = authority();
        node(&pki, &["n1.example".to_owned(), "10.0.0.1".to_owned()]).unwrap();
        let path = pki.join("n1.example.pem");
        // As on a node: without its key, and it keeps the earlier certificate.
        let [original, own_key] = ["n1.pem", "n1.key"].map(|name| dir.path().join(name));
        std::fs::copy(&path, &original).unwrap();
        std::fs::rename(path.with_extension("key"), own_key).unwrap();
        let earlier = Certificate::from_der(&der(&original)).unwrap();
        let (name, files) = renewed(&pki, &original).unwrap();
        assert_eq!(name, "n1.example");
        let later = Certificate::from_pem(files.certificate.as_bytes()).unwrap();
        assert_ne!(later.serial, earlier.serial);
        assert_eq!(days(&later), days(&earlier));
        let Certificate { serial, not_before_s, not_after_s, .. } = earlier.clone();
        let but_these = Certificate { serial, not_before_s, not_after_s, ..later.clone() };
        assert_eq!(but_these, earlier, "not what the request names");
        assert_eq!(files.authority, std::fs::read_to_string(pki.join("ca.pem")).unwrap());
        assert_eq!(files.revocations, std::fs::read_to_string(pki.join("crl.pem")).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), files.certificate, "to revoke it");
        let record = std::fs::read_to_string(pki.join("renewed")).unwrap();
        assert!(record.starts_with(&format!("{} ", earlier.serial_hex())), "{record}");
        assert!(record.ends_with(&format!(" {}\n", later.serial_hex())), "{record}");
        // Revoking the earlier one revokes the later one.
        revoke(&pki, std::slice::from_ref(&original)).unwrap();
        // The record of renewals decides: here, that of revocations lacks the later one.
        let revoked = std::fs::read_to_string(pki.join("revoked")).unwrap();
        let first = revoked.lines().next().unwrap();
        assert!(first.starts_with(&earlier.serial_hex()), "{revoked}");
        std::fs::write(pki.join("revoked"), format!("{first}\n")).unwrap();
        let own = dir.path().join("n1.pem");
        for certificate in [files.certificate, std::fs::read_to_string(&original).unwrap()] {
            std::fs::write(&own, certificate).unwrap();
            let refused = renewed(&pki, &own);
            assert!(matches!(refused, Err(RenewError::Revoked(_))), "{refused:?}");
        }
    }

    #[test]
    fn a_short_validity_stays_short() {
        let (_dir, pki) = authority();
        node(&pki, &["n1".to_owned()]).unwrap();
        let path = pki.join("n1.pem");
        super::super::renew(&pki, &path, Some(30)).unwrap();
        let (_, files) = renewed(&pki, &path).unwrap();
        assert_eq!(days(&Certificate::from_pem(files.certificate.as_bytes()).unwrap()), 30);
    }

    #[test]
    fn only_a_valid_certificate_of_a_node_of_this_authority_is_renewed() {
        let (dir, pki) = authority();
        node(&pki, &["n1".to_owned()]).unwrap();
        let path = pki.join("n1.pem");
        let (own_key, shown) = (key(&pki.join("n1.key")), der(&path));
        let own = Certificate::from_der(&shown).unwrap();
        let at = |now_s: i64| renew(&pki, Some(&shown), &request(&own_key), now_s);
        for outside_s in [own.not_before_s - 1, own.not_after_s] {
            let refused = at(outside_s);
            assert!(matches!(refused, Err(RenewError::Expired(_))), "{refused:?}");
        }
        let refused = renew(&pki, None, &request(&own_key), now_s());
        assert!(matches!(refused, Err(RenewError::NoCertificate)), "{refused:?}");
        let refused = renew(&pki, Some(&shown[..40]), &request(&own_key), now_s());
        assert!(matches!(refused, Err(RenewError::Unreadable(_))), "{refused:?}");
        // Another authority has a node of this name.
        let other = dir.path().join("other");
        init(&other).unwrap();
        node(&other, &["n1".to_owned()]).unwrap();
        let refused = renewed(&pki, &other.join("n1.pem"));
        assert!(matches!(refused, Err(RenewError::Foreign)), "{refused:?}");
        let alice = controller(&pki, "alice", &[], None).unwrap().join("controller.pem");
        let refused = renewed(&pki, &alice);
        assert!(matches!(refused, Err(RenewError::NotANode(_))), "{refused:?}");
        let refused = renewed(&pki, &service_certificate(&dir, &pki));
        assert!(matches!(refused, Err(RenewError::NotANode(_))), "{refused:?}");
        let refused = renew(&pki, Some(&shown), &request(&KeyPair::generate().unwrap()), now_s());
        assert!(matches!(refused, Err(RenewError::OtherKey)), "{refused:?}");
        let empty = RenewRequest { csr: String::new() };
        let refused = renew(&pki, Some(&shown), &empty, now_s());
        assert!(matches!(refused, Err(RenewError::Request(_))), "{refused:?}");
        assert!(!pki.join("renewed").exists() && der(&path) == shown, "nothing is changed");
        at(own.not_after_s - 1).unwrap();
    }

    /// Writes a certificate as that of `ccbench pki serve`, and its key. Returns the certificate's path.
    fn service_certificate(dir: &tempfile::TempDir, pki: &Path) -> PathBuf {
        let hosts = [SERVER_NAME.to_owned()];
        let order = Order {
            name: "n1",
            hosts: &hosts,
            scopes: Scopes::default(),
            usage: ExtendedKeyUsagePurpose::ServerAuth,
            days: None,
        };
        let key = KeyPair::generate().unwrap();
        let path = dir.path().join("service.pem");
        std::fs::write(&path, sign(&order, &key, &issuer(pki).unwrap()).unwrap()).unwrap();
        std::fs::write(path.with_extension("key"), key.serialize_pem()).unwrap();
        path
    }

    #[test]
    fn a_certificate_of_an_earlier_key_does_not_replace_that_of_the_present_one() {
        let (dir, pki) = authority();
        node(&pki, &["n1".to_owned()]).unwrap();
        let former = dir.path().join("former.pem");
        for ending in ["pem", "key"] {
            let from = pki.join("n1").with_extension(ending);
            std::fs::rename(from, former.with_extension(ending)).unwrap();
        }
        let refused = renewed(&pki, &former);
        assert!(matches!(refused, Err(RenewError::Replaced(_))), "{refused:?}");
        node(&pki, &["n1".to_owned()]).unwrap();
        let present = der(&pki.join("n1.pem"));
        let refused = renewed(&pki, &former);
        assert!(matches!(refused, Err(RenewError::Replaced(_))), "{refused:?}");
        assert_eq!(der(&pki.join("n1.pem")), present);
    }

    /// Its serial number is only in its file.
    #[test]
    fn a_certificate_of_an_earlier_token_does_not_replace_that_of_a_later_one_for_the_same_key() {
        let (_dir, pki) = authority();
        let own_key = KeyPair::generate().unwrap();
        let join = || {
            let token = token(&pki, &["n1".to_owned()], Micros::new(3_600_000_000)).unwrap();
            let RenewRequest { csr } = request(&own_key);
            let request = JoinRequest { secret: token.secret().to_owned(), csr };
            tokens::redeem(&pki, &request, now_s()).unwrap();
            der(&pki.join("n1.pem"))
        };
        let renew = |shown: &[u8]| renew(&pki, Some(shown), &request(&own_key), now_s());
        let former = join();
        std::fs::remove_file(pki.join("n1.pem")).unwrap();
        let present = join();
        let refused = renew(&former);
        assert!(matches!(refused, Err(RenewError::Replaced(_))), "{refused:?}");
        assert_eq!(der(&pki.join("n1.pem")), present);
        renew(&present).unwrap();
        // The file now has what was renewed from it.
        renew(&present).unwrap();
        let refused = renew(&former);
        assert!(matches!(refused, Err(RenewError::Replaced(_))), "{refused:?}");
    }

    #[test]
    fn renewals_of_a_day_are_limited() {
        let (dir, pki) = authority();
        node(&pki, &["n1".to_owned()]).unwrap();
        let path = dir.path().join("n1.pem");
        std::fs::copy(pki.join("n1.pem"), &path).unwrap();
        std::fs::copy(pki.join("n1.key"), path.with_extension("key")).unwrap();
        let first = Certificate::from_der(&der(&path)).unwrap().serial_hex();
        // The last ones of yesterday do not count.
        let yesterday = clock::today().yesterday().unwrap();
        let line = |later: usize| format!("{first} {yesterday} {later:02x}\n");
        std::fs::write(pki.join("renewed"), (0..20).map(line).collect::<String>()).unwrap();
        // Always the same certificate, and then the last one.
        for _ in 0..MAX_RENEWALS_PER_DAY {
            renewed(&pki, &path).unwrap();
        }
        for path in [&path, &pki.join("n1.pem")] {
            let refused = renewed(&pki, path);
            assert!(matches!(refused, Err(RenewError::TooOften(_))), "{refused:?}");
        }
    }
}
