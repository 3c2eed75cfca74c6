//! Counts the open connections of each client, so that one client cannot keep the others out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Limit of concurrent connections per certificate: one for each run of its holder, and some that are ending.
pub(super) const MAX_PER_CLIENT: usize = 16;

/// The place of a connection. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct Place {
    _of_client: Arc<()>,
}

/// The clients with open connections, each with one reference per connection.
#[derive(Debug, Default)]
pub(super) struct PerClient(Mutex<BTreeMap<String, Weak<()>>>);

impl PerClient {
    /// Takes a place for a connection of this client; returns `None` if it has [`MAX_PER_CLIENT`].
    pub(super) fn take(&self, client: &str) -> Option<Place> {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|_, places| places.strong_count() > 0);
        let taken = clients.get(client).map_or(0, Weak::strong_count);
        if taken >= MAX_PER_CLIENT {
            return None;
        }
        let existing = clients.get(client).and_then(Weak::upgrade);
        let of_client = existing.unwrap_or_default();
        clients.insert(client.to_owned(), Arc::downgrade(&of_client));
        Some(Place { _of_client: of_client })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_a_limit_of_its_own() {
        let all = PerClient::default();
        let mut places: Vec<Place> =
            (0..MAX_PER_CLIENT).map(|_| all.take("alice").unwrap()).collect();
        assert!(all.take("alice").is_none());
        assert!(all.take("bob").is_some());
        places.pop();
        assert!(all.take("alice").is_some(), "dropped at once");
        places.push(all.take("alice").unwrap());
        assert!(all.take("alice").is_none());
        drop(places);
        assert!(all.take("bob").is_some());
        assert_eq!(all.0.lock().unwrap().len(), 1, "clients that are gone are forgotten");
    }
}
