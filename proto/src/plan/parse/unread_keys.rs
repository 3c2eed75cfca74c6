//! Keys of a plan that could not be read. Rules that depend on them are skipped, because they would only report follow-on
//! errors.

use toml::{Table, Value};

use super::set::split_key;

/// Keys whose values are not those that their author meant.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnreadKeys {
    /// Keys that were dropped, or whose value was replaced by one of the right type.
    keys: Vec<Vec<String>>,
    /// Keys that an unknown key may mean.
    uncertain: Vec<Vec<String>>,
    /// Whether a factor might set anything.
    matrix: bool,
}

impl UnreadKeys {
    /// Records that this key was dropped or replaced.
    pub(crate) fn mark_unread(&mut self, key: Vec<String>) {
        self.keys.push(key);
    }

    /// Records that this key may have another value than it seems to have; segments may be `*`.
    pub(crate) fn mark_uncertain(&mut self, key: Vec<String>) {
        self.uncertain.push(key);
    }

    /// Adds the keys of another set.
    pub(crate) fn join(&mut self, other: Self) {
        self.keys.extend(other.keys);
        self.uncertain.extend(other.uncertain);
        self.matrix |= other.matrix;
    }

    /// Whether all keys could be read.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.uncertain.is_empty() && !self.matrix
    }

    /// Whether a factor with unknown keys is unread.
    pub(crate) fn any_key(&self) -> bool {
        self.matrix
    }

    /// Whether this place was dropped, or is below a place that was.
    pub(crate) fn dropped(&self, place: &[String]) -> bool {
        self.keys.iter().any(|key| under(key, place))
    }

    /// Whether this place is unread or uncertain, or is below a place that is.
    pub(crate) fn covers(&self, place: &[String]) -> bool {
        self.keys.iter().chain(&self.uncertain).any(|key| under(key, place))
    }

    /// Whether a key at, above or below this place is unread or uncertain; `*` stands for any segment.
    pub(crate) fn touches(&self, place: &[&str]) -> bool {
        let same = |(a, b): (&String, &&str)| a == b || a == "*" || *b == "*";
        self.keys.iter().chain(&self.uncertain).any(|key| key.iter().zip(place).all(same))
    }

    /// Records that a factor with this value is dropped, or sets nothing: the keys that it would set are uncertain.
    pub(crate) fn factor(&mut self, name: &str, value: Option<&Value>) {
        let named = split_key(name).ok().filter(|key| key.len() > 1);
        let keys = named.map_or_else(|| value.map(keys_in).unwrap_or_default(), |key| vec![key]);
        self.matrix |= keys.is_empty();
        self.uncertain.extend(keys);
    }

    /// Records the keys that an unknown key of a table may mean.
    pub(crate) fn mark_misspelt(
        &mut self,
        place: &[String],
        table: &Table,
        meant: Option<&str>,
        known: &[&str],
    ) {
        let Some((written, parent)) = place.split_last() else { return };
        let child = |key: &str| [parent, &[key.to_owned()]].concat();
        match meant {
            Some(meant) if !table.contains_key(meant) => self.keys.push(child(meant)),
            _ => {
                let inner = table.get(written).and_then(Value::as_table);
                let maybe = known.iter().filter(|key| meant.is_none_or(|meant| meant == **key));
                for key in maybe {
                    if !table.contains_key(*key) {
                        self.uncertain.push(child(key));
                    }
                    for name in inner.into_iter().flat_map(Table::keys) {
                        self.uncertain.push([&child(key)[..], std::slice::from_ref(name)].concat());
                    }
                }
            }
        }
    }

    /// The keys that a level of a factor would set if they could be read.
    pub(crate) fn of_level(&self, factor: &str, level: &str) -> Vec<Vec<String>> {
        let of = |key: &Vec<String>| match &key[..] {
            [matrix, f, l, key, ..] if matrix == "matrix" && f == factor && l == level => {
                split_key(key).ok()
            }
            _ => None,
        };
        self.keys.iter().filter_map(of).collect()
    }
}

/// Whether the place is the key or is below it.
fn under(key: &[String], place: &[String]) -> bool {
    key.len() <= place.len() && key.iter().zip(place).all(|(a, b)| a == b || a == "*" || b == "*")
}

/// The dotted keys that are written anywhere in a value.
fn keys_in(value: &Value) -> Vec<Vec<String>> {
    let mut keys: Vec<Vec<String>> = Vec::new();
    match value {
        Value::Table(table) => {
            for (key, inner) in table {
                match split_key(key) {
                    Ok(segments) if segments.len() > 1 => keys.push(segments),
                    _ => keys.extend(keys_in(inner)),
                }
            }
        }
        Value::Array(items) => keys.extend(items.iter().flat_map(keys_in)),
        _ => {}
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Vec<String> {
        text.split('.').map(str::to_owned).collect()
    }

    #[test]
    fn unread_key_touches_parents_and_children() {
        let mut unread_keys = UnreadKeys::default();
        unread_keys.mark_unread(key("links.l.queue"));
        assert!(
            unread_keys.touches(&["links"])
                && unread_keys.touches(&["links", "*", "queue", "limit"])
        );
        assert!(
            !unread_keys.touches(&["links", "l", "rate"]) && !unread_keys.touches(&["links", "m"])
        );
        assert!(
            unread_keys.dropped(&key("links.l.queue.kind"))
                && !unread_keys.dropped(&key("links.l"))
        );
        unread_keys.mark_uncertain(key("flows.*.cc"));
        assert!(unread_keys.covers(&key("flows.a.cc")) && !unread_keys.dropped(&key("flows.a.cc")));
    }

    #[test]
    fn keys_of_unreadable_factor_are_in_doubt() {
        let value: Table = toml::from_str("v = [{ few = { \"flows.a.count\" = 1 } }]").unwrap();
        let mut unread_keys = UnreadKeys::default();
        unread_keys.factor("x", value.get("v"));
        assert!(unread_keys.touches(&["flows", "a", "count"]) && !unread_keys.any_key());
        unread_keys.factor("links.l.rate", None);
        assert!(unread_keys.touches(&["links", "l", "rate"]) && !unread_keys.any_key());
        unread_keys.factor("scheme", Some(&Value::Integer(1)));
        assert!(unread_keys.any_key());
    }
}
