//! "Did you mean": finds the known word nearest to an unknown one.

/// Other tools' words for keys of a plan and for metrics.
const ALIASES: &[(&str, &str)] = &[
    ("algorithm", "cc"),
    ("bandwidth", "rate"),
    ("bitrate", "rate"),
    ("bottleneck_bw", "rate"),
    ("buffer", "queue"),
    ("bw", "rate"),
    ("congestion", "cc"),
    ("congestion_control", "cc"),
    ("device", "dev"),
    ("dst", "to"),
    ("duration", "length"),
    ("factors", "matrix"),
    ("fairness", "jain_fairness_of_mean"),
    ("fairness_index", "jain_fairness_of_mean"),
    ("iface", "dev"),
    ("interface", "dev"),
    ("ip", "address"),
    ("jain_index", "jain_fairness_of_mean"),
    ("jains_index", "jain_fairness_of_mean"),
    ("latency", "delay"),
    ("parallel", "count"),
    ("pause", "gap"),
    ("qdisc", "queue"),
    ("qlen", "limit"),
    ("repetitions", "repeat"),
    ("sampling", "sample"),
    ("size", "limit"),
    ("src", "from"),
    ("streams", "count"),
    ("sweep", "matrix"),
    ("sysctls", "sysctl"),
    ("trials", "repeat"),
];

/// The candidate that `word` probably means.
pub(crate) fn closest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let alias = ALIASES.iter().find(|(other, _)| *other == lower).map(|&(_, ours)| ours);
    if let Some(found) = alias.and_then(|ours| candidates.iter().find(|c| **c == ours)) {
        return Some(found);
    }
    let longer = candidates.iter().find(|c| lower.len() >= 3 && c.starts_with(&lower));
    if let Some(found) = longer {
        return Some(found);
    }
    candidates
        .iter()
        .map(|c| (distance(&lower, &c.to_lowercase()), *c))
        .filter(|(d, c)| *d <= 2.min(c.chars().count().max(lower.chars().count()) / 2))
        .min_by_key(|(d, _)| *d)
        .map(|(_, c)| c)
}

/// `; did you mean `x`? (known: `a`, `b`)`, or only the list when nothing is near.
pub(crate) fn hint(word: &str, candidates: &[&str], known: &str) -> String {
    format!("{} ({})", near(word, candidates), list_of(candidates, known))
}

/// `; did you mean `x`?`, or nothing when nothing is near.
pub fn near(word: &str, candidates: &[&str]) -> String {
    closest(word, candidates).map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
}

/// `known: `a`, `b``, or `known: none`.
pub(crate) fn list_of(candidates: &[&str], known: &str) -> String {
    let words = if candidates.is_empty() { "none".to_owned() } else { list(candidates) };
    format!("{known}: {words}")
}

/// Maximum number of words in a list; nobody reads more.
const MAX_LISTED: usize = 40;

/// The words, each in backquotes; at most [`MAX_LISTED`].
pub(crate) fn list(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().take(MAX_LISTED).map(|w| format!("`{w}`")).collect();
    let rest = if words.len() > MAX_LISTED { ", ..." } else { "" };
    quoted.join(", ") + rest
}

/// Levenshtein distance in which a swap of two neighbours counts once.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) =
        (a.chars().take(64).collect(), b.chars().take(64).collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_found_and_far_ones_are_not() {
        assert_eq!(closest("lenght", &["name", "length"]), Some("length"));
        assert_eq!(closest("botleneck", &["delay", "bottleneck"]), Some("bottleneck"));
        assert_eq!(closest("duration", &["name", "length"]), Some("length"));
        let metrics = ["srtt", "jain_fairness_of_mean", "jain_fairness"];
        for word in ["fairness", "jain", "jain_index"] {
            assert_eq!(closest(word, &metrics), Some("jain_fairness_of_mean"), "{word}");
        }
        assert_eq!(closest("xyz", &["name", "length"]), None);
        assert_eq!(closest("a", &["b"]), None);
        assert_eq!(hint("x", &[], "links"), " (links: none)");
    }
}
