//! A private certificate authority for agents and controllers. Node certificates are for servers only and controller
//! certificates for clients only: a stolen node key cannot control another node.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use ccbench_io::input;

use crate::clock;
use crate::exit::ExitCode;
use crate::file::FileError;

/// Why a certificate cannot be issued.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// The folder has an authority already.
    #[error("pki: {} already holds an authority; remove it, or choose another directory", .0.display())]
    Exists(PathBuf),
    /// The name cannot be a node's.
    #[error("pki: {0:?} is not a valid node name: it is reserved or contains `/`")]
    InvalidName(String),
    /// There is no name.
    #[error("pki: give the host name or address of the node")]
    NoName,
    /// The certificate library refused.
    #[error("pki: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

impl PkiError {
    /// The process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::InvalidName(_) | Self::NoName => ExitCode::Usage,
            Self::Exists(_) | Self::Certificate(_) => ExitCode::Unavailable,
            Self::File(_) => ExitCode::Failure,
        }
    }
}

const YEARS: i32 = 2;

/// Makes `dir` with `ca.pem`, `ca.key`, `controller.pem` and `controller.key`.
///
/// # Errors
/// The folder already holds an authority, which is never overwritten, or it cannot be written.
pub fn init(dir: &Path) -> Result<(), PkiError> {
    if dir.join("ca.key").exists() {
        return Err(PkiError::Exists(dir.to_owned()));
    }
    std::fs::create_dir_all(dir).map_err(FileError::of("make", dir))?;
    let key = KeyPair::generate()?;
    let certificate = authority()?.self_signed(&key)?;
    write(dir, "ca.pem", &certificate.pem(), false)?;
    write(dir, "ca.key", &key.serialize_pem(), true)?;
    issue(dir, "controller", &[], ExtendedKeyUsagePurpose::ClientAuth)
}

/// Makes `NAME.pem` and `NAME.key` for a node, valid for all of `names` (host names or addresses).
///
/// # Errors
/// `dir` holds no authority, or a name is neither a host name nor an address.
pub fn node(dir: &Path, names: &[String]) -> Result<(), PkiError> {
    let Some(first) = names.first() else {
        return Err(PkiError::NoName);
    };
    if first == "ca" || first == "controller" || first.contains('/') {
        return Err(PkiError::InvalidName(first.clone()));
    }
    issue(dir, first, names, ExtendedKeyUsagePurpose::ServerAuth)
}

fn issue(
    dir: &Path,
    name: &str,
    hosts: &[String],
    usage: ExtendedKeyUsagePurpose,
) -> Result<(), PkiError> {
    let read = |file: &str| {
        let path = dir.join(file);
        let op = "read the authority (`ccbench pki init` makes one)";
        input::read_to_string(&path, &input::CERTIFICATE).map_err(FileError::of(op, &path))
    };
    let authority_key = KeyPair::from_pem(&read("ca.key")?)?;
    let issuer = Issuer::new(authority()?, authority_key);
    let key = KeyPair::generate()?;
    let mut params = params(name)?;
    params.extended_key_usages = vec![usage];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    for host in hosts {
        params.subject_alt_names.push(match host.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(host.as_str().try_into()?),
        });
    }
    let certificate = params.signed_by(&key, &issuer)?;
    write(dir, &format!("{name}.pem"), &certificate.pem(), false)?;
    write(dir, &format!("{name}.key"), &key.serialize_pem(), true)
}

/// The authority's own parameters; issuing needs its name and usages again, not its validity.
fn authority() -> Result<CertificateParams, PkiError> {
    let mut params = params("ccbench authority")?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn params(name: &str) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name.push(DnType::CommonName, name);
    let today = clock::today();
    let date = |years: i32, days: i64| {
        let day = today
            .saturating_add(jiff::Span::new().years(years))
            .saturating_sub(jiff::Span::new().days(days));
        rcgen::date_time_ymd(i32::from(day.year()), day.month() as u8, day.day() as u8)
    };
    params.not_before = date(0, 1);
    params.not_after = date(YEARS, 0);
    Ok(params)
}

fn write(dir: &Path, name: &str, text: &str, secret: bool) -> Result<(), PkiError> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let path = dir.join(name);
    let mode = if secret { 0o600 } else { 0o644 };
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    Ok(written.map_err(FileError::of("write", &path))?)
}
