//! Reads structures from the `.BTF` section of an ELF file (Documentation/bpf/btf.rst in the kernel). Only the test uses it: aya
//! reads BTF too, but gives no access to members.

use crate::bytes::array;

/// The types of an object by number. Number 0 is `void`.
pub(super) struct Types {
    types: Vec<Type>,
}

pub(super) struct Struct {
    pub(super) size: usize,
    pub(super) fields: Vec<Field>,
}

pub(super) struct Field {
    pub(super) name: String,
    pub(super) offset: usize,
    pub(super) size: usize,
}

struct Type {
    name: String,
    kind: u32,
    /// The size in bytes, or the type that this one refers to.
    size_or_type: u32,
    /// For an array: the type of its elements and their number.
    array: (u32, u32),
    /// For a structure: name, type, and offset in bytes.
    members: Vec<(String, u32, usize)>,
}

// BTF_KIND_*
const INT: u32 = 1;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const TYPEDEF: u32 = 8;
const RESTRICT: u32 = 11;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;
const DECL_TAG: u32 = 17;
const ENUM64: u32 = 19;

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    array(bytes, at).map(|b| u16::from_le_bytes(b).into())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(array(bytes, at)?)).ok()
}

fn string_at(strings: &[u8], at: usize) -> Option<String> {
    let rest = strings.get(at..)?;
    let end = rest.iter().position(|&byte| byte == 0)?;
    Some(String::from_utf8_lossy(&rest[..end]).into_owned())
}

/// Returns the contents of a section of a little-endian ELF64 file.
fn section<'a>(elf: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let (headers, size) = (u64_at(elf, 0x28)?, u16_at(elf, 0x3a)?);
    let (count, names) = (u16_at(elf, 0x3c)?, u16_at(elf, 0x3e)?);
    let contents = |index: usize| {
        let header = headers + index * size;
        let start = u64_at(elf, header + 0x18)?;
        elf.get(start..start + u64_at(elf, header + 0x20)?)
    };
    let names = contents(names)?;
    let is_it = |&index: &usize| {
        let at = u32_at(elf, headers + index * size);
        at.and_then(|at| string_at(names, at as usize)).is_some_and(|found| found == name)
    };
    contents((0..count).find(is_it)?)
}

impl Types {
    pub(super) fn of_object(elf: &[u8]) -> Option<Self> {
        let btf = section(elf, ".BTF")?;
        let header = u32_at(btf, 4)? as usize;
        let part = |at: usize| {
            let start = header + u32_at(btf, at)? as usize;
            btf.get(start..start + u32_at(btf, at + 4)? as usize)
        };
        let (mut rest, strings) = (part(8)?, part(16)?);
        let void = Type {
            name: String::new(),
            kind: 0,
            size_or_type: 0,
            array: (0, 0),
            members: Vec::new(),
        };
        let mut types = vec![void];
        while !rest.is_empty() {
            let (next, length) = read_type(rest, strings)?;
            types.push(next);
            rest = rest.get(length..)?;
        }
        Some(Self { types })
    }

    /// Returns the structure with this tag, or the structure type of the variable with this name.
    pub(super) fn fields(&self, name: &str) -> Option<Struct> {
        let found =
            self.types.iter().find(|t| t.name == name && [STRUCT, VAR].contains(&t.kind))?;
        let found = if found.kind == VAR { self.get(found.size_or_type)? } else { found };
        let fields = found.members.iter().map(|(name, of, offset)| {
            Some(Field { name: name.clone(), offset: *offset, size: self.size(*of)? })
        });
        Some(Struct { size: found.size_or_type as usize, fields: fields.collect::<Option<_>>()? })
    }

    fn get(&self, id: u32) -> Option<&Type> {
        self.types.get(id as usize)
    }

    fn size(&self, id: u32) -> Option<usize> {
        let found = self.get(id)?;
        match found.kind {
            INT | STRUCT | UNION | ENUM => Some(found.size_or_type as usize),
            ARRAY => Some(self.size(found.array.0)? * found.array.1 as usize),
            TYPEDEF..=RESTRICT => self.size(found.size_or_type),
            _ => None,
        }
    }
}

/// Reads a type at the beginning of these bytes. Returns it with its length.
fn read_type(bytes: &[u8], strings: &[u8]) -> Option<(Type, usize)> {
    let info = u32_at(bytes, 4)?;
    let (kind, count) = (info >> 24 & 31, (info & 0xffff) as usize);
    let mut found = Type {
        name: string_at(strings, u32_at(bytes, 0)? as usize)?,
        kind,
        size_or_type: u32_at(bytes, 8)?,
        array: (0, 0),
        members: Vec::new(),
    };
    let more = match kind {
        INT | VAR | DECL_TAG => 4,
        ARRAY => {
            found.array = (u32_at(bytes, 12)?, u32_at(bytes, 20)?);
            12
        }
        STRUCT | UNION => {
            for at in (12..).step_by(12).take(count) {
                let name = string_at(strings, u32_at(bytes, at)? as usize)?;
                // With the flag, the upper eight bits are the size of a bit-field.
                let bits =
                    u32_at(bytes, at + 8)? & if info >> 31 == 1 { 0xff_ffff } else { u32::MAX };
                found.members.push((name, u32_at(bytes, at + 4)?, bits as usize / 8));
            }
            12 * count
        }
        DATASEC | ENUM64 => 12 * count,
        ENUM | FUNC_PROTO => 8 * count,
        _ => 0,
    };
    Some((found, 12 + more))
}
