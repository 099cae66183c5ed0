//! Publishing a version.

use super::{Answered, Client, Operation};
use crate::path::Escaped;
use crate::protocol::ErrorCode;
use crate::protocol::control::{PublishRequest, PublishedReply, Reply, WirePath};
use crate::server::Failure;
use crate::server::access_log::{ClientName, shown};
use crate::server::jobs::{Context, RequestState};
use crate::server::stats::RequestKind;
use crate::server::versions::{Freezing, begin};
use towpath_rules::Verb;

/// Freezes what is below a path.
#[derive(Debug)]
pub(super) struct Publish {
    request: PublishRequest,
    freezing: Option<Freezing>,
}

impl Publish {
    pub(super) fn new(request: PublishRequest) -> Publish {
        Publish { request, freezing: None }
    }
}

impl Operation for Publish {
    fn kind(&self) -> RequestKind {
        RequestKind::Publish
    }

    fn id(&self) -> u32 {
        self.request.id
    }

    fn path(&self) -> &WirePath {
        &self.request.path
    }

    fn check(&self, Client { permissions, may_publish }: Client<'_>) -> Result<(), Failure> {
        let message = match permissions.is_unrestricted() {
            true if may_publish => return Ok(()),
            true => {
                "versions are published by who has logged in, or over ipc by the server's user; \
                    and only a server with --watch and --state keeps any (tow serve --accept-publish lets everybody)"
            }
            false if permissions.check(Verb::Publish, self.request.path.as_bytes()) => return Ok(()),
            false => "the server's rules don't allow this client to publish that",
        };
        Err(Failure::new(ErrorCode::Denied, message))
    }

    fn log(&self, ClientName { address, user, key_name: name }: &ClientName) {
        let PublishRequest { id, path, label, .. } = &self.request;
        let path = Escaped(path.as_bytes());
        tracing::info!(%address, user = shown(user), name = shown(name), id, %path, label, "publish");
    }

    fn step(&mut self, context: &Context, state: &RequestState) -> Result<Option<Answered>, Failure> {
        let (Some(published), Some(versions), Some(path)) =
            (&context.published, &context.versions, context.served.path())
        else {
            let message = "this server keeps no versions (tow serve --watch --state DIR)";
            return Err(Failure::new(ErrorCode::Unsupported, message));
        };
        if state.cancel.is_cancelled() {
            return Err(Failure::new(ErrorCode::Io, "cancelled"));
        }
        let freezing = match &mut self.freezing {
            Some(freezing) => freezing,
            None => self.freezing.insert(begin(versions, published, self.request.clone())?),
        };
        let published = freezing.step(&path.look(), published)?;
        let reply = |published| Reply::Published(PublishedReply { id: self.request.id, ..published });
        Ok(published.map(|published| Answered::new(reply(published), None)))
    }
}
