//! The description of types that clang's `-g` writes into a BPF object (section `.BTF`; Linux's Documentation/bpf/btf.rst).

/// `btf_header.magic`.
const MAGIC: u16 = 0xeb9f;
/// Bytes of `struct btf_type` without what follows it.
const TYPE_BYTES: usize = 12;
/// Limit of the variables of a section, because each is looked up among all symbols.
const MAX_VARIABLES: usize = 1024;
/// Limit of the names and qualifiers in front of a type; the compiler needs a handful.
const MAX_CHAIN: usize = 32;

const KIND_INT: u8 = 1;
const KIND_ARRAY: u8 = 3;
const KIND_STRUCT: u8 = 4;
const KIND_ENUM: u8 = 6;
const KIND_TYPEDEF: u8 = 8;
const KIND_VOLATILE: u8 = 9;
const KIND_CONST: u8 = 10;
const KIND_RESTRICT: u8 = 11;
const KIND_VAR: u8 = 14;
const KIND_DATASEC: u8 = 15;
const KIND_TYPE_TAG: u8 = 18;
const KIND_ENUM64: u8 = 19;

/// Why the description cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    /// The header, a type or a name lies outside of the section.
    #[error("it ends within {0}")]
    Truncated(&'static str),
    /// It does not begin as a little-endian description of version 1.
    #[error("it does not begin with the magic number of little-endian BTF, version 1")]
    Magic,
    /// A kind of type that is not known here.
    #[error("type {id} has the unknown kind {kind}")]
    Kind {
        /// Number of the type.
        id: usize,
        /// Its kind.
        kind: u8,
    },
    /// More variables than any congestion control has.
    #[error("a section has more than {0} variables")]
    Variables(usize),
    /// A type refers to one that does not exist, or to itself.
    #[error("type {0} does not exist, or is not of the kind that its use requires")]
    Type(u32),
}

/// One type, as in the section.
#[derive(Debug, Clone, Copy)]
struct Type<'a> {
    name_at: u32,
    kind: u8,
    /// For an enum: its values are signed. For a struct: members encode their bit-field size beside their offset.
    flag: bool,
    /// Size in bytes, or the number of the type that it refers to.
    size_or_type: u32,
    /// The data that follow: members, variables ...
    rest: &'a [u8],
}

/// The types of an object.
#[derive(Debug)]
pub(super) struct Btf<'a> {
    /// Number 1 is the first.
    types: Vec<Type<'a>>,
    names: &'a [u8],
}

/// A variable of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Variable<'a> {
    pub(super) name: &'a str,
    /// Number of its type.
    pub(super) of: u32,
}

/// A type without its names and qualifiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resolved {
    /// Number of the type.
    pub(super) id: u32,
    /// `const volatile`.
    pub(super) is_const_volatile: bool,
}

/// A number's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number {
    /// 1, 2, 4, 8 or 16.
    pub(super) bytes: u32,
    pub(super) is_signed: bool,
    pub(super) is_bool: bool,
}

/// A member of a struct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member<'a> {
    pub(super) name: &'a str,
    /// Number of its type.
    pub(super) of: u32,
    /// Offset from the beginning of the struct; `None` for a bit-field.
    pub(super) at_bytes: Option<usize>,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn part(bytes: &[u8], at: u32, length: u32) -> Option<&[u8]> {
    let at = usize::try_from(at).ok()?;
    bytes.get(at..at.checked_add(usize::try_from(length).ok()?)?)
}

impl<'a> Btf<'a> {
    /// Reads a whole section.
    pub(super) fn read(section: &'a [u8]) -> Result<Self, BtfError> {
        let header = |at: usize| u32_at(section, at).ok_or(BtfError::Truncated("its header"));
        // Magic, version, flags; then lengths and offsets from the end of the header.
        let [low, high] = MAGIC.to_le_bytes();
        if !section.starts_with(&[low, high, 1]) {
            return Err(BtfError::Magic);
        }
        let header_bytes = header(4)?;
        let (types_at, types_bytes) = (header(8)?, header(12)?);
        let (names_at, names_bytes) = (header(16)?, header(20)?);
        let truncated = || BtfError::Truncated("its header");
        let at = usize::try_from(header_bytes).map_err(|_| truncated())?;
        let body = section.get(at..).ok_or_else(truncated)?;
        let types = part(body, types_at, types_bytes);
        let names = part(body, names_at, names_bytes);
        let types = read_types(types.ok_or(BtfError::Truncated("its types"))?)?;
        Ok(Self { types, names: names.ok_or(BtfError::Truncated("its names"))? })
    }

    fn get(&self, id: u32) -> Result<&Type<'a>, BtfError> {
        let at = usize::try_from(id).ok().and_then(|id| id.checked_sub(1));
        at.and_then(|at| self.types.get(at)).ok_or(BtfError::Type(id))
    }

    fn name(&self, at: u32) -> Result<&'a str, BtfError> {
        let truncated = BtfError::Truncated("a name");
        let from = usize::try_from(at).ok().and_then(|at| self.names.get(at..)).ok_or(truncated)?;
        let end = from.iter().position(|byte| *byte == 0).ok_or(truncated)?;
        std::str::from_utf8(&from[..end]).map_err(|_| truncated)
    }

    /// The variables of every section of this name.
    pub(super) fn variables(&self, section: &str) -> Result<Vec<Variable<'a>>, BtfError> {
        let mut found = Vec::new();
        for of in self.types.iter().filter(|of| of.kind == KIND_DATASEC) {
            if self.name(of.name_at)? != section {
                continue;
            }
            for entry in of.rest.chunks_exact(12) {
                let id = u32_at(entry, 0).unwrap_or(0);
                let variable = self.get(id)?;
                if variable.kind == KIND_VAR {
                    let name = self.name(variable.name_at)?;
                    found.push(Variable { name, of: variable.size_or_type });
                }
                if found.len() > MAX_VARIABLES {
                    return Err(BtfError::Variables(MAX_VARIABLES));
                }
            }
        }
        Ok(found)
    }

    /// Follows names and qualifiers.
    pub(super) fn resolve(&self, id: u32) -> Result<Resolved, BtfError> {
        let (mut is_const, mut is_volatile, mut at) = (false, false, id);
        for _ in 0..MAX_CHAIN {
            let of = self.get(at)?;
            match of.kind {
                KIND_CONST => is_const = true,
                KIND_VOLATILE => is_volatile = true,
                KIND_TYPEDEF | KIND_RESTRICT | KIND_TYPE_TAG => {}
                _ => return Ok(Resolved { id: at, is_const_volatile: is_const && is_volatile }),
            }
            at = of.size_or_type;
        }
        Err(BtfError::Type(id))
    }

    /// A number or an enum; `None` for another type.
    pub(super) fn number(&self, id: u32) -> Result<Option<Number>, BtfError> {
        let of = self.get(id)?;
        Ok(match of.kind {
            KIND_INT => {
                // From the high byte: encoding, offset, an unused byte, bits.
                let word = u32_at(of.rest, 0).unwrap_or(0);
                let (encoding, bits) = (word >> 24, word & 0xff);
                let bytes = of.size_or_type;
                let is_whole = (word >> 16) & 0xff == 0 && u64::from(bytes) * 8 == u64::from(bits);
                let is_bool = encoding & 4 != 0;
                is_whole.then_some(Number { bytes, is_signed: encoding & 1 != 0, is_bool })
            }
            KIND_ENUM | KIND_ENUM64 => {
                Some(Number { bytes: of.size_or_type, is_signed: of.flag, is_bool: false })
            }
            _ => None,
        })
    }

    /// Name and size in bytes of a struct; `None` for another type.
    pub(super) fn structure(&self, id: u32) -> Result<Option<(&'a str, usize)>, BtfError> {
        let of = self.get(id)?;
        let bytes = usize::try_from(of.size_or_type).map_err(|_| BtfError::Type(id))?;
        match of.kind {
            KIND_STRUCT => Ok(Some((self.name(of.name_at)?, bytes))),
            _ => Ok(None),
        }
    }

    /// The members of a struct; none of another type.
    pub(super) fn members(&self, id: u32) -> Result<Vec<Member<'a>>, BtfError> {
        let of = self.get(id)?;
        if of.kind != KIND_STRUCT {
            return Ok(Vec::new());
        }
        let member = |entry: &'a [u8]| -> Result<Member<'a>, BtfError> {
            let word = |at| u32_at(entry, at).unwrap_or(0);
            let at_bits = word(8);
            let (at_bits, bits) =
                if of.flag { (at_bits & 0xff_ffff, at_bits >> 24) } else { (at_bits, 0) };
            let at_bytes = (bits == 0 && at_bits % 8 == 0).then_some(at_bits / 8);
            let at_bytes = at_bytes.and_then(|at| usize::try_from(at).ok());
            Ok(Member { name: self.name(word(0))?, of: word(4), at_bytes })
        };
        of.rest.chunks_exact(12).map(member).collect()
    }

    /// The number of elements of an array; `None` for another type.
    pub(super) fn array_length(&self, id: u32) -> Result<Option<u32>, BtfError> {
        let of = self.get(id)?;
        Ok(u32_at(of.rest, 8).filter(|_| of.kind == KIND_ARRAY))
    }
}

fn read_types(mut bytes: &[u8]) -> Result<Vec<Type<'_>>, BtfError> {
    let truncated = || BtfError::Truncated("a type");
    let mut types = Vec::new();
    while !bytes.is_empty() {
        let word = |at: usize| u32_at(bytes, at).ok_or_else(truncated);
        let (name_at, info, size_or_type) = (word(0)?, word(4)?, word(8)?);
        let (count, kind) = ((info & 0xffff) as usize, (info >> 24 & 0x1f) as u8);
        let rest = match kind {
            KIND_INT | KIND_VAR | 17 => 4,
            KIND_ARRAY => 12,
            // A union is like a struct.
            KIND_STRUCT | 5 | KIND_DATASEC | KIND_ENUM64 => 12 * count,
            KIND_ENUM | 13 => 8 * count,
            // Pointers, forward declarations, functions and floating-point numbers have no further data.
            2 | 7..=12 | 16 | KIND_TYPE_TAG => 0,
            _ => return Err(BtfError::Kind { id: types.len() + 1, kind }),
        };
        let (head, after) = bytes.split_at_checked(TYPE_BYTES + rest).ok_or_else(truncated)?;
        let rest = &head[TYPE_BYTES..];
        types.push(Type { name_at, kind, flag: info >> 31 != 0, size_or_type, rest });
        bytes = after;
    }
    Ok(types)
}
