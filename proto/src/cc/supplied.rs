//! Congestion controls that the user supplies: a BPF object (`file` of `[cc.NAME]`) or a kernel module (`module`). Their bytes
//! come from outside, so every offset and length is checked. Nothing here loads anything.

use std::collections::BTreeMap;
use std::sync::Arc;

use object::elf::{EM_BPF, ET_REL};
use object::read::elf::{ElfFile64, FileHeader as _};
use object::{Endianness, Object as _};

use super::{InstanceProblem, ParamError, refuse_kernel_name};
use crate::plan::parse::suggest;
use crate::plan::{Cc, SysctlValue, Via, digest_bytes};

mod btf;
mod module;
mod object_file;

pub use btf::BtfError;

/// Largest file: a module with all of its debugging information has a few MiB.
pub const MAX_BYTES: u64 = 16 << 20;
/// Longest path in a plan.
const MAX_PATH: usize = 1024;
/// How to compile an object.
const COMPILE: &str = "clang -O2 -g -target bpf -c NAME.bpf.c -o NAME.bpf.o";

/// Why a file is not a congestion control. The caller names the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SuppliedError {
    /// Not an object file, or a damaged one.
    #[error(
        "it is not an intact 64-bit ELF file ({source}); for BPF compile it with `{}`",
        COMPILE
    )]
    Elf {
        /// What the reader says.
        source: object::read::Error,
    },
    /// Compressed, as distributions install modules.
    #[error("it is compressed; decompress it first (`{tool} -d`)")]
    Compressed {
        /// What decompresses it.
        tool: &'static str,
    },
    /// For other machines.
    #[error("its numbers are big-endian: compile it with `-target bpfel`")]
    BigEndian,
    /// Linked.
    #[error("it is an executable or a library, not an object: compile it with `{}`", COMPILE)]
    NotObject,
    /// Compiled for a processor, but not a module.
    #[error("it is neither a BPF object nor a kernel module; compile it with `{}`", COMPILE)]
    Neither,
    /// A section lies outside of the file.
    #[error("its section {name} is damaged ({source})")]
    Section {
        /// The section.
        name: &'static str,
        /// What the reader says.
        source: object::read::Error,
    },
    /// No BTF.
    #[error("it has no type information (section .BTF); compile it with `-g`")]
    NoTypes,
    /// Damaged BTF.
    #[error("its type information (section .BTF) is damaged: {0}; compile it again")]
    Types(#[from] BtfError),
    /// No congestion control.
    #[error(
        "it has no `struct tcp_congestion_ops` in the section .struct_ops or .struct_ops.link: write `SEC(\".struct_ops.link\")` \
         in front of it"
    )]
    NoOps,
    /// Another kind of `struct_ops`.
    #[error("its `{variable}` is a `struct {of}`, not a `struct tcp_congestion_ops`: remove it")]
    OtherOps {
        /// The variable.
        variable: String,
        /// Its struct.
        of: String,
    },
    /// A program of another kind.
    #[error(
        "its section {section} holds a program that is not part of a congestion control; remove it"
    )]
    OtherProgram {
        /// The section.
        section: String,
    },
    /// A map that would outlive the trial.
    #[error("its map {map} is pinned, so it would outlive the trial: remove `pinning`")]
    PinnedMap {
        /// The map.
        map: String,
    },
    /// The description and the data differ.
    #[error("its section {section} does not hold all of `{variable}`; compile it again")]
    Variable {
        /// The section.
        section: &'static str,
        /// The variable.
        variable: String,
    },
    /// No room for a name.
    #[error("its `{variable}` has no `char name[16]`, which holds the name in the kernel")]
    NoName {
        /// The variable.
        variable: String,
    },
    /// A name that the kernel refuses.
    #[error("its name: {reason}")]
    Name {
        /// Why.
        reason: String,
    },
    /// A module without a field.
    #[error(
        "its section .modinfo has no `{key}`: build it with the kernel's build system (`make -C /lib/modules/…/build M=$PWD`)"
    )]
    NoModinfo {
        /// The field.
        key: &'static str,
    },
    /// A module's name that no kernel has.
    #[error("`{}` is not a module's name: letters, digits and `_`", name.escape_debug())]
    ModuleName {
        /// The name.
        name: String,
    },
}

/// What is in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SuppliedFile {
    /// For `file`.
    Bpf(BpfObject),
    /// For `module`.
    Module(KernelModule),
}

/// A BPF object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BpfObject {
    /// Its congestion controls, at least one.
    pub ops: Vec<Ops>,
    /// Its numbers that are declared `const volatile`.
    pub params: Vec<BpfParameter>,
}

/// A congestion control of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ops {
    /// The variable, which libbpf makes a map of the same name.
    pub map: String,
    /// Its name.
    pub name: String,
    /// Offset of the 16 bytes of the name in the variable.
    pub name_at: usize,
    /// Offset of the u32 of `TCP_CONG_*` flags, if the object's struct has it.
    pub flags_at: Option<usize>,
}

/// A parameter of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BpfParameter {
    /// Name and type.
    pub parameter: Parameter,
    /// Offset of its value in the section `.rodata`.
    pub at: usize,
    /// Its value in the object.
    pub default: i128,
}

/// A kernel module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelModule {
    /// As `lsmod` shows it.
    pub name: String,
    /// The kernel that it was built for: its release, then options.
    pub vermagic: String,
    /// Its parameters.
    pub params: Vec<Parameter>,
}

/// Name and type of a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: ParameterKind,
}

/// Type of a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParameterKind {
    /// 0 or 1.
    Bool,
    /// A whole number.
    Number {
        /// 1, 2, 4 or 8.
        bytes: u8,
        /// It may be negative.
        is_signed: bool,
    },
    /// Text, with the name of the module's type; the module checks it.
    Text(String),
}

/// What is known of a file before it is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CcFacts {
    /// Of the file, hexadecimal.
    pub sha256: String,
    /// What is in it.
    pub file: SuppliedFile,
}

/// Why a file cannot be used. The caller that reads files writes the text, because this crate does no I/O.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct UnreadableCc {
    /// The text of the error.
    pub reason: String,
}

/// The plan's supplied files by their path in the plan. A file that is absent has not been read.
pub type CcFiles = BTreeMap<String, Result<Arc<CcFacts>, UnreadableCc>>;

/// Reads a file's contents.
///
/// # Errors
/// It is neither a BPF object with a congestion control nor a kernel module.
pub fn facts(bytes: &[u8]) -> Result<CcFacts, SuppliedError> {
    Ok(CcFacts { sha256: digest_bytes(bytes), file: read(bytes)? })
}

fn read(bytes: &[u8]) -> Result<SuppliedFile, SuppliedError> {
    const PACKED: [(&[u8], &str); 3] = [
        (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz"),
        (&[0x28, 0xb5, 0x2f, 0xfd], "zstd"),
        (&[0x1f, 0x8b], "gzip"),
    ];
    if let Some((_, tool)) = PACKED.into_iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return Err(SuppliedError::Compressed { tool });
    }
    let elf: ElfFile64<'_, Endianness> =
        ElfFile64::parse(bytes).map_err(|source| SuppliedError::Elf { source })?;
    if !elf.is_little_endian() {
        return Err(SuppliedError::BigEndian);
    }
    let (endian, header) = (elf.endian(), elf.elf_header());
    if header.e_type(endian) != ET_REL {
        return Err(SuppliedError::NotObject);
    }
    if header.e_machine(endian) == EM_BPF {
        return object_file::read(&elf).map(SuppliedFile::Bpf);
    }
    let module = module::read(&elf)?.ok_or(SuppliedError::Neither)?;
    Ok(SuppliedFile::Module(module))
}

impl SuppliedFile {
    /// How it is loaded.
    pub fn via(&self) -> Via {
        match self {
            Self::Bpf(_) => Via::Bpf,
            Self::Module(_) => Via::Module,
        }
    }

    /// The names of its congestion controls. A module does not contain the name: by convention it is the module's name without
    /// `tcp_`.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Self::Bpf(object) => object.ops.iter().map(|ops| ops.name.as_str()).collect(),
            Self::Module(module) => {
                vec![module.name.strip_prefix("tcp_").unwrap_or(&module.name)]
            }
        }
    }

    /// Its parameters.
    pub fn params(&self) -> Vec<&Parameter> {
        match self {
            Self::Bpf(object) => object.params.iter().map(|param| &param.parameter).collect(),
            Self::Module(module) => module.params.iter().collect(),
        }
    }

    /// The effective value of each parameter that a plan writes, as text.
    ///
    /// # Errors
    /// Every parameter that the file does not have, and every value out of range.
    pub fn values(&self, cc: &Cc) -> Result<Vec<(String, String)>, Vec<InstanceProblem>> {
        let (mut values, mut wrong) = (Vec::new(), Vec::new());
        let params = self.params();
        let known: Vec<&str> = params.iter().map(|param| param.name.as_str()).collect();
        let unknown = |name: &String| {
            let hint = match known.is_empty() {
                true => {
                    "; it has none (in BPF, parameters are `const volatile` numbers)".to_owned()
                }
                false => suggest::hint(name, &known, "its parameters"),
            };
            ParamError::Unknown { core: cc.algorithm.clone(), name: name.clone(), hint }
        };
        for (name, value) in &cc.params {
            let found = params.iter().find(|param| param.name == *name);
            let checked =
                found.ok_or_else(|| unknown(name)).and_then(|param| param.kind.check(value));
            match checked {
                Ok(text) => values.push((name.clone(), text)),
                Err(reason) => wrong.push(InstanceProblem {
                    key: vec!["params".to_owned(), name.clone()],
                    reason: reason.to_string(),
                }),
            }
        }
        if wrong.is_empty() { Ok(values) } else { Err(wrong) }
    }
}

impl BpfObject {
    /// The congestion control of this name.
    pub fn find(&self, name: &str) -> Option<&Ops> {
        self.ops.iter().find(|ops| ops.name == name)
    }
}

impl ParameterKind {
    /// Size in memory; `None` for text.
    pub fn bytes(&self) -> Option<usize> {
        match self {
            Self::Bool => Some(1),
            Self::Number { bytes, .. } => Some(usize::from(*bytes)),
            Self::Text(_) => None,
        }
    }

    /// The lowest and the highest value; `None` for text.
    fn limits(&self) -> Option<(i128, i128)> {
        match *self {
            Self::Bool => Some((0, 1)),
            Self::Number { bytes, is_signed } => {
                let bits = 8 * u32::from(bytes);
                Some(match is_signed {
                    true => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
                    false => (0, (1i128 << bits) - 1),
                })
            }
            Self::Text(_) => None,
        }
    }

    /// As in C.
    pub fn name(&self) -> String {
        match self {
            Self::Bool => "bool".to_owned(),
            Self::Number { bytes, is_signed } => {
                format!("{}{}", if *is_signed { 's' } else { 'u' }, 8 * u32::from(*bytes))
            }
            Self::Text(name) => name.clone(),
        }
    }

    /// "from 0 to 255 (u8)".
    pub fn range(&self) -> String {
        match self.limits() {
            Some((min, max)) => format!("from {min} to {max} ({})", self.name()),
            None => format!("text ({}) without spaces or quotation marks", self.name()),
        }
    }

    /// Checks a value. Returns it as the kernel would print it.
    fn check(&self, value: &SysctlValue) -> Result<String, ParamError> {
        let written = value.to_string();
        let text = written.trim();
        let Some((min, max)) = self.limits() else {
            let separates =
                |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '\'');
            return match text.is_empty() || text.contains(separates) {
                true => Err(ParamError::NotText { text: written, range: self.range() }),
                false => Ok(text.to_owned()),
            };
        };
        let number: i128 = match text {
            "true" | "Y" | "y" if *self == Self::Bool => 1,
            "false" | "N" | "n" if *self == Self::Bool => 0,
            _ => text.parse().map_err(|_| ParamError::NotANumber {
                text: written.clone(),
                range: self.range(),
            })?,
        };
        if (min..=max).contains(&number) {
            return Ok(number.to_string());
        }
        Err(ParamError::OutOfRange { number, range: self.range() })
    }

    /// Decodes a number in memory, little-endian; `None` for text, or for another number of bytes.
    pub fn decode(&self, value: &[u8]) -> Option<i128> {
        let (min, _) = self.limits()?;
        if Some(value.len()) != self.bytes() {
            return None;
        }
        let number = value.iter().rev().fold(0i128, |number, byte| number << 8 | i128::from(*byte));
        let is_negative = min < 0 && number > !min;
        Some(if is_negative { number + 2 * min } else { number })
    }

    /// Encodes a number for memory, little-endian; `None` for text and for a number out of range.
    pub fn encode(&self, number: &str) -> Option<Vec<u8>> {
        let (min, max) = self.limits()?;
        let number = number.parse::<i128>().ok().filter(|number| (min..=max).contains(number))?;
        Some(number.to_le_bytes()[..self.bytes()?].to_vec())
    }
}

/// Checks a `[cc.NAME]` that has a file as far as possible without reading the file.
pub(super) fn check(cc: &Cc) -> Vec<InstanceProblem> {
    let mut wrong = Vec::new();
    let mut report = |key: &str, reason: String| {
        wrong.push(InstanceProblem { key: vec![key.to_owned()], reason });
    };
    if cc.file.is_some() && cc.module.is_some() {
        report(
            "module",
            "an instance has either `file` or `module`: remove one of them".to_owned(),
        );
    }
    for (key, path) in [("file", &cc.file), ("module", &cc.module)] {
        let Some(path) = path else { continue };
        if path.is_empty() || path.len() > MAX_PATH || path.contains(char::is_control) {
            report(key, "must be the path of a file, relative to the plan's directory".to_owned());
        }
    }
    if cc.via != Via::Auto {
        let reason = "has no effect: `file` is loaded as BPF, `module` as a module; leave it out";
        report("via", reason.to_owned());
    }
    if cc.ect1.is_some() {
        let reason = "ccbench does not know whether a congestion control of yours counts ECN marks; leave `ect1` out";
        report("ect1", reason.to_owned());
    }
    if !cc.algorithm.is_empty()
        && let Some(reason) = refuse_kernel_name(&cc.algorithm)
    {
        report("algorithm", reason);
    }
    if let Some(sha256) = &cc.sha256
        && !is_digest(sha256)
    {
        let reason = "must be 64 hexadecimal digits in lower case; `sha256sum` prints them, and without it ccbench fills it in";
        report("sha256", reason.to_owned());
    }
    wrong
}

/// Whether this is a SHA-256 in hexadecimal digits.
pub fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
}

impl CcFacts {
    /// Fills in the keys that follow from the file: the name, if the file has only one, and the digest.
    pub fn fill(&self, cc: &mut Cc) {
        if let [only] = self.file.names()[..]
            && cc.algorithm.is_empty()
        {
            only.clone_into(&mut cc.algorithm);
        }
        cc.sha256.get_or_insert_with(|| self.sha256.clone());
    }

    /// Everything that is wrong with an instance of this file.
    pub fn check(&self, cc: &Cc) -> Vec<InstanceProblem> {
        let problem =
            |key: &str, reason: String| InstanceProblem { key: vec![key.to_owned()], reason };
        let Some((path, via)) = cc.supplied() else { return Vec::new() };
        let path = path.escape_debug();
        if via != self.file.via() {
            return vec![match via {
                Via::Module => {
                    problem("module", format!("`{path}` is a BPF object: write `file` instead"))
                }
                _ => {
                    problem("file", format!("`{path}` is a kernel module: write `module` instead"))
                }
            }];
        }
        let mut wrong = Vec::new();
        if let Some(sha256) = cc.sha256.as_ref().filter(|sha256| **sha256 != self.sha256) {
            let reason = format!(
                "`{path}` has changed: its sha256 is now {}, not {sha256}; restore the old file, or leave this out",
                self.sha256
            );
            wrong.push(problem("sha256", reason));
        }
        let names = self.file.names();
        let of = match &self.file {
            // A module may register any name.
            SuppliedFile::Module(_) => None,
            SuppliedFile::Bpf(_) if names.contains(&cc.algorithm.as_str()) => None,
            SuppliedFile::Bpf(_) => Some(suggest::list(&names)),
        };
        if let Some(names) = of {
            let reason = match cc.algorithm.is_empty() {
                true => {
                    format!(
                        "`{path}` has several congestion controls, {names}; name one of them with `algorithm`"
                    )
                }
                false => {
                    format!("`{path}` has no congestion control `{}`; it has {names}", cc.algorithm)
                }
            };
            wrong.push(problem("algorithm", reason));
        }
        wrong.extend(self.file.values(cc).err().unwrap_or_default());
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(bytes: u8, is_signed: bool) -> ParameterKind {
        ParameterKind::Number { bytes, is_signed }
    }

    #[test]
    fn numbers_have_the_limits_of_their_type() {
        let check = |kind: &ParameterKind, value: i64| kind.check(&SysctlValue::Number(value));
        assert_eq!(check(&number(1, false), 255), Ok("255".to_owned()));
        assert_eq!(
            check(&number(1, false), 256).unwrap_err().to_string(),
            "256 is out of range; write a number from 0 to 255 (u8)"
        );
        assert_eq!(check(&number(1, true), -128), Ok("-128".to_owned()));
        assert!(check(&number(1, true), -129).is_err() && check(&number(4, false), -1).is_err());
        let text = |kind: &ParameterKind, value: &str| kind.check(&SysctlValue::Text(value.into()));
        let largest = u64::MAX.to_string();
        assert_eq!(text(&number(8, false), &largest), Ok(largest.clone()));
        assert!(text(&number(8, true), &largest).is_err());
        assert_eq!(text(&ParameterKind::Bool, "true"), Ok("1".to_owned()));
        assert!(text(&number(4, false), "true").is_err(), "only of a bool");
    }

    #[test]
    fn text_cannot_add_a_parameter() {
        let kind = ParameterKind::Text("charp".to_owned());
        let check = |value: &str| kind.check(&SysctlValue::Text(value.into()));
        assert_eq!(check("a,b=1"), Ok("a,b=1".to_owned()));
        for bad in ["", "a b=1", "a\"b", "a\nb"] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        for (kind, values) in [
            (number(1, true), vec![-128, -1, 0, 127]),
            (number(2, false), vec![0, 65_535]),
            (number(4, true), vec![i128::from(i32::MIN), -1, i128::from(i32::MAX)]),
            (number(8, true), vec![i128::from(i64::MIN), i128::from(i64::MAX)]),
            (number(8, false), vec![i128::from(u64::MAX)]),
            (ParameterKind::Bool, vec![0, 1]),
        ] {
            for value in values {
                let bytes = kind.encode(&value.to_string()).unwrap();
                assert_eq!(Some(bytes.len()), kind.bytes());
                assert_eq!(kind.decode(&bytes), Some(value), "{kind:?}");
            }
        }
        assert_eq!(number(1, false).encode("256"), None);
        assert_eq!(number(2, false).decode(&[1]), None);
    }

    #[test]
    fn other_files_are_refused_with_the_fix() {
        let why = |bytes: &[u8]| facts(bytes).unwrap_err().to_string();
        assert!(why(b"int x;").contains("clang -O2 -g -target bpf"), "{}", why(b"int x;"));
        assert!(why(&[0x28, 0xb5, 0x2f, 0xfd, 0]).contains("zstd -d"));
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(why(&program).contains("an executable or a library"), "{}", why(&program));
    }
}
