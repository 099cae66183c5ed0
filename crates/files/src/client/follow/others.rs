//! Other records of the same destination: another source is followed into it too, or was.

use super::FollowOptions;
use super::record::{Known, Origin, Other, Record};
use crate::error::Error;
use crate::path::RelPath;
use crate::protocol::follow::{Epoch, ServerId};
use crate::root::Dir;
use crate::transfer::Source;
use crate::transfer::names::{glob_base, is_follow_name, random_names};
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The other records of a destination.
#[derive(Debug, Default)]
pub(super) struct Others {
    destination: PathBuf,
    names: Vec<Vec<u8>>,
    /// Read when one is needed, and again when one has changed.
    records: Option<Vec<Other>>,
}

/// Whether a copy is of the server that is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match {
    Same,
    /// A server without a lasting number: it can't be known.
    Unknown,
    Another,
}

impl Origin {
    pub(super) fn new(source: &Source, server: Option<ServerId>, epoch: Epoch) -> Origin {
        let base = match source {
            Source::Path(path) => path.clone(),
            Source::Glob(glob) => glob_base(glob),
        };
        Origin { server, epoch, base }
    }

    /// Compares it with that of the follow that goes on now.
    pub(super) fn matches(&self, now: &Origin) -> Match {
        match (self.server, now.server) {
            _ if self.base != now.base => Match::Another,
            (Some(one), Some(other)) if one == other => Match::Same,
            (Some(_), _) => Match::Another,
            (None, None) if self.epoch == now.epoch => Match::Same,
            (None, _) => Match::Unknown,
        }
    }
}

impl Record {
    /// Whether what was put here is of the server that answers now. An error if it is of another one.
    pub(super) fn check_origin(&self, now: &Origin, options: &FollowOptions) -> Result<Match, Error> {
        let Some(before) = self.origin() else {
            return Ok(if self.len() == 0 { Match::Same } else { Match::Unknown });
        };
        match before.matches(now) {
            _ if self.len() == 0 || options.adopt => Ok(Match::Same),
            Match::Another => {
                let shown =
                    |of: &Origin| of.server.map_or_else(|| "one without a number".to_owned(), |id| id.to_string());
                let reason = format!(
                    "this copy is of another server, {}, and the one that answers is {}; follow it into another directory, \
                     or go on with it by --adopt, which compares everything (if it is the same one and lost its --state, \
                     give it its number by tow serve --server-id)",
                    shown(before),
                    shown(now)
                );
                Err(Error::Foreign { path: options.destination.clone(), reason })
            }
            matched => Ok(matched),
        }
    }
}

impl Other {
    fn is_of(&self, now: &Origin) -> bool {
        self.origin.as_ref().is_some_and(|origin| origin.matches(now) != Match::Another)
    }
}

impl Others {
    /// Looks which there are beside this one.
    pub(super) fn look(&mut self, destination: &Path, own: &[u8]) {
        let entries = std::fs::read_dir(destination).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().into_vec());
        self.names = names.filter(|name| is_follow_name(name) && name != own).collect();
        self.destination = destination.to_owned();
        self.records = None;
    }

    /// Forgets what they say if their followers have gone on.
    pub(super) fn refresh(&mut self) {
        let is_same = |other: &Other| {
            let path = self.destination.join(OsStr::from_bytes(&other.name));
            path.symlink_metadata().is_ok_and(|now| (now.ino(), now.len()) == other.was)
        };
        self.records.take_if(|records| !records.iter().all(is_same));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Looks whether something may be put at a path: an error if another source has put something there, unless that is taken over.
    pub(super) fn take_over(
        &mut self,
        top: &Dir,
        record: &mut Record,
        origin: &Origin,
        (local, is_dir): (&RelPath, bool),
        options: &FollowOptions,
    ) -> Result<(), Error> {
        if self.names.is_empty() || record.get(local).is_some() {
            return Ok(());
        }
        let Some((other, known)) = self.claim(top, origin, local, options.adopt) else { return Ok(()) };
        if is_dir && known == Known::Dir {
            return Ok(());
        }
        let path = options.destination.join(local.as_os_str());
        let unwritable = |error: std::io::Error| Error::Destination { path: path.clone(), reason: error.to_string() };
        if options.adopt && other.give_up(local).map_err(unwritable)? {
            return record.put(local, known).map_err(unwritable);
        }
        let of = other.origin.as_ref().map(|of| format!(" (of /{})", of.base)).unwrap_or_default();
        let what_to_do = match options.adopt {
            true => "its follower is at work: end it first",
            false => "follow into another directory, or take over what was put here by --adopt",
        };
        let reason = format!("another follow{of} has put it there; {what_to_do}");
        Err(Error::Foreign { path, reason })
    }

    /// The entry that another source put at a path, by its record.
    pub(super) fn claim(
        &mut self,
        top: &Dir,
        now: &Origin,
        path: &RelPath,
        adopts: bool,
    ) -> Option<(&mut Other, Known)> {
        // Those of this source with another filter mean the same files.
        let mut others = self.read(top, adopts).iter_mut().filter(|other| !other.is_of(now));
        others.find_map(|other| other.known.get(path).copied().map(|known| (other, known)))
    }

    /// The entry that this source put at a path under another filter, by its record.
    pub(super) fn same(&mut self, top: &Dir, now: &Origin, path: &RelPath, adopts: bool) -> Option<Known> {
        let mut others = self.read(top, adopts).iter().filter(|other| other.is_of(now));
        others.find_map(|other| other.known.get(path).copied())
    }

    fn read(&mut self, top: &Dir, adopts: bool) -> &mut [Other] {
        let read = || {
            let own_user = top.own_user(&random_names().0);
            self.names.iter().filter_map(|name| Other::read(top, name, own_user, adopts)).collect()
        };
        self.records.get_or_insert_with(read)
    }
}
