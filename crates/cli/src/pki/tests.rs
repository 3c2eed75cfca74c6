use super::*;

fn authority_in(dir: &tempfile::TempDir) -> PathBuf {
    let pki = dir.path().join("pki");
    init(&pki).unwrap();
    pki
}

fn certificate(path: &Path) -> Result<Certificate, PkiError> {
    let text = read(path, "read the certificate")?;
    Certificate::from_pem(text.as_bytes()).map_err(unreadable(path))
}

fn revoked_serials(pki: &Path) -> Vec<Vec<u8>> {
    revocations::read(pki).unwrap().into_iter().map(|revoked| revoked.serial).collect()
}

fn scopes(path: &Path) -> Option<Scopes> {
    let uris = certificate(path).unwrap().uris;
    Scopes::from_uris(uris.iter().map(String::as_str))
}

#[test]
fn certificates_have_the_scopes_that_were_ordered() {
    let dir = tempfile::tempdir().unwrap();
    let pki = authority_in(&dir);
    assert_eq!(scopes(&pki.join("controller.pem")), Some(Scopes::all()), "the first controller");
    let alice = controller(&pki, "alice", &[Scope::Run, Scope::Bpf], Some(30)).unwrap();
    let issued = certificate(&alice.join("controller.pem")).unwrap();
    assert_eq!(issued.name, "alice");
    assert!(issued.for_clients && !issued.for_servers);
    let expected = Scopes::default().with(Scope::Run).with(Scope::Bpf);
    assert_eq!(scopes(&alice.join("controller.pem")), Some(expected));
    let authority = std::fs::read(pki.join("ca.pem")).unwrap();
    assert_eq!(std::fs::read(alice.join("ca.pem")).unwrap(), authority, "for --pki");
    let list = || std::fs::read(pki.join("crl.pem")).unwrap();
    assert_eq!(std::fs::read(alice.join("crl.pem")).unwrap(), list());
    let all = controller(&pki, "bob", &[], None).unwrap().join("controller.pem");
    assert_eq!(scopes(&all), Some(Scopes::all()));
    let days_s = 86_400;
    let longer_s = certificate(&all).unwrap().not_after_s - issued.not_after_s;
    assert!(longer_s > 600 * days_s, "{longer_s}");
    node(&pki, &["node1.example".to_owned(), "10.0.0.1".to_owned()]).unwrap();
    let node = certificate(&pki.join("node1.example.pem")).unwrap();
    assert_eq!((node.for_servers, scopes(&pki.join("node1.example.pem"))), (true, None));
    let earlier = list();
    revoke(&pki, &[pki.join("node1.example.pem")]).unwrap();
    assert_ne!(list(), earlier);
    assert_eq!(std::fs::read(alice.join("crl.pem")).unwrap(), list(), "the copy is renewed");
}

#[test]
fn the_authority_itself_is_not_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let pki = authority_in(&dir);
    let copy = controller(&pki, "alice", &[], None).unwrap().join("ca.pem");
    let list = std::fs::read(pki.join("crl.pem")).unwrap();
    for path in [pki.join("ca.pem"), copy] {
        let both = [pki.join("controller.pem"), path.clone()];
        let refused = revoke(&pki, &both).unwrap_err();
        assert!(matches!(&refused, PkiError::Authority(found) if *found == path), "{refused}");
        let refused = renew(&pki, &path, None).unwrap_err();
        assert!(matches!(refused, PkiError::Authority(_)), "{refused}");
    }
    assert_eq!(std::fs::read(pki.join("crl.pem")).unwrap(), list);
    assert_eq!(revoked_serials(&pki), Vec::<Vec<u8>>::new(), "all or nothing");
}

#[test]
fn a_damaged_key_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let pki = authority_in(&dir);
    std::fs::write(pki.join("ca.key"), "junk").unwrap();
    let error = node(&pki, &["node1.example".to_owned()]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("ca.key is not a private key (") && text.contains("restore"), "{text}");
    assert_eq!(error.exit_code(), ExitCode::Failure);
}

#[test]
fn a_renewed_certificate_differs_in_serial_and_expiry_only() {
    let dir = tempfile::tempdir().unwrap();
    let pki = authority_in(&dir);
    node(&pki, &["node1.example".to_owned(), "10.0.0.1".to_owned()]).unwrap();
    let alice = controller(&pki, "alice", &[Scope::Read], Some(30)).unwrap();
    for path in [pki.join("node1.example.pem"), alice.join("controller.pem")] {
        let earlier = certificate(&path).unwrap();
        let key = std::fs::read(path.with_extension("key")).unwrap();
        renew(&pki, &path, Some(400)).unwrap();
        let renewed = certificate(&path).unwrap();
        assert_ne!(renewed.serial, earlier.serial);
        assert_ne!(renewed.not_after_s, earlier.not_after_s);
        let Certificate { serial, not_before_s, not_after_s, .. } = earlier.clone();
        assert_eq!(Certificate { serial, not_before_s, not_after_s, ..renewed }, earlier);
        assert_eq!(std::fs::read(path.with_extension("key")).unwrap(), key);
    }
}

#[test]
fn a_controllers_certificate_without_scopes_gets_all_when_it_is_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let pki = authority_in(&dir);
    let path = pki.join("controller.pem");
    let mut params = params("controller", None).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::from_pem(&std::fs::read_to_string(pki.join("controller.key")).unwrap());
    let earlier = params.signed_by(&key.unwrap(), &issuer(&pki).unwrap()).unwrap();
    std::fs::write(&path, earlier.pem()).unwrap();
    assert_eq!(scopes(&path), None);
    renew(&pki, &path, None).unwrap();
    assert_eq!(scopes(&path), Some(Scopes::all()));
}

#[test]
fn revocations_are_recorded_once_and_listed() {
    let dir = tempfile::tempdir().unwrap();
    let pki = authority_in(&dir);
    let empty = std::fs::read_to_string(pki.join("crl.pem")).unwrap();
    assert!(empty.starts_with("-----BEGIN X509 CRL-----"), "{empty}");
    let alice = controller(&pki, "alice", &[Scope::Run], None).unwrap().join("controller.pem");
    let first = pki.join("controller.pem");
    revoke(&pki, &[alice.clone(), first.clone()]).unwrap();
    let path = revoke(&pki, std::slice::from_ref(&alice)).unwrap();
    assert_ne!(std::fs::read_to_string(path).unwrap(), empty);
    let expected = [&alice, &first].map(|path| certificate(path).unwrap().serial);
    assert_eq!(revoked_serials(&pki), expected);
    assert!(matches!(renew(&pki, &alice, None), Err(PkiError::Revoked(_))));
    for line in ["broken", "4b -000001-01-01 alice", "4b 2026-13-01 alice", "4 2026-01-01 alice"] {
        let lines = format!("4a 2026-01-01 alice\n{line}\n");
        std::fs::write(pki.join("revoked"), lines).unwrap();
        let error = revoke(&pki, &[]).unwrap_err().to_string();
        assert!(error.contains("line 2 is not"), "{line}: {error}");
    }
}

#[test]
fn a_folder_that_cannot_be_read_keeps_the_list_from_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let pki = authority_in(&dir);
    let alice = controller(&pki, "alice", &[Scope::Run], None).unwrap();
    let [broken, lost] = ["broken", "lost+found"].map(|name| pki.join(name));
    for folder in [&broken, &lost] {
        std::fs::create_dir(folder).unwrap();
        // Looking for it fails with ELOOP, for root too.
        std::os::unix::fs::symlink("crl.pem", folder.join("crl.pem")).unwrap();
    }
    std::fs::write(alice.join("crl.pem"), "old").unwrap();
    let folders = [&broken, &alice].map(|folder| Ok(folder.clone()));
    let error = revocations::copy_to_all(&pki, folders).unwrap_err().to_string();
    assert!(error.contains("broken/crl.pem"), "{error}");
    let list = || std::fs::read(pki.join("crl.pem")).unwrap();
    assert_eq!(std::fs::read(alice.join("crl.pem")).unwrap(), list());
    let controller = alice.join("controller.pem");
    let error = revoke(&pki, std::slice::from_ref(&controller)).unwrap_err().to_string();
    assert!(error.contains("broken/crl.pem"), "{error}");
    assert_eq!(std::fs::read(alice.join("crl.pem")).unwrap(), list());
    std::fs::remove_dir_all(&broken).unwrap();
    revoke(&pki, &[controller]).unwrap();
}

/// A record that cannot be read, as on a broken disk, would otherwise be written again without what it holds.
#[test]
fn a_record_that_cannot_be_read_is_not_an_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    let pki = authority_in(&dir);
    let alice = controller(&pki, "alice", &[Scope::Run], None).unwrap().join("controller.pem");
    let list = std::fs::read(pki.join("crl.pem")).unwrap();
    let [n1, n2] = ["n1", "n2"].map(|name| [name.to_owned()]);
    let hour = Micros::new(3_600_000_000);
    type Run<'a> = &'a dyn Fn() -> Result<(), PkiError>;
    let commands: [(&str, Run<'_>); 5] = [
        ("revoked", &|| revoke(&pki, std::slice::from_ref(&alice)).map(drop)),
        ("renewed", &|| revoke(&pki, std::slice::from_ref(&alice)).map(drop)),
        ("renewed", &|| renew(&pki, &alice, None)),
        ("tokens", &|| token(&pki, &n1, hour).map(drop)),
        ("n2.pem", &|| node(&pki, &n2)),
    ];
    for (record, command) in commands {
        let path = pki.join(record);
        // Opening it fails with ELOOP.
        std::os::unix::fs::symlink(record, &path).unwrap();
        let error = command().unwrap_err();
        assert!(matches!(error, PkiError::File(_)), "{record}: {error}");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        assert!(path.is_symlink(), "{record} was replaced");
        std::fs::remove_file(&path).unwrap();
    }
    assert_eq!(std::fs::read(pki.join("crl.pem")).unwrap(), list);
    std::fs::remove_file(pki.join("crl.pem")).unwrap();
    std::os::unix::fs::symlink("crl.pem", pki.join("crl.pem")).unwrap();
    let error = controller(&pki, "bob", &[], None).unwrap_err();
    assert!(matches!(error, PkiError::File(_)), "a controller without the list: {error}");
}

#[test]
fn an_authority_that_cannot_be_seen_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("ca.key", dir.path().join("ca.key")).unwrap();
    assert!(matches!(init(dir.path()), Err(PkiError::File(_))));
    assert!(dir.path().join("ca.key").is_symlink());
}

#[test]
fn revoking_a_renewed_certificate_revokes_the_earlier_ones() {
    let dir = tempfile::tempdir().unwrap();
    let pki = authority_in(&dir);
    let alice = controller(&pki, "alice", &[Scope::Run], None).unwrap().join("controller.pem");
    let copy = alice.with_file_name("copy.pem");
    std::fs::copy(&alice, &copy).unwrap();
    std::fs::copy(alice.with_extension("key"), copy.with_extension("key")).unwrap();
    let mut serials = vec![certificate(&alice).unwrap().serial];
    for _ in 0..2 {
        renew(&pki, &alice, None).unwrap();
        serials.insert(0, certificate(&alice).unwrap().serial);
    }
    revoke(&pki, std::slice::from_ref(&alice)).unwrap();
    assert_eq!(revoked_serials(&pki), serials);
    for path in [&alice, &copy] {
        assert!(matches!(renew(&pki, path, None), Err(PkiError::Revoked(_))), "{path:?}");
    }
    // The record of renewals decides, whatever the record of revocations contains.
    let text = std::fs::read_to_string(pki.join("revoked")).unwrap();
    std::fs::write(pki.join("revoked"), text.lines().next().unwrap().to_owned() + "\n").unwrap();
    assert!(matches!(renew(&pki, &copy, None), Err(PkiError::Revoked(_))));
}

/// Its key is that of the later ones, too.
#[test]
fn revoking_an_earlier_certificate_revokes_all_renewed_ones() {
    let dir = tempfile::tempdir().unwrap();
    let pki = authority_in(&dir);
    let alice = controller(&pki, "alice", &[Scope::Run], None).unwrap().join("controller.pem");
    let copy = alice.with_file_name("copy.pem");
    std::fs::copy(&alice, &copy).unwrap();
    std::fs::copy(alice.with_extension("key"), copy.with_extension("key")).unwrap();
    let first = certificate(&alice).unwrap().serial;
    renew(&pki, &alice, None).unwrap();
    let second = certificate(&alice).unwrap().serial;
    let original = dir.path().join("original.pem");
    std::fs::copy(&copy, &original).unwrap();
    // The first one is renewed once more.
    renew(&pki, &copy, None).unwrap();
    let third = certificate(&copy).unwrap().serial;
    revoke(&pki, &[original]).unwrap();
    assert_eq!(revoked_serials(&pki), [first, second, third]);
}

#[test]
fn no_certificate_is_issued_over_another() {
    let dir = tempfile::tempdir().unwrap();
    let pki = authority_in(&dir);
    let alice = controller(&pki, "alice", &[], None).unwrap().join("controller.pem");
    node(&pki, &["node1.example".to_owned()]).unwrap();
    let before = std::fs::read(&alice).unwrap();
    let again = controller(&pki, "alice", &[Scope::Read], None);
    assert!(matches!(again, Err(PkiError::Issued(_))), "{again:?}");
    assert_eq!(std::fs::read(&alice).unwrap(), before);
    let again = node(&pki, &["node1.example".to_owned()]);
    assert!(matches!(again, Err(PkiError::Issued(_))), "{again:?}");
    revoke(&pki, std::slice::from_ref(&alice)).unwrap();
    std::fs::remove_file(&alice).unwrap();
    controller(&pki, "alice", &[Scope::Read], None).unwrap();
}

#[test]
fn a_command_that_issues_waits_for_others() {
    use std::os::unix::fs::MetadataExt as _;
    let dir = tempfile::tempdir().unwrap();
    let pki = &authority_in(&dir);
    let lock = tokens::lock(pki).unwrap();
    let inode = format!(":{} ", lock.metadata().unwrap().ino());
    // The kernel marks those who wait.
    let waits = || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| line.contains(" -> ") && line.contains(&inode))
    };
    let issued = std::thread::scope(|scope| {
        let command = scope.spawn(|| node(pki, &["n1".to_owned()]));
        for _ in 0..1000 {
            if command.is_finished() || waits() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        // The holder of the lock issues the same name.
        std::fs::write(pki.join("n1.pem"), "first").unwrap();
        drop(lock);
        command.join().unwrap()
    });
    assert!(matches!(issued, Err(PkiError::Issued(_))), "{issued:?}");
    assert_eq!(std::fs::read_to_string(pki.join("n1.pem")).unwrap(), "first");
}

#[test]
fn commands_at_the_same_time_lose_no_renewal_and_no_revocation() {
    const COMMANDS: usize = 8;
    let dir = tempfile::tempdir().unwrap();
    let pki = &authority_in(&dir);
    let one = |nth| controller(pki, &format!("c{nth}"), &[], None).unwrap().join("controller.pem");
    let paths: Vec<PathBuf> = (0..COMMANDS).map(one).collect();
    let serials = || paths.iter().map(|path| certificate(path).unwrap().serial);
    let at_once = |command: &(dyn Fn(&PathBuf) + Sync)| {
        let start = &std::sync::Barrier::new(COMMANDS);
        std::thread::scope(|scope| {
            for path in &paths {
                scope.spawn(move || {
                    start.wait();
                    command(path);
                });
            }
        });
    };
    let mut all: Vec<Vec<u8>> = serials().collect();
    at_once(&|path: &PathBuf| renew(pki, path, None).unwrap());
    all.extend(serials());
    at_once(&|path: &PathBuf| drop(revoke(pki, std::slice::from_ref(path)).unwrap()));
    let revoked = revoked_serials(pki);
    assert!(all.iter().all(|serial| revoked.contains(serial)), "{all:?} {revoked:?}");
}

#[test]
fn only_what_the_authority_signed_is_renewed_and_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let pki = authority_in(&dir);
    let alice = controller(&pki, "alice", &[Scope::Read], None).unwrap().join("controller.pem");
    let other = dir.path().join("other");
    init(&other).unwrap();
    let forged = other.join("controller.pem");
    assert!(matches!(renew(&pki, &forged, None), Err(PkiError::Foreign(_))));
    assert!(matches!(revoke(&pki, &[forged]), Err(PkiError::Foreign(_))));
    assert_eq!(revoked_serials(&pki), Vec::<Vec<u8>>::new());
    // The certificate of the first controller with the key of another one.
    std::fs::copy(pki.join("controller.pem"), &alice).unwrap();
    assert!(matches!(renew(&pki, &alice, None), Err(PkiError::OtherKey(_))));
}

#[test]
fn the_certificate_of_a_node_that_has_the_key_is_not_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let pki = authority_in(&dir);
    node(&pki, &["n1".to_owned()]).unwrap();
    std::fs::remove_file(pki.join("n1.key")).unwrap();
    let error = renew(&pki, &pki.join("n1.pem"), None).unwrap_err();
    assert!(matches!(error, PkiError::KeyOnNode(_)), "{error}");
    let error = error.to_string();
    for part in ["n1.key does not exist", "`ccbench-agent renew --controller", "--until-stopped`"] {
        assert!(error.contains(part), "no `{part}`: {error}");
    }
}

#[test]
fn no_part_of_an_authority_is_overwritten() {
    for kept in ["ca.key", "ca.pem", "controller.pem", "controller.key"] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(kept), "kept").unwrap();
        assert!(matches!(init(dir.path()), Err(PkiError::Exists(_))), "{kept}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "{kept}");
    }
}

#[test]
fn of_two_commands_at_the_same_time_only_one_makes_an_authority() {
    let dir = tempfile::tempdir().unwrap();
    let pki = &dir.path().join("pki");
    let start = &std::sync::Barrier::new(2);
    let made = std::thread::scope(|scope| {
        let commands = [(); 2].map(|()| {
            scope.spawn(move || {
                start.wait();
                init(pki).map_err(|error| error.to_string())
            })
        });
        commands.map(|command| command.join().unwrap())
    });
    assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 1, "{made:?}");
    let refused = made.iter().find_map(|made| made.as_ref().err()).unwrap();
    assert!(refused.contains("already holds an authority"), "{refused}");
}

#[test]
fn an_authority_is_made_as_a_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let names = || {
        let entries = std::fs::read_dir(dir.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "tokens.lock").collect::<std::collections::BTreeSet<_>>()
    };
    let all =
        ["ca.key", "ca.pem", "controller.key", "controller.pem", "crl.pem"].map(str::to_owned);
    // A file cannot replace a directory.
    let blocked = dir.path().join("crl.pem");
    std::fs::create_dir(&blocked).unwrap();
    assert!(matches!(init(dir.path()), Err(PkiError::File(_))));
    assert_eq!(names(), ["crl.pem".to_owned()].into());
    std::fs::remove_dir(&blocked).unwrap();
    init(dir.path()).unwrap();
    assert_eq!(names(), all.into());
}

#[test]
fn a_key_is_private_in_a_file_that_others_could_read() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let pki = authority_in(&dir);
    let key = pki.join("node1.example.key");
    std::fs::write(&key, "").unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    node(&pki, &["node1.example".to_owned()]).unwrap();
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn names_are_not_paths_and_not_files_of_the_authority() {
    let dir = tempfile::tempdir().unwrap();
    let pki = authority_in(&dir);
    for name in ["", ".", "..", "a/b", "ca", "controller", "crl", "renewed", "tokens", "a\nb"] {
        let issued = controller(&pki, name, &[], None);
        assert!(matches!(issued, Err(PkiError::InvalidName(_))), "{name:?}");
    }
}
