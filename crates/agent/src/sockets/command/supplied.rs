//! `ccbench cc` with a supplied file: a BPF object or a kernel module.

use std::fmt::Write as _;
use std::path::Path;

use ccbench_io::input;
use ccbench_proto::cc;
use ccbench_proto::cc::supplied::{BpfObject, CcFacts, SuppliedFile, facts};
use ccbench_proto::plan::{Cc, Via};

use super::super::journal::Journal;
use super::super::{supplied_module, verify};
use super::{CommandError, LoadArgs, instance, print, wait};

/// Whether this is the path of a file. Names of congestion controls do not end like this.
pub(super) fn is_file(name: &str) -> bool {
    name.contains('/') || [".o", ".ko", ".c"].into_iter().any(|ending| name.ends_with(ending))
}

/// Describes a congestion control that the kernel has, but no mainline kernel.
pub(super) fn describe_registered(name: &str) -> String {
    #[cfg(feature = "ebpf")]
    if Path::new(super::super::struct_ops::PINS).join(name).exists() {
        return format!(
            "{name}: loaded by `ccbench cc load --pin`; `ccbench cc unload {name}` unloads it\n"
        );
    }
    format!(
        "{name}: registered in this kernel, but not one of its own: a process holds it (`ccbench cc load`, a trial), it is pinned \
         (`ccbench cc load --pin`; only root sees that), or a module or another program registered it\n"
    )
}

fn read(path: &str) -> Result<(Vec<u8>, CcFacts), CommandError> {
    if let Some(reason) = cc::refuse_source(path) {
        return Err(CommandError::UnknownName(reason));
    }
    let bytes = input::read(Path::new(path), &input::CONGESTION_CONTROL)
        .map_err(|source| CommandError::File { path: path.to_owned(), source })?;
    let facts =
        facts(&bytes).map_err(|why| CommandError::UnknownName(format!("`{path}`: {why}")))?;
    Ok((bytes, facts))
}

/// Describes the contents of a file.
pub(super) fn show(path: &str) -> Result<String, CommandError> {
    let (_, facts) = read(path)?;
    Ok(describe(path, &facts))
}

fn describe(path: &str, facts: &CcFacts) -> String {
    let names = facts.file.names().join(", ");
    let (key, kind) = match &facts.file {
        SuppliedFile::Bpf(_) => ("file", "a BPF object".to_owned()),
        SuppliedFile::Module(module) => {
            let built_for = module.vermagic.split_whitespace().next().unwrap_or_default();
            ("module", format!("the kernel module {}, for kernel {built_for}", module.name))
        }
    };
    let mut text = format!("{names}: {kind} (write `[cc.NAME]` with `{key} = \"{path}\"`)\n");
    let _ = writeln!(text, "sha256 {}", facts.sha256);
    text.push_str("\nparameters:\n");
    match &facts.file {
        SuppliedFile::Bpf(object) => {
            for param in &object.params {
                let (name, range) = (&param.parameter.name, param.parameter.kind.range());
                let _ = writeln!(text, "  {name:<24} {:>12} {range}", param.default);
            }
        }
        SuppliedFile::Module(module) => {
            for param in &module.params {
                let _ = writeln!(text, "  {:<24} {}", param.name, param.kind.range());
            }
        }
    }
    if facts.file.params().is_empty() {
        text.push_str("  none\n");
    }
    text
}

/// Loads a file for all programs of this machine.
pub(super) fn load(args: &LoadArgs) -> Result<(), CommandError> {
    let (bytes, facts) = read(&args.name)?;
    let path = Some(args.name.clone());
    let refuse = |reason: String| Err(CommandError::BadParameters(vec![reason]));
    if args.via != Via::Auto {
        let reason = "has no effect on a file: a BPF object is loaded as BPF, a module as a module; leave it out";
        return refuse(format!("--via {reason}"));
    }
    let algorithm = args.algorithm.clone().unwrap_or_default();
    let names = facts.file.names();
    if names.len() > 1 && algorithm.is_empty() {
        let names = names.join(", ");
        let choose = "choose one of them with --algorithm NAME";
        return refuse(format!(
            "`{}` has several congestion controls, {names}; {choose}",
            args.name
        ));
    }
    let mut wanted = Cc { algorithm, ..instance(args)? };
    match &facts.file {
        SuppliedFile::Bpf(_) => wanted.file = path,
        SuppliedFile::Module(_) => wanted.module = path,
    }
    facts.fill(&mut wanted);
    let reasons = |wrong: Vec<cc::InstanceProblem>| wrong.into_iter().map(|w| w.reason).collect();
    cc::resolve(&wanted).map_err(|wrong| CommandError::BadParameters(reasons(wrong)))?;
    let wrong = facts.check(&wanted);
    if !wrong.is_empty() {
        return Err(CommandError::BadParameters(reasons(wrong)));
    }
    let params = facts.file.values(&wanted).map_err(|w| CommandError::BadParameters(reasons(w)))?;
    let (algorithm, mut journal) = (wanted.algorithm.as_str(), Journal::default());
    match &facts.file {
        SuppliedFile::Bpf(object) => {
            load_object(args, algorithm, (&bytes[..], object), &params, &mut journal)
        }
        SuppliedFile::Module(_) if args.kernel_name.is_some() => Err(CommandError::ModuleName),
        SuppliedFile::Module(module) => {
            let loaded = supplied_module::load(
                &supplied_module::ModuleSpec {
                    bytes: &bytes,
                    module,
                    sha256: &facts.sha256,
                    algorithm,
                    params: &params,
                },
                &mut journal,
            )?;
            print(algorithm, &args.name, "module", "a file of yours", &loaded);
            if args.pin {
                journal.forget();
            } else {
                wait();
            }
            Ok(())
        }
    }
}

#[cfg(feature = "ebpf")]
fn load_object(
    args: &LoadArgs,
    algorithm: &str,
    (bytes, object): (&[u8], &BpfObject),
    params: &[(String, String)],
    journal: &mut Journal,
) -> Result<(), CommandError> {
    use super::super::struct_ops::supplied::{ObjectSpec, register};

    let name = args.kernel_name.as_deref().unwrap_or(algorithm);
    super::check_name(name)?;
    verify::check_bpf_available()?;
    let wanted = ObjectSpec { bytes, object, algorithm, kernel_name: name, params };
    let registered = register(&wanted, journal)?;
    let loaded = registered.supplied_params(&wanted)?;
    let report = || print(name, &args.name, "bpf", "a file of yours", &loaded);
    Ok(super::keep(registered, (args.pin, name), journal, report)?)
}

#[cfg(not(feature = "ebpf"))]
fn load_object(
    _: &LoadArgs,
    _: &str,
    _: (&[u8], &BpfObject),
    _: &[(String, String)],
    _: &mut Journal,
) -> Result<(), CommandError> {
    verify::check_bpf_available()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_from_names() {
        assert!(is_file("mine.bpf.o") && is_file("./mine") && is_file("tcp_mine.ko"));
        let source = show("mine.bpf.c").unwrap_err();
        assert!(source.to_string().contains("is a source file; compile it first"), "{source}");
        assert_eq!(source.exit_code(), 2);
        assert!(!is_file("ta_grad") && !is_file("ccb_ta"));
    }

    #[cfg(feature = "ebpf")]
    #[test]
    fn a_file_is_shown_with_name_parameters_and_digest() {
        let path = concat!(env!("OUT_DIR"), "/aimd.bpf.o");
        let shown = show(path).unwrap();
        let sha256 = ccbench_proto::plan::digest_bytes(&std::fs::read(path).unwrap());
        assert!(shown.starts_with("aimd: a BPF object"), "{shown}");
        assert!(shown.contains(&format!("sha256 {sha256}")), "{shown}");
        assert!(shown.contains("decrease_pct") && shown.contains("(u32)"), "{shown}");
        let missing = show("no/such.bpf.o").unwrap_err();
        assert!(missing.to_string().starts_with("read no/such.bpf.o: "), "{missing}");
        assert_eq!(missing.exit_code(), 2);
    }

    #[cfg(feature = "ebpf")]
    #[test]
    fn a_wrong_parameter_is_a_mistake_of_the_command_line() {
        let args = LoadArgs {
            name: concat!(env!("OUT_DIR"), "/aimd.bpf.o").to_owned(),
            params: vec!["decrease_pc=30".to_owned()],
            algorithm: None,
            kernel_name: None,
            via: Via::Auto,
            hold: false,
            pin: false,
        };
        let wrong = load(&args).unwrap_err();
        assert!(wrong.to_string().contains("did you mean `decrease_pct`?"), "{wrong}");
        assert_eq!(wrong.exit_code(), 2);
        let twice = ["decrease_pct=30", "decrease_pct=40"].map(str::to_owned).to_vec();
        let wrong = load(&LoadArgs { params: twice, ..args.clone() }).unwrap_err();
        assert_eq!(wrong.to_string(), "the parameter `decrease_pct` is given twice");
        let other = Some("other".to_owned());
        let wrong = load(&LoadArgs { params: vec![], algorithm: other, ..args.clone() });
        let wrong = wrong.unwrap_err().to_string();
        assert!(wrong.contains("has no congestion control `other`; it has `aimd`"), "{wrong}");
        let wrong = load(&LoadArgs { via: Via::Module, ..args }).unwrap_err();
        assert!(wrong.to_string().starts_with("--via has no effect on a file"), "{wrong}");
    }

    #[test]
    fn what_others_registered_is_not_the_kernels_own() {
        let text = describe_registered("no_such_cc");
        assert!(text.starts_with("no_such_cc: registered in this kernel, but not one"), "{text}");
    }
}
