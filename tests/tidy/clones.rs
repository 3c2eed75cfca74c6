//! Tests `scripts/rustc.sh` and `scripts/clean_clones.sh`, with a program that only prints its arguments in place of the compiler.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use ccbench_tests::source_root;

/// Creates a directory with the scripts.
fn clone_at(path: PathBuf) -> PathBuf {
    std::fs::create_dir(&path).unwrap();
    symlink(source_root().join("scripts"), path.join("scripts")).unwrap();
    path
}

/// Returns what a clone's wrapper passes to the compiler for a crate with a build script.
fn compile(clone: &Path, target: &Path, hash: &str, of_build_script: &str) -> String {
    let output = Command::new(clone.join("scripts/rustc.sh"))
        .args(["echo", "--crate-name", "own", "-C", &format!("extra-filename=-{hash}")])
        .args(["-C", "incremental=/x/incremental"])
        .env("CARGO_TARGET_DIR", target)
        .env_remove("CARGO_BUILD_BUILD_DIR")
        .env("OUT_DIR", target.join(format!("debug/build/own-{of_build_script}/out")))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `make clean-clones` on this build directory. Returns its output.
fn clean(target: &Path) -> String {
    let script = source_root().join("scripts/clean_clones.sh");
    let mut command = Command::new(script);
    let command = command.env("CARGO_TARGET_DIR", target).env_remove("CARGO_BUILD_BUILD_DIR");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Creates artefacts with these hashes as Cargo does: those of a crate, and those of its build script.
fn artefacts(target: &Path, hash: &str, of_build_script: &str, incremental: &str) -> Vec<PathBuf> {
    let files = [
        format!("debug/deps/libown-{hash}.rlib"),
        format!("debug/deps/own-{hash}.own.1-cgu.0.rcgu.o"),
        format!("debug/deps/own-{hash}"),
        format!("debug/.fingerprint/own-{hash}/lib-own.json"),
        format!("debug/build/own-{of_build_script}/out/generated.rs"),
        format!("x86_64-unknown-linux-gnu/release/deps/own-{hash}.d"),
        format!("debug/incremental/{incremental}/own-1x2y3z/s-1/dep-graph.bin"),
    ];
    let files = files.map(|file| target.join(file));
    for file in &files {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "").unwrap();
    }
    files.into()
}

#[test]
fn artefacts_of_clones_that_are_gone_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("target");
    let clones = ["gone", "kept"].map(|name| clone_at(dir.path().join(name)));
    let hashes =
        [("0123456789abcdef", "123456789abcdef0"), ("fedcba9876543210", "edcba9876543210f")];
    let mut files = Vec::new();
    for (clone, (hash, of_build_script)) in clones.iter().zip(hashes) {
        let arguments = compile(clone, &target, hash, of_build_script);
        let begin =
            format!("--crate-name own -C extra-filename=-{hash} -C incremental=/x/incremental/");
        let incremental = arguments.trim_end().strip_prefix(&begin).unwrap();
        assert!(incremental.bytes().all(|byte| byte.is_ascii_digit()), "{arguments}");
        files.push(artefacts(&target, hash, of_build_script, incremental));
    }
    let shared = artefacts(&target, "00000000000000aa", "00000000000000bb", "serde-1");
    assert!(clean(&target).contains("every clone"), "both clones exist");
    let exist = |files: &[PathBuf]| files.iter().filter(|file| file.exists()).count();
    assert_eq!((exist(&files[0]), exist(&files[1])), (7, 7));
    std::fs::remove_dir_all(&clones[0]).unwrap();
    let gone = clones[0].display();
    assert_eq!(clean(&target), format!("clean-clones: removed the artefacts of {gone}\n"));
    assert_eq!((exist(&files[0]), exist(&files[1]), exist(&shared)), (0, 7, 7));
    assert!(!target.join("debug/.fingerprint/own-0123456789abcdef").exists());
    assert!(clean(&target).contains("every clone"), "nothing is left to remove");
}
