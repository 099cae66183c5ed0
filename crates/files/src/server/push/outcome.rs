//! The end of a push: the file published, or the reason why not.

use super::admission::missing_names;
use super::known::Placed;
use super::receiver::{Push, Receiver};
use crate::catalogue::{Content, Identity};
use crate::digest::SETTLED_AFTER_SECONDS;
use crate::protocol::ErrorCode;
use crate::protocol::control::{Expected, PushRequest};
use crate::root::{FileStat, RootError};
use crate::server::jobs::PushUpdate;
use crate::server::{Failure, RECEIPTS};
use crate::transfer::DiskError;

impl Receiver {
    /// Reports the result of putting a file in place.
    pub(super) fn put(&mut self, number: u64, result: Result<Option<FileStat>, DiskError>) {
        let Some(push) = self.forget(number) else { return };
        let update = match result {
            Ok(Some(stat)) => {
                let PushRequest { digest, durable, .. } = push.request;
                self.known.put(&push.local, push.requester.tenant, Placed::File(stat));
                let seq = self.publish(&push, &stat);
                let path = push.request.path.to_rel_path().unwrap_or_default();
                tracing::info!(target: RECEIPTS, durable, seq, "pushed {path} {digest}");
                PushUpdate::InPlace { digest, durable, seq, same: false }
            }
            Ok(None) => {
                self.is_gone(&push);
                PushUpdate::Failed(conflict(push.request.expected))
            }
            Err(error) => {
                // Content that came with its push, in no pieces, isn't kept.
                if push.left > 0 {
                    self.is_gone(&push);
                }
                PushUpdate::Failed(failure(error))
            }
        };
        (self.send_update)(push.requester, update);
    }

    /// Nothing of it is kept, and so it takes no space.
    fn is_gone(&mut self, push: &Push) {
        let names = missing_names(&self.root, &push.local);
        self.space.remove(push.request.size, names, push.last);
    }

    /// The file is there already.
    pub(super) fn same(&mut self, number: u64) {
        let Some(push) = self.forget(number) else { return };
        let PushRequest { digest, durable, .. } = push.request;
        let synced = (durable && self.store.is_none()).then(|| {
            self.root.open_file(&push.local)?.0.sync_all().map_err(RootError::Io)?;
            // It may have got its name by a push that didn't sync.
            self.root.sync_above(&push.local)
        });
        let update = match synced {
            Some(Err(error)) => PushUpdate::Failed(Failure::new(ErrorCode::Io, format!("cannot sync: {error}"))),
            _ => {
                let seq = self.published_seq(&push);
                PushUpdate::InPlace { digest, durable, seq, same: true }
            }
        };
        (self.send_update)(push.requester, update);
    }

    /// The number of the change by which a digest got to a path, if that is published.
    pub(super) fn published_seq(&self, push: &Push) -> Option<u64> {
        let catalogue = self.published.as_ref()?.read();
        let entry = catalogue.get(push.request.path.as_bytes())?;
        let is_it = matches!(entry.content, Content::File { digest, .. } if digest == push.request.digest);
        is_it.then_some(entry.seq)
    }

    /// Publishes a file that has its name: the number of the change.
    fn publish(&self, push: &Push, stat: &FileStat) -> Option<u64> {
        let published = self.published.as_ref()?;
        let path = push.request.path.to_rel_path().ok()?;
        let FileStat { size, modified, mode, .. } = *stat;
        let content = Content::File { size, modified, mode, digest: push.request.digest };
        // Another change of its content would have another time.
        let is_settled = modified.seconds.saturating_add(SETTLED_AFTER_SECONDS) <= stat.changed.seconds;
        published.change(|catalogue| {
            // The watcher may have been faster.
            let number = catalogue.put(&path, content, Identity::of(stat, is_settled)).ok()?;
            number.or_else(|| Some(catalogue.get(path.as_bytes())?.seq))
        })
    }
}

pub(super) fn conflict(expected: Expected) -> Failure {
    let why = match expected {
        Expected::Nothing => "something is there already (--if-absent); nothing was replaced",
        Expected::Digest(_) => "the file with this digest isn't there (--if); nothing was replaced",
        Expected::Anything => "something else has got to this path meanwhile; nothing was replaced",
    };
    Failure::new(ErrorCode::Conflict, why)
}

pub(super) fn failure(DiskError { full, message }: DiskError) -> Failure {
    match full {
        true => Failure::new(ErrorCode::Full, format!("{message}; make space there, and push again")),
        false => Failure::new(ErrorCode::Io, message),
    }
}
