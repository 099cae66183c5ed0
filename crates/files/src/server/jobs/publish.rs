//! Publishing a version.

use super::Answer;
use super::RequestState;
use super::pool::{Context, Pool, Requester};
use crate::protocol::ErrorCode;
use crate::protocol::control::{PublishRequest, PublishedReply};
use crate::server::Failure;
use crate::server::versions::{Freezing, begin};
use std::sync::Arc;

/// Freezes what is below a path.
#[derive(Debug)]
pub(crate) struct Publish {
    pub(crate) request: PublishRequest,
}

impl Publish {
    pub(super) fn start(self, pool: &mut Pool, requester: Requester, request: &Arc<RequestState>) {
        let (_, group) = pool.group(requester, &request.snapshot, None);
        let (state, mut freezing) = (Arc::clone(request), None);
        pool.run_steps(
            &pool.hash,
            group,
            requester,
            |failure| Answer::Publish(Err(failure)),
            move |context| self.step(context, &state, &mut freezing).transpose().map(Answer::Publish),
        );
    }

    /// None if it isn't done yet.
    fn step(
        &self,
        context: &Context,
        state: &RequestState,
        freezing: &mut Option<Freezing>,
    ) -> Result<Option<PublishedReply>, Failure> {
        let (Some(published), Some(versions)) = (&context.published, &context.versions) else {
            let message = "this server keeps no versions (tow serve --watch --state DIR)";
            return Err(Failure::new(ErrorCode::Unsupported, message));
        };
        if state.cancel.is_cancelled() {
            return Err(Failure::new(ErrorCode::Io, "cancelled"));
        }
        let freezing = match freezing {
            Some(freezing) => freezing,
            None => freezing.insert(begin(versions, published, self.request.clone())?),
        };
        freezing.step(&context.root.look(), published)
    }
}
