//! BPF objects: the congestion controls of their `struct_ops` sections, and their parameters.

use std::collections::BTreeSet;

use object::elf::SHF_EXECINSTR;
use object::read::elf::ElfFile64;
use object::{
    Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget, SectionFlags, SymbolKind,
};

use super::btf::{Btf, Number, Variable};
use super::{BpfObject, BpfParameter, Ops, Parameter, ParameterKind, SuppliedError};
use crate::cc::{MAX_KERNEL_NAME, refuse_kernel_name};

/// Sections of `struct_ops` variables, as libbpf knows them.
const OPS_SECTIONS: [&str; 2] = [".struct_ops", ".struct_ops.link"];
/// Constant data, which the loader may set before it passes them to the kernel.
const CONSTANTS: &str = ".rodata";
const OPS: &str = "tcp_congestion_ops";

/// Reads an object for BPF.
pub(super) fn read(elf: &ElfFile64<'_>) -> Result<BpfObject, SuppliedError> {
    only_struct_ops(elf)?;
    only_used(elf)?;
    let types = data(elf, ".BTF")?.map(|(_, data)| data).unwrap_or_default();
    if types.is_empty() {
        return Err(SuppliedError::NoTypes);
    }
    let btf = Btf::read(types)?;
    no_pinned_map(&btf)?;
    let mut ops = Vec::new();
    for section in OPS_SECTIONS {
        for variable in btf.variables(section)? {
            ops.push(read_ops(elf, &btf, section, variable)?);
        }
    }
    if ops.is_empty() {
        return Err(SuppliedError::NoOps);
    }
    Ok(BpfObject { ops, params: parameters(elf, &btf)? })
}

/// A section's index and contents.
fn data<'a>(
    elf: &ElfFile64<'a>,
    name: &'static str,
) -> Result<Option<(object::SectionIndex, &'a [u8])>, SuppliedError> {
    let Some(section) = elf.section_by_name(name) else { return Ok(None) };
    let data = section.data().map_err(|source| SuppliedError::Section { name, source })?;
    Ok(Some((section.index(), data)))
}

/// Rejects other programs: libbpf would load all programs of the object, but the scope `bpf` permits only congestion controls.
fn only_struct_ops(elf: &ElfFile64<'_>) -> Result<(), SuppliedError> {
    // Like libbpf, look only at this flag.
    let is_program = |flags: SectionFlags| match flags {
        SectionFlags::Elf { sh_flags } => sh_flags & u64::from(SHF_EXECINSTR) != 0,
        _ => false,
    };
    for section in elf.sections().filter(|section| is_program(section.flags())) {
        let name = section.name().unwrap_or("?");
        // Functions that programs call are in `.text`.
        if section.size() > 0 && name != ".text" && !name.starts_with("struct_ops") {
            return Err(SuppliedError::OtherProgram { section: name.to_owned() });
        }
    }
    Ok(())
}

/// Rejects programs that no `struct_ops` variable refers to, because libbpf does not load an object with one.
fn only_used(elf: &ElfFile64<'_>) -> Result<(), SuppliedError> {
    let mut used = BTreeSet::new();
    for section in OPS_SECTIONS.into_iter().filter_map(|name| elf.section_by_name(name)) {
        for (_, relocation) in section.relocations() {
            let RelocationTarget::Symbol(index) = relocation.target() else { continue };
            let Ok(symbol) = elf.symbol_by_index(index) else { continue };
            let Some(of) = symbol.section_index() else { continue };
            // A reference to a section may be one to any of its programs.
            let at = (symbol.kind() != SymbolKind::Section).then(|| symbol.address());
            used.insert((of.0, at));
        }
    }
    for symbol in elf.symbols() {
        let is_program = symbol.kind() == SymbolKind::Text && symbol.is_global();
        let Some(of) = symbol.section_index().filter(|_| is_program) else { continue };
        let Ok(section) = elf.section_by_index(of) else { continue };
        let section = section.name().unwrap_or_default();
        let is_used =
            [None, Some(symbol.address())].into_iter().any(|at| used.contains(&(of.0, at)));
        if section.starts_with("struct_ops") && !is_used {
            let name = symbol.name().unwrap_or("?");
            return Err(SuppliedError::OtherProgram { section: format!("{section} ({name})") });
        }
    }
    Ok(())
}

/// Rejects pinned maps, which would outlive the trial.
fn no_pinned_map(btf: &Btf<'_>) -> Result<(), SuppliedError> {
    for map in btf.variables(".maps")? {
        let of = btf.resolve(map.of)?;
        if btf.members(of.id)?.iter().any(|member| member.name == "pinning") {
            return Err(SuppliedError::PinnedMap { map: map.name.to_owned() });
        }
    }
    Ok(())
}

/// Finds the bytes of a variable by its symbol: libbpf fills the offsets into the BTF only when it opens the object.
fn place(
    elf: &ElfFile64<'_>,
    section: &'static str,
    variable: &str,
    bytes: usize,
) -> Result<(usize, Vec<u8>), SuppliedError> {
    let missing = || SuppliedError::Variable { section, variable: variable.to_owned() };
    let (index, data) = data(elf, section)?.ok_or_else(missing)?;
    let symbol = elf
        .symbols()
        .find(|symbol| symbol.section_index() == Some(index) && symbol.name() == Ok(variable));
    let at = symbol.and_then(|symbol| usize::try_from(symbol.address()).ok());
    let at = at.ok_or_else(missing)?;
    let end = at.checked_add(bytes).ok_or_else(missing)?;
    Ok((at, data.get(at..end).ok_or_else(missing)?.to_vec()))
}

fn read_ops(
    elf: &ElfFile64<'_>,
    btf: &Btf<'_>,
    section: &'static str,
    variable: Variable<'_>,
) -> Result<Ops, SuppliedError> {
    let of = btf.resolve(variable.of)?;
    let (name, bytes) = btf.structure(of.id)?.unwrap_or_default();
    // For libbpf, `tcp_congestion_ops___mine` is the same struct.
    if name.split("___").next() != Some(OPS) {
        let variable = variable.name.to_owned();
        return Err(SuppliedError::OtherOps { variable, of: name.to_owned() });
    }
    let (_, value) = place(elf, section, variable.name, bytes)?;
    let (mut name_at, mut flags_at) = (None, None);
    for member in btf.members(of.id)? {
        let of = btf.resolve(member.of)?.id;
        match member.name {
            "name" => name_at = member.at_bytes.zip(btf.array_length(of)?),
            "flags" => {
                let is_u32 = btf.number(of)?.is_some_and(|number| number.bytes == 4);
                flags_at = member.at_bytes.filter(|_| is_u32);
            }
            _ => {}
        }
    }
    let no_name = || SuppliedError::NoName { variable: variable.name.to_owned() };
    let (name_at, length) = name_at.ok_or_else(no_name)?;
    // `TCP_CA_NAME_MAX`, the name and its NUL, because the loader writes the field.
    if usize::try_from(length).ok() != Some(MAX_KERNEL_NAME + 1) {
        return Err(no_name());
    }
    let end = name_at.checked_add(MAX_KERNEL_NAME + 1).ok_or_else(no_name)?;
    let text = value.get(name_at..end).ok_or_else(no_name)?;
    let text: Vec<u8> = text.iter().copied().take_while(|byte| *byte != 0).collect();
    let name = String::from_utf8(text).map_err(|_| no_name())?;
    if let Some(reason) = refuse_kernel_name(&name) {
        return Err(SuppliedError::Name { reason });
    }
    let fits = |at: &usize| at.checked_add(4).is_some_and(|end| end <= value.len());
    let flags_at = flags_at.filter(fits);
    Ok(Ops { map: variable.name.to_owned(), name, name_at, flags_at })
}

/// Numbers that are declared `const volatile`.
fn parameters(elf: &ElfFile64<'_>, btf: &Btf<'_>) -> Result<Vec<BpfParameter>, SuppliedError> {
    let mut found = Vec::new();
    for variable in btf.variables(CONSTANTS)? {
        let of = btf.resolve(variable.of)?;
        let Some(number) = btf.number(of.id)?.filter(|_| of.is_const_volatile) else { continue };
        let Some(kind) = kind(number) else { continue };
        let bytes = kind.bytes().unwrap_or(0);
        let (at, value) = place(elf, CONSTANTS, variable.name, bytes)?;
        let parameter = Parameter { name: variable.name.to_owned(), kind };
        let default = parameter.kind.decode(&value).unwrap_or(0);
        found.push(BpfParameter { parameter, at, default });
    }
    Ok(found)
}

/// `None` for numbers that no plan can write.
fn kind(number: Number) -> Option<ParameterKind> {
    let bytes = u8::try_from(number.bytes).ok().filter(|bytes| matches!(bytes, 1 | 2 | 4 | 8))?;
    Some(match number.is_bool {
        true if bytes == 1 => ParameterKind::Bool,
        _ => ParameterKind::Number { bytes, is_signed: number.is_signed },
    })
}
