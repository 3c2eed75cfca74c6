//! Writes small BPF objects and kernel modules with only the parts that ccbench reads. The agent's tests use objects of clang.

pub const EM_BPF: u16 = 247;
pub const EM_X86_64: u16 = 62;
const PROGBITS: u32 = 1;
const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
/// `SHF_EXECINSTR`
pub const EXECUTABLE: u64 = 4;

/// A section of data.
pub struct Section {
    pub name: &'static str,
    pub flags: u64,
    pub data: Vec<u8>,
}

/// A symbol: its name, its section's number from 1, and its offset in the section.
pub type Symbol = (&'static str, u16, u64);

/// A little-endian object file of 64 bits.
pub fn elf(machine: u16, sections: Vec<Section>, symbols: &[Symbol]) -> Vec<u8> {
    let mut strings = vec![0];
    let mut table = vec![0; 24];
    for (name, section, value) in symbols {
        table.extend(u32::try_from(strings.len()).unwrap().to_le_bytes());
        // A global object, or a global function.
        let of = &sections[usize::from(*section) - 1];
        table.extend([if of.flags & EXECUTABLE == 0 { 0x11 } else { 0x12 }, 0]);
        table.extend(section.to_le_bytes());
        table.extend(value.to_le_bytes());
        table.extend([0; 8]);
        strings.extend(name.bytes());
        strings.push(0);
    }
    let strings_at = u32::try_from(sections.len()).unwrap() + 2;
    // Name, type, flags, contents, `sh_link` and the size of an entry.
    let with_type =
        |section: Section| (section.name, PROGBITS, section.flags, section.data, (0u32, 0u64));
    let mut all: Vec<_> = sections.into_iter().map(with_type).collect();
    all.push((".symtab", SYMTAB, 0, table, (strings_at, 24)));
    all.push((".strtab", STRTAB, 0, strings, (0, 0)));
    let mut names = vec![0];
    for (name, ..) in &all {
        names.extend(name.bytes());
        names.push(0);
    }
    names.extend(b".shstrtab\0");
    all.push((".shstrtab", STRTAB, 0, names, (0, 0)));
    let (mut body, mut headers, mut name_at) = (Vec::new(), vec![0; 64], 1u32);
    for (name, kind, flags, data, (link, entry)) in &all {
        headers.extend(name_at.to_le_bytes());
        headers.extend(kind.to_le_bytes());
        // Flags, address, offset, size.
        for word in [*flags, 0, 64 + body.len() as u64, data.len() as u64] {
            headers.extend(word.to_le_bytes());
        }
        headers.extend(link.to_le_bytes());
        headers.extend(1u32.to_le_bytes());
        headers.extend(8u64.to_le_bytes());
        headers.extend(entry.to_le_bytes());
        name_at += u32::try_from(name.len() + 1).unwrap();
        body.extend(data);
        body.resize(body.len().next_multiple_of(8), 0);
    }
    let count = u16::try_from(all.len() + 1).unwrap();
    [header(machine, 64 + body.len() as u64, count), body, headers].concat()
}

fn header(machine: u16, sections_at: u64, sections: u16) -> Vec<u8> {
    let mut header = b"\x7fELF\x02\x01\x01".to_vec();
    header.resize(16, 0);
    header.extend(1u16.to_le_bytes());
    header.extend(machine.to_le_bytes());
    header.extend(1u32.to_le_bytes());
    // Entry, program headers.
    header.extend([0; 16]);
    header.extend(sections_at.to_le_bytes());
    header.extend(0u32.to_le_bytes());
    for half in [64u16, 0, 0, 64, sections, sections - 1] {
        header.extend(half.to_le_bytes());
    }
    header
}

/// A description of types.
#[derive(Default)]
pub struct Btf {
    types: Vec<u8>,
    names: Vec<u8>,
    count: u32,
}

impl Btf {
    /// Adds a type: its name, its kind, its size or the type that it refers to, its number of entries, and the data that follow.
    pub fn add(&mut self, name: &str, kind: u32, size: u32, count: u32, rest: &[u32]) -> u32 {
        let name_at = self.name(name);
        for word in [name_at, kind << 24 | count, size].iter().chain(rest) {
            self.types.extend(word.to_le_bytes());
        }
        self.count += 1;
        self.count
    }

    pub fn name(&mut self, name: &str) -> u32 {
        if self.names.is_empty() {
            self.names.push(0);
        }
        if name.is_empty() {
            return 0;
        }
        let at = u32::try_from(self.names.len()).unwrap();
        self.names.extend(name.bytes());
        self.names.push(0);
        at
    }

    pub fn section(self) -> Section {
        let (types, names) = (self.types.len() as u32, self.names.len() as u32);
        let mut data = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, types, types, names] {
            data.extend(word.to_le_bytes());
        }
        data.extend(self.types);
        data.extend(self.names);
        Section { name: ".BTF", flags: 0, data }
    }
}

/// An object with the congestion control `mine` and the parameters `gain`, a u32 that is 7, and `low`, an s8 that is -3.
/// `of` is the name of the struct.
pub fn object(of: &str, more: Option<Section>, map_member: Option<&str>) -> Vec<u8> {
    let mut btf = Btf::default();
    let char_type = btf.add("char", 1, 1, 0, &[1 << 24 | 8]);
    let u32_type = btf.add("u32", 1, 4, 0, &[32]);
    let name_type = btf.add("", 3, 0, 0, &[char_type, u32_type, 16]);
    let (name, flags) = (btf.name("name"), btf.name("flags"));
    let ops = btf.add(of, 4, 20, 2, &[name, name_type, 0, flags, u32_type, 128]);
    let variable = btf.add("ops", 14, ops, 0, &[1]);
    // The compiler leaves offsets and sizes of sections to the linker.
    btf.add(".struct_ops.link", 15, 0, 1, &[variable, 0, 20]);
    let mut constants = Vec::new();
    for (name, of) in [("gain", u32_type), ("low", char_type)] {
        let volatile = btf.add("", 9, of, 0, &[]);
        let constant = btf.add("", 10, volatile, 0, &[]);
        constants.push(btf.add(name, 14, constant, 0, &[1]));
    }
    // A constant that is not volatile, so the compiler may use its value.
    let constant = btf.add("", 10, u32_type, 0, &[]);
    constants.push(btf.add("fixed", 14, constant, 0, &[1]));
    let entries: Vec<u32> = constants.iter().flat_map(|id| [*id, 0, 4]).collect();
    btf.add(".rodata", 15, 0, 3, &entries);
    if let Some(member) = map_member {
        let member = btf.name(member);
        let map = btf.add("", 4, 4, 1, &[member, u32_type, 0]);
        let variable = btf.add("a_map", 14, map, 0, &[1]);
        btf.add(".maps", 15, 0, 1, &[variable, 0, 4]);
    }
    // The variable is not at the beginning of its section.
    let mut value = vec![0; 8];
    value.extend(b"mine\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    let ops = Section { name: ".struct_ops.link", flags: 3, data: value };
    let constants = Section { name: ".rodata", flags: 2, data: vec![9, 0, 0, 0, 7, 0, 0, 0, 0xfd] };
    let mut symbols: Vec<Symbol> =
        vec![("ops", 1, 8), ("gain", 2, 4), ("low", 2, 8), ("fixed", 2, 0)];
    symbols.extend(more.iter().map(|_| ("more", 4, 0)));
    let sections = [ops, constants, btf.section()].into_iter().chain(more);
    elf(EM_BPF, sections.collect(), &symbols)
}

/// A kernel module with these fields.
pub fn module(modinfo: &[&str]) -> Vec<u8> {
    let data = modinfo.iter().flat_map(|field| field.bytes().chain([0])).collect();
    elf(EM_X86_64, vec![Section { name: ".modinfo", flags: 2, data }], &[])
}

/// The fields in the form of the kernel's build system.
pub const MODINFO: [&str; 6] = [
    "license=GPL",
    "parm=gain:percent",
    "parmtype=gain:uint",
    "parmtype=label:charp",
    "name=tcp_mine",
    "vermagic=6.18.5 SMP preempt mod_unload ",
];
