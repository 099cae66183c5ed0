//! The events of a follow, one by one.

use super::{FollowEnd, FollowEvent, FollowOptions, follow};
use crate::client::exchange::Connector;
use crate::client::stream::Stream;
use crate::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use towpath_blocking::CancelToken;

/// The events of a follow. The last item is an error if it fails. Dropping this ends the follow.
///
/// The follow waits while an event is looked at: it goes on when the next one is asked for.
pub struct Events {
    // Dropped first: the follow may wait for it.
    done: SyncSender<()>,
    /// There was an event, and the follow waits.
    is_open: bool,
    stream: Stream<FollowEvent, FollowEnd>,
    end: Option<FollowEnd>,
}

impl Events {
    pub(in crate::client) fn start(
        connector: Arc<Connector>,
        options: FollowOptions,
        cancel: CancelToken,
    ) -> Result<Self, Error> {
        let (done, awaited) = sync_channel(1);
        let stream = Stream::start(1, cancel, move |events, cancel| {
            let on_event = &mut |event| {
                let is_done = events.send(event).is_ok() && awaited.recv().is_ok();
                if is_done { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
            };
            follow(&connector, &options, on_event, cancel)
        })?;
        Ok(Self { done, is_open: false, stream, end: None })
    }

    /// How it ended, once all events were taken: only with [`FollowOptions::once`], or by an error.
    pub fn end(&self) -> Option<FollowEnd> {
        self.end
    }
}

impl Iterator for Events {
    type Item = Result<FollowEvent, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if std::mem::take(&mut self.is_open) {
            // Fails if the follow was cancelled, which is reported below.
            let _ = self.done.send(());
        }
        if let Some(event) = self.stream.next() {
            self.is_open = true;
            return Some(Ok(event));
        }
        match self.stream.outcome()? {
            Ok(end) => {
                self.end = Some(end);
                None
            }
            Err(error) => Some(Err(error)),
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("end", &self.end).finish_non_exhaustive()
    }
}
