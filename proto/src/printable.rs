//! Text that a file, a peer or another program supplied, made safe to print. A terminal interprets escape sequences, and
//! bidirectional controls reorder the text on it, so the text must contain neither. Pure.

use std::borrow::Cow;

/// Whether a terminal or an editor acts on this character instead of showing it.
fn is_control_or_bidi(c: char) -> bool {
    match c {
        // ESC, CSI (U+009B), OSC (U+009D) ...
        c if c.is_control() => true,
        // Bidirectional marks, embeddings, overrides and isolates.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            true
        }
        // Line and paragraph separators.
        '\u{2028}' | '\u{2029}' => true,
        _ => false,
    }
}

fn escaped(text: &str, keep: &[char]) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match is_control_or_bidi(c) && !keep.contains(&c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out
}

/// Makes one line printable: line breaks are escaped too (`\n`).
pub fn line(text: &str) -> Cow<'_, str> {
    match text.contains(is_control_or_bidi) {
        true => Cow::Owned(escaped(text, &['\t'])),
        false => Cow::Borrowed(text),
    }
}

/// Makes lines printable that this program composed of possibly foreign parts.
pub fn text(text: &str) -> Cow<'_, str> {
    match text.contains(is_control_or_bidi) {
        true => Cow::Owned(escaped(text, &['\t', '\n'])),
        false => Cow::Borrowed(text),
    }
}

/// Makes a message printable. All lines but the first are indented, so that none looks like a message of its own.
pub fn message(text: &str) -> Cow<'_, str> {
    if !text.contains(is_control_or_bidi) {
        return Cow::Borrowed(text);
    }
    let escaped = escaped(text, &['\t', '\n']);
    let mut out = String::with_capacity(escaped.len());
    for (at, line) in escaped.split('\n').enumerate() {
        let indent = at > 0 && !line.is_empty() && !line.starts_with([' ', '\t']);
        out.push_str(if at > 0 { "\n" } else { "" });
        out.push_str(if indent { "  " } else { "" });
        out.push_str(line);
    }
    Cow::Owned(out)
}

/// Makes a JSON document printable: characters are escaped as in JSON. Its own line breaks remain.
pub fn json(document: &str) -> Cow<'_, str> {
    if !document.contains(is_control_or_bidi) {
        return Cow::Borrowed(document);
    }
    let mut out = String::with_capacity(document.len());
    for c in document.chars() {
        // All these characters are in the Basic Multilingual Plane and within strings: outside, JSON has no control characters but
        // white space.
        match is_control_or_bidi(c) && !matches!(c, '\n' | '\r' | '\t') {
            true => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A title, a colour, the same by C1 bytes, an override, an isolate, line breaks of all kinds.
    const HOSTILE: &str = "a\u{1b}]0;t\u{7}b\u{1b}[31mc\u{9b}31md\u{9d}0;t\u{9c}e\u{202e}f\u{2066}g\r\nh\u{2028}i\u{7f}";

    #[test]
    fn nothing_is_left_on_which_a_terminal_acts() {
        let shown = r"a\u{1b}]0;t\u{7}b\u{1b}[31mc\u{9b}31md\u{9d}0;t\u{9c}e\u{202e}f\u{2066}g";
        assert_eq!(line(HOSTILE), format!(r"{shown}\r\nh\u{{2028}}i\u{{7f}}"));
        assert_eq!(text(HOSTILE), format!("{shown}\\r\nh\\u{{2028}}i\\u{{7f}}"));
        assert_eq!(message(HOSTILE), format!("{shown}\\r\n  h\\u{{2028}}i\\u{{7f}}"));
        assert_eq!(message("a\n  b\n\nerror: c\n"), "a\n  b\n\n  error: c\n");
    }

    #[test]
    fn readable_text_is_unchanged() {
        for readable in ["", "größer → 10 µs\tб", "עברית", "👩‍🔬 a b"] {
            assert_eq!((line(readable), text(readable)), (readable.into(), readable.into()));
            assert_eq!((message(readable), json(readable)), (readable.into(), readable.into()));
        }
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let value = serde_json::json!({ "a": HOSTILE });
        let document = format!("{value:#}");
        let escaped = json(&document);
        assert!(!escaped.replace('\n', "").contains(is_control_or_bidi));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }

    proptest! {
        #[test]
        fn escaped_text_has_no_control_characters(any in "(\\PC|\\pC|\u{9b}|\u{202e}){0,40}") {
            prop_assert!(!line(&any).replace('\t', "").contains(is_control_or_bidi));
            prop_assert!(!text(&any).replace(['\t', '\n'], "").contains(is_control_or_bidi));
            prop_assert!(!message(&any).replace(['\t', '\n'], "").contains(is_control_or_bidi));
        }
    }
}
