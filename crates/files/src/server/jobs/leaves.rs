//! Finding leaves of a file, for a client that looks for the broken ones.

use super::pool::{Context, Pool, Requester};
use super::{Answer, RequestState};
use crate::digest::FileHasher;
use crate::limits::LEAVES_PAGE_MAX;
use crate::protocol::ErrorCode;
use crate::protocol::control::{LeavesReply, LeavesRequest};
use crate::server::Failure;
use crate::server::open_file::OpenFile;
use bytes::Bytes;
use std::sync::Arc;

/// Finds leaves of a file, which is hashed if need be.
#[derive(Debug)]
pub(crate) struct Leaves {
    pub(crate) request: LeavesRequest,
}

/// Leaves, and the frame that holds them.
#[derive(Debug)]
pub(crate) struct LeavesAnswer {
    pub(crate) reply: LeavesReply,
    pub(crate) attachment: Bytes,
}

impl Leaves {
    pub(super) fn start(self, pool: &mut Pool, requester: Requester, request: &Arc<RequestState>) {
        let (_, group) = pool.group(requester, &request.snapshot, self.request.path.to_rel_path().ok().as_ref());
        let (request, mut begun) = (Arc::clone(request), None);
        pool.run_steps(
            &pool.hash,
            group,
            requester,
            |failure| Answer::Leaves(Err(failure)),
            move |context| self.slice(context, &request, &mut begun).transpose().map(Answer::Leaves),
        );
    }

    /// None if the file isn't hashed yet: call this again with the same `begun`, which is None at first.
    fn slice(
        &self,
        context: &Context,
        state: &RequestState,
        begun: &mut Option<(OpenFile, Option<FileHasher>)>,
    ) -> Result<Option<LeavesAnswer>, Failure> {
        let request = &self.request;
        let (file, progress) = match begun {
            Some(begun) => begun,
            None => {
                let path = request.path.to_rel_path();
                let path = path.map_err(|error| Failure::new(ErrorCode::NotFound, error.to_string()))?;
                begun.insert((OpenFile::open(&state.root(context), &path)?, None))
            }
        };
        let known = context.hasher.leaves(&file.stat, request.digest).map(Some);
        let Some(digested) = known.map_or_else(|| context.hash(file, progress, &state.cancel), Ok)? else {
            return Ok(None);
        };
        if digested.digest != request.digest {
            return Err(Failure::changed("the file has another digest now"));
        }
        // A file of one leaf has none: its digest is enough.
        let leaves = if digested.leaves.len() > 1 { &*digested.leaves } else { &[] };
        let from = usize::try_from(request.from).unwrap_or(usize::MAX).min(leaves.len());
        let count = request.count.min(LEAVES_PAGE_MAX) as usize;
        let wanted: Vec<_> = leaves.iter().skip(from).take(count).collect();
        let as_u32 = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let reply = LeavesReply {
            id: request.id,
            from: as_u32(from),
            count: as_u32(wanted.len()),
            total: as_u32(leaves.len()),
        };
        let attachment = wanted.into_iter().flatten().copied().collect::<Vec<u8>>().into();
        Ok(Some(LeavesAnswer { reply, attachment }))
    }
}
