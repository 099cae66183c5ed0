//! Large bodies of a cell in a bucket of S3.
//!
//! A body is an object, `NAME/DIGITS.body` below the prefix, which is put in parts before any record names it. The broker that has put it sends it from its
//! own spool. One that leads later fetches it when it is sent, once, into a file of its own, and sends no last byte before the digest is right.

use bytes::Bytes;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use towpath_objects::{Bucket, Error, Kind, ObjectUrl, Options, Reading};
use towpath_requests::LargeBody;
use towpath_sockets::ComingFile;
use towpath_spool::{BodyName, BodyPlace, FreshBody, SharedBodies, Spool, SpooledBody};

/// Length of parts. A body of this many parts, S3's most, has 78 GiB.
const PART_BYTES: u64 = 8 << 20;
const PARTS_MAX: u64 = 10_000;
/// Parts of a body that are put at a time. Each is in memory.
const PARTS_AT_A_TIME: usize = 4;
/// For how long an answer of the store shows that it is there.
const KNOWN_FOR: Duration = Duration::from_secs(30);
/// Objects that one look for leftovers takes.
const LISTED_MAX: usize = 100_000;
/// How often a body's content is asked for again without a byte of it.
const RETRIES_MAX: u32 = 3;
/// An object that shows that the place was made, and the store's time.
const CLOCK: &str = "clock";

/// A bucket of large bodies.
#[derive(Clone, Debug)]
pub struct BucketBodies(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bucket: Bucket,
    spool: Spool,
    /// When the store last did what it was asked to, or why not.
    known: Mutex<Option<Result<Instant, String>>>,
}

impl BucketBodies {
    /// The bodies of a cell below a prefix. Copies are in `spool`, or in the default directory.
    pub fn open(url: &str, cell: &str, spool: Option<&Path>) -> Result<BucketBodies, String> {
        let mut url: ObjectUrl = url.parse()?;
        url.prefix = url.key(cell);
        let bucket = Bucket::open(&url, &Options::default()).map_err(|error| error.to_string())?;
        let spool = Spool::open(spool).map_err(|error| format!("no place for large bodies: {error}"))?;
        Ok(BucketBodies(Arc::new(Inner { bucket, spool, known: Mutex::default() })))
    }

    fn noted<T>(&self, done: Result<T, Error>) -> io::Result<T> {
        let known = match &done {
            Err(error) if error.kind != Kind::NotFound => Err(error.to_string()),
            _ => Ok(Instant::now()),
        };
        *self.0.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
        done.map_err(as_io)
    }

    fn known(&self) -> Option<Result<Instant, String>> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn look(&self) -> io::Result<SystemTime> {
        let bucket = &self.0.bucket;
        let made = bucket.head(CLOCK).and_then(|_| {
            bucket.put(CLOCK, Bytes::from_static(b"when a broker last looked\n"), &Vec::new())?;
            bucket.head(CLOCK)
        });
        if let Err(error) = &made
            && error.kind == Kind::NotFound
        {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "it wasn't made: tow queue init --bodies makes it, once",
            ));
        }
        self.noted(made).map(|clock| clock.modified)
    }

    /// Puts a body, and returns its digest.
    fn put(&self, key: &str, body: &SpooledBody) -> io::Result<[u8; 32]> {
        if body.length() > PARTS_MAX * PART_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a body in a bucket has 78 GiB at most"));
        }
        let upload = self.noted(self.0.bucket.upload(key, &Vec::new()))?;
        let digest = put_parts(body, |number, part| self.noted(upload.part(number, part)));
        let done = digest.and_then(|digest| self.noted(upload.complete()).map(|_| digest));
        if done.is_err()
            && let Err(error) = upload.abort()
        {
            tracing::warn!(%error, "cannot remove the parts of a body that was given up");
        }
        done
    }
}

/// Reads and hashes a body, and puts its parts by this function on a few threads.
fn put_parts(body: &SpooledBody, put: impl Fn(usize, Bytes) -> io::Result<()> + Sync) -> io::Result<[u8; 32]> {
    let (parts, todo) = sync_channel::<(usize, Bytes)>(0);
    let (todo, has_failed, put) = (Arc::new(Mutex::new(todo)), &AtomicBool::new(false), &put);
    std::thread::scope(|scope| {
        let start = || {
            let todo = Arc::clone(&todo);
            scope.spawn(move || {
                loop {
                    let next = todo.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((number, part)) = next else { return Ok(()) };
                    put(number, part).inspect_err(|_| has_failed.store(true, Ordering::Relaxed))?;
                }
            })
        };
        let threads: Vec<_> = (0..PARTS_AT_A_TIME).map(|_| start()).collect();
        // With the last thread, nobody receives any more, and sending fails.
        drop(todo);
        let (mut hasher, mut done, mut number) = (blake3::Hasher::new(), 0, 0);
        let read = loop {
            let length = PART_BYTES.min(body.length() - done);
            if length == 0 {
                break Ok(());
            }
            let mut part = vec![0; length as usize];
            if let Err(error) = body.file().read_exact_at(&mut part, done) {
                break Err(error);
            }
            hasher.update(&part);
            if has_failed.load(Ordering::Relaxed) || parts.send((number, part.into())).is_err() {
                break Ok(());
            }
            (done, number) = (done + length, number + 1);
        };
        drop(parts);
        let put = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))));
        read.and(put.collect::<io::Result<Vec<()>>>()).map(|_| *hasher.finalize().as_bytes())
    })
}

fn as_io(error: Error) -> io::Error {
    let kind = match error.kind {
        Kind::NotFound => io::ErrorKind::NotFound,
        Kind::Denied | Kind::Expired => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl SharedBodies for BucketBodies {
    fn place(&self) -> String {
        self.0.bucket.url().to_string()
    }

    fn may_take(&self) -> Option<Duration> {
        None
    }

    fn make(&self) -> io::Result<()> {
        let clock = self.0.bucket.put(CLOCK, Bytes::from_static(b"when a broker last looked\n"), &Vec::new());
        self.noted(clock).map(drop)
    }

    fn check(&self) -> io::Result<()> {
        match self.known() {
            Some(Ok(at)) if at.elapsed() < KNOWN_FOR => Ok(()),
            _ => self.look().map(drop),
        }
    }

    fn keep(&self, name: BodyName, body: &SpooledBody, _: &mut dyn FnMut()) -> io::Result<Arc<SpooledBody>> {
        let place = BodyPlace { name, length: body.length(), digest: [0; 32] };
        let digest = self.put(&place.file_name(), body)?;
        let fresh = FreshBody::new(Arc::new(self.clone()), name);
        Ok(body.brought_to(BodyPlace { digest, ..place }, fresh))
    }

    /// A body that a record names is there: only whether the store can be reached is asked, unless that is known. Not on this thread, which may have tasks.
    fn open(&self, place: &BodyPlace) -> io::Result<Arc<SpooledBody>> {
        let looked = match self.known() {
            Some(Ok(_)) => Ok(()),
            _ => std::thread::scope(|scope| scope.spawn(|| self.check()).join())
                .unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))),
        };
        looked?;
        let body = self.0.spool.create()?.finish();
        let file = Arc::new(body.file().try_clone()?);
        let state = State::new();
        let (bodies, there) = (self.clone(), AtomicU64::new(0));
        let coming = Coming { bodies, place: *place, file: Arc::clone(&file), state: Mutex::new(state), there };
        Ok(SpooledBody::coming(file, *place, Arc::new(coming)))
    }

    fn remove(&self, name: &BodyName) -> io::Result<()> {
        let place = BodyPlace { name: *name, length: 0, digest: [0; 32] };
        self.noted(self.0.bucket.delete(&place.file_name()))
    }

    fn older_than(&self, age: Duration) -> io::Result<Vec<BodyName>> {
        let now = self.look()?;
        let (mut found, mut listed, mut mark) = (Vec::new(), 0, None);
        while listed < LISTED_MAX {
            let page = self.noted(self.0.bucket.list("", mark.as_deref()))?;
            listed += page.objects.len().max(1);
            for object in page.objects {
                let is_old = now.duration_since(object.modified).is_ok_and(|old| old >= age);
                let file = object.key.rsplit('/').next().unwrap_or_default();
                found.extend(BodyPlace::name_of(file).filter(|_| is_old));
            }
            mark = page.next;
            if mark.is_none() {
                break;
            }
        }
        Ok(found)
    }
}

/// A body that is fetched as it is sent, from its beginning to its end.
#[derive(Debug)]
struct Coming {
    bodies: BucketBodies,
    place: BodyPlace,
    file: Arc<File>,
    state: Mutex<State>,
    there: AtomicU64,
}

#[derive(Debug)]
struct State {
    reading: Option<Reading>,
    hasher: blake3::Hasher,
    /// Bytes that were fetched.
    position: u64,
    /// The last of them, which aren't in the file before the digest is right.
    last: Vec<u8>,
}

impl State {
    fn new() -> State {
        State { reading: None, hasher: blake3::Hasher::new(), position: 0, last: Vec::new() }
    }
}

impl ComingFile for Coming {
    fn there(&self) -> u64 {
        self.there.load(Ordering::Acquire)
    }

    fn wait_for(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut retries = 0;
        while self.there() < bytes.min(self.place.length) {
            match self.next(&mut state) {
                Ok(()) => {
                    retries = 0;
                    if state.position < self.place.length {
                        self.write(&mut state)?;
                    }
                }
                Err(error) if error.kind.is_passing() && retries < RETRIES_MAX => {
                    retries += 1;
                    state.reading = None;
                }
                Err(error) => {
                    state.reading = None;
                    return self.bodies.noted(Err(error));
                }
            }
            if state.position == self.place.length {
                self.finish(&mut state)?;
            }
        }
        Ok(())
    }
}

impl Coming {
    /// Fetches the next bytes.
    fn next(&self, state: &mut State) -> Result<(), Error> {
        if state.position == self.place.length {
            return Ok(());
        }
        let reading = match &mut state.reading {
            Some(reading) => reading,
            empty => {
                let range = state.position..self.place.length;
                empty.insert(self.bodies.0.bucket.read(&self.place.file_name(), range, None)?)
            }
        };
        let Some(bytes) = reading.next_bytes()? else { return Ok(()) };
        state.hasher.update(&bytes);
        state.position += bytes.len() as u64;
        state.last.extend_from_slice(&bytes);
        Ok(())
    }

    fn write(&self, state: &mut State) -> io::Result<()> {
        let at = state.position - state.last.len() as u64;
        self.file.write_all_at(&state.last, at)?;
        state.last.clear();
        self.there.store(state.position, Ordering::Release);
        Ok(())
    }

    /// Puts the last bytes in place, if the digest is right.
    fn finish(&self, state: &mut State) -> io::Result<()> {
        state.reading = None;
        if state.hasher.finalize() != self.place.digest {
            // It may have been spoiled on its way.
            *state = State::new();
            self.there.store(0, Ordering::Release);
            let why = format!("{} in {} isn't what was put there", self.place.file_name(), self.bodies.place());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        self.write(state)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::Barrier;

    /// A body of six parts.
    fn body(folder: &Path) -> Arc<SpooledBody> {
        let mut body = Spool::open(Some(folder)).unwrap().create().unwrap();
        body.write(&vec![7; (5 * PART_BYTES + 1) as usize]).unwrap();
        body.finish()
    }

    #[test]
    fn a_store_that_fails_in_the_middle_ends_the_upload() {
        let folder = tempfile::tempdir().unwrap();
        let body = body(folder.path());
        // All threads fail while the next part waits for one of them.
        let all = Barrier::new(PARTS_AT_A_TIME);
        let failed = put_parts(&body, |_, _| {
            all.wait();
            Err(io::Error::other("away"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "away");
        let tried = AtomicU64::new(0);
        let failed = put_parts(&body, |_, _| match tried.fetch_add(1, Ordering::Relaxed) {
            0 => Err(io::Error::other("refused")),
            _ => Ok(()),
        });
        assert_eq!(failed.unwrap_err().to_string(), "refused");
        let lengths = Mutex::new(std::collections::BTreeMap::new());
        let digest = put_parts(&body, |number, part| {
            lengths.lock().unwrap().insert(number, part.len() as u64);
            Ok(())
        });
        assert_eq!(digest.unwrap(), *blake3::hash(&vec![7; (5 * PART_BYTES + 1) as usize]).as_bytes());
        let lengths: Vec<u64> = lengths.into_inner().unwrap().into_values().collect();
        assert_eq!(lengths, [PART_BYTES, PART_BYTES, PART_BYTES, PART_BYTES, PART_BYTES, 1]);
    }
}
