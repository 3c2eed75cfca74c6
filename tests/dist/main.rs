//! Tests the parts of `make dist` that need no other system: scripts, the tree from which packages are made, the bill of materials, how
//! images are unpacked, the Python reader. `tests/dist/bare.sh` installs the packages.
#![allow(clippy::disallowed_methods, reason = "a test starts programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ccbench_tests::links::{resolved, targets};
use ccbench_tests::skip::skip;
use ccbench_tests::{Bench, binary, python, source_root, text};
use serde_json::Value;

const PLAN: &str = r#"
name = "read"
repeat = 2
[nodes]
src = {}
router = {}
dst = {}
[wires]
path = ["src", "router", "dst"]
[links.bottleneck]
node = "router"
toward = "dst"
rate = "10mbit"
delay = "10ms"
[flows.f]
from = "src"
to = "dst"
[[phases]]
name = "only"
length = "2s"
flows = ["f"]
[matrix]
"flows.f.cc" = ["cubic", "reno"]
"#;

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    output
}

fn tracked_files() -> Vec<String> {
    let mut git = Command::new("git");
    // In a container, the clone may belong to another user.
    git.args(["-c", "safe.directory=*", "ls-files", "-z"]);
    git.args(["--cached", "--others", "--exclude-standard"]);
    let listed = succeed(git.current_dir(source_root())).stdout;
    let names = String::from_utf8(listed).unwrap();
    names.split_terminator('\0').map(str::to_owned).collect()
}

#[test]
fn scripts_of_bash_have_no_syntax_errors() {
    let mut scripts = 0;
    for name in tracked_files() {
        let path = source_root().join(&name);
        let is_bash = |text: &[u8]| text.starts_with(b"#!/usr/bin/env bash\n");
        if std::fs::read(&path).is_ok_and(|text| is_bash(&text)) {
            succeed(Command::new("bash").arg("-n").arg(&path));
            scripts += 1;
        }
    }
    assert!(scripts >= 20, "only {scripts} scripts");
}

/// Returns every file below a folder, by its path in it.
fn tree(root: &Path) -> BTreeMap<String, PathBuf> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(root).unwrap().display().to_string(), path);
            }
        }
    }
    found
}

#[test]
fn packages_have_programs_manuals_completions_and_the_unit() {
    let bench = Bench::new();
    let programs = binary("ccbench").parent().unwrap().to_owned();
    for (prefix, programs_in, zsh) in [
        ("/usr", "/usr/bin", "usr/share/zsh/vendor-completions/_ccbench"),
        ("/usr/local", "/usr/local/bin", "usr/local/share/zsh/site-functions/_ccbench"),
        ("", "/usr/local/bin", "share/zsh/site-functions/_ccbench"),
    ] {
        let root = bench.path(&format!("root{}", prefix.replace('/', "-")));
        std::fs::create_dir(&root).unwrap();
        let stage = source_root().join("scripts/stage.sh");
        succeed(Command::new(stage).arg(&programs).arg(&root).arg(prefix));
        let tree = tree(&root);
        let inside = |name: &str| format!("{prefix}/{name}").trim_start_matches('/').to_owned();
        let read = |name: &str| {
            let name = inside(name);
            let path = tree.get(&name).unwrap_or_else(|| panic!("no {name}: {:?}", tree.keys()));
            std::fs::read_to_string(path).unwrap()
        };
        for name in ["bin/ccbench", "bin/ccbench-agent"] {
            assert!(tree.contains_key(&inside(name)), "{:?}", tree.keys());
        }
        assert!(tree.contains_key(zsh), "{:?}", tree.keys());
        let unit = read("lib/systemd/system/ccbench-agent.service");
        let starts = format!("ExecStart={programs_in}/ccbench-agent serve");
        assert!(unit.contains(&starts), "{unit}");
        assert_eq!(unit.matches("/bin/ccbench-agent").count(), 3, "{unit}");
        let share = programs_in.replace("/bin", "/share/ccbench");
        assert!(unit.contains(&format!("{share}/agent.conf.example")), "{unit}");
        assert!(read("share/ccbench/agent.conf.example").contains("\nCCBENCH_LISTEN=tcp:"));
        let script = tree.get(&inside("share/ccbench/install-agent.sh")).unwrap();
        assert_ne!(std::fs::metadata(script).unwrap().permissions().mode() & 0o111, 0);
        for name in ["front", "worker", "loader", "renew"] {
            let unit = read(&format!("lib/systemd/system/ccbench-agent-{name}.service"));
            let starts = format!("ExecStart={programs_in}/ccbench-agent {name} ");
            assert!(unit.contains(&starts), "{unit}");
        }
        let socket = read("lib/systemd/system/ccbench-agent-worker.socket");
        assert!(socket.contains("SocketUser=ccbench-front"), "{socket}");
        for unit in ["ccbench-agent-loader.socket", "ccbench-agent-renew.timer"] {
            assert!(tree.contains_key(&inside(&format!("lib/systemd/system/{unit}"))), "{unit}");
        }
        assert!(read("lib/sysusers.d/ccbench.conf").contains("\nu ccbench-front "));
        assert!(read("share/man/man1/ccbench-run.1").contains("ccbench"));
        assert!(read("share/man/man1/ccbench-agent.1").contains("ccbench\\-agent\\-serve(1)"));
        assert!(read("share/man/man1/ccbench-agent-serve.1").contains("CCBENCH_ALLOW_MODULE"));
        assert!(!tree.contains_key(&inside("share/man/man1/ccbench-agent-link-guard.1")));
        for shell in
            ["bash-completion/completions/ccbench", "fish/vendor_completions.d/ccbench.fish"]
        {
            assert!(read(&format!("share/{shell}")).contains("scorecard"), "{shell}");
        }
        assert!(read("share/ccbench/plans/quickstart.toml").contains("[[phases]]"));
        assert!(read("share/doc/ccbench/LICENSE").contains("Apache License"));
        assert!(read("share/doc/ccbench/docs/plan.md").contains("## `[links]`"));
        links_work(&root.join(inside("share/doc/ccbench")));
    }
}

/// Runs the script of the .deb that follows an installation, beside a systemd in which these services are enabled.
fn configured(bench: &Bench, enabled: &[&str]) -> String {
    let dist = std::fs::read_to_string(source_root().join("scripts/dist.sh")).unwrap();
    let begin = "/DEBIAN/postinst\" <<'EOF'\n";
    let script = dist.split_once(begin).and_then(|(_, rest)| rest.split_once("\nEOF\n")).unwrap().0;
    assert_eq!(script.matches("/run/systemd/system").count(), 1, "{script}");
    let script = script.replace("/run/systemd/system", &bench.path(".").display().to_string());
    let units = enabled.join(" ");
    let systemctl = format!(
        "#!/bin/sh\n[ \"$1 $2\" = 'is-enabled -q' ] || exit 0\ncase ' {units} ' in *\" $3 \"*) ;; *) exit 1 ;; esac\n"
    );
    bench.program("bin/systemctl", &systemctl);
    bench.program("bin/systemd-sysusers", "#!/bin/sh\n");
    let path = format!("{}:{}", bench.path("bin").display(), std::env::var("PATH").unwrap());
    let done = succeed(Command::new("sh").args(["-c", &script, "postinst"]).env("PATH", path));
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn an_upgraded_node_with_one_process_gets_the_commands_that_divide_it() {
    let bench = Bench::new();
    let (one, front) = ("ccbench-agent.service", "ccbench-agent-front.service");
    let kept = configured(&bench, &[one]);
    assert!(kept.contains("systemctl enable --now ccbench-agent-front"), "{kept}");
    for enabled in [&[][..], &[front][..], &[one, front][..]] {
        assert_eq!(configured(&bench, enabled), "", "{enabled:?}");
    }
}

/// Checks that every link in the documents of a package leads to a file of the package. tests/docs/links.rs checks the anchors in the
/// source tree.
fn links_work(doc: &Path) {
    let (mut links, mut wrong) = (0, Vec::new());
    let tree = tree(doc);
    for (document, path) in tree.iter().filter(|(name, _)| name.ends_with(".md")) {
        for target in targets(&std::fs::read_to_string(path).unwrap()) {
            links += 1;
            if !tree.contains_key(&resolved(document, &target)) {
                wrong.push(format!("{document}: {target}"));
            }
        }
    }
    assert!(links > 150, "only {links} links");
    assert!(wrong.is_empty(), "not in the package:\n{}", wrong.join("\n"));
}

#[test]
fn links_of_the_documents_in_the_wheel_work() {
    let bench = Bench::new();
    let doc = bench.path("doc");
    succeed(Command::new(source_root().join("scripts/documents.sh")).arg(&doc));
    links_work(&doc);
    // Installers of wheels replace a link by a file.
    assert!(!doc.join("plans").is_symlink());
    let script = std::fs::read_to_string(source_root().join("scripts/dist.sh")).unwrap();
    let copies = "scripts/documents.sh \"$data/data/share/doc/ccbench\"\n";
    assert!(script.contains(copies), "what the wheel has");
}

fn metadata() -> Value {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["metadata", "--locked", "--format-version", "1", "--filter-platform"]);
    cargo.arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH));
    serde_json::from_slice(&succeed(cargo.current_dir(source_root())).stdout).unwrap()
}

/// Returns a script of the source tree, which writes no compiled modules there.
fn script(name: &str) -> Command {
    let mut python = Command::new("python3");
    python.arg("-B").arg(source_root().join(name));
    python
}

fn bill_of_materials(metadata: &Value, packages: &[PathBuf]) -> Value {
    let mut python = script("scripts/sbom.py");
    python.arg(source_root().join("Cargo.lock")).args(["1.2.3", "x86_64-unknown-linux-gnu"]);
    python.args(packages).env("SOURCE_DATE_EPOCH", "1767225600");
    python.current_dir(source_root());
    let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(metadata.to_string().as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_bill_of_materials_has_every_crate_of_the_programs() {
    let metadata = metadata();
    let bill = bill_of_materials(&metadata, &[]);
    assert_eq!(bill, bill_of_materials(&metadata, &[]), "the same inputs give the same document");
    assert_eq!(bill["spdxVersion"], "SPDX-2.3");
    assert_eq!(bill["creationInfo"]["created"], "2026-01-01T00:00:00Z");
    let packages = bill["packages"].as_array().unwrap();
    let text_of = |value: &Value| value.as_str().unwrap().to_owned();
    let names: BTreeSet<String> = packages.iter().map(|p| text_of(&p["name"])).collect();
    // The last two are in reports and figures.
    for name in
        ["ccbench", "ccbench-agent", "polars", "tokio", "libbpf-sys", "cc", "uPlot", "Arimo"]
    {
        assert!(names.contains(name), "no {name}");
    }
    // Dependencies of tests only, and Polars' streaming engine, which some features of `polars` bring along: a large, unused part of a
    // program.
    for name in ["proptest", "ccbench-tests", "ccbench-fuzz", "polars-stream"] {
        assert!(!names.contains(name), "{name}");
    }
    let ids: BTreeSet<String> = packages.iter().map(|p| text_of(&p["SPDXID"])).collect();
    assert_eq!(ids.len(), packages.len(), "an id is there twice");
    for package in packages {
        assert_ne!(package["licenseDeclared"], "NOASSERTION", "{package}");
        let ours = text_of(&package["name"]).starts_with("ccbench");
        let checksum = package["checksums"][0]["checksumValue"].as_str().unwrap_or_default();
        assert_eq!(checksum.len(), if ours { 0 } else { 64 }, "{package}");
    }
    let (mut described, mut depended) = (BTreeSet::new(), BTreeSet::new());
    for relationship in bill["relationships"].as_array().unwrap() {
        let related = text_of(&relationship["relatedSpdxElement"]);
        assert!(ids.contains(&related), "{relationship}");
        match relationship["relationshipType"].as_str().unwrap() {
            "DESCRIBES" => described.insert(related),
            "DEPENDS_ON" | "CONTAINS" => depended.insert(related),
            other => panic!("{other}"),
        };
    }
    assert_eq!(described.len(), 2, "{described:?}");
    let all: BTreeSet<String> = described.union(&depended).cloned().collect();
    assert_eq!(all, ids, "every package is of a program");
}

const SMALL_WHEEL: &str = "ccbench-1.2.3-py3-none-manylinux_2_36_x86_64.whl";
const SMALL_IMAGE: &str = "ccbench-1.2.3-x86_64.oci.tar";

/// Writes a wheel and images with small files, and returns their directory.
fn small_packages(bench: &Bench) -> PathBuf {
    let out = bench.path("packages");
    std::fs::create_dir(&out).unwrap();
    succeed(script("tests/dist/packages.py").arg(&out));
    out
}

#[test]
fn the_bill_of_materials_has_what_packages_contain_besides_the_programs() {
    let bench = Bench::new();
    let out = small_packages(&bench);
    let bill = bill_of_materials(&metadata(), &[out.join(SMALL_WHEEL), out.join(SMALL_IMAGE)]);
    let str_of = |value: &Value, key: &str| value[key].as_str().unwrap().to_owned();
    let packages = bill["packages"].as_array().unwrap();
    let described = |package: &Value| {
        let of = |key: &str| str_of(package, key);
        (of("SPDXID"), format!("{} {}", of("name"), of("versionInfo")))
    };
    let described: BTreeMap<String, String> = packages.iter().map(described).collect();
    assert_eq!(described.len(), packages.len(), "an id is there twice");
    let parts_of = |whole: &str| -> BTreeSet<String> {
        let relationships = bill["relationships"].as_array().unwrap().iter();
        let contained = relationships.filter(|relationship| {
            relationship["relationshipType"] == "CONTAINS"
                && described[&str_of(relationship, "spdxElementId")] == format!("{whole} 1.2.3")
        });
        contained.map(|part| described[&str_of(part, "relatedSpdxElement")].clone()).collect()
    };
    let with_programs = |others: &[&str]| -> BTreeSet<String> {
        let programs = ["ccbench", "ccbench-agent"];
        let programs = programs.map(|name| format!("{name} {}", env!("CARGO_PKG_VERSION")));
        others.iter().map(|&part| part.to_owned()).chain(programs).collect()
    };
    // Without dpkg on the build machine, the version of a library is unknown.
    let in_wheel = with_programs(&["libelf1 0.188-2.1", "libz.so.1 NOASSERTION"]);
    assert_eq!(parts_of(SMALL_WHEEL), in_wheel);
    let in_image = with_programs(&[
        "libelf1 0.188-2.1",
        "libgcc-s1 14.2.0-19",
        "libstdc++6 1:14.2+b1",
        "linux-source-7.3 7.3.4-1",
    ]);
    assert_eq!(parts_of(SMALL_IMAGE), in_image);

    let find = |name: &str| packages.iter().find(|package| package["name"] == name).unwrap();
    let locator = &find("libstdc++6")["externalRefs"][0]["referenceLocator"];
    assert_eq!(locator, "pkg:deb/debian/libstdc%2B%2B6@1%3A14.2%2Bb1?arch=amd64");
    assert_eq!(find(SMALL_WHEEL)["checksums"][0]["checksumValue"].as_str().unwrap().len(), 64);
    assert_eq!(find("linux-source-7.3")["licenseDeclared"], "GPL-2.0-only");
    let licences = bill["hasExtractedLicensingInfos"].as_array().unwrap();
    let text_of = |name: &str| {
        let id = &find(name)["licenseDeclared"];
        let licence = licences.iter().find(|licence| licence["licenseId"] == *id).unwrap();
        str_of(licence, "extractedText")
    };
    assert!(text_of("libelf1").contains("License: LGPL-3+ or GPL-2+\n"));
    // Its documents are in a folder with another package's name.
    assert_eq!(text_of("libgcc-s1"), "free text");
    assert_eq!(find("libstdc++6")["licenseDeclared"], "NOASSERTION", "no copyright file");
}

#[test]
fn images_are_unpacked_layer_by_layer() {
    let bench = Bench::new();
    let out = small_packages(&bench);
    let unpack = |archive: &str| {
        let root = bench.path(&format!("root-{archive}"));
        std::fs::create_dir(&root).unwrap();
        let output = script("scripts/oci.py").arg(out.join(archive)).arg(&root).output().unwrap();
        (root, output)
    };
    for (archive, run) in [(SMALL_IMAGE, "/srv\nccbench\n-v\n"), ("docker.tar", "/\nccbench\n")] {
        let (root, output) = unpack(archive);
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), run);
        let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
        assert_eq!(read("usr/bin/tool"), "the tool of the upper layer");
        assert!(root.join("bin").is_symlink());
        assert_eq!(read("opt/one/two"), "two");
        let files = tree(&root);
        let is_hidden = |name: &&String| name.contains(".wh.") || name.ends_with(".hidden");
        assert_eq!(files.keys().find(is_hidden), None);
        assert!(!files.contains_key("tmp/ccbench.deb"), "{files:?}");
        // Not written through the link of the lower layer.
        assert!(!root.join("etc/link").is_symlink() && !bench.path("outside").exists());
    }

    let (_, refused) = unpack("escaping.tar");
    assert!(!refused.status.success() && !bench.path("outside").exists());
    assert!(text(&refused).contains("outside of the image: up/outside"), "{}", text(&refused));

    let mut bytes = std::fs::read(out.join(SMALL_IMAGE)).unwrap();
    let at = bytes.windows(6).position(|window| window == b"PRETTY").unwrap();
    bytes[at] = b'p';
    std::fs::write(out.join("damaged.tar"), bytes).unwrap();
    let (_, damaged) = unpack("damaged.tar");
    assert!(text(&damaged).contains(" has another digest"), "{}", text(&damaged));
}

/// Runs dist.sh for a package that does not exist, with a controller of this size, and programs that do nothing in place of the compiler.
fn dist_with_controller_of(bytes: u64) -> Output {
    let bench = Bench::new();
    let (tools, programs) = (bench.path("tools"), bench.path("target/dist"));
    std::fs::create_dir(&tools).unwrap();
    std::fs::create_dir_all(&programs).unwrap();
    for (name, command) in [("cargo", ":"), ("nm", ":"), ("rustc", "echo host: any-linux-gnu")] {
        let tool = tools.join(name);
        std::fs::write(&tool, format!("#!/bin/sh\n{command}\n")).unwrap();
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    for (name, bytes) in [("ccbench", bytes), ("ccbench-agent", 1)] {
        std::fs::File::create(programs.join(name)).unwrap().set_len(bytes).unwrap();
    }
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let mut dist = Command::new(source_root().join("scripts/dist.sh"));
    dist.arg(bench.path("out")).arg("none").env("PATH", path);
    dist.env("CARGO_TARGET_DIR", bench.path("target")).output().unwrap()
}

#[test]
fn a_controller_above_the_limit_of_make_size_is_not_packed() {
    let makefile = std::fs::read_to_string(source_root().join("Makefile")).unwrap();
    let mut limits = makefile.lines().filter_map(|line| {
        line.strip_prefix("\t@scripts/size.sh $(CARGO_TARGET_DIR)/dist/ccbench ")
    });
    let limit_bytes = limits.next().unwrap().parse::<u64>().unwrap() * 1_000_000;
    let printed = text(&dist_with_controller_of(limit_bytes + 1));
    assert!(printed.contains(&format!("{} bytes", limit_bytes + 1)), "{printed}");
    assert!(printed.contains("`make size`"), "{printed}");
    let printed = text(&dist_with_controller_of(limit_bytes));
    assert!(printed.contains("there is no package none"), "{printed}");
}

/// cargo binstall must find the archive that scripts/dist.sh makes.
#[test]
fn the_archive_has_the_name_that_cargo_binstall_expects() {
    let script = std::fs::read_to_string(source_root().join("scripts/dist.sh")).unwrap();
    let metadata = metadata();
    for program in ["ccbench", "ccbench-agent"] {
        let packages = metadata["packages"].as_array().unwrap();
        let package = packages.iter().find(|package| package["name"] == program).unwrap();
        let binstall = &package["metadata"]["binstall"];
        let as_in_shell = |key: &str| {
            let value = binstall[key].as_str().unwrap();
            let value = value.replace("{ version }", "$version").replace("{ target }", "$target");
            value.replace("{ bin }", program)
        };
        let url = "{ repo }/releases/download/v$version/ccbench-$version-$target.tar.gz";
        assert_eq!(as_in_shell("pkg-url"), url);
        assert_eq!(as_in_shell("bin-dir"), format!("ccbench-$version-$target/bin/{program}"));
    }
    assert!(script.contains("name=ccbench-$version-$target\n"));
    assert!(script.contains("pack \"$out/$name.tar.gz\" \"$name\"\n"));
}

fn release_workflow() -> String {
    std::fs::read_to_string(source_root().join(".github/workflows/release.yml")).unwrap()
}

/// The sources name no repository. The notes of a release have the commands for the repository that published it.
#[test]
fn a_release_has_commands_for_cargo_binstall_with_whole_urls() {
    let address = "https://git.example/owner/ccbench";
    let mut binstall = Command::new(source_root().join("scripts/binstall.sh"));
    let printed = String::from_utf8(succeed(binstall.arg(address)).stdout).unwrap();
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let mut commands = printed.lines();
    for program in ["ccbench", "ccbench-agent"] {
        let package = packages.iter().find(|package| package["name"] == program).unwrap();
        let version = package["version"].as_str().unwrap();
        let (start, rest) = commands.next().unwrap().split_once(" --pkg-url '").unwrap();
        let (url, end) = rest.split_once('\'').unwrap();
        assert_eq!(start, format!("cargo binstall --git {address}"));
        assert_eq!(end, format!(" {program}@{version}"));
        let target = "x86_64-unknown-linux-gnu";
        assert_eq!(
            url.replace("{ version }", version).replace("{ target }", target),
            format!("{address}/releases/download/v{version}/ccbench-{version}-{target}.tar.gz")
        );
    }
    assert_eq!(commands.next(), None);
    let calls = "scripts/binstall.sh \"$GITHUB_SERVER_URL/$GITHUB_REPOSITORY\"";
    assert!(release_workflow().contains(calls), "the notes have the commands");
}

/// Only the job that uploads the wheel may identify itself to the index of packages, and only for a tag.
#[test]
fn only_the_job_that_publishes_the_wheel_has_an_identity() {
    let workflow = release_workflow();
    let mut jobs: Vec<Vec<&str>> = vec![Vec::new()];
    for line in workflow.lines() {
        if line.starts_with("  ") && !line.starts_with("   ") && line.ends_with(':') {
            jobs.push(Vec::new());
        }
        jobs.last_mut().unwrap().push(line.trim());
    }
    let with_identity: Vec<_> =
        jobs.iter().filter(|job| job.contains(&"id-token: write")).collect();
    let [job] = with_identity[..] else { panic!("{with_identity:?}") };
    let has = |start: &str, part: &str| {
        job.iter().any(|line| line.starts_with(start) && line.contains(part))
    };
    assert!(has("- uses: pypa/gh-action-pypi-publish@", ""), "{job:?}");
    assert!(has("if: ", "github.ref_type == 'tag'") && has("run: ", "*.whl"), "{job:?}");
}

/// `podman load` and `docker load` must give the image the name in the documents.
#[test]
fn the_image_has_the_name_that_the_documents_use() {
    let read = |name: &str| std::fs::read_to_string(source_root().join(name)).unwrap();
    assert!(read("docs/packages.md").contains(" ccbench run plan.toml\n"));
    let script = read("scripts/dist.sh");
    let saves: Vec<&str> = script.lines().filter(|line| line.contains("\"$tool\" save ")).collect();
    assert_eq!(saves.len(), 2, "of podman and docker: {saves:?}");
    assert!(saves.iter().all(|save| save.contains("ccbench:latest")), "{saves:?}");
}

#[test]
fn the_python_reader_gives_tables_with_units() {
    let Some(mut python) = python() else { return skip("run `scripts/setup.sh --test` first") };
    let bench = Bench::new();
    bench.write("plan.toml", PLAN);
    let done = bench.run(&["run", "plan.toml", "--sim"]);
    assert!(done.status.success(), "{}", text(&done));
    python.env("PYTHONPATH", source_root().join("python")).env("CCBENCH", binary("ccbench"));
    python.arg(source_root().join("tests/dist/reader.py")).arg(bench.results());
    let printed = String::from_utf8(succeed(&mut python).stdout).unwrap();
    assert!(printed.ends_with(" rows\n"), "{printed}");
}
