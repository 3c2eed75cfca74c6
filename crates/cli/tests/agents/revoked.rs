//! Tests for an agent whose certificate is revoked.

use std::path::Path;
use std::process::{Command, Output};

use crate::fake::serve_tls;
use crate::version::plan_of;

fn ccbench(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccbench"));
    command.args(arguments).current_dir(dir).output().unwrap()
}

fn done(dir: &Path, arguments: &[&str]) {
    let output = ccbench(dir, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

/// Returns exit code and message.
fn describe(dir: &Path, tls: &[&str]) -> (Option<i32>, String) {
    let output = ccbench(dir, &[&["describe", "plan.toml"], tls].concat());
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn an_agent_whose_certificate_is_revoked_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for arguments in [
        &["pki", "init", "pki"][..],
        &["pki", "node", "pki", "127.0.0.1"],
        &["pki", "controller", "pki", "alice", "--scope", "read"],
    ] {
        done(dir, arguments);
    }
    let [one, two] = [(); 2].map(|()| serve_tls(&dir.join("pki"), "127.0.0.1"));
    std::fs::write(dir.join("plan.toml"), plan_of(one, two)).unwrap();
    let alice = ["--pki", "pki/alice"];
    assert_eq!(describe(dir, &alice).0, Some(0), "{}", describe(dir, &alice).1);
    std::fs::copy(dir.join("pki/crl.pem"), dir.join("earlier.pem")).unwrap();
    done(dir, &["pki", "revoke", "pki", "pki/127.0.0.1.pem"]);
    for directory in ["pki", "pki/alice"] {
        let (code, message) = describe(dir, &["--pki", directory]);
        assert_eq!(code, Some(3), "{message}");
        let expected = format!("the agent's certificate is revoked ({directory}/crl.pem)");
        assert!(
            message.contains("node one: connect: ") && message.contains(&expected),
            "{message}"
        );
    }
    // A list other than the directory's.
    let (code, message) = describe(dir, &["--pki", "pki", "--crl", "earlier.pem"]);
    assert_eq!(code, Some(0), "{message}");
    done(dir, &["pki", "init", "other"]);
    let (code, message) = describe(dir, &["--pki", "pki", "--crl", "other/crl.pem"]);
    assert_eq!(code, Some(3), "{message}");
    assert!(message.contains("other/crl.pem is not the list of the authority"), "{message}");
    let (code, message) = describe(dir, &["--pki", "pki", "--crl", "missing.pem"]);
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("missing.pem"), "{message}");
    // A list that is there but cannot be read must not be taken for a missing one.
    let list = dir.join("pki/alice/crl.pem");
    std::fs::remove_file(&list).unwrap();
    std::os::unix::fs::symlink("crl.pem", &list).unwrap();
    let (code, message) = describe(dir, &alice);
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("cannot look for pki/alice/crl.pem: "), "{message}");
}
