//! Memory for ranges of files that are not on a local disk.
//!
//! sendfile(2) can't be used for them: the page cache may drop such a range before a slow client takes it, and getting it again may take
//! for ever. So it is copied into memory and stays there until it was sent. Ranges wait for memory; clients take turns, and so do the
//! requests of one. Neither a client that doesn't read nor a device that hangs can use up the memory, and a client that has none of it
//! gets a little in any case.
//!
//! This is no [`Quota`](towpath_quota::Quota): a grant is counted for the client, the device until it is read, and all together at
//! once, may be a part of what was asked for, and what is free is kept for the range that has waited longest.

use crate::server::limits::{
    CLIENT_COPIES_BYTES_MAX, CLIENT_COPIES_BYTES_SURE, COPIES_BYTES_MAX, DEVICE_COPIES_AHEAD_BYTES_MAX,
};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_buffers::PageBuffer;
use towpath_quota::FairQueue;

/// What is copied, and ranges `W` that wait for memory. Used by the event thread only.
pub(crate) struct Copies<W> {
    counts: Arc<Counts>,
    /// By client and request. The ranges of a request are sent in their order, so they are granted in it: else later ones would take
    /// the memory that an earlier one waits for.
    waiting: HashMap<u64, FairQueue<u64, Wanted<W>>>,
    /// The clients of `waiting` in the order of their turns, each once.
    turns: VecDeque<u64>,
}

/// A piece that needs room.
pub(crate) struct Wanted<W> {
    pub(crate) client: u64,
    pub(crate) request: u64,
    pub(crate) device: u64,
    pub(crate) bytes: usize,
    pub(crate) cut: Cut,
    pub(crate) what: W,
}

/// Whether there may be room for less than all of a piece.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// It is sent as one, or waits.
    Never,
    /// Its beginning will do.
    May,
    /// It was: this is what is left, and comes before all that waits of its request.
    Was,
}

struct Counts {
    held: Mutex<Held>,
    /// Has the event thread look again.
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Held {
    /// Of all clients, less what was sure.
    bytes: usize,
    clients: HashMap<u64, usize>,
    /// Clients that have what is sure, and the request that has it. It gets no more before that is gone: by then what was cut off is the
    /// first that waits for it.
    sure: HashMap<u64, u64>,
    /// What was granted and isn't read, less what was sure, by device.
    ahead: HashMap<u64, usize>,
    /// Something waits.
    is_awaited: bool,
    /// There is more room than when it was last looked for.
    is_changed: bool,
}

/// Room for a piece, as long as this is there.
pub(crate) struct Share {
    counts: Arc<Counts>,
    client: u64,
    bytes: usize,
    is_sure: bool,
    /// The device, until the piece was read from it.
    ahead: Option<u64>,
}

/// A piece that was read, with the room that it takes.
struct Copy {
    bytes: PageBuffer,
    _share: Share,
}

impl<W> Copies<W> {
    /// `wake` is called on any thread when there may be something for [`Copies::next`].
    pub(crate) fn new(wake: impl Fn() + Send + Sync + 'static) -> Copies<W> {
        let counts = Arc::new(Counts { held: Mutex::default(), wake: Box::new(wake) });
        Copies { counts, waiting: HashMap::new(), turns: VecDeque::new() }
    }

    /// Queues a piece.
    pub(crate) fn push(&mut self, wanted: Wanted<W>) {
        let client = wanted.client;
        let queue = self.waiting.entry(client).or_insert_with(|| {
            self.turns.push_back(client);
            FairQueue::default()
        });
        match wanted.cut {
            Cut::Was => queue.push_front(wanted.request, wanted),
            Cut::Never | Cut::May => queue.push(wanted.request, wanted),
        }
        self.counts.lock().is_changed = true;
    }

    /// The next piece that has room, and its room. To be asked until there is none.
    pub(crate) fn next(&mut self) -> Option<(W, Share)> {
        if self.turns.is_empty() {
            return None;
        }
        let counts = Arc::clone(&self.counts);
        let mut held = counts.lock();
        if !held.is_changed {
            return None;
        }
        let mut is_kept = false;
        let mut found = None;
        'turns: for (turn, client) in self.turns.iter().enumerate() {
            for (request, wanted) in self.waiting.get(client).into_iter().flat_map(FairQueue::firsts) {
                if let Some((bytes, is_sure)) = held.room(wanted, &mut is_kept) {
                    found = Some((turn, request, bytes, is_sure));
                    break 'turns;
                }
            }
        }
        held.is_changed = found.is_some();
        let taken = found.and_then(|(turn, request, bytes, is_sure)| {
            let wanted = self.pop(turn, request)?;
            let share = held.grant(&counts, &wanted, bytes, is_sure);
            Some((wanted.what, share))
        });
        held.is_awaited = !self.turns.is_empty();
        taken
    }

    /// Removes the first range of a request of the client whose turn it is. The client's next turn comes after those of all others.
    fn pop(&mut self, turn: usize, request: u64) -> Option<Wanted<W>> {
        let client = self.turns.remove(turn)?;
        let queue = self.waiting.get_mut(&client)?;
        let wanted = queue.pop(request)?;
        if queue.is_empty() {
            self.waiting.remove(&client);
        } else {
            self.turns.push_back(client);
        }
        Some(wanted)
    }

    /// Drops what a client has waiting, or only what is for one request of it.
    pub(crate) fn forget(&mut self, client: u64, request: Option<u64>) {
        let Some(queue) = self.waiting.get_mut(&client) else { return };
        if let Some(request) = request {
            queue.remove(request);
        }
        if request.is_none() || queue.is_empty() {
            self.waiting.remove(&client);
            self.turns.retain(|of| *of != client);
        }
        let mut held = self.counts.lock();
        // Room may have been kept for it.
        held.is_changed = true;
        held.is_awaited = !self.turns.is_empty();
    }
}

impl Counts {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives room back.
    fn give_back(&self, change: impl FnOnce(&mut Held)) {
        let mut held = self.lock();
        change(&mut held);
        held.is_changed = true;
        let is_awaited = held.is_awaited;
        drop(held);
        if is_awaited {
            (self.wake)();
        }
    }
}

impl Held {
    /// How many bytes of what is wanted there is room for, and whether they are of what is sure. `is_kept` becomes true where
    /// all that is free is kept for this piece: else one that is large would wait for as long as there are smaller ones.
    fn room<W>(&self, wanted: &Wanted<W>, is_kept: &mut bool) -> Option<(usize, bool)> {
        let Wanted { client, request, device, bytes, cut, .. } = *wanted;
        if self.sure.get(&client) == Some(&request) {
            return None;
        }
        let is_within = |held: Option<&usize>, most| held.is_none_or(|held| held + bytes <= most);
        let of_client = self.clients.get(&client);
        if is_within(of_client, CLIENT_COPIES_BYTES_MAX)
            && is_within(self.ahead.get(&device), DEVICE_COPIES_AHEAD_BYTES_MAX)
        {
            if !*is_kept && (self.bytes == 0 || self.bytes + bytes <= COPIES_BYTES_MAX) {
                return Some((bytes, false));
            }
            *is_kept = true;
        }
        if of_client.is_some() {
            return None;
        }
        if bytes <= CLIENT_COPIES_BYTES_SURE {
            return Some((bytes, true));
        }
        // What is left isn't so short that it would cost more credit than it has bytes.
        (cut != Cut::Never).then_some((CLIENT_COPIES_BYTES_SURE.min(bytes / 2), true))
    }

    fn grant<W>(&mut self, counts: &Arc<Counts>, wanted: &Wanted<W>, bytes: usize, is_sure: bool) -> Share {
        let Wanted { client, request, device, .. } = *wanted;
        *self.clients.entry(client).or_default() += bytes;
        if is_sure {
            self.sure.insert(client, request);
        } else {
            self.bytes += bytes;
            *self.ahead.entry(device).or_default() += bytes;
        }
        Share { counts: Arc::clone(counts), client, bytes, is_sure, ahead: (!is_sure).then_some(device) }
    }
}

fn subtract(counts: &mut HashMap<u64, usize>, key: u64, bytes: usize) {
    if let Some(count) = counts.get_mut(&key) {
        *count = count.saturating_sub(bytes);
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

impl Share {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The piece was read: it keeps its room until the last of it is gone.
    pub(crate) fn hold(mut self, bytes: PageBuffer) -> Bytes {
        if let Some(device) = self.ahead.take() {
            self.counts.give_back(|held| subtract(&mut held.ahead, device, self.bytes));
        }
        Bytes::from_owner(Copy { bytes, _share: self })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Share { client, bytes, is_sure, ahead, .. } = *self;
        self.counts.give_back(|held| {
            subtract(&mut held.clients, client, bytes);
            if let Some(device) = ahead {
                subtract(&mut held.ahead, device, bytes);
            }
            if is_sure {
                held.sure.remove(&client);
            } else {
                held.bytes = held.bytes.saturating_sub(bytes);
            }
        });
    }
}

impl AsRef<[u8]> for Copy {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests;
