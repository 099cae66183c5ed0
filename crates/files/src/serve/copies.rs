//! Copies of pieces of files that are not on a local disk: who may have how many octets of them.
//!
//! Such a piece can't be left to sendfile(2): the page cache may drop it before a slow client takes it, and getting it again may take
//! for ever. So it is read into memory and stays there until it was sent. What has no room waits. Clients and devices take turns;
//! neither one client that doesn't read nor one device that hangs can have all of the room; and a client that has nothing of it gets
//! a little in any case, so that everybody goes on whatever others do.

use super::limits::{
    CLIENT_COPIES_BYTES_MAX, CLIENT_COPIES_BYTES_SURE, COPIES_BYTES_MAX, DEVICE_COPIES_AHEAD_BYTES_MAX,
};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A client and a device: what waits for the same of both waits in its order.
type Line = (u64, u64);

/// What is copied, and pieces `W` that wait for their room. Those are handed out by the event thread only.
pub(super) struct Copies<W> {
    counts: Arc<Counts>,
    /// None of them is empty.
    waiting: HashMap<Line, VecDeque<Wanted<W>>>,
    /// In the order of their turns, each once.
    turns: VecDeque<Line>,
}

struct Wanted<W> {
    bytes: usize,
    may_be_cut: bool,
    what: W,
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
    /// What was granted and isn't read, less what was sure, by device.
    ahead: HashMap<u64, usize>,
    /// Something waits.
    is_awaited: bool,
    /// There is more room than when it was last looked for.
    is_changed: bool,
}

/// Room for a piece, as long as this is there.
pub(super) struct Share {
    counts: Arc<Counts>,
    client: u64,
    bytes: usize,
    is_sure: bool,
    /// The device, until the piece was read from it.
    ahead: Option<u64>,
}

/// A piece that was read, with the room that it takes.
struct Copy {
    octets: Vec<u8>,
    _share: Share,
}

impl<W> Copies<W> {
    /// `wake` is called on any thread when there may be something for [`Copies::next`].
    pub(super) fn new(wake: impl Fn() + Send + Sync + 'static) -> Copies<W> {
        let counts = Arc::new(Counts { held: Mutex::default(), wake: Box::new(wake) });
        Copies { counts, waiting: HashMap::new(), turns: VecDeque::new() }
    }

    /// Queues a piece. One that may be cut may be given room for its beginning only.
    pub(super) fn push(&mut self, client: u64, device: u64, bytes: usize, may_be_cut: bool, what: W) {
        let line = (client, device);
        let waiting = self.waiting.entry(line).or_default();
        if waiting.is_empty() {
            self.turns.push_back(line);
        }
        waiting.push_back(Wanted { bytes, may_be_cut, what });
        self.counts.lock().is_changed = true;
    }

    /// The next piece that has room, and its room. To be asked until there is none.
    pub(super) fn next(&mut self) -> Option<(W, Share)> {
        if self.turns.is_empty() {
            return None;
        }
        let counts = Arc::clone(&self.counts);
        let mut held = counts.lock();
        if !held.is_changed {
            return None;
        }
        let mut is_kept = false;
        for at in 0..self.turns.len() {
            let Some(&line) = self.turns.get(at) else { break };
            let Some(wanted) = self.waiting.get(&line).and_then(VecDeque::front) else { continue };
            if let Some((bytes, is_sure)) = held.room(line, wanted, &mut is_kept) {
                let what = self.take(at, line)?;
                let share = held.grant(&counts, line, bytes, is_sure);
                held.is_awaited = !self.turns.is_empty();
                return Some((what, share));
            }
        }
        held.is_changed = false;
        held.is_awaited = true;
        None
    }

    /// Takes the first of a line, and puts the line behind all others.
    fn take(&mut self, at: usize, line: Line) -> Option<W> {
        self.turns.remove(at);
        let waiting = self.waiting.get_mut(&line)?;
        let wanted = waiting.pop_front()?;
        if waiting.is_empty() {
            self.waiting.remove(&line);
        } else {
            self.turns.push_back(line);
        }
        Some(wanted.what)
    }

    /// Drops what a client has waiting and doesn't want any more.
    pub(super) fn forget(&mut self, client: u64, is_unwanted: impl Fn(&W) -> bool) {
        if self.turns.is_empty() {
            return;
        }
        for (_, waiting) in self.waiting.iter_mut().filter(|((of, _), _)| *of == client) {
            waiting.retain(|wanted| !is_unwanted(&wanted.what));
        }
        self.waiting.retain(|_, waiting| !waiting.is_empty());
        self.turns.retain(|line| self.waiting.contains_key(line));
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
    /// How many octets of what is wanted there is room for, and whether they are of what is sure. `is_kept` becomes true where
    /// all that is free is kept for this piece: else one that is large would wait for as long as there are smaller ones.
    fn room<W>(&self, (client, device): Line, wanted: &Wanted<W>, is_kept: &mut bool) -> Option<(usize, bool)> {
        let Wanted { bytes, may_be_cut, .. } = *wanted;
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
        // What is left isn't so short that it would cost more credit than it has octets.
        may_be_cut.then_some((CLIENT_COPIES_BYTES_SURE.min(bytes / 2), true))
    }

    fn grant(&mut self, counts: &Arc<Counts>, (client, device): Line, bytes: usize, is_sure: bool) -> Share {
        *self.clients.entry(client).or_default() += bytes;
        if !is_sure {
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
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The piece was read: it keeps its room until the last of it is gone.
    pub(super) fn hold(mut self, octets: Vec<u8>) -> Bytes {
        if let Some(device) = self.ahead.take() {
            self.counts.give_back(|held| subtract(&mut held.ahead, device, self.bytes));
        }
        Bytes::from_owner(Copy { octets, _share: self })
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
            if !is_sure {
                held.bytes = held.bytes.saturating_sub(bytes);
            }
        });
    }
}

impl AsRef<[u8]> for Copy {
    fn as_ref(&self) -> &[u8] {
        &self.octets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const MIB: usize = 1 << 20;

    fn copies() -> (Copies<usize>, Arc<AtomicUsize>) {
        let woken = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&woken);
        let wake = move || {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        (Copies::new(wake), woken)
    }

    fn all(copies: &mut Copies<usize>) -> Vec<(usize, Share)> {
        std::iter::from_fn(|| copies.next()).collect()
    }

    fn is_empty<W>(copies: &Copies<W>) -> bool {
        let held = copies.counts.lock();
        held.bytes == 0 && held.clients.is_empty() && held.ahead.is_empty()
    }

    /// As a worker does: from then on the device has no part in it.
    fn read(shares: Vec<(usize, Share)>) -> Vec<Bytes> {
        shares.into_iter().map(|(_, share)| share.hold(Vec::new())).collect()
    }

    #[test]
    fn a_client_that_reads_nothing_and_a_device_that_hangs_leave_room_for_others() {
        let (mut copies, woken) = copies();
        for number in 0..100 {
            copies.push(1, 7, 4 * MIB, true, number);
        }
        // What is asked of a device and not read: the rest waits though there is room.
        let hang = all(&mut copies);
        assert_eq!(hang.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1]);
        // Of another device the same client gets more, and other clients do.
        copies.push(1, 8, MIB, false, 200);
        copies.push(2, 8, MIB, false, 201);
        assert_eq!(read(all(&mut copies)).len(), 2);
        // What is read and not taken.
        woken.store(0, Ordering::Relaxed);
        let mut unread = read(hang);
        assert!(woken.load(Ordering::Relaxed) > 0);
        loop {
            let more = read(all(&mut copies));
            if more.is_empty() {
                break;
            }
            unread.extend(more);
        }
        assert_eq!(unread.len(), CLIENT_COPIES_BYTES_MAX / (4 * MIB));
        copies.push(2, 7, 16 * MIB, false, 300);
        assert_eq!(read(all(&mut copies)).len(), 1);
        drop(unread);
        copies.forget(1, |_| true);
        assert!(copies.next().is_none());
        assert!(is_empty(&copies));
    }

    #[test]
    fn where_there_is_no_room_everybody_gets_a_little() {
        let (mut copies, woken) = copies();
        let mut hogs = Vec::new();
        for client in 1..=2 {
            for _ in 0..4 {
                copies.push(client, 7, 4 * MIB, true, 0);
                hogs.extend(read(all(&mut copies)));
            }
        }
        assert_eq!(hogs.len(), 8);
        copies.push(3, 7, 4 * MIB, true, 3);
        copies.push(3, 7, 4 * MIB, true, 4);
        copies.push(4, 7, 250_000, false, 5);
        // Only as a whole: it waits.
        copies.push(5, 7, MIB, false, 6);
        let little = all(&mut copies);
        let bytes: Vec<_> = little.iter().map(|(number, share)| (*number, share.bytes())).collect();
        assert_eq!(bytes, [(3, CLIENT_COPIES_BYTES_SURE), (5, 250_000)]);
        // Whoever has his little waits for it to be gone.
        drop(little);
        let next = all(&mut copies);
        assert_eq!(next.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [4]);
        // The room that comes free is kept for what has waited longest, however many small ones come.
        woken.store(0, Ordering::Relaxed);
        copies.push(6, 8, 16 * MIB, false, 7);
        hogs.pop();
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        assert_eq!(all(&mut copies).iter().map(|(number, _)| *number).collect::<Vec<_>>(), [6]);
        hogs.pop();
        copies.push(9, 7, MIB, false, 9);
        assert!(copies.next().is_none());
        hogs.truncate(4);
        assert_eq!(all(&mut copies).iter().map(|(number, _)| *number).collect::<Vec<_>>(), [7]);
        drop(next);
        drop(hogs);
        assert_eq!(all(&mut copies).iter().map(|(number, _)| *number).collect::<Vec<_>>(), [9]);
        assert!(is_empty(&copies));
    }

    proptest! {
        #[test]
        fn whatever_comes_and_goes_nothing_is_lost_and_nothing_too_much(
            tape in proptest::collection::vec((0u8..6, 0u64..5, 0u64..3, 1usize..20 * MIB, any::<bool>()), 0..200),
        ) {
            let (mut copies, _) = copies();
            let (mut shares, mut read) = (Vec::new(), Vec::new());
            let (mut waiting, mut gone) = (Vec::new(), 100);
            for (number, (what, client, device, bytes, may_be_cut)) in tape.into_iter().enumerate() {
                match what {
                    0..=2 => {
                        copies.push(client, device, bytes, may_be_cut, number);
                        waiting.push((number, client, bytes, may_be_cut));
                    }
                    3 if !shares.is_empty() => {
                        let share: Share = shares.swap_remove(bytes % shares.len());
                        read.push(share.hold(Vec::new()));
                    }
                    4 if !read.is_empty() => drop(read.swap_remove(bytes % read.len())),
                    5 if gone > 0 => {
                        gone -= 1;
                        copies.forget(client, |number| may_be_cut || number % 2 == 0);
                        waiting.retain(|(number, of, ..)| *of != client || !may_be_cut && number % 2 != 0);
                    }
                    _ => {}
                }
                while let Some((number, share)) = copies.next() {
                    let at = waiting.iter().position(|(of, ..)| *of == number).unwrap();
                    let (_, client, bytes, may_be_cut) = waiting.remove(at);
                    prop_assert_eq!(share.client, client);
                    prop_assert!(share.bytes == bytes || may_be_cut && share.bytes < bytes && share.bytes <= CLIENT_COPIES_BYTES_SURE);
                    shares.push(share);
                }
                prop_assert!(copies.counts.lock().bytes <= COPIES_BYTES_MAX);
            }
            // When all that is held goes, all that waits comes.
            loop {
                shares.clear();
                read.clear();
                let more = all(&mut copies);
                if more.is_empty() {
                    break;
                }
                for (number, _) in &more {
                    waiting.retain(|(of, ..)| of != number);
                }
            }
            prop_assert!(waiting.is_empty());
            prop_assert!(is_empty(&copies));
        }
    }
}
