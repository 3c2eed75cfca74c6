//! Reads the parts of an X.509 certificate that ccbench uses. Reading verifies nothing: TLS does, and so does [`is_signed_by`]
//! before a certificate is renewed. [`signed_list_number`] verifies a list of revoked certificates.

use std::net::IpAddr;

use x509_parser::certificate::X509Certificate;
use x509_parser::error::X509Error;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer as _;
use x509_parser::revocation_list::CertificateRevocationList;

/// The parts of a certificate that ccbench uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The common name of the subject; empty if there is none.
    pub name: String,
    /// The serial number, as encoded.
    pub serial: Vec<u8>,
    /// The public key, without its algorithm.
    pub public_key: Vec<u8>,
    /// URIs of the subject alternative names.
    pub uris: Vec<String>,
    /// Host names and addresses of the subject alternative names.
    pub hosts: Vec<String>,
    /// Since when it is valid: seconds since 1970.
    pub not_before_s: i64,
    /// When it expires: seconds since 1970.
    pub not_after_s: i64,
    /// Whether the extended key usage includes server authentication.
    pub for_servers: bool,
    /// Whether the extended key usage includes client authentication.
    pub for_clients: bool,
}

/// A certificate or a list of revoked ones cannot be read or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The file holds no PEM certificate.
    #[error("it holds no certificate in PEM: {0}")]
    Pem(String),
    /// It is not a certificate, or an extension is malformed.
    #[error("it is not a certificate: {0}")]
    Der(String),
    /// A subject alternative name is malformed.
    #[error("a subject alternative name is malformed")]
    Name,
    /// It is not a list of revoked certificates.
    #[error("it is not a list of revoked certificates: {0}")]
    List(String),
    /// Another authority signed the list, or it was modified.
    #[error("the authority did not sign the list of revoked certificates")]
    UnsignedList,
}

impl Certificate {
    /// Reads the first certificate of a PEM file.
    ///
    /// # Errors
    /// There is none, or it is malformed.
    pub fn from_pem(text: &[u8]) -> Result<Self, CertificateError> {
        Self::from_der(&der_of(text)?)
    }

    /// Reads a DER certificate.
    ///
    /// # Errors
    /// It is malformed.
    pub fn from_der(bytes: &[u8]) -> Result<Self, CertificateError> {
        let parsed = parse(bytes)?;
        let malformed = |error: X509Error| CertificateError::Der(error.to_string());
        let name = parsed.subject().iter_common_name().next();
        let name = name.and_then(|name| name.as_str().ok()).unwrap_or_default();
        let (mut uris, mut hosts) = (Vec::new(), Vec::new());
        let names = parsed.subject_alternative_name().map_err(malformed)?;
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::URI(uri) => uris.push((*uri).to_owned()),
                GeneralName::DNSName(host) => hosts.push((*host).to_owned()),
                GeneralName::IPAddress(octets) => hosts.push(address(octets)?.to_string()),
                GeneralName::Invalid(..) => return Err(CertificateError::Name),
                _ => {}
            }
        }
        let usage = parsed.extended_key_usage().map_err(malformed)?;
        Ok(Self {
            name: name.to_owned(),
            serial: parsed.raw_serial().to_vec(),
            public_key: parsed.public_key().subject_public_key.data.to_vec(),
            uris,
            hosts,
            not_before_s: parsed.validity().not_before.timestamp(),
            not_after_s: parsed.validity().not_after.timestamp(),
            for_servers: usage.as_ref().is_some_and(|usage| usage.value.server_auth),
            for_clients: usage.as_ref().is_some_and(|usage| usage.value.client_auth),
        })
    }

    /// Returns the serial number in hexadecimal digits.
    pub fn serial_hex(&self) -> String {
        self.serial.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Returns whether an authority's key signed a certificate; both are in PEM. Does not compare names, key usage or expiry.
///
/// # Errors
/// One of them cannot be read.
pub fn is_signed_by(certificate: &[u8], authority: &[u8]) -> Result<bool, CertificateError> {
    is_der_signed_by(&der_of(certificate)?, authority)
}

/// Like [`is_signed_by`], for a certificate in DER.
///
/// # Errors
/// One of them cannot be read.
pub fn is_der_signed_by(certificate: &[u8], authority: &[u8]) -> Result<bool, CertificateError> {
    let authority = der_of(authority)?;
    let (certificate, authority) = (parse(certificate)?, parse(&authority)?);
    Ok(certificate.verify_signature(Some(authority.public_key())).is_ok())
}

/// Returns the number of a list of revoked certificates (DER): an authority gives a later list a higher one. `None` if it has no number, or
/// one of more than 64 bits. The authority is in PEM.
///
/// # Errors
/// One of them cannot be read, or the authority's key did not sign the list.
pub fn signed_list_number(list: &[u8], authority: &[u8]) -> Result<Option<u64>, CertificateError> {
    let authority = der_of(authority)?;
    let authority = parse(&authority)?;
    let (_, list) = CertificateRevocationList::from_der(list)
        .map_err(|error| CertificateError::List(error.to_string()))?;
    let signed = list.verify_signature(authority.public_key());
    signed.map_err(|_| CertificateError::UnsignedList)?;
    Ok(list.crl_number().and_then(|number| u64::try_from(number).ok()))
}

/// Returns the DER bytes of the first certificate of a PEM file.
fn der_of(text: &[u8]) -> Result<Vec<u8>, CertificateError> {
    let (_, pem) =
        parse_x509_pem(text).map_err(|error| CertificateError::Pem(error.to_string()))?;
    Ok(pem.contents)
}

fn parse(bytes: &[u8]) -> Result<X509Certificate<'_>, CertificateError> {
    let (_, parsed) = X509Certificate::from_der(bytes)
        .map_err(|error| CertificateError::Der(error.to_string()))?;
    Ok(parsed)
}

fn address(octets: &[u8]) -> Result<IpAddr, CertificateError> {
    if let Ok(octets) = <[u8; 4]>::try_from(octets) {
        return Ok(octets.into());
    }
    <[u8; 16]>::try_from(octets).map(IpAddr::from).map_err(|_| CertificateError::Name)
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
        DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
        SanType, SerialNumber,
    };

    use super::*;

    fn certificate() -> rcgen::Certificate {
        let names = ["node1.example".to_owned(), "192.0.2.1".to_owned(), "2001:db8::1".to_owned()];
        let mut params = CertificateParams::new(names.to_vec()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "alice");
        params.serial_number = Some(SerialNumber::from_slice(&[0x4a, 0, 0xff]));
        params.not_before = rcgen::date_time_ymd(2029, 1, 2);
        params.not_after = rcgen::date_time_ymd(2030, 1, 2);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let uri = "ccbench:scope/run".try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(uri));
        params.self_signed(&KeyPair::generate().unwrap()).unwrap()
    }

    #[test]
    fn reads_name_serial_alternative_names_and_usage() {
        let made = certificate();
        let read = Certificate::from_pem(made.pem().as_bytes()).unwrap();
        assert_eq!(read.name, "alice");
        assert_eq!(read.serial_hex(), "4a00ff");
        assert_eq!(read.uris, ["ccbench:scope/run"]);
        assert_eq!(read.hosts, ["node1.example", "192.0.2.1", "2001:db8::1"]);
        assert_eq!((read.not_before_s, read.not_after_s), (1_862_006_400, 1_893_542_400));
        assert!(read.for_clients && !read.for_servers);
        assert_eq!(Certificate::from_der(made.der()), Ok(read));
    }

    #[test]
    fn only_its_authority_has_signed_a_certificate() {
        let authority = || (CertificateParams::default(), KeyPair::generate().unwrap());
        let [(own, own_key), (other, other_key)] = [authority(), authority()];
        let own_pem = own.self_signed(&own_key).unwrap().pem();
        let other_pem = other.self_signed(&other_key).unwrap().pem();
        let key = KeyPair::generate().unwrap();
        let issued = CertificateParams::default().signed_by(&key, &Issuer::new(own, own_key));
        let issued = issued.unwrap();
        let text = issued.pem();
        let signed_by = |authority: &str| is_signed_by(text.as_bytes(), authority.as_bytes());
        assert_eq!(signed_by(&own_pem), Ok(true));
        assert_eq!(signed_by(&other_pem), Ok(false), "its names are the same");
        assert!(matches!(signed_by("no"), Err(CertificateError::Pem(_))));
        let read = Certificate::from_der(issued.der()).unwrap();
        assert_eq!(read.public_key, key.public_key_raw());
        for (authority, expected) in [(&own_pem, true), (&other_pem, false)] {
            assert_eq!(is_der_signed_by(issued.der(), authority.as_bytes()), Ok(expected));
        }
    }

    #[test]
    fn the_number_of_a_list_is_that_of_its_authority() {
        let authority = || {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
            CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
        };
        let (own, other) = (authority(), authority());
        let list = |number: SerialNumber| {
            let list = CertificateRevocationListParams {
                this_update: rcgen::date_time_ymd(2029, 1, 2),
                next_update: rcgen::date_time_ymd(2030, 1, 2),
                crl_number: number,
                issuing_distribution_point: None,
                revoked_certs: Vec::new(),
                key_identifier_method: KeyIdMethod::Sha256,
            };
            list.signed_by(&own).unwrap().der().to_vec()
        };
        // Its highest bit is set.
        let number = 0xf8c0_0000_0000_0001_u64;
        let signed = list(SerialNumber::from(number));
        assert_eq!(signed_list_number(&signed, own.pem().as_bytes()), Ok(Some(number)));
        let by_other = signed_list_number(&signed, other.pem().as_bytes());
        assert_eq!(by_other, Err(CertificateError::UnsignedList), "its names are the same");
        let long = list(SerialNumber::from(vec![1; 9]));
        assert_eq!(signed_list_number(&long, own.pem().as_bytes()), Ok(None));
        let cut = signed_list_number(&signed[..signed.len() / 2], own.pem().as_bytes());
        assert!(matches!(cut, Err(CertificateError::List(_))), "{cut:?}");
    }

    #[test]
    fn no_certificate_is_an_error() {
        assert!(matches!(Certificate::from_pem(b"no"), Err(CertificateError::Pem(_))));
        let der = certificate().der().to_vec();
        for cut in [0, 1, der.len() / 2, der.len() - 1] {
            let read = Certificate::from_der(&der[..cut]);
            assert!(matches!(read, Err(CertificateError::Der(_))), "{cut}: {read:?}");
        }
    }
}
