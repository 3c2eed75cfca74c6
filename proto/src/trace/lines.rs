//! Lines and columns of traces in text.

/// Lines with their numbers from 1, without empty lines and comments (`#`).
pub(super) fn lines(text: &str) -> impl Iterator<Item = (u32, &str)> {
    (1..)
        .zip(text.lines())
        .map(|(number, line)| (number, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// The columns of a line, separated by commas or semicolons if the line has any, otherwise by whitespace.
pub(super) fn fields(line: &str) -> impl Iterator<Item = &str> {
    let separated = line.contains([',', ';']);
    line.split(move |c: char| if separated { matches!(c, ',' | ';') } else { c.is_whitespace() })
        .map(str::trim)
        .filter(move |field| separated || !field.is_empty())
}

/// The first 60 characters of a line. Control characters are escaped, quotes are not.
pub(super) fn shown(line: &str) -> String {
    let short: String = line.chars().take(60).collect();
    let dots = if short.len() < line.len() { "..." } else { "" };
    let mut text = String::new();
    for character in short.chars() {
        match character {
            '"' | '\'' | '\\' => text.push(character),
            other => text.extend(other.escape_debug()),
        }
    }
    text + dots
}
