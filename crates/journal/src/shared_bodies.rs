//! Which bodies in a shared directory the records of a log name.

use super::record::{Record, Stored, What};
use std::collections::HashMap;
use towpath_spool::BodyName;

/// Names of bodies by request. A dead letter has the body of the request that it is a copy of.
#[derive(Default)]
pub(super) struct SharedBodies {
    requests: HashMap<u64, Named>,
    /// How many name each.
    counts: HashMap<BodyName, u32>,
    unneeded: Vec<BodyName>,
}

/// Bodies of one request.
#[derive(Default)]
struct Named {
    request: Option<BodyName>,
    outcome: Option<BodyName>,
}

impl SharedBodies {
    /// Adds a record. Moved records come again.
    pub(super) fn apply(&mut self, record: &Record) {
        match record.what {
            What::Accepted { body: Stored::Shared(place), .. } => {
                let before = self.requests.entry(record.id).or_default().request.replace(place.name);
                self.add(place.name, before);
            }
            What::Finished { body, .. } => {
                let named = match body {
                    Stored::Shared(place) => {
                        let before = self.requests.entry(record.id).or_default().outcome.replace(place.name);
                        self.add(place.name, before);
                        self.requests.get_mut(&record.id)
                    }
                    _ => self.requests.get_mut(&record.id),
                };
                let request = named.and_then(|named| named.request.take());
                self.remove(request);
            }
            What::Forgotten => {
                if let Some(Named { request, outcome }) = self.requests.remove(&record.id) {
                    self.remove(request);
                    self.remove(outcome);
                }
            }
            What::Accepted { .. } | What::Moved { .. } => {}
        }
    }

    fn add(&mut self, name: BodyName, before: Option<BodyName>) {
        *self.counts.entry(name).or_default() += 1;
        self.remove(before);
    }

    fn remove(&mut self, name: Option<BodyName>) {
        let Some(name) = name else { return };
        let Some(count) = self.counts.get_mut(&name) else { return };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&name);
            self.unneeded.push(name);
        }
    }

    pub(super) fn take_unneeded(&mut self) -> Vec<BodyName> {
        std::mem::take(&mut self.unneeded)
    }

    pub(super) fn needs(&self, name: &BodyName) -> bool {
        self.counts.contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_spool::BodyPlace;

    fn accepted(name: u8) -> What<'static> {
        let body = Stored::Shared(BodyPlace { name: [name; 16], length: 1, digest: [0; 32] });
        let expires = crate::Expiry::NEVER;
        What::Accepted { client: [0; 16], number: 1, expires, checksum: 0, letter: None, service: b"a", body }
    }

    #[test]
    fn a_body_is_unneeded_when_no_request_names_it() {
        let mut bodies = SharedBodies::default();
        let apply = |bodies: &mut SharedBodies, id, what| bodies.apply(&Record { id, what, bytes: &[] });
        apply(&mut bodies, 1, accepted(7));
        // A record that was moved, and a dead letter.
        apply(&mut bodies, 1, accepted(7));
        apply(&mut bodies, 2, accepted(7));
        apply(&mut bodies, 1, What::Finished { status: 500, body: Stored::Dropped });
        apply(&mut bodies, 1, What::Forgotten);
        assert!(bodies.needs(&[7; 16]) && bodies.take_unneeded().is_empty());
        let outcome = Stored::Shared(BodyPlace { name: [8; 16], length: 1, digest: [0; 32] });
        apply(&mut bodies, 2, What::Finished { status: 200, body: outcome });
        assert_eq!(bodies.take_unneeded(), [[7; 16]]);
        apply(&mut bodies, 2, What::Forgotten);
        assert_eq!(bodies.take_unneeded(), [[8; 16]]);
        assert!(!bodies.needs(&[7; 16]) && bodies.requests.is_empty() && bodies.counts.is_empty());
    }
}
