//! A private certificate authority for agents and controllers. Node certificates are servers only and
//! controller certificates clients only, so that a stolen node key cannot drive another node.

use std::net::IpAddr;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use crate::error::CliError;

const YEARS: i32 = 2;

/// Makes `dir` with `ca.pem`, `ca.key`, `controller.pem` and `controller.key`.
///
/// # Errors
/// When the folder already holds an authority (it is never overwritten) or cannot be written.
pub fn init(dir: &Path) -> Result<(), CliError> {
    if dir.join("ca.key").exists() {
        return Err(CliError::Pki(format!(
            "{} already holds an authority; remove it, or choose another folder",
            dir.display()
        )));
    }
    std::fs::create_dir_all(dir).map_err(|source| CliError::File {
        op: "make",
        path: dir.to_owned(),
        source,
    })?;
    let key = KeyPair::generate().map_err(fail)?;
    let certificate = authority()?.self_signed(&key).map_err(fail)?;
    write(dir, "ca.pem", &certificate.pem(), false)?;
    write(dir, "ca.key", &key.serialize_pem(), true)?;
    issue(dir, "controller", &[], ExtendedKeyUsagePurpose::ClientAuth)
}

/// Makes `NAME.pem` and `NAME.key` for a node, valid for all of `names` (host names or addresses).
///
/// # Errors
/// When `dir` holds no authority, or a name is neither a host name nor an address.
pub fn node(dir: &Path, names: &[String]) -> Result<(), CliError> {
    let Some(first) = names.first() else {
        return Err(CliError::Usage("name the host that the node is reached by".into()));
    };
    if first == "ca" || first == "controller" || first.contains('/') {
        return Err(CliError::Usage(format!("{first:?} cannot be a node's name here")));
    }
    issue(dir, first, names, ExtendedKeyUsagePurpose::ServerAuth)
}

fn issue(
    dir: &Path,
    name: &str,
    hosts: &[String],
    usage: ExtendedKeyUsagePurpose,
) -> Result<(), CliError> {
    let read = |file: &str| {
        let path = dir.join(file);
        std::fs::read_to_string(&path).map_err(|source| CliError::File {
            op: "read the authority (`ccbench pki init` makes one)",
            path,
            source,
        })
    };
    let authority_key = KeyPair::from_pem(&read("ca.key")?).map_err(fail)?;
    let issuer = Issuer::new(authority()?, authority_key);
    let key = KeyPair::generate().map_err(fail)?;
    let mut params = params(name)?;
    params.extended_key_usages = vec![usage];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    for host in hosts {
        params.subject_alt_names.push(match host.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(host.as_str().try_into().map_err(fail)?),
        });
    }
    let certificate = params.signed_by(&key, &issuer).map_err(fail)?;
    write(dir, &format!("{name}.pem"), &certificate.pem(), false)?;
    write(dir, &format!("{name}.key"), &key.serialize_pem(), true)
}

/// The authority's own parameters; issuing needs its name and usages again, not its validity.
fn authority() -> Result<CertificateParams, CliError> {
    let mut params = params("ccbench authority")?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn params(name: &str) -> Result<CertificateParams, CliError> {
    let mut params = CertificateParams::new(Vec::<String>::new()).map_err(fail)?;
    params.distinguished_name.push(DnType::CommonName, name);
    let today = jiff::Zoned::now().date();
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

fn write(dir: &Path, name: &str, text: &str, secret: bool) -> Result<(), CliError> {
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
    written.map_err(|source| CliError::File { op: "write", path, source })
}

fn fail(error: impl std::fmt::Display) -> CliError {
    CliError::Pki(error.to_string())
}
