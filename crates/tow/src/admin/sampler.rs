//! The thread that looks at a server every few seconds: it adds to the history, and evaluates the problems.

use super::api::Reply;
use super::history::{Event, EventKind, FILE_BYTES_MAX, History, INTERVAL, LONG_INTERVAL, Things};
use super::lists::pages;
use super::problems::Change;
use super::view::{List, View};
use super::{Running, Shared};
use serde_json::Value;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use towpath_blocking::CancelToken;
use towpath_broker::LISTED_MAX;

/// Name of the file in the directory of the state.
const FILE: &str = "admin.history";

/// Longest wait for its disk at the end.
const SAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Events of a kind that are noted at one moment; more are counted.
const AT_ONCE_MAX: usize = 10;

/// Now, in seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Now, in whole seconds since 1970.
pub fn seconds_now() -> u32 {
    now() as u32
}

/// The history of a program.
pub fn history_of(program: &str) -> History {
    History::new(if program == "broker" { Things::Services } else { Things::Followers })
}

impl Shared {
    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn note(&self, kind: EventKind, text: String, service: Option<Vec<u8>>, peer: Option<String>) {
        self.history().note(Event { kind, time: seconds_now(), text, service, peer });
    }

    /// Notes which problems have begun and ended.
    pub fn note_changes(&self, changes: Vec<Change>) {
        for has_begun in [true, false] {
            let kind = if has_begun { EventKind::Began } else { EventKind::Ended };
            let of_kind: Vec<_> = changes.iter().filter(|change| change.has_begun == has_begun).collect();
            for change in of_kind.iter().take(AT_ONCE_MAX) {
                self.note(kind, change.text.clone(), change.service.clone(), change.peer.clone());
            }
            if let Some(more) = of_kind.len().checked_sub(AT_ONCE_MAX).filter(|more| *more > 0) {
                self.note(
                    kind,
                    format!("{more} more problems {}", if has_begun { "began" } else { "ended" }),
                    None,
                    None,
                );
            }
        }
    }
}

/// Runs the thread until it is dropped, and saves the history then.
pub struct Sampler {
    shared: Arc<Shared>,
    /// The thread ends when this is dropped.
    stop: Option<Sender<()>>,
    file: Option<PathBuf>,
}

impl Sampler {
    /// Reads the history that was saved in the directory of the state, and starts the thread.
    pub fn start(shared: &Arc<Shared>, state: Option<&Path>) -> Sampler {
        let file = state.map(|folder| folder.join(FILE));
        if let Some(file) = &file {
            match read(file, shared.program) {
                Ok(Some(history)) => *shared.history() = history,
                Ok(None) => {}
                Err(reason) => {
                    tracing::warn!(file = %file.display(), %reason, "the history of the last hour is not used; it begins anew");
                }
            }
        }
        shared.note(EventKind::Started, format!("started, version {}", env!("CARGO_PKG_VERSION")), None, None);
        let (stop, stopped) = channel();
        let of_thread = Arc::clone(shared);
        let thread = std::thread::Builder::new().name("history".to_owned());
        if let Err(error) = thread.spawn(move || run(&of_thread, &stopped)) {
            tracing::warn!(%error, "cannot start the thread of the history");
        }
        Sampler { shared: Arc::clone(shared), stop: Some(stop), file }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.shared.note(EventKind::Stopped, "stopped".to_owned(), None, None);
        let Some(file) = self.file.take() else { return };
        let bytes = self.shared.history().encode();
        // The disk may hang.
        let (done, ended) = channel();
        let save = move || drop(done.send(write(&file, &bytes)));
        let saved = match std::thread::Builder::new().name("save".to_owned()).spawn(save) {
            Ok(_) => ended.recv_timeout(SAVE_TIMEOUT).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
            Err(error) => Err(error),
        };
        if let Err(error) = saved {
            tracing::warn!(%error, "cannot save the history of the last hour");
        }
    }
}

/// The history in a file, if there is one.
fn read(file: &Path, program: &str) -> Result<Option<History>, String> {
    let opened = match std::fs::File::open(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut bytes = Vec::new();
    opened.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(format!("it has over {FILE_BYTES_MAX} bytes"));
    }
    let of = if program == "broker" { Things::Services } else { Things::Followers };
    History::decode(&bytes, of, seconds_now()).map(Some).map_err(|error| error.to_string())
}

/// Replaces a file as a whole.
fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
    temporary.write_all(bytes)?;
    temporary.persist(file)?;
    Ok(())
}

fn run(shared: &Shared, stopped: &Receiver<()>) {
    let mut members = Members::default();
    let mut is_long = Every { samples: LONG_INTERVAL / INTERVAL, next: 0 };
    let interval = Duration::from_secs(INTERVAL.into());
    let mut wait = Duration::ZERO;
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(wait) {
        wait = interval;
        // It is starting, or ends.
        let Some(running) = shared.running.get() else {
            wait = Duration::from_millis(100);
            continue;
        };
        let is_long = is_long.turn();
        let _ = sample(shared, running, is_long);
        if is_long {
            members.look(shared, &*running.view);
        }
    }
}

/// Every so many samples, from the first one on.
struct Every {
    samples: u32,
    next: u32,
}

impl Every {
    fn turn(&mut self) -> bool {
        let is_due = self.next == 0;
        self.next = if is_due { self.samples - 1 } else { self.next - 1 };
        is_due
    }
}

/// Adds a sample, unless the event loop doesn't answer.
fn sample(shared: &Shared, running: &Running, is_long: bool) -> Option<()> {
    let (problems, _) = shared.problems(running).ok()?;
    let mut sample = running.view.sample(is_long).ok()?;
    sample.totals.push(("problems", problems.number() as f64));
    sample.totals.extend(memory().map(|bytes| ("memory_bytes", bytes)));
    shared.history().add(now(), sample);
    Some(())
}

/// Bytes of this process in memory.
fn memory() -> Option<f64> {
    let pages: f64 = std::fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as f64)
}

/// A worker or follower.
struct Member {
    /// In words.
    name: String,
    service: Option<Vec<u8>>,
}

/// Workers or followers that were connected, so that their ends are noted.
#[derive(Default)]
struct Members {
    /// By the id of the connection.
    known: HashMap<String, Member>,
    /// The newest of the connections that had ended.
    last_gone: Option<String>,
}

impl Members {
    /// Notes those that are gone since the last look, and remembers who is there.
    fn look(&mut self, shared: &Shared, view: &dyn View) {
        let mut present = HashMap::new();
        for list in [List::Workers, List::Followers] {
            // The server has one of the two lists.
            let _ = pages(
                0,
                |from| view.page(list, from),
                &CancelToken::new(),
                |page| {
                    present.extend(page.into_iter().filter_map(|(_, entry)| described(list, &entry)));
                    present.len() < LISTED_MAX
                },
            );
        }
        // Asked for after the others: a member that is missing there is in this list already.
        let mut ended = Vec::new();
        let _ = pages(
            0,
            |from| view.page(List::Gone, from),
            &CancelToken::new(),
            |page| {
                let gone = page.iter().filter_map(|(_, gone)| Some((gone["id"].as_str()?.to_owned(), &gone["reason"])));
                for (id, reason) in gone {
                    if self.last_gone.as_ref() == Some(&id) {
                        return false;
                    }
                    ended.push((id, reason.as_str().unwrap_or("gone").to_owned()));
                }
                true
            },
        );
        self.last_gone = ended.first().map(|(id, _)| id.clone()).or(self.last_gone.take());
        let mut ends = Vec::new();
        for (id, reason) in ended {
            let member = self.known.remove(&id).or_else(|| present.remove(&id));
            ends.extend(member.map(|Member { name, service }| (format!("{name}: {reason}"), service, id)));
        }
        self.known = present;
        let more = ends.len().saturating_sub(AT_ONCE_MAX);
        ends.truncate(AT_ONCE_MAX);
        for (text, service, id) in ends.into_iter().rev() {
            shared.note(EventKind::Gone, text, service, Some(id));
        }
        if more > 0 {
            shared.note(EventKind::Gone, format!("{more} more were disconnected"), None, None);
        }
    }
}

/// A worker or follower by its id.
fn described(list: List, entry: &Value) -> Option<(String, Member)> {
    let peer = entry["peer"].as_str()?.to_owned();
    Some(match list {
        List::Workers => {
            let service = super::lists::bytes_of(entry, "service");
            let name = format!("worker {peer} of {}", towpath_files::path::Escaped(&service));
            (peer, Member { name, service: Some(service) })
        }
        _ => {
            let name = ["name", "user", "address"].iter().find_map(|name| entry[name].as_str()).unwrap_or_default();
            let name = format!("follower {name} ({peer})");
            (peer, Member { name, service: None })
        }
    })
}

/// An action of an operator that was done, for people.
pub fn action_text(action: &Value, reply: &Reply) -> Option<String> {
    if !reply.status.is_success() {
        return None;
    }
    let reply: Value = serde_json::from_str(&reply.body).unwrap_or_default();
    let (by, object) = (action["by"].as_str().unwrap_or("somebody"), action["object"].as_str());
    let done = match action["action"].as_str().unwrap_or_default() {
        // Nothing has changed.
        "page" => return None,
        "disconnect" => "disconnected",
        "block" => "blocked",
        "unblock" => "unblocked",
        "new-token" => "made a token for",
        "revoke-token" => "revoked the token of",
        "end" => "ended a request of",
        "pause" => "paused",
        "resume" => "resumed",
        "purge" => "purged",
        "requeue" => "requeued dead letters of",
        "drop" => "dropped dead letters of",
        "drop-outcomes" => "dropped outcomes of clients that are gone",
        "drain" if action["parameters"]["on"] == false => "ended the drain",
        "drain" => "began a drain",
        "mute" => "muted",
        "unmute" => "unmuted",
        other => other,
    };
    let object = object.map(|object| format!(" {object}")).unwrap_or_default();
    let count = super::actions::count_of(&reply).map(|count| format!(" ({count})")).unwrap_or_default();
    Some(format!("{by} {done}{object}{count}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn actions_are_said_in_words() {
        let action = json!({ "by": "alice", "action": "purge", "object": "resize", "parameters": {} });
        let done = Reply::json(&json!({ "service": "resize", "purged": 5997 }));
        assert_eq!(action_text(&action, &done).as_deref(), Some("alice purged resize (5997)"));
        assert_eq!(action_text(&action, &Reply::error(409, "other")), None);
        let drain = json!({ "by": "uid 0", "action": "drain", "object": null, "parameters": { "on": false } });
        assert_eq!(action_text(&drain, &Reply::json(&json!({}))).as_deref(), Some("uid 0 ended the drain"));
    }

    #[test]
    fn a_history_is_saved_and_read_and_a_damaged_one_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        assert!(read(&file, "broker").unwrap().is_none());
        let mut history = history_of("broker");
        history.note(Event {
            kind: EventKind::Stopped,
            time: seconds_now(),
            text: "stopped".to_owned(),
            service: None,
            peer: None,
        });
        write(&file, &history.encode()).unwrap();
        let read_again = read(&file, "broker").unwrap().unwrap();
        assert_eq!(read_again.totals(0)["events"][0]["text"], "stopped");
        assert!(read(&file, "serve").is_err(), "of another kind of server");
        std::fs::write(&file, b"tow-hist, but not really").unwrap();
        assert!(read(&file, "broker").is_err());
        std::fs::write(&file, vec![0; FILE_BYTES_MAX + 1]).unwrap();
        assert!(read(&file, "broker").unwrap_err().contains("over"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "temporary files");
    }

    #[test]
    fn the_first_sample_is_a_long_one_and_then_some() {
        let mut every = Every { samples: 3, next: 0 };
        assert_eq!([(); 7].map(|()| every.turn()), [true, false, false, true, false, false, true]);
    }
}
