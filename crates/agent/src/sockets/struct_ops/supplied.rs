//! Supplied BPF congestion controls. Like ccbench's own, each is registered under a unique name, but with the layout of
//! its own object.

use std::ffi::OsStr;
use std::sync::Arc;

use ccbench_proto::cc::supplied::{BpfObject, Ops};
use libbpf_rs::{MapCore as _, MapFlags, ObjectBuilder, OpenObject};

use super::super::bpf::{self, BPF_F_LINK, attach_struct_ops, initial_value, open_map};
use super::super::ecn::flag;
use super::super::error::{BpfError, NAME_BYTES, SocketError};
use super::super::journal::Journal;
use super::{Registered, register_by};

/// Suffix that libbpf appends to part of the object's name, to name the map of constants.
const CONSTANTS: &str = ".rodata";

/// An instance to register.
#[derive(Debug, Clone, Copy)]
pub struct ObjectSpec<'a> {
    /// The object.
    pub bytes: &'a [u8],
    /// What it contains.
    pub object: &'a BpfObject,
    /// The congestion control to register, by its name in the object.
    pub algorithm: &'a str,
    /// The name to register.
    pub kernel_name: &'a str,
    /// Parameters to change, as [`ccbench_proto::cc::supplied::SuppliedFile::values`] returns them.
    pub params: &'a [(String, String)],
}

/// Registers an instance. On an error nothing stays registered.
///
/// # Errors
/// The kernel refused; the error has the end of the verifier's log.
pub fn register(wanted: &ObjectSpec<'_>, journal: &mut Journal) -> Result<Registered, SocketError> {
    let ops = wanted.object.find(wanted.algorithm);
    let ops = ops.ok_or_else(|| SocketError::UnknownAlgorithm(wanted.algorithm.to_owned()))?;
    let load = |linked| load_and_register(wanted, ops, linked);
    register_by(wanted.kernel_name, journal, load).map_err(|error| match error {
        SocketError::LoadRefused { source, log } => SocketError::ObjectRefused { source, log },
        other => other,
    })
}

fn load_and_register(
    wanted: &ObjectSpec<'_>,
    ops: &Ops,
    linked: bool,
) -> Result<Registered, BpfError> {
    let mut open = ObjectBuilder::default()
        .open_memory(wanted.bytes)
        .map_err(BpfError::libbpf("read the BPF object"))?;
    patch_ops(&mut open, wanted, ops, linked)?;
    patch_params(&mut open, wanted)?;
    let mut object =
        open.load().map_err(BpfError::libbpf("load the BPF object into the kernel"))?;
    let link = attach_struct_ops(&mut object, &ops.map, "register the congestion control")?;
    Ok(Registered { link, object: Arc::new(object), outlives: !linked })
}

fn patch_ops(
    open: &mut OpenObject,
    wanted: &ObjectSpec<'_>,
    ops: &Ops,
    linked: bool,
) -> Result<(), BpfError> {
    if !linked {
        // libbpf creates the maps of all congestion controls in the object, and this kernel has no links.
        let is_ops =
            |name: &OsStr| wanted.object.ops.iter().any(|ops| name == OsStr::new(&ops.map));
        for mut map in open.maps_mut().filter(|map| is_ops(map.name())) {
            let flags = map.map_flags() & !BPF_F_LINK;
            map.set_map_flags(flags).map_err(BpfError::libbpf("clear a flag"))?;
        }
    }
    let mut map = open_map(open, &ops.map)?;
    // Also for the section .struct_ops: without a link, the kernel would keep it when this process is killed.
    let flags = map.map_flags() & !BPF_F_LINK | if linked { BPF_F_LINK } else { 0 };
    map.set_map_flags(flags).map_err(BpfError::libbpf("set a flag"))?;
    let value = initial_value(&mut map)?;
    let short = |bytes: usize| BpfError::ShortMap { name: ops.map.clone(), bytes };
    let name_end = ops.name_at + NAME_BYTES;
    let place = value.get_mut(ops.name_at..name_end).ok_or_else(|| short(name_end))?;
    place.copy_from_slice(&bpf::name(wanted.kernel_name)?);
    if let Some(at) = ops.flags_at {
        let place = value.get_mut(at..at + 4).ok_or_else(|| short(at + 4))?;
        // Traffic has no privileges, so every process must be allowed to select it.
        place[0] |= flag::NON_RESTRICTED as u8;
    }
    Ok(())
}

fn patch_params(open: &mut OpenObject, wanted: &ObjectSpec<'_>) -> Result<(), BpfError> {
    if wanted.params.is_empty() {
        return Ok(());
    }
    let mut map = open
        .maps_mut()
        .find(|map| map.name().to_string_lossy().ends_with(CONSTANTS))
        .ok_or_else(|| BpfError::NoMap { name: CONSTANTS.to_owned() })?;
    let value = initial_value(&mut map)?;
    for (name, text) in wanted.params {
        let missing = || BpfError::Parameter { name: name.clone() };
        let param = wanted.object.params.iter().find(|param| param.parameter.name == *name);
        let param = param.ok_or_else(missing)?;
        let bytes = param.parameter.kind.encode(text).ok_or_else(missing)?;
        let place = value.get_mut(param.at..param.at + bytes.len());
        place.ok_or_else(missing)?.copy_from_slice(&bytes);
    }
    Ok(())
}

impl Registered {
    /// Returns every parameter of the supplied object with its value in the kernel, except unreadable ones.
    ///
    /// # Errors
    /// A changed parameter has another value in the kernel, or cannot be read.
    pub fn supplied_params(
        &self,
        wanted: &ObjectSpec<'_>,
    ) -> Result<Vec<(String, String)>, SocketError> {
        let constants =
            |map: &libbpf_rs::Map<'_>| map.name().to_string_lossy().ends_with(CONSTANTS);
        let map = self.object.maps().find(constants);
        let value = map.and_then(|map| map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()?);
        let value = value.unwrap_or_default();
        let read = wanted.object.params.iter().filter_map(|param| {
            let kind = &param.parameter.kind;
            let bytes = value.get(param.at..param.at.checked_add(kind.bytes()?)?)?;
            Some((param.parameter.name.clone(), kind.decode(bytes)?.to_string()))
        });
        let read: Vec<(String, String)> = read.collect();
        match wanted.params.iter().find(|param| !read.contains(param)) {
            None => Ok(read),
            Some((name, value)) => {
                let actual = read.iter().find(|(other, _)| other == name);
                Err(SocketError::ParameterChanged {
                    module: wanted.kernel_name.to_owned(),
                    name: name.clone(),
                    actual: actual.map_or("nothing", |(_, value)| value.as_str()).to_owned(),
                    wanted: value.clone(),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::cc::supplied::{SuppliedFile, facts};
    use ccbench_proto::plan::{Cc, SysctlValue};

    use super::super::OBJECTS;
    use super::*;

    fn object(bytes: &[u8]) -> BpfObject {
        match facts(bytes).unwrap().file {
            SuppliedFile::Bpf(object) => object,
            SuppliedFile::Module(module) => panic!("{module:?}"),
        }
    }

    /// ccbench's own objects serve as examples of clang's output.
    #[test]
    fn the_reader_finds_the_name_in_every_object_of_clang() {
        let of_cores = OBJECTS.iter().filter(|(name, _)| name.starts_with("ccb_"));
        let mut count = 0;
        for (name, bytes) in of_cores {
            let object = object(bytes);
            let [ops] = &object.ops[..] else { panic!("{name}: {object:?}") };
            assert_eq!((ops.map.as_str(), ops.name.as_str()), ("ccb", *name));
            assert_eq!((ops.name_at, ops.flags_at), (0, Some(16)), "as kernel.bpf.h has it");
            count += 1;
        }
        assert!(count >= 7);
        let (_, others) = OBJECTS.iter().find(|(name, _)| *name == "ect1").unwrap();
        let why = facts(others).unwrap_err().to_string();
        assert!(why.contains("is not part of a congestion control"), "{why}");
    }

    const AIMD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/aimd.bpf.o"));

    #[test]
    fn libbpf_has_the_parameters_where_the_reader_finds_them() {
        let object = object(AIMD);
        let names: Vec<(&str, i128)> =
            object.params.iter().map(|p| (p.parameter.name.as_str(), p.default)).collect();
        for expected in [("increase_milli", 1000), ("decrease_pct", 50)] {
            assert!(names.contains(&expected), "{names:?}");
        }
        let mut open = ObjectBuilder::default().open_memory(AIMD).unwrap();
        let params = [("decrease_pct".to_owned(), "30".to_owned())];
        let wanted = ObjectSpec {
            bytes: AIMD,
            object: &object,
            algorithm: "aimd",
            kernel_name: "aimd.x",
            params: &params,
        };
        patch_params(&mut open, &wanted).unwrap();
        patch_ops(&mut open, &wanted, &object.ops[0], true).unwrap();
        let mut map =
            open.maps_mut().find(|map| map.name().to_string_lossy().ends_with(CONSTANTS)).unwrap();
        let value = map.initial_value_mut().unwrap();
        let read: Vec<Option<i128>> = object
            .params
            .iter()
            .map(|p| {
                p.parameter.kind.decode(&value[p.at..p.at + p.parameter.kind.bytes().unwrap()])
            })
            .collect();
        for (param, read) in object.params.iter().zip(read) {
            let expected = if param.parameter.name == "decrease_pct" { 30 } else { param.default };
            assert_eq!(read, Some(expected), "{param:?}");
        }
    }

    #[test]
    fn unknown_parameters_are_refused_with_the_known_ones() {
        let file = facts(AIMD).unwrap();
        let with = |name: &str, value: i64| Cc {
            file: Some("aimd.bpf.o".to_owned()),
            params: [(name.to_owned(), SysctlValue::Number(value))].into(),
            ..Cc::new("aimd")
        };
        let why = |cc: &Cc| file.check(cc).into_iter().map(|w| w.reason).collect::<String>();
        assert_eq!(why(&with("decrease_pct", 30)), "");
        let unknown = why(&with("decrease_pc", 30));
        assert!(unknown.contains("did you mean `decrease_pct`?"), "{unknown}");
        assert!(unknown.contains("`increase_milli`"), "{unknown}");
        let high = why(&with("decrease_pct", 1 << 32));
        assert!(high.contains("write a number from 0 to 4294967295 (u32)"), "{high}");
    }
}
