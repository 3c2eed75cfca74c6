//! Checks that no identifier is, or has as a part, a former name.

use super::files;

/// Earlier names, or their prefixes (with a trailing underscore), that readers did not understand. docs/glossary.md has the current terms.
/// Names that also mean something else (`said`, `next_ns`, `count`) are not listed.
const FORMER_NAMES: [&str; 63] = [
    "way_out",
    "mourner",
    "Mourner",
    "ripe_ns",
    "is_ripe",
    "first_count",
    "pause_ns",
    "punish",
    "obey",
    "tell_",
    "told_",
    "said_",
    "heard_",
    "Told",
    "Said",
    "Heard",
    "InForce",
    "in_force",
    "Ground",
    "Chosen",
    "Asked",
    "Became",
    "Inlet",
    "Outlet",
    "Woken",
    "OfToken",
    "OfHosts",
    "OfPhase",
    "OfStates",
    "OfTrial",
    "ByAnother",
    "ByThis",
    "FromFirst",
    "InPhase",
    "Plumbing",
    "plumbing",
    "Dice",
    "as_settled",
    "is_beneath",
    "has_its_turn",
    "take_as_meant",
    "until_asked",
    "few_enough",
    "this_use",
    "only_here",
    "looked_at",
    "hear_all",
    "patiently",
    "spoken_phase",
    "wire_form",
    "why_no_ebpf",
    "least_segs",
    "least_gap_us",
    "least_gap",
    "least_kbps",
    "least_pkts",
    "mdev_least_us",
    "cc_at_most",
    "blamed",
    "Wants",
    "wheres",
    "lost_how",
    "grew_s",
];

/// Files, or endings of files, that have reasons to contain these names.
const EXCEPTIONS: [(&str, &[&str]); 8] = [
    // It says what was renamed.
    ("CHANGELOG.md", &FORMER_NAMES),
    // Former values in results, which readers replace, and the tests of that.
    ("crates/results/src/columns/renamed.rs", &["in_force"]),
    ("crates/results/src/reason.rs", &["in_force"]),
    ("docs/results.md", &["in_force"]),
    ("python/ccbench/_renamed.py", &["in_force"]),
    ("tests/dist/reader.py", &["in_force"]),
    // A setting of systemd.
    (".service", &["Wants"]),
    // The list itself.
    ("tests/tidy/former_names.rs", &FORMER_NAMES),
];

/// Returns whether a name is a part of a word in snake case or camel case: `ripe_ns` of `set_ripe_ns`, `InForce` of `CcInForce`.
fn is_part(word: &str, name: &str) -> bool {
    let is_camel = name.starts_with(char::is_uppercase);
    word.match_indices(name).any(|(at, _)| {
        let (before, after) = (&word[..at], &word[at + name.len()..]);
        let begins =
            before.ends_with('_') || is_camel && before.ends_with(|c: char| !c.is_uppercase());
        let ends = after.starts_with('_') || is_camel && after.starts_with(char::is_uppercase);
        (before.is_empty() || begins) && (after.is_empty() || ends)
    })
}

/// Returns whether a word has a former name. Names of one lower-case word are also words of sentences, such as the names of tests: they are
/// former names only as whole identifiers, and prefixes only at the beginning.
fn has_former(word: &str, name: &str) -> bool {
    if name.ends_with('_') {
        word.starts_with(name)
    } else if name.contains(|c: char| c == '_' || c.is_uppercase()) {
        is_part(word, name)
    } else {
        word == name
    }
}

/// Returns the words of a text with a former name, and the name.
fn former_words<'a>(text: &'a str, names: &[&'a str]) -> Vec<(&'a str, &'a str)> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    let of_word = |word: &'a str| {
        let former = names.iter().filter(move |name| has_former(word, name));
        former.map(move |name| (word, *name)).collect::<Vec<_>>()
    };
    words.flat_map(of_word).collect()
}

#[test]
fn identifiers_avoid_former_names() {
    let (mut found, mut used) = (Vec::new(), [false; EXCEPTIONS.len()]);
    // Every text file, whatever its type.
    for (file, text) in files(&[]) {
        let names = FORMER_NAMES.into_iter().filter(|name| text.contains(name));
        let names: Vec<&str> = names.collect();
        if names.is_empty() {
            continue;
        }
        for (line, number) in text.lines().zip(1..) {
            for (word, name) in former_words(line, &names) {
                let is_excepted =
                    |(of, except): &(&str, &[&str])| file.ends_with(of) && except.contains(&name);
                match EXCEPTIONS.iter().position(is_excepted) {
                    Some(exception) => used[exception] = true,
                    None => found.push(format!("{file}:{number}: {word}")),
                }
            }
        }
    }
    assert!(found.is_empty(), "former names:\n{}", found.join("\n"));
    let unused = EXCEPTIONS.iter().zip(used).filter(|(_, used)| !used);
    let unused: Vec<&str> = unused.map(|((file, _), _)| *file).collect();
    assert!(unused.is_empty(), "exceptions that no file needs: {unused:?}");
}

#[test]
fn former_names_are_found_in_longer_identifiers() {
    let names = ["ripe_ns", "InForce", "in_force", "told_", "obey"];
    let words = |text| -> Vec<&str> {
        former_words(text, &names).into_iter().map(|(word, _)| word).collect()
    };
    let former = [
        "self.set_ripe_ns(1)",
        "data-ripe_ns",
        "Kind::CcInForce(x)",
        "\"cc_not_in_force\"",
        "told_us()",
        "obey",
    ];
    for text in former {
        assert_eq!(words(text).len(), 1, "{text}");
    }
    let current = "stripe_ns ripe_nsec InForced BUILTInForce reinforce in_forced is_told_of phases_obey_rules";
    assert_eq!(words(current), [""; 0]);
}
