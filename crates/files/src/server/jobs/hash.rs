//! Finding the digest of a large file. Requests for the same version of a file share a run.

use super::Answer;
use super::pool::{Context, Done, Pool, Requester};
use crate::digest::{Digest, Digested, FileHasher, FileKey, HashError};
use crate::protocol::ErrorCode;
use crate::root::RootError;
use crate::server::Failure;
use crate::server::open_file::OpenFile;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_blocking::CancelToken;

/// Finds the digest of a file, which has this number in its fetch.
#[derive(Debug)]
pub(crate) struct Hash<F> {
    pub(crate) n: u32,
    pub(crate) file: F,
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Hashed {
    key: FileKey,
    run: u64,
    result: Result<Digest, Failure>,
}

/// Files that are being hashed.
#[derive(Debug, Default)]
pub(crate) struct HashRuns {
    runs: HashMap<FileKey, Run>,
    next: u64,
}

#[derive(Debug)]
struct Run {
    /// One that was cancelled may still report.
    number: u64,
    waiting: Vec<(Requester, u32)>,
    cancel: CancelToken,
    /// Open as long as the run has not begun and is wanted.
    file: Arc<Mutex<Option<OpenFile>>>,
}

impl Hash<OpenFile> {
    pub(super) fn start(self, pool: &mut Pool, requester: Requester) {
        let Hash { n, file } = self;
        let key = FileKey::from(&file.attributes);
        let HashRuns { runs, next } = &mut pool.hash_runs;
        if let Some(run) = runs.get_mut(&key) {
            return run.waiting.push((requester, n));
        }
        *next += 1;
        let (run, device) = (*next, file.attributes.device());
        let cancel = CancelToken::new();
        let file = Arc::new(Mutex::new(Some(file)));
        let waiting = vec![(requester, n)];
        runs.insert(key, Run { number: run, waiting, cancel: cancel.clone(), file: Arc::clone(&file) });

        let done = move |result| Done::Hashed(Hashed { key, run, result });
        let mut progress = None;
        let slice = move |context: &Context| {
            let lock = || file.lock().unwrap_or_else(PoisonError::into_inner);
            let taken = lock().take();
            let Some(source) = taken else {
                if let Some(progress) = progress.take() {
                    context.hasher.keep(progress);
                }
                return Some(done(Err(failure(HashError::GivenUp))));
            };
            match context.hash(&source, &mut progress, &cancel) {
                Ok(None) => {
                    let mut file = lock();
                    // A run is marked as cancelled before its file is taken away.
                    if !cancel.is_cancelled() {
                        *file = Some(source);
                    }
                    None
                }
                Ok(Some(digested)) => Some(done(Ok(digested.digest))),
                Err(failure) => Some(done(Err(failure))),
            }
        };
        pool.submit(&pool.hash, device, requester, move |failure| done(Err(failure)), slice);
    }
}

impl HashRuns {
    /// Hands a run's result to those who wait for it.
    pub(super) fn finish(&mut self, hashed: Hashed, mut deliver: impl FnMut(Requester, Answer<OpenFile>)) {
        let Hashed { key, run, result } = hashed;
        if self.runs.get(&key).is_none_or(|of_key| of_key.number != run) {
            return;
        }
        for (requester, n) in self.runs.remove(&key).map(|run| run.waiting).unwrap_or_default() {
            deliver(requester, Answer::Hash(n, result.clone()));
        }
    }

    /// Ends the waiting of some, and cancels runs that nobody waits for any more.
    pub(super) fn cancel(&mut self, stops: impl Fn(&Requester) -> bool) {
        self.runs.retain(|_, run| {
            run.waiting.retain(|(requester, _)| !stops(requester));
            let goes_on = !run.waiting.is_empty();
            if !goes_on {
                run.cancel.cancel();
                run.file.lock().unwrap_or_else(PoisonError::into_inner).take();
            }
            goes_on
        });
    }
}

impl Context {
    /// Hashes the next slice of a file: see [`Hasher::slice`](super::hasher::Hasher::slice).
    pub(in crate::server) fn hash(
        &self,
        file: &OpenFile,
        progress: &mut Option<FileHasher>,
        cancel: &CancelToken,
    ) -> Result<Option<Arc<Digested>>, Failure> {
        let slice = self.hasher.slice(file, &file.attributes, progress, || cancel.is_cancelled());
        slice.map_err(failure)
    }
}

fn failure(error: HashError) -> Failure {
    match error {
        HashError::Changed => Failure::changed(error.to_string()),
        HashError::SizeUnknown => RootError::SizeUnknown.into(),
        HashError::Io(error) => Failure::io(&error),
        HashError::Refused(error) => error.into(),
        HashError::GivenUp => Failure::new(ErrorCode::Other, error.to_string()),
    }
}
