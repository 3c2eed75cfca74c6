//! A private certificate authority for agents and controllers. Node certificates are for servers only and controller certificates
//! for clients only, so a stolen node key cannot control another node. A controller's certificate contains its scopes.

use std::error::Error;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ccbench_io::certificate::{Certificate, CertificateError, is_signed_by};
use ccbench_io::input;
use ccbench_proto::join::{JoinToken, SERVER_NAME};
use ccbench_proto::scope::{Scope, Scopes};
use ccbench_proto::units::Micros;
use jiff::Span;
use jiff::civil::Date;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
};
use sha2::{Digest as _, Sha256};
use tokio_rustls::rustls;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;

use crate::clock;
use crate::exit::ExitCode;
use crate::file::{FileError, exists};

mod records;
mod renewals;
mod renewing;
mod revocations;
mod serving;
mod tokens;

pub use serving::serve;

/// Why a certificate cannot be issued.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// The directory already holds an authority.
    #[error("pki: {} already holds an authority; remove it, or choose another directory", .0.display())]
    Exists(PathBuf),
    /// The name cannot be used for a node or a controller.
    #[error("pki: {0:?} is not a valid name: it is reserved or contains `/`")]
    InvalidName(String),
    /// No name is given.
    #[error("pki: give the host name or address of the node")]
    NoName,
    /// A file is not a certificate.
    #[error("pki: {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: CertificateError,
    },
    /// A file is not a private key.
    #[error("pki: {} is not a private key ({source}); restore it from a copy", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rcgen::Error,
    },
    /// The authority's own certificate cannot be renewed or revoked: without it, no other one is valid.
    #[error(
        "pki: {} is the authority's own certificate, which is neither renewed nor revoked; to replace it, make an authority in another \
         directory (`ccbench pki init`) and issue all certificates again",
        .0.display()
    )]
    Authority(PathBuf),
    /// A certificate belongs to neither a node nor a controller.
    #[error("pki: {} is neither a node's nor a controller's certificate", .0.display())]
    OtherUsage(PathBuf),
    /// A certificate already exists. It would stay valid.
    #[error(
        "pki: {} exists, and once overwritten, the certificate could not be revoked; renew it (`ccbench pki renew`), revoke it \
         and remove the file, or choose another name",
        .0.display()
    )]
    Issued(PathBuf),
    /// Another authority signed a certificate, or it was modified.
    #[error("pki: the authority did not sign {}", .0.display())]
    Foreign(PathBuf),
    /// The key beside a certificate does not belong to it.
    #[error("pki: {} is not the key of the certificate beside it; restore it from a copy", .0.display())]
    OtherKey(PathBuf),
    /// The key is not beside a node's certificate. A node that joined with a token has it itself.
    #[error(
        "pki: {} does not exist; copy it back from the node. If the node joined with a token, its key stays there, and it renews its \
         certificate itself: start `ccbench pki serve DIR --listen ADDRESS:PORT --until-stopped` here, and \
         `ccbench-agent renew --controller ADDRESS:PORT` on the node",
        .0.display()
    )]
    KeyOnNode(PathBuf),
    /// A revoked certificate cannot be renewed.
    #[error(
        "pki: {} or a later renewal of it is revoked; issue another one with `ccbench pki node` or `ccbench pki controller`",
        .0.display()
    )]
    Revoked(PathBuf),
    /// The record of revocations or renewals is damaged.
    #[error("pki: {}: line {line} is not `{format}`; restore the file", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Its line.
        line: usize,
        /// The format of its lines.
        format: &'static str,
    },
    /// The record of renewals is as large as it may be.
    #[error(
        "pki: {} has no place for more renewals, and lines of certificates that are still valid are needed to revoke them; remove its first \
         lines, whose certificates have expired, or make an authority in another directory (`ccbench pki init`)",
        .0.display()
    )]
    ManyRenewals(PathBuf),
    /// The validity of a token is zero or too long.
    #[error("pki: the validity of a token must be more than zero and at most 30 days (720h)")]
    Validity,
    /// The service for nodes that join failed.
    #[error("pki: cannot {op}: {source}")]
    Service {
        /// The operation.
        op: String,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The certificate library refused.
    #[error("pki: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

impl PkiError {
    fn service(op: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Service { op: op.into(), source: source.into() }
    }

    /// Returns the process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::InvalidName(_)
            | Self::NoName
            | Self::Validity
            | Self::Authority(_)
            | Self::OtherUsage(_)
            | Self::Foreign(_)
            | Self::OtherKey(_) => ExitCode::Usage,
            Self::Exists(_)
            | Self::Issued(_)
            | Self::KeyOnNode(_)
            | Self::Revoked(_)
            | Self::ManyRenewals(_)
            | Self::Service { .. }
            | Self::Certificate(_) => ExitCode::Unavailable,
            Self::Unreadable { .. } | Self::Key { .. } | Self::Damaged { .. } | Self::File(_) => {
                ExitCode::Failure
            }
        }
    }
}

const YEARS: i32 = 2;
/// The longest validity of a token.
const MAX_TOKEN_VALIDITY: Micros = Micros::new(30 * 24 * 3_600_000_000);

/// The contents of a certificate to be issued.
struct Order<'a> {
    name: &'a str,
    hosts: &'a [String],
    scopes: Scopes,
    usage: ExtendedKeyUsagePurpose,
    days: Option<u32>,
}

/// Makes `dir` with `ca.pem`, `ca.key`, `crl.pem`, `controller.pem` and `controller.key`: all of them, or after an error none.
///
/// # Errors
/// The directory already holds an authority, which is never overwritten, or cannot be written.
pub fn init(dir: &Path) -> Result<(), PkiError> {
    // Check for any of these files, because the authority's key may be kept elsewhere.
    let files = ["ca.key", "ca.pem", "controller.pem", "controller.key"];
    let refuse_existing = || -> Result<(), PkiError> {
        for file in files {
            if exists(&dir.join(file))? {
                return Err(PkiError::Exists(dir.to_owned()));
            }
        }
        Ok(())
    };
    // A refused directory stays as it is.
    refuse_existing()?;
    std::fs::create_dir_all(dir).map_err(FileError::io("make", dir))?;
    // Two commands at the same time would mix the files of two authorities.
    let _lock = tokens::lock(dir)?;
    refuse_existing()?;
    // The directory may have other files, so the authority is made in a directory within it, which only its owner can read.
    let made = tempfile::Builder::new().prefix(".init-").tempdir_in(dir);
    let made = made.map_err(FileError::io("make a temporary directory in", dir))?;
    make_authority(made.path())?;
    // `crl.pem`, which may exist without an authority, comes last: so the files that an error removes are all new.
    let files = [&files[..], &["crl.pem"]].concat();
    for (nth, file) in files.iter().enumerate() {
        let to = dir.join(file);
        if let Err(error) = std::fs::rename(made.path().join(file), &to) {
            for moved in files.iter().take(nth) {
                // The first error is the one to report.
                let _ = std::fs::remove_file(dir.join(moved));
            }
            return Err(FileError::io("make", &to)(error).into());
        }
    }
    Ok(())
}

/// Makes the files of [`init`] in an empty directory.
fn make_authority(dir: &Path) -> Result<(), PkiError> {
    let key = KeyPair::generate()?;
    let certificate = authority()?.self_signed(&key)?;
    write(dir, "ca.pem", &certificate.pem(), Readers::All)?;
    write(dir, "ca.key", &key.serialize_pem(), Readers::Owner)?;
    revocations::write(dir, &issuer(dir)?)?;
    let order = Order {
        name: "controller",
        hosts: &[],
        scopes: Scopes::all(),
        usage: ExtendedKeyUsagePurpose::ClientAuth,
        days: None,
    };
    issue(dir, dir, "controller", &order)
}

/// Makes `NAME.pem` and `NAME.key` for a node, valid for all of `names` (host names or addresses).
///
/// # Errors
/// `dir` holds no authority, a name is neither a host name nor an address, or the node already has a certificate.
pub fn node(dir: &Path, names: &[String]) -> Result<(), PkiError> {
    let Some(name) = names.first() else {
        return Err(PkiError::NoName);
    };
    check_name(name)?;
    check_hosts(names)?;
    let usage = ExtendedKeyUsagePurpose::ServerAuth;
    let order = Order { name, hosts: names, scopes: Scopes::default(), usage, days: None };
    issue(dir, dir, name, &order)
}

/// Makes a token with which a node can get a certificate for `names` from [`serve`] once.
///
/// # Errors
/// `dir` holds no authority, a name is neither a host name nor an address, the node already has a certificate, or the time is too
/// long.
pub fn token(dir: &Path, names: &[String], valid: Micros) -> Result<JoinToken, PkiError> {
    let Some(name) = names.first() else {
        return Err(PkiError::NoName);
    };
    check_name(name)?;
    check_hosts(names)?;
    // The record stores the names as one word.
    let is_word =
        |name: &String| !name.is_empty() && !name.contains(|c: char| c == ',' || c.is_whitespace());
    if let Some(bad) = names.iter().find(|name| !is_word(name) || alternative_name(name).is_err()) {
        return Err(PkiError::InvalidName(bad.clone()));
    }
    if valid == Micros::default() || valid > MAX_TOKEN_VALIDITY {
        return Err(PkiError::Validity);
    }
    check_not_issued(&dir.join(format!("{name}.pem")))?;
    let authority = read(&dir.join("ca.pem"), AUTHORITY)?;
    let authority = CertificateDer::from_pem_slice(authority.as_bytes())
        .map_err(|error| PkiError::service("use the authority", error))?;
    let mut secret = [0; 16];
    let random = ring::default_provider().secure_random;
    random
        .fill(&mut secret)
        .map_err(|error| PkiError::service("get random bytes", rustls::Error::from(error)))?;
    let token = JoinToken::new(&authority, secret);
    let expiry_s = now_s() + valid.duration().as_secs().max(1).cast_signed();
    tokens::add(dir, &token, names, (now_s(), expiry_s))?;
    Ok(token)
}

/// Returns CLOCK_REALTIME in seconds.
fn now_s() -> i64 {
    clock::realtime_ns() / 1_000_000_000
}

/// Makes the directory `NAME` in `dir` with `ca.pem`, `crl.pem`, `controller.pem` and `controller.key`, and returns its path.
/// Without `scopes`, the certificate permits everything.
///
/// # Errors
/// `dir` holds no authority, the name is invalid, or the controller already has a certificate.
pub fn controller(
    dir: &Path,
    name: &str,
    scopes: &[Scope],
    days: Option<u32>,
) -> Result<PathBuf, PkiError> {
    check_name(name)?;
    let scopes = if scopes.is_empty() { Scopes::all() } else { scopes.iter().copied().collect() };
    let authority = read(&dir.join("ca.pem"), AUTHORITY)?;
    let own = dir.join(name);
    check_not_issued(&own.join("controller.pem"))?;
    std::fs::create_dir_all(&own).map_err(FileError::io("make", &own))?;
    write(&own, "ca.pem", &authority, Readers::All)?;
    revocations::copy(dir, &own)?;
    let usage = ExtendedKeyUsagePurpose::ClientAuth;
    issue(dir, &own, "controller", &Order { name, hosts: &[], scopes, usage, days })?;
    Ok(own)
}

/// Renews a certificate with the same key. A controller's certificate without scopes gets all of them.
///
/// # Errors
/// The certificate or a later one is revoked, the authority of `dir` did not sign it, it cannot be read, or its key is not beside
/// it, as that of a node that joined with a token.
pub fn renew(dir: &Path, path: &Path, days: Option<u32>) -> Result<(), PkiError> {
    let issuer = issuer(dir)?;
    // A revocation at the same time would not find the renewed certificate.
    let _lock = tokens::lock(dir)?;
    let earlier = own_certificate(dir, path)?;
    let later = renewals::later(&renewals::read(dir)?, &earlier.serial);
    if revocations::read(dir)?.iter().any(|revoked| later.contains(&revoked.serial)) {
        return Err(PkiError::Revoked(path.to_owned()));
    }
    let usage = match (earlier.for_servers, earlier.for_clients) {
        (true, false) => ExtendedKeyUsagePurpose::ServerAuth,
        (false, true) => ExtendedKeyUsagePurpose::ClientAuth,
        _ => return Err(PkiError::OtherUsage(path.to_owned())),
    };
    let scopes = match usage {
        ExtendedKeyUsagePurpose::ClientAuth => {
            Scopes::from_uris(earlier.uris.iter().map(String::as_str)).unwrap_or_else(Scopes::all)
        }
        _ => Scopes::default(),
    };
    let key_path = path.with_extension("key");
    if earlier.for_servers && !exists(&key_path)? {
        return Err(PkiError::KeyOnNode(key_path));
    }
    let key = read_key(&key_path, "read the key of the certificate")?;
    if key.public_key_raw() != earlier.public_key {
        return Err(PkiError::OtherKey(key_path));
    }
    let order = Order { name: &earlier.name, hosts: &earlier.hosts, scopes, usage, days };
    let renewed = sign(&order, &key, &issuer)?;
    let later = Certificate::from_pem(renewed.as_bytes()).map_err(unreadable(path))?;
    // Must happen before the earlier certificate is replaced, because only that file contains its serial number.
    renewals::add(dir, &earlier.serial, &later.serial)?;
    let replaced = ccbench_io::replace::replace(path, renewed.as_bytes()).map(drop);
    Ok(replaced.map_err(FileError::io("replace", path))?)
}

/// Revokes certificates and all that are connected with them by renewals, and writes `crl.pem`. Returns its path.
///
/// # Errors
/// A certificate cannot be read, another authority signed it, it is the authority's own, or `dir` holds no authority.
pub fn revoke(dir: &Path, certificates: &[PathBuf]) -> Result<PathBuf, PkiError> {
    let issuer = issuer(dir)?;
    // Of two commands at the same time, one would replace the record of the other.
    let _lock = tokens::lock(dir)?;
    let revoked = certificates.iter().map(|path| own_certificate(dir, path));
    let revoked = revoked.collect::<Result<Vec<_>, _>>()?;
    revocations::add(dir, &revoked)?;
    revocations::write(dir, &issuer)
}

/// Refuses the name of [`serve`] and patterns that match it: the owner of such a certificate could obtain the tokens of others.
fn check_hosts(names: &[String]) -> Result<(), PkiError> {
    let domain = SERVER_NAME.split_once('.').map_or(SERVER_NAME, |(_, domain)| domain);
    let is_servers = |name: &String| {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        name == SERVER_NAME || name.strip_prefix("*.") == Some(domain)
    };
    match names.iter().find(|name| is_servers(name)) {
        None => Ok(()),
        Some(bad) => Err(PkiError::InvalidName(bad.clone())),
    }
}

fn check_name(name: &str) -> Result<(), PkiError> {
    let reserved =
        ["", ".", "..", "ca", "crl", "controller", "revoked", "renewed", "tokens", "tokens.lock"];
    if reserved.contains(&name) || name.contains('/') || name.contains(char::is_control) {
        return Err(PkiError::InvalidName(name.to_owned()));
    }
    Ok(())
}

/// Reads a certificate and checks that the authority of `dir` signed it. No other one may be renewed or revoked.
fn own_certificate(dir: &Path, path: &Path) -> Result<Certificate, PkiError> {
    let text = read(path, "read the certificate")?;
    let found = Certificate::from_pem(text.as_bytes()).map_err(unreadable(path))?;
    let authority = dir.join("ca.pem");
    let own = read(&authority, AUTHORITY)?;
    let signed = is_signed_by(text.as_bytes(), own.as_bytes()).map_err(unreadable(&authority))?;
    if !signed {
        return Err(PkiError::Foreign(path.to_owned()));
    }
    // The authority signed its own certificate too. A file of another name may contain it, such as a controller's copy.
    let own = Certificate::from_pem(own.as_bytes()).map_err(unreadable(&authority))?;
    if found.public_key == own.public_key {
        return Err(PkiError::Authority(path.to_owned()));
    }
    Ok(found)
}

fn unreadable(path: &Path) -> impl FnOnce(CertificateError) -> PkiError {
    let path = path.to_owned();
    move |source| PkiError::Unreadable { path, source }
}

fn check_not_issued(path: &Path) -> Result<(), PkiError> {
    if exists(path)? { Err(PkiError::Issued(path.to_owned())) } else { Ok(()) }
}

const AUTHORITY: &str = "read the authority (`ccbench pki init` makes one)";

fn read(path: &Path, op: &'static str) -> Result<String, FileError> {
    input::read_to_string(path, &input::CERTIFICATE).map_err(FileError::io(op, path))
}

fn issuer(dir: &Path) -> Result<Issuer<'static, KeyPair>, PkiError> {
    let key = read_key(&dir.join("ca.key"), AUTHORITY)?;
    Ok(Issuer::new(authority()?, key))
}

fn read_key(path: &Path, op: &'static str) -> Result<KeyPair, PkiError> {
    let path = path.to_owned();
    KeyPair::from_pem(&read(&path, op)?).map_err(|source| PkiError::Key { path, source })
}

/// Makes `FILE.pem` and `FILE.key` in `folder` with the authority of `dir`.
fn issue(dir: &Path, folder: &Path, file: &str, order: &Order<'_>) -> Result<(), PkiError> {
    let issuer = issuer(dir)?;
    // Another command could issue the same name after this one has looked, and the file would keep only one of the certificates.
    let _lock = tokens::lock(dir)?;
    check_not_issued(&folder.join(format!("{file}.pem")))?;
    let key = KeyPair::generate()?;
    let certificate = sign(order, &key, &issuer)?;
    // The certificate is written last: it marks the name as taken, and without its key it is useless.
    write(folder, &format!("{file}.key"), &key.serialize_pem(), Readers::Owner)?;
    write(folder, &format!("{file}.pem"), &certificate, Readers::All)
}

/// Returns the certificate as PEM.
fn sign(
    order: &Order<'_>,
    key: &impl PublicKeyData,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<String, PkiError> {
    let mut params = params(order.name, order.days)?;
    params.serial_number = Some(serial(key));
    params.extended_key_usages = vec![order.usage.clone()];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    for host in order.hosts {
        params.subject_alt_names.push(alternative_name(host)?);
    }
    for scope in order.scopes.iter() {
        params.subject_alt_names.push(SanType::URI(scope.uri().try_into()?));
    }
    Ok(params.signed_by(key, issuer)?.pem())
}

/// Converts a host name or an address to a subject alternative name.
fn alternative_name(host: &str) -> Result<SanType, PkiError> {
    Ok(match host.parse::<IpAddr>() {
        Ok(address) => SanType::IpAddress(address),
        Err(_) => SanType::DnsName(host.try_into()?),
    })
}

/// Returns a serial number that differs between two certificates of one key: RFC 5280 demands it, and the record of renewals names
/// certificates by it.
fn serial(key: &impl PublicKeyData) -> SerialNumber {
    const BYTES: usize = 16;
    let mut hash = Sha256::new();
    hash.update(key.der_bytes());
    hash.update(clock::realtime_ns().to_be_bytes());
    let mut bytes: Vec<u8> = hash.finalize().iter().copied().take(BYTES).collect();
    // A positive number without leading zeros.
    if let Some(first) = bytes.first_mut() {
        *first = *first & 0x3f | 0x40;
    }
    SerialNumber::from(bytes)
}

/// Returns the authority's own parameters. Issuing needs its name and usages again, but not its validity.
fn authority() -> Result<CertificateParams, PkiError> {
    let mut params = params("ccbench authority", None)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn params(name: &str, days: Option<u32>) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name.push(DnType::CommonName, name);
    let yesterday = clock::today().saturating_sub(Span::new().days(1));
    params.not_before = day(yesterday, rcgen::date_time_ymd);
    params.not_after = day(expiry(days), rcgen::date_time_ymd);
    Ok(params)
}

fn expiry(days: Option<u32>) -> Date {
    let span = match days {
        Some(days) => Span::new().days(i64::from(days)),
        None => Span::new().years(YEARS),
    };
    clock::today().saturating_add(span)
}

/// Converts a date to the certificate library's type, which `make` creates from year, month and day.
fn day<T>(date: Date, make: impl FnOnce(i32, u8, u8) -> T) -> T {
    make(i32::from(date.year()), date.month() as u8, date.day() as u8)
}

/// Who may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readers {
    /// Everyone: a certificate.
    All,
    /// Its owner: a key.
    Owner,
}

fn write(dir: &Path, name: &str, text: &str, readers: Readers) -> Result<(), PkiError> {
    use std::io::Write as _;
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
    let path = dir.join(name);
    let mode = match readers {
        Readers::All => 0o644,
        Readers::Owner => 0o600,
    };
    let write = || {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&path)?;
        if readers == Readers::Owner {
            // An existing file keeps its mode, which may let others read the key.
            file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        }
        file.write_all(text.as_bytes())
    };
    Ok(write().map_err(FileError::io("write", &path))?)
}

#[cfg(test)]
mod tests;
