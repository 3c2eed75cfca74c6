//! Kernel modules: the contents of their section `.modinfo`.

use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSection as _};

use super::{KernelModule, Parameter, ParameterKind, SuppliedError};

pub(super) const MODINFO: &str = ".modinfo";

/// Reads a module; `None` if the file has no section of that name.
pub(super) fn read(elf: &ElfFile64<'_>) -> Result<Option<KernelModule>, SuppliedError> {
    let Some(section) = elf.section_by_name(MODINFO) else { return Ok(None) };
    let data = section.data().map_err(|source| SuppliedError::Section { name: MODINFO, source })?;
    let fields = data.split(|byte| *byte == 0).filter_map(|field| std::str::from_utf8(field).ok());
    let fields: Vec<(&str, &str)> = fields.filter_map(|field| field.split_once('=')).collect();
    let of = |key: &'static str| {
        let found = fields.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
        found.filter(|value| !value.is_empty()).ok_or(SuppliedError::NoModinfo { key })
    };
    let name = of("name")?;
    let is_good = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.len() > MAX_NAME || !name.chars().all(is_good) {
        return Err(SuppliedError::ModuleName { name: name.to_owned() });
    }
    let vermagic = of("vermagic")?.to_owned();
    let types = fields.iter().filter(|(key, _)| *key == "parmtype");
    let params = types.filter_map(|(_, value)| {
        let (name, kind) = value.split_once(':')?;
        Some(Parameter { name: name.to_owned(), kind: kind_of(kind) })
    });
    Ok(Some(KernelModule { name: name.to_owned(), vermagic, params: params.collect() }))
}

/// `MODULE_NAME_LEN` of 64-bit kernels, without the NUL.
const MAX_NAME: usize = 55;

/// Maps the type names of `module_param`.
fn kind_of(name: &str) -> ParameterKind {
    let number = |bytes, is_signed| ParameterKind::Number { bytes, is_signed };
    match name {
        "bool" | "invbool" => ParameterKind::Bool,
        "byte" => number(1, false),
        "short" => number(2, true),
        "ushort" => number(2, false),
        "int" => number(4, true),
        "uint" | "hexint" => number(4, false),
        "long" => number(8, true),
        "ulong" | "ullong" => number(8, false),
        other => ParameterKind::Text(other.to_owned()),
    }
}
