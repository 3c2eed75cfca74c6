//! Helpers for axes: round tick steps, short numbers, and escaped text.

/// Returns a round step that divides `span` into about `parts` parts.
pub fn round_step(span: f64, parts: f64) -> f64 {
    let rough = span / parts;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0].into_iter().find(|step| step * power >= rough * 0.999_999);
    step.unwrap_or(10.0) * power
}

/// Formats a number with at most three decimal places: `2.5`, not `2.50`.
pub fn short(value: f64) -> String {
    decimal(value, 3)
}

/// Formats a number with at most `digits` decimal places and no trailing zeros.
pub fn decimal(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Escapes text for an element or an attribute.
pub fn escaped(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .map(|c| match c {
            '<' => "&lt;".to_owned(),
            '>' => "&gt;".to_owned(),
            '&' => "&amp;".to_owned(),
            '"' => "&quot;".to_owned(),
            other => other.to_string(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_steps() {
        assert_eq!(
            [round_step(120.0, 8.0), round_step(3.85, 5.0), round_step(0.7, 5.0)],
            [20.0, 1.0, 0.2]
        );
        assert_eq!([short(2.5), short(20.0), short(0.0), short(-0.0001)], ["2.5", "20", "0", "0"]);
    }
}
