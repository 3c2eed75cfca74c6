use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::thread::JoinHandle;

use ccbench_proto::join::{JoinReply, SERVER_NAME};
use clap::CommandFactory as _;
use rcgen::{
    BasicConstraints, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyUsagePurpose, SerialNumber, date_time_ymd,
};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::*;

type Ca = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Ca {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn revocations(ca: &Ca) -> String {
    list(ca, 5)
}

/// Makes a list of revoked certificates with this number.
fn list(ca: &Ca, number: u64) -> String {
    let list = CertificateRevocationListParams {
        this_update: date_time_ymd(2020, 1, 1),
        next_update: date_time_ymd(2999, 1, 1),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs: Vec::new(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    list.signed_by(ca).unwrap().pem().unwrap()
}

/// Issues a certificate for servers, valid until this year.
fn certificate(ca: &Ca, key: &KeyPair, name: &str, year: i32) -> String {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(year, 1, 1);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.signed_by(key, ca).unwrap().pem()
}

/// The files of a node whose certificate expires in `year`.
fn node(ca: &Ca, year: i32) -> (tempfile::TempDir, KeyPair) {
    let dir = tempfile::tempdir().unwrap();
    let key = KeyPair::generate().unwrap();
    let files = [
        (KEY, key.serialize_pem()),
        (CERTIFICATE, certificate(ca, &key, "n1", year)),
        (AUTHORITY, ca.pem()),
        (REVOCATIONS, "the earlier list".to_owned()),
    ];
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    (dir, key)
}

fn files(dir: &tempfile::TempDir) -> Vec<Vec<u8>> {
    let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4, "no temporary file is left");
    [KEY, CERTIFICATE, AUTHORITY, REVOCATIONS].map(read).into()
}

/// Runs the service of an authority for one connection. It answers with this line, or closes the connection if it is empty. Returns the
/// address.
fn service(ca: &Ca, answer: String) -> (String, JoinHandle<()>) {
    let key = KeyPair::generate().unwrap();
    let own = certificate(ca, &key, SERVER_NAME, 2999);
    let own = CertificateDer::from_pem_slice(own.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own, ca.der().clone()], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let served = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let connection = ServerConnection::new(Arc::new(config)).unwrap();
        let mut stream = BufReader::new(StreamOwned::new(connection, stream));
        let mut line = String::new();
        // A client that does not accept the service sends no request.
        if stream.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            assert!(serde_json::from_str::<RenewRequest>(&line).is_ok(), "{line}");
            let stream = stream.get_mut();
            stream.write_all(answer.as_bytes()).unwrap();
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    });
    (address, served)
}

/// Asks a service that gives this answer.
fn renew(dir: &tempfile::TempDir, ca: &Ca, answer: String) -> Result<(), RenewError> {
    let (controller, served) = service(ca, answer);
    let renewed = main(&Args { controller, dir: dir.path().to_owned(), if_due: false });
    served.join().unwrap();
    renewed
}

fn issued(certificate: String, authority: &Ca, revocations: String) -> String {
    let renewed = JoinedNode { certificate, authority: authority.pem(), revocations };
    serde_json::to_string(&JoinReply::Issued(renewed)).unwrap() + "\n"
}

#[test]
fn a_renewed_certificate_and_the_list_replace_the_earlier_ones() {
    use std::os::unix::fs::PermissionsExt as _;
    let ca = authority();
    let (dir, key) = node(&ca, 2900);
    let before = files(&dir);
    let (later, list) = (certificate(&ca, &key, "n1", 2901), revocations(&ca));
    renew(&dir, &ca, issued(later.clone(), &ca, list.clone())).unwrap();
    let own_key = before[0].clone();
    let expected = [own_key, later.into_bytes(), before[2].clone(), list.clone().into_bytes()];
    assert_eq!(files(&dir), expected);
    for name in [CERTIFICATE, REVOCATIONS] {
        let mode = std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644, "{name}");
    }
    // An authority without a list.
    let third = certificate(&ca, &key, "n1", 2902);
    renew(&dir, &ca, issued(third.clone(), &ca, String::new())).unwrap();
    assert_eq!(files(&dir)[1..], [third.into_bytes(), before[2].clone(), list.into_bytes()]);
}

#[test]
fn an_older_list_does_not_replace_a_newer_one() {
    let (ca, other) = (authority(), authority());
    let (dir, key) = node(&ca, 2900);
    let own_list = dir.path().join(REVOCATIONS);
    let newer = list(&ca, 9);
    std::fs::write(&own_list, &newer).unwrap();
    let mut year = 2900;
    let mut renewed_with = |answered: &str| {
        year += 1;
        let later = certificate(&ca, &key, "n1", year);
        renew(&dir, &ca, issued(later.clone(), &ca, answered.to_owned())).unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join(CERTIFICATE)).unwrap(), later);
        std::fs::read_to_string(&own_list).unwrap()
    };
    assert_eq!(renewed_with(&list(&ca, 8)), newer);
    for answered in [list(&ca, 9), list(&ca, 10)] {
        assert_eq!(renewed_with(&answered), answered);
    }
    // The numbers of another authority mean nothing.
    std::fs::write(&own_list, list(&other, 99)).unwrap();
    let answered = list(&ca, 1);
    assert_eq!(renewed_with(&answered), answered);
}

#[test]
fn a_wrong_answer_leaves_the_earlier_files() {
    let (ca, other) = (authority(), authority());
    let (dir, key) = node(&ca, 2900);
    let before = files(&dir);
    let other_key = KeyPair::generate().unwrap();
    let good = certificate(&ca, &key, "n1", 2901);
    let whole = issued(good.clone(), &ca, revocations(&ca));
    let damaged_list = revocations(&ca).replacen("\nM", "\nN", 1);
    for (answer, why) in [
        (String::new(), "it cannot be read"),
        (whole[..whole.len() / 2].to_owned(), "it cannot be read"),
        (issued(good[..good.len() / 2].to_owned(), &ca, revocations(&ca)), "PEM"),
        (issued(certificate(&other, &key, "n1", 2901), &ca, String::new()), "did not sign"),
        (
            issued(certificate(&other, &key, "n1", 2901), &other, String::new()),
            "an authority other",
        ),
        (issued(certificate(&ca, &other_key, "n1", 2901), &ca, String::new()), "another key, name"),
        (issued(certificate(&ca, &key, "n2", 2901), &ca, String::new()), "another key, name"),
        (issued(certificate(&ca, &key, "n1", 2899), &ca, String::new()), "expires before"),
        (issued(good.clone(), &ca, "no list".to_owned()), "it holds no list"),
        (
            issued(good.clone(), &ca, damaged_list),
            "its list of revoked certificates cannot be used",
        ),
        (issued(good.clone(), &ca, revocations(&other)), "the authority did not sign the list"),
        (issued(good, &ca, revocations(&ca) + &revocations(&other)), "did not sign the list"),
        ("{\"refused\":\"it is revoked\"}\n".to_owned(), "refuses: it is revoked"),
    ] {
        let error = renew(&dir, &ca, answer).unwrap_err().to_string();
        assert!(error.contains(why), "no `{why}`: {error}");
        assert_eq!(files(&dir), before, "{why}");
    }
    let error = renew(&dir, &other, String::new()).unwrap_err();
    assert!(matches!(error, RenewError::OtherAuthority { .. }), "{error}");
    assert_eq!(files(&dir), before);
}

#[test]
fn files_that_cannot_be_renewed_are_named_before_any_connection() {
    let ca = authority();
    let error = |dir: &tempfile::TempDir| {
        // Nothing listens there.
        let controller = "127.0.0.1:1".to_owned();
        let args = Args { controller, dir: dir.path().to_owned(), if_due: false };
        main(&args).unwrap_err()
    };
    let (dir, _) = node(&ca, 2900);
    let unreachable = error(&dir);
    assert!(
        matches!(unreachable, RenewError::Exchange(ExchangeError::Connection { .. })),
        "{unreachable}"
    );
    assert!(unreachable.to_string().contains("--until-stopped"), "{unreachable}");
    std::fs::write(dir.path().join(KEY), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    assert!(matches!(error(&dir), RenewError::OtherKey(_)));
    std::fs::write(dir.path().join(CERTIFICATE), "no certificate").unwrap();
    assert!(matches!(error(&dir), RenewError::Unreadable { .. }));
    std::fs::remove_file(dir.path().join(CERTIFICATE)).unwrap();
    let missing = error(&dir).to_string();
    assert!(missing.contains("node.pem"), "{missing}");
    let (dir, _) = node(&ca, 2900);
    std::fs::write(dir.path().join(AUTHORITY), "").unwrap();
    assert!(matches!(error(&dir), RenewError::NoAuthority(_)));
    let (dir, _) = node(&ca, 2021);
    let expired = error(&dir).to_string();
    let advice = "If this machine's clock is right: on the authority's machine";
    for part in [advice, "`ccbench pki revoke pki pki/n1.pem`"] {
        assert!(expired.contains(part), "no `{part}`: {expired}");
    }
}

#[test]
fn a_certificate_is_due_in_the_last_third_of_its_lifetime() {
    let ca = authority();
    let (dir, _) = node(&ca, 2023);
    let own = read(dir.path()).unwrap().own;
    let lifetime_s = own.not_after_s - own.not_before_s;
    assert_eq!(lifetime_s % 3, 0);
    assert!(!is_due(&own, lifetime_s) && !is_due(&own, lifetime_s / 3));
    assert!(is_due(&own, lifetime_s / 3 - 1) && is_due(&own, 1));
    // Nothing listens there. The year 2900 is far.
    let renew = |year, if_due| {
        let (dir, _) = node(&ca, year);
        let controller = "127.0.0.1:1".to_owned();
        main(&Args { controller, dir: dir.path().to_owned(), if_due })
    };
    renew(2900, true).unwrap();
    assert!(matches!(
        renew(2900, false),
        Err(RenewError::Exchange(ExchangeError::Connection { .. }))
    ));
}

/// The unit gives the address in this way.
#[test]
fn the_address_is_a_setting_of_the_example_of_the_configuration() {
    let example = include_str!("../../../../systemd/agent.conf.example");
    let command = crate::args::Cli::command();
    let options = command.find_subcommand("renew").unwrap().get_arguments();
    let variables: Vec<_> = options.filter_map(clap::Arg::get_env).collect();
    assert_eq!(variables, ["CCBENCH_AUTHORITY"]);
    assert!(example.lines().any(|line| line.starts_with("#CCBENCH_AUTHORITY=")), "{example}");
}
