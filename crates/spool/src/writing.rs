//! The thread that writes bodies to files as they arrive, so that nobody else waits for the disk.

use super::{Permit, Spool, SpoolWriter, SpooledBody};
use bytes::Bytes;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use towpath_requests::assembler::BodySink;
use towpath_sockets::Waker;

enum Job {
    Begin { number: u64, length: u64, permit: Option<Permit> },
    Write { number: u64, bytes: Bytes, permit: Option<Permit> },
    Finish(u64),
    Abandon(u64),
}

/// A body on its way to a file. Dropped before it is finished, it is discarded.
#[derive(Debug)]
pub struct PendingWrite {
    number: u64,
    jobs: Sender<Job>,
}

impl PendingWrite {
    /// Number in [`Writing::next_finished`].
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Appends bytes, with their permit if they are counted.
    pub fn write(&self, bytes: Bytes, permit: Option<Permit>) {
        let _ = self.jobs.send(Job::Write { number: self.number, bytes, permit });
    }

    /// Finishes the body.
    pub fn finish(&self) {
        let _ = self.jobs.send(Job::Finish(self.number));
    }
}

impl BodySink for PendingWrite {
    type Lost = String;

    fn number(&self) -> u64 {
        self.number
    }

    fn write(&mut self, bytes: Bytes) -> Result<(), String> {
        PendingWrite::write(self, bytes, None);
        Ok(())
    }

    fn finish(self) {
        PendingWrite::finish(&self);
    }
}

impl Drop for PendingWrite {
    fn drop(&mut self) {
        let _ = self.jobs.send(Job::Abandon(self.number));
    }
}

/// Number of a body, and the body or the error.
type Finished = (u64, io::Result<Arc<SpooledBody>>);

/// Handle to the thread, which ends with this and all bodies in progress.
#[derive(Debug)]
pub struct Writing {
    jobs: Sender<Job>,
    finished: Receiver<Finished>,
    next: u64,
}

/// Target directory.
struct Place {
    folder: Option<PathBuf>,
    spool: Option<Spool>,
}

impl Place {
    fn create(&mut self, length: u64, permit: Option<Permit>) -> io::Result<SpoolWriter> {
        let spool = match &mut self.spool {
            Some(spool) => spool,
            none => none.insert(Spool::open(self.folder.as_deref())?),
        };
        match permit {
            Some(permit) => spool.create().map(|mut writer| {
                writer.add_permit(permit);
                writer
            }),
            None => {
                spool.check_space(length)?;
                spool.create()
            }
        }
    }
}

impl Writing {
    /// Starts the thread for an existing spool. `sync`: bodies are synced when finished, because a journal will name them.
    /// The waker is called for each finished body.
    pub fn to(spool: Spool, sync: bool, waker: Waker) -> io::Result<Writing> {
        Writing::start(Place { folder: None, spool: Some(spool) }, sync, waker)
    }

    /// Starts the thread for a folder that is made when the first body comes ([`Spool::open`]).
    pub fn to_folder(folder: Option<PathBuf>, waker: Waker) -> io::Result<Writing> {
        Writing::start(Place { folder, spool: None }, false, waker)
    }

    fn start(place: Place, sync: bool, waker: Waker) -> io::Result<Writing> {
        let (jobs, to_do) = channel();
        let (done, finished) = channel();
        std::thread::Builder::new()
            .name("spool".to_owned())
            .spawn(move || write(place, sync, &to_do, &done, &waker))
            .map_err(|error| io::Error::other(format!("the thread that writes them can't be started: {error}")))?;
        Ok(Writing { jobs, finished, next: 0 })
    }

    /// Begins a body of this many bytes. `permit`: for its file; without one nothing is counted, and the disk is asked for the space.
    pub fn begin(&mut self, length: u64, permit: Option<Permit>) -> PendingWrite {
        self.next += 1;
        let _ = self.jobs.send(Job::Begin { number: self.next, length, permit });
        PendingWrite { number: self.next, jobs: self.jobs.clone() }
    }

    /// The next finished body, if there is one. Discarded bodies never appear.
    pub fn next_finished(&self) -> Option<Finished> {
        self.finished.try_recv().ok()
    }
}

/// Writes until all senders are gone.
fn write(mut place: Place, sync: bool, jobs: &Receiver<Job>, done: &Sender<Finished>, waker: &Waker) {
    let mut files: HashMap<u64, io::Result<SpoolWriter>> = HashMap::new();
    for job in jobs {
        match job {
            Job::Begin { number, length, permit } => {
                files.insert(number, place.create(length, permit));
            }
            Job::Write { number, bytes, permit } => {
                if let Some(file) = files.get_mut(&number)
                    && let Ok(writer) = file
                {
                    match (writer.write(&bytes), permit) {
                        (Ok(()), Some(permit)) => writer.add_permit(permit),
                        (Ok(()), None) => {}
                        (Err(error), _) => *file = Err(error),
                    }
                }
            }
            Job::Finish(number) => {
                let Some(body) = files.remove(&number) else { continue };
                let body = body.map(SpoolWriter::finish);
                let body = body.and_then(|body| if sync { body.sync().map(|()| body) } else { Ok(body) });
                if done.send((number, body)).is_err() {
                    return;
                }
                waker.wake();
            }
            Job::Abandon(number) => {
                files.remove(&number);
            }
        }
    }
}
