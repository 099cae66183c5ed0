//! How a push ends: the file published, or why not.

use super::receiver::{Push, Receiver};
use crate::catalogue::{Content, Identity};
use crate::client::transfer::DiskError;
use crate::digest::SETTLED_AFTER_SECONDS;
use crate::protocol::ErrorCode;
use crate::protocol::control::PushRequest;
use crate::root::{FileStat, RootError};
use crate::server::jobs::PushTold;
use crate::server::{Failure, RECEIPTS};

impl Receiver {
    /// Tells what became of a file that was to get its name.
    pub(super) fn put(&mut self, number: u64, result: Result<Option<FileStat>, DiskError>) {
        let Some(push) = self.forget(number) else { return };
        let told = match result {
            Ok(Some(stat)) => {
                let PushRequest { digest, durable, .. } = push.request;
                self.known.put(&push.local, push.requester.tenant, stat);
                let seq = self.publish(&push, &stat);
                let path = push.request.path.to_rel_path().unwrap_or_default();
                tracing::info!(target: RECEIPTS, durable, seq, "pushed {path} {digest}");
                PushTold::InPlace { digest, durable, seq, same: false }
            }
            Ok(None) => PushTold::Failed(conflict()),
            Err(error) => PushTold::Failed(failure(error)),
        };
        (self.tell)(push.requester, told);
    }

    /// The file is there already.
    pub(super) fn same(&mut self, number: u64) {
        let Some(push) = self.forget(number) else { return };
        let PushRequest { digest, durable, .. } = push.request;
        let synced = durable.then(|| {
            self.root.open_file(&push.local)?.0.sync_all().map_err(RootError::Io)?;
            // It may have got its name by a push that didn't sync.
            self.root.sync_above(&push.local)
        });
        let told = match synced {
            Some(Err(error)) => PushTold::Failed(Failure::new(ErrorCode::Io, format!("cannot sync: {error}"))),
            _ => {
                let seq = self.published.as_ref().and_then(|published| {
                    let catalogue = published.read();
                    let entry = catalogue.get(push.request.path.as_bytes())?;
                    matches!(entry.content, Content::File { digest: of, .. } if of == digest).then_some(entry.seq)
                });
                PushTold::InPlace { digest, durable, seq, same: true }
            }
        };
        (self.tell)(push.requester, told);
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

pub(super) fn conflict() -> Failure {
    Failure::new(ErrorCode::Conflict, "something else is at this path than was expected; nothing was replaced")
}

pub(super) fn failure(DiskError { full, message }: DiskError) -> Failure {
    match full {
        true => Failure::new(
            ErrorCode::Full,
            format!("{message}; what has arrived is kept: make space there, and push again"),
        ),
        false => Failure::new(ErrorCode::Io, message),
    }
}
