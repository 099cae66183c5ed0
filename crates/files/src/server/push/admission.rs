//! Whether a push may begin: where its file may go, and whether it is its turn.

use super::known::Placed;
use super::receiver::{Push, Receiver, Stage, open, version};
use super::space::Space;
use crate::digest::{Digest, LeafSize};
use crate::limits::{PUSH_NAMES_MAX, PUSHES_OF_ALL_MAX};
use crate::path::{RelPath, is_reserved};
use crate::protocol::ErrorCode;
use crate::protocol::control::{Expected, PushRequest};
use crate::root::{FileKind, FileStat, Root, RootError};
use crate::server::Failure;
use crate::server::jobs::{PushSees, Requester};
use crate::transfer::{DiskCommand, FileKey};
use std::collections::BTreeMap;
use std::time::Instant;
use towpath_quota::Permit;

/// A tenant may have this many times the pushes that it leaves free.
const TENANT_SHARE: usize = 3;

impl Receiver {
    /// Lets the disk look at the path of a push, if it may begin.
    pub(super) fn begin(
        &mut self,
        requester: Requester,
        request: PushRequest,
        mut sees: PushSees,
        window: Permit,
    ) -> Result<(), Failure> {
        self.follow_root()?;
        let local = self.place(&request)?;
        if self.take_over(requester, &request, &local) {
            return Ok(());
        }
        // Of a store that is found out later.
        if self.store.is_none() {
            let there = self.root.stat(&local).ok().map(Placed::File);
            let is_own = there.is_some_and(|there| self.known.has_put(&local, requester.tenant, &there));
            sees = PushSees { existence: sees.existence || is_own, content: sees.content || is_own };
            check_condition(request.expected, sees)?;
        }
        let sees_partial = sees.content || self.known.has_begun(&local, requester.tenant, request.digest);
        self.take_turn(requester, &request, &local)?;
        let of_tenant = self.pushes.values().filter(|push| push.requester.tenant == requester.tenant).count();
        let free = PUSHES_OF_ALL_MAX.saturating_sub(self.pushes.len());
        if free == 0 || of_tenant >= TENANT_SHARE * free {
            return Err(busy("too many pushes at a time; try again a little later"));
        }
        self.next += 1;
        let number = self.next;
        let staged = self.staged(&local);
        self.by_request.insert((requester.key, requester.ticket), number);
        let push = Push {
            requester,
            leaves: LeafSize::for_file(request.size),
            left: request.size,
            request,
            local,
            staged,
            sees,
            sees_partial,
            stage: Stage::Inspecting,
            values: BTreeMap::new(),
            writing: 0,
            last: Instant::now(),
            _window: window,
        };
        self.pushes.insert(number, push);
        if !self.look_in_store(number) {
            self.inspect(number);
        }
        Ok(())
    }

    /// Lets the disk look where a push will arrive.
    pub(super) fn inspect(&mut self, number: u64) {
        let Some(push) = self.pushes.get(&number) else { return };
        self.disk.command(DiskCommand::Inspect {
            file: FileKey(number),
            local: push.staged.clone(),
            listed: version(&push.request),
            digest: Some(push.request.digest),
        });
    }

    /// Where a file arrives: at its path, or by another name if it goes into a store. There every path may be a file's one day and a directory's
    /// another.
    fn staged(&self, local: &RelPath) -> RelPath {
        match &self.store {
            None => local.clone(),
            Some(_) => RelPath::new(Digest::of(local.as_bytes()).to_string()).unwrap_or_default(),
        }
    }

    /// Follows the served path if it leads to another directory now.
    fn follow_root(&mut self) -> Result<(), Failure> {
        let gone =
            |error: String| Failure::new(ErrorCode::Io, format!("the directory for pushes can't be used: {error}"));
        if self.root.is_at(&self.path).map_err(|error| gone(error.to_string()))? {
            return Ok(());
        }
        if !self.pushes.is_empty() {
            return Err(busy("the directory for pushes was replaced; try again a little later"));
        }
        (self.disk, self.root) = open(&self.path, &self.orders).map_err(gone)?;
        self.space = Space::new(self.options.max_bytes, self.options.max_files);
        Ok(())
    }

    /// The path below the directory that takes pushes.
    fn place(&self, request: &PushRequest) -> Result<RelPath, Failure> {
        let refused = |message: String| Failure::new(ErrorCode::Denied, message);
        let path =
            request.path.to_rel_path().map_err(|error| Failure::new(ErrorCode::BadRequest, error.to_string()))?;
        let place = self.options.directory.to_string();
        let local = path.below(&self.options.directory).filter(|local| !local.is_root());
        let local = local.ok_or_else(|| match place.as_str() {
            "" => refused("a push needs the path of a file".to_owned()),
            place if path == self.options.directory => {
                refused(format!("{place} is a directory; with a / at its end, the file goes into it"))
            }
            place => refused(format!("files may be pushed below {place}/ only")),
        })?;
        if local.names().any(is_reserved) {
            return Err(refused("that is a name of incomplete files".to_owned()));
        }
        if local.names().count() > PUSH_NAMES_MAX {
            return Err(refused(format!("the path has more than {PUSH_NAMES_MAX} names")));
        }
        if let Some(store) = &self.store {
            return store.check(&path, request.size).map(|()| local);
        }
        // Another name for a file would be another file in rules.
        if !self.root.is_spelled(&local).map_err(|error| Failure::new(ErrorCode::Io, error.to_string()))? {
            let message = "the file system takes this name for another one that is there, which is spelled differently";
            return Err(Failure::new(ErrorCode::Conflict, message));
        }
        match self.root.stat(&local) {
            Err(RootError::Outside) => Err(refused("a directory on the path is a link".to_owned())),
            Ok(FileStat { kind: FileKind::Dir, .. }) => Err(Failure::new(
                ErrorCode::Conflict,
                "a directory is at this path; with a / at its end, the file goes into it",
            )),
            Ok(FileStat { kind: FileKind::Other, .. }) => {
                Err(Failure::new(ErrorCode::Conflict, "a device, pipe or socket is at this path, and none is replaced"))
            }
            _ => Ok(local),
        }
    }

    /// An error if something is pushed there already. If it is the same file of the same client, over a connection that is perhaps lost, that
    /// push ends, and the client tries again.
    fn take_turn(&mut self, requester: Requester, request: &PushRequest, local: &RelPath) -> Result<(), Failure> {
        let there = self.pushes.iter().find(|(_, push)| push.local == *local);
        let Some((number, push)) = there.map(|(number, push)| (*number, push)) else { return Ok(()) };
        let is_over = matches!(push.stage, Stage::Over { .. });
        if !is_over && (push.requester.tenant != requester.tenant || push.request.digest != request.digest) {
            return Err(Failure::new(ErrorCode::Conflict, "another push to this path is in progress"));
        }
        if let Stage::Receiving = push.stage {
            let failure = Failure::new(ErrorCode::Conflict, "the same file is pushed over another connection");
            self.fail(number, failure, true);
        }
        Err(busy("another push to this path is ending; try again a little later"))
    }
}

/// An error if the outcome of a condition would reveal more than its client may know.
pub(super) fn check_condition(expected: Expected, sees: PushSees) -> Result<(), Failure> {
    let (may, right) = match expected {
        Expected::Anything => return Ok(()),
        Expected::Nothing => (sees.existence, "list"),
        Expected::Digest(_) => (sees.content, "read"),
    };
    let message =
        || format!("the server's rules don't allow this condition to this client, who may not {right} what is there");
    if may { Ok(()) } else { Err(Failure::new(ErrorCode::Denied, message())) }
}

/// Names of a path that don't exist yet.
pub(super) fn missing_names(root: &Root, path: &RelPath) -> u64 {
    let above = std::iter::successors(Some(path.clone()), RelPath::parent).take_while(|path| !path.is_root());
    above.take_while(|path| matches!(root.stat(path), Err(RootError::NotFound))).count() as u64
}

fn busy(message: &str) -> Failure {
    Failure::new(ErrorCode::Busy, message)
}
