//! Join tokens: the authority's file `tokens` has one line `SHA256_OF_SECRET EXPIRY_S NAME[,NAME...]` for each. A token's line is
//! removed when the token is used.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use ccbench_io::replace::replace;
use ccbench_proto::join::{JoinRequest, JoinToken, JoinedNode};
use ccbench_proto::plan::digest_bytes;
use ccbench_proto::scope::Scopes;
use rcgen::{CertificateSigningRequestParams, ExtendedKeyUsagePurpose};
use rustix::fs::FlockOperation;

use super::records::lines;
use super::{AUTHORITY, Order, PkiError, Readers, check_not_issued, issuer, read, revocations};
use super::{sign, write};
use crate::file::FileError;

const FILE_NAME: &str = "tokens";

/// A valid token.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PendingToken {
    /// SHA-256 of the secret.
    digest: String,
    /// Expiry in seconds since 1970.
    expiry_s: i64,
    /// The node's names.
    names: Vec<String>,
}

impl PendingToken {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let [digest, expiry_s, names] = [words.next()?, words.next()?, words.next()?];
        let is_complete = words.next().is_none() && !names.is_empty();
        is_complete.then_some(Self {
            digest: digest.to_owned(),
            expiry_s: expiry_s.parse().ok()?,
            names: names.split(',').map(str::to_owned).collect(),
        })
    }

    fn line(&self) -> String {
        format!("{} {} {}\n", self.digest, self.expiry_s, self.names.join(","))
    }
}

/// Why a token does not give a certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum RedeemError {
    /// The token is not in the record.
    #[error("the token is unknown or was used already; make another one: `ccbench pki token`")]
    Unknown,
    /// The token has expired.
    #[error("the token has expired; make another one: `ccbench pki token`")]
    Expired,
    /// The request has no valid key.
    #[error("the certificate signing request is invalid: {0}")]
    Request(#[source] rcgen::Error),
    /// The authority cannot issue certificates.
    #[error(transparent)]
    Authority(#[from] PkiError),
}

/// Locks the authority, its records of tokens, renewals and revocations, and the files of its certificates. Only one process at a time may
/// make or change them.
///
/// # Errors
/// The lock file cannot be created, or belongs to another user.
pub(super) fn lock(dir: &Path) -> Result<File, PkiError> {
    const MODE: u32 = 0o600;
    let path = dir.join("tokens.lock");
    let open = || -> io::Result<File> {
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).mode(MODE).open(&path)?;
        // Whoever can open the file can hold the lock for ever. Earlier versions made one that everybody could read.
        file.set_permissions(Permissions::from_mode(MODE))?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    };
    Ok(open().map_err(FileError::io("lock", &path))?)
}

fn read_all(dir: &Path) -> Result<Vec<PendingToken>, PkiError> {
    lines(&dir.join(FILE_NAME), "SHA256 EXPIRY_S NAME[,NAME...]", PendingToken::parse)
}

fn write_all(dir: &Path, all: &[PendingToken]) -> Result<(), PkiError> {
    let text: String = all.iter().map(PendingToken::line).collect();
    let path = dir.join(FILE_NAME);
    Ok(replace(&path, text.as_bytes()).map(drop).map_err(FileError::io("write", &path))?)
}

/// Records a token for a node and removes expired ones.
///
/// # Errors
/// The record cannot be read or written.
pub(super) fn add(
    dir: &Path,
    token: &JoinToken,
    names: &[String],
    (now_s, expiry_s): (i64, i64),
) -> Result<(), PkiError> {
    let _lock = lock(dir)?;
    let mut all = read_all(dir)?;
    all.retain(|token| token.expiry_s > now_s);
    all.push(PendingToken {
        digest: digest_bytes(token.secret().as_bytes()),
        expiry_s,
        names: names.to_vec(),
    });
    write_all(dir, &all)
}

/// Returns the number of unused tokens.
///
/// # Errors
/// The record cannot be read.
pub(super) fn unused(dir: &Path, now_s: i64) -> Result<usize, PkiError> {
    Ok(read_all(dir)?.iter().filter(|token| token.expiry_s > now_s).count())
}

/// Uses a token: issues the certificate `NAME.pem` for the key of the request. Also returns the node's name.
///
/// # Errors
/// Why the token gives no certificate. The token stays in the record unless the authority failed.
pub(super) fn redeem(
    dir: &Path,
    request: &JoinRequest,
    now_s: i64,
) -> Result<(String, JoinedNode), RedeemError> {
    let _lock = lock(dir)?;
    let mut all = read_all(dir)?;
    let digest = digest_bytes(request.secret.as_bytes());
    let Some(at) = all.iter().position(|token| token.digest == digest) else {
        return Err(RedeemError::Unknown);
    };
    if all[at].expiry_s <= now_s {
        return Err(RedeemError::Expired);
    }
    // The request's signature proves that the node has the key.
    let asked =
        CertificateSigningRequestParams::from_pem(&request.csr).map_err(RedeemError::Request)?;
    let name = all[at].names.first().cloned().unwrap_or_default();
    let file = format!("{name}.pem");
    check_not_issued(&dir.join(&file))?;
    // Removes the token before issuing, so that no failure gives two certificates for one token.
    let token = all.remove(at);
    write_all(dir, &all)?;
    let order = Order {
        name: &name,
        hosts: &token.names,
        scopes: Scopes::default(),
        usage: ExtendedKeyUsagePurpose::ServerAuth,
        days: None,
    };
    let issuer = issuer(dir)?;
    let certificate = sign(&order, &asked.public_key, &issuer)?;
    write(dir, &file, &certificate, Readers::All)?;
    let authority = read(&dir.join("ca.pem"), AUTHORITY).map_err(PkiError::from)?;
    let revocations = revocations::list(dir)?;
    Ok((name, JoinedNode { certificate, authority, revocations }))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::super::{init, node, token};
    use super::*;
    use ccbench_io::certificate::{Certificate, is_signed_by};
    use ccbench_proto::units::Micros;

    const NOW_S: i64 = 1_800_000_000;

    fn authority() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let pki = dir.path().join("pki");
        init(&pki).unwrap();
        (dir, pki)
    }

    fn added(pki: &Path, secret: u8, names: &[&str]) -> JoinToken {
        let token = JoinToken::new(b"authority", [secret; 16]);
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        add(pki, &token, &names, (NOW_S, NOW_S + 60)).unwrap();
        token
    }

    /// Makes a request as a node does, but for another name.
    fn request(token: &JoinToken, key: &KeyPair) -> JoinRequest {
        let params = CertificateParams::new(vec!["other.example".to_owned()]).unwrap();
        let csr = params.serialize_request(key).unwrap().pem().unwrap();
        JoinRequest { secret: token.secret().to_owned(), csr }
    }

    #[test]
    fn a_token_gives_one_certificate_with_the_tokens_names() {
        let (_dir, pki) = authority();
        let (first, second) =
            (added(&pki, 1, &["n1.example", "10.0.0.1"]), added(&pki, 2, &["n2.example"]));
        let key = KeyPair::generate().unwrap();
        assert_eq!(unused(&pki, NOW_S).unwrap(), 2);
        let (name, files) = redeem(&pki, &request(&first, &key), NOW_S).unwrap();
        assert_eq!(name, "n1.example");
        let issued = Certificate::from_pem(files.certificate.as_bytes()).unwrap();
        assert_eq!(issued.hosts, ["n1.example", "10.0.0.1"], "not what the request names");
        assert_eq!(issued.public_key, key.public_key_raw());
        assert!(issued.for_servers && !issued.for_clients && issued.uris.is_empty());
        assert!(is_signed_by(files.certificate.as_bytes(), files.authority.as_bytes()).unwrap());
        assert!(files.revocations.starts_with("-----BEGIN X509 CRL-----"), "{files:?}");
        let kept = std::fs::read_to_string(pki.join("n1.example.pem")).unwrap();
        assert_eq!(kept, files.certificate, "to revoke it");
        assert!(!pki.join("n1.example.key").exists());
        let again = redeem(&pki, &request(&first, &key), NOW_S);
        assert!(matches!(again, Err(RedeemError::Unknown)), "{again:?}");
        assert_eq!(unused(&pki, NOW_S).unwrap(), 1);
        redeem(&pki, &request(&second, &key), NOW_S).unwrap();
        let record = std::fs::read_to_string(pki.join(FILE_NAME)).unwrap();
        assert!(!record.contains(second.secret()), "{record}");
    }

    #[test]
    fn other_users_cannot_open_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.lock");
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        drop(lock(dir.path()).unwrap());
        assert_eq!(mode(), 0o600);
        // As an earlier version has left it.
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        drop(lock(dir.path()).unwrap());
        assert_eq!(mode(), 0o600);
    }

    #[test]
    fn refused_requests_leave_the_token() {
        let (_dir, pki) = authority();
        let own = added(&pki, 1, &["n1.example"]);
        let key = KeyPair::generate().unwrap();
        let wrong = JoinToken::new(b"authority", [9; 16]);
        let refused = redeem(&pki, &request(&wrong, &key), NOW_S);
        assert!(matches!(refused, Err(RedeemError::Unknown)), "{refused:?}");
        let refused = redeem(&pki, &request(&own, &key), NOW_S + 60);
        assert!(matches!(refused, Err(RedeemError::Expired)), "{refused:?}");
        // A damaged request, and an empty one.
        let mut forged = request(&own, &key);
        let der = forged.csr.replace("-----BEGIN CERTIFICATE REQUEST-----\n", "");
        forged.csr = forged.csr.replace(&der[..4], "AAAA");
        for csr in [forged.csr, String::new()] {
            let forged = JoinRequest { csr, ..request(&own, &key) };
            let refused = redeem(&pki, &forged, NOW_S);
            assert!(matches!(refused, Err(RedeemError::Request(_))), "{refused:?}");
        }
        assert_eq!(unused(&pki, NOW_S).unwrap(), 1);
        assert_eq!(unused(&pki, NOW_S + 60).unwrap(), 0);
        node(&pki, &["n1.example".to_owned()]).unwrap();
        let refused = redeem(&pki, &request(&own, &key), NOW_S).unwrap_err().to_string();
        assert!(refused.contains("n1.example.pem exists"), "{refused}");
    }

    #[test]
    fn tokens_are_for_valid_names_and_a_limited_time() {
        let (_dir, pki) = authority();
        let make = |names: &[&str], text: &str| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            token(&pki, &names, text.parse::<Micros>().unwrap()).map_err(|error| error.to_string())
        };
        let made = make(&["n1.example", "10.0.0.1"], "1h").unwrap();
        assert_ne!(made, make(&["n2.example"], "1h").unwrap());
        make(&[], "1h").unwrap_err();
        for name in ["", "../x", "a b", "a,b", "a\nb", "tokens"] {
            make(&[name], "1h").unwrap_err();
        }
        make(&["n2.example", "b c"], "1h").unwrap_err();
        for servers in ["join.ccbench.invalid", "JOIN.ccbench.invalid.", "*.ccbench.invalid"] {
            make(&["n2.example", servers], "1h").unwrap_err();
            node(&pki, &["n2.example".to_owned(), servers.to_owned()]).unwrap_err();
        }
        for (hours, is_valid) in [(0, false), (1, true), (30 * 24, true), (30 * 24 + 1, false)] {
            let made = token(&pki, &["n3.example".to_owned()], Micros::new(hours * 3_600_000_000));
            assert_eq!(made.is_ok(), is_valid, "{hours} h: {made:?}");
        }
        std::fs::write(pki.join(FILE_NAME), "x y\n").unwrap();
        assert!(make(&["n4.example"], "1h").unwrap_err().contains("line 1 is not"));
    }
}
