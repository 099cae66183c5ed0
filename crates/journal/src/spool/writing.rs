//! The thread that writes bodies to files while they come, so that nobody else waits for the disk.

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

/// A body on its way to a file. Dropped before it is finished, it was in vain.
#[derive(Debug)]
pub struct UnderWay {
    number: u64,
    jobs: Sender<Job>,
}

impl UnderWay {
    /// By which [`Writing::next_finished`] names it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Appends bytes, with their permit if they are counted.
    pub fn write(&self, bytes: Bytes, permit: Option<Permit>) {
        let _ = self.jobs.send(Job::Write { number: self.number, bytes, permit });
    }

    /// All of it has come.
    pub fn finish(&self) {
        let _ = self.jobs.send(Job::Finish(self.number));
    }
}

impl BodySink for UnderWay {
    type Lost = String;

    fn number(&self) -> u64 {
        self.number
    }

    fn write(&mut self, bytes: Bytes) -> Result<(), String> {
        UnderWay::write(self, bytes, None);
        Ok(())
    }

    fn finish(self) {
        UnderWay::finish(&self);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let _ = self.jobs.send(Job::Abandon(self.number));
    }
}

/// A body in its file, or why it isn't there, and its number.
type Finished = (u64, io::Result<Arc<SpooledBody>>);

/// The thread, which ends when this and all that is under way are gone.
#[derive(Debug)]
pub struct Writing {
    jobs: Sender<Job>,
    finished: Receiver<Finished>,
    next: u64,
}

/// Where it writes.
struct Place {
    folder: PathBuf,
    spool: Option<Spool>,
}

impl Place {
    fn create(&mut self, length: u64, permit: Option<Permit>) -> io::Result<SpoolWriter> {
        let spool = match &mut self.spool {
            Some(spool) => spool,
            none => none.insert(Spool::new(&self.folder)?),
        };
        match permit {
            Some(permit) => spool.create().map(|mut writer| {
                writer.add_permit(permit);
                writer
            }),
            None => {
                spool.check_room(length)?;
                spool.create()
            }
        }
    }
}

impl Writing {
    /// Bodies go there. `sync`: they are brought to the disk, since a journal will name them, and only this thread may wait for that.
    /// The waker is told whenever one is finished.
    pub fn to(spool: Spool, sync: bool, waker: Waker) -> io::Result<Writing> {
        Writing::start(Place { folder: spool.directory().to_owned(), spool: Some(spool) }, sync, waker)
    }

    /// The same in a folder that is made when the first body comes.
    pub fn to_folder(folder: PathBuf, waker: Waker) -> io::Result<Writing> {
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

    /// Begins a body of this many bytes. `permit`: for its file; without one nothing is counted, and the disk is asked for the room.
    pub fn begin(&mut self, length: u64, permit: Option<Permit>) -> UnderWay {
        self.next += 1;
        let _ = self.jobs.send(Job::Begin { number: self.next, length, permit });
        UnderWay { number: self.next, jobs: self.jobs.clone() }
    }

    /// One that was finished, if there is one that nobody has heard of. Those that were dropped before never are.
    pub fn next_finished(&self) -> Option<Finished> {
        self.finished.try_recv().ok()
    }
}

/// Writes what arrives until nobody can send anything more.
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
