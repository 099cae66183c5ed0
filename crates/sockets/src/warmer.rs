//! Threads that read into memory what a peer is to be sent next, while the hub serves the others.

use crate::message::OpenFile;
use crate::page_cache;
use crate::peer::PeerId;
use crate::waker::Waker;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Threads that read at a time: a disk does best with a few.
const THREADS_MAX: usize = 4;

/// A piece of a file that isn't in memory.
#[derive(Debug)]
pub(crate) struct ColdPiece {
    pub(crate) file: Arc<dyn OpenFile>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

#[derive(Default)]
struct State {
    /// At most one for each peer, so they take turns.
    waiting: VecDeque<(PeerId, ColdPiece)>,
    threads: usize,
}

/// Reads for one hub. Its threads are started when there is something to read, and end when there isn't.
pub(crate) struct Warmer {
    state: Arc<Mutex<State>>,
    waker: Waker,
    sender: Sender<PeerId>,
    read: Receiver<PeerId>,
}

impl Warmer {
    pub(crate) fn new(waker: Waker) -> Warmer {
        let (sender, read) = channel();
        Warmer { state: Arc::default(), waker, sender, read }
    }

    /// Has a piece read. The hub is woken when [`Warmer::next`] gives its peer.
    pub(crate) fn begin(&self, peer: PeerId, piece: ColdPiece) {
        {
            let mut state = lock(&self.state);
            state.waiting.push_back((peer, piece));
            if state.threads == THREADS_MAX {
                return;
            }
            state.threads += 1;
        }
        let (state, sender, waker) = (self.state.clone(), self.sender.clone(), self.waker.clone());
        let thread =
            std::thread::Builder::new().name("tow-disk".to_owned()).spawn(move || work(&state, &sender, &waker));
        if thread.is_err() {
            let mut state = lock(&self.state);
            state.threads -= 1;
            if state.threads == 0 {
                // Nobody would ever read them: they are sent as they are, and whoever sends them waits for the disk.
                for (peer, _) in state.waiting.drain(..) {
                    let _ = self.sender.send(peer);
                }
                self.waker.wake();
            }
        }
    }

    /// A peer whose piece has been read, as far as it can be.
    pub(crate) fn next(&self) -> Option<PeerId> {
        self.read.try_recv().ok()
    }

    /// What a peer that is gone was to be sent needn't be read.
    pub(crate) fn forget(&self, peer: PeerId) {
        lock(&self.state).waiting.retain(|(of, _)| *of != peer);
    }
}

impl Drop for Warmer {
    fn drop(&mut self) {
        // The threads end when they have read what they are at: one may hang on a disk that never answers, and nobody waits for it.
        lock(&self.state).waiting.clear();
    }
}

fn work(state: &Mutex<State>, sender: &Sender<PeerId>, waker: &Waker) {
    loop {
        let (peer, piece) = {
            let mut state = lock(state);
            let Some(next) = state.waiting.pop_front() else {
                state.threads -= 1;
                return;
            };
            next
        };
        // Where it can't be read, sending it meets the same, and tells.
        let _ = page_cache::warm(&*piece.file, piece.offset, piece.length);
        // Before the peer goes on: it may be the last who holds the file.
        drop(piece);
        let _ = sender.send(peer);
        waker.wake();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // Nothing that can panic is done under the lock.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
