//! Many requests under one lock.

use super::inbox::RECEIVER;
use super::state::State;
use super::{CallOptions, Client, SubmitError};
use crate::connection::driver::Guard;
use towpath_requests::body::Body;

/// Requests that are submitted together. The client does nothing else while this exists, so don't hold it across an await,
/// nor for very many requests: none is sent before it is dropped.
pub struct Batch<'a> {
    client: &'a Client,
    state: Option<Guard<'a, State>>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(client: &'a Client) -> Batch<'a> {
        Batch { client, state: Some(client.shared().lock()) }
    }

    /// Submits a request like [`Client::try_send`].
    #[inline]
    pub fn try_send(
        &mut self,
        service: impl AsRef<[u8]>,
        body: impl Into<Body>,
        options: CallOptions,
    ) -> Result<u64, SubmitError> {
        match &mut self.state {
            Some(state) => state.submit(service.as_ref(), body.into(), options, |_| RECEIVER),
            None => Err(SubmitError::Full(body.into())),
        }
    }
}

impl std::fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The client's own Debug would wait for the lock that this holds.
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
