//! Memory for ranges of files that are not on a local disk.
//!
//! sendfile(2) can't be used for them: the page cache may drop such a range before a slow client takes it, and getting it again may take
//! for ever. So it is copied into memory and stays there until it was sent. Ranges wait for memory; tenants take turns, then the
//! clients of one, then the requests of one client. Neither a client that doesn't read nor a device that hangs can use up the memory, and a
//! client that has none of it gets a little in any case.
//!
//! This is no [`Quota`](towpath_quota::Quota): a grant is counted for the client, the device until it is read, and all together at
//! once, may be a part of what was asked for, and what is free is kept for the range that has waited longest.

use crate::server::limits::{
    CLIENT_COPIES_BYTES_MAX, CLIENT_COPIES_BYTES_SURE, COPIES_BYTES_MAX, DEVICE_COPIES_AHEAD_BYTES_MAX,
};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_buffers::PageBuffer;
use towpath_quota::{FairQueue, Order, Turns};

/// Memory of copies, and ranges `W` that wait for it. Used by the event thread only.
pub(crate) struct Copies<W> {
    counts: Arc<Counts>,
    /// A queue for each client that waits, by tenant.
    waiting: Turns<u64, u64, Requests<W>>,
    order: Order,
}

/// The ranges of a client, by request. Those of a request are sent in their order, so they are granted in it: else later ones would take
/// the memory that an earlier one waits for.
type Requests<W> = FairQueue<(), u64, Wanted<W>>;

/// A range that waits for memory.
pub(crate) struct Wanted<W> {
    pub(crate) tenant: u64,
    pub(crate) client: u64,
    pub(crate) request: u64,
    pub(crate) device: u64,
    pub(crate) bytes: usize,
    pub(crate) cut: Cut,
    pub(crate) what: W,
}

/// Whether a grant may cover less than the whole range.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The whole range or nothing.
    Never,
    /// A prefix will do.
    May,
    /// The rest of a range of which a prefix was granted. Comes before all others of its request.
    Was,
}

struct Counts {
    held: Mutex<Held>,
    /// Wakes the event thread.
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Held {
    /// Bytes of all clients, guaranteed minimums excepted.
    bytes: usize,
    clients: HashMap<u64, usize>,
    /// Clients that use their guaranteed minimum, and the request that has it. The request gets no more until it is released: by then the rest
    /// of its range is first in line.
    sure: HashMap<u64, u64>,
    /// Bytes granted and not read yet by device, guaranteed minimums excepted.
    ahead: HashMap<u64, usize>,
    /// Ranges wait.
    is_awaited: bool,
    /// Memory was released since the last attempt.
    is_changed: bool,
}

/// Memory for a range, until this is dropped.
pub(crate) struct Share {
    counts: Arc<Counts>,
    client: u64,
    bytes: usize,
    is_sure: bool,
    /// The device, until the range was read.
    ahead: Option<u64>,
}

/// A range that was read, with its grant.
struct Copy {
    bytes: PageBuffer,
    _share: Share,
}

impl<W> Copies<W> {
    /// `wake` is called on any thread when there may be something for [`Copies::next`].
    pub(crate) fn new(wake: impl Fn() + Send + Sync + 'static) -> Copies<W> {
        let counts = Arc::new(Counts { held: Mutex::default(), wake: Box::new(wake) });
        Copies { counts, waiting: Turns::default(), order: Order::default() }
    }

    /// Queues a piece.
    pub(crate) fn push(&mut self, wanted: Wanted<W>) {
        let (requests, ()) = self.waiting.line(&mut self.order, &wanted.tenant, wanted.client);
        match wanted.cut {
            Cut::Was => requests.push_front(&(), wanted.request, wanted),
            Cut::Never | Cut::May => requests.push(&(), wanted.request, wanted),
        }
        self.counts.lock().is_changed = true;
    }

    /// The next range that memory is granted to. Called until there is none.
    pub(crate) fn next(&mut self) -> Option<(W, Share)> {
        if self.order.is_empty() {
            return None;
        }
        let counts = Arc::clone(&self.counts);
        let mut held = counts.lock();
        if !held.is_changed {
            return None;
        }
        let mut is_kept = false;
        let mut found = None;
        for (_, wanted) in self.waiting.iter(&self.order).flat_map(|(_, requests)| requests.firsts()) {
            if let Some((bytes, is_sure)) = held.space(wanted, &mut is_kept) {
                found = Some((wanted.client, wanted.request, bytes, is_sure));
                break;
            }
        }
        held.is_changed = found.is_some();
        let taken = found.and_then(|(client, request, bytes, is_sure)| {
            let (requests, ()) = self.waiting.get_mut(client)?;
            let wanted = requests.pop(request)?;
            let is_over = requests.is_empty();
            self.waiting.end_turn(&mut self.order, client);
            if is_over {
                self.waiting.remove(&mut self.order, client);
            }
            let share = held.grant(&counts, &wanted, bytes, is_sure);
            Some((wanted.what, share))
        });
        held.is_awaited = !self.order.is_empty();
        taken
    }

    /// Drops the waiting ranges of a client, or of one request.
    pub(crate) fn forget(&mut self, client: u64, request: Option<u64>) {
        let is_over = self.waiting.get_mut(client).is_some_and(|(requests, ())| {
            request.is_none_or(|request| {
                requests.remove(request);
                requests.is_empty()
            })
        });
        if is_over {
            self.waiting.remove(&mut self.order, client);
        }
        let mut held = self.counts.lock();
        // Memory may have been reserved for it.
        held.is_changed = true;
        held.is_awaited = !self.order.is_empty();
    }
}

impl Counts {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases memory.
    fn release(&self, change: impl FnOnce(&mut Held)) {
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
    /// Bytes to grant, and whether they are of the guaranteed minimum. Sets `is_kept` if all free memory is reserved for this range: else a large
    /// one would wait for as long as smaller ones come.
    fn space<W>(&self, wanted: &Wanted<W>, is_kept: &mut bool) -> Option<(usize, bool)> {
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
        // At most half, so that the rest isn't so short that it costs more credit than it has bytes.
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

    /// Attaches the bytes that were read. The memory is released when the last slice of them is dropped.
    pub(crate) fn hold(mut self, bytes: PageBuffer) -> Bytes {
        if let Some(device) = self.ahead.take() {
            self.counts.release(|held| subtract(&mut held.ahead, device, self.bytes));
        }
        Bytes::from_owner(Copy { bytes, _share: self })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Share { client, bytes, is_sure, ahead, .. } = *self;
        self.counts.release(|held| {
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
