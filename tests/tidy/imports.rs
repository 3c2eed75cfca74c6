//! Tests that modules do not import each other in a cycle. Code that only tests have does not count. A module and those inside it may import
//! each other.

use std::collections::{BTreeMap, BTreeSet};

use super::files;

/// Maximum number of re-exports between a name and its module.
const MAX_REEXPORTS: usize = 8;

/// The path of a module below the crate: `["summary", "query"]`.
type Module = Vec<String>;

/// The modules that each module imports from.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// What a module names outside of itself.
#[derive(Debug, Default)]
struct Source {
    /// Paths of `use` declarations, by the names that they have here.
    declared: Vec<(String, String)>,
    /// Paths in other code.
    inline: Vec<String>,
}

/// Returns code without comments and without items that only tests have, and the names of modules that only tests have. rustfmt ends an item
/// at the indentation with which it began.
fn production(text: &str) -> (String, Vec<&str>) {
    let (mut code, mut only_tests) = (String::new(), Vec::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let start = line.trim_start();
        if start.starts_with("#[cfg(test)]") || start.starts_with("#[cfg(all(test,") {
            let end = format!("{}}}", &line[..line.len() - start.len()]);
            let header = lines.by_ref().find(|line| line.ends_with(['{', ';', '}']));
            let header = header.unwrap_or_default();
            if header.ends_with('{') {
                let _ = lines.by_ref().find(|line| *line == end);
            }
            let module = header.split_once("mod ").and_then(|(_, name)| name.strip_suffix(';'));
            only_tests.extend(module);
        } else if !start.starts_with("//") {
            code.push_str(line);
            code.push('\n');
        }
    }
    (code, only_tests)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the beginning of the tree of a `use` declaration. Lines of texts can also begin with `use`.
fn begins_use(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = line.strip_prefix("pub").map_or(line, |rest| match rest.strip_prefix('(') {
        Some(rest) => rest.split_once(')').map_or(rest, |(_, rest)| rest),
        None => rest,
    });
    let tree = rest.trim_start().strip_prefix("use ")?;
    let after = tree.trim_start_matches(is_word);
    ["::", ";", " as "].iter().any(|next| after.starts_with(next)).then_some(tree)
}

/// Adds the paths that a `use` declaration names, each with the name that it gets.
fn expand(prefix: &str, tree: &str, found: &mut Vec<(String, String)>) {
    let tree = tree.trim();
    if let Some((head, list)) = tree.split_once('{') {
        let mut depth = 0;
        let ends_part = |c: char| {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            c == ',' && depth == 0
        };
        let parts = list.strip_suffix('}').unwrap_or(list).split(ends_part);
        for part in parts.filter(|part| !part.trim().is_empty()) {
            expand(&format!("{prefix}{head}"), part, found);
        }
        return;
    }
    let (path, alias) = match tree.split_once(" as ") {
        Some((path, alias)) => (path, Some(alias)),
        None => (tree, None),
    };
    let path = format!("{prefix}{path}");
    let path = path.strip_suffix("::self").unwrap_or(&path);
    let name = alias.unwrap_or_else(|| path.rsplit("::").next().unwrap_or(path));
    found.push((name.to_owned(), path.to_owned()));
}

impl Source {
    fn new(code: &str) -> Self {
        let mut source = Self::default();
        let mut lines = code.lines();
        while let Some(line) = lines.next() {
            let Some(tree) = begins_use(line) else {
                let words = line.split(|c: char| !is_word(c) && c != ':');
                source.inline.extend(words.filter(|word| word.contains("::")).map(str::to_owned));
                continue;
            };
            let mut tree = tree.to_owned();
            while !tree.contains(';') {
                let Some(line) = lines.next() else { break };
                tree.push_str(line.trim());
            }
            let tree = tree.split(';').next().unwrap_or_default();
            expand("", tree, &mut source.declared);
        }
        source
    }
}

/// The modules of a crate.
#[derive(Debug, Default)]
struct Modules(BTreeMap<Module, Source>);

impl Modules {
    /// Reads the modules from files: their paths below the folder of the sources, and their text.
    fn new<'t>(files: impl IntoIterator<Item = (&'t str, &'t str)>) -> Self {
        let (mut modules, mut only_tests) = (BTreeMap::new(), Vec::new());
        for (file, text) in files {
            let path = file.strip_suffix(".rs").unwrap_or(file);
            let mut module: Module = path.split('/').map(str::to_owned).collect();
            match path {
                // A crate of its own.
                "main" => continue,
                "lib" => module.clear(),
                _ => {}
            }
            let (code, of_tests) = production(text);
            only_tests.extend(of_tests.into_iter().map(|name| {
                let mut inner = module.clone();
                inner.push(name.to_owned());
                inner
            }));
            modules.insert(module, Source::new(&code));
        }
        modules.retain(|module, _| !only_tests.iter().any(|of_tests| module.starts_with(of_tests)));
        Self(modules)
    }

    /// Returns what a path in `module` names, counted from the crate; `None` if it is in another crate.
    fn absolute(&self, module: &Module, path: &str) -> Option<Module> {
        let (first, rest) = path.split_once("::").unwrap_or((path, ""));
        let mut resolved = match first {
            "crate" => Vec::new(),
            "self" => module.clone(),
            "super" => module[..module.len().saturating_sub(1)].to_vec(),
            name => {
                let mut inner = module.clone();
                inner.push(name.to_owned());
                if self.0.contains_key(&inner) {
                    inner
                } else {
                    let declared = &self.0.get(module)?.declared;
                    // A crate of the same name is another one.
                    let (_, path) = declared.iter().find(|(known, path)| {
                        known == name && path.split("::").next() != Some(name)
                    })?;
                    self.absolute(module, path)?
                }
            }
        };
        for segment in rest.split("::").filter(|segment| !segment.is_empty()) {
            match segment {
                "super" => drop(resolved.pop()),
                name => resolved.push(name.to_owned()),
            }
        }
        Some(resolved)
    }

    /// Adds the module that an item is named through, and those that it is re-exported from.
    fn add_owners(&self, item: &Module, reexports: usize, found: &mut BTreeSet<Module>) {
        let mut owner = item.clone();
        while !self.0.contains_key(&owner) && owner.pop().is_some() {}
        if let Some(name) = item.get(owner.len()).filter(|_| reexports < MAX_REEXPORTS)
            && let Some(source) = self.0.get(&owner)
            && let Some((_, path)) = source.declared.iter().find(|(known, _)| known == name)
            && let Some(mut original) = self.absolute(&owner, path)
        {
            original.extend_from_slice(&item[owner.len() + 1..]);
            self.add_owners(&original, reexports + 1, found);
        }
        found.insert(owner);
    }

    fn imports(&self) -> Imports {
        let of_module = |(module, source): (&Module, &Source)| {
            let declared = source.declared.iter().map(|(_, path)| path);
            let mut found = BTreeSet::new();
            for path in declared.chain(&source.inline) {
                if let Some(item) = self.absolute(module, path) {
                    self.add_owners(&item, 0, &mut found);
                }
            }
            found.remove(module);
            (module.clone(), found)
        };
        self.0.iter().map(of_module).collect()
    }
}

/// Returns the modules in `among` that one of them imports, also indirectly.
fn reached(imports: &Imports, from: &Module, among: &BTreeSet<Module>) -> BTreeSet<Module> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        let imported = imports.get(module).into_iter().flatten();
        for next in imported.filter(|next| among.contains(*next)) {
            if found.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    found
}

/// Returns the groups of modules that all import each other, also indirectly. If all modules of a group are inside one of them, that one may
/// import the others and be imported, so only the others are looked at.
fn cycles(imports: &Imports, among: &BTreeSet<Module>) -> Vec<BTreeSet<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        among.iter().map(|module| (module, reached(imports, module, among))).collect();
    let group = |module: &Module| -> BTreeSet<Module> {
        let others = reached[module].iter().filter(|other| reached[*other].contains(module));
        others.cloned().collect()
    };
    let groups: BTreeSet<BTreeSet<Module>> =
        among.iter().map(group).filter(|group| group.len() > 1).collect();
    let mut found = Vec::new();
    for mut group in groups {
        let outermost = group.iter().min_by_key(|module| module.len()).cloned().unwrap_or_default();
        if group.iter().all(|module| module.starts_with(&outermost)) {
            group.remove(&outermost);
            found.extend(cycles(imports, &group));
        } else {
            found.push(group);
        }
    }
    found
}

/// Returns each import within a cycle: `journal -> stopping`.
fn cyclic_imports(modules: &Modules) -> Vec<String> {
    let imports = modules.imports();
    let all: BTreeSet<Module> = imports.keys().cloned().collect();
    let name = |module: &Module| match module.is_empty() {
        true => "the crate's root".to_owned(),
        false => module.join("::"),
    };
    let mut found = Vec::new();
    for group in cycles(&imports, &all) {
        for module in &group {
            let imported = imports[module].intersection(&group);
            found.extend(imported.map(|other| format!("{} -> {}", name(module), name(other))));
        }
    }
    found
}

/// Returns the folders with the sources of all crates, except those that only tests use.
fn source_folders() -> Vec<String> {
    let manifests = files(&["/Cargo.toml"]);
    let crates = manifests.iter().filter_map(|(file, _)| file.strip_suffix("/Cargo.toml"));
    let of_programs = crates.filter(|name| *name != "tests" && !name.starts_with("tests/"));
    of_programs.map(|name| format!("{name}/src")).collect()
}

#[test]
fn modules_import_without_cycles() {
    let (folders, sources) = (source_folders(), files(&[".rs"]));
    assert!(folders.iter().any(|folder| folder == "proto/src"), "{folders:?}");
    let mut found = Vec::new();
    for folder in &folders {
        let modules = Modules::new(sources.iter().filter_map(|(file, text)| {
            Some((file.strip_prefix(folder.as_str())?.strip_prefix('/')?, text.as_str()))
        }));
        assert!(modules.0.contains_key(&Module::new()), "{folder} has no lib.rs");
        found.extend(cyclic_imports(&modules).into_iter().map(|it| format!("{folder}: {it}")));
    }
    assert!(found.is_empty(), "modules import each other in a cycle:\n{}", found.join("\n"));
}

/// Returns the imports within cycles of a crate with these files.
fn found_in(files: &[(&str, &str)]) -> Vec<String> {
    let root = ("lib.rs", "pub mod a;\npub use b::B;\n");
    cyclic_imports(&Modules::new(files.iter().copied().chain([root])))
}

#[test]
fn declarations_and_inline_paths_are_imports() {
    let files = [
        ("a.rs", "use crate::b::B;\n"),
        ("b.rs", "fn f() {\n    crate::c::g();\n}\n"),
        ("c.rs", "use super::a;\n\nfn g() {\n    a::h();\n}\n"),
        ("d.rs", "use crate::a::A;\n"),
    ];
    assert_eq!(found_in(&files), ["a -> b", "b -> c", "c -> a"]);
    let lists = [
        ("a.rs", "pub(super) use crate::{\n    b::{self, B as C},\n    d::D,\n};\n"),
        ("b.rs", "use super::a::{X, Y};\n"),
        ("d.rs", "fn f() {\n    super::b::g();\n}\n"),
    ];
    assert_eq!(found_in(&lists), ["a -> b", "a -> d", "b -> a", "d -> b"]);
    assert_eq!(begins_use("    use a store with conditional writes"), None);
}

#[test]
fn reexported_items_belong_to_their_module() {
    let of_root = [("a.rs", ""), ("b.rs", "use crate::c::C;\n"), ("c.rs", "use crate::B;\n")];
    assert_eq!(found_in(&of_root), ["b -> c", "c -> b"]);
    let of_parent = [
        ("a.rs", "pub use y::Y;\n"),
        ("a/x.rs", "use super::Y;\n"),
        ("a/y.rs", "use super::x::X;\n"),
    ];
    assert_eq!(found_in(&of_parent), ["a::x -> a::y", "a::y -> a::x"]);
}

#[test]
fn a_module_and_those_inside_it_may_import_each_other() {
    let files = [
        ("a.rs", "use x::X;\nuse y::Y;\n"),
        ("a/x.rs", "use super::A;\nuse crate::b::B;\n"),
        ("a/y.rs", "use crate::a;\n"),
        ("b.rs", ""),
    ];
    assert_eq!(found_in(&files), Vec::<String>::new());
    let siblings = [
        ("a.rs", "use x::X;\nuse y::Y;\n"),
        ("a/x.rs", "use super::y::Y;\nuse super::A;\n"),
        ("a/y.rs", "use super::x::X;\nuse super::A;\n"),
    ];
    assert_eq!(found_in(&siblings), ["a::x -> a::y", "a::y -> a::x"]);
    let through_a_child =
        [("a.rs", "use x::X;\n"), ("a/x.rs", "use crate::b::B;\n"), ("b.rs", "use crate::a::A;\n")];
    assert_eq!(found_in(&through_a_child), ["a -> a::x", "a::x -> b", "b -> a"]);
}

#[test]
fn code_of_tests_and_comments_does_not_import() {
    let files = [
        ("a.rs", "use crate::b::B;\n\n#[cfg(test)]\nmod samples;\n"),
        ("a/samples.rs", "use crate::c::C;\n"),
        ("b.rs", "// crate::a\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
        ("c.rs", "use crate::a::samples::S;\n"),
    ];
    assert_eq!(found_in(&files), Vec::<String>::new());
}
