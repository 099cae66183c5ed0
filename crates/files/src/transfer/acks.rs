//! Confirmations of installed files, batched: a message for each file would cost both sides more than a small file
//! does.

use std::collections::HashMap;

use super::keys::Counted;
use crate::protocol::control::{Confirm, ConfirmedFile};

/// Files in one message.
const FILES_MAX: usize = 256;

/// Files of each fetch that are in progress, and those that are installed and not confirmed.
#[derive(Debug, Default)]
pub(super) struct Confirmations {
    fetches: HashMap<u32, Fetched, Counted>,
    /// Fetches with a message to send.
    due: Vec<u32>,
}

#[derive(Debug, Default)]
struct Fetched {
    in_progress: usize,
    in_place: Vec<ConfirmedFile>,
}

impl Confirmations {
    /// A file was asked for with a fetch.
    pub(super) fn requested(&mut self, id: u32) {
        self.fetches.entry(id).or_default().in_progress += 1;
    }

    /// A file of a fetch is installed, or won't be: it failed, or was asked for with another fetch.
    pub(super) fn finished(&mut self, id: u32, in_place: Option<ConfirmedFile>) {
        let Some(fetched) = self.fetches.get_mut(&id) else { return };
        fetched.in_progress = fetched.in_progress.saturating_sub(1);
        fetched.in_place.extend(in_place);
        if fetched.in_progress == 0 || fetched.in_place.len() == FILES_MAX {
            self.due.push(id);
        }
    }

    /// The messages that are due: full ones, and the last one of each fetch.
    pub(super) fn take_due(&mut self) -> Vec<Confirm> {
        let due = std::mem::take(&mut self.due);
        due.into_iter().filter_map(|id| self.take(id)).collect()
    }

    /// Whether there is something to confirm.
    pub(super) fn are_due(&self) -> bool {
        let in_place = |id| self.fetches.get(id).is_some_and(|fetched| !fetched.in_place.is_empty());
        self.due.iter().any(in_place)
    }

    fn take(&mut self, id: u32) -> Option<Confirm> {
        let fetched = self.fetches.get_mut(&id)?;
        let files = std::mem::take(&mut fetched.in_place);
        if fetched.in_progress == 0 {
            self.fetches.remove(&id);
        }
        (!files.is_empty()).then_some(Confirm { id, files })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(n: u32) -> ConfirmedFile {
        ConfirmedFile { n, path: Vec::new().into(), digest: None, durable: false }
    }

    fn taken(confirmations: &mut Confirmations) -> Vec<(u32, usize)> {
        confirmations.take_due().iter().map(|confirm| (confirm.id, confirm.files.len())).collect()
    }

    #[test]
    fn confirmations_are_batched_by_fetch() {
        let mut confirmations = Confirmations::default();
        (0..600).for_each(|_| confirmations.requested(1));
        confirmations.requested(2);
        let mut messages = Vec::new();
        for n in 0..599 {
            confirmations.finished(1, Some(file(n)));
            messages.extend(taken(&mut confirmations));
        }
        assert_eq!(messages, [(1, 256), (1, 256)]);
        // One of them is asked for again, with another fetch.
        confirmations.requested(2);
        confirmations.finished(1, None);
        assert_eq!(taken(&mut confirmations), [(1, 87)]);
        confirmations.finished(2, None);
        assert_eq!(taken(&mut confirmations), []);
        confirmations.finished(2, Some(file(0)));
        assert_eq!(taken(&mut confirmations), [(2, 1)]);
        assert!(confirmations.fetches.is_empty());
    }
}
