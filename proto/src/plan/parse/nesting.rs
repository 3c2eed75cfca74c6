//! Limits how deeply a TOML text nests tables and lists. The TOML library limits brackets and the segments of a key, but not their
//! product. The parsed value is read, cloned and dropped recursively, and an agent's threads have small stacks.

use toml::Table;

/// Brackets within brackets.
const MAX_BRACKETS: usize = 16;
/// Dots in a key.
const MAX_DOTS: usize = 16;

/// The byte offset at which a text nests more deeply than any plan; `None` if it does not. The result may be wrong for text that is
/// not TOML.
pub(super) fn too_deep(text: &str) -> Option<usize> {
    let (mut brackets, mut dots, mut at) = (0_usize, 0_usize, 0);
    let bytes = text.as_bytes();
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' | b'\'' => at = string_end(text, at),
            b'#' => at += text[at..].find('\n').unwrap_or(text.len() - at).saturating_sub(1),
            b'[' | b'{' => (brackets, dots) = (brackets + 1, 0),
            b']' | b'}' => (brackets, dots) = (brackets.saturating_sub(1), 0),
            b'=' | b',' | b'\n' => dots = 0,
            b'.' => dots += 1,
            _ => {}
        }
        if brackets > MAX_BRACKETS || dots > MAX_DOTS {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// Parses a text; `None` if it is not TOML or nests too deeply.
pub(super) fn parse(text: &str) -> Option<Table> {
    too_deep(text).is_none().then(|| toml::from_str(text).ok()).flatten()
}

/// The last byte of the string that begins at `begin`.
fn string_end(text: &str, begin: usize) -> usize {
    let quote = &text[begin..=begin];
    let triple = quote.repeat(3);
    let (end, escapes) = match text[begin..].starts_with(&triple) {
        true => (triple.as_str(), quote == "\""),
        false => (quote, quote == "\""),
    };
    let bytes = text.as_bytes();
    let mut at = begin + end.len();
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if escapes => at += 1,
            // A single-line string that is not closed.
            b'\n' if end.len() == 1 => return at - 1,
            _ if bytes[at..].starts_with(end.as_bytes()) => {
                at += end.len() - 1;
                // One or two quotes may precede the end of a multi-line string.
                let most = at + end.len() - 1;
                while at < most && bytes.get(at + 1) == Some(&bytes[begin]) {
                    at += 1;
                }
                return at;
            }
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nesting_beyond_any_plan_is_too_deep() {
        for text in [
            "a.b.c = 1.5\n\"a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s\" = 1",
            "x = 'a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s' # .................. [[[[[[[[[[[[[[[[[[[[\ny = 2",
            "x = \"\"\"\n\\\"[[[[[[[[[[[[[[[[[[[[\"\" \"\"\"",
            "x = '''a'''''\ny = \"[[[[[[[[[[[[[[[[[[[[\"",
            "x = \"\\\"[[[[[[[[[[[[[[[[[[[[\"",
            "x = ['', \"\", '''''', [[1.0, 2.0], [3.0]], { a.b = [{}] }]\n[[t]]\n[t.u.v]",
        ] {
            assert_eq!(too_deep(text), None, "{text}");
        }
        assert_eq!(too_deep(&format!("x = {}", "[".repeat(17))), Some(20));
        assert_eq!(too_deep(&format!("{} = 1", vec!["a"; 18].join("."))), Some(33));
        assert!(too_deep(&format!("{} = 1", vec!["\"a\" "; 18].join("."))).is_some());
        let inline = format!("{}1{}", "a.a.a = {".repeat(17), "}".repeat(17));
        assert!(too_deep(&inline).is_some());
        for quotes in ["\"\"\"", "'''"] {
            let hidden = format!("x = [{quotes}a{quotes}{}, {inline}]", &quotes[..1]);
            assert!(too_deep(&hidden).is_some(), "{hidden}");
            let hidden = format!("x = [{quotes}a{quotes}{}, {inline}]", &quotes[..2]);
            assert!(too_deep(&hidden).is_some(), "{hidden}");
        }
    }

    #[test]
    fn any_text_is_walked_to_its_end() {
        for text in ["\"", "'''", "\"\"\"\\", "#", "\"\\", "'\n'", "é\"é", "\"\"\"é"] {
            assert_eq!(too_deep(text), None, "{text}");
        }
    }
}
