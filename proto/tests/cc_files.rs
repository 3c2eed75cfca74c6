//! Supplied congestion controls: the facts read from their files, and the plans that name them.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::Arc;

use ccbench_proto::cc::supplied::{CcFiles, Ops, ParameterKind, SuppliedFile, UnreadableCc, facts};
use ccbench_proto::plan::check::{CheckedPlan, PlanFiles, Target, cc_files, read_for};
use ccbench_proto::plan::{Via, digest_bytes};
use ccbench_proto::resolve::to_toml;

use elf::{EXECUTABLE, MODINFO, Section, module, object};

#[path = "cc_files/elf.rs"]
mod elf;

const OPS: &str = "tcp_congestion_ops";

fn why(bytes: &[u8]) -> String {
    facts(bytes).unwrap_err().to_string()
}

#[test]
fn an_object_has_a_name_and_parameters() {
    let bytes = object(OPS, None, Some("type"));
    let facts = facts(&bytes).unwrap();
    assert_eq!(facts.sha256, digest_bytes(&bytes));
    let SuppliedFile::Bpf(read) = facts.file else { panic!("{facts:?}") };
    let ops = Ops { map: "ops".into(), name: "mine".into(), name_at: 0, flags_at: Some(16) };
    assert_eq!(read.ops, [ops]);
    let params: Vec<_> = read
        .params
        .iter()
        .map(|p| (p.parameter.name.as_str(), p.parameter.kind.name(), p.at, p.default))
        .collect();
    assert_eq!(params, [("gain", "u32".to_owned(), 4, 7), ("low", "s8".to_owned(), 8, -3)]);
}

#[test]
fn objects_of_another_kind_are_refused() {
    let other = why(&object("sched_ext_ops", None, None));
    assert!(other.starts_with("its `ops` is a `struct sched_ext_ops`"), "{other}");
    assert!(facts(&object("tcp_congestion_ops___mine", None, None)).is_ok(), "as for libbpf");
    let program = |name| Some(Section { name, flags: 2 | EXECUTABLE, data: vec![0; 8] });
    let xdp = why(&object(OPS, program("xdp"), None));
    assert!(xdp.starts_with("its section xdp holds a program"), "{xdp}");
    // libbpf also loads a section without SHF_ALLOC.
    let program_of = |flags| Some(Section { name: "xdp", flags, data: vec![0; 8] });
    let xdp = why(&object(OPS, program_of(EXECUTABLE), None));
    assert!(xdp.starts_with("its section xdp holds a program"), "{xdp}");
    assert!(facts(&object(OPS, program_of(2), None)).is_ok(), "data");
    // The variable `ops` does not refer to it.
    let unused = why(&object(OPS, program("struct_ops/init"), None));
    assert!(unused.starts_with("its section struct_ops/init (more) holds a program"), "{unused}");
    let pinned = why(&object(OPS, None, Some("pinning")));
    assert!(pinned.starts_with("its map a_map is pinned"), "{pinned}");
    let empty = elf::elf(elf::EM_BPF, Vec::new(), &[]);
    assert!(why(&empty).contains("compile it with `-g`"), "{}", why(&empty));
    let no_ops = elf::elf(elf::EM_BPF, vec![elf::Btf::default().section()], &[]);
    assert!(why(&no_ops).contains("no `struct tcp_congestion_ops`"), "{}", why(&no_ops));
    let native = elf::elf(elf::EM_X86_64, Vec::new(), &[]);
    assert!(why(&native).starts_with("it is neither a BPF object"), "{}", why(&native));
}

#[test]
fn a_module_has_a_name_a_kernel_and_parameters() {
    let read = facts(&module(&MODINFO)).unwrap().file;
    assert_eq!((read.via(), read.names()), (Via::Module, vec!["mine"]));
    let SuppliedFile::Module(read) = read else { panic!("{read:?}") };
    assert_eq!((read.name.as_str(), read.params.len()), ("tcp_mine", 2));
    assert_eq!(read.params[0].kind, ParameterKind::Number { bytes: 4, is_signed: false });
    assert_eq!(read.params[1].kind, ParameterKind::Text("charp".into()));
    assert!(read.vermagic.starts_with("6.18.5 "));
    let unnamed = why(&module(&["license=GPL"]));
    assert!(unnamed.starts_with("its section .modinfo has no `name`"), "{unnamed}");
    let path = why(&module(&["name=../x", "vermagic=6"]));
    assert!(path.contains("is not a module's name"), "{path}");
}

#[test]
fn no_damaged_file_panics() {
    for whole in [object(OPS, None, Some("type")), module(&MODINFO)] {
        for end in 0..whole.len() {
            let _ = facts(&whole[..end]);
        }
        for at in 0..whole.len() {
            for value in [0, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = value;
                let _ = facts(&damaged);
            }
        }
    }
}

fn plan(cc: &str) -> String {
    format!(
        "name = \"mine\"\n[nodes]\na = {{}}\nb = {{}}\n[wires]\nw = [\"a\", \"b\"]\n[links.l]\nnode = \"a\"\ntoward = \"b\"\n\
         rate = \"10mbit\"\nqueue = {{ kind = \"pfifo\", limit = \"50p\" }}\n[cc.own]\n{cc}\n[flows.f]\nfrom = \"a\"\n\
         to = \"b\"\ncc = \"own\"\n[[phases]]\nname = \"p\"\nlength = \"10s\"\nflows = [\"f\"]\n"
    )
}

/// The plan with an object `mine.bpf.o` and a module `tcp_mine.ko`.
fn checked(target: Target, cc: &str) -> Result<CheckedPlan, String> {
    let text = plan(cc);
    let missing = UnreadableCc { reason: "there is no such file".into() };
    let ccs = CcFiles::from([
        ("mine.bpf.o".to_owned(), Ok(Arc::new(facts(&object(OPS, None, None)).unwrap()))),
        ("tcp_mine.ko".to_owned(), Ok(Arc::new(facts(&module(&MODINFO)).unwrap()))),
        ("none.bpf.o".to_owned(), Err(missing)),
    ]);
    let files = PlanFiles { ccs, ..PlanFiles::default() };
    let read = read_for(target, &text, &[], files);
    read.map(|(plan, _)| plan).map_err(|problems| {
        let texts =
            problems.iter().filter(|p| p.severity == ccbench_proto::plan::check::Severity::Error);
        texts.map(|problem| format!("{problem}\n")).collect()
    })
}

#[test]
fn name_and_digest_are_filled_in() {
    let text = "file = \"mine.bpf.o\"\nparams = { gain = 9 }";
    let checked = checked(Target::Kernel, text).unwrap();
    let cc = &checked.plan().cc["own"];
    let sha256 = digest_bytes(&object(OPS, None, None));
    assert_eq!((cc.algorithm.as_str(), cc.sha256.as_deref()), ("mine", Some(sha256.as_str())));
    assert_eq!(cc.supplied(), Some(("mine.bpf.o", Via::Bpf)));
    assert_eq!(checked.cc_digests()["mine.bpf.o"], sha256);
    // An agent reads the plan without the file.
    let again = ccbench_proto::plan::check::read(&to_toml(&checked), &[]).unwrap().0;
    assert_eq!(again.plan(), checked.plan());
    assert_eq!(cc_files(&plan(text), &[]), ["mine.bpf.o".to_owned()].into());
}

#[test]
fn every_point_has_its_file() {
    let text = format!(
        "{}[matrix]\n\"cc.own.file\" = [\"mine.bpf.o\", \"other.bpf.o\"]\n",
        plan("file = \"mine.bpf.o\"")
    );
    let names = ["mine.bpf.o", "other.bpf.o"];
    assert_eq!(cc_files(&text, &[]), names.map(str::to_owned).into());
    let facts = Arc::new(facts(&object(OPS, None, None)).unwrap());
    let ccs: CcFiles = names.map(|name| (name.to_owned(), Ok(Arc::clone(&facts)))).into();
    let files = PlanFiles { ccs, ..PlanFiles::default() };
    let (checked, _) = read_for(Target::Kernel, &text, &[], files).unwrap();
    assert_eq!(checked.plan().cc["own"].sha256, None, "it depends on the point");
    for point in checked.points() {
        assert_eq!(point.plan.plan().cc["own"].sha256.as_ref(), Some(&facts.sha256));
    }
}

#[test]
fn wrong_instances_are_refused_with_the_fix() {
    let why = |cc: &str| checked(Target::Kernel, cc).unwrap_err();
    let unknown = why("file = \"mine.bpf.o\"\nparams = { gian = 1 }");
    assert!(unknown.contains("cc.own.params.gian: `mine` has no parameter `gian`"), "{unknown}");
    assert!(unknown.contains("did you mean `gain`? (its parameters: `gain`, `low`)"), "{unknown}");
    let range = why("file = \"mine.bpf.o\"\nparams = { low = 200 }");
    assert!(range.contains("write a number from -128 to 127 (s8)"), "{range}");
    let kind = why("module = \"mine.bpf.o\"");
    assert!(kind.contains("is a BPF object: write `file` instead"), "{kind}");
    let name = why("file = \"mine.bpf.o\"\nalgorithm = \"yours\"");
    assert!(name.contains("has no congestion control `yours`; it has `mine`"), "{name}");
    let missing = why("file = \"none.bpf.o\"");
    assert!(missing.contains("cc.own.file: `none.bpf.o`: there is no such file"), "{missing}");
    let digest = why(&format!("file = \"mine.bpf.o\"\nsha256 = \"{}\"", "0".repeat(64)));
    assert!(digest.contains("has changed: its sha256 is now "), "{digest}");
    assert!(checked(Target::Kernel, "module = \"tcp_mine.ko\"\nparams = { gain = 1 }").is_ok());
}

#[test]
fn the_simulator_and_the_lab_refuse_what_they_cannot_load() {
    let simulated = checked(Target::Simulator, "file = \"mine.bpf.o\"").unwrap_err();
    assert!(simulated.contains("cc.own.file: the simulator runs no kernel code"), "{simulated}");
    let uml = |cc: &str| checked(Target::Kernel, &format!("{cc}\n[lab]\nengine = \"uml\""));
    let module = uml("module = \"tcp_mine.ko\"").unwrap_err();
    assert!(
        module.contains("cc.own.module: the lab's kernels cannot load your modules"),
        "{module}"
    );
    assert!(uml("file = \"mine.bpf.o\"").is_ok(), "{:?}", uml("file = \"mine.bpf.o\""));
    let own = uml("algorithm = \"ta\"\nvia = \"module\"");
    assert!(own.is_ok(), "ccbench's modules are built for its own kernel: {own:?}");
}
