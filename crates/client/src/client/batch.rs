//! Many requests under one lock.

use super::inbox::RECEIVER;
use super::state::State;
use super::{CallOptions, Client, SubmitError};
use crate::connection::driver::Guard;
use towpath_requests::body::Body;

/// Requests that are made one after the other without anything between them. The client does nothing else as long as this is
/// there, so it isn't to be kept over anything that waits; nor for very many requests, none of which leaves before it is dropped.
pub struct Batch<'a> {
    client: &'a Client,
    state: Option<Guard<'a, State>>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(client: &'a Client) -> Batch<'a> {
        Batch { client, state: Some(client.shared().lock()) }
    }

    /// Makes a request as [`Client::try_send`] does.
    #[inline]
    pub fn try_send(&mut self, service: &str, body: impl Into<Body>, options: CallOptions) -> Result<u64, SubmitError> {
        match &mut self.state {
            Some(state) => state.submit(service, body.into(), options, |_| RECEIVER),
            None => Err(SubmitError::Full(body.into())),
        }
    }
}

impl std::fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The client's own would wait for the lock that this has.
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            self.client.shared().wake(state);
        }
    }
}
